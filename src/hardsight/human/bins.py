"""Bins of human selection frequency."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hardsight.errors import InputError

# The paper's bins; each value lies in one of them, the last one is closed.
FREQUENCY_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def frequency_bins(values: np.ndarray, edges: Sequence[float] = FREQUENCY_EDGES) -> np.ndarray:
    """The bin of each frequency as text, half open but for the last; None where it is NaN or outside all of them.

    Args:
        values: Frequencies ``(N,)``.
        edges: Where bins begin, in rising order, and the end of the last.

    Examples:
        >>> frequency_bins(np.array([0.0, 0.2, 1.0, np.nan])).tolist()
        ['[0, 0.2)', '[0.2, 0.4)', '[0.8, 1]', None]
    """
    given = np.asarray(edges, dtype=np.float64)
    if given.ndim != 1 or len(given) < 2 or not (np.diff(given) > 0).all():
        raise InputError(f"edges must be two numbers or more in rising order, like 0, 0.5, 1; got {list(edges)}.")
    names = [f"[{low:g}, {high:g})" for low, high in itertools.pairwise(given.tolist())]
    names[-1] = names[-1][:-1] + "]"
    place = np.searchsorted(given, values, side="right") - 1
    place = np.where(values == given[-1], len(names) - 1, place)
    inside = (place >= 0) & (place < len(names)) & ~np.isnan(values)
    found = np.array(names, dtype=object)[np.where(inside, place, 0)]
    found[~inside] = None
    return found
