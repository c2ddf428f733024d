"""A run on disk: versioned tables in parts, each part committed by a marker, the whole by ``meta.json``.

The reference of the run folder describes every file. One process at a time writes a run, or the processes of one job,
each its share. Every other command begins its folder in the same way, with a plan. Nothing is removed or written over
that hardsight did not write.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.errors import ExistingPathError, HardsightError, InputError, MissingPathError, StateError
from hardsight.runs.files import (
    TEMPORARY,
    disk_errors,
    is_page,
    remove_files,
    sweep,
    write_json,
    write_together,
    write_whole,
)
from hardsight.runs.identity import UNIDENTIFIED
from hardsight.runs.lock import LOCK_FILES, folder_lock
from hardsight.runs.meta import FORMAT, FORMAT_KEY, META_FILE, PLAN_FILE, Meta, read_meta
from hardsight.runs.tables import SCHEMAS, as_written, damage_errors, merged, read_part
from hardsight.untrusted import read_json

STAGES, FEATURES, DYNAMICS, INDEX = "stages", "features", "dynamics", "index.json"
# What other commands write into a run by default.
REPORT, LISTS, ALIGNMENT, DEGRADED = "report.html", "lists", "alignment", "degraded"
SUMMARY = "summary.json"  # of an alignment, which is whole if and only if it is there
_GROUP_ROWS = 1 << 16
_FOLDERS = ("parts", *SCHEMAS)
_PARTS = re.compile(r"\d{4}-\d{6}-[0-9a-f]+\.(json|parquet)|[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")


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
        ours = FORMAT_KEY not in plan or _is_ours(path)  # or it may be a plan of another program
        stored = _stored(file, kind, overwrite or not ours)
        other = content_beside(file)
        if stored is not None and not ours:
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


def _stored(file: Path, kind: str, damaged: bool) -> dict[str, Any] | None:
    try:
        return read_json(file, dict[str, Any], "out") if file.exists() else None
    except StateError as error:
        if damaged:
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
        sentence += "version=…), or --data-version) it can be resumed."
    return sentence


class RunWriter:
    """Writes a run part by part; every part that `write` returned from survives any kill.

    It holds the folder's lock until `close`.

    Args:
        path: The run folder, made if needed.
        plan: What is being computed. A folder that holds another plan is refused. Its ``source`` and ``preprocessing``
            may differ, because data may move while a run is interrupted and words may change. Where it has a key
            ``unidentified``, which says what can change unnoticed, no plan equals it.
        overwrite: Discard whatever run is there.
        shard: Rank of this process and number of processes; each writes parts of its own.
        meet: Called when all processes must have come so far; needed to overwrite with several.
    """

    def __init__(
        self,
        path: str | Path,
        plan: Mapping[str, Any],
        *,
        overwrite: bool = False,
        shard: tuple[int, int] = (0, 1),
        meet: Callable[[], object] | None = None,
    ) -> None:
        self.path, self.rank = Path(path), shard[0]
        if overwrite and shard[1] > 1 and meet is None:
            raise InputError("overwrite must be left out with shard: each process would discard the others' rows.")
        if meet is not None and self.rank:
            meet()  # the first process has discarded what there was
            overwrite = False
        self._lock = begin(
            self.path / PLAN_FILE,
            {**plan, FORMAT_KEY: FORMAT},
            "run",
            finished=lambda: self.complete,
            discard=lambda: discard(self.path, replaced=True),
            differing=_differing,
            overwrite=overwrite,
            shard=shard,
        )
        for name in _FOLDERS if shard[1] == 1 else ():
            sweep(self.path / name)
        if meet is not None and not self.rank:
            meet()
        self._token = secrets.token_hex(4)  # two starts into one folder must not take one name
        self._parts = len([*(self.path / "parts").glob(f"{self.rank:04d}-*.json")])

    def close(self) -> None:
        """Let others write the run."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def complete(self) -> bool:
        return (self.path / META_FILE).exists()

    def done(self) -> set[str]:
        """Ids that are safe on disk."""
        return {i for part in _parts(self.path) for i in read_part(part["samples"], "samples")["id"].to_pylist()}

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Write one part (some of the kinds of table) and commit it."""
        name = f"{self.rank:04d}-{self._parts:06d}-{self._token}"
        files = {kind: self.path / kind / f"{name}.parquet" for kind in tables}
        with disk_errors(self.path):
            rows = {kind: as_written(kind, table) for kind, table in tables.items()}
            writers = {kind: partial(pq.write_table, rows[kind], row_group_size=_GROUP_ROWS) for kind in rows}
            write_together(*(partial(write_whole, files[kind], writers[kind]) for kind in rows))
            marker = {kind: {"rows": len(tables[kind]), "bytes": file.stat().st_size} for kind, file in files.items()}
            write_json(self.path / "parts" / f"{name}.json", marker)
        self._parts += 1

    def finish(self, meta: Meta) -> None:
        """Say that the run is whole; its stages, whose rows are in it, go."""
        with disk_errors(self.path):
            write_json(self.path / META_FILE, meta.to_json())
            _discard_runs(self.path / STAGES)


def _differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Data may move while a run is interrupted, and the words for a preprocessing may change."""
    same = {name: plan.get(name) for name in ("source", "preprocessing")}
    return differing({**stored, **same}, {**plan, **same})


def is_run(path: str | Path) -> bool:
    """Whether a folder holds a run, whole or begun."""
    files = [Path(path) / name for name in (META_FILE, PLAN_FILE)]  # a finished run does not need its plan
    return any(file.is_file() and FORMAT_KEY in read_json(file, dict[str, Any]) for file in files)


def _is_ours(path: Path) -> bool:
    """Whether a folder holds a run, also one whose plan or meta data are damaged: then its parts tell."""
    damaged = False
    for file in (path / META_FILE, path / PLAN_FILE):
        try:
            if file.is_file() and FORMAT_KEY in read_json(file, dict[str, Any]):
                return True
        except StateError:
            damaged = True
    folders = [run / name for run in (path, *path.glob(f"{STAGES}/*")) for name in _FOLDERS]
    return damaged and any(_PARTS.fullmatch(file.name) for folder in folders for file in folder.glob("*"))


def is_alignment(file: Path) -> bool:
    """Whether a file is the summary of an alignment that hardsight wrote."""
    with suppress(HardsightError):
        return "coefficient" in read_json(file, dict[str, Any])
    return False


def discard(path: Path, *, replaced: bool = False) -> None:
    """Remove a run, and nothing that is not the run's.

    First what calls it whole, then what calls its parts whole, last what calls it a run: killed between any two, it
    leaves an unfinished run.

    Args:
        path: The run folder.
        replaced: Leave ``plan.json``, which another is written over, so that the folder is a run at any time. It also
            stays where other files do.
    """
    if not _is_ours(path):
        return
    for file in (path / META_FILE, path / DYNAMICS / INDEX):
        file.unlink(missing_ok=True)
    for file, is_ours in ((path / REPORT, is_page), (path / ALIGNMENT / SUMMARY, is_alignment)):
        if is_ours(file):  # it would show the numbers of a run that is gone
            file.unlink()
    for name in _FOLDERS:
        remove_files(path / name, _PARTS)
    _discard_runs(path / STAGES)
    _discard_runs(path / DEGRADED)
    if not replaced and content_beside(path / PLAN_FILE) is None:
        remove_files(path, re.compile(rf"{re.escape(PLAN_FILE)}|{LOCK_FILES.pattern}"))


def _discard_runs(folder: Path) -> None:
    for run in folder.glob("*/"):
        discard(run)
    with suppress(OSError):
        folder.rmdir()


def read_run(
    path: str | Path, *, partial: bool = False, kinds: Collection[str] = tuple(SCHEMAS)
) -> tuple[dict[str, pa.Table], Meta]:
    """The tables of a run by kind, and its meta data.

    Args:
        path: The run folder.
        partial: Also read a run that is not whole (its meta data are then the plan's, with ``unfinished``).
        kinds: Which tables to read.
    """
    path = Path(path)
    if not is_run(path):
        raise MissingPathError(f"RUN: {path} holds no hardsight run{'' if path.exists() else ': no such folder'}.")
    whole = (path / META_FILE).exists()
    parts = _parts(path)
    if not whole and not parts:  # what its stages have so far; one that only gathers features has no rows
        stages = [stage for stage in sorted((path / STAGES).glob("*")) if is_run(stage) and stage.name != FEATURES]
        parts = [part for stage in stages for part in _parts(stage)]
    if not whole and not partial:
        rows = sum(len(read_part(part["samples"], "samples")) for part in parts if "samples" in part)
        raise StateError(
            f"RUN: {path} is not finished ({rows:,} samples are safe): run the same command again to resume it, "
            "or load it with partial=True."
        )
    meta = read_meta(path / (META_FILE if whole else PLAN_FILE))
    meta.unfinished = not whole
    tables = {}
    for kind in kinds:
        pieces = [read_part(part[kind], kind) for part in parts if kind in part]
        if pieces:
            with damage_errors(path):
                tables[kind] = merged(pa.concat_tables(pieces, promote_options="default"), kind)
    expected = meta.counts.rows + meta.counts.bad if meta.counts else 0
    if whole and "samples" in kinds and len(tables.get("samples", ())) < expected:
        raise StateError(f"RUN: {path} is damaged: parts are missing ({expected:,} samples were written).")
    return tables, meta


def _parts(path: Path) -> list[dict[str, Path]]:
    """Files of the committed parts; a committed file that is missing or truncated is an error."""
    parts = []
    for marker in sorted((path / "parts").glob("[0-9]*.json")):
        files = {}
        for kind, entry in read_json(marker, dict[str, dict[str, Any]]).items():
            file = path / kind / f"{marker.stem}.parquet"  # never a path that the marker itself names
            if kind not in SCHEMAS or not file.is_file() or file.stat().st_size != entry.get("bytes"):
                raise StateError(f"RUN: {path} is damaged: {kind}/{file.name} is missing or not as it was written.")
            files[kind] = file
        parts.append(files)
    return parts
