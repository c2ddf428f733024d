"""Where results go: a folder or file that appears only when it is whole, and that replaces nothing but its like."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardsight.errors import ExistingPathError, InputError
from hardsight.runs import TEMPORARY, temporary_name

# A file in every folder that was written here: what was done, and how many files there are beside it.
MARK = "hardsight-cleaned.json"


def check_target(target: Path, overwrite: bool, ours: Callable[[Path], bool]) -> None:
    """Refuse to write where something else is, or where an earlier result is unless it may be replaced."""
    if target.is_symlink():
        raise ExistingPathError(f"{target} is a link; name the place itself.")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not ours(target):
        raise ExistingPathError(f"{target} is there already and not written by hardsight clean; choose another name.")
    if not overwrite:
        raise ExistingPathError(f"{target} is there already; choose another name, or --overwrite it.")


def check_apart(target: Path, other: Path, what: str = "the data themselves") -> None:
    """Refuse to write into what must not change, around it, or over it."""
    here, there = target.resolve(), other.resolve()
    if here == there or there in here.parents or here in there.parents:
        raise InputError(f"{target} must not hold, or lie in, {what} ({other}); choose another place.")


def our_folder(folder: Path) -> bool:
    """Whether a folder is an earlier result and holds nothing else."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and mark.get("files") == _files(folder) - 1


def _files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def write_folder(target: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Build a folder beside the target, mark it, and give it the target's name; returns what `build` says it did."""
    with _beside(target) as temporary:
        temporary.mkdir()
        summary = dict(build(temporary))
        mark = {"files": _files(temporary), **summary}
        (temporary / MARK).write_text(json.dumps(mark, indent=1, default=str), encoding="utf-8")
        # A folder cannot be replaced in one step. The old one goes aside under a name of its own, so that after a kill
        # between the two renames the next start puts it back.
        aside = _aside(target)
        if target.is_dir():
            if any(target.iterdir()):
                target.rename(aside)
            else:
                target.rmdir()
        temporary.rename(target)
        if our_folder(aside):
            shutil.rmtree(aside, ignore_errors=True)
    return summary


def write_file(target: Path, build: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Build a file beside the target, and give it the target's name; returns what `build` says it did."""
    with _beside(target) as temporary:
        summary = dict(build(temporary))
        temporary.replace(target)
    return summary


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A temporary name in the same folder, gone afterwards whatever happens, like those that a kill left before."""
    temporary = temporary_name(target.absolute())
    temporary.parent.mkdir(parents=True, exist_ok=True)
    for path in list(temporary.parent.glob(".*.tmp")):
        stray = TEMPORARY.fullmatch(path.name)
        if stray is not None and stray["target"] == target.name:
            _remove(path)
    try:
        yield temporary
    finally:
        _remove(temporary)


def _aside(target: Path) -> Path:
    target = target.absolute()
    return target.parent / f".{target.name[:100]}.old"


def recover(target: Path) -> None:
    """Put back what a kill between the two renames of `write_folder` left aside, or remove it where the new one is."""
    aside = _aside(target)
    if not our_folder(aside):
        if aside.exists():
            raise ExistingPathError(f"{aside} is in the way and not written by hardsight clean; move it.")
    elif target.exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.rename(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
