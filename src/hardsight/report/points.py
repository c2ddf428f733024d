"""Which samples are drawn as points."""

from __future__ import annotations

import numpy as np

MOST_POINTS = 10_000

_SEED = 20260801  # rows are sorted by id, so that the same samples are drawn however the table was ordered


def choose_points(n: int, required: np.ndarray, cell: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Rows to draw, in order: every required one, then a sample spread over regions, classes, and all rows.

    Two fifths go evenly over the occupied cells of the main view, so that rare regions are seen, two fifths evenly
    over the classes, and the rest to all `n` rows alike. `cell` and `group` are those of each row, −1 for none.
    """
    if n <= MOST_POINTS:
        return np.arange(n)
    selected = np.zeros(n, dtype=bool)
    selected[required] = True
    order = np.random.default_rng(_SEED).permutation(n)
    room = max(MOST_POINTS - int(selected.sum()), 0)
    for strata, share in ((cell, 0.4), (group, 0.4), (np.zeros(n, dtype=np.int64), 1.0)):
        left = max(MOST_POINTS - int(selected.sum()), 0)
        free = order[~selected[order] & (strata[order] >= 0)]
        selected[free[spread(strata[free])[: min(left, int(share * room))]]] = True
    return np.flatnonzero(selected)


def spread(strata: np.ndarray) -> np.ndarray:
    """Places of the items, the first of each stratum before every second one, and so on."""
    by_stratum = np.argsort(strata, kind="stable")
    ordered = strata[by_stratum]
    turn = np.empty(len(strata), dtype=np.int64)
    turn[by_stratum] = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return np.argsort(turn, kind="stable")
