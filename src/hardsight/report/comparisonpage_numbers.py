"""The tables of the comparison page: one row per number, one column per group, marks where a corrected test is sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.evaluation.naming import metric_title, number_title, variant_title, written
from hardsight.evaluation.results import Evaluation
from hardsight.evaluation.statistics import by_number, key_of, wins


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
        return {"text": "–", "spread": "", "flag": "", "test": ""}
    metric, values, flag = finite[0]["metric"], np.array([row["value"] for row in finite]), flag_of(test)
    low, high = (written(metric, finite[0][end]) for end in ("low", "high"))
    spread = "" if "–" in (low, high) else f"{low.removesuffix(' %')} to {high}"
    if len(values) > 1:
        spread = f"± {written(metric, values.std(ddof=1)).removesuffix(' %')}"
    tested = f"{written(metric, test['difference'], signed=True)}, {p_text(test['p_holm'])}" if flag and test else ""
    return {"text": written(metric, values.mean()), "spread": spread, "flag": flag, "test": tested}


def flag_of(test: Mapping[str, Any] | None) -> str:
    """``better`` or ``worse`` than the first group after correction, or nothing."""
    return "" if test is None else {True: "better", False: "worse", None: ""}[wins(test)]


def p_text(p: float) -> str:
    """A p-value to three digits."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def blocks(numbers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The numbers under the names of their metrics; a metric with one number needs no name above it."""
    made = []
    for metric in dict.fromkeys(number["metric"] for number in numbers):
        rows = [number for number in numbers if number["metric"] == metric]
        if len(rows) == 1:
            made.append({"title": "", "better": "", "rows": rows})
        else:
            titled = [row | {"title": row["variant"] or row["title"]} for row in rows]
            made.append({"title": metric_title(metric), "better": rows[0]["better"], "rows": titled})
    return made


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
