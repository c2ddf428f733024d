"""The index of a recorder's files: replacing it commits an epoch, and reading starts from it.

It is checked as a whole when it is read, so that nothing in it surprises a reader later.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypedDict, TypeVar

from hardsight.errors import InputError, StateError
from hardsight.runs import DYNAMICS, INDEX, SCHEMAS, disk_errors, sweep, write_text
from hardsight.untrusted import read_json, typed

VERSION = SCHEMAS[DYNAMICS].version
MOST_EPOCHS = 2**31 - 1  # epochs are stored in 32 bits

_NAME = re.compile(r"[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")

Result = TypeVar("Result")


class Entry(TypedDict):
    """A file of rows: the first and last epoch and id that it holds, and its size."""

    name: str
    epochs: list[int]
    ids: list[str]
    rows: int
    bytes: int


@dataclass
class Index:
    """What is committed.

    Attributes:
        files: The files of rows.
        epochs: The recorded epochs, in order; the last one is unfinished where `open`.
        steps: The number of batches recorded by the end of each epoch.
        heads: The files of class weights.
        states: By epoch, the file that the next epoch is compared with (the last two are kept).
        open: Whether the last epoch was flushed before its end.
        owner: The recorder that may write.
    """

    files: list[Entry] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    open: bool = False
    owner: str = ""
    version: int = VERSION

    def names(self) -> set[str]:
        return {entry["name"] for entry in self.files} | set(self.states.values()) | set(self.heads)


def has_records(run: str | Path) -> bool:
    """Whether a run holds records of training."""
    return (Path(run) / DYNAMICS / INDEX).is_file()


def read_index(run: str | Path) -> Index:
    """What is committed in a run; an empty index where nothing is.

    Raises:
        StateError: The index is damaged, a file that it names is missing, or hardsight is too old for it.
    """
    file = Path(run) / DYNAMICS / INDEX
    while file.is_file():
        stored = read_json(file, dict[str, Any])
        try:
            index = _checked(stored)
        except InputError as error:
            raise StateError(f"RUN: {file} is damaged: {error}.") from None
        if index.version > VERSION:
            raise StateError(
                f"RUN: the records of {run} were written by a newer hardsight (version {index.version}, this one reads "
                f"{VERSION}); upgrade hardsight."
            )
        sizes = {entry["name"]: entry["bytes"] for entry in index.files}
        missing = [name for name in index.names() if not _is_whole(file.parent / name, sizes.get(name))]
        if not missing:
            return index
        if file.is_file() and read_json(file, dict[str, Any]) == stored:  # otherwise a recorder has replaced the files
            raise StateError(f"RUN: {run} is damaged: {DYNAMICS}/{missing[0]} is missing or not as it was written.")
    return Index()


def read_with(run: str | Path, read: Callable[[Index], Result]) -> Result:
    """What a function reads from the files of the index; it reads again if a recorder replaces them meanwhile."""
    while True:
        index = read_index(run)  # raises where a file is missing for good
        try:
            return read(index)
        except FileNotFoundError:
            continue


def _checked(stored: dict[str, Any]) -> Index:
    index = typed(stored, Index)
    first, last = (index.epochs[0], index.epochs[-1]) if index.epochs else (1, 0)
    by_epoch = [*index.steps, *index.states]
    checks = {
        "epochs": all(a < b for a, b in pairwise([0, *index.epochs, MOST_EPOCHS + 1])),
        "names": all(map(_NAME.fullmatch, index.names())),  # and so never a path that leads out of the folder
        "epochs or ids of files": all(
            _is_span(entry["epochs"])
            and first <= entry["epochs"][0]
            and entry["epochs"][1] <= last
            and _is_span(entry["ids"])
            for entry in index.files
        ),
        "steps or states": all(re.fullmatch("[1-9][0-9]{0,9}", epoch) for epoch in by_epoch),
    }
    if wrong := [name for name, right in checks.items() if not right]:
        raise InputError(f"its {wrong[0]} are not as a recorder writes them")
    return index


def _is_span(value: list[Any]) -> bool:
    return len(value) == 2 and value[0] <= value[1]


def _is_whole(path: Path, size: int | None) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return S_ISREG(status.st_mode) and size in (None, status.st_size)


def commit(run: Path, index: Index) -> None:
    """Replace the index, and only then remove the files that it no longer names."""
    folder, named = run / DYNAMICS, index.names()
    with disk_errors(run):
        write_text(folder / INDEX, json.dumps(vars(index)))
        sweep(folder)
        for stray in folder.iterdir():
            if _NAME.fullmatch(stray.name) and stray.name not in named and not stray.is_dir():
                stray.unlink(missing_ok=True)


def new_name(kind: str = "parquet") -> str:
    """A file name that no other start takes."""
    return f"{secrets.token_hex(8)}.{kind}"
