"""Correlations and what each sample adds to them, so that correlations that share their samples can be compared.

The influence of a sample on a correlation is what the correlation would change by, were there a little more of that
sample. Its standard deviation over √n is the standard error (the infinitesimal jackknife); the influences on two
correlations over the same samples subtract, which is what pairing means. Unlike closed forms for normal data it holds
with ties, and half of all human frequencies may tie at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import stats

from hardsight.stats import half_width


class Correlation(NamedTuple):
    """A correlation, its 95% interval, and each sample's influence on it, ``(N,)``."""

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
    x, y = _standardized(x), _standardized(y)
    value = float((x * y).mean())
    # A few outliers that are not in the sample may decide a mean of products: never less than normal data would have.
    return _with_interval(value, x * y - value * (x**2 + y**2) / 2, half_width())


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


def kendall(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Kendall's τ-b of two arrays without NaN, in O(n log n).

    Examples:
        >>> round(kendall(np.array([1.0, 2, 2, 9]), np.array([1.0, 3, 2, 4])).value, 3)
        0.913
    """
    n = len(x)
    coded = [np.unique(values, return_inverse=True, return_counts=True)[1:] for values in (x, y)]
    (x_code, x_count), (y_code, y_count) = sorted(coded, key=lambda code: -len(code[1]))  # fewer values: fewer steps
    if len(y_count) < 2:
        return _with_interval(np.nan, np.full(n, np.nan))
    # Of the n samples, how many differ from each one in x, in y; and how many agree in order minus how many do not.
    x_apart, y_apart = (n - x_count)[x_code], (n - y_count)[y_code]
    both = _concordance(x_code, y_code, x_count, y_count)
    pairs, x_pairs, y_pairs = both.mean(), x_apart.mean(), y_apart.mean()
    scale = np.sqrt(x_pairs * y_pairs)
    value = float(pairs / scale)
    influence = 2 * (both - pairs) / scale - value * ((x_apart - x_pairs) / x_pairs + (y_apart - y_pairs) / y_pairs)
    return _with_interval(value, influence)


COEFFICIENTS: dict[str, Callable[[np.ndarray, np.ndarray], Correlation]] = {
    "spearman": spearman,
    "pearson": pearson,
    "kendall": kendall,
}


def _concordance(x: np.ndarray, y: np.ndarray, x_count: np.ndarray, y_count: np.ndarray) -> np.ndarray:
    """For each sample the sum over all others of sign(x_i − x_j)·sign(y_i − y_j); x and y are codes 0, 1, … ."""
    n = len(x)
    x_below, y_below = (np.cumsum(count) - count for count in (x_count, y_count))
    below = np.zeros(n, dtype=np.int64)  # in both x and y
    for _, upper, upto, start in below_pairs(x, y):
        below[upper] += upto - start
    (pair, pairs), pair_y = _places(x * len(y_count) + y), y * len(x_count) + x
    x_tied = pair - x_below[x]  # same x, lower y
    y_tied = _places(pair_y)[0] - y_below[y]  # same y, lower x
    # With h = 1 where the other lies below, ½ where it ties, the sign is 2h − 1; sums of h are ranks from the middle.
    middle = below + (x_tied + y_tied) / 2 + pairs / 4
    return 4 * middle - 2 * (x_below[x] + x_count[x] / 2 + y_below[y] + y_count[y] / 2) + n


def _places(code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each sample how many have a lower code, and how many the same."""
    _, inverse, count = np.unique(code, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - count)[inverse], count[inverse]


def below_pairs(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """All pairs in which one sample lies below the other in both x and y, a few index arrays instead of n² pairs.

    Samples in the order of x are halved by the highest bit of y, each half again by the next bit, and so on. Two
    samples part at one bit: there the one with the bit has those without it that come earlier in x below itself.

    Args:
        x: Codes 0, 1, … ``(N,)``.
        y: The same; the fewer its distinct values, the fewer steps.

    Yields:
        For each bit of y ``(lower, upper, upto, start)``: samples without and with the bit; the pairs of ``upper[k]``
        are those with ``lower[start[k]:upto[k]]``.
    """
    order = np.lexsort((-y, x))  # ties in x run down in y, so that none has another below it
    for bit in reversed(range(int(y.max()).bit_length())):
        codes = y[order]
        high = (codes >> bit & 1).astype(bool)
        zeros = np.cumsum(~high)
        node = np.flatnonzero(np.diff(codes >> bit + 1, prepend=-1))  # where the halves of the bit before begin
        start = np.repeat(zeros[node] - ~high[node], np.diff(node, append=len(y)))
        lower, upper = order[~high], order[high]
        yield lower, upper, zeros[high], start[high]
        order = np.concatenate([lower, upper])


def _moved(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """For each sample the mean over all j of weight_j where x_j is above it, and half of it where x_j ties with it."""
    order, inverse = np.unique(x, return_inverse=True)
    at = np.bincount(inverse, weight, minlength=len(order))
    above = at.sum() - np.cumsum(at)
    return (above + at / 2)[inverse] / len(x)


def _standardized(x: np.ndarray) -> np.ndarray:
    if not np.ptp(x):  # not the spread: the mean of a constant is rounded
        return np.full(len(x), np.nan)
    x = x / np.abs(x).max()  # squares of very large or small numbers would not be numbers
    x -= x.mean()
    return x / x.std()


def _with_interval(value: float, influence: np.ndarray, least: float = 0.0) -> Correlation:
    value = float(np.clip(value, -1, 1))  # sums are rounded
    return Correlation(value, *fisher_interval(value, standard_error(influence), len(influence), least), influence)


def fisher_interval(value: float, error: float, n: int, least: float = 0.0) -> tuple[float, float]:
    """The 95% interval of a correlation from its standard error, on Fisher's scale, where ±1 skew it less.

    An error that is estimated from few samples is itself uncertain, and too small on average: hence Student's t, and
    √(n / (n − 3)), which Fisher found for normal data.

    Args:
        value: The correlation.
        error: Its standard error.
        n: Samples; below 4 there is no interval.
        least: The half-width on Fisher's scale is at least this many standard errors of normal data.
    """
    if not np.isfinite(error) or n < 4:
        return np.nan, np.nan
    if abs(value) >= 1 - 1e-12:  # nothing is left to vary
        return value, value
    reach = half_width(n - 2) * error * np.sqrt(n / (n - 3)) / (1 - value**2)
    reach = max(reach, least / np.sqrt(n - 3))
    low, high = np.tanh(np.arctanh(value) + reach * np.array([-1.0, 1.0])).tolist()
    return low, high


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
