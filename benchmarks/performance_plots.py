"""The plots of the performance page."""

from __future__ import annotations

import hashlib
import itertools
from typing import TYPE_CHECKING

from benchmarks.cost_model import FEWEST, base, fitted, groups, latest, loading, precision, shape
from hardsight.figures.style import COLORS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plots(rows: list[dict]) -> dict[str, Figure]:
    """The figures by file name; none without rows to draw. The id of each is a digest of what it draws."""
    rows = latest(rows)
    drawn = {}
    if swept := groups(rows):
        drawn["performance-scores.svg"] = growth(rows, swept)
    if points := loading(rows):
        drawn["performance-images.svg"] = images(points)
    for figure in drawn.values():
        lines = [line.get_xydata().round(9).tolist() for axis in figure.axes for line in axis.lines]
        figure.set_gid("rows-" + hashlib.sha256(repr(lines).encode()).hexdigest()[:16])
    return drawn


def growth(rows: list[dict], swept: dict[tuple[str, str], list[dict]]) -> Figure:
    """Milliseconds against N, D and C: measured, by the cost model, and of the bare product."""
    figure, axes = new_figure(len(swept), 3, width=3.0)
    cost = fitted(rows)
    for line, (key, chosen) in zip(axes, swept.items(), strict=True):
        products = [r for r in rows if r["benchmark"] == "sweep" and r["case"] == "matmul" and r["hardware"] == key[0]]
        for at, name in enumerate(("samples N", "features D", "classes C")):
            axis, scored = line[at], along(chosen, at, base(chosen))
            many = [r for r in scored if shape(r)[2] >= FEWEST]
            model = [(shape(r)[at], 1000 * cost[key].seconds(*shape(r))) for r in many]
            axis.plot(*zip(*model, strict=True), "--", color=COLORS[0], label="cost model")
            scatter(axis, scored, at, "o", COLORS[0], "all scores")
            scatter(axis, along(products, at, base(chosen)), at, "s-", COLORS[1], "bare product")
            axis.set(xscale="log", yscale="log", xlabel=name)
            axis.yaxis.set_minor_formatter("")
        line[0].set_ylabel(f"{key[0].partition(',')[0]}, {precision(key[1])}\nms")
    axes[0][0].legend(frameon=False)
    return figure


def along(rows: list[dict], at: int, through: tuple[int, ...]) -> list[dict]:
    """Rows that differ from a shape in one of its numbers only, in order."""
    here = [r for r in rows if all(shape(r)[k] == through[k] for k in range(3) if k != at)]
    return sorted(here, key=lambda r: shape(r)[at])


def scatter(axis: Axes, rows: list[dict], at: int, marker: str, color: str, label: str) -> None:
    """Medians in milliseconds, with bars from p20 to p80."""
    x, middle = [shape(r)[at] for r in rows], [1000 * float(r["p50"]) for r in rows]
    axis.plot(x, middle, marker, color=color, markersize=4, label=label)
    axis.vlines(x, [1000 * float(r["p20"]) for r in rows], [1000 * float(r["p80"]) for r in rows], color=color)


def images(points: dict[str, list[tuple[int, float]]]) -> Figure:
    """Images per second against workers, beside as many times one worker."""
    figure, axes = new_figure(1, 1, width=4.6)
    axis = axes[0][0]
    for color, (place, values) in zip(itertools.cycle(COLORS), points.items(), strict=False):
        workers = [count for count, _ in values]
        axis.plot(*zip(*values, strict=True), "o-", color=color, label=place)
        axis.plot(workers, [count / workers[0] * values[0][1] for count in workers], ":", color=color, linewidth=1)
    axis.set(xlabel="workers (dotted: as many times one worker)", ylabel="images/s", xlim=(0, None), ylim=(0, None))
    axis.legend(frameon=False)
    return figure
