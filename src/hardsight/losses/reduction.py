"""From logits and targets of any shape to soft margins, and from an objective's values at those to a loss.

Everything that `torch.nn.CrossEntropyLoss` does around its logarithm is here: classes at dimension 1, targets as
indices or distributions, class weights, ignored targets, label smoothing and reductions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.margins import soft_margin, soft_margins


class Terms(NamedTuple):
    """Soft margins, and what is needed to weigh a value at each of them.

    Attributes:
        m: ``(N, …)`` of the targets, or ``(N, C, …)`` of every class where targets are distributions or smoothed.
        target: ``(N, …)`` class indices, or distributions ``(N, C, …)``.
        valid: ``(N, …)``, which indices count; None for distributions, which all do.
        weight: ``(C,)`` weight of each class.
        smoothing: Share of each target that is spread over all classes.
        single: Whether the input was one sample without a batch dimension.
    """

    m: Tensor
    target: Tensor
    valid: Tensor | None
    weight: Tensor | None
    smoothing: float
    single: bool


def terms_of(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    smoothing: float = 0.0,
    validate: bool = False,
) -> Terms:
    """Soft margins of logits at their targets."""
    soft = target.shape == input.shape and target.is_floating_point()
    _check_shapes(input, target, weight, soft)
    single = input.ndim == 1
    z = input.to(working_dtype(input))
    target = target.to(z.dtype) if soft else target.long()  # torch takes uint8, too
    if single:
        z, target = z.unsqueeze(0), target.unsqueeze(0)
    if validate and not torch.compiler.is_compiling():
        _check_values(z, target, weight, soft, ignore_index)
    weight = None if weight is None else weight.to(z)
    if soft:
        return Terms(soft_margins(z), target, None, weight, smoothing, single)
    valid = target != ignore_index
    target = torch.where(valid, target, 0)
    m = soft_margins(z) if smoothing else soft_margin(z, target)
    return Terms(m, target, valid, weight, smoothing, single)


def reduced(terms: Terms, values: Tensor, reduction: str, weighted: bool = True) -> Tensor:
    """Values of an objective at the soft margins, weighed and reduced."""
    target, valid = terms.target, terms.valid
    weight = terms.weight if weighted else None
    spread = valid is None or terms.smoothing > 0
    every = values * weight.view(-1, *[1] * (values.ndim - 2)) if spread and weight is not None else values
    if valid is None:
        losses = (target * every).sum(1)
        divisor = max(losses.numel(), 1)
    else:
        own = values.gather(1, target.unsqueeze(1)).squeeze(1) if spread else values
        share = valid.to(values.dtype) if weight is None else torch.where(valid, weight[target], 0)
        losses, total = torch.where(share == 0, 0, share * own), share.sum()  # 0 also where its own is infinite
        divisor = torch.where(total == 0, 1, total)  # where nothing counts, the loss is 0 instead of 0/0
    if terms.smoothing:
        losses = (1 - terms.smoothing) * losses + terms.smoothing * every.mean(1)
    if valid is not None:
        losses = torch.where(valid, losses, 0)  # also where an ignored one is infinite
    if reduction == "none":
        return losses.squeeze(0) if terms.single else losses
    return losses.sum() if reduction == "sum" else losses.sum() / divisor


def _check_shapes(input: Tensor, target: Tensor, weight: Tensor | None, soft: bool) -> None:
    if not input.is_floating_point() or input.ndim < 1:
        raise InputError(f"input must hold logits (N, C, …) in floating point, got {tuple(input.shape)} {input.dtype}.")
    dim = 0 if input.ndim == 1 else 1
    classes = input.shape[dim]
    if classes < 2:
        raise InputError(f"input must have two classes or more at dimension {dim}, got shape {tuple(input.shape)}.")
    wanted = input.shape[:dim] + input.shape[dim + 1 :]
    if not soft and (target.shape != wanted or target.is_floating_point()):
        raise InputError(
            f"target must hold class indices of shape {tuple(wanted)}, or probabilities of shape {tuple(input.shape)} "
            f"in floating point, got {tuple(target.shape)} {target.dtype}."
        )
    if weight is not None and weight.shape != (classes,):
        raise InputError(f"weight must have one number a class, shape ({classes},), got {tuple(weight.shape)}.")


def _check_values(z: Tensor, target: Tensor, weight: Tensor | None, soft: bool, ignore_index: int) -> None:
    if z.isnan().any():
        raise InputError("input holds NaN; look at what the model returns, and at its learning rate.")
    if weight is not None:
        check_weight(weight)
    if soft:
        sums = target.sum(1)
        off = (sums - 1).abs().max() if sums.numel() else sums.sum()
        if not off <= 5e-3 or (target < 0).any():  # rounded to bfloat16 they are off by 2e-3
            raise InputError(
                f"soft targets must be 0 or more and sum to 1 over classes, got sums off by {off:.3g} and a smallest "
                f"of {target.min():.3g}."
            )
        return
    outside = (target != ignore_index) & ((target < 0) | (target >= z.shape[1]))
    if outside.any():
        raise InputError(
            f"target must lie in [0, {z.shape[1] - 1}] or be ignore_index ({ignore_index}), got "
            f"{target[outside][0].item()}."
        )


def check_weight(weight: Tensor, name: str = "weight") -> None:
    """A sentence if a weight is below 0; waits for the device."""
    if not bool((weight >= 0).all()):
        raise InputError(f"{name} must hold numbers that are 0 or more, got {weight.min().item()}.")
