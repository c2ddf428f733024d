"""The mean curves of groups of runs, on common grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

BINS = 15  # of the reliability diagram, as `hardsight.questions.calibration` has them
POOLED = ("bins", "ranks")  # shapes of curves whose points are means of samples


class Curve(NamedTuple):
    """A curve of one group: the mean of its runs, or one run."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray  # the mean minus 1 sd over the runs; for a single run, the lower end of its interval, or NaN
    high: np.ndarray
    runs: int
    n: np.ndarray  # samples per point of one run; 0 where unknown


def mean_curve(runs: Sequence[Sequence[dict[str, Any]]], shape: str) -> Curve:
    """The mean over runs, with their standard deviation.

    Args:
        runs: The points of each run.
        shape: ``line``: interpolated where the x of runs differ. ``bars``: centers of bars of equal width and shares,
            which become densities, 0 outside. ``bins`` of confidence, and ``ranks``: points are means of n samples, and
            those of the same bin or rank are pooled.
    """
    curves = [_arrays(points, shape) for points in runs]
    first = curves[0]
    if len(curves) == 1:
        return first
    if shape in POOLED:
        return _pooled(curves, shape)
    x, outside = first.x, 0.0 if shape == "bars" else math.nan
    if any(len(curve.x) != len(x) or not np.allclose(curve.x, x) for curve in curves[1:]):
        x = np.unique(np.concatenate([curve.x for curve in curves]))
        values = np.stack([np.interp(x, curve.x, curve.y, left=outside, right=outside) for curve in curves])
        valid = np.isfinite(values).all(0)  # a mean of fewer runs would jump where a run ends
        x, values, n = x[valid], values[:, valid], np.zeros(valid.sum(), int)
    else:
        values, n = np.stack([curve.y for curve in curves]), first.n
    mean, sd = values.mean(0), values.std(0, ddof=1)
    return Curve(x, mean, mean - sd, mean + sd, len(curves), n)


def _pooled(curves: Sequence[Curve], shape: str) -> Curve:
    """Means over all samples of a bin, with the standard deviation over the runs that have some."""
    x, y, n = (np.concatenate([getattr(curve, name) for curve in curves]) for name in ("x", "y", "n"))
    ranks = np.concatenate([np.arange(len(curve.x)) for curve in curves])
    bins = np.ceil(x * BINS - 1e-9).clip(1) if shape == "bins" else ranks  # closed on the right
    points = []
    for at in (bins == k for k in np.unique(bins)):
        mean, sd = np.average(y[at], weights=n[at]), y[at].std(ddof=1) if at.sum() > 1 else math.nan
        points.append((np.average(x[at], weights=n[at]), mean, mean - sd, mean + sd, n[at].sum()))
    center, middle, low, high, count = (np.array(column) for column in zip(*points, strict=True))
    return Curve(center, middle, low, high, len(curves), count)


def _arrays(points: Sequence[dict[str, Any]], shape: str) -> Curve:
    """One run, its points in the order of x."""
    columns = np.array([[point[name] for name in ("x", "y", "low", "high", "n")] for point in points], float).T
    x, y, low, high, n = columns[:, np.argsort(columns[0], kind="stable")]
    if shape == "bars" and len(x) > 1:
        y, n = y / (x[1] - x[0] or 1.0), np.zeros_like(n)
    return Curve(x, y, low, high, 1, n.astype(int))
