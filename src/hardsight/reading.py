"""One pass over the classes that leaves all that any score needs.

Everything about logits goes through the soft margin ``m = logsumexp_{k≠y}(z_k) − z_y``: ``p_y = sigmoid(−m)``
and ``−log p_y = softplus(m)`` keep their digits where ``1 − p`` and ``log p`` have lost them all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hardsight.angles import angle_between_units, arccos, cosine_matrix, float32_is_exact, unit


@dataclass(frozen=True)
class Reading:
    """What one pass over the classes leaves of each sample: ``(N,)`` float64 tensors.

    "Other" is every class but `target`. With ``M = other_logit`` the three sums over the others are
    ``exp_sum = Σ e^(z−M)``, ``exp2_sum = Σ e^(2(z−M))`` and ``lin_sum = Σ (z−M) e^(z−M)``.
    """

    classes: int
    target: Tensor
    norm: Tensor
    angle: Tensor
    angle_sum: Tensor
    other_angle: Tensor
    logit: Tensor
    other_logit: Tensor
    other_class: Tensor
    exp_sum: Tensor
    exp2_sum: Tensor
    lin_sum: Tensor
    cosines: Tensor | None = None  # (N, C), where they were asked for

    @property
    def soft_margin(self) -> Tensor:
        """``m = logsumexp over the others − z_target``: negative when the target wins."""
        return self.other_logit + self.exp_sum.log() - self.logit

    @property
    def pred(self) -> Tensor:
        """The class of the largest logit; the lower index where two tie, as in `torch.argmax`."""
        tie = torch.minimum(self.target, self.other_class)
        winner = torch.where(self.logit > self.other_logit, self.target, self.other_class)
        return torch.where(self.logit == self.other_logit, tie, winner)


# Elements of a block of cosines: small enough for a CPU cache, large enough to feed a GPU.
_CPU_BLOCK, _GPU_BLOCK = 2**20, 2**25
_CLASS_BLOCK = 1024


class _Head(NamedTuple):
    """The last layer. A stack of batches has one head per batch, in front of the other dimensions."""

    weight: Tensor
    inverse_length: Tensor  # float64; 0 for a zero weight
    bias: Tensor  # float64
    longest: Tensor
    largest_bias: Tensor
    blocks: int  # of classes; of nearly the same size, so that none holds the target alone


def read_classes(
    features: Tensor,
    weight: Tensor,
    target: Tensor | None,
    bias: Tensor | None = None,
    *,
    logits: bool = True,
    keep_cosines: bool = False,
) -> Reading:
    """One pass over the classes, in chunks of rows and blocks of classes: memory is bounded whatever N and C are.

    Results are float64, and differentiable if the inputs are. So is the arithmetic, except that a CPU takes float32
    first where there are many classes, and reads the rows again for which that is not enough.

    Args:
        features: ``(N, D)``, checked.
        weight: ``(C, D)``, checked.
        target: The class that each sample is judged at, ``(N,)``; None means the predicted class.
        bias: ``(C,)`` or None.
        logits: False skips everything that is not an angle or a norm (those fields are NaN).
        keep_cosines: For training steps: keeps the cosines ``(N, C)``, waits for no device, and takes a stack of K
            batches, each with its own head: ``(K, N, D)``, ``(K, C, D)``, ``(K, N)`` and ``(K, C)``. The price is that
            angles to other classes are good to 1e-8 only, and that either class may win a tie.
    """
    if features.device.type == "mps":  # has no float64
        features, weight = features.cpu(), weight.cpu()
        target, bias = (t if t is None else t.cpu() for t in (target, bias))
    if target is None:  # judged against class 0, the prediction is whatever `Reading.pred` says
        with torch.no_grad():
            class_0 = torch.zeros(len(features), dtype=torch.long, device=features.device)
            target = read_classes(features, weight, class_0, bias).pred
    classes, width = weight.shape[-2:]
    lengths = torch.cat([unit(block.double())[1] for block in weight.split(_CLASS_BLOCK, -2)], -1)
    inverse_length = lengths.masked_fill(lengths == 0, math.inf).reciprocal()
    bias = torch.zeros_like(lengths) if bias is None else bias.double()
    longest, largest_bias = (t.detach().abs().amax(-1, keepdim=True) for t in (lengths, bias))
    blocks = 1 if keep_cosines else math.ceil(classes / _CLASS_BLOCK)
    head = _Head(weight, inverse_length, bias, longest, largest_bias, blocks)
    block = _CPU_BLOCK if features.device.type == "cpu" else _GPU_BLOCK
    rows = max(1, features.shape[-2] if keep_cosines else block // max(min(classes, _CLASS_BLOCK), width))
    narrow = not keep_cosines and _float32_may_do(features, head)
    parts = []
    for x, y in zip(features.split(rows, -2), target.split(rows, -1), strict=True):
        part, sure = _read_chunk(x, y, head, torch.float32 if narrow else torch.float64, logits, keep_cosines)
        if narrow and len(unsure := (~sure).nonzero()[:, 0]):
            again, _ = _read_chunk(x[unsure], y[unsure], head, torch.float64, logits, keep_cosines)
            for values, better in zip(part, again, strict=True):
                values[unsure] = better
        parts.append(part)
    return Reading(classes, target, *(torch.cat(values, -1) for values in zip(*parts, strict=True)))


def _float32_may_do(features: Tensor, head: _Head) -> bool:
    given = (features, head.weight, head.bias)
    return (
        features.device.type == "cpu"
        and len(head.weight) >= 64
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in given))
        and max(features.element_size(), head.weight.element_size()) <= 4
        and float32_is_exact(features.device)
        and bool((head.longest < 1e30) & (head.inverse_length < 1e30).all())
    )


def _read_chunk(
    features: Tensor, target: Tensor, head: _Head, dtype: torch.dtype, logits: bool, keep_cosines: bool
) -> tuple[list[Tensor], Tensor]:
    """The fields of a `Reading` of some rows, and for which of them a matrix product of this dtype is good enough."""
    x, norm = unit(features.double())
    # A logit from the matrix product is off by about `noise`; what is closer than `slack` may be a tie.
    noise = torch.finfo(dtype).eps / 2 * (norm.detach() * head.longest + head.largest_bias)
    slack = 8 * noise
    angle_sum = exp_sum = exp2_sum = lin_sum = torch.zeros_like(norm)
    nearest, farthest = torch.full_like(norm, math.inf), torch.zeros_like(norm)
    directions, sizes = x.to(dtype), norm.to(dtype)[..., None]
    top = second = torch.full_like(norm, -math.inf)
    other_class, first, cosines = torch.zeros_like(target), 0, x
    blocks = (head.weight.tensor_split(head.blocks, -2), head.inverse_length.tensor_split(head.blocks, -1))
    for weight, inverse, bias in zip(*blocks, head.bias.tensor_split(head.blocks, -1), strict=True):
        place = (target - first)[..., None]
        inside = (place >= 0) & (place < weight.shape[-2])
        place = place.clamp(0, weight.shape[-2] - 1)
        products = cosine_matrix(directions, weight.to(dtype))
        cosines = products * inverse.to(dtype)[..., None, :]
        angles = arccos(cosines)
        if dtype == torch.float64 and not keep_cosines:
            angles = _sharpened(angles, cosines.detach(), x.detach(), weight.detach())
        angle_sum = angle_sum + (angles.sum(-1) - angles.gather(-1, place).masked_fill(~inside, 0.0)[..., 0])
        farthest = torch.maximum(farthest, angles.amax(-1))
        nearest = torch.minimum(nearest, _without(angles, place, inside, math.inf).amin(-1))
        if logits:
            z = products * sizes + bias.to(dtype)[..., None, :]
            z = _without(z, place, inside, -math.inf)
            value, index = z.detach().max(-1)
            if not keep_cosines:
                close = z.detach().scatter(-1, index[..., None], -math.inf).amax(-1)
                second = torch.maximum(torch.maximum(second, close), torch.minimum(top.detach(), value))
                if dtype == torch.float64 and (value - close <= slack).any():  # the lowest of those that tie
                    numbers = torch.arange(z.shape[-1], device=z.device)
                    index = torch.where(z >= (value - slack)[:, None], numbers, len(numbers)).amin(-1)
            value = z.gather(-1, index[..., None])[..., 0].double()
            better = value > top + slack
            level = torch.where(better, value, top)
            other_class = torch.where(better, index + first, other_class)
            shift = (top - level).clamp_min(-1e3)  # e^-1000 is 0, and 0·(-1000) is no NaN
            below = (z - level.to(dtype)[..., None]).clamp_min(-1e3)
            e = below.exp()
            lin_sum = shift.exp() * (lin_sum + shift * exp_sum) + (below * e).sum(-1)
            exp_sum = shift.exp() * exp_sum + e.sum(-1)
            exp2_sum = (2 * shift).exp() * exp2_sum + (e * e).sum(-1)
            top = level
        first += weight.shape[-2]
    sure = (nearest > 0.45) & (farthest < math.pi - 0.45)  # elsewhere the slope of arccos is steep
    batch = () if target.ndim == 1 else (torch.arange(len(target), device=target.device)[:, None],)

    def logit_of(index: Tensor, rows: Tensor) -> Tensor:
        return (x * rows).sum(-1) * norm + head.bias[*batch, index]

    # Target and runner-up are taken again, because in a matrix product equal weights do not give equal logits.
    target_weight = head.weight[*batch, target].double()
    angle = angle_between_units(x, target_weight * head.inverse_length[*batch, target][..., None])
    if logits:
        logit = logit_of(target, target_weight)
        other_logit = logit_of(other_class, head.weight[*batch, other_class].double())
        sure &= (top - second > slack) & (noise < 4e-6) & (norm > 1e-30)
    else:
        logit = other_logit = exp_sum = exp2_sum = lin_sum = torch.full_like(norm.detach(), math.nan)
    fields = [norm, angle, angle_sum + angle, nearest, logit, other_logit, other_class]
    return [*fields, exp_sum, exp2_sum, lin_sum, *([cosines] if keep_cosines else [])], sure


def _without(values: Tensor, place: Tensor, inside: Tensor, filler: float) -> Tensor:
    """Values with a filler in the place of the target, in the rows whose target is inside."""
    put = values.scatter if values.requires_grad else values.scatter_  # autograd needs them as they were
    return put(-1, place, values.gather(-1, place).masked_fill(inside, filler))


def _sharpened(angles: Tensor, cosines: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Half-chord angles where a cosine is so close to ±1 that arccos has no digits left."""
    values = angles.detach().clone()
    for pairs in (cosines.abs() > 1 - 1e-6).nonzero().split(_CPU_BLOCK // x.shape[-1] + 1):
        rows, columns = pairs.unbind(1)
        values[rows, columns] = angle_between_units(x[rows], unit(weight[columns].double())[0])
    return angles + (values - angles.detach())
