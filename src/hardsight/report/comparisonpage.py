"""`write_comparison`: what `hardsight evaluate` found, as one page."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardsight.evaluation.maps import read_maps
from hardsight.evaluation.naming import QUESTIONS, Question
from hardsight.evaluation.reading import Evaluated, distinct, read_evaluated
from hardsight.evaluation.statistics import ALPHA
from hardsight.extras import printable
from hardsight.report.comparisonpage_charts import charts_of
from hardsight.report.comparisonpage_numbers import blocks, numbers_of, telling
from hardsight.report.comparisonpage_verdicts import verdict
from hardsight.report.formatting import counted
from hardsight.report.page import fill
from hardsight.runs import check_replaceable, disk_errors, is_page, write_text

_SCRIPTS = ("page_elements.js", "page_theme.js", "page_charts.js", "page_lines.js", "comparisonpage.js")
_STYLES = ("page.css", "comparisonpage.css")
_LONG = 40  # letters of a name
_NAMED = 3  # runs that a sentence is about, by name
_UNTOLD = ("format", "whole", "network", "fingerprint")  # of the plan: for the program, not for people


def write_comparison(out: str | Path) -> Path:
    """Write what `hardsight evaluate` found as one page to look at: ``OUT/comparison.html``, which opens offline.

    Sentences first, then the numbers of every group with marks where a test, corrected for the number of tests, finds
    a difference from the first group; then curves, and maps where there are some.

    Args:
        out: The folder that was given to `hardsight evaluate` as ``--out``.

    Returns:
        The file that was written.
    """
    results = abbreviated(read_evaluated(out))
    shown, charts = payload(results)
    text = fill("comparisonpage.html.jinja", shown, {"charts": charts}, _SCRIPTS, _STYLES)
    target = results.path / "comparison.html"
    check_replaceable(target, is_page)
    with disk_errors(target):
        write_text(target, text)
    return target


def abbreviated(results: Evaluated) -> Evaluated:
    """The same with long names of groups cut in the middle, where they can still be told apart."""
    names = list(results.groups)
    short = {name: name if len(name) <= _LONG else f"{name[: _LONG // 2]}…{name[-_LONG // 2 :]}" for name in names}
    if len(set(short.values())) < len(names):
        return results
    rows, tests, points = (
        [one | {"group": short[one["group"]]} for one in table]
        for table in (results.rows, results.tests, results.points)
    )
    return replace(results, rows=rows, tests=tests, points=points)


def payload(results: Evaluated) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the template writes, and what the scripts draw."""
    charts: list[dict[str, Any]] = []
    questions, overview, verdicts = [], [], []
    order = list(QUESTIONS)
    asked = distinct(row["question"] for row in results.rows)
    for key in sorted(asked, key=lambda one: order.index(one) if one in order else len(order)):
        question = QUESTIONS.get(key, Question(key, "", ()))
        numbers = numbers_of(results, key)
        most = telling(numbers, question.telling)
        drawn = [chart | {"at": len(charts) + k} for k, chart in enumerate(charts_of(results, key))]
        charts += drawn
        overview.append({"title": question.title, "better": "", "rows": most})
        verdicts.append({"title": question.title, "texts": verdict(results, key, most, question.headline)})
        questions.append({
            "key": key, "title": question.title, "ask": question.ask, "charts": drawn, "table": blocks(numbers),
            "notes": [note for note in _notes(results, key) if not note["warning"]],
        })  # fmt: skip
    names = list(results.groups)
    title = " · ".join(names)
    return {
        "title": title if len(title) <= 2 * _LONG or len(names) == 1 else f"{names[0]} and {len(names) - 1} others",
        "lead": _lead(results),
        "groups": [{"name": name, "runs": len(runs)} for name, runs in results.groups.items()],
        "warnings": _unfinished(results) + [note for note in _notes(results, "", *asked) if note["warning"]],
        "verdicts": verdicts,
        "overview": overview,
        "reading": _reading(results),
        "questions": questions,
        "maps": _maps(results),
        "made": _made(results),
    }, charts  # fmt: skip


def _lead(results: Evaluated) -> str:
    runs, data = sum(map(len, results.groups.values())), results.plan["data"]
    over = f"over {printable(data['origin'])} (n = {data['samples']:,})"
    if len(results.groups) == 1:
        several = f"{runs} runs of one group" if runs > 1 else "One run"
        return f"{several} {over}: nothing to compare with. Two groups or more are tested against one another."
    first = next(iter(results.groups))
    return f"{counted(runs, 'run')} in {counted(len(results.groups), 'group')} {over}, compared with {first}."


def _reading(results: Evaluated) -> str:
    """How to read the tables."""
    texts = []
    if any(len(runs) > 1 for runs in results.groups.values()):
        texts.append("Of several runs: mean ± one standard deviation over runs.")
    if any(len(runs) == 1 for runs in results.groups.values()):
        texts.append("Of one run: its value, and where there is one the 95 % interval over samples.")
    ways = distinct(re.sub(r"[\d,]+ (and [\d,]+ )?", "", t["how"]) for t in results.tests if math.isfinite(t["p"]))
    if ways:
        texts.append(
            f"▲ better, ▼ worse than {next(iter(results.groups))}: p < {ALPHA:.2g} after Holm's correction for all "
            f"tests of a question ({', '.join(ways)}). Without a mark a difference may be chance."
        )
    return " ".join(texts)


def _notes(results: Evaluated, *questions: str) -> list[dict[str, Any]]:
    """What must be said with the numbers: sentences that differ in numbers alone once, with the runs they are about."""
    held: dict[str, list[dict[str, str]]] = {}
    for one in results.words:
        if one["question"] in questions:
            held.setdefault(re.sub(r"[\d.,]+(e-?\d+)?", "", one["words"]), []).append(one)
    every = sum(map(len, results.groups.values()))
    return [
        {"text": alike[0]["words"], "who": _who(alike, every), "warning": _is_warning(alike[0])}
        for alike in held.values()
    ]


def _unfinished(results: Evaluated) -> list[dict[str, Any]]:
    """What to say where a later call was stopped."""
    text = "These are the numbers of an earlier evaluation: a later one here was not finished. The same call goes on."
    return [] if results.plan.get("whole", True) else [{"text": text, "who": ""}]


def _who(alike: Sequence[Mapping[str, str]], every: int) -> str:
    """Whom a sentence is about; whose numbers stand in it, where others have their own."""
    named = distinct(filter(None, (one["run"] or one["group"] for one in alike)))
    if not named or every == 1:
        return ""
    several = len({one["words"] for one in alike}) > 1
    others = "all others" if len(named) == every else f"{len(named) - 1} more"
    if several:
        return f"numbers of {named[0]}; alike for {others}"
    return "" if len(named) == every else ", ".join(named) if len(named) <= _NAMED else f"{named[0]} and {others}"


def _is_warning(one: Mapping[str, str]) -> bool:
    """Whether it is said of runs as such, of all of them, or of numbers that are worth nothing."""
    about_all = not (one["question"] and (one["run"] or one["group"]))
    return about_all or one["words"].lower().startswith("gradient masking")


def _maps(results: Evaluated) -> dict[str, Any] | None:
    """The gallery of maps: strips of a picture and what each network saw in it."""
    told, folder = read_maps(results.path), results.path / "maps"
    if told is None:
        return None
    groups = {run: group for group, runs in results.groups.items() for run in runs}
    return {
        "runs": [groups.get(run, run) for run in told["runs"]],
        "strips": [
            {
                "id": one["id"],
                "label": one["label"],
                "uri": "data:image/png;base64," + b64encode((folder / one["file"]).read_bytes()).decode(),
                "seen": [(one["classes"][run], f"{one['confidence'][run]:.0%}") for run in told["runs"]],
            }
            for one in told["pictures"]
        ],
    }


def _made(results: Evaluated) -> list[list[str]]:
    """The plan as lines of names and texts."""
    lines = [[key, _text(value)] for key, value in results.plan.items() if key not in (*_UNTOLD, "versions")]
    lines = [[key, " ".join(results.plan[key])] if key == "command" else [key, text] for key, text in lines]
    versions = ", ".join(f"{name} {version}" for name, version in results.plan.get("versions", {}).items())
    return [[key, text] for key, text in [*lines, ["versions", versions]] if text]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        told = ((key, _text(one)) for key, one in value.items() if key not in _UNTOLD)
        return "; ".join(f"{key}: {text}" for key, text in told if text)
    if isinstance(value, list):
        return ("\n" if any(isinstance(one, dict) for one in value) else ", ").join(map(_text, value))
    return "" if value is None else str(value)
