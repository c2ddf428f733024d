"""The answer to a question about a network: rows of numbers, curves, columns by sample, and notes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np


class Row(TypedDict):
    """One number: a metric of one score on one set at one level, with its interval over samples."""

    question: str  # ood, calibration, uncertainty, margins, robustness, explanation, clusters
    metric: str  # auroc, ece, …
    score: str  # msp, avc, pgd, …; "" where there is only one
    on: str  # the OOD data set, where there is one; "" else
    level: float  # strength (ε, …); NaN where there is none
    value: float
    low: float  # 95 % interval over samples; NaN where there is none
    high: float
    n: int  # samples
    better: str  # "higher", "lower", or "" where neither is


class Point(TypedDict):
    """One point of a curve, or one bar of a histogram."""

    question: str
    curve: str  # reliability, attack, energy, margin, …
    score: str
    on: str
    x: float
    y: float
    low: float
    high: float
    n: int


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
    """What one question says about one network.

    Attributes:
        rows: The numbers.
        points: The curves.
        samples: Columns by sample, in the order of the predictions: two networks are compared on them, in pairs. A
            column whose mean is a row's value has the name ``metric``, ``metric:score`` or ``metric:score@level``; a
            score itself is ``score:name``.
        notes: What must be known to read the numbers.
        ood_samples: Columns by sample of the OOD data, ``id`` among them, named as those of `samples`.
    """

    rows: list[Row] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    samples: dict[str, np.ndarray] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    ood_samples: dict[str, np.ndarray] = field(default_factory=dict)

    def note(self, kind: str, text: str) -> None:
        """Add a note."""
        self.notes.append(Note(kind, text))


def row(
    question: str,
    metric: str,
    value: float,
    *,
    score: str = "",
    on: str = "",
    level: float = math.nan,
    low: float = math.nan,
    high: float = math.nan,
    n: int,
    better: str = "",
) -> Row:
    """A row with what does not apply left out."""
    return Row(
        question=question, metric=metric, score=score, on=on, level=float(level), value=float(value),
        low=float(low), high=float(high), n=int(n), better=better,
    )  # fmt: skip


def point(
    question: str,
    curve: str,
    x: float,
    y: float,
    *,
    score: str = "",
    on: str = "",
    low: float = math.nan,
    high: float = math.nan,
    n: int = 0,
) -> Point:
    """A point with what does not apply left out."""
    return Point(
        question=question, curve=curve, score=score, on=on, x=float(x), y=float(y), low=float(low), high=float(high),
        n=int(n),
    )  # fmt: skip
