"""What is known of each sample after training: one row per sample over its epochs.

The names are those of their papers: *forgetting events* (Toneva et al., 2019), *area under the margin* (Pleiss et al.,
2020), *EL2N* (Paul et al., 2021), *confidence, variability* and *correctness* of data maps (Swayamdipta et al., 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.dynamics.curves import EpochMoments
from hardsight.records import Block

# What is averaged over the epochs in which a sample was seen, and what the mean is called.
MEANS = {"margin": "aum", "confidence": "confidence", "correct": "correctness"}
MEANS |= {name: name for name in ("el2n", "avh", "angle", "norm", "nll", "angular_margin")}

# Scores that are also averaged after standardizing them within each epoch: ``avh_z``.
STANDARDIZED = ("avh", "angle", "confidence", "nll", "soft_margin", "margin", "norm", "el2n", "angular_margin")

# Columns without an upper bound, and the column whose size shows that an epoch has exploded.
SIZES = {"margin": "margin", "nll": "margin", "norm": "norm"}
EXPLODED = 10.0

USED = tuple(dict.fromkeys((*MEANS, *STANDARDIZED)))


def epoch_factors(moments: EpochMoments) -> np.ndarray:
    """Factors that scale exploded epochs down to the size (root mean square) of the median epoch; 1 for the others."""
    n = moments.n[0]
    size = np.sqrt(moments.mean[0] ** 2 + moments.square[0] / np.maximum(n, 1))
    typical = np.median(size[n > 0]) if n.any() else 0.0
    return np.divide(typical, size, out=np.ones_like(size), where=(size > EXPLODED * typical) & (typical > 0))


def places(epochs: np.ndarray, epoch: np.ndarray) -> np.ndarray:
    """The place of each epoch among `epochs`; −1 where it is none of them."""
    table = np.full(max(epochs.max(initial=0), epoch.max(initial=0)) + 1, -1)
    table[epochs] = np.arange(len(epochs))
    return table[epoch]


def summarize(block: Block, epochs: np.ndarray, moments: Mapping[str, EpochMoments]) -> pa.Table:
    """One row per sample of a block, over those of the epochs in which it was seen.

    Args:
        block: The rows.
        epochs: Numbers of the epochs, in order.
        moments: Mean and spread in each epoch of the columns `STANDARDIZED`.
    """
    epoch, label, pred = (block.table[name].to_numpy() for name in ("epoch", "label", "pred"))
    values, code, place = {name: block.column(name) for name in USED}, block.code, places(epochs, epoch)
    if (place < 0).any():
        rows = np.flatnonzero(place >= 0)
        epoch, label, pred, code, place = (array[rows] for array in (epoch, label, pred, code, place))
        values = {name: column[rows] for name, column in values.items()}
    same = code[1:] == code[:-1]
    starts = np.flatnonzero(np.r_[True, ~same])[: len(code)]
    count = np.diff(np.r_[starts, len(code)])

    def mean(values: np.ndarray) -> np.ndarray:
        missing = np.isnan(values)
        if not missing.any():
            return np.add.reduceat(values, starts) / count
        valid = np.add.reduceat(~missing, starts, dtype=np.int64)
        total = np.add.reduceat(np.where(missing, 0.0, values), starts)
        return np.divide(total, valid, out=np.full(len(starts), np.nan), where=valid > 0)

    right = pred == label
    forgotten = np.r_[False, right[:-1] & ~right[1:] & same][: len(code)]
    never = np.iinfo(np.int32).max
    learned = np.minimum.reduceat(np.where(right, epoch, never), starts)
    away = values["confidence"] - np.repeat(mean(values["confidence"]), count)
    columns: dict[str, Any] = {
        "id": block.ids.take(pa.array(code[starts])),
        "label": label[starts].astype(np.int64),
        "pred": pred[starts + count - 1].astype(np.int64),
        "seen": count.astype(np.int32),
        "forgetting": np.add.reduceat(forgotten.astype(np.int32), starts, dtype=np.int32),
        "learned": pa.array(learned, pa.int32(), mask=learned == never),
        "variability": np.sqrt(mean(away**2)),
    }
    for name, title in MEANS.items():
        scaled = values[name] * epoch_factors(moments[SIZES[name]])[place] if name in SIZES else values[name]
        columns[title] = pa.array(mean(scaled), from_pandas=True)
    for name in STANDARDIZED:
        spread = np.sqrt(moments[name].square[0] / np.maximum(moments[name].n[0], 1))
        scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)  # a constant epoch counts as 0
        z = (values[name] - moments[name].mean[0][place]) * scale[place]
        columns[f"{name}_z"] = pa.array(mean(z), from_pandas=True)
    return pa.table(columns)
