"""Does AVH, its mean or its agreement with people, rank networks as their accuracy does?

Networks are scored once, not recorded in training. On a CPU they are small ones of six architectures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hardsight as hs
from hardsight.correlation import spearman
from hardsight.data import Samples
from hardsight.models import new_model
from hardsight.people import frequency_bins
from hardsight.printing import number_text
from hardsight.stats import FEW
from hardsight.studies.claims import JUDGES, NO, NOT_SHOWN, YES, Claim, Finding, over_lines, unmeasured
from hardsight.studies.declared.avh_measures import permutation_p
from hardsight.studies.declared.people import human_frequency
from hardsight.studies.declared.training import (
    SMALL_CIFAR,
    Embedded,
    embed,
    pixels_and_labels,
    recipe_of,
    split_data,
    train_cell,
)
from hardsight.studies.study import STUDIES, Cell, Measure, Scale
from hardsight.studies.tables import Results
from hardsight.table import SampleTable

ALL, CLASSES = "all samples", 10
_PRESETS = (
    "alexnet-32", "vgg19-32", "resnet50-32", "densenet121-32", "cifar-resnet18", "cifar-lt", "efficientnet_b0-32",
)  # fmt: skip
SMALL_NETWORKS = (
    "strided-cnn", "timm:test_resnet", "timm:test_byobnet", "timm:test_efficientnet", "timm:test_convnext",
    "timm:test_mambaout",
)  # fmt: skip


def mean_hardness(table: SampleTable, human: Any = None) -> list[dict[str, Any]]:
    """Mean C·AVH and accuracy of a scored network: over all samples, and by bin of human selection frequency.

    Args:
        table: Its scores, with labels.
        human: Frequencies ``(N,)`` in the order of the rows, NaN where there are none.

    Returns:
        Rows ``bin``, ``n``, ``avh``, ``accuracy``; of all samples ``agreement``, Spearman's correlation of AVH with the
        frequencies, positive where the paper expects it. Bins with fewer than 5 samples are left out.
    """
    classes = len(table.class_names) or int(max(table["label"].max(), table["pred"].max())) + 1
    hardness, right = classes * table["avh"], table["pred"] == table["label"]
    groups = {ALL: np.isfinite(hardness)}
    if human is not None:
        bins = np.array([str(level) for level in frequency_bins(np.asarray(human, float))])
        groups |= {name: groups[ALL] & (bins == name) for name in sorted(set(bins) - {"None"})}
    rows: list[dict[str, Any]] = [
        {"bin": name, "n": int(at.sum()), "avh": float(hardness[at].mean()), "accuracy": float(right[at].mean())}
        for name, at in groups.items()
        if at.sum() >= FEW
    ]
    if human is not None and rows:
        both = groups[ALL] & np.isfinite(human)
        rows[0]["agreement"] = -float(spearman(hardness[both], np.asarray(human, float)[both]).value)
    return rows


def rank_networks(runs: Mapping[str, SampleTable | str | Path], human: Any = None) -> Results:
    """Scored networks as rows of the study `net-ranking`: `judged` says whether mean AVH ranks them by accuracy.

    Args:
        runs: Tables or run folders of `hardsight.score` by the name of the network, on the same samples with labels.
        human: As for `mean_hardness`.
    """
    rows = []
    for name, run in runs.items():
        table = run if isinstance(run, SampleTable) else SampleTable.load(run)
        rows += [{"network": name, "seed": 0, **row} for row in mean_hardness(table, human)]
    return Results(STUDIES["net-ranking"], rows, Path(), len(runs))


@STUDIES.register(
    "net-ranking",
    question="Do better networks have a lower mean AVH, after every epoch and in every bin of human frequency?",
    paper="AVH, Observation 4",
    factors={"network": _PRESETS},
    details=("bin",),
    measures={
        "avh": Measure("Mean C·AVH", better="lower"),
        "accuracy": Measure("Accuracy", True, "higher"),
        "agreement": Measure("Spearman's correlation of AVH with human selection frequency", better="higher"),
        "nearest": Measure("Samples whose nearest class by angle is the predicted one", True),
    },
    scales={
        "smoke": Scale(1, 5, settings={"data": "digits", "recipe": {"epochs": 3}}, levels={"network": ("small-cnn",)}),
        "quick": Scale(
            3, 40, settings=SMALL_CIFAR | {"data_human": "cifar10h.npz"}, levels={"network": SMALL_NETWORKS}
        ),
        "paper": Scale(
            3, 60, "NVIDIA H200", {"data": "cifar10.npz", "data_human": "cifar10h.npz", "recipe": {"epochs": 30}}
        ),
    },
)
def _scored(cell: Cell) -> list[dict[str, Any]]:
    """Train a network and score the test samples: after each epoch, and with its last weights."""
    model, test = trained_network(cell, record=("test",))
    table = hs.score(model, test, device=cell.device, progress=False)
    rows = mean_hardness(table, human_frequency(cell, table["label"]))
    rows[0]["nearest"] = nearest_by_angle(embed(model.module, pixels_and_labels(test, cell.device)[0]))
    course = hs.Dynamics(cell.folder / "run" / "test").curves(values=("avh", "correct")).to_pylist()
    return rows + [
        {"bin": f"epoch {row['epoch']}", "avh": CLASSES * row["avh_mean"], "accuracy": row["correct_mean"]}
        for row in course
    ]


def nearest_by_angle(embedded: Embedded) -> float:
    """The share of samples whose nearest class by angle is the predicted one: norms and biases of classes decide the
    others.

    Examples:
        >>> features, weight = torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
        >>> nearest_by_angle(Embedded(features, features @ weight.T, weight, None))
        0.5
    """
    nearest = (embedded.features @ nn.functional.normalize(embedded.weight, dim=1).T).argmax(1)
    return float((nearest == embedded.logits.argmax(1)).double().mean())


def trained_network(cell: Cell, record: tuple[str, ...] = ()) -> tuple[hs.Model, Samples]:
    """The network that a cell names, trained on the settings' data, and the test samples."""
    data, name = split_data(cell), cell.levels["network"]
    network: Any = name
    if name.startswith("timm:"):  # by name its preprocessing would enlarge the images
        with torch.random.fork_rng():
            torch.manual_seed(cell.seed)
            network = new_model(name, CLASSES).module
    recipe = recipe_of(cell, cell.settings.get("model", name))
    return train_cell(cell, data, recipe, network, record=record).model, data[1]


@JUDGES.register("rank", of="study")
def _rank(claim: Claim, results: Results) -> Iterator[tuple[str, Finding]]:
    """yes: Spearman's correlation over the networks has the claimed sign and a two-sided p (exact up to 7) below 0.05;
    no: the other sign and such a p; not shown: otherwise."""

    def finding(values: np.ndarray, base: np.ndarray) -> Finding:
        n, p = len(values), permutation_p(values, base) if len(values) > 2 else None
        if p is None:
            return unmeasured("three networks or more that differ are needed", n)
        rho = float(spearman(values, base).value)
        agrees = (rho > 0) == (claim.expected == "higher")
        verdict = NOT_SHOWN if p >= 0.05 else YES if agrees else NO
        return Finding(verdict, f"Spearman {number_text(rho, '.2f')} (p = {p:.2g}), {n} networks", n, rho, p=p)

    return over_lines(claim, results, finding)
