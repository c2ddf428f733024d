"""How sure a number is: Wilson's interval of a share, Student's of a mean, Welch's of a difference; Holm's rule.

And DeLong's interval of the area under a ROC curve.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

LEVEL = 0.95

# Fewer samples than these get no interval and no flag.
FEW = 5


def wilson(successes: np.ndarray, n: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of each share, all at once; NaN where n is 0."""
    n = np.where(np.asarray(n) > 0, n, np.nan).astype(np.float64)
    z = stats.norm.ppf(0.5 + level / 2)
    share = successes / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def share_interval(successes: float, n: int) -> tuple[float, float]:
    """Wilson's interval of one share."""
    low, high = wilson(np.array(successes), np.array(n))
    return float(low), float(high)


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Student's interval of the mean of one array without NaN; NaN below `FEW` samples."""
    low, high = moments(values, np.zeros(len(values), np.int64), 1).interval()
    return float(low[0]), float(high[0])


class Auroc(NamedTuple):
    """How often one score lies above another, its 95 % interval, and how often the two tie."""

    value: float
    low: float
    high: float
    tied: float


def auroc(above: np.ndarray, below: np.ndarray) -> Auroc:
    """The area under the ROC curve of scores that should lie above others, with DeLong's interval, in O(n log n).

    It is the chance that a score of the first kind lies above one of the second; pairs that tie count half. The
    interval is normal on the logit scale, so that it stays in (0, 1). Where the variance vanishes (the two kinds do not
    overlap, or all tie) it is Wilson's, as if there were one pair for each score of the rarer kind; where one kind has
    a single score it is NaN.

    Args:
        above: Scores of the first kind, one or more, without NaN.
        below: Of the second.

    Examples:
        >>> auroc(np.array([0.9, 0.8, 0.3]), np.array([0.1, 0.3])).value  # 5 of 6 pairs, and half of a tie
        0.9166666666666666
    """
    a, b = np.sort(above), np.sort(below)
    lower, upto = (np.searchsorted(b, a, side) for side in ("left", "right"))
    value = float((lower + upto).sum() / (2 * len(a) * len(b)))  # whole numbers: the order of samples cannot matter
    tied = float((upto - lower).sum() / (len(a) * len(b)))
    if min(len(a), len(b)) < 2:
        return Auroc(value, np.nan, np.nan, tied)
    # How often each score lies above, or below, those of the other kind.
    over = (lower + upto) / (2 * len(b))
    under = (np.searchsorted(a, b, "left") + np.searchsorted(a, b, "right")) / (2 * len(a))
    error = np.sqrt(over.var(ddof=1) / len(a) + under.var(ddof=1) / len(b))
    if not error:
        n = min(len(a), len(b))
        return Auroc(value, *share_interval(value * n, n), tied)
    reach = stats.norm.ppf(0.5 + LEVEL / 2) * error / (value * (1 - value))
    low, high = special.expit(special.logit(value) + reach * np.array([-1.0, 1.0])).tolist()
    return Auroc(value, low, high, tied)


class Moments(NamedTuple):
    """Number, mean and sample variance of the values in each group; NaN where they do not exist."""

    n: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """Student's interval of each mean; NaN below `FEW` samples."""
        enough = self.n >= FEW
        n = np.where(enough, self.n, 2)
        half = stats.t.ppf(0.5 + level / 2, n - 1) * np.sqrt(self.variance / n)
        half = np.where(enough, half, np.nan)
        return self.mean - half, self.mean + half


def moments(values: np.ndarray, group: np.ndarray, groups: int) -> Moments:
    """Moments of the values that are not NaN, by group number; rows of group −1 are left out."""
    known = ~np.isnan(values) & (group >= 0)
    values, group = values[known], group[known]
    n = np.bincount(group, minlength=groups).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, values, minlength=groups) / n
        # Around the mean: sums of squares would lose the digits of values that lie close together.
        variance = np.bincount(group, (values - mean[group]) ** 2, minlength=groups) / (n - 1)
    variance[n < 2] = np.nan
    return Moments(n, mean, variance)


class Difference(NamedTuple):
    """A difference, its interval, and the two-sided p-value of its being 0."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def student(value: Any, a: Any, df_a: Any, b: Any, df_b: Any) -> Difference:
    """A difference whose variance is estimated as a + b with so many degrees of freedom: Welch's t."""
    value, a, b = (np.asarray(x, dtype=np.float64) for x in (value, a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(a + b)
        df = (a + b) ** 2 / (a**2 / df_a + b**2 / df_b)
        t = value / error
    known = np.isfinite(t) & (df > 0)
    safe = np.where(known, df, 1.0)
    half = np.where(known, stats.t.ppf(0.5 + LEVEL / 2, safe) * error, np.nan)
    p = np.where(known, 2 * stats.t.sf(np.abs(np.where(known, t, 0.0)), safe), np.nan)
    return Difference(value, value - half, value + half, p)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjusted p-values; NaN are no tests."""
    adjusted = np.full(len(p), np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted
