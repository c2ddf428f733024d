"""Sums of angles over all classes from a few sums over the class weights: O(D²) per sample, however many classes.

With cosines ``t_k``, ``Σ arccos t_k = C·π/2 − x̂·Σ ŵ_k − Σ (arcsin t_k − t_k)``. The last sum is dropped. Because
``|arcsin t − t| ≤ (π/2−1)·t²``, it is at most ``(π/2−1)·‖Ŵx̂‖²``, and ``‖Ŵx̂‖² = x̂·ŴᵀŴx̂``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.angles import as_float64, unit
from hardsight.fastreading import kernels_for

_BLOCK = 2**25  # numbers that are converted at a time
_ADDED = 4096  # classes that are added in float32
_HALF = (torch.float16, torch.bfloat16)


class ClassSums(NamedTuple):
    """What `angle_sum_series` needs of class weights: ``‖Ŵx̂‖ ≤ √(scale·q + inside) + outside``.

    With the first rows F of `matrix`, q is ``‖Fx̂‖²`` where F is Ŵ, and ``x̂·Fx̂`` where it is the smaller ``ŴᵀŴ``.
    `inside` and `outside` bound the rounding errors.
    """

    classes: int
    length: Tensor  # ‖Σ ŵ_k‖, float64
    matrix: Tensor  # (R + parts, D) in the dtype of the features; the parts add up to the direction of Σ ŵ_k
    squares: int  # R
    gram: bool  # whether they are ŴᵀŴ / scale
    scale: Tensor
    inside: Tensor
    outside: Tensor


def class_sums(weight: Tensor, dtype: torch.dtype = torch.float64) -> ClassSums:
    """The sums over class weights ``(C, D)``, to be computed only once for many batches of features.

    Args:
        weight: ``(C, D)``.
        dtype: The dtype of the features, if they have 16 bits and are to be multiplied as such; float64 otherwise.
    """
    (classes, width), half = weight.shape, dtype in _HALF
    device = "cpu" if weight.device.type == "mps" else weight.device  # mps has no float64
    blocks, total = [], torch.zeros(width, dtype=torch.float64, device=device)
    gram, lost = None, total.new_zeros(())
    for block in weight.split(max(_ADDED, _BLOCK // width)):
        exact = unit(block.to(device, torch.float32) if half else as_float64(block))[0]
        rows = exact.to(dtype)
        total += exact.sum(0, dtype=torch.float64)
        lost += (exact - rows).square_().sum(dtype=torch.float64)
        if classes <= width:
            blocks.append(rows)
            continue
        for part in rows.split(_ADDED):
            gram = multiply(part.T, part).double() if gram is None else gram.add_(multiply(part.T, part))
    scale, inside, outside = torch.ones_like(lost), torch.zeros_like(lost), lost.sqrt()
    cut = width / 16 * 2.0**-23 if half else 0.0  # of a product, by tensor cores
    if gram is None:
        first = torch.cat(blocks)
        outside = outside + cut * torch.linalg.vector_norm(first.double())
    else:
        scale = gram.diagonal().amax().clamp_min(1e-300)  # float16 could not hold the sums of many classes
        first = gram.div_(scale).to(dtype)
        size = torch.linalg.vector_norm(gram)
        inside = scale * ((gram - first).norm() + cut * size) + classes * (_ADDED / 16 * 2.0**-23 if half else 1e-14)
    length = total.norm().clamp_min(1e-300)
    # A float64 vector as three of 16 bits; of length 1, which float16 can hold.
    parts, rest = [], total / length
    for _ in range(3 if half else 1):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].double()
    matrix = torch.cat([first, torch.stack(parts)])
    matrix = F.pad(matrix, (0, 0, 0, -len(matrix) % 8))  # rows that a GPU multiplies fast: a multiple of 8
    return ClassSums(classes, length, matrix, len(first), gram is not None, scale, inside, outside)


def angle_sum_series(features: Tensor, weight: Tensor | ClassSums) -> tuple[Tensor, Tensor]:
    """Sum of the angles to all classes without touching the classes, with a bound on its error.

    Features and weights of 16 bits are multiplied as such, and their rounding error is part of the bound.

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
    classes, length, matrix, _, _, scale, inside, outside = weight
    linear, square, norm = _products(features, weight)
    shrink, most = norm.reciprocal(), classes * math.pi / 2
    lean = length * linear * shrink
    bound = (scale * (square * shrink).mul_(shrink).clamp_min_(0) + inside).sqrt() + outside
    error = (math.pi / 2 - 1) * bound.square()
    if matrix.dtype not in _HALF:
        return most - lean, error
    error += features.shape[1] / 16 * 2.0**-23 * length
    # If float32 cannot square the lengths, only this is known: the sum is between 0 and C·π.
    unsafe = ~(error + lean).isfinite() | (shrink > 1e12)
    return most - lean.masked_fill(unsafe, 0), error.masked_fill(unsafe, most)


def _products(features: Tensor, sums: ClassSums) -> tuple[Tensor, Tensor, Tensor]:
    """Products of features with the sums: the linear and the quadratic one, and the lengths that they are scaled by."""
    matrix, half = sums.matrix, sums.matrix.dtype in _HALF
    if half and features.is_cuda and features.shape[1] % 8 == 0 and (kernels := kernels_for(features.device)):
        return kernels.series_products(features, matrix, sums.squares, sums.gram)
    parts = []
    for block in features.split(max(1, _BLOCK // max(matrix.shape))):
        # In 16 bits, not scaled before the product: unit vectors are not exact in 16 bits.
        x = block.to(matrix.device) if half else unit(as_float64(block))[0]
        norm = torch.linalg.vector_norm(x, dim=1, dtype=torch.float32).double() if half else x.new_ones(len(x))
        products = multiply(x, matrix.T)
        first = products[:, : sums.squares]
        square = (first * (x if sums.gram else first)).sum(1)
        parts.append((products[:, sums.squares :].sum(1).double(), square.double(), norm))
    linear, square, norm = (torch.cat(column) for column in zip(*parts, strict=True))
    return linear, square, norm


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product in float32 of matrices of 16 bits, or in float64."""
    if a.dtype not in _HALF:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
