"""Figures of what `hardsight evaluate` found: a panel per score, a line per group of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from hardsight.clusters import layout
from hardsight.errors import InputError
from hardsight.evaluation.maps import read_maps
from hardsight.extras import need
from hardsight.figures.evaluated import POOLED, Curve, Evaluated
from hardsight.figures.evaluationnames import CurveKind, curve_kind, score_title
from hardsight.figures.style import GREY, draw_band, group_colours, line_styles, new_figure, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 4
_CLASSES = 20  # that a legend names
_STRIPS = 6  # pictures of the figure of maps
_FEATURES = "clusters/features"  # a column of samples


def plot_evaluated(found: Evaluated, question: str, curve: str, figure: Figure | None = None) -> Figure:
    """A curve of every group, a panel per score and data set: reliability, accuracy under attack, margins, energy.

    The band is one standard deviation over the runs of a group; of one run, its 95 % interval over samples.

    Args:
        found: An evaluation's folder, read (`hardsight.figures.evaluated.read_evaluated`).
        question: Such as ``"robustness"``.
        curve: Such as ``"attack"``.
        figure: Drawn into this one.
    """
    kind = curve_kind(question, curve)
    panels = _known(found, question, curve, kind)
    columns = min(_COLUMNS, len(panels))
    figure, axes = new_figure(-(-len(panels) // columns), columns, figure)
    for axis, ((score, on), own) in zip(axes.flat[: len(panels)], panels.items(), strict=True):
        _draw(axis, own, kind)
        axis.set_title(plain(" · ".join(filter(None, (score_title(score), on)))), fontsize=9)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    _legend(axes.flat[min(columns, len(panels)) - 1])
    return figure


def plot_ood(found: Evaluated, figure: Figure | None = None) -> Figure:
    """Scores of a network's own data and of strange ones: a row per score and data set, a column per group."""
    kind = curve_kind("ood", "inside")
    inside, outside = (_known(found, "ood", name, kind) for name in ("inside", kind.against))
    figure, axes = new_figure(len(inside), len(found.groups), figure, width=2.8)
    for place, ((score, on), own) in enumerate(inside.items()):
        line = axes[place]
        for axis, group in zip(line, found.groups, strict=True):
            if group in own:
                _draw(axis, {"own data": own[group], on: outside[score, on][group]}, kind)
            axis.set_xlabel(score_title(score))
            axis.set_title(plain(group) if axis in axes[0] else "", fontsize=9)
        if not place or len({on for _, on in inside}) > 1:  # each row has strangers of its own
            _legend(line[-1])
    return figure


def _known(
    found: Evaluated, question: str, curve: str, kind: CurveKind
) -> Mapping[tuple[str, str], Mapping[str, Curve]]:
    curves = found.curves(question, curve, kind.shape)
    if not curves:
        raise InputError(
            f"OUT: {found.path} has no {kind.title.lower()} to draw; it was made without the question {question}."
        )
    return curves


def _draw(axis: Axes, curves: Mapping[str, Curve], kind: CurveKind) -> None:
    if kind.diagonal:
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    for (name, own), (colour, dash) in zip(curves.items(), line_styles(len(curves)), strict=True):
        label = f"{plain(name)} (n = {own.runs})" if own.runs > 1 else plain(name)
        ends = (-np.inf if kind.least is None else kind.least, np.inf if kind.most is None else kind.most)
        low, high = (np.clip(end, *ends) for end in (own.low, own.high))  # numpy 2.0 knows no open end
        draw_band(axis, own.x, own.y, low, high, colour, label, dash)
        if kind.shape in POOLED:
            axis.plot(own.x, own.y, ".", color=colour, markersize=5)
    axis.set_xlabel(kind.x)
    axis.set_ylabel(kind.y)
    if kind.most is not None:
        axis.set_ylim(-0.02 * kind.most, 1.02 * kind.most)


def _legend(axis: Axes, **options: Any) -> None:
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False, **options)


def plot_maps(found: Evaluated, figure: Figure | None = None) -> Figure:
    """Where the networks look in the same pictures (AMC Fig. 2, 6): a row per image, a column per group's first run."""
    told = read_maps(found.path)
    if told is None:
        raise InputError(f"OUT: {found.path} has no maps; evaluate with --explain.")
    groups = {run: group for group, runs in found.groups.items() for run in runs}
    chosen = told["pictures"][:: -(-len(told["pictures"]) // _STRIPS)]
    if figure is None:
        size = (1.3 * (len(told["runs"]) + 1), 1.55 * len(chosen))
        figure = need("matplotlib.figure").Figure(figsize=size, layout="constrained")
    figure, axes = new_figure(len(chosen), 1, figure)
    image = need("PIL.Image")
    for axis, one in zip(axes[:, 0], chosen, strict=True):
        with image.open(found.path / "maps" / one["file"]) as strip:
            axis.imshow(np.asarray(strip))
            width = strip.width / (len(told["runs"]) + 1)
        axis.set_axis_off()
        words = [one["label"]]
        words += [f"{groups[run]}: {one['classes'][run]}, {one['confidence'][run]:.0%}" for run in told["runs"]]
        for k, text in enumerate(words):
            axis.text((k + 0.5) * width, -3, plain(text), fontsize=6, ha="center", va="bottom")
    return figure


def plot_clusters(found: Evaluated, figure: Figure | None = None) -> Figure:
    """Features of each group's first run by class: two as they are (AMC Fig. 1), three on the sphere (Fig. 4), t-SNE
    of the directions of more (Fig. 5).
    """
    layouts = {group: _layout(found, runs[0]) for group, runs in found.groups.items() if runs}
    if any(own is None for own in layouts.values()) or not layouts:
        raise InputError(f"OUT: {found.path} has no clusters to draw; evaluate with the question clusters.")
    known: dict[str, Any] = {group: own for group, own in layouts.items() if own is not None}
    on_ball = any(how == "sphere" for *_, how in known.values())
    options: dict[str, Any] = {"subplot_kw": {"projection": "3d"}} if on_ball else {}
    columns = min(_COLUMNS, len(known))
    figure, axes = new_figure(-(-len(known) // columns), columns, figure, **options)
    for axis in axes.flat[len(known) :]:
        axis.remove()
    names = np.unique(np.concatenate([classes for _, classes, _ in known.values()]))
    few = need("matplotlib").colormaps["tab20" if len(names) > 10 else "tab10"].colors
    shades = few[: len(names)] if len(names) <= len(few) else group_colours(len(names), ordered=True)
    colours = dict(zip(names, shades, strict=True))
    for axis, (group, (places, classes, how)) in zip(axes.flat[: len(known)], known.items(), strict=True):
        for name, colour in colours.items():
            axis.scatter(*places[classes == name].T, s=5, color=colour, label=f"class {name:g}", linewidths=0)
        axis.set_title(plain(group), fontsize=9)
        if not on_ball:
            axis.set_aspect("equal", "datalim")
        if how == "sphere":
            ends = {f"{direction}lim": (-1, 1) for direction in "xyz"}
            axis.set(**ends, **{f"{direction}ticks": [-1, 0, 1] for direction in "xyz"})
            axis.set_box_aspect((1, 1, 1))
            axis.tick_params(labelsize=6, pad=-3)
        elif how == "tsne":
            axis.set(xticks=[], yticks=[])  # places mean nothing, only who is near whom
        elif how == "plane":
            axis.set(xlabel="feature 1", ylabel="feature 2")
    if len(names) <= _CLASSES:
        _legend(axes.flat[columns - 1], markerscale=3)
    return figure


def _layout(found: Evaluated, run: str) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Places and classes of a run's samples that have some, and how they are laid out; files of samples are in the
    order of the plan's runs.
    """
    place = [one["name"] for one in found.plan["runs"]].index(run)
    [file] = (found.path / "samples").glob(f"{place:02d}-*.parquet")
    if _FEATURES not in pq.read_schema(file).names:
        return None
    table = pq.read_table(file, columns=[_FEATURES, "label"])
    features = table[_FEATURES].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    known = np.isfinite(features).all(1)
    how = "plane" if features.shape[1] == 2 else "sphere" if features.shape[1] == 3 else "tsne"
    return layout(features[known], how), table["label"].to_numpy()[known], how
