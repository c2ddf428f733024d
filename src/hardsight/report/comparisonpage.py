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
    found = abbreviated(read_evaluated(out))
    shown, charts = payload(found)
    text = fill("comparisonpage.html.jinja", shown, {"charts": charts}, _SCRIPTS, _STYLES)
    target = found.path / "comparison.html"
    check_replaceable(target, is_page)
    with disk_errors(target):
        write_text(target, text)
    return target


def abbreviated(found: Evaluated) -> Evaluated:
    """The same with long names of groups cut in the middle, where they can still be told apart."""
    names = list(found.groups)
    short = {name: name if len(name) <= _LONG else f"{name[: _LONG // 2]}…{name[-_LONG // 2 :]}" for name in names}
    if len(set(short.values())) < len(names):
        return found
    rows, tests, points = (
        [one | {"group": short[one["group"]]} for one in table] for table in (found.rows, found.tests, found.points)
    )
    return replace(found, rows=rows, tests=tests, points=points)


def payload(found: Evaluated) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the template writes, and what the scripts draw."""
    charts: list[dict[str, Any]] = []
    questions, overview, verdicts = [], [], []
    order = list(QUESTIONS)
    asked = distinct(row["question"] for row in found.rows)
    for key in sorted(asked, key=lambda one: order.index(one) if one in order else len(order)):
        question = QUESTIONS.get(key, Question(key, "", ()))
        numbers = numbers_of(found, key)
        most = telling(numbers, question.telling)
        drawn = [chart | {"at": len(charts) + k} for k, chart in enumerate(charts_of(found, key))]
        charts += drawn
        overview.append({"title": question.title, "better": "", "rows": most})
        verdicts.append({"title": question.title, "texts": verdict(found, key, most, question.headline)})
        questions.append({
            "key": key, "title": question.title, "ask": question.ask, "charts": drawn, "table": blocks(numbers),
            "words": [one for one in _words(found, key) if not one["warning"]],
        })  # fmt: skip
    names = list(found.groups)
    title = " · ".join(names)
    return {
        "title": title if len(title) <= 2 * _LONG or len(names) == 1 else f"{names[0]} and {len(names) - 1} others",
        "lead": _lead(found),
        "groups": [{"name": name, "runs": len(runs)} for name, runs in found.groups.items()],
        "warnings": _unfinished(found) + [one for one in _words(found, "", *asked) if one["warning"]],
        "verdicts": verdicts,
        "overview": overview,
        "reading": _reading(found),
        "questions": questions,
        "maps": _maps(found),
        "made": _made(found),
    }, charts  # fmt: skip


def _lead(found: Evaluated) -> str:
    runs, data = sum(map(len, found.groups.values())), found.plan["data"]
    over = f"over {printable(data['origin'])} (n = {data['samples']:,})"
    if len(found.groups) == 1:
        several = f"{runs} runs of one group" if runs > 1 else "One run"
        return f"{several} {over}: nothing to compare with. Two groups or more are tested against one another."
    first = next(iter(found.groups))
    return f"{counted(runs, 'run')} in {counted(len(found.groups), 'group')} {over}, compared with {first}."


def _reading(found: Evaluated) -> str:
    """How to read the tables."""
    texts = []
    if any(len(runs) > 1 for runs in found.groups.values()):
        texts.append("Of several runs: mean ± one standard deviation over runs.")
    if any(len(runs) == 1 for runs in found.groups.values()):
        texts.append("Of one run: its value, and where there is one the 95 % interval over samples.")
    ways = distinct(re.sub(r"[\d,]+ (and [\d,]+ )?", "", t["how"]) for t in found.tests if math.isfinite(t["p"]))
    if ways:
        texts.append(
            f"▲ better, ▼ worse than {next(iter(found.groups))}: p < {ALPHA:.2g} after Holm's correction for all tests "
            f"of a question ({', '.join(ways)}). Without a mark a difference may be chance."
        )
    return " ".join(texts)


def _words(found: Evaluated, *questions: str) -> list[dict[str, Any]]:
    """What must be said with the numbers: sentences that differ in numbers alone once, with the runs they are about."""
    held: dict[str, list[dict[str, str]]] = {}
    for one in found.words:
        if one["question"] in questions:
            held.setdefault(re.sub(r"[\d.,]+(e-?\d+)?", "", one["words"]), []).append(one)
    every = sum(map(len, found.groups.values()))
    return [
        {"text": alike[0]["words"], "who": _who(alike, every), "warning": _is_warning(alike[0])}
        for alike in held.values()
    ]


def _unfinished(found: Evaluated) -> list[dict[str, Any]]:
    """What to say where a later call was stopped."""
    text = "These are the numbers of an earlier evaluation: a later one here was not finished. The same call goes on."
    return [] if found.plan.get("whole", True) else [{"text": text, "who": ""}]


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


def _maps(found: Evaluated) -> dict[str, Any] | None:
    """The gallery of maps: strips of a picture and what each network saw in it."""
    told, folder = read_maps(found.path), found.path / "maps"
    if told is None:
        return None
    groups = {run: group for group, runs in found.groups.items() for run in runs}
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


def _made(found: Evaluated) -> list[list[str]]:
    """The plan as lines of names and texts."""
    lines = [[key, _text(value)] for key, value in found.plan.items() if key not in (*_UNTOLD, "versions")]
    lines = [[key, " ".join(found.plan[key])] if key == "command" else [key, text] for key, text in lines]
    versions = ", ".join(f"{name} {version}" for name, version in found.plan.get("versions", {}).items())
    return [[key, text] for key, text in [*lines, ["versions", versions]] if text]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        told = ((key, _text(one)) for key, one in value.items() if key not in _UNTOLD)
        return "; ".join(f"{key}: {text}" for key, text in told if text)
    if isinstance(value, list):
        return ("\n" if any(isinstance(one, dict) for one in value) else ", ").join(map(_text, value))
    return "" if value is None else str(value)
