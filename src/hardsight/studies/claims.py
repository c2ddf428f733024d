"""Sentences of the papers, where they stand, the rule that judges each, the study it is about, and the verdict.

A claim that compares with a baseline is a line of ``published/claims.csv``: it is judged on the tables of its study. A
claim about the course of training is a function under `claim`: it is judged on recorded runs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

from hardsight.printing import interval
from hardsight.studies.tables import Results

YES, PARTLY, NO, NOT_SHOWN, UNMEASURED = "yes", "partly", "no", "not shown", "not measured"
RULE = (
    "yes: the 95% interval of the difference to the baseline lies on the claimed side of 0; no: on the other side; "
    "not shown: it contains 0"
)


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


def by_sign(measured: str, n: int, value: float, low: float, high: float, otherwise: str = PARTLY) -> Finding:
    """Yes where an interval lies above 0, no where it lies below, something else where it contains 0."""
    return Finding(YES if low > 0 else NO if high < 0 else otherwise, measured, n, value, low, high)


class Claim(NamedTuple):
    """A sentence of a paper or its slides.

    Attributes:
        paper: AVH, EL or AMC.
        source: Where it stands.
        claim: The sentence.
        rule: How it is judged, in words.
        study: The study that measures it.
        judge: Applies the rule to one recorded network, or to all of them.
        epochs: Fewest epochs; fewer say nothing about the course of training.
        over_nets: Whether it is about all networks together.
    """

    paper: str
    source: str
    claim: str
    rule: str
    study: str
    judge: Callable[[Any], Finding]
    epochs: int = 1
    over_nets: bool = False


CLAIMS: list[Claim] = []


def claim(
    paper: str, study: str, source: str, sentence: str, rule: str, **options: Any
) -> Callable[[Callable[[Any], Finding]], Callable[[Any], Finding]]:
    """A decorator that adds a claim to `CLAIMS`."""

    def add(judge: Callable[[Any], Finding]) -> Callable[[Any], Finding]:
        CLAIMS.append(Claim(paper, source, sentence, rule, study, judge, **options))
        return judge

    return add


def judged(results: Results) -> list[dict[str, Any]]:
    """The papers' claims about a study, judged on its tables.

    Args:
        results: Rows of the study.

    Returns:
        One row per claim and line that it is about: ``paper``, ``source``, ``claim``, ``rule``, ``study``, ``on`` (the
        levels), and the fields of `Finding`.
    """
    file = resources.files("hardsight.studies") / "published" / "claims.csv"
    rows = []
    for entry in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        if entry["study"] != results.study.name:
            continue
        about = {name: entry[name] for name in ("paper", "source", "claim")} | {"rule": RULE, "study": entry["study"]}
        measure = results.study.measures[entry["measure"]]
        side = -1 if entry["expected"] == "lower" else 1
        lines = results.lines(entry["measure"], entry["where"])
        for line in lines:
            text = interval(line.difference, line.low, line.high, "+.4g")
            measured = f"{measure.title.lower()}: {text} against {results.study.baseline}, {line.pairs} seeds"
            low, high = sorted((side * line.low, side * line.high))
            finding = by_sign(measured, line.pairs, line.difference, low, high, NOT_SHOWN)
            finding = finding._replace(low=line.low, high=line.high)
            if line.low != line.low:
                finding = unmeasured("several seeds of the level and of the baseline are needed", line.pairs)
            rows.append({**about, "on": " ".join(filter(None, line.levels)), **finding._asdict()})
        if not lines:
            rows.append({**about, "on": entry["where"], **unmeasured("no such rows")._asdict()})
    return rows
