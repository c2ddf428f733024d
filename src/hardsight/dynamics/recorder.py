"""The recorder: every sample's angles, margin, norm and prediction, epoch by epoch, from any training loop."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from hardsight.angles import as_float64
from hardsight.data import open_data
from hardsight.distributed import by_first_process, rank_and_world
from hardsight.dynamics.batches import STORED, Batches, Rows, joined, numbered
from hardsight.dynamics.decomposition import compared, load_logits, save_logits
from hardsight.dynamics.dynamics import Dynamics
from hardsight.errors import ExistingPathError, HardsightError, InputError, StateError
from hardsight.extras import printable
from hardsight.printing import Result
from hardsight.records import BITS, MOST_EPOCHS, Index, Records, read_index, rounded
from hardsight.registry import whole_number
from hardsight.runs import Meta, ModelInfo, Recorded, RunWriter, meta_of, provenance, write_together
from hardsight.stores import local_path
from hardsight.table import SampleTable
from hardsight.triple import as_tensor, check_triple

UNNAMED = "a network in training"
# Cosine between the weights of two heads: about 1 for a copy, about 0 for a newly initialized head.
_SAME_HEAD = 0.5
_NO_IDS = pa.array([], pa.string())


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

    `update` keeps its batch and reads several together, so a step never waits. `end_epoch` commits: killed at any
    point, the run holds all epochs that had ended. Under `torch.distributed` the first process gathers and writes; a
    sample that a padded sampler shows to two processes is counted once.

    Args:
        run: Folder to write.
        epoch: The epoch that begins now, counted from 1. Needed where the folder already holds epochs: those from
            this one on are deleted, so that a loop resumed from its own checkpoint records nothing twice. An epoch
            that `flush` left unfinished is resumed instead.
        overwrite: Delete an existing run.
        split: The prefix of integer ids if no `data` are given: 17 becomes ``data:17``.
        unit: What lies between two calls of `end_epoch`, for axes and text.
        name: What is trained, for titles.
        class_names: Names of the classes.
        data: What is recorded, as `hardsight.open_data` takes it. Integers are then indices of these data and get the
            ids that the samples have there, so that a page finds names and images.
        held_out: Whether the network never learns from these samples: test data.
        note: A description of what was recorded: training batches, or a pass in eval mode.

    Examples:
        >>> import tempfile, torch
        >>> from hardsight import capture
        >>> model, x, y = torch.nn.Linear(2, 2), torch.eye(2), torch.tensor([0, 1])
        >>> with tempfile.TemporaryDirectory() as folder, capture(model) as head:
        ...     recorder = Recorder(folder)
        ...     for _ in range(3):
        ...         _ = model(x)
        ...         recorder.update([0, 1], head, y)
        ...         recorder.end_epoch()
        ...     table = recorder.summary()
        >>> table["id"].tolist(), table["seen"].tolist()
        (['data:0', 'data:1'], [3, 3])
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
        epoch = None if epoch is None else whole_number("epoch", epoch, 1, MOST_EPOCHS)
        samples = None if data is None else open_data(data)
        self.path, self.split, self.epoch = local_path(run), split if samples is None else samples.split, epoch or 1
        entries: dict[str, Any] = {"unit": unit, "class_names": list(class_names or ()), "note": note}
        entries |= {"data": {"split": self.split}, "out_of_sample": "test data" if held_out else None}
        if samples is not None:
            entries |= {"class_names": list(class_names or samples.classes or ()), "source": samples.source}
            entries["data"]["origin"] = samples.origin
        self._meta, self._name = Meta.from_json({**provenance(), **entries}), name
        self._rank, self._world = rank_and_world()
        self._started, self._steps = time.time(), 0
        self._batches, self._data_ids = Batches(), None if samples is None else pa.array(samples.ids, pa.string())
        self._shape: tuple[int, int] | None = None  # classes and width of the head; 0 where not known yet
        self._module: Any = None
        self._counts = {"repeated": 0, "unlabelled": 0, "bad": 0, "refused": 0}
        self._ids, self._labels = _NO_IDS, np.zeros(0, np.int64)  # of all samples, sorted by id
        self._flushed = _NO_IDS  # samples whose row of this epoch is on disk
        self._logits: Rows | None = None  # the last ones of each sample, which the next are compared with
        self._pending: Rows | None = None  # rows of the epoch that are not on disk yet because a commit failed
        by_first_process(lambda: self._begin(epoch, overwrite))

    def __repr__(self) -> str:
        return self._line(self.path, f"{self._meta.unit} {self.epoch}", f"{len(self._ids):,} samples")

    def _begin(self, epoch: int | None, overwrite: bool) -> None:
        """Lock the folder, forget the epochs that are recorded again, and restore what the others left."""
        plan = {"recorder": {"split": self.split, "unit": self._meta.unit}}
        self._writer = RunWriter(self.path, plan, overwrite=overwrite)
        self._records = Records(self.path, Index() if overwrite else read_index(self.path))
        index = self._records.index
        last = len(index.epochs)
        if last and epoch is None:
            raise ExistingPathError(
                f"run: {self.path} already holds epochs 1–{last}. Give epoch={last + 1} to continue after them (or the "
                "epoch you resume at), overwrite=True to start over, or another folder."
            )
        if self.epoch > last + 1:
            holds = f"epochs up to {last}" if last else "none"
            raise InputError(f"epoch={self.epoch} would leave a gap: {self.path} holds {holds}; give epoch={last + 1}.")
        if self.epoch < last or (self.epoch == last and not index.open):
            self._records.drop_from(self.epoch)
        index.owner = secrets.token_hex(8)
        self._records.commit()
        if not index.epochs:
            return
        self._steps, model = max(index.steps.values(), default=0), meta_of(self.path).model
        self._shape = (model.classes, model.features or 0) if model.classes else None
        self._ids, self._labels = self._records.samples()
        self._flushed = self._records.block((), epochs=(self.epoch, self.epoch)).ids
        if name := index.states.get(str(self.epoch - 1)):
            before = self._records.samples(epochs=(1, self.epoch - 1))[0] if len(self._flushed) else self._ids
            logits = load_logits(self._records.folder / name, before)
            self._logits = None if logits is None else logits.without(self._flushed)  # whose logits are lost

    def update(self, ids: Any, head: Any, labels: Any) -> None:
        """Record a batch; call it after the forward and before the optimizer's step.

        Args:
            ids: One per sample: strings, or integers (a list or a tensor), which are indices of the data.
            head: What `hardsight.capture` yields, or anything with `features`, `weight` and `bias`.
            labels: ``(N,)`` class indices; samples with a negative one are not recorded.
        """
        features, weight, bias = head.features, head.weight, head.bias
        check_triple(features, weight, None, bias, finite=False, finite_head=False)
        labels = as_tensor("labels", labels).to(features.device, copy=not isinstance(labels, Tensor))
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
        """Refuse another head; a copy of the last one (averaged weights, a reloaded model) is accepted."""
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
            draft = self._records.draft()
            draft.compact(everything=True)
            draft.commit()
            self._records = draft
            self._writer.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def summary(self) -> SampleTable:
        """One row per sample over all committed epochs, read from disk: `Dynamics.summary` of this run."""
        if self._rank:
            raise StateError("summary() works in the first process only; call it where the rank is 0.")
        return Dynamics(self.path).summary()

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
        by_first_process(lambda: self._write(parts, end))

    def _write(self, parts: list[Any], end: bool) -> None:
        """Commit rows. Until they are on disk nothing else changes, so that the call can be repeated."""
        self._receive([part for part in parts if isinstance(part, Rows)])
        if errors := [part for part in parts if isinstance(part, HardsightError)]:
            raise errors[0]
        if self._pending is None and not end:
            return
        if self._pending is None and self.epoch not in self._records.index.epochs:
            raise StateError(f"{self._meta.unit} {self.epoch} ends without a sample: call update() before.")
        if read_index(self.path).owner != self._records.index.owner:
            raise StateError(f"another recorder writes into {self.path}; give each a folder of its own.")
        draft, logits, repeated, writers = self._records.draft(), self._logits, 0, []
        ids, labels, flushed = self._ids, self._labels, self._flushed
        if self._pending is not None:
            ids, labels, rows = self._unrecorded(self._pending)
            repeated, flushed = len(self._pending.ids) - len(rows.ids), pa.concat_arrays([flushed, rows.ids])
            if "cosines" in rows.columns:
                losses, logits = compared(logits, rows)
                rows.columns.update(losses)
            elif len(rows.ids):  # there are too many
                logits = None
            columns = {"id": rows.ids, "epoch": np.full(len(rows.ids), self.epoch), "label": rows.columns["label"]}
            columns["pred"] = rows.columns["pred"].astype(np.int32)
            for name in BITS.keys() & rows.columns.keys():
                columns[name] = pa.array(rounded(rows.columns[name], BITS[name]), from_pandas=True)
            writers.append(partial(draft.write_rows, pa.table(columns)))
            writers.append(partial(draft.write_head, self.epoch, rows.heads[:, -1]))
        index = draft.index
        if end and logits is not None:
            # Two are kept: a loop may resume an epoch behind the recorder.
            index.states = {key: name for key, name in index.states.items() if key == str(self.epoch - 1)}
            writers.append(partial(draft.write_state, self.epoch, partial(save_logits, logits, ids)))
        write_together(*writers)
        index.epochs = [*range(1, self.epoch + 1)]
        index.open, index.steps[str(self.epoch)] = not end, self._steps
        draft.compact()
        draft.commit()
        self._records, self._logits, self._pending = draft, logits, None
        self._ids, self._labels, self._flushed = ids, labels, _NO_IDS if end else flushed
        self._counts["repeated"] += repeated
        classes, width = self._shape or (0, 0)
        recorded = Recorded(len(ids), index.epochs, **self._counts)
        model, seconds = ModelInfo(self._name, classes, width), round(time.time() - self._started, 2)
        self._writer.finish(replace(self._meta, model=model, recorded=recorded, seconds=seconds))

    def _receive(self, parts: list[Rows]) -> None:
        """Add rows to those that wait. Samples with a negative label or with broken numbers are only counted."""
        if not parts:
            return
        rows = joined(parts)
        labeled = rows.columns["label"] >= 0
        finite = np.logical_and.reduce([np.isfinite(rows.columns[name]) for name in STORED])
        bad = int((~finite).sum())
        self._counts["unlabelled"] += int((~labeled).sum())
        self._counts["bad"] += bad
        rows = rows.take(np.flatnonzero(labeled & finite))
        self._pending = rows if self._pending is None else joined([self._pending, rows])
        if bad:
            warnings.warn(
                f"{bad:,} of {len(finite):,} samples of {self._meta.unit} {self.epoch} have features or logits that "
                "are NaN or infinite; they are left out.",
                stacklevel=7,  # the loop
            )

    def _unrecorded(self, rows: Rows) -> tuple[pa.Array, np.ndarray, Rows]:
        """Ids and labels of all samples, with those of these rows, and by id the first row of each sample that the
        epoch does not have yet."""
        classes, given = rows.heads.shape[2], rows.columns["label"]
        self._shape = self._shape or (classes, 0)  # only other processes may have had samples so far
        self._refuse(rows.columns["outside"], f"ids must be indices of data, below {len(self._data_ids or ())}")
        self._refuse(given >= classes, f"labels must lie in [0, {classes - 1}], the head's classes")
        ids, old, at = numbered(self._ids, rows.ids)
        labels = np.full(len(ids), -1)
        labels[old] = self._labels
        new, (place, first) = labels < 0, np.unique(at, return_index=True)
        labels[place] = np.where(new[place], given[first], labels[place])
        wrong = labels[at] != given
        wrong |= np.isin(at, at[wrong & new[at]])  # which sample a new id means is ambiguous
        self._refuse(wrong, "ids collide: every sample needs its own (its index in the data set, not in the batch)")
        return ids, labels, rows.take(first).without(self._flushed)

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
