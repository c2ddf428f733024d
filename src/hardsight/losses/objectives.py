"""Objectives to compare the Encouraging Loss with: focal loss, and squared error with a mirror bonus."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.grammar import loss_part
from hardsight.losses.margins import class_mask, focal, soft_margins
from hardsight.losses.reduction import REDUCTIONS, MarginLoss, check_common, check_values, reduced
from hardsight.registry import Range, check_choice

Activation = Literal["softmax", "sigmoid"]


class FocalLoss(MarginLoss):
    """Focal loss, ``−(1 − p)^γ log p``, in the shapes of `torch.nn.CrossEntropyLoss`: the opposite of a bonus.

    With ``gamma=0`` it is cross-entropy. Other options are those of torch, and ``validate`` as in `EncouragingLoss`.
    """

    def __init__(self, gamma: float = 2.0, *, validate: bool = False, **options: Any) -> None:
        Range(0).check(gamma, "gamma")
        super().__init__(**options)
        check_common(self)
        self.gamma, self.validate = gamma, validate

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        terms = self.terms(input, target)
        return self._reduced(terms, focal(terms.m, self.gamma))

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}"


class MirrorMSELoss(nn.Module):
    """Squared error of probabilities plus its mirror image: a bonus for being far from the wrong answer (EL Table 5).

    With probabilities p and targets y, the mean over samples and classes of ``y(1−p)² + (1−y)p²`` is the squared error,
    and that of ``−[y·p² + (1−y)(1−p)²]`` the bonus. The squares cancel: **the sum is twice the absolute error less 1**.
    With many classes it stalls: over a softmax of K classes the slope at the target logit is ``−4·p_y(1−p_y)/K``,
    which is about 4/K² at the start, where cross-entropy has 1.

    Args:
        activation: ``"softmax"``, or ``"sigmoid"``, where each class is a question of its own.
        mirror: False is the squared error alone.
        reduction: ``mean`` over samples and classes; ``none`` gives the mean over classes of each sample, ``sum`` the
            sum of those.
        ignore_index: Class indices that do not count. Where all are ignored the loss is 0.
        validate: Check values (NaN, range of targets) at every call; waits for the device.

    Examples:
        >>> MirrorMSELoss(reduction="none")(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0]))
        tensor([-0.9640,  0.0000])
    """

    def __init__(
        self,
        activation: Activation = "softmax",
        mirror: bool = True,
        reduction: str = "mean",
        ignore_index: int = -100,
        validate: bool = False,
    ) -> None:
        super().__init__()
        check_choice(activation, get_args(Activation), "activation")
        check_choice(reduction, REDUCTIONS, "reduction")
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
        z = logits.to(working_dtype(logits))
        target = target.to(z.dtype) if soft else target.long()
        if self.validate and not torch.compiler.is_compiling():
            check_values(z, target, soft, self.ignore_index)
        m = -z if self.activation == "sigmoid" else soft_margins(z)
        p, rest = (-m).sigmoid(), m.sigmoid()
        y = target if soft else class_mask(z, target).to(z.dtype)
        # The mirrored sum in the form that has not cancelled.
        errors = 2 * (y * rest + (1 - y) * p) - 1 if self.mirror else y * rest.square() + (1 - y) * p.square()
        valid = torch.ones_like(errors[:, 0]) if soft else (target != self.ignore_index).to(z.dtype)
        losses = torch.where(valid > 0, errors.mean(1), 0)
        return reduced(losses, self.reduction, valid.sum().clamp_min(1))

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, mirror={self.mirror}"


@loss_part("objective", "focal", reference="Lin et al. (ICCV 2017)")
def _focal(*, gamma: Annotated[float, Range(0)] = 2.0, weight: Tensor | None, label_smoothing: float) -> nn.Module:
    """Focal loss, which turns away from what is already right."""
    return FocalLoss(gamma, weight=weight, label_smoothing=label_smoothing)


@loss_part("objective", "mirror", reference="EL (AAAI 2022) Table 5")
def _mirror(*, activation: Activation = "softmax") -> nn.Module:
    """Squared error of probabilities with a mirror bonus: twice the absolute error − 1."""
    return MirrorMSELoss(activation)


@loss_part("objective", "mse", reference="EL (AAAI 2022) Table 5")
def _mse(*, activation: Activation = "softmax") -> nn.Module:
    """Squared error of probabilities."""
    return MirrorMSELoss(activation, mirror=False)
