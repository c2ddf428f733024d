"""Class imbalance: class weights and margins computed from the number of samples per class."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hardsight.errors import InputError
from hardsight.registry import Range, whole_number
from hardsight.triple import as_tensor

Counts = Tensor | Sequence[float]


def effective_number_weights(counts: Counts, beta: float = 0.9999) -> Tensor:
    """Class weights ``(1 − β)/(1 − β^n)`` (Cui et al. 2019), rescaled so that they sum to the number of classes.

    A class without samples gets weight 0 and does not count in the sum. β = 0 gives equal weights, β = 1 (the limit)
    weights in inverse proportion to the counts.

    Examples:
        >>> effective_number_weights([1000, 100, 0])
        tensor([0.1893, 1.8107, 0.0000])
    """
    Range(0, 1).check(beta, "beta")
    n = check_counts(as_tensor("counts", counts).cpu()).double()  # float64, which not every device has
    # 1 − β^n without cancellation for β next to 1; the value for n = 0 is not used.
    effective = n if beta == 1 else -torch.expm1(n.clamp_min(1) * (math.log(beta) if beta else -math.inf))
    weights = torch.where(n > 0, 1 / effective, 0)
    return _like(counts, weights * (n > 0).sum() / weights.sum())


def ldam_margins(counts: Counts, largest: float = 0.5) -> Tensor:
    """Margins of LDAM (Cao et al. 2019), ``n^(−¼)`` rescaled so that the rarest class has the largest.

    They are differences of cosines, for the `margin` of `cosface_logits`, under a loss with `deferred_weights`. A class
    without samples has the largest. The authors use 0.5, and 0.3 for iNaturalist.

    Examples:
        >>> ldam_margins([1600, 100])
        tensor([0.2500, 0.5000])
    """
    Range(0, ends="()").check(largest, "largest")
    n = check_counts(as_tensor("counts", counts).cpu()).double()
    rarest = n[n > 0].min()
    return _like(counts, largest * (rarest / n.clamp_min(rarest)) ** 0.25)


def deferred_weights(counts: Counts, start: int, beta: float = 0.9999) -> Callable[[int], Tensor]:
    """Deferred re-weighting (DRW, Cao et al. 2019): no class weights at first, those of the effective number later.

    Returns a function of the epoch, counted from 1, that gives the ``(C,)`` weights; `start` is the last epoch without
    them. EL's runs use 180 of 200 epochs.

    Examples:
        >>> weights = deferred_weights([900, 100], start=180)
        >>> weights(180), weights(181)
        (tensor([1., 1.]), tensor([0.2073, 1.7927]))
    """
    start, late = whole_number("start", start, 0), effective_number_weights(counts, beta)
    return partial(_deferred, start=start, early=torch.ones_like(late), late=late)


def _deferred(epoch: int, start: int, early: Tensor, late: Tensor) -> Tensor:
    return late if epoch > start else early


def check_counts(counts: Counts, classes: int | None = None) -> Tensor:
    """Counts as a tensor ``(C,)``. Values are checked only where that does not wait for a device."""
    n = as_tensor("counts", counts)
    if n.ndim != 1 or classes not in (None, len(n)):
        raise InputError(f"counts must have one number per class ({classes or 'C'},), got {tuple(n.shape)}.")
    if n.device.type == "cpu" and not torch.compiler.is_compiling():
        bad = (n < 0) | ~torch.isfinite(n)
        if bad.any() or not (n > 0).any():
            got = n[bad][:3].tolist() or "none above 0"
            raise InputError(f"counts must be finite, 0 or more and not all 0, got {got}.")
    return n


def _like(counts: Counts, values: Tensor) -> Tensor:
    return values.to(torch.as_tensor(counts).device, torch.get_default_dtype())
