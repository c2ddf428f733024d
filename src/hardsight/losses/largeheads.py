"""Heads with too many classes for a matrix of logits ``(N, C)``: two numbers per row, computed chunk by chunk.

`head_terms` returns the target's logit or angle, and the logsumexp of the logits of all other classes. The soft margin,
and so every objective and every margin on the target, is a function of these ``(N,)`` numbers. Neither the logits nor
their gradient are ever formed as a whole: the backward pass recomputes each chunk.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.headchunks import HALF, LOG2E, HeadKind, PlainChunks, Rows, chunks_of, merge

LARGE = 2**26  # logits that are worth computing twice: 256 MiB in float32


class HeadTerms(NamedTuple):
    """The two numbers per row ``(N,)`` that determine its loss."""

    at_target: Tensor  # the target's logit; for directions, its angle in radians
    others: Tensor  # logsumexp of the logits of all other classes


def head_terms(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    kind: HeadKind = "linear",
    scale: float | Tensor = 1.0,
) -> HeadTerms:
    """The target's logit or angle and the logsumexp over all other classes, in memory that does not grow with ``N·C``.

    Products are computed in the inputs' dtype, or in autocast's, and sums in float32 at least. Float32 products of
    directions keep full precision whatever TF32 is set to. On a GPU with Triton, 16-bit inputs are multiplied and
    reduced in one kernel; the gradient at the logits is then rounded to 16 bits, as in a plain 16-bit head. Lengths of
    16-bit vectors must lie between 1e-15 and 1e15. There is no second derivative.

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``.
        target: ``(N,)`` class indices. If a row's target is no class, the logsumexp is over all classes, and the value
            at the target is meaningless.
        bias: ``(C,)`` of a linear head.
        kind: ``"linear"``: logits ``x·w + b``. ``"cosine"``: ``s·cos θ``. ``"angular"``: ``s·(π − θ)``.
        scale: s, a number or one per row ``(N, 1)``; for directions only.

    Examples:
        >>> terms = head_terms(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([0]), kind="cosine", scale=3.0)
        >>> terms.at_target.tolist(), terms.others.tolist()
        ([0.0], [0.0])
    """
    check_head(features, weight, target, bias)
    dtype = working_dtype(features, weight)
    if kind == "linear" and not (isinstance(scale, float | int) and scale == 1):
        raise InputError("scale belongs to the kinds 'cosine' and 'angular'; divide the features instead.")
    if isinstance(scale, Tensor):
        factor = scale.to(features.device, dtype).reshape(-1).expand(len(features))
    else:
        factor = features.new_full((len(features),), scale, dtype=dtype)
    return HeadTerms(*_apply(features, weight, bias, factor, target, kind, _products_dtype(features, weight)))


def margin_between(others: Tensor, logit: Tensor, target: Tensor, classes: int) -> Tensor:
    """The soft margin ``(N,)``; NaN, without a gradient, where the target is no class."""
    return torch.where((target >= 0) & (target < classes), others - logit, math.nan)


def margin_of_nll(nll: Tensor) -> Tensor:
    """The soft margin ``log(eⁿˡˡ − 1)`` of a cross-entropy per row, such as `F.linear_cross_entropy` returns.

    An objective of this margin costs nothing more (`EncouragingLoss.of_margins`). Precision is lost as p goes to 1: a
    cross-entropy is a difference of logits, so in float32 a value below 1e-6 is rounding error. It is clamped at
    1.2e-7, a margin of −15.9, with no gradient below; `head_terms` has neither limit.

    Examples:
        >>> margin_of_nll(torch.tensor([2.0]))
        tensor([1.8546])
    """
    nll = nll.to(working_dtype(nll))
    nll = nll.clamp_min(torch.finfo(nll.dtype).eps)
    return nll + torch.log(-torch.expm1(-nll))


def is_large(target: Tensor, features: Tensor | None, weight: Tensor | None) -> bool:
    """Whether targets are class indices and there are too many logits to form at once."""
    if features is None or weight is None or target.is_floating_point() or features.ndim != 2:
        return False
    return len(features) * len(weight) > LARGE


def check_head(features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None = None) -> None:
    """Check that the shapes of a head's input, weight and targets match."""
    if features.ndim != 2 or weight.ndim != 2 or features.shape[1] != weight.shape[1] or not len(weight):
        raise InputError(
            f"features (N, D) and weight (C, D) must have the same width, got {tuple(features.shape)} and "
            f"{tuple(weight.shape)}; pass the input and the weight of the last linear layer."
        )
    if target is not None and (target.shape != features.shape[:1] or target.is_floating_point()):
        raise InputError(
            f"target must hold class indices of shape ({len(features)},), got {tuple(target.shape)} {target.dtype}; "
            "soft targets go with logits that take no target."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(f"bias must have shape ({len(weight)},), one per class, got {tuple(bias.shape)}.")


def _products_dtype(features: Tensor, weight: Tensor) -> torch.dtype:
    dtype, device = torch.promote_types(features.dtype, weight.dtype), features.device.type
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return dtype


def _apply(*inputs: Any) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        # Not imported at the top: the decorator that keeps the compiler out imports the compiler, which takes seconds.
        from hardsight.losses.eagerheads import apply_eagerly

        return apply_eagerly(*inputs)
    return _HeadTerms.apply(*inputs)  # pyrefly: ignore[bad-return]


class _HeadTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        features, weight, bias, scale, target, kind, dtype = inputs
        learned = ctx.needs_input_grad[3]
        # Kernels are launched on the current device.
        with torch.cuda.device_of(features), torch.autocast(features.device.type, enabled=False):
            backend = chunks_of(features, kind, dtype)
            rows = _rows(backend, features, weight, scale, target)
            parts, lengths = [], []
            for here in backend.chunks(len(features), weight, backward=False):
                w, part_of_bias = backend.vectors(weight[here]), None if bias is None else bias[here]
                parts.append(backend.sums(rows, w, part_of_bias, here.start, learned))
                lengths.append(w.inverse)
            level, total, linear = zip(*parts, strict=True)
            sums = merge(torch.stack(level), torch.stack(total), torch.stack(linear) if learned else None)
            others = ((sums.level + sums.total.log2()) / LOG2E).masked_fill_(sums.total == 0, -math.inf)
            # The slope in the scale is the mean of what is scaled.
            mean = None if sums.linear is None else (sums.linear / sums.total + sums.level) / rows.scale
            if kind == "angular":
                others += scale * (math.pi / 2)
                mean = None if mean is None else mean + math.pi / 2
            index = _index(target, len(weight))
            at_target = backend.at_target(features, rows, weight, index)
            if bias is not None:
                at_target += bias.index_select(0, index).to(at_target)
            inverse = None if lengths[0] is None else torch.cat(lengths)
        ctx.save_for_backward(features, weight, bias, scale, target, sums.level, sums.total, mean, inverse)
        ctx.kind, ctx.dtype = kind, dtype
        return at_target, others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyrefly: ignore[bad-override]
        features, weight, bias, scale, target, level, total, mean, inverse = ctx.saved_tensors
        at_target, others = grad_outputs
        with torch.cuda.device_of(features), torch.autocast(features.device.type, enabled=False):
            backend = chunks_of(features, ctx.kind, ctx.dtype)
            rows = _rows(backend, features, weight, scale, target)
            needed = [
                t if need else None for t, need in zip((features, weight, bias), ctx.needs_input_grad[:3], strict=True)
            ]
            slope = others / total.masked_fill(total == 0, math.inf)
            if ctx.kind != "linear":
                slope = slope * scale if rows.x.inverse is None else slope * scale * rows.x.inverse
            paired = at_target.contiguous() if ctx.kind == "linear" else torch.zeros_like(level)
            x_grad, w_grad, b_grad = _class_gradients(
                backend, rows, weight, inverse, bias, level, slope, paired, needed
            )
            if ctx.kind != "linear":
                at_target, index = torch.where(rows.target >= 0, at_target, 0), _index(target, len(weight))
                w_rows = backend.add_at_target(features, rows, weight, index, at_target, x_grad)
                if w_grad is not None:
                    _add_rows(w_grad, index, w_rows)
            s_grad = None if mean is None else others * mean
            x_grad = None if x_grad is None else x_grad.to(features.dtype)
        return x_grad, w_grad, b_grad, s_grad, None, None, None


def _rows(backend: PlainChunks, features: Tensor, weight: Tensor, scale: Tensor, target: Tensor) -> Rows:
    valid = (target >= 0) & (target < len(weight))
    return Rows(backend.vectors(features), scale * LOG2E, torch.where(valid, target, -1).int())


def _class_gradients(
    backend: PlainChunks,
    rows: Rows,
    weight: Tensor,
    inverse: Tensor | None,
    bias: Tensor | None,
    level: Tensor,
    slope: Tensor,
    at_target: Tensor,
    needed: list[Tensor | None],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients at features (in float32 or better), weight and bias through the products with all classes."""
    x = rows.x.values
    x_grad = None if needed[0] is None else torch.zeros_like(x, dtype=level.dtype)
    w_grad, b_grad = (
        None if tensor is None else torch.empty_like(tensor, memory_format=torch.contiguous_format)  # for kernels
        for tensor in needed[1:]
    )
    for here in backend.chunks(len(x), weight, backward=True):
        w = backend.vectors(weight[here], None if inverse is None else inverse[here])
        part_of_bias = None if bias is None else bias[here]
        up = backend.magnified(slope, at_target, w)
        factors = (slope, at_target) if up is None else (slope * up, at_target * up)
        grad = backend.gradient(rows, w, part_of_bias, here.start, level, *factors)
        down = 1.0 if up is None else 1 / up
        if x_grad is not None:
            backend.add_product(x_grad, grad, w.values, down)
        if w_grad is not None:
            backend.weight_gradient(grad, x, w, w_grad[here], down)
        if b_grad is not None:
            b_grad[here] = grad.sum(0, dtype=level.dtype) * down
    if x_grad is not None:
        backend.project(rows.x, x_grad)
    return x_grad, w_grad, b_grad


def _index(target: Tensor, classes: int) -> Tensor:
    return target.long().clamp(0, classes - 1)


def _add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """``total[index] += rows``. In 16 bits, rows of one class are summed in float32 and rounded once."""
    if total.dtype in HALF:
        order = index.argsort()
        ordered = index[order]
        group = torch.cat([torch.zeros_like(ordered[:1]), ordered.diff().ne(0).long()]).cumsum(0)
        rows = torch.zeros_like(rows).index_add_(0, torch.empty_like(group).scatter_(0, order, group), rows)
        index = torch.zeros_like(index).scatter_(0, group, ordered)  # the remaining ones add 0 to class 0
    total.index_add_(0, index, rows.to(total.dtype))
