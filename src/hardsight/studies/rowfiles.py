"""Rows of studies from CSV files, of this machine or of another: checked when they are read, and counted once."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.errors import InputError, MissingPathError
from hardsight.studies.study import STUDIES, Study
from hardsight.studies.tables import Results, cell_key, derived, level_text
from hardsight.untrusted import check_regular

_RERUN = re.compile(r"hardsight study run \S+ --scale (\S+)")  # what a row says about itself


def read_rows(path: Path, columns: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The lines of a CSV by column, as text.

    Args:
        path: The file.
        columns: Those that it must have.
    """
    check_regular(path, "rows")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            titles, *lines = list(csv.reader(file, strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"rows: {path} is not a CSV file in UTF-8.") from None
    lines = [line for line in lines if line]
    if twice := sorted({title for title in titles if titles.count(title) > 1}):
        raise InputError(f"rows: {path} has two columns {twice[0]!r}.")
    if not lines:
        raise InputError(f"rows: {path} holds no rows.")
    if missing := [name for name in columns if name not in titles]:
        raise InputError(f"rows: {path} has no column {missing[0]}.")
    for number, line in enumerate(lines, 1):
        if len(line) != len(titles):
            raise InputError(f"rows: row {number} of {path} has {len(line)} cells, its first line {len(titles)}.")
    return [dict(zip(titles, line, strict=True)) for line in lines]


def read_results(name: str, rows: str | Path | Sequence[str | Path], scale: str | None = None) -> Results:
    """Rows of a study from a CSV, of this machine or of another.

    A row that is there twice counts once; two different numbers for one cell are refused.

    Args:
        name: Of the study.
        rows: The file, or several. With a column study, only rows of this one count; with columns quantity and value,
            each line is one number.
        scale: The scale at which they were computed; if not given, what the rows say, or else paper.
    """
    study, lines = STUDIES[name], []
    paths = [Path(path) for path in ([rows] if isinstance(rows, (str, Path)) else rows)]
    for path in paths:
        if not path.exists():
            raise MissingPathError(f"rows: there is no file {path}; run the study {name} first, or name its rows.")
        lines += _rows_of(study, path)
    levels = {factor: set(map(level_text, among)) for factor, among in study.levels().items()}
    if not any(all(level_text(row[factor]) in among for factor, among in levels.items()) for row in lines):
        raise InputError(f"rows: {paths[0]} holds no rows of the study {name}.")
    try:
        complete = derived(study, lines)
    except (KeyError, ValueError) as error:
        raise InputError(f"rows: {paths[0]} lacks what the study {name} derives its numbers from: {error}.") from None
    if not any(row.get(measure) not in (None, "") for row in complete for measure in study.measures):
        raise InputError(f"rows: {paths[0]} holds no number that the study {name} measures.")
    once = _once(study, complete, paths[0])
    return Results(study, once, paths[0], 0, _scale(lines, scale, paths[0]))


def _rows_of(study: Study, path: Path) -> list[dict[str, Any]]:
    """The rows of a study in one file: whole numbers as seeds, and numbers where it measures some."""
    rows = read_rows(path)
    if "seed" not in rows[0]:
        raise InputError(f"rows: {path} must have a column seed and those of the study {study.name}.")
    rows = [row for row in rows if row.get("study", study.name) == study.name]
    if rows and {"quantity", "value"} <= rows[0].keys():
        rows = _wide(rows, path)
    if rows and (missing := [factor for factor in study.factors if factor not in rows[0]]):
        raise InputError(f"rows: {path} has no column {missing[0]}, so it holds no rows of the study {study.name}.")
    for row in rows:
        row["seed"] = _seed(row["seed"], path)
        for measure in study.measures.keys() & row.keys():
            if row[measure] and _number(row[measure]) is None:
                raise InputError(f"rows: {path} has {row[measure]!r} for {measure}, expected a number.")
    return rows


def _wide(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Rows of one number each as rows with a column per quantity."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        quantity, value = row.pop("quantity"), row.pop("value")
        cell = cells.setdefault(tuple(row.values()), row)
        if cell.setdefault(quantity, value) != value:
            raise InputError(f"rows: {path} has two different numbers of {quantity} for {_where(row)}.")
    return list(cells.values())


def _seed(text: str, path: Path) -> str:
    """A seed as text: 0.0, as other programs write it, is the seed 0."""
    number = _number(text)
    if number is None or not number.is_integer() or number < 0:
        raise InputError(f"rows: {path} has the seed {text!r}, expected whole numbers from 0.")
    return str(int(number))


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _once(study: Study, rows: Iterable[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Each cell's row once; those that give different numbers for one cell have no mean that says anything."""
    names: tuple[str, ...] = (*study.factors, *study.details)
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = cell_key(row, names)
        if key not in cells:
            cells[key] = dict(row)
            continue
        cell = cells[key]
        for name, value in row.items():
            if cell.get(name) in (None, ""):
                cell[name] = value
            elif name in study.measures and value not in (None, "") and not _equal(value, cell[name]):
                place = _where({column: row.get(column) for column in (*names, "seed")})
                raise InputError(f"rows: {path} has two different numbers of {name} for {place}.")
    return list(cells.values())


def _equal(a: Any, b: Any) -> bool:
    return np.array_equal(float(a), float(b), equal_nan=True)


def _where(levels: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}={level}" for name, level in levels.items() if level not in (None, ""))


def _scale(rows: Iterable[Mapping[str, Any]], named: str | None, path: Path) -> str:
    """The scale that rows say they are of; the named one, or paper, where they do not say."""
    commands = (_RERUN.match(row.get("rerun") or "") for row in rows)
    stated = sorted({command[1] for command in commands if command})
    if named is not None and stated and stated != [named]:
        raise InputError(f"scale: the rows of {path} are of the scale {' and '.join(stated)}, not {named}.")
    return named or " and ".join(stated) or "paper"
