"""How often tests of two correlations reject a null that is true, at a nominal 5 %.

``python -m benchmarks.error_rates OUT.csv`` draws samples with an ease that people and two scores see. The two scores
are exchangeable, so their correlations with human frequency are equal in the population whatever the coefficient. One
row a setting, n, coefficient and test: the share of runs in which the test found a difference at two-sided p < .05,
with Wilson's 95 % interval.

"saturated, tied" is made like CIFAR-10H: half of the scores are within .001 of 1, 4 % of them below .5, and human
frequencies are shares of 51 people, of which 45 % tie at 1. "normal" is what the closed forms are made for. Steiger's
and Meng's tests are for Pearson's coefficient; their rows for the others show what happens if they are used there all
the same. About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy.special import expit

from hardsight.alignment.closed_forms import fisher_z, meng, p_value, steiger
from hardsight.alignment.resampling import resampled
from hardsight.correlation import COEFFICIENTS, standard_error
from hardsight.stats import wilson

PEOPLE = 51
RESAMPLES = 500
RUNS = {200: (2000, 400), 2000: (2000, 400), 10_000: (500, 120)}  # by n: runs, and those of them with a bootstrap
SETTINGS = {"saturated, tied": (200, 2000, 10_000), "normal": (200, 2000)}


def drawn(setting: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two exchangeable scores ``(2, n)`` and human frequency ``(n,)``."""
    draw = np.random.default_rng([seed, n])
    ease, shared, own = draw.normal(size=n), draw.normal(size=n), draw.normal(size=(2, n))
    scores = 0.5 * ease + 0.7 * shared + 0.5 * own
    if setting == "normal":
        return scores, ease + draw.normal(size=n)
    human = draw.binomial(PEOPLE, expit(4.15 + 1.9 * ease)) / PEOPLE
    return expit(7 + 4 * scores).astype(np.float32).astype(np.float64), human


def rejected(scores: np.ndarray, human: np.ndarray, seed: int | None) -> dict[tuple[str, str], bool]:
    """Which tests found a difference, by coefficient and test; the bootstrap only with a seed."""
    n, found = len(human), {}
    for name, function in COEFFICIENTS.items():
        first, second = (function(score, human) for score in scores)
        between, error = function(*scores).value, standard_error(first.influence - second.influence)
        for test, z in {
            "jackknife": (first.value - second.value) / error,
            "steiger": steiger(first.value, second.value, between, n),
            "meng": meng(first.value, second.value, between, n),
            "fisher": fisher_z(first.value, second.value, n, n),
        }.items():
            found[name, test] = p_value(z) < 0.05
    if seed is not None:
        many = resampled(scores, human, tuple(COEFFICIENTS), RESAMPLES, seed)
        low, high = np.nanquantile(many[:, 0] - many[:, 1], (0.025, 0.975), axis=0)
        found |= {(name, "bootstrap"): bool(low[k] > 0 or high[k] < 0) for k, name in enumerate(COEFFICIENTS)}
    return found


def main() -> None:
    """Simulate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out, rows = parser.parse_args().out, []
    for setting, sizes in SETTINGS.items():
        for n in sizes:
            runs, with_bootstrap = RUNS[n]
            found = [rejected(*drawn(setting, n, k), k if k < with_bootstrap else None) for k in range(runs)]
            for name, test in found[0]:
                hits = [one[name, test] for one in found if (name, test) in one]
                low, high = wilson(np.array(sum(hits)), np.array(len(hits)))
                rates = {"rejected": np.mean(hits), "low": float(low), "high": float(high)}
                setup = {"setting": setting, "n": n, "coefficient": name, "test": test, "runs": len(hits)}
                rows.append(setup | {key: round(float(value), 4) for key, value in rates.items()})
                print(*rows[-1].values(), flush=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
