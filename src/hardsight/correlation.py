"""Correlations, their intervals, and tests of two of them that share their samples.

The influence of a sample on a correlation is how much the correlation would change with a little more of that sample.
Its standard deviation over √n is the standard error (the infinitesimal jackknife); influences on two correlations over
the same samples subtract, which is what pairing means. Unlike closed forms for normal data, this and the paired
bootstrap (`resampled`) hold with ties, and half of all human frequencies may tie at 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from scipy import stats

from hardsight.errors import InputError
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

    Below 4 samples there is none. The half-width on Fisher's scale is at least `least` standard errors of normal data.
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


# The paired bootstrap. A resample is how often each sample was drawn: only these counts change, not the orders along
# which they are summed. It costs O(n) for Spearman and Pearson, O(n · bits of distinct values) for Kendall.


def resampled(
    columns: np.ndarray,
    y: np.ndarray,
    coefficients: Sequence[str] = tuple(COEFFICIENTS),
    resamples: int = 2000,
    seed: int = 0,
) -> np.ndarray:
    """Correlations of several columns with y over the same resamples of the samples.

    Columns ``(S, N)`` and y ``(N,)`` have no NaN. The same seed gives the same resamples, on any number of threads.

    Returns:
        ``(resamples, S, coefficients)``; NaN where a column or y is constant in a resample.

    Examples:
        >>> x = np.arange(30.0)
        >>> resampled(np.stack([x, -x]), x, ("pearson", "kendall"), resamples=2).round(6).tolist()
        [[[1.0, 1.0], [-1.0, -1.0]], [[1.0, 1.0], [-1.0, -1.0]]]
    """
    columns, y = np.atleast_2d(np.asarray(columns, dtype=np.float64)), np.asarray(y, dtype=np.float64)
    n = len(y)
    orders = [_order(values) for values in (y, *columns)] if {"spearman", "kendall"} & set(coefficients) else []
    pairs = [_pairs(order, orders[0]) for order in orders[1:]] if "kendall" in coefficients else []
    moments = _moments(columns, y) if "pearson" in coefficients else None

    @np.errstate(invalid="ignore", divide="ignore")
    def resample(number: int) -> np.ndarray:
        drawn = np.random.default_rng([seed, number]).integers(0, n, n)
        counts = np.bincount(drawn, minlength=n)  # whole numbers: their sums are exact, and cumulate fastest
        below = [_cumulated(counts, order.order) for order in orders]
        values: dict[str, np.ndarray] = {}
        if moments is not None:
            values["pearson"] = _pearson_of(counts, moments, len(columns))
        if "spearman" in coefficients:
            values["spearman"] = _spearman_of(counts, orders, below)
        if pairs:
            values["kendall"] = _kendall_of(counts, pairs, orders, below)
        return np.stack([values[name] for name in coefficients], axis=1)

    # NumPy releases the interpreter in the loops that matter, so threads share the work.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.stack(list(pool.map(resample, range(resamples))))


class _Order(NamedTuple):
    """The order of the samples; for each sample and each distinct value, where its ties begin and end in it."""

    order: np.ndarray
    first: np.ndarray
    last: np.ndarray
    ends: np.ndarray
    code: np.ndarray


def _order(values: np.ndarray) -> _Order:
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(count)])
    return _Order(np.argsort(code, kind="stable"), ends[code], ends[code + 1], ends, code)


def _cumulated(counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """0, and the cumulative sums of the counts in an order."""
    total = np.zeros(len(order) + 1, dtype=counts.dtype)
    np.cumsum(counts.take(order), out=total[1:])
    return total


def _moments(columns: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``(N, 2 + 3S)``: what makes Pearson's correlations when summed over a resample; around means, to keep digits."""
    y = y - y.mean()
    x = columns - columns.mean(1, keepdims=True)
    return np.ascontiguousarray(np.concatenate([[y, y * y], x, x * x, x * y]).T)


def _pearson_of(counts: np.ndarray, moments: np.ndarray, size: int) -> np.ndarray:
    sums = np.einsum("n,nk->k", counts, moments) / len(counts)
    x, xx, xy = sums[2:].reshape(3, size)
    # What is constant in a resample has a variance of rounding; NaN instead.
    squares, means = np.append(xx, sums[1]), np.append(x, sums[0])
    spread = squares - means**2
    spread[spread < 1e-12 * squares] = np.nan
    return (xy - x * sums[0]) / np.sqrt(spread[:-1] * spread[-1])


def _spearman_of(counts: np.ndarray, orders: list[_Order], below: list[np.ndarray]) -> np.ndarray:
    # Twice the mean rank of a sample's ties over n, less the mean of that over the resample, which is always 1.
    n = len(counts)
    y, *columns = (
        (total.take(order.first) + total.take(order.last)) / n - 1 for order, total in zip(orders, below, strict=True)
    )
    weighted = counts * y
    spread = (weighted * y).sum()
    return np.array([(weighted * x).sum() / np.sqrt((counts * x * x).sum() * spread) for x in columns])


class _Pairs(NamedTuple):
    """The pairs of samples that lie below one another in x and y, and where ties in both are."""

    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    order: np.ndarray
    starts: np.ndarray


def _pairs(x: _Order, y: _Order) -> _Pairs:
    if len(x.ends) < len(y.ends):
        x, y = y, x
    both = x.code * len(y.ends) + y.code
    _, first = np.unique(both[order := np.argsort(both, kind="stable")], return_index=True)
    return _Pairs(list(below_pairs(x.code, y.code)), order, first)


def _kendall_of(counts: np.ndarray, pairs: list[_Pairs], orders: list[_Order], below: list[np.ndarray]) -> np.ndarray:
    n = len(counts)
    y, *columns = ((np.diff(total[order.ends]) ** 2).sum() for order, total in zip(orders, below, strict=True))
    values = []
    for x, (steps, order, starts) in zip(columns, pairs, strict=True):
        concordant = 0
        for lower, upper, upto, start in steps:
            total = _cumulated(counts, lower)
            concordant += (counts.take(upper) * (total.take(upto) - total.take(start))).sum()
        both = (np.add.reduceat(counts.take(order), starts) ** 2).sum()
        # Of n² ordered pairs those that tie in x, in y or in both drop out; of the rest, concordant minus discordant.
        values.append((4 * concordant - n * n + x + y - both) / np.sqrt((n * n - x) * (n * n - y)))
    return np.array(values)


# Closed forms: they assume normal data, which saturated scores and tied human frequencies are not. They are here to
# compare with what others report; docs/results/alignment-error-rates.csv has the error rate of each.


def fisher_z(r1: float, r2: float, n1: int, n2: int) -> float:
    """z of two correlations over different samples; the AVH paper's test, with the same images as both samples.

    Examples:
        >>> round(fisher_z(0.349, 0.335, 29987, 29987), 2)  # the paper's Table 7, Spearman
        1.94
    """
    _check(min(n1, n2), r1=r1, r2=r2)
    return (math.atanh(r1) - math.atanh(r2)) / math.sqrt(1 / (n1 - 3) + 1 / (n2 - 3))


def steiger(r12: float, r13: float, r23: float, n: int) -> float:
    """z of r12 against r13, correlations of variables 2 and 3 with variable 1 over n samples (Steiger, 1980, Z̄₂*).

    Examples:
        >>> round(steiger(0.3, 0.4, 0.5, 100), 4)
        -1.0718
    """
    _check(n, r12=r12, r13=r13, r23=r23)
    squared = ((r12 + r13) / 2) ** 2
    covariance = r23 * (1 - 2 * squared) - squared * (1 - 2 * squared - r23**2) / 2
    return _ratio(r12, r13, n, 2 - 2 * covariance / (1 - squared) ** 2)


def meng(r12: float, r13: float, r23: float, n: int) -> float:
    """z of r12 against r13, as `steiger` (Meng, Rosenthal and Rubin, 1992).

    Examples:
        >>> round(meng(0.63, -0.03, -0.19, 15), 2)  # the example of the paper
        1.68
    """
    _check(n, r12=r12, r13=r13, r23=r23)
    squared = (r12**2 + r13**2) / 2
    f = min((1 - r23) / (2 * (1 - squared)), 1.0)
    return _ratio(r12, r13, n, 2 * (1 - r23) * (1 - f * squared) / (1 - squared))


def p_value(z: float, sided: int = 2) -> float:
    """p of a normal z: two-sided, or one-sided for the first being the larger.

    Examples:
        >>> round(p_value(1.92, sided=1), 3), round(p_value(1.92), 3)
        (0.027, 0.055)
    """
    return float(stats.norm.sf(z) if sided == 1 else 2 * stats.norm.sf(abs(z)))


def _ratio(r12: float, r13: float, n: int, variance: float) -> float:
    difference = (math.atanh(r12) - math.atanh(r13)) * math.sqrt(n - 3)
    if abs(difference) < 1e-12:  # rounding, as where two variables are one
        return 0.0
    return difference / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, difference)


def _check(n: int, **correlations: float) -> None:
    for name, r in correlations.items():
        limit = 1 if name == "r23" else math.nextafter(1, 0)
        if not -limit <= r <= limit:
            raise InputError(f"{name} must be a correlation between −1 and 1 (both excluded), got {r}.")
    if n < 4:
        raise InputError(f"n must be 4 or more for Fisher's transformation, got {n}.")
