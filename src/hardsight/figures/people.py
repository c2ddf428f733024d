"""People against scores: 2-D histograms of human selection frequency and each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardsight.alignment.folder import read_alignment
from hardsight.comparison import class_count
from hardsight.correlation import spearman
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.figures.style import COLORS, TITLES, left_title, new_figure, plain
from hardsight.human import match, read_human
from hardsight.table import SampleTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PEOPLE_SCORES = ("avh", "angle", "confidence", "norm_within_class")  # Fig. 5, and the angle beside AVH
_BINS = (25, 30)
_FEWEST = 10  # samples for a median, and for a correlation
_TITLES = {**TITLES, "norm_within_class": "norm, scaled within its class"}


def draw_people(runs: Mapping[str, Path], human: str | Path | None = None) -> Figure:
    """`plot_people` with the frequencies of a file, or with those that `hardsight align` stored in each run."""
    tables, hsf = {}, {}
    for name, path in runs.items():
        table = tables[name] = SampleTable.load(path)
        if "label" not in table:
            raise InputError(f"RUN: {name} has no labels, and people are asked about the label.")
        classes = table.meta.class_names or None
        if human is not None:
            answers = read_human(Path(human), classes=classes)
        elif (alignment := read_alignment(path)) is not None:
            answers = alignment.people.select(["id", "hsf"])
        else:
            raise InputError(f"the figure people needs --human, or the result of hardsight align in {name}.")
        hsf[name] = match(answers, table["id"], table["label"], classes).hsf
    return plot_people(tables, hsf)


def plot_people(
    tables: Mapping[str, SampleTable], hsf: Mapping[str, np.ndarray], scores: Sequence[str] = PEOPLE_SCORES
) -> Figure:
    """Number of samples by human selection frequency and by score (Fig. 5 and 16); one row per network.

    Args:
        tables: The samples of each network, by its name.
        hsf: Share of people who chose the label, in the order of the table's rows; NaN where nobody was asked.
        scores: What is drawn against it, one panel each; AVH is multiplied by the number of classes.
    """
    figure, axes = new_figure(len(tables), len(scores))
    for line, (name, table) in zip(axes, tables.items(), strict=True):
        table = table if "norm_within_class" not in scores else table.with_norm_within_class()
        for axis, score in zip(line, scores, strict=True):
            values = table[score].astype(np.float64) * (class_count(table) if score == "avh" else 1)
            valid = np.isfinite(values) & np.isfinite(hsf[name])
            x, y = hsf[name][valid], values[valid]
            low, high = (float(y.min()), float(y.max())) if len(y) else (0.0, 1.0)
            ends = [(0, 1), (low, high if high > low else low + 1)]
            counts, x_edges, y_edges = np.histogram2d(x, y, bins=_BINS, range=ends)
            norm = need("matplotlib.colors").LogNorm(1, max(counts.max(), 2))
            shown = np.ma.masked_equal(counts.T, 0)
            mesh = axis.pcolormesh(x_edges, y_edges, shown, norm=norm, cmap="viridis", rasterized=True)
            figure.colorbar(mesh, ax=axis, label="samples")
            column = np.clip(np.digitize(x, x_edges) - 1, 0, _BINS[0] - 1)
            filled = np.flatnonzero(np.bincount(column, minlength=_BINS[0]) >= _FEWEST)
            medians = [np.median(y[column == k]) for k in filled]
            centers = (x_edges[filled] + x_edges[filled + 1]) / 2
            axis.plot(centers, medians, color=COLORS[1], linewidth=1.6, label="median")
            axis.set(xlabel="human selection frequency", ylabel=_TITLES.get(score, score))
            left_title(axis, f"{plain(name)}, n = {len(x):,}{_spearman(y, x)}", 9)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def _spearman(y: np.ndarray, x: np.ndarray) -> str:
    if len(x) < _FEWEST or not np.ptp(x) or not np.ptp(y):
        return ""
    rho = spearman(y, x)
    return f"\nSpearman {rho.value:.3f} ({rho.low:.3f} to {rho.high:.3f})"
