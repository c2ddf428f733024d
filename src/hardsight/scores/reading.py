"""One streaming pass over the classes that leaves all that any score needs.

Everything about logits goes through the soft margin ``m = logsumexp_{k≠y}(z_k) − z_y``: ``p_y = sigmoid(−m)``
and ``−log p_y = softplus(m)`` keep their digits where ``1 − p`` and ``log p`` have lost them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
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


class _Best(NamedTuple):
    """The largest value of a row and its class. `tied`: another class comes within rounding (`slack`) of it."""

    value: Tensor
    index: Tensor
    slack: Tensor
    tied: Tensor

    @classmethod
    def plain(cls, value: Tensor, index: Tensor) -> _Best:
        return cls(value, index, torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool))

    def merge(self, other: _Best) -> _Best:
        better = other.value > self.value  # strict: the earlier block wins a tie, as argmax would
        best = _Best(*(torch.where(better, theirs, own) for own, theirs in zip(self, other, strict=True)))
        slack = torch.maximum(self.slack, other.slack)
        close = (self.value - other.value).abs() < slack
        return best._replace(slack=slack, tied=best.tied | close)


class _Sums(NamedTuple):
    """Running sums over blocks of other classes, relative to the largest logit so far."""

    top: _Best
    exp: Tensor
    exp2: Tensor
    lin: Tensor

    def moved_to(self, level: Tensor) -> _Sums:
        gap = self.top.value - level
        shrink = gap.exp()
        return self._replace(
            exp=self.exp * shrink,
            exp2=self.exp2 * shrink.square(),
            lin=shrink * (self.lin + gap * self.exp),
        )

    def merge(self, other: _Sums) -> _Sums:
        top = self.top.merge(other.top)
        a, b = self.moved_to(top.value), other.moved_to(top.value)
        return _Sums(top, a.exp + b.exp, a.exp2 + b.exp2, a.lin + b.lin)


# Elements of a block of cosines: small enough for a CPU cache, large enough to feed a GPU.
_CPU_BLOCK, _GPU_BLOCK = 2**20, 2**25
_CLASS_BLOCK = 1024
_DOUBTFUL_BLOCK = 4096
# Beyond this cosine float32 has lost too many digits of the angle.
_STEEP = 0.9


def read_classes(
    features: Tensor, weight: Tensor, target: Tensor | None, bias: Tensor | None = None, *, logits: bool = True
) -> Reading:
    """One streaming pass over the classes: memory is bounded by a block whatever N and C are.

    Args:
        features: ``(N, D)``, checked.
        weight: ``(C, D)``, checked.
        target: The class each sample is judged at, ``(N,)``; None means the predicted class.
        bias: ``(C,)`` or None.
        logits: False skips everything that is not an angle or a norm (those fields are NaN).

    Everything is float64, differentiable if the inputs are. On a CPU many classes are screened in float32
    first: target and runner-up are then taken again in float64, and so is, as a whole, every sample whose
    screening could be off by more than the scores promise.
    """
    if target is None:
        target = _predict(features, weight, bias)
    device, classes = features.device, len(weight)
    if device.type == "mps":  # has no float64
        moved = [t if t is None else t.cpu() for t in (features, weight, target, bias)]
        return read_classes(*moved, logits=logits)  # type: ignore[arg-type]
    screen = (
        device.type == "cpu"
        and classes >= 64
        and not _wants_grad(features, weight, bias)
        and max(t.element_size() for t in (features, weight, bias) if t is not None) <= 4
        and float32_is_exact(device)
    )
    if not screen:
        return _read(features, weight, target, bias, logits, torch.float64)[0]
    reading, doubtful = _read(features, weight, target, bias, logits, torch.float32)
    for rows in doubtful.nonzero()[:, 0].split(_DOUBTFUL_BLOCK):
        again = _read(features[rows], weight, target[rows], bias, logits, torch.float64)[0]
        for name in _COLUMNS:
            getattr(reading, name)[rows] = getattr(again, name)
    return reading


_COLUMNS = tuple(field.name for field in fields(Reading) if field.name != "classes")


class _Scratch:
    """Memory used again from block to block: on a CPU fresh pages cost more than the arithmetic done in them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape)
        kept = self._kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != dtype:
            kept = self._kept[name] = torch.empty(size, dtype=dtype, device=self._device)
        return kept[:size].view(shape)


def _read(
    features: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, logits: bool, dtype: torch.dtype
) -> tuple[Reading, Tensor]:
    """The pass itself, class blocks outside and row blocks inside; also says which rows are doubtful."""
    classes = len(weight)
    class_block = min(classes, _CLASS_BLOCK)
    row_block = max(1, (_CPU_BLOCK if features.device.type == "cpu" else _GPU_BLOCK) // class_block)
    rows = [slice(start, start + row_block) for start in range(0, max(1, len(features)), row_block)]
    states: dict[int, _RowBlock] = {}
    # Autograd must find the blocks as it left them, so with a graph to keep each gets memory of its own.
    scratch = None if _wants_grad(features, weight, bias) else _Scratch(features.device)
    longest = 0.0
    for first in range(0, classes, class_block):
        directions, lengths = unit(weight[first : first + class_block].double())
        if dtype == torch.float32:
            longest = max(longest, float(lengths.max()))
        offsets = None if bias is None else bias[first : first + class_block].to(dtype)
        directions, lengths = directions.to(dtype), lengths.to(dtype)
        for i, chunk in enumerate(rows):
            x, norm = _unit_rows(features[chunk], dtype, scratch)
            own = target[chunk] - first
            block = _read_block(
                x, norm, directions, lengths, offsets, own, first, class_block == classes, logits, scratch
            )
            states[i] = states[i].merge(block) if first else block
    if scratch is None or dtype == torch.float64:
        finish = _finish
    else:
        largest_bias = 0.0 if bias is None else float(bias.abs().max())
        finish = partial(_finish_screening, scratch=scratch, longest=longest, largest_bias=largest_bias)
    parts, doubts = zip(
        *(finish(states[i], features[chunk], weight, bias, target[chunk]) for i, chunk in enumerate(rows)),
        strict=True,
    )
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return Reading(classes=classes, **joined), torch.cat(doubts)


def _wants_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _unit_rows(features: Tensor, dtype: torch.dtype, scratch: _Scratch | None) -> tuple[Tensor, Tensor]:
    if dtype == torch.float64 or scratch is None:
        return unit(features.double())
    # Float32 squared fits float64: no scaling needed.
    features = features.float()
    norm = torch.linalg.vector_norm(scratch("x64", features.shape, torch.float64).copy_(features), dim=1)
    divisor = norm.masked_fill(norm == 0, 1.0).float()[:, None]
    return torch.div(features, divisor, out=scratch("x", features.shape, dtype)), norm.float()


class _RowBlock(NamedTuple):
    """The state of one block of rows between blocks of classes."""

    angle_sum: Tensor  # over the others
    nearest: _Best  # largest cosine among the others
    farthest: Tensor  # smallest cosine among the others
    sums: _Sums | None

    def merge(self, other: _RowBlock) -> _RowBlock:
        return _RowBlock(
            self.angle_sum + other.angle_sum,
            self.nearest.merge(other.nearest),
            torch.minimum(self.farthest, other.farthest),
            None if self.sums is None or other.sums is None else self.sums.merge(other.sums),
        )


def _read_block(
    x: Tensor,
    norm: Tensor,
    directions: Tensor,
    lengths: Tensor,
    bias: Tensor | None,
    target: Tensor,
    first_class: int,
    whole: bool,
    logits: bool,
    scratch: _Scratch | None,
) -> _RowBlock:
    """Rows × classes of one block, reduced over its classes.

    `target` is counted from the block's first class; `whole` says that the block holds every class.
    """
    shape, dtype = (len(x), len(directions)), x.dtype
    spare = None if scratch is None else scratch("spare", shape, x.dtype)
    cosines = cosine_matrix(x, directions, out=None if scratch is None else scratch("cosines", shape, x.dtype))
    if whole:
        at_target = (torch.arange(len(x), device=x.device), target)
    else:  # to find the rows whose target is in this block a GPU must be waited for
        rows = ((target >= 0) & (target < len(directions))).nonzero()[:, 0]
        at_target = (rows, target[rows])

    def without_target(values: Tensor, filler: float) -> Tensor:
        put = values.index_put if scratch is None else values.index_put_
        return put(at_target, values.new_tensor(filler))

    angles = arccos(cosines, out=spare)
    if dtype == torch.float64:
        angles = _sharpened(angles, cosines.detach(), x.detach(), directions.detach())
    angle_sum = without_target(angles, 0.0).sum(1).double()
    farthest = without_target(cosines.detach(), math.inf).amin(1)
    others = without_target(cosines.detach(), -math.inf)
    # Which class is nearest matters only where its angle is taken again, and an index is ten times the work.
    if dtype == torch.float64:
        value, index = others.max(1)
        nearest = _Best.plain(value, index + first_class)
    else:
        value = others.amax(1).double()
        nearest = _Best.plain(value, target)
    if not logits:
        return _RowBlock(angle_sum, nearest, farthest, None)
    out = None if scratch is None else cosines
    z = torch.mul(torch.mul(cosines, lengths, out=out), norm[:, None], out=out)
    z = without_target(z if bias is None else torch.add(z, bias, out=out), -math.inf)
    top = _top(z.detach(), x, norm, directions, lengths, bias, first_class, spare)
    below = torch.sub(z, top.value.to(z.dtype)[:, None], out=out)
    below = torch.clamp(below, min=-1e3, out=out)  # e^-1000 is 0, and 0·(-1000) is no NaN
    e = without_target(torch.exp(below, out=spare), 0.0)
    exp_sum, lin_sum = e.sum(1).double(), torch.mul(below, e, out=out).sum(1).double()
    sums = _Sums(top, exp_sum, torch.mul(e, e, out=spare).sum(1).double(), lin_sum)
    return _RowBlock(angle_sum, nearest, farthest, sums)


# Pairs of a row and a class that are looked at one by one, at most so many numbers at a time.
_PAIR_BLOCK = 2**22


def _pairs(mask: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and columns of a mask, in pieces."""
    for piece in mask.nonzero().split(max(1, _PAIR_BLOCK // max(1, width))):
        yield piece[:, 0], piece[:, 1]


def _sharpened(angles: Tensor, cosines: Tensor, x: Tensor, directions: Tensor) -> Tensor:
    """Half-chord angles where a cosine is so close to ±1 that arccos has no digits left."""
    values = angles.detach().clone() if angles.requires_grad else angles
    for rows, columns in _pairs(cosines.abs() > 1 - 1e-6, x.shape[1]):
        values[rows, columns] = angle_between_units(x[rows], directions[columns])
    return angles + (values - angles.detach()) if angles.requires_grad else values


def _top(
    z: Tensor,
    x: Tensor,
    norm: Tensor,
    directions: Tensor,
    lengths: Tensor,
    bias: Tensor | None,
    first_class: int,
    spare: Tensor | None,
) -> _Best:
    """The largest logit of each row of a block.

    In a matrix product equal weights do not give equal logits. Classes that come within rounding of the largest are
    therefore compared outside it, and the lowest of those with the largest logit wins. In float32 they are only marked.
    """
    value, index = z.max(1)
    # A block that holds nothing but the target has no largest other: any low finite level will do there.
    value = value.clamp_min(-1e300 if z.dtype == torch.float64 else -1e30)
    size = norm * lengths.max() + (0 if bias is None else bias.abs().max())
    slack = 4 * torch.finfo(z.dtype).eps * size
    near = torch.ge(z, (value - slack)[:, None], out=spare)
    tied = (near.sum(1) > 1) & (slack > 0)
    top = _Best(value.double(), index + first_class, slack.double(), tied)
    if z.dtype == torch.float32 or not tied.any():
        return top
    rows = tied.nonzero()[:, 0]
    near = near[rows].bool()
    logit = torch.full_like(near, -math.inf, dtype=torch.float64)
    for i, columns in _pairs(near, x.shape[1]):
        at = rows[i]
        logit[i, columns] = (x[at] * directions[columns]).sum(1) * lengths[columns] * norm[at]
    if bias is not None:
        logit = logit + bias
    lowest = (logit == logit.amax(1, keepdim=True)).int().argmax(1)
    value, index = top.value.clone(), top.index.clone()
    value[rows], index[rows] = logit.amax(1), lowest + first_class
    return top._replace(value=value, index=index, tied=torch.zeros_like(tied))


def _finish(
    state: _RowBlock,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
) -> tuple[Reading, Tensor]:
    """Exact angles and logits of the target and the runner-up put in place of the arccos ones."""
    x, norm = unit(features.double())

    def at(index: Tensor) -> tuple[Tensor, Tensor]:
        direction, length = unit(weight[index].double())
        logit = (x * direction).sum(1) * length * norm
        return angle_between_units(x, direction), logit if bias is None else logit + bias[index].double()

    angle, logit = at(target)
    other_angle, _ = at(state.nearest.index)
    reading = _reading(len(weight), target, norm, angle, state.angle_sum + angle, other_angle)
    if state.sums is not None:
        reading = _with_logits(reading, logit, at(state.sums.top.index)[1], state.sums)
    return reading, torch.zeros_like(target, dtype=torch.bool)


def _finish_screening(
    state: _RowBlock,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    *,
    scratch: _Scratch,
    longest: float,
    largest_bias: float,
) -> tuple[Reading, Tensor]:
    """The same after float32 screening, with a mask of the rows that it cannot settle."""
    x = scratch("x64", features.shape, torch.float64).copy_(features)
    w = scratch("w64", features.shape, torch.float64)
    norm = torch.linalg.vector_norm(x, dim=1)

    def at(index: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.index_select(weight, 0, index, out=scratch("w", features.shape, weight.dtype))
        size = norm * torch.linalg.vector_norm(w.copy_(rows), dim=1)
        dot = w.mul_(x).sum(1)
        cosine = dot / size.masked_fill(size == 0, 1.0)
        return cosine, dot if bias is None else dot + bias[index].double()

    cosine, logit = at(target)
    angle = arccos(cosine)
    steep = (cosine.abs() > _STEEP).nonzero()[:, 0]
    angle[steep] = angle_between_units(unit(x[steep])[0], unit(weight[target[steep]].double())[0])
    doubtful = torch.maximum(state.nearest.value.abs(), state.farthest.abs()) > _STEEP
    # Float32 that has gone below 1e-38 on the way has lost digits.
    doubtful |= (norm < 1e-30) & (norm > 0)
    if state.sums is not None:
        doubtful |= state.sums.top.tied
    reading = _reading(len(weight), target, norm, angle, state.angle_sum + angle, arccos(state.nearest.value))
    if state.sums is not None:
        reading = _with_logits(reading, logit, at(state.sums.top.index)[1], state.sums)
        # Each float32 logit below the runner-up is off by about `noise`; together they carry `spread` of the
        # others' mass. What that does to the nll is compared with the nll itself.
        noise = (norm * longest + largest_bias) * 2**-24
        spread = (reading.exp2_sum - 1).sqrt() / reading.exp_sum
        m = reading.soft_margin
        error = noise * spread * m.sigmoid()
        doubtful |= ~(error <= 2e-7 * F.softplus(m)) | (error > 1e-5) | (noise > 1e-4)
    return reading, doubtful


def _reading(
    classes: int, target: Tensor, norm: Tensor, angle: Tensor, angle_sum: Tensor, other_angle: Tensor
) -> Reading:
    nan = torch.full_like(norm.detach(), math.nan)
    no_class = torch.zeros_like(target)
    return Reading(classes, target, norm, angle, angle_sum, other_angle, nan, nan, no_class, nan, nan, nan)


def _with_logits(reading: Reading, logit: Tensor, other_logit: Tensor, sums: _Sums) -> Reading:
    # The runner-up itself counts 1 in `exp` and `exp2` and 0 in `lin` (and has a slope there, which `shift` carries);
    # it is taken out, and the rest moves to its exact level.
    shift = other_logit - other_logit.detach()
    own = shift.exp()
    rest = sums._replace(exp=sums.exp - own, exp2=sums.exp2 - own.square(), lin=sums.lin - shift * own)
    # The two levels differ by rounding; where logits are so large that rounding exceeds 1, any level near will do.
    rest = rest.moved_to(sums.top.value + (other_logit - sums.top.value).clamp(-1, 1))
    return replace(
        reading,
        logit=logit,
        other_logit=other_logit,
        other_class=sums.top.index,
        exp_sum=1 + rest.exp.clamp_min(0),
        exp2_sum=1 + rest.exp2.clamp_min(0),
        lin_sum=rest.lin,
    )


def _predict(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Class of the largest logit: judged against class 0, the winner is whatever `Reading.pred` says."""
    with torch.no_grad():
        nobody = torch.zeros(len(features), dtype=torch.long, device=features.device)
        return read_classes(features.detach(), weight.detach(), nobody, bias).pred.to(features.device)
