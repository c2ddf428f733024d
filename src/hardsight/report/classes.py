"""The table of classes: how many, how hard, how often right, what they are taken for."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.report.confusions import pairs
from hardsight.report.formatting import counted, plain, score_title, share
from hardsight.report.label_errors import Suspects
from hardsight.report.rows import MANY_CLASSES, Rows, counts, joint_counts
from hardsight.report.samples import top
from hardsight.report.sections import Section, score_axis, table
from hardsight.stats import moments, wilson

BINS = 20


def build(rows: Rows) -> Section:
    """One row per class that occurs; the hardest `MANY_CLASSES` of them where there are more."""
    group, codes = rows.at, rows.codes
    n = counts(group, codes)
    means = moments(rows.value, group, codes)
    present = np.flatnonzero(n)
    note = f"Classes by {'label' if rows.labeled else 'prediction, because there are no labels'}."
    if (absent := rows.classes - len(present)) > 0:
        note += f" {counted(absent, 'class', 'classes')} of {rows.classes:,} have no samples here."
    note += " Accuracy with Wilson's interval, means with Student's (from 5 samples on), of each class on its own."
    if len(present) > MANY_CLASSES:
        harder = np.where(np.isnan(means.mean), -np.inf, rows.sign * means.mean)[present]
        present = np.sort(present[top(harder, MANY_CLASSES)])
        note += f" Only the hardest {MANY_CLASSES:,} are listed."

    def shown(*values: np.ndarray) -> list[np.ndarray]:
        return [part[present] for part in values]

    names = [rows.class_name(code) for code in present.tolist()]
    columns: list[tuple[Any, ...]] = [("name", "class", "text", names)]
    if names != list(map(str, rows.numbers[present])):  # classes without names other than their numbers
        columns.append(("code", "number", "int", present))
    columns.append(("n", "samples", "int", *shown(n)))
    edges, histograms = _histograms(rows, present)
    if edges:
        title = f"{score_title(rows.main)}, {edges[0]:.3g} to {edges[-1]:.3g}"
        columns.append(("histogram", title, "chart", [None] * len(present)))
    if rows.judged.any():
        judged, right = (counts(rows.label[mask], codes) for mask in (rows.judged, rows.right))
        columns.append(("accuracy", "accuracy", "percent", *shown(share(right, judged), *wilson(right, judged))))
    if rows.main is not None:
        title = score_title(rows.main)
        hardest = top(rows.hardness, -(-int((~np.isnan(rows.hardness)).sum()) // 10))
        hard_share = counts(group[hardest], codes) / np.maximum(n, 1)
        columns += [
            (rows.main, f"mean {title}", "number", *shown(means.mean, *means.interval())),
            ("median", f"median {title}", "number", *shown(medians(rows.value, group, codes))),
            ("hard_share", "of its samples among the hardest tenth", "percent", *shown(hard_share)),
        ]
    if isinstance(rows.suspects, Suspects):
        shares = [rows.suspects.noise.get(int(rows.numbers[code]), np.nan) for code in present]
        columns.append(("noise", "labels estimated wrong", "percent", np.array(shares, dtype=np.float64)))
    if rows.judged.any():
        most, count = confusions(rows)
        texts = [f"{rows.class_name(int(most[k]))} ({count[k]:,})" if count[k] else "" for k in present.tolist()]
        columns.append(("confused", "most confused with", "text", texts))
    if "norm" in rows.scores and rows.main != "norm":
        columns.append(("norm", "mean norm", "number", *shown(moments(rows.scores["norm"], group, codes).mean)))
    options = {"sort": rows.main or "name", "ascending": rows.sign < 0, "search": "name", "codes": present.tolist()}
    tables = [table("class", "Classes", columns, **options)]
    return Section("class_table", "Classes", note, tables=tables, data={"edges": edges, "histograms": histograms})


def medians(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Median of the values that are not NaN, by group number."""
    valid = ~np.isnan(values) & (group >= 0)
    values, group = (values, group) if valid.all() else (values[valid], group[valid])
    n, out = counts(group, groups), np.full(groups, np.nan)
    order, present = np.lexsort((values, group)), np.flatnonzero(n)
    starts, n = (np.cumsum(n) - n)[present], n[present]
    out[present] = (values[order[starts + (n - 1) // 2]] + values[order[starts + n // 2]]) / 2
    return out


def confusions(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """For each class the most frequent wrong prediction (the smaller number among equals) and its count."""
    label, pred, count = pairs(rows, rows.judged & ~rows.right)
    order = np.lexsort((-pred, count))  # the last one written wins
    best, times = np.zeros(rows.codes, dtype=np.int64), np.zeros(rows.codes, dtype=np.int64)
    best[label[order]], times[label[order]] = pred[order], count[order]
    return best, times


def _histograms(rows: Rows, present: np.ndarray) -> tuple[list[float], list[list[int]]]:
    """Counts of the main score in bins that all classes share."""
    if rows.main is None:
        return [], []
    over = score_axis(rows, rows.main)
    bins = over.bins(rows.value, BINS)
    of_class = joint_counts(rows.at, bins, (rows.codes, BINS))
    return plain(np.linspace(over.low, over.high, BINS + 1), 6), of_class[present].tolist()
