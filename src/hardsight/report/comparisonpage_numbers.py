"""The numbers of the comparison page: tables with a column per group, and sentences on what is better or worse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hardsight.evaluation.naming import meaning, metric_title, number_title, variant_title, written
from hardsight.evaluation.results import Evaluation
from hardsight.evaluation.statistics import by_number, flag_of, key_of
from hardsight.report.formatting import counted

_EACH = 3  # groups with a sentence each
_SIDE_BY_SIDE = 2  # numbers shown of what was not tested
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}

Numbers: TypeAlias = Sequence[dict[str, Any]]


def numbers_of(evaluation: Evaluation) -> dict[str, list[dict[str, Any]]]:
    """The numbers of each question in the order of the rows, each with one cell and one test (or None) per group."""
    tests = {(key_of(test), test["group"]): test for test in evaluation.tests.to_pylist()}
    questions: dict[str, list[dict[str, Any]]] = {}
    for key, groups in by_number(evaluation.rows.to_pylist()).items():
        question, metric, score, on, level = key
        rows = [row for runs in groups.values() for row in runs]
        sizes = sorted({row["n"] for row in rows})
        of_groups = [tests.get((key, group)) for group in evaluation.groups]
        questions.setdefault(question, []).append({
            "metric": metric, "pair": (metric, score), "on": on,
            "title": number_title(metric, score, on, level, question),
            "variant": variant_title(score, on, level, question),
            "better": rows[0]["better"], "mean": float(np.mean([row["value"] for row in rows])),
            "n": "–".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1]))),
            "tests": of_groups,
            "cells": [_cell(groups.get(g, []), t) for g, t in zip(evaluation.groups, of_groups, strict=True)],
        })  # fmt: skip
    return questions


def _cell(rows: Sequence[Mapping[str, Any]], test: Mapping[str, Any] | None) -> dict[str, str]:
    """Mean ± standard deviation of runs, or the value of one with its interval over samples."""
    finite = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    if not finite:
        return {"text": "–", "sd": "", "interval": "", "flag": "", "test": ""}
    metric, values, flag = finite[0]["metric"], np.array([row["value"] for row in finite]), flag_of(test)
    low, high = (written(metric, finite[0][end]) for end in ("low", "high"))
    sd = f"± {written(metric, values.std(ddof=1)).removesuffix('%')}" if len(values) > 1 else ""
    interval = "" if sd or "–" in (low, high) else f"{low.removesuffix('%')} to {high}"
    tested = f"{written(metric, test['difference'], signed=True)}, {p_text(test['p_holm'])}" if flag and test else ""
    text = written(metric, values.mean())
    return {"text": text, "sd": sd, "interval": interval, "flag": flag, "test": tested}


def p_text(p: float) -> str:
    """A p-value to three digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def table_of(key: str, caption: str, groups: Mapping[str, Sequence[str]], blocks: Iterable[Any]) -> dict[str, Any]:
    """A table like those of `sections.table`; `blocks` are pairs of a heading between the rows, and numbers."""
    columns: list[dict[str, Any]] = [{"key": "metric", "title": "metric", "kind": "head"}]
    columns.append({"key": "n", "title": "samples", "kind": "text"})
    for k, (name, runs) in enumerate(groups.items()):
        note = counted(len(runs), "run") + (", baseline" if k == 0 and len(groups) > 1 else "")
        columns.append({"key": f"group-{k}", "title": name, "kind": "compared", "note": note, "line": k})
    rows: list[Any] = []
    for heading, numbers in blocks:
        rows += [heading] if heading else []
        rows += [[f"{number['title']}{ARROWS[number['better']]}", number["n"], *number["cells"]] for number in numbers]
    return {"key": key, "caption": caption, "columns": columns, "rows": rows, "style": "numbers"}


def by_metric(numbers: Numbers) -> Iterator[tuple[str, Numbers]]:
    """The numbers below the names of their metrics; a metric with one number needs no heading."""
    for metric in dict.fromkeys(number["metric"] for number in numbers):
        same = [number for number in numbers if number["metric"] == metric]
        short = [number | {"title": number["variant"] or number["title"]} for number in same]
        yield (metric_title(metric), short) if len(same) > 1 else ("", same)


def highlights(numbers: Numbers, pairs: Sequence[tuple[str, str]]) -> Numbers:
    """The numbers for the first table by metric and score: one per data set, at the level nearest to 50%."""
    by_pair: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for number in numbers:
        by_pair.setdefault(number["pair"], {}).setdefault(number["on"], []).append(number)
    selected = [pair for pair in pairs if pair in by_pair] or list(by_pair)[:1]
    by_level = [levels for pair in selected for levels in by_pair[pair].values()]
    # If all networks are right, or none is, they cannot be told apart.
    return [min(levels, key=lambda n: abs(n["mean"] - 0.5)) if len(levels) > 1 else levels[0] for levels in by_level]


def effects(groups: Sequence[str], highlights: Iterable[Numbers]) -> list[dict[str, Any]]:
    """The tested differences from the first group with their intervals, for a chart whose right side is better.

    Metrics have different units: positions from −1 to 1 are on a scale per number, which its groups share.
    """
    rows = []
    for number in (number for numbers in highlights for number in numbers):
        tests = [
            test if test and test["better"] and not math.isnan(test["p_holm"]) else None for test in number["tests"]
        ]
        ends = {k: [test[key] for key in ("difference", "low", "high")] for k, test in enumerate(tests) if test}
        ends = {k: values for k, values in ends.items() if all(map(math.isfinite, values))}
        reach = max((abs(value) for values in ends.values() for value in values), default=0.0)
        if not reach > 0:
            continue
        sign = 1 if number["better"] == "higher" else -1
        for k, values in ends.items():
            place, *span = (round(sign * value / reach, 4) for value in values)
            change, low, high = (written(number["metric"], value, signed=True) for value in values)
            rows.append({
                "title": f"{number['title']}{ARROWS[number['better']]}", "first": k == next(iter(ends)), "line": k,
                "group": groups[k], "place": place, "low": min(span), "high": max(span),
                "flag": flag_of(tests[k]), "text": f"{change} [{low}, {high}]",
            })  # fmt: skip
    return rows


def verdict(groups: Sequence[str], numbers: Numbers, highlights: Numbers, headline: Sequence[Any]) -> list[str]:
    """The result of a question: sentences about every group but the first, or a single group's numbers.

    A sentence is about the headline, the first of these pairs of metric and score that is among the `highlights`. It is
    fixed before any test: the first significant difference could call a network better by one number while another gets
    worse.
    """
    if len(groups) == 1:
        cells = [(number["title"], number["cells"][0]) for number in highlights]
        texts = [(title, cell["text"], cell["sd"] or cell["interval"]) for title, cell in cells]
        return ["; ".join(f"{title} {text}{f' ({spread})' * bool(spread)}" for title, text, spread in texts) + "."]
    tested, reasons = {}, []
    for k, name in enumerate(groups):
        judged = [test for number in numbers if (test := number["tests"][k]) and test["better"]]
        reasons += [test["reason"] for test in judged]
        if tests := [test for test in judged if not math.isnan(test["p_holm"])]:
            tested[name] = tests
    if not tested:
        not_tested = f"Not tested ({[*reasons, 'no number in common'][0]})."
        return [" ".join([*(_side_by_side(groups, number) for number in highlights[:_SIDE_BY_SIDE]), not_tested])]
    if len(tested) <= _EACH:
        first = next((pair for pair in headline if any(number["pair"] == pair for number in highlights)), None)
        of_headline = [number for number in highlights if number["pair"] == first]
        return [
            " ".join([*(_headline(groups, name, n) for n in of_headline), _total(name, groups[0], tests, of_headline)])
            for name, tests in tested.items()
        ]
    clear = {name: tests for name, tests in tested.items() if any(map(flag_of, tests))}
    texts = [f"{name}: {_counts(tests)}." for name, tests in clear.items()]
    if len(clear) < len(tested):
        unclear = f"{len(tested) - len(clear)} of {len(tested)}" if clear else f"any of {len(tested)}"
        texts.append(f"No number tells {unclear} other groups from {groups[0]} for sure.")
    return texts


def _side_by_side(groups: Sequence[str], number: Mapping[str, Any], shown: Sequence[str] = ()) -> str:
    cells = zip(groups, number["cells"], strict=True)
    texts = [f"{name} {cell['text']}" for name, cell in cells if name in (shown or groups)]
    return f"{number['title']}: {', '.join(texts)}."


def _headline(groups: Sequence[str], name: str, number: Mapping[str, Any]) -> str:
    """A group against the first in the headline: better, worse, not clear, or not tested."""
    test = number["tests"][groups.index(name)]
    if test is None or math.isnan(test["p_holm"]):
        reason = "not measured in both" if test is None else test["reason"]
        return f"{_side_by_side(groups, number, (groups[0], name))} Not tested ({reason})."
    metric, flag = test["metric"], flag_of(test)
    means = " against ".join(written(metric, test[key]) for key in ("mean", "baseline_mean"))
    change, *ends = (written(metric, test[key], signed=True) for key in ("difference", "low", "high"))
    interval = f", 95% interval {' to '.join(ends)}" if "–" not in ends else ""
    difference = f"{number['title']} {means} ({change}{interval}, {p_text(test['p_holm'])})"
    text = meaning(test, flag == "better") if flag else f"{name}: no clear difference from {groups[0]} in"
    text = text if text.startswith(name) else text[0].upper() + text[1:]
    return f"{text}{':' * bool(flag)} {difference}."


def _total(name: str, first: str, tests: Numbers, headline: Numbers) -> str:
    """How many of the tested numbers differ; it names the groups unless a preceding headline does."""
    if any(map(flag_of, tests)):
        return f"In all, {_counts(tests)}." if headline else f"{name} against {first}: {_counts(tests)}."
    numbers = "the one number that was tested" if len(tests) == 1 else f"any of {len(tests)} numbers"
    return f"{name}: no clear difference from {first} in {numbers}."


def _counts(tests: Numbers) -> str:
    """How many numbers are better than those of the first group, and how many worse."""
    flags = [flag_of(test) for test in tests]
    (flag, count), *other = [(flag, flags.count(flag)) for flag in ("better", "worse") if flag in flags]
    more = "".join(f" and {n} {worse}" for worse, n in other)
    return f"{count} of {counted(len(tests), 'number')} {'is' if count == 1 else 'are'} {flag}{more}"
