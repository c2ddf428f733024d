"""Histograms of the scores, right and wrong samples apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.report.formatting import plain
from hardsight.report.rows import Rows
from hardsight.report.sections import Inputs, Section
from hardsight.report.views import score_axis

BINS = 40


def build(inputs: Inputs) -> Section | None:
    """The section, where there is a score."""
    charts = histograms(inputs.rows)
    return Section("histograms", "Distributions", {"charts": charts}) if charts else None


def histograms(rows: Rows) -> list[dict[str, Any]]:
    """Distributions of the main score, the confidence, the logit score and the norm."""
    parts = {"all": np.ones(len(rows), bool)}
    if rows.judged.any():
        parts = {"right": rows.right, "wrong": rows.judged & ~rows.right}
        parts |= {} if rows.judged.all() else {"unlabelled": ~rows.judged}
    charts = []
    for name in dict.fromkeys((rows.main, "confidence", rows.logit, "norm")):
        if name is None or name not in rows.scores:
            continue
        axis = score_axis(rows, name)
        bins = axis.bins(rows.scores[name], BINS)
        series = [
            {"name": part, "counts": np.bincount(bins[mask & (bins >= 0)], minlength=BINS).tolist()}
            for part, mask in parts.items()
        ]
        edges = plain(np.linspace(axis.low, axis.high, BINS + 1), 6)
        charts.append({"key": name, "title": axis.title, "edges": edges, "series": series})
    return charts
