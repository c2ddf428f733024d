"""Are the statistics right? Simulations with a known truth: error rates of tests, and coverage of 95% intervals.

A cell simulates a block of samples that its seed determines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import expit

from hardsight.correlation import (
    COEFFICIENTS,
    fisher_z,
    meng,
    p_value,
    pearson,
    resampled,
    spearman,
    standard_error,
    steiger,
)
from hardsight.phases.plateaus import plateau, settles
from hardsight.stats import fpr_at_95_tpr, mcnemar
from hardsight.studies.declared.avh_measures import dip_and_bounce
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

PEOPLE = 51


@STUDIES.register(
    "error-rates",
    question="How often do tests of two correlations reject a null hypothesis that is true, at a nominal 5%?",
    paper="AVH, Tables 2 and 6 to 9 (their test)",
    factors={"setting": ("saturated, tied", "normal"), "samples": ("200", "2000", "10000")},
    details=("coefficient", "test"),
    measures={"rejected": Measure("Rejected", True)},
    scales={
        "smoke": Scale(1, 3, settings={"runs": 20, "bootstraps": 2}, levels={"samples": ("200",)}),
        "paper": Scale(10, 60, settings={"runs": 200, "bootstraps": 40}),
    },
)
def _error_rates(cell: Cell) -> list[dict[str, Any]]:
    """Two exchangeable scores have equal correlations with human frequency, whatever the coefficient.

    "saturated, tied" is like CIFAR-10H: half of the scores are within 0.001 of 1, and human frequencies are shares of
    51 people, of which 45% tie at 1. Steiger's, Meng's and Fisher's tests are for Pearson's coefficient; their rows for
    the others show what happens if they are used there anyway.
    """
    runs, n = cell.settings["runs"], int(cell.levels["samples"])
    rejected: dict[tuple[str, str], list[bool]] = {}
    for k in range(runs):
        seed = cell.seed * runs + k
        sample = _exchangeable(cell.levels["setting"], n, seed)
        for key, value in _rejections(*sample, seed if k < cell.settings["bootstraps"] else None).items():
            rejected.setdefault(key, []).append(value)
    return [
        {"coefficient": name, "test": test, "rejected": float(np.mean(values)), "runs": len(values)}
        for (name, test), values in rejected.items()
    ]


def _exchangeable(setting: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two exchangeable scores ``(2, n)`` and human frequency ``(n,)``."""
    draw = np.random.default_rng([seed, n])
    ease, shared, separate = draw.normal(size=n), draw.normal(size=n), draw.normal(size=(2, n))
    scores = 0.5 * ease + 0.7 * shared + 0.5 * separate
    if setting == "normal":
        return scores, ease + draw.normal(size=n)
    human = draw.binomial(PEOPLE, expit(4.15 + 1.9 * ease)) / PEOPLE
    return expit(7 + 4 * scores).astype(np.float32).astype(np.float64), human


def _rejections(scores: np.ndarray, human: np.ndarray, seed: int | None) -> dict[tuple[str, str], bool]:
    """Which tests find a difference, by coefficient and test; the bootstrap only with a seed."""
    n, rejected = len(human), {}
    for name, function in COEFFICIENTS.items():
        first, second = (function(score, human) for score in scores)
        between, error = function(*scores).value, standard_error(first.influence - second.influence)
        tests = {
            "jackknife": (first.value - second.value) / error,
            "steiger": steiger(first.value, second.value, between, n),
            "meng": meng(first.value, second.value, between, n),
            "fisher": fisher_z(first.value, second.value, n, n),
        }
        rejected |= {(name, test): bool(p_value(z) < 0.05) for test, z in tests.items()}
    if seed is not None:
        samples = resampled(scores, human, tuple(COEFFICIENTS), 500, seed)
        low, high = np.nanquantile(samples[:, 0] - samples[:, 1], (0.025, 0.975), axis=0)
        rejected |= {(name, "bootstrap"): bool(low[k] > 0 or high[k] < 0) for k, name in enumerate(COEFFICIENTS)}
    return rejected


@STUDIES.register(
    "coverage",
    question="How often do 95% intervals contain the truth?",
    paper="",
    factors={"interval": ("correlation", "fpr95", "share", "curve")},
    details=("of", "design", "setting", "epochs", "rho", "jump", "heavy", "samples"),
    measures={
        "covered": Measure("Intervals that contain the truth", True),
        "width": Measure("Mean width of the interval"),
        "rose": Measure("Intervals of the rise that lie above 0", True),
    },
    scales={
        "smoke": Scale(1, 5, settings={"runs": 2, "few": True}),
        "paper": Scale(10, 60, settings={"runs": 10, "few": False}),
    },
)
def _coverage(cell: Cell) -> list[dict[str, Any]]:
    """Methods were developed on the design "known"; "fresh" was used only once they were finished."""
    simulate = {"correlation": _correlations, "fpr95": _rates, "share": _shares, "curve": _curves}
    return list(simulate[cell.levels["interval"]](cell.seed, cell.settings["runs"], cell.settings["few"]))


def _tied(draw: np.random.Generator, n: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that saturate at 1, and human frequencies of which about half tie at 1."""
    ease = draw.normal(size=(n, 2)) @ np.array([[1.0, strength], [0.0, math.sqrt(1 - strength**2)]])
    human = np.minimum(np.round(50 * np.clip(1.02 + 0.3 * ease[:, 1], 0, 1)) / 50, 1)
    return 1 / (1 + np.exp(-3 - 2 * ease[:, 0])), human


def _row(truth: float, ends: Any, **setting: Any) -> dict[str, Any]:
    low, high = np.array(ends, float).reshape(-1, 2).T
    return {
        **setting,
        "truth": truth,
        "covered": np.mean((low <= truth) & (truth <= high)),
        "width": np.mean(high - low),
    }


def _correlations(seed: int, runs: int, few: bool) -> Iterator[dict[str, Any]]:
    """Ten times the runs, because they are cheap."""
    sizes = (20,) if few else (10, 20, 50, 200, 2000)
    for strength, n in itertools.product((0.4,) if few else (0.0, 0.4, 0.8), sizes):
        x, y = _tied(np.random.default_rng(10**6), 10**5 if few else 10**6, strength)
        samples = [_tied(np.random.default_rng(10 * runs * seed + k), n, strength) for k in range(10 * runs)]
        samples = [sample for sample in samples if np.ptp(sample[1])]  # a constant has no correlation
        for name, ours, theirs in (("spearman", spearman, stats.spearmanr), ("pearson", pearson, stats.pearsonr)):
            ends = [(result.low, result.high) for result in (ours(*sample) for sample in samples)]
            yield _row(float(theirs(x, y).statistic), ends, of=name, setting=f"half tied, {strength}", samples=n)


def _two_sets(draw: np.random.Generator, shape: str, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of in-distribution and OOD data, higher for the former."""
    if shape == "heavy":
        return draw.laplace(2, 1, n), draw.laplace(0, 1, m)
    middle, spread = {"near": (1, 1), "far": (3, 1), "perfect": (5, 1), "wide": (2, 2), "tied": (1.5, 1)}[shape]
    scores = draw.normal(middle, spread, n), draw.normal(0, 1, m)
    return (np.round(4 * scores[0]), np.round(4 * scores[1])) if shape == "tied" else scores


def _rates(seed: int, runs: int, few: bool) -> Iterator[dict[str, Any]]:
    for shape in ("near",) if few else ("near", "far", "perfect", "wide", "heavy", "tied"):
        inside, outside = _two_sets(np.random.default_rng(10**6), shape, 10**6, 10**6)
        truth = float((outside >= np.sort(inside)[50_000]).mean())
        for n, m in itertools.product((50,) if few else (50, 200, 1000, 5000), repeat=2):
            draws = [np.random.default_rng(4 * runs * seed + k) for k in range(4 * runs)]
            ends = [fpr_at_95_tpr(*_two_sets(draw, shape, n, m))[1:] for draw in draws]
            yield _row(truth, ends, of="fpr95", setting=f"{shape}, {m} OOD", samples=n)


def _shares(seed: int, runs: int, few: bool) -> Iterator[dict[str, Any]]:
    """Differences of two shares on the same samples."""
    pairs = ((0.2, 0.1), (0.2, 0.0), (0.05, 0.05), (0.02, 0.0), (0.5, 0.1), (0.9, 0.05))
    for (more, less), n in itertools.product(pairs[:1] if few else pairs, (50,) if few else (20, 50, 200, 1000)):
        shares = [more, less, 1 - more - less]
        counts = np.random.default_rng([n, seed]).multinomial(n, shares, 10 * runs)[:, :2].tolist()
        tests = {(a, b): mcnemar(a, b, n) for a, b in counts}
        ends = [(tests[a, b].low - 1e-9, tests[a, b].high + 1e-9) for a, b in counts]
        yield _row(more - less, ends, of="shares", setting=f"{more} and {less}", samples=n)


def _known(epochs: int) -> dict[str, np.ndarray]:
    """Mean curves from about 1 towards 0, without noise."""
    t = np.arange(epochs)
    return {
        "exponential": np.exp(-t / (epochs / 12)),
        "straight, then flat": np.maximum(0, 1 - t / (epochs * 0.3)),
        "steps": 0.45 * np.exp(-t / 3) + 0.35 * (t < epochs / 3) + 0.2 * (t < 2 * epochs / 3),
        "overshoot": np.exp(-t / (epochs / 20)) + 0.3 * np.clip((t - epochs / 4) / (epochs / 2), 0, 1),
        "bounce": 1.1 * np.exp(-t / (epochs / 12)) + 0.15 * (1 - np.exp(-np.maximum(t - epochs / 6, 0) / (epochs / 8))),
    }


def _fresh(epochs: int) -> dict[str, np.ndarray]:
    t = np.arange(epochs)
    return {
        "sigmoid": 1 / (1 + np.exp((t - epochs * 0.25) / (epochs * 0.05))),
        "power": (1 + t) ** -1.2,
        "two exponentials": 0.7 * np.exp(-t / (epochs * 0.03)) + 0.3 * np.exp(-t / (epochs * 0.15)),
        "late step": 0.6 * np.exp(-t / (epochs * 0.05)) + 0.4 * (t < epochs * 0.6),
    }


# Shapes, samples, first seed; then epochs, correlations of neighboring epochs, sizes of jumps, heavy tails or not.
_Design = tuple[Callable[[int], dict[str, np.ndarray]], int, int, tuple, tuple, tuple, tuple]
_DESIGNS: dict[str, _Design] = {
    "known": (_known, 200, 0, (20, 60), (0.0, 0.5), (0.003, 0.02), (False,)),
    "fresh": (_fresh, 300, 50_000, (35, 100), (0.0, 0.3, 0.7), (0.005, 0.03), (False, True)),
}


def _noisy(curve: np.ndarray, n: int, jump: float, rho: float, heavy: bool, seed: int) -> np.ndarray:
    """Samples with an offset, a scale and noise of their own, plus correlated jumps of the epochs that all share."""
    draw, epochs = np.random.default_rng(seed), len(curve)
    jumps = draw.standard_t(4, size=epochs) / math.sqrt(2) if heavy else draw.normal(size=epochs)
    for k in range(1, epochs):
        jumps[k] = rho * jumps[k - 1] + math.sqrt(1 - rho**2) * jumps[k]
    rows = curve * (1 + 0.3 * draw.normal(size=(n, 1))) + 0.5 * draw.normal(size=(n, 1))
    rows += 0.2 * draw.normal(size=(n, epochs))
    return rows + jump * (1 + 2 * (np.arange(epochs) < epochs / 3)) * jumps


def _curves(seed: int, runs: int, few: bool) -> Iterator[dict[str, Any]]:
    """Plateaus and bounces."""
    for design, (shapes, n, first, *axes) in _DESIGNS.items():
        settings = list(itertools.product(*axes))
        for epochs, rho, jump, heavy in settings[:1] if few else settings:
            for name, curve in list(shapes(epochs).items())[: 1 if few else None]:
                seeds = [runs * seed + k for k in range(runs)]
                samples = [_noisy(curve, n, jump, rho, heavy, first + k) for k in seeds]
                setting = {"design": design, "setting": name, "epochs": epochs, "rho": rho, "jump": jump}
                setting |= {"heavy": str(heavy), "samples": n}
                plateaus = [plateau(sample, draws=200, seed=k) for k, sample in zip(seeds, samples, strict=True)]
                ends = [(min(p.low or math.inf, epochs), min(p.high or math.inf, epochs)) for p in plateaus]
                yield _row(settles(curve, rising=False) + 1, ends, of="plateau", **setting)
                rise = dip_and_bounce(curve + np.zeros((3, 1)), draws=10).rise
                bounces = [dip_and_bounce(sample, draws=200, seed=k) for k, sample in zip(seeds, samples, strict=True)]
                row = _row(rise, [(b.low - 1e-9, b.high) for b in bounces], of="bounce", **setting)
                yield {**row, "rose": np.mean([b.low > 0 for b in bounces])}
