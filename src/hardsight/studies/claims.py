"""Sentences of the papers and their verdicts: a claim is a line of ``published/claims.csv``.

It has the sentence, where it stands, the study that feeds it and the judge that decides. Most need no code: the judge
``difference`` reads the tables of any study. Another judge is a function under ``@JUDGES.register(...)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from hardsight.printing import interval
from hardsight.registry import Registry
from hardsight.studies.tables import Results, published

YES, PARTLY, NO, NOT_SHOWN, UNMEASURED = "yes", "partly", "no", "not shown", "not measured"


class Finding(NamedTuple):
    """What was measured, in words and, where a single number says it, as a number with its interval."""

    verdict: str
    measured: str
    n: int
    value: float | None = None
    low: float | None = None
    high: float | None = None


def unmeasured(why: str, n: int = 0) -> Finding:
    """No verdict, with the reason."""
    return Finding(UNMEASURED, why, n)


class Judge(NamedTuple):
    """How a claim is decided.

    Attributes:
        name: In `JUDGES`.
        function: Of a claim and the results of its study, or of one recorded network; its docstring is the rule.
        epochs: Fewest recorded epochs; fewer say nothing about the course of training.
        over_nets: Whether the function is of all recorded networks together.
    """

    name: str
    function: Callable[..., Any]
    epochs: int = 1
    over_nets: bool = False


JUDGES: Registry[Judge] = Registry("judge", Judge)


class Claim(NamedTuple):
    """A sentence of a paper or its slides.

    Attributes:
        paper: AVH, EL or AMC.
        source: Where it stands.
        claim: The sentence.
        study: The study that measures it.
        judge: In `JUDGES`.
        measure, where, expected: What the tables of the study must show: which number at which levels, and whether it
            is higher or lower than the baseline's.
    """

    paper: str
    source: str
    claim: str
    study: str
    judge: str
    measure: str
    where: str
    expected: str

    @property
    def columns(self) -> dict[str, str]:
        """The first columns of its rows."""
        rule = " ".join((JUDGES[self.judge].function.__doc__ or "").split()).rstrip(".")
        return {"paper": self.paper, "source": self.source, "claim": self.claim, "rule": rule, "study": self.study}


@cache
def claims(study: str) -> list[Claim]:
    """The papers' claims that a study feeds."""
    return [Claim(**row) for row in published("claims") if row["study"] == study]


def judged(results: Results) -> list[dict[str, Any]]:
    """The papers' claims about a study, judged on its tables.

    Args:
        results: Rows of the study.

    Returns:
        One row per claim and line that it is about: ``paper``, ``source``, ``claim``, ``rule``, ``study``, ``on`` (the
        levels), and the fields of `Finding`.
    """
    return [
        {**claim.columns, "on": on, **finding._asdict()}
        for claim in claims(results.study.name)
        if claim.measure  # the others are about recorded runs
        for on, finding in JUDGES[claim.judge].function(claim, results)
    ]


@JUDGES.register("difference")
def _difference(claim: Claim, results: Results) -> Iterator[tuple[str, Finding]]:
    """yes: the 95% interval of the difference to the baseline lies on the claimed side of 0; no: on the other side; not
    shown: it contains 0."""
    title, lines = results.study.measures[claim.measure].title.lower(), results.lines(claim.measure, claim.where)
    above, below = (NO, YES) if claim.expected == "lower" else (YES, NO)
    for line in lines:
        text = interval(line.difference, line.low, line.high, "+.4g")
        measured = f"{title}: {text} against {results.study.baseline}, {line.pairs} seeds"
        verdict = above if line.low > 0 else below if line.high < 0 else NOT_SHOWN
        finding = Finding(verdict, measured, line.pairs, line.difference, line.low, line.high)
        if line.low != line.low:
            finding = unmeasured("several seeds of the level and of the baseline are needed", line.pairs)
        yield " ".join(filter(None, line.levels)), finding
    if not lines:
        yield claim.where, unmeasured("no such rows")
