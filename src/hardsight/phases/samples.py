"""What is known of the samples beside a run, brought into the order of the run's samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.idtables import column_by_id

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

# The paper's bins of human selection frequency; each value lies in one of them, the last one is closed.
FREQUENCY_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def frequencies(dynamics: Dynamics, human: Any) -> np.ndarray:
    """Human selection frequency of each sample as float64 in the order of ``dynamics.ids``, NaN where there is none.

    Args:
        dynamics: The recorded run.
        human: A mapping id → share of people who chose the label, a table, data frame or file with the columns ``id``
            and one other, or an array in the order of ``dynamics.ids``.
    """
    ids = dynamics.ids
    if isinstance(human, (str, Path, pa.Table)) or hasattr(human, "iloc") or hasattr(human, "to_arrow"):
        human = column_by_id(human, pa.array(ids, pa.string()), "human").to_numpy(zero_copy_only=False)
    if isinstance(human, Mapping):
        if not any(key in human for key in ids.tolist()):
            raise ValueError(
                f"human must be keyed by ids of the run like {ids[0]!r}, got keys like {next(iter(human), None)!r}."
            )
        human = [np.nan if (value := human.get(key)) is None else value for key in ids.tolist()]
    try:
        values = np.asarray(human, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"human must be numbers, got something else ({error}).") from error
    if values.shape != ids.shape:
        raise ValueError(
            f"human must hold one number a sample in the order of dynamics.ids ({len(ids):,}), got shape "
            f"{values.shape}; or give a mapping id → number."
        )
    if np.isnan(values).all():
        raise ValueError(
            f"human must give samples of the run a number, got none; are its ids like {ids[0]!r}, its values not empty?"
        )
    if ((values < 0) | (values > 1)).any():
        raise ValueError("human must lie between 0 and 1; divide the count of the label by the count of all answers.")
    return values


def frequency_bins(values: np.ndarray, edges: tuple[float, ...] = FREQUENCY_EDGES) -> np.ndarray:
    """The bin of each frequency as text, half open but for the last; None where it is NaN.

    Examples:
        >>> frequency_bins(np.array([0.0, 0.2, 1.0, np.nan])).tolist()
        ['[0, 0.2)', '[0.2, 0.4)', '[0.8, 1]', None]
    """
    names = [f"[{low:g}, {high:g})" for low, high in itertools.pairwise(edges)]
    names[-1] = names[-1][:-1] + "]"
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(names) - 1)
    found = np.array(names, dtype=object)[place]
    found[np.isnan(values)] = None
    return found
