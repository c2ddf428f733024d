"""The samples themselves: the hardest and the easiest, over all and by class, their scores, and scatter plots."""

from __future__ import annotations

import numpy as np

from hardsight.report.formatting import score_title
from hardsight.report.rows import Rows
from hardsight.report.sections import Column, Inputs, Notice, SampleList, Section
from hardsight.report.views import View, agreement_note, norm_note, rank_axis, score_axis
from hardsight.scores import SCORES
from hardsight.table import harder_end

LENGTH = 48  # samples in a list over all
CLASS_LENGTHS = ((100, 12), (300, 6))  # up to so many classes, so many samples in a class's list


def build(inputs: Inputs) -> Section:
    """The first part of the page."""
    rows = inputs.rows
    hardest, easiest, note = by_class(rows)
    views = _views(rows)
    columns = {name: _column(rows, name) for name in dict.fromkeys([*([rows.main] if rows.main else []), *rows.scores])}
    if any(view.y.column == "rank_angle" for view in views):
        columns["rank_angle"] = rank_column(rows.rank_main, None, "the angle")
    return Section(
        "by_class",
        data={"hardest": hardest, "easiest": easiest},
        lists=hardest_and_easiest(rows),
        parts=[*hardest, *easiest],
        views=views,
        columns=columns,
        notices=[Notice("info", note)] if note else [],
    )


def _column(rows: Rows, name: str) -> Column:
    score = SCORES[name]
    at_prediction = " Taken at the prediction." if score.needs_labels and not rows.labelled else ""
    scaled = " Times the number of classes: 1 is chance." if name == "avh" else ""
    summary = score.summary.replace("`", "")  # markup of the reference pages
    return Column(rows.scores[name], score_title(name), f"{summary}{scaled}{at_prediction}", harder_end(name))


def rank_column(ranks: np.ndarray, score: str | None, by: str) -> Column:
    """Ranks as numbers of the samples."""
    title = rank_axis("", score).title
    return Column(ranks, title, f"Rank by {by} among all samples, from 0 to 1.", harder_end("rank_angle"))


def _views(rows: Rows) -> list[View]:
    """AVH against confidence and against the norm; a single score against its own rank."""
    if rows.main is None:
        return []
    views = []
    xs, x = rows.value, score_axis(rows, rows.main)
    name = "AVH" if rows.main == "avh" else score_title(rows.main)
    second = next((n for n in ("confidence", "nll", "margin", "entropy") if n in rows.scores and n != rows.main), None)
    if second is not None:
        note = agreement_note(rows, second)
        if rows.logit is not None:
            note += " Samples far from the band are those on which angle and logit disagree."
        ys, y = rows.scores[second], score_axis(rows, second)
        views.append(View(f"{rows.main}-{second}", f"{name} against {score_title(second)}", note, x, y, xs, ys))
    if "norm" in rows.scores and rows.main != "norm":
        title, ys, y = f"{name} against the norm of the feature", rows.scores["norm"], score_axis(rows, "norm")
        views.append(View(f"{rows.main}-norm", title, norm_note(rows), x, y, xs, ys))
    if not views and rows.logit is None:
        note, y = "The table has only one score.", rank_axis("rank_angle", None)
        views.append(View(f"{rows.main}-rank", score_title(rows.main), note, x, y, xs, rows.rank_main))
    return views


def top(values: np.ndarray, k: int) -> np.ndarray:
    """Places of the k largest values, largest first; ties in row order; NaN never."""
    valid = np.flatnonzero(~np.isnan(values))
    if k <= 0 or not len(valid):
        return valid[:0]
    if len(valid) > k:
        least = np.partition(values[valid], len(valid) - k)[len(valid) - k]
        above, tied = valid[values[valid] > least], valid[values[valid] == least]
        valid = np.concatenate([above, tied[: k - len(above)]])
        valid.sort()
    return valid[np.argsort(-values[valid], kind="stable")]


def hardest_and_easiest(rows: Rows) -> list[SampleList]:
    """The two ends of the main score."""
    where = "at the label" if rows.labelled else "at the prediction, for there are no labels"
    name = score_title(rows.main)
    return [
        SampleList("hardest", "Hardest", f"By {name}, taken {where}.", top(rows.hardness, LENGTH)),
        SampleList("easiest", "Easiest", f"By {name}, taken {where}.", top(-rows.hardness, LENGTH)),
    ]


def by_class(rows: Rows) -> tuple[list[np.ndarray], list[np.ndarray], str]:
    """The hardest and the easiest rows of each class, and which classes have such lists.

    With many classes only the hardest ones (by the mean) have them; the others' lists are empty.
    """
    valid = np.flatnonzero((rows.at >= 0) & ~np.isnan(rows.hardness))
    group, hardness = rows.at[valid], rows.hardness[valid]
    count = np.bincount(group, minlength=rows.codes)
    present = np.flatnonzero(count)
    length = next((k for most, k in CLASS_LENGTHS if len(present) <= most), CLASS_LENGTHS[-1][1])
    most = CLASS_LENGTHS[-1][0]
    shown, note = present, ""
    if len(present) > most:
        mean = np.bincount(group, hardness, minlength=rows.codes)[present] / count[present]
        shown = present[top(mean, most)]
        note = f"Only the {most:,} hardest of {len(present):,} classes have lists of their own."
    inside = np.isin(group, shown)
    valid, group, hardness = valid[inside], group[inside], hardness[inside]
    none = valid[:0]
    lists: list[list[np.ndarray]] = []
    for values in (-hardness, hardness):
        order = np.lexsort((values, group))
        starts = np.searchsorted(group[order], shown)
        ends = np.searchsorted(group[order], shown, side="right")
        of_class = [none] * rows.codes
        for code, start, end in zip(shown.tolist(), starts.tolist(), ends.tolist(), strict=True):
            of_class[code] = valid[order[start : min(end, start + length)]]
        lists.append(of_class)
    return lists[0], lists[1], note
