"""`hardsight.fastreading` on a GPU with Triton.

For features of 16 bits no ``(N, C)`` matrix exists. For others the matrix product is cuBLAS's, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hardsight.angles import product_matrix
from hardsight.kernels import angle_kernel, length_kernel, pair_kernel, read_kernel, series_kernel


class Tile(NamedTuple):
    """How many rows, classes and features are multiplied at a time, and how."""

    rows: int
    classes: int
    depth: int  # 0: the products exist already
    span: int  # over which tensor cores add, which cuts digits off; 0: all
    parts: int  # in which the classes of a tile are reduced
    warps: int
    stages: int


# The fastest on an H200; the second is for rows left in doubt by the first, of which wide features have many.
_TILE, _PRECISE_TILE = Tile(128, 256, 64, 0, 2, 8, 4), Tile(128, 256, 64, 512, 2, 8, 4)
_PRODUCT_TILE = Tile(16, 512, 0, 0, 1, 4, 3)
_SERIES_TILE = Tile(128, 256, 64, 0, 1, 8, 4)
_WIDE, _MOST_ROWS = 4096, 2**20
_MOST_PRODUCTS = 2**24  # that exist at a time: 128 MiB in float64
_FEWEST_ROWS = 4096  # by which the products are taken: with fewer, reading the weights would take the time


class Sums(NamedTuple):
    """The results of the tiles for each row: see `hardsight.fastreading.Rows`."""

    arcsine: Tensor
    level: Tensor  # the largest logit
    other_class: Tensor
    exp_sum: Tensor
    exp2_sum: Tensor
    lin_sum: Tensor
    bias_sum: Tensor  # Σ e^(z−M) · bias
    steepest: Tensor
    cosine: Tensor  # the largest
    nearest_class: Tensor


def read_rows(
    features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None, precise: bool = False,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Classes and numbers of `hardsight.fastreading.Rows`; those of 16 bits take longer if they are to be `precise`."""
    (classes, width), half = weight.shape, features.dtype == weight.dtype != torch.float32
    half = half and width % 8 == 0  # rows that the tensor copy engine can take
    weight, bias = _aligned(weight), None if bias is None else bias.float().contiguous()
    length_w, inverse_w = lengths(weight)
    longest = length_w.amax()
    precise = precise or width >= _WIDE
    tile = tile or ((_PRECISE_TILE if precise else _TILE) if half else _PRODUCT_TILE)
    noise, exact = _noise(width, half, tile.span, features.device), tl.float32 if half else tl.float64
    indices = torch.empty(2, len(features), dtype=torch.int64, device=features.device)
    numbers = length_w.new_empty(13, len(features))
    for start, x, y in _chunks(features, target, classes, half):
        length_x, inverse_x = lengths(x)
        arguments = weight, inverse_x, inverse_w, bias, tile
        read = partial(_read_sums, x, *arguments) if half else _sums_of_products(x, *arguments)
        if y is None:
            y = read(torch.full((len(x),), -1, device=x.device, dtype=torch.int32)).other_class
        sums = read(y)
        chords = length_x.new_empty(4, len(x))
        pair_kernel[(triton.cdiv(len(x), 8),)](
            x, weight, length_x, length_w, bias, longest, y, *sums,
            indices[:, start:], numbers[:, start:], chords, len(x), len(features), width, *noise,
            ROWS=8, WIDTH=min(256, triton.next_power_of_2(width)), EXACT=exact, CUT=half, BIAS=bias is not None,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
        torch.atan2(chords[:2], chords[2:], out=numbers[3:5, start : start + len(x)])
    numbers[3:5] *= 2
    shortest = torch.where(length_w > 0, length_w, 1.0).amin()
    numbers[11].masked_fill_(shortest < 1e-12, torch.inf)
    return indices, numbers


def target_angle(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The angle of each row to its target, exact."""
    features, weight, target = features.contiguous(), weight.contiguous(), target.contiguous()
    (rows, width), half = features.shape, features.dtype != torch.float32
    chords = features.new_empty(2, rows, dtype=torch.float64)
    angle_kernel[(triton.cdiv(rows, 8),)](
        features, weight, target, chords, rows, width, ROWS=8, WIDTH=min(256, triton.next_power_of_2(width)),
        EXACT=tl.float32 if half else tl.float64, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return 2 * torch.atan2(chords[0], chords[1])


def series_products(
    features: Tensor, matrix: Tensor, squares: int, gram: bool, tile: Tile = _SERIES_TILE
) -> tuple[Tensor, Tensor, Tensor]:
    """What `hardsight.series` needs of the products of features with a matrix, and the lengths of features."""
    features, matrix, rows = _aligned(features), _aligned(matrix), len(features)
    linear, square = features.new_empty(2, rows, dtype=torch.float64)
    with torch.cuda.device_of(features):
        series_kernel[(triton.cdiv(rows, tile.rows),)](
            TensorDescriptor.from_tensor(features, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(matrix, [tile.classes, tile.depth]),
            TensorDescriptor.from_tensor(features, [tile.rows, tile.classes]),
            linear, square, rows, len(matrix), squares, features.shape[1],
            ROWS=tile.rows, COLUMNS=tile.classes, DEPTH=tile.depth, GRAM=gram,
            num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
        )  # fmt: skip
        return linear, square, lengths(features)[0]


def _noise(width: int, half: bool, span: int, device: torch.device) -> tuple[float, float, float, float]:
    """The error bound of a product: largest share cut off; rounding per reach, and per size of the runner-up's product.

    The latter are more than three standard deviations of a random walk over the additions of a product. Where digits
    are cut off, they are four of what an H200 shows for widths from 64 to 4096, for the larger of the two sizes. The
    last is the possible error of the products of pairs, per reach.
    """
    if half:  # sixteen products at a time
        spans = max(1.0, width / span) if span else 1.0
        root = max(1.0, width / spans / 16) ** 0.5
        steep = (1.8 + 0.21 * root) * root + (1.6 * spans**0.5 if span else 0)
        pair = 3 * min(256, width) ** -0.5
        return root * root * 2.0**-23, 3 * width**-0.5, steep * 2.0**-24, pair * 2.0**-24
    eps = 2.0**-53 if _product_dtype(device) == torch.float64 else 2.0**-24
    return 0.0, 16 * width**-0.5 * eps, 1.4 * width**0.5 * eps, 0.0


@cache
def _product_dtype(device: torch.device) -> torch.dtype:
    """The dtype of products of float32: float64 where that is as fast as float32, on A100, H100 and their like."""
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) in ((8, 0), (9, 0))
    return torch.float64 if fast else torch.float32


def lengths(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean lengths in float64 and their inverses in float32 (0 for a zero vector)."""
    rows, width = vectors.shape
    length, inverse = vectors.new_empty(rows, dtype=torch.float64), vectors.new_empty(rows, dtype=torch.float32)
    depth = min(1024, triton.next_power_of_2(width))
    length_kernel[(triton.cdiv(rows, 4),)](
        vectors, length, inverse, rows, width, ROWS=4, WIDTH=depth, enable_fp_fusion=True
    )
    return length, inverse


def _aligned(matrix: Tensor) -> Tensor:
    """The matrix as the tensor copy engine takes it: contiguous, and starting at a multiple of 16 bytes."""
    matrix = matrix.contiguous()
    return matrix.clone() if matrix.data_ptr() % 16 else matrix


def _chunks(
    features: Tensor, target: Tensor | None, classes: int, half: bool
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Where a chunk starts, and its rows and labels as the kernels take them; so few that they need little memory."""
    rows = _MOST_ROWS if half else max(_FEWEST_ROWS, _MOST_PRODUCTS // max(classes, features.shape[1]))
    if not features.is_contiguous():
        rows = min(rows, max(1, _MOST_PRODUCTS // features.shape[1]))
    for start in range(0, len(features), rows):
        x, y = features[start : start + rows], None if target is None else target[start : start + rows].int()
        yield start, _aligned(x), y


def _sums_of_products(
    features: Tensor, weight: Tensor, inverse_x: Tensor, inverse_w: Tensor, bias: Tensor | None, tile: Tile
) -> Callable[[Tensor], Sums]:
    """The sums as a function of the target, from matrix products of some classes at a time."""
    size = max(1, _MOST_PRODUCTS // max(len(features), features.shape[1]) // tile.classes) * tile.classes
    x = features.to(_product_dtype(features.device))
    kept = product_matrix(x, weight) if size >= len(weight) else None
    add = partial(_add_tiles, features, weight, inverse_x, inverse_w, bias, tile)

    def products(first: int) -> Tensor:
        return product_matrix(x, weight[first : first + size]) if kept is None else kept

    def read(target: Tensor) -> Sums:
        sums = add(target, products(0))
        for first in range(size, len(weight), size):
            sums = add(target, products(first), first, sums)
        return _merged(sums)

    return read


def _read_sums(
    features: Tensor, weight: Tensor, inverse_x: Tensor, inverse_w: Tensor, bias: Tensor | None, tile: Tile,
    target: Tensor,
) -> Sums:  # fmt: skip
    return _merged(_add_tiles(features, weight, inverse_x, inverse_w, bias, tile, target))


def _add_tiles(
    features: Tensor, weight: Tensor, inverse_x: Tensor, inverse_w: Tensor, bias: Tensor | None, tile: Tile,
    target: Tensor, products: Tensor | None = None, first: int = 0, sums: Sums | None = None,
) -> Sums:  # fmt: skip
    """Sums ``(P, N)``, with P parts of the classes, of all classes, or of those whose products are given."""
    (rows, width), size, x, w = features.shape, len(weight) if products is None else products.shape[1], None, None
    blocks, tiles = triton.cdiv(rows, tile.rows), triton.cdiv(size, tile.classes)
    # Few rows leave processors idle unless several share the classes of a row.
    share = triton.cdiv(tiles, max(1, min(tiles, _processors(features.device) // blocks)))
    parts = triton.cdiv(tiles, share)
    double, real, whole = torch.float64, torch.float32, torch.int32
    dtypes = (double, double, whole, double, real, double, real, real, real, whole)
    sums = sums or Sums(*(features.new_empty(parts, rows, dtype=dtype) for dtype in dtypes))
    if products is None:
        x = TensorDescriptor.from_tensor(features, [tile.rows, tile.depth])
        w = TensorDescriptor.from_tensor(weight, [tile.classes, tile.depth])
    read_kernel[(blocks, parts)](
        x, w, products, inverse_x, inverse_w, bias, target, *sums, rows, first, first + size, width, share,
        ROWS=tile.rows, CLASSES=tile.classes, DEPTH=tile.depth, SPAN=tile.span, PARTS=tile.parts,
        LOGIT=tl.float64 if products is not None and products.dtype == double else tl.float32, BIAS=bias is not None,
        FURTHER=first > 0,
        num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return sums


def _merged(sums: Sums) -> Sums:
    """Sums over parts of the classes ``(P, N)`` as sums over all ``(N,)``."""
    if len(sums.level) == 1:
        return Sums(*(values[0] for values in sums))
    level, part = sums.level.max(0, keepdim=True)
    cosine, nearest = sums.cosine.max(0, keepdim=True)
    below = (sums.level - level).clamp_min(-1e3)
    shrink = below.exp()
    exp_sum, lin_sum = shrink * sums.exp_sum, shrink * (sums.lin_sum + below * sums.exp_sum)
    return Sums(
        sums.arcsine.sum(0), level[0], sums.other_class.gather(0, part)[0],
        exp_sum.sum(0), (shrink.square() * sums.exp2_sum).sum(0), lin_sum.sum(0), (shrink * sums.bias_sum).sum(0),
        sums.steepest.amax(0), cosine[0], sums.nearest_class.gather(0, nearest)[0],
    )  # fmt: skip


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
