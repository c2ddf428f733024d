"""Figures of the AVH paper's small experiments: iterations, 2-D embeddings, two Gaussians, growing norms."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import spearmanr

from hardsight import studies
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.figures.curves import Run, plot_dynamics
from hardsight.figures.style import COLORS, GRAY, left_title, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_iterations(runs: Mapping[str, Run] | None = None, data: str | None = None, seed: int = 0) -> Figure:
    """Norm, angle and AVH per iteration (Fig. 15).

    Args:
        runs: Runs that were recorded per iteration, by name.
        data: What a small CNN is trained on where there are no runs.
        seed: Seed of its training.
    """
    values = ("norm", "angle", "avh")
    if runs:
        return plot_dynamics(runs, values=values)
    if data is None:
        raise InputError("the figure iterations needs --data, or a RUN that was recorded by iteration.")
    with tempfile.TemporaryDirectory() as folder:
        return plot_dynamics({"small CNN": studies.iterations(data, Path(folder) / "run", seed=seed)}, values=values)


def plot_embeddings(data: str, seed: int = 0) -> Figure:
    """2-D features by class with the directions of the class weights, and the same points by C·AVH (Fig. 2 and 8).

    Args:
        data: What the small CNN of `hardsight.studies.embeddings` is trained on.
        seed: Seed of its training.
    """
    study = studies.embeddings(data, seed=seed)
    figure, axes = new_figure(1, 2)
    by_class, by_avh = axes[0]
    classes = len(study.weight)
    colors = COLORS if classes <= len(COLORS) else need("matplotlib").colormaps["tab10"].colors
    x, y = study.features.T
    reach = 1.05 * float(np.quantile(np.linalg.norm(study.features, axis=1), 0.995))
    for k in range(classes):
        members = study.labels == k
        by_class.scatter(x[members], y[members], s=3, color=colors[k % len(colors)], linewidths=0, rasterized=True)
        direction = study.weight[k] / max(float(np.linalg.norm(study.weight[k])), 1e-12)
        by_class.plot([0, reach * direction[0]], [0, reach * direction[1]], color="black", linewidth=0.8)
        by_class.annotate(plain(study.classes[k]), 1.06 * reach * direction, fontsize=9, ha="center", va="center")
    order = np.argsort(study.avh)  # the hardest on top
    hardness = classes * study.avh[order]
    points = by_avh.scatter(x[order], y[order], c=hardness, s=3, cmap="viridis", linewidths=0, rasterized=True)
    figure.colorbar(points, ax=by_avh, label="C · AVH (lighter is harder)")
    for axis in (by_class, by_avh):
        axis.set(xlim=(-1.15 * reach, 1.15 * reach), ylim=(-1.15 * reach, 1.15 * reach), aspect="equal")
    left_title(by_class, f"features by class, n = {len(x):,}, accuracy {study.accuracy:.1%}", 9)
    left_title(by_avh, "the same points by hardness", 9)
    return figure


def plot_two_gaussians(seed: int = 0) -> Figure:
    """Points on the sphere by class, by AVH and by norm (Fig. 3, 7): one draw of `hardsight.studies.two_gaussians`."""
    study = studies.two_gaussians(seed)
    figure, axes = new_figure(1, 3, subplot_kw={"projection": "3d"})
    x, y, z = study.points.T
    classes, avh, norm = axes[0]
    for k, (color, marker) in enumerate(zip(COLORS[:2], "o^", strict=True)):
        at = study.labels == k
        classes.scatter(x[at], y[at], z[at], s=5, color=color, marker=marker, linewidths=0, depthshade=False)
    for axis, values, label in ((avh, 2 * study.avh, "2 · AVH"), (norm, study.norm, "norm of the embedding")):
        points = axis.scatter(x, y, z, c=values, s=5, cmap="viridis", linewidths=0, depthshade=False)
        rho = spearmanr(values, study.doubt).statistic  # pyrefly: ignore
        figure.colorbar(points, ax=axis, shrink=0.6, pad=0.02)
        axis.set_title(f"{label}\nSpearman with the other class's probability {rho:.2f}", fontsize=9)
    classes.set_title(f"two classes, n = {len(x):,}\naccuracy {study.accuracy:.1%}", fontsize=9)
    center = study.points.mean(0)
    elevation = np.degrees(np.arcsin(center[2] / np.linalg.norm(center)))
    for axis in axes[0]:
        axis.view_init(elev=float(elevation), azim=float(np.degrees(np.arctan2(center[1], center[0]))))
        axis.set_box_aspect((1, 1, 1))
        axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
        axis.tick_params(labelsize=6, pad=-3)
    return figure


def plot_norm_growth() -> Figure:
    """AVH is constant while confidence follows the norm (Fig. 20; `hardsight.studies.norm_growth`)."""
    study = studies.norm_growth()
    figure, axes = new_figure(1, 2, sharey=True)
    titles = ("nearer to its own class (θ₁ < θ₂)", "nearer to the other class (θ₁ > θ₂)")
    for axis, confidence, avh, title in zip(axes[0], study.confidence, study.avh, titles, strict=True):
        axis.plot(study.norm, confidence, color=COLORS[1], linestyle="--", label="confidence")
        axis.plot(study.norm, np.full_like(study.norm, avh), color=COLORS[0], label="AVH")
        axis.axhline(0.5, color=GRAY, linewidth=0.8, linestyle=":")
        axis.set_xlabel("norm of the feature")
        left_title(axis, title)
    axes[0, 0].set(ylim=(0, 1), ylabel="value")
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure
