"""What several nets say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hardsight.alignment.closed_forms import in_words
from hardsight.errors import InputError
from hardsight.stats import paired_difference


class OverNets(NamedTuple):
    """A number over nets: its mean, 95 % interval and two-sided p of being 0; no interval and no p if nothing varies.

    Attributes:
        mean: Over the units.
        low: End of Student's interval.
        high: Its other end.
        p: Of the mean being 0.
        nets: How many nets there are.
        architectures: How many of them differ in more than the seed.
        words: All that in a sentence.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    nets: int
    architectures: int
    words: str


def over_nets(values: Sequence[float], architectures: Sequence[str] | None = None) -> OverNets:
    """A number of each of several nets, such as a difference of agreements, as a statement about nets.

    An interval over images says what other images would show of the same net. Whether other nets show it, only nets
    can say. Seeds of one architecture are no independent nets: they are averaged first, and architectures are the
    units; where there is only one, its seeds are, and the statement is about that architecture alone.

    Args:
        values: One number a net, all on the same samples.
        architectures: The architecture of each net; None: they all differ.

    Examples:
        >>> found = over_nets([0.04, 0.06, 0.01, 0.03], ["vgg", "vgg", "resnet", "resnet"])
        >>> round(found.mean, 3), found.nets, found.architectures
        (0.035, 4, 2)
    """
    numbers = np.asarray(values, dtype=np.float64)
    names = list(range(len(numbers))) if architectures is None else list(architectures)
    if numbers.ndim != 1 or not len(numbers) or len(names) != len(numbers) or not np.isfinite(numbers).all():
        raise InputError(f"values must be finite numbers, one a net with its architecture; got {values} and {names}.")
    kinds, kind = np.unique(names, return_inverse=True)
    units = np.bincount(kind, numbers) / np.bincount(kind) if len(kinds) > 1 else numbers
    mean, n = float(units.mean()), len(units)
    unit = "architectures" if len(kinds) > 1 else "seeds of one architecture"
    words = f"{mean:+.3f} over {n} {unit}" if n > 1 else f"{mean:+.3f} for one net"
    words += f" ({len(numbers)} nets)" if len(numbers) > n else ""
    if n < 2:
        return OverNets(mean, None, None, None, len(numbers), len(kinds), f"{words}, which says nothing of others.")
    low, high, p = (float(end) if np.isfinite(end) else None for end in paired_difference(units)[1:])
    words += "" if low is None else f", 95 % interval {low:+.3f} to {high:+.3f}"
    words += f", {in_words(p)}; above 0 in {(units > 0).sum()} of {n}."
    return OverNets(mean, low, high, p, len(numbers), len(kinds), words)
