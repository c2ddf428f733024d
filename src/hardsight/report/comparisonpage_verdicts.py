"""The sentences at the top of the comparison page: what is better, what is worse, what is not clear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hardsight.evaluation.naming import meaning, number_title, written
from hardsight.evaluation.statistics import flag_of
from hardsight.report.comparisonpage_numbers import p_text
from hardsight.report.formatting import counted

_EACH = 3  # groups that have a sentence each
_SIDE_BY_SIDE = 2  # numbers shown of what was not tested


def verdict(
    groups: Sequence[str],
    numbers: Sequence[Mapping[str, Any]],
    highlights: Sequence[Mapping[str, Any]],
    headline: Sequence[tuple[str, str]],
) -> list[str]:
    """The result of a question: sentences about every group but the first, or a single group's numbers.

    A sentence is about the headline, which is fixed before any test is looked at: one that picks the first sure
    difference would call a network better by one number while another falls.

    Args:
        groups: Their names; the first is the baseline.
        numbers: All numbers of the question, as `numbers_of` gives them.
        highlights: Those of the first table.
        headline: Pairs of metric and score; the first that is among the highlights is the headline.
    """
    if len(groups) == 1:
        return ["; ".join(f"{number['title']} {_value(number['cells'][0])}" for number in highlights) + "."]
    tests = {name: [number["tests"][k] for number in numbers] for k, name in enumerate(groups)}
    judged = {name: [test for test in tests[name] if test and test["better"]] for name in groups[1:]}
    tested = {name: kept for name in judged if (kept := [test for test in judged[name] if _is_tested(test)])}
    if not tested:
        reason = next((test["reason"] for name in judged for test in judged[name]), "no number in common")
        return [" ".join([*(_side_by_side(groups, n) for n in highlights[:_SIDE_BY_SIDE]), f"Not tested ({reason})."])]
    if len(tested) <= _EACH:
        present = [pair for pair in headline if any(_pair(number) == pair for number in highlights)]
        first = [number for number in highlights if _pair(number) in present[:1]]
        return [
            " ".join([*(_headline(groups, name, number) for number in first), _total(name, groups[0], tested[name])])
            for name in tested
        ]
    clear = {name: kept for name, kept in tested.items() if any(map(flag_of, kept))}
    texts = [f"{name}: {_counts(kept)}." for name, kept in clear.items()]
    if len(clear) < len(tested):
        unclear = f"{len(tested) - len(clear)} of {len(tested)}" if clear else f"any of {len(tested)}"
        texts.append(f"No number tells {unclear} other groups from {groups[0]} for sure.")
    return texts


def _is_tested(test: Mapping[str, Any] | None) -> bool:
    return test is not None and not math.isnan(test["p_holm"])


def _pair(number: Mapping[str, Any]) -> tuple[str, str]:
    return number["metric"], number["score"]


def _value(cell: Mapping[str, str]) -> str:
    spread = cell["sd"] or cell["interval"]
    return f"{cell['text']} ({spread})" if spread else cell["text"]


def _side_by_side(groups: Sequence[str], number: Mapping[str, Any], shown: Sequence[str] = ()) -> str:
    cells = zip(groups, number["cells"], strict=True)
    texts = [f"{name} {cell['text']}" for name, cell in cells if name in (shown or groups)]
    return f"{number['title']}: {', '.join(texts)}."


def _headline(groups: Sequence[str], name: str, number: Mapping[str, Any]) -> str:
    """One group against the first in the headline: better, worse, not clear, or not tested."""
    test = number["tests"][groups.index(name)]
    if not _is_tested(test):
        reason = "not measured in both" if test is None else test["reason"]
        return f"{_side_by_side(groups, number, (groups[0], name))} Not tested ({reason})."
    if not flag_of(test):
        return f"{name}: no clear difference from {groups[0]} in {_difference(test)}."
    text = meaning(test, flag_of(test) == "better")
    return f"{text if text.startswith(name) else text[0].upper() + text[1:]}: {_difference(test)}."


def _total(name: str, first: str, tests: Sequence[Mapping[str, Any]]) -> str:
    """How many of all numbers that were tested differ."""
    if any(map(flag_of, tests)):
        return f"In all, {_counts(tests)}."
    numbers = "the one number that was tested" if len(tests) == 1 else f"any of {len(tests)} numbers"
    return f"{name}: no clear difference from {first} in {numbers}."


def _counts(tests: Sequence[Mapping[str, Any]]) -> str:
    """How many numbers are better than those of the first group, and how many worse."""
    flags = [flag_of(test) for test in tests]
    (flag, count), *other = [(flag, flags.count(flag)) for flag in ("better", "worse") if flag in flags]
    more = "".join(f" and {n} {worse}" for worse, n in other)
    return f"{count} of {counted(len(tests), 'number')} {'is' if count == 1 else 'are'} {flag}{more}"


def _difference(test: Mapping[str, Any]) -> str:
    """A difference with its interval."""
    metric = test["metric"]
    title = number_title(metric, test["score"], test["on"], test["level"])
    means = " against ".join(written(metric, test[name]) for name in ("mean", "baseline_mean"))
    ends = [written(metric, test[end], signed=True) for end in ("low", "high") if not math.isnan(test[end])]
    interval = f", 95% interval {' to '.join(ends)}" if ends else ""
    return f"{title} {means} ({written(metric, test['difference'], signed=True)}{interval}, {p_text(test['p_holm'])})"
