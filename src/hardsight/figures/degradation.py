"""Networks on degraded pictures: means by level, and where AVH lies at each level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.degradation import DEGRADATIONS, follows_level, mean_by_level
from hardsight.extras import need
from hardsight.figures.style import COLOURS, GREY, TITLES, draw_band, line_styles, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The paper's columns, and confidence.
_COLUMNS = ("norm", "avh", "correct", "confidence")
_BINS = 40


def plot_degradation(
    nets: Mapping[str, pa.Table], people: pa.Table | None = None, figure: Figure | None = None
) -> Figure:
    """Mean and 95 % interval by level, harder to the right (what Fig. 11 and 12 end with): a row per degradation.

    Args:
        nets: What `evaluate_degraded` returned of each network.
        people: What `human_accuracy` says, drawn beside the networks' accuracy.
        figure: Drawn into this one, instead of a new one.
    """
    names = _degradations(nets)
    figure, axes = new_figure(len(names), len(_COLUMNS), figure)
    for (net, rows), (colour, dash) in zip(nets.items(), line_styles(len(nets)), strict=True):
        means = mean_by_level(rows, [column for value in _COLUMNS if (column := _column(rows, value))])
        for line, name in zip(axes, names, strict=True):
            for axis, value in zip(line, _COLUMNS, strict=True):
                chosen = pc.and_(pc.equal(means["degradation"], name), pc.equal(means["value"], _column(rows, value)))
                own = means.filter(chosen)
                scale = _classes(rows) if value == "avh" else 1
                middle, low, high = (scale * own[end].to_numpy() for end in ("mean", "low", "high"))
                draw_band(axis, own["level"].to_numpy(), middle, low, high, colour, plain(net), dash)
                for drawn in axis.get_lines()[-1:]:
                    drawn.set_marker("o")
                    drawn.set_markersize(3)
    for line, name in zip(axes, names, strict=True):
        if people is not None:
            own = people.filter(pc.equal(people["degradation"], name))
            x, middle, low, high = (own[column].to_numpy() for column in ("level", "mean", "low", "high"))
            if len(own):
                draw_band(line[2], x, middle, low, high, GREY, "people (Geirhos et al.)", ":")
        for axis, value in zip(line, _COLUMNS, strict=True):
            axis.set_ylabel(TITLES[value])
            axis.set_xlabel(f"{name} (harder →)")
            if value == "avh":
                axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
            if DEGRADATIONS[name].harder == "lower":
                axis.invert_xaxis()
        n = max(len(pc.unique(rows.filter(pc.equal(rows["degradation"], name))["id"])) for rows in nets.values())
        line[0].set_title(f"{name}, {n:,} pictures", loc="left", fontsize=10)
    shown = axes[0, 2].get_legend_handles_labels()
    axes[0, -1].legend(*shown, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=7, frameon=False)
    return figure


def plot_degraded_avh(nets: Mapping[str, pa.Table], figure: Figure | None = None) -> Figure:
    """Where AVH lies at each level, with its mean and its correlation with the level (Fig. 17 and 18).

    A row per degradation, a column per network; each level's shares add up to 1.

    Args:
        nets: What `evaluate_degraded` returned of each network.
        figure: Drawn into this one.
    """
    names = _degradations(nets)
    figure, axes = new_figure(len(names), len(nets), figure)
    for (net, rows), column in zip(nets.items(), axes.T, strict=True):
        for axis, name in zip(column, names, strict=True):
            own = rows.filter(pc.equal(rows["degradation"], name))
            drawn = _draw_levels(axis, own, _classes(rows)) if len(own) else None
            if drawn is not None:
                figure.colorbar(drawn, ax=axis, label="share of the pictures")
            axis.set_title(_title(net, own), loc="left", fontsize=9)
            axis.set_xlabel(f"{name} (harder →)")
            axis.set_ylabel(TITLES["avh"])
    return figure


def _draw_levels(axis: Axes, rows: pa.Table, classes: int) -> object:
    """A column per level, as dark as many pictures lie there."""
    levels = pc.unique(rows["level"]).to_numpy()
    levels = levels[np.argsort(np.abs(levels - DEGRADATIONS[rows["degradation"][0].as_py()].clean))]
    values = classes * rows[_column(rows, "avh")].to_numpy()
    level = rows["level"].to_numpy()
    edges = np.linspace(np.nanmin(values), max(np.nanmax(values), np.nanmin(values) + 1e-6), _BINS + 1)
    shares = np.stack([np.histogram(values[level == at], edges)[0] / (level == at).sum() for at in levels], 1)
    drawn = axis.pcolormesh(
        np.arange(len(levels) + 1) - 0.5,
        edges,
        np.ma.masked_equal(shares, 0),
        norm=need("matplotlib.colors").PowerNorm(0.5, 0, shares.max()),
        cmap="viridis",
        rasterized=True,
    )
    means = [np.nanmean(values[level == at]) for at in levels]
    axis.plot(np.arange(len(levels)), means, color=COLOURS[1], marker="o", markersize=3, linewidth=1.4)
    axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(levels)), [f"{at:g}" for at in levels])
    return drawn


def _title(net: str, rows: pa.Table) -> str:
    """The network, and how closely AVH follows the level."""
    if len(pc.unique(rows["level"])) < 2:
        return plain(net)
    found = follows_level(rows, [_column(rows, "avh") or "avh"]).to_pylist()[0]
    if found["spearman"] is None:
        return plain(net)
    return f"{plain(net)}: Spearman {found['spearman']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"


def _degradations(nets: Mapping[str, pa.Table]) -> list[str]:
    found = {name for rows in nets.values() for name in pc.unique(rows["degradation"]).to_pylist()}
    return [name for name in DEGRADATIONS if name in found]


def _column(rows: pa.Table, value: str) -> str | None:
    """The column of a value, taken at the predicted class where there are no labels."""
    return next((name for name in (value, f"{value}_pred") if name in rows.column_names), None)


def _classes(rows: pa.Table) -> int:
    return int((rows.schema.metadata or {})[b"classes"])
