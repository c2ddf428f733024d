"""Samples as points: a data map, 2-D embeddings, the two Gaussians; and AVH against confidence as the norm grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hardsight.extras import need
from hardsight.figures.style import COLOURS, GREY, group_colours, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hardsight.studies import Embeddings, NormGrowth, TwoGaussians
    from hardsight.table import SampleTable

_MOST_POINTS = 20_000


def plot_data_map(summary: SampleTable, name: str = "", figure: Figure | None = None) -> Figure:
    """Each sample by the mean and the spread of its confidence over the epochs, coloured by how often it was right.

    Args:
        summary: ``Dynamics.summary()``; of more than 20,000 samples a random part is drawn.
        name: Of the network.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 1, figure)
    axis = axes[0, 0]
    n = len(summary)
    shown = np.random.default_rng(0).permutation(n)[:_MOST_POINTS]
    x, y, colour = (summary[column][shown] for column in ("variability", "confidence", "correctness"))
    size = float(np.clip(3000 / max(len(shown), 1), 2, 14))
    drawn = axis.scatter(x, y, c=colour, s=size, cmap="viridis_r", vmin=0, vmax=1, linewidths=0, rasterized=True)
    figure.colorbar(drawn, ax=axis, label="correctness (share of epochs right)")
    axis.set_xlabel("variability (sd of confidence)")
    axis.set_ylabel("mean confidence")
    axis.set_ylim(-0.02, 1.02)
    for word, x_at, y_at, side in (
        ("easy", 0.02, 0.97, "left"),
        ("hard", 0.02, 0.03, "left"),
        ("ambiguous", 0.98, 0.5, "right"),
    ):
        axis.text(x_at, y_at, word, transform=axis.transAxes, fontsize=9, style="italic", ha=side, va="center")
    part = "" if len(shown) == n else f" ({len(shown):,} drawn)"
    axis.set_title(f"{plain(name) + ': ' if name else ''}data map, n = {n:,}{part}", loc="left", fontsize=10)
    return figure


def plot_embeddings(found: Embeddings, figure: Figure | None = None) -> Figure:
    """2-D features by class with the class weights' directions, and the same points by C·AVH (Fig. 2 and 8).

    Args:
        found: What `hardsight.studies.embeddings` returns.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 2, figure)
    by_class, by_avh = axes[0]
    classes = len(found.weight)
    colours = (
        group_colours(classes, ordered=False)
        if classes <= len(COLOURS)
        else need("matplotlib").colormaps["tab10"].colors
    )
    x, y = found.features.T
    reach = 1.05 * float(np.quantile(np.linalg.norm(found.features, axis=1), 0.995))
    for k in range(classes):
        own = found.labels == k
        by_class.scatter(x[own], y[own], s=3, color=colours[k % len(colours)], linewidths=0, rasterized=True)
        direction = found.weight[k] / max(float(np.linalg.norm(found.weight[k])), 1e-12)
        by_class.plot([0, reach * direction[0]], [0, reach * direction[1]], color="black", linewidth=0.8)
        by_class.annotate(plain(found.classes[k]), 1.06 * reach * direction, fontsize=9, ha="center", va="center")
    order = np.argsort(found.avh)  # the hardest on top
    drawn = by_avh.scatter(
        x[order], y[order], c=classes * found.avh[order], s=3, cmap="viridis", linewidths=0, rasterized=True
    )
    figure.colorbar(drawn, ax=by_avh, label="C · AVH (lighter is harder)")
    for axis in (by_class, by_avh):
        axis.set_xlim(-1.15 * reach, 1.15 * reach)
        axis.set_ylim(-1.15 * reach, 1.15 * reach)
        axis.set_aspect("equal")
    by_class.set_title(f"features by class, n = {len(x):,}, accuracy {found.accuracy:.1%}", loc="left", fontsize=9)
    by_avh.set_title("the same points by hardness", loc="left", fontsize=9)
    return figure


def plot_two_gaussians(found: TwoGaussians, figure: Figure | None = None) -> Figure:
    """Points on the sphere by class, by AVH and by norm (Fig. 3 and 7).

    Args:
        found: What `hardsight.studies.two_gaussians` returns.
        figure: Drawn into this one.
    """
    from scipy.stats import spearmanr

    figure, axes = new_figure(1, 3, figure, subplot_kw={"projection": "3d"})
    x, y, z = found.points.T
    centre = found.points.mean(0)
    view = {
        "elev": float(np.degrees(np.arcsin(centre[2] / np.linalg.norm(centre)))),
        "azim": float(np.degrees(np.arctan2(centre[1], centre[0]))),
    }
    classes, avh, norm = axes[0]
    for k, (colour, marker) in enumerate(zip(COLOURS[:2], "o^", strict=True)):
        own = found.labels == k
        classes.scatter(x[own], y[own], z[own], s=5, color=colour, marker=marker, linewidths=0, depthshade=False)
    for axis, values, label in ((avh, 2 * found.avh, "2 · AVH"), (norm, found.norm, "norm of the embedding")):
        drawn = axis.scatter(x, y, z, c=values, s=5, cmap="viridis", linewidths=0, depthshade=False)
        rho = spearmanr(values, found.doubt).statistic
        figure.colorbar(drawn, ax=axis, shrink=0.6, pad=0.02)
        axis.set_title(f"{label}\nSpearman with the other class's probability {rho:.2f}", fontsize=9)
    classes.set_title(f"two classes, n = {len(x):,}\naccuracy {found.accuracy:.1%}", fontsize=9)
    for axis in axes[0]:
        axis.view_init(**view)
        axis.set_box_aspect((1, 1, 1))
        for direction in "xyz":
            getattr(axis, f"set_{direction}ticks")([-1, 0, 1])
        axis.tick_params(labelsize=6, pad=-3)
    return figure


def plot_norm_growth(found: NormGrowth, figure: Figure | None = None) -> Figure:
    """AVH stays while confidence follows the norm (Fig. 20).

    Args:
        found: What `hardsight.studies.norm_growth` returns.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 2, figure, sharey=True)
    titles = ("nearer to its own class (θ₁ < θ₂)", "nearer to the other class (θ₁ > θ₂)")
    for axis, confidence, avh, title in zip(axes[0], found.confidence, found.avh, titles, strict=True):
        axis.plot(found.norm, confidence, color=COLOURS[1], linestyle="--", label="confidence")
        axis.plot(found.norm, np.full_like(found.norm, avh), color=COLOURS[0], label="AVH")
        axis.axhline(0.5, color=GREY, linewidth=0.8, linestyle=":")
        axis.set_xlabel("norm of the feature")
        axis.set_title(title, loc="left", fontsize=10)
    axes[0, 0].set_ylim(0, 1)
    axes[0, 0].set_ylabel("value")
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure
