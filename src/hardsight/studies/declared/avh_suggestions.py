"""What the AVH paper suggests without an experiment: AVH of rare classes, and of classes that a network never saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import hardsight as hs
from hardsight.data import View, all_labels
from hardsight.longtail import long_tailed
from hardsight.questions.ood import ood_scores
from hardsight.stats import auroc
from hardsight.studies.declared.training import (
    SMALL_CIFAR,
    embed,
    pixels_and_labels,
    recipe_of,
    split_data,
    train_cell,
)
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

CLASSES, UNKNOWN = 10, 4
_SCALES = {
    "smoke": Scale(2, 3, settings={"data": "digits", "model": "small-cnn", "recipe": {"epochs": 3}}),
    "quick": Scale(5, 40, settings=SMALL_CIFAR),
}


@STUDIES.register(
    "imbalance",
    question="Is AVH higher for classes that are rare in training?",
    paper="AVH, appendix G",
    factors={"ratio": ("1", "10", "100")},
    measures={
        "avh": Measure("Mean C·AVH of the rarer half of the classes less that of the other half"),
        "confidence": Measure("Mean confidence in the label, the same difference", True),
        "accuracy": Measure("Accuracy, the same difference", True),
    },
    scales=_SCALES | {"smoke": replace(_SCALES["smoke"], levels={"ratio": ("1", "10")})},
    compare="ratio",
    baseline="1",
)
def _rare_classes(cell: Cell) -> dict[str, float]:
    """Train on a long-tailed subset; the test data stay balanced."""
    training, test = split_data(cell)
    training = long_tailed(training, float(cell.levels["ratio"]), seed=cell.seed)
    model = train_cell(cell, (training, test), recipe_of(cell), cell.settings.get("network")).model
    table = hs.score(model, test, device=cell.device, progress=False)
    rare = table["label"] >= CLASSES // 2  # the first class keeps the most samples, the last one the fewest
    values = {
        "avh": CLASSES * table["avh"],
        "confidence": table["confidence"],
        "accuracy": table["pred"] == table["label"],
    }
    return {name: float(value[rare].mean() - value[~rare].mean()) for name, value in values.items()}


@STUDIES.register(
    "open-set",
    question="Does AVH tell unknown classes from known ones better than confidence does?",
    paper="AVH, Observation 4",
    factors={},
    details=("score",),
    measures={"auroc": Measure("AUROC of known against unknown classes", True, "higher")},
    scales=_SCALES,
    compare="score",
    baseline="msp",
)
def _unknown_classes(cell: Cell) -> list[dict[str, Any]]:
    """Train on six classes, another draw per seed; test images of the other four are unknown."""
    training, test = split_data(cell)
    known = np.sort(np.random.default_rng(cell.seed).permutation(CLASSES)[UNKNOWN:])
    data = known_classes(training, known), known_classes(test, known)
    network = train_cell(cell, data, recipe_of(cell), cell.settings.get("network")).model.module
    pixels, labels = pixels_and_labels(test, cell.device)
    features, logits, weight, bias = embed(network, pixels)
    names = ("msp", "max_logit", "norm", "avh", "avc", "angular_margin")
    scores = ood_scores(logits, features, weight, names, bias=bias)
    inside = np.isin(labels.cpu().numpy(), known)
    return [{"score": name, "auroc": auroc(values[inside], values[~inside]).value} for name, values in scores.items()]


def known_classes(samples: Any, known: np.ndarray) -> View:
    """The samples of some classes, whose labels become 0, 1, …"""
    labels = all_labels(samples, "data")
    rows = np.flatnonzero(np.isin(labels, known))
    names = None if samples.classes is None else [samples.classes[label] for label in known]
    return View(samples, rows, labels=np.searchsorted(known, labels[rows]), classes=names)
