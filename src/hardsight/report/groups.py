"""Hardness by group: which groups are harder than their classes explain, with intervals."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import floats
from hardsight.idtables import read_by_id
from hardsight.report.formatting import as_rows, counted, cut_name, flags, number, score_title, share
from hardsight.report.rows import Rows
from hardsight.report.sections import Inputs, Notice, Section
from hardsight.stats import FEW, Difference, holm, moments, student
from hardsight.table import larger_is_harder

MOST_VALUES = 30  # of a column, the largest
MOST_COLUMNS = 12
_NEW_INTEGERS = 50  # a column of the table's own with more different integers is a quantity, no group

# Columns that hardsight writes and that are no groups; so is every column with a hard end.
_NO_GROUPS = {"id", "label", "pred", "fold", "avh_error"}


class Group(NamedTuple):
    """A column of groups: the text of each value, the largest first, and each row's value (−1 for none)."""

    column: str
    values: list[str]
    codes: np.ndarray
    note: str


def build(inputs: Inputs) -> Section:
    """A table per column."""
    measured = [group_rows(inputs.rows, group, explain=k == 0) for k, group in enumerate(inputs.groups)]
    none = (
        "This run has no group column. Any column of your own (camera, site, age band) becomes one: pass a table with "
        "id and your columns to --groups."
    )
    data = {"columns": measured} if measured else {"columns": [], "note": none}
    notices = [Notice("info", text) for text in inputs.group_notes]
    return Section("groups", "Groups", data, notices=notices)


def find_groups(rows: Rows, given: Any = None) -> tuple[list[Group], list[str]]:
    """Group columns that the table holds and those that are given beside it; and what could not be used, in words."""
    arrow = rows.table.to_arrow()
    columns = (
        _coded(name, arrow[name].combine_chunks(), cut=False) for name in arrow.column_names if not _is_ours(name)
    )
    groups, notes = [group for group in columns if group is not None], []
    if given is not None:
        table = read_by_id(given, "groups")
        given_columns, notes = given_groups(rows.ids, table)
        groups = [group for group in groups if group.column not in table.column_names] + given_columns
    if len(groups) > MOST_COLUMNS:
        notes.append(f"groups: {MOST_COLUMNS} of {len(groups)} columns are shown.")
        groups = groups[-MOST_COLUMNS:]  # those that were asked for come last
    return groups, notes


def given_groups(ids: pa.ChunkedArray, table: pa.Table) -> tuple[list[Group], list[str]]:
    """The columns of a table that `read_by_id` read, as groups of these samples; and what could not be used."""
    notes, groups = [], []
    where = pc.index_in(ids, value_set=table["id"].combine_chunks())
    matched = len(ids) - where.null_count
    if matched < len(ids):
        notes.append(f"groups: {matched:,} of {counted(len(ids), 'sample')} have a row there.")
    for name in table.column_names:
        if name == "id":
            continue
        group = _coded(name, table[name].combine_chunks().take(where.combine_chunks()), cut=True)
        if group is None:
            notes.append(f"groups: the column {cut_name(name)} is not shown: it holds no two values that repeat.")
        else:
            groups.append(group)
    return groups, notes


def _is_ours(name: str) -> bool:
    return name in _NO_GROUPS or larger_is_harder(name.removesuffix("_sd")) is not None


def _is_text(type_: pa.DataType) -> bool:
    return pa.types.is_string(type_) or pa.types.is_large_string(type_)


def _coded(name: str, column: pa.Array, cut: bool) -> Group | None:
    """A column as groups; None where it is none: a quantity of the table's own, or values that never repeat."""
    type_ = column.type
    note = ""
    if pa.types.is_dictionary(type_):
        column = column.cast(type_.value_type)
        type_ = column.type
    if pa.types.is_floating(type_):
        column = pc.if_else(pc.is_finite(column), column, None)  # NaN is no value
    if pa.types.is_floating(type_) or pa.types.is_integer(type_):
        different = len(pc.unique(column.drop_null()))
        whole = pa.types.is_integer(type_) or bool((np.nan_to_num(floats(pa.chunked_array([column]))) % 1 == 0).all())
        if different > _NEW_INTEGERS or not whole:
            if not cut:
                return None
            column, note = _fifths(floats(pa.chunked_array([column]))), "A quantity, cut into fifths."
        else:
            column = column.cast(pa.int64(), safe=False) if pa.types.is_floating(type_) else column
    elif pa.types.is_nested(type_) or not (cut or _is_text(type_) or pa.types.is_boolean(type_)):
        return None
    text = column.cast(pa.string())
    encoded = text.dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy().astype(np.int64)
    n = np.bincount(codes[codes >= 0], minlength=len(encoded.dictionary))
    if not len(n) or n.max() < 2:
        return None
    if not cut and len(n) > _NEW_INTEGERS and n.max() < FEW:  # paths and remarks
        return None
    # The largest first, equal ones by their text: nothing may depend on the order of the rows.
    large = np.flatnonzero(n >= np.sort(n)[-min(MOST_VALUES, len(n))])
    texts = encoded.dictionary.take(pa.array(large)).to_pylist()
    kept = sorted(range(len(large)), key=lambda k: (-n[large[k]], texts[k]))[:MOST_VALUES]
    order = large[kept]
    place = np.full(len(n) + 1, -1)  # the last is that of −1, no value
    place[order] = np.arange(len(order))
    rest = len(n) - len(order)
    parts = [note] if note else []
    if rest:
        parts.append(f"The {MOST_VALUES} largest of {len(n):,} values; {int(n.sum() - n[order].sum()):,} samples left.")
    if (missing := int((codes < 0).sum())) > 0:
        parts.append(f"{counted(missing, 'sample has', 'samples have')} no value.")
    return Group(cut_name(name), [cut_name(texts[k]) for k in kept], place[codes], " ".join(parts))


def _fifths(values: np.ndarray) -> pa.Array:
    """Quantities as five ranges of equal numbers of samples."""
    valid = np.isfinite(values)
    ends = np.unique(np.quantile(values[valid], np.linspace(0, 1, 6))) if valid.any() else np.zeros(2)
    place = np.clip(np.searchsorted(ends, values, side="right") - 1, 0, max(len(ends) - 2, 0))
    names = [f"{a:.4g} to {b:.4g}" for a, b in itertools.pairwise(ends)] or [f"{ends[0]:.4g}"]
    return pa.DictionaryArray.from_arrays(pa.array(place, mask=~valid), pa.array(names)).cast(pa.string())


def group_rows(rows: Rows, group: Group, explain: bool = True) -> dict[str, Any]:
    """Means, class-adjusted differences and accuracy of each group of a column; `explain` adds how to read them."""
    k = len(group.values)
    means = moments(rows.value, group.codes, k)
    low, high = means.interval()
    adjusted = class_adjusted(rows.value, rows.at, rows.codes, group.codes, k)
    # Two groups against each other are one test.
    corrected = adjusted.p if k == 2 and (group.codes >= 0).all() else holm(adjusted.p)
    size = np.bincount(group.codes[group.codes >= 0], minlength=k)
    judged = rows.judged & (group.codes >= 0)
    right = np.bincount(group.codes[judged & rows.right], minlength=k)
    of = np.bincount(group.codes[judged], minlength=k)
    lines = as_rows({
        "value": group.values, "n": size, "mean": means.mean, "low": low, "high": high,
        "adjusted": adjusted.value, "adjusted_low": adjusted.low, "adjusted_high": adjusted.high, "p": corrected,
        "accuracy": share(right, of), "flag": flags(rows.sign * adjusted.value, corrected),
    })  # fmt: skip
    overall = rows.value[~np.isnan(rows.value)]
    return {
        "column": group.column,
        "note": f"{group.note} {_HOW.format(score=score_title(rows.main)) if explain else ''}".strip(),
        "rows": lines,
        "overall": number(overall.mean()) if len(overall) else None,
    }


_HOW = (
    "Mean {score} with Student's 95 % interval. Adjusted: mean difference from the mean of the sample's class, so that "
    "a mix of harder classes does not make a group harder, with Welch's interval; a group is called harder or easier "
    "only if that difference is significant at 5 % after Holm's correction over the groups of the column."
)


def class_adjusted(values: np.ndarray, at: np.ndarray, classes: int, codes: np.ndarray, groups: int) -> Difference:
    """Mean over each group of the value minus the mean of its class, with an interval.

    The mean of a class holds the group itself, so with w = (n_gc / n_g) · (n_rc / n_c) this is Σ_c w_c (m_gc − m_rc):
    within each class the group against the rest. Its variance is A·s_g² + B·s_r², where s² are the variances of the
    residuals in the group and in the rest. With one class its t is Welch's.
    """
    valid = ~np.isnan(values) & (at >= 0)
    values, at, codes = values[valid], at[valid], codes[valid]
    n_c = np.bincount(at, minlength=classes)
    residual = values - (np.bincount(at, values, minlength=classes) / np.maximum(n_c, 1))[at]
    total, squares = residual.sum(), float((residual**2).sum())
    out = np.full((4, groups), np.nan)
    for k in range(groups):
        inside = codes == k
        n_g = int(inside.sum())
        n_r = len(values) - n_g
        if not n_g:
            continue
        inner = residual[inside]
        out[0, k] = inner.mean()
        n_gc = np.bincount(at[inside], minlength=classes).astype(np.float64)
        n_rc = n_c - n_gc
        share = np.divide(n_rc, n_c, out=np.zeros(classes), where=n_c > 0)
        a = float((n_gc * share**2).sum()) / n_g**2
        b = float((n_gc**2 * share / np.maximum(n_c, 1)).sum()) / n_g**2
        if n_g < FEW or n_r < 2 or a == 0:
            continue
        rest_mean = (total - inner.sum()) / n_r
        rest = max(squares - float((inner**2).sum()) - n_r * rest_mean**2, 0.0) / (n_r - 1)
        test = student(out[0, k], a * inner.var(ddof=1), n_g - 1, b * rest, n_r - 1)
        out[:, k] = test.value, test.low, test.high, test.p
    return Difference(*out)
