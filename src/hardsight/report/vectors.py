"""What a run stores about its features: directions as sketches, and probabilities if there are few classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.ensemble import matrix
from hardsight.report.rows import Rows
from hardsight.storedrows import StoredRows

MOST_PROBABLE = 5  # classes of a sample that the page shows


def having(rows: Rows, column: str) -> np.ndarray:
    """Which rows have a finite vector of this name; none if any sample's is null."""
    if column not in rows.finite:
        rows.finite[column] = _finite(rows, column)
    return rows.finite[column]


def _finite(rows: Rows, column: str) -> np.ndarray:
    vectors, parts = rows.table.stored_vectors, []
    if vectors is None or column not in vectors.column_names:
        return np.zeros(len(rows), dtype=bool)
    for piece in _pieces(vectors, column):
        if piece.null_count:
            return np.zeros(len(rows), dtype=bool)
        parts.append(np.isfinite(_values(piece)).all(1))
    finite = np.concatenate([*parts, [False]])  # the last for rows without a vector, whose position is −1
    return finite[rows.in_vectors]


def directions(rows: Rows, where: np.ndarray) -> np.ndarray:
    """Unit sketches of some rows, which must have one; a zero feature stays zero."""
    return _units(_some(rows, "sketch", where))


def direction_blocks(rows: Rows, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All rows that have a sketch, and their unit sketches, in batches; if on disk, in storage order."""
    vectors, valid = rows.table.stored_vectors, having(rows, "sketch")
    if not isinstance(vectors, StoredRows):
        where = np.flatnonzero(valid)
        for start in range(0, len(where), most):
            block = where[start : start + most]
            yield block, directions(rows, block)
        return
    row_at, start = np.full(len(vectors), -1, rows.in_vectors.dtype), 0
    row_at[rows.in_vectors] = np.arange(len(rows))
    for piece in _pieces(vectors, "sketch"):
        for first in range(0, len(piece), most):
            values = _values(piece.slice(first, most))
            at = row_at[start : start + len(values)]
            here = (at >= 0) & valid[at]
            yield at[here], _units(values[here])
            start += len(values)


def sample_of(valid: np.ndarray, most: int, seed: int) -> np.ndarray:
    """The rows where a mask is true, in order; a random sample if there are too many."""
    n = int(valid.sum())
    if n <= most:
        return np.flatnonzero(valid)
    drawn = np.sort(np.random.default_rng(seed).choice(n, most, replace=False))
    return drawn if n == len(valid) else np.flatnonzero(valid)[drawn]


def _some(rows: Rows, column: str, where: np.ndarray) -> np.ndarray:
    """The vectors of some rows."""
    vectors, places = rows.table.stored_vectors, rows.in_vectors[where]
    if isinstance(vectors, StoredRows):
        return matrix(vectors.read_rows(places.astype(np.int64), [column]), column)
    return matrix(vectors, column, places)


def _pieces(vectors: pa.Table | StoredRows, column: str) -> Iterator[pa.Array]:
    for rows in vectors.pieces([column]) if isinstance(vectors, StoredRows) else [vectors]:
        yield from rows[column].chunks


def _values(piece: pa.Array) -> np.ndarray:
    """Lists of one length as ``(N, width)``, without a copy."""
    width = piece.type.list_size
    return np.asarray(piece.values)[piece.offset * width : (piece.offset + len(piece)) * width].reshape(-1, width)


def _units(sketch: np.ndarray) -> np.ndarray:
    sketch = sketch.astype(np.float32)
    length = np.linalg.norm(sketch, axis=1, keepdims=True)
    return sketch / np.where(length > 0, length, 1.0)


def most_probable(rows: Rows, points: np.ndarray) -> dict[str, Any] | None:
    """The most probable classes of some rows, and their probabilities in thousandths; −1 if there are none.

    Both have as many entries per row as there are classes, at most `MOST_PROBABLE`; None without probabilities.
    """
    stored = having(rows, "probabilities")[points]
    if not stored.any():
        return None
    values = _some(rows, "probabilities", points[stored])
    width = min(MOST_PROBABLE, values.shape[1])
    first = np.argsort(-values, axis=1, kind="stable")[:, :width]
    codes, thousandths = np.full((2, len(points), width), -1)
    codes[stored] = first
    thousandths[stored] = np.rint(1000 * np.take_along_axis(values, first, axis=1))
    return {"codes": codes.ravel().tolist(), "thousandths": thousandths.ravel().tolist(), "width": width}
