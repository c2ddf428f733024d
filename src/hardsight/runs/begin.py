"""How every command starts to write into a folder: the folder holds a plan, and only the same plan is resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hardsight.errors import ExistingPathError, StateError
from hardsight.runs.files import disk_errors, sweep, write_json
from hardsight.runs.identity import UNIDENTIFIED
from hardsight.runs.lock import LOCK_FILES, folder_lock
from hardsight.untrusted import read_json


def differing(stored: Any, plan: Any, name: str = "") -> list[str]:
    """Where two plans differ, by dotted names.

    Examples:
        >>> differing({"model": {"name": "a"}, "bias": True}, {"model": {"name": "b"}, "bias": True})
        ['model.name']
    """
    if isinstance(stored, Mapping) and isinstance(plan, Mapping):
        keys = {**stored, **plan}
        return [d for key in keys for d in differing(stored.get(key), plan.get(key), f"{name}.{key}".lstrip("."))]
    return [] if stored == plan else [name]


@dataclass(frozen=True)
class Layout:
    """What one kind of result leaves in its folder.

    Attributes:
        kind: What messages call it.
        plan_file: Name of the file that holds the plan.
        finished: Whether nothing is left to do; then `overwrite` starts again.
        discard: Removes everything of this kind but the plan, first what would call the rest whole.
        foreign: Names in a folder that are not of this kind; a folder with any is never written to. If not given,
            everything in a folder without a plan, and nothing in one that has it.
        differing: What differs between the plan in the folder and the new one.
        files: Names of files whose half-written remains are swept at the start, in the folder and in `folders`.
        folders: A glob pattern.
    """

    kind: str
    plan_file: str
    finished: Callable[[Path], bool]
    discard: Callable[[Path], None]
    foreign: Callable[[Path], Sequence[str]] | None = None
    differing: Callable[[dict[str, Any], dict[str, Any]], list[str]] = differing
    files: re.Pattern[str] = re.compile(r"(?!)")
    folders: str = ""


def begin(
    path: Path, plan: Mapping[str, Any], layout: Layout, *, overwrite: bool = False, shard: tuple[int, int] = (0, 1)
) -> ExitStack:
    """Lock a folder, which is made if needed, and make it hold a plan.

    A free folder takes the plan, the same plan is resumed, another is refused or, with `overwrite`, discarded. An
    unfinished result of the same plan is resumed even then.

    Returns:
        The lock, to be closed at the end.
    """
    plan, file = json.loads(json.dumps(plan, default=str)), path / layout.plan_file
    if path.is_file():
        raise ExistingPathError(f"out: {path} is a file; name a folder.")
    with disk_errors(path), ExitStack() as stack:
        stack.enter_context(folder_lock(path, shard=shard))
        for folder in (path, *(path.glob(layout.folders) if layout.folders else ())):
            sweep(folder, layout.files)
        if foreign := (layout.foreign or partial(_unplanned, file))(path):
            raise ExistingPathError(f"out: {path} has other things in it ({foreign[0]} …); choose another folder.")
        stored = _stored_plan(file, layout, overwrite)
        names = [] if stored is None else layout.differing(stored, plan)
        if overwrite and (names or layout.finished(path)):
            layout.discard(path)
        elif names and not (shard[1] == 1 and _only_planned(path, file)):
            raise ExistingPathError(_refusal(path, layout.kind, names, plan))
        if stored != plan:
            write_json(file, plan)
        return stack.pop_all()


def _stored_plan(file: Path, layout: Layout, overwrite: bool) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        return read_json(file, {}, "out")
    except StateError:
        if overwrite:
            return {}
        raise StateError(
            f"out: {file} is damaged; bring it back, overwrite the {layout.kind}, or choose another folder."
        ) from None


def _unplanned(file: Path, path: Path) -> list[str]:
    return [] if file.exists() else [item.name for item in path.iterdir() if not LOCK_FILES.fullmatch(item.name)]


def _only_planned(path: Path, file: Path) -> bool:
    """Whether a start ended before it computed anything: it binds nobody."""
    return all(item.is_dir() or item == file or LOCK_FILES.fullmatch(item.name) for item in path.rglob("*"))


def _refusal(path: Path, kind: str, names: list[str], plan: Mapping[str, Any]) -> str:
    names = [name for name in names if not name.startswith(UNIDENTIFIED)] or names
    sentence = (
        f"out: {path} holds another {kind} (not the same: {', '.join(names)}); choose another folder, or overwrite it "
        "(--overwrite)."
    )
    if UNIDENTIFIED in plan:
        what = ", ".join(plan[UNIDENTIFIED]["what"])
        sentence += (
            f" {what} can change unnoticed; with a version (open_data(…, version=…), or --data-version of score) it "
            "can be resumed."
        )
    return sentence
