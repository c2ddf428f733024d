"""Long-tailed data: subsets with few samples of most classes, accuracy by how frequent a class is, and cRT.

Class weights, deferred re-weighting and margins are losses: ``ce:weight=effective``, ``ce:drw=160``, ``ce@ldam``,
``ce@adjusted`` (see `hardsight.losses`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hardsight.data import Samples, View, all_labels, open_data
from hardsight.devices import find_device
from hardsight.errors import InputError
from hardsight.heads import find_head
from hardsight.models import Model, as_model
from hardsight.predictions import predict
from hardsight.registry import Range, check_choice, whole_number
from hardsight.triple import as_tensor

# Classes with more training samples than the first number have many; with fewer than the second, few.
MANY, FEW = 100, 20


def long_tailed_counts(
    counts: Sequence[int] | np.ndarray, ratio: float, kind: Literal["exponential", "step"] = "exponential"
) -> np.ndarray:
    """How many samples of each class a long-tailed subset keeps (Cui et al., 2019; Buda et al., 2018).

    The first class keeps n, the size of the smallest class; the last keeps n / ratio. Between them the numbers fall
    exponentially, or, with ``kind="step"``, the second half of the classes keeps n / ratio.

    Examples:
        >>> long_tailed_counts([5000] * 5, ratio=100)
        array([5000, 1581,  500,  158,   50])
        >>> long_tailed_counts([5000] * 4, ratio=10, kind="step")
        array([5000, 5000,  500,  500])
    """
    counts = _checked_counts(counts)
    Range(1).check(ratio, "ratio")
    check_choice(kind, ("exponential", "step"), "kind")
    place = np.arange(len(counts)) / max(len(counts) - 1, 1)
    # Divided, not multiplied by a power of −1: 49 samples at a ratio of 49 leave 1, and not 0.99….
    kept = (counts.min() / float(ratio) ** (place if kind == "exponential" else np.round(place))).astype(np.int64)
    if not counts.all():
        raise InputError(
            f"class {int(np.argmin(counts))} has no sample; a long-tailed subset needs some of every class."
        )
    if not kept.all():
        raise InputError(
            f"ratio: {ratio:g} leaves no sample of class {int(np.argmin(kept))}; it can be at most {counts.min():,}, "
            "the number of samples of the smallest class."
        )
    return kept


def long_tailed(
    data: Any, ratio: float, *, kind: Literal["exponential", "step"] = "exponential", seed: int = 0
) -> Samples:
    """A long-tailed subset of a balanced data set, with the ids of the data set.

    Args:
        data: As for `hardsight.open_data`.
        ratio: Samples of the most frequent class for each sample of the rarest.
        kind: See `long_tailed_counts`.
        seed: Random seed of the selection.

    Examples:
        >>> samples = long_tailed("digits", ratio=10)
        >>> np.bincount(samples.labels).tolist()
        [174, 134, 104, 80, 62, 48, 37, 29, 22, 17]
    """
    samples = open_data(data, training=True)
    labels, random = all_labels(samples, "data"), np.random.default_rng(whole_number("seed", seed, 0))
    counts = np.bincount(labels)
    rows = [
        random.permutation(np.flatnonzero(labels == label))[:kept]
        for label, kept in enumerate(long_tailed_counts(counts, ratio, kind))
    ]
    kept_rows = np.sort(np.concatenate(rows))
    return View(samples, kept_rows, labels=labels[kept_rows], classes=samples.classes)


def _checked_counts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    counts = as_tensor("counts", counts).cpu().numpy()
    if (
        counts.ndim != 1
        or counts.dtype.kind not in "iuf"
        or not counts.size
        or not (np.isfinite(counts) & (counts >= 0)).all()
    ):
        raise InputError(
            "counts must have the number of samples of each class (C,), 0 or more, for at least one class."
        )
    return counts


def accuracy_by_frequency(
    pred: np.ndarray, label: np.ndarray, counts: Sequence[int] | np.ndarray, *, many: int = MANY, few: int = FEW
) -> dict[str, float]:
    """Accuracy on all test samples, and on those of classes with many, a medium number of and few training samples.

    Args:
        pred: ``(N,)`` predicted classes of the test samples.
        label: ``(N,)`` their labels.
        counts: ``(C,)`` training samples of each class.
        many: Classes with more than this have many.
        few: Classes with fewer than this have few.

    Returns:
        ``all, many, medium, few``; NaN if no test sample has such a class.

    Examples:
        >>> accuracy_by_frequency(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 2]), [500, 60, 5])
        {'all': 0.75, 'many': 1.0, 'medium': 0.5, 'few': 1.0}
    """
    pred, label = (as_tensor(name, x).cpu().numpy() for name, x in (("pred", pred), ("label", label)))
    counts = _checked_counts(counts)
    if pred.shape != label.shape or label.ndim != 1:
        raise InputError(f"pred and label must have the same shape (N,), got {pred.shape} and {label.shape}.")
    if {pred.dtype.kind, label.dtype.kind} - set("iu"):
        raise InputError(f"pred and label must be class indices, got {pred.dtype} and {label.dtype}.")
    if len(label) and not 0 <= label.min() <= label.max() < len(counts):
        raise InputError(
            f"label must lie in [0, {len(counts) - 1}], the classes of counts, got {label.min()} to {label.max()}."
        )
    Range(0).check(many, "many")
    Range(0, many).check(few, "few")
    frequency, right = counts[label], pred == label
    parts = {
        "all": np.ones(len(right), bool),
        "many": frequency > many,
        "medium": (frequency >= few) & (frequency <= many),
        "few": frequency < few,
    }
    return {name: float(right[rows].mean()) if rows.any() else float("nan") for name, rows in parts.items()}


def retrain_head(
    model: nn.Module | Model,
    data: Any,
    *,
    epochs: int = 30,
    batch_size: int = 512,
    lr: float = 0.2,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> Model:
    """Classifier re-training, cRT (Kang et al., 2020): a new last layer on frozen features, all classes equally often.

    The features are computed once, in eval mode and without augmentation; the paper's code augments the images in every
    epoch. The given network does not change.

    Args:
        model: The trained network.
        data: The training data, as for `hardsight.open_data`.
        epochs: Passes, each over as many samples as the data have.
        batch_size: Samples per step; each is of a class drawn uniformly.
        lr: Rate of SGD at the start; it falls to 0 along a cosine.
        momentum, weight_decay: Settings of SGD.
        seed: Random seed of the new layer and of the draws.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
    """
    epochs, batch_size = whole_number("epochs", epochs, 1), whole_number("batch_size", batch_size, 1)
    Range(0, ends="()").check(lr, "lr")
    Range(0, 1, "[)").check(momentum, "momentum")
    Range(0).check(weight_decay, "weight_decay")
    place, samples = find_device(device), open_data(data, training=True)
    generator = torch.Generator().manual_seed(whole_number("seed", seed, 0, 2**63 - 1))
    model = replace(as_model(model), module=copy.deepcopy(as_model(model).module))
    head = find_head(model.module)
    if type(head.module._parameters.get("weight")) is not nn.Parameter:
        raise InputError(
            f"model: the weight of its head {head.path!r} is computed (parametrized) and cannot be replaced; use a "
            "plain linear head."
        )
    predictions = predict(model, samples, device=place)
    labels = torch.from_numpy(all_labels(samples, "data")[predictions.rows]).to(place)
    features = torch.from_numpy(predictions.features).to(place)
    if labels.min() < 0 or labels.max() >= head.classes:
        raise InputError(
            f"data: labels must lie in [0, {head.classes - 1}], the classes of the network, got {int(labels.min())} to "
            f"{int(labels.max())}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer: Any = nn.Linear(features.shape[1], head.classes, bias=head.module.bias is not None)
    layer.to(place)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    steps = max(1, epochs * len(labels) // batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    weights = (1.0 / torch.bincount(labels.cpu(), minlength=head.classes).clamp_min(1))[labels.cpu()]
    for _ in range(steps):
        rows = torch.multinomial(weights, batch_size, replacement=True, generator=generator).to(place)
        optimizer.zero_grad()
        F.cross_entropy(layer(features[rows]), labels[rows]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        old: Any = head.module
        old.weight.copy_(layer.weight.view_as(old.weight))
        if old.bias is not None:
            old.bias.copy_(layer.bias)
    return replace(model, weights="head retrained on balanced classes", built=None)
