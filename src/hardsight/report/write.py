"""`write_report`: a run as one page, and everything that the page draws as plain lists, texts and numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.chance import ChanceWarning
from hardsight.dynamics import Dynamics
from hardsight.errors import InputError, MissingPathError
from hardsight.idtables import read_by_id
from hardsight.records import has_records
from hardsight.registry import whole_number
from hardsight.stores import as_path

from hardsight.report import bad_rows, classes, clusters, comparison, confusions, disagreement, embedding  # isort: skip
from hardsight.report import distributions, groups, label_errors, neighbors, notices, people, planted  # isort: skip
from hardsight.report import samples, training  # isort: skip
from hardsight.report.formatting import cut, cut_name, json_bytes, plain
from hardsight.report.label_errors import Suspects
from hardsight.report.page import render
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.sections import Column, Notice, Section, by_level
from hardsight.report.thumbnails import choose, choose_points, pictures_of
from hardsight.report.training import read_recorded, sample_curves
from hardsight.report.vectors import most_probable
from hardsight.runs import REPORT, check_replaceable, disk_errors, is_page, is_run, write_text
from hardsight.table import SampleTable

# Every section of the page in its order, which is also the order of its lists and views: modules with a function
# ``build(Rows) -> Section | None``.
SECTIONS = (
    notices, planted, samples, label_errors, disagreement, neighbors, embedding, confusions, training, people,
    comparison, distributions, classes, groups, clusters, bad_rows,
)  # fmt: skip

_LONG_BYTES = 1_000_000  # of ids that are longer than the page shows


def write_report(
    run: str | Path | SampleTable, out: str | Path | None = None, *, data: Any = None,
    against: str | Path | SampleTable | None = None, groups: Any = None, pictures: int = 2000,
    tell: Callable[[str], object] | None = None,
) -> Path:  # fmt: skip
    """Write a run as one page to look at, a single HTML file of at most 15 MB that needs no network; returns its path.

    Pictures that cannot be read are missing, and the page says so. The page of a run that is still being written shows
    the results so far. The page of a recorded training shows the last epoch and the training.

    Args:
        run: The run folder that was scored or recorded; in Python also a table.
        out: The page to write; ``RUN/report.html`` if not given; in Python ``report.html`` for a table.
        data: Where the images are, unless the run names a folder, tar shards or an .npz that still exists.
        against: An earlier run over the same samples, to show what became easier or harder.
        groups: CSV or Parquet with a column id and columns to compare by (camera, site, …); in Python also a data
            frame, Arrow table or mapping. Text and small integers in the table's own columns are groups, too.
        pictures: Maximum number of thumbnails.
        tell: Called with each warning that the page shows, such as `print`.

    Examples:
        >>> import tempfile
        >>> table = SampleTable.from_columns({"id": ["a", "b"], "label": [0, 1], "pred": [0, 0], "avh": [0.2, 0.7]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_report(table, f"{folder}/report.html").name
        'report.html'
    """
    pictures = whole_number("pictures", pictures, 0)
    folder = None if isinstance(run, SampleTable) else as_path(run)
    table = _load(run)
    if not len(table) and not table.meta.unfinished:
        raise InputError("run must hold at least one scored sample, got none; score some data first.")
    target = as_path(out) if out is not None else (folder or Path()) / REPORT
    if target.is_dir():
        raise InputError(f"out must be a file, got the folder {target}; name a file in it.")
    check_replaceable(target, is_page)
    if len(table):
        dynamics = Dynamics(folder) if folder is not None and has_records(folder) else None
        against, rows = _load(against), Rows(table)
        del table, run  # for a large run only the sorted copy stays in memory
        pa.default_memory_pool().release_unused()
        payload = make_payload(
            rows, against=against, group_table=groups, run=folder, dynamics=dynamics, data=data, pictures=pictures
        )
    else:
        payload = nothing_yet(table)
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, render(payload))
    for notice in [*payload["notices"], payload.get("sampling", {})]:
        if notice.get("level") == "alarm":
            warnings.warn(notice["text"], ChanceWarning, stacklevel=2)
        elif notice.get("level") == "warn" and tell is not None:
            tell(notice["text"])
    return target


def _load(run: Any) -> Any:
    """The table of a run, unless it is already a table; the folder of a whole training holds two."""
    if not isinstance(run, (str, Path)):
        return run
    inside = [as_path(run) / name for name in ("test", "train") if is_run(as_path(run) / name)]
    if inside and not is_run(run):
        raise MissingPathError(f"RUN: {run} holds a training; name {' or '.join(map(str, inside))}.")
    return SampleTable.load(run, partial=True)


def make_payload(
    rows: Rows, *, against: Any = None, group_table: Any = None, run: Any = None, dynamics: Dynamics | None = None,
    data: Any = None, pictures: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Build every section, choose the points and their pictures, and put the page together.

    Args are those of `write_report`, read: `run` is the folder, where there is one, and `dynamics` its records.
    """
    rows.run, rows.data, rows.against = run, data, against
    rows.group_table = None if group_table is None else read_by_id(group_table, "groups")
    rows.groups, rows.group_notes = groups.find_groups(rows, rows.group_table)
    rows.recorded = None if dynamics is None else read_recorded(rows, dynamics)
    rows.suspects = label_errors.find_suspects(rows)
    sections: list[Section] = []
    views: list[dict[str, Any]] = []
    columns: dict[str, Column] = {}
    for module in SECTIONS:
        if (section := module.build(rows)) is not None:
            sections.append(section)
            columns |= section.columns
            views += [view.as_dict(columns) for view in section.views]  # while their data are in memory
        pa.default_memory_pool().release_unused()
    lists = [each for section in sections for each in section.lists]
    if rows.meta.planted:  # then they are the main content
        lists.sort(key=lambda each: each.key != "suspects")
    heads = [*(each.rows for each in lists), *(part for section in sections for part in section.examples)]
    parts = [part for section in sections for part in section.parts]
    main = next((view for section in sections for view in section.views), None)
    cells = np.zeros(len(rows), dtype=np.int8) if main is None else main.cells(columns)
    points = choose_points(len(rows), np.concatenate([*heads, *parts]), cells, rows.at)
    cells = np.maximum(cells[points], 0)
    drawn = f" {len(points):,} of {len(rows):,} are drawn as points, rare ones among them; the shading counts all."
    drawn = f" All {len(rows):,} are drawn as points." if len(points) == len(rows) else drawn
    selected = choose(heads, parts, points, cells, pictures)
    thumbnails, picture_notices = pictures_of(rows, data, selected)
    payload = {
        "title": notices.title(rows),
        "notices": by_level([*(notice for section in sections for notice in section.notices), *picture_notices]),
        "sampling": notices.sampling(rows),
        "n": len(rows),
        "classes": _class_names(rows, points),
        "labeled": rows.labeled,
        "tiles": list(notices.tiles(rows)),
        "scores": {name: dict(zip(Column._fields[1:], column[1:], strict=True)) for name, column in columns.items()},
        "points": _points(rows, points, columns),
        "lists": [each._asdict() for each in lists],
        "views": [view | {"note": view["note"] + drawn} for view in views],
        "sections": [{"key": section.key, "title": section.title} for section in sections if section.title],
        **{section.key: content for section in sections if (content := section.as_dict())},
        "made": notices.made(rows),
        "pictures": thumbnails.uris,
        "picture_note": thumbnails.note,
        "pixelated": thumbnails.pixelated,
    }
    payload = _with_points(payload, points)
    payload["points"]["picture"] = [thumbnails.of_row.get(row, -1) for row in points.tolist()]
    if rows.recorded is not None and len(rows.recorded.shown) > 1:
        wanted = list(dict.fromkeys([*selected, *choose(heads, parts, points, cells, len(points))]))
        places = np.searchsorted(points, wanted).tolist()
        payload["training"]["curves"] = sample_curves(rows.recorded, places, rows.ids_at(wanted), len(points))
    return payload


def _with_points(value: Any, points: np.ndarray) -> Any:
    """The payload with every array of row numbers replaced by positions among the points."""
    if isinstance(value, np.ndarray):
        return np.searchsorted(points, value).tolist()
    if isinstance(value, dict):
        return {key: _with_points(part, points) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, list, np.ndarray)):
        return [_with_points(part, points) for part in value]
    return value


def _class_names(rows: Rows, points: np.ndarray) -> dict[int, str]:
    """Names by code of the classes on the page: all of them or, if there are very many, those that points need."""
    codes = np.arange(rows.codes)
    if rows.codes > MANY_CLASSES:
        suggested = [rows.suspects.suggested[points]] if isinstance(rows.suspects, Suspects) else []
        codes = np.unique(np.concatenate([rows.label[points], rows.pred[points], *suggested]))
    return {code: rows.class_name(code) for code in codes.tolist() if code >= 0}


def _points(rows: Rows, points: np.ndarray, columns: dict[str, Column]) -> dict[str, Any]:
    """The data of each sample that the page draws."""
    spread = {}
    for name in ("avh_sd", "avh_pred_sd", "agreement", "rank", "rank_low", "rank_high"):
        if name in rows.table:
            scale = rows.classes if name.startswith("avh") else 1
            spread[name.replace("_pred", "")] = plain(scale * rows.read(name)[points])
    suggested = rows.suspects.suggested[points].tolist() if isinstance(rows.suspects, Suspects) else None
    ids = rows.ids_at(points)
    shown = [cut(id_) for id_ in ids]
    long = {place: id_ for place, id_ in enumerate(ids) if id_ != shown[place]}  # a decision needs all of an id
    sizes = np.cumsum([json_bytes(id_) for id_ in long.values()])
    return {
        "id": shown,
        "long": {k: id_ if size <= _LONG_BYTES else None for (k, id_), size in zip(long.items(), sizes, strict=True)},
        "label": rows.label[points].tolist(),
        "pred": rows.pred[points].tolist(),
        "scores": {name: plain(column.read()[points]) for name, column in columns.items()},
        "spread": spread,
        "groups": {group.column: group.codes[points].tolist() for group in rows.groups},
        **({} if suggested is None else {"suggested": suggested}),
        **({} if (probable := most_probable(rows, points)) is None else {"probable": probable}),
        **({} if (near := neighbors.neighbors_of(rows, points)) is None else {"neighbors": near}),
        **({} if (codes := planted.planted_codes(rows)) is None else {"planted": codes[points].tolist()}),
    }


def nothing_yet(table: SampleTable) -> dict[str, Any]:
    """The page of a run that has not scored a sample yet."""
    model, data = cut_name(table.meta.model.name or "several nets"), cut_name(table.meta.data.origin or "data")
    waiting = Notice("warn", "No sample has been scored yet; run the report again when there are some.")._asdict()
    return {"title": f"{model} on {data}", "notices": [waiting], "made": [["model", model], ["data", data]]}
