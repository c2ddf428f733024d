"""Scatter plots: two columns against each other, with the density of all samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from hardsight.report.formatting import counted, score_title
from hardsight.report.rows import Rows
from hardsight.scores import SCORES
from hardsight.table import harder_end

if TYPE_CHECKING:
    from hardsight.report.sections import Column

WIDTH, HEIGHT = 60, 48  # cells of a view


class Axis(NamedTuple):
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


class View(NamedTuple):
    """Two columns of the page against each other; `color` names a column from 0 to 1 that colors the points."""

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    color: str = ""

    def cells(self, columns: Mapping[str, Column]) -> np.ndarray:
        """Cell of each row in the view's grid, row 0 the lowest y; −1 where x or y is NaN."""
        column, line = (a.bins(columns[a.column].values, n) for a, n in ((self.x, WIDTH), (self.y, HEIGHT)))
        return np.where((column >= 0) & (line >= 0), line * WIDTH + column, -1)

    def as_dict(self, columns: Mapping[str, Column], drawn: str = "") -> dict[str, Any]:
        """For the page; `drawn` says how many samples are points."""
        beyond, cells = sum(a.beyond(columns[a.column].values) for a in (self.x, self.y)), self.cells(columns)
        edge = f" {counted(beyond, 'value lies', 'values lie')} beyond the edge and drawn there." if beyond else ""
        counts = np.bincount(cells[cells >= 0], minlength=WIDTH * HEIGHT)
        density = {"nx": WIDTH, "ny": HEIGHT, "counts": counts.tolist(), "max": int(counts.max())}
        texts = {"key": self.key, "title": self.title, "note": self.note + edge + drawn, "color": self.color}
        return {**texts, "x": self.x._asdict(), "y": self.y._asdict(), "density": density}


def axis(column: str, title: str, values: np.ndarray) -> Axis:
    """An axis over the values, NaN aside, with round ends; a few far outliers do not stretch it."""
    valid = values[~np.isnan(values)]
    if not len(valid):
        return Axis(column, title, 0.0, 1.0)
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


def score_axis(rows: Rows, name: str, values: np.ndarray | None = None) -> Axis:
    """The axis of a score, with its direction in words; over other values than the score's own where they are given."""
    where = "" if rows.labeled or not SCORES[name].needs_labels else " at the prediction"
    titles = {
        "avh": f"C·AVH{where} (1 = chance; larger = harder)",
        "confidence": f"confidence in the {'label' if rows.labeled else 'prediction'}",
        "norm": "norm of the feature",
    }
    title = titles.get(name, f"{score_title(name)}{where} ({harder_end(name)} = harder)")
    if name in ("confidence", "avc"):
        return Axis(name, title, 0.0, 1.0)
    return axis(name, title, rows.scores[name] if values is None else values)


def rank_axis(column: str, score: str | None) -> Axis:
    """The axis of ranks by a score."""
    return Axis(column, f"rank{f' by {score_title(score)}' if score else ''} (1 = hardest)", 0.0, 1.0)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> tuple[float | None, int]:
    """Spearman's correlation over the rows that have both, None where it does not exist; and how many have."""
    valid = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[valid], b[valid]
    exists = len(a) > 2 and a.min() < a.max() and b.min() < b.max()
    return float(spearmanr(a, b).statistic) if exists else None, len(a)


def correlation_note(rows: Rows, values: np.ndarray, title: str, others: tuple[str | None, ...]) -> str:
    """Spearman's correlation of some values with the hardness by other scores, in words."""
    pairs = {name: rank_correlation(values, rows.hardness_by(name)) for name in others if name is not None}
    texts = [f"with hardness by {score_title(k)} is {rho:+.3f}" for k, (rho, _) in pairs.items() if rho is not None]
    if not texts:
        return f"The rank correlation of {title} with hardness does not exist (too few different values)."
    n = min(n for _, n in pairs.values())
    return f"Spearman's rank correlation of {title} {' and '.join(texts)} (n = {n:,})."
