"""What do the losses buy? OOD detection, robustness, calibration, class activation maps and clusters.

Every network is evaluated after its last epoch: nothing is chosen on test data. Attacks, halves and images are the same
for all networks. ``--where family=main`` shows the numbers that were chosen beforehand; the others are corrected by
question. The released log's ε of 0.2 in normalized units is 0.0616 in pixel values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import hardsight as hs
from hardsight.stats import share_interval
from hardsight.studies.declared.losses import CIFAR, MNIST
from hardsight.studies.declared.training import SMALL_CIFAR, SMALL_MNIST, recipe_of, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

# Name: loss, label smoothing.
_ARMS = {
    "ce": ("ce", 0.0),
    "el-released": ("el:normal", 0.0),
    "el": ("el:0.75", 0.0),
    "ce-smooth": ("ce", 0.1),
    "el-smooth": ("el:0.75", 0.1),
    "euclid": ("euclid:paper", 0.0),
    "amc": ("amc:paper", 0.0),
    "amc-released": ("amc:released", 0.0),
    "mse": ("mse", 0.0),
    "mirror": ("mirror", 0.0),
    "mse-sigmoid": ("mse:sigmoid", 0.0),
    "mirror-sigmoid": ("mirror:sigmoid", 0.0),
}
_ATTACKS = {
    ("fgsm", "pgd", "pgd-margin", "pgd-dlr"): (0.0616, 0.1, 0.2, 0.3, 0.5),
    ("pgd-l2", "pgd-margin-l2"): (1.0, 2.0, 3.0, 10.0),
}
_MNIST_ARMS = ("ce", "el-released", "el")
_TABLE_5_ARMS = (*_MNIST_ARMS, "mse", "mirror", "mse-sigmoid", "mirror-sigmoid")  # the last four are not attacked
_QUICK = Scale(5, 70, settings=SMALL_CIFAR | {"limit": 1000})
_DETAILS = ("question", "metric", "score", "on", "level")


def _register(
    name: str, question: str, paper: str, arms: Sequence[str], scales: Mapping[str, Scale], main: Sequence[tuple]
) -> Callable[..., Any]:
    """A study whose main family of tests is `main`: question, metric, score, OOD data, level."""

    def family(levels: Mapping[str, str]) -> str:
        key = tuple(levels.get(column, "") for column in _DETAILS)
        return "main" if key in main else levels["question"]

    return STUDIES.register(
        name, question=question, paper=paper, factors={"arm": arms}, details=_DETAILS, scales=scales, family=family,
        measures={"value": Measure("Value")}, compare="arm", baseline="ce",
    )  # fmt: skip


def _scales(
    arms: Sequence[str], quick: Scale, paper: dict[str, Any], seconds: float, seeds: int, asked: dict[str, Any]
) -> dict[str, Scale]:
    """At smoke scale a few of the arms; at quick scale a small network and a part of the training images."""
    few = {"attacks": {("fgsm", "pgd"): (0.1,)}} if "attacks" in asked else {}
    digits = {"data": "digits", "model": "small-cnn", "recipe": {"epochs": 2}, "limit": 8, "data_ood": ()}
    return {
        "smoke": Scale(1, 5, settings=asked | digits | few, levels={"arm": arms}),
        "quick": replace(quick, settings={**asked, **quick.settings}),
        "paper": Scale(seeds, seconds, "NVIDIA H200", paper | asked | {"limit": 1000}),
    }


def _answers(cell: Cell) -> list[dict[str, Any]]:
    """Train with a loss and ask the network everything that the study asks."""
    settings, data = cell.settings, split_data(cell)
    loss, smoothing = _ARMS[cell.levels["arm"]]
    recipe = recipe_of(cell, loss=loss, label_smoothing=smoothing)
    trained, test = train_cell(cell, data, recipe, settings.get("network")), data[1]
    ask = partial(_rows, cell, hs.evaluation.Subject("network", trained.model, test))
    ood = [(name.removesuffix(".npz"), f"{cell.file(name)}:test") for name in settings["data_ood"]]
    rows = ask("answers", questions=settings["questions"], ood=ood, explain=settings.get("explain", False))
    attacked = settings.get("attacks", {}) if cell.levels["arm"] in settings.get("attacked", _ARMS) else {}
    for k, (attacks, eps) in enumerate(attacked.items()):
        rows += ask(f"attacks-{k}", questions=(), attacks=attacks, eps=eps)
    by_epoch = [row["test_accuracy"] for row in trained.history]
    return [_accuracy("accuracy", by_epoch[-1], len(test)), _accuracy("best", max(by_epoch), len(test)), *rows]


def _accuracy(metric: str, value: float, n: int) -> dict[str, Any]:
    low, high = share_interval(value * n, n)
    row = {"question": "accuracy", "metric": metric, "value": value, "low": low, "high": high, "n": n}
    return row | {"better": "higher"}


def _rows(cell: Cell, subject: hs.evaluation.Subject, name: str, **options: Any) -> list[dict[str, Any]]:
    """Rows of one evaluation."""
    common = {"limit": cell.settings["limit"], "out": cell.folder / name, "device": cell.device, "batch_size": 1000}
    rows = hs.evaluate([subject], **options, **common, progress=False).rows.to_pylist()
    columns = (*_DETAILS, "value", "low", "high", "n", "better")
    return [{key: None if row[key] != row[key] else row[key] for key in columns} for row in rows]


_ACCURACY = ("accuracy", "accuracy", "", "", "")
_register(
    "consequences-mnist",
    "Does the Encouraging Loss detect OOD data better, and is it more robust?",
    "EL, Table 4 and Fig. 7",
    _MNIST_ARMS,
    _scales(
        ("ce", "el-released"),
        Scale(5, 240, settings=SMALL_MNIST | {"limit": 200, "attacked": _MNIST_ARMS}, levels={"arm": _TABLE_5_ARMS}),
        MNIST,
        120,
        5,
        {"questions": ("calibration", "margins"), "data_ood": ("fashion_mnist.npz",), "attacks": _ATTACKS},
    ),
    (
        _ACCURACY,
        *(("ood", metric, "max_logit", "fashion_mnist", "") for metric in ("auroc", "fpr95")),
        *(("robustness", "accuracy", attack, "", "0.1") for attack in ("fgsm", "pgd", "pgd-margin")),
        *(("margins", "margin", score, "", "") for score in ("logit", "angular")),
        ("calibration", "ece", "softmax", "", ""),
    ),
)(_answers)  # fmt: skip
_register(
    "consequences-calibration",
    "Are networks trained with the Encouraging Loss calibrated?",
    "",
    ("ce", "el", "ce-smooth", "el-smooth"),
    _scales(("ce", "el"), _QUICK, CIFAR, 80, 3, {"questions": ("calibration", "margins"), "data_ood": ("svhn.npz",)}),
    (
        _ACCURACY,
        *(("calibration", "ece", score, "", "") for score in ("softmax", "softmax+T")),
        *(("ood", metric, "max_logit", "svhn", "") for metric in ("auroc", "fpr95")),
    ),
)(_answers)
_register(
    "consequences-maps",
    "Does the AMC-Loss make class activation maps compact and faithful, and classes clusters?",
    "AMC, Fig. 2 and 4 to 6",
    ("ce", "euclid", "amc", "amc-released"),
    _scales(("ce", "amc"), _QUICK, CIFAR, 80, 3, {"questions": ("clusters",), "data_ood": (), "explain": True}),
    (
        _ACCURACY,
        *(("explanation", metric, "", "", "") for metric in ("entropy", "area", "deletion", "insertion")),
        ("clusters", "homogeneity", "kmeans", "", ""),
        ("clusters", "silhouette", "", "", ""),
    ),
)(_answers)
