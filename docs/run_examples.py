"""Run what the pages show: python docs/run_examples.py [PAGE.md …]

Each page gets an empty folder and its blocks run there in order. A block with a caption is a file of that name,
``console`` blocks are commands, ``pycon`` blocks a Python session; what they print is compared, ``...`` stands for
anything. Other blocks (``sh``, ``text``) are not run: they need a network or a machine of your own.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # what the pages train is too small to gain from a second thread

HERE = Path(__file__).resolve().parent
FENCE = re.compile(r"^```(?:\{code-block\} )?(\w+)\n(?::caption: (\S+)\n\n?)?(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", re.M)
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def failures(page: Path) -> Iterator[str]:
    """What does not come out as the page says."""
    names: dict[str, Any] = {"__name__": "__main__"}
    text = page.read_text()
    for match in FENCE.finditer(text):
        language, file, body = match.groups()
        where = f"{page.relative_to(HERE)}:{text.count(chr(10), 0, match.start()) + 1}"
        if file:
            Path(file).write_text(body)
        elif language == "console":
            yield from (f"{where}: {problem}" for problem in _commands(body))
        elif language == "pycon":
            test = doctest.DocTestParser().get_doctest(body, names, where, str(page), 0)
            said: list[str] = []
            if doctest.DocTestRunner(optionflags=LOOSE).run(test, out=said.append, clear_globs=False).failed:
                yield f"{where}: {''.join(said)}"
            names = test.globs


def _commands(body: str) -> Iterator[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, wanted in COMMAND.findall(body):
        ran = subprocess.run(
            command, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path, "COLUMNS": "100"}
        )
        got = ran.stdout + ran.stderr
        same = any(doctest.OutputChecker().check_output(wanted, said, LOOSE) for said in (got, ran.stdout))
        if wanted.strip() and not same:
            yield f"{command}\nexpected:\n{wanted}got:\n{got}"
        elif not wanted.strip() and ran.returncode:
            yield f"{command}\nfailed:\n{got}"


def run(page: Path) -> int:
    """How many blocks of a page lie, run in an empty folder."""
    sys.path.insert(0, "")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = list(failures(page))
        os.chdir(HERE)
    print(*found, f"{page.relative_to(HERE)}: run", sep="\n", flush=True)
    return len(found)


def main(pages: list[Path]) -> int:
    """How many pages lie. Each has a process of its own: what it imports and changes ends with it."""

    def alone(page: Path) -> int:
        return subprocess.run([sys.executable, __file__, page]).returncode

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(alone, pages))


if __name__ == "__main__":
    asked = [Path(page).resolve() for page in sys.argv[1:]] or sorted(HERE.glob("**/*.md"))
    sys.exit(min(1, run(asked[0]) if len(asked) == 1 else main(asked)))
