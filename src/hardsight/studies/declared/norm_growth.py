"""AVH is constant while confidence follows the norm (AVH Fig. 20)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hardsight.figures.style import COLORS, GRAY, left_title, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NormGrowth(NamedTuple):
    """Confidence and AVH of a sample whose feature grows while its angles stay.

    Attributes:
        norm: ``(K,)``.
        confidence: ``(2, K)``: nearer to its class, and nearer to the other.
        avh: ``(2,)`` in the same order.
    """

    norm: np.ndarray
    confidence: np.ndarray
    avh: np.ndarray


def norm_growth(largest: float = 100.0) -> NormGrowth:
    """Two classes with weights of length 1, angles π/4 ∓ 0.05 and π/4 ± 0.05 (Fig. 20), in closed form.

    Examples:
        >>> growth = norm_growth()
        >>> growth.avh.round(3).tolist(), growth.confidence[:, -1].round(3).tolist()
        ([0.468, 0.532], [0.999, 0.001])
    """
    norm = np.linspace(0, largest, 201)
    target = math.pi / 4 + np.array([-0.05, 0.05])
    other = target[::-1]
    confidence = 1 / (1 + np.exp(-np.outer(np.cos(target) - np.cos(other), norm)))
    return NormGrowth(norm, confidence, target / (target + other))


def plot_norm_growth() -> Figure:
    """AVH is constant while confidence follows the norm (Fig. 20; `hardsight.studies.norm_growth`)."""
    study = norm_growth()
    figure, axes = new_figure(1, 2, sharey=True)
    titles = ("nearer to its class (θ₁ < θ₂)", "nearer to the other class (θ₁ > θ₂)")
    for axis, confidence, avh, title in zip(axes[0], study.confidence, study.avh, titles, strict=True):
        axis.plot(study.norm, confidence, color=COLORS[1], linestyle="--", label="confidence")
        axis.plot(study.norm, np.full_like(study.norm, avh), color=COLORS[0], label="AVH")
        axis.axhline(0.5, color=GRAY, linewidth=0.8, linestyle=":")
        axis.set_xlabel("norm of the feature")
        left_title(axis, title)
    axes[0, 0].set(ylim=(-0.02, 1.02), ylabel="confidence, AVH")
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure
