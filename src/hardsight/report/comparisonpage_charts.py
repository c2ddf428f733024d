"""The charts of the comparison page: small multiples of the groups' curves, each on one grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from hardsight.evaluation.curves import POOLED, Curve
from hardsight.evaluation.naming import CurveKind, curve_kind, score_title, variant_title
from hardsight.evaluation.results import Evaluation
from hardsight.report.formatting import plain

_POINTS = 160  # of a line: more than a chart is wide enough to show
_PANELS = 9  # side by side, before a selector takes over


def charts_of(evaluation: Evaluation, question: str) -> list[dict[str, Any]]:
    """The charts of a question, as plain lists for the script."""
    names = evaluation.points.filter(pc.field("question") == question)["curve"].unique().to_pylist()
    kinds = {name: curve_kind(question, name) for name in names}
    second = {kind.against for kind in kinds.values()}
    return [_chart(evaluation, question, name, kind) for name, kind in kinds.items() if name not in second]


def _chart(evaluation: Evaluation, question: str, name: str, kind: CurveKind) -> dict[str, Any]:
    """One curve as sets of panels; the reader selects a set, and its panels stand side by side."""
    curves = evaluation.curves(question, name, kind.shape)
    sets: dict[str, list[dict[str, Any]]] = {}
    if kind.against:  # a panel per group; one score and one data set at a time
        second = evaluation.curves(question, kind.against, kind.shape)
        for (score, on), groups in curves.items():
            pairs = {
                group: {"in-distribution data": curve, on or "OOD data": second[score, on][group]}
                for group, curve in groups.items()
            }
            panels = [_panel(group, pair, list(pair), kind.shape) for group, pair in pairs.items()]
            sets[variant_title(score, on, None)] = panels
    else:
        sizes = [sum(at == on for _, at in curves) for _, on in curves]
        for (score, on), groups in curves.items():
            panel = _panel(score_title(score), groups, list(evaluation.groups), kind.shape)
            sets.setdefault(variant_title(score, on, None) if max(sizes) > _PANELS else on, []).append(panel)
    return {
        "key": f"{question}-{name}", "title": kind.title, "note": kind.note, "x": kind.x, "y": kind.y,
        "kind": "percent" if kind.unit == "%" else "number", "least": kind.least, "most": kind.most,
        "diagonal": kind.diagonal, "join": kind.shape in POOLED,
        "sets": [{"name": title, "panels": panels} for title, panels in sets.items()],
    }  # fmt: skip


def _panel(title: str, curves: Mapping[str, Curve], colors: list[str], shape: str) -> dict[str, Any]:
    """Curves on one grid: that of all their points; where it would be long, evenly spaced."""
    x = np.unique(np.concatenate([curve.x for curve in curves.values()]))
    if len(x) > _POINTS and shape not in POOLED:
        x = np.linspace(x[0], x[-1], _POINTS)
    lines = [{"k": colors.index(name), "name": name, **_line(curve, x, shape)} for name, curve in curves.items()]
    return {"name": title, "x": plain(x, 5), "lines": lines}


def _line(curve: Curve, x: np.ndarray, shape: str) -> dict[str, Any]:
    """A curve on another grid: interpolated, except for means of bins, which stay where they are."""
    if shape in POOLED or np.isin(x, curve.x).all():
        at = np.searchsorted(curve.x, x).clip(max=len(curve.x) - 1)
        present = curve.x[at] == x
        y, low, high, n = (
            np.where(present, values[at], np.nan) for values in (curve.y, curve.low, curve.high, curve.n)
        )
    else:
        y, low, high = (np.interp(x, curve.x, v, left=np.nan, right=np.nan) for v in (curve.y, curve.low, curve.high))
        n = np.zeros(len(x))
    band = np.isfinite(low).any()
    return {
        "y": plain(y, 5),
        "low": plain(low, 5) if band else None,
        "high": plain(high, 5) if band else None,
        "n": plain(n, 5) if np.nansum(n) else None,
    }
