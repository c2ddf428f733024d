"""Mean squared error of probabilities, with the mirror bonus of the Encouraging Loss (its Table 5)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.margins import chosen


class MirrorMSELoss(nn.Module):
    """Squared error of softmax or sigmoid, plus its mirror image: a bonus for being far from the wrong answer.

    With probabilities p and targets y, the mean over samples and classes of ``y(1−p)² + (1−y)p²`` is the squared error,
    and that of ``−[y·p² + (1−y)(1−p)²]`` the bonus. The squares cancel: **the sum is twice the absolute error less 1**,
    ``2·[y(1−p) + (1−y)p] − 1``, between −1 and 1.

    **It stalls with many classes.** Over a softmax of K classes it is ``4(1−p_y)/K − 1``, so its slope at the target
    logit is ``−4·p_y(1−p_y)/K``. At the start, with ``p_y = 1/K``, that is about 4/K² where cross-entropy has 1: 25
    times less for 10 classes, 2,500 times for 100, 250,000 times for 1,000. A learning rate raised to make up for it is
    too large by K/4 when p reaches ½. Without the mirror the slope at the start is half of that.

    Args:
        activation: ``"softmax"``, or ``"sigmoid"``, where each class is a question of its own.
        mirror: False is the squared error alone.
        reduction: ``mean`` over samples and classes; ``none`` gives the mean over classes of each sample, ``sum`` the
            sum of those.
        ignore_index: Class indices that do not count. Where all are ignored the loss is 0.
        validate: Check values (NaN, range of targets) at every call; waits for the device.

    Examples:
        >>> logits, target = torch.tensor([[4.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0])
        >>> MirrorMSELoss(reduction="none")(logits, target)
        tensor([-0.9640,  0.0000])
        >>> MirrorMSELoss(mirror=False, reduction="none")(logits, target)
        tensor([0.0003, 0.2500])
    """

    def __init__(
        self,
        activation: Literal["softmax", "sigmoid"] = "softmax",
        mirror: bool = True,
        reduction: str = "mean",
        ignore_index: int = -100,
        validate: bool = False,
    ) -> None:
        super().__init__()
        if activation not in ("softmax", "sigmoid"):
            raise InputError(f"activation must be 'softmax' or 'sigmoid', got {activation!r}.")
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}.")
        self.activation, self.mirror, self.reduction = activation, mirror, reduction
        self.ignore_index, self.validate = ignore_index, validate

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of logits ``(N, C, …)`` at class indices ``(N, …)``, or at one-hot or soft targets ``(N, C, …)``."""
        soft = target.shape == logits.shape
        if logits.ndim < 2 or not (soft or target.shape == logits.shape[:1] + logits.shape[2:]):
            raise InputError(
                f"target must hold class indices (N, …) or a number a class (N, C, …) for logits (N, C, …), "
                f"got {tuple(target.shape)} for {tuple(logits.shape)}."
            )
        if not soft and target.is_floating_point():
            raise InputError(f"target must hold class indices as integers, got {target.dtype}; convert with .long().")
        z = logits.to(working_dtype(logits))
        target = target.to(z.dtype) if soft else target.long()
        if self.validate and not torch.compiler.is_compiling():
            self._check_values(z, target, soft)
        p, rest = _sigmoid(z) if self.activation == "sigmoid" else _softmax(z)
        y = target if soft else chosen(z, target).to(z.dtype)
        # The mirrored sum in the form that has not cancelled.
        errors = 2 * (y * rest + (1 - y) * p) - 1 if self.mirror else y * rest.square() + (1 - y) * p.square()
        kept = torch.ones_like(errors[:, 0]) if soft else (target != self.ignore_index).to(z.dtype)
        losses = torch.where(kept > 0, errors.mean(1), 0)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / kept.sum().clamp_min(1)

    def _check_values(self, z: Tensor, target: Tensor, soft: bool) -> None:
        if z.isnan().any():
            raise InputError("logits hold NaN; look at what the model returns, and at its learning rate.")
        largest = 1 if soft else z.shape[1] - 1
        outside = ~((target >= 0) & (target <= largest)) & (soft | (target != self.ignore_index))
        if outside.any():
            raise InputError(f"target must lie in [0, {largest}], got {target[outside][0].item()}.")

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, mirror={self.mirror}"


def _sigmoid(z: Tensor) -> tuple[Tensor, Tensor]:
    """p and 1 − p, each to its own last digit."""
    return z.sigmoid(), (-z).sigmoid()


def _softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """p and 1 − p, each to its own last digit: the largest p may round to 1, so its rest is the sum of the others."""
    p = z.softmax(1)
    largest = chosen(z, z.argmax(1))
    return p, torch.where(largest, p.masked_fill(largest, 0).sum(1, keepdim=True), 1 - p)
