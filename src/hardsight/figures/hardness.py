"""Scores against what is hard for people: human selection frequency, and levels of degradation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.correlation import spearman
from hardsight.dynamics import Dynamics
from hardsight.errors import InputError
from hardsight.evaluation.results import is_evaluation, read_evaluation
from hardsight.extras import need
from hardsight.figures.curves import VALUES, plot_dynamics
from hardsight.figures.style import COLORS, GRAY, TITLES, draw_band, left_title, legend, line_styles, new_figure, plain
from hardsight.people import coarser as on_coarse_classes
from hardsight.people import match, read_alignment, read_human
from hardsight.printing import class_name, interval
from hardsight.questions import DEGRADATIONS, follows_level, human_accuracy, mean_by_level, read_degraded
from hardsight.records import has_records
from hardsight.runs import DEGRADED
from hardsight.table import SampleTable
from hardsight.tablefiles import class_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PEOPLE_SCORES = ("avh", "angle", "confidence", "norm_within_class")  # Fig. 5, and the angle beside AVH
_BINS = (25, 30)
_LEVEL_BINS = 40
_FEWEST = 10  # samples for a median, and for a correlation


def plot_people(runs: Mapping[str, str | Path], human: Any = None, scores: Sequence[str] = PEOPLE_SCORES) -> Figure:
    """Number of samples by human selection frequency and by score (Fig. 5 and 16); one row per network.

    Args:
        runs: Folders of scored or recorded runs by name.
        human: Human answers, as for `hardsight.align`; if not given, those that `hardsight align` stored in each run.
        scores: What is drawn against it, one panel each; AVH is multiplied by the number of classes.
    """
    figure, axes = new_figure(len(runs), len(scores))
    for line, (name, run) in zip(axes, runs.items(), strict=True):
        table = SampleTable.load(run)
        hsf = _frequencies(table, run, name, human)
        table = table.with_norm_within_class() if "norm_within_class" in scores else table
        for axis, score in zip(line, scores, strict=True):
            values = table[score].astype(np.float64) * (class_count(table) if score == "avh" else 1)
            valid = np.isfinite(values) & np.isfinite(hsf)
            _draw_joint(axis, hsf[valid], values[valid], TITLES.get(score, score), plain(name))
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def plot_coarse_classes(run: str | Path, human: str | Path, coarser: str | Path, name: str = "") -> Figure:
    """Number of samples by norm and by human selection frequency of coarse classes (Fig. 19).

    It shows three coarse classes: those with the most, the median number and the fewest classes.

    Args:
        run: Folder of a scored or recorded run.
        human: Human answers, counted by class, as for `hardsight.align`.
        coarser: A CSV or Parquet file with the columns ``class`` and ``coarse``.
        name: The network's name.
    """
    table = SampleTable.load(run)
    if "label" not in table:
        raise InputError(f"RUN: {name} has no labels, and people are asked about the label.")
    classes = table.meta.class_names or None
    people = match(
        on_coarse_classes(read_human(Path(human), classes=classes), coarser), table["id"], table["label"], classes
    )
    coarse, labels, norm = np.asarray(people.columns), table["label"], table["norm"].astype(np.float64)
    valid = np.isfinite(people.hsf) & np.isfinite(norm)
    fine = {k: np.unique(labels[valid & (coarse == k)]) for k in np.unique(coarse[valid])}
    ordered = sorted(fine, key=lambda k: -len(fine[k]))
    shown = list(dict.fromkeys([*ordered[:1], *ordered[len(ordered) // 2 : len(ordered) // 2 + 1], *ordered[-1:]]))
    if not shown:
        raise InputError(f"human: no sample of {name} has both a norm and answers.")
    figure, axes = new_figure(1, len(shown))
    for axis, k in zip(axes[0], shown, strict=True):
        members = valid & (coarse == k)
        names = [str(class_name(classes or (), int(label))) for label in fine[k]]
        listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        title = f"{len(names)} {'class' if len(names) == 1 else 'classes'}: {listed}"
        _draw_joint(axis, people.hsf[members], norm[members], TITLES["norm"], plain(title))
        axis.set_xlabel("human frequency of the coarse class")
    if name:
        figure.suptitle(plain(name), fontsize=9)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def _draw_joint(axis: Axes, x: np.ndarray, y: np.ndarray, label: str, title: str) -> None:
    """Sample counts by human frequency and a score, with medians and Spearman's correlation."""
    span: Any = [(0, 1), None]
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=_BINS, range=span)
    norm = need("matplotlib.colors").LogNorm(1, max(counts.max(), 2))
    _draw_cells(axis, x_edges, y_edges, counts.T, norm, "samples")
    column = np.clip(np.digitize(x, x_edges) - 1, 0, _BINS[0] - 1)
    filled = np.flatnonzero(np.bincount(column, minlength=_BINS[0]) >= _FEWEST)
    medians = [np.median(y[column == k]) for k in filled]
    centers = (x_edges[filled] + x_edges[filled + 1]) / 2
    axis.plot(centers, medians, color=COLORS[1], linewidth=1.6, label="median")
    axis.set(xlabel="human selection frequency", ylabel=label)
    title = f"{title}, n = {len(x):,}"
    if len(x) >= _FEWEST and np.ptp(x) and np.ptp(y):
        rho = spearman(y, x)
        title += f"\nSpearman {interval(rho.value, rho.low, rho.high)}"
    left_title(axis, title, 9)


def _frequencies(table: SampleTable, run: str | Path, name: str, human: Any) -> np.ndarray:
    """The share of people who chose the label, in the order of the table's rows; NaN where nobody was asked."""
    if "label" not in table:
        raise InputError(f"RUN: {name} has no labels, and people are asked about the label.")
    classes = table.meta.class_names or None
    if isinstance(human, (str, Path)):
        human = read_human(Path(human), classes=classes)
    elif human is None and (alignment := read_alignment(run)) is not None:
        human = alignment.people.select(["id", "hsf"])
    elif human is None:
        raise InputError(f"the figure people needs --human, or the result of hardsight align in {name}.")
    return match(human, table["id"], table["label"], classes).hsf


def plot_degradation(runs: Mapping[str, str | Path], human: str | Path | None = None) -> Figure:
    """Mean and 95% interval per level, harder to the right (the ends of Fig. 11 and 12): one row per degradation.

    Runs that recorded a training `at_every_level` are drawn per epoch, by level.

    Args:
        runs: Folders that `hardsight evaluate --degrade` wrote, by name.
        human: A file of trials (`human_accuracy`), drawn beside the networks' accuracy.
    """
    if all(has_records(Path(run)) and not Path(run, DEGRADED).is_dir() for run in runs.values()):
        levels = {id_: id_.partition("/")[0] for run in runs.values() for id_ in Dynamics(run).ids}
        if all("=" in level for level in levels.values()):
            return plot_dynamics(runs, levels)
    nets, names = _read_levels(runs)
    people = None if human is None else human_accuracy(Path(human))
    figure, axes = new_figure(len(names), len(VALUES))
    for (net, rows), style in zip(nets.items(), line_styles(len(nets)), strict=True):
        columns = {value: _score_column(rows, value) for value in VALUES}
        means = mean_by_level(rows, [column for column in columns.values() if column])
        for line, name in zip(axes, names, strict=True):
            for axis, (value, column) in zip(line, columns.items(), strict=True):
                scale = int(rows.schema.metadata[b"classes"]) if value == "avh" else 1
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


def plot_degraded_avh(runs: Mapping[str, str | Path]) -> Figure:
    """The distribution of AVH at each level, with its mean and its correlation with the level (Fig. 17 and 18).

    One row per degradation, one column per network; the shares at each level add up to 1.

    Args:
        runs: Folders that `hardsight evaluate --degrade` wrote, by name.
    """
    nets, names = _read_levels(runs)
    figure, axes = new_figure(len(names), len(nets))
    for (net, table), line in zip(nets.items(), axes.T, strict=True):
        column = _score_column(table, "avh") or "avh"
        for axis, name in zip(line, names, strict=True):
            rows, title = table.filter(pc.equal(table["degradation"], name)), plain(net)
            if len(rows):
                _draw_levels(axis, rows, int(table.schema.metadata[b"classes"]) * rows[column].to_numpy())
            if len(pc.unique(rows["level"])) > 1:
                [rho] = follows_level(rows, [column]).to_pylist()
                if rho["spearman"] is not None:
                    title += f": Spearman {interval(rho['spearman'], rho['low'], rho['high'], '+.2f')}"
            left_title(axis, title, 9)
            axis.set(xlabel=f"{name} (harder →)", ylabel=TITLES["avh"])
    return figure


def _draw_levels(axis: Axes, rows: pa.Table, values: np.ndarray) -> None:
    """One histogram per level, side by side, starting with the clean images."""
    level, clean = rows["level"].to_numpy(), DEGRADATIONS[rows["degradation"][0].as_py()].clean
    levels = sorted(pc.unique(rows["level"]).to_pylist(), key=lambda at: abs(at - clean))
    edges = np.linspace(np.nanmin(values), max(np.nanmax(values), np.nanmin(values) + 1e-6), _LEVEL_BINS + 1)
    shares = np.stack([np.histogram(values[level == at], edges)[0] / (level == at).sum() for at in levels], 1)
    norm = need("matplotlib.colors").PowerNorm(0.5, 0, shares.max())
    _draw_cells(axis, np.arange(len(levels) + 1) - 0.5, edges, shares, norm, "share of the images")
    means = [np.nanmean(values[level == at]) for at in levels]
    axis.plot(np.arange(len(levels)), means, color=COLORS[1], marker="o", markersize=3, linewidth=1.4)
    axis.axhline(1, color=GRAY, linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(levels)), [f"{at:g}" for at in levels])


def _read_levels(runs: Mapping[str, str | Path]) -> tuple[dict[str, pa.Table], list[str]]:
    """One row per level and sample for each run (for an evaluation, each of its runs); and their degradations."""
    tables: dict[str, pa.Table] = {}
    for name, run in runs.items():
        tables |= read_evaluation(run).levels() if is_evaluation(run) else {name: read_degraded(run)}
    present = {name for rows in tables.values() for name in pc.unique(rows["degradation"]).to_pylist()}
    return tables, [name for name in DEGRADATIONS if name in present]


def _score_column(rows: pa.Table, value: str) -> str | None:
    """The column of a value; without labels, the one at the predicted class."""
    return next((name for name in (value, f"{value}_pred") if name in rows.column_names), None)


def _draw_cells(axis: Axes, x: np.ndarray, y: np.ndarray, counts: np.ndarray, norm: Any, label: str) -> None:
    """Cells between the edges `x` and `y`, colored by their counts with a color bar; empty ones are left blank."""
    cells = axis.pcolormesh(x, y, np.ma.masked_equal(counts, 0), norm=norm, cmap="viridis", rasterized=True)
    axis.get_figure().colorbar(cells, ax=axis, label=label)
