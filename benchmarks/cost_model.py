"""What scoring costs as a formula: rows of the CSV as numbers, constants fitted to them, and predictions.

``seconds = call + N·(sample + width·D + class·C + product·D·C) + weight·D·C``, all constants at least 0, fitted to
relative errors, so that microseconds count as much as minutes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

FEWEST = 64  # classes; with fewer, everything is float64
TERMS = {
    "call": lambda n, d, c: 1.0,
    "sample": lambda n, d, c: n,
    "width": lambda n, d, c: n * d,
    "class": lambda n, d, c: n * c,
    "product": lambda n, d, c: n * d * c,
    "weight": lambda n, d, c: d * c,
}


@dataclass(frozen=True)
class CostModel:
    """Seconds per unit of each of `TERMS`, and how well they fit.

    Attributes:
        constants: Seconds, by name of the term.
        rows: Number of rows that it was fitted to.
        typical: Median of the relative errors on them.
        largest: Largest of them.
    """

    constants: dict[str, float]
    rows: int
    typical: float
    largest: float

    def seconds(self, n: float, d: float, c: float) -> float:
        """What it predicts for ``(N, D)`` features and C classes."""
        return sum(self.constants[name] * term(n, d, c) for name, term in TERMS.items())


def fit(shapes: Sequence[tuple[float, float, float]], seconds: Sequence[float]) -> CostModel:
    """The constants with the smallest squared relative errors."""
    work = np.array([[term(*shape) for term in TERMS.values()] for shape in shapes], float)
    relative = work / np.asarray(seconds)[:, None]
    scale = relative.max(0)
    constants = nnls(relative / scale, np.ones(len(shapes)))[0] / scale
    errors = np.abs(relative @ constants - 1).tolist()
    named = dict(zip(TERMS, constants.tolist(), strict=True))
    return CostModel(named, len(shapes), statistics.median(errors), max(errors))


def latest(rows: Iterable[dict]) -> list[dict]:
    """The last row of each case that is still measured: on the last day that its benchmark ran on this hardware."""
    rows = list(rows)
    last = {(r["benchmark"], r["hardware"]): r["date"] for r in rows}
    keys = ("benchmark", "case", "config", "baseline", "hardware")
    current = [r for r in rows if r["date"] == last[r["benchmark"], r["hardware"]]]
    return list({tuple(r[key] for key in keys): r for r in current}.values())


def precision(dtype: str) -> str:
    """``bf16`` of ``bfloat16``."""
    return dtype.replace("bfloat", "bf").replace("float", "fp")


def settings(config: str) -> dict[str, str]:
    """``N=3 dtype=float32`` as a dictionary."""
    return dict(word.split("=", 1) for word in config.split() if "=" in word)


def shape(r: dict) -> tuple[int, int, int]:
    values = settings(r["config"])
    return int(values["N"]), int(values["D"]), int(values["C"])


def groups(rows: list[dict], benchmark: str = "sweep") -> dict[tuple[str, str], list[dict]]:
    """Rows of all scores by hardware and precision."""
    chosen = [r for r in rows if r["benchmark"] == benchmark and r["case"] == "all scores"]
    keys = dict.fromkeys((r["hardware"], settings(r["config"])["dtype"]) for r in chosen)
    return {key: [r for r in chosen if (r["hardware"], settings(r["config"])["dtype"]) == key] for key in keys}


def fitted(rows: list[dict]) -> dict[tuple[str, str], CostModel]:
    """The cost model of each hardware that was swept; below `FEWEST` classes other code works."""
    models = {}
    for key, chosen in groups(rows).items():
        many = [r for r in chosen if shape(r)[2] >= FEWEST]
        models[key] = fit([shape(r) for r in many], [float(r["p50"]) for r in many])
    return models


def base(rows: list[dict]) -> tuple[int, ...]:
    """The shape that a sweep goes through: the most frequent value of each number."""
    columns = zip(*(shape(r) for r in rows), strict=True)
    return tuple(max(sorted(set(values)), key=list(values).count) for values in map(list, columns))


def loading(rows: list[dict]) -> dict[str, list[tuple[int, float]]]:
    """Workers and images per second, by hardware."""
    chosen = [r for r in rows if r["benchmark"] == "images"]
    points = {place: [] for place in dict.fromkeys(r["hardware"] for r in chosen)}
    for r in chosen:
        points[r["hardware"]].append((int(settings(r["config"])["workers"]), float(r["p50"])))
    return {place: sorted(values) for place, values in points.items()}
