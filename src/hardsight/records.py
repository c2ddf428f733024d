"""Records of training on disk: one row per sample and epoch, in Parquet files sorted by (id, epoch).

Each epoch is appended as a file; `compact` rewrites files so that each holds all epochs of a range of ids. Replacing
``index.json``, which lists the files, commits them. A kill leaves only unlisted files, which the next commit removes.
The reference of the run folder describes every file.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import operator
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from scipy.special import expit, log_expit

from hardsight.errors import StateError
from hardsight.runs import DYNAMICS, INDEX, SCHEMAS, Meta, check_values, damage_errors, disk_errors, sweep, write_text
from hardsight.runs.files import write_whole
from hardsight.runs.tables import as_written
from hardsight.stores import as_path, local_path
from hardsight.untrusted import check_table, read_json

VERSION = SCHEMAS[DYNAMICS].version
MOST_EPOCHS = 2**31 - 1  # epochs are stored in 32 bits

# Significant bits of each column, stored as float32: AVH, confidence and loss are derived from whole numbers; the
# others are rounded, because zero bits cost nothing on disk.
BITS = dict.fromkeys(("angle", "angle_sum", "soft_margin"), 24) | {"other_angle": 11}
BITS |= dict.fromkeys(("margin", "norm", "el2n", "nll_angles", "nll_norms"), 16)

FILE_ROWS = 1 << 21
MOST_FILES = 128  # of single epochs
_GROUP_ROWS = 1 << 15
_SCHEMA = pa.schema({**SCHEMAS[DYNAMICS].columns, **dict.fromkeys(BITS, pa.float32())})
_HEADS = pa.schema({"epoch": pa.int32(), "class": pa.int32(), "norm": pa.float32(), "bias": pa.float32()})
_NAME = re.compile(r"[0-9a-f]{16}\.((heads\.)?parquet|safetensors)")

# Columns that are computed from the stored ones on demand.
DERIVED: Mapping[str, tuple[tuple[str, ...], Callable[..., np.ndarray]]] = {
    "avh": (("angle", "angle_sum"), lambda angle, total: np.divide(angle, np.where(total == 0, np.nan, total))),
    "angular_margin": (("angle", "other_angle"), np.subtract),
    "confidence": (("soft_margin",), lambda m: expit(-m)),
    "nll": (("soft_margin",), lambda m: -log_expit(-m)),
    "correct": (("pred", "label"), np.equal),
}


class Entry(TypedDict):
    """A file of rows, and the first and last epoch and id in it."""

    name: str
    epochs: list[int]
    ids: list[str]
    rows: int


@dataclass
class Index:
    """The committed state."""

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
    return (as_path(run) / DYNAMICS / INDEX).is_file()


def read_index(run: str | Path) -> Index:
    """The committed state of a run; an empty index if there is none.

    Raises:
        StateError: The index is damaged, or hardsight is too old for it.
    """
    if not has_records(run):
        return Index()
    index = read_json(as_path(run) / DYNAMICS / INDEX, Index)
    if index.version > VERSION:
        raise StateError(
            f"RUN: the records of {run} were written by a newer hardsight (version {index.version}, this one reads "
            f"{VERSION}); upgrade hardsight."
        )
    sound = index.epochs == [*range(1, len(index.epochs) + 1)] and all(map(_NAME.fullmatch, index.names()))
    for entry in index.files:
        limits = [1, *entry["epochs"], len(index.epochs)]
        sound &= (len(limits), len(entry["ids"])) == (4, 2) and limits == sorted(limits)
        sound &= entry["ids"] == sorted(entry["ids"])
    if not sound:
        raise StateError(f"RUN: {run} is damaged: no recorder writes such names, epochs or ids into {INDEX}.")
    return index


def rounded(values: np.ndarray, bits: int = 16) -> np.ndarray:
    """float32 values rounded to a number of significant bits; the last bytes are then zero."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if bits >= 24:
        return values
    pattern, drop, half = values.view(np.uint32), np.uint32(24 - bits), np.uint32((1 << (23 - bits)) - 1)
    nearest = ((pattern + half + ((pattern >> drop) & np.uint32(1))) >> drop) << drop
    return np.where(np.isfinite(values), nearest, pattern).view(np.float32)


class Block:
    """Rows sorted by (id, epoch), their epochs, the start of each sample's rows, and the number of samples before."""

    def __init__(self, rows: pa.Table, before: int = 0) -> None:
        rows = rows.combine_chunks()
        id_, epoch = rows["id"].combine_chunks(), rows["epoch"].to_numpy()
        rank = pc.rank(id_.dictionary).to_numpy().astype(np.int64)[id_.indices.to_numpy()]
        key = rank * (int(epoch.max(initial=0)) + 1) + epoch
        if (np.diff(key) < 0).any():
            order = np.argsort(key, kind="stable")
            rows, rank = rows.take(pa.array(order)), rank[order]
        self.table, self.epoch, self.before = rows, rows["epoch"].to_numpy(), before
        self.starts = np.flatnonzero(np.diff(rank, prepend=-1))
        self._derived: dict[str, np.ndarray] = {}

    @property
    def ids(self) -> pa.Array:
        """Each id once."""
        return self.table["id"].combine_chunks().take(pa.array(self.starts)).cast(pa.string())

    @property
    def place(self) -> np.ndarray:
        """The index of each row's sample among all samples."""
        count = np.diff(self.starts, append=len(self.table))
        return np.repeat(np.arange(self.before, self.before + len(count)), count)

    def column(self, name: str) -> np.ndarray:
        """A stored or derived column as float64, NaN for missing values."""
        if name not in DERIVED:
            return self.table[name].to_numpy().astype(np.float64)
        if name not in self._derived:
            needs, function = DERIVED[name]
            self._derived[name] = function(*map(self.column, needs)).astype(np.float64, copy=False)
        return self._derived[name]


def _rereads(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method of `Records` retry if a recorder replaces files in the meantime."""

    @functools.wraps(method)
    def read(self: Records, *args: Any, **options: Any) -> Any:
        while True:
            index = self.index
            try:
                return method(self, *args, **options)
            except FileNotFoundError as error:
                if not self._follows or (latest := read_index(self.run)) == index:
                    message = f"RUN: {self.run} is damaged: a file of its records is missing ({error})."
                    raise StateError(message) from None
                self.index = latest

    return read


class Records:
    """The files of a run that an index lists. Written files are added to the index and count after `commit`.

    Args:
        run: The folder.
        index: If None, the committed one; only then does the index follow a recorder that replaces files.

    Attributes:
        last: The last epoch to read.
        where: A condition on all rows to read, if any.
    """

    def __init__(self, run: str | Path, index: Index | None = None) -> None:
        self.run, self.folder = (path := local_path(run)), path / DYNAMICS
        self.index, self._follows = read_index(run) if index is None else index, index is None
        self.last, self.where = MOST_EPOCHS, None

    def draft(self) -> Records:
        """A copy that can be changed and committed."""
        return Records(self.run, copy.deepcopy(self.index))

    def commit(self) -> None:
        """Replace the index, and only then remove the files that it no longer lists."""
        names = self.index.names()
        with disk_errors(self.run):
            write_text(self.folder / INDEX, json.dumps(vars(self.index)))
            sweep(self.folder)
            for stray in self.folder.iterdir():
                if _NAME.fullmatch(stray.name) and stray.name not in names and not stray.is_dir():
                    stray.unlink(missing_ok=True)

    def write_file(self, kind: str, writer: Callable[[Path], object]) -> str:
        """Write a file under a unique name, and return the name."""
        name = f"{secrets.token_hex(8)}.{kind}"
        with disk_errors(self.run):
            write_whole(self.folder / name, writer)
        return name

    def write_rows(self, rows: pa.Table, compression_level: int = 1) -> None:
        """Add a file with rows sorted by (id, epoch)."""
        if not len(rows):
            return
        rows = rows.select([name for name in rows.column_names if rows[name].null_count < len(rows)])
        rows = as_written(DYNAMICS, rows)
        first, last = pc.min_max(rows["epoch"]).as_py().values()
        writer = partial(
            pq.write_table,
            rows,
            row_group_size=_GROUP_ROWS,
            write_page_checksum=True,
            compression="zstd",
            compression_level=compression_level,
            use_dictionary=["epoch", "label", "pred", *(["id"] if first < last else [])],
            column_encoding={name: "BYTE_STREAM_SPLIT" for name in rows.column_names if name in BITS},
        )
        ids, name = [rows["id"][0].as_py(), rows["id"][-1].as_py()], self.write_file("parquet", writer)
        self.index.files.append(Entry(name=name, epochs=[first, last], ids=ids, rows=len(rows)))

    def write_head(self, epoch: int, head: np.ndarray) -> None:
        """Add the norms and biases ``(2, C)`` of an epoch's class weights, replacing those from this epoch on."""
        classes = np.arange(head.shape[1])
        columns = (np.full(len(classes), epoch), classes, *head)
        heads = pa.table([pa.array(v, t) for v, t in zip(columns, _HEADS.types, strict=True)], schema=_HEADS)
        if len(self.index.heads) >= MOST_FILES or epoch in self.index.epochs:
            before = self.heads()
            heads = pa.concat_tables([before.filter(pc.less(before["epoch"], epoch)), heads])
            self.index.heads = []
        writer = partial(pq.write_table, heads, compression="zstd", write_page_checksum=True)
        self.index.heads.append(self.write_file("heads.parquet", writer))

    def write_state(self, epoch: int, writer: Callable[[Path], object]) -> None:
        """Add the data that the next epoch is compared with."""
        self.index.states[str(epoch)] = self.write_file("safetensors", writer)

    def compact(self, *, everything: bool = False) -> None:
        """Rewrite files so that each sample's rows lie together: all files, or those of single epochs once there are
        `MOST_FILES`.
        """
        entries = [entry for entry in self.index.files if everything or entry["epochs"][0] == entry["epochs"][1]]
        if len(entries) >= (2 if everything else MOST_FILES) and not _are_disjoint(entries):
            self._rewrite(entries, compression_level=6)

    def drop_from(self, epoch: int) -> None:
        """Forget an epoch and all later ones."""
        index = self.index
        self.write_head(epoch, np.zeros((2, 0)))
        index.epochs, index.open, kept = [*range(1, epoch)], False, {*map(str, range(1, epoch))}
        index.steps = {key: steps for key, steps in index.steps.items() if key in kept}
        index.states = {key: name for key, name in index.states.items() if key in kept}
        self._rewrite([entry for entry in index.files if entry["epochs"][1] >= epoch], epochs=(1, epoch - 1))

    def _rewrite(self, entries: list[Entry], compression_level: int = 1, **options: Any) -> None:
        """Replace files by new ones with the rows that `block` reads with some options."""
        self.index.files = [entry for entry in self.index.files if entry not in entries]
        for block in Records(self.run, Index(files=entries)).blocks(**options):
            self.write_rows(block.table, compression_level)

    def _read(self, name: str, schema: pa.Schema, where: pc.Expression | None = None) -> pa.Table:
        """The rows of a file, checked; stored scores that it lacks are null."""
        coded = [column.name for column in schema if pa.types.is_dictionary(column.type)]
        with damage_errors(self.folder / name):
            options = {"filters": where, "read_dictionary": coded, "page_checksum_verification": True}
            rows = pq.read_table(self.folder / name, schema=schema, **options)
            return check_values(check_table(rows), [column for column in schema.names if column not in BITS])

    @_rereads
    def heads(self) -> pa.Table:
        """Norm and bias of each class weight at the end of each epoch."""
        heads = pa.concat_tables([_HEADS.empty_table(), *(self._read(name, _HEADS) for name in self.index.heads)])
        return heads.filter(pc.less_equal(heads["epoch"], self.last))

    @_rereads
    def block(
        self,
        columns: Collection[str] = _SCHEMA.names,
        *,
        epochs: tuple[int, int] = (1, MOST_EPOCHS),
        ids: tuple[str, str | None] = ("", None),
        where: pc.Expression | None = None,
        before: int = 0,
    ) -> Block:
        """Rows between two epochs and two ids (the second is excluded) that meet a further condition, if any.

        `columns`, stored or derived, are read beside id and epoch; `before` is that of the block.
        """
        (first, last), (low, high) = (epochs[0], min(epochs[1], self.last)), ids
        stored = itertools.chain(*(DERIVED[name][0] if name in DERIVED else (name,) for name in columns))
        schema = pa.schema([_SCHEMA.field(name) for name in dict.fromkeys(["id", "epoch", *stored])])
        further = [condition for condition in (self.where, where) if condition is not None]
        limits = [pc.field("epoch") >= first, pc.field("epoch") <= last, pc.field("id") >= low, *further]
        condition = functools.reduce(operator.and_, limits if high is None else [*limits, pc.field("id") < high])
        coded = schema.set(0, pa.field("id", pa.dictionary(pa.int32(), pa.string())))
        tables = [coded.empty_table()]
        for entry in self.index.files:
            (start, end), (lowest, highest) = entry["epochs"], entry["ids"]
            if start > last or end < first or highest < low or (high is not None and lowest >= high):
                continue
            if first <= start and end <= last and low <= lowest and (high is None or highest < high) and not further:
                rows = self._read(entry["name"], coded)
            else:  # conditions need text, whose statistics show which row groups can be skipped
                rows = self._read(entry["name"], schema, condition)
            if len(rows) and not start <= pc.min(rows["epoch"]).as_py() <= pc.max(rows["epoch"]).as_py() <= end:
                raise StateError(f"RUN: {self.folder / entry['name']} is damaged: its epochs are not those in {INDEX}.")
            tables.append(rows.set_column(0, "id", rows["id"].dictionary_encode()))
        return Block(pa.concat_tables(tables), before)

    def blocks(self, columns: Collection[str] = _SCHEMA.names, rows: int = 0, **options: Any) -> Iterator[Block]:
        """What `block` reads, in ranges of ids of about this many rows (`FILE_ROWS` if 0)."""
        before = 0
        for ids in self._ranges(rows or FILE_ROWS):
            block = self.block(columns, ids=ids, before=before, **options)
            before += len(block.starts)
            if len(block.table) or ids[1] is None:  # if there are no rows at all, the last block is empty
                yield block

    @_rereads
    def _ranges(self, rows: int) -> list[tuple[str, str | None]]:
        """Ranges of ids that hold about this many rows: files if these do not overlap, otherwise row groups."""
        files = self.index.files
        groups, limits, total = [(entry["ids"][0], entry["rows"]) for entry in files], [""], 0
        if sum(count for _, count in groups) > rows and not _are_disjoint(files):
            groups = []
            for path in (self.folder / entry["name"] for entry in files):
                with damage_errors(path):
                    (fragment,) = ds.dataset(path, format="parquet").get_fragments()
                    for group in fragment.row_groups:  # very long ids have no statistics
                        groups.append((str(group.statistics.get("id", {"min": ""})["min"]), group.num_rows))
        for first, count in sorted(groups):
            if total and total + count > rows and first > limits[-1]:
                limits.append(first)
                total = 0
            total += count
        return [*zip(limits, [*limits[1:], None], strict=True)]

    def samples(self, **options: Any) -> tuple[pa.Array, np.ndarray]:
        """Ids of the samples in some rows, sorted, and their labels. The options are those of `block`."""
        blocks = [(b.ids, b.table["label"].to_numpy()[b.starts]) for b in self.blocks(["label"], **options)]
        ids, labels = zip(*blocks, strict=True)
        return pa.concat_arrays(ids), np.concatenate(labels).astype(np.int64)

    def classes(self, meta: Meta) -> int:
        """The number of classes of the head."""
        if meta.model.classes is None:
            raise StateError(f"RUN: {self.run} is damaged: its meta.json does not say how many classes there are.")
        return meta.model.classes

    def scores(self, epoch: int, meta: Meta) -> pa.Table:
        """One epoch as a table of scores, by id: ``id, label, pred`` and all registered scores in the records."""
        block, classes = self.block(epochs=(epoch, epoch)), self.classes(meta)
        columns: dict[str, Any] = {name: block.table[name].cast(pa.int64()) for name in ("label", "pred")}
        columns["avh"] = block.column("avh")
        columns["avc"] = (np.pi - block.column("angle")) / (classes * np.pi - block.column("angle_sum"))
        names = ["confidence", "nll", "soft_margin", "norm", "margin", "angle", "el2n", "angular_margin"]
        names = names[:-1] if block.table["other_angle"].null_count == len(block.table) else names  # from an old run
        return pa.table({"id": block.ids, **columns, **{name: block.column(name) for name in names}})


def _are_disjoint(entries: list[Entry]) -> bool:
    """Whether no id lies in two files."""
    return all(a[1] < b[0] for a, b in itertools.pairwise(sorted(entry["ids"] for entry in entries)))
