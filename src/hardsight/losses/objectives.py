"""Objectives: scalar functions of the soft margin m, where ``p = sigmoid(−m)`` and ``1 − p = sigmoid(m)``.

A bonus rewards what is already right: it is added to cross-entropy, falls as p grows, and (if concave) steepens.
To add one, write its value, its slope in m and its least value, and enter them in `BONUSES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(m: Tensor) -> Tensor:
    """``−log p = softplus(m)``.

    Examples:
        >>> cross_entropy(torch.tensor([0.0, -20.0]))
        tensor([6.9315e-01, 2.0612e-09])
    """
    return -F.logsigmoid(-m)


def focal(m: Tensor, gamma: float = 2.0) -> Tensor:
    """``−(1 − p)^γ log p`` (Lin et al., ICCV 2017): the opposite of a bonus, for comparison.

    Examples:
        >>> focal(torch.tensor([0.0]))
        tensor([0.1733])
    """
    return m.sigmoid() ** gamma * cross_entropy(m)


class Bonus(NamedTuple):
    """What a loss needs to know of a bonus. Each function also takes the bonus's `options` by name.

    Attributes:
        total: Cross-entropy plus bonus, a function of m.
        slope: The derivative of that total in m, between 0 and 1 + something: 1 for the normal bonus.
        least: The bonus at p = 1, where the total is smallest; −∞ where it has no minimum.
        options: Names of its options.
        reference: Where it is defined.
    """

    total: Callable[..., Tensor]
    slope: Callable[..., Tensor]
    least: Callable[..., float]
    options: tuple[str, ...]
    reference: str


def log_total(m: Tensor, log_end: float = 1.0, start: float = 0.0) -> Tensor:
    """Cross-entropy with the logarithmic bonus: ``log(1 − p)`` as far as ``p = log_end``, then its tangent.

    With ``log_end = 1`` (the normal bonus) this is exactly m, with a slope of exactly 1. Above zero, `start` leaves
    p below it without a bonus (the aggressive bonus has ``start = ½``); the bonus is shifted so that it begins at 0
    there, and the tangent with it.

    Args:
        m: Soft margins.
        log_end: Where the logarithm ends, in [0, 1].
        start: Where the bonus starts, in [0, 1).

    Examples:
        >>> m = torch.tensor([2.0, 0.0, -5.0])
        >>> log_total(m)
        tensor([ 2.,  0., -5.])
        >>> log_total(m, log_end=0.75)
        tensor([ 2.0000,  0.0000, -2.3528])
    """
    ce = cross_entropy(m)
    total = m if log_end == 1 else torch.where(m >= _margin_at(log_end), m, ce + _tangent(m, log_end))
    if start:
        total = torch.where(m > _margin_at(start), ce, total - _log_bonus_at(start, log_end))
    return total


def log_slope(m: Tensor, log_end: float = 1.0, start: float = 0.0) -> Tensor:
    """Slope of `log_total`: 1 up to `log_end`, then ``(1 − p)(1 + p/(1 − log_end))``; cross-entropy's below `start`."""
    slope = torch.ones_like(m)
    if log_end < 1:
        slope = torch.where(m >= _margin_at(log_end), slope, m.sigmoid() * (1 + (-m).sigmoid() / (1 - log_end)))
    return torch.where(m > _margin_at(start), m.sigmoid(), slope) if start else slope


def log_least(log_end: float = 1.0, start: float = 0.0) -> float:
    return _log_bonus_at(1.0, log_end) - (_log_bonus_at(start, log_end) if start else 0.0)


def clamped_total(m: Tensor, log_end: float = 1.0, start: float = 0.0) -> Tensor:
    """`log_total` as the paper's code has it: ``1 − p`` counts as 1e-5 at least, where the slope ends abruptly."""
    if log_end < 1 - _CLAMP:  # the tangent takes over before the clamp is reached
        return log_total(m, log_end, start)
    ce = cross_entropy(m)
    bonus = m.sigmoid().clamp_min(_CLAMP).log()
    return torch.where(m > _margin_at(start), ce, ce + bonus - math.log1p(-start)) if start else ce + bonus


def clamped_slope(m: Tensor, log_end: float = 1.0, start: float = 0.0) -> Tensor:
    within = m.sigmoid() >= _CLAMP
    return torch.where(within, log_slope(m, log_end, start), m.sigmoid())


def clamped_least(log_end: float = 1.0, start: float = 0.0) -> float:
    return log_least(log_end, start) if log_end < 1 - _CLAMP else math.log(_CLAMP) - math.log1p(-start)


def power_total(m: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy with the bonus ``−p^γ``."""
    return cross_entropy(m) - (-m).sigmoid() ** gamma


def power_slope(m: Tensor, gamma: float = 2.0) -> Tensor:
    return m.sigmoid() * (1 + gamma * (-m).sigmoid() ** gamma)


def cosine_total(m: Tensor) -> Tensor:
    """Cross-entropy with the bonus ``cos(πp) − 1``, which is concave up to ½ only."""
    return cross_entropy(m) + torch.cos(math.pi * (-m).sigmoid()) - 1


def cosine_slope(m: Tensor) -> Tensor:
    p, q = (-m).sigmoid(), m.sigmoid()
    return q * (1 + math.pi * torch.sin(math.pi * torch.minimum(p, q)) * p)  # sin πp = sin π(1−p), exact near p = 1


BONUSES = {
    "log": Bonus(log_total, log_slope, log_least, ("log_end", "start"), "EL (AAAI 2022) Eq. 6, 7"),
    "clamped": Bonus(clamped_total, clamped_slope, clamped_least, ("log_end", "start"), "EL, released code"),
    "power": Bonus(power_total, power_slope, lambda gamma=2.0: -1.0, ("gamma",), "EL, released code"),
    "cosine": Bonus(cosine_total, cosine_slope, lambda: -2.0, (), "EL, released code"),
}

_CLAMP = 1e-5


def _margin_at(p: float) -> float:
    """The soft margin of a likelihood."""
    return math.inf if p == 0 else -math.inf if p == 1 else math.log((1 - p) / p)


def _tangent(m: Tensor, end: float) -> Tensor:
    """The bonus beyond the end of its logarithm."""
    return math.log1p(-end) - ((-m).sigmoid() - end) / (1 - end)


def _log_bonus_at(p: float, end: float) -> float:
    if p <= end:
        return math.log1p(-p) if p < 1 else -math.inf
    return math.log1p(-end) - (p - end) / (1 - end)
