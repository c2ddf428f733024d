"""Ids as numbers: every sample that a recorder has seen, in the order in which it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.extras import printable

# Integer ids are looked up in a table while it is not much larger than they are many.
_SPARE_INTEGERS = 1 << 20


class Found(NamedTuple):
    """The numbers of some ids, and what has to be remembered for ids that are new."""

    at: np.ndarray
    fresh: dict[str, int]
    table: np.ndarray


class Ids:
    """Numbers of ids. Most loops have integers: they are looked up all at once, and become text only once.

    Args:
        name: The text of an integer.
        texts: Ids that are known already, in their order.
    """

    def __init__(self, name: Callable[[int], str], texts: Sequence[str] = ()) -> None:
        self._name = name
        self.texts = pa.array(texts, pa.string())  # by number
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._table = np.zeros(0, np.int64)  # from integers to numbers, −1 where there is none
        self._order, self._sorted_texts = np.zeros(0, np.int64), self.texts[:0]

    def __len__(self) -> int:
        return len(self._numbers)

    def text(self, id_: Any) -> str:
        """An id for people."""
        return printable(self._name(int(id_)) if isinstance(id_, (int, np.integer)) else id_)

    def find(self, ids: np.ndarray) -> Found:
        """Numbers of ids; new ones get the next. Nothing is remembered here: see `added`."""
        table, fresh = self._table, dict[str, int]()

        def number(text: str) -> int:
            found = self._numbers.get(text)
            return fresh.setdefault(text, len(self._numbers) + len(fresh)) if found is None else found

        most = _SPARE_INTEGERS + 4 * (len(self) + len(ids))
        if ids.dtype == object or (len(ids) and not 0 <= ids.min() <= ids.max() < most):
            texts = [self._name(id_) if isinstance(id_, int) else id_ for id_ in ids.tolist()]
            return Found(np.fromiter(map(number, texts), np.int64, len(ids)), fresh, table)
        size = int(ids.max(initial=-1)) + 1
        if size > len(table):
            table = np.concatenate([table, np.full(size - len(table), -1)])
        missing = np.unique(ids[table[ids] < 0])
        if len(missing):
            table = table.copy()
            table[missing] = [number(self._name(id_)) for id_ in missing.tolist()]
        return Found(table[ids], fresh, table)

    def added(self, found: Found) -> Ids:
        """With the ids that were new; these stay as they are."""
        ids = Ids(self._name)
        ids.texts, ids._numbers, ids._table = self.texts, self._numbers, found.table
        ids._order, ids._sorted_texts = self._order, self._sorted_texts
        if found.fresh:
            ids._numbers = self._numbers | found.fresh
            ids.texts = pa.concat_arrays([self.texts, pa.array(list(found.fresh), pa.string())])
        return ids

    def order(self) -> np.ndarray:
        """The numbers in the order of their texts."""
        if len(self._order) != len(self):
            order = pc.sort_indices(self.texts)
            # NumPy before 2 takes no unsigned indices.
            self._order, self._sorted_texts = order.to_numpy().astype(np.int64), self.texts.take(order)
        return self._order

    def sorted(self, at: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """The places in `at`, which holds each number once at most, in the order of the texts of its numbers; these."""
        rows = first_rows(at, len(self))[self.order()]
        if len(at) == len(self):
            return rows, self._sorted_texts
        return rows[rows >= 0], self._sorted_texts.filter(pa.array(rows >= 0))


def first_rows(at: np.ndarray, count: int) -> np.ndarray:
    """Where each number below `count` comes first in `at`; −1 where it does not come.

    Examples:
        >>> first_rows(np.array([2, 0, 2]), 4).tolist()
        [1, -1, 0, -1]
    """
    rows = np.full(count, -1)
    rows[at[::-1]] = np.arange(len(at))[::-1]  # of equal places the last one written stays
    return rows
