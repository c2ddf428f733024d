"""Summaries of records: one row per sample over its epochs.

The names are those of their papers: *forgetting events* (Toneva et al., 2019), *area under the margin* (Pleiss et al.,
2020), *EL2N* (Paul et al., 2021), *confidence, variability* and *correctness* of data maps (Swayamdipta et al., 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.records import Block
from hardsight.stats import Moments

# What is averaged over the epochs in which a sample was seen, and what the mean is called.
MEANS = {"margin": "aum", "confidence": "confidence", "correct": "correctness"}
MEANS |= {name: name for name in ("el2n", "avh", "angle", "norm", "nll", "angular_margin")}

# Scores that are also averaged after standardizing them within each epoch: ``avh_z``.
STANDARDIZED = ("avh", "angle", "confidence", "nll", "soft_margin", "margin", "norm", "el2n", "angular_margin")

# The score to use for agreement with people: `LATE_SCORE`, standardized within each epoch, over the later half of them.
LATE_SCORE = "soft_margin"

# Columns without an upper bound, and the column whose size shows that an epoch has exploded.
SIZES = {"margin": "margin", "nll": "margin", "norm": "norm"}
EXPLODED = 10.0


def later_half(first: int, last: int) -> int:
    """The first epoch of the later half of some epochs; the middle one of an odd number belongs to it.

    Examples:
        >>> later_half(1, 10), later_half(1, 5), later_half(3, 3)
        (6, 3, 3)
    """
    return first + (last - first + 1) // 2


def epoch_factors(moments: Moments) -> np.ndarray:
    """Factors that scale exploded epochs down to the size (root mean square) of the median epoch; 1 for the others."""
    recorded, size = moments.n > 0, np.sqrt(np.nan_to_num(moments.mean) ** 2 + _spread(moments) ** 2)
    typical = np.median(size[recorded]) if recorded.any() else 0.0
    return np.divide(typical, size, out=np.ones_like(size), where=(size > EXPLODED * typical) & (typical > 0))


def _spread(moments: Moments) -> np.ndarray:
    """Standard deviation over the samples of each epoch, as a population; 0 for a single sample."""
    return np.sqrt(np.nan_to_num(moments.variance) * (1 - 1 / np.maximum(moments.n, 1)))


def summarize(block: Block, first: int, last: int, moments: Mapping[str, Moments]) -> pa.Table:
    """One row per sample of a block, given the moments of `STANDARDIZED` in each epoch from `first` to `last`."""
    epoch, label, pred = block.epoch, block.table["label"].to_numpy(), block.table["pred"].to_numpy()
    starts, count = block.starts, np.diff(block.starts, append=len(epoch))

    def mean(values: np.ndarray) -> np.ndarray:
        missing = np.isnan(values)
        if not missing.any():
            return np.add.reduceat(values, starts) / count
        valid = np.add.reduceat(~missing, starts, dtype=np.int64)
        total = np.add.reduceat(np.where(missing, 0.0, values), starts)
        return np.divide(total, valid, out=np.full(len(starts), np.nan), where=valid > 0)

    right, never = pred == label, np.iinfo(np.int32).max
    forgotten = np.r_[False, right[:-1] & ~right[1:]][: len(epoch)]
    forgotten[starts] = False
    learned = np.minimum.reduceat(np.where(right, epoch, never), starts)
    confidence = block.column("confidence")
    columns: dict[str, Any] = {
        "id": block.ids,
        "label": label[starts].astype(np.int64),
        "pred": pred[starts + count - 1].astype(np.int64),
        "seen": count.astype(np.int32),
        "forgetting": np.add.reduceat(forgotten, starts, dtype=np.int32),
        "learned": pa.array(learned, pa.int32(), mask=learned == never),
        "variability": np.sqrt(mean((confidence - np.repeat(mean(confidence), count)) ** 2)),
    }
    for name, title in MEANS.items():
        values = block.column(name)
        values = values * epoch_factors(moments[SIZES[name]])[epoch - first] if name in SIZES else values
        columns[title] = pa.array(mean(values), from_pandas=True)
    for name in STANDARDIZED:
        spread = _spread(moments[name])
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)  # a constant epoch counts as 0
        z = (block.column(name) - moments[name].mean[epoch - first]) * scale[epoch - first]
        columns[f"{name}_z"] = pa.array(mean(z), from_pandas=True)
        if name == LATE_SCORE:
            late = np.where(epoch >= later_half(first, last), z, np.nan)
            columns[f"{name}_late"] = pa.array(mean(late), from_pandas=True)
    return pa.table(columns)
