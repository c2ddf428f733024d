"""Loss terms on pairs of features of a batch, added to a classification loss: AMC, Euclidean contrastive, center loss.

Whether two samples belong together is decided by the labels that the caller passes: predictions ``logits.argmax(1)`` as
in the AMC paper (Eq. 3), the true ones, or a mixture such as ``torch.where(labeled, target, logits.argmax(1))``.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor, nn

from hardsight.angles import angle_between_units, arccos, cosine_matrix, unit, working_dtype
from hardsight.errors import InputError
from hardsight.losses.base import CheckedLoss, Reduction
from hardsight.losses.grammar import loss_part
from hardsight.registry import Range, check_choice

Pairing = Literal["halves", "classes", "all"]
Weight, Rate = Annotated[float, Range(0)], Annotated[float, Range(0, 1, "(]")]
Angle, Distance = Annotated[float, Range(0, math.pi, "(]")], Annotated[float, Range(0, 1e18, "(]")]  # 1e36 fits float32
PRESETS = {"paper": {"weight": 0.05}, "released": {"weight": 10.0}}


def pair_indices(labels: Tensor, pairs: Pairing = "halves") -> tuple[Tensor, Tensor]:
    """Which samples of a batch to compare, as two index tensors ``(P,)``.

    Only pairs of the same class pull together. Their share in a random batch of n from C equal classes:

    * ``"halves"``: sample i with ``i + ⌊n/2⌋`` (the AMC paper): ⌊n/2⌋ pairs, **one in C** of the same class. An odd
      batch leaves its last sample out.
    * ``"classes"``: these, and as many pairs of neighbors after sorting by label, all but about K/2 of them of the same
      class if K classes occur: together a share of about ``½·(1 − (K−1)/n + 1/C)``, however many classes there are.
    * ``"all"``: every pair once, n(n−1)/2, one in C of the same class.
    """
    check_choice(pairs, get_args(Pairing), "pairs")
    count, half, device = len(labels), len(labels) // 2, labels.device
    if pairs == "all":
        left, right = torch.triu_indices(count, count, 1, device=device).unbind()
        return left, right
    places = torch.arange(count, device=device)
    left, right = places[:half], places[half : 2 * half]
    if pairs == "halves":
        return left, right
    # Pairs of different classes come from the batch as it is: halves of the sorted order would always pair class k with
    # the same classes, and never with its neighbors.
    order = labels.argsort(stable=True)[: 2 * half]
    return torch.cat([order[::2], left]), torch.cat([order[1::2], right])


def contrastive(distance: Tensor, same: Tensor, margin: float) -> Tensor:
    """``d²`` for pairs of the same class, ``max(margin − d, 0)²`` for the others (AMC paper, Eq. 1 and 2)."""
    return torch.where(same, distance, (margin - distance).clamp_min(0)).square()


class _FeatureLoss(CheckedLoss):
    weight: Weight

    def _check_batch(self, features: Tensor, labels: Tensor, width: int = -1) -> None:
        if features.ndim != 2 or not features.is_floating_point() or width not in (-1, features.shape[1]):
            shape = f"(N, {'D' if width < 0 else width})"
            raise InputError(
                f"features must have shape {shape} in floating point, got {tuple(features.shape)} {features.dtype}."
            )
        if labels.shape != features.shape[:1]:
            raise InputError(
                f"labels must have shape ({len(features)},), got {tuple(labels.shape)}; pass one per sample, such as "
                "logits.argmax(1)."
            )
        self._check_values(features=features)


class _PairLoss(_FeatureLoss):
    """A contrastive loss over the pairs of a batch, of any distance."""

    margin: float
    pairs: Pairing

    def __init__(
        self,
        margin: float | None = None,
        weight: float | None = None,
        pairs: Pairing = "halves",
        reduction: Reduction = "mean",
        preset: Literal["paper", "released"] | None = None,
        validate: bool = False,
    ) -> None:
        super().__init__()
        if preset is not None:
            check_choice(preset, PRESETS, "preset")
            if weight is not None:
                raise InputError(f"give weight or preset, not both, got {weight} and {preset!r}.")
            weight = PRESETS[preset]["weight"]
        self.margin = type(self).margin if margin is None else margin
        self.weight = 1.0 if weight is None else weight
        self.pairs, self.reduction, self.validate = pairs, reduction, validate

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        """The distance ``(P,)`` of each pair."""
        raise NotImplementedError

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` with labels ``(N,)``; 0 where a batch has no pair."""
        self._check_batch(features, labels)
        half = len(labels) // 2
        if self.pairs == "halves":  # slices of the batch, not copies
            left, right = slice(0, half), slice(half, 2 * half)
        else:
            left, right = pair_indices(labels, self.pairs)
        distances = self.distances(features.to(working_dtype(features)), left, right)
        values = self.weight * contrastive(distances, labels[left] == labels[right], self.margin)
        return self._reduce(values, max(len(values), 1))


class AMCLoss(_PairLoss):
    """Angular margin contrastive loss (Choi et al., CVPRW 2020, Eq. 2): contrastive on the angle between two features.

    ``weight · mean over pairs of θ²`` where the labels are equal, ``max(margin − θ, 0)²`` where they are not. Add it to
    a classification loss. Features that coincide, are opposite or zero get no gradient, because none is defined.

    Args:
        margin: Angle in radians beyond which pairs of different classes are left alone, in (0, π]. Default: the
            paper's 0.5.
        weight: Factor; a schedule may change it. Default: that of `preset`, or 1.
        pairs: ``"halves"`` as in the paper, ``"classes"`` or ``"all"``, see `pair_indices`. The first two cost O(N·D);
            all pairs cost O(N²·D), with angles good to half the digits near 0 and π.
        reduction: ``mean`` or ``sum`` over pairs; ``none`` gives each pair.
        preset: ``"paper"`` sets the weight to 0.05 (λ = 0.1, and the sum over pairs is divided by twice their number),
            ``"released"`` to the 10 of the paper's code, 200 times as much.
        validate: Check features for NaN and infinity at every call; waits for the device.

    Examples:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [3.0, 0.0]])
        >>> AMCLoss(reduction="none")(features, torch.tensor([0, 1, 0, 2]))  # (π/4)² and (½ − 0)²
        tensor([0.6169, 0.2500])
    """

    margin: Angle = 0.5

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        x = unit(features)[0]
        if self.pairs == "all":
            return arccos(cosine_matrix(x, x))[left, right]
        return angle_between_units(x[left], x[right])


class EuclideanContrastiveLoss(_PairLoss):
    """Contrastive loss on the Euclidean distance of two features, the baseline of the AMC paper (Eq. 1).

    Options are those of `AMCLoss`, so that both can be compared; the margin is a distance, by default the paper's 1.
    Features that coincide get no gradient. All pairs need memory for N²·D/2 numbers.
    """

    margin: Distance = 1.0

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        return torch.linalg.vector_norm(features[left] - features[right], dim=-1)


class CenterLoss(_FeatureLoss):
    """Pulls each feature towards the center of its class (Wen et al., ECCV 2016): ``weight · ½ · mean ‖x − c_y‖²``.

    Centers start at the origin and are not parameters. In training mode each call moves them once the loss is computed:
    ``c_j`` by ``−rate · Σ_{y_i=j}(c_j − x_i)/(1 + n_j)``, where n_j samples of class j are in the batch. With several
    processes each moves its own centers, unless DistributedDataParallel broadcasts them as buffers of its module.
    The paper's weight for faces is 0.003. `validate` checks features and labels at every call; it waits for the device.
    """

    centers: Tensor
    rate: Rate

    def __init__(
        self, classes: int, width: int, rate: float = 0.5, weight: float = 0.003, validate: bool = False
    ) -> None:
        super().__init__()
        Range(1).check(min(classes, width), "classes and width")
        self.rate, self.weight, self.validate = rate, weight, validate
        self.register_buffer("centers", torch.zeros(classes, width))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` with labels ``(N,)``; 0 for an empty batch."""
        self._check_batch(features, labels, self.centers.shape[1])
        self._check_values(len(self.centers) - 1, labels=labels)
        labels = labels.long()
        difference = features.to(working_dtype(features)) - self.centers.index_select(0, labels)
        if self.training:
            with torch.no_grad():
                pull = torch.zeros_like(self.centers).index_add(0, labels, difference.to(self.centers.dtype))
                count = torch.ones_like(self.centers[:, 0]).index_add(0, labels, pull.new_ones(len(labels)))
                self.centers.add_(pull / count[:, None], alpha=self.rate)
        return self.weight * difference.square().sum() / (2 * max(len(labels), 1))


@loss_part("pairs", "amc", reference="AMC-Loss (CVPRW 2020) Eq. 2, 3", presets=PRESETS)
def _amc(*, weight: Weight = 0.05, margin: Angle = 0.5, pairs: Pairing = "halves") -> nn.Module:
    """Angular margin contrastive: angles within a class fall, others rise to the margin."""
    return AMCLoss(margin, weight, pairs)


@loss_part("pairs", "euclid", reference="AMC-Loss (CVPRW 2020) §2, Eq. 1", presets={"paper": PRESETS["paper"]})
def _euclid(*, weight: Weight = 0.05, margin: Distance = 1.0, pairs: Pairing = "halves") -> nn.Module:
    """The same with distances."""
    return EuclideanContrastiveLoss(margin, weight, pairs)


@loss_part("pairs", "center", reference="Wen et al. (ECCV 2016)", indices=True)
def _center(*, weight: Weight = 0.003, rate: Rate = 0.5, counts: Tensor, width: int) -> nn.Module:
    """Distance to the moving center of the class."""
    return CenterLoss(len(counts), width, rate, weight)
