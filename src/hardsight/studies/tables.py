"""Rows of a study as tables: means and spreads over seeds, differences to the baseline, and the paper's numbers."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.printing import Result, cell, html_table, interval, number_text, text_table
from hardsight.registry import did_you_mean
from hardsight.stats import holm, paired_difference, pooled_difference
from hardsight.studies.quoted import published_row
from hardsight.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hardsight.figures.sweeps import Panel

_NOTE = "n counts seeds. Differences are paired by seed, with 95% intervals; p is corrected by Holm's method."
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="generator" content="hardsight">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #8886; }}
.long td:nth-child(4) {{ min-width: 22rem; }}
td {{ white-space: {space}; }}
td:first-child {{ white-space: nowrap; }}
td:nth-child(2) {{ min-width: {second}; }}
</style>
{body}
</html>
"""


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
    p_holm: float = math.nan  # corrected within the family
    pairs: int = 0  # seeds that both have
    family: str = ""
    p_pooled: float = math.nan  # of the paper's test, not paired by seed


@dataclass(frozen=True)
class Results(Result):
    """Rows of a study.

    Attributes:
        study: The study.
        rows: One per cell, or several that the study's details tell apart.
        path: The folder or file that they come from.
        cells: Number of cells of the complete study; 0 if it is not known, as of rows from a file.
        scale: The scale; the paper's numbers are shown beside rows of ``paper`` only.
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
        """Number of cells with results."""
        return count_cells(self.study, self.rows)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the factors and details, which tell rows of one seed apart."""
        names = (*self.study.factors, *self.study.details)
        return tuple(name for name in names if any(row.get(name) not in (None, "") for row in self.rows))

    def values(
        self, measure: str, over: str = "seed", seeds: Sequence[str] = ()
    ) -> dict[tuple[str, ...], dict[Any, float]]:
        """A measure of every combination of levels, by seed.

        Args:
            measure: Its name.
            over: A factor in place of the seed: means over the seeds of each of its levels. Its column is then "".
            seeds: Only these; all if not given.
        """
        groups: dict[tuple[str, ...], dict[Any, list[float]]] = {}
        for row in self.rows:
            value = row.get(measure)
            if value in (None, "") or not math.isfinite(float(value)):
                continue
            if seeds and level_text(row["seed"]) not in seeds:
                continue
            *levels, seed = cell_key(row, self.columns)
            if over == "seed":
                groups.setdefault(tuple(levels), {})[seed] = [float(value)]
            else:
                unit = levels[self.columns.index(over)]
                levels[self.columns.index(over)] = ""
                groups.setdefault(tuple(levels), {}).setdefault(unit, []).append(float(value))
        return {key: {unit: float(np.mean(of)) for unit, of in group.items()} for key, group in groups.items()}

    def lines(self, measure: str, where: str | Mapping[str, str] = "") -> list[Line]:
        """A measure of every combination of levels, in the order of the rows.

        Args:
            measure: Its name.
            where: Only these levels, as in ``"pair=mnist-usps and at=last"``; tests are corrected for all others, too.
                ``seed=3`` leaves out the other seeds, also from the tests.
        """
        wanted = conditions(where, (*self.study.factors, *self.study.details, "family", "seed"))
        groups = self.values(measure, seeds=wanted.pop("seed", ()))
        lines = [self._line_of(levels, measure, groups) for levels in groups]
        for family in dict.fromkeys(line.family for line in lines):
            tested = [k for k, line in enumerate(lines) if line.family == family and math.isfinite(line.p)]
            for k, corrected in zip(tested, holm(np.array([lines[k].p for k in tested])), strict=True):
                lines[k] = lines[k]._replace(p_holm=float(corrected))
        if self.rows:  # of an unfinished study, levels without rows are known from its declaration
            levels = self.study.levels()
            check_levels(
                wanted, {n: [*(level_text(row.get(n)) for row in self.rows), *levels.get(n, ())] for n in self.columns}
            )
        named = [dict(zip(self.columns, line.levels, strict=True)) | {"family": line.family} for line in lines]
        return [line for line, levels in zip(lines, named, strict=True) if matches(levels, wanted)]

    def _line_of(self, levels: tuple[str, ...], measure: str, groups: dict[tuple[str, ...], dict[Any, float]]) -> Line:
        study, values, named = self.study, groups[levels], dict(zip(self.columns, levels, strict=True))
        every = np.array(list(values.values()))
        sd = float(every.std(ddof=1)) if len(every) > 1 else math.nan
        family = "" if study.family is None else study.family(named)
        line = Line(levels, measure, len(every), float(every.mean()), sd, self._paper(named, measure), family=family)
        if named.get(study.compare, study.baseline) == study.baseline:
            return line
        base, other = (
            groups.get(tuple((named | {study.compare: at}).values()), {}) for at in (study.baseline, study.pooled)
        )
        if other and named[study.compare] != study.pooled:
            line = line._replace(p_pooled=float(pooled_difference(every, np.array(list(other.values()))).p))
        seeds = [seed for seed in values if seed in base]
        if not seeds:
            return line
        test = paired_difference(*(np.array([of[seed] for seed in seeds]) for of in (values, base)))
        difference, low, high, p = map(float, test)
        return line._replace(difference=difference, low=low, high=high, p=p, pairs=len(seeds))

    def _paper(self, named: Mapping[str, str], measure: str) -> float:
        row = published_row(self.study.name, measure, named) if self.scale == "paper" else {}
        return float(row.get("value", math.nan))

    def tables(
        self, measures: Sequence[str] = (), where: str | Mapping[str, str] = ""
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """A title and rows of texts for each measure.

        Args:
            measures: Which; all if not given.
            where: Only these levels; see `lines`.
        """
        for name in self.study.check_measures(measures) or self.study.measures:
            lines, measure = self.lines(name, where), self.study.measures[name]
            factor, style = (100, ".2f") if measure.percent else (1, ".4g")
            rows = []
            for line in lines:
                row: dict[str, Any] = dict(zip(self.columns, line.levels, strict=True)) | {"n": line.n}
                if any(other.pairs not in (0, other.n) for other in lines):
                    row["pairs"] = line.pairs or None
                spread = f" ± {factor * line.sd:{style}}" if math.isfinite(line.sd) else ""
                row["mean ± sd"] = f"{number_text(factor * line.mean, style)}{spread}"
                if any(other.pairs for other in lines):
                    difference, low, high = (factor * number for number in (line.difference, line.low, line.high))
                    row[f"difference to {self.study.baseline}"] = interval(difference, low, high, f"+{style}")
                    row["p (Holm)"] = line.p_holm
                if any(math.isfinite(other.p_pooled) for other in lines):
                    row[f"p (pooled t, {self.study.pooled})"] = line.p_pooled
                if any(math.isfinite(other.paper) for other in lines):
                    row["paper"] = number_text(factor * line.paper, style) if math.isfinite(line.paper) else None
                rows.append(row)
            if rows:
                yield f"{measure.title}{', in %' if measure.percent else ''}{self._start}", rows

    @property
    def _start(self) -> str:
        """What networks start from, for titles; nothing where a study leaves no choice or the rows do not say."""
        if not self.study.takes_weights or self.study.takes_network:
            return ""
        weights = sorted({row["weights"] or "scratch" for row in self.rows if "weights" in row})
        return f", networks from {' and '.join(weights)}" if weights else ""

    def text(self, measures: Sequence[str] = (), where: str | Mapping[str, str] = "", most: int | None = None) -> str:
        """The tables for a terminal; of each, at most so many lines."""
        parts = []
        for title, rows in self.tables(measures, where):
            lines = [title, *text_table(rows[:most])]
            if len(rows) > len(rows[:most]):
                lines.append(f"… and {len(rows) - len(rows[:most]):,} more; --where narrows them, --to writes all")
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    @property
    def _summary(self) -> str:
        paper = f"{self.study.paper}. " if self.study.paper else ""
        planned = f" of {self.cells:,}" if self.cells else ""
        return f"{paper}Study {self.study.name}, scale {self.scale}: {self.finished:,}{planned} cells."

    def sentence(self, measure: str, where: str | Mapping[str, str] = "") -> str:
        """How many lines of a measure differ from the baseline; empty where none is compared with it."""
        tested = [line for line in self.lines(measure, where) if math.isfinite(line.p_holm)]
        if not tested:
            return ""
        shown = [line.difference for line in tested if line.p_holm < 0.05]
        above, below = (sum(sign * difference > 0 for difference in shown) for sign in (1, -1))
        return (
            f"{self.study.measures[measure].title}, of {len(tested)} lines compared with {self.study.baseline}: "
            f"{above} above it, {below} below, {len(tested) - len(shown)} not shown to differ."
        )

    def markdown(self, measures: Sequence[str] = (), where: str | Mapping[str, str] = "") -> str:
        """The tables as Markdown."""
        parts = [f"# {self.study.question}", self._summary]
        for title, rows in self.tables(measures, where):
            parts += [f"## {title}", markdown_table(rows)]
        return "\n\n".join(parts) + "\n"

    def page(self, measures: Sequence[str] = (), where: str | Mapping[str, str] = "") -> str:
        """The tables as one HTML page that loads nothing from elsewhere."""
        first = next(iter(measures or self.study.measures))
        opening = filter(None, [self._summary, self.sentence(first, where), _NOTE])
        body = [f"<h1>{html.escape(self.study.question)}</h1>", *(f"<p>{html.escape(part)}</p>" for part in opening)]
        for title, rows in self.tables(measures, where):
            body += [f"<h2>{html.escape(title)}</h2>", html_table(rows)]
        return html_page(self.study.question, body)

    def figure(self, measures: Sequence[str] = (), where: str | Mapping[str, str] = "") -> Figure:
        """Means with their spread over seeds, one panel per measure; crosses are the paper's numbers.

        A study that sweeps an option has a panel per measure, setting and option, against its values.
        """
        from hardsight.figures.style import COLORS, GRAY, new_figure, plain
        from hardsight.figures.sweeps import plot_sweeps

        if self.study.sweeps:
            return plot_sweeps(sweep_panels(self, measures, where))
        names = [
            name
            for name in (self.study.check_measures(measures) or list(self.study.measures)[:4])
            if self.lines(name, where)
        ]
        if not names:
            raise InputError(f"rows: there is nothing to draw yet; run the study {self.study.name} first.")
        measured = {name: self.lines(name, where) for name in names}
        rows = {
            levels: -at for at, levels in enumerate(dict.fromkeys(li.levels for of in measured.values() for li in of))
        }
        figure, axes = new_figure(1, len(names), sharey=True)
        figure.set_figheight(max(figure.get_figheight(), 1.0 + 0.2 * len(rows)))
        for axis, (name, lines) in zip(axes[0], measured.items(), strict=True):
            measure, place = self.study.measures[name], [rows[line.levels] for line in lines]
            factor = 100 if measure.percent else 1
            spread = [0 if math.isnan(line.sd) else factor * line.sd for line in lines]
            means, papers = (
                [factor * number for number in column]
                for column in zip(*((li.mean, li.paper) for li in lines), strict=True)
            )
            axis.errorbar(
                means, place, xerr=spread, fmt="o", color=COLORS[0], capsize=3, label="mean ± 1 sd over seeds"
            )
            if any(map(math.isfinite, papers)):
                axis.plot(papers, place, "x", color=GRAY, label="in the paper")
                axis.legend(fontsize=7, frameon=False)
            axis.set_xlabel(textwrap.fill(f"{measure.title}{', %' if measure.percent else ''}", 34))
        axes[0, 0].set_yticks([*rows.values()], [plain(self._named(levels)) for levels in rows])
        return figure

    def _named(self, levels: Sequence[str]) -> str:
        """Levels as one text; numbers with the names of their columns."""
        named = zip(self.columns, levels, strict=True)
        return ", ".join(f"{n} {at}" if is_number(at) else at for n, at in named if at) or self.study.name


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of texts and numbers as a Markdown table; the columns are those of the first row."""
    body = [list(rows[0]), ["---"] * len(rows[0])]
    body += [[cell(row[name]).replace("|", "\\|") for name in rows[0]] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in body)


def html_page(title: str, body: Sequence[str], wrap: bool = False) -> str:
    """Parts of a page that loads nothing from elsewhere; cells of tables stay on one line unless they may wrap."""
    return _PAGE.format(
        title=html.escape(title),
        body="\n".join(body),
        space="normal" if wrap else "nowrap",
        second="15rem" if wrap else "0",
    )


def sweep_panels(results: Results, measures: Sequence[str] = (), where: str | Mapping[str, str] = "") -> list[Panel]:
    """What the figure of a study with sweeps draws: one panel per measure, setting and option.

    Args:
        results: The rows.
        measures: Which; the first if not given.
        where: Only these levels; the baseline is always drawn.
    """
    from hardsight.figures.sweeps import Panel, Point

    study, panels = results.study, []
    for name in study.check_measures(measures) or list(study.measures)[:1]:
        measure, settings = study.measures[name], {}
        factor, shown = 100 if measure.percent else 1, {line.levels for line in results.lines(name, where)}
        for line in results.lines(name):
            levels = dict(zip(results.columns, line.levels, strict=True))
            level = levels.pop(study.compare, study.baseline)
            if line.levels in shown or level == study.baseline:
                numbers = (factor * line.mean, factor * line.sd, line.n, factor * line.paper)
                settings.setdefault(" ".join(filter(None, levels.values())), {})[level] = numbers
        for setting, levels in settings.items():
            if levels.keys() == {study.baseline}:  # of a setting that is not wanted
                continue
            base = None if study.baseline not in levels else Point("", *levels[study.baseline])
            for sweep in study.sweeps:
                points = [Point(x, *levels[level]) for level, x in sweep.places.items() if level in levels]
                y = f"{measure.title}{', %' if measure.percent else ''}"
                panels.append(Panel(setting, sweep.title, y, points, study.baseline, base, sweep.log))
    return panels


def count_cells(study: Study, rows: Sequence[Mapping[str, Any]]) -> int:
    """Number of cells that rows come from."""
    return len({cell_key(row, study.factors) for row in rows if not study.average or row[study.average] != "average"})


def cell_key(row: Mapping[str, Any], names: Iterable[str]) -> tuple[Any, ...]:
    """Levels and seed of a row."""
    return *(level_text(row.get(name)) for name in names), row["seed"]


def level_text(value: Any) -> str:
    """A level as text: the number 1.0, or ``1.0`` in a CSV, is the level ``1``."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return "" if value is None else str(value)


def is_number(level: str) -> bool:
    """Whether a level is a number, which says nothing without the name of its column."""
    return level.replace(".", "", 1).isdigit()


def conditions(where: str | Mapping[str, str], names: Iterable[str]) -> dict[str, list[str]]:
    """Levels wanted of each column.

    Examples:
        >>> conditions("pair=a|b and at=last", ("pair", "method", "at"))
        {'pair': ['a', 'b'], 'at': ['last']}
        >>> conditions({"ratio": 10}, ("ratio",))
        {'ratio': ['10']}
    """
    if not isinstance(where, Mapping):
        # The level of a column may itself contain "and".
        parts = [part.partition("=") for part in re.split(r" and (?=\s*\w+\s*=)", where) if part.strip()]
        where = {name.strip(): level for name, _, level in parts}
        if twice := [name for name, count in Counter(name.strip() for name, *_ in parts).items() if count > 1]:
            raise InputError(f"where names {twice[0]} twice; give its levels as {twice[0]}=A|B.")
    where = {name: str(level) for name, level in where.items()}  # a ratio may be a number
    for name, level in where.items():
        if name not in names or not level:
            raise InputError(f"where must be column=level, got {name!r}; {did_you_mean(name, names)}")
    return {name: [text.strip() for text in level.split("|")] for name, level in where.items()}


def check_levels(wanted: Mapping[str, Sequence[str]], levels: Mapping[str, Iterable[str]]) -> None:
    """Refuse a level that there is not, so that a misspelled one does not leave an empty table."""
    for name in wanted.keys() & levels.keys():
        known = dict.fromkeys(levels[name])
        for level in wanted[name]:
            if level not in known:
                raise InputError(f"where: {name} has no level {level!r}; {did_you_mean(level, known)}")


def matches(levels: Mapping[str, str], wanted: Mapping[str, Sequence[str]]) -> bool:
    """Whether levels are among those wanted."""
    return all(levels.get(name, "") in among for name, among in wanted.items())


def derived(study: Study, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with those that follow from them: cell by cell, then averages."""
    if study.derive is not None:
        cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            cells.setdefault(cell_key(row, study.factors), []).append(row)
        rows = [row for cell_rows in cells.values() for row in study.derive(cell_rows)]
    return rows + _averages(study, rows) if study.average else rows


def _averages(study: Study, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The means of each seed over all levels of one factor; none where a level is missing."""
    others = [name for name in (*study.factors, *study.details) if name != study.average]
    groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(cell_key(row, others), {}).setdefault(str(row[study.average]), {}).update(row)
    levels, averages = {level for group in groups.values() for level in group}, []
    for group in groups.values():
        if group.keys() == levels:
            first, *_ = members = list(group.values())
            averages.append({name: first[name] for name in (*others, "seed") if name in first})
            averages[-1][study.average] = "average"
            for name in study.measures:
                values = [row.get(name) for row in members]
                if not {None, ""} & set(values):
                    averages[-1][name] = float(np.mean(np.array(values, float)))
    return averages
