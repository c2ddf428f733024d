"""Dip and bounce: does a mean curve rise again after its lowest stretch, by more than its noise?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.phases.noise import DRAWS, mean_curves
from hardsight.phases.plateaus import epoch_numbers
from hardsight.stats import LEVEL

WINDOW = 0.1  # share of the epochs in a stretch, which has at least 3


class Bounce(NamedTuple):
    """The lowest stretch of a mean curve before its last one, and how far the last lies above it.

    Attributes:
        epoch: Middle of the lowest stretch, with its 95% interval ``epoch_low`` to ``epoch_high``.
        dip: Mean over that stretch.
        first: Mean at the first epoch.
        end: Mean over the last stretch, of the same length.
        rise: ``end − dip`` with its 95% interval ``low`` to ``high``; negative where the curve falls to its end.
        p: Two-sided p-value of no rise above any stretch, corrected for the choice of the lowest.
        n: Samples.
        window: Epochs in a stretch.
    """

    epoch: int
    epoch_low: int
    epoch_high: int
    dip: float
    first: float
    end: float
    rise: float
    low: float
    high: float
    p: float
    n: int
    window: int


def dip_and_bounce(
    matrix: np.ndarray, epochs: np.ndarray | None = None, *, draws: int = DRAWS, seed: int = 0
) -> Bounce:
    """The dip of a mean curve and the rise after it (for what should grow, give the negative).

    The last tenth of the curve (at least 3 epochs) is compared with every earlier stretch of the same length. The
    lowest of many noisy stretches is biased downwards, so the interval comes from a simultaneous 95% band of all
    differences, drawn with the noise of samples and epochs (`mean_curves`). In the simulations of `plateau` it covered
    the truth in 91 to 100% of the runs, and in 74% in the worst setting with a correlation of 0.7: a curve that wanders
    rather than jumps may seem to bounce.

    Args:
        matrix: ``(N, E)``, NaN where a sample was not seen, as from ``Dynamics.matrix("avh")``.
        epochs: Their numbers, ``(E,)``; from 1 without.
        draws: Number of curves drawn.
        seed: Seed of the draws.

    Examples:
        >>> curve = np.r_[9.0, 5, 3, 2, 2, 2, 3, 4, 4, 4, 4, 4]
        >>> bounce = dip_and_bounce(curve + np.random.default_rng(0).normal(size=(200, 1)), draws=200)
        >>> bounce.epoch, round(bounce.rise, 3)
        (5, 2.0)
    """
    epochs = epoch_numbers(matrix, epochs)
    count, window = len(epochs), max(3, round(WINDOW * len(epochs)))
    if count < 2 * window:
        raise InputError(f"dip_and_bounce needs at least {2 * window} epochs, got {count}.")
    curves = mean_curves(matrix)
    offset = np.arange(count) - np.arange(count - window + 1)[:, None]
    average = ((offset >= 0) & (offset < window)) / window
    levels = average @ curves.mean[0]
    contrast = average[-1:] - average[:-window]  # stretches that share no epoch with the last
    rises, errors = contrast @ curves.mean[0], curves.errors(contrast)
    noise = curves.draws(np.zeros_like(curves.mean), draws, seed)[:, 0] @ contrast.T
    largest = np.abs(noise / errors).max(1)
    reach = float(np.quantile(largest, LEVEL, method="higher")) * errors
    low, lowest = float((rises - reach).max()), int(rises.argmax())
    possible = np.flatnonzero(rises + reach >= low)
    middle = epochs[window // 2 :]
    return Bounce(
        *(int(middle[at]) for at in (lowest, possible[0], possible[-1])),
        dip=float(levels[lowest]),
        first=float(curves.mean[0, 0]),
        end=float(levels[-1]),
        rise=float(rises[lowest]),
        low=low,
        high=float((rises + reach).max()),
        p=(1 + int((largest >= (np.maximum(rises, 0.0) / errors).max()).sum())) / (1 + draws),
        n=curves.n,
        window=window,
    )
