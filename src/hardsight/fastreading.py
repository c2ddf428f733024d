"""The reading of `hardsight.reading` at the speed of a matrix product, for many classes and no gradients.

Sums over the classes are float32. The logits and angles of the target, of the runner-up and of the nearest other class
are recomputed in float64. Rows for which this may miss a stated tolerance are marked: the float64 reference computes
them again.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from hardsight.angles import (
    angle_between_units,
    as_float64,
    float32_is_exact,
    paired_angle,
    product_matrix,
    transformed,
    unit,
)

_FEWEST_CLASSES = 64  # with fewer, single angles dominate their sum, and the reference is cheap
_LEAST_WORK = 2**33  # products on a GPU; with fewer, the reference takes less time than a kernel to compile
_CPU_BLOCK, _GPU_BLOCK = 2**19, 2**24  # float32 products in memory at a time: what a CPU's cache holds; 64 MiB
_SHORTEST, _LONGEST = 1e-12, 1e12  # vectors beyond these lengths may overflow or vanish in float32 products
_EPS = torch.finfo(torch.float32).eps


class Rows(NamedTuple):
    """The results of a pass for each row. Sums are over all classes but the target, relative to the runner-up."""

    target: Tensor
    other_class: Tensor
    norm: Tensor
    logit: Tensor  # exact, as are the next three
    other_logit: Tensor
    angle: Tensor
    other_angle: Tensor
    arcsine: Tensor  # Σ arcsin(cosine)
    exp_sum: Tensor
    exp2_sum: Tensor
    lin_sum: Tensor
    steepest: Tensor  # the largest |cosine|
    reach: Tensor  # length of the row times that of the longest weight: the largest possible product
    noise: Tensor  # rounding of a product; infinite if the row must be computed again
    moved: Tensor  # its effect on the logarithm of `exp_sum`


def applies_to(features: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether there is a fast path: many classes, no gradient, float32 or less, and much work if on a GPU."""
    device, tensors = features.device, [t for t in (features, weight, bias) if t is not None]
    small = (torch.float16, torch.bfloat16, torch.float32)
    return (
        len(weight) >= _FEWEST_CLASSES
        and device.type in ("cpu", "cuda")
        and all(t.device == device and t.dtype in small for t in tensors)
        and len(features) * weight.numel() >= (1 if device.type == "cpu" else _LEAST_WORK)
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
        and not torch.compiler.is_compiling()
        and not transformed(*tensors)
        and float32_is_exact(device)
    )


def read_fast(
    features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None, logits: bool = True,
    precise: bool = False,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """The fields of a `Reading` from `target` to `lin_sum`, and which rows of them are within the stated tolerances.

    With `precise`, more of them are, and it takes longer, for features of 16 bits on a GPU.
    """
    indices, numbers = read_rows(features, weight, target, bias, logits, precise)
    rows, classes = Rows(*indices, *numbers), len(weight)
    angle_sum = ((classes - 1) * (math.pi / 2) + rows.angle) - rows.arcsine
    total, depth, moved = rows.exp_sum, (rows.lin_sum / rows.exp_sum).abs(), rows.moved + 2 * _EPS
    margin = rows.other_logit + total.log() - rows.logit
    lost = margin.sigmoid()
    apart = rows.lin_sum.abs() / (total - 1).clamp_min(_EPS)  # of those that move from the runner-up, which does not
    slope = (1 - rows.steepest.square()).rsqrt()  # of the angles
    least = torch.minimum(angle_sum, classes * math.pi - angle_sum)
    # How rounding changes the scores, against the stated tolerances.
    sure = torch.stack(
        [
            moved < 8e-6,  # nll, el2n, soft_margin, free_energy
            lost * (1 - lost) * moved < 8e-7,  # confidence
            lost * (rows.moved * apart + 2 * _EPS * depth) < 3e-6 * (1 + lost * (depth + total.log())),  # entropy
            classes * slope * rows.noise < 1e-6 * least * rows.reach,  # avh, avc
        ]
    ).all(0)
    if target is None:
        sure &= rows.logit > rows.other_logit  # otherwise rounding may have selected the second
    fields = [rows.target, rows.norm, rows.angle, angle_sum, rows.other_angle, rows.logit, rows.other_logit]
    return [*fields, rows.other_class, total, rows.exp2_sum, rows.lin_sum], sure


def _read_plain(
    features: Tensor,
    weight: Tensor,
    target: Tensor | None,
    bias: Tensor | None,
    logits: bool = True,
    precise: bool = False,
) -> tuple[Tensor, Tensor]:
    """`Rows` as two matrices: its classes ``(2, N)`` and its numbers ``(13, N)`` in float64.

    For features ``(N, D)``, weight ``(C, D)``, target ``(N,)`` (None: the predicted class) and bias ``(C,)``.
    Columns of logits are not computed without `logits`. `precise` is for kernels.
    """
    # In blocks: the norm in float64 copies its argument.
    blocks = weight.split(max(1, _CPU_BLOCK // max(1, weight.shape[1])))
    lengths = torch.cat([torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) for rows in blocks])
    shrink = _inverse(lengths).float()
    extreme = ((lengths > 0) & ((lengths < _SHORTEST) | (lengths > _LONGEST))).any()
    bias = None if bias is None else bias.float()
    # A CPU adds blocks of a product, a GPU all of it in a row; four standard deviations of that random walk.
    steep_noise = 8 if features.device.type == "cpu" else 1.4 * features.shape[1] ** 0.5
    block = (_CPU_BLOCK if features.device.type == "cpu" else _GPU_BLOCK) // max(weight.shape)
    size, parts = max(16, block), []
    for start in range(0, len(features), size):
        x, y = features[start : start + size].float(), None if target is None else target[start : start + size].long()
        norm = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
        reach = norm * lengths.amax()
        products = product_matrix(x, weight)
        cosines = products.mul(shrink).mul_(_inverse(norm).float()[:, None])
        z = products if bias is None else products.add_(bias)
        y = z.argmax(1) if y is None else y
        arcsine, steepest, nearest = _angle_sums(cosines, y[:, None])
        logit, angle = _pair(x, weight, y, norm, lengths, bias)
        other, level, second, total, squares, linear = _logit_sums(z, y[:, None]) if logits else _nothing(nearest)
        other_logit, other_angle = _pair(x, weight, other, norm, lengths, bias)
        if len(apart := (nearest != other).nonzero()[:, 0]):
            other_angle[apart] = _pair(x[apart], weight, nearest[apart], norm[apart], lengths, None)[1]
        # The others were measured against a rounded runner-up.
        error = level - other_logit if logits else torch.zeros_like(norm)
        linear, total = (1 + error) * (linear + error * (total - 1)), 1 + (1 + error) * (total - 1)
        squares = 1 + (1 + 2 * error) * (squares - 1)
        # The error of a product is that of its partial sums, which are larger where the cosine is.
        product = other_logit if bias is None else other_logit - bias[other]
        noise = _EPS / 2 * (reach + steep_noise * product.abs())
        if bias is not None:
            noise += _EPS * other_logit.abs()  # the sum of product and bias is rounded as well
        # The runner-up has no error. Those of other classes are independent unless their weights are equal, so half of
        # what all of them together could do is the least. Squares lost in float32 are at most the square of the sum.
        independent = torch.minimum((squares - 1).clamp_min(_EPS).sqrt(), total - 1 + _EPS)
        moved = noise * torch.maximum(independent, (total - 1) / 2) / total
        # Logits that are this close may tie, but for the rounding of the matrix product.
        tied = second >= level - 4 * _EPS * (reach + (0 if bias is None else bias.abs().amax()))
        strange = extreme | tied | (norm > _LONGEST) | (norm < _SHORTEST)
        exact = [logit, other_logit, angle, other_angle]
        rounding = reach, noise.masked_fill(strange, math.inf), moved
        numbers = [norm, *exact, arcsine, total, squares, linear, steepest, *rounding]
        parts.append((torch.stack([y, other]), torch.stack(numbers)))
    indices, numbers = zip(*parts, strict=True)
    return torch.cat(indices, 1), torch.cat(numbers, 1)


def _angle_sums(cosines: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ arcsin, the largest magnitude and the class of the largest, of cosines ``(N, C)`` without the target's."""
    lowest = cosines.scatter_(1, place, 0).amin(1)
    nearest = cosines.scatter_(1, place, -2).argmax(1)
    steepest = torch.maximum(-lowest, cosines.gather(1, nearest[:, None])[:, 0])
    return cosines.scatter_(1, place, 0).asin_().sum(1).double(), steepest.double(), nearest


def _logit_sums(z: Tensor, place: Tensor) -> tuple[Tensor, ...]:
    """The runner-up of logits ``(N, C)``, its logit, the next logit and the three sums; all without the target."""
    other = z.scatter_(1, place, -math.inf).argmax(1, keepdim=True)
    level = z.gather(1, other)
    second = z.scatter_(1, other, -math.inf).amax(1)
    below = z.sub_(level).scatter_(1, place, -200).scatter_(1, other, 0)  # e^-200 is 0, and -200·0 no NaN
    e = below.exp()
    sums = e.sum(1), e.square().sum(1), below.mul_(e).sum(1)
    return other[:, 0], level[:, 0], second, *(values.double() for values in sums)


def _nothing(nearest: Tensor) -> tuple[Tensor, ...]:
    """The result of `_logit_sums` if logits are not needed: only the nearest class."""
    alone = torch.ones_like(nearest, dtype=torch.float64)
    return nearest, alone, -math.inf * alone, alone, alone, 0 * alone


def _inverse(lengths: Tensor) -> Tensor:
    return lengths.masked_fill(lengths == 0, math.inf).reciprocal()


def _pair(
    x: Tensor, weight: Tensor, index: Tensor, norm: Tensor, lengths: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Logit and angle of one class for each row, in float64."""
    x, w = x.double(), weight[index].double()
    product = (x * w).sum(1)
    angle = (product * _inverse(norm) * _inverse(lengths[index])).acos()
    if len(steep := (product.abs() > 0.9 * norm * lengths[index]).nonzero()[:, 0]):
        angle[steep] = angle_between_units(unit(x[steep])[0], unit(w[steep])[0])
    return product if bias is None else product + bias[index].double(), angle


read_rows = torch.library.custom_op("hardsight::read_rows", _read_plain, mutates_args=())


@read_rows.register_fake
def _(features: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    samples = len(features)
    return features.new_empty(2, samples, dtype=torch.int64), features.new_empty(13, samples, dtype=torch.float64)


@read_rows.register_kernel("cuda")
def _(
    features: Tensor,
    weight: Tensor,
    target: Tensor | None,
    bias: Tensor | None,
    logits: bool = True,
    precise: bool = False,
) -> tuple[Tensor, Tensor]:
    kernels = kernels_for(features.device)
    if kernels is None:
        return _read_plain(features, weight, target, bias, logits, precise)
    with torch.cuda.device_of(features):  # kernels are launched on the current device
        return kernels.read_rows(features, weight, target, bias, precise)


def target_angle(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The angle of each row to its target in float64, exact at 0 and π."""
    if features.is_cuda and features.dtype == weight.dtype != torch.float64:
        kernels = kernels_for(features.device)
        if kernels is not None:
            with torch.cuda.device_of(features):
                return kernels.target_angle(features, weight, target)
    pairs = zip(features.split(4096), target.split(4096), strict=True)
    return torch.cat([paired_angle(as_float64(x), as_float64(weight[y])) for x, y in pairs])


def kernels_for(device: torch.device) -> ModuleType | None:
    """`hardsight.gpureading`, or None if its kernels do not run."""
    return _kernels(torch.cuda.get_device_capability(device))


@cache
def _kernels(capability: tuple[int, int]) -> ModuleType | None:
    """The Triton kernels; if there are none for this GPU, a note says so once."""
    why = "this GPU's compute capability is below 8.0"
    if capability >= (8, 0):
        try:
            return import_module("hardsight.gpureading")
        except ImportError:
            why = "Triton is not installed"
    warnings.warn(f"Scores are computed without kernels, which is slower: {why}.", stacklevel=2)
    return None
