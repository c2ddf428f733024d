"""How every command starts to write into a folder: the folder holds a plan, and only the same plan is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hardsight.errors import ExistingPathError, StateError
from hardsight.runs.files import TEMPORARY, disk_errors, write_json
from hardsight.runs.identity import UNIDENTIFIED
from hardsight.runs.lock import LOCK_FILES, folder_lock
from hardsight.untrusted import read_json

FORMAT_KEY = "hardsight_format"  # marks plan.json and meta.json as ours


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


def begin(
    file: Path,
    plan: Mapping[str, Any],
    kind: str,
    *,
    finished: Callable[[], bool],
    discard: Callable[[], None],
    differing: Callable[[dict[str, Any], dict[str, Any]], list[str]] = differing,
    overwrite: bool = False,
    shard: tuple[int, int] = (0, 1),
) -> ExitStack:
    """Lock a folder, which is made if needed, and make it hold a plan.

    An empty folder takes the plan, the same plan is resumed, another is refused or, with `overwrite`, discarded. An
    unfinished result of the same plan is resumed even then. A folder with files but no plan is never written to.

    Args:
        file: Where the plan is stored in the folder.
        plan: Everything that decides the result.
        kind: What messages call the result.
        finished: Whether nothing is left to do; then `overwrite` starts again.
        discard: Removes the result and nothing else, first what would call the rest whole; the plan is replaced later.
        differing: Names of what differs between the plan in the folder and the new one.
        overwrite: Discard a finished result, or one of another plan.
        shard: Rank of this process and number of processes.

    Returns:
        The lock, to be closed at the end.
    """
    path, plan = file.parent, json.loads(json.dumps(plan, default=str))
    if path.is_file():
        raise ExistingPathError(f"out: {path} is a file; name a folder.")
    with disk_errors(path), folder_lock(path, shard) as lock:
        stored = _stored(file, kind, overwrite)
        other = content_beside(file)
        if stored is not None and FORMAT_KEY in plan and FORMAT_KEY not in stored:  # a plan of another program
            stored, other = None, file
        if stored is None and other is not None:
            raise ExistingPathError(f"out: {path} has other things in it ({other.name} …); choose another folder.")
        names = [] if stored is None else differing(stored, plan)
        if overwrite and (names or finished()):
            discard()
        elif names and (shard[1] > 1 or other is not None):  # a start that computed nothing binds nobody
            raise ExistingPathError(_refusal(path, kind, names, plan))
        if stored != plan:
            write_json(file, plan)
        return lock.pop_all()


def _stored(file: Path, kind: str, overwrite: bool) -> dict[str, Any] | None:
    try:
        return read_json(file, dict[str, Any], "out") if file.exists() else None
    except StateError as error:
        if overwrite:
            return {}
        raise StateError(f"{error} Bring it back, overwrite the {kind}, or choose another folder.") from None


def content_beside(file: Path) -> Path | None:
    """Some file in the folder of a plan or below, but for the plan, locks and what is half-written."""
    passing = (LOCK_FILES, TEMPORARY)
    files = (item for item in file.parent.rglob("*") if item != file and not item.is_dir())
    return next((item for item in files if not any(names.fullmatch(item.name) for names in passing)), None)


def _refusal(path: Path, kind: str, names: list[str], plan: Mapping[str, Any]) -> str:
    names = [name for name in names if not name.startswith(UNIDENTIFIED)] or names
    sentence = f"out: {path} holds another {kind} (not the same: {', '.join(names)}); choose another folder, or "
    sentence += "overwrite it (--overwrite)."
    if UNIDENTIFIED in plan:
        sentence += f" {', '.join(plan[UNIDENTIFIED]['what'])} can change unnoticed; with a version (open_data(…, "
        sentence += "version=…), or --data-version of score) it can be resumed."
    return sentence
