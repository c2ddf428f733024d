"""A run on disk: versioned tables in parts, each part committed by a marker, the whole by ``meta.json``.

::

    run/plan.json            what is being computed; a later start with the same plan resumes
    run/samples/*.parquet    (id)               label, error
    run/scores/*.parquet     (id, model)        pred and one column a score
    run/vectors/*.parquet    (id, model)        sketches of the features and, for few classes, probabilities
    run/dynamics/            (id, epoch)        what a recorder wrote; see `hardsight.records`
    run/parts/*.json         one marker a part, written after the part's files are safe on disk
    run/stages/NAME/         folds or nets of a run that has several: each a run of its own until all are done
    run/meta.json            provenance; it exists if and only if the run is whole
    run/report.html, lists/  what people look at and act on, written later
    run/degraded/NAME=LEVEL/ rows of degraded pictures, each level a run of its own; see `hardsight.degradation`
    run/alignment/           what people said of the samples, and how scores agree with it; see `hardsight.alignment`

Files are written under a temporary name and renamed, so a reader never meets half of one. Equal rows in two
parts merge; unequal ones are an error.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.errors import DiskError, ExistingPathError, InputError, MissingPathError, StateError


@dataclass(frozen=True)
class Schema:
    """A kind of table in a run: its version, its key and the columns that must be there."""

    version: int
    key: tuple[str, ...]
    columns: Mapping[str, pa.DataType]


SCHEMAS = {
    "samples": Schema(1, ("id",), {"id": pa.string(), "label": pa.int64(), "error": pa.string()}),
    "scores": Schema(1, ("id", "model"), {"id": pa.string(), "model": pa.string(), "pred": pa.int64()}),
    "vectors": Schema(1, ("id", "model"), {"id": pa.string(), "model": pa.string()}),
    "dynamics": Schema(
        1,
        ("id", "epoch"),
        {"id": pa.string(), "epoch": pa.int32(), "label": pa.int32(), "pred": pa.int32()}
        | dict.fromkeys(("angle", "angle_sum", "soft_margin", "margin", "norm", "el2n"), pa.float32()),
    ),
}


class RunWriter:
    """Writes a run part by part; every part that `write` returned from survives any kill.

    Args:
        path: The run folder, made if needed.
        plan: What is being computed. A folder that holds another plan is refused; its ``source`` may differ, because
            data may move while a run is interrupted.
        overwrite: Throw away whatever run is there.
        rank: Which of several processes this is; each writes parts of its own.
    """

    def __init__(self, path: str | Path, plan: Mapping[str, Any], *, overwrite: bool = False, rank: int = 0) -> None:
        self.path, self.plan, self.rank = Path(path), json.loads(json.dumps({**plan, _FORMAT: 1})), rank
        self._token = secrets.token_hex(4)  # two starts into one folder must not take one name
        if self.path.is_file():
            raise ExistingPathError(f"RUN: {self.path} is a file; name a folder.")
        with disk_in_words(self.path):
            self._begin(overwrite)

    def _begin(self, overwrite: bool) -> None:
        foreign = _foreign(self.path)
        if foreign:
            raise ExistingPathError(f"RUN: {self.path} has other things in it ({foreign[0]} …); choose another folder.")
        differing = self._differing()
        if overwrite and self.rank == 0 and (differing or self.complete):
            _discard(self.path)  # an unfinished run of the same plan is resumed, also with overwrite
            differing = []
        for _ in range(120 if overwrite and self.rank else 0):  # until the first process has discarded it
            if not (differing := self._differing()):
                break
            time.sleep(0.5)
        if differing:
            raise ExistingPathError(
                f"RUN: {self.path} holds another run (not the same: {', '.join(differing)}); "
                "choose another folder, or --overwrite it."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "plan.json").exists():
            write_json(self.path / "plan.json", self.plan, self._token)
        for name in _FOLDERS:
            (self.path / name).mkdir(exist_ok=True)

    def _differing(self) -> list[str]:
        """What the plan in the folder, if any, says differently."""
        file = self.path / "plan.json"
        if not file.exists():
            return []
        there = _read_json(file)
        return [key for key in {**self.plan, **there} if key != "source" and self.plan.get(key) != there.get(key)]

    @property
    def complete(self) -> bool:
        return (self.path / "meta.json").exists()

    def done(self) -> set[str]:
        """Ids that are safe on disk."""
        return {
            i for part in _parts(self.path) for i in pq.read_table(part["samples"], columns=["id"])["id"].to_pylist()
        }

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Write one part (some of the kinds of table) and commit it."""
        taken = [int(p.stem.split("-")[1]) for p in (self.path / "parts").glob(f"{self.rank:04d}-*.json")]
        name = f"{self.rank:04d}-{max(taken, default=-1) + 1:06d}-{self._token}"
        with disk_in_words(self.path):
            files = {}
            for kind, table in tables.items():
                file = self.path / kind / f"{name}.parquet"
                writer = partial(pq.write_table, _checked(kind, table), row_group_size=_GROUP_ROWS)
                write_whole(file, writer, self._token)
                files[kind] = {"rows": len(table), "bytes": file.stat().st_size}
            write_json(self.path / "parts" / f"{name}.json", files, self._token)

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Say that the run is whole, and sweep what kills left half-written."""
        with disk_in_words(self.path):
            write_json(self.path / "meta.json", {**meta, _FORMAT: 1}, self._token)
            for stray in (p for name in _FOLDERS for p in (self.path / name).glob(".*.tmp")):
                stray.unlink(missing_ok=True)
            shutil.rmtree(self.path / STAGES, ignore_errors=True)  # their rows are in the run itself now


_GROUP_ROWS = 1 << 16
# What marks plan.json and meta.json as ours.
_FORMAT = "hardsight_format"
_FOLDERS = ("parts", *SCHEMAS)
STAGES, FEATURES, DYNAMICS = "stages", "features", "dynamics"
# What other commands write into a run by default.
REPORT, LISTS, ALIGNMENT, DEGRADED = "report.html", "lists", "alignment", "degraded"
SUMMARY = "summary.json"  # of an alignment, which is whole if and only if it is there


def is_run(path: str | Path) -> bool:
    """Whether a folder holds a run, whole or begun."""
    files = [Path(path) / name for name in ("plan.json", "meta.json")]
    return any(file.is_file() and _FORMAT in _read_json(file) for file in files)


def _foreign(path: Path) -> list[str]:
    """Names in a folder that no run has: a folder with any of them is never written to or cleared."""
    if not path.exists():
        return []
    part, temporary = r"\d{4}-\d{6}-[0-9a-f]+\.(json|parquet)", r"\.[0-9a-f]+\.tmp"
    part = rf"{part}|index\.json|[0-9a-f]{{16}}\.((heads\.)?parquet|safetensors)"
    ours = re.compile(rf"{part}|\.({part}|plan\.json|meta\.json|{re.escape(REPORT)}|{LISTS}){temporary}")
    others = ("plan.json", "meta.json", STAGES, REPORT, LISTS, ALIGNMENT, DEGRADED)
    known = (*_FOLDERS, *(others if is_run(path) else ()))
    found = [p for p in path.iterdir() if p.name not in known]
    found += [p for name in _FOLDERS if (path / name).is_dir() for p in (path / name).iterdir()]
    return [p.name for p in found if not ours.fullmatch(p.name)]


def _discard(path: Path) -> None:
    """Remove a run, and nothing but a run: `_foreign` has looked. First what would call the rest of it whole."""
    for name in ("meta.json", "plan.json"):
        (path / name).unlink(missing_ok=True)
    for file in (path / REPORT, path / ALIGNMENT / SUMMARY):  # they would show the numbers of a run that is gone
        file.unlink(missing_ok=True)
    for name in (*_FOLDERS, STAGES):
        shutil.rmtree(path / name, ignore_errors=True)
    for level in (path / DEGRADED).glob("*=*"):
        if not _foreign(level):
            _discard(level)


def read_run(
    path: str | Path, *, partial: bool = False, kinds: Collection[str] = tuple(SCHEMAS)
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
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
    whole = (path / "meta.json").exists()
    parts = _parts(path)
    if not whole and not parts:  # what its stages have so far; one that only gathers features has no rows
        stages = [stage for stage in sorted((path / STAGES).glob("*")) if is_run(stage) and stage.name != FEATURES]
        parts = [part for stage in stages for part in _parts(stage)]
    if not whole and not partial:
        rows = sum(pq.read_metadata(part["samples"]).num_rows for part in parts if "samples" in part)
        raise StateError(
            f"RUN: {path} is not finished ({rows:,} samples are safe): run the same command again to resume it, "
            "or load it with partial=True."
        )
    meta = _read_json(path / "meta.json") if whole else {**_read_json(path / "plan.json"), "unfinished": True}
    tables = {}
    for kind in kinds:
        schema = SCHEMAS[kind]
        pieces = [_read_part(part[kind], kind, schema) for part in parts if kind in part]
        if pieces:
            tables[kind] = _merged(pa.concat_tables(pieces, promote_options="default"), schema, kind)
    expected = sum(meta.get("counts", {}).get(key, 0) for key in ("rows", "bad"))
    if whole and "samples" in kinds and len(tables.get("samples", ())) < expected:
        raise StateError(f"RUN: {path} is damaged: parts are missing ({expected:,} samples were written).")
    return tables, meta


def _parts(path: Path) -> list[dict[str, Path]]:
    """Files of the committed parts; a committed file that is missing or cut short is an error."""
    parts = []
    for marker in sorted((path / "parts").glob("[0-9]*.json")):
        files = {}
        for kind, entry in _read_json(marker).items():
            file = path / str(kind) / f"{marker.stem}.parquet"  # never a path that the marker itself names
            size = entry.get("bytes") if isinstance(entry, dict) else None
            if kind not in SCHEMAS or not file.is_file() or file.stat().st_size != size:
                raise StateError(f"RUN: {path} is damaged: {kind}/{file.name} is missing or not as it was written.")
            files[kind] = file
        parts.append(files)
    return parts


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise StateError(f"RUN: {path} is damaged: it holds no JSON object.")
    return content


def _read_part(file: Path, kind: str, schema: Schema) -> pa.Table:
    with pq.ParquetFile(file) as parquet:  # group by group: lists of a million rows take thrice their size to decode
        groups = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
        table = pa.concat_tables(groups) if groups else parquet.schema_arrow.empty_table()
    version = int((table.schema.metadata or {}).get(b"hardsight_version", b"0"))
    if version > schema.version:
        raise StateError(
            f"RUN: {file.name} was written by a newer hardsight ({kind} version {version}, this one reads "
            f"{schema.version}); upgrade hardsight."
        )
    return table


def _checked(kind: str, table: pa.Table) -> pa.Table:
    schema = SCHEMAS[kind]
    for name, type_ in schema.columns.items():
        index = table.schema.get_field_index(name)
        if index < 0:
            raise InputError(f"a {kind} table must have a column {name!r}, got {table.column_names}.")
        table = table.set_column(index, name, table[name].cast(type_))
    return table.replace_schema_metadata({"hardsight_kind": kind, "hardsight_version": str(schema.version)})


def _merged(table: pa.Table, schema: Schema, kind: str) -> pa.Table:
    """Equal duplicates (a part written twice around a kill) become one row; unequal ones are an error."""
    key = list(schema.key)
    if len(table.group_by(key).aggregate([])) == len(table):
        return table
    if kind == "vectors":  # lists cannot be grouped by; what belongs to a row that was written twice is the same
        table = table.append_column("row", pa.array(range(len(table))))
        return table.take(table.group_by(key).aggregate([("row", "min")])["row_min"]).drop_columns(["row"])
    # NaN differs from itself in a grouping of floats; bytes do not.
    unequal_free = table.group_by(table.column_names, use_threads=False).aggregate([]).select(table.column_names)
    counts = unequal_free.group_by(key, use_threads=False).aggregate([([], "count_all")])
    clash = counts.filter(pc.greater(counts["count_all"], 1))
    if len(clash):
        raise StateError(
            f"RUN: {len(clash):,} samples have two different {kind} rows (first: {clash[key[0]][0].as_py()!r}): "
            "two runs wrote into one folder, or ids collide."
        )
    return unequal_free


def write_json(path: Path, content: Any, token: str) -> None:
    """Content as JSON, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(json.dumps(content, indent=1, default=str)), token)


def write_whole(path: Path, writer: Callable[[Path], object], token: str) -> None:
    """Write beside, flush to disk, rename: the name appears only when the content is there."""
    temporary = path.parent / f".{path.name}.{token}.tmp"
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def disk_in_words(path: Path) -> Iterator[None]:
    """A full or read-only disk in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in str(error):
            raise DiskError(
                error.errno,
                f"RUN: the disk of {path} is full; what was committed is safe. Free some space and run the same "
                "command again to resume.",
            ) from error
        if any(parent.is_file() for parent in path.parents):
            raise DiskError(error.errno, f"{path} cannot be written: a file stands in its way.") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise DiskError(error.errno, f"RUN: {path} cannot be written; choose another folder.") from error
        raise
