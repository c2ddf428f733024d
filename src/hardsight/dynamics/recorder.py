"""The recorder: every sample's angles, margin, norm and prediction, epoch by epoch, from any training loop."""

from __future__ import annotations

import copy
import secrets
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from hardsight import records
from hardsight.angles import as_float64
from hardsight.data import open_data
from hardsight.distributed import by_first_process, rank_and_world
from hardsight.dynamics.batches import STORED, Batches, Rows, joined, numbered
from hardsight.dynamics.decomposition import latest, load_logits, save_logits, swapped_losses
from hardsight.dynamics.dynamics import Dynamics
from hardsight.errors import ExistingPathError, HardsightError, InputError, StateError
from hardsight.extras import printable
from hardsight.printing import Result
from hardsight.registry import whole_number
from hardsight.runs import DYNAMICS, Meta, ModelInfo, Recorded, RunWriter, meta_of, provenance
from hardsight.runs.files import write_together
from hardsight.table import SampleTable
from hardsight.triple import check_triple

# Cosine between the weights of two heads: about 1 for a copy, about 0 for a newly initialized head.
_SAME_HEAD = 0.5


class HeadLike(Protocol):
    """What `hardsight.capture` yields, or anything with the same three names."""

    @property
    def features(self) -> Tensor: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def bias(self) -> Tensor | None: ...


UNNAMED = "a network in training"


class Recorder(Result):
    """Records the scores of each sample in every epoch, in any training loop.

    ::

        recorder = hs.Recorder("run")
        with hs.capture(model) as head:
            for epoch in range(epochs):
                for ids, images, labels in loader:
                    loss = F.cross_entropy(model(images), labels)
                    recorder.update(ids, head, labels)
                    ...
                recorder.end_epoch()

    `update` keeps its batch and reads several together, so that a step waits for nothing. `end_epoch` commits: killed
    at any point, the run holds all epochs that had ended. Under `torch.distributed` the first process gathers and
    writes; a sample that a padded sampler shows to two processes is counted once.

    Args:
        run: Folder to write.
        epoch: The epoch that begins now, counted from 1. Needed where the folder already holds epochs: those from
            this one on are deleted, so that a loop resumed from its own checkpoint records nothing twice. An epoch
            that `flush` left unfinished is resumed instead.
        overwrite: Delete the run that is there.
        split: The prefix of integer ids if no `data` are given: 17 becomes ``data:17``.
        unit: What lies between two calls of `end_epoch`, for axes and text.
        name: What is trained, for titles.
        class_names: Names of the classes.
        data: What is recorded, as `hardsight.open_data` takes it. Integers are then indices of these data and get the
            ids that the samples have there, so that a page finds names and images.
        held_out: Whether the network never learns from these samples: test data.
        note: A description of what was recorded: training batches, or a pass in eval mode.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        epoch: int | None = None,
        overwrite: bool = False,
        split: str = "data",
        unit: str = "epoch",
        name: str = UNNAMED,
        class_names: Sequence[str] | None = None,
        data: Any = None,
        held_out: bool = False,
        note: str | None = None,
    ) -> None:
        epoch = None if epoch is None else whole_number("epoch", epoch, 1, records.MOST_EPOCHS)
        samples = None if data is None else open_data(data)
        self.path, self.split, self.epoch = Path(run), split if samples is None else samples.split, epoch or 1
        self._meta = Meta.from_json(
            {
                **provenance(),
                "unit": unit,
                "class_names": list(class_names or (None if samples is None else samples.classes) or ()),
                "source": None if samples is None else samples.source,
                "data": {"split": self.split, "origin": None if samples is None else samples.origin},
                "out_of_sample": "test data" if held_out else None,
                "note": note,
            }
        )
        self._name = name
        self._rank, self._world = rank_and_world()
        self._started, self._steps = time.time(), 0
        self._batches = Batches()
        self._shape: tuple[int, int] | None = None  # classes and width of the head; 0 where not known yet
        self._module: Any = None
        self._counts = {"repeated": 0, "unlabelled": 0, "bad": 0, "refused": 0}
        self._data_ids = None if samples is None else pa.array(samples.ids, pa.string())  # integers are their indices
        # Of all samples, in the order of their ids: the label and the last epoch in which each came.
        self._ids, self._labels = pa.array([], pa.string()), np.zeros(0, np.int64)
        self._last_epoch = np.zeros(0, np.int32)
        self._logits: Rows | None = None  # the last ones of each sample, which the next are compared with
        self._pending: Rows | None = None  # rows of the epoch that are not on disk yet because a commit failed
        self._head: np.ndarray | None = None  # norms and biases (2, C) of the class weights of the last batch
        self._warning: str | None = None
        by_first_process(lambda: self._begin(epoch, overwrite))

    def __repr__(self) -> str:
        return self._line(self.path, f"{self._meta.unit} {self.epoch}", f"{len(self._ids):,} samples")

    def _begin(self, epoch: int | None, overwrite: bool) -> None:
        plan = {"recorder": {"split": self.split, "unit": self._meta.unit}}
        self._writer = RunWriter(self.path, plan, overwrite=overwrite)
        self._index = records.Index() if overwrite else records.read_index(self.path)
        recorded = self._index.epochs
        if recorded and epoch is None:
            raise ExistingPathError(
                f"run: {self.path} already holds epochs {recorded[0]}–{recorded[-1]}. Give epoch={recorded[-1] + 1} to "
                "continue after them (or the epoch you resume at), overwrite=True to start over, or another folder."
            )
        last = recorded[-1] if recorded else 0
        if self.epoch > last + 1:
            holds = f"epochs up to {last}" if last else "none"
            raise InputError(f"epoch={self.epoch} would leave a gap: {self.path} holds {holds}; give epoch={last + 1}.")
        if self.epoch <= last and not (self._index.open and self.epoch == last):
            records.drop_from(self.path, self._index, self.epoch)
        self._index.owner = secrets.token_hex(8)
        records.commit(self.path, self._index)
        if self._index.epochs:
            self._restore()

    def _restore(self) -> None:
        """Take ids, labels and the last logits from what is committed."""
        self._steps = max(self._index.steps.values(), default=0)
        parts = []
        for block in records.blocks(self.path, columns=["label"]):
            starts = np.searchsorted(block.code, np.arange(len(block.ids) + 1))
            epoch, label = (block.table[name].to_numpy() for name in ("epoch", "label"))
            parts.append((block.ids, label[starts[:-1]].astype(np.int64), epoch[starts[:-1]], epoch[starts[1:] - 1]))
        ids, labels, first, last = zip(*parts, strict=True)
        self._ids, self._labels, self._last_epoch = pa.concat_arrays(ids), np.concatenate(labels), np.concatenate(last)
        if heads := records.read_heads(self.path, self._index)["class"].to_pylist():
            self._shape = (max(heads) + 1, meta_of(self.path).model.features or 0)
        if name := self._index.states.get(str(self.epoch - 1)):
            before = np.flatnonzero(np.concatenate(first) < self.epoch)  # of these samples the file holds the logits
            if (logits := load_logits(self.path / DYNAMICS / name, len(before))) is not None:
                logits.columns["place"] = before[logits.columns["place"]]
                flushed = self._last_epoch[logits.columns["place"]] == self.epoch  # their logits are lost
                self._logits = logits.take(np.flatnonzero(~flushed))

    # In the loop.

    def update(self, ids: Any, head: HeadLike, labels: Any) -> None:
        """Record a batch; call it after the forward and before the optimizer's step.

        Args:
            ids: One per sample: strings, or integers (a list or a tensor), which are indices of the data.
            head: What `hardsight.capture` yields, or anything with `features`, `weight` and `bias`.
            labels: ``(N,)`` class indices; samples with a negative one are not recorded.
        """
        features, weight, bias = head.features, head.weight, head.bias
        check_triple(features, weight, None, bias, finite=False, finite_head=False)
        try:
            labels = torch.as_tensor(labels).to(features.device, copy=not isinstance(labels, Tensor))
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"labels must be class indices, got {printable(labels)[:80]}.") from None
        if labels.shape != (n := len(features),) or labels.is_floating_point():
            raise InputError(
                f"labels must be ({n},) class indices, got {labels.dtype} {tuple(labels.shape)}; "
                "soft labels have no target to record."
            )
        if isinstance(ids, (str, bytes)) or not hasattr(ids, "__len__") or len(ids) != n:
            raise InputError(f"ids must name each of the {n} samples of the batch, got {printable(ids)[:80]}.")
        if isinstance(ids, (Tensor, np.ndarray)) and (ids.ndim != 1 or "float" in str(ids.dtype)):
            raise InputError(f"ids must be ({n},) integers or strings, got {ids.dtype} {tuple(ids.shape)}.")
        self._check_head(weight, getattr(head, "_module", None))
        if n:
            self._batches.add(ids, features, weight, bias, labels)
            self._steps += 1

    def _check_head(self, weight: Tensor, module: Any) -> None:
        """Refuse another head; a copy of the last one (averaged weights, a reloaded model) is none."""
        shape, last = (weight.shape[0], weight.shape[1]), self._batches.last_weight
        classes, width = self._shape or shape
        replaced = classes != shape[0] or width not in (0, shape[1])
        if not replaced and last is not None and None not in (self._module, module) and module is not self._module:
            last, weight = as_float64(last).flatten(), as_float64(weight.detach().to(last.device)).flatten()
            replaced = bool(torch.nn.functional.cosine_similarity(last, weight, dim=0) < _SAME_HEAD)
        if replaced:
            raise InputError(
                f"the head was replaced in {self._meta.unit} {self.epoch} (it had {classes} classes × {width or '?'} "
                f"features, now {shape[0]} × {shape[1]}): its angles cannot be compared with those before. Record it "
                "in another run."
            )
        self._shape, self._module = shape, module

    # At the end of an epoch.

    def flush(self) -> None:
        """Commit the unfinished epoch so far. A new `Recorder` with this epoch's number resumes it."""
        self._commit(end=False)

    def end_epoch(self) -> None:
        """Commit the epoch and begin the next.

        After an error nothing is lost: the same call again commits what came so far (on a full disk, once there is
        room), without the samples that the error names.
        """
        self._commit(end=True)
        self.epoch += 1

    def close(self) -> None:
        """Compact the files, so that each sample's curve lies in one place: not needed, but it makes reading faster."""
        if self._rank == 0:
            index = copy.deepcopy(self._index)
            records.compact(self.path, index, everything=True)
            records.commit(self.path, index)
            self._index = index
            self._writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _commit(self, end: bool) -> None:
        """Gather what came since the last commit in the first process, which writes it."""
        try:
            rows: Any = self._batches.rows(self.split, self._data_ids)
        except HardsightError as error:  # raised once all processes have come here, so that none waits for another
            rows = error
        parts: list[Any] = [rows]
        if self._world > 1:
            parts = [None] * self._world
            dist.gather_object(rows, parts if self._rank == 0 else None)
            dist.barrier()  # torch aborts if a process ends while one of its threads still holds what was sent
        warning = by_first_process(lambda: self._write(parts, end))
        if warning and self._rank == 0:
            warnings.warn(warning, UserWarning, stacklevel=3)

    def _write(self, parts: list[Any], end: bool) -> str | None:
        """Commit rows and return a warning. Until they are on disk nothing else changes: the call can be repeated."""
        self._receive([part for part in parts if isinstance(part, Rows)])
        if errors := [part for part in parts if isinstance(part, HardsightError)]:
            raise errors[0]
        if self._pending is None and not end:
            return None
        if self._pending is None and self.epoch not in self._index.epochs:
            raise StateError(f"{self._meta.unit} {self.epoch} ends without a sample: call update() before.")
        if records.read_index(self.path).owner != self._index.owner:
            raise StateError(f"another recorder writes into {self.path}; give each a folder of its own.")
        index, logits, repeated, writers = copy.deepcopy(self._index), self._logits, 0, []
        ids, labels, last_epoch = self._ids, self._labels, self._last_epoch
        if self._pending is not None and self._head is not None:
            classes = self._pending.heads.shape[2]
            self._shape = self._shape or (classes, 0)  # only other processes may have had samples so far
            outside, given = self._pending.columns["outside"], self._pending.columns["label"]
            self._refuse(outside, f"ids must be indices of data, below {len(self._data_ids or ())}")
            self._refuse(given >= classes, f"labels must lie in [0, {classes - 1}], the head's classes")
            ids, places, at = numbered(self._ids, self._pending.ids)
            labels, last_epoch = np.full(len(ids), -1), np.zeros(len(ids), np.int32)
            labels[places], last_epoch[places] = self._labels, self._last_epoch
            first, new = np.full(len(ids), -1), labels < 0
            first[at[::-1]] = np.arange(len(at))[::-1]  # of equal places the last one written stays
            labels[new] = given[first[new]]
            wrong = labels[at] != given
            wrong |= np.isin(at, at[wrong & new[at]])  # of a new id nobody can tell which sample it means
            self._refuse(wrong, "ids collide: every sample needs its own (its index in the data set, not in the batch)")

            recorded = np.flatnonzero((first >= 0) & (last_epoch != self.epoch))  # each sample once per epoch
            repeated, rows = len(at) - len(recorded), self._pending.take(first[recorded])
            last_epoch[recorded], rows.columns["place"] = self.epoch, recorded
            if len(recorded) and "cosines" not in rows.columns:  # there are too many
                logits = None
            elif len(recorded):
                if logits is not None:  # new ids have moved it
                    logits = logits._replace(columns=logits.columns | {"place": places[logits.columns["place"]]})
                rows.columns.update(swapped_losses(logits, rows))
                logits = latest(logits, rows)
            table = self._table(rows)
            writers += [lambda: records.write_rows(self.path, index, table)]
            writers += [lambda: records.write_head(self.path, index, self.epoch, self._head)]
        if end and logits is not None:
            writers += [lambda: self._write_logits(index.states, logits)]
        write_together(*writers)
        index.epochs += [self.epoch] if self.epoch not in index.epochs else []
        index.open, index.steps[str(self.epoch)] = not end, self._steps
        records.compact(self.path, index)
        records.commit(self.path, index)

        self._index, self._ids, self._labels, self._last_epoch = index, ids, labels, last_epoch
        self._logits, self._pending = logits, None
        self._counts["repeated"] += repeated
        self._writer.finish(self._described())
        warning, self._warning = self._warning, None
        return warning

    def _receive(self, parts: list[Rows]) -> None:
        """Add rows to those that wait. Samples without a label (a negative one) or with broken numbers only count."""
        if not parts:
            return
        rows, self._head = joined(parts), parts[0].heads[:, -1]
        labeled = rows.columns["label"] >= 0
        finite = np.logical_and.reduce([np.isfinite(rows.columns[name]) for name in STORED])
        self._counts["unlabelled"] += int((~labeled).sum())
        if bad := int((~finite).sum()):
            self._counts["bad"] += bad
            self._warning = (
                f"{bad:,} of {len(finite):,} samples of {self._meta.unit} {self.epoch} have features or logits that "
                "are NaN or infinite; they are left out."
            )
        rows = rows.take(np.flatnonzero(labeled & finite)) if not (labeled & finite).all() else rows
        self._pending = rows if self._pending is None else joined([self._pending, rows])

    def _refuse(self, refused: np.ndarray, reason: str) -> None:
        """Raise an error about some pending rows, if any. The same call, repeated, commits the others."""
        if self._pending is None or not refused.any():
            return
        rows, first, count = self._pending, int(refused.argmax()), int(refused.sum())
        self._pending = rows.take(np.flatnonzero(~refused))
        self._counts["refused"] += count
        raise InputError(
            f"{reason}, got {printable(rows.ids[first].as_py())!r} with the label {rows.columns['label'][first]}. The "
            f"same call again records {self._meta.unit} {self.epoch} without {count:,} such samples."
        )

    def _table(self, rows: Rows) -> pa.Table:
        """Rows, which are in the order of their ids, as they are stored."""
        integers = {"epoch": np.full(len(rows.ids), self.epoch), **{k: rows.columns[k] for k in ("label", "pred")}}
        columns: dict[str, Any] = {name: pa.array(v.astype(np.int32)) for name, v in integers.items()}
        for name in records.BITS.keys() & rows.columns.keys():
            columns[name] = pa.array(records.rounded(rows.columns[name], records.BITS[name]), from_pandas=True)
        return pa.table({"id": rows.ids, **columns})

    def _write_logits(self, states: dict[str, str], logits: Rows) -> None:
        """Write what the next epoch is compared with, for a recorder that resumes."""
        states[str(self.epoch)] = records.write_file(self.path, "safetensors", partial(save_logits, logits))
        for old in sorted(states, key=int)[:-2]:  # two: a loop may resume an epoch behind the recorder
            del states[old]

    def _described(self) -> Meta:
        classes, width = self._shape or (0, 0)
        return replace(
            self._meta,
            model=ModelInfo(self._name, classes, width),
            recorded=Recorded(len(self._ids), self._index.epochs, **self._counts),
            seconds=round(time.time() - self._started, 2),
        )

    def summary(self) -> SampleTable:
        """One row per sample over all committed epochs, read from disk: `Dynamics.summary` of this run."""
        if self._rank:
            raise StateError("summary() works in the first process only; call it where the rank is 0.")
        return Dynamics(self.path).summary()
