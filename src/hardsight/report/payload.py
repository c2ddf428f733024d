"""Everything the page draws, as plain lists, texts and numbers, from one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data import changed_since
from hardsight.idtables import read_by_id
from hardsight.report import (
    bad_rows,
    classes,
    clusters,
    comparison,
    disagreement,
    distributions,
    groups,
    label_errors,
    notices,
    page,
    people,
    samples,
    training,
)
from hardsight.report.formatting import counted, cut, cut_name, plain
from hardsight.report.label_errors import Suspects
from hardsight.report.points import choose_points
from hardsight.report.recorded import read_recorded, sample_curves
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.sections import Column, Inputs, Notice, by_level
from hardsight.report.thumbnails import choose, make_thumbnails, open_samples
from hardsight.table import SampleTable

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

MOST_BYTES = 15_000_000
_SLACK = 100_000  # of them, for what comes with the pictures: their places and a note

# Every section of the page in its order, which is also the order of its lists and views: modules with a function
# ``build(Inputs) -> Section | None``.
SECTIONS = (
    notices, samples, label_errors, disagreement, training, people, comparison, distributions, classes, groups,
    clusters, bad_rows,
)  # fmt: skip


def make_payload(
    rows: Rows,
    *,
    against: Any = None,
    group_table: Any = None,
    run: Any = None,
    dynamics: Dynamics | None = None,
    data: Any = None,
    pictures: int = 0,
) -> dict[str, Any]:
    """Build every section, choose the points and their pictures, and put the page together.

    Args are those of `write_report`, read: `run` is the folder, where there is one, and `dynamics` its records.
    """
    given = None if group_table is None else read_by_id(group_table, "groups")
    columns, group_notes = groups.find_groups(rows, given)
    recorded = None if dynamics is None else read_recorded(rows, dynamics)
    inputs = Inputs(rows, run, against, given, columns, group_notes, recorded, label_errors.find_suspects(rows))
    sections = [section for module in SECTIONS if (section := module.build(inputs)) is not None]
    lists = [each for section in sections for each in section.lists]
    views = [view for section in sections for view in section.views]
    notes = [notice for section in sections for notice in section.notices]
    columns = {name: column for section in sections for name, column in section.columns.items()}
    heads = [*(each.rows for each in lists), *(part for section in sections for part in section.examples)]
    parts = [part for section in sections for part in section.parts]
    cells = views[0].cells(columns) if views else np.zeros(len(rows), dtype=np.int64)
    points = choose_points(len(rows), np.concatenate([*heads, *parts]), cells, rows.at)
    cells = np.maximum(cells[points], 0)
    drawn = f" {len(points):,} of {len(rows):,} are drawn as points, rare ones among them; the shading counts all."
    if len(points) == len(rows):
        drawn = f" All {len(rows):,} are drawn as points."
    payload = _with_points({
        "title": notices.title(rows),
        "notices": by_level(notes),
        "sampling": notices.sampling(rows)._asdict(),
        "n": len(rows),
        "classes": _class_names(inputs, points),
        "labeled": rows.labeled,
        "tiles": list(notices.tiles(rows, inputs.suspects)),
        "scores": {name: dict(zip(Column._fields[1:], column[1:], strict=True)) for name, column in columns.items()},
        "points": _points(inputs, points, columns),
        "lists": [each._asdict() for each in lists],
        "views": [view.as_dict(columns, drawn) for view in views],
        "sections": [{"key": section.key, "title": section.title} for section in sections if section.title],
        **{section.key: content for section in sections if (content := section.as_dict())},
        "made": notices.made(rows),
        "pictures": [],
        "picture_note": f"0 of {counted(len(rows), 'sample')} have pictures",
        "pixelated": False,
    }, points)  # fmt: skip
    selected = choose(heads, parts, points, cells, pictures)
    if recorded is not None and recorded.several:
        wanted = list(dict.fromkeys([*selected, *choose(heads, parts, points, cells, len(points))]))
        places = np.searchsorted(points, wanted).tolist()
        payload["training"]["curves"] = sample_curves(recorded, places, rows.ids_at(wanted), len(points))
    return _with_thumbnails(payload, rows, points, data, selected, notes) if pictures else payload


def _with_thumbnails(
    payload: dict[str, Any], rows: Rows, points: np.ndarray, data: Any, selected: list[int], notes: list[Notice]
) -> dict[str, Any]:
    """The payload with as many thumbnails of the selected rows as fit into the page."""
    opened, problem = open_samples(rows.table.meta, data)
    if opened is None:
        return payload | {"notices": by_level([*notes, Notice("warn", problem)])}
    if changed_since(opened, rows.table.meta):
        changed = f"{opened.origin} has changed since it was scored; pictures may be those of other samples."
        notes = [*notes, Notice("warn", changed)]
    room = MOST_BYTES - _SLACK - len(page.render(payload).encode())
    thumbnails = make_thumbnails(opened, selected, rows.ids_at(selected), len(rows), room)
    level = "info" if thumbnails.uris else "warn"
    payload["points"]["picture"] = [thumbnails.of_row.get(row, -1) for row in points.tolist()]
    return payload | {
        "notices": by_level([*notes, *(Notice(level, text) for text in thumbnails.notices)]),
        "pictures": thumbnails.uris,
        "picture_note": thumbnails.note,
        "pixelated": thumbnails.pixelated,
    }


def _with_points(value: Any, points: np.ndarray) -> Any:
    """The payload with every array of row numbers as the places of these rows among the points."""
    if isinstance(value, np.ndarray):
        return np.searchsorted(points, value).tolist()
    if isinstance(value, dict):
        return {key: _with_points(part, points) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, list, np.ndarray)):
        return [_with_points(part, points) for part in value]
    return value


def _class_names(inputs: Inputs, points: np.ndarray) -> dict[int, str]:
    """Names by code of the classes that the page names: all of them, or with very many those that a point needs."""
    rows = inputs.rows
    codes = np.arange(rows.codes)
    if rows.codes > MANY_CLASSES:
        used = [rows.label[points], rows.pred[points]]
        if isinstance(inputs.suspects, Suspects):
            used.append(inputs.suspects.suggested[points])
        codes = np.unique(np.concatenate(used))
    return {code: rows.class_name(code) for code in codes.tolist() if code >= 0}


def _points(inputs: Inputs, points: np.ndarray, columns: dict[str, Column]) -> dict[str, Any]:
    rows, suspects, spread = inputs.rows, inputs.suspects, {}
    for name in ("avh_sd", "avh_pred_sd", "agreement", "rank", "rank_low", "rank_high"):
        values = rows.optional(name)
        if values is not None:
            scale = rows.classes if name.startswith("avh") else 1
            spread[name.replace("_pred", "")] = plain(scale * values[points])
    drawn: dict[str, Any] = {
        "id": [cut(id_) for id_ in rows.ids_at(points)],
        "label": rows.label[points].tolist(),
        "pred": rows.pred[points].tolist(),
        "picture": [-1] * len(points),
        "scores": {name: plain(column.values[points]) for name, column in columns.items()},
        "spread": spread,
        "groups": {group.column: group.codes[points].tolist() for group in inputs.groups},
    }
    if isinstance(suspects, Suspects):
        drawn["suggested"] = suspects.suggested[points].tolist()
    return drawn


def nothing_yet(table: SampleTable) -> dict[str, Any]:
    """The page of a run that has not scored a sample yet."""
    model = cut_name(table.meta.model.name or "several nets")
    data = cut_name(table.meta.data.origin or "data")
    waiting = "No sample has been scored yet; run the report again when there are some."
    return {
        "title": f"{model} on {data}",
        "notices": by_level([Notice("warn", waiting)]),
        "made": [["model", model], ["data", data]],
    }
