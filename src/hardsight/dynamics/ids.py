"""Ids as text, and as places among all samples that a recorder has seen, which it keeps sorted by id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor


def as_batch(ids: Any) -> Tensor | list[int | str]:
    """A copy of a batch's ids: a tensor if all of them are integers, otherwise texts and integers."""
    if isinstance(ids, Tensor):
        return ids.detach().clone()
    plain = [_plain(id_) for id_ in ids]
    integers = all(isinstance(id_, int) and abs(id_) < 1 << 62 for id_ in plain)
    return torch.tensor(plain, dtype=torch.long) if integers else plain


def _plain(id_: Any) -> int | str:
    whole = isinstance(id_, (int, np.integer)) or (isinstance(id_, Tensor) and not id_.is_floating_point())
    # Half of a surrogate pair, as file names may hold, cannot be written as text.
    return int(id_) if whole else str(id_).encode("utf-8", "backslashreplace").decode()


def as_text(batches: list[Tensor | list[int | str]], split: str, data: pa.Array | None) -> tuple[pa.Array, np.ndarray]:
    """Ids of batches as text, and which of them lie outside the data.

    An integer is an index of the data; without data, or outside them, it follows the split.

    Examples:
        >>> as_text([[3, "a"]], "data", None)[0].to_pylist()
        ['data:3', 'a']
        >>> texts, outside = as_text([torch.tensor([1, 2])], "data", pa.array(["x", "y"]))
        >>> texts.to_pylist(), outside.tolist()
        (['y', 'data:2'], [False, True])
    """
    if all(isinstance(batch, Tensor) for batch in batches):
        numbers = torch.cat(batches).cpu().numpy()  # pyrefly: ignore[bad-argument-type]
        texts = pc.binary_join_element_wise(split, pa.array(numbers).cast(pa.string()), ":")
        if data is None:
            return texts, np.zeros(len(texts), bool)
        outside = (numbers < 0) | (numbers >= len(data))
        return pc.coalesce(data.take(pa.array(numbers, mask=outside)), texts), outside
    ids = [id_ for batch in batches for id_ in (batch.tolist() if isinstance(batch, Tensor) else batch)]
    outside = np.array([data is not None and isinstance(i, int) and not 0 <= i < len(data) for i in ids], bool)

    def text(id_: int | str, outside: bool) -> str:
        if isinstance(id_, str):
            return id_
        return f"{split}:{id_}" if data is None or outside else data[id_].as_py()

    return pa.array(map(text, ids, outside), pa.string()), outside


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
