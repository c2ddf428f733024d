"""The AVH paper's four hypotheses about people, tested on one's own run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hardsight.alignment.coefficients import FEWEST_OF_INTERVAL, beside_people, checked_frequency, together
from hardsight.alignment.differences import Difference, compare_scores
from hardsight.correlation import COEFFICIENTS
from hardsight.errors import InputError
from hardsight.stats import LEVEL
from hardsight.table import SampleTable

Verdict = Literal["holds", "does not hold", "not decided"]

SMALL = 0.05  # a correlation whose whole interval lies this close to 0 is none


@dataclass(frozen=True)
class Outcome:
    """What a run says about a hypothesis.

    Attributes:
        name: ``"Hypothesis 1"`` and so on.
        claim: The paper's sentence.
        paper: What the paper found: "holds" or "not shown".
        verdict: ``"holds"`` or ``"does not hold"`` where all three coefficients say so, else ``"not decided"``.
        numbers: For each coefficient the agreement, or the difference of two, as ``value`` with ``low`` and ``high``
            (95 % interval), and its own ``verdict``; empty where there are none.
        words: The same in a sentence.
    """

    name: str
    claim: str
    paper: str
    verdict: Verdict
    numbers: dict[str, dict[str, Any]]
    words: str


def hypotheses(
    table: SampleTable | Mapping[str, Any] | str | Path,
    human: Any,
    *,
    tests: Sequence[Difference] = (),
    resamples: int = 2000,
    seed: int = 0,
) -> list[Outcome]:
    """The paper's Hypotheses 1 to 4, each by all three coefficients.

    That a score correlates with people (1, 2 and 4) holds where the interval of its agreement lies above 0; it does not
    hold where the interval lies below 0, or within ±.05. That AVH agrees better than confidence (3) holds where the
    interval of the paired difference lies above 0 (p < .05), and does not hold where it lies below. Nothing is decided
    by fewer than ten samples, or by a constant score.

    Args:
        table: As for `align`. Hypotheses whose scores it lacks are left out; the fourth needs labels.
        human: What people said, as for `align`.
        tests: Of AVH against confidence, where `compare_scores` has made them already; others are passed over.
        resamples: Of the paired bootstrap of Hypothesis 3.
        seed: Of the same.

    Examples:
        >>> columns = {"id": [str(k) for k in range(40)], "avh": [k / 100 for k in range(40)]}
        >>> people = {str(k): 1 - k / 50 for k in range(40)}
        >>> [(one.name, one.verdict) for one in hypotheses(columns, people)]
        [('Hypothesis 1', 'holds')]
    """
    table, matched = beside_people(table, human)
    frequency = checked_frequency(matched.hsf)
    if "norm" in table and "label" in table and "norm_within_class" not in table:
        table = table.with_norm_within_class()
    made = {test.coefficient: test for test in tests if (test.first, test.second) == ("avh", "confidence")}

    def ahead(name: str) -> dict[str, Any]:
        return _ahead(
            made.get(name)
            or compare_scores(table, "avh", "confidence", frequency, coefficient=name, resamples=resamples, seed=seed)
        )

    found = []
    for number, score, subject in (
        (1, "avh", "AVH"),
        (2, "confidence", "Confidence"),
        (3, "avh", "AVH"),
        (4, "norm_within_class", "The norm, scaled within each class,"),
    ):
        if score not in table or (number == 3 and "confidence" not in table):
            continue
        claim, paper = f"{subject} has a correlation with human selection frequency.", "holds"
        if number == 3:
            claim = "AVH has a stronger correlation with human selection frequency than confidence."
        elif number == 4:
            paper = "not shown"
        try:
            ours = {name: ahead(name) for name in COEFFICIENTS} if number == 3 else _agreements(table, score, frequency)
        except InputError as error:  # a constant score, or too few samples that have it
            words = f"{claim} Not decided: {error} The paper: {paper}."
            found.append(Outcome(f"Hypothesis {number}", claim, paper, "not decided", {}, words))
            continue
        found.append(_outcome(f"Hypothesis {number}", claim, paper, ours))
    return found


def _agreements(table: SampleTable, score: str, frequency: np.ndarray) -> dict[str, dict[str, Any]]:
    (values,), frequency = together(table, [score], frequency)
    numbers = {}
    for name, function in COEFFICIENTS.items():
        value, low, high, _ = function(values, frequency)
        verdict: Verdict = "not decided"
        if len(values) >= FEWEST_OF_INTERVAL:
            none = high < 0 or max(-low, high) <= SMALL
            verdict = "does not hold" if none else "holds" if low > 0 else "not decided"
        numbers[name] = {"value": value, "low": low, "high": high, "verdict": verdict}
    return numbers


def _ahead(test: Difference) -> dict[str, Any]:
    verdict: Verdict = "not decided"
    if test.p <= 1 - LEVEL and test.n >= FEWEST_OF_INTERVAL:
        verdict = "holds" if test.difference > 0 else "does not hold"
    return {"value": test.difference, "low": test.low, "high": test.high, "verdict": verdict}


def _outcome(name: str, claim: str, paper: str, numbers: dict[str, dict[str, Any]]) -> Outcome:
    verdicts = {found["verdict"] for found in numbers.values()}
    verdict: Verdict = verdicts.pop() if len(verdicts) == 1 else "not decided"
    parts = [
        f"{coefficient} {found['value']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f}), {found['verdict']}"
        for coefficient, found in numbers.items()
    ]
    return Outcome(name, claim, paper, verdict, numbers, f"{claim} {'; '.join(parts)}. The paper: {paper}.")
