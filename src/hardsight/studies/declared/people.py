"""Which score agrees best with people? CIFAR-10 networks against CIFAR-10H.

No score uses people's answers. Images are split once: scores may be selected on the *choosing* half and are reported on
the *reporting* half. ``soft_margin_late`` is the mean over the second half of the epochs, ``…_epochs`` over all of
them; ``neighbor_agreement`` is the share of the 50 nearest test images with the same label; ``avh@means`` is AVH with
class means of these images in place of class weights; ``…@views`` is the mean over ten shifted and mirrored views.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

import hardsight as hs
from hardsight.data import Samples, all_labels
from hardsight.studies.declared.training import embed, on_device, pixels_and_labels, split_data, train_cell
from hardsight.studies.study import STUDIES, Cell, Measure, Scale

SPLIT_SEED, _IMAGES = 20200713, 10_000
# Cross-entropy alone: smoothed labels would move angles and margins.
CIFAR_RECIPE = {"label_smoothing": 0.0, "lr": 0.4, "ema": 0.0, "graph": True}
_RECIPES = {
    "resnet18-32": {"epochs": 30},
    "densenet121-32": {"epochs": 12, "lr": 0.2},
    "resnet50-32": {"epochs": 15, "lr": 0.1},
    "vgg19-32": {"epochs": 30, "lr": 0.02, "batch_size": 256},
    "alexnet-32": {"epochs": 30, "lr": 0.02, "batch_size": 256},
    "amc13": {"epochs": 30, "lr": 0.1},
}
_SMALL = {"precision": "float32", "graph": False, "channels_last": False, "batch_size": 32, "warmup": 1.0, "lr": 0.05}
_VIEWED = ("avh", "angular_margin", "confidence", "soft_margin")
AGREEMENT = {
    "spearman": Measure("Spearman's correlation with human selection frequency", better="higher"),
    "pearson": Measure("Pearson's correlation", better="higher"),
    "kendall": Measure("Kendall's tau-b", better="higher"),
}
_COEFFICIENTS = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}


@STUDIES.register(
    "people",
    question="Which score agrees best with people?",
    paper="AVH, Table 2 and 6 to 9",
    factors={"network": tuple(_RECIPES)},
    details=("half", "score"),
    measures=AGREEMENT,
    scales={
        "smoke": Scale(
            1, 8, settings={"data": "digits", "recipe": _SMALL | {"epochs": 3}}, levels={"network": ("small-cnn",)}
        ),
        "paper": Scale(3, 60, "NVIDIA H200", {"data": "cifar10.npz", "data_human": "cifar10h.npz", "recipe": {}}),
    },
    compare="score",
    baseline="confidence",
)
def _agreement(cell: Cell) -> list[dict[str, Any]]:
    """One row per half and score: how well it agrees, with the sign that makes agreement positive."""
    (training, test), network = split_data(cell), cell.levels["network"]
    recipe = hs.presets.PRESETS["cifar-resnet18"].recipe.replace(**CIFAR_RECIPE | _RECIPES.get(network, {}))
    recipe = on_device(recipe.replace(**cell.settings["recipe"]).replace(seed=cell.seed), cell.device)
    trained = train_cell(cell, (training, test), recipe, network, record=("test",))
    columns, labels = _columns(trained.model.module, test, cell.device), all_labels(test, "data")
    columns |= _over_epochs(hs.Dynamics(cell.folder / "run" / "test"), test.ids)
    frequency = human_frequency(cell, labels)
    choosing = np.zeros(max(_IMAGES, len(labels)), bool)
    choosing[np.random.default_rng(SPLIT_SEED).permutation(len(choosing))[: len(choosing) // 2]] = True
    rows = []
    for half, images in (("choosing", choosing[: len(labels)]), ("reporting", ~choosing[: len(labels)])):
        rows += [{"half": half, **row} for row in agreement_rows(columns, frequency, images)]
    return rows


def agreement_rows(
    columns: Mapping[str, np.ndarray], frequency: np.ndarray, images: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """One row per score: how well it agrees with people on some images (all if None), as `AGREEMENT` measures it."""
    images = np.ones(len(frequency), bool) if images is None else images
    rows = []
    for score, values in columns.items():
        sign = _direction(score)
        agreed = {name: sign * of(values[images], frequency[images]).statistic for name, of in _COEFFICIENTS.items()}
        rows.append({"score": score, **agreed, "n": int(images.sum())})
    return rows


def _direction(score: str) -> int:
    """+1 where people should choose the label more often as the score grows."""
    base = score.partition("@")[0].removesuffix("_epochs").removesuffix("_late")
    return 1 if base == "neighbor_agreement" or not hs.SCORES[base].higher_is_harder else -1


def human_frequency(cell: Cell, labels: np.ndarray) -> np.ndarray:
    """The share of people who chose the label: CIFAR-10H, or for the digits a simulation in which half tie at 1."""
    if "data_human" in cell.settings:
        counts = np.load(cell.file(cell.settings["data_human"]))["counts"][: len(labels)]
        return counts[np.arange(len(labels)), labels] / counts.sum(1)
    draw = np.random.default_rng(0)
    return draw.binomial(50, np.minimum(draw.beta(9, 1, len(labels)) + 0.1, 1)) / 50


def _over_epochs(dynamics: hs.Dynamics, ids: list[str]) -> dict[str, np.ndarray]:
    """Means over the epochs, in the order of the data."""
    place = {name: row for row, name in enumerate(dynamics.ids.tolist())}
    rows = np.array([place[name] for name in ids])
    values = {name: dynamics.matrix(name)[rows] for name in ("avh", "confidence", "soft_margin", "norm")}
    means = {f"{name}_epochs": matrix.mean(1) for name, matrix in values.items()}
    margins = values["soft_margin"]
    return means | {"soft_margin_late": margins[:, margins.shape[1] // 2 :].mean(1)}


@torch.no_grad()
def _columns(network: nn.Module, test: Samples, device: torch.device) -> dict[str, np.ndarray]:
    """Scores of the test images; ``name@what`` is a score under other conditions."""
    pixels, labels = pixels_and_labels(test, device)
    pixels = pixels.float() / 255
    features, _, weight, bias = embed(network, pixels)
    columns = _scores(features, weight, labels, bias, tuple(hs.SCORES))
    means = torch.stack([features[labels == label].mean(0) for label in range(len(weight))])
    columns |= {f"{name}@means": values for name, values in _scores(features, means, labels, None, ("avh",)).items()}
    units = F.normalize(features, dim=1)
    cosines = (units @ units.T).fill_diagonal_(-torch.inf)
    nearest = labels[cosines.topk(min(50, len(labels) - 1), 1).indices]
    columns["neighbor_agreement"] = (nearest == labels[:, None]).double().mean(1).cpu().numpy()
    side, shifted = pixels.shape[-1], F.pad(pixels, (2, 2, 2, 2), mode="reflect")
    moved = [shifted[..., a : a + side, b : b + side] for a, b in ((0, 0), (0, 4), (2, 2), (4, 0), (4, 4))]
    views = [embed(network, view).features for image in moved for view in (image, image.flip(3))]
    each = [_scores(view, weight, labels, bias, _VIEWED) for view in views]
    return columns | {f"{name}@views": np.mean([view[name] for view in each], 0) for name in _VIEWED}


def _scores(
    features: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, names: tuple[str, ...]
) -> dict[str, np.ndarray]:
    scores = hs.scores.compute_scores(features, weight, labels, bias, names)
    return {name: scores[name].cpu().numpy() for name in names}
