"""Everything the page draws, as plain lists, texts and numbers, from one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.idtables import read_by_id
from hardsight.report import (
    bad_rows,
    classes,
    clusters,
    comparison,
    disagreement,
    distributions,
    label_errors,
    notices,
    people,
    samples,
    training,
)
from hardsight.report import (
    groups as group_tables,
)
from hardsight.report.formatting import cut, cut_name, plain
from hardsight.report.groups import find_groups
from hardsight.report.label_errors import Suspects, find_suspects
from hardsight.report.points import choose_points
from hardsight.report.recorded import read_recorded
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.sections import Column, Inputs, Notice, Section, by_level
from hardsight.table import SampleTable

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

# Every section of the page in its order, which is also the order of its lists and views.
SECTIONS: tuple[Callable[[Inputs], Section | None], ...] = (
    notices.build,
    samples.build,
    label_errors.build,
    disagreement.build,
    training.build,
    people.build,
    comparison.build,
    distributions.build,
    classes.build,
    group_tables.build,
    clusters.build,
    bad_rows.build,
)


@dataclass(frozen=True)
class Draft:
    """The page before it has pictures.

    Attributes:
        payload: What the page draws.
        inputs: What it was built from.
        points: Row of each point.
        cells: Cell of each point in the first view; all in one where there is no view.
        lists: Rows of the lists and examples: their heads are the first to have pictures.
        parts: Rows of the lists of classes and clusters.
    """

    payload: dict[str, Any]
    inputs: Inputs
    points: np.ndarray
    cells: np.ndarray
    lists: list[np.ndarray]
    parts: list[np.ndarray]


def make_payload(
    rows: Rows, *, against: Any = None, groups: Any = None, run: Any = None, dynamics: Dynamics | None = None
) -> Draft:
    """Build every section, choose the points, and put the page together.

    Args:
        rows: The samples.
        against: Another run or table to compare with.
        groups: Group columns beside the table.
        run: The run folder, where there is one: the next command names it.
        dynamics: What the run recorded while the network trained.
    """
    given = None if groups is None else read_by_id(groups, "groups")
    group_columns, group_notes = find_groups(rows, given)
    inputs = Inputs(
        rows=rows,
        run=run,
        against=against,
        group_table=given,
        groups=group_columns,
        group_notes=group_notes,
        recorded=None if dynamics is None else read_recorded(rows, dynamics),
        suspects=find_suspects(rows),
    )
    sections = [section for build in SECTIONS if (section := build(inputs)) is not None]
    lists = [listed for section in sections for listed in section.lists]
    views = [view for section in sections for view in section.views]
    columns = {name: column for section in sections for name, column in section.columns.items()}
    heads = [*(listed.rows for listed in lists), *(rows_ for section in sections for rows_ in section.examples)]
    parts = [rows_ for section in sections for rows_ in section.parts]
    cells = views[0].cells() if views else np.zeros(len(rows), dtype=np.int64)
    points = choose_points(len(rows), np.concatenate([*heads, *parts]), cells, rows.at)
    codes = _shown_classes(inputs, points)
    every = (notice for section in sections for notice in section.notices)
    payload: dict[str, Any] = {
        "title": notices.title(rows),
        "notices": [notice._asdict() for notice in by_level(every)],
        "sampling": notices.sampling(rows)._asdict(),
        "n": len(rows),
        "classes": [inputs.class_name(code) for code in codes.tolist()],
        "labelled": rows.labelled,
        "tiles": notices.tiles(rows, inputs.suspects),
        "scores": {name: _meaning(column) for name, column in columns.items()},
        "points": _points(inputs, points, codes, columns),
        "lists": [listed._asdict() for listed in lists],
        "views": [view.as_dict(_drawn(len(points), len(rows))) for view in views],
        "sections": [{"key": section.key, "title": section.title} for section in sections if section.title],
        **{section.key: section.data for section in sections if section.data},
        "made": notices.made(rows),
    }
    payload["by_class"] = {end: [lists_[code] for code in codes] for end, lists_ in payload["by_class"].items()}
    lines = payload["class_table"]["rows"]
    for row, place in zip(lines, _renumber(np.array([row[0] for row in lines], dtype=np.int64), codes), strict=True):
        row[0] = int(place)
    payload = _with_points(payload, points)
    return Draft(payload, inputs, points, np.maximum(cells[points], 0), heads, parts)


def _with_points(value: Any, points: np.ndarray) -> Any:
    """The payload with every array of row numbers as the places of these rows among the points."""
    if isinstance(value, np.ndarray):
        return np.searchsorted(points, value).tolist()
    if isinstance(value, dict):
        return {key: _with_points(held, points) for key, held in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], (dict, list, np.ndarray)):
        return [_with_points(held, points) for held in value]
    return value


def _drawn(points: int, n: int) -> str:
    if points == n:
        return f" All {n:,} are drawn as points."
    return f" {points:,} of {n:,} are drawn as points, spread so that rare ones are seen; the shading counts all."


def _shown_classes(inputs: Inputs, points: np.ndarray) -> np.ndarray:
    """Codes of the classes that the page names: all of them, or with very many those that a point or row needs."""
    rows = inputs.rows
    if rows.codes <= MANY_CLASSES:
        return np.arange(rows.codes)
    used = [rows.label[points], rows.pred[points]]
    if isinstance(inputs.suspects, Suspects):
        used.append(inputs.suspects.suggested[points])
    codes = np.unique(np.concatenate(used))
    return codes[codes >= 0]


def _meaning(column: Column) -> dict[str, str]:
    return {key: value for key, value in column._asdict().items() if key != "values"}


def _points(inputs: Inputs, points: np.ndarray, codes: np.ndarray, columns: dict[str, Column]) -> dict[str, Any]:
    rows, suspects = inputs.rows, inputs.suspects

    def numbered(values: np.ndarray) -> list[int]:
        return _renumber(values[points], codes).tolist()

    spread = {}
    for name in ("avh_sd", "avh_pred_sd", "agreement", "rank", "rank_low", "rank_high"):
        values = rows.optional(name)
        if values is not None:
            scale = rows.classes if name.startswith("avh") else 1
            spread[name.replace("_pred", "")] = plain(scale * values[points])
    return {
        "id": [cut(id_) for id_ in rows.ids_at(points)],
        "label": numbered(rows.label),
        "pred": numbered(rows.pred),
        "picture": [-1] * len(points),
        "scores": {name: plain(column.values[points]) for name, column in columns.items()},
        "spread": spread,
        "groups": {group.column: group.codes[points].tolist() for group in inputs.groups},
    } | (
        {"suspicion": plain(suspects.suspicion[points]), "suggested": numbered(suspects.suggested)}
        if isinstance(suspects, Suspects)
        else {}
    )


def _renumber(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Class codes as places among the classes that the page names; −1 for none."""
    if not len(codes):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(codes, values), len(codes) - 1)
    return np.where((values >= 0) & (codes[place] == values), place, -1)


def nothing_yet(table: SampleTable) -> dict[str, Any]:
    """The page of a run that has not scored a sample yet."""
    model = cut_name(table.meta.model.name or "several nets")
    data = cut_name(table.meta.data.origin or "data")
    waiting = "No sample has been scored yet; run the report again when there are some."
    return {
        "title": f"{model} on {data}",
        "notices": [Notice("warn", waiting)._asdict()],
        "made": [["model", model], ["data", data]],
    }
