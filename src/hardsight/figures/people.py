"""People against scores: 2-D histograms of human selection frequency and each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hardsight.comparison import class_count
from hardsight.correlation import spearman
from hardsight.extras import need
from hardsight.figures.style import COLOURS, TITLES, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hardsight.table import SampleTable

PEOPLE_SCORES = ("avh", "angle", "confidence", "norm_within_class")  # Fig. 5, and the bare angle beside AVH
_BINS = (25, 30)
_FEWEST = 10  # samples for a median, and for a correlation
_TITLES = {**TITLES, "norm_within_class": "norm, scaled within its class"}


def plot_people(
    tables: Mapping[str, SampleTable],
    hsf: Mapping[str, np.ndarray],
    scores: Sequence[str] = PEOPLE_SCORES,
    figure: Figure | None = None,
) -> Figure:
    """How many samples lie where, by human selection frequency and by score (Fig. 5 and 16); a row per network.

    Args:
        tables: The samples of each network, by its name.
        hsf: Share of people who chose the label, in the order of the table's rows; NaN where nobody was asked.
        scores: What is drawn against it, a panel each; AVH is drawn times the number of classes.
        figure: Drawn into this one.
    """
    figure, axes = new_figure(len(tables), len(scores), figure)
    for line, (name, table) in zip(axes, tables.items(), strict=True):
        table = table if "norm_within_class" not in scores else table.with_norm_within_class()
        for axis, score in zip(line, scores, strict=True):
            values = table[score].astype(np.float64) * (class_count(table) if score == "avh" else 1)
            known = np.isfinite(values) & np.isfinite(hsf[name])
            x, y = hsf[name][known], values[known]
            low, high = (float(y.min()), float(y.max())) if len(y) else (0.0, 1.0)
            ends = [(0, 1), (low, high if high > low else low + 1)]
            counts, across, up = np.histogram2d(x, y, bins=_BINS, range=ends)
            drawn = axis.pcolormesh(
                across,
                up,
                np.ma.masked_equal(counts.T, 0),
                norm=need("matplotlib.colors").LogNorm(1, max(counts.max(), 2)),
                cmap="viridis",
                rasterized=True,
            )
            figure.colorbar(drawn, ax=axis, label="samples")
            place = np.clip(np.digitize(x, across) - 1, 0, _BINS[0] - 1)
            own = {k: y[place == k] for k in np.unique(place).tolist()}
            middle = {
                (across[k] + across[k + 1]) / 2: np.median(part) for k, part in own.items() if len(part) >= _FEWEST
            }
            axis.plot(list(middle), list(middle.values()), color=COLOURS[1], linewidth=1.6, label="median")
            axis.set_xlabel("human selection frequency")
            axis.set_ylabel(_TITLES.get(score, score))
            axis.set_title(f"{plain(name)}, n = {len(x):,}{_spearman(y, x)}", loc="left", fontsize=9)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure


def _spearman(y: np.ndarray, x: np.ndarray) -> str:
    if len(x) < _FEWEST or not np.ptp(x) or not np.ptp(y):
        return ""
    found = spearman(y, x)
    return f"\nSpearman {found.value:.3f} ({found.low:.3f} to {found.high:.3f})"
