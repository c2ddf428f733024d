"""The soft margin ``m = logsumexp_{k≠y}(z_k) − z_y``, and objectives as functions of it.

``p_y = sigmoid(−m)``; cross-entropy is ``softplus(m)`` and the normal Encouraging Loss is ``m`` itself. The margin is
computed from the pair ``(z_y, logsumexp_{k≠y} z_k)``: from a likelihood it would be lost where p rounds to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.angles import working_dtype
from hardsight.registry import Registry


def soft_margin(logits: Tensor, target: Tensor) -> Tensor:
    """The soft margin of the target class: negative where the target beats all others together.

    Of logits ``(N, C, …)``, two classes or more, at class indices ``(N, …)``; comes in float32 or better.

    Examples:
        >>> soft_margin(torch.tensor([[40.0, 1.0, 1.0]]), torch.tensor([0]))  # p = 1 − 2e-17
        tensor([-38.3069])
    """
    z = logits.to(working_dtype(logits))
    mask = class_mask(z, target)
    if torch.compiler.is_compiling():  # the gradient of `gather` is a scatter, which compiles to kernels of its own
        at_target = torch.where(mask.any(1), torch.where(mask, z, 0).sum(1), math.nan)  # `gather` would raise
    else:
        at_target = z.gather(1, target.long().unsqueeze(1)).squeeze(1)
    others = z.masked_fill(mask, -math.inf)
    # Relative to the largest: a `logsumexp` of 1e4 has lost the digits from which its gradient is made. The level
    # cancels in the derivative, so it is a constant to autograd.
    level = others.detach().amax(1, keepdim=True)
    masked = level == -math.inf  # all other logits are −inf: so is m, with a slope of −1 at the target and 0 elsewhere
    total = (others - level.masked_fill(masked, 0)).exp().sum(1).masked_fill(masked.squeeze(1), 1)
    return total.log() + (level.squeeze(1) - at_target)


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
    return F.softplus(m, threshold=40.0)  # from where on it is m to the last digit of a float64


def focal(m: Tensor, gamma: float = 2.0) -> Tensor:
    """``−(1 − p)^γ log p`` (Lin et al., ICCV 2017): the opposite of a bonus."""
    if not gamma:
        return cross_entropy(m)  # 0 times the logarithm of 0 would be NaN
    # Not as a power of 1 − p: where that is 0, the slope of a root is infinite.
    return (gamma * F.logsigmoid(m)).exp() * cross_entropy(m)


# A bonus of the Encouraging Loss, registered as m → cross-entropy + bonus. It gets the options of the loss as keywords,
# and takes what it needs. Compute it from 1 − p or from cross-entropy: in float32 p is 1 from m = −17 on.
BONUSES: Registry[Callable[..., Tensor]] = Registry("bonus")


@BONUSES.register("log")
def log_total(m: Tensor, log_end: float = 1.0, start: float = 0.0, released: bool = False, **_: object) -> Tensor:
    """Cross-entropy with the logarithmic bonus: ``log(1 − p)`` as far as ``p = log_end``, then its tangent.

    With ``log_end = 1`` (the normal bonus) this is exactly m, with a slope of exactly 1 (EL Eq. 6, 7). The bonus is
    shifted to begin with 0 at `start`. As `released`, ``1 − p`` is 1e-5 at least, where the slope ends abruptly.
    """
    clamped = released and log_end >= 1 - 1e-5  # otherwise the tangent takes over before the clamp is reached
    if log_end == 1 and not start and not clamped:
        return m
    ce, rest = cross_entropy(m), m.sigmoid()

    def tangent(rest: Tensor) -> Tensor:
        # The logarithm of a tensor: that of a number would be compiled anew for each that a schedule sets.
        return rest / (1 - log_end) + ((rest.new_ones(()) * (1 - log_end)).log() - 1)

    if clamped:
        total = ce + rest.clamp_min(1e-5).log()
    else:
        total = m if log_end == 1 else torch.where(rest >= 1 - log_end, m, ce + tangent(rest))
    if not start:
        return total
    at_start = rest.new_ones(()) * (1 - start)
    shift = at_start.log() if clamped or start <= log_end else tangent(at_start)
    return torch.where(rest > 1 - start, ce, total - shift)


@BONUSES.register("power")
def power_total(m: Tensor, gamma: float = 2.0, **_: object) -> Tensor:
    """Cross-entropy with the bonus ``−p^γ`` of the released code."""
    ce = cross_entropy(m)
    return ce - (-gamma * ce).exp()


@BONUSES.register("cosine")
def cosine_total(m: Tensor, **_: object) -> Tensor:
    """Cross-entropy with the bonus ``cos(πp) − 1`` of the released code, which is concave up to ½ only."""
    return cross_entropy(m) + torch.cos(math.pi * (-m).sigmoid()) - 1
