"""Networks on degraded images: means per level, and the distribution of AVH at each level."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.degradation import DEGRADATIONS, follows_level, human_accuracy, mean_by_level, read_degraded
from hardsight.extras import need
from hardsight.figures.curves import VALUES, plot_dynamics
from hardsight.figures.drawing import open_runs
from hardsight.figures.style import COLORS, GRAY, TITLES, draw_band, left_title, legend, line_styles, new_figure, plain
from hardsight.records import has_records
from hardsight.runs import DEGRADED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 40


def draw_degradation(runs: Mapping[str, Path], human: str | Path | None = None) -> Figure:
    """`plot_degradation` of evaluated runs; `plot_dynamics` by level of runs that recorded `at_every_level`."""
    if all(has_records(path) and not (path / DEGRADED).is_dir() for path in runs.values()):
        opened = open_runs(runs)
        levels = {name: [id_.partition("/")[0] for id_ in run.ids] for name, run in opened.items()}
        if all("=" in level for by in levels.values() for level in by):
            return plot_dynamics(opened, levels)
    people = None if human is None else human_accuracy(Path(human))
    return plot_degradation({name: read_degraded(path) for name, path in runs.items()}, people)


def draw_degraded_avh(runs: Mapping[str, Path]) -> Figure:
    """`plot_degraded_avh` of evaluated runs."""
    return plot_degraded_avh({name: read_degraded(path) for name, path in runs.items()})


def plot_degradation(nets: Mapping[str, pa.Table], people: pa.Table | None = None) -> Figure:
    """Mean and 95% interval per level, harder to the right (the ends of Fig. 11 and 12): one row per degradation.

    Args:
        nets: The tables of `evaluate_degraded` by network.
        people: The table of `human_accuracy`, drawn beside the networks' accuracy.
    """
    names = _degradations(nets)
    figure, axes = new_figure(len(names), len(VALUES))
    for (net, rows), style in zip(nets.items(), line_styles(len(nets)), strict=True):
        columns = {value: _column(rows, value) for value in VALUES}
        means = mean_by_level(rows, [column for column in columns.values() if column])
        for line, name in zip(axes, names, strict=True):
            for axis, (value, column) in zip(line, columns.items(), strict=True):
                scale = _classes(rows) if value == "avh" else 1
                selected = pc.and_(pc.equal(means["degradation"], name), pc.equal(means["value"], column))
                _draw_means(axis, means.filter(selected), style, plain(net), scale)
                axis.get_lines()[-1].set(marker="o", markersize=3)
    for line, name in zip(axes, names, strict=True):
        if people is not None and len(rows := people.filter(pc.equal(people["degradation"], name))):
            _draw_means(line[VALUES.index("correct")], rows, (GRAY, ":"), "people (Geirhos et al.)")
        for axis, value in zip(line, VALUES, strict=True):
            axis.set(xlabel=f"{name} (harder →)", ylabel=TITLES[value])
            if value == "avh":
                axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
            if DEGRADATIONS[name].harder == "lower":
                axis.invert_xaxis()
        n = max(len(pc.unique(rows.filter(pc.equal(rows["degradation"], name))["id"])) for rows in nets.values())
        left_title(line[0], f"{name}, {n:,} images")
    legend(axes[0, -1], *axes[0, VALUES.index("correct")].get_legend_handles_labels(), size=7)
    return figure


def _draw_means(axis: Axes, rows: pa.Table, style: tuple[str, str], label: str, scale: int = 1) -> None:
    middle, low, high = (scale * rows[end].to_numpy() for end in ("mean", "low", "high"))
    draw_band(axis, rows["level"].to_numpy(), middle, low, high, style, label)


def plot_degraded_avh(nets: Mapping[str, pa.Table]) -> Figure:
    """The distribution of AVH at each level, with its mean and its correlation with the level (Fig. 17 and 18).

    One row per degradation, one column per network; the shares at each level add up to 1.

    Args:
        nets: The tables of `evaluate_degraded` by network.
    """
    names = _degradations(nets)
    figure, axes = new_figure(len(names), len(nets))
    for (net, table), line in zip(nets.items(), axes.T, strict=True):
        column = _column(table, "avh") or "avh"
        for axis, name in zip(line, names, strict=True):
            rows, title = table.filter(pc.equal(table["degradation"], name)), plain(net)
            if len(rows):
                mesh = _draw_levels(axis, rows, _classes(table) * rows[column].to_numpy())
                figure.colorbar(mesh, ax=axis, label="share of the images")
            if len(pc.unique(rows["level"])) > 1:
                [rho] = follows_level(rows, [column]).to_pylist()
                if rho["spearman"] is not None:
                    title += f": Spearman {rho['spearman']:+.2f} [{rho['low']:+.2f}, {rho['high']:+.2f}]"
            left_title(axis, title, 9)
            axis.set(xlabel=f"{name} (harder →)", ylabel=TITLES["avh"])
    return figure


def _draw_levels(axis: Axes, rows: pa.Table, values: np.ndarray) -> object:
    """One histogram per level, side by side from the clean images on."""
    level, clean = rows["level"].to_numpy(), DEGRADATIONS[rows["degradation"][0].as_py()].clean
    levels = sorted(pc.unique(rows["level"]).to_pylist(), key=lambda at: abs(at - clean))
    edges = np.linspace(np.nanmin(values), max(np.nanmax(values), np.nanmin(values) + 1e-6), _BINS + 1)
    shares = np.stack([np.histogram(values[level == at], edges)[0] / (level == at).sum() for at in levels], 1)
    norm = need("matplotlib.colors").PowerNorm(0.5, 0, shares.max())
    x = np.arange(len(levels) + 1) - 0.5
    mesh = axis.pcolormesh(x, edges, np.ma.masked_equal(shares, 0), norm=norm, cmap="viridis", rasterized=True)
    means = [np.nanmean(values[level == at]) for at in levels]
    axis.plot(np.arange(len(levels)), means, color=COLORS[1], marker="o", markersize=3, linewidth=1.4)
    axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(levels)), [f"{at:g}" for at in levels])
    return mesh


def _degradations(nets: Mapping[str, pa.Table]) -> list[str]:
    names = {name for rows in nets.values() for name in pc.unique(rows["degradation"]).to_pylist()}
    return [name for name in DEGRADATIONS if name in names]


def _column(rows: pa.Table, value: str) -> str | None:
    """The column of a value, that of the predicted class where there are no labels."""
    return next((name for name in (value, f"{value}_pred") if name in rows.column_names), None)


def _classes(rows: pa.Table) -> int:
    return int((rows.schema.metadata or {})[b"classes"])
