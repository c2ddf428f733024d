"""Rows of a study as tables: means and spreads over seeds, differences to the baseline, and the paper's numbers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hardsight.errors import InputError, MissingPathError
from hardsight.printing import Result, cell, interval, text_table
from hardsight.stats import holm, paired_difference
from hardsight.studies.study import STUDIES, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Line(NamedTuple):
    """A measure of one combination of levels."""

    levels: tuple[str, ...]
    measure: str
    n: int
    mean: float
    sd: float
    paper: float
    difference: float = math.nan  # to the baseline, with the same seeds
    low: float = math.nan  # its 95% interval
    high: float = math.nan
    p: float = math.nan
    p_holm: float = math.nan  # over all combinations
    pairs: int = 0  # seeds that both have


@dataclass(frozen=True)
class Results(Result):
    """Rows of a study.

    Attributes:
        study: The study.
        rows: One per cell, or several that the study's details tell apart.
        path: The folder, or the file that they come from.
        cells: How many there would be if it were complete.
        scale: At which it was run; only those of ``paper`` are beside the paper's numbers.
    """

    study: Study
    rows: list[dict[str, Any]]
    path: Path
    cells: int
    scale: str = "paper"

    def __repr__(self) -> str:
        return self._line(self.path, f"{len(self.rows):,} rows of {self.study.name}")

    @property
    def finished(self) -> int:
        """The number of cells that are there."""
        return len({(*_levels(row, self.study.factors), row["seed"]) for row in self.rows})

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the factors and details, which tell rows of one seed apart."""
        names = (*self.study.factors, *self.study.details)
        return tuple(name for name in names if any(row.get(name) not in (None, "") for row in self.rows))

    def lines(self, measure: str) -> list[Line]:
        """A measure of every combination of levels, in the order of the rows."""
        groups: dict[tuple[str, ...], dict[Any, float]] = {}
        for row in self.rows:
            value = row.get(measure)
            if value not in (None, "") and math.isfinite(float(value)):
                groups.setdefault(_levels(row, self.columns), {})[row["seed"]] = float(value)
        lines = [self._line_of(levels, measure, groups) for levels in groups]
        tested = [k for k, line in enumerate(lines) if math.isfinite(line.p)]
        for k, corrected in zip(tested, holm(np.array([lines[k].p for k in tested])), strict=True):
            lines[k] = lines[k]._replace(p_holm=float(corrected))
        return lines

    def _line_of(self, levels: tuple[str, ...], measure: str, groups: dict[tuple[str, ...], dict[Any, float]]) -> Line:
        values = groups[levels]
        every = np.array(list(values.values()))
        sd = float(every.std(ddof=1)) if len(every) > 1 else math.nan
        line = Line(levels, measure, len(every), float(every.mean()), sd, self._paper(levels, measure))
        if self.study.compare not in self.columns:
            return line
        place = self.columns.index(self.study.compare)
        base = groups.get((*levels[:place], self.study.baseline, *levels[place + 1 :]), {})
        seeds = [seed for seed in values if seed in base]
        if levels[place] == self.study.baseline or not seeds:
            return line
        test = paired_difference(*(np.array([of[seed] for seed in seeds]) for of in (values, base)))
        difference, low, high, p = (float(number) for number in test)
        return line._replace(difference=difference, low=low, high=high, p=p, pairs=len(seeds))

    def _paper(self, levels: tuple[str, ...], measure: str) -> float:
        named = dict(zip(self.columns, levels, strict=True))
        for row in published(self.study.name) if self.scale == "paper" else ():
            if row["measure"] == measure and all(row.get(name, level) == level for name, level in named.items()):
                return float(row["value"])
        return math.nan

    def tables(self, measures: Sequence[str] = ()) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """A title and rows of texts for each measure.

        Args:
            measures: Which; all if not given.
        """
        for name in measures:
            if name not in self.study.measures:
                raise InputError(f"measure: {self.study.name} measures {', '.join(self.study.measures)}, not {name!r}.")
        for name in measures or self.study.measures:
            lines, kind = self.lines(name), self.study.measures[name]
            scale, style = (100, ".2f") if kind.percent else (1, ".4g")
            rows = []
            for line in lines:
                row: dict[str, Any] = dict(zip(self.columns, line.levels, strict=True)) | {"n": line.n}
                spread = f" ± {scale * line.sd:{style}}" if math.isfinite(line.sd) else ""
                row["mean ± sd"] = f"{scale * line.mean:{style}}{spread}"
                if any(other.pairs for other in lines):
                    difference, low, high = (scale * number for number in (line.difference, line.low, line.high))
                    row[f"difference to {self.study.baseline}"] = interval(difference, low, high, f"+{style}")
                    row["p (Holm)"] = line.p_holm
                if any(math.isfinite(other.paper) for other in lines):
                    row["paper"] = f"{scale * line.paper:{style}}" if math.isfinite(line.paper) else None
                rows.append(row)
            if rows:
                yield f"{kind.title}{', in %' if kind.percent else ''}", rows

    def text(self, measures: Sequence[str] = ()) -> str:
        """The tables for a terminal."""
        return "\n\n".join("\n".join([title, *text_table(rows)]) for title, rows in self.tables(measures))

    def markdown(self, measures: Sequence[str] = ()) -> str:
        """The tables as a page."""
        parts = [f"# {self.study.question}", f"{self.study.paper}. {self.finished:,} of {self.cells:,} cells."]
        for title, rows in self.tables(measures):
            body = [list(rows[0]), ["---"] * len(rows[0]), *(list(map(cell, row.values())) for row in rows)]
            parts += [f"## {title}", "\n".join(f"| {' | '.join(line)} |" for line in body)]
        return "\n\n".join(parts) + "\n"

    def figure(self, measures: Sequence[str] = ()) -> Figure:
        """Means with their spread over seeds, a panel per measure; crosses are the paper's numbers."""
        from hardsight.figures.style import COLORS, GRAY, new_figure

        names = [name for name in (measures or list(self.study.measures)[:4]) if self.lines(name)]
        if not names:
            raise InputError(f"rows: there is nothing to draw yet; run the study {self.study.name} first.")
        figure, axes = new_figure(1, len(names))
        for axis, name in zip(axes[0], names, strict=True):
            lines, kind = self.lines(name), self.study.measures[name]
            place, scale = np.arange(len(lines))[::-1], 100 if kind.percent else 1
            spread = [0 if math.isnan(line.sd) else scale * line.sd for line in lines]
            axis.errorbar(
                [scale * line.mean for line in lines], place, xerr=spread, fmt="o", color=COLORS[0], capsize=3
            )
            axis.plot([scale * line.paper for line in lines], place, "x", color=GRAY)
            axis.set_yticks(place, [" ".join(line.levels) or self.study.name for line in lines])
            axis.set_xlabel(f"{kind.title}{', %' if kind.percent else ''}")
        return figure


def _levels(row: dict[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Levels of a row as texts: a number 1.0 is the level ``1``."""
    values = (row.get(name) for name in names)
    return tuple(f"{v:g}" if isinstance(v, (int, float)) else str("" if v is None else v) for v in values)


def published(name: str) -> list[dict[str, str]]:
    """The numbers of the paper that a study is about."""
    file = resources.files("hardsight.studies") / "published" / f"{name}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.is_file() else []


def read_results(name: str, rows: str | Path, scale: str = "paper") -> Results:
    """Rows of a study from a CSV, of this machine or of another.

    Args:
        name: Of the study.
        rows: The file; with columns quantity and value, each line is one number.
        scale: At which they were computed.
    """
    path, study = Path(rows), STUDIES[name]
    if not path.is_file():
        raise MissingPathError(f"rows: there is no file {path}; run the study {name} first, or name its rows.")
    with path.open(newline="", encoding="utf-8") as file:
        lines: list[dict[str, Any]] = [dict(line) for line in csv.DictReader(file)]
    if not lines or "seed" not in lines[0]:
        raise InputError(f"rows: {path} must have a column seed and those of the study {name}.")
    if {"quantity", "value"} <= set(lines[0]):
        lines = _pivoted([line for line in lines if line.get("study", name) == name])
    return Results(study, lines, path, len(lines), scale)


def _pivoted(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per cell of lines with one number each."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        quantity, value = line.pop("quantity"), line.pop("value")
        rows.setdefault(tuple(line.values()), line)[quantity] = value
    return list(rows.values())
