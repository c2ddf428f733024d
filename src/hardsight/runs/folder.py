"""A run on disk: versioned tables in parts, each part committed by a marker, the whole by ``meta.json``.

::

    run/plan.json            what is being computed; a later start with the same plan resumes
    run/samples/*.parquet    (id)               label, error
    run/scores/*.parquet     (id, model)        pred and one column per score
    run/vectors/*.parquet    (id, model)        sketches of the features and, for few classes, probabilities
    run/dynamics/            (id, epoch)        what a recorder wrote; see `hardsight.records`
    run/parts/*.json         one marker per part, written after the part's files are safe on disk
    run/stages/NAME/         folds or networks of a run that has several, each a run of its own until all are done
    run/meta.json            provenance; it exists if and only if the run is whole
    run/report.html, lists/  what people look at and act on, written later
    run/degraded/NAME=LEVEL/ rows of degraded images, each level a run of its own; see `hardsight.degradation`
    run/alignment/           what people said of the samples, and how scores agree with it; see `hardsight.alignment`

Equal rows in two parts merge, and so do those that differ by rounding; others are an error. One process at a time
writes a run, or the processes of one job, each its share. Nothing is removed or written over that hardsight did not
write.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.errors import InputError, MissingPathError, StateError
from hardsight.runs.begin import Layout, begin, differing
from hardsight.runs.files import (
    disk_errors,
    is_alignment,
    is_half_written,
    is_page,
    remove_empty,
    sweep,
    write_json,
    write_whole,
)
from hardsight.runs.lock import LOCK_FILES
from hardsight.runs.meta import FORMAT, FORMAT_KEY, META_FILE, PLAN_FILE, Meta, read_meta
from hardsight.runs.tables import SCHEMAS, as_written, damage_errors, merged, read_part
from hardsight.untrusted import read_json


class RunWriter:
    """Writes a run part by part; every part that `write` returned from survives any kill.

    It holds the folder's lock until `close` or the end of its life.

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
        self._token = secrets.token_hex(4)  # two starts into one folder must not take one name
        if overwrite and shard[1] > 1 and meet is None:
            raise InputError("overwrite must be left out with shard: each process would discard the others' rows.")
        if meet is not None and self.rank:
            meet()  # the first process has discarded what there was
            overwrite = False
        self._lock = begin(self.path, {**plan, FORMAT_KEY: FORMAT}, _LAYOUT, overwrite=overwrite, shard=shard)
        with disk_errors(self.path):
            for name in _FOLDERS:
                (self.path / name).mkdir(exist_ok=True)
        if meet is not None and not self.rank:
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

    def done(self) -> set[str]:
        """Ids that are safe on disk."""
        return {i for part in _parts(self.path) for i in read_part(part["samples"], "samples")["id"].to_pylist()}

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Write one part (some of the kinds of table) and commit it."""
        taken = [int(p.stem.split("-")[1]) for p in (self.path / "parts").glob(f"{self.rank:04d}-*.json")]
        name = f"{self.rank:04d}-{max(taken, default=-1) + 1:06d}-{self._token}"
        with disk_errors(self.path):
            files = {}
            for kind, table in tables.items():
                file = self.path / kind / f"{name}.parquet"
                writer = partial(pq.write_table, as_written(kind, table), row_group_size=_GROUP_ROWS)
                write_whole(file, writer)
                files[kind] = {"rows": len(table), "bytes": file.stat().st_size}
            write_json(self.path / "parts" / f"{name}.json", files)

    def finish(self, meta: Meta) -> None:
        """Say that the run is whole, and sweep what kills left half-written."""
        with disk_errors(self.path):
            write_json(self.path / META_FILE, meta.to_json())
            for name in _FOLDERS:
                sweep(self.path / name, _PARTS)
            for stage in (self.path / STAGES).glob("*/"):  # their rows are in the run itself now
                discard(stage)
            remove_empty(self.path / STAGES)


_GROUP_ROWS = 1 << 16
_FOLDERS = ("parts", *SCHEMAS)
STAGES, FEATURES, DYNAMICS = "stages", "features", "dynamics"
# What other commands write into a run by default.
REPORT, LISTS, ALIGNMENT, DEGRADED = "report.html", "lists", "alignment", "degraded"
SUMMARY = "summary.json"  # of an alignment, which is whole if and only if it is there


def is_run(path: str | Path) -> bool:
    """Whether a folder holds a run, whole or begun."""
    files = [Path(path) / name for name in (PLAN_FILE, META_FILE)]
    return any(file.is_file() and FORMAT_KEY in read_json(file, {}) for file in files)


_PARTS = re.compile(r"\d{4}-\d{6}-[0-9a-f]+\.(json|parquet)|index\.json|[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")
_DIRECTLY = re.compile(rf"plan\.json|meta\.json|{re.escape(REPORT)}|{LISTS}")


def _contents(path: Path) -> Iterator[tuple[Path, bool]]:
    """What lies in a run folder, and whether it is the run's; not what other commands write there later."""
    run = is_run(path)
    for item in path.iterdir() if path.is_dir() else ():
        if item.name in _FOLDERS and item.is_dir():
            for file in item.iterdir():
                ours = _PARTS.fullmatch(file.name) is not None or is_half_written(file, _PARTS)
                yield file, ours and file.is_file()
        elif run and item.name == STAGES and item.is_dir():
            for stage in item.iterdir():
                yield from _contents(stage) if stage.is_dir() else ((stage, False),)
        elif not LOCK_FILES.fullmatch(item.name) and not (run and item.name in (REPORT, LISTS, ALIGNMENT, DEGRADED)):
            half = is_half_written(item, _DIRECTLY)
            if not (run and half and item.is_dir()):  # lists that a kill left, which the next cleaning removes
                yield item, (half or (run and item.name in (PLAN_FILE, META_FILE))) and item.is_file()


def foreign_in(path: Path) -> list[str]:
    """Names in a folder that no run has: a folder with any of them is never written to or cleared."""
    return [item.name for item, ours in _contents(path) if not ours]


def discard(path: Path, *, replaced: bool = False) -> None:
    """Remove a run, and nothing that is not the run's.

    First what calls it whole, then what calls its parts whole, last what calls it a run: killed between any two, it
    leaves an unfinished run.

    Args:
        path: The run folder.
        replaced: Leave ``plan.json``, which another is written over, so that the folder is a run at any time.
    """

    def order(file: Path) -> int:
        if file.parent.name == "parts":
            return 1
        return {META_FILE: 0, "index.json": 1, PLAN_FILE: 3}.get(file.name, 2)

    for file in sorted((item for item, ours in _contents(path) if ours), key=order):
        if not (replaced and file == path / PLAN_FILE):
            file.unlink(missing_ok=True)
        if file == path / META_FILE:  # they would show the numbers of a run that is gone
            if is_alignment(path / ALIGNMENT / SUMMARY):
                (path / ALIGNMENT / SUMMARY).unlink()
            if is_page(path / REPORT):
                (path / REPORT).unlink()
    for level in (path / DEGRADED).glob("*=*/"):
        if not foreign_in(level):
            discard(level)
    for stage in (path / STAGES).glob("*/"):
        discard(stage)
    for name in (*_FOLDERS, STAGES):
        remove_empty(path / name)
    if not replaced:
        for lock in (item for item in path.glob(".lock*") if LOCK_FILES.fullmatch(item.name)):
            lock.unlink()
        remove_empty(path)


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
        raise MissingPathError(
            f"RUN: {path} holds no hardsight run" + (": no such folder." if not path.exists() else ".")
        )
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
    """Files of the committed parts; a committed file that is missing or cut short is an error."""
    parts = []
    for marker in sorted((path / "parts").glob("[0-9]*.json")):
        files = {}
        for kind, entry in read_json(marker, {str: {"rows": int, "bytes": int}}).items():
            file = path / str(kind) / f"{marker.stem}.parquet"  # never a path that the marker itself names
            if kind not in SCHEMAS or not file.is_file() or file.stat().st_size != entry.get("bytes"):
                raise StateError(f"RUN: {path} is damaged: {kind}/{file.name} is missing or not as it was written.")
            files[kind] = file
        parts.append(files)
    return parts


def _differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Data may move while a run is interrupted, and the words for a preprocessing may change."""
    same = {name: plan.get(name) for name in ("source", "preprocessing")}
    return differing({**stored, **same}, {**plan, **same})


_LAYOUT = Layout(
    kind="run",
    plan_file=PLAN_FILE,
    foreign=foreign_in,
    finished=lambda path: (path / META_FILE).exists(),
    discard=partial(discard, replaced=True),
    differing=_differing,
)
