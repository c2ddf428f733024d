"""Labels against predictions: a matrix of the classes or, for many classes, the most confused pairs."""

from __future__ import annotations

import numpy as np

from hardsight.report.formatting import counted, share
from hardsight.report.rows import BLOCK, Rows, counts
from hardsight.report.samples import top
from hardsight.report.sections import Section, table

MOST_CLASSES = 30  # in a matrix
MOST_PAIRS = 100  # in a table, and with samples of their own on the page
_EXAMPLES = 12  # drawn of each pair, the hardest


def build(rows: Rows) -> Section | None:
    """The section, if labels and predictions can be compared."""
    label, pred, count = pairs(rows, rows.judged)
    if not len(count):
        return None
    wrong = np.flatnonzero(label != pred)
    largest = wrong[top(count[wrong].astype(np.float64), MOST_PAIRS)]
    parts = _hardest(rows, label[largest], pred[largest])
    present = np.union1d(label, pred)
    gallery = "Select a number to see its samples in the gallery"
    if len(present) <= MOST_CLASSES:
        names = [rows.class_name(code) for code in present.tolist()]
        matrix = np.zeros((len(present), len(present)), dtype=np.int64)
        matrix[np.searchsorted(present, label), np.searchsorted(present, pred)] = count
        columns = [("label", "label", "head", names)]
        columns += [(f"pred-{k}", name, "int", matrix[:, k]) for k, name in enumerate(names)]
        each = table("confusion", "Labels (rows) and predictions (columns)", columns, style="matrix")
        note = f"Samples by label (row) and prediction (column), shaded by the share of the row. {gallery}."
        return Section("confusions", "Confusions", note, tables=[each], data={"codes": present.tolist()}, parts=parts)
    if not len(wrong):
        return None
    label, pred, n = label[largest], pred[largest], count[largest]
    of_label = counts(rows.label[rows.judged], rows.codes)
    columns = [
        ("label", "label", "text", [rows.class_name(code) for code in label.tolist()]),
        ("pred", "predicted as", "text", [rows.class_name(code) for code in pred.tolist()]),
        ("n", "samples", "int", n),
        ("share", "of the label's samples", "percent", share(n, of_label[label])),
    ]
    each = table("confusion", "Most confused pairs", columns, sort="n", search="label")
    cut = f"The {MOST_PAIRS} most frequent of {len(wrong):,}" if len(wrong) > MOST_PAIRS else f"All {len(wrong):,}"
    note = f"{cut} pairs of a label and a wrong prediction; {counted(len(present), 'class', 'classes')} are too many "
    note += f"for a matrix (at most {MOST_CLASSES}). {gallery}."
    codes = np.stack([label, pred], axis=1).tolist()
    return Section("confusions", "Confusions", note, tables=[each], data={"pairs": codes}, parts=parts)


def pairs(rows: Rows, among: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every pair of a label and a prediction that occurs among some rows, in their order, and how often it does."""
    parts, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        some, number = np.unique(_pair(rows, start + np.flatnonzero(among[part])), return_counts=True)
        parts.append(some)
        numbers.append(number)
    pair, place = np.unique(np.concatenate(parts), return_inverse=True)
    count = np.zeros(len(pair), dtype=np.int64)
    np.add.at(count, place, np.concatenate(numbers))
    return *np.divmod(pair, max(rows.codes, 1)), count


def _pair(rows: Rows, where: np.ndarray) -> np.ndarray:
    """Label and prediction of some rows as one number."""
    return rows.label[where] * np.int64(rows.codes) + rows.pred[where]


def _hardest(rows: Rows, label: np.ndarray, pred: np.ndarray) -> list[np.ndarray]:
    """The hardest rows of each pair of a label and a wrong prediction."""
    wrong = np.flatnonzero(rows.judged & ~rows.right)
    pair = _pair(rows, wrong)
    listed = np.isin(pair, label * rows.codes + pred)
    wrong, pair = wrong[listed], pair[listed]
    order = np.lexsort((-np.nan_to_num(rows.hardness[wrong], nan=-np.inf), pair))
    starts, ends = (np.searchsorted(pair[order], label * rows.codes + pred, side) for side in ("left", "right"))
    return [wrong[order[a : min(b, a + _EXAMPLES)]] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
