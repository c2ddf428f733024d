"""The numbers of small-studies.md: python docs/results/small_studies.py MNIST.npz > docs/results/small-studies.csv"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import spearmanr

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.phases import loss_drivers, plateau, plateaus
from hardsight.studies import avh, embeddings, iterations, phase_switch, two_gaussians

Row = tuple[str, int, str, str, Any]  # study, seed, setting, quantity, value


def gaussians(seed: int) -> Iterator[Row]:
    found = two_gaussians(seed)
    yield "two-gaussians", seed, "", "accuracy", found.accuracy
    for name, values in (("AVH", found.avh), ("norm", found.norm)):
        yield "two-gaussians", seed, name, "Spearman with the true doubt", spearmanr(values, found.doubt).statistic


def by_iteration(data: str, seed: int, rate: str) -> Iterator[Row]:
    fit = avh._fit  # the study has a constant rate; its loop also knows one that falls to 0 along a cosine
    falls = rate == "falling"
    with (
        patch.object(avh, "_fit", lambda *args, decay, **options: fit(*args, decay=falls, **options)),
        tempfile.TemporaryDirectory() as folder,
    ):
        run = iterations(data, Path(folder) / "run", seed=seed)
        for name in ("avh", "angle", "norm", "correct"):
            values = run.matrix(name) * (run.classes if name == "avh" else 1)
            mean, found = values.mean(0), plateau(values, run.epochs)
            for iteration in (1, 10, 20, 30, 60):
                yield "iterations", seed, rate, f"{name} at {iteration}", mean[iteration - 1]
            for end in ("epoch", "low", "high"):
                yield "iterations", seed, rate, f"{name} plateau {end}", getattr(found, end)


def two_dimensions(data: str, seed: int) -> Iterator[Row]:
    found = embeddings(data, seed=seed)
    unit, axes = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (found.features + 1e-12, found.weight))
    nearest = (unit @ axes.T).argmax(1)
    within = [np.linalg.norm(unit[found.labels == k].mean(0)) for k in range(len(axes))]
    yield "embeddings", seed, "", "accuracy", found.accuracy
    yield "embeddings", seed, "", "nearest direction is the label's", (nearest == found.labels).mean()
    yield "embeddings", seed, "", "length of the mean direction, mean over classes", np.mean(within)
    yield "embeddings", seed, "", "length of the mean direction, least of the classes", np.min(within)


def digits(seed: int) -> Iterator[Row]:
    images, labels = load_digits()
    kept_out = np.arange(len(labels)) % 4 == 0
    parts = [ArraySamples(images[m], labels[m], "digits", name) for name, m in (("a", ~kept_out), ("b", kept_out))]
    recipe = hs.presets.PRESETS["small-cnn"].recipe.replace(epochs=30, lr=0.001, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        trained = hs.train("small-cnn", *parts, out=Path(folder) / "run", recipe=recipe, progress=False)
        run = hs.Dynamics(Path(folder) / "run/test")
        yield "digits", seed, "", "accuracy", trained.history[-1]["test_accuracy"]
        for row in plateaus(run).to_pylist():
            for end in ("epoch", "low", "high", "later", "later_low", "later_high"):
                yield "digits", seed, "", f"{row['value']} plateau {end}", row[end]
        drivers = loss_drivers(run).to_pandas()
        switch = phase_switch(drivers["epoch"].to_numpy(), drivers["driver"].to_numpy())
        yield "digits", seed, "", "angles hand over to norms at", switch.epoch
        yield "digits", seed, "", "share of epochs that agree with two phases", switch.agreement
        for part in ("by_angles", "by_norms"):
            yield "digits", seed, "", f"change of the loss {part}", drivers[part].sum()


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("study", "seed", "setting", "quantity", "value"))
    jobs = [gaussians(seed) for seed in range(10)]
    jobs += [digits(seed) for seed in range(5)]
    jobs += [two_dimensions(sys.argv[1], seed) for seed in range(3)]
    jobs += [by_iteration(sys.argv[1], seed, rate) for seed in range(5) for rate in ("constant", "falling")]
    for job in jobs:
        for *keys, value in job:
            out.writerow((*keys, f"{value:.4g}" if isinstance(value, (float, np.floating)) else value))
        sys.stdout.flush()
