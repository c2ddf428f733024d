"""Ids of many samples in little memory: whether any repeats, by 8 bytes per id instead of the texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_WEIGHTS = np.random.default_rng(0).integers(1 << 64, size=4096, dtype=np.uint64) | np.uint64(1)


def repeated_ids(read: Callable[[], Iterable[pa.Array]]) -> tuple[int, str | None]:
    """How many ids are there already when they come, and the first of them.

    Args:
        read: Returns the ids in pieces. It is called again only where two ids have the same hash.

    Examples:
        >>> repeated_ids(lambda: [pa.array(["a", "b"]), pa.array(["c", "a"])])
        (1, 'a')
    """
    hashes = np.concatenate([np.empty(0, np.uint64), *map(_hashes, read())])
    hashes.sort()
    shared = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(shared):
        return 0, None
    alike = pa.chunked_array([ids.filter(pa.array(np.isin(_hashes(ids), shared))) for ids in read()], pa.string())
    counts = pc.value_counts(alike)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    total = int(pc.sum(pc.subtract(repeated.field("counts"), 1)).as_py() or 0)
    return total, repeated.field("values")[0].as_py() if total else None


def _hashes(ids: pa.Array) -> np.ndarray:
    """A number per text, sums of its bytes with random weights modulo 2⁶⁴: different texts hardly ever share it."""
    ids = ids.cast(pa.large_string())
    if not len(ids):
        return np.empty(0, np.uint64)
    _, places, text = ids.buffers()
    ends = np.frombuffer(places, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    values = np.frombuffer(text or b"", np.uint8)[ends[0] : ends[-1]].astype(np.uint64) + np.uint64(1)
    starts = ends[:-1] - ends[0]
    within = np.arange(len(values)) - np.repeat(starts, np.diff(ends))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values * _WEIGHTS[within % len(_WEIGHTS)])])
    return sums[ends[1:] - ends[0]] - sums[starts]
