"""Sums of angles over all classes from a few sums over the class weights: O(D²) per sample, however many classes.

With cosines ``t_k``, ``Σ arccos t_k = C·π/2 − x̂·Σ ŵ_k − Σ (arcsin t_k − t_k)``. The last sum is dropped. Because
``|arcsin t − t| ≤ (π/2−1)·t²``, it is at most ``(π/2−1)·‖Ŵx̂‖²``, and ``‖Ŵx̂‖ = ‖Rx̂‖`` for any R with ``RᵀR = ŴᵀŴ``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.angles import as_float64, unit

_BLOCK = 2**25  # numbers that are converted at a time
_ADDED = 4096  # classes that are added in float32
_HALF = (torch.float16, torch.bfloat16)


class ClassSums(NamedTuple):
    """What `angle_sum_series` needs of class weights."""

    classes: int
    total: Tensor  # (D,) float64: Σ ŵ_k
    factor: Tensor  # (R, D), R ≤ D, in the dtype of the features
    slack: Tensor  # ‖Ŵx̂‖ is at most this much larger than ‖factor x̂‖: what 16 bits round off


def class_sums(weight: Tensor, dtype: torch.dtype = torch.float64) -> ClassSums:
    """The sums over class weights ``(C, D)``, to be computed only once for many batches of features.

    Args:
        weight: ``(C, D)``.
        dtype: That of the features, if they have 16 bits and are to be multiplied as such; float64 otherwise.
    """
    (classes, width), half = weight.shape, dtype in _HALF
    total, gram, rounded, parts = 0, None, 0, []
    for block in weight.split(max(_ADDED, _BLOCK // width)):
        exact = unit(block.float() if half else as_float64(block))[0]
        rows = exact.to(dtype)
        total = total + exact.sum(0, dtype=torch.float64)
        rounded = rounded + (exact - rows).square_().sum(dtype=torch.float64)
        if classes <= width:
            parts.append(rows)
        else:
            for part in rows.split(_ADDED):
                gram = multiply(part.T, part).double() if gram is None else gram.add_(multiply(part.T, part))
    slack = torch.as_tensor(rounded).sqrt()
    if parts:
        factor = torch.cat(parts)
    else:
        # A Gram matrix plus what rounding may have taken from it is a bound, too, and it always has a root.
        lost = classes * (_ADDED / 16 * 2.0**-23 if half else 1e-14)
        gram = torch.as_tensor(gram)
        root = torch.linalg.cholesky(gram + lost * torch.eye(width).to(gram), upper=True)
        factor = root.to(dtype)
        slack = slack + (root - factor.double()).norm()
    return ClassSums(classes, torch.as_tensor(total), factor, slack)


def angle_sum_series(features: Tensor, weight: Tensor | ClassSums) -> tuple[Tensor, Tensor]:
    """Sum of the angles to all classes without touching the classes, with a bound on its error.

    Features and weights of 16 bits are multiplied as such, and what that rounds off is part of the bound.

    Args:
        features: ``(N, D)``.
        weight: Class weights ``(C, D)``, or their `class_sums`.

    Returns:
        ``(sum, error)``: two ``(N,)`` float64 tensors.

    Examples:
        >>> total, error = angle_sum_series(torch.eye(3)[:1], torch.tensor([[0., 1., 0.], [0., 0., 1.]]))
        >>> round(total.item(), 4), error.item()
        (3.1416, 0.0)
    """
    if isinstance(weight, Tensor):
        half = features.dtype == weight.dtype and features.dtype in _HALF
        weight = class_sums(weight, features.dtype if half else torch.float64)
    classes, total, factor, slack = weight
    half, width = factor.dtype in _HALF, features.shape[1]
    length = total.norm().clamp_min(1e-300)
    # A float64 vector as three of 16 bits; of length 1, which float16 can hold.
    parts, rest = [], total / length
    for _ in range(3 if half else 1):
        parts.append(rest.to(factor.dtype))
        rest = rest - parts[-1].double()
    right = torch.cat([factor, torch.stack(parts)])
    right = F.pad(right, (0, 0, 0, -len(right) % 8)).T  # columns that a GPU multiplies fast: a multiple of 8
    linear, quadratic, shrinks = [], [], []
    for block in features.split(max(1, _BLOCK // max(right.shape))):
        # Not scaled before it is multiplied, if in 16 bits: those hold no unit vector exactly.
        x, norm = (
            (block, torch.linalg.vector_norm(block, dim=1, dtype=torch.float32)) if half else unit(as_float64(block))
        )
        shrink = norm.double().reciprocal() if half else torch.ones_like(norm)
        shrinks.append(shrink)
        products = multiply(x, right)
        linear.append(products[:, len(factor) :].sum(1) * shrink)
        quadratic.append(torch.linalg.vector_norm(products[:, : len(factor)], dim=1) * shrink)
    bound, lean, most = torch.cat(quadratic), length * torch.cat(linear), classes * math.pi / 2
    if not half:
        return most - lean, (math.pi / 2 - 1) * bound.square()
    lost = width / 16 * 2.0**-23  # of a product, by tensor cores
    bound = bound + slack + lost * torch.linalg.vector_norm(factor.double())
    error = (math.pi / 2 - 1) * bound.square() + lost * length
    # Of lengths that float32 cannot square only this is known: the sum is between 0 and C·π.
    strange = ~(error + lean).isfinite() | (torch.cat(shrinks) > 1e15)
    return most - lean.masked_fill(strange, 0), error.masked_fill(strange, most)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product in float32 of matrices of 16 bits, or in float64."""
    if a.dtype not in _HALF:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
