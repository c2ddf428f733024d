"""Does mining by angular visual hardness make better embeddings than mining by distance?

``python -m benchmarks.miner [--seeds 10]`` trains a small embedding of scikit-learn's digits with a triplet loss, once
a miner, seed and share of wrong labels, prints a table and writes one row per run to ``docs/results/miner.csv``.

Retrieval is measured on the half of the samples that was held out, with their true labels. All miners of a seed meet
the same data, batches and initial weights, so that they are compared pair by pair. (Digits that were never trained on
are no test here: an untrained network retrieves them better than any trained one.) About four minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

from hardsight.integrations.metric_learning import AVHMiner

OUT = Path(__file__).parents[1] / "docs" / "results" / "miner.csv"
WRONG = (0.0, 0.2)  # share of training labels that are replaced by another one
MEASURES = ("precision_at_1", "r_precision")


@dataclass(frozen=True)
class Setting:
    """The same for every miner."""

    each: int = 10  # samples of a digit in a batch
    steps: int = 300
    rate: float = 1e-3  # of Adam
    margin: float = 0.2  # of the triplet loss; pytorch-metric-learning's miner has the same by default
    hidden: int = 128
    width: int = 16  # of the embedding


# Margins are the defaults. All triplets that violate the loss's margin are what "no miner" trains on already.
MINERS: dict[str, Callable[[], Any]] = {
    "untrained": lambda: None,
    "no miner": lambda: None,
    "distance, hard": lambda: TripletMarginMiner(type_of_triplets="hard"),
    "distance, semihard": lambda: TripletMarginMiner(type_of_triplets="semihard"),
    "AVH, hard": lambda: AVHMiner(kind="hard"),
    "AVH, semihard": lambda: AVHMiner(kind="semihard"),
    "AVH, all": lambda: AVHMiner(kind="all"),
}


def split(seed: int, wrong: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Inputs and labels to train on, some of them wrong, and those to retrieve."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    draw = torch.Generator().manual_seed(seed)
    held_out, replaced = torch.rand(len(y), generator=draw) < 0.5, torch.rand(len(y), generator=draw) < wrong
    given = torch.where(replaced, (y + torch.randint(1, 10, y.shape, generator=draw)) % 10, y)
    return (x[~held_out], given[~held_out]), (x[held_out], y[held_out])


def train(x: Tensor, y: Tensor, miner: Any, seed: int, steps: int, s: Setting) -> tuple[nn.Module, float]:
    """The embedding, and the share of the steps that had triplets to learn from."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, s.hidden), nn.ReLU(), nn.Linear(s.hidden, s.width))
    loss_of, optimiser = TripletMarginLoss(margin=s.margin), torch.optim.Adam(net.parameters(), lr=s.rate)
    members, useful = [(y == label).nonzero().flatten() for label in y.unique()], 0
    for _ in range(steps):
        ids = torch.cat([ids[torch.randperm(len(ids))[: s.each]] for ids in members])
        embeddings = net(x[ids])
        loss = loss_of(embeddings, y[ids], None if miner is None else miner(embeddings, y[ids]))
        useful += loss.item() > 0
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net, useful / max(steps, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds, setting = parser.parse_args().seeds, Setting()
    torch.set_num_threads(1)
    measure = AccuracyCalculator(MEASURES, k="max_bin_count", knn_func=CustomKNN(LpDistance()))
    rows = []
    for wrong, seed, (name, make) in itertools.product(WRONG, range(seeds), MINERS.items()):
        given, (x, y) = split(seed, wrong)
        start = time.process_time()
        net, useful = train(*given, make(), seed, 0 if name == "untrained" else setting.steps, setting)
        row = {"wrong_labels": wrong, "seed": seed, "miner": name, "useful_steps": round(useful, 4)}
        row["seconds"] = round(time.process_time() - start, 2)
        with torch.no_grad():
            found = measure.get_accuracy(net(x), y)
        rows.append(row | {kind: round(found[kind], 5) for kind in MEASURES})
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

    def values(wrong: float, name: str, column: str) -> np.ndarray:
        return np.array([row[column] for row in rows if row["wrong_labels"] == wrong and row["miner"] == name])

    print(f"n = {seeds} seeds: mean ± sd in %, and the difference to no miner with its 95 % interval")
    for wrong, name in itertools.product(WRONG, MINERS):
        line = f"{wrong:4.0%} wrong  {name:20}"
        for kind in MEASURES:
            found = 100 * values(wrong, name, kind)
            gain = found - 100 * values(wrong, "no miner", kind)
            half = stats.t.ppf(0.975, seeds - 1) * gain.std(ddof=1) / seeds**0.5
            line += f"{kind} {found.mean():5.1f} ± {found.std(ddof=1):.1f} ({gain.mean():+5.1f} ± {half:.1f})   "
        seconds, useful = values(wrong, name, "seconds").mean(), values(wrong, name, "useful_steps").mean()
        print(f"{line}{seconds:.1f} s, {useful:.0%} of the steps useful")


if __name__ == "__main__":
    main()
