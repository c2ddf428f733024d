"""Terms on pairs of features of a batch, to be added to a classification loss: AMC, Euclidean contrastive, center loss.

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
from hardsight.losses.grammar import loss_part
from hardsight.losses.reduction import REDUCTIONS, check_finite, reduced
from hardsight.registry import Range, check_choice

Pairing = Literal["halves", "classes", "all"]
Weight = Annotated[float, Range(0)]

_PAIRINGS = get_args(Pairing)
PRESET_WEIGHTS = {"paper": 0.05, "released": 10.0}
_ANGLE, _DISTANCE, _RATE = Range(0, math.pi, "(]"), Range(0, 1e18, "(]"), Range(0, 1, "(]")  # 1e36 is a float32


def pair_indices(labels: Tensor, pairs: Pairing = "halves") -> tuple[Tensor, Tensor]:
    """Which samples of a batch are compared, as two index tensors ``(P,)``.

    Only pairs of the same class pull together. Their share in a random batch of n from C equal classes:

    * ``"halves"``: sample i with ``i + ⌊n/2⌋`` (the AMC paper): ⌊n/2⌋ pairs, **one in C** of the same class. An odd
      batch leaves its last sample out.
    * ``"classes"``: these, and as many neighbors after sorting by label, of which all but about K/2 are of the same
      class where K classes occur: together a share of about ``½·(1 − (K−1)/n + 1/C)``, however many classes there are.
    * ``"all"``: every pair once, n(n−1)/2, one in C of the same class.

    Examples:
        >>> pair_indices(torch.tensor([1, 0, 1, 0, 1]))
        (tensor([0, 1]), tensor([2, 3]))
        >>> pair_indices(torch.tensor([1, 0, 1, 0, 1]), "classes")
        (tensor([1, 0, 0, 1]), tensor([3, 2, 2, 3]))
    """
    check_choice(pairs, _PAIRINGS, "pairs")
    count, half, device = len(labels), len(labels) // 2, labels.device
    if pairs == "all":
        left, right = torch.triu_indices(count, count, 1, device=device).unbind()
        return left, right
    places = torch.arange(count, device=device)
    left, right = places[:half], places[half : 2 * half]
    if pairs == "halves":
        return left, right
    # Unlike pairs come from the batch as it is: halves of the sorted order would always show class k the same classes,
    # and never its neighbors.
    order = labels.argsort(stable=True)[: 2 * half]
    return torch.cat([order[::2], left]), torch.cat([order[1::2], right])


def contrastive(distance: Tensor, same: Tensor, margin: float) -> Tensor:
    """``d²`` for pairs of the same class, ``max(margin − d, 0)²`` for the others (AMC paper, Eq. 1 and 2).

    Examples:
        >>> contrastive(torch.tensor([0.2, 0.2, 0.9]), torch.tensor([True, False, False]), margin=0.5)
        tensor([0.0400, 0.0900, 0.0000])
    """
    return torch.where(same, distance, (margin - distance).clamp_min(0)).square()


class _PairLoss(nn.Module):
    """A contrastive loss over the pairs of a batch, of any distance."""

    default_margin: float
    margins: Range

    def __init__(
        self,
        margin: float | None = None,
        weight: float | None = None,
        pairs: Pairing = "halves",
        reduction: str = "mean",
        preset: Literal["paper", "released"] | None = None,
        validate: bool = False,
    ) -> None:
        super().__init__()
        self.margin = self.default_margin if margin is None else margin
        self.margins.check(self.margin, "margin")
        if preset is not None:
            check_choice(preset, PRESET_WEIGHTS, "preset")
            if weight is not None:
                raise InputError(f"give weight or preset, not both, got {weight} and {preset!r}.")
            weight = PRESET_WEIGHTS[preset]
        check_choice(reduction, REDUCTIONS, "reduction")
        check_choice(pairs, _PAIRINGS, "pairs")
        self.weight = 1.0 if weight is None else weight
        Range(0).check(self.weight, "weight")
        self.pairs, self.reduction, self.validate = pairs, reduction, validate

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        """The distance ``(P,)`` of each pair."""
        raise NotImplementedError

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` with labels ``(N,)``; 0 where a batch has no pair."""
        _check_batch(features, labels, self.validate)
        half = len(labels) // 2
        if self.pairs == "halves":  # slices of the batch, not copies
            left, right = slice(0, half), slice(half, 2 * half)
        else:
            left, right = pair_indices(labels, self.pairs)
        distances = self.distances(features.to(working_dtype(features)), left, right)
        values = self.weight * contrastive(distances, labels[left] == labels[right], self.margin)
        return reduced(values, self.reduction, max(len(values), 1))

    def extra_repr(self) -> str:
        return f"margin={self.margin}, weight={self.weight}, pairs={self.pairs!r}"


class AMCLoss(_PairLoss):
    """Angular margin contrastive loss (Choi et al., CVPRW 2020, Eq. 2): contrastive on the angle between two features.

    ``weight · mean over pairs of θ²`` where the labels are equal, ``max(margin − θ, 0)²`` where they are not. Add it to
    a classification loss. Features that coincide, are opposite or zero get no gradient, because none is defined.

    Args:
        margin: Angle in radians beyond which unlike pairs are left alone, in (0, π]; the paper's 0.5 if not given.
        weight: Factor; a schedule may change it. 1 if neither it nor `preset` is given.
        pairs: ``"halves"`` as in the paper, ``"classes"`` or ``"all"``, see `pair_indices`. The first two cost O(N·D);
            all pairs cost O(N²·D), with angles good to half the digits near 0 and π.
        reduction: ``mean`` or ``sum`` over pairs; ``none`` gives each pair.
        preset: A weight on the mean over pairs: ``"paper"`` has 0.05 (λ = 0.1 and a sum over half as many pairs as it
            is divided by), ``"released"`` the 10 of the paper's code, 200 times as much.
        validate: Check features for NaN and infinity at every call; waits for the device.

    Examples:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [3.0, 0.0]])
        >>> AMCLoss(reduction="none")(features, torch.tensor([0, 1, 0, 2]))  # (π/4)² and (½ − 0)²
        tensor([0.6169, 0.2500])
    """

    default_margin, margins = 0.5, _ANGLE

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        x = unit(features)[0]
        if self.pairs == "all":
            return arccos(cosine_matrix(x, x))[left, right]
        return angle_between_units(x[left], x[right])


class EuclideanContrastiveLoss(_PairLoss):
    """Contrastive loss on the Euclidean distance of two features, the baseline of the AMC paper (Eq. 1).

    Options are those of `AMCLoss`, so that both can be compared; the margin is a distance, the paper's 1 if not given.
    Features that coincide get no gradient. All pairs need memory for N²·D/2 numbers.
    """

    default_margin, margins = 1.0, _DISTANCE

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        return torch.linalg.vector_norm(features[left] - features[right], dim=-1)


class CenterLoss(nn.Module):
    """Pulls each feature towards the center of its class (Wen et al., ECCV 2016): ``weight · ½ · mean ‖x − c_y‖²``.

    Centers start at the origin and are no parameters. In training mode each call moves them after the loss is taken:
    ``c_j`` by ``−rate · Σ_{y_i=j}(c_j − x_i)/(1 + n_j)``, where n_j samples of class j are in the batch. With several
    processes each moves its own centers, unless DistributedDataParallel broadcasts them as buffers of its module.

    The paper's weight for faces is 0.003. `validate` checks features and labels at every call; it waits for the device.

    Examples:
        >>> loss = CenterLoss(classes=2, width=2, weight=1.0)
        >>> loss(torch.tensor([[3.0, 4.0]]), torch.tensor([1]))
        tensor(12.5000)
        >>> loss.centers[1]  # half of the way, times the rate
        tensor([0.7500, 1.0000])
    """

    centers: Tensor

    def __init__(
        self, classes: int, width: int, rate: float = 0.5, weight: float = 0.003, validate: bool = False
    ) -> None:
        super().__init__()
        Range(1).check(classes, "classes")
        Range(1).check(width, "width")
        _RATE.check(rate, "rate")
        Range(0).check(weight, "weight")
        self.rate, self.weight, self.validate = rate, weight, validate
        self.register_buffer("centers", torch.zeros(classes, width))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` with labels ``(N,)``; 0 for an empty batch."""
        _check_batch(features, labels, self.validate, *self.centers.shape)
        labels = labels.long()
        difference = features.to(working_dtype(features)) - self.centers.index_select(0, labels)
        if self.training:
            self._move(difference.detach(), labels)
        return self.weight * difference.square().sum() / (2 * max(len(labels), 1))

    @torch.no_grad()
    def _move(self, difference: Tensor, labels: Tensor) -> None:
        pull = torch.zeros_like(self.centers).index_add(0, labels, difference.to(self.centers.dtype))
        count = self.centers.new_ones(len(self.centers)).index_add(0, labels, self.centers.new_ones(len(labels)))
        self.centers.add_(pull / count[:, None], alpha=self.rate)

    def extra_repr(self) -> str:
        classes, width = self.centers.shape
        return f"classes={classes}, width={width}, rate={self.rate}, weight={self.weight}"


@loss_part(
    "pairs",
    "amc",
    reference="AMC-Loss (CVPRW 2020) Eq. 2, 3",
    presets={name: {"weight": weight} for name, weight in PRESET_WEIGHTS.items()},
)
def _amc(*, weight: Weight = 0.05, margin: Annotated[float, _ANGLE] = 0.5, pairs: Pairing = "halves") -> nn.Module:
    """Angular margin contrastive: angles within a class fall, others rise to the margin."""
    return AMCLoss(margin, weight, pairs)


@loss_part("pairs", "euclid", reference="AMC-Loss (CVPRW 2020) §3.1", presets={"paper": {"weight": 0.05}})
def _euclid(
    *, weight: Weight = 0.05, margin: Annotated[float, _DISTANCE] = 1.0, pairs: Pairing = "halves"
) -> nn.Module:
    """The same with distances."""
    return EuclideanContrastiveLoss(margin, weight, pairs)


@loss_part("pairs", "center", reference="Wen et al. (ECCV 2016)", indices=True)
def _center(*, weight: Weight = 0.003, rate: Annotated[float, _RATE] = 0.5, counts: Tensor, width: int) -> nn.Module:
    """Distance to the moving center of the class."""
    return CenterLoss(len(counts), width, rate, weight)


def _check_batch(
    features: Tensor, labels: Tensor, validate: bool, classes: int | None = None, width: int | None = None
) -> None:
    if features.ndim != 2 or not features.is_floating_point() or width not in (None, features.shape[1]):
        raise InputError(
            f"features must have shape (N, {width or 'D'}) in floating point, got {tuple(features.shape)} "
            f"{features.dtype}."
        )
    if labels.shape != features.shape[:1]:
        hint = "; pass logits.argmax(1) for predictions." if labels.ndim == 2 else "; pass one label per sample."
        raise InputError(f"labels must have shape ({len(features)},), got {tuple(labels.shape)}{hint}")
    check_finite(features, validate)
    if validate and classes is not None and not torch.compiler.is_compiling():
        outside = labels[(labels < 0) | (labels >= classes)]
        if len(outside):
            raise InputError(f"labels must lie in [0, {classes - 1}], got {outside[0].item()}.")
