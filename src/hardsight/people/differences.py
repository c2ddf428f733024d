"""Does one score agree with people better than another, on these samples and over networks?

Two scores are measured on the same samples, so what counts is how their difference varies, not how each one varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.correlation import COEFFICIENTS, fisher_z, meng, p_value, pearson, resampled, standard_error, steiger
from hardsight.dynamics.recorder import UNNAMED
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.people.candidates import FEWEST_OF_INTERVAL, Paired, Table
from hardsight.people.read import texts
from hardsight.printing import interval, signed
from hardsight.registry import check_choice, whole_number
from hardsight.runs.ids import places_among
from hardsight.stats import LEVEL, ROUNDING, holm, normal_difference, paired_difference

if TYPE_CHECKING:
    from hardsight.people.alignment import Alignment

Test = Literal["bootstrap", "jackknife", "steiger", "meng", "fisher"]

# What each test assumes, and how often it rejects a true null hypothesis if scores saturate and people tie.
TESTS: dict[str, str] = {
    "bootstrap": "paired bootstrap",
    "jackknife": "paired jackknife",
    "steiger": "Steiger's z, which assumes normal data: with saturated scores it rejects 25% of true nulls",
    "meng": "Meng's z, which assumes normal data: with saturated scores it rejects 25% of true nulls",
    "fisher": "Fisher's z, which assumes that the scores are of different samples: it rejects 0 to 10% of true nulls",
}


MOST_RESAMPLED = 1_000_000  # samples


class Difference(NamedTuple):
    """How much better the score `first` agrees with people than the score `second`.

    Attributes:
        difference: Agreement of the first minus that of the second; an agreement is a correlation times the sign that
            it should have.
        low: End of the 95% interval of the difference; None for closed forms, which have none.
        high: Its other end.
        p: p-value for no difference; if `sided` is 1, for the first not being better.
        statistic: The difference over its standard error, on the scale of the test.
        n: Samples that have both scores and human answers.
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
    sided: int = 2

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at 5%, with ten samples or more."""
        return self.p <= 1 - LEVEL and self.n >= FEWEST_OF_INTERVAL

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        first, second = printable(self.first), printable(self.second)
        better, worse = (first, second) if self.difference > 0 else (second, first)
        claim = f"no difference is shown between {first} and {second}"
        claim = f"{better} agrees with people better than {worse} does" if self.significant else claim
        value = interval(self.difference, self.low, self.high, "+.3f")
        return (
            f"{claim}: {value} in {self.coefficient.capitalize()}'s coefficient for {first}, {_p_text(self.p)}"
            f"{' (one-sided)' * (self.sided == 1)}, {self.n:,} samples ({TESTS.get(self.test, self.test)})."
        )


def _p_text(p: float | None) -> str:
    if p is None or np.isnan(p):
        return "no test, because nothing varies"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def compare_scores(
    table: Table,
    first: str,
    second: str,
    human: Any,
    *,
    coefficient: str = "spearman",
    test: Test | None = None,
    resamples: int = 2000,
    seed: int = 0,
    sided: Literal[1, 2] = 2,
) -> Difference:
    """Test whether one score agrees with people better than another does.

    Args:
        table: As for `align`.
        first: A score.
        second: Another score.
        human: As for `align`.
        coefficient: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        test: ``"bootstrap"`` (percentiles of paired resamples), ``"jackknife"`` (the influence of each sample),
            ``"steiger"`` and ``"meng"`` (Pearson only, for normal data), or ``"fisher"`` (the AVH paper's, as if the
            scores came from different samples). The last three serve to compare with published results. If not given,
            the bootstrap; above a million samples, where it takes hours and gives the same result, the jackknife.
        resamples: Resamples of the bootstrap; its p is never below 2 / (resamples + 1).
        seed: Random seed of the bootstrap.
        sided: 2, or 1 to ask only whether the first is better.

    Examples:
        >>> draw = np.random.default_rng(0)
        >>> ease = draw.normal(size=400)
        >>> near, far = ease + draw.normal(size=400), ease + 3 * draw.normal(size=400)
        >>> columns = {"id": [str(k) for k in range(400)], "avh": -near, "confidence": far}
        >>> people = dict(zip(columns["id"], np.clip(0.8 + 0.2 * ease, 0, 1)))
        >>> result = compare_scores(columns, "avh", "confidence", people, resamples=200)
        >>> round(result.difference, 1), result.p < 0.05
        (0.4, True)
    """
    return _tests(Paired.of(table, human), [first, second], coefficient, test, resamples, seed, sided)[0]


def compare_all(
    table: Table,
    against: str,
    human: Any,
    *,
    scores: Sequence[str] | None = None,
    coefficient: str = "spearman",
    test: Test | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> pa.Table:
    """Test one score against every other on the samples that have all of them, with Holm's correction.

    If `scores` is not given, these are all scores whose direction is known from their name, except constant ones. Other
    options are those of `compare_scores`. With m scores the smallest corrected p of the bootstrap is 2 m / (resamples +
    1).

    Returns:
        One row per score: the fields of `Difference`, with `against` as the first, and ``p_holm``.
    """
    paired = Paired.of(table, human)
    names = [name for name in scores or paired.names() if name != against]
    columns = ((name, paired.score(name)) for name in names)
    names = [name for name, values in columns if len(np.unique(values[np.isfinite(values)])) > 1]
    if not names:
        raise InputError(f"scores must name one that differs between samples beside {printable(against)}, got none.")
    tests = _tests(paired, [against, *names], coefficient, test, resamples, seed, 2)
    rows = pa.Table.from_pylist([row._asdict() for row in tests])
    return rows.append_column("p_holm", pa.array(holm(rows["p"].to_numpy())))


def _tests(
    paired: Paired, names: Sequence[str], coefficient: str, test: Test | None, resamples: int, seed: int, sided: int
) -> list[Difference]:
    """The first score against each of the others."""
    check_choice(coefficient, COEFFICIENTS, "coefficient")
    if test is not None:
        check_choice(test, TESTS, "test")
    whole_number("sided", sided, 1, 2)
    if test in ("steiger", "meng") and coefficient != "pearson":
        raise InputError(f"{test} is a test of Pearson's correlations; use bootstrap or jackknife for {coefficient}.")
    values, hsf = paired.in_common(names)
    n = len(hsf)
    test = test or ("bootstrap" if n <= MOST_RESAMPLED else "jackknife")
    first, *others = (COEFFICIENTS[coefficient](x, hsf) for x in values)
    drawn = np.empty((0, 0))
    if test == "bootstrap":
        whole_number("resamples", resamples, 100)
        drawn = resampled(values, hsf, (coefficient,), resamples, seed)[:, :, 0]
    tests = []
    for k, other in enumerate(others, 1):
        low = high = None
        difference = first.value - other.value
        if test == "bootstrap":
            low, high, p, statistic = _percentiles(drawn[:, 0] - drawn[:, k], difference, sided)
        elif test == "jackknife":
            error = standard_error(first.influence - other.influence)
            _, low, high, p = map(float, normal_difference(difference, error))
            statistic = _over(difference, error)
            p = p if sided == 2 else p_value(statistic, sided)
        else:
            statistic = fisher_z(first.value, other.value, n, n)
            if test != "fisher":
                between = pearson(values[0], values[k]).value
                statistic = (steiger if test == "steiger" else meng)(first.value, other.value, between, n)
            p = p_value(statistic, sided)
        tests.append(Difference(names[0], names[k], coefficient, test, difference, low, high, p, statistic, n, sided))
    return tests


def _percentiles(drawn: np.ndarray, difference: float, sided: int) -> tuple[float, float, float, float]:
    """Interval by percentiles of the resamples, and the p at which it would just reach 0."""
    drawn = np.where(np.abs(drawn) <= ROUNDING, 0.0, drawn)[np.isfinite(drawn)]
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)).tolist()
    # One more, for the observed sample: p is never 0.
    below, above = ((side.sum() + 1) / (len(drawn) + 1) for side in (drawn <= 0, drawn >= 0))
    p = below if sided == 1 else min(2 * min(below, above), 1.0)
    return low, high, float(p), _over(difference, float(drawn.std(ddof=1)))


def _over(difference: float, error: float) -> float:
    if abs(difference) <= ROUNDING:
        return 0.0
    return difference / error if error else np.nan


class OverNets(NamedTuple):
    """A number over networks: its mean, Student's 95% interval and the two-sided p for a mean of 0 (None if unknown).

    `above` counts the architectures (if there is only one, the seeds) with a number above 0.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    nets: int
    architectures: int
    above: int

    @property
    def sentence(self) -> str:
        """The result in a sentence."""
        units = self.architectures if self.architectures > 1 else self.nets
        if units < 2:
            return f"{signed(self.mean)} for one network, which says nothing about others."
        unit = f"{units} {'architectures' if self.architectures > 1 else 'seeds of one architecture'}"
        nets = f" ({self.nets} networks)" if self.nets > units else ""
        value = interval(self.mean, self.low, self.high, "+.3f")
        return f"{value} over {unit}{nets}, {_p_text(self.p)}; above 0 in {self.above} of {units}."


def over_nets(values: Sequence[float], architectures: Sequence[str] | None = None) -> OverNets:
    """A number per network, such as a difference of agreements, as a statement about networks.

    An interval over images says what other images would show about the same network. Whether other networks show it
    takes several networks to say. Seeds of one architecture are not independent networks: they are averaged first, and
    architectures are the units. If there is only one architecture, its seeds are the units, and the statement is about
    it alone.

    All values must be on the same samples. Without `architectures`, one for each value, they all differ.

    Examples:
        >>> result = over_nets([0.04, 0.06, 0.01, 0.03], ["vgg", "vgg", "resnet", "resnet"])
        >>> round(result.mean, 3), result.nets, result.architectures
        (0.035, 4, 2)
    """
    numbers = np.asarray(values, dtype=np.float64)
    names = list(range(len(numbers))) if architectures is None else list(architectures)
    if numbers.ndim != 1 or not len(numbers) or len(names) != len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"values must be finite numbers, one per network and architecture; got {values} and {names}.")
    kinds, kind = np.unique(names, return_inverse=True)
    units = np.bincount(kind, numbers) / np.bincount(kind) if len(kinds) > 1 else numbers
    test = paired_difference(units)
    low, high, p = (float(end) if np.isfinite(end) and len(units) > 1 else None for end in test[1:])
    return OverNets(float(units.mean()), low, high, p, len(numbers), len(kinds), int((units > 0).sum()))


def compare_runs(alignments: Mapping[Path, Alignment]) -> tuple[list[dict[str, Any]], list[str]]:
    """The tests that all runs share, over networks, not over these images alone: as rows, and as lines to print."""
    ids = {run: texts(result.people["id"]) for run, result in alignments.items()}
    first = next(iter(ids))
    same = {run: len(ids[run]) == len(ids[first]) and (places_among(ids[run], ids[first]) >= 0).all() for run in ids}
    if other := [run for run in ids if not same[run]]:
        names = f"those of {printable(other[0])} are not those of {printable(first)}"
        return [], [f"note: no test over networks: they must be compared on the same samples, and {names}."]
    # A recorder may not know the architecture: then each run counts as one of its own.
    names = {run: None if result.model == UNNAMED else result.model for run, result in alignments.items()}
    models = [name or str(run) for run, name in names.items()]
    differences = [{row[:3]: row.difference for row in result.differences} for result in alignments.values()]
    shared = [key for key in differences[0] if all(key in of_run for of_run in differences)]
    tests = {key: over_nets([of_run[key] for of_run in differences], models) for key in shared}
    lines = [f"over networks ({', '.join(map(printable, dict.fromkeys(models)))})"] if tests else []
    lines += [f"{a} ahead of {b}, {coefficient}: {test.sentence}" for (a, b, coefficient), test in tests.items()]
    if tests and (unnamed := sum(name is None for name in names.values())):
        lines.append(
            f"note: {unnamed} of {len(names)} runs do not name their architecture, and each counts as one of its own; "
            "if some differ only in the seed, intervals and p are too small."
        )
    return [dict(zip(Difference._fields, key, strict=False)) | test._asdict() for key, test in tests.items()], lines
