"""Correlations and what each sample adds to them, so that correlations that share their samples can be compared.

The influence of a sample on a correlation is what the correlation would change by, were there a little more of that
sample. Its standard deviation over √n is the standard error (the infinitesimal jackknife); the influences on two
correlations over the same samples subtract, which is what pairing means. Unlike closed forms for normal data it holds
with ties, and half of all human frequencies may tie at 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from hardsight.intervals import LEVEL


class Correlation(NamedTuple):
    """A correlation, its 95 % interval, and each sample's influence on it, ``(N,)``."""

    value: float
    low: float
    high: float
    influence: np.ndarray


def pearson(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Pearson's correlation of two arrays without NaN.

    Examples:
        >>> round(pearson(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])).value, 3)
        0.8
    """
    x, y = _standardised(x), _standardised(y)
    value = float((x * y).mean())
    return _with_interval(value, x * y - value * (x**2 + y**2) / 2)


def spearman(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Spearman's correlation of two arrays without NaN; ties share their mean rank.

    Examples:
        >>> round(spearman(np.array([1.0, 2, 2, 9]), np.array([1.0, 3, 2, 4])).value, 3)
        0.949
    """
    n = len(x)
    u, v = ((stats.rankdata(values) - 0.5) / n - 0.5 for values in (x, y))
    variance_u, variance_v, covariance = (u * u).mean(), (v * v).mean(), (u * v).mean()
    if not variance_u or not variance_v:
        return _with_interval(np.nan, np.full(n, np.nan))
    value = float(covariance / np.sqrt(variance_u * variance_v))
    # A sample counts through its own ranks, and because it moves the ranks of all the others above it.
    on_covariance = u * v - covariance + _moved(x, v) - covariance + _moved(y, u) - covariance
    on_u = u * u - variance_u + 2 * (_moved(x, u) - variance_u)
    on_v = v * v - variance_v + 2 * (_moved(y, v) - variance_v)
    influence = on_covariance / np.sqrt(variance_u * variance_v) - value / 2 * (on_u / variance_u + on_v / variance_v)
    return _with_interval(value, influence)


def _moved(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """For each sample the mean over all j of weight_j where x_j is above it, and half of it where x_j ties with it."""
    order, inverse = np.unique(x, return_inverse=True)
    at = np.bincount(inverse, weight, minlength=len(order))
    above = at.sum() - np.cumsum(at)
    return (above + at / 2)[inverse] / len(x)


def _standardised(x: np.ndarray) -> np.ndarray:
    spread = x.std()
    return (x - x.mean()) / spread if spread else np.full(len(x), np.nan)


def _with_interval(value: float, influence: np.ndarray) -> Correlation:
    """Normal on Fisher's scale, where correlations near ±1 are less skewed, with the measured standard error."""
    error = standard_error(influence)
    if not np.isfinite(error) or abs(value) >= 1 - 1e-12:  # nothing varies, or nothing is left to vary
        end = value if np.isfinite(error) else np.nan
        return Correlation(value, end, end, influence)
    reach = stats.norm.ppf((1 + LEVEL) / 2) * error / (1 - value**2)
    low, high = np.tanh(np.arctanh(value) + reach * np.array([-1.0, 1.0])).tolist()
    return Correlation(value, low, high, influence)


def standard_error(influence: np.ndarray) -> float:
    """The standard error of a statistic from each sample's influence on it."""
    n = len(influence)
    return float(influence.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def tie_share(values: np.ndarray) -> float:
    """Share of the pairs of samples whose values are equal.

    Examples:
        >>> tie_share(np.array([1.0, 1.0, 0.5]))
        0.3333333333333333
    """
    n = len(values)
    counts = np.unique(values, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / (n * (n - 1))) if n > 1 else 0.0
