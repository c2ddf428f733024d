"""Agreement with people by how often they choose the label (AVH, Table 1): CIFAR-10 networks against CIFAR-10H."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import hardsight as hs
from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_FAST = {"precision": "bf16", "channels_last": True, "drop_last": True, "graph": True}
_SCORES = {"avh": "avh", "confidence": "confidence", "norm_within_class": "norm"}  # norms from 0 to 1 in each class


@STUDIES.register(
    "people-bins",
    question="Do AVH, confidence and norm agree with people among images that are equally hard for people?",
    paper="AVH, Table 1",
    factors={"network": ("alexnet-32", "vgg19-32", "resnet50-32", "densenet121-32")},
    details=("score", "bin"),
    measures={
        "agreement": Measure("Spearman's correlation with human selection frequency; positive: as expected"),
        "z": Measure("Fisher's z of it"),
        "samples": Measure("Number of images"),
    },
    scales={
        "smoke": Scale(2, 8, settings={"data": "digits", "recipe": {"epochs": 3}}, levels={"network": ("small-cnn",)}),
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
    (training, test), name, settings = split_data(cell), cell.levels["network"], cell.settings
    model = train_cell(cell, (training, test), recipe_of(cell, name), name).model
    if "data_human" in settings:
        human: Any = cell.file(settings["data_human"])
    else:
        draw = np.random.default_rng(0)
        shares = draw.binomial(50, draw.beta(2, 1, len(test))) / 50
        human = dict(zip(test.ids, shares.tolist(), strict=True))
    table = hs.score(model, test, device=cell.device, progress=False)
    aligned = hs.align(table, human, scores=["avh", "confidence", "norm"], norm="class", coefficients=["spearman"])
    return [
        {
            "score": _SCORES[row["score"]], "bin": row["bin"], "samples": row["n"],
            "agreement": row["agreement"], "z": math.atanh(row["agreement"]),
        }
        for row in aligned.rows.to_pylist()
        if row["agreement"] is not None and abs(row["agreement"]) < 1
    ]  # fmt: skip
