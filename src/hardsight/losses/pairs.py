"""Terms on pairs of features of a batch, to be added to a classification loss: AMC, Euclidean contrastive, center loss.

Whether two samples belong together is judged by the labels that the caller passes: predictions ``logits.argmax(1)`` as
in the AMC paper (Eq. 3), the true ones, or a mixture such as ``torch.where(labelled, target, logits.argmax(1))``.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from hardsight.angles import angle_between_units, arccos, cosine_matrix, unit, working_dtype
from hardsight.errors import InputError

Pairing = Literal["halves", "classes", "all"]

PRESET_WEIGHTS = {"paper": 0.05, "released": 10.0}


def pair_indices(labels: Tensor, pairs: Pairing = "halves") -> tuple[Tensor, Tensor]:
    """Which samples of a batch are compared, as two index tensors ``(P,)``.

    The share of pairs of one class matters: only those pull together. In a random batch of n from C equal classes:

    * ``"halves"``: sample i with ``i + ⌊n/2⌋`` (the AMC paper): ⌊n/2⌋ pairs, **one in C** of one class. An odd batch
      leaves its last sample out.
    * ``"classes"``: these, and as many neighbours after sorting by label, of which all but about K/2 are of one class
      where K classes occur: together a share of about ``½·(1 − (K−1)/n + 1/C)``, however many classes there are.
    * ``"all"``: every pair once, n(n−1)/2, one in C of one class.

    Args:
        labels: ``(N,)``.
        pairs: One of the above.

    Examples:
        >>> pair_indices(torch.tensor([1, 0, 1, 0, 1]))
        (tensor([0, 1]), tensor([2, 3]))
        >>> pair_indices(torch.tensor([1, 0, 1, 0, 1]), "classes")
        (tensor([1, 0, 0, 1]), tensor([3, 2, 2, 3]))
    """
    _check_pairing(pairs)
    count, half, device = len(labels), len(labels) // 2, labels.device
    if pairs == "all":
        left, right = torch.triu_indices(count, count, 1, device=device).unbind()
        return left, right
    places = torch.arange(count, device=device)
    left, right = places[:half], places[half : 2 * half]
    if pairs == "halves":
        return left, right
    # Unlike pairs come from the batch as it is: halves of the sorted order would always show class k the same classes,
    # and never its neighbours.
    order = labels.argsort(stable=True)[: 2 * half]
    return torch.cat([order[::2], left]), torch.cat([order[1::2], right])


def contrastive(distance: Tensor, same: Tensor, margin: float) -> Tensor:
    """``d²`` for pairs of one class, ``max(margin − d, 0)²`` for the others (AMC paper, Eq. 1 and 2).

    Examples:
        >>> contrastive(torch.tensor([0.2, 0.2, 0.9]), torch.tensor([True, False, False]), margin=0.5)
        tensor([0.0400, 0.0900, 0.0000])
    """
    return torch.where(same, distance, (margin - distance).clamp_min(0)).square()


class _PairLoss(nn.Module):
    """A contrastive loss over the pairs of a batch; how far apart a pair is, is what differs."""

    usual_margin: float
    largest_margin = 1e18  # whose square is a float32

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
        margin = self.usual_margin if margin is None else margin
        if not 0 < margin <= self.largest_margin:
            raise InputError(f"margin must be above 0 and at most {self.largest_margin:.4g}, got {margin}.")
        if preset is not None and preset not in PRESET_WEIGHTS:
            raise InputError(f"preset must be 'paper', 'released' or None, got {preset!r}.")
        if preset is not None and weight is not None:
            raise InputError(
                f"weight and preset say the same thing, got {weight} and {preset!r}; leave one of them out."
            )
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}.")
        _check_pairing(pairs)
        self.weight = PRESET_WEIGHTS[preset] if preset else 1.0 if weight is None else weight
        _check_weight(self.weight)
        self.margin, self.pairs, self.reduction, self.validate = margin, pairs, reduction, validate

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
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
        if self.reduction == "none":
            return values
        return values.sum() if self.reduction == "sum" else values.sum() / max(len(values), 1)

    def extra_repr(self) -> str:
        return f"margin={self.margin}, weight={self.weight}, pairs={self.pairs!r}"


class AMCLoss(_PairLoss):
    """Angular margin contrastive loss (Choi et al., CVPRW 2020, Eq. 2): contrastive on the angle between two features.

    ``weight · mean over pairs of θ²`` where the labels are equal, ``max(margin − θ, 0)²`` where they are not. Add it to
    a classification loss. Features that coincide, are opposite or zero get no gradient, because none is defined.

    Args:
        margin: Angle in radians beyond which unlike pairs are left alone, in (0, π]; the paper's .5 if not given.
        weight: Factor; a schedule may change it. 1 if neither it nor `preset` is given.
        pairs: ``"halves"`` as in the paper, ``"classes"`` or ``"all"``, see `pair_indices`. The first two cost O(N·D);
            all pairs cost O(N²·D), with angles good to half the digits near 0 and π.
        reduction: ``mean`` or ``sum`` over pairs; ``none`` gives each pair.
        preset: A weight on the mean over pairs: ``"paper"`` has .05 (λ = .1 and a sum over half as many pairs as it is
            divided by), ``"released"`` the 10 of the paper's code, 200 times as much.
        validate: Check features for NaN and infinity at every call; waits for the device.

    Examples:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [3.0, 0.0]])
        >>> AMCLoss(reduction="none")(features, torch.tensor([0, 1, 0, 2]))  # (π/4)² and (½ − 0)²
        tensor([0.6169, 0.2500])
    """

    usual_margin, largest_margin = 0.5, math.pi

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        """Angle of each pair, ``(P,)``."""
        x = unit(features)[0]
        return (
            arccos(cosine_matrix(x, x))[left, right] if self.pairs == "all" else angle_between_units(x[left], x[right])
        )


class EuclideanContrastiveLoss(_PairLoss):
    """Contrastive loss on the Euclidean distance of two features, the baseline of the AMC paper (Eq. 1).

    ``weight · mean over pairs of ‖u−v‖²`` where the labels are equal, ``max(margin − ‖u−v‖, 0)²`` where they are not.
    Features that coincide get no gradient.

    Args:
        margin: Distance beyond which unlike pairs are left alone; the paper's 1 if not given.
        weight: Factor; a schedule may change it. 1 if neither it nor `preset` is given.
        pairs: See `pair_indices`. All pairs need memory for N²·D/2 numbers.
        reduction: ``mean`` or ``sum`` over pairs; ``none`` gives each pair.
        preset: The weights of `AMCLoss`, so that both can be compared.
        validate: Check features for NaN and infinity at every call; waits for the device.

    Examples:
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.5, 0.0]])
        >>> EuclideanContrastiveLoss(reduction="none")(features, torch.tensor([0, 1, 0, 2]))
        tensor([1.0000, 0.2500])
    """

    usual_margin = 1.0

    def distances(self, features: Tensor, left: Tensor | slice, right: Tensor | slice) -> Tensor:
        """Distance of each pair, ``(P,)``."""
        return torch.linalg.vector_norm(features[left] - features[right], dim=-1)


class CenterLoss(nn.Module):
    """Pulls each feature towards the centre of its class (Wen et al., ECCV 2016): ``weight · ½ · mean ‖x − c_y‖²``.

    Centres start at the origin and are no parameters. In training mode each call moves them after the loss is taken:
    ``c_j`` by ``−rate · Σ_{y_i=j}(c_j − x_i)/(1 + n_j)``, where n_j samples of class j are in the batch.

    With several processes each moves its own centres by its own part of the batch. Inside a module wrapped by
    DistributedDataParallel (which broadcasts buffers) all go on with those of the first process; outside they drift
    apart a little.

    Args:
        classes: Number of classes.
        width: Width D of the features.
        rate: How fast centres follow, in (0, 1].
        weight: Factor; the paper's λ for faces is .003.
        validate: Check features for NaN and infinity, and the range of labels, at every call; waits for the device.

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
        if classes < 1 or width < 1:
            raise InputError(f"classes and width must be 1 or more, got {classes} and {width}.")
        if not 0 < rate <= 1:
            raise InputError(f"rate must be above 0 and at most 1, got {rate}.")
        _check_weight(weight)
        self.rate, self.weight, self.validate = rate, weight, validate
        self.register_buffer("centers", torch.zeros(classes, width))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` with labels ``(N,)``; 0 for an empty batch."""
        classes, width = self.centers.shape
        _check_batch(features, labels, self.validate, classes)
        if features.shape[1] != width:
            raise InputError(f"features must have width {width} as the centres do, got {tuple(features.shape)}.")
        labels = labels.long()
        apart = features.to(working_dtype(features)) - self.centers.index_select(0, labels)
        if self.training:
            self._move(apart.detach(), labels)
        return self.weight * apart.square().sum() / (2 * max(len(labels), 1))

    @torch.no_grad()
    def _move(self, apart: Tensor, labels: Tensor) -> None:
        pull = torch.zeros_like(self.centers).index_add(0, labels, apart.to(self.centers.dtype))
        count = self.centers.new_ones(len(self.centers)).index_add(0, labels, self.centers.new_ones(len(labels)))
        self.centers.add_(pull / count[:, None], alpha=self.rate)

    def extra_repr(self) -> str:
        classes, width = self.centers.shape
        return f"classes={classes}, width={width}, rate={self.rate}, weight={self.weight}"


def _check_pairing(pairs: str) -> None:
    if pairs not in ("halves", "classes", "all"):
        raise InputError(f"pairs must be 'halves', 'classes' or 'all', got {pairs!r}.")


def _check_weight(weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise InputError(f"weight must be 0 or more and finite, got {weight}.")


def _check_batch(features: Tensor, labels: Tensor, validate: bool, classes: int | None = None) -> None:
    if features.ndim != 2 or not features.is_floating_point():
        raise InputError(
            f"features must have shape (N, D) in floating point, got {tuple(features.shape)} {features.dtype}."
        )
    if labels.shape != features.shape[:1]:
        hint = "; pass logits.argmax(1) for predictions." if labels.ndim == 2 else "; give one label a row of features."
        raise InputError(f"labels must have shape ({len(features)},), got {tuple(labels.shape)}{hint}")
    if not validate or torch.compiler.is_compiling():
        return
    if not torch.isfinite(features).all():
        raise InputError("features hold NaN or infinity; look at what the model returns, and at its learning rate.")
    outside = (labels < 0) | (labels >= classes) if classes else torch.zeros_like(labels, dtype=torch.bool)
    if outside.any():
        raise InputError(f"labels must lie in [0, {classes} − 1], got {labels[outside][0].item()}.")
