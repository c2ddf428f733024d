"""Objectives: scalar functions of the soft margin m, where ``p = sigmoid(−m)`` and ``1 − p = sigmoid(m)``.

A bonus rewards what is already right: it is added to cross-entropy, falls as p grows, and (if concave) steepens.
To add one, write the total of both as a function of m and enter it in `BONUSES`. Make it of ``1 − p`` or of
cross-entropy: in float32 p is 1, with a slope of 0, from m = −17 on.
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
    return F.softplus(m, threshold=40.0)  # from where on it is m to the last digit of a float64


def focal(m: Tensor, gamma: float = 2.0) -> Tensor:
    """``−(1 − p)^γ log p`` (Lin et al., ICCV 2017): the opposite of a bonus, for comparison.

    Examples:
        >>> focal(torch.tensor([0.0]))
        tensor([0.1733])
    """
    if not gamma:
        return cross_entropy(m)  # 0 times the logarithm of 0 would be NaN
    # Not as a power of 1 − p: where that is 0, the slope of a root is infinite.
    return (gamma * F.logsigmoid(m)).exp() * cross_entropy(m)


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
    if log_end == 1 and not start:
        return m
    ce, rest = cross_entropy(m), m.sigmoid()
    total = m if log_end == 1 else torch.where(rest >= 1 - log_end, m, ce + _tangent(rest, log_end))
    if start:
        first = rest.new_ones(()) * (1 - start)
        shift = first.log() if start <= log_end else _tangent(first, log_end)
        total = torch.where(rest > 1 - start, ce, total - shift)
    return total


def clamped_total(m: Tensor, log_end: float = 1.0, start: float = 0.0) -> Tensor:
    """`log_total` as the paper's code has it: ``1 − p`` counts as 1e-5 at least, where the slope ends abruptly."""
    if log_end < 1 - _CLAMP:  # the tangent takes over before the clamp is reached
        return log_total(m, log_end, start)
    ce, rest = cross_entropy(m), m.sigmoid()
    total = ce + rest.clamp_min(_CLAMP).log()
    return torch.where(rest > 1 - start, ce, total - math.log(1 - start)) if start else total


def power_total(m: Tensor, gamma: float = 2.0) -> Tensor:
    """Cross-entropy with the bonus ``−p^γ``."""
    ce = cross_entropy(m)
    return ce - (-gamma * ce).exp()


def cosine_total(m: Tensor) -> Tensor:
    """Cross-entropy with the bonus ``cos(πp) − 1``, which is concave up to ½ only."""
    return cross_entropy(m) + torch.cos(math.pi * (-m).sigmoid()) - 1


class Bonus(NamedTuple):
    """Cross-entropy plus a bonus, a function of m, and the names of what else it takes."""

    total: Callable[..., Tensor]
    options: tuple[str, ...]


BONUSES = {
    "log": Bonus(log_total, ("log_end", "start")),  # EL (AAAI 2022) Eq. 6, 7; the others are of its released code
    "clamped": Bonus(clamped_total, ("log_end", "start")),
    "power": Bonus(power_total, ("gamma",)),
    "cosine": Bonus(cosine_total, ()),
}

_CLAMP = 1e-5


def _tangent(rest: Tensor, end: float) -> Tensor:
    """The bonus of ``1 − p = rest`` beyond the end of its logarithm."""
    # The logarithm of a tensor: that of a number would be compiled anew for each that a schedule sets.
    return rest / (1 - end) + ((rest.new_ones(()) * (1 - end)).log() - 1)
