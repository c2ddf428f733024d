"""The sentences at the top of the comparison page: what is better, what is worse, what is not clear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hardsight.evaluation.naming import about, meaning, metric_title, written
from hardsight.evaluation.reading import Evaluated
from hardsight.evaluation.statistics import key_of
from hardsight.report.comparisonpage_numbers import flag_of, p_words
from hardsight.report.formatting import counted

_EACH = 3  # groups that have a sentence of their own
_TOLD = 2  # numbers of what was not tested


def verdict(
    results: Evaluated, question: str, telling: Sequence[Mapping[str, Any]], pairs: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """What a question came to: sentences about every group but the first, or of one group its telling numbers.

    A sentence is about the headline, which is chosen before any test is looked at: one that picks the first sure
    difference would call a network better by one number while another falls.

    Args:
        results: The evaluation.
        question: Its name.
        telling: Its telling numbers.
        pairs: Metric and score of the headline; the first that is among the telling numbers.
    """
    first, *others = results.groups
    if not others:
        return ["; ".join(f"{row['title']} {_said(row['cells'][0])}" for row in telling) + "."]
    every = [test for test in results.tests if test["question"] == question and test["better"]]
    tests = [test for test in every if not math.isnan(test["p_holm"])]
    own = {name: held for name in others if (held := [test for test in tests if test["group"] == name])}
    if not own:
        why = every[0]["how"].removeprefix("no test: ") if every else "no number in common"
        sides = [_side_by_side(row, list(results.groups)) for row in telling[:_TOLD]]
        return [" ".join([*sides, f"Not tested ({why})."])]
    if len(own) <= _EACH:
        pair = next((pair for pair in pairs if any(_pair(row) == pair for row in telling)), None)
        headline = [row for row in telling if _pair(row) == pair]
        of_group = {(test["group"], key_of(test)): test for test in every}
        return [
            " ".join(
                [
                    *(
                        _headline(row, of_group.get((name, row["key"])), [first, name], list(results.groups))
                        for row in headline
                    ),
                    _total(name, first, held),
                ]
            )
            for name, held in own.items()
        ]
    clear = {name: held for name, held in own.items() if any(map(flag_of, held))}
    unclear = f"{len(own) - len(clear)} of {len(own)} other groups" if clear else f"any of {len(own)} other groups"
    texts = [f"{name}: {_counted(held)}." for name, held in clear.items()]
    if len(clear) < len(own):
        texts.append(f"No number tells {unclear} from {first} for sure.")
    return texts


def _said(cell: Mapping[str, str]) -> str:
    return f"{cell['text']} ({cell['spread']})" if cell["spread"] else cell["text"]


def _side_by_side(row: Mapping[str, Any], groups: Sequence[str]) -> str:
    told = ", ".join(f"{name} {cell['text']}" for name, cell in zip(groups, row["cells"], strict=True))
    return f"{row['title']}: {told}."


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["metric"], row["score"]


def _headline(
    row: Mapping[str, Any], test: Mapping[str, Any] | None, pair: Sequence[str], groups: Sequence[str]
) -> str:
    """One group against the first in the headline: better, worse, not clear, or not tested."""
    first, name = pair
    if test is None or math.isnan(test["p_holm"]):
        cells = [row["cells"][groups.index(group)] for group in pair]
        why = test["how"].removeprefix("no test: ") if test is not None else "not measured in both"
        return f"{_side_by_side({**row, 'cells': cells}, pair)} Not tested ({why})."
    if not flag_of(test):
        return f"{name}: no clear difference from {first} in {_told(test)}."
    what = meaning(test, flag_of(test) == "better")
    return f"{what[0].upper() if not what.startswith(name) else what[0]}{what[1:]}: {_told(test)}."


def _total(name: str, first: str, tests: Sequence[Mapping[str, Any]]) -> str:
    """How many of all numbers that were tested differ."""
    if any(map(flag_of, tests)):
        return f"In all, {_counted(tests)}."
    numbers = "the one number that was tested" if len(tests) == 1 else f"any of {len(tests)} numbers"
    return f"{name}: no clear difference from {first} in {numbers}."


def _counted(tests: Sequence[Mapping[str, Any]]) -> str:
    """How many numbers are better than those of the first group, and how many worse."""
    flags = [flag_of(test) for test in tests]
    parts = [(flags.count(flag), flag) for flag in ("better", "worse") if flag in flags]
    (count, flag), *other = parts
    more = f" and {other[0][0]} {other[0][1]}" if other else ""
    return f"{count} of {counted(len(tests), 'number')} {'is' if count == 1 else 'are'} {flag}{more}"


def _told(test: Mapping[str, Any]) -> str:
    """One difference with its interval."""
    metric = test["metric"]
    what = ", ".join(part for part in (metric_title(metric), about(test)) if part)
    means = " against ".join(written(metric, test[name]) for name in ("mean", "baseline_mean"))
    ends = [written(metric, test[end], signed=True) for end in ("low", "high") if not math.isnan(test[end])]
    interval = f", 95 % interval {' to '.join(ends)}" if ends else ""
    return f"{what} {means} ({written(metric, test['difference'], signed=True)}{interval}, {p_words(test['p_holm'])})"
