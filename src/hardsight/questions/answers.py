"""The answer to a question about a network: rows of numbers, curves, columns per sample, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hardsight.stats import moments, share_interval

Row = dict[str, Any]  # as `row` builds it
Point = dict[str, Any]  # as `point` builds it


@dataclass(frozen=True)
class Note:
    """A sentence that goes with the numbers.

    Attributes:
        kind: What it is about. Notes of one kind from several runs differ in numbers alone, and are shown once.
        text: The sentence.
        level: ``warn`` for what must not be overlooked, else ``info``.
        question: The question it belongs to; empty if to none.
        run: The run it is about; empty if about all runs.
        group: The group of that run.
    """

    kind: str = ""
    text: str = ""
    level: str = "info"
    question: str = ""
    run: str = ""
    group: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer to one question about one network.

    Attributes:
        rows: The numbers.
        points: The curves.
        samples: Columns per sample, in the order of the predictions, on which two networks are compared in pairs. A
            column is named after the row whose value is its mean (``metric``, ``metric:score`` or
            ``metric:score@level``); the scores of a detector are ``score:name``.
        notes: What a reader must know to interpret the numbers.
        ood_samples: Columns per sample of the OOD data, ``id`` among them, named like those of `samples`.
        question: Which question it answers; the methods need it.
    """

    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    ood_samples: dict[str, np.ndarray] = field(default_factory=dict)
    question: str = ""

    def note(self, kind: str, text: str, level: str = "info") -> None:
        """Add a note."""
        self.notes.append(Note(kind, text, level))

    def number(self, metric: str, value: float, **of: Any) -> None:
        """Add a row; keywords as for `row`."""
        self.rows.append(row(self.question, metric, value, **of))

    def mean(
        self, metric: str, values: np.ndarray, *, score: str = "", level: float = math.nan, better: str = "",
        rows: np.ndarray | None = None, count: int = 0,
    ) -> None:  # fmt: skip
        """Add a column per sample and the row that is its mean, with Wilson's interval for booleans, else Student's.

        NaN are left out. If only some samples were evaluated, `rows` are their rows, out of `count`.
        """
        self.number(metric, **mean_of(values), score=score, level=level, better=better)
        column = values.astype(np.float64) if values.dtype == bool else values
        if rows is not None:
            column = np.full((count, *values.shape[1:]), np.nan, column.dtype)
            column[rows] = values
        name = f"{metric}:{score}" if score else metric
        self.samples[name if math.isnan(level) else f"{name}@{level:g}"] = column

    def curve(self, curve: str, x: np.ndarray, y: np.ndarray, **of: Any) -> None:
        """Add the points of a curve; keywords as for `point`, arrays (``low``, ``high``, ``n``) one value per point."""
        arrays = {name: values for name, values in of.items() if isinstance(values, np.ndarray)}
        for at, value, *ends in zip(x, y, *arrays.values(), strict=True):
            self.points.append(point(self.question, curve, at, value, **of | dict(zip(arrays, ends, strict=True))))

    def histogram(self, curve: str, values: np.ndarray, bins: int | np.ndarray, **of: Any) -> None:
        """Add the share of the values in each bar, at its center."""
        counts, edges = np.histogram(values, bins)
        self.curve(curve, (edges[1:] + edges[:-1]) / 2, counts / len(values), n=counts, **of)

    def mean_curve(self, curve: str, x: Iterable[float], samples: Iterable[np.ndarray], **of: Any) -> None:
        """Add a curve of means over samples, an array per point, with their intervals; keywords as for `point`."""
        for at, values in zip(x, samples, strict=True):
            mean = mean_of(values)
            self.points.append(point(self.question, curve, at, mean.pop("value"), **mean, **of))


def mean_of(values: np.ndarray) -> dict[str, Any]:
    """The ``value``, ``low`` and ``high`` of a mean with its 95% interval, and ``n``; NaN are left out."""
    if values.dtype == bool:
        low, high = share_interval(values.sum(), len(values))
        return {"value": float(values.mean()), "low": low, "high": high, "n": len(values)}
    of = moments(values.astype(np.float64), np.zeros(len(values), np.int64), 1)
    (low,), (high,) = of.interval()
    return {"value": of.mean[0], "low": low, "high": high, "n": int(of.n[0])}


def row(
    question: str,  # ood, calibration, …
    metric: str,  # auroc, ece, …
    value: float,
    *,
    score: str = "",  # msp, avc, pgd, …; "" where there is only one
    on: str = "",  # the OOD data set
    level: float = math.nan,  # strength (ε, …)
    low: float = math.nan,  # 95% interval over samples
    high: float = math.nan,
    n: int,  # samples
    better: str = "",  # "higher", "lower", or "" if neither is
) -> Row:
    """One number: a metric of one score on one set at one level, with its interval over samples."""
    texts = {"question": question, "metric": metric, "score": score, "on": on, "better": better}
    return texts | {"level": float(level), "value": float(value), "low": float(low), "high": float(high), "n": int(n)}


def point(
    question: str,
    curve: str,  # reliability, attack, energy, margin, …
    x: float,
    y: float,
    *,
    score: str = "",
    on: str = "",
    low: float = math.nan,
    high: float = math.nan,
    n: int = 0,
) -> Point:
    """One point of a curve, or one bar of a histogram."""
    texts = {"question": question, "curve": curve, "score": score, "on": on}
    return texts | {"x": float(x), "y": float(y), "low": float(low), "high": float(high), "n": int(n)}
