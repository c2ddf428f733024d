"""From logits and targets of any shape to soft margins with their shares, and from objectives of those to a loss.

Everything that `torch.nn.CrossEntropyLoss` does around its logarithm is here: classes at dimension 1, targets as
indices or distributions, class weights, ignored targets, label smoothing and reductions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardsight.angles import working_dtype
from hardsight.losses.margins import chosen, soft_margin, soft_margins


@dataclass(frozen=True)
class Terms:
    """Soft margins and what each counts for.

    Attributes:
        logits: ``(N, C, …)`` in float32 or better.
        m: Soft margins: ``(N, …)`` of the targets, or ``(N, C, …)`` of every class where targets are spread.
        share: How much each counts, with class weights; broadcast against `m`.
        plain_share: The same without class weights.
        divisor: What a mean divides by.
        plain_divisor: The same without class weights.
        spread: Whether targets are distributions (soft, or smoothed).
        target: ``(N, …)`` class indices where they are not.
        single: Whether the input was one sample without a batch dimension.
    """

    logits: Tensor
    m: Tensor
    share: Tensor
    plain_share: Tensor
    divisor: Tensor
    plain_divisor: Tensor
    spread: bool
    target: Tensor
    single: bool

    @property
    def class_dim(self) -> int:
        return 0 if self.single else 1


def terms_of(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    smoothing: float = 0.0,
    validate: bool = False,
) -> Terms:
    """Soft margins of logits at their targets, with what each counts for."""
    soft = target.shape == input.shape and target.is_floating_point()
    _check_shapes(input, target, weight, soft)
    single = input.ndim == 1
    z = input.to(working_dtype(input))
    if single:
        z, target = z.unsqueeze(0), target.unsqueeze(0)
    if validate and not torch.compiler.is_compiling():
        _check_values(z, target, soft, ignore_index)
    classes = z.shape[1]
    column = (1, -1, *[1] * (z.ndim - 2))
    weight = None if weight is None else weight.to(z)
    if soft:
        plain = target.to(z.dtype) * (1 - smoothing) + smoothing / classes
        share = plain if weight is None else plain * weight.view(column)
        count = z.new_tensor(max(z.numel() // classes, 1))
        return Terms(z, soft_margins(z), share, plain, count, count, True, target, single)
    valid = target != ignore_index
    target = torch.where(valid, target, 0)
    kept = valid.to(z.dtype)
    own = kept if weight is None else kept * weight[target]
    if not smoothing:
        m = soft_margin(z, target)
        return Terms(z, m, own, kept, _nonzero(own.sum()), _nonzero(kept.sum()), False, target, single)
    plain = ((1 - smoothing) * chosen(z, target).to(z.dtype) + smoothing / classes) * kept.unsqueeze(1)
    share = plain if weight is None else plain * weight.view(column)
    m = soft_margins(z)
    return Terms(z, m, share, plain, _nonzero(own.sum()), _nonzero(kept.sum()), True, target, single)


def reduced(terms: Terms, values: Tensor, reduction: str, weighted: bool = True) -> Tensor:
    """Values of an objective at the margins, weighed and reduced."""
    share, divisor = (terms.share, terms.divisor) if weighted else (terms.plain_share, terms.plain_divisor)
    # An ignored target may have an infinite loss: 0 · ∞ must not come in.
    values = torch.where(share == 0, 0, share * values)
    if reduction == "none":
        values = values.sum(1) if terms.spread else values
        return values.squeeze(0) if terms.single else values
    return values.sum() if reduction == "sum" else values.sum() / divisor


def logit_gradient(terms: Terms, slopes: Tensor) -> Tensor:
    """Gradient at the logits of a loss whose slopes in the soft margins are given.

    A margin ``m_j`` falls by 1 with its own logit and rises with another by that one's softmax among the rest.
    """
    z = terms.logits
    if not terms.spread:
        own = chosen(z, terms.target)
        rest = z.masked_fill(own, -torch.inf).softmax(1)
        return slopes.unsqueeze(1) * torch.where(own, -1.0, rest)
    # 1 − p is exact as sigmoid(m) and at least ½ but for the largest class, which is taken by itself.
    top = chosen(z, z.argmax(1))
    others = z.masked_fill(top, -torch.inf).softmax(1)
    ratio = slopes.masked_fill(top, 0) / terms.m.sigmoid().masked_fill(top, 1)
    through = z.softmax(1) * (ratio.sum(1, keepdim=True) - ratio)
    return through - slopes + others * slopes.masked_fill(~top, 0).sum(1, keepdim=True)


def _nonzero(total: Tensor) -> Tensor:
    """A divisor: where nothing counts, the loss is 0 instead of 0/0."""
    return torch.where(total == 0, torch.ones_like(total), total)


def _check_shapes(input: Tensor, target: Tensor, weight: Tensor | None, soft: bool) -> None:
    if not input.is_floating_point() or input.ndim < 1:
        raise ValueError(f"input must hold logits (N, C, …) in floating point, got {tuple(input.shape)} {input.dtype}.")
    dim = 0 if input.ndim == 1 else 1
    classes = input.shape[dim]
    if classes < 2:
        raise ValueError(f"input must have two classes or more at dimension {dim}, got shape {tuple(input.shape)}.")
    wanted = input.shape[:dim] + input.shape[dim + 1 :]
    if not soft and (target.shape != wanted or target.is_floating_point()):
        raise ValueError(
            f"target must hold class indices of shape {tuple(wanted)} or probabilities of shape {tuple(input.shape)}, "
            f"got {tuple(target.shape)} {target.dtype}."
        )
    if weight is not None and weight.shape != (classes,):
        raise ValueError(f"weight must have one number a class, shape ({classes},), got {tuple(weight.shape)}.")


def _check_values(z: Tensor, target: Tensor, soft: bool, ignore_index: int) -> None:
    if z.isnan().any():
        raise ValueError("input holds NaN; look at what the model returns, and at its learning rate.")
    if soft:
        sums = target.sum(1)
        off = (sums - 1).abs().max() if sums.numel() else sums.sum()
        if not off <= 1e-3 or (target < 0).any():
            raise ValueError(f"soft targets must be 0 or more and sum to 1 over classes, got sums off by {off:.3g}.")
        return
    outside = (target != ignore_index) & ((target < 0) | (target >= z.shape[1]))
    if outside.any():
        raise ValueError(
            f"target must lie in [0, {z.shape[1] - 1}] or be ignore_index ({ignore_index}), got "
            f"{target[outside][0].item()}."
        )
