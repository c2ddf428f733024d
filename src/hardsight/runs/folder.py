"""A run on disk: versioned tables in units of work, each committed by a marker, the whole by ``meta.json``.

The reference of the run folder describes every file. One process at a time writes a run, or the processes of one job,
each its share. Every other command begins its folder in the same way, with a plan. Nothing is removed or written over
that hardsight did not write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from hardsight.errors import ExistingPathError, HardsightError, InputError, MissingPathError, StateError
from hardsight.runs.files import TEMPORARY, disk_errors, is_page, remove_files, sweep, write_json
from hardsight.runs.identity import UNIDENTIFIED
from hardsight.runs.lock import LOCK_FILES, beside_lock, folder_lock
from hardsight.runs.meta import FORMAT, FORMAT_KEY, META_FILE, PLAN_FILE, Meta, read_meta
from hardsight.runs.tables import SCHEMAS, damage_errors, merged, read_part
from hardsight.runs.units import PARTS, UNIT_FILES, Part, Units, discard_units, read_parts, remove_unnamed, write_unit
from hardsight.stores import as_path, map_paths
from hardsight.untrusted import read_json

STAGES, FEATURES, DYNAMICS, INDEX = "stages", "features", "dynamics", "index.json"
# What other commands write into a run by default.
REPORT, LISTS, ALIGNMENT, DEGRADED = "report.html", "lists", "alignment", "degraded"
SUMMARY = "summary.json"  # of an alignment, which is complete if and only if this file exists
_FOLDERS = (PARTS, *SCHEMAS)
_FILES = re.compile(rf"{UNIT_FILES.pattern}|[0-9a-f]{{16}}\.((heads\.)?parquet|safetensors)")
_UNIT_ROWS = "unit_rows"
_PATIENCE = 600.0  # seconds to wait until idle processes release a run


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
    """Lock a folder, which is created if needed, and store a plan in it.

    An empty folder takes the plan, the same plan is resumed, another is refused or, with `overwrite`, discarded. An
    unfinished result of the same plan is resumed even then. A folder with files but no plan is never written to.

    Args:
        file: Where the plan is stored in the folder.
        plan: Everything that decides the result.
        kind: What messages call the result.
        finished: Whether nothing is left to do; then `overwrite` starts again.
        discard: Removes the result and nothing else, first what marks the rest as complete; the plan is replaced later.
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
        other = content_beside(file)  # before the plan, which other processes of the job write first
        # Else it may be a plan of another program.
        ours = FORMAT_KEY not in plan or not file.exists() or _is_ours(path)
        stored = _stored(file, kind, overwrite or not ours)
        if stored is not None and not ours:
            stored, other = None, file
        if stored is None and other is not None:
            raise ExistingPathError(f"out: {path} holds other files ({other.name} …); choose another folder.")
        names = [] if stored is None else differing(stored, plan)
        if overwrite and (names or finished()):
            discard()
        elif names and (shard[1] > 1 or other is not None):  # a start that computed nothing can be replaced
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
        raise StateError(f"{error} Restore it, overwrite the {kind}, or choose another folder.") from None


def content_beside(file: Path) -> Path | None:
    """Some file in the folder of a plan or below, except the plan, locks and half-written files."""
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
    """Writes a run unit by unit; every unit that `write` returned from survives any kill.

    It holds the folder's lock until `close`.

    Args:
        path: The run folder, made if needed.
        plan: What is being computed. A folder that holds another plan is refused. Its ``source`` and ``preprocessing``
            may differ, because data may move while a run is interrupted and descriptions may change. A plan with the
            key ``unidentified``, which says what can change unnoticed, equals no other.
        units: The division of the samples into units. A run keeps the division that it was begun with.
        overwrite: Discard an existing run.
        shard: Rank of this process and number of processes; each writes units of its own.
        meet: Called where all processes must meet; needed to overwrite with several.
    """

    def __init__(
        self,
        path: str | Path,
        plan: Mapping[str, Any],
        *,
        units: Units | None = None,
        overwrite: bool = False,
        shard: tuple[int, int] = (0, 1),
        meet: Callable[[], object] | None = None,
    ) -> None:
        self.path, rank = as_path(path), shard[0]
        if overwrite and shard[1] > 1 and meet is None:
            raise InputError("overwrite must be left out with shard: each process would discard the others' rows.")
        if meet is not None and rank:
            meet()  # the first process has discarded what there was
            overwrite = False
        self.units = units and replace(units, rows=_begun_rows(self.path) or units.rows)
        division = {} if self.units is None else {_UNIT_ROWS: self.units.rows}
        self._lock = begin(
            self.path / PLAN_FILE,
            {**plan, **division, FORMAT_KEY: FORMAT},
            "run",
            finished=lambda: self.complete,
            discard=self._discard,
            differing=_differing,
            overwrite=overwrite,
            shard=shard,
        )
        for name in _FOLDERS if shard[1] == 1 else ():
            sweep(self.path / name)
        if self.units is not None:  # what a process committed that divided the data into more units
            self.discard_units(self.units.count)
        if meet is not None and not rank:
            meet()

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

    def done(self) -> dict[int, int]:
        """The units that are safe on disk, and the number of samples in each. Only their markers are read."""
        parts = read_parts(self.path, damaged=True)
        return {part.unit: part.samples for part in parts if part.unit is not None}

    def write(self, tables: Mapping[str, pa.Table], unit: int = 0) -> None:
        """Write one unit (some of the kinds of table) and commit it."""
        write_unit(self.path, unit, tables)

    def discard_units(self, first: int = 0) -> None:
        """Remove the markers of all units from one on."""
        discard_units(self.path, first)

    @contextmanager
    def last_step(self) -> Iterator[bool]:
        """Whether this process takes the last step once all units are done: the first to arrive does."""
        with ExitStack() as stack:
            try:
                stack.enter_context(beside_lock(self.path / META_FILE))
            except StateError:
                mine = False
            else:
                mine = True
            yield mine

    def finish(self, meta: Meta) -> None:
        """Mark the run as complete; its stages, whose rows it holds, are removed when no other process reads them.

        Files that no marker names are removed too, because other programs read all files of a folder.
        """
        with disk_errors(self.path), ExitStack() as stack:
            if (self.path / STAGES).exists():
                stack.enter_context(folder_lock(self.path, patience=_PATIENCE))
            with suppress(StateError), folder_lock(self.path):  # others may be about to name what they wrote
                remove_unnamed(self.path)
            write_json(self.path / META_FILE, meta.to_json())
            _discard_runs(self.path / STAGES)

    def _discard(self) -> None:
        with folder_lock(self.path):  # a process of an earlier job would go on writing
            discard(self.path, replaced=True)


def _begun_rows(path: Path) -> int | None:
    """Samples per unit of a run that was begun in a folder."""
    with suppress(HardsightError):
        rows = read_json(path / PLAN_FILE, dict[str, Any]).get(_UNIT_ROWS) if (path / PLAN_FILE).is_file() else None
        return rows if type(rows) is int and 0 < rows <= 1 << 24 else None
    return None


def _differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Data may move while a run is interrupted, and the description of a preprocessing may change."""
    same = {name: plan.get(name) for name in ("source", "preprocessing", _UNIT_ROWS)}
    return differing({**stored, **same}, {**plan, **same})


def is_run(path: str | Path) -> bool:
    """Whether a folder holds a run, whole or begun."""
    files = [as_path(path) / name for name in (META_FILE, PLAN_FILE)]  # a finished run does not need its plan
    return any(file.is_file() and FORMAT_KEY in read_json(file, dict[str, Any]) for file in files)


def _is_ours(path: Path) -> bool:
    """Whether a folder holds a run, even one whose plan or meta data are damaged: then its parts count."""
    damaged = False
    for file in (path / META_FILE, path / PLAN_FILE):
        try:
            if file.is_file() and FORMAT_KEY in read_json(file, dict[str, Any]):
                return True
        except StateError:
            damaged = True
    folders = [run / name for run in (path, *(path / STAGES).glob("*")) for name in _FOLDERS]
    return damaged and any(_FILES.fullmatch(file.name) for folder in folders for file in folder.glob("*"))


def is_alignment(file: Path) -> bool:
    """Whether a file is the summary of an alignment that hardsight wrote."""
    with suppress(HardsightError):
        return "coefficient" in read_json(file, dict[str, Any])
    return False


def discard(path: Path, *, replaced: bool = False) -> None:
    """Remove a run and nothing else.

    First the file that marks it as complete, then the markers of its parts, last the file that marks it as a run:
    killed between any two, it leaves an unfinished run.

    Args:
        path: The run folder.
        replaced: Keep ``plan.json``, which another plan overwrites, so that the folder is a run at any time. It is
            also kept if other files remain.
    """
    if not _is_ours(path):
        return
    for file in (path / META_FILE, path / DYNAMICS / INDEX):
        file.unlink(missing_ok=True)
    for file, is_ours in ((path / REPORT, is_page), (path / ALIGNMENT / SUMMARY, is_alignment)):
        if is_ours(file):  # it would show the numbers of a run that is gone
            file.unlink()
    for name in _FOLDERS:
        remove_files(path / name, _FILES)
    _discard_runs(path / STAGES)
    _discard_runs(path / DEGRADED)
    if not replaced and content_beside(path / PLAN_FILE) is None:
        remove_files(path, re.compile(rf"{re.escape(PLAN_FILE)}|{LOCK_FILES.pattern}"))


def _discard_runs(folder: Path) -> None:
    for run in folder.glob("*/"):
        discard(run)
    with suppress(OSError):
        folder.rmdir()


def open_parts(path: str | Path, *, partial: bool = False) -> tuple[list[Part], Meta]:
    """The committed parts of a run, and its meta data.

    Args:
        path: The run folder.
        partial: Also open a run that is not complete (its meta data are then the plan's, with ``unfinished``).
    """
    path = as_path(path)
    if not is_run(path):
        raise MissingPathError(f"RUN: {path} holds no hardsight run{'' if path.exists() else ': no such folder'}.")
    whole = (path / META_FILE).exists()
    parts = read_parts(path)
    if not whole and not parts:  # what its stages have so far; one that only gathers features has no rows
        stages = [stage for stage in sorted((path / STAGES).glob("*")) if is_run(stage) and stage.name != FEATURES]
        parts = [part for stage in stages for part in read_parts(stage)]
    if not whole and not partial:
        rows = sum(part.samples for part in parts)
        raise StateError(
            f"RUN: {path} is not finished ({rows:,} samples are safe): run the same command again to resume it, "
            "or load it with partial=True."
        )
    meta = read_meta(path / (META_FILE if whole else PLAN_FILE))
    meta.unfinished = not whole
    return parts, meta


def read_run(
    path: str | Path, *, partial: bool = False, kinds: Collection[str] = tuple(SCHEMAS)
) -> tuple[dict[str, pa.Table], Meta]:
    """The tables of a run by kind, and its meta data; `kinds` says which tables. Other options as in `open_parts`."""
    parts, meta = open_parts(path, partial=partial)
    return read_kinds(as_path(path), parts, meta, kinds), meta


def read_kinds(path: Path, parts: Sequence[Part], meta: Meta, kinds: Collection[str]) -> dict[str, pa.Table]:
    """The tables of some kinds that the parts of a run hold."""
    tables = {}
    for kind in kinds:
        files = [part.files[kind] for part in parts if kind in part.files]
        pieces = map_paths(lambda file, kind=kind: read_part(file, kind), files)
        if pieces:
            with damage_errors(path):
                tables[kind] = merged(pa.concat_tables(pieces, promote_options="default"), kind)
    if "samples" in kinds:
        check_expected(path, meta, len(tables.get("samples", ())))
    return tables


def check_expected(path: Path, meta: Meta, samples: int) -> None:
    """Refuse a finished run that has fewer samples than were written."""
    expected = meta.counts.rows + meta.counts.bad if meta.counts else 0
    if not meta.unfinished and samples < expected:
        raise StateError(f"RUN: {path} is damaged: parts are missing ({expected:,} samples were written).")
