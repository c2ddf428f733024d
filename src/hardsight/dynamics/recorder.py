"""The recorder: every sample's angles, margin, norm and prediction, epoch by epoch, from any training loop."""

from __future__ import annotations

import copy
import secrets
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
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
from hardsight.distributed import by_first_process, joined_job
from hardsight.dynamics.batches import NO_ROWS, Batches, Rows, joined
from hardsight.dynamics.decomposition import Logits, swapped_losses
from hardsight.dynamics.dynamics import Dynamics
from hardsight.dynamics.ids import as_text, first_rows, numbered
from hardsight.errors import ExistingPathError, HardsightError, InputError, StateError
from hardsight.extras import printable
from hardsight.printing import Result
from hardsight.registry import whole_number
from hardsight.runs import DYNAMICS, Meta, ModelInfo, Recorded, RunWriter, meta_of, provenance
from hardsight.runs.files import write_together
from hardsight.table import SampleTable

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
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if joined_job() else (0, 1)
        self._started, self._steps = time.time(), 0
        self._batches = Batches()
        self._shape: tuple[int, int] | None = None  # classes and width of the head; 0 where not known yet
        self._module: Any = None
        self._counts = {"repeated": 0, "unlabelled": 0, "bad": 0, "refused": 0}
        self._data_ids = None if samples is None else pa.array(samples.ids, pa.string())  # integers are their indices
        # Of all samples, in the order of their ids: the label, the last epoch in which each came, the last logits.
        self._ids, self._labels = pa.array([], pa.string()), np.zeros(0, np.int64)
        self._last_epoch = np.zeros(0, np.int32)
        self._logits: Logits | None = None
        self._pending: Rows | None = None  # rows of the epoch that are not on disk yet because a commit failed
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
        self._restore()

    def _restore(self) -> None:
        """Take ids, labels and the last logits from what is committed."""
        self._steps = max(self._index.steps.values(), default=0)
        ids, labels, first, last = [self._ids], [self._labels], [self._last_epoch], [self._last_epoch]
        for block in records.blocks(self.path, columns=["label"]):
            starts = np.searchsorted(block.code, np.arange(len(block.ids) + 1))
            epoch = block.table["epoch"].to_numpy()
            ids.append(block.ids)
            labels.append(block.table["label"].to_numpy()[starts[:-1]].astype(np.int64))
            first.append(epoch[starts[:-1]])
            last.append(epoch[starts[1:] - 1])
        self._ids, self._labels = pa.concat_arrays(ids), np.concatenate(labels)
        self._last_epoch = np.concatenate(last)
        self._logits = self._stored_logits(np.concatenate(first) < self.epoch)
        heads = records.read_heads(self.path, self._index)
        if len(heads):
            self._shape = (int(heads["class"].to_numpy().max()) + 1, meta_of(self.path).model.features or 0)

    def _stored_logits(self, before: np.ndarray) -> Logits | None:
        """What this epoch is compared with; of samples that were flushed since, it is lost.

        Args:
            before: Which samples came in an epoch before this one: the file holds those, in their order.
        """
        name = self._index.states.get(str(self.epoch - 1))
        stored = None if name is None else Logits.load(self.path / DYNAMICS / name)
        if stored is None or len(stored.head) != before.sum():
            return None
        logits = Logits.unknown(len(before), stored.cosines.shape[1]).updated(np.flatnonzero(before), stored)
        logits.head[self._last_epoch == self.epoch] = -1
        return logits

    # In the loop.

    def update(self, ids: Any, head: HeadLike, labels: Any) -> None:
        """Record a batch; call it after the forward and before the optimizer's step.

        Args:
            ids: One per sample: strings, or integers (a list or a tensor), which are indices of the data.
            head: What `hardsight.capture` yields, or anything with `features`, `weight` and `bias`.
            labels: ``(N,)`` class indices; samples with a negative one are not recorded.
        """
        features, weight, bias = head.features, head.weight, head.bias
        if not isinstance(labels, Tensor):
            try:
                labels = torch.tensor(labels)
            except (TypeError, ValueError, RuntimeError):
                raise InputError(f"labels must be class indices, got {printable(labels)[:80]}.") from None
        labels = labels.to(features.device)
        self._check(ids, features, weight, labels, getattr(head, "_module", None))
        if features.shape[0]:
            self._batches.add(ids, features, weight, bias, labels)
            self._steps += 1

    def _check(self, ids: Any, features: Tensor, weight: Tensor, labels: Tensor, module: Any) -> None:
        n, (classes, width) = features.shape[0], weight.shape
        if labels.shape != (n,) or labels.is_floating_point():
            raise InputError(
                f"labels must be ({n},) class indices, got {labels.dtype} {tuple(labels.shape)}; "
                "soft labels have no target to record."
            )
        if isinstance(ids, (str, bytes)) or not hasattr(ids, "__len__") or len(ids) != n:
            raise InputError(f"ids must name each of the {n} samples of the batch, got {printable(ids)[:80]}.")
        if isinstance(ids, (Tensor, np.ndarray)) and (ids.ndim != 1 or "float" in str(ids.dtype)):
            raise InputError(f"ids must be ({n},) integers or strings, got {ids.dtype} {tuple(ids.shape)}.")
        if features.ndim != 2 or features.shape[1] != width:
            raise InputError(f"features must be ({n}, {width}), as wide as the weight, got {tuple(features.shape)}.")
        if classes < 2:
            raise InputError(f"weight must hold at least 2 classes, got {classes}.")
        previous = self._shape or (classes, width)
        new_module = self._module is not None and module is not None and module is not self._module
        if classes != previous[0] or previous[1] not in (0, width) or (new_module and not self._resembles(weight)):
            raise InputError(
                f"the head was replaced in {self._meta.unit} {self.epoch} (it had {previous[0]} classes × "
                f"{previous[1] or '?'} features, now {classes} × {width}): its angles cannot be compared with those "
                "before. Record it in another run."
            )
        self._shape, self._module = (classes, width), module

    def _resembles(self, weight: Tensor) -> bool:
        """Whether a head is a copy of the last one (averaged weights, a reloaded model), not newly initialized."""
        last = self._batches.last_weight
        if last is None or last.shape != weight.shape:
            return last is None
        last, weight = as_float64(last).flatten(), as_float64(weight.detach().to(last.device)).flatten()
        return bool(torch.nn.functional.cosine_similarity(last, weight, dim=0) >= _SAME_HEAD)

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
        parts = self._gathered()
        warning = by_first_process(lambda: self._write(parts, end))
        if warning and self._rank == 0:
            warnings.warn(warning, UserWarning, stacklevel=3)

    def _gathered(self) -> list[Any]:
        """What came since the last commit, on the host: from all processes on the first one, nothing on the others.

        A process may have an error instead of rows: it is raised once all have met, so that none waits for another.
        """
        try:
            rows: Any = self._batches.rows()
        except HardsightError as error:
            rows = error
        if self._world == 1:
            return [rows]
        parts: list[Any] | None = [None] * self._world if self._rank == 0 else None
        dist.gather_object(rows, parts)
        # A thread of torch lets go of what it sent after this process has gone on: should it end then, torch aborts.
        dist.barrier()
        return parts or []

    def _write(self, parts: list[Any], end: bool) -> str | None:
        """Commit rows and return a warning. Until they are on disk nothing else changes: the call can be repeated."""
        fresh = joined([part for part in parts if isinstance(part, Rows)] or [NO_ROWS])
        if len(fresh.ids):
            rows = joined([self._pending or NO_ROWS, self._sound(fresh)])
            self._pending = rows._replace(head=fresh.head)
        if errors := [part for part in parts if not isinstance(part, Rows)]:
            raise errors[0]
        if self._pending is None and not end:
            return None
        if self._pending is None and self.epoch not in self._index.epochs:
            raise StateError(f"{self._meta.unit} {self.epoch} ends without a sample: call update() before.")
        if records.read_index(self.path).owner != self._index.owner:
            raise StateError(f"another recorder writes into {self.path}; give each a folder of its own.")
        rows = self._pending or NO_ROWS
        if rows.head is not None and self._shape is None:  # only other processes have had samples so far
            self._shape = (rows.head.shape[1], 0)
        texts = as_text(rows.ids, self.split, self._data_ids)
        classes = self._shape[0] if self._shape else 0
        self._refuse(rows, texts, texts.is_null(), f"ids must be indices of data, below {len(self._data_ids or ())}")
        self._refuse(rows, texts, rows.labels >= classes, f"labels must lie in [0, {classes - 1}], the head's classes")
        ids, places, at = numbered(self._ids, texts)
        labels, last_epoch = np.full(len(ids), -1), np.zeros(len(ids), np.int32)
        labels[places], last_epoch[places] = self._labels, self._last_epoch
        first, new = first_rows(at, len(ids)), labels < 0
        labels[new] = rows.labels[first[new]]
        wrong = labels[at] != rows.labels
        wrong |= np.isin(at, at[wrong & new[at]])  # of a new id nobody can tell which sample it means
        self._refuse(
            rows, texts, wrong, "ids collide: every sample needs its own (its index in the data set, not in the batch)"
        )

        recorded = np.flatnonzero((first >= 0) & (last_epoch != self.epoch))  # each sample once per epoch
        repeated, rows = len(rows.ids) - len(recorded), rows.take(first[recorded])
        last_epoch[recorded] = self.epoch
        logits = self._compare(rows, places, recorded, len(ids))
        table = self._table(rows, ids.take(pa.array(recorded)))

        index = copy.deepcopy(self._index)
        write_together(
            lambda: records.write_rows(self.path, index, table),
            lambda: None if rows.head is None else records.write_head(self.path, index, self.epoch, rows.head),
            lambda: self._write_logits(index, logits if end else None),
        )
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

    def _sound(self, rows: Rows) -> Rows:
        """Without samples that have no label (a negative one) or broken numbers: they are left out, and counted."""
        labeled = rows.labels >= 0
        finite = np.logical_and.reduce([np.isfinite(column) for column in rows.values.values()])
        self._counts["unlabelled"] += int((~labeled).sum())
        if bad := int((~finite).sum()):
            self._counts["bad"] += bad
            self._warning = (
                f"{bad:,} of {len(finite):,} samples of {self._meta.unit} {self.epoch} have features or logits that "
                "are NaN or infinite; they are left out."
            )
        return rows.take(np.flatnonzero(labeled & finite))

    def _refuse(self, rows: Rows, texts: pa.Array, refused: Any, reason: str) -> None:
        """Raise an error about some rows, if any. The others stay, so that the same call, repeated, commits them."""
        refused = np.asarray(refused)
        if self._pending is None or not refused.any():
            return
        first, count = int(refused.argmax()), int(refused.sum())
        id_ = printable(texts[first].as_py() if texts[first].is_valid else str(rows.ids[first]))
        self._pending = self._pending.take(np.flatnonzero(~refused))
        self._counts["refused"] += count
        raise InputError(
            f"{reason}, got {id_!r} with the label {rows.labels[first]}. The same call again records {self._meta.unit} "
            f"{self.epoch} without {count:,} such samples."
        )

    def _compare(self, rows: Rows, places: np.ndarray, at: np.ndarray, count: int) -> Logits | None:
        """Add the losses with swapped norms to rows, and return the logits that the next epoch is compared with.

        Args:
            rows: One row per sample, at places `at` among `count` samples.
            places: Where the samples that came before lie among them.
        """
        if not len(rows.ids) or rows.logits is None:  # everything was flushed before, or there are too many
            return self._logits if not len(rows.ids) else None
        old = self._logits or Logits.unknown(0, rows.logits.cosines.shape[1])
        if count != len(old.head):
            old = Logits.unknown(count, rows.logits.cosines.shape[1]).updated(places[: len(old.head)], old)
        rows.values.update(swapped_losses(old.take(at), rows.logits, rows.labels))
        return old.updated(at, rows.logits)

    def _table(self, rows: Rows, ids: pa.Array) -> pa.Table:
        """Rows, which are in the order of their ids, as they are stored."""
        integers = {"epoch": np.full(len(ids), self.epoch), "label": rows.labels, "pred": rows.values["pred"]}
        columns: dict[str, Any] = {name: pa.array(v.astype(np.int32)) for name, v in integers.items()}
        for name, bits in records.BITS.items():
            if name in rows.values:
                columns[name] = pa.array(records.rounded(rows.values[name], bits), from_pandas=True)
        return pa.table({"id": ids, **columns})

    def _write_logits(self, index: records.Index, logits: Logits | None) -> None:
        """Write what the next epoch is compared with, for a recorder that resumes."""
        states = index.states
        if logits is not None:
            states[str(self.epoch)] = records.write_file(self.path, "safetensors", logits.save)
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
