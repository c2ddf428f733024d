"""`write_comparison`: an evaluation as one page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardsight.evaluation.maps import read_maps
from hardsight.evaluation.naming import QUESTIONS, Question
from hardsight.evaluation.results import Evaluation, read_evaluation
from hardsight.evaluation.statistics import ALPHA
from hardsight.extras import printable
from hardsight.questions import Answer, Note
from hardsight.report.comparisonpage_charts import charts_of
from hardsight.report.comparisonpage_numbers import by_metric, highlights, numbers_of, table_of, verdict
from hardsight.report.formatting import counted
from hardsight.report.page import fill
from hardsight.report.sections import Notice, Section
from hardsight.runs import check_replaceable, disk_errors, is_page, write_text

_SCRIPTS = ("page_elements.js", "page_theme.js", "page_charts.js", "page_lines.js", "comparisonpage.js")
_NAMED = 3  # runs that a note names
_INTERNAL = ("format", "whole", "network", "fingerprint")  # entries of the plan that mean nothing to people


def write_comparison(evaluation: str | Path | Evaluation) -> Path:
    """Write an evaluation as one page to look at: ``OUT/comparison.html``, which opens offline.

    Sentences first, then the numbers of every group with marks where a test, corrected for the number of tests, finds
    a difference from the first group; then curves, and maps where there are some.

    Args:
        evaluation: What `hardsight.evaluate` returned, or the folder that it wrote.

    Returns:
        The file that was written.
    """
    if not isinstance(evaluation, Evaluation):
        evaluation = read_evaluation(evaluation)
    page = comparison(evaluation)
    charts = [chart for section in page["sections"] for chart in section.data["charts"]]
    text = fill("comparisonpage.html.jinja", page, {"charts": charts}, _SCRIPTS, ("page.css", "comparisonpage.css"))
    target = evaluation.path / "comparison.html"
    check_replaceable(target, is_page)
    with disk_errors(target):
        write_text(target, text)
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
    title = " · ".join(groups)
    return {
        "title": title if len(title) <= 82 or len(groups) == 1 else f"{groups[0]} and {len(groups) - 1} others",
        "lead": _lead(evaluation),
        "notices": _notices(evaluation, "warn", "", *order),
        "verdicts": verdicts,
        "highlights": overview,
        "overview": table_of(
            "overview", "The most telling numbers of each question", evaluation.groups, overview.items()
        ),
        "legend": _legend(evaluation),
        "sections": sections,
        "maps": _maps(evaluation),
        "made": _made(evaluation.plan),
    }


def _lead(evaluation: Evaluation) -> str:
    groups, data = evaluation.groups, evaluation.plan["data"]
    runs = sum(map(len, groups.values()))
    over = f"over {printable(data['origin'])} (n = {data['samples']:,})"
    if len(groups) == 1:
        several = f"{runs} runs of one group" if runs > 1 else "One run"
        return f"{several} {over}: nothing to compare with. Two groups or more are tested against one another."
    return f"{counted(runs, 'run')} in {counted(len(groups), 'group')} {over}, compared with {next(iter(groups))}."


def _legend(evaluation: Evaluation) -> str:
    """How to read the tables."""
    sizes, texts = [len(runs) for runs in evaluation.groups.values()], ["↑ higher is better, ↓ lower is better."]
    if max(sizes) > 1:
        texts.append("Of several runs: mean ± one standard deviation over runs.")
    if min(sizes) <= 1:
        texts.append("Of one run: its value, and where there is one the 95% interval over samples.")
    if tests := ", ".join(filter(None, evaluation.tests["test"].unique().to_pylist())):
        texts.append(
            f"▲ better, ▼ worse than {next(iter(evaluation.groups))}: p < {ALPHA:.2g} after Holm's correction for all "
            f"tests of a question ({tests}). Without a mark a difference may be chance."
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
    """The runs that a note is about, unless it is about all of them; and whose numbers it shows."""
    names = list(dict.fromkeys(note.run or note.group for note in notes if note.run or note.group))
    others = "all others" if len(names) == count else f"{len(names) - 1} more"
    if count > 1 and names and len({note.text for note in notes}) > 1:
        return f" (numbers of {names[0]}; alike for {others})"
    if count == 1 or len(names) in (0, count):
        return ""
    return f" ({', '.join(names) if len(names) <= _NAMED else f'{names[0]} and {others}'})"


def _maps(evaluation: Evaluation) -> dict[str, Any] | None:
    """The gallery of maps: strips of an image and what each network sees in it."""
    index, folder = read_maps(evaluation.path), evaluation.path / "maps"
    if index is None:
        return None
    groups = {run: group for group, runs in evaluation.groups.items() for run in runs}
    strips = [
        {
            "id": image["id"],
            "label": image["label"],
            "uri": "data:image/png;base64," + b64encode((folder / image["file"]).read_bytes()).decode(),
            "predictions": [(image["classes"][run], f"{image['confidence'][run]:.0%}") for run in index["runs"]],
        }
        for image in index["pictures"]
    ]
    return {"runs": [groups.get(run, run) for run in index["runs"]], "strips": strips}


def _made(plan: Mapping[str, Any]) -> list[list[str]]:
    """The plan as names and texts."""
    versions = ", ".join(f"{name} {version}" for name, version in plan.get("versions", {}).items())
    entries = {**plan, "command": " ".join(plan.get("command", ())), "versions": versions}
    return [[name, text] for name, value in entries.items() if name not in _INTERNAL and (text := _text(value))]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        entries = ((key, _text(entry)) for key, entry in value.items() if key not in _INTERNAL)
        return "; ".join(f"{key}: {text}" for key, text in entries if text)
    if isinstance(value, (list, tuple)):
        return ("\n" if any(isinstance(entry, Mapping) for entry in value) else ", ").join(map(_text, value))
    return "" if value is None else str(value)
