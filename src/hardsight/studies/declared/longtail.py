"""Long-tailed recognition: what a bonus for well-classified examples adds to each method (EL, Table 3)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from hardsight.data import Samples, all_labels, open_data
from hardsight.longtail import accuracy_by_frequency, long_tailed, retrain_head
from hardsight.predictions import predict
from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

# The loss of each method; {late} is the epoch after which re-weighting begins, at nine tenths as in the paper.
_LOSSES = {
    "ce": "ce",
    "ce + conservative": "el:0.5",
    "ce + normal": "el:normal",
    "ce + aggressive": "el:aggressive",
    "effective number": "ce:weight=effective",
    "logit adjustment": "ce@adjusted",
    "drw": "ce:drw={late}",
    "drw + normal": "el:normal,uniform,drw={late}",
    "drw + normal, as released": "el:normal,drw={late},defer={late}",  # a bonus with class weights, in the last tenth
    "ldam-drw": "ce:drw={late}@ldam",
    "crt": "ce",
    "crt + normal": "el:normal",
}
_METHODS = tuple(_LOSSES)
_MEASURES = {
    "all": Measure("Accuracy", True, "higher"),
    "many": Measure("Accuracy, classes with more than 100 training samples", True, "higher"),
    "medium": Measure("Accuracy, classes with 20 to 100 training samples", True, "higher"),
    "few": Measure("Accuracy, classes with fewer than 20 training samples", True, "higher"),
}
_CIFAR = {"data": "cifar10.npz", "model": "cifar-lt"}
# A fifth of the epochs of the literature's recipe, hence a rate that falls along a cosine.
_SHORT = {
    "epochs": 40, "batch_size": 256, "lr": 0.2, "schedule": "cosine", "steps": (), "precision": "bf16",
    "channels_last": True, "drop_last": True, "graph": True,
}  # fmt: skip
_INATURALIST = {"data": ("train2018.json", "val2018.json"), "model": "inat-resnet50", "recipe": {}}
_SMOKE = {"data": "digits", "model": "small-cnn", "recipe": {"epochs": 3}}


def _data(cell: Cell) -> tuple[Samples, Samples]:
    training, test = split_data(cell)
    return long_tailed(training, float(cell.levels.get("ratio", 10)), seed=cell.seed), test


def _measured(cell: Cell, data: Samples, test: Samples) -> dict[str, Any]:
    method, recipe = cell.levels["method"], recipe_of(cell)
    loss = _LOSSES[method].format(late=int(0.9 * recipe.epochs))
    shared = loss in (_LOSSES["crt"], _LOSSES["crt + normal"])  # cRT begins with the training of ce, or of ce + normal
    name = "-".join([cell.levels.get("ratio", ""), str(cell.seed), loss.partition(":")[0]])
    with cell.shared(name) if shared else nullcontext(cell.folder / "run") as folder:
        model = train_cell(cell, (data,), recipe.replace(loss=loss), out=folder).model
    if method.startswith("crt"):
        model = retrain_head(model, data, seed=cell.seed, device=cell.device)
    predictions = predict(model, test, device=cell.device)
    labels, counts = all_labels(test, "test")[predictions.rows], np.bincount(all_labels(data, "data"))
    return accuracy_by_frequency(predictions.probabilities.argmax(1), labels, counts)


@STUDIES.register(
    "cifar10-lt",
    question="Does a bonus for well-classified examples help on long-tailed data?",
    paper="EL, Table 3 (there iNaturalist-2018)",
    factors={"ratio": ("10", "100"), "method": _METHODS},
    measures=_MEASURES,
    scales={
        "smoke": Scale(1, 5, settings=_SMOKE, levels={"ratio": ("10",), "method": ("ce", "drw + normal", "crt")}),
        "quick": Scale(5, 70, "NVIDIA H200", _CIFAR | {"recipe": _SHORT}),
        "paper": Scale(5, 200, "NVIDIA H200", _CIFAR | {"recipe": {}}),
    },
    compare="method",
    baseline="ce",
)
def _cifar10_lt(cell: Cell) -> dict[str, Any]:
    return _measured(cell, *_data(cell))


@STUDIES.register(
    "inaturalist",
    question="Does a bonus for well-classified examples help on long-tailed data?",
    paper="EL, Table 3",
    factors={"method": _METHODS},
    measures=_MEASURES,
    scales={
        "smoke": Scale(1, 5, settings=_SMOKE, levels={"method": ("ce", "drw + normal, as released")}),
        "paper": Scale(1, 200_000, "4 GPUs", _INATURALIST),
    },
    compare="method",
    baseline="ce",
)
def _inaturalist(cell: Cell) -> dict[str, Any]:
    files = cell.settings["data"]
    return _measured(cell, *(_data(cell) if files == "digits" else (open_data(cell.file(name)) for name in files)))
