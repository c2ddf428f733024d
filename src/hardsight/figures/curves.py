"""Recorded runs through the epochs: means by group, what lowers the loss, plateaus, agreement with people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError
from hardsight.figures.style import (
    COLOURS,
    DASHES,
    GREY,
    TITLES,
    draw_band,
    group_colours,
    line_styles,
    new_figure,
    plain,
)
from hardsight.table import hardness_sign

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hardsight.dynamics import Dynamics

# The paper's columns, and its supplement's.
VALUES = ("norm", "avh", "correct", "confidence")

MOST_GROUPS = 20
_ROWS = 10  # of a legend: as many as one row of axes is high

# Bands end where values do.
_RANGES = {"confidence": (0.0, 1.0), "norm": (0.0, np.inf), "nll": (0.0, np.inf)}

_BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": 7, "frameon": False}


def plot_dynamics(
    runs: Mapping[str, Dynamics],
    by: Mapping[str, Any] | None = None,
    values: Sequence[str] = VALUES,
    figure: Figure | None = None,
) -> Figure:
    """Mean by group and epoch, ± 1 sd over samples (Fig. 4, 9, 10, 13): a row per network, a column per value.

    Args:
        runs: Networks by name.
        by: The groups of each network by its name, as for ``Dynamics.curves``; one group without.
        values: Columns of the records. AVH is shown as C·AVH, where 1 is chance; accuracy has no band.
        figure: Drawn into this one, instead of a new one.
    """
    figure, axes = new_figure(len(runs), len(values), figure)
    for line, (name, run) in zip(axes, runs.items(), strict=True):
        curves = run.curves(by=None if by is None else by[name], values=values)
        groups = pc.unique(curves["group"]).to_pylist()
        if len(groups) > MOST_GROUPS:
            raise InputError(f"groups: at most {MOST_GROUPS} can be told apart, got {len(groups)}; put them into bins.")
        colours = group_colours(len(groups), ordered=by is not None)
        for axis, value in zip(line, values, strict=True):
            scale = run.classes if value == "avh" else 1
            for group, colour, dash in zip(groups, colours, _dashes(len(groups)), strict=True):
                rows = _columns(curves.filter(pc.equal(curves["group"], group)))
                mean = scale * rows[f"{value}_mean"]
                sd = (0 if value == "correct" else scale) * rows[f"{value}_sd"]
                label = f"{plain(group)} (n = {rows['n'].max():,})"
                low, high = (np.clip(mean + side * sd, *_RANGES.get(value, (-np.inf, np.inf))) for side in (-1, 1))
                draw_band(axis, rows["epoch"], mean, low, high, colour, label, dash)
            if value == "avh":
                axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
            axis.set_ylabel(TITLES.get(value, value))
            axis.set_xlabel(run.unit)
        line[0].set_title(f"{plain(name)}, {len(run):,} samples", loc="left", fontsize=10)
        if len(groups) > 1 or line[0] is axes[0, 0]:  # once is enough where there is nothing to tell apart
            told = {"title": "mean ± 1 sd over samples", "title_fontsize": 7, "alignment": "left"}
            line[-1].legend(**told, ncols=math.ceil(len(groups) / _ROWS), **_BESIDE)
    return figure


def _columns(table: pa.Table) -> dict[str, np.ndarray]:
    return {name: table[name].to_numpy() for name in table.column_names}


def _dashes(count: int) -> list[Any]:
    return [DASHES[k % len(DASHES)] if count <= len(COLOURS) else "-" for k in range(count)]


def plot_loss_drivers(drivers: Mapping[str, pa.Table], unit: str = "epoch", figure: Figure | None = None) -> Figure:
    """How much angles and norms changed the loss: each epoch's share, and summed up; a row per network.

    Args:
        drivers: What `loss_drivers` says of each network; the first group is drawn.
        unit: What an epoch is.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(len(drivers), 2, figure)
    for (each, summed), (name, table) in zip(axes, drivers.items(), strict=True):
        group = table["group"][0].as_py()
        rows = _columns(table.filter(pc.equal(table["group"], group)))
        x, angles, norms = (rows[column] for column in ("epoch", "by_angles", "by_norms"))
        _stacked_bars(each, x, angles, norms)
        each.plot(x, rows["change"], color="black", linewidth=0.9, marker=".", markersize=3, label="whole change")
        for part, colour, label, dash in ((angles, COLOURS[0], "angles", "-"), (norms, COLOURS[1], "norms", "--")):
            summed.plot(x, np.cumsum(part), color=colour, linestyle=dash, linewidth=1.6, label=label)
        summed.plot(x, np.cumsum(rows["change"]), color="black", linewidth=0.9, linestyle=":", label="whole change")
        told = f"{plain(name)}: n = {rows['n'].max():,}" + ("" if group == "all" else f", {plain(group)}")
        each.set_title(told, loc="left", fontsize=10)
        each.set_ylabel(f"mean change of the loss\nsince the {unit} before")
        summed.set_ylabel("summed up")
        for axis in (each, summed):
            axis.axhline(0, color=GREY, linewidth=0.8)
            axis.set_xlabel(unit)
        each.legend(fontsize=7, frameon=False, loc="lower right")
        summed.legend(**_BESIDE)
    return figure


def _stacked_bars(axis: Axes, x: np.ndarray, angles: np.ndarray, norms: np.ndarray) -> None:
    """Two parts of a sum: on top of one another where they have one sign, on either side of 0 where they have not."""
    same = np.sign(angles) == np.sign(norms)
    axis.bar(x, angles, 0.85, color=COLOURS[0], label="angles")
    axis.bar(
        x,
        norms,
        0.85,
        bottom=np.where(same, angles, 0),
        color=COLOURS[1],
        label="norms",
        hatch="///",
        edgecolor="white",
        linewidth=0,
    )


def plot_plateaus(run: Dynamics, found: pa.Table, name: str = "", figure: Figure | None = None) -> Figure:
    """How much of its whole change each mean has made, and where it stops, with the 95 % interval of that epoch.

    Args:
        run: The recorded run.
        found: What `plateaus` says of it.
        name: Of the network.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, 1, figure, width=8)
    axis = axes[0, 0]
    rows = found.to_pylist()
    last = int(run.epochs[-1])
    for k, (row, (colour, dash)) in enumerate(zip(rows, line_styles(len(rows)), strict=True)):
        mean = np.nanmean(run.matrix(row["value"]), 0)
        whole = row["end"] - row["start"]
        changes = whole != 0 and "noise" not in row["why"]  # a share of no change says nothing
        made = (mean - row["start"]) / whole if changes else np.full_like(mean, np.nan)
        title = TITLES.get(row["value"], row["value"])
        axis.plot(
            run.epochs,
            made,
            color=colour,
            linestyle=dash,
            linewidth=1.6,
            label=title if row["epoch"] else f"{title}: {row['why']}",
        )
        height = 0.12 * k + 0.08
        if row["low"] is not None:
            axis.plot([row["low"], row["high"] or last], [height] * 2, color=colour, linewidth=1.4, marker="|")
        if row["epoch"] is not None:
            axis.plot(row["epoch"], height, "o", color=colour, markersize=4)
            axis.plot([row["epoch"]] * 2, [height, 0.95], color=colour, linewidth=0.7, linestyle=":")
    axis.axhline(0.95, color=GREY, linewidth=0.8)
    axis.set_ylim(min(0, axis.get_ylim()[0]), None)
    axis.set_xlabel(run.unit)
    axis.set_ylabel("share of the whole change")
    told = f"{plain(name) + ': ' if name else ''}where the mean stops, n = {rows[0]['n']:,}"
    axis.set_title(told, loc="left", fontsize=10)
    axis.legend(title="point and bar: epoch with 95 % interval", title_fontsize=7, alignment="left", **_BESIDE)
    return figure


def plot_agreement(found: Mapping[str, pa.Table], unit: str = "epoch", figure: Figure | None = None) -> Figure:
    """Spearman's correlation with human selection frequency by epoch, with 95 % intervals; a column per network.

    Scores that grow with hardness are turned round, so that upwards is agreement for all.

    Args:
        found: What `agreement` says of each network.
        unit: What an epoch is.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(1, len(found), figure, sharey=True)
    for axis, (name, table) in zip(axes[0], found.items(), strict=True):
        scores = pc.unique(table["score"]).to_pylist()
        for score, (colour, dash) in zip(scores, line_styles(len(scores)), strict=True):
            own = _columns(table.filter(pc.equal(table["score"], score)))
            sign = -hardness_sign(score)
            middle, low, high = (sign * own[f"spearman{end}"] for end in ("", "_low", "_high"))
            label = f"−{score}" if sign < 0 else score
            draw_band(axis, own["epoch"], middle, low, high, colour, label, dash)
        axis.axhline(0, color=GREY, linewidth=0.8)
        n, ties = pc.max(table["n"]).as_py(), pc.max(table["ties"]).as_py()
        axis.set_title(f"{plain(name)}: n = {n:,}, ties {ties:.0%}", loc="left", fontsize=10)
        axis.set_xlabel(unit)
    axes[0, 0].set_ylabel("Spearman with human frequency\n(band: 95 % interval)")
    axes[0, -1].legend(**_BESIDE)
    return figure
