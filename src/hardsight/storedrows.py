"""Rows of a run that stay on disk: columns are read on demand, and single rows in place.

A run of ten million samples then takes the memory of the columns in use. Ids are compared and counted once, in pieces,
when the run is opened; invalid ids raise the same errors as for a table in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.errors import InputError, StateError
from hardsight.runs import Meta, checked_rows, damage_errors
from hardsight.runs.folder import check_expected
from hardsight.runs.ids import id_hashes, repeated_of
from hardsight.runs.tables import check_version
from hardsight.runs.units import Part
from hardsight.stores import map_paths, readable
from hardsight.untrusted import check_table

EAGER_ROWS = 1_000_000  # smaller runs are read completely
_PIECE = 1 << 16  # rows at a time
_CACHE = 1 << 27  # bytes of columns that are cached in memory
_FEW = 1 << 17  # rows that are read into memory; for more, only their positions are kept


class _File(NamedTuple):
    """A file of one kind of table, and how many of its rows count: the bad samples of a unit come last."""

    path: Path
    kind: str
    rows: int


class _Columns:
    """The columns of files that hold the same samples in the same order, one after another."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Mapping[str, _File]],
        kinds: Mapping[str, str],  # the kind of table that holds each column
        schemas: Mapping[str, Sequence[pa.Schema]],
    ) -> None:
        self.path, self.files, self.kinds = path, files, kinds
        self.ends = np.cumsum([0, *(next(iter(part.values())).rows for part in files)])
        with damage_errors(path):
            merged = {kind: pa.unify_schemas(each, promote_options="default") for kind, each in schemas.items()}
        self.types = {name: merged[kind].field(name).type for name, kind in kinds.items()}
        self.cache: OrderedDict[str, pa.ChunkedArray] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "cache": OrderedDict()}

    def column(self, name: str) -> pa.ChunkedArray:
        if name in self.cache:
            self.cache.move_to_end(name)
            return self.cache[name]
        files, type_ = {(file := part[self.kinds[name]]).path: file for part in self.files}, self.types[name]
        pieces = map_paths(lambda path: _read_column(files[path], name, type_), files)
        values = pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], type_)
        self.cache[name] = values
        while sum(column.nbytes for column in self.cache.values()) > _CACHE:
            self.cache.popitem(last=False)
        return values

    def rows(self, places: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Some rows; only the pieces of files that contain them are read."""
        order = np.argsort(places, kind="stable")
        ordered, pieces = places[order], []
        numbers = np.searchsorted(self.ends, ordered, side="right") - 1
        for number in np.unique(numbers).tolist():
            within = ordered[numbers == number] - self.ends[number]
            columns = {}
            for kind, file in self.files[number].items():
                wanted = [name for name in names if self.kinds[name] == kind]
                rows = _read_rows(file, wanted, within)
                for name in wanted:
                    here = rows[name] if name in rows.column_names else pa.nulls(len(within))
                    columns[name] = here.cast(self.types[name])
            pieces.append(pa.table({name: columns[name] for name in names}))
        empty = pa.schema({name: self.types[name] for name in names}).empty_table()
        rows = pa.concat_tables(pieces) if pieces else empty
        return rows.take(pa.array(np.argsort(order))).combine_chunks()


class StoredRows:
    """Rows on disk with the methods of an Arrow table that a `SampleTable` needs.

    Args:
        columns: The columns on disk.
        places: Which rows, in which order; all rows in order if not given.
        added: Columns in memory, one value per row.
    """

    def __init__(
        self, columns: _Columns, places: np.ndarray | None = None, added: Mapping[str, pa.ChunkedArray] | None = None
    ) -> None:
        self._columns, self._places, self._added = columns, places, dict(added or {})

    def __len__(self) -> int:
        return int(self._columns.ends[-1]) if self._places is None else len(self._places)

    @property
    def places(self) -> np.ndarray:
        """The positions of these rows on disk, in order."""
        return np.arange(len(self)) if self._places is None else self._places

    @property
    def column_names(self) -> list[str]:
        return [*self._columns.kinds, *self._added]

    @property
    def schema(self) -> pa.Schema:
        types = {name: self._columns.types[name] for name in self._columns.kinds}
        return pa.schema(types | {name: values.type for name, values in self._added.items()})

    @property
    def nbytes(self) -> int:
        """About how many bytes the rows take in memory, texts estimated from the first rows."""
        first = self.slice(0, 1000)
        return round(first.nbytes / max(len(first), 1) * len(self))

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        if name in self._added:
            return self._added[name]
        values = self._columns.column(name)
        return values if self._places is None else values.take(pa.array(self._places))

    def take(self, places: pa.Array) -> pa.Table | Self:
        index = np.asarray(places, dtype=np.int64)
        stored = index if self._places is None else self._places[index]
        added = {name: values.take(pa.array(index)) for name, values in self._added.items()}
        if len(index) > _FEW:
            return type(self)(self._columns, stored, added)
        rows = self._columns.rows(stored, list(self._columns.kinds))
        for name, values in added.items():
            rows = rows.append_column(name, values)
        return rows

    def filter(self, mask: pa.ChunkedArray) -> pa.Table | Self:
        return self.take(pa.array(np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))))

    def slice(self, start: int, length: int) -> pa.Table | Self:
        return self.take(pa.array(np.arange(start, min(start + length, len(self)))))

    def select(self, names: Sequence[str]) -> Self:
        """Only these columns."""
        columns = copy(self._columns)
        columns.kinds = {name: kind for name, kind in columns.kinds.items() if name in names}
        added = {name: values for name, values in self._added.items() if name in names}
        return type(self)(columns, self._places, added)

    def append_column(self, name: str, values: Any) -> Self:
        column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
        return type(self)(self._columns, self._places, {**self._added, name: column})

    def to_table(self) -> pa.Table:
        """All rows and columns in memory."""
        return pa.table({name: self[name] for name in self.column_names})

    def read_rows(self, places: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Columns of any number of rows; nothing else is read."""
        stored = places if self._places is None else self._places[places]
        rows = self._columns.rows(stored, [name for name in names if name not in self._added])
        added = {name: self._added[name].take(pa.array(places)) for name in names if name in self._added}
        return pa.table({name: added[name] if name in added else rows[name] for name in names})

    def pieces(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Columns in pieces, none of which stays in memory."""
        if self._places is not None or not self._added.keys().isdisjoint(names):
            columns = pa.table({name: self[name] for name in names})
            yield from (pa.Table.from_batches([batch]) for batch in columns.to_batches(_PIECE))
            return
        for part in self._columns.files:
            columns = [_column_pieces(part[self._columns.kinds[n]], n, self._columns.types[n]) for n in names]
            for arrays in zip(*columns, strict=True):
                yield pa.table([*arrays], names=[*names])


def open_stored(
    path: Path, parts: Sequence[Part], meta: Meta, model: str | None = None
) -> tuple[StoredRows, pa.Table, StoredRows | None] | None:
    """Rows, bad samples and vectors of a run that need not be in memory; None if they must be.

    They must be if several networks have to be averaged, if an earlier version wrote the run (whose parts may hold a
    sample twice), or if the files of a unit differ in order.

    Args:
        path: The run folder.
        parts: Its committed parts.
        meta: Its meta data.
        model: The network whose rows to read.
    """
    if any(part.unit is None or "samples" not in part.files for part in parts):
        return None
    files, vector_files, hashes = [], [], bytearray()
    kept = any("vectors" in part.files for part in parts)
    by_file = {part.files["samples"]: part for part in parts}
    units = map_paths(lambda file: _compare(by_file[file], kept, hashes), by_file)
    seen = [unit for unit in units if unit is not None]
    if len(seen) < len(parts):
        return None
    for part, unit in zip(parts, seen, strict=True):
        if unit.rows:
            files.append({kind: _File(part.files[kind], kind, unit.rows) for kind in ("samples", "scores")})
            if kept:
                vector_files.append({"vectors": _File(part.files["vectors"], "vectors", unit.rows)})
    models = {name for unit in seen for name in unit.models}
    if len(models) > 1 or (model is not None and {model} != models) or not files:
        return None
    errors = pa.concat_tables([unit.bad for unit in seen])

    def read() -> Iterator[pa.Array]:
        yield from errors["id"].chunks
        for part in files:
            yield from (piece["id"].combine_chunks() for piece in _pieces(part["scores"], ["id"]))

    repeated, first = repeated_of(hashes, read)
    if repeated:
        raise StateError(f"RUN: {path} is damaged: {repeated:,} ids repeat (first: {first!r}).")
    check_expected(path, meta, sum(part["scores"].rows for part in files) + len(errors))
    schemas = {kind: _schemas(files, kind) for kind in ("samples", "scores")}
    about = _names(schemas["samples"], {"id", "error", "label"})
    scores, labeled = _names(schemas["scores"], {"id", "model"}), any(unit.labeled for unit in seen)
    kinds = {"id": "scores", **({"label": "samples"} if labeled else {}), **dict.fromkeys(scores, "scores")}
    kinds |= dict.fromkeys(about, "samples")
    vectors = None
    if kept:
        of_vectors = {"vectors": _schemas(vector_files, "vectors")}
        names = dict.fromkeys(_names(of_vectors["vectors"], {"model"}), "vectors")
        vectors = StoredRows(_Columns(path, vector_files, names, of_vectors))
    return StoredRows(_Columns(path, files, kinds, schemas)), errors, vectors


def _schemas(files: Sequence[Mapping[str, _File]], kind: str) -> list[pa.Schema]:
    by_path = {part[kind].path: part[kind] for part in files}
    return map_paths(lambda path: _schema(by_path[path]), by_path)


class _Unit(NamedTuple):
    """The result of one pass over the ids of a unit: good rows, bad samples, networks, and whether any has a label."""

    rows: int
    bad: pa.Table
    models: set[str]
    labeled: bool


def _compare(part: Part, kept: bool, hashes: bytearray) -> _Unit | None:
    """Whether all files of a unit hold the same samples in the same order, the bad ones behind the others. Hashes of
    their ids are appended.
    """
    wanted = {"samples": ["id", "label", "error"], "scores": ["id", "model"], "vectors": ["id", "model"]}
    kinds = ["samples", "scores", *(["vectors"] if kept else [])]
    files = {kind: part.files.get(kind) for kind in kinds}
    counts = {kind: 0 if file is None else _row_count(file) for kind, file in files.items()}
    rows = counts["scores"]
    if any(counts[kind] != rows for kind in kinds if kind != "samples") or counts["samples"] < rows:
        return None
    errors, models, labeled, start = [], set(), False, 0
    streams = [
        _pieces(_File(file, kind, counts[kind]), wanted[kind]) if file is not None else iter(())
        for kind, file in files.items()
    ]
    for samples, scores, *others in zip_longest(*streams):
        if samples is None:
            return None
        hashes.extend(id_hashes(samples["id"].combine_chunks()).data)
        good = min(max(rows - start, 0), len(samples))
        start += len(samples)
        if scores is not None:
            if not scores["id"].equals(samples["id"].slice(0, good)):
                return None
            models |= {*pc.unique(scores["model"]).to_pylist()}
        if any(other is not None and not other["id"].equals(scores["id"]) for other in others):
            return None
        failed = samples["error"].is_valid().to_numpy()
        if failed[:good].any() or not failed[good:].all():
            return None
        labeled |= samples["label"].slice(0, good).null_count < good
        errors.append(samples.select(["id", "error"]).filter(pa.array(failed)))  # a slice would keep all ids in memory
    return _Unit(rows, pa.concat_tables(errors), models, labeled)


def _names(schemas: Sequence[pa.Schema], but: set[str]) -> list[str]:
    """Names of all columns in the order of first occurrence."""
    return [name for name in dict.fromkeys(name for schema in schemas for name in schema.names) if name not in but]


@contextmanager
def _opened(file: _File) -> Iterator[pq.ParquetFile]:
    with damage_errors(file.path):
        try:
            parquet = pq.ParquetFile(readable(file.path), page_checksum_verification=True)
        except FileNotFoundError:
            raise StateError(f"RUN: {file.path} is gone: the run was overwritten since it was opened.") from None
        with parquet:
            check_version(parquet.schema_arrow, file.kind, file.path.name)
            yield parquet


def _row_count(path: Path) -> int:
    with damage_errors(path):
        return pq.read_metadata(readable(path)).num_rows


def _schema(file: _File) -> pa.Schema:
    with _opened(file) as parquet:
        checked = checked_rows(parquet.schema_arrow.empty_table(), file.kind)
        return checked.schema.remove_metadata()


def _pieces(file: _File, names: Sequence[str]) -> Iterator[pa.Table]:
    """The valid rows of a file, in pieces of the same size for every file."""
    left = file.rows
    with _opened(file) as parquet:
        for batch in parquet.iter_batches(_PIECE, columns=[*names], use_threads=False):
            piece = check_table(pa.Table.from_batches([batch])).slice(0, left)
            left -= len(piece)
            yield checked_rows(piece, file.kind, [*names])
        _check_count(file.rows - left, file)


def _column_pieces(file: _File, name: str, type_: pa.DataType) -> Iterator[pa.Array]:
    if name in _schema(file).names:
        return (piece[name].cast(type_).combine_chunks() for piece in _pieces(file, [name]))
    return (pa.nulls(min(_PIECE, file.rows - start), type_) for start in range(0, file.rows, _PIECE))


def _read_column(file: _File, name: str, type_: pa.DataType) -> pa.ChunkedArray:
    with _opened(file) as parquet:
        if name not in parquet.schema_arrow.names:
            return pa.chunked_array([pa.nulls(file.rows, type_)])
        rows = _checked(parquet.read([name]).slice(0, file.rows), file)
        _check_count(len(rows), file)
        return rows[name].cast(type_)


def _read_rows(file: _File, names: Sequence[str], places: np.ndarray) -> pa.Table:
    """Rows by their positions in a file, in increasing order; only row groups that hold some are read."""
    pieces, start = [], 0
    with _opened(file) as parquet:
        here = [name for name in names if name in parquet.schema_arrow.names]
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            within = places[(places >= start) & (places < start + rows)] - start
            start += rows
            if len(within):
                table = parquet.read_row_group(group, here) if here else pa.table({"": pa.nulls(rows)})
                pieces.append(_checked(table.take(pa.array(within)), file))
    return pa.concat_tables(pieces)


def _check_count(rows: int, file: _File) -> None:
    """Refuse a damaged column that ends before the others."""
    if rows != file.rows:
        raise InputError(f"a column has {rows:,} rows, expected {file.rows:,}")


def _checked(table: pa.Table, file: _File) -> pa.Table:
    return checked_rows(check_table(table), file.kind, table.column_names)
