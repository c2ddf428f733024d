"""Read the folder of an evaluation: numbers per group, and the mean curves of groups on common grids."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow.parquet as pq

from hardsight.errors import InputError, MissingPathError
from hardsight.runs import damage_errors
from hardsight.untrusted import check_table, read_json

BINS = 15  # of the reliability diagram, as `hardsight.calibration` has them
POOLED = ("bins", "ranks")  # shapes of curves whose points are means of samples
_FILES = ("rows.parquet", "tests.parquet", "points.parquet", "words.json", "evaluation.json")


class Curve(NamedTuple):
    """A curve of one group: the mean of its runs, or one run.

    Attributes:
        x: Where.
        y: The values.
        low: The mean minus 1 sd over the runs; for a single run, the lower end of its interval, or NaN.
        high: The same above.
        runs: Number of runs.
        n: Samples per point of one run; 0 where unknown.
    """

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int
    n: np.ndarray


@dataclass(frozen=True)
class Evaluated:
    """The contents of an evaluation's folder; `hardsight.evaluate` describes its files."""

    path: Path
    rows: list[dict[str, Any]]
    tests: list[dict[str, Any]]
    points: list[dict[str, Any]]
    words: list[dict[str, str]]
    plan: dict[str, Any]

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The runs of each group; the first group is the baseline."""
        groups: dict[str, list[str]] = {}
        for row in self.rows:
            runs = groups.setdefault(row["group"], [])
            if row["run"] and row["run"] not in runs:  # an ensemble's numbers belong to no run
                runs.append(row["run"])
        return groups

    def curves(self, question: str, curve: str, shape: str = "line") -> dict[tuple[str, str], dict[str, Curve]]:
        """By score and data set, the curves of the groups.

        Args:
            question: One of the points' questions.
            curve: One of its curves.
            shape: How runs are averaged. ``line``: interpolated where their x differ. ``bars``: centers of bars of
                equal width and shares, which become densities, 0 outside. ``bins`` of confidence, and ``ranks``: points
                are means of n samples, and those of the same bin or rank are pooled.
        """
        panels: dict[tuple[str, str], dict[str, dict[str, list[dict[str, Any]]]]] = {}
        for point in self.points:
            if (point["question"], point["curve"]) == (question, curve):
                groups = panels.setdefault((point["score"], point["on"]), {})
                groups.setdefault(point["group"], {}).setdefault(point["run"], []).append(point)
        return {
            key: {
                name: _mean([_arrays(run, shape) for run in groups[name].values()], shape)
                for name in self.groups
                if name in groups
            }
            for key, groups in panels.items()
        }


class _Words(TypedDict, total=False):
    question: str
    run: str
    group: str
    words: str


class _Run(TypedDict, total=False):
    name: str
    group: str


class _Plan(TypedDict, total=False):
    runs: list[_Run]
    data: dict[str, Any]
    command: list[str]


def read_evaluated(out: str | Path) -> Evaluated:
    """Read a folder that `hardsight evaluate` wrote."""
    path = Path(out)
    missing = next((name for name in _FILES if not (path / name).is_file()), None)
    if missing is not None:
        raise MissingPathError(
            f"OUT: {path} has no {missing}; name a folder that hardsight evaluate has written, or let it finish."
        )
    with damage_errors(path):
        rows, tests, points = (check_table(pq.read_table(path / name)).to_pylist() for name in _FILES[:3])
    words = read_json(path / _FILES[3], list[_Words], "OUT")
    plan = read_json(path / _FILES[4], _Plan, "OUT")
    if not rows:
        raise InputError(f"OUT: {path} must hold at least one number, got none; evaluate a run first.")
    return Evaluated(path, rows, tests, points, words, plan)


def read_features(evaluated: Evaluated) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By group, the finite features ``(N, D)`` and labels of its first run; empty without the question clusters."""
    column, result = "clusters/features", {}
    numbers = {run["name"]: number for number, run in enumerate(evaluated.plan["runs"])}
    for group, runs in evaluated.groups.items():
        for file in evaluated.path.glob(f"samples/{numbers[runs[0]]:02d}-*.parquet") if runs else ():
            if column in pq.read_schema(file).names:
                table = pq.read_table(file, columns=[column, "label"])
                features = table[column].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
                finite = np.isfinite(features).all(1)
                result[group] = features[finite], table["label"].to_numpy()[finite]
    return result


def distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values in the order of their first appearance."""
    return list(dict.fromkeys(values))


def _mean(runs: list[dict[str, np.ndarray]], shape: str) -> Curve:
    """The mean over runs, with their standard deviation."""
    first = runs[0]
    if len(runs) == 1:
        return Curve(first["x"], first["y"], first["low"], first["high"], 1, first["n"])
    if shape in POOLED:
        return _pooled(runs, shape)
    x, outside = first["x"], 0.0 if shape == "bars" else math.nan
    if any(len(run["x"]) != len(x) or not np.allclose(run["x"], x) for run in runs[1:]):
        x = np.unique(np.concatenate([run["x"] for run in runs]))
        values = np.stack([np.interp(x, run["x"], run["y"], left=outside, right=outside) for run in runs])
        valid = np.isfinite(values).all(0)  # a mean of fewer runs would jump where a run ends
        x, values, n = x[valid], values[:, valid], np.zeros(valid.sum(), int)
    else:
        values, n = np.stack([run["y"] for run in runs]), first["n"]
    mean, sd = values.mean(0), values.std(0, ddof=1)
    return Curve(x, mean, mean - sd, mean + sd, len(runs), n)


def _pooled(runs: list[dict[str, np.ndarray]], shape: str) -> Curve:
    """Means over all samples of a bin, with the standard deviation over the runs that have some."""
    x, y, n = (np.concatenate([run[name] for run in runs]) for name in ("x", "y", "n"))
    ranks = np.concatenate([np.arange(len(run["x"])) for run in runs])
    bins = np.ceil(x * BINS - 1e-9).clip(1) if shape == "bins" else ranks  # closed on the right
    points = []
    for at in (bins == k for k in np.unique(bins)):
        mean, sd = np.average(y[at], weights=n[at]), y[at].std(ddof=1) if at.sum() > 1 else math.nan
        points.append((np.average(x[at], weights=n[at]), mean, mean - sd, mean + sd, n[at].sum()))
    center, middle, low, high, count = (np.array(column) for column in zip(*points, strict=True))
    return Curve(center, middle, low, high, len(runs), count)


def _arrays(points: list[dict[str, Any]], shape: str) -> dict[str, np.ndarray]:
    columns = {name: np.array([point[name] for point in points], float) for name in ("x", "y", "low", "high", "n")}
    order = np.argsort(columns["x"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    if shape == "bars" and len(order) > 1:
        columns["y"] /= columns["x"][1] - columns["x"][0] or 1.0
        columns["n"][:] = 0
    return columns | {"n": columns["n"].astype(int)}
