"""Norm, AVH and accuracy of degraded images while a network trains (AVH, Fig. 11, 12, 17 and 18)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.data import ArraySamples, JoinedSamples, Samples, all_labels
from hardsight.dynamics import Dynamics
from hardsight.questions import DEGRADATIONS, at_every_level
from hardsight.studies.declared.dynamics import FAST, SMALL_STEPS
from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_NAMES = ("noise", "contrast")


@STUDIES.register(
    "degraded-training",
    question="Do norm and AVH follow the level of noise and of contrast, during and after training?",
    paper="AVH, Fig. 11, 12, 17 and 18",
    factors={"network": ("alexnet-32", "vgg19-32", "resnet50-32", "densenet121-32")},
    details=("degradation", "level"),
    measures={
        "avh": Measure("Mean C·AVH after the last epoch", better="lower"),
        "norm": Measure("Mean norm after the last epoch"),
        "accuracy": Measure("Accuracy after the last epoch", True, "higher"),
        "rise": Measure("Increase of mean C·AVH from the previous level, after the last epoch"),
        "ordered": Measure("Epochs in which mean AVH is above that of the previous level", True),
    },
    scales={
        "smoke": Scale(
            1, 8, settings={"data": "digits", "recipe": {"epochs": 4}, "images": 100},
            levels={"network": ("small-cnn",)},
        ),
        "quick": Scale(
            3, 400, settings=SMALL_STEPS | {"images": 1000}, levels={"network": ("strided-cnn", "resnet8-32")}
        ),
        "paper": Scale(5, 300, "NVIDIA H200", {"data": "cifar10.npz", "recipe": FAST, "images": None}),
    },
)  # fmt: skip
def _measured(cell: Cell) -> list[dict[str, Any]]:
    """Train, and record test images at every level of both degradations; rows begin with the easiest level."""
    settings, name = cell.settings, cell.levels["network"]
    training, test = split_data(cell)
    degraded = JoinedSamples({kind: at_every_level(_arrays(test, settings["images"]), kind) for kind in _NAMES})
    train_cell(cell, (training, degraded), recipe_of(cell, settings.get("model", name)), name, record=("test",))
    run = Dynamics(cell.folder / "run" / "test")
    values = {value: run.matrix(value) for value in ("avh", "norm", "correct")}
    levels_of = np.array([id_.split("/")[1] for id_ in run.ids])  # the ids are NAME/NAME=LEVEL/ID
    rows: list[dict[str, Any]] = []
    for kind in _NAMES:
        before = None
        for level in DEGRADATIONS[kind].levels:
            at = levels_of == f"{kind}={level:g}"
            avh, norm, right = (part[at].mean(0) for part in values.values())
            row = {"degradation": kind, "level": f"{level:g}", "norm": norm[-1], "accuracy": right[-1]}
            row["avh"] = run.classes * avh[-1]
            if before is not None:
                row |= {"rise": run.classes * (avh - before)[-1], "ordered": (avh > before).mean()}
            before = avh
            rows.append({name: value if isinstance(value, str) else float(value) for name, value in row.items()})
    return rows


def _arrays(samples: Samples, count: int | None) -> ArraySamples:
    """The first images as arrays."""
    images, labels = samples.images[:count], all_labels(samples, "data")[:count]  # pyrefly: ignore
    return ArraySamples(images, labels, samples.split, samples.origin, samples.classes, samples.ids[:count])
