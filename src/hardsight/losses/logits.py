"""Logits to put an objective on: angular, cosine with margins, adjusted for class frequency, spherical, Taylor.

Those made from features ``(N, D)`` and class weights ``(C, D)`` (as in `torch.nn.Linear`) see directions only: lengths
and the bias play no part. Where a target ``(N,)`` is asked for, its angle is exact at 0 and π, and a row whose target
is no class (such as an `ignore_index` of −100) stays as it is without a target.

A margin makes training harder, not prediction: predict with `angular_logits` or `cosine_logits` of the same scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hardsight.angles import angle_between_units, arccos, cosine_matrix, unit, working_dtype
from hardsight.errors import InputError
from hardsight.losses.encouraging import EncouragingLoss
from hardsight.losses.imbalance import counts_of
from hardsight.losses.margins import chosen


def angular_logits(
    features: Tensor, weight: Tensor, scale: float | Tensor = 16.0, target: Tensor | None = None
) -> Tensor:
    """``s·(π − θ)``: under cross-entropy the AVH loss (Chen et al., ICML 2020, Eq. 5 with the logarithm it lacks).

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``.
        scale: s. A target at angle 0 and all others at π/2 have ``p = 1/(1 + (C−1)·exp(−s·π/2))``: below about 8 the
            softmax cannot saturate.
        target: ``(N,)``; with it the target's angle is exact, without it good to half the digits near 0 and π.

    Returns:
        ``(N, C)`` in float32 or better.

    Examples:
        >>> angular_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2), scale=1.0)
        tensor([[3.1416, 1.5708]])
    """
    x, w = _directions(features, weight, target, scale)
    angles = arccos(cosine_matrix(x, w))
    if target is not None:
        angles = torch.where(chosen(angles, target), _target_angle(x, w, target)[:, None], angles)
    return scale * (math.pi - angles)


def cosine_logits(features: Tensor, weight: Tensor, scale: float | Tensor = 16.0) -> Tensor:
    """``s·cos θ`` (NormFace, Wang et al. 2017).

    Examples:
        >>> cosine_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2))
        tensor([[16.,  0.]])
    """
    return scale * cosine_matrix(*_directions(features, weight, None, scale))


def cosface_logits(
    features: Tensor, weight: Tensor, target: Tensor, margin: float | Tensor = 0.35, scale: float | Tensor = 30.0
) -> Tensor:
    """``s·(cos θ − m)`` for the target, ``s·cos θ`` for the others (CosFace and AM-Softmax, Wang et al. 2018).

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``.
        target: ``(N,)``.
        margin: m ≥ 0, or one a class ``(C,)``: with those of `ldam_margins` this is LDAM (Cao et al. 2019).
        scale: s.

    Examples:
        >>> cosface_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([0]), scale=1.0)
        tensor([[0.6500, 0.0000]])
    """
    x, w = _directions(features, weight, target, scale)
    if isinstance(margin, Tensor):
        if margin.shape not in ((), weight.shape[:1]):
            raise InputError(f"margin must be a number or one a class ({len(weight)},), got {tuple(margin.shape)}.")
    elif not margin >= 0:
        raise InputError(f"margin must be 0 or more, a difference of cosines, got {margin}.")
    cosines = cosine_matrix(x, w)
    own = cosines - (margin.to(cosines) if isinstance(margin, Tensor) else margin)
    return scale * torch.where(chosen(cosines, target), own, cosines)


def arcface_logits(
    features: Tensor, weight: Tensor, target: Tensor, margin: float = 0.5, scale: float | Tensor = 30.0
) -> Tensor:
    """``s·cos(θ + m)`` for the target, ``s·cos θ`` for the others (ArcFace, Deng et al. 2019).

    Beyond ``θ = π − m``, where the cosine would rise again, the target has ``s·(cos θ − m·sin m)``: a step down that
    keeps the whole falling in θ.

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``.
        target: ``(N,)``.
        margin: m in radians, in [0, π/2].
        scale: s.

    Examples:
        >>> arcface_logits(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([0]), scale=1.0)
        tensor([[0.8776, 0.0000]])
    """
    if not 0 <= margin <= math.pi / 2:
        raise InputError(f"margin must lie in [0, π/2] radians, got {margin}; math.radians converts degrees.")
    x, w = _directions(features, weight, target, scale)
    cosines, angle = cosine_matrix(x, w), _target_angle(x, w, target)
    far = torch.cos(angle) - margin * math.sin(margin)
    own = torch.where(angle <= math.pi - margin, torch.cos(angle + margin), far)
    return scale * torch.where(chosen(cosines, target), own[:, None], cosines)


def sphereface_logits(
    features: Tensor, weight: Tensor, target: Tensor, margin: int = 4, scale: float | Tensor = 30.0
) -> Tensor:
    """``s·ψ(θ)`` for the target, ``s·cos θ`` for the others (SphereFace, Liu et al. 2017).

    ``ψ(θ) = (−1)^k cos(mθ) − 2k`` with ``k = ⌊mθ/π⌋`` falls from 1 to 1 − 2m. The paper keeps the length of the
    feature: pass ``scale=features.norm(dim=1, keepdim=True)`` for that.

    Args:
        features: ``(N, D)``.
        weight: ``(C, D)``.
        target: ``(N,)``.
        margin: m, an integer from 1.
        scale: s, or one a row ``(N, 1)``.

    Examples:
        >>> sphereface_logits(torch.tensor([[0.0, 2.0]]), torch.eye(2), torch.tensor([0]), scale=1.0)
        tensor([[-3.,  1.]])
    """
    if not isinstance(margin, int) or margin < 1:
        raise InputError(f"margin must be an integer from 1 (it multiplies the angle), got {margin}.")
    x, w = _directions(features, weight, target, scale)
    cosines, angle = cosine_matrix(x, w), _target_angle(x, w, target)
    k = torch.floor(margin * angle.detach() / math.pi)
    own = (1 - 2 * (k % 2)) * torch.cos(margin * angle) - 2 * k
    return scale * torch.where(chosen(cosines, target), own[:, None], cosines)


def adjusted_logits(logits: Tensor, counts: Tensor | Sequence[float], tau: float = 1.0) -> Tensor:
    """``z + τ·log prior`` (logit adjustment, Menon et al. 2021): for training; predict with the plain logits.

    Args:
        logits: ``(N, C, …)``.
        counts: ``(C,)`` samples or share of each class. Pass a tensor on the device of the logits: others are copied
            there at every step. A class without samples counts as having next to none, so that the loss stays finite.
        tau: τ.

    Examples:
        >>> adjusted_logits(torch.zeros(1, 2), [1, 3])
        tensor([[-1.3863, -0.2877]])
    """
    z = _floating(logits)
    if logits.ndim < 2:
        raise InputError(f"logits must have shape (N, C, …), got {tuple(logits.shape)}.")
    counts = counts_of(counts, logits.shape[1]).to(z)
    prior = (counts / counts.sum()).clamp_min(torch.finfo(z.dtype).tiny)
    return z + tau * prior.log().view(-1, *[1] * (z.ndim - 2))


def spherical_logits(logits: Tensor, eps: float = 1e-3) -> Tensor:
    """``log(z² + eps)``, whose softmax is the spherical softmax (de Brébisson and Vincent 2015).

    It does not see the sign of z. The slope is at most ``1/√eps``.

    Examples:
        >>> spherical_logits(torch.tensor([[3.0, -1.0]])).softmax(1)
        tensor([[0.8999, 0.1001]])
    """
    if not eps > 0:
        raise InputError(f"eps must be above 0, because the logarithm of 0² is infinite, got {eps}.")
    return torch.log(_floating(logits).square() + eps)


def taylor_logits(logits: Tensor) -> Tensor:
    """``log(1 + z + z²/2)``, whose softmax is the Taylor softmax (de Brébisson and Vincent 2015).

    Smallest at z = −1, and rising again below.

    Examples:
        >>> taylor_logits(torch.tensor([[2.0, 0.0]])).softmax(1)
        tensor([[0.8333, 0.1667]])
    """
    return torch.log1p((_floating(logits) + 1).square()) - math.log(2)


class AVHLoss(nn.Module):
    """Cross-entropy of `angular_logits`: ``−log softmax_k(s·(π − θ_k))[y]`` (Chen et al., ICML 2020, Eq. 5).

    The paper prints it without the logarithm; minimised as printed it would lower the target's probability.

    Args:
        scale: s. The paper chose it by cross-validation and does not give it; try 8, 16, 32, 64.
        learnable: Learn s: hand ``loss.parameters()`` to the optimiser too. Learnt is log s, so that s stays positive.
        ignore_index: Targets that do not count. Where all are ignored the loss is 0.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: Share of each target spread over all classes.
        validate: Check values (NaN, range of targets) at every call; waits for the device.

    Examples:
        >>> loss = AVHLoss()
        >>> loss.scale = 1.0
        >>> loss(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([0]))  # log(1 + exp(−π/2))
        tensor(0.1889)
    """

    fixed_scale: Tensor

    def __init__(
        self,
        scale: float = 16.0,
        learnable: bool = False,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        validate: bool = False,
    ) -> None:
        super().__init__()
        # Without its bonus: cross-entropy that keeps its digits as p goes to 1.
        self.objective = EncouragingLoss(
            ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing, rho=0.0, validate=validate
        )
        self.learnable, self.validate = learnable, validate
        # A tensor, so that a schedule can change it in a compiled step.
        if learnable:
            self.log_scale = nn.Parameter(torch.zeros(()))
        else:
            self.register_buffer("fixed_scale", torch.ones(()))
        self.scale = scale

    @property
    def scale(self) -> Tensor:
        """The scale s, a number in a tensor; set it to change it."""
        return self.log_scale.exp() if self.learnable else self.fixed_scale

    @scale.setter
    def scale(self, value: float) -> None:
        _check_scale(value)
        with torch.no_grad():
            if self.learnable:
                self.log_scale.fill_(math.log(value))
            else:
                self.fixed_scale.fill_(value)

    def forward(self, features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        """The loss of features ``(N, D)`` and class weights ``(C, D)`` at targets ``(N,)``, or soft ones ``(N, C)``."""
        if self.validate and not torch.compiler.is_compiling() and not torch.isfinite(features).all():
            raise InputError("features hold NaN or infinity; look at what the model returns, and at its learning rate.")
        own = target if target.ndim == 1 else None
        return self.objective(angular_logits(features, weight, self.scale, own), target)

    def extra_repr(self) -> str:
        return f"scale={self.scale.item():g}, learnable={self.learnable}"


def _directions(
    features: Tensor, weight: Tensor, target: Tensor | None, scale: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Unit features and class weights in one dtype, once their shapes are what they should be."""
    if features.ndim != 2 or weight.ndim != 2 or features.shape[1] != weight.shape[1]:
        raise InputError(
            f"features (N, D) and weight (C, D) must be as wide as one another, got {tuple(features.shape)} and "
            f"{tuple(weight.shape)}; pass the input of the last linear layer and that layer's own weight."
        )
    if target is not None and (target.shape != features.shape[:1] or target.is_floating_point()):
        raise InputError(
            f"target must hold class indices of shape ({len(features)},), got {tuple(target.shape)} {target.dtype}; "
            "a margin needs one class a sample, so soft targets go with logits that take no target."
        )
    if not isinstance(scale, Tensor):
        _check_scale(scale)
    dtype = working_dtype(features, weight)
    return unit(features.to(dtype))[0], unit(weight.to(dtype))[0]


def _check_scale(scale: float) -> None:
    if not 0 < scale < math.inf:
        raise InputError(f"scale must be above 0 and finite, got {scale}.")


def _target_angle(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    # What is no class gets some angle here, which is not used.
    return angle_between_units(x, w.index_select(0, target.long().clamp(0, len(w) - 1)))


def _floating(logits: Tensor) -> Tensor:
    return logits.to(working_dtype(logits))
