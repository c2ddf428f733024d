"""Records of training on disk: one row per sample and epoch, in Parquet files sorted by (id, epoch).

Each epoch is appended as a file; `compact` rewrites files so that each holds all epochs of a range of ids. Replacing
``index.json``, which names the files, commits them. A kill leaves only files without a name there, and the next commit
removes those. The reference of the run folder describes every file.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.errors import StateError
from hardsight.runs import DYNAMICS, INDEX, SCHEMAS, check_values, damage_errors, disk_errors, sweep, write_whole
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
_CODED_ID = pa.field("id", pa.dictionary(pa.int32(), pa.string()))
_HEADS = pa.schema({"epoch": pa.int32(), "class": pa.int32(), "norm": pa.float32(), "bias": pa.float32()})
_NAME = re.compile(r"[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")

Result = TypeVar("Result")


class Entry(TypedDict):
    """A file of rows, and the first and last epoch and id in it."""

    name: str
    epochs: list[int]
    ids: list[str]
    rows: int


@dataclass
class Index:
    """What is committed."""

    files: list[Entry] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)  # 1, 2, …
    steps: dict[str, int] = field(default_factory=dict)  # by epoch, the number of batches recorded by its end
    heads: list[str] = field(default_factory=list)  # files of class weights
    states: dict[str, str] = field(default_factory=dict)  # by epoch (the last two), what the next is compared with
    open: bool = False  # whether the last epoch was flushed before its end
    owner: str = ""  # the recorder that may write
    version: int = VERSION

    def names(self) -> set[str]:
        return {*(entry["name"] for entry in self.files), *self.states.values(), *self.heads}


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
    last = len(index.epochs)
    sound = index.epochs == [*range(1, last + 1)] and all(map(_NAME.fullmatch, index.names()))
    for entry in index.files:
        sound = sound and len(entry["epochs"]) == len(entry["ids"]) == 2 and entry["ids"][0] <= entry["ids"][1]
        sound = sound and 1 <= entry["epochs"][0] <= entry["epochs"][1] <= last
    if not sound:
        raise StateError(f"RUN: {run} is damaged: no recorder writes such names, epochs or ids into {INDEX}.")
    return index


def commit(run: Path, index: Index) -> None:
    """Replace the index, and only then remove the files that it no longer names."""
    folder, named = run / DYNAMICS, index.names()
    with disk_errors(run):
        write_whole(folder / INDEX, lambda path: path.write_text(json.dumps(vars(index)), encoding="utf-8"))
        sweep(folder)
        for stray in folder.iterdir():
            if _NAME.fullmatch(stray.name) and stray.name not in named and not stray.is_dir():
                stray.unlink(missing_ok=True)


def _of_committed(read: Callable[..., Result]) -> Callable[..., Result]:
    """Lets a function of a run and an index do without the index: then it reads what is committed, and reads again if
    a recorder replaces files meanwhile."""

    @functools.wraps(read)
    def reading(run: str | Path, index: Index | None = None, *args: Any, **options: Any) -> Result:
        while True:
            current = index or read_index(run)
            try:
                return read(run, current, *args, **options)
            except FileNotFoundError as error:
                if index is not None or read_index(run) == current:
                    raise StateError(f"RUN: {run} is damaged: a file of its records is missing ({error}).") from None

    return reading


# Writing. Nothing is committed by these functions: the caller commits the index.


def rounded(values: np.ndarray, bits: int = 16) -> np.ndarray:
    """float32 values rounded to the nearest with so many significant bits; the last bytes are then zero."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if bits >= 24:
        return values
    pattern, drop, half = values.view(np.uint32), np.uint32(24 - bits), np.uint32((1 << (23 - bits)) - 1)
    nearest = ((pattern + half + ((pattern >> drop) & np.uint32(1))) >> drop) << drop
    return np.where(np.isfinite(values), nearest, pattern).view(np.float32)


def write_file(run: Path, kind: str, writer: Callable[[Path], object]) -> str:
    """Write a file under a name that nothing else has, and return the name."""
    name = f"{secrets.token_hex(8)}.{kind}"
    with disk_errors(run):
        write_whole(run / DYNAMICS / name, writer)
    return name


def write_rows(run: Path, index: Index, rows: pa.Table, compression_level: int = 1) -> None:
    """Add a file with rows sorted by (id, epoch) to an index."""
    if not len(rows):
        return
    rows = rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])
    rows = rows.set_column(0, "id", rows["id"].cast(pa.string()))
    rows = rows.replace_schema_metadata({"hardsight_kind": DYNAMICS, "hardsight_version": str(VERSION)})
    first, last = pc.min_max(rows["epoch"]).as_py().values()
    writer = partial(
        pq.write_table,
        rows,
        row_group_size=_GROUP_ROWS,
        compression="zstd",
        compression_level=compression_level,
        use_dictionary=["epoch", "label", "pred", *(["id"] if first < last else [])],
        column_encoding={name: "BYTE_STREAM_SPLIT" for name in rows.column_names if name in BITS},
    )
    ids, name = [rows["id"][0].as_py(), rows["id"][-1].as_py()], write_file(run, "parquet", writer)
    index.files.append(Entry(name=name, epochs=[first, last], ids=ids, rows=len(rows)))


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
    """Rewrite files so that each sample's rows lie in one place: all of them, or those of single epochs once there are
    `MOST_FILES`. Returns whether the index has changed."""
    kept = [] if everything else [entry for entry in index.files if entry["epochs"][0] != entry["epochs"][1]]
    selected = [entry for entry in index.files if entry not in kept]
    if len(selected) < (2 if everything else MOST_FILES) or _are_disjoint(selected):
        return False
    index.files = kept
    for block in blocks(run, Index(files=selected)):
        write_rows(run, index, block.table, compression_level=6)
    return True


def drop_from(run: Path, index: Index, epoch: int) -> None:
    """Forget an epoch and all later ones."""
    write_head(run, index, epoch, np.zeros((2, 0)))
    files, later = index.files, {str(e) for e in index.epochs if e >= epoch}
    index.epochs, index.open = [e for e in index.epochs if e < epoch], False
    index.steps = {key: steps for key, steps in index.steps.items() if key not in later}
    index.states = {key: name for key, name in index.states.items() if key not in later}
    index.files = [entry for entry in files if entry["epochs"][1] < epoch]
    cut = Index(files=[entry for entry in files if entry["epochs"][0] < epoch <= entry["epochs"][1]])
    for block in blocks(run, cut, epochs=(1, epoch - 1)):
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
    "correct": (("pred", "label"), np.equal),
}


@dataclass
class Block:
    """Rows sorted by (id, epoch), and where those of each sample start."""

    table: pa.Table
    starts: np.ndarray
    _derived: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def ids(self) -> pa.Array:
        """Each id once."""
        return self.table["id"].combine_chunks().take(pa.array(self.starts)).cast(pa.string())

    @property
    def code(self) -> np.ndarray:
        """The place of each row's id among `ids`."""
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=len(self.table)))

    def column(self, name: str) -> np.ndarray:
        """A stored or derived column as float64, NaN where it is missing."""
        if name not in DERIVED:
            return self.table[name].to_numpy().astype(np.float64)
        if name not in self._derived:
            needs, function = DERIVED[name]
            self._derived[name] = function(*map(self.column, needs)).astype(np.float64, copy=False)
        return self._derived[name]


# Reading.


def _read(path: Path, schema: pa.Schema, required: Iterable[str], where: pc.Expression | None = None) -> pa.Table:
    """The rows of a file, checked; columns that it lacks are null."""
    coded = [column.name for column in schema if pa.types.is_dictionary(column.type)]
    with damage_errors(path):
        rows = pq.read_table(path, schema=schema, filters=where, read_dictionary=coded)
        return check_values(check_table(rows), required)


@_of_committed
def read_heads(run: str | Path, index: Index) -> pa.Table:
    """Norm and bias of each class weight at the end of each epoch."""
    heads = [_read(Path(run) / DYNAMICS / name, _HEADS, _HEADS.names) for name in index.heads]
    return pa.concat_tables([_HEADS.empty_table(), *heads])


@_of_committed
def read_rows(
    run: str | Path,
    index: Index,
    columns: Collection[str] = _SCHEMA.names,
    *,
    epochs: tuple[int, int] = (1, MOST_EPOCHS),
    ids: tuple[str, str | None] = ("", None),
    where: pc.Expression | None = None,
    coded: bool = False,
) -> pa.Table:
    """Rows between two epochs and two ids (the second is excluded), file after file.

    `columns`, stored or derived, are read beside id and epoch; `where` is a further condition; ids may be `coded` as a
    dictionary.
    """
    (first, last), (low, high) = epochs, ids
    stored = itertools.chain(*(DERIVED[name][0] if name in DERIVED else (name,) for name in columns))
    schema = pa.schema([_SCHEMA.field(name) for name in dict.fromkeys(["id", "epoch", *stored])])
    files = [entry for entry in index.files if entry["epochs"][0] <= last and entry["epochs"][1] >= first]
    files = [entry for entry in files if entry["ids"][1] >= low and (high is None or entry["ids"][0] < high)]
    inside = all(first <= entry["epochs"][0] and entry["epochs"][1] <= last for entry in files)
    inside &= all(low <= entry["ids"][0] and (high is None or entry["ids"][1] < high) for entry in files)
    condition = (pc.field("epoch") >= first) & (pc.field("epoch") <= last) & (pc.field("id") >= low)
    condition = condition if high is None else condition & (pc.field("id") < high)
    condition = (None if inside else condition) if where is None else condition & where
    if coded and condition is None:  # conditions need text, whose statistics tell which row groups can be skipped
        schema = schema.set(0, _CODED_ID)
    tables = [schema.empty_table()]
    for entry in files:
        path, required = Path(run) / DYNAMICS / entry["name"], [name for name in schema.names if name not in BITS]
        tables.append(_read(path, schema, required, condition))
        span = pc.min_max(tables[-1]["epoch"]).as_py()
        if len(tables[-1]) and not entry["epochs"][0] <= span["min"] <= span["max"] <= entry["epochs"][1]:
            raise StateError(f"RUN: {path} is damaged: its epochs are not those in {INDEX}.")
    rows = pa.concat_tables(tables)
    return rows.set_column(0, _CODED_ID, rows["id"].dictionary_encode()) if coded and condition is not None else rows


def blocks(run: str | Path, index: Index | None = None, *args: Any, rows: int = 0, **options: Any) -> Iterator[Block]:
    """What `read_rows` reads, one range of ids after the other, about so many rows at a time (`FILE_ROWS` if 0)."""
    for ids in _ranges(run, index, rows or FILE_ROWS):
        table = read_rows(run, index, *args, ids=ids, coded=True, **options).combine_chunks()
        if not len(table) and ids[1] is not None:  # where there are no rows at all, the last block is empty
            continue
        id_, epoch = table["id"].combine_chunks(), table["epoch"].to_numpy()
        rank = pc.rank(id_.dictionary).to_numpy().astype(np.int64)[id_.indices.to_numpy()]
        key = rank * (int(epoch.max(initial=0)) + 1) + epoch
        if (np.diff(key) < 0).any():
            order = np.argsort(key, kind="stable")
            table, rank = table.take(pa.array(order)), rank[order]
        yield Block(table, np.flatnonzero(np.diff(rank, prepend=-1)))


@_of_committed
def _ranges(run: str | Path, index: Index, rows: int) -> Sequence[tuple[str, str | None]]:
    """Ranges of ids that hold about so many rows: files where these do not overlap, and otherwise row groups."""
    groups, limits, total = [(entry["ids"][0], entry["rows"]) for entry in index.files], [""], 0
    if sum(count for _, count in groups) > rows and not _are_disjoint(index.files):
        groups = []
        for path in (Path(run) / DYNAMICS / entry["name"] for entry in index.files):
            with damage_errors(path):
                meta = pq.read_metadata(path)
                for group in map(meta.row_group, range(meta.num_row_groups)):
                    limit = group.column(meta.schema.names.index("id")).statistics  # none of very long ids
                    groups.append((str(limit.min) if limit and limit.has_min_max else "", group.num_rows))
    for first, count in sorted(groups):
        if total and total + count > rows and first > limits[-1]:
            limits.append(first)
            total = 0
        total += count
    return [*zip(limits, [*limits[1:], None], strict=True)]


def _are_disjoint(entries: list[Entry]) -> bool:
    """Whether no id lies in two files."""
    return all(a[1] < b[0] for a, b in itertools.pairwise(sorted(entry["ids"] for entry in entries)))


def read_samples(run: str | Path, index: Index | None = None, **options: Any) -> tuple[pa.Array, np.ndarray]:
    """Ids of the samples in some rows, sorted, and their labels. The options are those of `read_rows`."""
    ids, labels = [pa.array([], pa.string())], [np.zeros(0, np.int64)]
    for block in blocks(run, index, ["label"], **options):
        ids.append(block.ids)
        labels.append(block.table["label"].to_numpy()[block.starts])
    return pa.concat_arrays(ids), np.concatenate(labels).astype(np.int64)


def scores_of(run: str | Path, epoch: int, classes: int, where: pc.Expression | None = None) -> pa.Table:
    """One epoch as a table of scores, by id: ``id, label, pred`` and every registered score that the records give."""
    rows = read_rows(run, epochs=(epoch, epoch), where=where).sort_by("id")
    block = Block(rows, np.arange(len(rows)))
    columns: dict[str, Any] = {name: rows[name].cast(pa.int64()) for name in ("label", "pred")}
    columns["avh"] = block.column("avh")
    columns["avc"] = (np.pi - block.column("angle")) / (classes * np.pi - block.column("angle_sum"))
    names = ["confidence", "nll", "soft_margin", "norm", "margin", "angle", "el2n"]
    names += ["angular_margin"] if rows["other_angle"].null_count < len(rows) else []  # old runs lack it
    return pa.table({"id": rows["id"], **columns, **{name: block.column(name) for name in names}})
