"""The samples themselves: the hardest and the easiest, over all and by class, their scores, and scatter plots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hardsight.directions import harder_end
from hardsight.report.formatting import score_title
from hardsight.report.rows import Rows
from hardsight.report.sections import Column, Notice, SampleList, Section, View, correlation_note, rank_axis, score_axis
from hardsight.scores import SCORES
from hardsight.stats import moments

LENGTH = 48  # samples in a list over all
CLASS_LENGTHS = ((100, 12), (300, 6))  # up to so many classes, so many samples in a class's list


def build(rows: Rows) -> Section:
    """The first part of the page."""
    (lists, note), views = by_class(rows), _views(rows)
    columns = {name: _column(rows, name) for name in dict.fromkeys([*filter(None, [rows.main]), *rows.scores])}
    if any(view.y.column == "rank_angle" for view in views):
        columns["rank_angle"] = rank_column(lambda: rows.rank_main, None, "the angle")
    notices, parts = [Notice("info", note)] * bool(note), [part for end in lists.values() for part in end.values()]
    where = "at the label" if rows.labeled else "at the prediction, because there are no labels"
    note = f"By {score_title(rows.main)}, taken {where}."
    ends = [largest("hardest", "Hardest", note, rows.hardness), largest("easiest", "Easiest", note, -rows.hardness)]
    return Section("by_class", data=lists, lists=ends, parts=parts, views=views, columns=columns, notices=notices)


def _column(rows: Rows, name: str) -> Column:
    score = SCORES[name]
    at_prediction = " Taken at the prediction." if score.needs_labels and not rows.labeled else ""
    scaled = " Times the number of classes: 1 is chance." if name == "avh" else ""
    summary = score.summary.replace("`", "")  # markup of the reference pages
    return Column(lambda: rows.scores[name], score_title(name), f"{summary}{scaled}{at_prediction}", harder_end(name))


def rank_column(ranks: Callable[[], np.ndarray], score: str | None, by: str) -> Column:
    text = f"Rank by {by} among all samples, from 0 to 1."
    return Column(ranks, rank_axis("", score).title, text, harder_end("rank_angle"))


def _views(rows: Rows) -> list[View]:
    """AVH against confidence and against the norm; a single score against its own rank."""
    if rows.main is None:
        return []
    views, x, main = [], score_axis(rows, rows.main), score_title(rows.main)
    name = "AVH" if rows.main == "avh" else main
    second = next((n for n in ("confidence", "nll", "margin", "entropy") if n in rows.scores and n != rows.main), None)
    if second is not None:
        note = correlation_note(rows, rows.hardness, f"hardness by {main}", (second,))
        note += " Angle and logit disagree on samples far from the band." * (rows.logit is not None)
        title = f"{name} against {score_title(second)}"
        views.append(View(f"{rows.main}-{second}", title, note, x, score_axis(rows, second)))
    if "norm" in rows.scores and rows.main != "norm":
        note = correlation_note(rows, rows.scores["norm"], "the norm", (rows.main, rows.logit))
        title = f"{name} against the norm of the feature"
        views.append(View(f"{rows.main}-norm", title, note, x, score_axis(rows, "norm")))
    rank = View(f"{rows.main}-rank", main, "The table has only one score.", x, rank_axis("rank_angle", None))
    return views or [rank] * (rows.logit is None)


def top(values: np.ndarray, k: int) -> np.ndarray:
    """Places of the k largest values, largest first; ties in row order; NaN never."""
    valid = ~np.isnan(values)
    n = int(valid.sum())
    if 0 < k < n:
        valid = values >= np.partition(values, n - k)[n - k]  # those that tie at the end are cut below
    places = np.flatnonzero(valid)
    return places[np.argsort(-values[places], kind="stable")][: max(k, 0)]


def largest(key: str, title: str, note: str, values: np.ndarray, among: np.ndarray | bool = True) -> SampleList:
    """A list of the samples with the largest values."""
    return SampleList(key, title, note, top(values if among is True else np.where(among, values, np.nan), LENGTH))


def by_class(rows: Rows) -> tuple[dict[str, dict[int, np.ndarray]], str]:
    """The hardest and the easiest rows by class code, with many classes of the hardest (by the mean); and a note."""
    hardness = rows.hardness
    means = moments(hardness, rows.at, rows.codes)
    shown, note = np.flatnonzero(means.n), ""
    most, length = next((entry for entry in CLASS_LENGTHS if len(shown) <= entry[0]), CLASS_LENGTHS[-1])
    if len(shown) > most:
        note = f"Only the {most:,} hardest of {len(shown):,} classes have lists of their own."
        shown = np.sort(shown[top(means.mean[shown], most)])
    lists: dict[str, dict[int, np.ndarray]] = {"hardest": {}, "easiest": {}}
    for code in shown.tolist():
        of_class = rows.of_class(code)
        values = hardness[of_class]
        lists["hardest"][code], lists["easiest"][code] = (of_class[top(x, length)] for x in (values, -values))
    return lists, note
