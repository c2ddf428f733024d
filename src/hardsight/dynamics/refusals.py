"""Rows that a recorder refuses when an epoch is committed: indices and labels outside the data, ids that collide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardsight.dynamics.batches import Rows
from hardsight.dynamics.ids import Found, Ids, first_rows


class Refusal(NamedTuple):
    """Which rows are refused, and why."""

    rows: np.ndarray
    reason: str


def outside_data(rows: Rows, count: int) -> Refusal | None:
    """Integer ids that are no index of data with so many samples."""
    if rows.ids.dtype == object:
        outside = np.array([isinstance(id_, int) and not 0 <= id_ < count for id_ in rows.ids.tolist()], bool)
    else:
        outside = (rows.ids < 0) | (rows.ids >= count)
    if not outside.any():
        return None
    first = rows.ids[outside.argmax()]
    return Refusal(outside, f"ids must be indices of data, 0 to {count - 1}, or ids of its samples, got {first}")


def outside_classes(rows: Rows, classes: int, ids: Ids) -> Refusal | None:
    """Labels that are no class of the head."""
    outside = rows.labels >= classes
    if not outside.any():
        return None
    first = int(outside.argmax())
    return Refusal(
        outside,
        f"labels must lie in [0, {classes - 1}] (the head has {classes} classes), got {rows.labels[first]} for "
        f"{ids.text(rows.ids[first])!r}",
    )


def colliding(rows: Rows, found: Found, labels: np.ndarray, ids: Ids) -> Refusal | None:
    """Samples with another label than their id had before: two samples of one id would make one curve.

    Args:
        rows: The samples.
        found: Their numbers.
        labels: Of the ids that are known already, by number.
        ids: Those ids.
    """
    fresh = first_rows(found.at, len(ids) + len(found.fresh))[len(ids) :]
    labels = np.concatenate([labels, rows.labels[fresh]])
    wrong = labels[found.at] != rows.labels
    if not wrong.any():
        return None
    row, numbers = int(wrong.argmax()), found.at[wrong]
    # Of an id that is new nobody can tell which sample it means.
    return Refusal(
        wrong | np.isin(found.at, numbers[numbers >= len(ids)]),
        f"ids collide: {ids.text(rows.ids[row])!r} had the label {labels[found.at[row]]} and now has "
        f"{rows.labels[row]}; give every sample an id of its own (its index in the data set, not in the batch)",
    )
