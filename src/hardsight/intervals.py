"""How sure a number is: Wilson's interval of a share, Student's of a mean. Tests of differences are in `stats`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

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
