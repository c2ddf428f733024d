"""Scatter plots: two columns against each other, with the density of all samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from hardsight.report.formatting import counted, score_title
from hardsight.report.points import Axis, axis, cell_of, density
from hardsight.report.rows import Rows, oriented
from hardsight.scores import SCORES
from hardsight.table import harder_end


class View(NamedTuple):
    """Two columns against each other; `color` names a column from 0 to 1 that colors the points."""

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    xs: np.ndarray
    ys: np.ndarray
    color: str = ""

    def cells(self) -> np.ndarray:
        """Cell of each row in the view's grid."""
        return cell_of(self.x, self.y, self.xs, self.ys)

    def as_dict(self, drawn: str = "") -> dict[str, Any]:
        beyond = self.x.beyond(self.xs) + self.y.beyond(self.ys)
        edge = f" {counted(beyond, 'value lies', 'values lie')} beyond the edge and drawn there." if beyond else ""
        return {
            "key": self.key,
            "title": self.title,
            "note": self.note + edge + drawn,
            "x": self.x.as_dict(),
            "y": self.y.as_dict(),
            "density": density(self.x, self.y, self.xs, self.ys),
            "color": self.color,
        }


def score_axis(rows: Rows, name: str, values: np.ndarray | None = None) -> Axis:
    """The axis of a score, with its direction in words."""
    where = "" if rows.labelled or not SCORES[name].needs_labels else " at the prediction"
    words = {
        "avh": f"C·AVH{where} (1 = chance; larger = harder)",
        "confidence": f"confidence in the {'label' if rows.labelled else 'prediction'}",
        "norm": "norm of the feature",
    }
    title = words.get(name, f"{score_title(name)}{where} ({harder_end(name)} = harder)")
    values = rows.scores[name] if values is None else values
    return axis(name, title, values, (0.0, 1.0) if name in ("confidence", "avc") else None)


def rank_axis(column: str, score: str | None) -> Axis:
    """The axis of ranks by a score."""
    by = f" by {score_title(score)}" if score is not None else ""
    return Axis(column, f"rank{by} (1 = hardest)", 0.0, 1.0)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> tuple[float | None, int]:
    """Spearman's correlation over the rows that have both, None where it does not exist; and how many have."""
    known = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[known], b[known]
    if len(a) < 3 or a.min() == a.max() or b.min() == b.max():
        return None, len(a)
    return float(spearmanr(a, b).statistic), len(a)


def agreement_note(rows: Rows, second: str) -> str:
    """How well the ranks by the main score and by another agree."""
    rho, n = rank_correlation(rows.hardness, oriented(rows, second))
    if rho is None:
        return "Their rank correlation does not exist (too few different values)."
    return f"Spearman's rank correlation of the two hardnesses is {rho:.3f} (n = {n:,})."


def norm_note(rows: Rows) -> str:
    """How the norm goes with hardness, in words."""
    with_main, n = rank_correlation(rows.scores["norm"], rows.hardness)
    if with_main is None:
        return "The norm's rank correlation with hardness does not exist (too few different values)."
    also = ""
    if rows.rank_logit is not None:
        with_logit, _ = rank_correlation(rows.scores["norm"], rows.rank_logit)
        also = "" if with_logit is None else f", with {score_title(rows.logit)} {with_logit:+.3f}"
    name = f"{score_title(rows.main)}{' turned so that larger is harder' if rows.sign < 0 else ''}"
    return f"Spearman's rank correlation of the norm with {name} is {with_main:+.3f}{also} (n = {n:,})."
