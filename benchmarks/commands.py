"""Whole commands as a user starts them: help, imports and the demo."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from benchmarks.measure import Case, Comparison


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def startup() -> Iterator[Comparison]:
    """Help, and `import hardsight` (all of its public names) against `import torch`."""
    yield Comparison(
        [
            Case("import torch", partial(_python, "-c", "import torch")),
            Case("import hardsight", partial(_python, "-c", "import hardsight"), "import torch", 1.2),
            Case(
                "import hardsight, torch, avh",
                partial(_python, "-c", "import hardsight; hardsight.avh; hardsight.capture"),
                "import torch",
                1.2,
            ),
            Case("hardsight --help", partial(_python, "-m", "hardsight", "--help"), limit=0.5),
        ],
        rounds=9,
    )


def demo() -> Iterator[Comparison]:
    """The whole demo as a user starts it."""
    with tempfile.TemporaryDirectory() as root:
        run = partial(_python, "-m", "hardsight", "demo", "-o", f"{root}/run")
        yield Comparison([Case("hardsight demo", run, limit=60)], rounds=3)
