"""Figures of evaluations: one panel per score, one line per group of runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import InputError
from hardsight.evaluation.curves import POOLED, Curve
from hardsight.evaluation.maps import read_maps
from hardsight.evaluation.naming import curve_kind, score_title
from hardsight.evaluation.results import Evaluation, read_evaluation
from hardsight.extras import need
from hardsight.figures.style import GRAY, draw_band, legend, line_styles, new_figure, plain
from hardsight.printing import percent
from hardsight.questions.clusters import layout
from hardsight.questions.subject import CurveKind
from hardsight.registry import did_you_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4
_LEGEND_CLASSES = 20  # that a legend names
_STRIPS = 6  # images in the figure of maps


def plot_evaluated(run: str | Path, question: str, curve: str, only: str = "") -> Figure:
    """A curve per group, a panel per score and data set: reliability, accuracy under attack, margins, energy.

    The band is one standard deviation over the runs of a group, or the 95% interval over the samples of a single run.

    Args:
        run: A folder that `hardsight evaluate` wrote.
        question: Such as ``"robustness"``.
        curve: Such as ``"attack"``.
        only: Only the panels of this score; all if empty.
    """
    kind = curve_kind(question, curve)
    panels = _curves(read_evaluation(run), question, curve, kind)
    if only:
        names = [score for score, _ in panels]
        panels = {key: curves for key, curves in panels.items() if key[0] == only}
        if not panels:
            raise InputError(f"OUT: {Path(run).name} has no {only}; {did_you_mean(only, names)}")
    figure, axes = _panels(len(panels))
    for axis, ((score, on), groups) in zip(axes, panels.items(), strict=True):
        _draw_curves(axis, groups, kind)
        axis.set_title(plain(" · ".join(filter(None, (score_title(score), on)))), fontsize=9)
    legend(axes[min(_COLUMNS, len(axes)) - 1])
    return figure


plot_reliability = partial(plot_evaluated, question="calibration", curve="reliability")
plot_attacks = partial(plot_evaluated, question="robustness", curve="attack")
plot_margins = partial(plot_evaluated, question="margins", curve="margin")


def plot_energy(run: str | Path, label: int | None = None) -> Figure:
    """Mean energy of the classes by rank, of all samples and per class (EL Fig. 1 and 5); see `plot_evaluated`.

    Args:
        run: A folder that `hardsight evaluate` wrote.
        label: Only the samples of this class.
    """
    return plot_evaluated(run, "margins", "energy", "" if label is None else f"class {label}")


def plot_ood(run: str | Path) -> Figure:
    """Scores of in-distribution and OOD data: one row per score and OOD data set, one column per group."""
    evaluated, kind = read_evaluation(run), curve_kind("ood", "inside")
    inside, outside = (_curves(evaluated, "ood", name, kind) for name in ("inside", kind.against))
    figure, axes = new_figure(len(inside), len(evaluated.groups), width=2.8)
    for line, ((score, on), curves) in zip(axes, inside.items(), strict=True):
        for axis, group in zip(line, evaluated.groups, strict=True):
            if group in curves:
                _draw_curves(axis, {"in-distribution data": curves[group], on: outside[score, on][group]}, kind)
            axis.set_xlabel(score_title(score))
            axis.set_title(plain(group) if axis in axes[0] else "", fontsize=9)
        if line is axes[0] or len({on for _, on in inside}) > 1:
            legend(line[-1])
    return figure


def _panels(count: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with this many axes in rows of four."""
    columns = min(_COLUMNS, count)
    figure, axes = new_figure(-(-count // columns), columns, **options)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def _curves(evaluated: Evaluation, question: str, curve: str, kind: CurveKind) -> dict[Any, dict[str, Curve]]:
    if not (curves := evaluated.curves(question, curve, kind.shape)):
        raise InputError(f"OUT: {evaluated.path} has no {kind.title.lower()}; evaluate with the question {question}.")
    return curves


def _draw_curves(axis: Axes, curves: Mapping[str, Curve], kind: CurveKind) -> None:
    if kind.diagonal:
        axis.plot([0, 1], [0, 1], color=GRAY, linewidth=0.8, linestyle=":")
    ends = (-np.inf if kind.least is None else kind.least, np.inf if kind.most is None else kind.most)
    for (name, curve), style in zip(curves.items(), line_styles(len(curves)), strict=True):
        label = f"{plain(name)} (n = {curve.runs})" if curve.runs > 1 else plain(name)
        low, high = (np.clip(end, *ends) for end in (curve.low, curve.high))  # NumPy 2.0 has no open ends
        draw_band(axis, curve.x, curve.y, low, high, style, label)
        if kind.shape in POOLED:
            axis.plot(curve.x, curve.y, ".", color=style[0], markersize=5)
    axis.set(xlabel=kind.x, ylabel=kind.y)
    if kind.most is not None:
        axis.set_ylim(-0.02 * kind.most, 1.02 * kind.most)


def plot_maps(run: str | Path) -> Figure:
    """Where networks look in the same images (AMC Fig. 2, 6): one row per image, one column per group's first run."""
    evaluated = read_evaluation(run)
    if (maps := read_maps(evaluated.path)) is None:
        raise InputError(f"OUT: {evaluated.path} has no maps; evaluate with --explain.")
    groups = {run: group for group, runs in evaluated.groups.items() for run in runs}
    strips = maps["pictures"][:: -(-len(maps["pictures"]) // _STRIPS)]
    columns = len(maps["runs"]) + 1
    figure, axes = new_figure(len(strips), 1)
    figure.set_size_inches(1.3 * columns, 1.55 * len(strips))
    for axis, strip in zip(axes[:, 0], strips, strict=True):
        with need("PIL.Image").open(evaluated.path / "maps" / strip["file"]) as file:
            axis.imshow(np.asarray(file))
            width = file.width / columns
        axis.set_axis_off()
        texts = [
            f"{groups[run]}: {strip['classes'][run]}, {percent(strip['confidence'][run], 0)}" for run in maps["runs"]
        ]
        for k, text in enumerate([strip["label"], *texts]):
            axis.text((k + 0.5) * width, -3, plain(text), fontsize=6, ha="center", va="bottom")
    return figure


def plot_clusters(run: str | Path) -> Figure:
    """Features of each group's first run by class: 2-D as they are (AMC Fig. 1), 3-D on the sphere (Fig. 4), else t-SNE
    of their directions (Fig. 5).
    """
    groups = read_evaluation(run).features()
    if not groups:
        raise InputError(f"OUT: {run} has no clusters to draw; evaluate with the question clusters.")
    sphere = any(features.shape[1] == 3 for features, _ in groups.values())
    figure, axes = _panels(len(groups), **({"subplot_kw": {"projection": "3d"}} if sphere else {}))
    names = np.unique(np.concatenate([classes for _, classes in groups.values()]))
    colors = need("matplotlib").colormaps["tab20" if len(names) > 10 else "tab10"].colors[: len(names)]
    if len(names) > len(colors):
        colors = [color for color, _ in line_styles(len(names), ordered=True)]
    for axis, (group, (features, classes)) in zip(axes, groups.items(), strict=True):
        how = "plane" if features.shape[1] == 2 else "sphere" if features.shape[1] == 3 else "tsne"
        places = layout(features, how)
        for name, color in zip(names, colors, strict=True):
            axis.scatter(*places[classes == name].T, s=5, color=color, label=f"class {name:g}", linewidths=0)
        axis.set_title(plain(group), fontsize=9)
        if not sphere:
            axis.set_aspect("equal", "datalim")
        if how == "sphere":
            axis.set(**{f"{d}lim": (-1, 1) for d in "xyz"}, **{f"{d}ticks": [-1, 0, 1] for d in "xyz"})
            axis.set_box_aspect((1, 1, 1))
            axis.tick_params(labelsize=6, pad=-3)
        elif how == "tsne":
            axis.set(xticks=[], yticks=[])  # only neighborhoods mean something
        else:
            axis.set(xlabel="feature 1", ylabel="feature 2")
    if len(names) <= _LEGEND_CLASSES:
        legend(axes[min(_COLUMNS, len(axes)) - 1], markerscale=3)
    return figure
