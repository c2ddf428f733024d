"""The AVH paper's observations on CIFAR-10: networks in training, judged with CIFAR-10H's human frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.dynamics import Dynamics
from hardsight.studies.claims import NO, PARTLY, YES
from hardsight.studies.declared.avh_claims import observations
from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

_SUPPORT = {YES: 1.0, PARTLY: 0.5, NO: 0.0}
# A fifth of the training images and two small networks, one with shortcuts: what a CPU can train, with both decays.
SMALL_STEPS = {
    "data": "cifar10.npz",
    "model": "small-cnn",
    "pool": 10_000,
    "recipe": {
        "epochs": 30, "batch_size": 128, "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "schedule": "step",
        "steps": (10, 20), "warmup": 0.0, "crop": 4, "flip": True,
    },
}  # fmt: skip
_PLAIN = ("small-cnn", "strided-cnn")  # without shortcuts, which their names do not say
FAST = {"precision": "bf16", "channels_last": True, "drop_last": True, "graph": True, "epochs": 30}


@STUDIES.register(
    "observations",
    question="Do networks in training behave as the AVH paper observes?",
    paper="AVH, Observations 1 to 4 and the conjecture",
    factors={"network": ("alexnet-32", "vgg19-32", "resnet50-32", "densenet121-32")},
    details=("source", "claim"),
    measures={
        "support": Measure("Support (1 yes, 0.5 partly, 0 no)", better="higher"),
        "value": Measure("The number that the verdict rests on"),
    },
    scales={
        "smoke": Scale(1, 10, settings={"data": "digits", "recipe": {"epochs": 8}}, levels={"network": ("small-cnn",)}),
        "quick": Scale(
            3, 500, settings=SMALL_STEPS | {"data_human": "cifar10h.npz"},
            levels={"network": ("strided-cnn", "resnet8-32")},
        ),
        "paper": Scale(
            2, 300, "NVIDIA H200", {"data": "cifar10.npz", "data_human": "cifar10h.npz", "recipe": FAST},
        ),
    },
)  # fmt: skip
def _judged(cell: Cell) -> list[dict[str, Any]]:
    """Train, record the test samples, and judge every claim about one network."""
    name, settings = cell.levels["network"], cell.settings
    training, test = split_data(cell)
    recipe = recipe_of(cell, settings.get("model", name))
    train_cell(cell, (training, test), recipe, name, record=("test",))
    run, human = Dynamics(cell.folder / "run" / "test"), None
    if "data_human" in settings:
        human = cell.file(settings["data_human"])
    elif settings["data"] == "digits":
        human = np.random.default_rng(0).binomial(50, 0.95, len(run)) / 50
    shortcuts = {name: False} if name in _PLAIN else None
    rows = observations({name: run}, human, shortcuts=shortcuts, decays=[int(at) for at in recipe.steps]).to_pylist()
    judged = [row for row in rows if row["net"] == name]
    return [{**row, "support": _SUPPORT.get(row["verdict"]), "net": None} for row in judged]
