"""Row-wise kernels for large heads on a GPU: lengths, gradients at directions, and angles to the targets."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _length_kernel(vectors, out, rows, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros([ROWS], tl.float32)
    for k in tl.range(0, width, WIDTH):
        column = k + tl.arange(0, WIDTH)
        mask = (row < rows)[:, None] & (column < width)[None, :]
        x = tl.load(vectors + row[:, None].to(tl.int64) * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
        total += tl.sum(x * x, 1)
    inverse = tl.where(total > 0, 1 / tl.sqrt(tl.maximum(total, 1e-37)), 0.0)
    tl.store(out + row, inverse, mask=row < rows)


@triton.jit
def _project_kernel(vectors, inverse, grad, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    u = tl.load(vectors + row * width + column, mask=inside, other=0.0).to(tl.float32) * tl.load(inverse + row)
    g = tl.load(grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad + row * width + column, (g - u * tl.sum(u * g)).to(grad.dtype.element_ty), mask=inside)


@triton.jit
def _pair(features, weight, place, row, width, stride, WIDTH: tl.constexpr):
    """A feature and the weight of its target, multiplied in float32."""
    column = tl.arange(0, WIDTH)
    inside = column < width
    x = tl.load(features + row * width + column, mask=inside, other=0.0)
    w = tl.load(weight + place * stride + column, mask=inside, other=0.0).to(features.dtype.element_ty)
    return x.to(tl.float32), w.to(tl.float32)


@triton.jit
def _inverse(vector):
    squares = tl.sum(vector * vector)
    return tl.where(squares > 0, tl.rsqrt(tl.maximum(squares, 1e-37)), 0.0)


@triton.jit
def _pair_kernel(features, weight, target, out, rows, width, stride, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """The product of a feature and the weight of its target, or the lengths of the chords ``u − v`` and ``u + v``."""
    row = tl.program_id(0).to(tl.int64)
    x, w = _pair(features, weight, tl.load(target + row).to(tl.int64), row, width, stride, WIDTH)
    if KIND == 0:
        tl.store(out + row, tl.sum(x * w))
    else:
        u, v = x * _inverse(x), w * _inverse(w)
        tl.store(out + row, tl.sqrt(tl.sum((u - v) * (u - v))))
        tl.store(out + rows + row, tl.sqrt(tl.sum((u + v) * (u + v))))


@triton.jit
def _pair_gradient_kernel(
    features, weight, target, grad, x_grad, w_grad, width, stride, WIDTH: tl.constexpr, ADD: tl.constexpr
):
    """Gradients of the angle between a feature and the weight of its target."""
    row = tl.program_id(0).to(tl.int64)
    x, w = _pair(features, weight, tl.load(target + row).to(tl.int64), row, width, stride, WIDTH)
    shrink_x, shrink_w = _inverse(x), _inverse(w)
    u, v = x * shrink_x, w * shrink_w
    minus, plus = u - v, u + v
    apart, together = tl.sqrt(tl.sum(minus * minus)), tl.sqrt(tl.sum(plus * plus))
    # As in hardsight.angles.angle_between_units: no gradient without a direction, nor where only rounding is left.
    defined = (apart > 9.5367431640625e-07) & (together > 9.5367431640625e-07) & (shrink_x > 0) & (shrink_w > 0)
    slope = tl.where(defined, -2 * tl.load(grad + row) / tl.maximum(apart * together, 1e-30), 0.0)  # over the sine
    # v − u·cos θ and u − v·cos θ, in the form that does not cancel
    if apart < together:
        at_u, at_v = u * (0.5 * apart * apart) - minus, v * (0.5 * apart * apart) + minus
    else:
        at_u, at_v = plus - u * (0.5 * together * together), plus - v * (0.5 * together * together)
    place = row * width + tl.arange(0, WIDTH)
    inside = tl.arange(0, WIDTH) < width
    if ADD:
        before = tl.load(x_grad + place, mask=inside, other=0.0)
        tl.store(x_grad + place, before + slope * shrink_x * at_u, mask=inside)
    tl.store(w_grad + place, slope * shrink_w * at_v, mask=inside)


def inverse_lengths(vectors: Tensor) -> Tensor:
    """One over the length of each vector ``(n, D)``, contiguous, in float32; 0 for a zero vector."""
    rows, width = vectors.shape
    out = vectors.new_empty(rows, dtype=torch.float32)
    depth = min(512, triton.next_power_of_2(width))
    _length_kernel[(triton.cdiv(rows, 4096 // depth),)](vectors, out, rows, width, ROWS=4096 // depth, WIDTH=depth)
    return out


def project(vectors: Tensor, inverse: Tensor, grad: Tensor) -> None:
    """Remove, in place, the part of each gradient ``(n, D)`` along its vector: lengths do not matter."""
    rows, width = vectors.shape
    _project_kernel[(rows,)](vectors, inverse, grad, width, WIDTH=triton.next_power_of_2(width), num_warps=4)


def pair_products(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Products ``(N,)`` of features and the weights of their targets, all of them classes."""
    return _pairs(features, weight, target, 0)[0]


def pair_chords(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Distances ``(2, N)`` of unit features from the unit weight of their target and from its opposite."""
    return _pairs(features, weight, target, 1)


def _pairs(features: Tensor, weight: Tensor, target: Tensor, kind: int) -> Tensor:
    rows, width = features.shape
    out = features.new_empty(2, rows, dtype=torch.float32)
    _pair_kernel[(rows,)](
        features, weight, target, out, rows, width, weight.stride(0), WIDTH=triton.next_power_of_2(width), KIND=kind
    )
    return out


def pair_gradient(features: Tensor, weight: Tensor, target: Tensor, grad: Tensor, x_grad: Tensor | None) -> Tensor:
    """Add to `x_grad` the gradients of the angles to the targets; return those at the weights of the targets."""
    rows, width = features.shape
    w_grad = features.new_empty(rows, width, dtype=torch.float32)
    _pair_gradient_kernel[(rows,)](
        features, weight, target, grad, x_grad, w_grad, width, weight.stride(0),
        WIDTH=triton.next_power_of_2(width), ADD=x_grad is not None,
    )  # fmt: skip
    return w_grad
