"""Does the order of training matter on CIFAR-10? Uniform against orders made from hardness, paired over seeds.

``python -m benchmarks.curriculum CIFAR10.npz OUT [--seeds N] [--noise SHARE] [key=value …]`` writes ``curriculum.csv``
(a row a training) and ``curriculum_summary.csv`` (a row an order) into OUT. ``key=value`` changes the recipe of
``cifar-resnet18`` (``epochs=10``); ``--noise .2`` gives a fifth of the training samples a wrong label first. The same
command again goes on where it was interrupted.

- Every training has the same number of steps, the same learning rate at every step and, for one seed, the same first
  weights: an epoch is always as many samples as there are, drawn from the share that is in use.
- Hardness is the mean AVH over the epochs of a separate training with a seed of its own, as a rank within each class;
  nothing is taken from the test set. Self-paced takes the network's own last losses.
- *random order* grows the share as the curriculum does, but in an order by chance: what a curriculum gains must be more
  than that.
- Accuracy is that of the last epoch; nothing was tuned for any order. Differences to *uniform* are within a seed; their
  t-intervals hold jointly for all orders with 95 % (Bonferroni).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch

from benchmarks.engine import write
from benchmarks.measure import hardware
from hardsight.presets import PRESETS
from hardsight.printing import text_table
from hardsight.recipes import Recipe, parse_settings
from hardsight.sampling import (
    CurriculumSampler,
    HardnessSampler,
    hardness_of,
    latest_hardness,
    within_class,
)
from hardsight.training import train

PRESET = "cifar-resnet18"
# As the preset was when the results were written.
_SETTINGS = ("epochs=50", "lr=0.4", "ema=0", "graph=false")
TEACHER_SEED = 10_000
# The share in use is everything after so much of the training.
GROWS_FOR, PACING = 0.6, "root"


def orders(data: str, hardness: np.ndarray, epochs: int) -> dict[str, Callable[[int, Path], Any]]:
    """Sampler of each order, from a seed and the folder of the training."""
    n, lasts = len(hardness), max(1, round(GROWS_FOR * epochs))

    def paced(values: np.ndarray, seed: int, **options: Any) -> CurriculumSampler:
        return CurriculumSampler(values, PACING, lasts, num_samples=n, seed=seed, **options)

    def self_paced(seed: int, run: Path) -> CurriculumSampler:
        asked = latest_hardness(run / "train", f"{data}:train")
        return CurriculumSampler(asked, PACING, lasts, num_samples=n, seed=seed)

    return {
        "uniform": lambda seed, run: None,
        "hard more often": lambda seed, run: HardnessSampler(hardness, seed=seed),
        "easy to hard": lambda seed, run: paced(hardness, seed),
        "hard to easy": lambda seed, run: paced(hardness, seed, hardest_first=True),
        "random order": lambda seed, run: paced(np.random.default_rng(seed).random(n), seed),
        "self-paced": self_paced,
    }


def trained(data: str, out: Path, recipe: Recipe, sampler: Any, record: bool) -> dict[str, Any]:
    result = train(
        PRESET, f"{data}:train", f"{data}:test", out=out, recipe=recipe, sampler=sampler,
        record=("train",) if record else (), progress=False,
    )  # fmt: skip
    last = result.history[-1]
    return {
        "accuracy": last["test_accuracy"],
        "test_loss": last["test_loss"],
        "steps": sum(row["steps"] for row in result.history),
        "seconds": round(sum(row["seconds"] for row in result.history), 1),
    }


def compare(data: str, out: Path, recipe: Recipe, seeds: int) -> list[dict]:
    """A row a training."""
    teacher = trained(data, out / "teacher", replace(recipe, seed=TEACHER_SEED), None, record=True)
    print(f"teacher: accuracy {teacher['accuracy']:.4f} in {teacher['seconds']} s", flush=True)
    with np.load(data, allow_pickle=False) as arrays:
        labels = arrays["train_labels"].reshape(-1)
    hardness = within_class(hardness_of(out / "teacher" / "train", f"{data}:train"), labels)
    rows = []
    for seed in range(seeds):  # seed by seed, so that an interrupted comparison is still paired
        for name, sampler in orders(data, hardness, recipe.epochs).items():
            run = out / f"seed{seed}-{name.replace(' ', '-')}"
            found = trained(data, run, replace(recipe, seed=seed), sampler(seed, run), record=name == "self-paced")
            rows.append({"order": name, "seed": seed, **found, "hardware": hardware(), "torch": torch.__version__})
            print(f"seed {seed}  {name:<16} {found['accuracy']:.4f}  {found['seconds']} s", flush=True)
            write(out / "curriculum.csv", rows)
    if len(steps := {row["steps"] for row in rows}) > 1:
        raise RuntimeError(f"orders must have the same number of steps, got {sorted(steps)}.")
    return rows


def summary(rows: list[dict]) -> list[dict]:
    """A row an order: mean and spread over the seeds, and the paired difference to uniform with its interval."""
    names = list(dict.fromkeys(row["order"] for row in rows))
    found = {name: np.array([row["accuracy"] for row in rows if row["order"] == name]) for name in names}
    level = 1 - 0.05 / (len(names) - 1)
    table = []
    for name, accuracy in found.items():
        n, difference = len(accuracy), accuracy - found["uniform"]
        row = {"order": name, "n": n, "accuracy": accuracy.mean(), "sd": accuracy.std(ddof=1) if n > 1 else np.nan}
        if name != "uniform" and n > 1:
            half = scipy.stats.t.ppf((1 + level) / 2, n - 1) * difference.std(ddof=1) / n**0.5
            row |= {"difference": difference.mean(), "low": difference.mean() - half, "high": difference.mean() + half}
        table.append({"difference": 0.0, "low": 0.0, "high": 0.0} | row if name == "uniform" else row)
    columns = ("order", "n", "accuracy", "sd", "difference", "low", "high")
    return [{c: row.get(c, np.nan) for c in columns} for row in table]


def with_noise(data: str, out: Path, share: float) -> str:
    """A copy of the data with wrong labels for a share of the training samples."""
    with np.load(data, allow_pickle=False) as arrays:
        copied = {key: arrays[key] for key in arrays.files if key.startswith(("train_", "test_"))}
    labels, random = copied["train_labels"].reshape(-1).astype(np.int64), np.random.default_rng(0)
    wrong = random.choice(len(labels), round(share * len(labels)), replace=False)
    classes = labels.max() + 1
    labels[wrong] = (labels[wrong] + random.integers(1, classes, len(wrong))) % classes
    np.savez(out / "noisy.npz", **copied | {"train_labels": labels})
    return str(out / "noisy.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("settings", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.0)
    asked = parser.parse_intermixed_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    data = with_noise(asked.data, asked.out, asked.noise) if asked.noise else asked.data
    recipe = PRESETS[PRESET].recipe.replace(**parse_settings([*_SETTINGS, *asked.settings]))
    table = summary(compare(data, asked.out, recipe, asked.seeds))
    write(asked.out / "curriculum_summary.csv", table)
    print("\n".join(text_table(table)))


if __name__ == "__main__":
    main()
