"""`Dynamics`: the records of a run, by sample, by epoch and by group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight import records
from hardsight.dynamics.summary import MEANS, STANDARDIZED, summarize
from hardsight.errors import InputError, MissingKeyError, MissingPathError, StateError
from hardsight.extras import printable
from hardsight.idtables import groups_by_id
from hardsight.registry import did_you_mean
from hardsight.runs import Meta, meta_of
from hardsight.stats import Moments
from hardsight.table import SampleTable

COLUMNS = ("pred", *records.BITS, *records.DERIVED)


class Dynamics:
    """What a `Recorder` has committed when this is opened; later commits are not visible. Opening it is cheap: rows are
    read when they are asked for.

    Args:
        run: The folder that a recorder wrote.

    Attributes:
        epochs: Numbers of the recorded epochs, in order.
        unit: What an epoch is: "epoch", "iteration".
        steps: The number of batches recorded by the end of each epoch.
        unfinished: Whether the last epoch was flushed before its end.
    """

    def __init__(self, run: str | Path) -> None:
        self.path = Path(run)
        if not records.has_records(self.path):
            raise MissingPathError(f"run: {run} holds no records of training; write some with hs.Recorder.")
        index = records.read_index(self.path)
        if not index.epochs:
            raise MissingPathError(f"run: {run} holds no finished epoch yet; call end_epoch() of its recorder.")
        self.meta: Meta = meta_of(self.path)
        self.epochs = np.array(index.epochs, dtype=np.int64)
        self.unit: str = self.meta.unit or "epoch"
        self.steps = {epoch: index.steps[str(epoch)] for epoch in index.epochs if str(epoch) in index.steps}
        self.unfinished = index.open
        # The rows that exist now: a recorder adds rows to an unfinished epoch and changes none.
        self._last, self._where = index.epochs[-1], None
        if index.open:
            flushed = records.read_rows(self.path, None, (), epochs=(self._last, self._last))["id"]
            self._where = (pc.field("epoch") < self._last) | pc.field("id").isin(flushed)

    @property
    def classes(self) -> int:
        """The number of classes of the head."""
        if self.meta.model.classes is None:
            raise StateError(f"run: {self.path} is damaged: its meta.json does not say how many classes there are.")
        return self.meta.model.classes

    def __len__(self) -> int:
        return len(self._samples[0])

    @cached_property
    def _samples(self) -> tuple[pa.Array, np.ndarray]:
        return records.read_samples(self.path, epochs=(1, self._last), where=self._where)

    @property
    def ids(self) -> np.ndarray:
        """Ids of all samples, sorted."""
        return self._samples[0].to_numpy(zero_copy_only=False)

    @property
    def labels(self) -> np.ndarray:
        """Labels of all samples, in the order of `ids`."""
        return self._samples[1]

    @property
    def heads(self) -> pa.Table:
        """Norm and bias of each class weight at the end of each epoch, in the columns epoch, class, norm and bias."""
        heads = records.read_heads(self.path)
        return heads.filter(pc.less_equal(heads["epoch"], self._last))

    def blocks(
        self, columns: Collection[str], rows: int = records.FILE_ROWS, epochs: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, records.Block]]:
        """Rows with some columns beside id and epoch, about so many at a time: all those of a range of ids, from the
        first to the last of the epochs. With each block comes the number of samples in the blocks before it.
        """
        start, (first, last) = 0, epochs or (1, self._last)
        options = {"epochs": (first, min(last, self._last)), "where": self._where}
        for block in records.blocks(self.path, None, columns, rows=rows, **options):
            yield start, block
            start += len(block.starts)

    def rows_of(self, ids: pa.Array, columns: Collection[str]) -> records.Block:
        """The records of some samples, in any order, with some columns beside id and epoch."""
        low, high = (limit or "" for limit in pc.min_max(ids).as_py().values())
        where, selected = self._where, pc.field("id").isin(ids)
        if len(ids) != 1:  # of a single sample, the range is enough
            where = selected if where is None else where & selected
        rows = records.read_rows(self.path, None, columns, epochs=(1, self._last), ids=(low, high + "\0"), where=where)
        return records.Block(rows, np.arange(len(rows)))

    def curve(self, id_: str | int) -> pa.Table:
        """One sample through the epochs: every column by epoch, null where the sample was not seen.

        Args:
            id_: Its id, or its number where ids are ``split:number``.
        """
        id_ = id_ if isinstance(id_, str) else f"{self.meta.data.split or 'data'}:{id_}"
        rows = self.rows_of(pa.array([id_]), COLUMNS)
        if not len(rows.table):
            files = records.read_index(self.path).files
            example = f"; ids look like {printable(files[0]['ids'][0])!r}" if files else ""
            raise MissingKeyError(f"the run has no sample {printable(id_)!r}{example}.")
        place = pc.index_in(pa.array(self.epochs, pa.int32()), value_set=rows.table["epoch"])
        columns = {name: pa.array(rows.column(name), from_pandas=True).take(place) for name in COLUMNS}
        return pa.table({"epoch": self.epochs, **columns, "pred": columns["pred"].cast(pa.int64())})

    def at(self, epoch: int) -> SampleTable:
        """The samples as they were in one epoch: a table of scores."""
        if epoch not in self.epochs:
            raise InputError(f"epoch must be one of {self._span()}, got {epoch}.")
        return SampleTable(records.scores_of(self.path, epoch, self.classes, self._where), self.meta)

    def matrix(self, column: str) -> np.ndarray:
        """A column of all samples and epochs, ``(len(self), len(self.epochs))`` float64, NaN where not seen."""
        _check_column(column)
        values = np.full((len(self), len(self.epochs)), np.nan)
        for start, block in self.blocks([column]):
            values[start + block.code, block.table["epoch"].to_numpy() - 1] = block.column(column)
        return values

    def curves(
        self, by: Any = None, values: str | Sequence[str] = ("avh", "norm", "confidence", "nll", "correct")
    ) -> pa.Table:
        """Mean and spread (standard deviation over the samples) by group and epoch.

        Args:
            by: How to group: "label", a column of `summary`, a mapping from ids to groups, a table with a column id
                and one other, or one group per sample in the order of `ids`. None makes one group, "all".
            values: Columns to average.

        Returns:
            ``group, epoch, n`` and ``<value>_mean, <value>_sd`` of each value. Samples without a group are left out.
        """
        values = (values,) if isinstance(values, str) else tuple(values)
        if not values:
            raise InputError(f"values must name a column or more: {', '.join(COLUMNS)}.")
        for value in values:
            _check_column(value)
        (names, group), epochs = self.groups(by), len(self.epochs)
        moments = {value: Moments(len(names), epochs) for value in values}
        for start, block in self.blocks(values):
            cell = group[start + block.code] * epochs + block.table["epoch"].to_numpy() - 1
            for value, of in moments.items():
                of.add(block.column(value), cell)
        present = np.any([of.n > 0 for of in moments.values()], axis=0)
        number, epoch = np.nonzero(present)
        columns: dict[str, Any] = {"group": pa.array(names).take(pa.array(number)), "epoch": self.epochs[epoch]}
        columns["n"] = moments[values[0]].n[present].astype(np.int64)
        for value, of in moments.items():
            columns[f"{value}_mean"] = pa.array(of.mean[present], from_pandas=True)
            columns[f"{value}_sd"] = pa.array(np.sqrt(of.variance[present]), from_pandas=True)
        return pa.table(columns)

    def groups(self, by: Any = None) -> tuple[list[Any], np.ndarray]:
        """Names of the groups in order, and the number of each sample's group in the order of `ids`; −1 for none.

        Args:
            by: As for `curves`.
        """
        if by is None:
            return ["all"], np.zeros(len(self), np.int64)
        if isinstance(by, str) and by == "label":
            names = self.meta.class_names
            by = np.array(names)[self.labels] if self.labels.max(initial=-1) < len(names) else self.labels
        elif isinstance(by, str):
            summary = self.summary()
            if by not in summary:
                raise InputError(
                    f"by must be label or a column of summary() ({', '.join(summary.columns)}), got {by!r}."
                )
            by = summary.to_arrow()[by].combine_chunks()
        return groups_by_id(by, self._samples[0])

    def summary(self, epochs: tuple[int, int] | None = None) -> SampleTable:
        """One row per sample, over the epochs in which it was seen.

        ``seen`` (number of epochs), ``forgetting`` (times right, then wrong the next time), ``learned`` (first epoch in
        which it was right; null if never), ``aum`` (mean logit margin), ``confidence`` and ``variability`` (mean and
        standard deviation of the label's probability), ``correctness`` (share of epochs in which it was right),
        ``pred`` (the last prediction), and the means ``el2n, avh, angle, norm, nll, angular_margin`` (the last is null
        in runs recorded before it existed). So that one epoch of exploding logits does not decide ``aum``, ``nll`` and
        ``norm``, an epoch whose margins (or norms) are over ten times those of the median epoch is scaled down to it.

        To rank samples by a score over epochs, take ``avh_z, angle_z, confidence_z, nll_z, soft_margin_z, margin_z,
        norm_z, el2n_z, angular_margin_z``: means of scores that are standardized over the samples of each epoch (mean
        0, standard deviation 1; a constant epoch counts as 0), so that every epoch weighs the same.

        Args:
            epochs: First and last epoch to look at, (1, 10) for instance; all if None.
        """
        first, last = (max(1, epochs[0]), min(epochs[1], self._last)) if epochs else (1, self._last)
        moments = {name: Moments(max(0, last - first + 1)) for name in STANDARDIZED}
        for _, block in self.blocks(STANDARDIZED, epochs=(first, last)):
            for name, of in moments.items():
                of.add(block.column(name), block.table["epoch"].to_numpy() - first)
        blocks = self.blocks((*MEANS, *STANDARDIZED), epochs=(first, last))
        return SampleTable(pa.concat_tables([summarize(block, first, moments) for _, block in blocks]), self.meta)

    def __repr__(self) -> str:
        return f"Dynamics({str(self.path)!r}: {self.unit}s {self._span()})"

    def _span(self) -> str:
        return f"{self.epochs[0]}–{self.epochs[-1]}"


def _check_column(column: str) -> None:
    if column not in COLUMNS:
        raise InputError(f"records have no column {column!r}; {did_you_mean(column, COLUMNS)}")
