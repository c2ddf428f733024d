"""Against another run: what became easier or harder, for the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from hardsight.comparison import compare, floats
from hardsight.report.formatting import between, counted, cut_name, flags, percent, score_title, share
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH, top
from hardsight.report.sections import Column, Inputs, SampleList, Section, table
from hardsight.report.views import Axis, View, score_axis
from hardsight.stats import holm, moments, student
from hardsight.table import harder_end

MOST_CLASSES = 40


class Changes(NamedTuple):
    """What another run says of the same rows; NaN and False where it has none."""

    meta: dict[str, Any]
    by: str | None
    before: np.ndarray
    change: np.ndarray
    judged: np.ndarray
    right: np.ndarray
    right_before: np.ndarray


def build(inputs: Inputs) -> Section | None:
    """The section, where there is another run."""
    if inputs.against is None:
        return None
    rows, changed = inputs.rows, changes(inputs.rows, inputs.against)
    meta, counts = changed.meta, changed.meta["counts"]
    classes, left_out = _class_table(rows, changed)
    note = f"{cut_name(meta['after'])} against {cut_name(meta['before'])}, over the same samples."
    if counts["relabelled"]:
        note += f" {counted(counts['relabelled'], 'sample has', 'samples have')} another label now and are left out."
    if left_out:
        note += (
            f" {counted(len(classes['rows']), 'class', 'classes')} with the largest changes; {left_out:,} are left out."
        )
    section = Section("comparison", "Comparison", note, tiles=_tiles(changed), tables=[classes])
    if changed.by is None:
        return section
    view = _view(rows, changed, changed.by)
    columns = {
        "before": Column(
            changed.before, view.x.title, "The same in the run that this one is compared with.", harder_end(changed.by)
        ),
        "change": Column(changed.change, "change", "After minus before.", harder_end(f"{changed.by}_change")),
    }
    return replace(section, lists=_lists(changed), views=[view], columns=columns)


def _tiles(changed: Changes) -> list[tuple[str, str, str]]:
    meta, counts, test = changed.meta, changed.meta["counts"], changed.meta.get("mcnemar")
    unmatched = f"{counts['only_after']:,} only in this run, {counts['only_before']:,} only in the other"
    tiles = [("in both runs", f"{counts['matched']:,}", unmatched)]
    if test:
        accuracy = f"{percent(meta['accuracy_before'])} → {percent(meta['accuracy'])}"
        tiles += [
            ("accuracy", accuracy, f"McNemar's exact test: p = {test['p']:.2g}, n = {test['n']:,}"),
            ("wrong before, right now", f"{test['fixed']:,}", "fixed"),
            ("right before, wrong now", f"{test['broken']:,}", "broken"),
        ]
    if changed.by is not None:
        change = meta["mean_change"]
        value = "none" if change["value"] is None else f"{change['value']:+.3g}"
        note = f"{between(change['low'], change['high'], '+.3g')}, paired, n = {change['n']:,}"
        tiles.append((f"mean change of {score_title(changed.by)}", value, note))
    return tiles


def changes(rows: Rows, against: Any) -> Changes:
    """Compare the rows with another run or table."""
    compared = compare(rows.table, against)
    meta, arrow = compared.meta.comparison, compared.to_arrow()
    matched = pc.index_in(rows.ids, value_set=arrow["id"].combine_chunks())
    there = pc.is_valid(matched).to_numpy()  # compared rows keep the order of these
    by = meta.get("by")

    def spread_out(values: np.ndarray, fill: Any) -> np.ndarray:
        out = np.full(len(rows), fill)
        out[there] = values
        return out

    before = change = np.full(len(rows), np.nan)
    if by is not None:
        column = f"{by}_before" if f"{by}_before" in compared else f"{by}_pred_before"
        before = spread_out(meta["scales"][1] * floats(arrow[column]), np.nan)
        change = spread_out(floats(arrow[f"{by}_change"]), np.nan)
    fixed, broken, other = (spread_out(compared[name], False) for name in ("fixed", "broken", "relabelled"))
    judged = rows.judged & there & ~other
    right = rows.right & judged
    return Changes(meta, by, before, change, judged, right, (right & ~fixed) | broken)


def _lists(changed: Changes) -> list[SampleList]:
    """The samples that became easier and harder the most."""
    harder = changed.change if changed.meta["harder"] == "larger" else -changed.change
    name = score_title(changed.by)
    lists = []
    for key, title, values in (("harder", "Became harder", harder), ("easier", "Became easier", -harder)):
        with np.errstate(invalid="ignore"):
            rows_of = top(np.where(values > 0, values, np.nan), LENGTH)
        lists.append(SampleList(key, title, f"By the change of {name} against the other run.", rows_of))
    return lists


def _view(rows: Rows, changed: Changes, by: str) -> View:
    """Before against after, on one scale."""
    values = rows.scores[by]
    over, name = score_axis(rows, by, np.concatenate([values, changed.before])), score_title(by)
    x, y = (Axis(c, f"{name} {w}", over.low, over.high) for c, w in (("before", "before"), (by, "after")))
    note = "Below the diagonal is easier now." if changed.meta["harder"] == "larger" else "Above it is easier now."
    return View("before-after", f"{name} before and after", note, x, y, changed.before, values)


def _class_table(rows: Rows, changed: Changes) -> tuple[dict[str, Any], int]:
    """Classes whose mean changed most, with paired intervals; and how many are left out."""
    codes, paired = rows.codes, ~np.isnan(changed.change)
    mean = moments(changed.change, rows.at, codes)
    n = mean.n
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = np.where(n >= 5, mean.variance / n, np.nan)
    gap = student(mean.mean, variance, n - 1)
    corrected = holm(gap.p)
    values = np.full(len(rows), np.nan) if changed.by is None else rows.scores[changed.by]
    after, before = (moments(np.where(paired, v, np.nan), rows.at, codes).mean for v in (values, changed.before))
    judged, right, right_before = (
        np.bincount(rows.label[mask], minlength=codes) for mask in (changed.judged, changed.right, changed.right_before)
    )
    present = np.flatnonzero((n > 0) | (judged > 0))
    shown = present[top(np.nan_to_num(np.abs(mean.mean[present])), MOST_CLASSES)]
    sign = -1 if changed.meta.get("harder") == "smaller" else 1
    names = [rows.class_name(code) for code in shown.tolist()]
    columns = [
        ("class", "class", "text", names),
        ("n", "samples in both", "int", n[shown].astype(np.int64)),
        ("before", "mean before", "number", before[shown]),
        ("after", "mean now", "number", after[shown]),
        ("change", "change (95 %, paired)", "signed", *(part[shown] for part in (mean.mean, gap.low, gap.high))),
        ("p", "p (corrected)", "number", corrected[shown]),
        ("accuracy_before", "accuracy before", "percent", share(right_before, judged)[shown]),
        ("accuracy", "accuracy now", "percent", share(right, judged)[shown]),
        ("flag", "significant at 5 % (Holm)", "flag", flags(sign * mean.mean[shown], corrected[shown])),
    ]
    classes = table("comparison", "Classes whose mean changed", columns, sort="change", search="class")
    return classes, len(present) - len(shown)
