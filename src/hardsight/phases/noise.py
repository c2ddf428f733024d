"""How sure a mean curve is: the noise of its samples and the noise of its epochs, and curves drawn with both.

A curve of means over N samples is uncertain in two ways. Other samples would have given another curve: the
covariance of the mean over samples, between all epochs and values at once, measures that. And training itself jumps
from epoch to epoch, by the same amount for all samples, which no number of samples averages away: second differences
of the curve measure that, locally, because it jumps more while the learning rate is high. What other seeds would have
given is in neither; for that, train several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hardsight.errors import InputError

DRAWS = 1000
_ROWS = 16_384  # samples at a time
_WINDOW = 7  # second differences that one local estimate of the epochs' noise looks at
_RHOS = np.linspace(0.0, 0.8, 81)  # correlations of neighbouring epochs that are looked for
_TO_SD = 1.4826  # from the median size of normal noise to its standard deviation


class MeanCurves(NamedTuple):
    """V mean curves over E epochs, and how uncertain they are together.

    Attributes:
        mean: ``(V, E)``.
        covariance: ``(V·E, V·E)`` of those means, samples and epochs together.
        n: Samples that were seen at least once.
    """

    mean: np.ndarray
    covariance: np.ndarray
    n: int

    def draws(self, around: np.ndarray, count: int = DRAWS, seed: int = 0) -> np.ndarray:
        """Curves ``(count, V, E)`` as they would have come out, had the truth been `around` (``(V, E)``)."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng(seed).standard_normal((count, len(values)))
        return around + (normal @ root.T).reshape(count, *self.mean.shape)

    def errors(self, weights: np.ndarray, curve: int = 0) -> np.ndarray:
        """Standard errors ``(…,)`` of weighted sums ``(…, E)`` over the epochs of one curve, never quite 0."""
        size = self.mean.shape[1]
        own = self.covariance[curve * size : (curve + 1) * size, curve * size : (curve + 1) * size]
        # Rounding is noise too: it makes a variance of 0 slightly negative, and equal means slightly unequal.
        rounding = 1e-12 * max(float(np.abs(self.mean[curve]).max()), 1e-300)
        return np.sqrt(np.maximum(np.einsum("...e,ef,...f->...", weights, own, weights), 0.0)) + rounding

    def contrast(self, weights: np.ndarray, curve: int = 0) -> tuple[float, float, float]:
        """A weighted sum over the epochs of one curve, with its 95 % interval (normal); the weights sum to 0."""
        own = self.mean[curve]
        value, half = float(weights @ (own - own[0])), 1.96 * float(self.errors(weights, curve))
        return value, value - half, value + half


def mean_curves(*matrices: np.ndarray) -> MeanCurves:
    """Means over samples of matrices ``(N, E)`` with NaN where a sample was not seen, with their covariance.

    The sampling part is that of the Gaussian multiplier bootstrap: samples keep all their epochs and values, so that
    what is hard throughout moves a whole curve and not single points of it.
    """
    epochs = matrices[0].shape[1]
    seen = np.array([np.isfinite(matrix).sum(0) for matrix in matrices], dtype=np.float64)
    if (seen < 2).any():
        raise InputError("every epoch must have at least two samples; leave out epochs and values without any.")
    mean = np.array([np.nansum(matrix, 0) for matrix in matrices]) / seen
    product = np.zeros((len(matrices) * epochs,) * 2)
    n, anywhere = len(matrices[0]), 0
    for start in range(0, n, _ROWS):
        block = np.stack([matrix[start : start + _ROWS] for matrix in matrices], 1)
        anywhere += int(np.isfinite(block).any((1, 2)).sum())
        influence = np.nan_to_num((block - mean) / seen).reshape(len(block), -1)
        product += influence.T @ influence
    covariance = product * (anywhere / (anywhere - 1))
    for v, curve in enumerate(mean):
        part = slice(v * epochs, (v + 1) * epochs)
        covariance[part, part] += epoch_noise(curve, covariance[part, part])
    return MeanCurves(mean, covariance, anywhere)


def epoch_noise(curve: np.ndarray, sampling: np.ndarray) -> np.ndarray:
    """Covariance ``(E, E)`` of what each epoch adds of its own, beyond the `sampling` covariance of the means.

    Second differences know nothing of level or slope. Of noise with variance σ² and correlation ρ between neighbours
    (AR(1)) they have the variance σ²·(6 − 8ρ + 2ρ²), and over two epochs σ²·(6 − 8ρ² + 2ρ⁴): their ratio tells ρ, the
    first tells σ², epoch by epoch. Medians forgive single steps, as those where the learning rate falls.
    """
    count = len(curve)
    if count < 5:
        return np.zeros((count, count))
    sizes, explained = zip(*(_second_differences(curve, sampling, lag) for lag in (1, 2)), strict=True)
    local = np.array([_near(sizes[0], epoch) for epoch in range(count)])
    wide = [(_TO_SD * np.median(own)) ** 2 - part.mean() for own, part in zip(sizes, explained, strict=True)]
    ratio = wide[1] / wide[0] if wide[0] > 0 else 1.0
    rho = float(np.interp(ratio, (1 + _RHOS) * (3 - _RHOS**2) / (3 - _RHOS), _RHOS))
    unexplained = (_TO_SD * local) ** 2 - np.array([_near(explained[0], epoch, np.mean) for epoch in range(count)])
    sd = np.sqrt(np.maximum(unexplained, 0.0) / (6 - 8 * rho + 2 * rho**2))
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    return np.outer(sd, sd) * rho**apart


def _second_differences(curve: np.ndarray, sampling: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Their sizes over `lag` epochs, and the variance that the sampling of samples alone gives them."""
    rows = np.eye(len(curve))
    second = rows[: -2 * lag] - 2 * rows[lag:-lag] + rows[2 * lag :]
    return np.abs(second @ curve), np.einsum("te,ef,tf->t", second, sampling, second)


def _near(values: np.ndarray, epoch: int, summary: Callable[[np.ndarray], Any] = np.median) -> float:
    """A summary of the values around an epoch; value k belongs to epoch k + 1."""
    low = min(max(epoch - 1 - _WINDOW // 2, 0), max(len(values) - _WINDOW, 0))
    return float(summary(values[low : low + _WINDOW]))
