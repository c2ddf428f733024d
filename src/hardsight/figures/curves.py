"""Recorded runs: means per group and epoch, what lowers the loss, plateaus, agreement with people, the data map."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight import phases
from hardsight.directions import hardness_sign
from hardsight.dynamics import Dynamics
from hardsight.errors import InputError
from hardsight.figures.drawing import open_run
from hardsight.figures.style import GRAY, TITLES, draw_band, left_title, legend, line_styles, new_figure, plain
from hardsight.idtables import read_by_id
from hardsight.people import frequency_bins
from hardsight.phases.agreement import AGREEMENT_SCORES
from hardsight.printing import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Run = Dynamics | str | Path

VALUES = ("norm", "avh", "correct", "confidence")  # the columns of the AVH paper and of its supplement
MAX_GROUPS = 20
_LEGEND_ROWS = 10  # that fit beside one row of axes
_RANGES = {"confidence": (0.0, 1.0), "norm": (0.0, np.inf), "nll": (0.0, np.inf)}  # where bands end
_MOST_POINTS = 20_000
_REGIONS = {"easy": (0.02, 0.97, "left"), "hard": (0.02, 0.03, "left"), "ambiguous": (0.98, 0.5, "right")}


def plot_dynamics(
    runs: Mapping[str, Run], groups: Any = None, human: Any = None, values: Sequence[str] = VALUES
) -> Figure:
    """Mean per group and epoch, ± 1 sd over samples (Fig. 4, 9, 10, 13): one row per network, one column per value.

    Args:
        runs: Recorded runs by name: folders, or `Dynamics`.
        groups: A CSV or Parquet file with a column id and one other, or anything that ``Dynamics.curves(by=…)`` takes.
        human: Human selection frequencies, as for `hardsight.phases.frequencies`, to group by instead.
        values: Columns of the records. AVH is shown as C·AVH, where 1 is chance; accuracy has no band.
    """
    if isinstance(groups, (str, Path)) and groups != "label":
        groups = read_by_id(Path(groups), "groups")
    figure, axes = new_figure(len(runs), len(values))
    for line, (name, given) in zip(axes, runs.items(), strict=True):
        run = open_run(given, name)
        by = groups if human is None else frequency_bins(phases.frequencies(run, human))
        curves = run.curves(by=by, values=values)
        names = pc.unique(curves["group"]).to_pylist()
        if len(names) > MAX_GROUPS:
            raise InputError(f"groups: at most {MAX_GROUPS} can be told apart, got {len(names)}; put them into bins.")
        styles = line_styles(len(names), ordered=by is not None)
        for axis, value in zip(line, values, strict=True):
            scale = run.classes if value == "avh" else 1
            for group, style in zip(names, styles, strict=True):
                rows = _columns(curves, "group", group)
                mean = scale * rows[f"{value}_mean"]
                sd = (0 if value == "correct" else scale) * rows[f"{value}_sd"]
                low, high = (np.clip(mean + side * sd, *_RANGES.get(value, (-np.inf, np.inf))) for side in (-1, 1))
                draw_band(axis, rows["epoch"], mean, low, high, style, f"{plain(group)} (n = {rows['n'].max():,})")
            if value == "avh":
                axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
            axis.set(xlabel=run.unit, ylabel=TITLES.get(value, value))
        left_title(line[0], f"{plain(name)}, {len(run):,} samples")
        if len(names) > 1 or line[0] is axes[0, 0]:  # a single group is named in the first row only
            title = {"title": "mean ± 1 sd over samples", "title_fontsize": 7, "alignment": "left"}
            legend(line[-1], size=7, ncols=math.ceil(len(names) / _LEGEND_ROWS), **title)
    return figure


def _columns(table: pa.Table, key: str, value: Any) -> dict[str, np.ndarray]:
    """The columns of the rows with one value of a key."""
    rows = table.filter(pc.equal(table[key], value))
    return {name: rows[name].to_numpy() for name in rows.column_names}


def plot_loss_drivers(runs: Mapping[str, Run]) -> Figure:
    """How much angles and norms changed the loss (`hardsight.phases.loss_drivers`), per epoch and cumulative.

    Args:
        runs: Recorded runs by name, one row each: folders, or `Dynamics`.
    """
    figure, axes = new_figure(len(runs), 2)
    for (each, total), (name, given) in zip(axes, runs.items(), strict=True):
        run = open_run(given, name)
        rows = _columns(phases.loss_drivers(run), "group", "all")
        x, angles, norms = (rows[column] for column in ("epoch", "by_angles", "by_norms"))
        # Parts of the same sign are stacked, parts of different signs lie on either side of 0.
        bottom = np.where(np.sign(angles) == np.sign(norms), angles, 0)
        bars: dict[str, Any] = {"angles": (angles, {}), "norms": (norms, {"bottom": bottom, "hatch": "///"})}
        for (label, (part, options)), (color, dash) in zip(bars.items(), line_styles(2), strict=True):
            each.bar(x, part, 0.85, color=color, edgecolor="white", linewidth=0, label=label, **options)
            total.plot(x, np.cumsum(part), color=color, linestyle=dash, linewidth=1.6, label=label)
        each.plot(x, rows["change"], color="black", linewidth=0.9, marker=".", markersize=3, label="whole change")
        total.plot(x, np.cumsum(rows["change"]), color="black", linewidth=0.9, linestyle=":", label="whole change")
        left_title(each, f"{plain(name)}: n = {rows['n'].max():,}")
        for axis, label in ((each, f"mean change of the loss\nsince the {run.unit} before"), (total, "cumulative")):
            axis.axhline(0, color=GRAY, linewidth=0.8)
            axis.set(xlabel=run.unit, ylabel=label)
        each.legend(fontsize=7, frameon=False, loc="lower right")
        legend(total, size=7)
    return figure


def plot_plateaus(
    run: Run, name: str = "", values: Sequence[str] = ("avh", "correct", "nll", "norm"), seed: int = 0
) -> Figure:
    """The share of its whole change that each mean has completed, and where it stops (`hardsight.phases.plateaus`).

    Args:
        run: A recorded run: its folder, or `Dynamics`.
        name: The network's name.
        values: Columns of the records.
        seed: Random seed of the intervals.
    """
    run = open_run(run, name)
    figure, axes = new_figure(1, 1, width=8)
    axis, rows = axes[0, 0], phases.plateaus(run, values, seed=seed).to_pylist()
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
    legend(axis, size=7, title="point and bar: epoch with 95% interval", title_fontsize=7, alignment="left")
    return figure


def plot_agreement(runs: Mapping[str, Run], human: Any, scores: Sequence[str] = AGREEMENT_SCORES) -> Figure:
    """Spearman's correlation with human selection frequency per epoch, with 95% intervals; one column per network.

    The sign of scores that grow with hardness is flipped, so that higher is better agreement for all.

    Args:
        runs: Recorded runs by name: folders, or `Dynamics`.
        human: Human selection frequencies, as for `hardsight.phases.frequencies`.
        scores: What is correlated with them.
    """
    figure, axes = new_figure(1, len(runs), sharey=True)
    for axis, (name, given) in zip(axes[0], runs.items(), strict=True):
        run = open_run(given, name)
        table = phases.agreement(run, human, scores)
        n, ties = (pc.max(table[column]).as_py() for column in ("n", "ties"))
        if table["spearman"].null_count == len(table):
            raise InputError(f"human: 10 or more samples of {name} must have differing frequencies, got {n} in all.")
        for score, style in zip(scores, line_styles(len(scores)), strict=True):
            rows, sign = _columns(table, "score", score), -hardness_sign(score)
            middle, low, high = (sign * rows[f"spearman{end}"] for end in ("", "_low", "_high"))
            draw_band(axis, rows["epoch"], middle, low, high, style, f"−{score}" if sign < 0 else score)
        axis.axhline(0, color=GRAY, linewidth=0.8)
        left_title(axis, f"{plain(name)}: n = {n:,}, ties {percent(ties, 0)}")
        axis.set_xlabel(run.unit)
    axes[0, 0].set_ylabel("Spearman with human frequency\n(band: 95% interval)")
    legend(axes[0, -1], size=7)
    return figure


def plot_data_map(run: Run, name: str = "") -> Figure:
    """Each sample by the mean and the spread of its confidence over the epochs, colored by the share of correct epochs.

    Args:
        run: A recorded run: its folder, or `Dynamics`. Of more than 20,000 samples a random part is drawn.
        name: The network's name.
    """
    summary = open_run(run, name, epochs=1).summary()
    figure, axes = new_figure(1, 1)
    axis, n = axes[0, 0], len(summary)
    drawn = np.random.default_rng(0).permutation(n)[:_MOST_POINTS]
    x, y, color = (summary[column][drawn] for column in ("variability", "confidence", "correctness"))
    size = float(np.clip(3000 / max(len(drawn), 1), 2, 14))
    points = axis.scatter(x, y, c=color, s=size, cmap="viridis_r", vmin=0, vmax=1, linewidths=0, rasterized=True)
    figure.colorbar(points, ax=axis, label="correctness (share of epochs right)")
    axis.set(xlabel="variability (sd of confidence)", ylabel="mean confidence", ylim=(-0.02, 1.02))
    for region, (x_at, y_at, side) in _REGIONS.items():
        axis.text(x_at, y_at, region, transform=axis.transAxes, fontsize=9, style="italic", ha=side, va="center")
    part = "" if len(drawn) == n else f" ({len(drawn):,} drawn)"
    left_title(axis, f"{plain(name) + ': ' if name else ''}data map, n = {n:,}{part}")
    return figure
