"""Heads of many classes on a GPU: Triton kernels that multiply a tile of features with a tile of class weights and
reduce it, or turn it into a gradient, before it leaves the chip.

Products are in float16 or bfloat16 with float32 sums; logits are in units of log 2, because the chip computes powers of
2. `hardsight.losses.largeheads` calls these where they apply, and has the same in plain torch for other devices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hardsight.kernels import arcsine_of, arcsine_series

KINDS = {"linear": 0, "cosine": 1, "angular": 2}


class Tile(NamedTuple):
    """How a kernel divides its work: rows, classes and features of a tile, and the parts its columns are read in."""

    rows: int
    classes: int
    depth: int
    warps: int
    stages: int
    parts: int = 1  # a whole tile and what is computed from it may not fit the registers
    programs: int = 1  # that fit a processor at a time: one multiplies while the other reduces


# The fastest of those tried on an H200, by kind and width. With few features, reducing a tile costs more than
# multiplying it.
_WIDE = 1024
_SUM_TILE, _GRADIENT_TILE = Tile(128, 256, 64, 8, 4), Tile(128, 128, 64, 4, 3, 2, 2)
_ANGULAR_SUM_TILES, _ANGULAR_GRADIENT_TILE = (
    (Tile(128, 128, 64, 4, 3, 1, 2), Tile(128, 256, 64, 8, 4, 2)),
    Tile(128, 128, 64, 4, 3, 4, 2),
)


def sum_tile(kind: str, width: int) -> Tile:
    """The tile of the forward pass."""
    return _ANGULAR_SUM_TILES[width >= _WIDE] if kind == "angular" else _SUM_TILE


def gradient_tile(kind: str) -> Tile:
    """The tile of the backward pass."""
    return _ANGULAR_GRADIENT_TILE if kind == "angular" else _GRADIENT_TILE


@triton.jit
def _is_flat(cosines):
    """Whether all cosines of a tile are small, so that short series suffice."""
    return tl.max(tl.max(tl.abs(cosines), 1), 0) <= 0.5


@triton.jit
def _logits(products, inverse_x, inverse_w, scale, bias, KIND: tl.constexpr, BIAS: tl.constexpr):
    """Logits in units of log 2, the angular ones less a constant."""
    if KIND == 0:
        z = products * scale[:, None]
        if BIAS:
            z += bias[None, :] * 1.4426950408889634
    elif KIND == 1:
        z = products * inverse_w[None, :] * (inverse_x * scale)[:, None]
    else:
        cosines = products * inverse_w[None, :] * inverse_x[:, None]
        if _is_flat(cosines):
            t = cosines * cosines
            z = scale[:, None] * (cosines + cosines * t * arcsine_series(t))
        else:
            z = scale[:, None] * arcsine_of(cosines)
    return z


@triton.jit
def _add(
    products, first, classes, label, inverse_x, inverse_w, scale, bias, level, total, linear,
    WIDTH: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """Add a tile of products to the sums of its rows."""
    columns = first + tl.arange(0, WIDTH)
    inside = columns < classes
    shrink = tl.load(inverse_w + columns, mask=inside, other=0.0) if KIND > 0 else 0.0
    shift = tl.load(bias + columns, mask=inside, other=0.0) if BIAS else 0.0
    z = _logits(products, inverse_x, shrink, scale, shift, KIND, BIAS)
    target = (label >= first) & (label < first + WIDTH)
    if (tl.max(target.to(tl.int32), 0) > 0) | (first + WIDTH > classes):  # most tiles need no mask
        z = tl.where((columns[None, :] != label[:, None]) & inside[None, :], z, -1e30)
    higher = tl.maximum(level, tl.max(z, 1))
    lower = tl.maximum(level - higher, -1e4)
    z -= higher[:, None]
    e = tl.exp2(z)
    if LINEAR:
        linear = tl.exp2(lower) * (linear + lower * total) + tl.sum(tl.maximum(z, -1e4) * e, 1)
    total = total * tl.exp2(lower) + tl.sum(e, 1)
    return higher, total, linear


@triton.jit
def _halves(products, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The left and the right half of a tile."""
    return tl.split(tl.permute(tl.reshape(products, (ROWS, 2, WIDTH // 2)), (0, 2, 1)))


@triton.jit
def _sum_kernel(
    features, weight, inverse_x, inverse_w, scale, bias, target, level_out, total_out, linear_out, rows, classes, width,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
    KIND: tl.constexpr, BIAS: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """Largest logit of the other classes, and sums of powers relative to it; the classes are divided over the grid."""
    start = tl.program_id(0) * ROWS
    row = start + tl.arange(0, ROWS)
    valid = row < rows
    label = tl.load(target + row, mask=valid, other=-1)
    factor = tl.load(scale + row, mask=valid, other=0.0)
    shrink = tl.load(inverse_x + row, mask=valid, other=0.0) if KIND > 0 else 0.0
    level = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    linear = tl.zeros([ROWS], tl.float32)
    tiles = tl.cdiv(classes, CLASSES)
    each = tl.cdiv(tiles, tl.num_programs(1))
    begin = tl.program_id(1) * each
    for tile in tl.range(begin, tl.minimum(tiles, begin + each), flatten=True):
        first = tile * CLASSES
        product = tl.zeros([ROWS, CLASSES], tl.float32)
        for k in tl.range(0, width, DEPTH):
            product = tl.dot(features.load([start, k]), weight.load([first, k]).T, product)
        if PARTS == 1:
            level, total, linear = _add(
                product, first, classes, label, shrink, inverse_w, factor, bias, level, total, linear,
                CLASSES, KIND, BIAS, LINEAR,
            )  # fmt: skip
        else:
            left, right = _halves(product, ROWS, CLASSES)
            level, total, linear = _add(
                left, first, classes, label, shrink, inverse_w, factor, bias, level, total, linear,
                CLASSES // 2, KIND, BIAS, LINEAR,
            )  # fmt: skip
            level, total, linear = _add(
                right, first + CLASSES // 2, classes, label, shrink, inverse_w, factor, bias, level, total, linear,
                CLASSES // 2, KIND, BIAS, LINEAR,
            )  # fmt: skip
    place = tl.program_id(1) * rows + row
    tl.store(level_out + place, level, mask=valid)
    tl.store(total_out + place, total, mask=valid)
    if LINEAR:
        tl.store(linear_out + place, linear, mask=valid)


@triton.jit
def _write(
    products, out, start, first, classes, label, inverse_x, inverse_w, scale, bias, level, grad, at_target,
    WIDTH: tl.constexpr, KIND: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Write the gradient at a tile of products."""
    columns = first + tl.arange(0, WIDTH)
    inside = columns < classes
    shrink = tl.load(inverse_w + columns, mask=inside, other=0.0) if KIND > 0 else 0.0
    shift = tl.load(bias + columns, mask=inside, other=0.0) if BIAS else 0.0
    if KIND == 2:
        columns_factor = tl.expand_dims(shrink, 0)
        cosines = products * columns_factor * inverse_x[:, None]
        factor = grad[:, None] * columns_factor
        if _is_flat(cosines):  # series that are accurate to the digits left after rounding to 16 bits
            t = cosines * cosines
            p = (0.06577107196 * t + 0.07127676878) * t + 0.16685564015
            z = scale[:, None] * (cosines + cosines * t * p)
            p = ((0.51096075270 * t + 0.33992151468) * t + 0.50188673826) * t + 0.99998433222
            slope = tl.exp2(z - level[:, None]) * factor * p
        else:
            z = scale[:, None] * arcsine_of(cosines)
            below = (1 - cosines) * (1 + cosines)  # beyond an edge, the slope of hardsight.angles.arccos is 0
            p = tl.where(below > 2e-6, tl.rsqrt(tl.maximum(below, 1e-6)), 0.0)
            slope = tl.exp2(z - level[:, None]) * factor * p
    else:
        z = _logits(products, inverse_x, shrink, scale, shift, KIND, BIAS)
        slope = tl.exp2(z - level[:, None]) * grad[:, None]
        if KIND == 1:
            slope *= tl.expand_dims(shrink, 0)
    target = (label >= first) & (label < first + WIDTH)
    if tl.max(target.to(tl.int32), 0) > 0:
        slope = tl.where(columns[None, :] == label[:, None], at_target[:, None], slope)
    out.store([start, first], slope.to(out.dtype))


@triton.jit
def _gradient_kernel(
    features, weight, out, inverse_x, inverse_w, scale, bias, target, level, grad, at_target, rows, classes, width,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,
    KIND: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    row_tiles, class_tiles = tl.cdiv(rows, ROWS), tl.cdiv(classes, CLASSES)
    # One loop over tiles and depth, so that a tile is loaded while the one before it is written.
    for tile in tl.range(tl.program_id(0), row_tiles * class_tiles, tl.num_programs(0), flatten=True):
        # Tiles that are computed at a time share rows and classes, which are then read from the cache.
        group = tile // (GROUP * class_tiles)
        size = tl.minimum(row_tiles - group * GROUP, GROUP)
        start = (group * GROUP + (tile % (GROUP * class_tiles)) % size) * ROWS
        first = ((tile % (GROUP * class_tiles)) // size) * CLASSES
        product = tl.zeros([ROWS, CLASSES], tl.float32)
        for k in tl.range(0, width, DEPTH):
            product = tl.dot(features.load([start, k]), weight.load([first, k]).T, product)
        row = start + tl.arange(0, ROWS)
        valid = row < rows
        label = tl.load(target + row, mask=valid, other=-1)
        factor = tl.load(scale + row, mask=valid, other=0.0)
        height = tl.load(level + row, mask=valid, other=0.0)
        slope = tl.load(grad + row, mask=valid, other=0.0)
        other = tl.load(at_target + row, mask=valid, other=0.0)
        shrink = tl.load(inverse_x + row, mask=valid, other=0.0) if KIND > 0 else 0.0
        WIDTH: tl.constexpr = CLASSES // PARTS
        if PARTS == 1:
            _write(
                product, out, start, first, classes, label, shrink, inverse_w, factor, bias, height, slope, other,
                WIDTH, KIND, BIAS,
            )  # fmt: skip
        else:
            left, right = _halves(product, ROWS, CLASSES)
            if PARTS == 2:
                _write(
                    left, out, start, first, classes, label, shrink, inverse_w, factor, bias, height, slope, other,
                    WIDTH, KIND, BIAS,
                )  # fmt: skip
                _write(
                    right, out, start, first + WIDTH, classes, label, shrink, inverse_w, factor, bias, height, slope,
                    other, WIDTH, KIND, BIAS,
                )  # fmt: skip
            else:
                a, b = _halves(left, ROWS, CLASSES // 2)
                _write(
                    a, out, start, first, classes, label, shrink, inverse_w, factor, bias, height, slope, other,
                    WIDTH, KIND, BIAS,
                )  # fmt: skip
                _write(
                    b, out, start, first + WIDTH, classes, label, shrink, inverse_w, factor, bias, height, slope,
                    other, WIDTH, KIND, BIAS,
                )  # fmt: skip
                a, b = _halves(right, ROWS, CLASSES // 2)
                _write(
                    a, out, start, first + 2 * WIDTH, classes, label, shrink, inverse_w, factor, bias, height, slope,
                    other, WIDTH, KIND, BIAS,
                )  # fmt: skip
                _write(
                    b, out, start, first + 3 * WIDTH, classes, label, shrink, inverse_w, factor, bias, height, slope,
                    other, WIDTH, KIND, BIAS,
                )  # fmt: skip


def class_sums(
    features: Tensor,
    weight: Tensor,
    inverse_x: Tensor | None,
    inverse_w: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    target: Tensor,
    kind: str,
    linear: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The largest logit M of all classes but the target's, ``Σ 2^(z−M)`` and ``Σ (z−M)·2^(z−M)``.

    Logits z are in units of log 2, the angular ones less ``s·π/2``. The classes are divided into S parts: each result
    is ``(S, N)``.

    Args:
        features: ``(N, D)`` in float16 or bfloat16, contiguous, D a multiple of 8.
        weight: ``(C, D)`` of the same dtype.
        inverse_x, inverse_w: Inverse lengths of the vectors (0 for a zero vector), float32; None for a linear head.
        scale: Scale of each row divided by log 2, float32; 1 over log 2 for a linear head.
        bias: ``(C,)`` float32 or None.
        target: ``(N,)`` int32; a value that is no row of `weight` excludes no class.
        kind: A key of `KINDS`.
        linear: Whether the linear sum is needed.
    """
    (rows, width), classes = features.shape, len(weight)
    tile = sum_tile(kind, width)
    blocks = triton.cdiv(rows, tile.rows)
    splits = max(1, min(round(tile.programs * _processors(features) / blocks), triton.cdiv(classes, 4 * tile.classes)))
    level, total, products = scale.new_empty(3, splits, rows)
    _sum_kernel[(blocks, splits)](
        TensorDescriptor.from_tensor(features, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.classes, tile.depth]),
        inverse_x, inverse_w, scale, bias, target, level, total, products, rows, classes, width,
        ROWS=tile.rows, CLASSES=tile.classes, DEPTH=tile.depth, PARTS=tile.parts,
        KIND=KINDS[kind], BIAS=bias is not None, LINEAR=linear,
        num_warps=tile.warps, num_stages=_stages(tile, features),
    )  # fmt: skip
    return level, total, products if linear else None


def gradient_at_products(
    out: Tensor,
    features: Tensor,
    weight: Tensor,
    inverse_x: Tensor | None,
    inverse_w: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    target: Tensor,
    level: Tensor,
    grad: Tensor,
    at_target: Tensor,
    kind: str,
) -> None:
    """Write ``grad · 2^(z−level) · (slope of the logit)`` to `out` ``(N, C)``, and `at_target` at the target."""
    (rows, width), classes, tile = features.shape, len(weight), gradient_tile(kind)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(classes, tile.classes)
    _gradient_kernel[(min(tiles, tile.programs * _processors(features)),)](
        TensorDescriptor.from_tensor(features, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.classes, tile.depth]),
        TensorDescriptor.from_tensor(out, [tile.rows, tile.classes // tile.parts]),
        inverse_x, inverse_w, scale, bias, target, level, grad, at_target, rows, classes, width,
        ROWS=tile.rows, CLASSES=tile.classes, DEPTH=tile.depth, PARTS=tile.parts, GROUP=8,
        KIND=KINDS[kind], BIAS=bias is not None, num_warps=tile.warps, num_stages=_stages(tile, features),
    )  # fmt: skip


def _stages(tile: Tile, tensor: Tensor) -> int:
    """Number of tiles loaded ahead: as many as the chip's shared memory holds."""
    if not tensor.is_cuda:
        return tile.stages
    memory = torch.cuda.get_device_properties(tensor.device).shared_memory_per_block_optin - 2**13
    return max(1, min(tile.stages, memory // ((tile.rows + tile.classes) * tile.depth * tensor.element_size())))


def _processors(tensor: Tensor) -> int:
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 4
