"""Logits for an objective: angular, cosine with margins, and adjusted for class frequency.

Logits of features ``(N, D)`` and class weights ``(C, D)`` (as in `torch.nn.Linear`) depend on directions only: lengths
and the bias play no part. With a target ``(N,)``, its angle is exact at 0 and π, and a row whose target is no class
(such as an `ignore_index` of −100) is the same as without a target. Logits ``(N, C)`` are in float32 or better.

A margin makes training harder, not prediction: predict with `angular_logits` or `cosine_logits` of the same scale.

A margin changes the target's logit alone, as a function of its angle. With too many classes for a matrix of logits,
this function and `hardsight.losses.largeheads` give the soft margin without forming it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.angles import angle_between_units, arccos, cosine_matrix, unit, working_dtype
from hardsight.errors import InputError
from hardsight.losses.base import CheckedLoss
from hardsight.losses.grammar import LOSSES, loss_part
from hardsight.losses.headchunks import HeadKind
from hardsight.losses.imbalance import check_counts, ldam_margins
from hardsight.losses.largeheads import check_head, head_terms, is_large, margin_between
from hardsight.losses.margins import class_mask
from hardsight.losses.objectives import EncouragingLoss
from hardsight.registry import Range

_POSITIVE, _NOT_NEGATIVE, _ARC = Range(0, ends="()"), Range(0), Range(0, math.pi / 2)
Scale = Annotated[float | Tensor, _POSITIVE]


@loss_part("logits", "angular", reference="AVH (ICML 2020) Eq. 5, with its logarithm", directions=True)
def angular_logits(features: Tensor, weight: Tensor, scale: Scale = 16.0, target: Tensor | None = None) -> Tensor:
    """``s·(π − θ)``: with cross-entropy the AVH loss.

    A target at angle 0 and all others at π/2 have ``p = 1/(1 + (C−1)·exp(−s·π/2))``: below a scale of about 8 the
    softmax cannot saturate. Without a target, angles near 0 and π are accurate to half the digits.

    Examples:
        >>> angular_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2), scale=1.0)
        tensor([[3.1416, 1.5708]])
    """
    x, w = _directions(features, weight, target, scale)
    angles = arccos(cosine_matrix(x, w))
    if target is not None:
        angles = _at_target(angles, target, _target_angle(x, w, target))
    return scale * (math.pi - angles)


@loss_part("logits", "cosine", reference="NormFace (Wang et al., 2017)", directions=True)
def cosine_logits(features: Tensor, weight: Tensor, scale: Scale = 16.0) -> Tensor:
    """``s·cos θ``."""
    return scale * cosine_matrix(*_directions(features, weight, None, scale))


@loss_part("logits", "cosface", reference="CosFace, AM-Softmax (2018)", directions=True)
def cosface_logits(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    margin: Annotated[float | Tensor, _NOT_NEGATIVE] = 0.35,
    scale: Scale = 30.0,
) -> Tensor:
    """``s·cos θ`` with a margin subtracted from the target's cosine.

    The margin may be one per class ``(C,)``: with those of `ldam_margins` this is LDAM (Cao et al. 2019).
    """
    cosines = cosine_matrix(*_directions(features, weight, target, scale))
    margin = _checked_margin(margin, len(weight), cosines)
    return scale * torch.where(class_mask(cosines, target), cosines - margin, cosines)


@loss_part("logits", "arcface", reference="ArcFace (Deng et al., 2019)", directions=True)
def arcface_logits(
    features: Tensor, weight: Tensor, target: Tensor, margin: Annotated[float, _ARC] = 0.5, scale: Scale = 30.0
) -> Tensor:
    """``s·cos θ`` with a margin on the target's angle, in radians.

    The target's logit is ``s·cos(θ + m)``. Beyond ``θ = π − m``, where the cosine would rise again, it is
    ``s·(cos θ − m·sin m)``: a step down that keeps the whole falling in θ.
    """
    x, w = _directions(features, weight, target, scale)
    return scale * _at_target(cosine_matrix(x, w), target, _arcface(_target_angle(x, w, target), margin))


@loss_part("logits", "sphereface", reference="SphereFace (Liu et al., 2017)", directions=True)
def sphereface_logits(
    features: Tensor, weight: Tensor, target: Tensor, margin: Annotated[int, Range(1)] = 4, scale: Scale = 30.0
) -> Tensor:
    """``s·cos θ`` with the target's angle multiplied.

    The target's logit is ``s·ψ(θ)``: ``ψ(θ) = (−1)^k cos(mθ) − 2k`` with ``k = ⌊mθ/π⌋`` falls from 1 to 1 − 2m. The
    scale may be one per row ``(N, 1)``: the paper uses ``features.norm(dim=1, keepdim=True)``.
    """
    x, w = _directions(features, weight, target, scale)
    return scale * _at_target(cosine_matrix(x, w), target, _sphereface(_target_angle(x, w, target), margin))


@loss_part("logits", "ldam", reference="LDAM (Cao et al., 2019)", indices=True)
def _ldam(
    *, counts: Tensor, largest: Annotated[float, _POSITIVE] = 0.5, scale: Annotated[float, _POSITIVE] = 30.0
) -> Callable[..., Tensor]:
    """Cosface with margins ∝ n^(−¼) for n samples of a class, scaled to the largest."""
    return partial(cosface_logits, margin=ldam_margins(counts, largest), scale=scale)


@loss_part("logits", "adjusted", reference="Menon et al. (ICLR 2021)")
def adjusted_logits(logits: Tensor, counts: Tensor | Sequence[float], tau: Annotated[float, Range(0)] = 1.0) -> Tensor:
    """Logits + τ·log of the class's share of the training data.

    For training; predict with the plain logits. Pass the count (or share) of each class as a tensor on the logits'
    device: anything else is copied there at every step. A class without samples counts as nearly empty.
    """
    z = logits.to(working_dtype(logits))
    if z.ndim < 2:
        raise InputError(f"logits must have shape (N, C, …), got {tuple(z.shape)}.")
    n = check_counts(counts, z.shape[1]).to(z)
    prior = (n / n.sum()).clamp_min(torch.finfo(z.dtype).tiny)
    return z + tau * prior.log().view(-1, *[1] * (z.ndim - 2))


def _arcface(angle: Tensor, margin: float) -> Tensor:
    _ARC.check(margin, "margin (in radians)")
    near, far = torch.cos(angle + margin), torch.cos(angle) - margin * math.sin(margin)
    return torch.where(angle <= math.pi - margin, near, far)


def _sphereface(angle: Tensor, margin: int) -> Tensor:
    if not isinstance(margin, int) or margin < 1:
        raise InputError(f"margin must be an integer from 1 (it multiplies the angle), got {margin}.")
    k = torch.floor(margin * angle.detach() / math.pi)
    return (1 - 2 * (k % 2)) * torch.cos(margin * angle) - 2 * k


def _cosface(angle: Tensor, margin: float | Tensor, target: Tensor, classes: int) -> Tensor:
    margin = _checked_margin(margin, classes, angle)
    if isinstance(margin, Tensor) and margin.ndim:
        margin = margin[target.long().clamp(0, classes - 1)]
    return torch.cos(angle) - margin


class _AtTarget(NamedTuple):
    """The target's logit before scaling, as a function of its angle, the margin, the target and C."""

    others: HeadKind
    value: Callable[[Tensor, Any, Tensor, int], Tensor]


_AT_TARGET = {
    angular_logits: _AtTarget("angular", lambda angle, *_: math.pi - angle),
    cosine_logits: _AtTarget("cosine", lambda angle, *_: torch.cos(angle)),
    cosface_logits: _AtTarget("cosine", _cosface),
    arcface_logits: _AtTarget("cosine", lambda angle, margin, *_: _arcface(angle, margin)),
    sphereface_logits: _AtTarget("cosine", lambda angle, margin, *_: _sphereface(angle, margin)),
}


class BoundLogits(nn.Module):
    """A function ``(features, weight[, target], …)`` or ``(logits, …) → logits`` with its options.

    Tensors and the scale are buffers, so that a schedule may change them in place; with `learn` the logarithm of the
    scale is learned.
    """

    def __init__(self, function: Callable[..., Tensor], learn: bool = False, **options: Any) -> None:
        super().__init__()
        self.function, self.learn = function, learn
        self.directions = any(part.function is function and part.directions for part in LOSSES.values())
        parameters = inspect.signature(function).parameters
        self.of_features, self._target = "features" in parameters, parameters.get("target")
        if learn:
            self.log_scale = nn.Parameter(torch.tensor(math.log(options.pop("scale"))))
        tensors = {k: torch.as_tensor(v) for k, v in options.items() if isinstance(v, Tensor) or k == "scale"}
        for name, value in tensors.items():
            self.register_buffer(name, value)
        self._tensors, self._numbers = tuple(tensors), {k: v for k, v in options.items() if k not in tensors}

    def forward(self, logits: Tensor | None, target: Tensor, features: Tensor | None, weight: Tensor | None) -> Tensor:
        """Logits ``(N, C)`` for an objective; only what the function takes is used."""
        options = self._options()
        if self._target is not None:
            soft = target.is_floating_point()
            if soft and self._target.default is inspect.Parameter.empty:
                raise InputError(
                    f"target must hold class indices (N,), got {tuple(target.shape)}: these logits need one class per "
                    "sample; leave mixup out, or choose logits without a margin."
                )
            options["target"] = None if soft else target
        return self.function(features, weight, **options) if self.of_features else self.function(logits, **options)

    def skips_matrix(self, target: Tensor, features: Tensor | None, weight: Tensor | None) -> bool:
        """Whether there are so many logits that `soft_margin` should replace the matrix."""
        return self.function in _AT_TARGET and is_large(target, features, weight)

    def soft_margin(self, target: Tensor, features: Any, weight: Any) -> Tensor:
        """The soft margin of the target ``(N,)`` in these logits, without forming them all: see `head_terms`."""
        parameters = inspect.signature(self.function).parameters
        options = {name: parameter.default for name, parameter in parameters.items()} | self._options()
        scale, (kind, value) = options["scale"], _AT_TARGET[self.function]
        if not isinstance(scale, Tensor):
            _POSITIVE.check(scale, "scale")
        angle, others = head_terms(features, weight, target, kind=kind, scale=scale)
        scale = scale.to(others).reshape(-1) if isinstance(scale, Tensor) else scale
        logit = scale * value(angle, options.get("margin"), target, len(weight))
        return margin_between(others, logit, target, len(weight))

    def _options(self) -> dict[str, Any]:
        options = {**self._numbers, **{name: getattr(self, name) for name in self._tensors}}
        return options | {"scale": self.log_scale.exp()} if self.learn else options

    def extra_repr(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}, {self._numbers}, learn={self.learn}"


class AVHLoss(CheckedLoss):
    """Cross-entropy of `angular_logits`: ``−log softmax_k(s·(π − θ_k))[y]`` (Chen et al., ICML 2020, Eq. 5).

    The paper prints it without the logarithm; minimized as printed, it would lower the target's probability. From 67
    million logits on (256 MiB) the matrix is never formed: see `hardsight.losses.largeheads.head_terms`.

    Args:
        scale: s. The paper chose it by cross-validation and does not give it; try 8, 16, 32, 64.
        learnable: Learn log s: pass ``loss.parameters()`` to the optimizer too.
        options: ``ignore_index``, ``reduction``, ``label_smoothing`` and ``validate`` as in `EncouragingLoss`.

    Examples:
        >>> AVHLoss(scale=1.0)(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([0]))  # log(1 + exp(−π/2))
        tensor(0.1889)
    """

    def __init__(self, scale: float = 16.0, learnable: bool = False, **options: Any) -> None:
        super().__init__()
        _POSITIVE.check(scale, "scale")
        self.logits = BoundLogits(angular_logits, learnable, scale=float(scale))
        self.objective = EncouragingLoss(rho=0.0, **options)  # cross-entropy that stays precise as p goes to 1
        self.learnable, self.validate = learnable, self.objective.validate

    @property
    def scale(self) -> Tensor:
        """The scale s as a tensor; assign a number to change it."""
        return self.logits.log_scale.exp() if self.learnable else self.logits.get_buffer("scale")

    @scale.setter
    def scale(self, value: float) -> None:
        _POSITIVE.check(value, "scale")
        with torch.no_grad():
            self.logits.log_scale.fill_(math.log(value)) if self.learnable else self.scale.fill_(value)

    def forward(self, features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` and class weights ``(C, D)`` at targets ``(N,)``, or soft ones ``(N, C)``."""
        self._check_values(features=features)
        if self.logits.skips_matrix(target, features, weight) and not self.objective.needs_all_margins:
            self.objective.check_head(features, weight, target)
            return self.objective.of_margins(self.logits.soft_margin(target, features, weight), target)
        return self.objective(self.logits(features, target, features, weight), target)

    def extra_repr(self) -> str:
        return f"scale={self.scale.item():g}"


def _directions(
    features: Tensor, weight: Tensor, target: Tensor | None, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Unit features and class weights in one dtype, after a check of their shapes."""
    check_head(features, weight, target)
    if not isinstance(scale, Tensor):
        _POSITIVE.check(scale, "scale")
    dtype = working_dtype(features, weight)
    return unit(features.to(dtype))[0], unit(weight.to(dtype))[0]


def _checked_margin(margin: float | Tensor, classes: int, like: Tensor) -> float | Tensor:
    """The margin of cosface: a number, or one per class ``(C,)``."""
    if not isinstance(margin, Tensor):
        _NOT_NEGATIVE.check(margin, "margin")
        return margin
    if margin.shape not in ((), (classes,)):
        raise InputError(f"margin must be a number or have shape ({classes},), got {tuple(margin.shape)}.")
    return margin.to(like)


def _at_target(matrix: Tensor, target: Tensor, values: Tensor) -> Tensor:
    """A matrix ``(N, C)`` with other values ``(N,)`` at the target."""
    return torch.where(class_mask(matrix, target), values[:, None], matrix)


def _target_angle(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    # A target that is no class gets an arbitrary angle here, which is not used.
    return angle_between_units(x, w.index_select(0, target.long().clamp(0, len(w) - 1)))
