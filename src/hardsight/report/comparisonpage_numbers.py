"""The tables of the comparison page: a row per number, a column per group, marks where a corrected test is sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardsight.evaluation.naming import about, metric_title, written
from hardsight.evaluation.reading import Evaluated, distinct
from hardsight.evaluation.statistics import key_of, wins


def tests_of(results: Evaluated) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """The tests by number and group."""
    held: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for test in results.tests:
        held.setdefault(key_of(test), {})[test["group"]] = test
    return held


def numbers_of(results: Evaluated, question: str) -> list[dict[str, Any]]:
    """The numbers of a question, in the order of the rows, each with one cell per group."""
    tests = tests_of(results)
    held: dict[tuple[Any, ...], dict[str, list[dict[str, Any]]]] = {}
    for row in results.rows:
        if row["question"] == question:
            held.setdefault(key_of(row), {}).setdefault(row["group"], []).append(row)
    numbers = []
    for key, groups in held.items():
        one = next(iter(groups.values()))[0]
        own = [row for rows in groups.values() for row in rows]
        sizes = distinct(row["n"] for row in own)
        numbers.append({
            "key": key, "metric": one["metric"], "score": one["score"], "on": one["on"],
            "mean": float(np.mean([row["value"] for row in own])),
            "title": metric_title(one["metric"]), "about": about(one), "better": one["better"],
            "n": f"{sizes[0]:,}" if len(sizes) == 1 else f"{min(sizes):,}–{max(sizes):,}",
            "cells": [_cell(groups.get(name), tests.get(key, {}).get(name)) for name in results.groups],
        })  # fmt: skip
    return numbers


def _cell(rows: Sequence[Mapping[str, Any]] | None, test: Mapping[str, Any] | None) -> dict[str, str]:
    """Mean ± standard deviation of runs, or the value of one with its interval over samples."""
    values = np.array([row["value"] for row in rows or () if row["value"] is not None], float)
    values = values[np.isfinite(values)]
    if not rows or not len(values):
        return {"text": "–", "spread": "", "flag": "", "test": ""}
    metric, spread = rows[0]["metric"], ""
    if len(values) > 1:
        spread = f"± {written(metric, values.std(ddof=1)).removesuffix(' %')}"
    elif not any(rows[0][end] is None or math.isnan(rows[0][end]) for end in ("low", "high")):
        spread = f"{written(metric, rows[0]['low']).removesuffix(' %')} to {written(metric, rows[0]['high'])}"
    flag = flag_of(test)
    return {
        "text": written(metric, values.mean()),
        "spread": spread,
        "flag": flag,
        "test": f"{written(metric, test['difference'], signed=True)}, {p_words(test['p_holm'])}"
        if flag and test
        else "",
    }


def flag_of(test: Mapping[str, Any] | None) -> str:
    """``better`` or ``worse`` than the first group for sure, or nothing."""
    return "" if test is None else {True: "better", False: "worse", None: ""}[wins(test)]


def p_words(p: float) -> str:
    """A p value as papers print it."""
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".")


def blocks(numbers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The numbers under the names of their metrics; a metric with one number needs no name above it."""
    made = []
    for metric in distinct(row["metric"] for row in numbers):
        own = [row for row in numbers if row["metric"] == metric]
        if len(own) == 1:
            made.append({"title": "", "better": "", "rows": [row | {"title": _full_title(row)} for row in own]})
        else:
            rows = [row | {"title": row["about"] or row["title"]} for row in own]
            made.append({"title": own[0]["title"], "better": own[0]["better"], "rows": rows})
    return made


def _full_title(row: Mapping[str, Any]) -> str:
    """A number's metric, and what it is about."""
    return f"{row['title']}, {row['about']}" if row["about"] else row["title"]


def telling(numbers: Sequence[dict[str, Any]], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The numbers for the first table, by metric and score: one a data set, at the level that leaves half; else one."""
    held: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in numbers:
        held.setdefault((row["metric"], row["score"]), {}).setdefault(row["on"], []).append(row)
    chosen = [pair for pair in pairs if pair in held] or list(held)[:1]
    rows = [
        # Where all networks are right, or none, they cannot be told apart.
        min(levels, key=lambda row: abs(row["mean"] - 0.5) if len(levels) > 1 else 0.0)
        for pair in chosen
        for levels in held[pair].values()
    ]
    return [row | {"title": _full_title(row)} for row in rows]
