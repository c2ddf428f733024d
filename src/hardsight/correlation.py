"""Correlations, their intervals, and tests of two of them that share their samples.

The influence of a sample on a correlation is how much the correlation would change with a little more of that sample.
Its standard deviation over √n is the standard error (the infinitesimal jackknife); influences on two correlations over
the same samples subtract, which makes comparisons paired. Unlike closed forms for normal data, this and the paired
bootstrap (`resampled`) are valid with ties, and half of all human frequencies may tie at 1.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from hardsight.errors import InputError
from hardsight.stats import half_width

_MANY = 1 << 20  # samples above which an array of eight bytes each is large
_BLOCK = 1 << 16  # samples at a time
_RESAMPLED_BYTES = 1 << 30  # of resamples at a time, about 80 bytes for each sample


class Correlation(NamedTuple):
    """A correlation, its 95% interval, and each sample's influence on it, ``(N,)``."""

    value: float
    low: float
    high: float
    influence: np.ndarray


def pearson(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Pearson's correlation of two arrays without NaN."""
    x, y = _standardized(x), _standardized(y)
    value = float((x * y).mean())
    # A few outliers outside the sample may dominate a mean of products: never less than for normal data.
    return _with_interval(value, x * y - value * (x**2 + y**2) / 2, half_width())


def spearman(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Spearman's correlation of two arrays without NaN; ties share their mean rank."""
    n, x, y = len(x), _codes(x), _codes(y)
    u, v = (_mid_ranks(codes) for codes in (x, y))
    variance_u, variance_v, covariance = (u * u).mean(), (v * v).mean(), (u * v).mean()
    if not variance_u or not variance_v:
        return _with_interval(np.nan, np.full(n, np.nan))
    value = float(covariance / np.sqrt(variance_u * variance_v))
    # A sample counts through its own ranks, and because it shifts the ranks of all samples above it. Sums are taken
    # in place: with many samples every array is large.
    influence = u * v
    influence -= covariance
    for codes, weight in ((x, v), (y, u)):
        influence += _moved(codes, weight)
        influence -= covariance
    influence /= np.sqrt(variance_u * variance_v)
    own = _on_variance(x, u, variance_u)
    own += _on_variance(y, v, variance_v)
    own *= value / 2
    influence -= own
    return _with_interval(value, influence)


def _mid_ranks(codes: np.ndarray) -> np.ndarray:
    """Ranks over n between ±½; ties share their mean."""
    upto = np.cumsum(count := np.bincount(codes))
    return (((2 * upto - count + 1) / 2 - 0.5) / len(codes) - 0.5)[codes]


def _on_variance(codes: np.ndarray, ranks: np.ndarray, variance: float) -> np.ndarray:
    """The influence of each sample on the variance of the ranks, divided by that variance."""
    moved = _moved(codes, ranks)
    moved -= variance
    moved *= 2
    influence = ranks * ranks
    influence -= variance
    influence += moved
    influence /= variance
    return influence


def kendall(x: np.ndarray, y: np.ndarray) -> Correlation:
    """Kendall's τ-b of two arrays without NaN, in O(n log n)."""
    n, (x, y) = len(x), _code_pair(x, y)
    if not y.any():
        return _with_interval(np.nan, np.full(n, np.nan))
    # With h = 1 where another sample lies below, ½ where it ties, sign(x_i − x_j) is 2h − 1; sums of h are mid-ranks.
    # Summed in quarters and in place: below in both x and y, below among ties in x or in y, and ties in both.
    both = np.zeros(n, dtype=np.int64)  # how many agree in order with each sample, minus how many do not
    for _, upper, upto, start in below_pairs(x, y):
        both[upper] += upto - start
    both *= 4
    below, upto = _ranks(_pair_codes(y, x))
    both += 2 * below
    below, upto = _ranks(_pair_codes(x, y))
    both += below
    both += upto
    del below, upto
    both += n
    apart = []  # how many differ from each sample in x, and in y
    for codes in (x, y):
        below, upto = _ranks(codes)
        both -= 3 * below
        both -= upto
        apart.append(n - (upto - below))
        del below, upto
    pairs, x_pairs, y_pairs = (values.mean() for values in (both, *apart))
    scale = np.sqrt(x_pairs * y_pairs)
    value = float(pairs / scale)
    influence = both - pairs
    del both
    influence *= 2
    influence /= scale
    own = (apart[0] - x_pairs) / x_pairs
    own += (apart[1] - y_pairs) / y_pairs
    own *= value
    influence -= own
    return _with_interval(value, influence)


COEFFICIENTS = {"spearman": spearman, "pearson": pearson, "kendall": kendall}


def _codes(values: np.ndarray) -> np.ndarray:
    """The rank of each value among the distinct ones: 0, 1, … ."""
    order = np.argsort(values)
    ordered = values[order]
    new = np.zeros(len(values), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    del ordered
    codes = np.empty(len(values), _index_type(len(values)))
    codes[order] = np.cumsum(new, dtype=codes.dtype)
    return codes


def _pair_codes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Codes of pairs of codes; pairs tie if both codes are equal."""
    pairs = x.astype(np.int64)
    pairs *= len(x)
    pairs += y
    return _codes(pairs)


def _index_type(n: int) -> type[np.signedinteger]:
    """The type for positions among n samples: the one that NumPy indexes with directly, or for many the smaller one."""
    return np.intp if n <= _MANY else np.int32


def _code_pair(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """The codes of both, with the fewer distinct values second, so that `below_pairs` takes fewer steps."""
    return sorted((_codes(x), _codes(y)), key=lambda code: -code.max())


def _ranks(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each sample, the number of samples below it, and the number not above it."""
    count = np.bincount(codes)
    upto = np.cumsum(count)
    return (upto - count)[codes], upto[codes]


def below_pairs(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """All pairs of samples in which one lies below the other in both x and y; x and y are codes 0, 1, … .

    Samples in the order of x are halved by the highest bit of y, each half again by the next bit, and so on. Two
    samples part at one bit: there the one with the bit has those without it that come earlier in x below itself.
    For each bit ``(lower, upper, upto, start)`` are the samples without and with the bit; the pairs of ``upper[k]`` are
    those with ``lower[start[k]:upto[k]]``: a few index arrays instead of n² pairs.
    """
    type_ = _index_type(len(x))
    order = np.lexsort((-y, x)).astype(type_)  # ties in x run down in y, so that none has another below it
    for bit in reversed(range(int(y.max()).bit_length())):
        codes = y[order]
        high = (codes >> bit & 1).astype(bool)
        zeros = np.cumsum(~high, dtype=type_)
        node = np.flatnonzero(np.diff(codes >> bit + 1, prepend=-1))  # where the halves of the bit before begin
        start = np.repeat(zeros[node] - ~high[node], np.diff(node, append=len(y)))
        lower, upper = order[~high], order[high]
        yield lower, upper, zeros[high], start[high]
        order = np.concatenate([lower, upper])


def _moved(codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """For each sample the mean over all j of weight_j if x_j is above it, and of half of it if x_j ties with it."""
    at = np.bincount(codes, weight)
    above = np.cumsum(at)
    np.subtract(at.sum(), above, out=above)
    at /= 2
    above += at
    del at
    moved = above[codes]
    moved /= len(codes)
    return moved


class Influences:
    """Influences of the same samples on several correlations; for many samples they are kept in a file, not in memory.

    Args:
        n: Samples.
    """

    def __init__(self, n: int) -> None:
        self.n, self._file = n, tempfile.TemporaryFile() if n > _MANY else None  # noqa: SIM115 - closed by close
        self._kept: list[np.ndarray] = []
        self._means: list[float] = []

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()

    def add(self, influence: np.ndarray) -> None:
        """Add a correlation."""
        self._means.append(float(influence.mean()))
        if self._file is None:
            self._kept.append(influence)
        else:
            influence.tofile(self._file)

    def covariance(self, order: Sequence[int]) -> np.ndarray:
        """Covariances of the correlations in this order, ``(S, S)``."""
        if self._file is None:
            return np.atleast_2d(np.cov(np.stack([self._kept[k] for k in order])))
        means, total = np.array(self._means)[:, None], np.zeros((len(self._means), len(self._means)))
        for start in range(0, self.n, _BLOCK):
            count, rows = min(_BLOCK, self.n - start), []
            for k in range(len(means)):
                self._file.seek(8 * (k * self.n + start))
                rows.append(np.frombuffer(self._file.read(8 * count)))
            block = np.stack(rows) - means
            total += block @ block.T
        return (total / (self.n - 1))[np.ix_(order, order)]


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

    A standard error from few samples is itself uncertain, and too small on average: hence Student's t, and Fisher's
    √(n / (n − 3)) for normal data; below 4 samples there is no interval. The interval reaches at least `least` standard
    errors of normal data to either side.
    """
    if not np.isfinite(error) or n < 4:
        return np.nan, np.nan
    if abs(value) >= 1 - 1e-12:  # nothing is left to vary
        return value, value
    reach = max(half_width(n - 2) * error * np.sqrt(n) / (1 - value**2), least) / np.sqrt(n - 3)
    low, high = np.tanh(np.arctanh(value) + reach * np.array([-1.0, 1.0])).tolist()
    return low, high


def standard_error(influence: np.ndarray) -> float:
    """The standard error of a statistic from each sample's influence on it."""
    n = len(influence)
    return float(influence.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def tie_share(values: np.ndarray) -> float:
    """Share of the pairs of samples whose values are equal."""
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

    Columns ``(S, N)`` and y ``(N,)`` must not contain NaN. The same seed gives the same resamples, on any number of
    threads.

    Returns:
        ``(resamples, S, coefficients)``; NaN where a column or y is constant in a resample.

    Examples:
        >>> x = np.arange(30.0)
        >>> resampled(np.stack([x, -x]), x, ("pearson", "kendall"), resamples=2).round(6).tolist()
        [[[1.0, 1.0], [-1.0, -1.0]], [[1.0, 1.0], [-1.0, -1.0]]]
    """
    functions, n = [_RESAMPLED[name](columns, y) for name in coefficients], len(y)

    @np.errstate(invalid="ignore", divide="ignore")
    def resample(number: int) -> np.ndarray:
        drawn = np.random.default_rng([seed, number]).integers(0, n, n)
        counts = np.bincount(drawn, minlength=n)  # whole numbers: their sums are exact, and cumulative sums fastest
        return np.stack([function(counts) for function in functions], axis=1)

    # NumPy releases the interpreter in the loops that matter, so threads share the work.
    with ThreadPoolExecutor(max(min(os.cpu_count() or 1, _RESAMPLED_BYTES // (80 * n)), 1)) as pool:
        return np.stack(list(pool.map(resample, range(resamples))))


def _cumulated(counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """0, and the cumulative sums of the counts in an order."""
    return np.concatenate([[0], np.cumsum(counts.take(order))])


def _pearson_of(columns: np.ndarray, y: np.ndarray) -> _OfCounts:
    x, y = columns - columns.mean(1, keepdims=True), y - y.mean()  # around means, to keep digits
    moments = np.ascontiguousarray(np.concatenate([[y, y * y], x, x * x, x * y]).T)

    def correlations(counts: np.ndarray) -> np.ndarray:
        sums = np.einsum("n,nk->k", counts, moments) / len(counts)
        x, xx, xy = sums[2:].reshape(3, -1)
        # The variance of a constant in a resample is rounding error; NaN instead.
        squares, means = np.append(xx, sums[1]), np.append(x, sums[0])
        spread = squares - means**2
        spread[spread < 1e-12 * squares] = np.nan
        return (xy - x * sums[0]) / np.sqrt(spread[:-1] * spread[-1])

    return correlations


def _spearman_of(columns: np.ndarray, y: np.ndarray) -> _OfCounts:
    orders = [(np.argsort(codes, kind="stable"), *_ranks(codes)) for codes in map(_codes, (y, *columns))]

    def correlations(counts: np.ndarray) -> np.ndarray:
        # Twice the mean rank of a sample's ties over n, less the mean of that over the resample, which is always 1.
        totals = ((_cumulated(counts, order), below, upto) for order, below, upto in orders)
        y, *ranks = ((total.take(below) + total.take(upto)) / len(counts) - 1 for total, below, upto in totals)
        weighted = counts * y
        spread = (weighted * y).sum()
        return np.array([(weighted * x).sum() / np.sqrt((counts * x * x).sum() * spread) for x in ranks])

    return correlations


def _kendall_of(columns: np.ndarray, y: np.ndarray) -> _OfCounts:
    coded = [_code_pair(column, y) for column in columns]
    pairs = [((x, y, _pair_codes(x, y)), list(below_pairs(x, y))) for x, y in coded]

    def correlations(counts: np.ndarray) -> np.ndarray:
        n, values = len(counts), []
        for codes, steps in pairs:
            concordant = 0
            for lower, upper, upto, start in steps:
                total = _cumulated(counts, lower)
                concordant += (counts.take(upper) * (total.take(upto) - total.take(start))).sum()
            x, y, both = ((np.bincount(code, counts) ** 2).sum() for code in codes)
            # Of n² ordered pairs those that tie in x, y or both drop out; of the rest, concordant minus discordant.
            values.append((4 * concordant - n * n + x + y - both) / np.sqrt((n * n - x) * (n * n - y)))
        return np.array(values)

    return correlations


_OfCounts: TypeAlias = Callable[[np.ndarray], np.ndarray]  # correlations (S,) from how often each sample was drawn
_RESAMPLED = {"pearson": _pearson_of, "spearman": _spearman_of, "kendall": _kendall_of}

# Closed forms: they assume normal data, which saturated scores and tied human frequencies are not. They serve to
# compare with published results; docs/results/alignment-error-rates.csv has the error rate of each.


def fisher_z(r1: float, r2: float, n1: int, n2: int) -> float:
    """z of two correlations over different samples; the AVH paper's test, with the same images as both samples.

    Examples:
        >>> round(fisher_z(0.349, 0.335, 29987, 29987), 2)  # the paper's Table 7, Spearman
        1.94
    """
    return _fisher_difference(min(n1, n2), r1=r1, r2=r2) / math.sqrt(1 / (n1 - 3) + 1 / (n2 - 3))


def steiger(r12: float, r13: float, r23: float, n: int) -> float:
    """z of r12 against r13, correlations of variables 2 and 3 with variable 1 over n samples (Steiger, 1980, Z̄₂*)."""
    difference = _fisher_difference(n, r12=r12, r13=r13)
    squared = ((r12 + r13) / 2) ** 2
    covariance = r23 * (1 - 2 * squared) - squared * (1 - 2 * squared - r23**2) / 2
    return _over(difference, (2 - 2 * covariance / (1 - squared) ** 2) / (n - 3))


def meng(r12: float, r13: float, r23: float, n: int) -> float:
    """z of r12 against r13, as `steiger` (Meng, Rosenthal and Rubin, 1992).

    Examples:
        >>> round(meng(0.63, -0.03, -0.19, 15), 2)  # the example of the paper
        1.68
    """
    difference = _fisher_difference(n, r12=r12, r13=r13)
    squared = (r12**2 + r13**2) / 2
    f = min((1 - r23) / (2 * (1 - squared)), 1.0)
    return _over(difference, 2 * (1 - r23) * (1 - f * squared) / (1 - squared) / (n - 3))


def p_value(z: float, sided: int = 2) -> float:
    """p of a normal z: two-sided, or one-sided for the first being the larger."""
    return float(stats.norm.sf(z) if sided == 1 else 2 * stats.norm.sf(abs(z)))


def _fisher_difference(n: int, **correlations: float) -> float:
    """The difference of two correlations on Fisher's scale."""
    if n < 4:
        raise InputError(f"n must be at least 4 for Fisher's transformation, got {n}.")
    if wrong := [name for name, r in correlations.items() if not -1 < r < 1]:
        raise InputError(
            f"{wrong[0]} must be a correlation between −1 and 1 (both excluded), got {correlations[wrong[0]]}."
        )
    first, second = map(math.atanh, correlations.values())
    return first - second


def _over(difference: float, variance: float) -> float:
    if abs(difference) < 1e-12:  # rounding, as where two variables are one
        return 0.0
    return difference / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, difference)
