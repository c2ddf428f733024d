"""Summaries of records: one row per sample over its epochs, and mean and spread by group and epoch.

The names are those of their papers: *forgetting events* (Toneva et al., 2019), *area under the margin* (Pleiss et al.,
2020), *EL2N* (Paul et al., 2021), *confidence, variability* and *correctness* of data maps (Swayamdipta et al., 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError
from hardsight.extras import first_line
from hardsight.idtables import column_by_id
from hardsight.records import Block

MOST_GROUPS = 1000

# What is averaged over the epochs in which a sample was seen, and what the mean is called.
MEANS = {"margin": "aum", "confidence": "confidence", "correct": "correctness"}
MEANS |= {name: name for name in ("el2n", "avh", "angle", "norm", "nll", "angular_margin")}

# Scores that are also averaged after standardizing them within each epoch: ``avh_z``.
STANDARDIZED = ("avh", "angle", "confidence", "nll", "soft_margin", "margin", "norm", "el2n", "angular_margin")

# Columns without an upper bound, and the column whose size shows that an epoch has exploded.
SIZES = {"margin": "margin", "nll": "margin", "norm": "norm"}
EXPLODED = 10.0

USED = tuple(dict.fromkeys((*MEANS, *STANDARDIZED)))


class EpochMoments:
    """Number, mean and spread of values by (group, epoch), joined block by block (Chan's update)."""

    def __init__(self, groups: int, epochs: int) -> None:
        self.n, self.mean, self.square = (np.zeros((groups, epochs)) for _ in range(3))

    def add(self, group: np.ndarray, epoch: np.ndarray, values: np.ndarray) -> None:
        """Values that are not NaN, of groups that are not negative."""
        valid = ~np.isnan(values) & (group >= 0)
        cell = group * self.n.shape[1] + epoch
        cell, values = (cell, values) if valid.all() else (cell[valid], values[valid])

        def total_of(weights: np.ndarray | None) -> np.ndarray:
            return np.bincount(cell, weights, minlength=self.n.size).reshape(self.n.shape)

        n, shift = total_of(None), np.zeros(self.n.size)
        shift[cell] = values  # any value of the cell; equal values then have exactly no spread
        values = values - shift[cell]
        mean = total_of(values) / np.maximum(n, 1)
        square = total_of((values - mean.ravel()[cell]) ** 2)
        mean, total = mean + shift.reshape(n.shape), np.maximum(self.n + n, 1)
        self.square += square + (mean - self.mean) ** 2 * self.n * n / total
        self.mean += (mean - self.mean) * n / total
        self.n += n

    def sd(self) -> np.ndarray:
        """Sample standard deviation; NaN below two values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.n > 1, np.sqrt(self.square / (self.n - 1)), np.nan)


def add_block(moments: Mapping[str, EpochMoments], block: Block, epochs: np.ndarray, groups: np.ndarray) -> None:
    """Add the rows of a block to the moments of columns, by the group of each of its samples."""
    group, epoch = groups[block.code], np.searchsorted(epochs, block.table["epoch"].to_numpy())
    for name, moment in moments.items():
        moment.add(group, epoch, block.column(name))


def as_table(groups: Sequence[Any], epochs: np.ndarray, moments: Mapping[str, EpochMoments]) -> pa.Table:
    """One row per group and epoch that has a value."""
    present = np.any([moment.n > 0 for moment in moments.values()], axis=0)
    group, epoch = np.nonzero(present)
    first = next(iter(moments.values()))
    columns: dict[str, Any] = {
        "group": pa.array(groups).take(pa.array(group)),
        "epoch": epochs[epoch],
        "n": first.n[present].astype(np.int64),
    }
    for name, moment in moments.items():
        columns[f"{name}_mean"] = pa.array(moment.mean[present], mask=moment.n[present] == 0)
        columns[f"{name}_sd"] = pa.array(moment.sd()[present], from_pandas=True)
    return pa.table(columns)


def grouped(by: Any, ids: pa.Array) -> tuple[list[Any], np.ndarray]:
    """Names of the groups in order, and the group of each sample; −1 where it has none.

    Args:
        by: A mapping from ids to groups, a table with a column id and one other, or one group per sample of `ids`.
        ids: The samples.
    """
    try:
        if isinstance(by, Mapping):
            values = pa.array([by.get(id_) for id_ in ids.to_pylist()], from_pandas=True)
        elif hasattr(by, "column_names") or hasattr(by, "iloc") or hasattr(by, "to_arrow"):
            values = column_by_id(by, ids, "by")
        else:
            values = pa.array(by if isinstance(by, pa.Array) else np.asarray(by), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"by must hold groups of one type ({first_line(error)}).") from error
    if len(values) != len(ids):
        raise InputError(f"by must hold one group per sample, {len(ids):,}, got {len(values):,}.")
    values = pc.if_else(pc.is_nan(values), None, values) if pa.types.is_floating(values.type) else values
    names = pc.unique(values.drop_null())
    if len(names) > MOST_GROUPS:
        raise InputError(f"by must hold at most {MOST_GROUPS:,} groups, got {len(names):,}; put the values into bins.")
    if not len(names):
        raise InputError("by gives no sample of the run a group; its ids must be those of the run.")
    names = names.take(pc.sort_indices(names))
    return names.to_pylist(), pc.fill_null(pc.index_in(values, value_set=names), -1).to_numpy().astype(np.int64)


def epoch_factors(moments: EpochMoments) -> np.ndarray:
    """Factors that scale exploded epochs down to the size (root mean square) of the median epoch; 1 for the others."""
    n = moments.n[0]
    size = np.sqrt(moments.mean[0] ** 2 + moments.square[0] / np.maximum(n, 1))
    typical = np.median(size[n > 0]) if n.any() else 0.0
    return np.divide(typical, size, out=np.ones_like(size), where=(size > EXPLODED * typical) & (typical > 0))


def summarize(block: Block, epochs: np.ndarray, moments: Mapping[str, EpochMoments]) -> pa.Table:
    """One row per sample of a block.

    Args:
        block: The rows.
        epochs: Numbers of the block's epochs, in order.
        moments: Mean and spread in each epoch of the columns `STANDARDIZED`.
    """
    epoch, label, pred = (block.table[name].to_numpy() for name in ("epoch", "label", "pred"))
    values, code, place = {name: block.column(name) for name in USED}, block.code, np.searchsorted(epochs, epoch)
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
