"""Ids of many samples in little memory, as 8-byte hashes instead of texts: which repeat, where each is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

_PIECE = 1 << 16  # ids that are hashed at a time
_MANY = 1 << 20  # ids that Arrow may look up: it takes about 100 bytes for each
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, without a pattern in its bits: 2⁶⁴ by the golden ratio


Ids: TypeAlias = pa.Array | pa.ChunkedArray


def repeated_ids(read: Callable[[], Iterable[pa.Array]]) -> tuple[int, str | None]:
    """How many ids repeat an earlier one, and the first that does.

    Args:
        read: Returns the ids in pieces. It is called again only where two ids have the same hash.

    Examples:
        >>> repeated_ids(lambda: [pa.array(["a", "b"]), pa.array(["c", "a"])])
        (1, 'a')
    """
    content = bytearray()  # grows without a copy
    for ids in read():
        content += id_hashes(ids).data
    return repeated_of(content, read)


def repeated_of(content: bytearray, read: Callable[[], Iterable[pa.Array]]) -> tuple[int, str | None]:
    """The same, from the hashes of all ids (`id_hashes`) in any order."""
    hashes = np.frombuffer(content, np.uint64)
    hashes.sort()
    shared = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(shared):
        return 0, None
    kept = (ids.filter(pa.array(_among(id_hashes(ids), shared))) for ids in read())
    alike = pa.chunked_array([*kept], pa.string())
    counts = pc.value_counts(alike)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    total = int(pc.sum(pc.subtract(repeated.field("counts"), 1)).as_py() or 0)
    return total, repeated.field("values")[0].as_py() if total else None


def places_among(ids: Ids, others: Ids) -> np.ndarray:
    """Position of each id among others, none of which repeats; −1 if it is not there.

    Examples:
        >>> places_among(pa.array(["b", "c", "a"]), pa.array(["a", "b"])).tolist()
        [1, -1, 0]
    """
    ids, others = (pa.chunked_array(side) if isinstance(side, pa.Array) else side for side in (ids, others))
    if ids.equals(others):
        return np.arange(len(ids))
    if min(len(ids), len(others)) > _MANY:
        return _places_by_hash(ids, others.combine_chunks())
    if len(others) <= len(ids):
        return _index_in(ids, others.combine_chunks()).astype(np.int64)
    coded = ids.combine_chunks().dictionary_encode()  # an id may be asked for twice
    numbers = _index_in(others, coded.dictionary)
    places = np.full(len(coded.dictionary) + 1, -1)  # the last for null
    there = np.flatnonzero(numbers >= 0)
    places[numbers[there]] = there
    return places[pc.fill_null(coded.indices, -1).to_numpy()]


def _index_in(ids: Ids, others: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.index_in(ids, value_set=others, skip_nulls=True), -1).to_numpy()


def _places_by_hash(ids: pa.ChunkedArray, others: pa.Array) -> np.ndarray:
    hashes = np.concatenate([id_hashes(piece) for piece in pieces_of(others)])
    order = np.argsort(hashes)
    hashes = hashes[order]
    shared = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])  # by different texts, which are looked up as texts
    alike = order[_among(hashes, shared)] if len(shared) else np.empty(0, np.int64)
    places, start = np.full(len(ids), -1), 0
    for piece in pieces_of(ids):
        wanted = id_hashes(piece)
        rising = np.argsort(wanted)  # several times as fast as any order
        first = np.empty(len(wanted), np.int64)
        first[rising] = np.minimum(np.searchsorted(hashes, wanted[rising]), len(hashes) - 1)
        at = np.flatnonzero(hashes[first] == wanted)
        there = order[first[at]]
        same = pc.equal(piece.take(pa.array(at)), others.take(pa.array(there)))
        same = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        places[start + at[same]] = there[same]
        if len(shared):
            at = np.flatnonzero(_among(wanted, shared))
            where = _index_in(piece.take(pa.array(at)), others.take(pa.array(alike)))
            places[start + at] = np.where(where >= 0, alike[where], -1)
        start += len(piece)
    return places


def pieces_of(ids: Ids | Sequence[str]) -> Iterator[pa.Array]:
    """Ids in memory in pieces that can be hashed."""
    if not isinstance(ids, (pa.Array, pa.ChunkedArray)):
        yield from (pa.array(ids[start : start + _PIECE], pa.string()) for start in range(0, len(ids), _PIECE))
        return
    for chunk in [ids] if isinstance(ids, pa.Array) else ids.chunks:
        yield from (chunk.slice(start, _PIECE) for start in range(0, len(chunk), _PIECE))


def _among(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.isin(hashes, others, kind="sort")  # where NumPy 2.0 chooses a table, such large numbers overflow


def id_hashes(ids: pa.Array) -> np.ndarray:
    """A number per text, mixed from words of eight bytes: different texts hardly ever share it."""
    ids = ids.cast(pa.large_string())
    if not len(ids):
        return np.empty(0, np.uint64)
    _, places, text = ids.buffers()
    ends = np.frombuffer(places, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    content, lengths = np.frombuffer(text or b"", np.uint8), np.diff(ends)
    order, hashes = np.argsort(lengths, kind="stable"), np.empty(len(ids), np.uint64)
    for rows in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):  # those of one length at a time
        length = int(lengths[rows[0]])
        words = np.zeros((len(rows), -(-length // 8) * 8), np.uint8)
        if length:
            words[:, :length] = sliding_window_view(content, length)[ends[rows]]
        mixed = np.full(len(rows), length, np.uint64)
        for word in words.view(np.uint64).T:  # each step is invertible, so one different word changes the hash
            mixed = (mixed ^ word) * _FACTOR
            mixed ^= mixed >> np.uint64(32)
        hashes[rows] = mixed
    return hashes
