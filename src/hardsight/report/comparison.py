"""Against another run: what became easier or harder, for the page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import compare
from hardsight.directions import harder_end
from hardsight.printing import signed
from hardsight.report.formatting import between, counted, cut_name, flags, percent, score_title, share
from hardsight.report.rows import Rows
from hardsight.report.samples import largest, top
from hardsight.report.sections import Axis, Column, Section, View, score_axis, table
from hardsight.stats import FEW, holm, moments, student
from hardsight.tablefiles import floats

MOST_CLASSES = 40


def build(rows: Rows) -> Section | None:
    """The section, if there is another run."""
    if rows.against is None:
        return None
    compared = compare(rows.table, rows.against)
    meta, by_row = compared.meta.comparison, compared.aligned(rows.ids.combine_chunks())
    by, counts = meta.get("by"), meta["counts"]
    before = change = np.full(len(rows), np.nan)
    if by is not None:
        column = f"{by}_before" if f"{by}_before" in compared else f"{by}_pred_before"
        before = meta["scales"][1] * floats(by_row[column])
        change = floats(by_row[f"{by}_change"])
    classes, left_out = _class_table(rows, by_row, before, change, meta)
    note = f"{cut_name(meta['after'])} against {cut_name(meta['before'])}, over the same samples."
    if counts["relabelled"]:
        note += f" {counted(counts['relabelled'], 'sample has', 'samples have')} another label now and are left out."
    if left_out:
        note += f" {counted(MOST_CLASSES, 'class', 'classes')} with the largest changes; {left_out:,} are left out."
    section = Section("comparison", "Comparison", note, tiles=_tiles(meta), tables=[classes])
    if by is None:
        return section
    name, larger = score_title(by), meta["harder"] == "larger"
    over = score_axis(rows, by, np.concatenate([rows.scores[by], before]))
    x, y = (Axis(c, f"{name} {w}", over.low, over.high) for c, w in (("before", "before"), (by, "after")))
    where = "Below the diagonal is easier now." if larger else "Above it is easier now."
    harder, note = change if larger else -change, f"By the change of {name} against the other run."
    more = largest("harder", "Became harder", note, harder, harder > 0)
    less = largest("easier", "Became easier", note, -harder, harder < 0)
    old = Column(before, x.title, "The same in the run that this one is compared with.", harder_end(by))
    new = Column(change, "change", "After minus before.", harder_end(f"{by}_change"))
    view = View("before-after", f"{name} before and after", where, x, y)
    return replace(section, lists=[more, less], views=[view], columns={"before": old, "change": new})


def _tiles(meta: dict[str, Any]) -> list[tuple[str, str, str]]:
    counts, test = meta["counts"], meta.get("mcnemar")
    unmatched = f"{counts['only_after']:,} only in this run, {counts['only_before']:,} only in the other"
    tiles = [("in both runs", f"{counts['matched']:,}", unmatched)]
    if test:
        accuracy = f"{percent(meta['accuracy_before'])} → {percent(meta['accuracy'])}"
        tiles.append(("accuracy", accuracy, f"McNemar's exact test: p = {test['p']:.2g}, n = {test['n']:,}"))
        tiles.append(("wrong before, right now", f"{test['fixed']:,}", "fixed"))
        tiles.append(("right before, wrong now", f"{test['broken']:,}", "broken"))
    if "by" in meta:
        change = meta["mean_change"]
        value = "none" if change["value"] is None else signed(change["value"], ".3g")
        note = f"{between(change['low'], change['high'], '+.3g')}, paired, n = {change['n']:,}"
        tiles.append((f"mean change of {score_title(meta['by'])}", value, note))
    return tiles


def _class_table(rows: Rows, by_row: pa.Table, before: np.ndarray, change: np.ndarray, meta: Any) -> tuple[Any, int]:
    """Classes whose mean changed most, with paired intervals; and how many are left out."""
    codes, by, mean = rows.codes, meta.get("by"), moments(change, rows.at, rows.codes)
    n = mean.n
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = student(mean.mean, np.where(n >= FEW, mean.variance / n, np.nan), n - 1)
    corrected, after = holm(gap.p), change if by is None else rows.scores[by]
    after, before = (moments(np.where(np.isnan(change), np.nan, x), rows.at, codes).mean for x in (after, before))
    fixed, broken = (pc.fill_null(by_row[name], False).to_numpy() for name in ("fixed", "broken"))
    same = rows.judged & ~pc.fill_null(by_row["relabelled"], True).to_numpy()  # null if the other run has no sample
    judged, right, right_before = (
        np.bincount(rows.label[same & mask], minlength=codes)
        for mask in (rows.judged, rows.right, (rows.right & ~fixed) | broken)
    )
    present = np.flatnonzero((n > 0) | (judged > 0))
    shown = present[top(np.nan_to_num(np.abs(mean.mean[present])), MOST_CLASSES)]
    sign = -1 if meta.get("harder") == "smaller" else 1
    columns = [
        ("class", "class", "text", [rows.class_name(code) for code in shown.tolist()]),
        ("n", "samples in both", "int", n[shown].astype(np.int64)),
        ("before", "mean before", "number", before[shown]),
        ("after", "mean now", "number", after[shown]),
        ("change", "change (95%, paired)", "signed", *(part[shown] for part in (mean.mean, gap.low, gap.high))),
        ("p", "p (corrected)", "number", corrected[shown]),
        ("accuracy_before", "accuracy before", "percent", share(right_before, judged)[shown]),
        ("accuracy", "accuracy now", "percent", share(right, judged)[shown]),
        ("flag", "significant at 5% (Holm)", "flag", flags(sign * mean.mean[shown], corrected[shown])),
    ]
    classes = table("comparison", "Classes whose mean changed", columns, sort="change", search="class")
    return classes, len(present) - len(shown)
