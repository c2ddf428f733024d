"""How often 95 % intervals hold a truth that is known: of curves, correlations, false-positive rates and shares.

``python -m benchmarks.coverage OUT.csv [--runs 100]`` simulates curves with the noise of samples and of epochs,
correlations with tied human frequencies, scores of a network's own and of OOD data, and the answers of two networks on
the same samples. It writes one row per setting: how often the interval held the truth, how often a rise was found, and
how wide the interval was. The settings "known" are those that the method was developed on; the
settings "fresh" (other shapes, lengths, correlations, heavy tails, seeds) were looked at only when it was finished.
About six minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from pathlib import Path

import numpy as np
from scipy import stats

from hardsight.correlation import pearson, spearman
from hardsight.phases.plateaus import plateau, settles
from hardsight.stats import fpr_at_95_tpr, mcnemar
from hardsight.studies import dip_and_bounce

DRAWS = 200


def known_shapes(epochs: int) -> dict[str, np.ndarray]:
    """Mean curves from about 1 towards 0, without noise."""
    t = np.arange(epochs)
    return {
        "exponential": np.exp(-t / (epochs / 12)),
        "straight, then flat": np.maximum(0, 1 - t / (epochs * 0.3)),
        "steps": 0.45 * np.exp(-t / 3) + 0.35 * (t < epochs / 3) + 0.2 * (t < 2 * epochs / 3),
        "overshoot": np.exp(-t / (epochs / 20)) + 0.3 * np.clip((t - epochs / 4) / (epochs / 2), 0, 1),
        "bounce": 1.1 * np.exp(-t / (epochs / 12)) + 0.15 * (1 - np.exp(-np.maximum(t - epochs / 6, 0) / (epochs / 8))),
    }


def fresh_shapes(epochs: int) -> dict[str, np.ndarray]:
    """Others."""
    t = np.arange(epochs)
    return {
        "sigmoid": 1 / (1 + np.exp((t - epochs * 0.25) / (epochs * 0.05))),
        "power": (1 + t) ** -1.2,
        "two exponentials": 0.7 * np.exp(-t / (epochs * 0.03)) + 0.3 * np.exp(-t / (epochs * 0.15)),
        "late step": 0.6 * np.exp(-t / (epochs * 0.05)) + 0.4 * (t < epochs * 0.6),
    }


# Shapes, samples, first seed; then epochs, correlations of neighbouring epochs, sizes of jumps, heavy tails or not.
DESIGNS = {
    "known": (known_shapes, 200, 0, (20, 60), (0.0, 0.5), (0.003, 0.02), (False,)),
    "fresh": (fresh_shapes, 300, 50_000, (35, 100), (0.0, 0.3, 0.7), (0.005, 0.03), (False, True)),
}


def noisy(curve: np.ndarray, n: int, jump: float, rho: float, heavy: bool, seed: int) -> np.ndarray:
    """Samples that differ throughout, fall unequally far and jump by themselves; epochs that jump for all of them."""
    draw, epochs = np.random.default_rng(seed), len(curve)
    jumps = draw.standard_t(4, size=epochs) / math.sqrt(2) if heavy else draw.normal(size=epochs)
    for k in range(1, epochs):
        jumps[k] = rho * jumps[k - 1] + math.sqrt(1 - rho**2) * jumps[k]
    rows = curve * (1 + 0.3 * draw.normal(size=(n, 1))) + 0.5 * draw.normal(size=(n, 1))
    rows += 0.2 * draw.normal(size=(n, epochs))
    return rows + jump * (1 + 2 * (np.arange(epochs) < epochs / 3)) * jumps


def curves(runs: int) -> list[dict]:
    """Plateaus and bounces."""
    rows = []
    for design, (shapes, n, first, *axes) in DESIGNS.items():
        for epochs, rho, jump, heavy in itertools.product(*axes):
            for name, curve in shapes(epochs).items():
                at, rise = settles(curve, rising=False) + 1, dip_and_bounce(curve + np.zeros((3, 1)), draws=10).rise
                data = [noisy(curve, n, jump, rho, heavy, first + seed) for seed in range(runs)]
                found = [plateau(matrix, draws=DRAWS, seed=seed) for seed, matrix in enumerate(data)]
                ends = np.array([(one.low or math.inf, one.high or math.inf) for one in found])
                setting = {"design": design, "setting": name, "epochs": epochs, "rho": rho, "jump": jump}
                setting |= {"heavy": heavy, "n": n, "runs": runs}
                width = float(np.mean(np.minimum(ends[:, 1], epochs) - np.minimum(ends[:, 0], epochs)))
                held = float(((ends[:, 0] <= at) & (at <= ends[:, 1])).mean())
                rows.append({"what": "plateau", **setting, "truth": at, "held": held, "width": width})
                bounces = [dip_and_bounce(matrix, draws=DRAWS, seed=seed) for seed, matrix in enumerate(data)]
                ends = np.array([(one.low, one.high) for one in bounces])
                held = float(((ends[:, 0] - 1e-9 <= rise) & (rise <= ends[:, 1])).mean())
                width, rose = float(np.diff(ends).mean()), float((ends[:, 0] > 0).mean())
                rows.append({"what": "bounce", **setting, "truth": rise, "held": held, "width": width, "rose": rose})
                print(*rows[-2:], sep="\n", flush=True)
    return rows


def tied(draw: np.random.Generator, n: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that crowd at 1, and human frequencies of which about half tie at 1."""
    ease = draw.normal(size=(n, 2)) @ np.array([[1.0, strength], [0.0, math.sqrt(1 - strength**2)]])
    human = np.minimum(np.round(50 * np.clip(1.02 + 0.3 * ease[:, 1], 0, 1)) / 50, 1)
    return 1 / (1 + np.exp(-3 - 2 * ease[:, 0])), human


def correlations(runs: int) -> list[dict]:
    """Spearman's and Pearson's correlations; ten times the runs, because they are cheap."""
    rows = []
    for strength, n in itertools.product((0.0, 0.4, 0.8), (10, 20, 50, 200, 2000)):
        x, y = tied(np.random.default_rng(10**6), 10**6, strength)
        for name, ours, theirs in (("spearman", spearman, stats.spearmanr), ("pearson", pearson, stats.pearsonr)):
            truth = float(theirs(x, y).statistic)
            drawn = [tied(np.random.default_rng(seed), n, strength) for seed in range(10 * runs)]
            found = [ours(*both) for both in drawn if np.ptp(both[1])]  # a constant has no correlation
            held = float(np.mean([one.low <= truth <= one.high for one in found]))
            width = float(np.mean([one.high - one.low for one in found]))
            row = {"what": name, "setting": f"half tied, {strength}", "n": n, "runs": 10 * runs, "truth": truth}
            rows.append({**row, "held": held, "width": width})
            print(rows[-1], flush=True)
    return rows


def two_sets(draw: np.random.Generator, shape: str, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a network's own data and of OOD data, higher for its own."""
    if shape == "heavy":
        return draw.laplace(2, 1, n), draw.laplace(0, 1, m)
    middle, spread = {"near": (1, 1), "far": (3, 1), "perfect": (5, 1), "wide": (2, 2), "tied": (1.5, 1)}[shape]
    scores = draw.normal(middle, spread, n), draw.normal(0, 1, m)
    return (np.round(4 * scores[0]), np.round(4 * scores[1])) if shape == "tied" else scores


def rates(runs: int) -> list[dict]:
    """False-positive rates at 95 % TPR."""
    rows = []
    for shape in ("near", "far", "perfect", "wide", "heavy", "tied"):
        own, others = two_sets(np.random.default_rng(10**6), shape, 10**6, 10**6)
        truth = float((others >= np.sort(own)[50_000]).mean())
        for n, m in itertools.product((50, 200, 1000, 5000), repeat=2):
            found = [fpr_at_95_tpr(*two_sets(np.random.default_rng(seed), shape, n, m)) for seed in range(4 * runs)]
            held, width = np.mean([(low <= truth <= high, high - low) for _, low, high in found], axis=0).tolist()
            row = {"what": "fpr95", "setting": f"{shape}, {m} OOD", "n": n, "runs": 4 * runs, "truth": truth}
            rows.append({**row, "held": held, "width": width})
            print(rows[-1], flush=True)
    return rows


def shares(runs: int) -> list[dict]:
    """Differences of two shares on the same samples."""
    rows = []
    for (more, less), n in itertools.product(
        ((0.2, 0.1), (0.2, 0.0), (0.05, 0.05), (0.02, 0.0), (0.5, 0.1), (0.9, 0.05)), (20, 50, 200, 1000)
    ):
        drawn = np.random.default_rng(n).multinomial(n, [more, less, 1 - more - less], 10 * runs)[:, :2].tolist()
        found = {tuple(counts): mcnemar(*counts, n) for counts in drawn}
        ends = np.array([(found[tuple(counts)].low, found[tuple(counts)].high) for counts in drawn])
        held = float(((ends[:, 0] <= more - less + 1e-9) & (more - less - 1e-9 <= ends[:, 1])).mean())
        row = {"what": "shares", "setting": f"{more} and {less}", "n": n, "runs": 10 * runs, "truth": more - less}
        rows.append({**row, "held": held, "width": float(np.diff(ends).mean())})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=100)
    given = parser.parse_args()
    rows = correlations(given.runs) + rates(given.runs) + shares(given.runs) + curves(given.runs)
    columns = [
        "what",
        "design",
        "setting",
        "epochs",
        "rho",
        "jump",
        "heavy",
        "n",
        "runs",
        "truth",
        "held",
        "width",
        "rose",
    ]
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)


if __name__ == "__main__":
    main()
