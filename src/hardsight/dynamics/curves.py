"""Curves over epochs by any grouping of the samples: mean, spread and number, without holding all rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError
from hardsight.extras import first_line
from hardsight.idtables import column_by_id

MOST_GROUPS = 1000


class EpochMoments:
    """Number, mean and spread of values by (group, epoch), joined block by block (Chan's update)."""

    def __init__(self, groups: int, epochs: int) -> None:
        self.n, self.mean, self.square = (np.zeros((groups, epochs)) for _ in range(3))

    def add(self, group: np.ndarray, epoch: np.ndarray, values: np.ndarray) -> None:
        """Values that are not NaN, of groups that are not negative."""
        valid = ~np.isnan(values) & (group >= 0)
        cell, values = (group * self.n.shape[1] + epoch)[valid], values[valid]

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
