"""Views of all samples (two scores against each other, with densities) and histograms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from hardsight.report.points import Axis, axis, cell_of, density
from hardsight.report.rows import Rows, oriented
from hardsight.report.words import counted, number, score_title
from hardsight.scores import SCORES
from hardsight.table import harder_end

BINS = 40


class View(NamedTuple):
    """Two columns against each other; `colour` names a column from 0 to 1 that colours the points."""

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    xs: np.ndarray
    ys: np.ndarray
    colour: str = ""

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
            **({"colour": self.colour} if self.colour else {}),
        }


def views(rows: Rows) -> list[View]:
    """AVH against confidence, AVH against the norm, and the ranks by angle and by logit; as far as there are scores."""
    if rows.main is None:
        return []
    found = []
    xs, x = rows.value, score_axis(rows, rows.main)
    second = next((n for n in ("confidence", "nll", "margin", "entropy") if n in rows.scores and n != rows.main), None)
    if second is not None:
        title = f"{_short(rows.main)} against {score_title(second)}"
        note = _agreement(rows, second)
        if rows.logit is not None:
            note += " Samples far from the band are those on which angle and logit disagree."
        ys, y = rows.scores[second], score_axis(rows, second)
        found.append(View(f"{rows.main}-{second}", title, note, x, y, xs, ys))
    if "norm" in rows.scores and rows.main != "norm":
        title = f"{_short(rows.main)} against the norm of the feature"
        ys, y = rows.scores["norm"], score_axis(rows, "norm")
        found.append(View(f"{rows.main}-norm", title, norm_note(rows), x, y, xs, ys))
    if rows.rank_logit is not None:
        angle, logit = score_title(rows.main), score_title(rows.logit)
        why = " (confidence itself saturates at 1)" if rows.logit == "nll" else ""
        columns = (("rank_angle", angle), ("rank_logit", logit))
        x, y = (axis(c, f"rank by {t} (1 = hardest)", rows.value, (0.0, 1.0)) for c, t in columns)
        title, note = "Rank by angle against rank by logit", f"Ranks by {angle} and by {logit}{why}, from 0 to 1."
        found.append(View("ranks", title, note, x, y, rows.rank_main, rows.rank_logit))
    if not found:  # one score alone: against its own rank
        note = "The table holds one score only."
        y = axis("rank_angle", "rank (1 = hardest)", rows.value, (0.0, 1.0))
        found.append(View(f"{rows.main}-rank", score_title(rows.main), note, x, y, xs, rows.rank_main))
    return found


def _short(name: str) -> str:
    return "AVH" if name == "avh" else score_title(name)


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


def rank_correlation(a: np.ndarray, b: np.ndarray) -> tuple[float | None, int]:
    """Spearman's correlation over the rows that have both, None where it does not exist; and how many have."""
    known = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[known], b[known]
    if len(a) < 3 or a.min() == a.max() or b.min() == b.max():
        return None, len(a)
    return float(spearmanr(a, b).statistic), len(a)


def _agreement(rows: Rows, second: str) -> str:
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


def histograms(rows: Rows) -> list[dict[str, Any]]:
    """Distributions of the main score, the confidence and the norm; right and wrong apart where labels tell."""
    wrong = rows.judged & ~rows.right
    parts = [("right", rows.right), ("wrong", wrong)] if rows.judged.any() else [("all", np.ones(len(rows), bool))]
    if rows.judged.any() and not rows.judged.all():
        parts.append(("unlabelled", ~rows.judged))
    found = []
    for name in dict.fromkeys((rows.main, "confidence", rows.logit, "norm")):
        if name is None or name not in rows.scores:
            continue
        over = score_axis(rows, name)
        bins = over.bins(rows.scores[name], BINS)
        series = [
            {"name": part, "counts": np.bincount(bins[mask & (bins >= 0)], minlength=BINS).tolist()}
            for part, mask in parts
        ]
        edges = [number(e, 6) for e in np.linspace(over.low, over.high, BINS + 1).tolist()]
        found.append({"key": name, "title": over.title, "edges": edges, "series": series})
    return found
