"""Is the Encouraging Loss calibrated after temperature scaling? Each network has a temperature of its own.

A tenth of the training samples is held out. The temperature that maximizes their likelihood is applied to the test
samples, which play no part in fitting it. Losses differ in how large their logits grow, and a temperature removes that
difference; what remains is one of ranking and shape. Digits cannot answer the question: where all held-out samples are
classified correctly, the likelihood has no maximum, and the temperature is the lower bound of `fit_temperature`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.data import View
from hardsight.probabilities import fit_temperature
from hardsight.questions.calibration import ece
from hardsight.studies.declared.losses import CIFAR
from hardsight.studies.declared.training import (
    SMALL_CIFAR,
    embed,
    pixels_and_labels,
    recipe_of,
    split_data,
    train_cell,
)
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

HELD_OUT = 0.1
_SMOKE = {"data": "digits", "model": "small-cnn", "recipe": {"epochs": 2}}


@STUDIES.register(
    "el-temperature",
    question="Is the Encouraging Loss calibrated once each network has a temperature?",
    paper="",
    factors={"loss": ("ce", "el:0.5", "el:0.75", "el:normal")},
    details=("temperature",),
    measures={
        "ece": Measure("Expected calibration error", True, "lower"),
        "nll": Measure("Negative log-likelihood", better="lower"),
        "brier": Measure("Brier score", better="lower"),
        "accuracy": Measure("Test accuracy", True, "higher"),
        "fitted": Measure("Temperature fitted on held-out training samples"),
    },
    scales={
        "smoke": Scale(2, 3, settings=_SMOKE, levels={"loss": ("ce", "el:0.75")}),
        "quick": Scale(5, 60, settings=SMALL_CIFAR),
        "paper": Scale(5, 50, "NVIDIA H200", CIFAR),
    },
    compare="loss",
    baseline="ce",
)
def _calibrated(cell: Cell) -> list[dict[str, Any]]:
    """One row with the network's own probabilities, and one with those at the fitted temperature."""
    training, test = split_data(cell)
    order = np.random.default_rng(cell.seed).permutation(len(training))
    held_out, rest = np.split(order, [round(HELD_OUT * len(order))])
    recipe = recipe_of(cell, loss=cell.levels["loss"])
    data = View(training, np.sort(rest)), test
    network = train_cell(cell, data, recipe, cell.settings.get("network")).model.module
    (z, y), (logits, labels) = (_logits(network, part, cell) for part in (View(training, np.sort(held_out)), test))
    fitted = fit_temperature(z, y)
    rows = []
    for name, temperature in (("1", 1.0), ("fitted", fitted)):
        log_p = (logits.double() / temperature).log_softmax(1)
        confidence, predicted = log_p.exp().max(1)
        errors = log_p.exp() - F.one_hot(labels, logits.shape[1])
        row = {"temperature": name, "fitted": fitted, "ece": ece(confidence, predicted == labels)}
        row |= {"nll": F.nll_loss(log_p, labels).item(), "brier": errors.square().sum(1).mean().item()}
        rows.append(row | {"accuracy": (predicted == labels).double().mean().item()})
    return rows


def _logits(network: Any, samples: Any, cell: Cell) -> tuple[Tensor, Tensor]:
    pixels, labels = pixels_and_labels(samples, torch.device("cpu"))
    return embed(network, pixels).logits.cpu(), labels
