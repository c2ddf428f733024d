"""`Dynamics`: the records of a run, by sample, by epoch and by group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.dynamics.summary import MEANS, STANDARDIZED, summarize
from hardsight.errors import InputError, MissingKeyError, MissingPathError
from hardsight.extras import printable
from hardsight.idtables import groups_by_id
from hardsight.records import BITS, DERIVED, Records, has_records
from hardsight.registry import did_you_mean
from hardsight.runs import Meta, meta_of
from hardsight.stats import Moments
from hardsight.stores import local_path
from hardsight.table import SampleTable

COLUMNS = ("pred", *BITS, *DERIVED)


class Dynamics:
    """The epochs that a `Recorder` had committed when this was opened; later commits are not visible.

    Opening it is cheap: rows are read when they are asked for.

    Args:
        run: The folder that a recorder wrote.

    Attributes:
        epochs: Numbers of the recorded epochs, in order.
        unit: What an epoch is: "epoch", "iteration".
        steps: The number of batches recorded by the end of each epoch.
        unfinished: Whether the last epoch was flushed before its end.

    Examples:
        >>> dynamics = Dynamics("run")  # doctest: +SKIP
        >>> dynamics.summary().hardest(5, "forgetting")  # doctest: +SKIP
        >>> dynamics.curves(by="label")  # doctest: +SKIP
    """

    def __init__(self, run: str | Path) -> None:
        self.path = local_path(run)
        if not has_records(self.path):
            raise MissingPathError(f"run: {run} holds no records of training; write some with hs.Recorder.")
        self.records = Records(self.path)
        index = self.records.index
        if not index.epochs:
            raise MissingPathError(f"run: {run} holds no finished epoch yet; call end_epoch() of its recorder.")
        self.meta: Meta = meta_of(self.path)
        self.epochs = np.array(index.epochs, dtype=np.int64)
        self.unit: str = self.meta.unit or "epoch"
        self.steps = {epoch: index.steps[str(epoch)] for epoch in index.epochs if str(epoch) in index.steps}
        self.unfinished, self.records.last = index.open, index.epochs[-1]
        if index.open:  # a recorder adds rows to an unfinished epoch and changes none
            flushed = self.records.block((), epochs=(self.records.last, self.records.last)).ids
            self.records.where = (pc.field("epoch") < self.records.last) | pc.field("id").isin(flushed)

    @property
    def classes(self) -> int:
        """The number of classes of the head."""
        return self.records.classes(self.meta)

    def __len__(self) -> int:
        return len(self._samples[0])

    @cached_property
    def _samples(self) -> tuple[pa.Array, np.ndarray]:
        return self.records.samples()

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
        return self.records.heads()

    def curve(self, id_: str | int) -> pa.Table:
        """One sample through the epochs: every column by epoch, null where the sample was not seen.

        Args:
            id_: Its id, or its number where ids are ``split:number``.
        """
        id_ = id_ if isinstance(id_, str) else f"{self.meta.data.split or 'data'}:{id_}"
        block = self.records.block(COLUMNS, ids=(id_, id_ + "\0"))
        if not len(block.table):
            example = "".join(f"; ids look like {printable(e['ids'][0])!r}" for e in self.records.index.files[:1])
            raise MissingKeyError(f"the run has no sample {printable(id_)!r}{example}.")
        place = pc.index_in(pa.array(self.epochs, pa.int32()), value_set=block.table["epoch"])
        columns = {name: pa.array(block.column(name), from_pandas=True).take(place) for name in COLUMNS}
        return pa.table({"epoch": self.epochs, **columns, "pred": columns["pred"].cast(pa.int64())})

    def at(self, epoch: int) -> SampleTable:
        """The samples as they were in one epoch: a table of scores."""
        if epoch not in self.epochs:
            raise InputError(f"epoch must be one of {self._span()}, got {epoch}.")
        return SampleTable(self.records.scores(epoch, self.meta), self.meta)

    def matrix(self, column: str) -> np.ndarray:
        """A column of all samples and epochs, ``(len(self), len(self.epochs))`` float64, NaN where not seen."""
        _check_column(column)
        values = np.full((len(self), len(self.epochs)), np.nan)
        for block in self.records.blocks([column]):
            values[block.place, block.epoch - 1] = block.column(column)
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
        for block in self.records.blocks(values):
            cell = group[block.place] * epochs + block.epoch - 1
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

        ``soft_margin_late`` is ``soft_margin_z`` of the later half of the epochs alone: the score to use for agreement
        with people. It is null for samples that were not seen in that half.

        Args:
            epochs: First and last epoch to look at, (1, 10) for instance; all if None.
        """
        first, last = epochs or (1, self.records.last)
        first, last = max(1, first), min(last, self.records.last)
        moments = {name: Moments(max(0, last - first + 1)) for name in STANDARDIZED}
        for block in self.records.blocks(STANDARDIZED, epochs=(first, last)):
            for name, of in moments.items():
                of.add(block.column(name), block.epoch - first)
        blocks = self.records.blocks((*MEANS, *STANDARDIZED), epochs=(first, last))
        return SampleTable(pa.concat_tables([summarize(block, first, last, moments) for block in blocks]), self.meta)

    def __repr__(self) -> str:
        return f"Dynamics({str(self.path)!r}: {self.unit}s {self._span()})"

    def _span(self) -> str:
        return f"{self.epochs[0]}–{self.epochs[-1]}"


def _check_column(column: str) -> None:
    if column not in COLUMNS:
        raise InputError(f"records have no column {column!r}; {did_you_mean(column, COLUMNS)}")
