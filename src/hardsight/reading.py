"""One pass over the classes that computes everything that scores need.

Everything about logits goes through the soft margin ``m = logsumexp_{k≠y}(z_k) − z_y``: ``p_y = sigmoid(−m)``
and ``−log p_y = softplus(m)`` stay precise where ``1 − p`` and ``log p`` have lost all digits.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hardsight.angles import angle_between_units, arccos, product_matrix, unit
from hardsight.fastreading import applies_to, read_fast


@dataclass(frozen=True)
class Reading:
    """The results of one pass over the classes for each sample: ``(N,)`` float64 tensors.

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
    cosines: Tensor | None = None  # (N, C), if kept

    @cached_property
    def log_exp_sum(self) -> Tensor:
        """Logarithm of `exp_sum`."""
        return self.exp_sum.log()

    @cached_property
    def soft_margin(self) -> Tensor:
        """``m = logsumexp over the others − z_target``: negative when the target wins."""
        return self.other_logit + self.log_exp_sum - self.logit

    @property
    def pred(self) -> Tensor:
        """The class of the largest logit; the lower index if two tie, as in `torch.argmax`."""
        tie = torch.minimum(self.target, self.other_class)
        winner = torch.where(self.logit > self.other_logit, self.target, self.other_class)
        return torch.where(self.logit == self.other_logit, tie, winner)


# Numbers in a block: small enough for a CPU cache, large enough to keep a GPU busy.
_CPU_BLOCK, _GPU_BLOCK = 2**20, 2**22


def read_classes(
    features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None = None, *, keep_cosines: bool = False
) -> Reading:
    """One pass over the classes, a block of rows at a time; differentiable if the inputs are.

    The reference computes in float64. With many classes and no gradients, rows go through `hardsight.fastreading`
    first, and to the reference only if that may miss a stated tolerance.

    Args:
        features: ``(N, D)``, checked.
        weight: ``(C, D)``, checked.
        target: The class at which each sample is scored, ``(N,)``; None means the predicted class.
        bias: ``(C,)`` or None.
        keep_cosines: For training steps: keeps the cosines ``(N, C)``, never waits for the device, and takes a stack of
            K batches, each with its own head: ``(K, N, D)``, ``(K, C, D)``, ``(K, N)`` and ``(K, C)``. In return,
            angles to other classes are good to 1e-8 only.
    """
    if keep_cosines:
        features, weight, target, bias = _on_one_device(features, weight, target, bias)
        return Reading(weight.shape[-2], *_read(features, weight, target, bias, True))
    fields = [operator.attrgetter(field.name) for field in dataclasses.fields(Reading)[1:-1]]
    return Reading(len(weight), *evaluate(fields, features, weight, target, bias))


def evaluate(
    functions: Sequence[Callable[[Reading], Tensor]],
    features: Tensor,
    weight: Tensor,
    target: Tensor | None,
    bias: Tensor | None,
    logits: bool = True,
    precise: bool = False,
) -> list[Tensor]:
    """Functions of the `Reading` that `read_classes` gives, each of which has one value per row.

    They are computed for all rows and again for those that a fast path leaves in doubt, so that the CPU waits for a GPU
    only once, at the end. Without `logits`, they must need norms and angles alone: other fields may hold anything.
    `precise` is that of `read_fast`.
    """
    features, weight, target, bias = _on_one_device(features, weight, target, bias)
    if not applies_to(features, weight, bias):
        reading = Reading(len(weight), *_read(features, weight, target, bias, False))
        return [function(reading) for function in functions]
    fields, sure = read_fast(features, weight, target, bias, logits, precise)
    reading = Reading(len(weight), *fields)
    values = [function(reading) for function in functions]
    if bool(sure.all()):
        return values
    # In parts: copies of all rows could fill the memory.
    for rows in (~sure).nonzero()[:, 0].split(max(1, 4 * _GPU_BLOCK // features.shape[1])):
        x, y = features[rows], None if target is None else target[rows]
        if features.is_cuda and features.dtype != torch.float32:  # more exact products on the way to the reference
            again = evaluate(functions, x.float() if precise else x, weight, y, bias, logits, not precise)
        else:
            reading = Reading(len(weight), *_read(x, weight, y, bias, False))
            again = [function(reading) for function in functions]
        for column, exact in zip(values, again, strict=True):
            column[rows] = exact
    return values


def _on_one_device(
    features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    device = torch.device("cpu") if features.device.type == "mps" else features.device  # mps has no float64
    labels, shift = None if target is None else target.to(device), None if bias is None else bias.to(device)
    return features.to(device), weight.to(device), labels, shift


def _read(
    features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None, keep_cosines: bool
) -> list[Tensor]:
    """The reference: the fields of a `Reading` from `target` on, in float64."""
    (classes, width), samples = weight.shape[-2:], features.shape[-2]
    lengths = torch.cat([unit(block.double())[1] for block in weight.split(2**22 // width + 1, -2)], -1)
    bias = torch.zeros_like(lengths) if bias is None else bias.double()
    block = _CPU_BLOCK if features.device.type == "cpu" else _GPU_BLOCK
    rows = samples if keep_cosines else max(1, block // max(classes, width))
    fields: list[Tensor] = []
    for start in range(0, max(1, samples), max(1, rows)):
        here = slice(start, start + rows)
        y = None if target is None else target[..., here]
        part = _read_rows(features[..., here, :].double(), y, weight, lengths, bias, keep_cosines)
        if rows >= samples:
            return part
        # Small tensors among large temporary ones would fragment the memory: they are allocated beforehand.
        fields = fields or [values.new_empty(samples) for values in part]
        for field, values in zip(fields, part, strict=True):
            field[here] = values
    return fields


def _read_rows(
    features: Tensor, target: Tensor | None, weight: Tensor, lengths: Tensor, bias: Tensor, keep_cosines: bool
) -> list[Tensor]:
    """The fields of a `Reading` of some rows; everything but the weight is float64."""
    x, norm = unit(features)

    def weight_of(index: Tensor) -> Tensor:
        return weight.gather(-2, index[..., None].expand_as(x)).double()

    def logit_of(index: Tensor) -> Tensor:
        # Not from the matrix product, in which equal weights may give unequal logits.
        return (x * weight_of(index)).sum(-1) * norm + bias.gather(-1, index)

    products = product_matrix(x, weight)
    cosines = products * lengths.masked_fill(lengths == 0, math.inf).reciprocal()[..., None, :]
    z = products.mul(norm[..., None]).add_(bias[..., None, :])
    # Logits that are this close may tie, but for the rounding of the matrix product.
    largest = norm * lengths.amax(-1, keepdim=True) + bias.abs().amax(-1, keepdim=True)
    slack = 4 * torch.finfo(z.dtype).eps * largest.detach()[..., None]
    target = _lowest_largest(z, slack) if target is None else target
    place = target[..., None]

    angles = arccos(cosines)
    if not keep_cosines:
        _sharpen(angles, cosines, x, weight)
    angle = angle_between_units(x, unit(weight_of(target))[0])
    angle_sum = angles.scatter_(-1, place, angle[..., None]).sum(-1)
    other_angle = angles.scatter_(-1, place, math.inf).amin(-1)

    other_class, sums = _read_others(z, place, slack)
    fields = [target, norm, angle, angle_sum, other_angle, logit_of(target), logit_of(other_class), other_class, *sums]
    return [*fields, cosines] if keep_cosines else fields


def _read_others(z: Tensor, place: Tensor, slack: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The other class with the largest logit, and the three sums over the others; the logits are overwritten."""
    others = z.scatter_(-1, place, -math.inf)
    other_class = _lowest_largest(others, slack)
    # e^-1000 is 0, and -1000·0 is not NaN. Only ties, rounded by the matrix product, lie above 0.
    below = (others - others.gather(-1, other_class[..., None])).clamp(-1e3, 1)
    e = below.exp()
    return other_class, [e.sum(-1), e.square().sum(-1), (below * e).sum(-1)]


def read_logits(logits: Tensor, target: Tensor) -> Reading:
    """The same from logits alone ``(N, C)``: norm and angles are NaN."""
    blocks = []
    for z, y in zip(logits.split(step := max(1, _CPU_BLOCK // logits.shape[1])), target.split(step), strict=True):
        z, place, unknown = z.double(), y[:, None], torch.full(y.shape, math.nan).double()
        other_class, sums = _read_others(z.clone(), place, torch.zeros(()))
        own, other = (z.gather(1, index)[:, 0] for index in (place, other_class[:, None]))
        blocks.append([y, *[unknown] * 4, own, other, other_class, *sums])
    return Reading(logits.shape[1], *(torch.cat(field) for field in zip(*blocks, strict=True)))


def _lowest_largest(z: Tensor, slack: Tensor) -> Tensor:
    """The class of the largest logit, the lowest of those that tie."""
    z = z.detach()
    return (z >= z.amax(-1, keepdim=True) - slack).byte().argmax(-1)


def _sharpen(angles: Tensor, cosines: Tensor, x: Tensor, weight: Tensor) -> None:
    """Use half-chord angles where a cosine is so close to ±1 that arccos has no digits left."""
    for pairs in (cosines.abs() > 1 - 1e-6).nonzero().split(_CPU_BLOCK // x.shape[-1] + 1):
        rows, columns = pairs.unbind(1)
        coarse, exact = angles[rows, columns], angle_between_units(x[rows], unit(weight[columns].double())[0])
        angles[rows, columns] = coarse + (exact - coarse).detach()  # the value of one, the bounded slope of the other
