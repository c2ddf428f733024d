"""The AVH paper's four hypotheses about people, tested on one's own run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from hardsight.correlation import COEFFICIENTS
from hardsight.errors import InputError
from hardsight.people.candidates import FEWEST_OF_INTERVAL, Paired, Table
from hardsight.people.differences import Difference, compare_scores
from hardsight.printing import interval


class Estimate(TypedDict):
    """A number by one coefficient, with its 95% interval and verdict."""

    value: float
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True)
class Outcome:
    """What a run says about a hypothesis of the AVH paper.

    Attributes:
        paper: What the paper found: "holds" or "not shown".
        verdict: "holds" or "does not hold" if all three coefficients say so, else "not decided".
        numbers: For each coefficient the agreement, or the difference of two, as ``value`` with ``low`` and ``high``
            (95% interval), and its own ``verdict``; empty if there are none, for the given `reason`.
    """

    name: str = ""
    claim: str = ""
    paper: str = ""
    verdict: str = "not decided"
    numbers: dict[str, Estimate] | None = None
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        parts = [
            f"{name} {interval(entry['value'], entry['low'], entry['high'], '+.3f')}, {entry['verdict']}"
            for name, entry in (self.numbers or {}).items()
        ]
        return f"{self.claim} {'; '.join(parts) or f'Not decided: {self.reason}'}. The paper: {self.paper}."


_SMALL = 0.05  # a correlation whose whole interval lies this close to 0 counts as none
_CORRELATES = "{} has a correlation with human selection frequency."
_STRONGER = "AVH has a stronger correlation with human selection frequency than confidence."
# The scores of each hypothesis, its claim, and what the paper found.
_HYPOTHESES = (
    (("avh",), _CORRELATES.format("AVH"), "holds"),
    (("confidence",), _CORRELATES.format("Confidence"), "holds"),
    (("avh", "confidence"), _STRONGER, "holds"),
    (("norm_within_class",), _CORRELATES.format("The norm, scaled within each class,"), "not shown"),
)


def hypotheses(
    table: Table, human: Any, *, tests: Sequence[Difference] = (), resamples: int = 2000, seed: int = 0
) -> list[Outcome]:
    """The AVH paper's Hypotheses 1 to 4, each by all three coefficients.

    That a score correlates with people (1, 2 and 4) holds if the interval of its agreement lies above 0; it does not
    hold if the interval lies below 0, or within ±0.05. That AVH agrees better than confidence (3) holds if the paired
    difference is above 0 with p < 0.05, and does not hold if it is below. Fewer than ten samples, or a constant score,
    decide nothing.

    Args:
        table: As for `align`. Hypotheses whose scores it lacks are skipped; the fourth needs labels.
        human: As for `align`.
        tests: Tests of AVH against confidence that `compare_scores` has already computed; others are ignored.
        resamples: Resamples of the paired bootstrap of Hypothesis 3, with its `seed`.

    Examples:
        >>> columns = {"id": [str(k) for k in range(40)], "avh": [k / 100 for k in range(40)]}
        >>> people = {str(k): 1 - k / 50 for k in range(40)}
        >>> [(result.name, result.verdict) for result in hypotheses(columns, people)]
        [('Hypothesis 1', 'holds')]
    """
    paired = Paired.of(table, human)
    paired = paired.with_norm_within_class() if "label" in paired.table else paired
    done, outcomes = {test[:3]: test for test in tests}, []
    for number, (scores, claim, paper) in enumerate(_HYPOTHESES, 1):
        if not set(scores) <= set(paired.table.columns):
            continue
        numbers, reason = {}, ""
        try:
            for name in COEFFICIENTS:
                if len(scores) > 1:
                    test = done.get((*scores, name)) or compare_scores(
                        paired.table, *scores, paired.people, coefficient=name, resamples=resamples, seed=seed
                    )
                    verdict = "holds" if test.difference > 0 else "does not hold"
                    value, low, high, decided = test.difference, test.low, test.high, test.significant
                else:
                    (values,), hsf = paired.in_common(scores)
                    value, low, high, _ = COEFFICIENTS[name](values, hsf)
                    none = high < 0 or max(-low, high) <= _SMALL
                    verdict = "does not hold" if none else "holds"
                    decided = len(hsf) >= FEWEST_OF_INTERVAL and (none or low > 0)
                numbers[name] = Estimate(value=value, low=low, high=high, verdict=verdict if decided else "not decided")
        except InputError as error:  # a constant score, or too few samples that have it
            numbers, reason = {}, str(error).removesuffix(".")
        verdicts = {entry["verdict"] for entry in numbers.values()}
        verdict = verdicts.pop() if len(verdicts) == 1 else "not decided"
        outcomes.append(Outcome(f"Hypothesis {number}", claim, paper, verdict, numbers, reason))
    return outcomes
