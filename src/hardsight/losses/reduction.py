"""From logits and targets of any shape to soft margins, and from values of an objective at those to a loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.grammar import loss_part
from hardsight.losses.margins import class_mask, soft_margin, soft_margins
from hardsight.registry import Range, check_choice

REDUCTIONS = ("mean", "sum", "none")


class Terms(NamedTuple):
    """Soft margins ``(N, …)`` of the targets, or ``(N, C, …)`` of every class, each with its share of the target."""

    m: Tensor
    shares: Tensor | None  # (N, C, …); None: each target is one class
    target: Tensor | None  # (N, …) class indices; None: distributions
    valid: Tensor  # (N, …): which samples are not ignored
    single: bool  # whether the input was one sample without a batch dimension


class MarginLoss(nn.CrossEntropyLoss):
    """Everything that `torch.nn.CrossEntropyLoss` does, around another function of the soft margin."""

    validate: bool

    def terms(self, input: Tensor, target: Tensor) -> Terms:
        """The soft margins of a batch, which its loss and its parts are made of."""
        soft = target.shape == input.shape and target.is_floating_point()
        self._check_shapes(input, target, soft)
        single = input.ndim == 1
        z = input.to(working_dtype(input))
        target = target.to(z.dtype) if soft else target.long()  # torch takes uint8, too
        if single:
            z, target = z.unsqueeze(0), target.unsqueeze(0)
        if self.validate and not torch.compiler.is_compiling():
            check_values(z, target, soft, self.ignore_index)
            if soft and not torch.allclose(target.sum(1), target.new_ones(()), 0, 5e-3):  # bfloat16 is off by 2e-3
                raise InputError(f"soft targets must sum to 1 over classes, got {target.sum(1).min():.3g}.")
        if soft:
            valid, index = torch.ones_like(z[:, 0], dtype=torch.bool), None
        else:
            valid = target != self.ignore_index
            index = torch.where(valid, target, 0)
            if not self.label_smoothing:
                return Terms(soft_margin(z, index), None, index, valid, single)
        shares = target if index is None else class_mask(z, index).to(z.dtype)
        shares = (1 - self.label_smoothing) * shares + self.label_smoothing / z.shape[1]
        return Terms(soft_margins(z), shares, index, valid, single)

    def _reduced(self, terms: Terms, values: Tensor, weighted: bool = True) -> Tensor:
        """Values of an objective at the soft margins, weighed and reduced."""
        _, shares, target, valid, single = terms
        factor = count = valid.to(values.dtype)
        weight = None if self.weight is None or not weighted else self.weight.to(values)
        if weight is not None and target is not None:
            factor = count = torch.where(valid, weight[target], 0)
        if shares is not None:
            factor = shares * valid.unsqueeze(1)
            if weight is not None:
                factor = factor * weight.view(-1, *[1] * (values.ndim - 2))
        losses = torch.where(factor == 0, 0, factor * values)  # 0 also where a value is infinite
        losses = losses if shares is None else losses.sum(1)
        total = count.sum()
        losses = losses.squeeze(0) if single else losses
        return reduced(losses, self.reduction, torch.where(total == 0, 1, total))  # 0 instead of 0/0

    def _check_shapes(self, input: Tensor, target: Tensor, soft: bool) -> None:
        if not input.is_floating_point() or input.ndim < 1:
            raise InputError(
                f"input must hold logits (N, C, …) in floating point, got {tuple(input.shape)} {input.dtype}."
            )
        dim = min(input.ndim - 1, 1)
        classes, shape = input.shape[dim], input.shape[:dim] + input.shape[dim + 1 :]
        if classes < 2:
            raise InputError(f"input must have two classes or more at dimension {dim}, got shape {tuple(input.shape)}.")
        if not soft and (target.shape != shape or target.is_floating_point()):
            raise InputError(
                f"target must hold class indices of shape {tuple(shape)}, or probabilities of shape "
                f"{tuple(input.shape)} in floating point, got {tuple(target.shape)} {target.dtype}."
            )
        if self.weight is not None and self.weight.shape != (classes,):
            raise InputError(f"weight must have shape ({classes},), one per class, got {tuple(self.weight.shape)}.")


def reduced(losses: Tensor, reduction: str, count: Tensor | int) -> Tensor:
    """Losses as they are, their sum, or their mean over so many."""
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / count


def check_common(loss: nn.Module) -> None:
    """Check what torch's losses take without a look: the reduction, label smoothing and weights."""
    check_choice(loss.reduction, REDUCTIONS, "reduction")
    Range(0, 1).check(getattr(loss, "label_smoothing", 0.0), "label_smoothing")
    for name in ("weight", "pos_weight"):
        weight = getattr(loss, name, None)
        if weight is None or weight.device.type != "cpu" or torch.compiler.is_compiling():
            continue  # looking would wait for the device, and `encouraging_loss` comes here at every step
        if not bool((weight >= 0).all()):
            raise InputError(f"{name} must hold numbers that are 0 or more, got {weight.min().item()}.")


def check_finite(features: Tensor, validate: bool) -> None:
    """Check features for NaN and infinity, if asked to; waits for the device."""
    if validate and not torch.compiler.is_compiling() and not torch.isfinite(features).all():
        raise InputError("features hold NaN or infinity; check what the model returns, and its learning rate.")


def check_values(z: Tensor, target: Tensor, soft: bool, ignore_index: int | None = None) -> None:
    """Check logits for NaN and targets for their range; waits for the device."""
    if z.isnan().any():
        raise InputError("input holds NaN; check what the model returns, and its learning rate.")
    largest = 1 if soft else z.shape[1] - 1
    outside = ~((target >= 0) & (target <= largest))
    if not soft:
        outside &= target != ignore_index
    if outside.any():
        exception = "" if soft else f" or be ignore_index ({ignore_index})"
        raise InputError(f"target must lie in [0, {largest}]{exception}, got {target[outside][0].item()}.")


@loss_part("objective", "ce", reference="torch.nn.CrossEntropyLoss")
def _ce(*, weight: Tensor | None, label_smoothing: float) -> nn.Module:
    """Cross-entropy."""
    return nn.CrossEntropyLoss(weight, label_smoothing=label_smoothing)
