"""Intervals, tests of differences with their intervals, and areas under ROC curves.

One rule holds for every test here. A difference within rounding error counts as 0: p = 1, and the interval contains 0.
A difference without any spread has no test: p and the interval are NaN, however large the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import special, stats

LEVEL = 0.95
FEW = 5  # fewer samples than this get no interval and no flag
# Networks compute in float32: means that differ by less than this share of the values differ by rounding.
ROUNDING = 1e-6
_FLOAT64 = 1e-12  # rounding of differences that are given directly
_TAIL = (1 - LEVEL) / 2
_BLOCK = 1 << 20  # values at a time, so that temporary arrays of ten million stay small


def half_width(df: Any = np.inf, level: float = LEVEL) -> Any:
    """How many standard errors an interval reaches to either side: Student's t, or normal for infinite degrees of
    freedom.
    """
    return stats.t.ppf((1 + level) / 2, df)


def wilson(successes: np.ndarray, n: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of each share, all at once; NaN where n is 0."""
    n = np.where(np.asarray(n) > 0, n, np.nan).astype(np.float64)
    z = half_width(level=level)
    share = successes / n
    center = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.maximum(center - half, 0.0), np.minimum(center + half, 1.0)


def share_interval(successes: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of one share."""
    low, high = wilson(np.array(successes), np.array(n), level)
    return float(low), float(high)


def weighted_share(successes: np.ndarray, n: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """A share in a population of groups of known size, from a random sample of each, with its interval.

    The distances of Wilson's limits from the share of each group are added in quadrature (Zou and Donner 2008). For
    each group: `successes`, its `n` samples (one or more), and its size in the population, `weights`.
    """
    shares, limits = successes / n, wilson(successes, n)
    value = float(np.average(shares, weights=weights))
    below, above = (float(np.linalg.norm(weights * (end - shares)) / weights.sum()) for end in limits)
    return value, max(value - below, 0.0), min(value + above, 1.0)


def detectable_difference(n: int, level: float = 1 - LEVEL, power: float = 0.8) -> float:
    """The smallest difference of two shares that `mcnemar` detects with a given power, with n disagreements.

    inf if not even the largest is detected.
    """
    wins = np.linspace(0.5, 1, 2001)
    detected = stats.binom.sf(stats.binom.isf(level / 2, n, 0.5), n, wins) >= power
    return float(2 * wins[detected.argmax()] - 1) if detected.any() else math.inf


class Moments:
    """Number, mean and sample variance of values by group, NaN if undefined. Values may come in parts.

    Args:
        shape: Shape of the groups, whose numbers index the flattened array.
    """

    def __init__(self, *shape: int) -> None:
        # Sums are taken around a value of each group: plain squares would lose the digits of values that lie close
        # together, and equal values have a variance of exactly 0.
        self.n, self._origin, self._sum, self._squares = np.zeros((4, *shape))

    def add(self, values: np.ndarray, group: np.ndarray) -> Self:
        """Add the values that are not NaN, by group number; negative groups are left out."""
        valid = ~np.isnan(values) & (group >= 0)
        values, group = (values, group) if valid.all() else (values[valid], group[valid])
        count = np.bincount(group, minlength=self.n.size).reshape(self.n.shape)
        if (fresh := (self.n == 0) & (count > 0)).any():
            origin = np.zeros(self.n.size)
            origin[group] = values
            self._origin[fresh] = origin.reshape(self.n.shape)[fresh]
        values = values - self._origin.ravel()[group]
        self.n += count
        self._sum += np.bincount(group, values, minlength=self.n.size).reshape(self.n.shape)
        self._squares += np.bincount(group, values**2, minlength=self.n.size).reshape(self.n.shape)
        return self

    @property
    def mean(self) -> np.ndarray:
        return self._origin + self._sum / np.where(self.n > 0, self.n, np.nan)

    @property
    def variance(self) -> np.ndarray:
        n = np.where(self.n > 1, self.n, np.nan)
        return np.maximum(self._squares - self._sum**2 / n, 0) / (n - 1)

    def interval(self, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
        """Student's interval of each mean; NaN below `FEW` samples."""
        enough = self.n >= FEW
        n = np.where(enough, self.n, 2)
        half = np.where(enough, half_width(n - 1, level) * np.sqrt(self.variance / n), np.nan)
        return self.mean - half, self.mean + half


def moments(values: np.ndarray, group: np.ndarray, groups: int) -> Moments:
    """Moments of one array of values."""
    total = Moments(groups)
    for start in range(0, len(values), _BLOCK):
        total.add(values[start : start + _BLOCK], group[start : start + _BLOCK])
    return total


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, the smallest first; ties share their mean rank, and NaN stays NaN.

    For many values SciPy's `rankdata` takes twice the memory.
    """
    order = np.argsort(values)  # NaN comes last
    ranks, n, start = np.full(len(values), np.nan), len(values) - int(np.isnan(values).sum()), 0
    while start < n:
        end = min(start + _BLOCK, n)
        while end < n and values[order[end]] == values[order[end - 1]]:  # not in the middle of ties
            ties = values[order[end : end + _BLOCK]] == values[order[end - 1]]
            end += len(ties) if ties.all() else int(ties.argmin())
        ordered = values[order[start:end]]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        last = np.r_[first[1:], end - start]
        ranks[order[start:end]] = np.repeat(start + (first + 1 + last) / 2, last - first)
        start = end
    return ranks


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Student's interval of the mean of one array without NaN; NaN below `FEW` samples."""
    low, high = moments(values, np.zeros(len(values), np.int8), 1).interval()
    return float(low[0]), float(high[0])


class Difference(NamedTuple):
    """A difference, its 95% interval, and the two-sided p-value for no difference."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray


def student(value: Any, a: Any, df_a: Any, b: Any = 0.0, df_b: Any = 1.0, rounding: Any = 0.0) -> Difference:
    """Welch's t of a difference whose variance is estimated as a + b, with `df_a` and `df_b` degrees of freedom.

    The variance is 0 if nothing varies. A difference no larger than `rounding` counts as 0.
    """
    value, a, b = (np.asarray(x, dtype=np.float64) for x in (value, a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(a + b)
        df = (a + b) ** 2 / (a**2 / df_a + b**2 / df_b)
        t = value / error
    df = np.where(np.isfinite(t) & (df > 0), df, np.nan)  # no test, no interval
    half, p = half_width(df) * error, 2 * stats.t.sf(np.abs(t), df)
    same = np.abs(value) <= rounding
    low = np.where(same, np.fmin(np.fmin(value - half, value), 0.0), value - half)
    high = np.where(same, np.fmax(np.fmax(value + half, value), 0.0), value + half)
    return Difference(value, low, high, np.where(same, 1.0, p))


def normal_difference(value: Any, error: Any, rounding: Any = ROUNDING) -> Difference:
    """A difference with its standard error, normal in large samples; by default one of correlations or shares.

    Examples:
        >>> round(float(normal_difference(0.1, 0.05).p), 4)
        0.0455
    """
    return student(value, np.square(error), np.inf, rounding=rounding)


def paired_difference(a: np.ndarray, b: np.ndarray | None = None) -> Difference:
    """Student's t of a mean difference, pair by pair: over seeds that two groups share, or over samples.

    Values are ``(N,)`` without NaN; without `b`, `a` are differences already.

    Examples:
        >>> round(float(paired_difference(np.array([1.0, 2.0, 3.0])).p), 4)
        0.0742
    """
    differences = a if b is None else a - b
    n, mean = len(differences), differences.mean() if len(differences) else math.nan
    rounding = _FLOAT64 * np.abs(a).max(initial=0.0) if b is None else ROUNDING * _size(a, b)
    return student(mean, _variance(differences, rounding) / max(n, 1), n - 1, rounding=rounding)


def welch_difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Welch's t of the difference of two means, each with its own variance."""
    rounding = ROUNDING * _size(a, b)
    parts = [(_variance(x, rounding) / len(x), len(x) - 1) for x in (a, b)]
    return student(a.mean() - b.mean(), *parts[0], *parts[1], rounding=rounding)


def pooled_difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Student's t of the difference of two means with one pooled variance, as in the AMC paper's Table 1.

    Examples:
        >>> round(float(pooled_difference(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])).p), 4)
        0.1963
    """
    rounding, df = ROUNDING * _size(a, b), len(a) + len(b) - 2
    pooled = sum((len(x) - 1) * _variance(x, rounding) for x in (a, b) if len(x) > 1) / df if df > 0 else math.nan
    return student(a.mean() - b.mean(), pooled * (1 / len(a) + 1 / len(b)), df, rounding=rounding)


def _size(a: np.ndarray, b: np.ndarray) -> float:
    """The magnitude of the values: the root of their mean square."""
    return float(np.sqrt(np.mean(np.square(np.concatenate([a, b]))))) if len(a) + len(b) else 0.0


def _variance(values: np.ndarray, rounding: float) -> float:
    """Variance of a sample; 0 if the spread is only rounding of equal numbers, NaN for one number."""
    if len(values) < 2:
        return math.nan
    deviation = float(values.std(ddof=1))
    return deviation**2 if deviation > rounding else 0.0


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjusted p-values; NaN does not count as a test."""
    adjusted = np.full(len(p), np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted


def mcnemar(more: int, less: int, n: int) -> Difference:
    """McNemar's exact test of two shares on the same samples, and the interval that rejects when it does.

    Of the samples on which the two disagree, the share that favors the first is ½ if there is no difference. The
    interval inverts the exact binomial test of that share (Clopper and Pearson), and lets the number of disagreements
    vary as well, by its Jeffreys posterior. That widens the interval on either side of 0 and moves no end across it.

    Of all `n` samples, `more` are 1 in the first and 0 in the second, and `less` the other way round.

    Examples:
        >>> test = mcnemar(5, 0, 20)
        >>> float(test.value), float(test.p)
        (0.25, 0.0625)
    """
    apart = more + less
    p = float(stats.binomtest(more, apart).pvalue) if apart else 1.0
    share = special.betaincinv(apart + 0.5, n - apart + 0.5, (np.arange(200) + 0.5) / 200)

    def below(x: float, wins: int, losses: int) -> float:
        """Chance that the difference lies below x, with a Beta(wins, losses) share of the disagreements."""
        if not wins or not losses:  # all of them favor one side
            return float((x >= (share if wins else -share)).mean())
        return float(special.betainc(wins, losses, np.clip((1 + x / share) / 2, 0, 1)).mean())

    low = _quantile(lambda x: below(x, more, less + 1), -1.0, _TAIL)
    high = _quantile(lambda x: below(x, more + 1, less), -1.0, 1 - _TAIL)
    return Difference(*map(np.array, ((more - less) / n, low, high, p)))


def _quantile(cdf: Callable[[float], float], lowest: float, level: float) -> float:
    """The point at which a distribution function over [lowest, 1] reaches a level, by bisection."""
    low, high = lowest, 1.0
    for _ in range(42):  # to 1e-12
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) < level else (low, middle)
    return (low + high) / 2


class Auroc(NamedTuple):
    """How often one score lies above another, its 95% interval, and how often the two tie."""

    value: float
    low: float
    high: float
    tied: float


def auroc(above: np.ndarray, below: np.ndarray) -> Auroc:
    """The area under the ROC curve of scores that should lie above others, with DeLong's interval, in O(n log n).

    It is the chance that a score of the first kind lies above one of the second; pairs that tie count half. The
    interval is normal on the logit scale, so that it stays in (0, 1). Where the variance vanishes (the two kinds do not
    overlap, or all tie) it is Wilson's, as if there were one pair for each score of the rarer kind; where one kind has
    a single score it is NaN. There are one or more scores of each kind, without NaN.

    Examples:
        >>> auroc(np.array([0.9, 0.8, 0.3]), np.array([0.1, 0.3])).value  # 5 of 6 pairs, and half of a tie
        0.9166666666666666
    """
    a, b = np.sort(above), np.sort(below)
    lower, upto = (np.searchsorted(b, a, side) for side in ("left", "right"))
    value = float((lower + upto).sum() / (2 * len(a) * len(b)))  # whole numbers: the order of samples does not matter
    tied = float((upto - lower).sum() / (len(a) * len(b)))
    if min(len(a), len(b)) < 2:
        return Auroc(value, np.nan, np.nan, tied)
    error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in _placements(a, b)))
    if not error:
        n = min(len(a), len(b))
        return Auroc(value, *share_interval(value * n, n), tied)
    reach = half_width() * error / (value * (1 - value))
    low, high = special.expit(special.logit(value) + reach * np.array([-1.0, 1.0])).tolist()
    return Auroc(value, low, high, tied)


def auroc_difference(above: tuple[np.ndarray, np.ndarray], below: tuple[np.ndarray, np.ndarray]) -> Difference:
    """The difference of two areas under ROC curves over the same samples: DeLong's paired test (1988).

    Args:
        above: Two scores of the samples of the first kind, ``(N,)`` each.
        below: The same two scores of the samples of the second kind, ``(M,)`` each.

    Examples:
        >>> random = np.random.default_rng(0)
        >>> x, y = random.normal(1, 1, 90), random.normal(0, 1, 70)
        >>> test = auroc_difference((x, x + random.normal(0, 2, 90)), (y, y + random.normal(0, 2, 70)))
        >>> bool(test.low > 0), bool(test.p < 0.05)
        (True, True)
    """
    parts = [_placements(x, y) for x, y in zip(above, below, strict=True)]
    apart = [first - second for first, second in zip(*parts, strict=True)]
    value = apart[0].mean()
    if min(map(len, apart)) < 2:
        return Difference(np.array(value), *map(np.array, (math.nan,) * 3))
    return normal_difference(value, np.sqrt(sum(part.var(ddof=1) / len(part) for part in apart)))


def _placements(above: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often each score of the first kind lies above those of the second, and of the second below the first."""
    a, b = np.sort(above), np.sort(below)
    over = (np.searchsorted(b, above, "left") + np.searchsorted(b, above, "right")) / (2 * len(b))
    under = 1 - (np.searchsorted(a, below, "left") + np.searchsorted(a, below, "right")) / (2 * len(a))
    return over, under


def fpr_at_95_tpr(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float, float]:
    """The false-positive rate at 95% TPR with its 95% interval.

    The threshold is the highest that accepts at least 95% of the in-distribution samples. The interval lets it vary,
    too: of n such samples, as many lie below the true threshold as a binomial draw with a chance of 5% gives. For each
    such number the rate has its Jeffreys posterior, at the next sample below for the upper end and at the next one
    above for the lower end. Few samples say little about their lowest 5%: below about 60 the upper end is near 1.
    Scores contain no NaN, and are higher for samples more like the training data.
    """
    a, b = np.sort(inside), np.sort(outside)
    n, m = len(a), len(b)
    needed = -(-95 * n // 100)  # whole numbers: .95 · n is rounded

    def false_positives(thresholds: np.ndarray) -> np.ndarray:
        return m - np.searchsorted(b, thresholds, "left")

    value = float(false_positives(a[n - needed]) / m)
    fewest, most_below = (int(stats.binom.ppf(q, n, 0.05)) for q in (1e-5, 1 - 1e-5))
    numbers = np.arange(fewest, most_below + 1)
    chance = stats.binom.pmf(numbers, n, 0.05)
    chance /= chance.sum()
    padded = np.concatenate([[-np.inf], a, [np.inf]])
    least, most = false_positives(padded[numbers + 1]), false_positives(padded[numbers])
    low = _quantile(lambda x: chance @ special.betainc(least + 0.5, m - least + 0.5, x), 0.0, _TAIL)
    high = _quantile(lambda x: chance @ special.betainc(most + 0.5, m - most + 0.5, x), 0.0, 1 - _TAIL)
    return value, min(low, value), max(high, value)
