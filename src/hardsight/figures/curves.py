"""Recorded runs over the epochs: means per group, what lowers the loss, plateaus, agreement with people."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight import phases, studies
from hardsight.errors import InputError
from hardsight.figures.drawing import open_runs
from hardsight.figures.style import GRAY, TITLES, draw_band, left_title, legend, line_styles, new_figure, plain
from hardsight.human import frequency_bins
from hardsight.idtables import read_by_id
from hardsight.table import hardness_sign

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hardsight.dynamics import Dynamics

VALUES = ("norm", "avh", "correct", "confidence")  # the columns of the AVH paper and of its supplement
_ITERATIONS = ("norm", "angle", "avh")

MAX_GROUPS = 20
_LEGEND_ROWS = 10  # that are as high as one row of axes

_RANGES = {"confidence": (0.0, 1.0), "norm": (0.0, np.inf), "nll": (0.0, np.inf)}  # where bands end


def draw_dynamics(
    runs: Mapping[str, Path], groups: str | Path | None = None, human: str | Path | None = None
) -> Figure:
    """`plot_dynamics` by the groups of a file, by bins of human frequency, or without groups."""
    opened, by = open_runs(runs), None
    if groups is not None:
        by = dict.fromkeys(opened, read_by_id(Path(groups), "groups"))
    elif human is not None:
        by = {name: frequency_bins(phases.frequencies(run, Path(human))) for name, run in opened.items()}
    return plot_dynamics(opened, by)


def draw_iterations(runs: Mapping[str, Path], seed: int, data: str | None = None) -> Figure:
    """`plot_dynamics` of runs that were recorded per iteration, or of a small CNN trained on `data`."""
    if runs:
        return plot_dynamics(open_runs(runs), values=_ITERATIONS)
    if data is None:
        raise InputError("the figure iterations needs --data, or a RUN that was recorded by iteration.")
    with tempfile.TemporaryDirectory() as folder:
        run = studies.iterations(data, Path(folder) / "run", seed=seed)
        return plot_dynamics({"small CNN": run}, values=_ITERATIONS)


def plot_dynamics(
    runs: Mapping[str, Dynamics], by: Mapping[str, Any] | None = None, values: Sequence[str] = VALUES
) -> Figure:
    """Mean per group and epoch, ± 1 sd over samples (Fig. 4, 9, 10, 13): one row per network, one column per value.

    Args:
        runs: Networks by name.
        by: The groups of each network by its name, as for ``Dynamics.curves``; a single group without.
        values: Columns of the records. AVH is shown as C·AVH, where 1 is chance; accuracy has no band.
    """
    figure, axes = new_figure(len(runs), len(values))
    for line, (name, run) in zip(axes, runs.items(), strict=True):
        curves = run.curves(by=None if by is None else by[name], values=values)
        groups = pc.unique(curves["group"]).to_pylist()
        if len(groups) > MAX_GROUPS:
            raise InputError(f"groups: at most {MAX_GROUPS} can be told apart, got {len(groups)}; put them into bins.")
        styles = line_styles(len(groups), ordered=by is not None)
        for axis, value in zip(line, values, strict=True):
            scale = run.classes if value == "avh" else 1
            for group, style in zip(groups, styles, strict=True):
                rows = _columns(curves, "group", group)
                mean = scale * rows[f"{value}_mean"]
                sd = (0 if value == "correct" else scale) * rows[f"{value}_sd"]
                low, high = (np.clip(mean + side * sd, *_RANGES.get(value, (-np.inf, np.inf))) for side in (-1, 1))
                draw_band(axis, rows["epoch"], mean, low, high, style, f"{plain(group)} (n = {rows['n'].max():,})")
            if value == "avh":
                axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
            axis.set(xlabel=run.unit, ylabel=TITLES.get(value, value))
        left_title(line[0], f"{plain(name)}, {len(run):,} samples")
        if len(groups) > 1 or line[0] is axes[0, 0]:  # a single group is named in the first row only
            title = {"title": "mean ± 1 sd over samples", "title_fontsize": 7, "alignment": "left"}
            legend(line[-1], size=7, ncols=math.ceil(len(groups) / _LEGEND_ROWS), **title)
    return figure


def _columns(table: pa.Table, key: str, value: Any) -> dict[str, np.ndarray]:
    """The columns of the rows with one value of a key."""
    rows = table.filter(pc.equal(table[key], value))
    return {name: rows[name].to_numpy() for name in rows.column_names}


def draw_loss_drivers(runs: Mapping[str, Path]) -> Figure:
    """`plot_loss_drivers` of recorded runs."""
    opened = open_runs(runs)
    drivers = {name: phases.loss_drivers(run) for name, run in opened.items()}
    return plot_loss_drivers(drivers, next(iter(opened.values())).unit)


def plot_loss_drivers(drivers: Mapping[str, pa.Table], unit: str = "epoch") -> Figure:
    """How much angles and norms changed the loss, per epoch and cumulative; one row per network.

    Args:
        drivers: The tables of `loss_drivers` by network; the first group is drawn.
        unit: What an epoch is.
    """
    figure, axes = new_figure(len(drivers), 2)
    for (each, total), (name, table) in zip(axes, drivers.items(), strict=True):
        group = table["group"][0].as_py()
        rows = _columns(table, "group", group)
        x, angles, norms = (rows[column] for column in ("epoch", "by_angles", "by_norms"))
        # Parts of the same sign are stacked, parts of different signs lie on either side of 0.
        bottom = np.where(np.sign(angles) == np.sign(norms), angles, 0)
        (first, _), (second, _) = line_styles(2)
        hatched: dict[str, Any] = {"hatch": "///", "edgecolor": "white", "linewidth": 0}
        each.bar(x, angles, 0.85, color=first, label="angles")
        each.bar(x, norms, 0.85, bottom=bottom, color=second, label="norms", **hatched)
        each.plot(x, rows["change"], color="black", linewidth=0.9, marker=".", markersize=3, label="whole change")
        for part, label, (color, dash) in zip((angles, norms), ("angles", "norms"), line_styles(2), strict=True):
            total.plot(x, np.cumsum(part), color=color, linestyle=dash, linewidth=1.6, label=label)
        total.plot(x, np.cumsum(rows["change"]), color="black", linewidth=0.9, linestyle=":", label="whole change")
        left_title(each, f"{plain(name)}: n = {rows['n'].max():,}" + ("" if group == "all" else f", {plain(group)}"))
        for axis, label in ((each, f"mean change of the loss\nsince the {unit} before"), (total, "cumulative")):
            axis.axhline(0, color=GRAY, linewidth=0.8)
            axis.set(xlabel=unit, ylabel=label)
        each.legend(fontsize=7, frameon=False, loc="lower right")
        legend(total, size=7)
    return figure


def draw_plateaus(runs: Mapping[str, Path], seed: int) -> Figure:
    """`plot_plateaus` of a recorded run."""
    [(name, run)] = open_runs(runs).items()
    return plot_plateaus(run, phases.plateaus(run, seed=seed), name)


def plot_plateaus(run: Dynamics, plateaus: pa.Table, name: str = "") -> Figure:
    """The share of its whole change that each mean has completed, and where it stops, with a 95% interval.

    Args:
        run: The recorded run.
        plateaus: The table of `hardsight.phases.plateaus`.
        name: The network's name.
    """
    figure, axes = new_figure(1, 1, width=8)
    axis, rows = axes[0, 0], plateaus.to_pylist()
    for k, (row, (color, dash)) in enumerate(zip(rows, line_styles(len(rows)), strict=True)):
        change = row["end"] - row["start"]
        share = np.full(len(run.epochs), np.nan)
        if change != 0 and "noise" not in row["why"]:  # else the share is meaningless
            share = (np.nanmean(run.matrix(row["value"]), 0) - row["start"]) / change
        label = TITLES.get(row["value"], row["value"]) + ("" if row["epoch"] else f": {row['why']}")
        axis.plot(run.epochs, share, color=color, linestyle=dash, linewidth=1.6, label=label)
        height = 0.12 * k + 0.08
        if row["low"] is not None:
            ends = [row["low"], row["high"] or int(run.epochs[-1])]
            axis.plot(ends, [height] * 2, color=color, linewidth=1.4, marker="|")
        if row["epoch"] is not None:
            axis.plot(row["epoch"], height, "o", color=color, markersize=4)
            axis.plot([row["epoch"]] * 2, [height, 0.95], color=color, linewidth=0.7, linestyle=":")
    axis.axhline(0.95, color=GRAY, linewidth=0.8)
    axis.set_ylim(min(0, axis.get_ylim()[0]), None)
    axis.set(xlabel=run.unit, ylabel="share of the whole change")
    left_title(axis, f"{plain(name) + ': ' if name else ''}where the mean stops, n = {rows[0]['n']:,}")
    title = "point and bar: epoch with 95% interval"
    legend(axis, size=7, title=title, title_fontsize=7, alignment="left")
    return figure


def draw_agreement(runs: Mapping[str, Path], human: str | Path) -> Figure:
    """`plot_agreement` of recorded runs."""
    opened = open_runs(runs)
    tables = {name: phases.agreement(run, Path(human)) for name, run in opened.items()}
    for name, table in tables.items():
        if table["spearman"].null_count == len(table):
            n = pc.max(table["n"])
            raise InputError(f"human: 10 samples of {name} with frequencies that differ are needed, got {n} in all.")
    return plot_agreement(tables, next(iter(opened.values())).unit)


def plot_agreement(agreements: Mapping[str, pa.Table], unit: str = "epoch") -> Figure:
    """Spearman's correlation with human selection frequency per epoch, with 95% intervals; one column per network.

    The sign of scores that grow with hardness is flipped, so that higher is better agreement for all.

    Args:
        agreements: The tables of `agreement` by network.
        unit: What an epoch is.
    """
    figure, axes = new_figure(1, len(agreements), sharey=True)
    for axis, (name, table) in zip(axes[0], agreements.items(), strict=True):
        scores = pc.unique(table["score"]).to_pylist()
        for score, style in zip(scores, line_styles(len(scores)), strict=True):
            rows, sign = _columns(table, "score", score), -hardness_sign(score)
            middle, low, high = (sign * rows[f"spearman{end}"] for end in ("", "_low", "_high"))
            draw_band(axis, rows["epoch"], middle, low, high, style, f"−{score}" if sign < 0 else score)
        axis.axhline(0, color=GRAY, linewidth=0.8)
        left_title(axis, f"{plain(name)}: n = {pc.max(table['n']).as_py():,}, ties {pc.max(table['ties']).as_py():.0%}")
        axis.set_xlabel(unit)
    axes[0, 0].set_ylabel("Spearman with human frequency\n(band: 95% interval)")
    legend(axes[0, -1], size=7)
    return figure
