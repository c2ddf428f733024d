"""Squared error of probabilities and its mirror image, from the tables of the Encouraging Loss paper."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from hardsight.angles import transformed, working_dtype
from hardsight.errors import InputError
from hardsight.losses.base import CheckedLoss, Reduction, kernels_for
from hardsight.losses.grammar import loss_part
from hardsight.losses.margins import class_mask, margin_loss, mirror_curve, soft_margin, soft_margins

Activation = Literal["softmax", "sigmoid"]


class MirrorMSELoss(CheckedLoss):
    """Squared error of probabilities plus its mirror image: a bonus for being far from the wrong answer (EL Table 5).

    With probabilities p and targets y, the mean over samples and classes of ``y(1−p)² + (1−y)p²`` is the squared error,
    and that of ``−[y·p² + (1−y)(1−p)²]`` the bonus. The squares cancel: **the sum is twice the absolute error less 1**.
    With many classes it stalls: over a softmax of K classes the slope at the target logit is ``−4·p_y(1−p_y)/K``,
    which is about 4/K² at the start, where cross-entropy has 1.

    Args:
        activation: ``"softmax"``, or ``"sigmoid"``, where each class is a separate yes/no question.
        mirror: False is the squared error alone.
        reduction: ``none`` gives each sample's mean over classes; ``sum`` and ``mean`` reduce these.
        ignore_index, validate: As in `EncouragingLoss`.

    Examples:
        >>> MirrorMSELoss(reduction="none")(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
        tensor([-0.9640,  0.0000])
    """

    activation: Activation

    def __init__(
        self,
        activation: Activation = "softmax",
        mirror: bool = True,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
        validate: bool = False,
    ) -> None:
        super().__init__()
        self.activation, self.mirror, self.reduction = activation, mirror, reduction
        self.ignore_index, self.validate = ignore_index, validate

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of logits ``(N, C, …)`` at class indices ``(N, …)``, or at one-hot or soft targets ``(N, C, …)``."""
        soft = target.shape == logits.shape
        indices = target.shape == logits.shape[:1] + logits.shape[2:] and not target.is_floating_point()
        if logits.ndim < 2 or not (soft or indices):
            raise InputError(
                "target must hold class indices (N, …) as integers, or a number per class (N, C, …) for logits "
                f"(N, C, …), got {tuple(target.shape)} {target.dtype} for {tuple(logits.shape)}."
            )
        kernels = None if soft or not self._of_margins else kernels_for(logits, target, self)
        if kernels is not None:
            numbers, mean = kernels.Numbers("mirror", factor=4 / logits.shape[1]), self.reduction == "mean"
            plain = partial(self._by_operations, target=target, soft=False)
            return kernels.KernelLoss.apply(logits, target, None, self.ignore_index, mean, numbers, plain)[0]
        return self._by_operations(logits, target, soft)

    @property
    def _of_margins(self) -> bool:
        """Whether the target's error is enough: the other classes together err by as much."""
        return self.mirror and self.activation == "softmax"

    def _by_operations(self, logits: Tensor, target: Tensor, soft: bool) -> Tensor:
        z = logits.to(working_dtype(logits))
        target = target.to(z.dtype) if soft else target.long()
        self._check_values(1 if soft else z.shape[1] - 1, input=z, target=target)
        valid = torch.ones_like(z[:, 0], dtype=torch.bool) if soft else target != self.ignore_index
        factor = valid / valid.sum(dtype=z.dtype).clamp_min(1) if self.reduction == "mean" else valid.to(z.dtype)
        if not soft and self._of_margins:
            target, curve = target * valid, partial(mirror_curve, classes=z.shape[1])
            plain = lambda z: self._reduced(factor, curve(soft_margin(z, target)).value)  # noqa: E731
            if transformed(z):
                return plain(z)
            return margin_loss(z, target, factor, curve, plain, sums=self.reduction != "none")[0]
        m = -z if self.activation == "sigmoid" else soft_margins(z)
        p, rest = (-m).sigmoid(), m.sigmoid()
        y = target if soft else class_mask(z, target).to(z.dtype)
        # The mirrored sum, in a form without cancellation.
        errors = 2 * (y * rest + (1 - y) * p) - 1 if self.mirror else y * rest.square() + (1 - y) * p.square()
        errors = errors.mean(1)
        if not soft:  # a target that is no class must not look like one
            errors = errors.masked_fill(valid & ((target < 0) | (target >= z.shape[1])), torch.nan)
        return self._reduced(factor, errors)

    def _reduced(self, factor: Tensor, losses: Tensor) -> Tensor:
        losses = torch.where(factor == 0, 0, losses) * factor
        return losses if self.reduction == "none" else losses.sum()


@loss_part("objective", "mirror", reference="EL (AAAI 2022) Table 5")
def _mirror(*, activation: Activation = "softmax") -> nn.Module:
    """Squared error of probabilities with a mirror bonus: twice the absolute error − 1."""
    return MirrorMSELoss(activation)


@loss_part("objective", "mse", reference="EL (AAAI 2022) Table 5")
def _mse(*, activation: Activation = "softmax") -> nn.Module:
    """Squared error of probabilities."""
    return MirrorMSELoss(activation, mirror=False)
