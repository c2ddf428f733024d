"""Tables and figures of a paper that several studies make: their rows beside the printed ones, and what is missing.

`hardsight.studies.papertables` lists them; tables that no study makes are quoted (`quoted.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardsight.errors import InputError, MissingPathError
from hardsight.printing import interval, number_text, text_table
from hardsight.studies.papertables import FIGURES, TABLES, PaperTable, TableCell
from hardsight.studies.quoted import published_row
from hardsight.studies.rowfiles import read_results
from hardsight.studies.study import STUDIES, data_file
from hardsight.studies.tables import (
    Line,
    Results,
    conditions,
    markdown_table,
    matches,
    sweep_panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_gathered(
    name: str, out: str | Path = "studies", scale: str = "paper", rows: str | Mapping[str, str | Path] = ""
) -> dict[str, Results]:
    """The results of the studies that a table or figure gathers, as far as they are finished.

    Args:
        name: In `TABLES` or `FIGURES`.
        out: The folder that `hardsight.study` wrote.
        scale: The scale at which the studies were run.
        rows: CSV files by study, which are read instead: a mapping, or ``"nci1=nci1.csv,proteins=proteins.csv"``.
    """
    studies = gathered(name).studies
    if not isinstance(rows, Mapping):
        pairs = [part.partition("=") for part in rows.split(",") if part.strip()]
        rows = {study.strip(): file.strip() for study, _, file in pairs}
    for study, file in rows.items():
        if study not in studies or not str(file):
            raise InputError(f"rows must be STUDY=FILE,… with a study of {name} ({', '.join(studies)}), got {study!r}.")
    files = {study: Path(rows.get(study) or Path(out) / f"{study}-{scale}" / "rows.csv") for study in studies}
    return {
        study: read_results(study, file, None if study in rows else scale)
        for study, file in files.items()
        if study in rows or file.is_file()
    }


def gathered(name: str) -> PaperTable:
    """A table or figure by its name."""
    return FIGURES[name] if name in FIGURES else TABLES[name]


def table_rows(name: str, results: Mapping[str, Results]) -> list[dict[str, Any]]:
    """The table as rows of texts: each column and, beside it, what the paper prints; – where nothing is measured.

    Args:
        name: In `TABLES`.
        results: The results by study; those that are missing leave their cells open.
    """
    table, rows = TABLES[name], []
    for title, study, cells in table.rows:
        lines = [_line(results.get(study), cell) for cell in cells]
        n = [line.n for line in lines if line is not None]
        row: dict[str, Any] = {"": title, "study": study, "n": _counts(n)}
        printed: dict[str, str] = {}
        for column, line, cell in zip(table.columns, lines, cells, strict=True):
            percent = STUDIES[study].measures[cell.measure].percent
            printed = published_row(study, cell.measure, _levels(study, cell))
            row[column] = "–" if line is None else _number(line.mean, line.sd, percent)
            value, sd = (float(printed.get(key) or math.nan) for key in ("value", "sd"))
            row[f"{column}, paper"] = _number(value, sd, percent)
        last = lines[-1]
        if table.difference:
            factor = 100 if STUDIES[study].measures[cells[-1].measure].percent else 1
            ends = (math.nan,) * 3 if last is None else (last.difference, last.low, last.high)
            value, low, high = (factor * end for end in ends)
            row[f"difference of {table.columns[-1]}"] = interval(value, low, high, "+.2f")
        if table.p:
            row["p"] = None if last is None else last.p_pooled
            row["p, paper"] = float(printed.get("p") or math.nan)
        rows.append(row)
    shown = [key for key in rows[0] if any(row[key] not in (None, "", "–") for row in rows)]
    return [{key: row[key] for key in shown} for row in rows]


def _levels(study: str, cell: TableCell) -> dict[str, str]:
    """The levels of a cell, which names one per factor that matters."""
    kind = STUDIES[study]
    wanted = conditions(cell.where, (*kind.factors, *kind.details))
    return {name: levels[0] for name, levels in wanted.items()}


def _line(results: Results | None, cell: TableCell) -> Line | None:
    """The line of a study's tables that a cell names; None if it is not measured."""
    if results is None:
        return None
    wanted = conditions(cell.where, (*results.study.factors, *results.study.details))
    named = ((line, dict(zip(results.columns, line.levels, strict=True))) for line in results.lines(cell.measure))
    lines = [line for line, levels in named if matches(levels, wanted)]  # a small scale may lack levels of details
    if len(lines) > 1:
        raise InputError(f"{results.study.name}: {cell.where} names {len(lines)} lines, expected one.")
    return lines[0] if lines else None


def _counts(n: list[int]) -> str:
    return " to ".join(map(str, sorted({min(n), max(n)}))) if n else "–"


def _number(mean: float, sd: float, percent: bool) -> str:
    """A mean and its standard deviation as the papers print them."""
    if math.isnan(mean):
        return "–"
    mean, sd = (100 * value if percent else value for value in (mean, sd))
    if not percent and mean >= 100 and mean == round(mean):
        return f"{mean:,.0f}"
    style, spread = (".2f", ".2f") if percent or abs(mean) >= 10 else (".4g", ".2g")
    return number_text(mean, style) + (f" ± {sd:{spread}}" if math.isfinite(sd) else "")


def table_text(name: str, results: Mapping[str, Results], scale: str = "paper") -> str:
    """The table for a terminal, what the paper prints where it is quoted, and how to measure what is missing.

    Args:
        name: In `TABLES`.
        results: The results by study.
        scale: Scale of the studies that are named for what is missing.
    """
    table = TABLES[name]
    parts = [] if table.quoted is None else [["As the paper prints it:", *text_table(table.quoted().to_pylist())]]
    parts += [[_title(table, results), *text_table(table_rows(name, results))], missing(name, results, scale)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def table_markdown(name: str, results: Mapping[str, Results]) -> str:
    """The table, and what the paper prints where it is quoted, as Markdown."""
    table = TABLES[name]
    parts = [f"# {_title(table, results)}", markdown_table(table_rows(name, results))]
    parts += [] if table.quoted is None else ["## As the paper prints it", markdown_table(table.quoted().to_pylist())]
    return "\n\n".join(parts) + "\n"


def _title(table: PaperTable, results: Mapping[str, Results]) -> str:
    """The title of a table; rows name data and networks of the scale paper, which others do not have."""
    scales = sorted({part.scale for part in results.values()} - {"paper"})
    return f"{table.title} (scale {' and '.join(scales)}: smaller than the rows name)" if scales else table.title


def missing(name: str, results: Mapping[str, Results], scale: str = "paper") -> list[str]:
    """A line for each study of which nothing in the table, or no panel of the figure, is measured."""
    measured = {row.study for row in gathered(name).rows if any(_line(results.get(row.study), c) for c in row.cells)}
    measured |= {study for study in gathered(name).sweeps if study in results}
    others = [study for study in gathered(name).studies if study not in measured]
    scales = {study: scale if scale in STUDIES[study].scales else "paper" for study in others}
    return [f"not measured: hardsight study run {study} --scale {at}" for study, at in scales.items()]


def needed(name: str, study: str, scale: str) -> dict[str, str]:
    """The levels of a study that a table needs, for `hardsight.study`; {} where all are, or the scale has others."""
    kind, rows = STUDIES[study], [row for row in gathered(name).rows if row.study == study]
    levels_of_cells = [conditions(cell.where, (*kind.factors, *kind.details)) for row in rows for cell in row.cells]
    where = {}
    for factor, levels in kind.factors.items():
        available = kind.scale(scale).levels.get(factor, levels)
        wanted = {level for named in levels_of_cells for level in named.get(factor, available)}
        wanted |= {kind.baseline, kind.pooled} - {""} if factor == kind.compare else set()
        if levels_of_cells and wanted < set(available):
            where[factor] = "|".join(level for level in available if level in wanted)
    return where


def with_data(name: str, scale: str, where: Mapping[str, str], data: Path | None) -> tuple[dict[str, str], list[str]]:
    """The levels of a study whose data are in a folder, as `where` of `hardsight.study`, and the files that it lacks.

    Raises:
        MissingPathError: No level has its data.
    """
    kind, requested = STUDIES[name], conditions(where, STUDIES[name].factors)
    for file in kind.files(scale, {}):
        data_file(file, data)
    levels_with_data, missing_files = dict(where), dict[str, None]()
    for factor, levels in kind.levels(scale).items():
        available, error = [], None
        for level in requested.get(factor, levels):
            try:
                for file in kind.data.get(level, ()):
                    data_file(file, data)
                available.append(level)
            except MissingPathError as missing:
                error = error or missing
                missing_files[file.replace("|", " or ")] = None
        if error is not None:
            if not available:
                raise error
            levels_with_data[factor] = "|".join(available)
    return levels_with_data, list(missing_files)


def gathered_figure(name: str, results: Mapping[str, Results], where: str = "") -> Figure:
    """A figure of a paper whose panels are sweeps of several studies.

    Args:
        name: In `FIGURES`.
        results: The results by study; the others leave their panels out.
        where: Only these levels, of studies that have such columns.
    """
    from hardsight.figures.sweeps import plot_sweeps

    every = {column for study in FIGURES[name].sweeps for column in (*STUDIES[study].factors, *STUDIES[study].details)}
    wanted = conditions(where, sorted(every))
    panels = []
    for study in FIGURES[name].sweeps:
        if study in results:
            its_levels = {column: "|".join(wanted[column]) for column in wanted.keys() & set(results[study].columns)}
            measured = sweep_panels(results[study], where=its_levels)
            panels += [panel._replace(title=f"{study} {panel.title}".strip()) for panel in measured]
    if not panels:
        raise InputError(f"rows: there is nothing to draw yet; begin with: hardsight study run {name}.")
    return plot_sweeps(panels)
