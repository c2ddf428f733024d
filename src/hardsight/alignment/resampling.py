"""The paired bootstrap of correlations, thousands of resamples of tens of thousands of samples in seconds.

A resample is how often each sample was drawn. What is sorted never changes, only these counts do: ranks are cumulative
sums of counts along an order that is found once, Kendall's concordant pairs are sums along the index arrays of
`hardsight.correlation.below_pairs`, found once as well, and Pearson's moments are one product. So a resample costs
O(n) for Spearman and Pearson and O(n · bits of the number of distinct values) for Kendall, exactly what the
coefficient of the drawn samples would be.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from hardsight.correlation import COEFFICIENTS, below_pairs


def resampled(
    columns: np.ndarray,
    y: np.ndarray,
    coefficients: Sequence[str] = tuple(COEFFICIENTS),
    resamples: int = 2000,
    seed: int = 0,
) -> np.ndarray:
    """Correlations of several columns with y over the same resamples of the samples.

    Args:
        columns: ``(S, N)`` without NaN.
        y: ``(N,)`` without NaN.
        coefficients: Names of `hardsight.correlation.COEFFICIENTS`, K of them.
        resamples: How many, R.
        seed: The same seed gives the same resamples, on any number of threads.

    Returns:
        ``(R, S, K)``; NaN where a column or y is constant in a resample.

    Examples:
        >>> x = np.arange(30.0)
        >>> resampled(np.stack([x, -x]), x, ("pearson", "kendall"), resamples=2).round(6).tolist()
        [[[1.0, 1.0], [-1.0, -1.0]], [[1.0, 1.0], [-1.0, -1.0]]]
    """
    columns, y = np.atleast_2d(np.asarray(columns, dtype=np.float64)), np.asarray(y, dtype=np.float64)
    n = len(y)
    ranked = [_ranked(values) for values in (y, *columns)] if {"spearman", "kendall"} & set(coefficients) else []
    pairs = [_pairs(own, ranked[0]) for own in ranked[1:]] if "kendall" in coefficients else []
    moments = _moments(columns, y) if "pearson" in coefficients else None

    @np.errstate(invalid="ignore", divide="ignore")
    def one(number: int) -> np.ndarray:
        drawn = np.random.default_rng([seed, number]).integers(0, n, n)
        counts = np.bincount(drawn, minlength=n)  # whole numbers: their sums are exact, and cumulate fastest
        found: dict[str, np.ndarray] = {}
        if moments is not None:
            found["pearson"] = _pearson(counts, moments, len(columns))
        if ranked:
            below = [_cumulated(counts, order.order) for order in ranked]
            if "spearman" in coefficients:
                found["spearman"] = _spearman(counts, ranked, below)
            if pairs:
                found["kendall"] = _kendall(counts, pairs, ranked, below)
        return np.stack([found[name] for name in coefficients], axis=1)

    # NumPy lets go of the interpreter in the loops that matter, so threads share the work.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.stack(list(pool.map(one, range(resamples))))


class _Ranked(NamedTuple):
    """An order of the samples; of each sample and of each distinct value, where its ties begin and end in it."""

    order: np.ndarray
    first: np.ndarray
    last: np.ndarray
    ends: np.ndarray
    code: np.ndarray


def _ranked(values: np.ndarray) -> _Ranked:
    _, code, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(count)])
    return _Ranked(np.argsort(code, kind="stable"), ends[code], ends[code + 1], ends, code)


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


def _pearson(counts: np.ndarray, moments: np.ndarray, size: int) -> np.ndarray:
    sums = np.einsum("n,nk->k", counts, moments) / len(counts)
    x, xx, xy = sums[2:].reshape(3, size)
    # What is constant in a resample has a variance of rounding; NaN instead.
    squares, means = np.append(xx, sums[1]), np.append(x, sums[0])
    spread = squares - means**2
    spread[spread < 1e-12 * squares] = np.nan
    return (xy - x * sums[0]) / np.sqrt(spread[:-1] * spread[-1])


def _spearman(counts: np.ndarray, ranked: list[_Ranked], below: list[np.ndarray]) -> np.ndarray:
    # Twice the mean rank of a sample's ties over n, less the mean of that over the resample, which is always 1.
    n = len(counts)
    y, *columns = (
        (total.take(own.first) + total.take(own.last)) / n - 1 for own, total in zip(ranked, below, strict=True)
    )
    weighted = counts * y
    spread = (weighted * y).sum()
    return np.array([(weighted * x).sum() / np.sqrt((counts * x * x).sum() * spread) for x in columns])


class _Pairs(NamedTuple):
    """Where the pairs of samples that lie below one another in x and y are found, and where ties in both are."""

    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
    order: np.ndarray
    starts: np.ndarray


def _pairs(x: _Ranked, y: _Ranked) -> _Pairs:
    if len(x.ends) < len(y.ends):
        x, y = y, x
    both = x.code * len(y.ends) + y.code
    _, first = np.unique(both[order := np.argsort(both, kind="stable")], return_index=True)
    return _Pairs(list(below_pairs(x.code, y.code)), order, first)


def _kendall(counts: np.ndarray, pairs: list[_Pairs], ranked: list[_Ranked], below: list[np.ndarray]) -> np.ndarray:
    n = len(counts)
    y, *columns = ((np.diff(total[own.ends]) ** 2).sum() for own, total in zip(ranked, below, strict=True))
    found = []
    for x, (steps, order, starts) in zip(columns, pairs, strict=True):
        concordant = 0
        for lower, upper, upto, start in steps:
            total = _cumulated(counts, lower)
            concordant += (counts.take(upper) * (total.take(upto) - total.take(start))).sum()
        both = (np.add.reduceat(counts.take(order), starts) ** 2).sum()
        # Of n² ordered pairs those that tie in x, in y or in both drop out; of the rest, concordant minus discordant.
        found.append((4 * concordant - n * n + x + y - both) / np.sqrt((n * n - x) * (n * n - y)))
    return np.array(found)
