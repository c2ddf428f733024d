"""The uncertainty of mean curves: the noise of samples and of epochs, and curves drawn with both.

Other samples would have given another curve: the covariance of the means over samples measures that. Training itself
jumps from epoch to epoch, by the same amount for all samples, which no number of samples averages away: second
differences of the curve measure that, locally. Neither includes other seeds; for those, train several networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.stats import half_width

DRAWS = 1000
_ROWS = 16_384  # samples at a time
_WINDOW = 7  # second differences in one local estimate of the noise of epochs
_RHOS = np.linspace(0.0, 0.8, 81)  # candidates for the correlation of neighboring epochs
_TO_SD = 1.4826  # from the median absolute value of normal noise to its standard deviation


class MeanCurves(NamedTuple):
    """V mean curves over E epochs with their joint uncertainty.

    Attributes:
        mean: ``(V, E)``.
        covariance: ``(V·E, V·E)`` of those means, from samples and epochs together.
        n: Samples that were seen at least once.
    """

    mean: np.ndarray
    covariance: np.ndarray
    n: int

    def draws(self, around: np.ndarray, count: int = DRAWS, seed: int = 0) -> np.ndarray:
        """Curves ``(count, V, E)`` with this noise around a true curve ``(V, E)``."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = np.random.default_rng(seed).standard_normal((count, len(values)))
        return around + (normal @ root.T).reshape(count, *self.mean.shape)

    def errors(self, weights: np.ndarray, curve: int = 0) -> np.ndarray:
        """Standard errors ``(…,)`` of weighted sums ``(…, E)`` over the epochs of one curve, never quite 0."""
        part = slice(curve * self.mean.shape[1], (curve + 1) * self.mean.shape[1])
        # Rounding is noise, too: it makes a variance of 0 slightly negative, and equal means slightly unequal.
        rounding = 1e-12 * max(float(np.abs(self.mean[curve]).max()), 1e-300)
        variance = np.einsum("...e,ef,...f->...", weights, self.covariance[part, part], weights)
        return np.sqrt(np.maximum(variance, 0.0)) + rounding

    def contrast(self, weights: np.ndarray, curve: int = 0) -> tuple[float, float, float]:
        """A weighted sum over the epochs of one curve, with its 95% interval (normal); the weights sum to 0."""
        mean = self.mean[curve]
        value, half = float(weights @ (mean - mean[0])), half_width() * float(self.errors(weights, curve))
        return value, value - half, value + half


def mean_curves(*matrices: np.ndarray) -> MeanCurves:
    """Means over samples of matrices ``(N, E)`` with NaN where a sample was not seen, with their covariance.

    The sampling part is that of the Gaussian multiplier bootstrap: a sample keeps all its epochs and values, so samples
    that are hard throughout shift the whole curve.
    """
    epochs = matrices[0].shape[1]
    counts = np.array([np.isfinite(matrix).sum(0) for matrix in matrices], dtype=np.float64)
    if (counts < 2).any():
        raise InputError("every epoch must have at least two samples; leave out epochs and values without any.")
    mean = np.array([np.nansum(matrix, 0) for matrix in matrices]) / counts
    product, n = np.zeros((len(matrices) * epochs,) * 2), 0
    for start in range(0, len(matrices[0]), _ROWS):
        block = np.stack([matrix[start : start + _ROWS] for matrix in matrices], 1)
        n += int(np.isfinite(block).any((1, 2)).sum())
        influence = np.nan_to_num((block - mean) / counts).reshape(len(block), -1)
        product += influence.T @ influence
    covariance = product * (n / (n - 1))
    for v, curve in enumerate(mean):
        part = slice(v * epochs, (v + 1) * epochs)
        covariance[part, part] += epoch_noise(curve, covariance[part, part])
    return MeanCurves(mean, covariance, n)


def epoch_noise(curve: np.ndarray, sampling: np.ndarray) -> np.ndarray:
    """Covariance ``(E, E)`` of the noise of epochs, beyond the `sampling` covariance of the means.

    Second differences depend neither on level nor on slope. For noise with variance σ² and correlation ρ between
    neighbors (AR(1)) their variance is σ²·(6 − 8ρ + 2ρ²), and over two epochs σ²·(6 − 8ρ² + 2ρ⁴): the ratio gives ρ,
    the first gives σ², epoch by epoch. Medians ignore single steps, such as drops of the learning rate.
    """
    count = len(curve)
    if count < 5:
        return np.zeros((count, count))
    sizes, explained = zip(*(_second_differences(curve, sampling, lag) for lag in (1, 2)), strict=True)
    wide = [(_TO_SD * np.median(size)) ** 2 - part.mean() for size, part in zip(sizes, explained, strict=True)]
    ratio = wide[1] / wide[0] if wide[0] > 0 else 1.0
    rho = float(np.interp(ratio, (1 + _RHOS) * (3 - _RHOS**2) / (3 - _RHOS), _RHOS))
    total = np.array([(_TO_SD * _near(sizes[0], epoch)) ** 2 for epoch in range(count)])
    unexplained = total - np.array([_near(explained[0], epoch, np.mean) for epoch in range(count)])
    sd = np.sqrt(np.maximum(unexplained, 0.0) / (6 - 8 * rho + 2 * rho**2))
    distance = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    return np.outer(sd, sd) * rho**distance


def _second_differences(curve: np.ndarray, sampling: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Their absolute values over `lag` epochs, and their variance from the sampling of samples alone."""
    rows = np.eye(len(curve))
    second = rows[: -2 * lag] - 2 * rows[lag:-lag] + rows[2 * lag :]
    return np.abs(second @ curve), np.einsum("te,ef,tf->t", second, sampling, second)


def _near(values: np.ndarray, epoch: int, summary: Callable[[np.ndarray], Any] = np.median) -> float:
    """A summary of the values around an epoch; value k belongs to epoch k + 1."""
    low = min(max(epoch - 1 - _WINDOW // 2, 0), max(len(values) - _WINDOW, 0))
    return float(summary(values[low : low + _WINDOW]))
