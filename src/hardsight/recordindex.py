"""The index of a recorder's files: replacing it is what commits an epoch, and reading starts from it.

It is checked as a whole when it is read: whatever is not as a recorder writes it is an error here, and no surprise
later.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

from hardsight.errors import MissingPathError, StateError
from hardsight.extras import printable
from hardsight.runs import DYNAMICS, INDEX, SCHEMAS, disk_errors, sweep, write_text
from hardsight.untrusted import read_json

VERSION = SCHEMAS[DYNAMICS].version

# Epochs are stored in 32 bits.
MOST_EPOCHS = 2**31 - 1

_NAME = re.compile(r"[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")

Result = TypeVar("Result")


@dataclass
class Index:
    """What is committed.

    Attributes:
        files: Name, epochs and ids (first and last of each), rows and bytes of every file.
        epochs: The epochs that were recorded, in order; the last one is unfinished where `open`.
        steps: How many batches had been recorded at the end of each epoch.
        heads: The files of class weights.
        states: By epoch, the file that the next epoch is compared with (the last two are kept).
        open: Whether the last epoch was flushed before its end.
        owner: The recorder that may write.
    """

    files: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    open: bool = False
    owner: str = ""
    version: int = VERSION

    def names(self) -> set[str]:
        return {file["name"] for file in self.files} | set(self.states.values()) | set(self.heads)

    def copied(self) -> Index:
        """A copy whose lists can grow without those of this one."""
        return Index(**{f.name: _copied(getattr(self, f.name)) for f in fields(self)})


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, (list, dict)) else value


def has_records(run: str | Path) -> bool:
    """Whether a run holds records of training."""
    return (Path(run) / DYNAMICS / INDEX).is_file()


def read_index(run: str | Path) -> Index:
    """What is committed in a run; empty where nothing is."""
    file = Path(run) / DYNAMICS / INDEX
    if not file.is_file():
        return Index()
    stored = read_json(file, dict[str, Any])
    try:
        return _checked(stored, file)
    except MissingPathError as error:
        if (
            has_records(run) and read_json(file, dict[str, Any]) != stored
        ):  # a recorder has just put other files in their place
            return read_index(run)
        raise StateError(f"RUN: {run} is damaged: {error}") from None


def read_with(run: str | Path, read: Callable[[Index], Result]) -> Result:
    """What a function reads from the files of the index; once more where a recorder has replaced them meanwhile."""
    while True:
        index = read_index(run)  # an error where a file that it names is missing
        try:
            return read(index)
        except FileNotFoundError:
            continue


def _checked(stored: dict[str, Any], file: Path) -> Index:
    """The index that a file holds.

    Raises:
        MissingPathError: A file that it names is missing, or has another size.
    """
    version: Any = stored.get("version", VERSION)
    if _is_count(version) and version > VERSION:
        raise StateError(
            f"RUN: the records of {file.parents[1]} were written by a newer hardsight (version {version}, this one "
            f"reads {VERSION}); upgrade hardsight."
        )
    if wrong := [name for name, value in stored.items() if name not in _FIELDS or not _FIELDS[name](value)]:
        raise StateError(f"RUN: {file} is damaged: {printable(wrong[0])[:40]} is not as a recorder writes it.")
    index = Index(**stored)
    first, last = (index.epochs[0], index.epochs[-1]) if index.epochs else (1, 0)
    if any(not first <= entry["epochs"][0] <= entry["epochs"][1] <= last for entry in index.files):
        raise StateError(f"RUN: {file} is damaged: files hold epochs that are not recorded.")
    sizes = {entry["name"]: entry["bytes"] for entry in index.files}
    for name in index.names():
        try:  # asked once: a recorder may sweep the file between two questions
            status = (file.parent / name).stat()
        except FileNotFoundError:
            status = None
        if status is None or not S_ISREG(status.st_mode) or status.st_size != sizes.get(name, status.st_size):
            raise MissingPathError(f"{DYNAMICS}/{name} is missing or not as it was written.")
    return index


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_epoch(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_EPOCHS


def _is_name(value: Any) -> bool:
    """A file of a recorder, and so never a path that leads out of its folder."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_span(value: Any, kind: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(kind, value)) and value[0] <= value[1]


def _is_entry(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "epochs", "ids", "rows", "bytes"}
        and _is_name(value["name"])
        and _is_span(value["epochs"], _is_epoch)
        and _is_span(value["ids"], lambda id_: isinstance(id_, str))
        and _is_count(value["rows"])
        and _is_count(value["bytes"])
    )


def _is_by_epoch(value: Any, kind: Callable[[Any], bool]) -> bool:
    keys = value if isinstance(value, dict) else [""]
    return all(re.fullmatch("[1-9][0-9]{0,9}", key) and _is_epoch(int(key)) and kind(value[key]) for key in keys)


def _is_ascending(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_epoch, value)) and value == sorted(set(value))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "files": lambda value: isinstance(value, list) and all(map(_is_entry, value)),
    "epochs": _is_ascending,
    "steps": lambda value: _is_by_epoch(value, _is_count),
    "heads": lambda value: isinstance(value, list) and all(map(_is_name, value)),
    "states": lambda value: _is_by_epoch(value, _is_name),
    "open": lambda value: isinstance(value, bool),
    "owner": lambda value: isinstance(value, str),
    "version": _is_count,
}


def commit(run: Path, index: Index) -> None:
    """Make the index what is recorded; only then sweep the files of a recorder that it does not name."""
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
