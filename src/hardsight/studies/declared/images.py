"""The losses on the papers' data sets, with their networks and schedules (EL, Tables 1 and 2; AMC, Table 1 and Fig. 7).

The scale ``paper`` has the papers' own trainings, which take a GPU for minutes (MNIST) to days (ImageNet) each.
``best`` is the best epoch by test accuracy: what the papers print, and an oracle's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardsight.studies.declared.losses import CIFAR, LOG_ENDS, MNIST
from hardsight.studies.declared.training import recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale, Sweep

_BEST = Measure("Test accuracy of the best epoch (an oracle's)", True, "higher")
_LAST = Measure("Test accuracy", True, "higher")
_CIFAR100 = "cifar-100-binary|cifar100.npz"  # the download as it is, or arrays; super-classes are train_coarse there
_DIGITS = {"digits": {"data": "digits", "model": "small-cnn", "recipe": {"epochs": 2}}}


def _training(data: str, model: str, **recipe: Any) -> dict[str, Any]:
    return {"data": data, "model": model, "recipe": recipe}


def _files(*trainings: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The file that each setting needs."""
    return {name: (training["data"],) for part in trainings for name, training in part.items()}


def _trained(cell: Cell) -> dict[str, float]:
    """Train the network of a setting with a loss."""
    cell = replace(cell, settings=cell.settings["trainings"][cell.levels["setting"]])
    recipe = recipe_of(cell, loss=cell.levels["loss"])
    recipe = recipe.replace(lr=float(cell.levels.get("rate", 1)) * recipe.lr)
    history = train_cell(cell, split_data(cell), recipe, cell.settings.get("network")).history
    accuracies = [row["test_accuracy"] for row in history]
    return {"accuracy": accuracies[-1], "best": max(accuracies)}


_EL = {
    "mnist": _training("mnist.npz", "mnist-el"),
    "cifar10-resnet50": _training("cifar10.npz", "cifar-resnet50"),
    "cifar10-efficientnet": _training("cifar10.npz", "cifar-efficientnet"),
    "cifar100-resnet50": _training(_CIFAR100, "cifar-resnet50"),
    "cifar100-efficientnet": _training(_CIFAR100, "cifar-efficientnet"),
    "imagenet-resnet50": _training("imagenet", "resnet50"),
    "imagenet-efficientnet": _training("imagenet", "efficientnet"),
}
_EL_SHORT = {"mnist": MNIST, "cifar10-resnet18": CIFAR, "cifar100-resnet18": CIFAR | {"data": _CIFAR100}}
_ENDS = ("el:0", "el:0.25", "el:0.5", "el:0.75", "el:normal")


def _el(paper: float, quick: float, settings: tuple[str, ...], losses: tuple[str, ...]) -> dict[str, Scale]:
    short = {name: training for name, training in _EL_SHORT.items() if name != "mnist" or name in settings}
    smoke = {"setting": ("digits",), "loss": losses}
    return {
        "smoke": Scale(2, 2, settings={"trainings": _DIGITS}, levels=smoke),
        "quick": Scale(5, quick, "NVIDIA H200", {"trainings": short}, {"setting": tuple(short)}),
        "paper": Scale(5, paper, "NVIDIA H200", {"trainings": {name: _EL[name] for name in settings}}),
    }


STUDIES.register(
    "el-images",
    question="How much bonus for well-classified images helps, on the paper's data and networks?",
    paper="EL, Table 1 and Fig. 4",
    factors={"setting": tuple(_EL), "loss": ("ce", *_ENDS)},
    measures={"best": _BEST, "accuracy": _LAST},
    scales=_el(20_000, 45, tuple(_EL), ("ce", "el:0.5", "el:0.75")),
    compare="loss",
    baseline="ce",
    data=_files(_EL, _EL_SHORT),
    sweeps=(LOG_ENDS,),
)(_trained)
_RATED = ("cifar10-resnet50", "cifar100-resnet50")
STUDIES.register(
    "el-image-rates",
    question="Is the Encouraging Loss cross-entropy at another learning rate, on the paper's data and networks?",
    paper="EL, Table 2",
    factors={"setting": _RATED, "rate": ("0.5", "2"), "loss": ("ce", "el:normal")},
    measures={"best": _BEST, "accuracy": _LAST},
    scales=_el(4000, 50, _RATED, ("ce", "el:normal")),
    compare="loss",
    baseline="ce",
    data=_files(_EL, _EL_SHORT),
)(_trained)

_AMC = {
    "mnist": _training("mnist.npz", "amc13"),
    "cifar10": _training("cifar10.npz", "amc13"),
    "svhn": _training("svhn.npz", "amc13"),
    "cifar100-coarse": {**_training(_CIFAR100, "amc13-cifar100"), "label": "coarse"},
}
_AMC_SHORT = {name: {**training, "recipe": {"epochs": 30, "precision": "bf16"}} for name, training in _AMC.items()}
_AMC_LOSSES = ("ce", "euclid:paper,down", "amc:paper,down")


def _ramps(epochs: int, up: float, down: float) -> dict[str, Any]:
    return {"epochs": epochs, "schedule": "ramp", "warmup": up, "rampdown": down}


def _amc(settings: tuple[str, ...], losses: tuple[str, ...], quick: Scale) -> dict[str, Scale]:
    digits = {"digits": {**_DIGITS["digits"], "recipe": _ramps(3, 1, 1)}}
    short, paper = ({name: of[name] for name in settings} for of in (_AMC_SHORT, _AMC))
    return {
        "smoke": Scale(2, 2, settings={"trainings": digits}, levels={"setting": ("digits",), "loss": losses}),
        "quick": replace(quick, settings={"trainings": short, **quick.settings}),
        "paper": Scale(5, 1500, "NVIDIA H200", {"trainings": paper}),
    }


STUDIES.register(
    "amc-images",
    question="Does a contrastive loss on angles beat one on distances, on the paper's data and network?",
    paper="AMC, Table 1",
    factors={"setting": tuple(_AMC), "loss": _AMC_LOSSES},
    measures={"accuracy": _LAST, "best": _BEST},
    scales=_amc(tuple(_AMC), _AMC_LOSSES, Scale(5, 150, "NVIDIA H200")),
    compare="loss",
    baseline="ce",
    pooled="euclid:paper,down",  # Table 1's p-values are the AMC-Loss's against this one
    data=_files(_AMC),
)(_trained)

# λ of the paper's formula is twice the weight here, because it divides a sum over n/2 pairs by n.
_WEIGHTS = {f"amc:weight={balance / 2:g},down": balance for balance in (0.001, 0.01, 0.05, 0.5, 1.0)}
_MARGINS = {f"amc:weight=0.05,margin={margin:g},down": margin for margin in (0.75, 1.0, 1.25, 1.5)}
# The paper's optimizer and ramps on a small network, in proportion, for a CPU.
_SMALL = {**_AMC["cifar10"], "network": "strided-cnn", "pool": 10_000, "recipe": _ramps(10, 8 / 3, 5 / 3)}
_SWEPT = Scale(5, 40, settings={"trainings": {"cifar10": _SMALL}})
STUDIES.register(
    "amc-sweep",
    question="How much do the weight and the margin of the AMC-Loss matter?",
    paper="AMC, Fig. 7",
    factors={"setting": ("cifar10",), "loss": ("ce", "amc:paper,down", *_WEIGHTS, *_MARGINS)},
    measures={"accuracy": _LAST, "best": _BEST},
    scales=_amc(("cifar10",), ("ce", "amc:paper,down", next(iter(_WEIGHTS)), next(iter(_MARGINS))), _SWEPT),
    compare="loss",
    baseline="ce",
    data=_files(_AMC),
    sweeps=(
        Sweep("weight λ, margin 0.5", {"amc:paper,down": 0.1, **_WEIGHTS}, log=True),
        Sweep("margin, λ = 0.1", {"amc:paper,down": 0.5, **_MARGINS}),
    ),
)(_trained)
