"""An evaluation as one page, `write_comparison`, and as lines for a terminal, `evaluation_lines`."""

from __future__ import annotations

import textwrap
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from hardsight.evaluation.curves import POOLED, Curve
from hardsight.evaluation.maps import read_maps
from hardsight.evaluation.naming import curve_kind, score_title, variant_title
from hardsight.evaluation.results import Evaluation, read_evaluation
from hardsight.evaluation.statistics import ALPHA
from hardsight.extras import printable
from hardsight.printing import percent, text_table
from hardsight.questions import QUESTIONS, Answer, Note, Question
from hardsight.questions.subject import CurveKind
from hardsight.report.comparisonpage_numbers import (
    ARROWS,
    by_metric,
    effects,
    highlights,
    numbers_of,
    table_of,
    verdict,
)
from hardsight.report.formatting import counted, plain
from hardsight.report.page import fill, with_data
from hardsight.report.sections import Notice, Section
from hardsight.runs import check_replaceable, disk_errors, is_page, write_text

_SCRIPTS = ("page_elements.js", "page_theme.js", "page_charts.js", "page_lines.js", "comparisonpage.js")
_POINTS = 160  # of a line: more than a chart is wide enough to show
_PANELS = 9  # side by side, before a selector takes over
_INTERNAL = ("format", "whole", "network", "fingerprint")  # entries of the plan that mean nothing to readers
_WIDTH, _NAME = 100, 22  # of a terminal, and of a group's name in it
# Whether to show intervals, and how long a label may be: the first layout that fits with all groups side by side.
_LAYOUTS = (True, 60), (False, 60), (False, 32)
_SIGNS = {"better": "▲", "worse": "▼", "": ""}


def write_comparison(evaluation: str | Path | Evaluation) -> Path:
    """Write an evaluation as one page to look at, ``OUT/comparison.html``, which opens offline; returns its path.

    It begins with a chart of the differences. Then come the numbers of every group, with marks where a test, corrected
    for the number of tests, finds a difference from the first group, and what they mean; then curves, and maps if there
    are any.

    Args:
        evaluation: What `hardsight.evaluate` returned, or the folder that it wrote.
    """
    if not isinstance(evaluation, Evaluation):
        evaluation = read_evaluation(evaluation)
    page, target = comparison(evaluation), evaluation.path / "comparison.html"
    charts = [chart for section in page["sections"] for chart in section.data["charts"]]
    text = fill("comparisonpage.html.jinja", page, _SCRIPTS, ("page.css", "comparisonpage.css"))
    check_replaceable(target, is_page)
    with disk_errors(target):
        write_text(target, with_data(text, {"charts": charts}))
    return target


def comparison(evaluation: Evaluation) -> dict[str, Any]:
    """What the page shows: sentences, the first table, and a section per question."""
    groups, numbers = list(evaluation.groups), numbers_of(evaluation)
    order = [*(key for key in QUESTIONS if key in numbers), *(key for key in numbers if key not in QUESTIONS)]
    sections, overview, verdicts = [], {}, {}
    for key in order:
        question = QUESTIONS.get(key) or Question(key, Answer, key, "")
        selected = overview[question.title] = highlights(numbers[key], question.telling)
        verdicts[question.title] = verdict(groups, numbers[key], selected, question.headline)
        caption = f"All {counted(len(numbers[key]), 'number')} of this question"
        tables = [table_of(key, caption, evaluation.groups, by_metric(numbers[key]))]
        data, notices = {"charts": charts_of(evaluation, key)}, _notices(evaluation, "info", key)
        sections.append(Section(key, question.title, question.about, tables=tables, data=data, notices=notices))
    title, caption, plan = " · ".join(groups), "The most telling numbers of each question", evaluation.plan
    versions = ", ".join(f"{name} {version}" for name, version in plan.get("versions", {}).items())
    return {
        "title": title if len(title) <= 82 or len(groups) == 1 else f"{groups[0]} and {len(groups) - 1} others",
        "lead": _lead(evaluation),
        "baseline": groups[0],
        "notices": _notices(evaluation, "warn", "", *order),
        "effects": effects(groups, overview.values()),
        "verdicts": verdicts,
        "highlights": overview,
        "overview": table_of("overview", caption, evaluation.groups, overview.items()),
        "legend": _legend(evaluation),
        "sections": sections,
        "maps": _maps(evaluation),
        "made": _made({**plan, "command": " ".join(plan.get("command", ())), "versions": versions}),
    }


def _lead(evaluation: Evaluation) -> str:
    groups, data = evaluation.groups, evaluation.plan["data"]
    runs, over = sum(map(len, groups.values())), f"over {printable(data['origin'])} (n = {data['samples']:,})"
    if len(groups) > 1:
        return f"{counted(runs, 'run')} in {counted(len(groups), 'group')} {over}, compared with {next(iter(groups))}."
    several = f"{runs} runs of one group" if runs > 1 else "One run"
    return f"{several} {over}: nothing to compare with. Tests need two or more groups."


def _legend(evaluation: Evaluation) -> str:
    """How to read the tables."""
    sizes, texts = [len(runs) for runs in evaluation.groups.values()], ["↑ higher is better, ↓ lower is better."]
    if max(sizes) > 1:
        texts.append("Several runs: mean ± one standard deviation over runs.")
    if min(sizes) <= 1:
        texts.append("One run: its value and, if available, the 95% interval over samples.")
    if tests := ", ".join(filter(None, evaluation.tests["test"].unique().to_pylist())):
        texts.append(
            f"▲ better, ▼ worse than {next(iter(evaluation.groups))}: p < {ALPHA:.2g} after Holm's correction for all "
            f"tests of a question ({tests}). Unmarked differences may be chance."
        )
    return " ".join(texts)


def _notices(evaluation: Evaluation, level: str, *questions: str) -> list[Notice]:
    """Each kind of note once, with the runs it is about; notes without a kind by their texts."""
    kinds: dict[tuple[str, str], list[Note]] = {}
    for note in evaluation.notes:
        if note.level == level and note.question in questions:
            kinds.setdefault((note.question, note.kind or note.text), []).append(note)
    count = sum(map(len, evaluation.groups.values()))
    return [Notice(level, f"{notes[0].text}{_runs_of(notes, count)}") for notes in kinds.values()]


def _runs_of(notes: Sequence[Note], count: int) -> str:
    """The runs that a note is about, unless it is about all of them; and the run whose numbers it shows."""
    names = list(dict.fromkeys(note.run or note.group for note in notes if note.run or note.group))
    others = "all others" if len(names) == count else f"{len(names) - 1} more"
    if count > 1 and names and len({note.text for note in notes}) > 1:
        return f" (numbers of {names[0]}; alike for {others})"
    if count == 1 or len(names) in (0, count):
        return ""
    return f" ({', '.join(names) if len(names) <= 3 else f'{names[0]} and {others}'})"


def charts_of(evaluation: Evaluation, question: str) -> list[dict[str, Any]]:
    """The charts of a question, as plain lists for the script."""
    names = evaluation.points.filter(pc.field("question") == question)["curve"].unique().to_pylist()
    kinds = {name: curve_kind(question, name) for name in names}
    second = {kind.against for kind in kinds.values()}
    return [_chart(evaluation, question, name, kind) for name, kind in kinds.items() if name not in second]


def _chart(evaluation: Evaluation, question: str, name: str, kind: CurveKind) -> dict[str, Any]:
    """One curve as sets of panels; the reader selects a set, and its panels stand side by side."""
    curves = evaluation.curves(question, name, kind.shape)
    sets: dict[str, list[dict[str, Any]]] = {}
    if kind.against:  # a panel per group; one score and one data set at a time
        second = evaluation.curves(question, kind.against, kind.shape)
        for (score, on), groups in curves.items():
            panels = sets[variant_title(score, on, None)] = []
            for group, curve in groups.items():
                pair = {"in-distribution data": curve, on or "OOD data": second[score, on][group]}
                panels.append(_panel(group, pair, list(pair), kind.shape))
    else:
        sizes = [sum(at == on for _, at in curves) for _, on in curves]
        for (score, on), groups in curves.items():
            panel = _panel(score_title(score), groups, list(evaluation.groups), kind.shape)
            sets.setdefault(variant_title(score, on, None) if max(sizes) > _PANELS else on, []).append(panel)
    return {
        "key": f"{question}-{name}", "title": kind.title, "note": kind.note, "x": kind.x, "y": kind.y,
        "kind": "percent" if kind.unit == "%" else "number", "least": kind.least, "most": kind.most,
        "diagonal": kind.diagonal, "join": kind.shape in POOLED,
        "sets": [{"name": title, "panels": panels} for title, panels in sets.items()],
    }  # fmt: skip


def _panel(title: str, curves: Mapping[str, Curve], colors: list[str], shape: str) -> dict[str, Any]:
    """Curves on one grid: all their points or, if these are many, evenly spaced ones."""
    x = np.unique(np.concatenate([curve.x for curve in curves.values()]))
    if len(x) > _POINTS and shape not in POOLED:
        x = np.linspace(x[0], x[-1], _POINTS)
    lines = [{"k": colors.index(name), "name": name, **_line(curve, x, shape)} for name, curve in curves.items()]
    return {"name": title, "x": plain(x, 5), "lines": lines}


def _line(curve: Curve, x: np.ndarray, shape: str) -> dict[str, Any]:
    """A curve on another grid: interpolated, except for means of bins, which stay where they are."""
    values = {"y": curve.y, "low": curve.low, "high": curve.high, "n": curve.n}
    if shape in POOLED or np.isin(x, curve.x).all():
        at = np.searchsorted(curve.x, x).clip(max=len(curve.x) - 1)
        values = {name: np.where(curve.x[at] == x, column[at], np.nan) for name, column in values.items()}
    else:
        values = {name: np.interp(x, curve.x, column, np.nan, np.nan) for name, column in values.items() if name != "n"}
    none = [] if np.isfinite(values["low"]).any() else ["low", "high"]
    none += [] if np.nansum(values.get("n", 0)) else ["n"]
    return {name: plain(column, 5) for name, column in values.items()} | dict.fromkeys(none)


def _maps(evaluation: Evaluation) -> dict[str, Any] | None:
    """The gallery of maps: strips of an image and each network's map of it."""
    index, folder = read_maps(evaluation.path), evaluation.path / "maps"
    if index is None:
        return None
    groups = {run: group for group, runs in evaluation.groups.items() for run in runs}
    strips = []
    for image in index["pictures"]:
        uri = "data:image/png;base64," + b64encode((folder / image["file"]).read_bytes()).decode()
        predictions = [(image["classes"][run], percent(image["confidence"][run], 0)) for run in index["runs"]]
        strips.append({"id": image["id"], "label": image["label"], "uri": uri, "predictions": predictions})
    return {"runs": [groups.get(run, run) for run in index["runs"]], "strips": strips}


def _made(entries: Mapping[str, Any]) -> list[list[str]]:
    """Entries of the plan as names and texts."""
    return [[name, text] for name, value in entries.items() if name not in _INTERNAL and (text := _text(value))]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {text}" for name, text in _made(value))
    if isinstance(value, (list, tuple)):
        return ("\n" if any(isinstance(entry, Mapping) for entry in value) else ", ").join(map(_text, value))
    return "" if value is None else str(value)


def evaluation_lines(evaluation: Evaluation) -> list[str]:
    """The most telling numbers of an evaluation, what they mean, and its warnings, in lines of 100 columns."""
    page = comparison(evaluation)
    titles = [f"{_cut(name, _NAME)}{f' ({len(runs)})' * (len(runs) > 1)}" for name, runs in evaluation.groups.items()]
    tables = [_blocks(_rows(page["highlights"], *layout), titles) for layout in _LAYOUTS]
    fits = [max(len(line) for block in blocks for line in block) <= _WIDTH for blocks in tables]
    blocks = tables[0] if fits[0] and len(tables[0]) == 1 else tables[1] if fits[1] else tables[2]
    verdicts = [f"{title} – {text}" for title, texts in page["verdicts"].items() for text in texts if titles[1:]]
    remarks = sum(len(section.notices) for section in page["sections"])
    all_of_it = f"All numbers, curves and {counted(remarks, 'remark')} are on the page."
    notes = [*(f"! {notice.text}" for notice in page["notices"]), all_of_it]
    parts = [_filled([page["lead"]]), *blocks, _filled([page["legend"]]), _filled(verdicts), _filled(notes)]
    return [line for part in parts if part for line in (*part, "")][:-1]


def _rows(highlights: Mapping[str, Sequence[dict[str, Any]]], intervals: bool, width: int) -> list[dict[str, str]]:
    """A row per question with its title alone, and one per number: its label, a cell per group, and n."""

    def text(cell: Mapping[str, str]) -> str:
        interval = f"({cell['interval']})" if intervals and cell["interval"] else ""
        return " ".join(filter(None, (cell["text"], cell["sd"], interval, _SIGNS[cell["flag"]])))

    rows = []
    for question, numbers in highlights.items():
        rows.append({"": question})
        for number in numbers:
            cells = {str(k): text(cell) for k, cell in enumerate(number["cells"])}
            rows.append({"": f"  {_cut(number['title'], width)}{ARROWS[number['better']]}", **cells, "n": number["n"]})
    return rows


def _blocks(rows: Sequence[Mapping[str, str]], titles: Sequence[str]) -> list[list[str]]:
    """The table in as many blocks of columns as the width requires; each contains the first group."""

    def table(groups: Sequence[int]) -> list[str]:
        return text_table(rows, {"": "", **{str(k): titles[k] for k in groups}, "n": "n"})

    blocks = [[0]]
    for k in range(1, len(titles)):
        if len(blocks[-1]) > 1 and max(map(len, table([*blocks[-1], k]))) > _WIDTH:
            blocks.append([0])
        blocks[-1].append(k)
    return [table(block) for block in blocks]


def _filled(texts: Iterable[str]) -> list[str]:
    options: dict[str, Any] = {"subsequent_indent": "  ", "break_on_hyphens": False}
    return [textwrap.fill(printable(text), _WIDTH, **options) for text in texts if text]


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"
