"""Losses of the soft margin on a GPU: a Triton kernel for all rows, one for their sum, and one for the gradient.

A loss of a few thousand logits is bound by kernel launches. There are three here, whatever the objective does. The
formulas are those of `hardsight.losses.margins`, which all other devices use; tests check that both agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 16384  # most classes that a program can keep in registers
LOG, FOCAL, MIRROR = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
KINDS = {"log": 0, "focal": 1, "mirror": 2}


class Numbers(NamedTuple):
    """The parameters of an objective, as a kernel takes them."""

    kind: str
    end: float = -1.0  # LOG: the loss is m as long as 1 − p is not less
    slant: float = 0.0  # beyond, 1 − p times this is added to cross-entropy
    level: float = 0.0  # and this
    start: float = 2.0  # cross-entropy alone as long as 1 − p is more
    shift: float = 0.0  # taken off what comes after
    factor: float = 1.0  # of the bonus; γ of FOCAL, 4/C of MIRROR
    offset: float = 0.0  # taken off everything


CROSS_ENTROPY = Numbers("log", 2.0)


@triton.jit
def _log1p(x):
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def _curve(m, end, slant, level, start, shift, factor, offset, KIND: tl.constexpr):
    """Value, slope and cross-entropy at soft margins."""
    small = tl.exp(-tl.abs(m))
    larger, smaller = 1.0 / (1.0 + small), small / (1.0 + small)
    rest, p = tl.where(m >= 0, larger, smaller), tl.where(m >= 0, smaller, larger)
    tail = _log1p(small)
    ce = tl.where(m >= 0, m, 0.0) + tail
    if KIND == LOG:
        near = rest >= end
        value = tl.where(near, m, ce + slant * rest + level)
        slope = tl.where(near, 1.0, rest * (1.0 + slant - slant * rest))
        early = rest > start
        value, slope = tl.where(early, ce, value - shift), tl.where(early, rest, slope)
        blended = ce + factor * (value - ce)
        value = tl.where(factor == 1.0, value, blended) - offset
        slope = tl.where(factor == 1.0, slope, rest + factor * (slope - rest))  # exactly 1 where it is
    elif KIND == FOCAL:
        power = tl.exp(factor * (tl.where(m >= 0, 0.0, m) - tail))
        value, slope = power * ce, power * (rest + factor * tl.where(p == 0, 0.0, p * ce))  # not 0 · inf
    else:
        value, slope = factor * rest - 1.0, factor * rest * p
    return value, slope, ce


@triton.jit
def _row_kernel(
    z, target, weight, rows, count, stride, classes, ignored,
    end, slant, level, start, shift, factor, offset,
    KIND: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    label = tl.load(target + row)
    v = tl.load(z + row * stride + column, mask=column < classes, other=-float("inf")).to(tl.float32)
    at = tl.sum(tl.where(column == label, v, 0.0), 0)
    v = tl.where(column == label, -float("inf"), v)
    top = tl.max(v, 0)
    alone = top == -float("inf")  # all other logits are −inf: so is m
    base = tl.where(alone, 0.0, top)
    total = tl.where(alone, 1.0, tl.sum(tl.exp(v - base), 0))
    inside = (label >= 0) & (label < classes)
    m = tl.where(inside, tl.log(total) + (top - at), float("nan"))
    w = tl.where(label == ignored, 0.0, 1.0)
    if WEIGHTED:
        w *= tl.load(weight + label, mask=inside, other=1.0).to(tl.float32)
    m = tl.where(w == 0.0, 0.0, m)  # 0 · inf would be NaN
    value, slope, ce = _curve(m, end, slant, level, start, shift, factor, offset, KIND)
    tl.store(rows + row, w * value)
    tl.store(rows + count + row, w)
    tl.store(rows + 2 * count + row, w * ce)
    tl.store(rows + 3 * count + row, w * slope)
    tl.store(rows + 4 * count + row, base)
    tl.store(rows + 5 * count + row, 1.0 / total)


@triton.jit
def _sum_kernel(rows, loss, sums, count, MEAN: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    value, weight, ce = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for first in tl.range(0, count, BLOCK):
        here = first + column
        value += tl.load(rows + here, mask=here < count, other=0.0)
        weight += tl.load(rows + count + here, mask=here < count, other=0.0)
        ce += tl.load(rows + 2 * count + here, mask=here < count, other=0.0)
    scale = 1.0 / tl.maximum(tl.sum(weight, 0), 1e-38) if MEAN else 1.0
    total, part = tl.sum(value, 0) * scale, tl.sum(ce, 0) * scale
    tl.store(loss, total)
    tl.store(sums, part)
    tl.store(sums + 1, total - part)
    tl.store(sums + 2, scale)


@triton.jit
def _gradient_kernel(z, target, rows, sums, grad, out, count, stride, classes, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    label = tl.load(target + row)
    pull = tl.load(rows + 3 * count + row) * (tl.load(sums + 2) * tl.load(grad))
    base, share = tl.load(rows + 4 * count + row), tl.load(rows + 5 * count + row)
    v = tl.load(z + row * stride + column, mask=column < classes, other=-float("inf")).to(tl.float32)
    slope = tl.where(column == label, -1.0, tl.exp(v - base) * share)
    tl.store(out + row * classes + column, (pull * slope).to(out.dtype.element_ty), mask=column < classes)


def forward(
    z: Tensor, target: Tensor, weight: Tensor | None, ignored: int, mean: bool, numbers: Numbers
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, ``(cross-entropy, bonus, scale)``, and what the gradient needs per row."""
    (count, classes), (block, warps) = z.shape, _size(z)
    rows, sums, loss = (z.new_empty(shape, dtype=torch.float32) for shape in ((6, count), (3,), ()))
    _row_kernel[(count,)](
        z, target, z if weight is None else weight, rows, count, z.stride(0), classes, ignored, *numbers[1:],
        KIND=KINDS[numbers.kind], WEIGHTED=weight is not None, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    _sum_kernel[(1,)](rows, loss, sums, count, MEAN=mean, BLOCK=1024, num_warps=4)
    return loss, sums, rows


def gradient(z: Tensor, target: Tensor, rows: Tensor, sums: Tensor, grad: Tensor) -> Tensor:
    """The gradient at the logits, in their dtype."""
    (count, classes), (block, warps) = z.shape, _size(z)
    out = z.new_empty(z.shape)
    _gradient_kernel[(count,)](
        z, target, rows, sums, grad, out, count, z.stride(0), classes, BLOCK=block, num_warps=warps
    )
    return out


def _size(z: Tensor) -> tuple[int, int]:
    block = triton.next_power_of_2(z.shape[1])
    return block, 4 if block <= 2048 else 8 if block <= 8192 else 16


class KernelLoss(torch.autograd.Function):
    """A loss of logits ``(N, C)`` at class indices ``(N,)``, and its parts."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **_: Any) -> Any:
        z, target, weight, ignored, mean, numbers, plain = args
        loss, sums, rows = forward(z, target, weight, ignored, mean, numbers)
        ctx.save_for_backward(z, target, rows, sums)
        ctx.plain = plain
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)
        return loss, sums

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        z, target, rows, sums = ctx.saved_tensors
        if grads[0] is None:
            slope = None
        elif torch.is_grad_enabled():  # for a gradient of this gradient
            slope = torch.autograd.grad(ctx.plain(z), z, grads[0], create_graph=True)[0]
        else:
            slope = gradient(z, target, rows, sums, grads[0])
        return slope, None, None, None, None, None, None
