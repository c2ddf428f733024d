"""Does mining by angular visual hardness make better embeddings than mining by distance?

A small network embeds scikit-learn's digits with a triplet loss. Retrieval is measured on the half of the samples that
was held out, with their true labels. All miners of a seed see the same data, batches and initial weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hardsight.extras import need
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

# What triplets are mined by, and which kind is kept; margins are the defaults.
_MINERS: dict[str, tuple[str, Any]] = {
    "untrained": ("", ""),
    "no miner": ("", ""),
    "distance, hard": ("distance", "hard"),
    "distance, semihard": ("distance", "semihard"),
    "AVH, hard": ("AVH", "hard"),
    "AVH, semihard": ("AVH", "semihard"),
    "AVH, all": ("AVH", "all"),
}
_EACH = 10  # samples of each digit in a batch


@STUDIES.register(
    "miner",
    question="Does mining triplets by AVH make better embeddings?",
    paper="",
    factors={"wrong_labels": ("0", "0.2"), "miner": tuple(_MINERS)},
    measures={
        "precision_at_1": Measure("Precision at 1", True, "higher"),
        "r_precision": Measure("R-precision", True, "higher"),
        "useful_steps": Measure("Steps with active triplets", True),
    },
    scales={
        "smoke": Scale(2, 1, settings={"steps": 20}, levels={"miner": ("no miner", "AVH, semihard")}),
        "paper": Scale(10, 2, settings={"steps": 300}),
    },
    compare="miner",
    baseline="no miner",
)
def _retrieval(cell: Cell) -> dict[str, Any]:
    need("pytorch_metric_learning")
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    training, (x, y) = _split(cell.seed, float(cell.levels["wrong_labels"]))
    steps = 0 if cell.levels["miner"] == "untrained" else cell.settings["steps"]
    network, useful = _train(*training, _miner(cell.levels["miner"]), cell.seed, steps)
    measures = ("precision_at_1", "r_precision")
    calculator = AccuracyCalculator(measures, k="max_bin_count", knn_func=CustomKNN(LpDistance()))
    with torch.no_grad():
        values = calculator.get_accuracy(network(x), y)
    return {"useful_steps": useful, **{name: values[name] for name in measures}}


def _miner(name: str) -> Any:
    from pytorch_metric_learning.miners import TripletMarginMiner

    from hardsight.integrations.metric_learning import AVHMiner

    by, triplets = _MINERS[name]
    if not by:
        return None
    return AVHMiner(kind=triplets) if by == "AVH" else TripletMarginMiner(type_of_triplets=triplets)


def _split(seed: int, wrong: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training inputs and labels, some of them wrong, and held-out ones for retrieval."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    draw = torch.Generator().manual_seed(seed)
    held_out, replaced = torch.rand(len(y), generator=draw) < 0.5, torch.rand(len(y), generator=draw) < wrong
    noisy = torch.where(replaced, (y + torch.randint(1, 10, y.shape, generator=draw)) % 10, y)
    return (x[~held_out], noisy[~held_out]), (x[held_out], y[held_out])


def _train(x: Tensor, y: Tensor, miner: Any, seed: int, steps: int) -> tuple[nn.Module, float]:
    """The embedding network, and the share of the steps with active triplets."""
    from pytorch_metric_learning.losses import TripletMarginLoss

    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    loss_of, optimizer = TripletMarginLoss(margin=0.2), torch.optim.Adam(network.parameters(), lr=1e-3)
    members, useful = [(y == label).nonzero().flatten() for label in y.unique()], 0
    for _ in range(steps):
        ids = torch.cat([ids[torch.randperm(len(ids))[:_EACH]] for ids in members])
        embeddings = network(x[ids])
        loss = loss_of(embeddings, y[ids], None if miner is None else miner(embeddings, y[ids]))
        useful += loss.item() > 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network, useful / max(steps, 1)
