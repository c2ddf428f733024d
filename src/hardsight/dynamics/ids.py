"""Ids as places among all samples that a recorder has seen, which it keeps sorted by id."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def as_text(ids: np.ndarray, split: str, data: pa.Array | None) -> pa.Array:
    """Ids as text: an integer is an index of the data, null where it lies outside; without data it follows the split.

    Examples:
        >>> as_text(np.array([3, "a"], dtype=object), "data", None).to_pylist()
        ['data:3', 'a']
        >>> as_text(np.array([1, 2]), "data", pa.array(["x", "y"])).to_pylist()
        ['y', None]
    """
    if ids.dtype == object:

        def text(index: int) -> str | None:
            if data is None:
                return f"{split}:{index}"
            return data[index].as_py() if 0 <= index < len(data) else None

        return pa.array([text(id_) if isinstance(id_, int) else id_ for id_ in ids.tolist()], pa.string())
    if data is None:
        return pc.binary_join_element_wise(split, pa.array(ids).cast(pa.string()), ":")
    return data.take(pa.array(ids, mask=(ids < 0) | (ids >= len(data))))


def numbered(previous: pa.Array, ids: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """All ids sorted, and the places of the old and of the given ones among them.

    Examples:
        >>> every, old, new = numbered(pa.array(["b", "d"]), pa.array(["d", "a", "d"]))
        >>> every.to_pylist(), old.tolist(), new.tolist()
        (['a', 'b', 'd'], [1, 2], [2, 0, 2])
    """
    at = pc.index_in(ids, value_set=previous)
    if not at.null_count:
        return previous, np.arange(len(previous)), at.to_numpy().astype(np.int64)
    every = pc.unique(pa.concat_arrays([previous, ids.filter(pc.is_null(at))]))
    every = every.take(pc.sort_indices(every))
    old, new = (pc.index_in(part, value_set=every).to_numpy().astype(np.int64) for part in (previous, ids))
    return every, old, new


def first_rows(at: np.ndarray, count: int) -> np.ndarray:
    """Where each number below `count` comes first in `at`; −1 where it does not come.

    Examples:
        >>> first_rows(np.array([2, 0, 2]), 4).tolist()
        [1, -1, 0, -1]
    """
    rows = np.full(count, -1)
    rows[at[::-1]] = np.arange(len(at))[::-1]  # of equal places the last one written stays
    return rows
