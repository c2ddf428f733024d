"""Agreement with people by how often they choose the label (AVH, Table 1), and how confidence goes with it (Fig. 5).

CIFAR-10 networks against CIFAR-10H; on a CPU they are small.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import hardsight as hs
from hardsight.people.matching import bin_members
from hardsight.stats import FEW
from hardsight.studies.declared.people import human_frequency
from hardsight.studies.declared.ranking import SMALL_NETWORKS, trained_network
from hardsight.studies.declared.training import SMALL_CIFAR
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_FAST = {"precision": "bf16", "channels_last": True, "drop_last": True, "graph": True}
_SCORES = {"avh": "avh", "confidence": "confidence", "norm_within_class": "norm"}  # norms from 0 to 1 in each class
_EASY, _HARD = 0.9, 0.1  # share of people, and confidence


@STUDIES.register(
    "people-bins",
    question="Do AVH, confidence and norm agree with people among images that are equally hard for people?",
    paper="AVH, Table 1 and Fig. 5",
    factors={"network": ("alexnet-32", "vgg19-32", "resnet50-32", "densenet121-32")},
    details=("score", "bin"),
    measures={
        "agreement": Measure("Spearman's correlation with human selection frequency; positive: as expected"),
        "z": Measure("Fisher's z of it"),
        "samples": Measure("Number of images"),
        "both_high": Measure("Images with a human frequency and a confidence of 0.8 or more", True),
        "extreme": Measure("Images with a confidence below 0.1 or above 0.9", True),
        "hard_for_people": Measure("Images with a human frequency of 0.5 or less and a confidence above 0.9"),
        "hard_for_networks": Measure("Images with a human frequency of 0.9 or more and a confidence below 0.1"),
    },
    scales={
        "smoke": Scale(2, 8, settings={"data": "digits", "recipe": {"epochs": 3}}, levels={"network": ("small-cnn",)}),
        "quick": Scale(
            3, 40, settings=SMALL_CIFAR | {"data_human": "cifar10h.npz"}, levels={"network": SMALL_NETWORKS}
        ),
        "paper": Scale(
            5, 300, "NVIDIA H200",
            {"data": "cifar10.npz", "data_human": "cifar10h.npz", "recipe": {**_FAST, "epochs": 30}},
        ),
    },
    compare="score",
    baseline="confidence",
)  # fmt: skip
def _binned(cell: Cell) -> list[dict[str, Any]]:
    """One row per score and bin of human frequency."""
    model, test = trained_network(cell)
    table = hs.score(model, test, device=cell.device, progress=False)
    frequency = human_frequency(cell, table["label"])
    human = dict(zip(table["id"].tolist(), frequency.tolist(), strict=True))
    aligned = hs.align(table, human, scores=["avh", "confidence", "norm"], norm="class", coefficients=["spearman"])
    joint = confidence_by_frequency(table["confidence"], frequency)
    return [
        {
            "score": _SCORES[row["score"]], "bin": row["bin"], "samples": row["n"],
            "agreement": row["agreement"], "z": math.atanh(row["agreement"]),
            **(joint.get(row["bin"], {}) if row["score"] == "confidence" else {}),
        }
        for row in aligned.rows.to_pylist()
        if row["agreement"] is not None and abs(row["agreement"]) < 1
    ]  # fmt: skip


def confidence_by_frequency(confidence: np.ndarray, frequency: np.ndarray) -> dict[str, dict[str, float]]:
    """What Fig. 5 shows of confidence against human selection frequency: measures by bin, and of all images.

    Examples:
        >>> joint = confidence_by_frequency(np.array([0.95, 0.05, 0.5, 0.99, 0.9]), np.array([0.3, 1, 1, 0.9, 0.9]))
        >>> joint["all"]
        {'extreme': 0.6, 'both_high': 0.4, 'hard_for_people': 1.0, 'hard_for_networks': 1.0}
    """
    extreme = (confidence < _HARD) | (confidence > _EASY)
    whole = {
        "extreme": extreme.mean(),
        "both_high": ((confidence >= 0.8) & (frequency >= 0.8)).mean(),
        "hard_for_people": ((confidence > _EASY) & (frequency <= 0.5)).sum(),
        "hard_for_networks": ((confidence < _HARD) & (frequency >= _EASY)).sum(),
    }
    measured = {"all": {name: float(value) for name, value in whole.items()}}
    bins = bin_members(frequency).items()
    return measured | {name: {"extreme": float(extreme[at].mean())} for name, at in bins if at.sum() >= FEW}
