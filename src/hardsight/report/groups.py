"""Hardness by group: which groups are harder than their classes explain, with intervals."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.directions import larger_is_harder
from hardsight.report.formatting import counted, cut_name, flags, number, score_title, share
from hardsight.report.rows import BLOCK, Rows, counts
from hardsight.report.sections import Notice, Section, table
from hardsight.runs import is_number
from hardsight.runs.ids import Ids, pieces_of, places_among, repeated_ids
from hardsight.stats import FEW, Difference, holm, moments, student
from hardsight.tablefiles import floats

MOST_VALUES = 30  # of a column, the largest
MOST_COLUMNS = 12
_MOST_INTEGERS = 50  # a column with more distinct integers is a quantity, not a group

# Columns that hardsight writes and that are not groups; neither is any column with a direction of hardness.
_NO_GROUPS = {"id", "label", "pred", "fold", "avh_error"}


class Group(NamedTuple):
    """A column of groups: the text of each value, the largest first, and each row's value (−1 for none)."""

    column: str
    values: list[str]
    codes: np.ndarray
    note: str


def build(rows: Rows) -> Section:
    """A table per column."""
    note = (
        f"Mean {score_title(rows.main)} with Student's 95% interval. The difference within classes compares samples "
        "with the mean of their class, so that a mix of harder classes does not make a group harder; it has Welch's "
        "interval. A group is harder or easier only if it is significant at 5% after Holm's correction over the column."
    )
    tables = [group_table(rows, group) for group in rows.groups]
    data = {"values": {group.column: group.values for group in rows.groups}}
    notices = [Notice("info", text) for text in rows.group_notes]
    title, note = ("Groups", note) if tables else ("", "")
    return Section("groups", title, note, tables=tables, data=data, notices=notices)


def find_groups(rows: Rows, given: pa.Table | None = None) -> tuple[list[Group], list[str]]:
    """Group columns of the table and of a table beside it; and notes on columns that could not be used."""
    others = _NO_GROUPS if given is None else _NO_GROUPS | set(given.column_names)
    names = [n for n in rows.table.columns if n not in others and larger_is_harder(n.removesuffix("_sd")) is None]
    groups = [group for name in names if (group := _of_table(rows, name)) is not None]
    more, notes = ([], []) if given is None else given_groups(rows.ids, given)
    groups += more  # those that were asked for come last
    if len(groups) > MOST_COLUMNS:
        notes.append(f"groups: {MOST_COLUMNS} of {len(groups)} columns are shown.")
    return groups[-MOST_COLUMNS:], notes


def _of_table(rows: Rows, name: str) -> Group | None:
    type_ = rows.table.stored_rows.schema.field(name).type
    group = _coded(name, pa.chunked_array([*rows.table.pieces(name)], type_), False)
    return group if group is None or rows.order is None else group._replace(codes=group.codes[rows.order])


def given_groups(ids: Ids, table: pa.Table) -> tuple[list[Group], list[str]]:
    """The columns of a table that `read_by_id` read, as groups of these samples; and notes on unusable ones."""
    notes, groups = [], []
    places = places_among(ids, table["id"])
    absent = places < 0
    if absent.any():
        notes.append(f"groups: {int((~absent).sum()):,} of {counted(len(ids), 'sample')} have a row there.")
    where = pa.array(places, mask=absent)
    for name in (name for name in table.column_names if name != "id"):
        if (group := _coded(name, table[name].take(where), True)) is not None:
            groups.append(group)
        else:
            notes.append(f"groups: the column {cut_name(name)} is not shown: it has fewer than two repeated values.")
    return groups, notes


def _coded(name: str, column: pa.ChunkedArray, given: bool) -> Group | None:
    """A column as groups; None if it is not one: values that never repeat, or a quantity that was not requested."""
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    notes = []
    if is_number(column.type) and not pa.types.is_boolean(column.type):
        values = floats(column)
        valid = np.isfinite(values)
        whole = len(np.unique(values[valid])) <= _MOST_INTEGERS and (values[valid] % 1 == 0).all()
        if not whole and not given:
            return None
        if not whole:
            column = pa.chunked_array([_fifths(values, valid)])
            notes.append("A quantity, cut into fifths.")
        elif not pa.types.is_integer(column.type):
            column = pa.chunked_array([pa.array(np.where(valid, values, 0).astype(np.int64), mask=~valid)])
    elif pa.types.is_nested(column.type) or not (given or str(column.type) in ("string", "large_string", "bool")):
        return None
    elif not given and pa.types.is_string(column.type) and len(column) > BLOCK:
        texts = column.drop_null()
        if not repeated_ids(lambda: pieces_of(texts))[0]:  # millions of paths, whose dictionary would be large
            return None
    encoded = column.cast(pa.string()).dictionary_encode().unify_dictionaries()
    dictionary = encoded.chunk(0).dictionary
    codes = np.concatenate([pc.fill_null(chunk.indices, -1).to_numpy() for chunk in encoded.chunks])
    n = counts(codes, len(dictionary))
    if n.max(initial=0) < 2 or (not given and len(n) > _MOST_INTEGERS and n.max() < FEW):  # paths and remarks
        return None
    # The largest first, ties by their text: nothing may depend on the order of the rows.
    large = np.flatnonzero(n >= np.sort(n)[-min(MOST_VALUES, len(n))])
    texts = dictionary.take(pa.array(large)).to_pylist()
    kept = sorted(range(len(large)), key=lambda k: (-n[large[k]], texts[k]))[:MOST_VALUES]
    place = np.full(len(n) + 1, -1, dtype=np.int8)  # the last is that of −1, no value
    place[large[kept]] = np.arange(len(kept))
    if len(n) > len(kept):
        rest = int((place[codes] < 0).sum() - (codes < 0).sum())
        notes.append(f"The {MOST_VALUES} largest of {len(n):,} values; {rest:,} samples left.")
    if (missing := int((codes < 0).sum())) > 0:
        notes.append(f"{counted(missing, 'sample has', 'samples have')} no value.")
    return Group(cut_name(name), [cut_name(texts[k]) for k in kept], place[codes], " ".join(notes))


def _fifths(values: np.ndarray, valid: np.ndarray) -> pa.Array:
    """Quantities as five ranges of equal numbers of samples."""
    ends = np.unique(np.quantile(values[valid], np.linspace(0, 1, 6))) if valid.any() else np.zeros(2)
    place = np.clip(np.searchsorted(ends, values, side="right") - 1, 0, max(len(ends) - 2, 0))
    names = [f"{a:.4g} to {b:.4g}" for a, b in itertools.pairwise(ends)] or [f"{ends[0]:.4g}"]
    return pa.DictionaryArray.from_arrays(pa.array(place, mask=~valid), pa.array(names)).dictionary_decode()


def group_table(rows: Rows, group: Group) -> dict[str, Any]:
    """Means, class-adjusted differences and accuracy of each group of a column."""
    k, in_group = len(group.values), group.codes >= 0
    means = moments(rows.value, group.codes, k)
    adjusted = class_adjusted(rows.value, rows.at, rows.codes, group.codes, k)
    corrected = adjusted.p if k == 2 and in_group.all() else holm(adjusted.p)  # two against each other are one test
    masks = (in_group, rows.right, rows.judged)
    size, right, judged = (counts(group.codes[mask], k) for mask in masks)
    columns = [
        ("value", group.column, "text", group.values),
        ("chart", "", "chart", [None] * k),
        ("n", "samples", "int", size),
        ("mean", f"mean {score_title(rows.main)}", "number", means.mean, *means.interval()),
        ("adjusted", "difference within classes", "signed", adjusted.value, adjusted.low, adjusted.high),
        ("p", "p (corrected)", "number", corrected),
        ("accuracy", "accuracy", "percent", share(right, judged)),
        ("flag", "in words", "flag", flags(rows.sign * adjusted.value, corrected)),
    ]
    values = rows.value
    scored, title = values[~np.isnan(values)], f"Hardness by {group.column}"
    chart = {"key": "mean", "overall": number(scored.mean()) if len(scored) else None, "what": "all samples"}
    options = {"sort": "mean", "ascending": rows.sign < 0, "group": group.column, "chart": chart}
    return table("group", title, columns, title=f"By {group.column}", note=group.note, **options)


def class_adjusted(values: np.ndarray, at: np.ndarray, classes: int, codes: np.ndarray, groups: int) -> Difference:
    """Mean over each group of the value minus the mean of its class, with an interval.

    With w = (n_gc / n_g) · (n_rc / n_c) this is Σ_c w_c (m_gc − m_rc): within each class the group against the rest.
    Its variance is A·s_g² + B·s_r² with the variances s² of the residuals. With one class its t is Welch's.
    """
    valid = ~np.isnan(values) & (at >= 0)
    values, at, codes = values[valid], at[valid], codes[valid]
    n_c = np.maximum(np.bincount(at, minlength=classes), 1)
    residual = values - (np.bincount(at, values, minlength=classes) / n_c)[at]
    out = np.full((4, groups), np.nan)
    for k in range(groups):
        inside = codes == k
        group, rest = residual[inside], residual[~inside]
        n, m = len(group), len(rest)
        n_gc = np.bincount(at[inside], minlength=classes).astype(np.float64)
        part = 1 - n_gc / n_c  # of each class, outside the group
        a, b = (float(x.sum()) / max(n, 1) ** 2 for x in (n_gc * part**2, n_gc**2 * part / n_c))
        if n >= FEW and m >= 2 and a > 0:
            out[:, k] = student(group.mean(), a * group.var(ddof=1), n - 1, b * rest.var(ddof=1), m - 1)
        elif n:
            out[0, k] = group.mean()
    return Difference(*out)
