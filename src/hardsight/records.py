"""Records of training on disk: one row per sample and epoch, in Parquet files that an index commits.

::

    run/dynamics/index.json          which files belong to the records; replacing it is what commits an epoch
    run/dynamics/*.parquet           rows sorted by (id, epoch), each file a range of epochs and of ids
    run/dynamics/*.heads.parquet     (epoch, class) norm and bias of the class weights at the end of each epoch

An epoch is written as a file of its own. Sixteen of them are merged into files that hold all their epochs of a range
of ids, so that one sample's curve lies in one place. A file that the index does not name is none: a kill leaves only
such files, and the next start sweeps them.
"""

from __future__ import annotations

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
from hardsight.recordindex import VERSION, Index, commit, has_records, new_name, read_index, read_with
from hardsight.runs import DYNAMICS, SCHEMAS, check_classes, checked_rows, damage_errors, disk_errors, write_whole
from hardsight.untrusted import check_table

__all__ = ["Index", "commit", "has_records", "new_name", "read_index", "read_with"]

# What AVH, confidence and loss are derived from is kept in float32; the rest in sixteen significant bits of it.
EXACT = ("angle", "angle_sum", "soft_margin")
ROUNDED = ("margin", "norm", "el2n", "nll_angles", "nll_norms")
FLOATS = (*EXACT, *ROUNDED)

_NO_ROWS = pa.schema(list(SCHEMAS[DYNAMICS].columns.items())).empty_table()
_HEADS = pa.schema({"epoch": pa.int32(), "class": pa.int32(), "norm": pa.float32(), "bias": pa.float32()})
_GROUP_ROWS = 1 << 15
FILE_ROWS = 1 << 21
_MERGE_AT, _MERGE_HEADS = 16, 64


# ---------------------------------------------------------------------------------------------------------------------
# Writing.


def rounded(values: np.ndarray) -> np.ndarray:
    """float32 with sixteen significant bits, to the nearest: two bytes of it are zero and cost nothing on disk."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    finite = np.isfinite(values)
    nearest = (bits + np.uint32(0x7F) + ((bits >> np.uint32(8)) & np.uint32(1))) & np.uint32(0xFFFFFF00)
    return np.where(finite, nearest, bits).view(np.float32)


def write_rows(run: Path, index: Index, rows: pa.Table) -> None:
    """Add a file with rows sorted by (id, epoch) to an index, without committing it."""
    if not len(rows):
        return
    name, folder = new_name(), run / DYNAMICS
    rows = with_text(rows).replace_schema_metadata({"hardsight_kind": DYNAMICS, "hardsight_version": str(VERSION)})
    floats = [column for column in rows.column_names if column in FLOATS]
    span = pc.min_max(rows["epoch"]).as_py()
    dictionaries = {"id", "epoch", "label", "pred"} & set(rows.column_names)
    if span["min"] == span["max"]:
        dictionaries -= {"id"}  # none comes twice
    writer = partial(
        pq.write_table,
        rows,
        row_group_size=_GROUP_ROWS,
        compression="zstd",
        use_dictionary=dictionaries,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
    )
    with disk_errors(run):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, writer)
    ids = rows["id"]
    index.files.append(
        {
            "name": name,
            "epochs": [span["min"], span["max"]],
            "ids": [ids[0].as_py(), ids[-1].as_py()],
            "rows": len(rows),
            "bytes": (folder / name).stat().st_size,
        }
    )


def with_text(rows: pa.Table) -> pa.Table:
    """Rows whose ids are plain text."""
    return rows.set_column(rows.schema.get_field_index("id"), "id", rows["id"].cast(pa.string()))


def write_head(run: Path, index: Index, epoch: int, head: np.ndarray) -> None:
    """Add norms and biases ``(2, C)`` of an epoch's class weights to an index, in place of those that it has."""
    classes = np.arange(head.shape[1])
    columns = (np.full(len(classes), epoch), classes, head[0], head[1])
    heads = pa.table([pa.array(v, t) for v, t in zip(columns, _HEADS.types, strict=True)], schema=_HEADS)
    if len(index.heads) >= _MERGE_HEADS or epoch in index.epochs:
        before = read_heads(run, index)
        heads = pa.concat_tables([before.filter(pc.less(before["epoch"], epoch)), heads])
        index.heads = []
    _add_heads(run, index, heads)


def _add_heads(run: Path, index: Index, heads: pa.Table) -> None:
    name = new_name("heads.parquet")
    with disk_errors(run):
        writer = partial(pq.write_table, heads, compression="zstd")
        write_whole(run / DYNAMICS / name, writer)
    index.heads.append(name)


def merge(run: Path, index: Index, *, everything: bool = False) -> bool:
    """Merge files of single epochs once there are sixteen, or all files; True when the index has changed."""
    several = [f for f in index.files if f["epochs"][0] != f["epochs"][1]]
    single = [f for f in index.files if f["epochs"][0] == f["epochs"][1]]
    chosen = index.files if everything else single
    if len(chosen) < (2 if everything else _MERGE_AT) or _settled(chosen):
        return False
    merged = Index(files=[] if everything else list(several))
    for block in blocks(run, chosen, None, rows=FILE_ROWS):
        write_rows(run, merged, block.table)
    index.files = merged.files
    return True


def _settled(files: list[dict[str, Any]]) -> bool:
    """Whether no two files share an id: then a curve lies in one of them already."""
    spans = sorted(tuple(f["ids"]) for f in files)
    return all(a[1] < b[0] for a, b in itertools.pairwise(spans))


def drop_from(run: Path, index: Index, epoch: int) -> None:
    """Forget an epoch and all later ones; committed by the caller."""
    kept = Index(steps={k: v for k, v in index.steps.items() if int(k) < epoch})
    kept.epochs = [e for e in index.epochs if e < epoch]
    kept.states = {k: v for k, v in index.states.items() if int(k) < epoch}
    kept.files = [f for f in index.files if f["epochs"][1] < epoch]
    cut = [f for f in index.files if f["epochs"][0] < epoch <= f["epochs"][1]]
    for block in blocks(run, cut, None, rows=FILE_ROWS):
        write_rows(run, kept, block.table.filter(pc.less(block.table["epoch"], epoch)))
    heads = read_heads(run, index)
    _add_heads(run, kept, heads.filter(pc.less(heads["epoch"], epoch)))
    vars(index).update(vars(kept))


# ---------------------------------------------------------------------------------------------------------------------
# Reading.


@dataclass(frozen=True)
class Block:
    """All rows of a range of ids, sorted by (id, epoch).

    Attributes:
        table: The rows; their ids are encoded as a dictionary.
        ids: Each id once, sorted.
        code: Of each row, where its id stands among them.
    """

    table: pa.Table
    ids: pa.Array
    code: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """A column as float64, NaN where it is missing; what is derived is computed."""
        if name in DERIVED:
            needs, function = DERIVED[name]
            return function(*(self.column(other) for other in needs))
        if name not in self.table.column_names:
            return np.full(len(self.table), np.nan)
        return self.table[name].to_numpy().astype(np.float64)


def softplus(m: np.ndarray) -> np.ndarray:
    """log(1 + exp(m)), as NumPy's `logaddexp`, which is ten times slower, has it."""
    return np.maximum(m, 0.0) + np.log1p(np.exp(-np.abs(m)))


def _share(angle: np.ndarray, total: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return angle / total


# What is computed from the stored columns when it is asked for.
DERIVED: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "avh": (("angle", "angle_sum"), _share),
    "confidence": (("soft_margin",), lambda m: np.exp(-softplus(m))),
    "nll": (("soft_margin",), softplus),
    "correct": (("pred", "label"), lambda pred, label: np.where(np.isnan(pred), np.nan, pred == label)),
}


def needed(names: Collection[str]) -> list[str]:
    """The stored columns behind columns that may be derived."""
    found = [c for name in names for c in (DERIVED[name][0] if name in DERIVED else (name,))]
    return list(dict.fromkeys(found))


def blocks(
    run: str | Path, files: list[dict[str, Any]], columns: Collection[str] | None, *, rows: int = FILE_ROWS
) -> Iterator[Block]:
    """The rows of files, some million at a time: all epochs of one range of ids, then of the next.

    Args:
        run: The run.
        files: Entries of its index.
        columns: Which to read beside id and epoch; None all.
        rows: About how many at a time.
    """
    return blocks_of(open_files(run, files, columns), rows)


def open_files(run: str | Path, files: list[dict[str, Any]], columns: Collection[str] | None) -> list[RecordFile]:
    """Files of the index, all of them or none. Once open they can be read even where a recorder removes them."""
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(RecordFile(Path(run) / DYNAMICS, entry, columns))) for entry in files]
        stack.pop_all()
    return opened


def blocks_of(
    files: list[RecordFile], rows: int, visible: Callable[[pa.Table], pa.Table] | None = None
) -> Iterator[Block]:
    """The rows of open files, which are closed at the end.

    Args:
        files: What `open_files` gives.
        rows: About how many at a time.
        visible: Takes some rows and leaves out those that are not to be read.
    """
    try:
        for low, high in _ranges(files, rows):
            pieces = [piece for file in files for piece in file.read(low, high)]
            if visible is not None:
                pieces = [visible(piece) for piece in pieces]
            if sum(map(len, pieces)):
                yield _sorted(pa.concat_tables(pieces, promote_options="default"))
    finally:
        for file in files:
            file.close()


class RecordFile:
    """A Parquet file of records and the ids that its row groups hold.

    Args:
        folder: Where it lies.
        entry: What the index says of it.
        columns: Which to read beside id and epoch; None all.
    """

    def __init__(self, folder: Path, entry: Mapping[str, Any], columns: Collection[str] | None) -> None:
        self._path, self._epochs = folder / entry["name"], entry["epochs"]
        with damage_errors(self._path):
            self._parquet = pq.ParquetFile(self._path, read_dictionary=["id"])
            meta, schema = self._parquet.metadata, self._parquet.schema_arrow
            names = schema.names
            for name, kind in SCHEMAS[DYNAMICS].columns.items():
                stored = pa.dictionary(pa.int32(), kind) if name == "id" else kind
                if name not in names or schema.field(name).type != stored:
                    raise InputError(f"it has no column {name} of type {kind}")
            checked_rows(schema.empty_table(), DYNAMICS)
            place = names.index("id")
            self.spans = []
            for group in range(meta.num_row_groups):
                limits = meta.row_group(group).column(place).statistics
                ids = (limits.min, limits.max) if limits is not None and limits.has_min_max else ("", "\U0010ffff")
                self.spans.append((*ids, meta.row_group(group).num_rows))
        self.columns = None if columns is None else ["id", "epoch", *(c for c in columns if c in names)]

    def read(self, low: str, high: str | None) -> Iterator[pa.Table]:
        """Rows with low ≤ id < high."""
        for group, (first, last, _) in enumerate(self.spans):
            if last < low or (high is not None and first >= high):
                continue
            with damage_errors(self._path):
                table = self._checked(check_table(self._parquet.read_row_group(group, columns=self.columns)))
                if first < low or (high is not None and last >= high):
                    table = table.filter(_between(table["id"], low, high))
            if len(table):
                yield table

    def _checked(self, table: pa.Table) -> pa.Table:
        """Rows of the epochs that the index tells, with class numbers that a head can have."""
        for name in {"id", "epoch", "label", "pred"} & set(table.column_names):
            if table[name].null_count:
                raise InputError(f"{name} is missing in some rows")
        for name in {"label", "pred"} & set(table.column_names):
            check_classes(table[name], name)
        span = pc.min_max(table["epoch"]).as_py()
        if len(table) and not self._epochs[0] <= span["min"] <= span["max"] <= self._epochs[1]:
            raise InputError("its epochs are not those that the index tells")
        return table

    def close(self) -> None:
        self._parquet.close()


def _ranges(files: list[RecordFile], rows: int) -> Iterator[tuple[str, str | None]]:
    """Cuts between ids, at row groups' first ids, so that about `rows` rows lie between two."""
    starts = sorted((first, count) for file in files for first, _, count in file.spans)
    if not starts:
        return
    low, held = starts[0][0], 0
    for first, count in starts:
        if held >= rows and first > low:
            yield low, first
            low, held = first, 0
        held += count
    yield low, None


def _between(ids: pa.ChunkedArray, low: str, high: str | None) -> pa.ChunkedArray:
    """Which ids lie in a range, asked of each name once and not of each row."""
    answers = []
    for chunk in ids.chunks:
        inside = pc.greater_equal(chunk.dictionary, low)
        if high is not None:
            inside = pc.and_(inside, pc.less(chunk.dictionary, high))
        answers.append(inside.take(chunk.indices))
    return pa.chunked_array(answers)


def _sorted(table: pa.Table) -> Block:
    ids = table.unify_dictionaries().combine_chunks()["id"].combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    order = pc.sort_indices(ids.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    code, names = rank[ids.indices.to_numpy()], ids.dictionary.take(order)
    there = np.bincount(code, minlength=len(names)) > 0  # a filter leaves names without rows in a dictionary
    if not there.all():
        code, names = (np.cumsum(there) - 1)[code], names.filter(pa.array(there))
    epoch = table["epoch"].to_numpy()
    key = code * (int(epoch.max()) + 1) + epoch
    if (np.diff(key) < 0).any():
        order = np.argsort(key, kind="stable")
        table, code = table.take(pa.array(order)), code[order]
    return Block(table, names, code)


def read_heads(run: str | Path, index: Index) -> pa.Table:
    """Norm and bias of each class weight at the end of each epoch."""
    parts = []
    for path in (Path(run) / DYNAMICS / name for name in index.heads):
        with damage_errors(path):
            heads = pq.read_table(path)
            if not heads.schema.equals(_HEADS) or any(column.null_count for column in heads.columns):
                raise InputError("it holds no class weights")
            check_classes(heads["class"], "class")
        parts.append(heads)
    return pa.concat_tables([_HEADS.empty_table(), *parts])


def files_of_epoch(index: Index, epoch: int) -> list[dict[str, Any]]:
    """Files that may hold rows of an epoch."""
    return [f for f in index.files if f["epochs"][0] <= epoch <= f["epochs"][1]]


def files_of_id(index: Index, id_: str) -> list[dict[str, Any]]:
    """Files that may hold rows of a sample."""
    return [f for f in index.files if f["ids"][0] <= id_ <= f["ids"][1]]


def read_sample(run: str | Path, index: Index, id_: str) -> pa.Table:
    """All rows of one sample, by epoch, from the row groups that may hold it."""
    pieces = []
    for entry in files_of_id(index, id_):
        file = RecordFile(Path(run) / DYNAMICS, entry, None)
        pieces += list(file.read(id_, id_ + "\0"))
        file.close()
    table = pa.concat_tables([_NO_ROWS, *map(with_text, pieces)], promote_options="default")
    return table.take(pc.sort_indices(table["epoch"]))


def read_epoch(run: str | Path, index: Index, epoch: int, columns: Collection[str] | None = None) -> pa.Table:
    """All rows of one epoch, by id.

    Args:
        run: The run.
        index: Its index.
        epoch: Its number.
        columns: Which to read beside id and epoch; None all.
    """
    tables = [block.table for block in blocks(run, files_of_epoch(index, epoch), columns)]
    pieces = [with_text(table.filter(pc.equal(table["epoch"], epoch))) for table in tables]
    empty = _NO_ROWS if columns is None else _NO_ROWS.select(["id", "epoch", *columns])
    return pa.concat_tables([empty, *pieces], promote_options="default")


def scores_of(rows: pa.Table, classes: int) -> pa.Table:
    """Rows of one epoch as rows of scores: ``id, label, pred`` and what the records tell of each registered score."""
    block = Block(rows, rows["id"], np.arange(len(rows)))
    columns: dict[str, Any] = {"id": rows["id"], "label": rows["label"].cast(pa.int64())}
    columns["pred"] = rows["pred"].cast(pa.int64())
    angle, total = block.column("angle"), block.column("angle_sum")
    columns |= {"avh": block.column("avh"), "avc": (np.pi - angle) / (classes * np.pi - total)}
    for name in ("confidence", "nll", "soft_margin", "norm", "margin", "angle", "el2n"):
        columns[name] = block.column(name)
    return pa.table(columns)
