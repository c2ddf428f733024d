"""Records of training on disk: one row per sample and epoch, in Parquet files that an index commits.

::

    run/dynamics/index.json          which files belong to the records; replacing it is what commits an epoch
    run/dynamics/*.parquet           rows sorted by (id, epoch)
    run/dynamics/*.heads.parquet     (epoch, class) norm and bias of the class weights at the end of each epoch

Each epoch is appended as a file of its own. `compact` rewrites files so that each holds all epochs of a range of ids
and a sample's curve lies in one place. A kill leaves only files that the index does not name, and the next commit
removes them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.errors import InputError
from hardsight.recordindex import VERSION, Entry, Index, commit, has_records, new_name, read_index, read_with
from hardsight.runs import DYNAMICS, SCHEMAS, check_classes, checked_rows, damage_errors, disk_errors, write_whole
from hardsight.untrusted import check_table

__all__ = ["Index", "commit", "has_records", "new_name", "read_index", "read_with"]

# Significant bits of each column, stored as float32: AVH, confidence and loss are derived from whole numbers; for the
# others bits are saved, because bits that are zero cost nothing on disk.
BITS = dict.fromkeys(("angle", "angle_sum", "soft_margin"), 24) | {"other_angle": 11}
BITS |= dict.fromkeys(("margin", "norm", "el2n", "nll_angles", "nll_norms"), 16)
FLOATS = tuple(BITS)

FILE_ROWS = 1 << 21
MOST_FILES = 128  # of single epochs; all are open while they are read
_GROUP_ROWS = 1 << 15
_NO_ROWS = pa.schema(list(SCHEMAS[DYNAMICS].columns.items())).empty_table()
_HEADS = pa.schema({"epoch": pa.int32(), "class": pa.int32(), "norm": pa.float32(), "bias": pa.float32()})


# ---------------------------------------------------------------------------------------------------------------------
# Writing.


def rounded(values: np.ndarray, bits: int = 16) -> np.ndarray:
    """float32 values rounded to the nearest with so many significant bits; the last bytes are then zero."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if bits >= 24:
        return values
    pattern, drop, half = values.view(np.uint32), np.uint32(24 - bits), np.uint32((1 << (23 - bits)) - 1)
    nearest = ((pattern + half + ((pattern >> drop) & np.uint32(1))) >> drop) << drop
    return np.where(np.isfinite(values), nearest, pattern).view(np.float32)


def write_rows(run: Path, index: Index, rows: pa.Table, compression_level: int = 1) -> None:
    """Add a file with rows sorted by (id, epoch) to an index, without committing it."""
    if not len(rows):
        return
    path = run / DYNAMICS / new_name()
    rows = with_text(rows).replace_schema_metadata({"hardsight_kind": DYNAMICS, "hardsight_version": str(VERSION)})
    epochs = pc.min_max(rows["epoch"]).as_py()
    single = epochs["min"] == epochs["max"]  # each id once
    writer = partial(
        pq.write_table,
        rows,
        row_group_size=_GROUP_ROWS,
        compression="zstd",
        compression_level=compression_level,
        use_dictionary=["epoch", "label", "pred", *([] if single else ["id"])],
        column_encoding={name: "BYTE_STREAM_SPLIT" for name in rows.column_names if name in BITS},
    )
    with disk_errors(run):
        write_whole(path, writer)
    ids = [rows["id"][0].as_py(), rows["id"][-1].as_py()]
    spans: dict[str, Any] = {"epochs": [epochs["min"], epochs["max"]], "ids": ids}
    index.files.append(Entry(name=path.name, **spans, rows=len(rows), bytes=path.stat().st_size))


def with_text(rows: pa.Table) -> pa.Table:
    """Rows whose ids are plain text."""
    return rows.set_column(rows.schema.get_field_index("id"), "id", rows["id"].cast(pa.string()))


def write_head(run: Path, index: Index, epoch: int, head: np.ndarray) -> None:
    """Add the norms and biases ``(2, C)`` of an epoch's class weights, in place of those that a flush wrote."""
    classes = np.arange(head.shape[1])
    columns = (np.full(len(classes), epoch), classes, head[0], head[1])
    heads = pa.table([pa.array(v, t) for v, t in zip(columns, _HEADS.types, strict=True)], schema=_HEADS)
    if len(index.heads) >= MOST_FILES or epoch in index.epochs:
        before = read_heads(run, index)
        heads = pa.concat_tables([before.filter(pc.less(before["epoch"], epoch)), heads])
        index.heads = []
    _add_heads(run, index, heads)


def _add_heads(run: Path, index: Index, heads: pa.Table) -> None:
    index.heads.append(new_name("heads.parquet"))
    with disk_errors(run):
        write_whole(run / DYNAMICS / index.heads[-1], partial(pq.write_table, heads, compression="zstd"))


def compact(run: Path, index: Index, *, everything: bool = False) -> bool:
    """Bring each sample's rows into one place: of all files, or of single epochs once there are `MOST_FILES`.

    Returns:
        Whether the index has changed; the caller commits it.
    """
    kept = [] if everything else [entry for entry in index.files if entry["epochs"][0] != entry["epochs"][1]]
    chosen = [entry for entry in index.files if entry not in kept]
    spans = sorted(entry["ids"] for entry in chosen)
    if len(chosen) < (2 if everything else MOST_FILES) or all(a[1] < b[0] for a, b in itertools.pairwise(spans)):
        return False
    index.files = kept
    for block in blocks(open_files(run, chosen, None), FILE_ROWS):
        write_rows(run, index, block.table, compression_level=6)
    return True


def drop_from(run: Path, index: Index, epoch: int) -> None:
    """Forget an epoch and all later ones; the caller commits."""
    files, heads = index.files, read_heads(run, index)
    index.epochs = [e for e in index.epochs if e < epoch]
    index.steps = {k: v for k, v in index.steps.items() if int(k) < epoch}
    index.states = {k: v for k, v in index.states.items() if int(k) < epoch}
    index.files, index.heads, index.open = [f for f in files if f["epochs"][1] < epoch], [], False
    for block in blocks(open_files(run, [f for f in files if f["epochs"][0] < epoch <= f["epochs"][1]], None)):
        write_rows(run, index, block.table.filter(pc.less(block.table["epoch"], epoch)))
    _add_heads(run, index, heads.filter(pc.less(heads["epoch"], epoch)))


# ---------------------------------------------------------------------------------------------------------------------
# Columns.


def softplus(m: np.ndarray) -> np.ndarray:
    """log(1 + exp(m)), as NumPy's `logaddexp`, which is ten times slower, computes it."""
    return np.maximum(m, 0.0) + np.log1p(np.exp(-np.abs(m)))


def _ratio(angle: np.ndarray, total: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return angle / total


# What is computed from the stored columns when it is asked for.
DERIVED: Mapping[str, tuple[tuple[str, ...], Callable[..., np.ndarray]]] = {
    "avh": (("angle", "angle_sum"), _ratio),
    "angular_margin": (("angle", "other_angle"), np.subtract),
    "confidence": (("soft_margin",), lambda m: np.exp(-softplus(m))),
    "nll": (("soft_margin",), softplus),
    "correct": (("pred", "label"), lambda pred, label: np.where(np.isnan(pred), np.nan, pred == label)),
}


def needed(names: Collection[str]) -> list[str]:
    """The stored columns behind columns that may be derived."""
    return list(dict.fromkeys(c for name in names for c in (DERIVED[name][0] if name in DERIVED else (name,))))


@dataclass(frozen=True)
class Block:
    """All rows of a range of ids, sorted by (id, epoch).

    Attributes:
        table: The rows; their ids are encoded as a dictionary.
        ids: Each id once, sorted.
        code: The place of each row's id among them.
    """

    table: pa.Table
    ids: pa.Array
    code: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """A stored or derived column as float64, NaN where it is missing: old runs lack `other_angle`."""
        if name in DERIVED:
            needs, function = DERIVED[name]
            return function(*map(self.column, needs))
        if name not in self.table.column_names:
            return np.full(len(self.table), np.nan)
        return self.table[name].to_numpy().astype(np.float64)


def scores_of(rows: pa.Table, classes: int) -> pa.Table:
    """Rows of one epoch as a table of scores: ``id, label, pred`` and every registered score that the records give."""
    block = Block(rows, rows["id"], np.arange(len(rows)))
    angle, total = block.column("angle"), block.column("angle_sum")
    columns: dict[str, Any] = {name: rows[name].cast(pa.int64()) for name in ("label", "pred")}
    columns |= {"avh": block.column("avh"), "avc": (np.pi - angle) / (classes * np.pi - total)}
    names = ["confidence", "nll", "soft_margin", "norm", "margin", "angle", "el2n"]
    names += ["angular_margin"] if "other_angle" in rows.column_names else []
    return pa.table({"id": rows["id"], **columns, **{name: block.column(name) for name in names}})


# ---------------------------------------------------------------------------------------------------------------------
# Reading.


class RecordFile:
    """An open Parquet file of records and the range of ids in each of its row groups.

    Args:
        path: The file.
        epochs: The first and last epoch that the index says it holds.
        columns: Which to read beside id and epoch; None reads all.
    """

    def __init__(self, path: Path, epochs: list[int], columns: Collection[str] | None) -> None:
        self._path, self._epochs = path, epochs
        with damage_errors(path):
            self._parquet = pq.ParquetFile(path, read_dictionary=["id"])
            schema, meta = self._parquet.schema_arrow, self._parquet.metadata
            for name, kind in SCHEMAS[DYNAMICS].columns.items():
                stored = pa.dictionary(pa.int32(), kind) if name == "id" else kind
                if name not in schema.names or schema.field(name).type != stored:
                    raise InputError(f"it has no column {name} of type {kind}")
            checked_rows(schema.empty_table(), DYNAMICS)
            self.spans = []
            for group in map(meta.row_group, range(meta.num_row_groups)):
                limits = group.column(schema.names.index("id")).statistics
                ids = (limits.min, limits.max) if limits is not None and limits.has_min_max else ("", "\U0010ffff")
                self.spans.append((*ids, group.num_rows))
        self.columns = None if columns is None else ["id", "epoch", *(c for c in columns if c in schema.names)]

    def read(self, low: str, high: str | None) -> Iterator[pa.Table]:
        """Rows with low ≤ id < high."""
        for group, (first, last, _) in enumerate(self.spans):
            if last < low or (high is not None and first >= high):
                continue
            table = self.read_group(group)
            if first < low:
                table = filter_ids(table, lambda ids: pc.greater_equal(ids, low))
            if high is not None and last >= high:
                table = filter_ids(table, lambda ids: pc.less(ids, high))
            yield table

    def read_group(self, group: int) -> pa.Table:
        """A row group; its epochs must be those of the index and its class numbers such as a head can have."""
        with damage_errors(self._path):
            table = check_table(self._parquet.read_row_group(group, columns=self.columns))
            for name in {"id", "epoch", "label", "pred"} & set(table.column_names):
                if table[name].null_count:
                    raise InputError(f"{name} is missing in some rows")
                if name in ("label", "pred"):
                    check_classes(table[name], name)
            epochs = pc.min_max(table["epoch"]).as_py()
            if len(table) and not self._epochs[0] <= epochs["min"] <= epochs["max"] <= self._epochs[1]:
                raise InputError("its epochs are not those that the index tells")
            return table

    def close(self) -> None:
        self._parquet.close()


def filter_ids(table: pa.Table, condition: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """The rows whose id meets a condition, which is evaluated once per distinct id and not once per row."""
    chunks = [condition(chunk.dictionary).take(chunk.indices) for chunk in table["id"].chunks]
    return table.filter(pa.chunked_array(chunks, pa.bool_()))


def open_files(run: str | Path, entries: list[Entry], columns: Collection[str] | None) -> list[RecordFile]:
    """Files of the index, all of them or none. Once open they can be read even after a recorder removes them."""
    with ExitStack() as stack:
        opened = []
        for entry in entries:
            file = RecordFile(Path(run) / DYNAMICS / entry["name"], entry["epochs"], columns)
            opened.append(stack.enter_context(closing(file)))
        stack.pop_all()
    return opened


def blocks(
    files: list[RecordFile], rows: int = FILE_ROWS, visible: Callable[[pa.Table], pa.Table] = lambda table: table
) -> Iterator[Block]:
    """All epochs of one range of ids after the other; the files are closed at the end.

    Args:
        files: Open files.
        rows: About how many rows at a time.
        visible: A function that leaves out the rows of a table that are not to be read.
    """
    with ExitStack() as stack:
        for file in files:
            stack.enter_context(closing(file))
        for low, high in _ranges(files, rows):
            table = concat([visible(piece) for file in files for piece in file.read(low, high)])
            if len(table):
                yield _sorted(table)


def concat(tables: list[pa.Table], empty: pa.Table = _NO_ROWS) -> pa.Table:
    """Tables one after the other, with nulls where one lacks a column of another; `empty` where there are none."""
    return pa.concat_tables(tables, promote_options="default") if tables else empty


def _ranges(files: list[RecordFile], rows: int) -> Iterator[tuple[str, str | None]]:
    """Ranges of ids that begin where a row group does and hold about so many rows."""
    starts = sorted((first, count) for file in files for first, _, count in file.spans)
    low, total = "", 0
    for first, count in starts:
        if total >= rows and first > low:
            yield low, first
            low, total = first, 0
        total += count
    yield low, None


def _sorted(table: pa.Table) -> Block:
    ids = table.unify_dictionaries().combine_chunks()["id"].combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    order = pc.sort_indices(ids.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    code, names = rank[ids.indices.to_numpy()], ids.dictionary.take(order)
    present = np.bincount(code, minlength=len(names)) > 0  # a filter leaves names without rows in a dictionary
    if not present.all():
        code, names = (np.cumsum(present) - 1)[code], names.filter(pa.array(present))
    epoch = table["epoch"].to_numpy()
    key = code * (int(epoch.max()) + 1) + epoch
    if (np.diff(key) < 0).any():
        order = np.argsort(key, kind="stable")
        table, code = table.take(pa.array(order)), code[order]
    return Block(table, names, code)


def read_heads(run: str | Path, index: Index) -> pa.Table:
    """Norm and bias of each class weight at the end of each epoch."""
    parts = [_HEADS.empty_table()]
    for path in (Path(run) / DYNAMICS / name for name in index.heads):
        with damage_errors(path):
            heads = pq.read_table(path)
            if not heads.schema.equals(_HEADS) or any(column.null_count for column in heads.columns):
                raise InputError("it holds no class weights")
            check_classes(heads["class"], "class")
        parts.append(heads)
    return pa.concat_tables(parts)


def read_ids(run: str | Path, index: Index, ids: pa.Array, columns: Collection[str] | None = None) -> pa.Table:
    """All rows of some samples in any order, from the row groups that may hold them."""
    names = sorted(ids.to_pylist())

    def holds(first: str, last: str) -> bool:
        return bisect.bisect_left(names, first) < bisect.bisect_right(names, last)

    tables = []
    for file in open_files(run, [entry for entry in index.files if holds(*entry["ids"])], columns):
        with closing(file):
            groups = [group for group, (first, last, _) in enumerate(file.spans) if holds(first, last)]
            pieces = map(file.read_group, groups)
            tables += [with_text(filter_ids(piece, partial(pc.is_in, value_set=ids))) for piece in pieces]
    return concat(tables)


def read_epoch(run: str | Path, index: Index, epoch: int, columns: Collection[str] | None = None) -> pa.Table:
    """All rows of one epoch, by id; `columns` are read beside id and epoch, None reads all."""
    entries = [entry for entry in index.files if entry["epochs"][0] <= epoch <= entry["epochs"][1]]
    tables = [block.table for block in blocks(open_files(run, entries, columns))]
    return concat([with_text(table.filter(pc.equal(table["epoch"], epoch))) for table in tables])
