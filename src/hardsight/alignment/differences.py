"""Does one score agree with people better than another?

Both are measured on the same samples, so what counts is how their difference varies, not how each of them does. The
paired bootstrap and the jackknife take the samples as they are, with ties and saturated scores; the closed forms of
`closed_forms` are there to compare with what others report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.alignment import closed_forms
from hardsight.alignment.closed_forms import in_words
from hardsight.alignment.coefficients import (
    FEWEST_OF_INTERVAL,
    beside_people,
    check_choice,
    column,
    known_scores,
    together,
)
from hardsight.alignment.resampling import resampled as resampled
from hardsight.correlation import COEFFICIENTS, standard_error
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.stats import LEVEL, ROUNDING, holm, normal_difference
from hardsight.table import SampleTable

# How each test is called, and what it does where scores are saturated and people tie (benchmarks/error_rates.py).
TESTS = {
    "bootstrap": "paired bootstrap",
    "jackknife": "paired jackknife",
    "steiger": "Steiger's z, which takes the data to be normal: with saturated scores it rejects 25 % of true nulls",
    "meng": "Meng's z, which takes the data to be normal: with saturated scores it rejects 25 % of true nulls",
    "fisher": "Fisher's z, which takes the scores to be of different samples: it rejects 0 to 10 % of true nulls",
}


class Difference(NamedTuple):
    """How much better one score agrees with people than another.

    Attributes:
        first: A score.
        second: The other one.
        coefficient: What agreement is measured by.
        test: How they are compared.
        difference: Agreement of the first minus that of the second; an agreement is a correlation times the sign that
            it should have.
        low: End of the 95 % interval of the difference; None for closed forms, which have none.
        high: Its other end.
        p: Of there being no difference; one-sided: of the first not being better.
        statistic: The difference over its standard error, on the scale of the test.
        n: Samples that have both scores and human answers.
        words: All that in a sentence.
    """

    first: str
    second: str
    coefficient: str
    test: str
    difference: float
    low: float | None
    high: float | None
    p: float
    statistic: float
    n: int
    words: str


def compare_scores(
    table: SampleTable | Mapping[str, Any] | str | Path,
    first: str,
    second: str,
    human: Any,
    *,
    coefficient: str = "spearman",
    test: Literal["bootstrap", "jackknife", "steiger", "meng", "fisher"] = "bootstrap",
    resamples: int = 2000,
    seed: int = 0,
    sided: Literal[1, 2] = 2,
) -> Difference:
    """Test whether one score agrees with people better than another does.

    Args:
        table: As for `align`.
        first: A score.
        second: The other one.
        human: What people said, as for `align`.
        coefficient: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        test: ``"bootstrap"`` (percentiles of paired resamples), ``"jackknife"`` (the influence of each sample),
            ``"steiger"`` and ``"meng"`` (Pearson only, for normal data), or ``"fisher"`` (the AVH paper's, as if the
            scores came from different samples). See `TESTS` for what to expect of them.
        resamples: Of the bootstrap; its p is never below 2 / (resamples + 1).
        seed: Of the bootstrap.
        sided: 2, or 1 to ask only whether the first is better.

    Examples:
        >>> draw = np.random.default_rng(0)
        >>> ease = draw.normal(size=400)
        >>> near, far = ease + draw.normal(size=400), ease + 3 * draw.normal(size=400)
        >>> columns = {"id": [str(k) for k in range(400)], "avh": -near, "confidence": far}
        >>> people = dict(zip(columns["id"], np.clip(0.8 + 0.2 * ease, 0, 1)))
        >>> found = compare_scores(columns, "avh", "confidence", people, resamples=200)
        >>> round(found.difference, 1), found.p < 0.05
        (0.4, True)
    """
    values, frequency = together(table, [first, second], human)
    return _tested([first, second], values, frequency, coefficient, test, resamples, seed, sided)[0]


def compare_all(
    table: SampleTable | Mapping[str, Any] | str | Path,
    against: str,
    human: Any,
    *,
    scores: Sequence[str] | None = None,
    coefficient: str = "spearman",
    test: Literal["bootstrap", "jackknife", "steiger", "meng", "fisher"] = "bootstrap",
    resamples: int = 2000,
    seed: int = 0,
) -> pa.Table:
    """Test one score against every other on the samples that have all of them, with Holm's correction.

    Args:
        table: As for `align`.
        against: The one score.
        human: What people said, as for `align`.
        scores: The others; all whose direction is known from their name if None. Constant ones are left out.
        coefficient: As for `compare_scores`.
        test: As for `compare_scores`; always two-sided.
        resamples: Of the bootstrap; with m scores its smallest corrected p is 2 m / (resamples + 1).
        seed: Of the bootstrap.

    Returns:
        One row per score: the fields of `Difference`, `against` being the first, and ``p_holm``.
    """
    table, _ = beside_people(table, human)
    others = [name for name in (known_scores(table) if scores is None else scores) if name != against]
    names = [against, *(name for name in others if _varies(column(table, name)))]
    if len(names) < 2:
        raise InputError(f"scores must name one that differs between samples beside {printable(against)}, got none.")
    values, frequency = together(table, names, human)
    found = _tested(names, values, frequency, coefficient, test, resamples, seed, 2)
    rows = pa.Table.from_pylist([row._asdict() for row in found])
    return rows.append_column("p_holm", pa.array(holm(rows["p"].to_numpy())))


def _tested(
    names: Sequence[str],
    values: np.ndarray,
    frequency: np.ndarray,
    coefficient: str,
    test: str,
    resamples: int,
    seed: int,
    sided: int,
) -> list[Difference]:
    """The first score against each of the others."""
    check_choice("coefficient", coefficient, tuple(COEFFICIENTS))
    check_choice("test", test, tuple(TESTS))
    if sided not in (1, 2):
        raise InputError(f"sided must be 1 or 2, got {sided!r}.")
    if test in ("steiger", "meng") and coefficient != "pearson":
        raise InputError(f"{test} is a test of Pearson's correlations; use bootstrap or jackknife for {coefficient}.")
    if test == "bootstrap" and resamples < 100:
        raise InputError(f"resamples must be 100 or more for an interval, got {resamples}.")
    function, n = COEFFICIENTS[coefficient], len(frequency)
    own, *others = (function(x, frequency) for x in values)
    drawn = resampled(values, frequency, (coefficient,), resamples, seed)[:, :, 0] if test == "bootstrap" else None
    found = []
    for k, other in enumerate(others, 1):
        difference = own.value - other.value
        if drawn is not None:
            low, high, p, statistic = _percentiles(drawn[:, 0] - drawn[:, k], difference, sided)
        elif test == "jackknife":
            low, high, p, statistic = _normal(difference, standard_error(own.influence - other.influence), sided)
        else:
            low = high = None
            statistic = _closed_form(test, own.value, other.value, function(values[0], values[k]).value, n)
            p = closed_forms.p_value(statistic, sided)
        row = Difference(names[0], names[k], coefficient, test, difference, low, high, p, statistic, n, "")
        found.append(row._replace(words=_words(row, sided)))
    return found


def _varies(values: np.ndarray) -> bool:
    return len(np.unique(values[np.isfinite(values)])) > 1


def _percentiles(drawn: np.ndarray, difference: float, sided: int) -> tuple[float, float, float, float]:
    """Interval by percentiles of the resamples, and the p at which it would just reach 0."""
    drawn = np.where(np.abs(drawn) <= ROUNDING, 0.0, drawn)[np.isfinite(drawn)]
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    # One resample more, for the observed one: none of so many is not never.
    below, above = ((side.sum() + 1) / (len(drawn) + 1) for side in (drawn <= 0, drawn >= 0))
    p = below if sided == 1 else min(2 * min(below, above), 1.0)
    return low, high, float(p), _over(difference, float(drawn.std(ddof=1)))


def _normal(difference: float, error: float, sided: int) -> tuple[float, float, float, float]:
    test, statistic = normal_difference(difference, error), _over(difference, error)
    p = float(test.p) if sided == 2 else closed_forms.p_value(statistic, sided)
    return float(test.low), float(test.high), p, statistic


def _over(difference: float, error: float) -> float:
    if abs(difference) <= ROUNDING:
        return 0.0
    return difference / error if error else np.nan


def _closed_form(test: str, first: float, second: float, between: float, n: int) -> float:
    if test == "fisher":
        return closed_forms.fisher_z(first, second, n, n)
    return getattr(closed_forms, test)(first, second, between, n)


def _words(found: Difference, sided: int) -> str:
    first, second = printable(found.first), printable(found.second)
    better, worse = (first, second) if found.difference > 0 else (second, first)
    claim = f"no difference is shown between {first} and {second}"
    if found.p <= 1 - LEVEL and found.n >= FEWEST_OF_INTERVAL:
        claim = f"{better} agrees with people better than {worse} does"
    ends = "" if found.low is None else f", 95 % interval {found.low:+.3f} to {found.high:+.3f}"
    return (
        f"{claim}: {found.difference:+.3f} in {found.coefficient.capitalize()}'s coefficient for {first}{ends}, "
        f"{in_words(found.p)}{' (one-sided)' if sided == 1 else ''}, {found.n:,} samples ({TESTS[found.test]})."
    )
