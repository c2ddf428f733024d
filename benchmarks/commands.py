"""Whole commands as a user starts them: help, imports and the demo."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from benchmarks.measure import interleaved, ratios, row


def startup() -> list[dict]:
    """Help, and `import hardsight` (all of its public names) against `import torch`."""

    def python(code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    seconds = interleaved(
        {
            "import torch": lambda: python("import torch"),
            "import hardsight": lambda: python("import hardsight"),
            "import hardsight, torch, avh": lambda: python("import hardsight; hardsight.avh; hardsight.capture"),
            "hardsight --help": lambda: subprocess.run(
                [sys.executable, "-m", "hardsight", "--help"], check=True, capture_output=True
            ),
        },
        9,
    )
    rows = ratios("startup", seconds, "import torch", {"import hardsight": 1.2, "import hardsight, torch, avh": 1.2})
    rows[-1] |= {"ratio": "", "baseline": "", "limit": 0.5}
    return rows


def demo() -> list[dict]:
    """The whole demo as a user starts it."""
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "hardsight", "demo", "-o", f"{root}/run"]
        seconds = interleaved({"hardsight demo": lambda: subprocess.run(command, check=True, capture_output=True)}, 3)
    return [row("demo", "hardsight demo", seconds["hardsight demo"], "s", limit=60)]
