"""The sentences at the top of the comparison page: what is better, what is worse, what is not clear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hardsight.evaluation.statistics import key_of
from hardsight.figures.evaluated import Evaluated
from hardsight.figures.evaluationnames import about, metric_title, written
from hardsight.report.comparisonpage_numbers import flag_of, p_words

_EACH = 3  # groups that have a sentence of their own


def verdict(found: Evaluated, question: str, telling: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a question came to: sentences about every group but the first, or of one group its telling numbers.

    Args:
        found: The evaluation.
        question: Its name.
        telling: Its telling numbers.
    """
    first, *others = found.groups
    if not others:
        return ["; ".join(f"{row['title']} {_said(row['cells'][0])}" for row in telling) + "."]
    tests = [test for test in found.tests if test["question"] == question and not math.isnan(test["p_holm"])]
    own = {name: held for name in others if (held := [test for test in tests if test["group"] == name])}
    if not own:
        why = next((test["how"] for test in found.tests if test["question"] == question and test["better"]), "")
        return [f"Nothing could be tested: {why.removeprefix('no test: ') or 'there is no number in common'}."]
    if len(own) <= _EACH:
        keys = [row["key"] for row in telling]
        return [_sentence(name, first, held, keys) for name, held in own.items()]
    clear = {name: held for name, held in own.items() if any(map(flag_of, held))}
    unclear = f"{len(own) - len(clear)} of {len(own)} other groups" if clear else f"any of {len(own)} other groups"
    texts = [f"{name} is {_counted(held, first)}." for name, held in clear.items()]
    if len(clear) < len(own):
        texts.append(f"No number tells {unclear} from {first} for sure.")
    return texts


def _said(cell: Mapping[str, str]) -> str:
    return f"{cell['text']} ({cell['spread']})" if cell["spread"] else cell["text"]


def _sentence(name: str, first: str, tests: Sequence[Mapping[str, Any]], telling: Sequence[tuple[Any, ...]]) -> str:
    """One group against the first, with the most telling difference: of the telling numbers, else the surest."""
    sure = [test for test in tests if flag_of(test)]
    if not sure:
        return f"{name}: no clear difference from {first} on {_numbers(len(tests))}."
    shown = min(sure, key=lambda test: (_place(key_of(test), telling), test["p_holm"]))
    return f"{name} is {_counted(tests, first)}: {_told(shown)}."


def _place(key: tuple[Any, ...], telling: Sequence[tuple[Any, ...]]) -> int:
    return telling.index(key) if key in telling else len(telling)


def _numbers(count: int) -> str:
    return "the one number" if count == 1 else f"any of {count} numbers"


def _counted(tests: Sequence[Mapping[str, Any]], first: str) -> str:
    """On how many numbers it is better than the first group, and on how many worse."""
    flags = [flag_of(test) for test in tests]
    parts = [f"{flag} than {first} on {flags.count(flag)}" for flag in ("better", "worse") if flag in flags]
    return f"{' and '.join(parts)} of {len(tests)} number{'' if len(tests) == 1 else 's'}"


def _told(test: Mapping[str, Any]) -> str:
    """One difference with its interval and test."""
    metric = test["metric"]
    what = ", ".join(part for part in (metric_title(metric), about(test)) if part)
    means = " against ".join(written(metric, test[name]) for name in ("mean", "baseline_mean"))
    ends = [written(metric, test[end], signed=True) for end in ("low", "high") if not math.isnan(test[end])]
    interval = f", 95 % interval {' to '.join(ends)}" if ends else ""
    difference = written(metric, test["difference"], signed=True)
    return f"{what} {means} ({difference}{interval}; corrected {p_words(test['p_holm'])}, {test['how']})"
