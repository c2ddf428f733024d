"""Sentences of the papers and how each is judged: a claim is an entry of ``published/claims.toml``.

It has the sentence, where it stands, the study that feeds it and the judge that decides. Most need no code: the judges
of this file read the rows of any study. Another judge is a function under ``@JUDGES.register(...)``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.printing import interval, number_text
from hardsight.registry import Registry
from hardsight.stats import Difference, paired_difference
from hardsight.studies.tables import Results, conditions, is_number, matches

YES, PARTLY, NO, NOT_SHOWN, UNMEASURED = "yes", "partly", "no", "not shown", "not measured"
FEWEST = 3  # units; with fewer no test decides
_OPPOSITE = {"higher": "lower", "lower": "higher"}


class Finding(NamedTuple):
    """What was measured, in words and, where a single number says it, as a number with its interval.

    Attributes:
        verdict: yes, partly, no, not shown, not measured.
        measured: In words.
        n: Units that the number rests on: seeds, networks or samples.
        value: The number.
        low: Where its 95% interval begins.
        high: Where it ends.
        p: Two-sided p-value of the bound that the claim names.
        p_effect: Two-sided p-value of the effect that the paper reports, where it can be compared.
    """

    verdict: str
    measured: str
    n: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_effect: float | None = None


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
        of: What it judges: rows of a "study", a recorded "run", or "nothing" but what the paper prints or states.
        number: What the number of a finding is, where the rule does not say it.
    """

    name: str
    function: Callable[..., Any]
    epochs: int = 1
    over_nets: bool = False
    of: str = "run"
    number: str = ""

    @property
    def rule(self) -> str:
        """The rule, on one line."""
        return " ".join((self.function.__doc__ or "").split()).rstrip(".")


JUDGES: Registry[Judge] = Registry("judge", Judge)


class Claim(NamedTuple):
    """A sentence of a paper or its slides.

    Attributes:
        paper: AVH, EL or AMC.
        source: Where it stands.
        claim: The sentence.
        study: The study that measures it.
        judge: In `JUDGES`.
        measure: The number that the rows of the study must show.
        where: At which levels.
        against: Compared with which levels: the study's baseline if empty; ``measure=NAME`` is another measure,
            ``measure=-NAME`` its negative, ``nothing`` is 0.
        over: A factor whose levels are the units, in place of the seeds.
        expected: How it compares, as the judge reads it: higher, lower, ``> 2``, ``±0.01``.
        effect: The difference that the paper reports, where ours is of the same measure on the same data.
        rows: Files of committed rows.
        data: What the rows are of, and what the paper's were.
        not_run: What has to be run, where there are no rows yet.
        not_testable: Which data or weights are missing, where there can be none.
        checked: What was checked before the paper was contradicted, and caveats.
        headline: Its short form for the summary, if it is among the most important.
        few: Why it rests on fewer than five units.
        on: What sets this experiment apart, where there are several.
        also: The other experiments on the sentence, by what differs from the first.
    """

    paper: str
    source: str
    claim: str
    study: str = ""
    judge: str = ""
    measure: str = ""
    where: str | Mapping[str, str] = ""
    against: str = ""
    over: str = "seed"
    expected: str = ""
    effect: float | None = None
    rows: tuple[str, ...] = ()
    data: str = ""
    not_run: str = ""
    not_testable: str = ""
    checked: str = ""
    headline: str = ""
    few: str = ""
    on: str = ""
    also: tuple[Mapping[str, Any], ...] = ()

    @property
    def experiments(self) -> tuple[Claim, ...]:
        """The claim as each of its experiments tests it."""
        first = self._replace(also=())
        return (first, *(first._replace(**_frozen(other)) for other in self.also))

    @property
    def columns(self) -> dict[str, str]:
        """The first columns of its rows."""
        return {
            "paper": self.paper, "source": self.source, "claim": self.claim, "rule": JUDGES[self.judge].rule,
            "study": self.study,
        }  # fmt: skip


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim of the three papers, in the order of the file."""
    file = resources.files("hardsight.studies") / "published" / "claims.toml"
    entries: list[dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))["claim"]
    return tuple(Claim(**_frozen(entry)) for entry in entries)


def _frozen(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the file with tuples in place of lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}


def claims(study: str) -> list[Claim]:
    """The papers' claims that a study feeds, as it tests them."""
    every = (experiment for claim in all_claims() for experiment in claim.experiments)
    return [claim for claim in every if claim.study == study and claim.judge]


def judged(results: Results) -> list[dict[str, Any]]:
    """The papers' claims about a study, judged on its rows.

    Args:
        results: Rows of the study.

    Returns:
        One row per claim and line that it is about: ``paper``, ``source``, ``claim``, ``rule``, ``study``, ``on`` (the
        levels), and the fields of `Finding`.
    """
    return [
        {**claim.columns, "on": on, **finding._asdict()}
        for claim in claims(results.study.name)
        if JUDGES[claim.judge].of == "study"  # the others are about recorded runs
        for on, finding in JUDGES[claim.judge].function(claim, results)
    ]


class Pairs(NamedTuple):
    """A line that a claim is about: its levels, and the values of its units beside what they are compared with."""

    levels: tuple[str, ...]
    values: np.ndarray
    base: np.ndarray


def pairs(claim: Claim, results: Results) -> Iterator[Pairs]:
    """The lines of a study that a claim is about, paired unit by unit; ``against="nothing"`` pairs them with 0."""
    study, columns = results.study, results.columns
    names, alone = (*study.factors, *study.details), claim.against == "nothing"
    if claim.over not in ("seed", *study.factors):
        raise InputError(f"over must be seed or a factor of {study.name}, got {claim.over!r}.")
    against = claim.against or (f"{study.compare}={study.baseline}" if study.compare else "")
    base = {name: levels[0] for name, levels in conditions("" if alone else against, (*names, "measure")).items()}
    other = base.pop("measure", claim.measure)
    groups, wanted = results.values(claim.measure, claim.over), conditions(claim.where, names)
    others, sign = results.values(other.removeprefix("-"), claim.over), -1.0 if other.startswith("-") else 1.0
    for levels, values in groups.items():
        named = dict(zip(columns, levels, strict=True))
        if matches(named, wanted):
            theirs = others.get(tuple(base.get(name, level) for name, level in named.items()), {})
            units = [unit for unit in values if alone or unit in theirs]
            numbers = np.array([values[unit] for unit in units])
            compared = np.zeros(len(units)) if alone else sign * np.array([theirs[unit] for unit in units])
            yield Pairs(levels, numbers, compared)


def over_lines(
    claim: Claim, results: Results, finding: Callable[[np.ndarray, np.ndarray], Finding]
) -> Iterator[tuple[str, Finding]]:
    """A finding for each line of a claim, by the levels in which its lines differ; none where there is too little."""
    lines = list(pairs(claim, results))
    several = [len(set(column)) > 1 for column in zip(*(line.levels for line in lines), strict=True)]
    for levels, values, base in lines:
        named = zip(results.columns, levels, several, strict=True)
        on = ", ".join(f"{name} {level}" if is_number(level) else level for name, level, shown in named if shown)
        line = finding(values, base) if len(values) > 1 else None
        if line is None or (line.low != line.low and line.p != line.p):
            units = "seeds" if claim.over == "seed" else f"levels of {claim.over}"
            line = unmeasured(f"several {units} of it and of what it is compared with are needed", len(values))
        elif len(values) < FEWEST and line.verdict in (YES, NO):
            line = line._replace(verdict=NOT_SHOWN)
        yield on, line
    if not lines:
        yield "", unmeasured("no such rows")


def units(claim: Claim, n: int) -> str:
    """How many seeds, or levels of a factor, a number rests on."""
    return f"{n} {'seeds' if claim.over == 'seed' else f'{claim.over}s'}"


def _numbers(test: Difference) -> tuple[float, float, float, float]:
    """Value, ends of the interval and p-value as plain numbers."""
    value, low, high, p = map(float, test)
    return value, low, high, p


def side(low: float, high: float, expected: str) -> str:
    """The verdict on a number that should be higher or lower than 0, from its interval."""
    if expected not in _OPPOSITE:
        raise InputError(f"expected must be higher or lower, got {expected!r}.")
    actual = "higher" if low > 0 else "lower" if high < 0 else ""
    return YES if actual == expected else NO if actual else NOT_SHOWN


def _text(claim: Claim, results: Results, low: float, value: float, high: float, n: int) -> str:
    """A difference with its interval, of shares in points, and its n."""
    percent = results.study.measures[claim.measure].percent
    factor, style, unit = (100, "+.2f", " points") if percent else (1, "+.3g", "")
    return f"{interval(factor * value, factor * low, factor * high, style)}{unit}, {units(claim, n)}"


@JUDGES.register("difference", of="study")
def _difference(claim: Claim, results: Results) -> Iterator[tuple[str, Finding]]:
    """yes: the 95% interval of the difference, paired by seed, lies on the claimed side of 0; no: on the other side, or
    short of the effect that the paper reports; not shown: otherwise. Lines that are equal in every seed say nothing."""

    def finding(values: np.ndarray, base: np.ndarray) -> Finding:
        if np.array_equal(values, base):
            return unmeasured("equal in every seed", len(values))
        value, low, high, p = _numbers(paired_difference(values, base))
        verdict, n, p_effect = side(low, high, claim.expected), len(values), None
        if claim.effect is not None:
            _, below, above, p_effect = _numbers(paired_difference(values - base - claim.effect))
            short = side(below, above, _OPPOSITE[claim.expected]) == YES
            p_effect = p_effect if short else 1.0
            verdict = NO if short and verdict == NOT_SHOWN else verdict
        return Finding(verdict, _text(claim, results, low, value, high, n), n, value, low, high, p, p_effect)

    return over_lines(claim, results, finding)


@JUDGES.register("same", of="study")
def _same(claim: Claim, results: Results) -> Iterator[tuple[str, Finding]]:
    """yes: the 95% interval of the difference, paired by seed, lies within the bound on both sides of 0; no: outside;
    not shown: it contains an end."""
    bound = float(claim.expected.removeprefix("±"))

    def finding(values: np.ndarray, base: np.ndarray) -> Finding:
        value, low, high, _ = _numbers(paired_difference(values, base))
        n = len(values)
        if np.array_equal(values, base):  # there is nothing to test
            return Finding(YES, f"equal in every seed, {units(claim, n)}", n, value, low, high)
        p = max(float(paired_difference(values - base - end).p) for end in (-bound, bound))
        verdict = YES if -bound < low and high < bound else NO if low > bound or high < -bound else NOT_SHOWN
        return Finding(verdict, _text(claim, results, low, value, high, n), n, value, low, high, p)

    return over_lines(claim, results, finding)


@JUDGES.register("ratio", of="study")
def _ratio(claim: Claim, results: Results) -> Iterator[tuple[str, Finding]]:
    """yes: the 95% interval of the ratio (geometric mean, paired by seed) lies on the claimed side of the bound; no: on
    the other side; not shown: it contains the bound."""
    expected, bound = _bound(claim)

    def finding(values: np.ndarray, base: np.ndarray) -> Finding:
        if (np.r_[values, base] <= 0).any():
            raise InputError(f"a ratio needs numbers above 0; {claim.measure} has others.")
        mean, lower, upper, p = _numbers(paired_difference(np.log(values / base) - np.log(bound)))
        value, low, high = (float(bound * np.exp(end)) for end in (mean, lower, upper))
        measured = f"{interval(value, low, high, '.3g')} times, {units(claim, len(values))}"
        return Finding(side(lower, upper, expected), measured, len(values), value, low, high, p)

    return over_lines(claim, results, finding)


@JUDGES.register("level", of="study")
def _level(claim: Claim, results: Results) -> Iterator[tuple[str, Finding]]:
    """yes: the 95% interval of the mean lies on the claimed side of the bound; no: on the other side; not shown: it
    contains the bound. A number that is the same in every seed needs no interval."""
    expected, bound = _bound(claim)

    def finding(values: np.ndarray, base: np.ndarray) -> Finding:
        if len(set(values)) == 1 and values[0] != bound:
            value = float(values[0])
            verdict = side(value - bound, value - bound, expected)
            measured = f"{number_text(value, '.3g')} in each of {units(claim, len(values))}"
            return Finding(verdict, measured, len(values), value, value, value)
        mean, lower, upper, p = _numbers(paired_difference(values - base - bound))
        value, low, high = (end + bound for end in (mean, lower, upper))
        measured = f"{interval(value, low, high, '.3g')}, {units(claim, len(values))}"
        return Finding(side(lower, upper, expected), measured, len(values), value, low, high, p)

    return over_lines(claim._replace(against="nothing"), results, finding)


def _bound(claim: Claim) -> tuple[str, float]:
    """The claimed side of a bound, and the bound: "> 1.7" is higher than 1.7."""
    sign, _, number = claim.expected.partition(" ")
    sides = {">": "higher", "<": "lower"}
    if sign not in sides or not number:
        raise InputError(f"expected must be > NUMBER or < NUMBER, got {claim.expected!r}.")
    return sides[sign], float(number)
