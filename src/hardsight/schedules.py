"""Schedules as plain functions of time, and a hook that sets what torch's schedulers cannot: losses and Adam's β₁.

Times are in epochs from 0 and may be fractions: epoch E, counted from 1, lies between E − 1 and E. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hardsight.errors import InputError


def ramp_up(time: float, length: float) -> float:
    """AMC-Loss's Gaussian rise ``exp(−5 (1 − t/R)²)`` to 1 at `length`, and 1 from there on.

    Examples:
        >>> [round(ramp_up(t, 80), 4) for t in (0, 40, 80)]
        [0.0067, 0.2865, 1.0]
    """
    return math.exp(-5 * (1 - time / length) ** 2) if time < length else 1.0


def ramp_down(time: float, total: float, length: float, sharpness: float = 12.5) -> float:
    """AMC-Loss's Gaussian fall over the last `length` of `total` epochs: 1 until then, ``exp(−sharpness)`` at the end.

    Args:
        time: Epochs so far.
        total: Epochs in all.
        length: Epochs of the fall.
        sharpness: The paper's is 12.5. The released code's is ``length / 4``, which is the same at length 50 only.

    Examples:
        >>> [round(ramp_down(t, 300, 50), 4) for t in (250, 275, 299)]
        [1.0, 0.0439, 0.0]
    """
    left = total - time
    return math.exp(-sharpness * (1 - left / length) ** 2) if left < length else 1.0


def beta1_ramp(time: float, total: float, length: float, beta1: float = 0.9, sharpness: float = 12.5) -> float:
    """Adam's β₁ while the rate falls as in `ramp_down`: from `beta1` to ½.

    Examples:
        >>> [round(beta1_ramp(t, 300, 50), 3) for t in (0, 275, 300)]
        [0.9, 0.518, 0.5]
    """
    down = ramp_down(time, total, length, sharpness)
    return down * beta1 + (1 - down) * 0.5


def deferred(time: float, start: float) -> float:
    """0 during the first `start` epochs, 1 from then on: ``deferred(t, 25)`` begins with the 26th epoch.

    Examples:
        >>> [deferred(epoch - 1, 25) for epoch in (1, 25, 26)]  # epochs counted from 1
        [0.0, 0.0, 1.0]
    """
    return 0.0 if time < start else 1.0


def linear(time: float, total: float) -> float:
    """A straight rise from 0 to 1 at `total`.

    Examples:
        >>> linear(45, 90)
        0.5
    """
    return min(1.0, time / total)


def exponential(time: float, total: float, rate: float = 5.0) -> float:
    """A rise that is steepest at the end, ``exp(rate (t/T − 1))``, or at the beginning where `rate` is negative.

    Args:
        time: Epochs so far.
        total: Epochs in all.
        rate: Of the Encouraging Loss's released schedule: 5, or −5 for ``1 − exp(−5 t/T)``.

    Examples:
        >>> [round(exponential(t, 90), 3) for t in (0, 45, 90)]
        [0.007, 0.082, 1.0]
        >>> [round(exponential(t, 90, -5), 3) for t in (0, 45, 90)]
        [0.0, 0.918, 0.993]
    """
    share = linear(time, total)
    return math.exp(rate * (share - 1)) if rate > 0 else 1 - math.exp(rate * share)


def cosine(time: float, total: float) -> float:
    """Half a wave from 0 to 1 at `total`, flat at both ends.

    Examples:
        >>> [round(cosine(t, 90), 3) for t in (0, 30, 45, 90)]
        [0.0, 0.25, 0.5, 1.0]
    """
    return 0.5 * (1 - math.cos(math.pi * linear(time, total)))


class Scheduled:
    """Sets attributes of a loss, or the rates of an optimiser, as functions of time.

    Where a learning rate is all that changes, torch's ``LambdaLR`` does it; this adds Adam's β₁, and everything of a
    loss: numbers are replaced, tensors (a learnable scale, class weights) are written in place.

    Args:
        target: A loss, or an optimiser.
        functions: ``name=function of time``; of an optimiser ``lr``, a factor of its first rate, and ``beta1``.

    Examples:
        >>> from types import SimpleNamespace
        >>> loss = SimpleNamespace(rho=1.0)
        >>> hook = Scheduled(loss, rho=lambda t: deferred(t, 25))
        >>> hook.at(0), loss.rho, hook.at(1), hook.at(25), loss.rho
        (True, 0.0, False, True, 1.0)
    """

    def __init__(self, target: Any, **functions: Callable[[float], Any]) -> None:
        self._target, self._functions = target, functions
        groups = getattr(target, "param_groups", None)
        for name in functions:
            if groups is None:
                if getattr(target, name, None) is None:
                    raise InputError(f"{name}: a {type(target).__name__} has no {name} to change; give it one first.")
            elif name not in ("lr", "beta1"):
                raise InputError(f"{name}: of an optimiser lr and beta1 can be scheduled, got {name!r}.")
            elif name == "beta1" and not all("betas" in group for group in groups):
                raise InputError(f"beta1: {type(target).__name__} has no betas; schedule beta1 of Adam or AdamW.")
        for group in groups or ():
            group.setdefault("initial_lr", float(group["lr"]))  # where torch's own schedulers keep it

    def at(self, time: float) -> bool:
        """Set everything as it is after so many epochs; returns whether a number of a loss was replaced.

        What was recorded with the old number, as a CUDA graph is, must then be made anew. Tensors it sees change.
        """
        replaced = False
        for name, function in self._functions.items():
            value = function(time)
            if hasattr(self._target, "param_groups"):
                self._set_rate(name, value)
            elif isinstance(getattr(type(self._target), name, None), property):  # which knows where to keep it
                setattr(self._target, name, value)
            elif hasattr(own := getattr(self._target, name), "detach"):
                place = own.detach()  # the same memory, which a leaf that is learned would not let be written to
                place.copy_(value) if hasattr(value, "detach") else place.fill_(value)
            elif own != value:
                setattr(self._target, name, value)
                replaced = True
        return replaced

    def _set_rate(self, name: str, value: float) -> None:
        for group in self._target.param_groups:
            if name == "beta1":
                group["betas"] = (value, group["betas"][1])
            elif hasattr(group["lr"], "fill_"):  # a rate on the device, which a captured step reads
                group["lr"].fill_(group["initial_lr"] * value)
            else:
                group["lr"] = group["initial_lr"] * value
