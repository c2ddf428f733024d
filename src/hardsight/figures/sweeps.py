"""A measure against an option: means with their spread over seeds, and the baseline as a horizontal line."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.figures.style import COLORS, GRAY, left_title, legend, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4
_MOST_TICKS = 8


class Point(NamedTuple):
    """A value of the option, and the measurement there.

    Attributes:
        x: A number or a text; if any is a text, values are shown side by side without a connecting line.
        mean: The mean over seeds.
        sd: Their standard deviation; NaN for a single seed.
        n: The number of seeds.
        paper: The paper's number; NaN if there is none.
    """

    x: float | str
    mean: float
    sd: float
    n: int
    paper: float = math.nan


class Panel(NamedTuple):
    """One measure against one option.

    Attributes:
        title: Data and network of the measurement.
        x: The option.
        y: The measure.
        points: The values; texts are drawn in this order.
        baseline: Name of the baseline.
        at_baseline: The measurement for the baseline, or None; its x has no meaning.
        log: Whether x is logarithmic.
    """

    title: str
    x: str
    y: str
    points: Sequence[Point]
    baseline: str
    at_baseline: Point | None
    log: bool = False


def plot_sweeps(panels: Sequence[Panel]) -> Figure:
    """One panel per sweep, four in a row: mean ± 1 sd over seeds, crosses for the paper's numbers.

    Args:
        panels: The panels; those without points are left out.
    """
    panels = [panel for panel in panels if panel.points]
    if not panels:
        raise InputError("rows: there is nothing to draw yet; run the study first.")
    columns = min(_COLUMNS, len(panels))
    figure, axes = new_figure(-(-len(panels) // columns), columns)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw(axis, panel)
    entries: dict[str, object] = {}
    for axis in figure.axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    legend(axes.flat[columns - 1], list(entries.values()), list(entries), size=7)
    return figure


def _draw(axis: Axes, panel: Panel) -> None:
    points = list(panel.points)
    if text := any(isinstance(point.x, str) for point in points):
        x = np.arange(len(points), dtype=float)
        axis.set_xticks(x, [plain(point.x) for point in points])
        axis.set_xlim(-0.6, len(points) - 0.4)
    else:
        points.sort(key=lambda point: point.x)
        x = np.array([point.x for point in points], float)
    if (base := panel.at_baseline) is not None:
        axis.axhline(base.mean, color=COLORS[1], linestyle="--", linewidth=1.4, label=plain(panel.baseline))
        if math.isfinite(base.sd):
            axis.axhspan(base.mean - base.sd, base.mean + base.sd, color=COLORS[1], alpha=0.13, linewidth=0)
        if math.isfinite(base.paper):
            label = f"{plain(panel.baseline)} in the paper"
            axis.axhline(base.paper, color=GRAY, linestyle=":", linewidth=1, label=label)
    spread = [0.0 if math.isnan(point.sd) else point.sd for point in points]
    line = {"color": COLORS[0], "marker": "o", "markersize": 4, "capsize": 3, "label": "mean ± 1 sd over seeds"}
    axis.errorbar(x, [point.mean for point in points], spread, linestyle="none" if text else "-", **line)
    papers = [point.paper for point in points]
    if any(map(math.isfinite, papers)):
        axis.plot(x, papers, "x", color=GRAY, label="in the paper")
    if not text and len(points) <= _MOST_TICKS:
        axis.set_xticks(x, [f"{value:g}" for value in x])
    if panel.log and not text:
        axis.set_xscale("log")
        axis.set_xticks(x, [f"{value:g}" for value in x])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axis.set(xlabel=plain(panel.x), ylabel=textwrap.fill(plain(panel.y), 34))
    n = [point.n for point in [*points, *([base] if base else [])]]
    counts = f"n = {min(n)}" if len(set(n)) == 1 else f"n = {min(n)} to {max(n)}"
    left_title(axis, f"{plain(panel.title)}, {counts}" if panel.title else counts, 9)
