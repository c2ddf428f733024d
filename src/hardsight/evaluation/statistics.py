"""Groups of runs compared number by number: which test fits, what it says, and Holm's correction over a question.

- Groups of two or more runs with the same seeds: Student's t on the differences, seed by seed.
- Other groups of two or more runs: Welch's t over all runs, as if they were independent. If they share some seeds and
  seeds matter, it loses power but does not claim more.
- One run each: over the same samples. McNemar's exact test for means of what is 0 or 1, Student's t on the differences
  for other means, and DeLong's paired test for areas under ROC curves. Such a test says that these two networks differ,
  and nothing about other seeds.
- Anything else has no test, and ``reason`` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hardsight.stats import LEVEL, Difference, auroc_difference, holm, mcnemar, paired_difference, welch_difference

# The columns that identify a number within a run.
KEY = ("question", "metric", "score", "on", "level")
# A corrected p below it counts as a difference.
ALPHA = 1 - LEVEL

# Ids and values of samples.
Column = tuple[Sequence[str] | np.ndarray, np.ndarray]
Columns = Callable[[Mapping[str, Any]], "Sequence[Column] | None"]


def compare_groups(rows: Sequence[Mapping[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    """Every number of every group against the same number of the first group.

    Args:
        rows: Numbers of runs: ``run, group, seed`` and what `hardsight.questions.Row` has. A NaN is left out.
        columns: For a mean, its samples; for an AUROC, the scores of the samples that should rank above, and of the
            others; None for any other number.

    Returns:
        One row per number and group: mean, standard deviation and number of runs of both; their difference with its
        95% interval and p-value; ``p_holm``, corrected over all tests of the question, NaN where neither side is
        better; ``test``, or the ``reason`` why there is none; and ``how``, with the numbers of seeds, runs or samples.

    Examples:
        >>> def row(group, seed, value):
        ...     number = {"question": "ood", "metric": "auroc", "score": "msp", "on": "", "level": math.nan}
        ...     run = {"run": f"{group}-{seed}", "group": group, "seed": seed, "better": "higher"}
        ...     return number | run | {"value": value}
        >>> a, b = [0.95, 0.96, 0.94], [0.98, 0.97, 0.98]
        >>> rows = [row(g, seed, v) for g, values in (("ce", a), ("el", b)) for seed, v in enumerate(values)]
        >>> [test] = compare_groups(rows, lambda row: None)
        >>> round(test["difference"], 4), round(test["p"], 3), test["how"]
        (0.0267, 0.094, 'paired t over 3 seeds')
    """
    groups = list(dict.fromkeys(row["group"] for row in rows))
    numbers = by_number(row for row in rows if math.isfinite(row["value"]))
    tests = [
        _test(number[group], number[groups[0]], columns)
        for group in groups[1:]
        for number in numbers.values()
        if group in number and groups[0] in number
    ]
    for question in dict.fromkeys(test["question"] for test in tests):
        family = [test for test in tests if test["question"] == question and test["better"]]
        for test, p in zip(family, holm(np.array([test["p"] for test in family])), strict=True):
            test["p_holm"] = float(p)
    return tests


def by_number(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]]:
    """The rows of each number by group."""
    numbers: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        numbers.setdefault(key_of(row), {}).setdefault(row["group"], []).append(row)
    return numbers


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a number; a missing level is None in it, because NaN is not equal to itself."""
    return tuple(None if isinstance(row[name], float) and math.isnan(row[name]) else row[name] for name in KEY)


def flag_of(test: Mapping[str, Any] | None) -> str:
    """``better`` or ``worse`` than the first group after correction; empty where neither is shown."""
    if test is None or not test["better"] or not test["p_holm"] < ALPHA:  # NaN is no test
        return ""
    return "better" if (test["difference"] > 0) == (test["better"] == "higher") else "worse"


class _Outcome(NamedTuple):
    """The test of a difference over a number of units (seeds, runs, samples), or the reason why there is none."""

    test: str
    difference: Difference | None = None
    sizes: tuple[int, ...] = ()
    unit: str = "samples"


def _test(rows: list[Mapping[str, Any]], base: list[Mapping[str, Any]], columns: Columns) -> dict[str, Any]:
    a, b = (np.array([row["value"] for row in side]) for side in (rows, base))
    test, difference, sizes, unit = _outcome(rows, base, a, b, columns)
    difference = difference or (a.mean() - b.mean(), *[math.nan] * 3)
    values = dict(zip(("difference", "low", "high", "p"), map(float, difference), strict=True))
    reason = test if not sizes else "" if math.isfinite(values["p"]) else "without any spread"
    over = " and ".join(f"{size:,}" for size in sizes)
    return {
        **{name: rows[0][name] for name in (*KEY, "better", "group")},
        "baseline": base[0]["group"],
        **_summary(a),
        **{f"baseline_{name}": value for name, value in _summary(b).items()},
        **values,
        "p_holm": math.nan,
        "test": "" if reason else f"{test} over {unit}",
        "reason": reason,
        "how": f"no test: {reason}" if reason else f"{test} over {over} {unit}",
    }


def _summary(values: np.ndarray) -> dict[str, Any]:
    sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    return {"mean": float(values.mean()), "sd": sd, "n": len(values)}


def _outcome(rows: list[Any], base: list[Any], a: np.ndarray, b: np.ndarray, columns: Columns) -> _Outcome:
    seeds, base_seeds = ([row["seed"] for row in side] for side in (rows, base))
    if len(a) == len(b) == 1:
        return _over_samples(columns(rows[0]), columns(base[0]))
    if min(len(a), len(b)) == 1:
        return _Outcome("one of the groups has one run only")
    if None not in seeds and len(set(seeds)) == len(a) == len(b) and set(seeds) == set(base_seeds):
        difference = paired_difference(a[np.argsort(seeds)], b[np.argsort(base_seeds)])
        return _Outcome("paired t", difference, (len(a),), "seeds")
    return _Outcome("Welch's t", welch_difference(a, b), (len(a), len(b)), "runs")


def _over_samples(columns: Sequence[Column] | None, base: Sequence[Column] | None) -> _Outcome:
    """One run each: a test over the samples that both have, where the number is their mean or an AUROC."""
    if columns is None or base is None:
        return _Outcome("one run each, and no mean over samples")
    (a, b), *below = (_matched(x, y) for x, y in zip(columns, base, strict=True))
    sizes = (len(a), *(len(x) for x, _ in below))
    if min(sizes) < 2:
        return _Outcome("fewer than two samples in common")
    if below:
        return _Outcome("paired DeLong", auroc_difference((a, b), below[0]), sizes)
    if np.isin([a, b], (0, 1)).all():
        return _Outcome("McNemar's exact test", mcnemar(int((a > b).sum()), int((a < b).sum()), len(a)), sizes)
    return _Outcome("paired t", paired_difference(a, b), sizes)


def _matched(column: Column, base: Column) -> tuple[np.ndarray, np.ndarray]:
    """The finite values of both networks for the samples that both have."""
    (ids, a), (base_ids, b) = column, base
    if list(ids) != list(base_ids):  # one of them could not read an image
        _, rows, base_rows = np.intersect1d(np.asarray(ids), np.asarray(base_ids), return_indices=True)
        a, b = a[rows], b[base_rows]
    finite = np.isfinite(a) & np.isfinite(b)
    return a[finite].astype(np.float64), b[finite].astype(np.float64)
