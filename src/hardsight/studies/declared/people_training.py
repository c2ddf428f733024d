"""How training changes agreement with people: networks trained on angles, and recipes of equal cost.

All trainings have the same network, data, batch size, learning rate and number of epochs, so they cost the same.
Nothing is selected by people's answers, so all images are used. ``…_late`` is standardized within each epoch and
averaged over the later half of them, as in `Dynamics.summary` for ``soft_margin_late``. ``…@cosine`` are scores of the
cosines alone, times 16: the logits of a network that was trained on cosines, except for their scale.

Both studies measure the same cells, so that rows of one can be shown as the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F

import hardsight as hs
from hardsight.data import all_labels
from hardsight.people.candidates import epoch_means
from hardsight.studies.declared.people import AGREEMENT, CIFAR_RECIPE, agreement_rows, human_frequency
from hardsight.studies.declared.training import (
    SMALL_CIFAR,
    embed,
    pixels_and_labels,
    recipe_of,
    split_data,
    train_cell,
)
from hardsight.studies.study import STUDIES, Cell, Measure, Scale
from hardsight.tablefiles import floats

COSINE_SCALE = 16.0
_CROPS = {"resized_crop": True, "flip": True, "smallest_part": 0.25}
TRAININGS: dict[str, dict[str, Any]] = {
    "ce": {},
    "cosine": {"loss": "ce@cosine"},
    "cosface": {"loss": "ce@cosface"},
    "avh": {"loss": "avh:16"},
    "crops": _CROPS,
    "ema": {"ema": 0.99},
    "crops + cosface": _CROPS | {"loss": "ce@cosface"},
    "crops + cosface + ema": _CROPS | {"loss": "ce@cosface", "ema": 0.99},
}
_ANGULAR = ("ce", "cosine", "cosface", "avh")
_LAST = ("avh", "angle", "angular_margin", "confidence", "soft_margin", "norm")
_LATE = ("avh", "confidence", "soft_margin")


def _scales(trainings: tuple[str, ...], smoke: tuple[str, ...]) -> dict[str, Scale]:
    """On a CPU a small network and a fifth of the images to train on; people's images are all there."""
    digits = {"data": "digits", "model": "small-cnn", "recipe": {"epochs": 3}}
    people = {"data_human": "cifar10h.npz"}
    quick = people | SMALL_CIFAR
    paper = people | {"data": "cifar10.npz", "model": "cifar-resnet18", "recipe": CIFAR_RECIPE | {"epochs": 30}}
    levels = {"training": trainings}
    return {
        "smoke": Scale(1, 5, settings=digits, levels={"training": smoke}),
        "quick": Scale(5, 60, settings=quick, levels=levels),
        "paper": Scale(5, 60, "NVIDIA H200", paper, levels),
    }


def _agreement(cell: Cell) -> list[dict[str, Any]]:
    """The accuracy of a training, and one row per score."""
    training, test = split_data(cell)
    labels = all_labels(test, "data")
    recipe = recipe_of(cell, **TRAININGS[cell.levels["training"]])
    trained = train_cell(cell, (training, test), recipe, cell.settings.get("network"), record=("test",))
    dynamics = hs.Dynamics(cell.folder / "run" / "test")
    last, late = dynamics.at(recipe.epochs).aligned(test.ids), epoch_means(dynamics, test.ids)
    columns = {name: floats(last[name]) for name in _LAST} | {f"{name}_late": late[f"{name}_late"] for name in _LATE}
    pixels, y = pixels_and_labels(test, cell.device)
    features, _, weight, _ = embed(trained.model.module, pixels)
    cosines = F.normalize(features, dim=1), COSINE_SCALE * F.normalize(weight, dim=1)
    scores = hs.scores.compute_scores(*cosines, y.to(features.device), None, ("confidence", "soft_margin"))
    columns |= {f"{name}@cosine": scores[name].cpu().numpy() for name in ("confidence", "soft_margin")}
    rows = agreement_rows(columns, human_frequency(cell, labels))
    return [{"score": "", "accuracy": trained.history[-1]["test_accuracy"], "n": len(labels)}, *rows]


def _avh_against_confidence(levels: Mapping[str, str]) -> str:
    return "AVH" if levels["score"] == "avh" else "other scores"


def _accuracy_and_late_margin(levels: Mapping[str, str]) -> str:
    return "main" if levels["score"] in ("", "soft_margin_late") else "other scores"


_study = partial(
    STUDIES.register,
    details=("score",),
    measures={**AGREEMENT, "accuracy": Measure("Test accuracy", True, "higher")},
    paper="",
)
_study(
    "people-angle",
    question="Does AVH agree with people on networks trained in angle?",
    factors={"training": _ANGULAR},
    scales=_scales(_ANGULAR, ("cosface", "avh")),
    compare="score",
    baseline="confidence",
    family=_avh_against_confidence,
)(_agreement)
_study(
    "people-recipes",
    question="Which training of equal cost is accurate and agrees with people?",
    factors={"training": tuple(TRAININGS)},
    scales=_scales(tuple(TRAININGS), ("ce", "crops + cosface + ema")),
    compare="training",
    baseline="ce",
    family=_accuracy_and_late_margin,
)(_agreement)
