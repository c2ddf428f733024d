"""`Dynamics`: the records of a run, by sample, by epoch and by group."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight import records
from hardsight.dynamics.summary import STANDARDIZED, USED, EpochMoments, add_block, as_table, grouped, summarize
from hardsight.errors import InputError, MissingKeyError, MissingPathError, StateError
from hardsight.extras import printable
from hardsight.registry import did_you_mean
from hardsight.runs import Meta, meta_of
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
        index, flushed = records.read_with(self.path, self._opened)
        if not index.epochs:
            raise MissingPathError(f"run: {run} holds no finished epoch yet; call end_epoch() of its recorder.")
        self.meta: Meta = meta_of(self.path)
        self.epochs = np.array(index.epochs, dtype=np.int64)
        self.unit: str = self.meta.unit or "epoch"
        self.steps = {int(epoch): steps for epoch, steps in index.steps.items()}
        self.unfinished = index.open
        # The rows that exist now. A recorder adds rows and changes none.
        last = index.epochs[-1]
        self._where = (pc.field("epoch") < last) | pc.field("id").isin(flushed) if index.open else None

    def _opened(self, index: records.Index) -> tuple[records.Index, pa.Array | None]:
        """The index, and the ids that an unfinished epoch holds so far."""
        if not index.open:
            return index, None
        last = index.epochs[-1]
        return index, records.read_rows(self.path, index, (), epochs=(last, last))["id"].cast(pa.string())

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
        ids, labels = [pa.array([], pa.string())], [np.zeros(0, np.int64)]
        for _, block in self.blocks(["label"]):
            first = np.searchsorted(block.code, np.arange(len(block.ids)))
            ids.append(block.ids)
            labels.append(block.table["label"].to_numpy()[first].astype(np.int64))
        return pa.concat_arrays(ids), np.concatenate(labels)

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
        heads = records.read_with(self.path, lambda index: records.read_heads(self.path, index))
        return heads.filter(pc.less_equal(heads["epoch"], int(self.epochs[-1])))

    def blocks(
        self, columns: Collection[str], rows: int = records.FILE_ROWS, epochs: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, records.Block]]:
        """All rows, a range of ids at a time.

        Args:
            columns: Which to read beside id and epoch.
            rows: About how many rows at a time.
            epochs: The first and last epoch to read; all if None.

        Returns:
            Blocks, each with the number of samples in the blocks before it: its place among `ids` in all epochs.
        """
        start, (first, last) = 0, epochs or (1, int(self.epochs[-1]))
        span = {"epochs": (first, min(last, int(self.epochs[-1]))), "where": self._where}
        for block in records.blocks(self.path, None, records.needed(columns), rows, **span):
            yield start, block
            start += len(block.ids)

    def rows_of(self, ids: pa.Array, columns: Collection[str]) -> records.Block:
        """The records of some samples, in any order.

        Args:
            ids: The samples.
            columns: Which to read beside id and epoch.
        """
        first, last = (limit or "" for limit in pc.min_max(ids).as_py().values())
        selected, span = self._where, {"epochs": (1, int(self.epochs[-1])), "ids": (first, last + "\0")}
        if len(ids) != 1:  # of a single sample, the span is enough
            selected = pc.field("id").isin(ids) if selected is None else selected & pc.field("id").isin(ids)
        read = partial(records.read_rows, self.path, columns=records.needed(columns), where=selected, **span)
        rows = records.with_text(records.read_with(self.path, read))
        return records.Block(rows, ids, np.arange(len(rows)))

    def curve(self, id_: str | int) -> pa.Table:
        """One sample through the epochs: every column by epoch, null where the sample was not seen.

        Args:
            id_: Its id, or its number where ids are ``split:number``.
        """
        id_ = id_ if isinstance(id_, str) else f"{self.meta.data.split or 'data'}:{id_}"
        block = self.rows_of(pa.array([id_]), [name for name in COLUMNS if name != "correct"] + ["label"])
        if not len(block.table):
            files = records.read_index(self.path).files
            example = f"; ids look like {printable(files[0]['ids'][0])!r}" if files else ""
            raise MissingKeyError(f"the run has no sample {printable(id_)!r}{example}.")
        place = np.searchsorted(self.epochs, block.table["epoch"].to_numpy())
        columns: dict[str, Any] = {"epoch": self.epochs}
        for name in COLUMNS:
            values = np.full(len(self.epochs), np.nan)
            values[place] = block.column(name)
            columns[name] = pa.array(values, from_pandas=True)
        columns["pred"] = columns["pred"].cast(pa.int64())
        return pa.table(columns)

    def at(self, epoch: int) -> SampleTable:
        """The samples as they were in one epoch: a table of scores."""
        if epoch not in self.epochs:
            raise InputError(f"epoch must be one of {self._span()}, got {epoch}.")
        read = partial(records.scores_of, self.path, epoch=epoch, classes=self.classes, where=self._where)
        return SampleTable(records.read_with(self.path, read), self.meta)

    def matrix(self, column: str) -> np.ndarray:
        """A column of all samples and epochs, ``(len(self), len(self.epochs))`` float64, NaN where not seen."""
        _check_column(column)
        values = np.full((len(self), len(self.epochs)), np.nan)
        for start, block in self.blocks([column]):
            epoch = np.searchsorted(self.epochs, block.table["epoch"].to_numpy())
            values[start + block.code, epoch] = block.column(column)
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
        names, group = self.groups(by)
        moments = {value: EpochMoments(len(names), len(self.epochs)) for value in values}
        for start, block in self.blocks(values):
            add_block(moments, block, self.epochs, group[start:])
        return as_table(names, self.epochs, moments)

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
        return grouped(by, self._samples[0])

    def summary(self, epochs: tuple[int, int] | None = None) -> SampleTable:
        """One row per sample, over the epochs in which it was seen.

        ``seen`` (number of epochs), ``forgetting`` (times right, then wrong the next time), ``learned`` (first epoch in
        which it was right; null if never), ``aum`` (mean logit margin), ``confidence`` and ``variability`` (mean and
        standard deviation of the label's probability), ``correctness`` (share of epochs in which it was right), and
        the means ``el2n, avh, angle, norm, nll, angular_margin`` (the last is null in runs that were recorded before
        it existed); ``pred`` is the last prediction.

        ``aum``, ``nll`` and ``norm`` have no bounds, and one epoch in which logits explode would decide their means
        alone: an epoch in which margins (or norms) are more than ten times as large as in the median epoch is scaled
        down to it.

        To rank samples by a score over epochs, take ``avh_z, angle_z, confidence_z, nll_z, soft_margin_z, margin_z,
        norm_z, el2n_z, angular_margin_z``: the same means, of scores that are standardized over the samples of each
        epoch (mean 0, standard deviation 1; a constant epoch counts as 0), so that every epoch weighs the same.

        Args:
            epochs: First and last epoch to look at, (1, 10) for instance; all if None.
        """
        low, high = epochs or (1, records.MOST_EPOCHS)
        selected = self.epochs[(low <= self.epochs) & (self.epochs <= high)]
        moments = {name: EpochMoments(1, len(selected)) for name in STANDARDIZED}
        for _, block in self.blocks(STANDARDIZED, epochs=(low, high)):
            add_block(moments, block, selected, np.zeros(len(block.ids), np.int64))
        blocks = self.blocks([*USED, "label", "pred"], epochs=(low, high))
        parts = [summarize(block, selected, moments) for _, block in blocks]
        return SampleTable(pa.concat_tables(parts), self.meta)

    def __repr__(self) -> str:
        return f"Dynamics({str(self.path)!r}: {self.unit}s {self._span()})"

    def _span(self) -> str:
        return f"{self.epochs[0]}–{self.epochs[-1]}"


def _check_column(column: str) -> None:
    if column not in COLUMNS:
        raise InputError(f"records have no column {column!r}; {did_you_mean(column, COLUMNS)}")
