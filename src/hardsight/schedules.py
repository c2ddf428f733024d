"""Schedules: functions of time, in epochs from 0 or fractions of one, and a hook for options of a loss. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hardsight.errors import InputError


def ramp_up(time: float, length: float) -> float:
    """AMC-Loss's Gaussian rise ``exp(−5 (1 − t/R)²)`` to 1 at `length`, and 1 from there on."""
    return math.exp(-5 * (1 - time / length) ** 2) if time < length else 1.0


def ramp_down(time: float, total: float, length: float, sharpness: float = 12.5) -> float:
    """AMC-Loss's Gaussian fall over the last `length` of `total` epochs, to ``exp(−sharpness)``, released: length/4."""
    left = total - time
    return math.exp(-sharpness * (1 - left / length) ** 2) if left < length and length else 1.0


def beta1_ramp(time: float, total: float, length: float, beta1: float = 0.9, sharpness: float = 12.5) -> float:
    """Adam's β₁ while the rate falls as in `ramp_down`: from `beta1` to ½."""
    down = ramp_down(time, total, length, sharpness)
    return down * beta1 + (1 - down) * 0.5


def deferred(time: float, start: float) -> float:
    """0 during the first `start` epochs, 1 from then on: ``deferred(t, 25)`` begins with the 26th epoch."""
    return 0.0 if time < start else 1.0


class Scheduled:
    """Sets attributes of a loss as functions of time; `functions` are ``name=function``.

    Numbers are replaced, tensors (a learnable scale, class weights) are written in place. For the learning rate of an
    optimizer, use torch's ``LambdaLR``.

    Examples:
        >>> from types import SimpleNamespace
        >>> loss = SimpleNamespace(rho=1.0)
        >>> hook = Scheduled(loss, rho=lambda t: deferred(t, 25))
        >>> hook.at(0), loss.rho, hook.at(1), hook.at(25), loss.rho
        (True, 0.0, False, True, 1.0)
    """

    def __init__(self, target: Any, **functions: Callable[[float], Any]) -> None:
        self.target, self.functions = target, functions
        for name in functions:
            if getattr(target, name, None) is None:
                raise InputError(f"{name}: a {type(target).__name__} has no {name} that could be scheduled.")

    def at(self, time: float) -> bool:
        """Set all attributes to their values after a number of epochs; returns whether a number was replaced.

        Anything recorded with the old number, such as a CUDA graph, must then be recorded again.
        """
        replaced = False
        for name, function in self.functions.items():
            value, current = function(time), getattr(self.target, name)
            in_place = hasattr(current, "detach")
            if not in_place or isinstance(getattr(type(self.target), name, None), property):
                replaced |= not in_place and current != value
                setattr(self.target, name, value)
            else:
                tensor = current.detach()  # the same memory; autograd does not allow writing to a parameter
                tensor.copy_(value) if hasattr(value, "detach") else tensor.fill_(value)
        return replaced
