"""What a loss adds to the time of a training step: steps with each loss in turn, on the same batch and weights."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.heads import capture
from hardsight.networks import build_network
from hardsight.recipes import Recipe
from hardsight.studies.study import STUDIES, Cell, Measure, Scale
from hardsight.training.losses import Loss, batch_loss, make_loss

_LOSSES = ("ce", "el:0.75", "el:normal", "amc:paper", "euclid:paper")
_IMAGES = 50_000  # of an epoch of CIFAR-10


@STUDIES.register(
    "loss-cost",
    question="How much longer does a training step with a bonus or a loss of pairs take?",
    paper="EL, ethical statement; AMC, introduction and section 3.1",
    factors={"network": ("resnet8-32", "resnet18-32")},
    details=("loss",),
    measures={
        "step": Measure("Median seconds of a training step", better="lower"),
        "extra": Measure("Seconds that the loss adds to an epoch of 50,000 images", better="lower"),
    },
    scales={
        "smoke": Scale(1, 2, settings={"batch": 8, "rounds": 4}, levels={"network": ("resnet8-32",)}),
        "quick": Scale(5, 60, settings={"batch": 128, "rounds": 40}, levels={"network": ("resnet8-32",)}),
        "paper": Scale(5, 30, "NVIDIA H200", {"batch": 128, "rounds": 100}),
    },
    compare="loss",
    baseline="ce",
)
def _timed(cell: Cell) -> list[dict[str, Any]]:
    """One row per loss."""
    batch, device = cell.settings["batch"], cell.device
    with torch.random.fork_rng():
        torch.manual_seed(cell.seed)
        network = build_network(cell.levels["network"], classes=10).to(device).train()
        images, labels = torch.rand(batch, 3, 32, 32).to(device), torch.randint(10, (batch,)).to(device)
    losses = {name: make_loss(None, Recipe(loss=name), network, labels) for name in _LOSSES}
    seconds, draw = {name: [] for name in losses}, np.random.default_rng(cell.seed)
    for _ in range(cell.settings["rounds"]):
        for name in draw.permutation(_LOSSES).tolist():  # other work of the machine slows all losses alike
            seconds[name].append(_step(network, losses[name], images, labels))
    medians = {name: float(np.median(times[len(times) // 4 :])) for name, times in seconds.items()}  # after a warm-up
    steps = _IMAGES / batch
    return [
        {"loss": name, "step": median} | ({} if name == "ce" else {"extra": steps * (median - medians["ce"])})
        for name, median in medians.items()
    ]


def _step(network: nn.Module, loss: Loss, images: Tensor, labels: Tensor) -> float:
    """Seconds of a forward and a backward pass; the weights stay."""
    _wait(images)
    start = time.perf_counter()
    network.zero_grad(set_to_none=True)
    with capture(network) as head:
        batch_loss(loss, network(images), labels, head).backward()
    _wait(images)
    return time.perf_counter() - start


def _wait(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize()
