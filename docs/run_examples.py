"""Run what the pages show: python docs/run_examples.py [PAGE.md …]

Each page gets an empty folder and its blocks run there in order. A block with a caption is a file of that name,
``console`` blocks are commands, ``pycon`` blocks a Python session; what they print is compared, ``...`` stands for
anything. Other blocks (``sh``, ``text``) are not run: they need a network or a machine of your own.

A page and each of its commands have a process of their own: what it imports and changes ends with it. Most of what
they cost is to import the same libraries, so these are imported once and the processes forked from there; hardsight
itself each of them imports anew.
"""

from __future__ import annotations

import doctest
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
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
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.M)
PYTHON = re.compile(r"(?:python|hardsight) [^|&;<>$*`]*")  # no work for a shell
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["torch._dynamo", "pandas", "pyarrow.parquet", "scipy.stats", "sklearn.datasets", "safetensors.torch", "tyro"]
)


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
    for command, wanted in COMMAND.findall(body):
        code, out, err = _ran(command)
        same = any(doctest.OutputChecker().check_output(wanted, said, LOOSE) for said in (out + err, out))
        if wanted.strip() and not same:
            yield f"{command}\nexpected:\n{wanted}got:\n{out}{err}"
        elif not wanted.strip() and code:
            yield f"{command}\nfailed:\n{out}{err}"


def _ran(command: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors."""
    if not PYTHON.fullmatch(command):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "100"}
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
        return ran.returncode, ran.stdout, ran.stderr
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = FORKED.Process(target=_script, args=(shlex.split(command.replace("\\\n", " ")), out, err))
        process.start()
        process.join()
        return process.exitcode, out.read_text(), err.read_text()


def _script(words: list[str], out: Path, err: Path) -> None:
    """What ``python FILE …`` or an installed command does."""
    for stream, path in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream.fileno())
    multiprocessing.set_start_method(None, force=True)  # not ours: the one that a fresh process has
    os.environ["COLUMNS"] = "100"
    if words[0] == "python":
        sys.argv = words[1:]
    else:
        sys.argv = [shutil.which(words[0], path=Path(sys.executable).parent) or words[0], *words[1:]]
    sys.path[0] = str(Path(sys.argv[0]).parent.resolve())
    runpy.run_path(sys.argv[0], run_name="__main__")


def run(page: Path) -> None:
    """Run a page in an empty folder; the exit code says whether it lies."""
    multiprocessing.set_start_method(None, force=True)  # not ours: the one that a fresh process has
    sys.path.insert(0, "")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = list(failures(page))
        os.chdir(HERE)
    print(*found, f"{page.relative_to(HERE)}: run", sep="\n", flush=True)
    sys.exit(bool(found))


def main(pages: list[Path]) -> int:
    """How many pages lie."""

    def alone(page: Path) -> bool:
        process = FORKED.Process(target=run, args=(page,))
        process.start()
        process.join()
        return process.exitcode != 0

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return sum(pool.map(alone, pages))


if __name__ == "__main__":
    asked = [Path(page).resolve() for page in sys.argv[1:]] or sorted(HERE.glob("**/*.md"))
    asked.sort(key=lambda page: page.name != "start.md")  # it takes longest: at the end one core would wait
    sys.exit(min(1, main(asked)))
