"""The tables of the comparison page: one row per number, one column per group, marks where a corrected test is sure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.evaluation.naming import metric_title, number_title, variant_title, written
from hardsight.evaluation.results import Evaluation
from hardsight.evaluation.statistics import by_number, flag_of, key_of
from hardsight.report.formatting import counted

ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


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
            "metric": metric, "score": score, "on": on,
            "title": number_title(metric, score, on, level), "variant": variant_title(score, on, level),
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


def table_of(
    key: str,
    caption: str,
    groups: Mapping[str, Sequence[str]],
    blocks: Iterable[tuple[str, Sequence[Mapping[str, Any]]]],
) -> dict[str, Any]:
    """A table of numbers for the page, as `hardsight.report.sections.table` makes them, with headings between the rows.

    Args:
        key: Its name in the page.
        caption: What stands above it.
        groups: The runs of each group.
        blocks: Headings, which may be empty, and the numbers below each.
    """
    columns: list[dict[str, Any]] = [
        {"key": "metric", "title": "metric", "kind": "head"},
        {"key": "n", "title": "samples", "kind": "text"},
    ]
    for k, (name, runs) in enumerate(groups.items()):
        note = counted(len(runs), "run") + (", baseline" if k == 0 and len(groups) > 1 else "")
        columns.append({"key": f"group-{k}", "title": name, "kind": "compared", "note": note, "line": k})
    rows: list[Any] = []
    for heading, numbers in blocks:
        rows += [heading] if heading else []
        rows += [[f"{number['title']}{ARROWS[number['better']]}", number["n"], *number["cells"]] for number in numbers]
    return {"key": key, "caption": caption, "columns": columns, "rows": rows, "style": "numbers"}


def by_metric(numbers: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The numbers below the names of their metrics; a metric with one number needs no heading."""
    for metric in dict.fromkeys(number["metric"] for number in numbers):
        same = [number for number in numbers if number["metric"] == metric]
        short = [number | {"title": number["variant"] or number["title"]} for number in same]
        yield (metric_title(metric), short) if len(same) > 1 else ("", same)


def highlights(numbers: Sequence[dict[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The numbers for the first table by metric and score: one per data set, at the level that leaves half right."""
    by_pair: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for number in numbers:
        by_pair.setdefault((number["metric"], number["score"]), {}).setdefault(number["on"], []).append(number)
    selected = [pair for pair in pairs if pair in by_pair] or list(by_pair)[:1]
    return [
        # Where all networks are right, or none, they cannot be told apart.
        min(levels, key=lambda number: abs(number["mean"] - 0.5) if len(levels) > 1 else 0.0)
        for pair in selected
        for levels in by_pair[pair].values()
    ]
