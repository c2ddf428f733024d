"""A table as the page's arithmetic sees it: columns as arrays, classes as codes, rows in the order of their ids.

Of arrays with a number per row, only those that fit into a small cache are kept, so ten million rows take a few arrays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import mid_ranks
from hardsight.printing import class_name
from hardsight.report.formatting import NAME_BYTES, cut_name
from hardsight.runs import is_number
from hardsight.runs.ids import places_among
from hardsight.scores import SCORES
from hardsight.storedrows import StoredRows
from hardsight.table import SampleTable
from hardsight.tablefiles import class_count, class_numbers, floats

if TYPE_CHECKING:
    from hardsight.report.groups import Group
    from hardsight.report.label_errors import Suspects
    from hardsight.report.training import Recorded

# Up to here every class of the model has a code of its own; beyond it only the classes that occur.
MANY_CLASSES = 5000
_NAMES_BYTES = 900_000  # all class names together
_KEPT = 3 << 26  # bytes of arrays that stay in memory because they may be asked for again
BLOCK = 1 << 20  # rows at a time, so that temporary arrays stay small

# The score that the page ranks by, and the logit score beside it: the first that the table has.
_ANGULAR = ("avh", "angle", "angular_margin", "avc")
_LOGIT = ("nll", "confidence", "margin", "el2n", "entropy")  # nll first, because confidence saturates at 1


class Rows:
    """The columns of a table, sorted by id so that nothing on the page depends on the original order of rows.

    Missing class codes are −1, missing scores NaN. Other inputs of the sections are attributes, too.

    Attributes:
        table: The table; one in memory has its rows in the order of their ids.
        order: Which row of the table each row is; None where they are in the same order.
        label: Class codes, in the smallest type that holds them; so are `pred` and `at`, the class a sample counts in.
        scores: Arrays by name, computed on demand: AVH times C; without labels, those of the predicted class.
    """

    run: Any = None  # the folder
    data: Any = None  # where the data are, if not where the run recorded
    against: Any = None  # another run or table to compare with
    group_table: pa.Table | None = None  # group columns beside the table, as `read_by_id` reads them
    groups: Sequence[Group] = ()  # of the table and of `group_table`
    group_notes: Sequence[str] = ()  # which of them could not be used
    recorded: Recorded | None = None  # the training that the run recorded
    suspects: Suspects | str = ""  # labels that are probably wrong, or why none are searched for

    def __init__(self, table: SampleTable) -> None:
        self.order: np.ndarray | None = None
        rows = table.stored_rows
        if isinstance(rows, pa.Table) and rows.schema.field("id").type != pa.string():
            rows = rows.set_column(rows.column_names.index("id"), "id", rows["id"].cast(pa.string()))
            table = table.with_rows(rows)
        if not _in_order(table):
            order = pc.sort_indices(table.column("id"))
            if isinstance(rows, pa.Table):
                table = table.with_rows(rows.take(order))
            else:
                self.order = order.to_numpy().astype(_index_type(len(table)))
        self.table, self.meta = table, table.meta
        self.classes = class_count(table)  # C of the model
        if self.classes <= MANY_CLASSES:
            self.numbers = np.arange(self.classes)  # the class number of each code
        else:  # codes for the classes that occur: of a model's million there are few here
            seen = [np.unique(part) for name in ("label", "pred") for part in self._numbers(name)]
            self.numbers = np.unique(np.concatenate([np.empty(0, np.int64), *seen]))
            self.numbers = self.numbers[self.numbers >= 0]
        self.codes = len(self.numbers)
        self.label, self.pred = self._codes("label"), self._codes("pred")
        self.labeled = bool((self.label >= 0).any())
        self.at = self.label if self.labeled else self.pred
        self.judged = (self.label >= 0) & (self.pred >= 0)
        self.right = self.judged & (self.label == self.pred)
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self.finite: dict[str, np.ndarray] = {}  # which rows have a finite vector, by its name
        self.scores: Mapping[str, np.ndarray] = _Scores(self)
        # The score that the page ranks by, as it is shown (C·AVH), and which way it is harder.
        self.main = next((n for n in (*_ANGULAR, *_LOGIT) if n in self.scores), next(iter(self.scores), None))
        self.logit = next((n for n in _LOGIT if n in self.scores), None) if self.main in _ANGULAR else None
        self.sign = 1 if self.main is None or SCORES[self.main].higher_is_harder else -1

    # Numbers per row.

    @property
    def value(self) -> np.ndarray:
        """The main score; NaN without any."""
        return np.full(len(self), np.nan) if self.main is None else self.scores[self.main]

    @property
    def hardness(self) -> np.ndarray:
        """The same, turned so that larger is harder."""
        return self.value if self.sign > 0 else self.kept("hardness", lambda: -self.value)

    @property
    def rank_main(self) -> np.ndarray:
        return self.kept("rank_main", lambda: mid_ranks(self.hardness))

    @property
    def rank_logit(self) -> np.ndarray:
        """Ranks by the score `logit`, where there is one."""
        return self.kept("rank_logit", lambda: mid_ranks(self.hardness_by(str(self.logit))))

    def hardness_by(self, score: str) -> np.ndarray:
        """A score turned so that larger is harder."""
        return self.scores[score] if SCORES[score].higher_is_harder else -self.scores[score]

    def kept(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """An array that is recomputed only if it was evicted from the cache."""
        if name not in self._kept:
            self._kept[name] = compute()
            while len(self._kept) > 1 and sum(values.nbytes for values in self._kept.values()) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def read(self, column: str) -> np.ndarray:
        """A numeric column of the table as float64, NaN where a value is missing."""
        if not isinstance(self.table.stored_rows, StoredRows):
            return floats(self.table.column(column))
        return self._filled(map(floats, map(_chunked, self.table.pieces(column))), np.float64)

    @cached_property
    def by_class(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows in the order of their classes `at`, and where those of each class start; rows of no class are left out.

        Rows of one class keep their order. The starts have one entry more than there are classes.
        """
        count = counts(self.at, self.codes)
        order = np.argsort(self.at, kind="stable")[len(self) - int(count.sum()) :]  # −1 comes first
        return order.astype(_index_type(len(self))), np.cumsum([0, *count])

    def of_class(self, code: int) -> np.ndarray:
        """Rows of a class."""
        order, starts = self.by_class
        return order[starts[code] : starts[code + 1]]

    # Vectors.

    @cached_property
    def in_vectors(self) -> np.ndarray:
        """Where each row is among the stored vectors; −1 for none."""
        places = self.table.vector_places.astype(_index_type(len(self)))
        return places if self.order is None else places[self.order]

    # Ids.

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids of all rows, read on demand: prefer the methods below."""
        return pa.chunked_array([*self.id_pieces()], pa.string())

    def id_pieces(self) -> Iterator[pa.Array]:
        """The ids in pieces, in the order of the rows."""
        if self.order is None:
            yield from (part.cast(pa.string()) for part in self.table.pieces("id"))
            return
        ids = pa.chunked_array([*self.table.pieces("id")]).cast(pa.large_string()).combine_chunks()
        for start in range(0, len(self), BLOCK):
            yield ids.take(pa.array(self.order[start : start + BLOCK])).cast(pa.string())

    def rows_of(self, places: np.ndarray) -> np.ndarray:
        """The rows of some places in the table."""
        if self.order is None:
            return places
        rows = np.empty_like(self.order)
        rows[self.order] = np.arange(len(self))
        return rows[places].astype(np.int64)

    def ids_at(self, index: np.ndarray | Sequence[int]) -> list[str]:
        """Ids of a few rows."""
        places = np.asarray(index, dtype=np.int64)
        places = places if self.order is None else self.order[places].astype(np.int64)
        return self.table.read_rows(places, ["id"])["id"].cast(pa.string()).to_pylist()

    def places_of(self, ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """The rows of a few ids, −1 where there is none."""
        places, start = np.full(len(ids), -1), 0
        for piece in self.id_pieces():
            which = places_among(piece, ids)
            here = np.flatnonzero(which >= 0)
            places[which[here]] = start + here
            start += len(piece)
        return places

    def __len__(self) -> int:
        return len(self.label)

    # Classes.

    def class_name(self, code: int) -> str:
        """Name of a class, or its number; short enough that all names fit into the page."""
        return self.name_of(int(self.numbers[code]))

    def name_of(self, number: int) -> str:
        """The same by the class number of the model."""
        names, room = self.meta.class_names, _NAMES_BYTES // max(self.codes, 1)
        return cut_name(class_name(names, number), min(max(room, 24), NAME_BYTES))

    # Inside.

    def _numbers(self, name: str) -> Iterator[np.ndarray]:
        """Class numbers in pieces, in the order of the table."""
        if name not in self.table:
            yield np.full(len(self.table), -1)
            return
        for piece in self.table.pieces(name):
            yield class_numbers(pa.table({name: piece}), name)

    def _codes(self, name: str) -> np.ndarray:
        """The code of each class number, −1 for none."""
        parts = self._numbers(name)
        if self.classes > MANY_CLASSES:
            parts = (np.where(part >= 0, np.searchsorted(self.numbers, part), -1) for part in parts)
        return self._filled(parts, np.min_scalar_type(-max(self.codes, 1)))

    def _filled(self, parts: Iterator[np.ndarray], dtype: Any) -> np.ndarray:
        """Reorder values from the order of the table to that of the rows."""
        values, start = np.empty(len(self.table), dtype), 0
        for part in parts:
            values[start : start + len(part)] = part
            start += len(part)
        return values if self.order is None else values[self.order]


class _Scores(Mapping[str, np.ndarray]):
    """The scores of rows by name, if any row has them."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._columns = rows, {}
        for name in SCORES:
            column = name if name in rows.table else f"{name}_pred"
            if column in rows.table and is_number(rows.table.stored_rows.schema.field(column).type):
                parts = map(floats, map(_chunked, rows.table.pieces(column)))
                if any(np.isfinite(part).any() for part in parts):
                    self._columns[name] = column

    def __getitem__(self, name: str) -> np.ndarray:
        column = self._columns[name]
        return self._rows.kept(f"score {name}", lambda: self._compute(name, column))

    def _compute(self, name: str, column: str) -> np.ndarray:
        values = self._rows.read(column)
        values = values if np.isfinite(values).all() else np.where(np.isfinite(values), values, np.nan)
        return self._rows.classes * values if name == "avh" else values

    def __contains__(self, name: object) -> bool:  # without reading it
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def counts(codes: np.ndarray, size: int) -> np.ndarray:
    """How often each of `size` codes occurs; those below 0 are left out."""
    total = np.zeros(size, dtype=np.int64)
    for start in range(0, len(codes), BLOCK):
        part = codes[start : start + BLOCK]
        total += np.bincount(part[part >= 0], minlength=size)
    return total


def joint_counts(lines: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """How often each pair of codes occurs, as a matrix; pairs with a code below 0 are left out."""
    total = np.zeros(shape, dtype=np.int64)
    for start in range(0, len(lines), BLOCK):
        line, column = (part[start : start + BLOCK].astype(np.int64) for part in (lines, columns))
        both = (line >= 0) & (column >= 0)
        cells = line[both] * shape[1] + column[both]
        total += np.bincount(cells, minlength=total.size).reshape(shape)
    return total


def _in_order(table: SampleTable) -> bool:
    """Whether the ids rise."""
    last = pa.array([], pa.string())
    for piece in table.pieces("id"):
        ids = pa.concat_arrays([last, piece.cast(pa.string())])
        if not pc.all(pc.less(ids[:-1], ids[1:]), min_count=0).as_py():
            return False
        last = ids[-1:]  # the next piece must continue after it
    return True


def _chunked(piece: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([piece])


def _index_type(n: int) -> Any:
    return np.int32 if n <= np.iinfo(np.int32).max else np.int64
