"""The soft margin ``m = logsumexp_{k≠y}(z_k) − z_y``, and objectives as functions of it.

``p_y = sigmoid(−m)``; cross-entropy is ``softplus(m)`` and the normal Encouraging Loss is ``m`` itself. The margin is
computed from the pair ``(z_y, logsumexp_{k≠y} z_k)``: computed from a likelihood, it would be lost where p rounds to 1.

An objective with a known slope is computed together with its gradient in one pass over the logits (`margin_loss`).
`torch.func` and second derivatives use plain operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.angles import transformed, working_dtype
from hardsight.registry import Registry


def soft_margin(logits: Tensor, target: Tensor) -> Tensor:
    """The soft margin of the target class: negative where the target beats all others combined.

    Takes logits ``(N, C, …)`` of two or more classes and class indices ``(N, …)``; returns float32 or better.

    Examples:
        >>> soft_margin(torch.tensor([[40.0, 1.0, 1.0]]), torch.tensor([0]))  # p = 1 − 2e-17
        tensor([-38.3069])
    """
    z = logits.to(working_dtype(logits))
    return plain_soft_margin(z, target) if transformed(z) else margin_loss(z, target.long())[0]


def plain_soft_margin(z: Tensor, target: Tensor) -> Tensor:
    """The same by plain operations, which can be transformed and differentiated twice."""
    mask = class_mask(z, target)
    if torch.compiler.is_compiling():  # the gradient of `gather` is a scatter, which compiles to kernels of its own
        at_target = torch.where(_is_class(target, z), torch.where(mask, z, 0).sum(1), math.nan)  # `gather` would raise
    else:
        at_target = z.gather(1, target.long().unsqueeze(1)).squeeze(1)
    others = z.masked_fill(mask, -math.inf)
    # Relative to the largest: a `logsumexp` of 1e4 has lost the digits that its gradient depends on. The level cancels
    # in the derivative, so it is a constant to autograd.
    level = others.detach().amax(1, keepdim=True)
    masked = level == -math.inf  # all other logits are −inf: so is m, with a slope of −1 at the target and 0 elsewhere
    total = (others - level.masked_fill(masked, 0)).exp().sum(1).masked_fill(masked.squeeze(1), 1)
    return total.log() + (level.squeeze(1) - at_target)


class Curve(NamedTuple):
    """An objective at soft margins m: its values, a function for its slopes, and cross-entropy if a by-product."""

    value: Tensor
    slope: Callable[[], Tensor] | None = None  # None: 1 everywhere, or not known
    ce: Tensor | None = None


def margin_loss(
    z: Tensor,
    target: Tensor,
    factor: Tensor | None = None,
    curve: Callable[[Tensor], Curve] = Curve,
    plain: Callable[[Tensor], Tensor] | None = None,
    *,
    sums: bool = False,
    match: bool = False,
    parts: bool = False,
) -> tuple[Tensor, Any, Any]:
    """An objective of soft margins with its gradient, in one pass over the logits.

    Args:
        z, target: Logits ``(N, C, …)`` in float32 or better, and class indices ``(N, …)``, all of them valid.
        factor: Factor of each sample ``(N, …)``; where it is 0, so is the loss. None: 1.
        curve: The objective, which knows its slope. By default the soft margin itself.
        plain: The same loss of z by plain operations, for a gradient of the gradient.
        sums: Whether the loss is summed over samples.
        match: Scale the sum so that its gradient at the logits has the same norm as that of cross-entropy.
        parts: Also return cross-entropy and what the objective adds to it, reduced like the loss, without gradients.
    """
    with torch.no_grad():
        m, slopes = (_compiled_slopes if torch.compiler.is_compiling() else _slopes)(z, target)
        if factor is None:
            value, slope, ce = curve(m)
            pull: Any = None if slope is None else slope()
        else:
            factor = factor.unsqueeze(1)
            value, slope, ce = curve(m.masked_fill_(factor == 0, 0))  # 0 · inf would be NaN
            pull = factor if slope is None else slope() * factor
        loss = _weighted(value, factor, sums)
        bonus = None
        if parts:
            ce = _weighted(cross_entropy(m) if ce is None else ce, factor, sums)
            bonus = loss - ce
        if match:
            length = torch.linalg.vector_norm(slopes, dim=1, keepdim=True)
            scale = matched(length * pull, length * factor * m.sigmoid())
            loss = torch.where(scale == 0, 0, loss * scale)
            pull = scale * pull
    if torch.is_grad_enabled() and z.requires_grad:
        if torch.compiler.is_compiling():
            plain = None  # compiled code has no second derivative
        elif plain is None:
            plain = partial(plain_soft_margin, target=target)
        loss = _WithGradient.apply(z, loss, slopes, pull, plain)
    return loss, ce, bonus


def _slopes(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Soft margins ``(N, 1, …)``, and their slopes at the logits: shares of the others, −1 at the target."""
    place = target.unsqueeze(1)
    others = z.clone().scatter_(1, place, -math.inf)  # twice as fast as `scatter` on a CPU
    level = others.amax(1, keepdim=True)
    # Where all other logits are −inf, so is m, with a slope of −1 at the target and 0 elsewhere; a softmax needs a
    # number there, which is 0 where the sum is NaN. Elsewhere the target stays at −inf.
    fill = (level + math.inf).nan_to_num_(0.0, -math.inf)
    shares = others.scatter_(1, place, fill).softmax(1)
    m = (level - z.gather(1, place)).sub_(shares.amax(1, keepdim=True).log_())
    return m, shares.scatter_(1, place, -1.0)


def _compiled_slopes(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The same in a form that compiles to few loops. Where the target is no class, m is NaN."""
    inside = _is_class(target, z)
    place = torch.where(inside, target, 0).unsqueeze(1)
    others = z.scatter(1, place, -math.inf)  # a comparison of each class with the target would be slower on a CPU
    level = others.amax(1, keepdim=True)
    masked = level == -math.inf
    powers = (others - level.masked_fill(masked, 0)).exp()
    total = powers.sum(1, keepdim=True).masked_fill(masked, 1)
    m = total.log() + (level - z.gather(1, place))
    return torch.where(inside.unsqueeze(1), m, math.nan), (powers / total).scatter(1, place, -1.0)


def _is_class(target: Tensor, z: Tensor) -> Tensor:
    return (target >= 0) & (target < z.shape[1])


class _WithGradient(torch.autograd.Function):
    """A loss ``()`` or ``(N, …)`` with a gradient that was computed with it: slopes of m times a pull on m."""

    @staticmethod
    def forward(ctx: Any, *args: Any, **_: Any) -> Any:
        z, loss, slopes, pull, plain = args
        ctx.save_for_backward(z, slopes, pull)
        ctx.plain = plain
        return loss.clone()  # an input returned as is could not be changed in place

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        z, slopes, pull = ctx.saved_tensors
        grad = grads[0]
        if ctx.plain is not None and torch.is_grad_enabled():  # for a gradient of this gradient
            slope = torch.autograd.grad(ctx.plain(z).view_as(grad), z, grad, create_graph=True)[0]
        else:
            grad = grad.unsqueeze(1) if grad.ndim else grad
            slope = slopes * (grad if pull is None else pull * grad)
        return slope, None, None, None, None


def _weighted(values: Tensor, factor: Tensor | None, sums: bool) -> Tensor:
    values = values if factor is None else values * factor
    return values.sum() if sums else values.squeeze(1)


def matched(ours: Tensor, theirs: Tensor) -> Tensor:
    """The factor that gives one gradient the norm of another; 1 where it is 0."""
    ours, theirs = torch.linalg.vector_norm(ours), torch.linalg.vector_norm(theirs)
    return torch.where(ours > 0, theirs / ours.clamp_min(torch.finfo(ours.dtype).tiny), 1)


def soft_margins(logits: Tensor) -> Tensor:
    """The soft margin of every class ``(N, C, …)``, as if each were the target in turn."""
    z = logits.to(working_dtype(logits))
    top, log_p = z.argmax(1), z.log_softmax(1)
    # log(1 − p) − log p is exact while p ≤ ½. The clamp keeps it finite at the one class that may be above.
    others = torch.log1p(-log_p.exp().clamp_max(0.6)) - log_p
    return torch.where(class_mask(z, top), soft_margin(z, top).unsqueeze(1), others)


def class_mask(logits: Tensor, classes: Tensor) -> Tensor:
    """Which entries of ``(N, C, …)`` belong to the classes given in ``(N, …)``."""
    index = torch.arange(logits.shape[1], device=logits.device)
    return classes.unsqueeze(1) == index.view(-1, *[1] * (logits.ndim - 2))


def cross_entropy(m: Tensor) -> Tensor:
    """``−log p = softplus(m)``."""
    return F.softplus(m, threshold=40.0)  # above, it equals m to the last digit of a float64


def cross_entropy_curve(m: Tensor) -> Curve:
    """Cross-entropy with its slope 1 − p."""
    ce = cross_entropy(m)
    return Curve(ce, m.sigmoid, ce)


def focal(m: Tensor, gamma: float = 2.0) -> Tensor:
    """``−(1 − p)^γ log p`` (Lin et al., ICCV 2017): the opposite of a bonus."""
    return focal_curve(m, gamma).value


def focal_curve(m: Tensor, gamma: float = 2.0) -> Curve:
    """Focal loss with its slope ``(1 − p)^γ · (1 − p − γ p log p)``."""
    if not gamma:
        return cross_entropy_curve(m)  # 0 times the logarithm of 0 would be NaN
    ce = cross_entropy(m)
    factor = (gamma * F.logsigmoid(m)).exp()  # a root of 1 − p would have an infinite slope where that is 0
    finite = ce.clamp_max(1e30)  # where p is 0, so is −p·log p, though not as 0 · inf
    return Curve(factor * ce, lambda: factor * torch.addcmul(m.sigmoid(), gamma * (-ce).exp(), finite), ce)


def mirror_curve(m: Tensor, classes: int) -> Curve:
    """Twice the mean absolute error of probabilities, less 1, with its slope; the other classes err as much."""
    rest, scale = m.sigmoid(), 4 / classes
    return Curve(scale * rest - 1, lambda: scale * rest * (-m).sigmoid())


# A bonus of the Encouraging Loss, registered as m → cross-entropy + bonus. It receives the options of the loss as
# keywords. Compute it from 1 − p or from cross-entropy: in float32 p is 1 from m = −17 on.
BONUSES: Registry[Callable[..., Tensor]] = Registry("bonus")


@BONUSES.register("log")
def log_total(m: Tensor, log_end: float = 1.0, start: float = 0.0, released: bool = False, **_: object) -> Tensor:
    """Cross-entropy with the logarithmic bonus: ``log(1 − p)`` up to ``p = log_end``, then its tangent.

    With ``log_end = 1`` (the normal bonus) this is exactly m, with a slope of exactly 1 (EL Eq. 6, 7). The bonus is
    shifted to start at 0 at `start`. With `released`, ``1 − p`` is clamped at 1e-5, where the slope ends abruptly.
    """
    return log_curve(m, log_end, start, released).value


def log_curve(m: Tensor, log_end: float, start: float, released: bool, **_: object) -> Curve:
    """`log_total` with its slope."""
    clamped = released and log_end >= 1 - 1e-5  # otherwise the tangent takes over before the clamp is reached
    if log_end == 1 and not start and not clamped:
        return Curve(m)
    ce, rest = cross_entropy(m), m.sigmoid()

    def logarithm(number: float) -> Tensor | float:
        # As a tensor: each new number that a schedule sets would be compiled anew.
        return (rest.new_ones(()) * number).log() if torch.compiler.is_compiling() else math.log(number)

    end, total, slanted = 1e-5 if clamped else 1 - log_end, m, rest
    near = rest >= end
    if clamped:
        total = torch.where(near, m, ce + math.log(end))
    elif log_end < 1:
        slanted = rest / end
        total = torch.where(near, m, slanted + ce + (logarithm(end) - 1))
    if start:
        at_start = 1 - start
        shift = logarithm(at_start) if clamped or start <= log_end else at_start / end + (logarithm(end) - 1)
        total = torch.where(rest > at_start, ce, total - shift)

    def slope() -> Tensor:
        far = rest if slanted is rest else rest * (1 + 1 / end - slanted)
        steep = far.masked_fill(near, 1)
        return torch.where(rest > 1 - start, rest, steep) if start else steep

    return Curve(total, slope, ce)


@BONUSES.register("power")
def power_total(m: Tensor, gamma: float = 2.0, **_: object) -> Tensor:
    """Cross-entropy with the bonus ``−p^γ`` of the released code."""
    return power_curve(m, gamma).value


def power_curve(m: Tensor, gamma: float, **_: object) -> Curve:
    """`power_total` with its slope."""
    ce = cross_entropy(m)
    power = (-gamma * ce).exp()
    return Curve(ce - power, lambda: m.sigmoid() * (1 + gamma * power), ce)


@BONUSES.register("cosine")
def cosine_total(m: Tensor, **_: object) -> Tensor:
    """Cross-entropy with the bonus ``cos(πp) − 1`` of the released code, which is concave up to ½ only."""
    return cosine_curve(m).value


def cosine_curve(m: Tensor, **_: object) -> Curve:
    """`cosine_total` with its slope."""
    ce, p = cross_entropy(m), (-m).sigmoid()
    value = ce + torch.cos(math.pi * p) - 1
    return Curve(value, lambda: m.sigmoid() * (1 + math.pi * p * torch.sin(math.pi * p)), ce)


# Bonuses whose slope is known.
CURVES: dict[str, Callable[..., Curve]] = {"log": log_curve, "power": power_curve, "cosine": cosine_curve}
