"""A run on disk: three versioned tables in parts, each part committed by a marker, the whole by ``meta.json``.

::

    run/plan.json            what is being computed; a later start with the same plan resumes
    run/samples/*.parquet    (id)               label, error
    run/scores/*.parquet     (id, model)        pred and one column a score
    run/dynamics/*.parquet   (id, model, epoch) what a recorder wrote
    run/parts/*.json         one marker a part, written after the part's files are safe on disk
    run/meta.json            provenance; it exists if and only if the run is whole

Files are written under a temporary name and renamed, so a reader never meets half of one. Equal rows in two
parts merge; unequal ones are an error.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Schema:
    """A kind of table in a run: its version, its key and the columns that must be there."""

    version: int
    key: tuple[str, ...]
    columns: Mapping[str, pa.DataType]


SCHEMAS = {
    "samples": Schema(1, ("id",), {"id": pa.string(), "label": pa.int64(), "error": pa.string()}),
    "scores": Schema(1, ("id", "model"), {"id": pa.string(), "model": pa.string(), "pred": pa.int64()}),
    "dynamics": Schema(1, ("id", "model", "epoch"), {"id": pa.string(), "model": pa.string(), "epoch": pa.int32()}),
}


class RunWriter:
    """Writes a run part by part; every part that `write` returned from survives any kill.

    Args:
        path: The run folder, made if needed.
        plan: What is being computed. A folder that holds another plan is refused.
        overwrite: Throw away whatever run is there.
        rank: Which of several processes this is; each writes parts of its own.
    """

    def __init__(self, path: str | Path, plan: Mapping[str, Any], *, overwrite: bool = False, rank: int = 0) -> None:
        self.path, self.plan, self.rank = Path(path), json.loads(json.dumps(plan)), rank
        if self.path.is_file():
            raise FileExistsError(f"RUN: {self.path} is a file; name a folder.")
        if overwrite and is_run(self.path):
            shutil.rmtree(self.path)
        with _told(self.path):
            self._begin()

    def _begin(self) -> None:
        there = self.path / "plan.json"
        if there.exists():
            differing = [k for k, v in self.plan.items() if json.loads(there.read_text()).get(k) != v]
            if differing:
                raise FileExistsError(
                    f"RUN: {self.path} holds another run (not the same: {', '.join(differing)}); "
                    "choose another folder, or --overwrite it."
                )
        elif self.path.exists() and any(self.path.iterdir()):
            raise FileExistsError(f"RUN: {self.path} is a folder with other things in it; choose another.")
        for name in ("parts", *SCHEMAS):
            (self.path / name).mkdir(parents=True, exist_ok=True)
            for stray in (self.path / name).glob(f".{self.rank:04d}-*"):
                stray.unlink()  # what a kill left half-written
        if not there.exists():
            _write_json(there, self.plan)

    @property
    def complete(self) -> bool:
        return (self.path / "meta.json").exists()

    def done(self) -> set[str]:
        """Ids that are safe on disk."""
        return {
            i for part in _parts(self.path) for i in pq.read_table(part["samples"], columns=["id"])["id"].to_pylist()
        }

    def write(self, tables: Mapping[str, pa.Table]) -> None:
        """Write one part (some of the three kinds of table) and commit it."""
        taken = [int(p.stem.split("-")[1]) for p in (self.path / "parts").glob(f"{self.rank:04d}-*.json")]
        name = f"{self.rank:04d}-{max(taken, default=-1) + 1:06d}"
        with _told(self.path):
            files = {}
            for kind, table in tables.items():
                file = self.path / kind / f"{name}.parquet"
                _write(file, partial(pq.write_table, _checked(kind, table)))
                files[kind] = {"file": f"{kind}/{file.name}", "rows": len(table), "bytes": file.stat().st_size}
            _write_json(self.path / "parts" / f"{name}.json", files)

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Say that the run is whole."""
        with _told(self.path):
            _write_json(self.path / "meta.json", meta)


def is_run(path: str | Path) -> bool:
    """Whether a folder holds a run, whole or begun."""
    return (Path(path) / "plan.json").exists() or (Path(path) / "meta.json").exists()


def read_run(path: str | Path, *, partial: bool = False) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The tables of a run by kind, and its meta data.

    Args:
        path: The run folder.
        partial: Also read a run that is not whole (its meta data are then the plan's).
    """
    path = Path(path)
    if not is_run(path):
        raise FileNotFoundError(
            f"RUN: {path} holds no hardsight run" + (": no such folder." if not path.exists() else ".")
        )
    whole = (path / "meta.json").exists()
    parts = _parts(path)
    if not whole and not partial:
        rows = sum(pq.read_metadata(part["samples"]).num_rows for part in parts if "samples" in part)
        raise RuntimeError(
            f"RUN: {path} is not finished ({rows:,} samples are safe): run the same command again to resume it, "
            "or load it with partial=True."
        )
    meta = json.loads((path / ("meta.json" if whole else "plan.json")).read_text())
    tables = {}
    for kind, schema in SCHEMAS.items():
        pieces = [_read_part(part[kind], kind, schema) for part in parts if kind in part]
        if pieces:
            tables[kind] = _merged(pa.concat_tables(pieces, promote_options="default"), schema, kind)
    return tables, meta


def _parts(path: Path) -> list[dict[str, Path]]:
    """Files of the committed parts; a committed file that is missing or cut short is an error."""
    parts = []
    for marker in sorted((path / "parts").glob("[0-9]*.json")):
        files = {}
        for kind, entry in json.loads(marker.read_text()).items():
            file = path / entry["file"]
            if not file.exists() or file.stat().st_size != entry["bytes"]:
                raise RuntimeError(f"RUN: {path} is damaged: {entry['file']} is missing or not as it was written.")
            files[kind] = file
        parts.append(files)
    return parts


def _read_part(file: Path, kind: str, schema: Schema) -> pa.Table:
    table = pq.read_table(file)
    version = int((table.schema.metadata or {}).get(b"hardsight_version", b"0"))
    if version > schema.version:
        raise RuntimeError(
            f"RUN: {file.name} was written by a newer hardsight ({kind} version {version}, this one reads "
            f"{schema.version}); upgrade hardsight."
        )
    return table


def _checked(kind: str, table: pa.Table) -> pa.Table:
    schema = SCHEMAS[kind]
    for name, type_ in schema.columns.items():
        index = table.schema.get_field_index(name)
        if index < 0:
            raise ValueError(f"a {kind} table must have a column {name!r}, got {table.column_names}.")
        table = table.set_column(index, name, table[name].cast(type_))
    return table.replace_schema_metadata({"hardsight_kind": kind, "hardsight_version": str(schema.version)})


def _merged(table: pa.Table, schema: Schema, kind: str) -> pa.Table:
    """Equal duplicates (a part written twice around a kill) become one row; unequal ones are an error."""
    key = list(schema.key)
    if len(table.group_by(key).aggregate([])) == len(table):
        return table
    # NaN differs from itself in a grouping of floats; bytes do not.
    unequal_free = table.group_by(table.column_names, use_threads=False).aggregate([]).select(table.column_names)
    counts = unequal_free.group_by(key, use_threads=False).aggregate([([], "count_all")])
    clash = counts.filter(pc.greater(counts["count_all"], 1))
    if len(clash):
        raise RuntimeError(
            f"RUN: {len(clash):,} samples have two different {kind} rows (first: {clash[key[0]][0].as_py()!r}): "
            "two runs wrote into one folder, or ids collide."
        )
    return unequal_free


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    _write(path, lambda temporary: temporary.write_text(json.dumps(content, indent=1, default=str)))


def _write(path: Path, writer: Callable[[Path], object]) -> None:
    """Write beside, flush to disk, rename: the name appears only when the content is there."""
    temporary = path.parent / f".{path.name}.tmp"
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """A full or read-only disk in words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in str(error):
            raise OSError(
                error.errno,
                f"RUN: the disk of {path} is full; what was committed is safe. Free some space and run the same "
                "command again to resume.",
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise PermissionError(error.errno, f"RUN: {path} cannot be written; choose another folder.") from error
        raise
