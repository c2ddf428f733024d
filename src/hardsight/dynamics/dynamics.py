"""`Dynamics`: the records of a run, by sample, by epoch and by group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from hardsight import records
from hardsight.dynamics.curves import EpochMoments, add_block, as_table, grouped
from hardsight.dynamics.summary import MEANS, Sizes, Summary, summarise
from hardsight.errors import InputError, MissingKeyError, MissingPathError, StateError
from hardsight.extras import printable
from hardsight.registry import did_you_mean
from hardsight.runs import DYNAMICS, Meta, meta_of
from hardsight.table import SampleTable

COLUMNS = ("pred", *records.FLOATS, *records.DERIVED)


class Dynamics:
    """What a `Recorder` has committed when this is opened; what it commits later is not seen. Opening it is cheap; rows
    are read when they are asked for.

    Args:
        run: The folder that a recorder wrote.

    Attributes:
        epochs: Numbers of the recorded epochs, in order.
        unit: What an epoch is: "epoch", "iteration".
        steps: How many batches had been recorded at the end of each epoch.
        unfinished: Whether the last epoch was flushed before its end.
    """

    def __init__(self, run: str | Path) -> None:
        self.path = Path(run)
        if not records.has_records(self.path):
            raise MissingPathError(f"run: {run} holds no records of training; write some with hs.Recorder.")
        index, self._flushed = records.read_with(self.path, self._opened)
        if not index.epochs:
            raise MissingPathError(f"run: {run} holds no finished epoch yet; call end_epoch() of its recorder.")
        self.meta: Meta = meta_of(self.path)
        self.epochs = np.array(index.epochs, dtype=np.int64)
        self.unit: str = self.meta.unit or "epoch"
        self.steps = {int(epoch): steps for epoch, steps in index.steps.items()}
        self.unfinished = index.open

    def _opened(self, index: records.Index) -> tuple[records.Index, pa.Array | None]:
        """The index, and the ids that its last epoch holds so far where that goes on."""
        if not index.open:
            return index, None
        return index, records.read_epoch(self.path, index, index.epochs[-1], ())["id"].combine_chunks()

    def _visible(self, rows: pa.Table) -> pa.Table:
        """Those rows that there were when this was opened. A recorder that goes on adds rows, and changes none."""
        last = int(self.epochs[-1])
        if self._flushed is None:
            return rows.filter(pc.less_equal(rows["epoch"], last))
        before = pc.less(rows["epoch"], last)
        flushed = pc.is_in(rows["id"].cast(pa.string()), value_set=self._flushed)
        return rows.filter(pc.or_(before, pc.and_(pc.equal(rows["epoch"], last), flushed)))

    def _read(self, read: Callable[[records.Index], Any]) -> Any:
        """What a function reads from the files as they lie now: a recorder that goes on merges them."""
        return records.read_with(self.path, read)

    @property
    def classes(self) -> int:
        """How many classes the head has."""
        return self._head("classes")

    @property
    def width(self) -> int:
        """How wide the features are."""
        return self._head("features")

    def _head(self, name: str) -> int:
        number = getattr(self.meta.model, name)
        if number is None:
            raise StateError(f"run: {self.path} is damaged: its meta.json does not say how many {name} the head has.")
        return number

    def __len__(self) -> int:
        return len(self._ids)

    @cached_property
    def _samples(self) -> tuple[pa.Array, np.ndarray]:
        ids, labels = [pa.array([], pa.string())], [np.zeros(0, np.int64)]
        for _, block in self.blocks(["label"]):
            first = np.searchsorted(block.code, np.arange(len(block.ids)))
            ids.append(block.ids)
            labels.append(block.table["label"].to_numpy()[first].astype(np.int64))
        return pa.concat_arrays(ids), np.concatenate(labels)

    @property
    def _ids(self) -> pa.Array:
        return self._samples[0]

    @property
    def ids(self) -> np.ndarray:
        """Ids of all samples, in their order."""
        return self._ids.to_numpy(zero_copy_only=False)

    @property
    def labels(self) -> np.ndarray:
        """Labels of all samples, in the order of `ids`."""
        return self._samples[1]

    @property
    def heads(self) -> pa.Table:
        """Norm and bias of each class weight at the end of each epoch, in the columns epoch, class, norm and bias."""
        heads = self._read(lambda index: records.read_heads(self.path, index))
        return heads.filter(pc.less_equal(heads["epoch"], int(self.epochs[-1])))

    def blocks(self, columns: Collection[str], rows: int = records.FILE_ROWS) -> Iterator[tuple[int, records.Block]]:
        """The rows of the epochs that there were when this was opened, a range of ids at a time.

        Args:
            columns: Which to read beside id and epoch.
            rows: About how many at a time.

        Returns:
            Blocks, each with the place of its first sample among `ids`.
        """
        start, last, wanted = 0, int(self.epochs[-1]), records.needed(columns)
        files = self._read(
            lambda index: records.open_files(
                self.path, [entry for entry in index.files if entry["epochs"][0] <= last], wanted
            )
        )
        for block in records.blocks_of(files, rows, self._visible):
            yield start, block
            start += len(block.ids)

    def rows_of(self, ids: pa.Array, columns: Collection[str]) -> records.Block:
        """The records of some samples, in any order.

        Args:
            ids: The samples.
            columns: Which to read beside id and epoch.
        """

        def read(index: records.Index) -> pa.Table:
            files = [str(self.path / DYNAMICS / entry["name"]) for entry in index.files]
            wanted = ["id", "epoch", *records.needed(columns)]
            return dataset.dataset(files).to_table(columns=wanted, filter=dataset.field("id").isin(ids))

        rows = self._visible(self._read(read))
        return records.Block(rows, ids, np.arange(len(rows)))

    def curve(self, id_: str | int) -> pa.Table:
        """One sample through the epochs: every column by epoch, null where the sample was not seen.

        Args:
            id_: Its id, or its number where ids are ``split:number``.
        """
        id_ = id_ if isinstance(id_, str) else f"{self.meta.data.split or 'data'}:{id_}"
        rows = self._visible(self._read(lambda index: records.read_sample(self.path, index, id_)))
        if not len(rows):
            files = records.read_index(self.path).files
            example = f"; ids look like {printable(files[0]['ids'][0])!r}" if files else ""
            raise MissingKeyError(f"the run has no sample {printable(id_)!r}{example}.")
        block = records.Block(rows, rows["id"], np.zeros(len(rows), np.int64))
        place = np.searchsorted(self.epochs, rows["epoch"].to_numpy())
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
            raise InputError(f"epoch must be one of {_span(self.epochs)}, got {epoch}.")
        rows = self._visible(self._read(lambda index: records.read_epoch(self.path, index, epoch)))
        return SampleTable(records.scores_of(rows, self.classes), self.meta)

    def matrix(self, column: str) -> np.ndarray:
        """A column of all samples and epochs, ``(len(self), len(self.epochs))`` float64, NaN where not seen."""
        _known(column)
        found = np.full((len(self), len(self.epochs)), np.nan)
        for start, block in self.blocks([column]):
            epoch = np.searchsorted(self.epochs, block.table["epoch"].to_numpy())
            found[start + block.code, epoch] = block.column(column)
        return found

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
            _known(value)
        names, group = self.groups(by)
        moments = {value: EpochMoments(len(names), len(self.epochs)) for value in values}
        for start, block in self.blocks(values):
            add_block(moments, block, group[start : start + len(block.ids)], self.epochs)
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
                known = ", ".join(summary.columns)
                raise InputError(f"by must be label or a column of summary() ({known}), got {by!r}.")
            by = summary.to_arrow()[by].combine_chunks()
        return grouped(by, self._ids)

    def summary(self, epochs: tuple[int, int] | None = None) -> SampleTable:
        """One row per sample, over the epochs in which it was seen.

        ``seen`` (how many), ``forgetting`` (times right, then wrong the next time), ``learned`` (first epoch in which
        it was right; null if never), ``aum`` (mean logit margin), ``confidence`` and ``variability`` (mean and
        standard deviation of the label's probability), ``correctness`` (share of epochs in which it was right), and
        the means ``el2n, avh, angle, norm, nll``; ``pred`` is the last prediction.

        ``aum``, ``nll`` and ``norm`` have no bounds, and one epoch in which logits explode would decide their means
        alone: an epoch in which margins (or norms) are more than ten times as large as in the median epoch is scaled
        down to it in them.

        Args:
            epochs: First and last epoch to look at, (1, 10) for instance; all if None.
        """
        whole, ids, sizes = Summary(), [pa.array([], pa.string())], Sizes()
        selected = [int(e) for e in self.epochs if epochs is None or epochs[0] <= e <= epochs[1]]
        for _, block in self.blocks(["margin", "norm"]):
            rows = np.isin(epoch := block.table["epoch"].to_numpy(), selected)
            sizes.add(epoch[rows], {name: block.column(name)[rows] for name in ("margin", "norm")})
        factors = sizes.factors()
        for _, block in self.blocks([*MEANS, "label", "pred"]):
            whole = whole.joined(summarise(block, selected, factors)[0])
            ids.append(block.ids)
        return whole.table(pa.concat_arrays(ids), self.meta)

    def __repr__(self) -> str:
        return f"Dynamics({str(self.path)!r}: {self.unit}s {_span(self.epochs)})"


def _known(column: str) -> None:
    if column not in COLUMNS:
        raise InputError(f"records have no column {column!r}; {did_you_mean(column, COLUMNS)}")


def _span(epochs: np.ndarray) -> str:
    return f"{epochs[0]}–{epochs[-1]}" if len(epochs) else "none"
