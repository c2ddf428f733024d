"""Histograms of the scores, right and wrong samples apart."""

from __future__ import annotations

import numpy as np

from hardsight.report.formatting import plain
from hardsight.report.rows import Rows, counts
from hardsight.report.sections import Section, score_axis

BINS = 40


def build(rows: Rows) -> Section | None:
    """Distributions of the main score, the confidence, the logit score and the norm, if the table has them."""
    charts, parts = [], {"all": np.ones(len(rows), bool)}
    if rows.judged.any():
        parts = {"right": rows.right, "wrong": rows.judged & ~rows.right}
        parts |= {} if rows.judged.all() else {"unlabeled": ~rows.judged}
    for name in [name for name in dict.fromkeys((rows.main, "confidence", rows.logit, "norm")) if name in rows.scores]:
        axis = score_axis(rows, name)
        bins = axis.bins(rows.scores[name], BINS)
        series = [{"name": part, "counts": counts(bins[mask], BINS).tolist()} for part, mask in parts.items()]
        edges = plain(np.linspace(axis.low, axis.high, BINS + 1), 6)
        charts.append({"key": name, "title": axis.title, "edges": edges, "series": series})
    return Section("histograms", "Distributions", data={"charts": charts}) if charts else None
