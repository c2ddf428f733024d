"""Which samples are drawn as points, and the binned density that counts them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# Points in the page, and bins of a view.
MOST_POINTS = 10_000
WIDTH, HEIGHT = 60, 48

_SEED = 20260801  # rows are sorted by id, so that the same samples are drawn however the table was ordered


@dataclass(frozen=True)
class Axis:
    """One axis of a view: a column, its title, and the range drawn; values beyond it are counted at the edge."""

    column: str
    title: str
    low: float
    high: float

    def bins(self, values: np.ndarray, count: int) -> np.ndarray:
        """Bin of each value, −1 for NaN; the last bin is closed, as in NumPy's histograms."""
        valid = ~np.isnan(values)
        scaled = np.clip((np.where(valid, values, self.low) - self.low) / (self.high - self.low), 0.0, 1.0)
        return np.where(valid, np.minimum((scaled * count).astype(np.int64), count - 1), -1)

    def beyond(self, values: np.ndarray) -> int:
        """How many values lie outside the range."""
        with np.errstate(invalid="ignore"):
            return int(((values < self.low) | (values > self.high)).sum())

    def as_dict(self) -> dict[str, Any]:
        return {"column": self.column, "title": self.title, "low": self.low, "high": self.high}


def axis(column: str, title: str, values: np.ndarray, within: tuple[float, float] | None = None) -> Axis:
    """An axis over the values, with round ends; a few far outliers do not stretch it.

    Args:
        column: Name of the column.
        title: What stands beside the axis.
        values: ``(N,)``, may hold NaN.
        within: The range, where it is known beforehand.
    """
    valid = values[~np.isnan(values)]
    if within is not None or not len(valid):
        return Axis(column, title, *(within or (0.0, 1.0)))
    low, inner_low, inner_high, high = (float(v) for v in np.quantile(valid, [0.0, 0.001, 0.999, 1.0]))
    reach = 3 * (inner_high - inner_low)
    if inner_high > inner_low:
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    if 0 < low <= 0.4 * high:
        low = 0.0
    if not high - low > 1e-5 * max(abs(low), abs(high)):  # the same but for rounding: six digits tell no ends apart
        low, high = low - 0.5 * max(abs(low), 1.0), high + 0.5 * max(abs(high), 1.0)
    step = 10.0 ** np.floor(np.log10(high - low)) / 10
    low, high = float(np.floor(low / step + 1e-9) * step), float(np.ceil(high / step - 1e-9) * step)
    return Axis(column, title, float(f"{low:.6g}"), float(f"{high:.6g}"))


def density(x: Axis, y: Axis, xs: np.ndarray, ys: np.ndarray) -> dict[str, Any]:
    """Counts of all rows in a grid; row 0 is the lowest y."""
    cells = cell_of(x, y, xs, ys)
    counts = np.bincount(cells[cells >= 0], minlength=WIDTH * HEIGHT)
    return {"nx": WIDTH, "ny": HEIGHT, "counts": counts.tolist(), "max": int(counts.max())}


def cell_of(x: Axis, y: Axis, xs: np.ndarray, ys: np.ndarray) -> np.ndarray:
    """Cell of each row in the grid, −1 where x or y is NaN."""
    column, line = x.bins(xs, WIDTH), y.bins(ys, HEIGHT)
    return np.where((column >= 0) & (line >= 0), line * WIDTH + column, -1)


def choose_points(n: int, listed: np.ndarray, cell: np.ndarray | None, group: np.ndarray) -> np.ndarray:
    """Rows to draw, in order: every listed one, then a sample spread over regions, classes, and all rows.

    Two fifths go evenly over the occupied cells of the main view, so that rare regions are seen, two fifths evenly
    over the classes, and the rest to all rows alike.

    Args:
        n: How many rows there are.
        listed: Rows that a list names.
        cell: ``(N,)`` cell of each row in the main view, −1 for none.
        group: ``(N,)`` class of each row, −1 for none.
    """
    if n <= MOST_POINTS:
        return np.arange(n)
    selected = np.zeros(n, dtype=bool)
    selected[listed] = True
    order = np.random.default_rng(_SEED).permutation(n)
    room = max(MOST_POINTS - int(selected.sum()), 0)
    for strata, share in ((cell, 0.4), (group, 0.4), (None, 1.0)):
        left = max(MOST_POINTS - int(selected.sum()), 0)
        _add(selected, np.zeros(n, dtype=np.int64) if strata is None else strata, min(left, int(share * room)), order)
    return np.flatnonzero(selected)


def _add(selected: np.ndarray, strata: np.ndarray, count: int, order: np.ndarray) -> None:
    """Choose `count` more rows, round robin over the strata, each stratum in the given order."""
    free = order[~selected[order] & (strata[order] >= 0)]
    selected[free[spread(strata[free])[:count]]] = True


def spread(strata: np.ndarray) -> np.ndarray:
    """Places of the items, the first of each stratum before every second one, and so on."""
    by_stratum = np.argsort(strata, kind="stable")
    ordered = strata[by_stratum]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, int)
    turn = np.empty(len(strata), dtype=np.int64)
    turn[by_stratum] = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    return np.argsort(turn, kind="stable")
