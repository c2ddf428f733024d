"""The charts of the comparison page: small multiples of the groups' curves, each on one grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hardsight.evaluation.naming import CurveKind, curve_kind, score_title
from hardsight.evaluation.reading import POOLED, Curve, Evaluated, distinct

_POINTS = 160  # of a line: more than a chart is wide enough to show
_PANELS = 9  # side by side, before a selector takes over


def charts_of(results: Evaluated, question: str) -> list[dict[str, Any]]:
    """The charts of a question, as plain lists for the script."""
    names = distinct(one["curve"] for one in results.points if one["question"] == question)
    kinds = {name: curve_kind(question, name) for name in names}
    second = {kind.against for kind in kinds.values()}
    return [_chart(results, question, name, kind) for name, kind in kinds.items() if name not in second]


def _chart(results: Evaluated, question: str, name: str, kind: CurveKind) -> dict[str, Any]:
    """What is drawn of a curve: sets, one of which is chosen, of panels side by side, of lines."""
    curves = results.curves(question, name, kind.shape)
    if kind.against:
        sets = _two_by_group(curves, results.curves(question, kind.against, kind.shape))
    else:
        colors = {group: k for k, group in enumerate(results.groups)}
        panels = {key: _panel(score_title(key[0]), own, colors, kind.shape) for key, own in curves.items()}
        ons = distinct(on for _, on in curves)
        if max(sum(at == on for _, at in curves) for on in ons) > _PANELS:
            sets = [_set(" · ".join(filter(None, (one["name"], on))), [one]) for (_, on), one in panels.items()]
        else:
            sets = [_set(on, [one for (_, at), one in panels.items() if at == on]) for on in ons]
    return {
        "key": f"{question}-{name}", "title": kind.title, "note": kind.note, "x": kind.x, "y": kind.y,
        "kind": "percent" if kind.unit == "%" else "number", "least": kind.least, "most": kind.most,
        "diagonal": kind.diagonal, "join": kind.shape in POOLED, "sets": sets,
    }  # fmt: skip


def _set(name: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "panels": panels}


def _two_by_group(
    first: Mapping[tuple[str, str], Mapping[str, Curve]], second: Mapping[tuple[str, str], Mapping[str, Curve]]
) -> list[dict[str, Any]]:
    """A panel per group with its own data and the strange ones; one score and one data set at a time."""
    sets = []
    for (score, on), groups in first.items():
        panels = []
        for group, curve in groups.items():
            two = {"own data": curve, on or "other data": second[score, on][group]}
            panels.append(_panel(group, two, {name: k for k, name in enumerate(two)}, "bars"))
        sets.append(_set(" · ".join(filter(None, (score_title(score), on))), panels))
    return sets


def _panel(name: str, curves: Mapping[str, Curve], colors: Mapping[str, int], shape: str) -> dict[str, Any]:
    """Curves on one grid: that of all their points; where it would be long, evenly spaced."""
    x = np.unique(np.concatenate([curve.x for curve in curves.values()]))
    if len(x) > _POINTS and shape not in POOLED:
        x = np.linspace(x[0], x[-1], _POINTS)
    return {"name": name, "x": _plain(x), "lines": [_line(own, colors[own], c, x, shape) for own, c in curves.items()]}


def _line(name: str, k: int, curve: Curve, x: np.ndarray, shape: str) -> dict[str, Any]:
    """A curve on another grid: read off between its points, but for means of bins, which stay where they are."""
    if shape in POOLED or len(np.intersect1d(curve.x, x)) == len(x):
        at = np.searchsorted(curve.x, x).clip(max=len(curve.x) - 1)
        here = curve.x[at] == x
        read = {key: np.where(here, getattr(curve, key)[at], np.nan) for key in ("y", "low", "high", "n")}
    else:
        read = {
            key: np.interp(x, curve.x, getattr(curve, key), left=np.nan, right=np.nan) for key in ("y", "low", "high")
        }
    known = np.isfinite(read["low"]).any()
    counted = "n" in read and curve.n.any()
    return {
        "k": k, "name": name, "y": _plain(read["y"]),
        "low": _plain(read["low"]) if known else None, "high": _plain(read["high"]) if known else None,
        "n": _plain(read["n"]) if counted else None,
    }  # fmt: skip


def _plain(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, to five digits: a chart shows no more."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
