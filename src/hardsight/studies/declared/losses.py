"""The papers' comparisons of losses: a training per cell, measured after its last epoch.

Nothing is chosen on test data. ``best`` is the best epoch by test accuracy: the papers' rule, and an oracle's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.data import Samples
from hardsight.studies.declared.training import (
    SMALL_CIFAR,
    embed,
    pixels_and_labels,
    recipe_of,
    split_data,
    train_cell,
)
from hardsight.studies.study import STUDIES, Cell, Measure, Scale, Sweep

_MEASURES = {
    "accuracy": Measure("Test accuracy", True, "higher"),
    "best": Measure("Test accuracy of the best epoch (an oracle's)", True, "higher"),
    "probe": Measure("Accuracy of a new linear head on frozen features", True, "higher"),
    "margin": Measure("Median margin of the logits"),
    "margin_p5": Measure("5th percentile of the margins"),
    "train_margin": Measure("Median margin of the training samples"),
    "energy": Measure("Mean energy of the label (−logit)"),
    "gradient": Measure("Norm of the gradient, mean over epochs"),
    "last_gradient": Measure("Norm of the gradient in the last epoch"),
    "homogeneity": Measure("Homogeneity of the predicted classes", True, "higher"),
    "completeness": Measure("Completeness of the predicted classes", True, "higher"),
    "kmeans_homogeneity": Measure("Homogeneity of k-means clusters", True, "higher"),
    "kmeans_completeness": Measure("Completeness of k-means clusters", True, "higher"),
}
# A large `clip` changes nothing but has the norm of the gradient recorded.
_RECIPE = {"label_smoothing": 0.0, "ema": 0.0, "graph": False, "clip": 1e9}
_DIGITS = {"data": "digits", "model": "small-cnn", "recipe": {"clip": 1e9}}
_SMOKE = {"data": "digits", "model": "small-cnn", "recipe": {"clip": 1e9, "epochs": 2}, "probe_epochs": 2}
CIFAR = {
    "data": "cifar10.npz",
    "model": "cifar-resnet18",
    "recipe": _RECIPE | {"epochs": 10, "batch_size": 256, "lr": 0.2, "warmup": 2.0},
}
MNIST = {
    "data": "mnist.npz",
    "model": "mnist-el",
    "recipe": {"epochs": 12, "drop_last": True, "precision": "bf16", "channels_last": True, "clip": 1e9},
}
_MNIST_WHOLE = MNIST | {"recipe": MNIST["recipe"] | {"epochs": 100, "graph": True}}  # the paper's length

_ENDS = ("el:0", "el:0.25", "el:0.5", "el:0.75", "el:0.9", "el:exact")
_TAMED = ("el:exact,match", "el:normal")  # by gradients as long as cross-entropy's; by the paper's clamp
LOG_ENDS = Sweep("log end", {f"el:{end:g}": end for end in (0, 0.25, 0.5, 0.75, 0.9)} | {"el:normal": 1})
_CLAMPS = Sweep("log end 1", {"el:normal": "clamped", "el:exact": "exact", "el:exact,match": "matched"})


def _scales(paper: dict[str, Any], seconds: float, smoke: tuple[str, ...]) -> dict[str, Scale]:
    return {
        "smoke": Scale(2, 2, settings=_SMOKE, levels={"loss": smoke}),
        "quick": Scale(5, 10, settings=_DIGITS),
        "paper": Scale(5, seconds, "NVIDIA H200", paper),
    }


def _loss_name(levels: Mapping[str, str]) -> str:
    """The name of a loss from an objective, and where a study has them, logits and a term of pairs."""
    logits, pairs = levels.get("logits", "linear"), levels.get("pairs", "none")
    return levels["loss"] + ("" if logits == "linear" else f"@{logits}") + ("" if pairs == "none" else f"+{pairs}")


def _trained(cell: Cell) -> dict[str, float]:
    """Train with a loss and measure the network."""
    settings, recipe = cell.settings, recipe_of(cell, loss=_loss_name(cell.levels))
    recipe = recipe.replace(lr=float(cell.levels.get("rate", 1)) * recipe.lr)
    data = split_data(cell)
    trained = train_cell(cell, data, recipe, settings.get("network"))
    network, history = trained.model.module, trained.history
    training, test = (_outputs(network, samples, cell.device) for samples in data)
    gradients = [row["gradient"] for row in history if "gradient" in row]
    return {
        "accuracy": history[-1]["test_accuracy"],
        "best": max(row["test_accuracy"] for row in history),
        "gradient": float(np.mean(gradients)) if gradients else float("nan"),
        "last_gradient": gradients[-1] if gradients else float("nan"),
        "margin": test.margins.median().item(),
        "margin_p5": test.margins.quantile(0.05).item(),
        "train_margin": training.margins.median().item(),
        "energy": -test.target_logits.mean().item(),
        "probe": _probe(training, test, cell.settings.get("probe_epochs", 20)),
        **_clusters(test),
    }


_loss_study = partial(STUDIES.register, measures=_MEASURES, compare="loss", baseline="ce")
_loss_study(
    "el-log-end",
    question="How much bonus for well-classified examples helps?",
    paper="EL, Fig. 4, 5 and 6",
    factors={"loss": ("ce", *_ENDS, *_TAMED)},
    scales=_scales(CIFAR, 50, ("ce", "el:0.75")),
    sweeps=(LOG_ENDS, _CLAMPS),
)(_trained)
_loss_study(
    "el-small",
    question="How much bonus helps a small network that a CPU trains for fifty epochs?",
    paper="EL, Table 1 and Fig. 4 (there ResNet-50 for 90 epochs)",
    factors={"loss": ("ce", "el:0", "el:0.5", "el:0.75", "el:normal")},
    scales={
        "smoke": Scale(2, 2, settings=_SMOKE, levels={"loss": ("ce", "el:0.75")}),
        "quick": Scale(5, 130, settings=SMALL_CIFAR | {"recipe": SMALL_CIFAR["recipe"] | {"epochs": 50, "clip": 1e9}}),
    },
    sweeps=(LOG_ENDS,),
)(_trained)
_loss_study(
    "el-rates",
    question="Is the Encouraging Loss cross-entropy at another learning rate?",
    paper="EL, Table 2",
    factors={"rate": ("0.5", "2"), "loss": ("ce", "el:0.75", "el:exact", *_TAMED)},
    scales=_scales(CIFAR, 50, ("ce", "el:0.75")),
)(_trained)
_loss_study(
    "el-mnist",
    question="Do cross-entropy and squared error gain from their bonuses?",
    paper="EL, Tables 1 and 5",
    factors={"loss": ("ce", "el:0.75", "el:exact", "el:normal", "mse", "mirror", "mse:sigmoid", "mirror:sigmoid")},
    scales=_scales(_MNIST_WHOLE, 200, ("ce", "mirror")),
)(_trained)
_loss_study(
    "weighting",
    question="Down-weight well-classified samples, leave them, or reward them?",
    paper="EL, introduction and section 5.4",
    factors={"loss": ("ce", "focal", "el:0.5", "el:0.75")},
    scales=_scales(CIFAR, 50, ("ce", "focal")),
)(_trained)
_PAIRS = ("ce", "euclid:paper", "amc:paper", "amc:released", "amc:released,pairs=classes")
_loss_study(
    "amc-pairs",
    question="Does a contrastive loss on angles beat one on distances?",
    paper="AMC, Table 1 and Fig. 4",
    pooled="euclid:paper",  # Table 1's p-values are the AMC-Loss's against this one
    factors={"loss": _PAIRS},
    scales=_scales(CIFAR, 45, ("ce", "amc:paper")),
)(_trained)

_SMALL = {
    name: SMALL_CIFAR | {"data": f"{name}.npz", "recipe": SMALL_CIFAR["recipe"] | {"clip": 1e9, "flip": flip}}
    for name, flip in {"cifar10": True, "svhn": False, "mnist": False}.items()
}


def _trained_small(cell: Cell) -> dict[str, float]:
    """As `_trained`, on one of several data sets."""
    return _trained(replace(cell, settings=cell.settings["trainings"][cell.levels["setting"]]))


_loss_study(
    "amc-small",
    question="Does a contrastive loss on angles beat one on distances, with a small network?",
    paper="AMC, Table 1 and Fig. 5 (there a network of 13 layers)",
    pooled="euclid:paper",
    factors={"setting": tuple(_SMALL), "loss": _PAIRS},
    scales={
        "smoke": Scale(
            2, 2, settings={"trainings": {"digits": _SMOKE}},
            levels={"setting": ("digits",), "loss": ("ce", "euclid:paper", "amc:paper")},
        ),
        "quick": Scale(5, 100, settings={"trainings": _SMALL}),
    },
    data={name: (f"{name}.npz",) for name in _SMALL},
)(_trained_small)  # fmt: skip

# Beyond the papers.
_loss_study(
    "el-angular",
    question="Does the Encouraging Loss help on logits that see angles only?",
    paper="",
    factors={"logits": ("linear", "angular", "cosine", "cosface"), "loss": ("ce", "el:0.75", "el:exact,match")},
    scales=_scales(CIFAR, 50, ("ce", "el:0.75")),
)(_trained)
_loss_study(
    "el-amc",
    question="Does the Encouraging Loss help beside the AMC-Loss?",
    paper="",
    factors={"pairs": ("none", "amc:paper", "amc:released"), "loss": ("ce", "el:0.75", "el:exact,match")},
    scales=_scales(CIFAR, 50, ("ce", "el:0.75")),
)(_trained)


class _Outputs(NamedTuple):
    """What a network makes of a data set."""

    logits: Tensor
    features: Tensor
    labels: Tensor

    @property
    def target_logits(self) -> Tensor:
        return self.logits.gather(1, self.labels[:, None])[:, 0]

    @property
    def margins(self) -> Tensor:
        return self.target_logits - self.logits.scatter(1, self.labels[:, None], -torch.inf).amax(1)


def _outputs(network: nn.Module, samples: Samples, device: torch.device) -> _Outputs:
    pixels, labels = pixels_and_labels(samples, device)
    features, logits, *_ = embed(network, pixels)
    return _Outputs(logits, features, labels.to(logits.device))


def _clusters(test: _Outputs) -> dict[str, float]:
    """How well predictions, and clusters of directions, separate the classes."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import homogeneity_completeness_v_measure as clusters

    labels = test.labels.cpu().numpy()
    directions = F.normalize(test.features, dim=1).cpu().numpy()
    by_prediction = clusters(labels, test.logits.argmax(1).cpu().numpy())
    by_means = clusters(labels, KMeans(len(np.unique(labels)), n_init=4, random_state=0).fit_predict(directions))
    names = ("homogeneity", "completeness", "kmeans_homogeneity", "kmeans_completeness")
    return dict(zip(names, (*by_prediction[:2], *by_means[:2]), strict=True))


def _probe(training: _Outputs, test: _Outputs, epochs: int) -> float:
    """Accuracy of a new linear head that cross-entropy trains on frozen features of images as they are."""
    mean, spread = training.features.mean(0), training.features.std(0).clamp_min(1e-6)
    x = (training.features - mean) / spread
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        head = nn.Linear(x.shape[1], training.logits.shape[1]).to(x)
        optimizer = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        for _ in range(epochs):
            for rows in torch.randperm(len(x), device=x.device).split(512):
                optimizer.zero_grad()
                F.cross_entropy(head(x[rows]), training.labels[rows]).backward()
                optimizer.step()
            rate.step()
    with torch.no_grad():
        return (head((test.features - mean) / spread).argmax(1) == test.labels).double().mean().item()
