"""Angular visual hardness as a miner for pytorch-metric-learning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardsight.angles import angle_matrix, unit
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.registry import Range, check_choice
from hardsight.triple import check_labels

miners = need("pytorch_metric_learning.miners")


class AVHMiner(miners.BaseMiner):
    """Mines triplets by angular visual hardness: does the negative look like the anchor's class?

    ::

        miner, loss = AVHMiner(), pytorch_metric_learning.losses.TripletMarginLoss()
        loss(embeddings, labels, miner(embeddings, labels))

    The hardness of sample x for class c is ``C·AVH_c(x)``: its angle to the class divided by its mean angle to all C
    classes. It is 0 on the class and 1 at chance, whatever the number of classes. A triplet (anchor of class y,
    positive, negative) is

    - ``"hard"`` if the negative is at most as hard for y as the positive;
    - ``"semihard"`` if it is harder, by less than `margin`;
    - ``"all"`` in both cases.

    Mislabeled samples are the hardest positives, so do not mine ``"hard"`` alone if labels may be wrong.

    Args:
        weight: Class weights ``(C, D)``, a module that has them (the classifier), or a function that returns them, as
            ``lambda: loss.W.T``; read at each call, so they can be trained. Labels are then row numbers. None uses the
            mean direction of each class in the batch (or in the reference set, if given).
        kind: ``"hard"``, ``"semihard"`` or ``"all"``.
        margin: Width of the semi-hard band in ``C·AVH``; 0.5 is halfway from the class to chance.

    Examples:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
        >>> AVHMiner(torch.eye(2), "hard")(embeddings, torch.tensor([0, 0, 1, 1]))  # 1 and 2 lie on each other's side
        (tensor([0, 3]), tensor([1, 2]), tensor([2, 1]))
    """

    def __init__(
        self,
        weight: Tensor | nn.Module | Callable[[], Tensor] | None = None,
        kind: Literal["hard", "semihard", "all"] = "semihard",
        margin: float = 0.5,
    ) -> None:
        check_choice(kind, ("hard", "semihard", "all"), "kind")
        Range(0, ends="(]").check(margin, "margin")
        super().__init__()
        self.kind, self.margin = kind, margin
        # Always a function: the classifier must not become a submodule of the miner, nor its weight a parameter.
        if isinstance(weight, nn.Module):
            weight = partial(getattr, weight, "weight")
        self._weight: Any = weight if weight is None or callable(weight) else partial(torch.as_tensor, weight)

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of anchors (in the embeddings), positives and negatives (in the reference set)."""
        if self._weight is None:
            classes, row = ref_labels.unique(return_inverse=True)
            directions = unit(ref_emb)[0]
            weight = directions.new_zeros(len(classes), ref_emb.shape[1]).index_add_(0, row, directions)
        else:
            weight, width = self._weight().to(ref_emb.device), ref_emb.shape[1]
            if weight.ndim != 2 or weight.shape[1] != width:
                raise InputError(f"weight must have shape (C, {width}), one row per class, got {tuple(weight.shape)}.")
            row = check_labels(ref_labels.long(), len(ref_labels), len(weight))
        # [p, n]: hardness of sample n for the class of sample p, and how much harder it is than p.
        hardness = class_hardness(ref_emb, weight)[:, row].T
        harder = hardness - hardness.diagonal().unsqueeze(1)
        selected = ref_labels.unsqueeze(1) != ref_labels
        selected &= harder <= 0 if self.kind == "hard" else harder < self.margin
        if self.kind == "semihard":
            selected &= harder > 0
        positive, negative = selected.nonzero(as_tuple=True)
        same = labels.unsqueeze(1) == ref_labels
        if ref_labels is labels:
            same.fill_diagonal_(False)  # no sample is its own positive
        anchor, pair = same[:, positive].nonzero(as_tuple=True)
        return anchor, positive[pair], negative[pair]


def class_hardness(features: Tensor, weight: Tensor) -> Tensor:
    """``C·AVH`` ``(N, C)`` of features ``(N, D)`` for class weights ``(C, D)``: 0 on the class, 1 at chance.

    Examples:
        >>> class_hardness(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.eye(2)).tolist()
        [[0.0, 2.0], [1.0, 1.0]]
    """
    angles = angle_matrix(features, weight)
    mean = angles.mean(1, keepdim=True)
    return torch.where(mean > 0, angles / mean.clamp_min(torch.finfo(mean.dtype).tiny), 1.0)
