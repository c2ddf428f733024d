"""The table of classes: how many, how hard, how often right, what they are taken for."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.report.formatting import counted, plain, score_title
from hardsight.report.label_errors import Suspects
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.samples import top
from hardsight.report.sections import Inputs, Section, table
from hardsight.report.views import score_axis
from hardsight.stats import moments, wilson

BINS = 20


def build(inputs: Inputs) -> Section:
    """The section."""
    return Section("class_table", "Classes", class_table(inputs))


def class_table(inputs: Inputs) -> dict[str, Any]:
    """One row per class that occurs; the hardest `MANY_CLASSES` of them where there are more."""
    rows = inputs.rows
    group, codes = rows.at, rows.codes
    n = np.bincount(group[group >= 0], minlength=codes)
    means = moments(rows.value, group, codes)
    low, high = means.interval()
    present = np.flatnonzero(n)
    note = [_note(rows, len(present))]
    if len(present) > MANY_CLASSES:
        harder = np.where(np.isnan(means.mean), -np.inf, rows.sign * means.mean)[present]
        present = np.sort(present[top(harder, MANY_CLASSES)])
        note.append(f"Only the hardest {MANY_CLASSES:,} are listed.")
    names = [inputs.class_name(code) for code in present.tolist()]
    score = score_title(rows.main)
    columns: list[tuple[str, str, str, Any]] = [
        ("code", "number", "int", present),
        ("name", "class", "text", names),
        ("n", "samples", "int", n[present]),
    ]
    if rows.judged.any():
        judged = np.bincount(rows.label[rows.judged], minlength=codes)
        right = np.bincount(rows.label[rows.right], minlength=codes)
        accuracy_low, accuracy_high = wilson(right, judged)
        with np.errstate(invalid="ignore"):
            columns += [
                ("accuracy", "accuracy", "percent", (right / judged)[present]),
                ("accuracy_low", "accuracy, lower end (95 %)", "percent", accuracy_low[present]),
                ("accuracy_high", "accuracy, upper end (95 %)", "percent", accuracy_high[present]),
            ]
    if rows.main is not None:
        columns += [
            (rows.main, f"mean {score}", "number", means.mean[present]),
            (f"{rows.main}_low", f"mean {score}, lower end (95 %)", "number", low[present]),
            (f"{rows.main}_high", f"mean {score}, upper end (95 %)", "number", high[present]),
            ("median", f"median {score}", "number", medians(rows.value, group, codes)[present]),
            ("hard_share", "of its samples among the hardest tenth", "percent", _hard_share(rows, n)[present]),
        ]
    if isinstance(inputs.suspects, Suspects):
        shares = [inputs.suspects.noise.get(int(rows.numbers[code]), np.nan) for code in present]
        columns.append(("noise", "labels estimated wrong", "percent", np.array(shares, dtype=np.float64)))
    if rows.judged.any():
        columns.append(("confused", "most confused with", "text", _confused(inputs, present)))
    if "norm" in rows.scores and rows.main != "norm":
        columns.append(("norm", "mean norm", "number", moments(rows.scores["norm"], group, codes).mean[present]))
    cells = [values if isinstance(values, list) else plain(values) for *_, values in columns]
    edges, histograms = _histograms(rows, present)
    shown = [(key, title, kind) for key, title, kind, _ in columns]
    lines = [list(cell) for cell in zip(*cells, strict=True)]
    options = {"sort": rows.main, "ascending": rows.sign < 0, "search": "name"}
    return {
        **table("class", "Classes", shown, lines, **options),
        "histogram_edges": edges,
        "histograms": histograms,
        "note": " ".join(note),
    }


def _note(rows: Rows, present: int) -> str:
    what = "label" if rows.labelled else "prediction, for there are no labels"
    absent = rows.classes - present
    parts = [f"Classes by {what}."]
    if absent > 0:
        parts.append(f"{counted(absent, 'class', 'classes')} of {rows.classes:,} have no samples here.")
    parts.append(
        "Accuracy with Wilson's interval, means with Student's t, of each class on its own; classes of fewer than 5 "
        "samples have none."
    )
    return " ".join(parts)


def medians(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Median of the values that are not NaN, by group number."""
    valid = ~np.isnan(values) & (group >= 0)
    values, group = values[valid], group[valid]
    values = values[np.lexsort((values, group))]
    n = np.bincount(group, minlength=groups)
    start = np.concatenate([[0], np.cumsum(n)[:-1]])
    out = np.full(groups, np.nan)
    some = n > 0
    lower, upper = (start + (n - 1) // 2)[some], (start + n // 2)[some]
    out[some] = (values[lower] + values[upper]) / 2
    return out


def _hard_share(rows: Rows, n: np.ndarray) -> np.ndarray:
    """Which share of each class's samples is among the hardest tenth of all; equal ones in the order of ids."""
    hardest = top(rows.hardness, -(-int((~np.isnan(rows.hardness)).sum()) // 10))
    group = rows.at[hardest]
    return np.bincount(group[group >= 0], minlength=rows.codes) / np.maximum(n, 1)


def _confused(inputs: Inputs, present: np.ndarray) -> list[str]:
    """The class that each class's wrong samples are mostly taken for, and how many of them."""
    most, count = confusions(inputs.rows)
    return [
        f"{inputs.class_name(int(most[code]))} ({count[code]:,})" if count[code] else "" for code in present.tolist()
    ]


def confusions(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """For each class the most frequent wrong prediction (the smaller number among equals) and its count."""
    wrong = rows.judged & ~rows.right
    pair, count = np.unique(rows.label[wrong] * np.int64(rows.codes) + rows.pred[wrong], return_counts=True)
    label, pred = np.divmod(pair, rows.codes)
    order = np.lexsort((-pred, count))  # the last to be written wins
    best, times = np.zeros(rows.codes, dtype=np.int64), np.zeros(rows.codes, dtype=np.int64)
    best[label[order]], times[label[order]] = pred[order], count[order]
    return best, times


def _histograms(rows: Rows, present: np.ndarray) -> tuple[list[float], list[list[int]]]:
    """Counts of the main score in bins that all classes share."""
    if rows.main is None:
        return [], []
    over = score_axis(rows, rows.main)
    bins = over.bins(rows.value, BINS)
    valid = (bins >= 0) & (rows.at >= 0)
    counts = np.bincount(rows.at[valid] * BINS + bins[valid], minlength=rows.codes * BINS).reshape(rows.codes, BINS)
    return plain(np.linspace(over.low, over.high, BINS + 1), 6), counts[present].tolist()
