"""What people said of the samples of a recorded run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardsight.human import match

if TYPE_CHECKING:
    import numpy as np

    from hardsight.dynamics import Dynamics


def frequencies(dynamics: Dynamics, human: Any) -> np.ndarray:
    """Human selection frequency of each sample as float64 in the order of ``dynamics.ids``, NaN where there is none.

    Args:
        dynamics: The recorded run.
        human: Anything that `hardsight.human.as_human` takes: a file, a mapping id → share of people who chose the
            label, a table, counts in the order of the data, or shares in the order of ``dynamics.ids``.
    """
    return match(human, dynamics.ids, dynamics.labels, dynamics.meta.class_names or None).hsf
