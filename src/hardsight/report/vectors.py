"""What a run stores of its features: directions as sketches, and the probabilities of few classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.ensemble import matrix
from hardsight.report.rows import Rows

MOST_PROBABLE = 5  # classes of a sample that the page shows


def having(rows: Rows, column: str) -> np.ndarray:
    """Which rows have a vector of this name that is finite; none where some sample's is null."""
    vectors = rows.table.vectors
    if vectors is None or column not in vectors.column_names or vectors[column].null_count:
        return np.zeros(len(rows), dtype=bool)
    width, parts = vectors[column].type.list_size, []
    for chunk in vectors[column].chunks:
        values = np.asarray(chunk.values)[chunk.offset * width : (chunk.offset + len(chunk)) * width]
        parts.append(np.isfinite(values).reshape(-1, width).all(1))
    finite = np.concatenate([*parts, [False]])  # the last for rows without a vector, whose place is −1
    return finite[rows.in_vectors]


def directions(rows: Rows, where: np.ndarray) -> np.ndarray:
    """Unit sketches of some rows, which must have one; a zero feature stays zero."""
    sketch = matrix(rows.table.vectors, "sketch", rows.in_vectors[where]).astype(np.float32)
    length = np.linalg.norm(sketch, axis=1, keepdims=True)
    return sketch / np.where(length > 0, length, 1.0)


def most_probable(rows: Rows, points: np.ndarray) -> dict[str, Any] | None:
    """The most probable classes of some rows, and their probabilities in thousandths; −1 where there are none.

    Both have as many entries per row as there are classes, at most `MOST_PROBABLE`; None without probabilities.
    """
    stored = having(rows, "probabilities")[points]
    if not stored.any():
        return None
    values = matrix(rows.table.vectors, "probabilities", rows.in_vectors[points[stored]])
    width = min(MOST_PROBABLE, values.shape[1])
    first = np.argsort(-values, axis=1, kind="stable")[:, :width]
    codes, thousandths = np.full((2, len(points), width), -1)
    codes[stored] = first
    thousandths[stored] = np.rint(1000 * np.take_along_axis(values, first, axis=1))
    return {"codes": codes.ravel().tolist(), "thousandths": thousandths.ravel().tolist(), "width": width}
