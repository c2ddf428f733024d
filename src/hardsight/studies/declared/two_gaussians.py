"""Two Gaussians on the sphere: do AVH and norm follow the true probability of the other class? (AVH Fig. 3, 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from hardsight.correlation import spearman
from hardsight.figures.style import COLORS, new_figure
from hardsight.printing import number_text, percent
from hardsight.scores import compute_scores
from hardsight.studies.declared.small_networks import fit
from hardsight.studies.declared.training import embed
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TwoGaussians(NamedTuple):
    """Points of two classes on the unit sphere, and their scores under a small network.

    Attributes:
        points: ``(2n, 3)``, unit length.
        labels: ``(2n,)``.
        avh, norm, confidence: Of each point, ``(2n,)``.
        doubt: True posterior probability of the other class at each point, ``(2n,)``.
        accuracy: Accuracy of the network.
    """

    points: np.ndarray
    labels: np.ndarray
    avh: np.ndarray
    norm: np.ndarray
    confidence: np.ndarray
    doubt: np.ndarray
    accuracy: float


# Our choice: the paper gives neither. Both means lie off the origin; the Bayes error is about 1/7.
MEANS = ((1.0, 0.3, 0.5), (0.3, 1.0, 0.5))
SPREAD = 0.45


def two_gaussians(seed: int = 0, *, n: int = 1000, steps: int = 1000) -> TwoGaussians:
    """Two Gaussians in 3-D projected onto the sphere, through an MLP 3 → 2 → 2 (Fig. 3 and 7).

    Means (1, 0.3, 0.5) and (0.3, 1, 0.5), covariance 0.45²·I, `n` points each; the hidden layer is linear with a
    leaky ReLU (slope 0.1: a plain one maps some points to zero); full-batch Adam.
    """
    draw = np.random.default_rng(seed)
    raw = np.concatenate([np.array(mean) + SPREAD * draw.standard_normal((n, 3)) for mean in MEANS])
    points = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    x, y = torch.from_numpy(points).float(), torch.arange(2).repeat_interleave(n)
    net = fit(
        lambda: nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.1), nn.Linear(2, 2)), x, y, steps, len(x), 3e-2, seed
    )
    features, _, weight, bias = embed(net, x)
    names = ("avh", "norm", "confidence")
    scores = compute_scores(features, weight, y, bias, names)
    accuracy = (scores["pred"] == y).double().mean()
    avh, norm, confidence = (scores[name].numpy() for name in names)
    return TwoGaussians(points, y.numpy(), avh, norm, confidence, _other_class(points, y.numpy()), float(accuracy))


def _other_class(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Posterior probability of the other class in each direction: the Gaussian densities are summed along the ray."""
    radius = np.linspace(0.01, 4, 400)
    density = []
    for mean in MEANS:
        along = points @ np.array(mean)
        square = radius**2 - 2 * radius * along[:, None] + np.sum(np.square(mean))
        density.append((radius**2 * np.exp(-square / (2 * SPREAD**2))).sum(1))
    return np.array(density)[1 - labels, np.arange(len(labels))] / np.sum(density, 0)


@STUDIES.register(
    "two-gaussians",
    question="Does AVH, or the norm, follow the true probability of the other class?",
    paper="AVH, Fig. 3 and 7",
    factors={},
    measures={
        "accuracy": Measure("Accuracy", True, "higher"),
        "AVH": Measure("Spearman's correlation of AVH with the true probability of the other class"),
        "norm": Measure("Spearman's correlation of the norm with the true probability of the other class"),
        "confidence": Measure("Spearman's correlation of confidence with the true probability of the other class"),
    },
    scales={
        "smoke": Scale(2, 1, settings={"n": 200, "steps": 100}),
        "paper": Scale(10, 3, settings={"n": 1000, "steps": 1000}),
    },
)
def _two_gaussians(cell: Cell) -> dict[str, float]:
    result = two_gaussians(cell.seed, **cell.settings)
    scores = {"AVH": result.avh, "norm": result.norm, "confidence": result.confidence}
    correlations = {name: spearman(values, result.doubt).value for name, values in scores.items()}
    return {"accuracy": result.accuracy, **correlations}


def plot_two_gaussians(seed: int = 0) -> Figure:
    """Points on the sphere by class, by AVH and by norm (Fig. 3, 7): one draw of `hardsight.studies.two_gaussians`."""
    study = two_gaussians(seed)
    figure, axes = new_figure(1, 3, subplot_kw={"projection": "3d"})
    x, y, z = study.points.T
    classes, avh, norm = axes[0]
    for k, (color, marker) in enumerate(zip(COLORS[:2], "o^", strict=True)):
        at = study.labels == k
        classes.scatter(x[at], y[at], z[at], s=5, color=color, marker=marker, linewidths=0, depthshade=False)
    for axis, values, label in ((avh, 2 * study.avh, "2 · AVH"), (norm, study.norm, "norm of the embedding")):
        points = axis.scatter(x, y, z, c=values, s=5, cmap="viridis", linewidths=0, depthshade=False)
        rho = spearman(values, study.doubt).value
        figure.colorbar(points, ax=axis, shrink=0.6, pad=0.02)
        axis.set_title(f"{label}\nSpearman with the other class's probability {number_text(rho, '.2f')}", fontsize=9)
    classes.set_title(f"two classes, n = {len(x):,}\naccuracy {percent(study.accuracy)}", fontsize=9)
    center = study.points.mean(0)
    elevation = np.degrees(np.arcsin(center[2] / np.linalg.norm(center)))
    for axis in axes[0]:
        axis.view_init(elev=float(elevation), azim=float(np.degrees(np.arctan2(center[1], center[0]))))
        axis.set_box_aspect((1, 1, 1))
        axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
        axis.tick_params(labelsize=6, pad=-3)
    return figure
