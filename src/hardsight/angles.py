"""Angles between features and class weights: the only place where one is computed.

Every function works in float32 or better whatever its inputs, and scales before it squares, so norms of 1e-30 and 1e30
are unproblematic. A zero vector has no direction; its angle to anything is π/2.

Gradients are finite everywhere and exactly 0 where no direction is defined: at a zero vector and at
coincident or opposite vectors, where the plain formulas return rounding noise or infinity.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# Slope of arccos is 1/√(1-t²); beyond this cosine the slope stays at ~707 instead of growing to infinity.
SLOPE_EDGE = 1.0 - 1e-6


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype of results: that of the inputs, but at least float32."""
    dtypes = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def as_float64(tensor: Tensor) -> Tensor:
    """A tensor in float64, on the CPU if its device lacks float64 (Apple's mps)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def transformed(*tensors: Tensor) -> bool:
    """Whether plain operations are needed: under `torch.func` and for derivatives in forward mode."""
    if torch._C._are_functorch_transforms_active():
        return True
    compiling = torch.compiler.is_compiling()
    return not compiling and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Directions ``(..., D)`` and lengths ``(...,)`` of rows ``(..., D)``; a zero row has a zero direction.

    Examples:
        >>> directions, lengths = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        >>> lengths.tolist()
        [5.0, 0.0]
        >>> directions[1].tolist()
        [0.0, 0.0]
    """
    vectors = vectors.to(working_dtype(vectors))
    # Squaring 1e30 overflows float32: divide by the largest entry first. The scale cancels in the
    # derivative, so it is a constant to autograd.
    scale = vectors.detach().abs().amax(-1, keepdim=True)
    zero = scale == 0
    scaled = vectors / scale.masked_fill(zero, 1.0)
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    # 1/inf: a zero row becomes a zero direction through which no gradient flows.
    shrink = length.masked_fill(zero, math.inf).reciprocal()
    directions = scaled * shrink if scaled.requires_grad else scaled.mul_(shrink)
    return directions, (length * scale).squeeze(-1)


def angle_between_units(u: Tensor, v: Tensor) -> Tensor:
    """Angle between rows that are unit or zero vectors, exact at 0 and π (half-chord form).

    ``2·atan2(‖u−v‖, ‖u+v‖)`` keeps full precision where ``arccos(u·v)`` loses half the digits.
    """
    return angle_of_chords(torch.linalg.vector_norm(u - v, dim=-1), torch.linalg.vector_norm(u + v, dim=-1))


def angle_of_chords(apart: Tensor, together: Tensor) -> Tensor:
    """The angle between unit vectors at a distance of `apart`, one of them `together` from the other's opposite."""
    # Two unit vectors differ by rounding alone below this chord: no direction, no gradient.
    noise = 8 * torch.finfo(apart.dtype).eps
    coincident, opposite = apart <= noise, together <= noise
    undefined = coincident & opposite  # both are zero; a single zero vector gives π/2 by itself
    flat = coincident | opposite
    # Double where: the untaken branch of atan2 must not see (0, 0) either.
    angle = 2 * torch.atan2(apart.masked_fill(flat, 1.0), together.masked_fill(flat, 1.0))
    angle = angle.masked_fill(coincident, 0.0).masked_fill(opposite, math.pi)
    return angle.masked_fill(undefined, math.pi / 2)


def paired_angle(u: Tensor, v: Tensor) -> Tensor:
    """Angle in radians between each row of `u` ``(..., D)`` and the same row of `v`, which are broadcast.

    Returns:
        ``(...,)`` in [0, π]; 0 and π exactly for parallel and opposite rows, π/2 where a row is zero.

    Examples:
        >>> paired_angle(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
        tensor([1.5708])
    """
    return angle_between_units(unit(u)[0], unit(v)[0])


def float32_is_exact(device: torch.device) -> bool:
    """Whether a float32 matrix product on `device` really multiplies in float32 (no TF32, no bf16)."""
    # Inside `torch.compile` this cannot be queried, and the user's setting stands; mps multiplies in no other way.
    if torch.compiler.is_compiling() or device.type == "mps":
        return True
    backends: Any = torch.backends
    matmul = backends.cuda.matmul if device.type == "cuda" else backends.mkldnn.matmul
    settings = (matmul.fp32_precision, backends.fp32_precision)
    return next((s for s in settings if s != "none"), "ieee") == "ieee"


def cosine_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Products of all rows of `u` and `v`, regardless of autocast and TF32: cosines if the rows are unit vectors."""
    with torch.autocast(u.device.type, enabled=False):
        if u.dtype == torch.float32 and not float32_is_exact(u.device):
            return (u.double() @ v.double().mT).float()
        return u @ v.mT


# How many numbers of a weight are converted at a time.
_BLOCK = 2**22


def product_matrix(x: Tensor, weight: Tensor) -> Tensor:
    """`cosine_matrix` in the dtype of `x`, for a weight ``(…, C, D)`` of any dtype that is never copied as a whole."""
    if x.dtype == weight.dtype:
        return cosine_matrix(x, weight)
    size = max(1, _BLOCK // weight.shape[-1])
    blocks = [slice(start, start + size) for start in range(0, weight.shape[-2], size)]
    if len(blocks) == 1 or x.requires_grad or weight.requires_grad:
        return torch.cat([cosine_matrix(x, weight[..., block, :].to(x.dtype)) for block in blocks], -1)
    products = x.new_empty(*x.shape[:-1], weight.shape[-2])
    for block in blocks:
        products[..., block] = cosine_matrix(x, weight[..., block, :].to(x.dtype))
    return products


def arccos(cosines: Tensor) -> Tensor:
    """Arccos that forgives rounding beyond ±1 and whose slope is bounded (0 at ±1 itself)."""
    if not cosines.requires_grad:
        return cosines.clamp(-1, 1).acos_()
    exact = torch.acos(cosines.detach().clamp(-1, 1))
    bounded = torch.acos(cosines.clamp(-SLOPE_EDGE, SLOPE_EDGE))
    return bounded + (exact - bounded.detach())  # the value of one, the slope of the other


def angle_matrix(features: Tensor, weight: Tensor) -> Tensor:
    """Angles between every feature and every class weight, in radians.

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``, as in `torch.nn.Linear`.

    Returns:
        ``(N, C)`` in [0, π]. Near 0 and π an arccos is good to half the digits only; where that
        matters for single pairs use `paired_angle`.

    Examples:
        >>> angle_matrix(torch.tensor([[2.0, 0.0]]), torch.eye(2))
        tensor([[0.0000, 1.5708]])
    """
    dtype = working_dtype(features, weight)
    return arccos(cosine_matrix(unit(features.to(dtype))[0], unit(weight.to(dtype))[0]))
