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

import itertools
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.errors import InputError, StateError
from hardsight.runs import (
    DYNAMICS,
    INDEX,
    SCHEMAS,
    check_classes,
    damage_errors,
    disk_errors,
    sweep,
    write_text,
    write_whole,
)
from hardsight.untrusted import check_table, read_json

VERSION = SCHEMAS[DYNAMICS].version
MOST_EPOCHS = 2**31 - 1  # epochs are stored in 32 bits

# Significant bits of each column, stored as float32: AVH, confidence and loss are derived from whole numbers; for the
# others bits are saved, because bits that are zero cost nothing on disk.
BITS = dict.fromkeys(("angle", "angle_sum", "soft_margin"), 24) | {"other_angle": 11}
BITS |= dict.fromkeys(("margin", "norm", "el2n", "nll_angles", "nll_norms"), 16)

FILE_ROWS = 1 << 21
MOST_FILES = 128  # of single epochs
_GROUP_ROWS = 1 << 15
_SCHEMA = pa.schema({**SCHEMAS[DYNAMICS].columns, **dict.fromkeys(BITS, pa.float32())})
_HEADS = pa.schema({"epoch": pa.int32(), "class": pa.int32(), "norm": pa.float32(), "bias": pa.float32()})
_NAME = re.compile(r"[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")

Result = TypeVar("Result")


# The index.


class Entry(TypedDict):
    """A file of rows: the first and last epoch and id that it holds, and its size."""

    name: str
    epochs: list[int]
    ids: list[str]
    rows: int
    bytes: int


@dataclass
class Index:
    """What is committed.

    Attributes:
        files: The files of rows.
        epochs: The recorded epochs, in order; the last one is unfinished where `open`.
        steps: The number of batches recorded by the end of each epoch.
        heads: The files of class weights.
        states: By epoch, the file that the next epoch is compared with (the last two are kept).
        open: Whether the last epoch was flushed before its end.
        owner: The recorder that may write.
    """

    files: list[Entry] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    open: bool = False
    owner: str = ""
    version: int = VERSION

    def names(self) -> set[str]:
        return {*(entry["name"] for entry in self.files), *self.states.values(), *self.heads}

    def is_sound(self) -> bool:
        """Whether a recorder may have written it: no name leads out of the folder, no file holds other epochs."""
        first, last = (self.epochs[0], self.epochs[-1]) if self.epochs else (1, 0)
        return (
            (bool(self.epochs) or not self.open)
            and all(a < b for a, b in itertools.pairwise([0, *self.epochs, MOST_EPOCHS + 1]))
            and all(map(_NAME.fullmatch, self.names()))
            and all(re.fullmatch("[1-9][0-9]{0,9}", epoch) for epoch in [*self.steps, *self.states])
            and all(len(entry["epochs"]) == len(entry["ids"]) == 2 for entry in self.files)
            and all(first <= entry["epochs"][0] <= entry["epochs"][1] <= last for entry in self.files)
            and all(entry["ids"][0] <= entry["ids"][1] for entry in self.files)
        )


def has_records(run: str | Path) -> bool:
    """Whether a run holds records of training."""
    return (Path(run) / DYNAMICS / INDEX).is_file()


def read_index(run: str | Path) -> Index:
    """What is committed in a run; an empty index where nothing is.

    Raises:
        StateError: The index is damaged, or hardsight is too old for it.
    """
    if not has_records(run):
        return Index()
    index = read_json(Path(run) / DYNAMICS / INDEX, Index)
    if index.version > VERSION:
        raise StateError(
            f"RUN: the records of {run} were written by a newer hardsight (version {index.version}, this one reads "
            f"{VERSION}); upgrade hardsight."
        )
    if not index.is_sound():
        raise StateError(f"RUN: {run} is damaged: no recorder writes such names, epochs or ids into {INDEX}.")
    return index


def read_with(run: str | Path, read: Callable[[Index], Result]) -> Result:
    """What a function reads from the files of the index; it reads again if a recorder replaces them meanwhile."""
    while True:
        index = read_index(run)
        try:
            return read(index)
        except FileNotFoundError as error:
            if read_index(run) == index:
                raise StateError(f"RUN: {run} is damaged: a file of its records is missing ({error}).") from None


def commit(run: Path, index: Index) -> None:
    """Replace the index, and only then remove the files that it no longer names."""
    folder, named = run / DYNAMICS, index.names()
    with disk_errors(run):
        write_text(folder / INDEX, json.dumps(vars(index)))
        sweep(folder)
        for stray in folder.iterdir():
            if _NAME.fullmatch(stray.name) and stray.name not in named and not stray.is_dir():
                stray.unlink(missing_ok=True)


# Writing.


def rounded(values: np.ndarray, bits: int = 16) -> np.ndarray:
    """float32 values rounded to the nearest with so many significant bits; the last bytes are then zero."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if bits >= 24:
        return values
    pattern, drop, half = values.view(np.uint32), np.uint32(24 - bits), np.uint32((1 << (23 - bits)) - 1)
    nearest = ((pattern + half + ((pattern >> drop) & np.uint32(1))) >> drop) << drop
    return np.where(np.isfinite(values), nearest, pattern).view(np.float32)


def write_file(run: Path, kind: str, writer: Callable[[Path], object]) -> str:
    """Write a file under a name that no other start takes, and return the name. Nothing is committed by it."""
    name = f"{secrets.token_hex(8)}.{kind}"
    with disk_errors(run):
        write_whole(run / DYNAMICS / name, writer)
    return name


def write_rows(run: Path, index: Index, rows: pa.Table, compression_level: int = 1) -> None:
    """Add a file with rows sorted by (id, epoch) to an index, without committing it."""
    if not len(rows):
        return
    rows = with_text(rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)]))
    rows = rows.replace_schema_metadata({"hardsight_kind": DYNAMICS, "hardsight_version": str(VERSION)})
    ids, epochs = [rows["id"][0].as_py(), rows["id"][-1].as_py()], pc.min_max(rows["epoch"]).as_py()
    writer = partial(
        pq.write_table,
        rows,
        row_group_size=_GROUP_ROWS,
        compression="zstd",
        compression_level=compression_level,
        use_dictionary=["epoch", "label", "pred", *(["id"] if epochs["min"] < epochs["max"] else [])],
        column_encoding={name: "BYTE_STREAM_SPLIT" for name in rows.column_names if name in BITS},
    )
    name = write_file(run, "parquet", writer)
    size = (run / DYNAMICS / name).stat().st_size
    index.files.append(Entry(name=name, epochs=[*epochs.values()], ids=ids, rows=len(rows), bytes=size))


def write_head(run: Path, index: Index, epoch: int, head: np.ndarray) -> None:
    """Add the norms and biases ``(2, C)`` of an epoch's class weights; those of this and later epochs are replaced."""
    classes = np.arange(head.shape[1])
    columns = (np.full(len(classes), epoch), classes, *head)
    heads = pa.table([pa.array(v, t) for v, t in zip(columns, _HEADS.types, strict=True)], schema=_HEADS)
    if len(index.heads) >= MOST_FILES or epoch in index.epochs:
        before = read_heads(run, index)
        heads = pa.concat_tables([before.filter(pc.less(before["epoch"], epoch)), heads])
        index.heads = []
    index.heads.append(write_file(run, "heads.parquet", partial(pq.write_table, heads, compression="zstd")))


def compact(run: Path, index: Index, *, everything: bool = False) -> bool:
    """Bring each sample's rows into one place: of all files, or of single epochs once there are `MOST_FILES`.

    Returns whether the index has changed; the caller commits it.
    """
    kept = [] if everything else [entry for entry in index.files if entry["epochs"][0] != entry["epochs"][1]]
    selected = [entry for entry in index.files if entry not in kept]
    if len(selected) < (2 if everything else MOST_FILES) or _are_disjoint(selected):
        return False
    index.files = kept
    for block in blocks(run, Index(files=selected)):
        write_rows(run, index, block.table, compression_level=6)
    return True


def drop_from(run: Path, index: Index, epoch: int) -> None:
    """Forget an epoch and all later ones; the caller commits."""
    write_head(run, index, epoch, np.zeros((2, 0)))
    cut = [entry for entry in index.files if entry["epochs"][0] < epoch <= entry["epochs"][1]]
    index.files, index.open = [entry for entry in index.files if entry["epochs"][1] < epoch], False
    index.epochs = [e for e in index.epochs if e < epoch]
    index.steps = {k: v for k, v in index.steps.items() if int(k) < epoch}
    index.states = {k: v for k, v in index.states.items() if int(k) < epoch}
    for block in blocks(run, Index(files=cut), epochs=(1, epoch - 1)):
        write_rows(run, index, block.table)


# Columns.


def softplus(m: np.ndarray) -> np.ndarray:
    """log(1 + exp(m)), as NumPy's `logaddexp`, which is ten times slower, computes it."""
    return np.maximum(m, 0.0) + np.log1p(np.exp(-np.abs(m)))


# What is computed from the stored columns when it is asked for.
DERIVED: Mapping[str, tuple[tuple[str, ...], Callable[..., np.ndarray]]] = {
    "avh": (("angle", "angle_sum"), lambda angle, total: np.divide(angle, np.where(total == 0, np.nan, total))),
    "angular_margin": (("angle", "other_angle"), np.subtract),
    "confidence": (("soft_margin",), lambda m: np.exp(-softplus(m))),
    "nll": (("soft_margin",), softplus),
    "correct": (("pred", "label"), lambda pred, label: np.where(np.isnan(pred), np.nan, pred == label)),
}


def needed(names: Collection[str]) -> list[str]:
    """The stored columns behind columns that may be derived."""
    return list(dict.fromkeys(c for name in names for c in (DERIVED[name][0] if name in DERIVED else (name,))))


class Block(NamedTuple):
    """All rows of a range of ids, sorted by (id, epoch); each id once; and the place of each row's id among them."""

    table: pa.Table
    ids: pa.Array
    code: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """A stored or derived column as float64, NaN where it is missing."""
        if name in DERIVED:
            needs, function = DERIVED[name]
            return function(*map(self.column, needs))
        return self.table[name].to_numpy().astype(np.float64)


# Reading.


def read_rows(
    run: str | Path,
    index: Index,
    columns: Collection[str] | None = None,
    *,
    epochs: tuple[int, int] = (1, MOST_EPOCHS),
    ids: tuple[str, str | None] = ("", None),
    where: pc.Expression | None = None,
) -> pa.Table:
    """Rows between two epochs and two ids (the second is excluded), file after file; ids are encoded as a dictionary.

    `columns` are read beside id and epoch, None reads all; `where` is a further condition.
    """
    (first, last), (low, high) = epochs, ids
    names = _SCHEMA.names if columns is None else ["id", "epoch", *columns]
    schema = pa.schema([_SCHEMA.field(name) for name in names])
    schema = schema.set(0, pa.field("id", pa.dictionary(pa.int32(), pa.string())))
    tables = [schema.empty_table()]
    for entry in index.files:
        path = Path(run) / DYNAMICS / entry["name"]
        (start, end), (lowest, highest) = entry["epochs"], entry["ids"]
        if end < first or start > last or highest < low or (high is not None and lowest >= high):
            continue
        conditions = [] if where is None else [where]
        conditions += [pc.field("epoch") >= first, pc.field("epoch") <= last] if start < first or end > last else []
        with damage_errors(path), pq.ParquetFile(path, read_dictionary=["id"]) as file:
            limits = enumerate(_id_limits(file.metadata))
            groups = [i for i, (least, most, _) in limits if most >= low and (high is None or least < high)]
            rows = file.read_row_groups(groups, columns=names)
            for name in set(names) - set(rows.column_names):  # old files lack some
                rows = rows.append_column(name, pa.nulls(len(rows)))
            rows = rows.select(names).cast(schema)
            rows = _between(rows, low, high) if lowest < low or (high is not None and highest >= high) else rows
            for condition in conditions:
                rows = rows.filter(condition)
            tables.append(_checked(rows, entry))
    return pa.concat_tables(tables)


def _between(rows: pa.Table, low: str, high: str | None) -> pa.Table:
    """The rows between two ids, of rows sorted by id."""
    ids = rows.unify_dictionaries()["id"].combine_chunks()
    inside = pc.greater_equal(ids.dictionary, low)
    inside = inside if high is None else pc.and_(inside, pc.less(ids.dictionary, high))
    places = np.flatnonzero(inside.to_numpy(zero_copy_only=False)[ids.indices.to_numpy()])
    return rows.slice(places[0], places[-1] + 1 - places[0]) if len(places) else rows[:0]


def _checked(rows: pa.Table, entry: Entry) -> pa.Table:
    """Rows of a file if they are whole, of the epochs that the index tells, and of classes such as a head can have."""
    for name in {"id", "epoch", "label", "pred"} & set(check_table(rows).column_names):
        if rows[name].null_count:
            raise InputError(f"{name} is missing in some rows")
        if name in ("label", "pred"):
            check_classes(rows[name], name)
    epochs = pc.min_max(rows["epoch"]).as_py()
    if len(rows) and not entry["epochs"][0] <= epochs["min"] <= epochs["max"] <= entry["epochs"][1]:
        raise InputError("its epochs are not those that the index tells")
    return rows


def blocks(
    run: str | Path,
    index: Index | None = None,
    columns: Collection[str] | None = None,
    rows: int = FILE_ROWS,
    **options: Any,
) -> Iterator[Block]:
    """All epochs of one range of ids after the other, about so many rows at a time, as `read_rows` gives them.

    Without an index, what is committed is read, also if a recorder replaces files meanwhile.
    """

    def reading(read: Callable[[Index], Any]) -> Any:
        return read_with(run, read) if index is None else read(index)

    for ids in reading(lambda index: list(_ranges(run, index, rows))):
        table = reading(lambda index, ids=ids: read_rows(run, index, columns, ids=ids, **options))
        if len(table) or ids[1] is None:  # where there are no rows at all, an empty block
            yield _sorted(table)


def _ranges(run: str | Path, index: Index, rows: int) -> Iterator[tuple[str, str | None]]:
    """Ranges of ids that hold about so many rows: files where these do not overlap, and otherwise row groups."""
    starts, low, total = [(entry["ids"][0], entry["rows"]) for entry in index.files], "", 0
    if sum(count for _, count in starts) > rows and not _are_disjoint(index.files):
        starts = []
        for path in (Path(run) / DYNAMICS / entry["name"] for entry in index.files):
            with damage_errors(path):
                starts += [(first, count) for first, _, count in _id_limits(pq.read_metadata(path))]
    for first, count in sorted(starts):
        if total and total + count > rows and first > low:
            yield low, first
            low, total = first, 0
        total += count
    yield low, None


def _id_limits(meta: pq.FileMetaData) -> Iterator[tuple[str, str, int]]:
    """The first and last id and the number of rows of each row group."""
    column = meta.schema.names.index("id")
    for group in map(meta.row_group, range(meta.num_row_groups)):
        limits = group.column(column).statistics
        known = limits is not None and limits.has_min_max  # very long ids have no limits
        yield str(limits.min) if known else "", str(limits.max) if known else "\U0010ffff", group.num_rows


def _are_disjoint(entries: list[Entry]) -> bool:
    """Whether no id lies in two files."""
    spans = sorted(entry["ids"] for entry in entries)
    return all(a[1] < b[0] for a, b in itertools.pairwise(spans))


def _sorted(table: pa.Table) -> Block:
    table = table.unify_dictionaries().combine_chunks()
    ids = table["id"].combine_chunks()
    order = pc.sort_indices(ids.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    code, names, epoch = rank[ids.indices.to_numpy()], ids.dictionary.take(order), table["epoch"].to_numpy()
    present = np.bincount(code, minlength=len(names)) > 0  # a condition leaves names without rows in a dictionary
    if not present.all():
        code, names = (np.cumsum(present) - 1)[code], names.filter(pa.array(present))
    key = code * (int(epoch.max(initial=0)) + 1) + epoch
    if (np.diff(key) < 0).any():
        rows = np.argsort(key, kind="stable")
        table, code = table.take(pa.array(rows)), code[rows]
    return Block(table, names, code)


def scores_of(run: str | Path, index: Index, epoch: int, classes: int, where: pc.Expression | None = None) -> pa.Table:
    """One epoch as a table of scores, by id: ``id, label, pred`` and every registered score that the records give."""
    rows = with_text(read_rows(run, index, epochs=(epoch, epoch), where=where))
    rows = rows.take(pc.sort_indices(rows["id"]))
    block = Block(rows, rows["id"], np.arange(len(rows)))
    columns: dict[str, Any] = {name: rows[name].cast(pa.int64()) for name in ("label", "pred")}
    columns["avh"] = block.column("avh")
    columns["avc"] = (np.pi - block.column("angle")) / (classes * np.pi - block.column("angle_sum"))
    names = ["confidence", "nll", "soft_margin", "norm", "margin", "angle", "el2n"]
    names += ["angular_margin"] if rows["other_angle"].null_count < len(rows) else []  # old runs lack it
    return pa.table({"id": rows["id"], **columns, **{name: block.column(name) for name in names}})


def with_text(rows: pa.Table) -> pa.Table:
    """Rows whose ids are plain text."""
    return rows.set_column(0, "id", rows["id"].cast(pa.string()))


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
