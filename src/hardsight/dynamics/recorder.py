"""The recorder: every sample's angles, margin, norm and prediction, epoch by epoch, from any training loop."""

from __future__ import annotations

import json
import operator
import secrets
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from hardsight import records
from hardsight.data import Samples
from hardsight.dynamics.batches import STORED, Batches, Rows, joined
from hardsight.dynamics.decomposition import Logits, swapped_losses
from hardsight.dynamics.ids import Ids
from hardsight.dynamics.summary import MEANS, Summary, summarise
from hardsight.errors import ExistingPathError, InputError, StateError
from hardsight.extras import printable
from hardsight.provenance import provenance
from hardsight.runfolder import DYNAMICS, RunWriter, disk_in_words, write_whole
from hardsight.table import SampleTable

# Cosine between all weights of two heads: a copy of one has about 1, one begun anew about 0.
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


class Recorder:
    """Records what the head makes of each sample, in any loop.

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
            this one on are forgotten, so that a loop resumed from its own checkpoint records nothing twice. An epoch
            that `flush` left unfinished goes on instead.
        overwrite: Throw away whatever run is there.
        split: What integer ids begin with: 17 becomes ``data:17``; the data's own, where they are given.
        unit: What lies between two calls of `end_epoch`, for axes and words.
        name: What is trained, for titles.
        class_names: Names of the classes.
        data: What is recorded, as `hardsight.open_data` gives it: a page then finds names and pictures.
        held_out: Whether the network never learns from these samples, as with test data.
        note: What was recorded, in words: training batches, or a pass in eval mode.
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
        data: Samples | None = None,
        held_out: bool = False,
        note: str | None = None,
    ) -> None:
        if epoch is not None:
            try:
                epoch = -1 if isinstance(epoch, bool) else operator.index(epoch)
            except TypeError:
                epoch = -1
            if epoch < 1:
                raise InputError("epoch must be a whole number, 1 or more: the epoch that begins now.")
        self.path, self.split, self.epoch = Path(run), split if data is None else data.split, epoch or 1
        self._meta = {
            "unit": unit,
            "class_names": list(class_names or (None if data is None else data.classes) or ()),
            "source": None if data is None else data.source,
            "data": {"split": self.split} | ({"origin": data.origin} if data is not None else {}),
            "out_of_sample": "test data" if held_out else None,
            "note": note,
        }
        self._name = name
        self._rank, self._world = (dist.get_rank(), dist.get_world_size()) if _distributed() else (0, 1)
        self._started, self._steps, self._made = time.time(), 0, provenance()
        self._batches = Batches()
        self._shape: tuple[int, int] | None = None  # classes and width of the head; 0 where not known yet
        self._module: Any = None
        self._counts = {"repeated": 0, "unlabelled": 0, "bad": 0}
        self._ids = Ids(self.split)
        self._summary = Summary()
        self._in_epoch = np.zeros(0, np.int32)  # the last epoch in which each sample was seen
        self._logits: Logits | None = None
        if self._rank == 0:
            self._begin(epoch, overwrite)

    def _begin(self, epoch: int | None, overwrite: bool) -> None:
        plan = {"recorder": {"split": self.split, "unit": self._meta["unit"]}}
        self._writer = RunWriter(self.path, plan, overwrite=overwrite)
        self._index = records.Index() if overwrite else records.read_index(self.path)
        recorded = self._index.epochs
        if recorded and epoch is None:
            raise ExistingPathError(
                f"run: {self.path} already holds epochs {recorded[0]}–{recorded[-1]}. Give epoch={recorded[-1] + 1} to "
                "go on after them (or the epoch you resume at), overwrite=True to begin again, or another folder."
            )
        last = recorded[-1] if recorded else 0
        if self.epoch > last + 1:
            holds = f"epochs up to {last}" if last else "none"
            raise InputError(f"epoch={self.epoch} would leave a gap: {self.path} holds {holds}; give epoch={last + 1}.")
        goes_on = self._index.open and self.epoch == last
        if self.epoch <= last and not goes_on:
            records.drop_from(self.path, self._index, self.epoch)
        self._index.owner = secrets.token_hex(8)
        records.commit(self.path, self._index)
        self._restore()

    def _restore(self) -> None:
        """Sums, numbers of ids and the last logits, from what is committed."""
        self._steps = max(self._index.steps.values(), default=0)
        ids, before = list[str](), [np.zeros(0, bool)]
        for block in records.blocks(self.path, self._index.files, records.needed([*MEANS, "label", "pred"])):
            summary, first, last = summarise(block)
            ids += block.ids.to_pylist()
            before.append(first < self.epoch)
            self._summary, self._in_epoch = self._summary.joined(summary), np.concatenate([self._in_epoch, last])
        self._ids = Ids(self.split, ids)
        self._logits = self._stored_logits(np.concatenate(before))
        heads = records.read_heads(self.path, self._index)
        if len(heads):
            meta = self.path / "meta.json"
            told = json.loads(meta.read_text(encoding="utf-8")).get("model", {}) if meta.is_file() else {}
            self._shape = (int(heads["class"].to_numpy().max()) + 1, int(told.get("features", 0)))

    def _stored_logits(self, before: np.ndarray) -> Logits | None:
        """What the epoch is compared with; of samples that were flushed since, it is gone.

        Args:
            before: Which samples had been seen in an epoch before this one: those are in the file, in their order.
        """
        name = self._index.states.get(str(self.epoch - 1))
        stored = None if name is None else Logits.load(self.path / DYNAMICS / name)
        if stored is None or len(stored.head) != before.sum():
            return None
        logits = Logits.unknown(len(before), stored.cosines.shape[1]).updated(np.flatnonzero(before), stored)
        logits.head[self._in_epoch == self.epoch] = -1
        return logits

    # In the loop.

    def update(self, ids: Any, head: HeadLike, labels: Any) -> None:
        """Record a batch; call it after the forward and before the optimiser's step.

        Args:
            ids: One a sample: texts, or integers (a list or a tensor).
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
            raise InputError(f"ids must be ({n},) integers or texts, got {ids.dtype} {tuple(ids.shape)}.")
        if features.ndim != 2 or features.shape[1] != width:
            raise InputError(f"features must be ({n}, {width}), as wide as the weight, got {tuple(features.shape)}.")
        if classes < 2:
            raise InputError(f"weight must hold at least 2 classes, got {classes}.")
        had = self._shape or (classes, width)
        new_module = self._module is not None and module is not None and module is not self._module
        if classes != had[0] or had[1] not in (0, width) or (new_module and not self._resembles(weight)):
            raise InputError(
                f"the head was replaced in {self._meta['unit']} {self.epoch} (it had {had[0]} classes × "
                f"{had[1] or '?'} features, now {classes} × {width}): its angles do not compare with those before. "
                "Record it in a run of its own."
            )
        self._shape, self._module = (classes, width), module

    def _resembles(self, weight: Tensor) -> bool:
        """Whether a head is a copy of the last one (an average of weights, a model loaded again), not begun anew."""
        last = self._batches.last_weight
        if last is None or last.shape != weight.shape:
            return last is None
        last, weight = last.double().flatten(), weight.detach().to(last.device).double().flatten()
        return bool(torch.nn.functional.cosine_similarity(last, weight, dim=0) >= _SAME_HEAD)

    # At the end of an epoch.

    def flush(self) -> None:
        """Commit what the epoch holds so far; it goes on. A new `Recorder` with this epoch's number goes on with it."""
        self._commit(end=False)

    def end_epoch(self) -> None:
        """Commit the epoch and begin the next."""
        self._commit(end=True)
        self.epoch += 1

    def close(self) -> None:
        """Bring every sample's curve into one place on disk: not needed, but single curves are read faster then."""
        if self._rank == 0:
            records.merge(self.path, self._index, everything=True)
            records.commit(self.path, self._index)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _commit(self, end: bool) -> None:
        rows = self._gathered()
        if rows is None:  # another process writes
            return
        index = self._index
        if not len(rows.ids) and end and self.epoch not in index.epochs:
            raise StateError(f"{self._meta['unit']} {self.epoch} ends without a sample: call update() before.")
        if records.read_index(self.path).owner != index.owner:
            raise StateError(f"another recorder writes into {self.path}; give each a folder of its own.")
        if rows.head is not None and self._shape is None:  # only other processes have seen samples so far
            self._shape = (rows.head.shape[1], 0)
        rows, at = self._numbered(self._sound(rows))
        self._add(rows, at)
        records.write_rows(self.path, index, self._table(rows, at))
        if rows.head is not None:
            self._write_head(rows.head)
        if end:
            self._write_logits()
        index.epochs += [self.epoch] if self.epoch not in index.epochs else []
        index.open, index.steps[str(self.epoch)] = not end, self._steps
        before = index.names()
        records.merge(self.path, index)
        records.commit(self.path, index, keep=before)  # someone may be reading what was merged; it goes with the next
        self._writer.finish(self._described())

    def _gathered(self) -> Rows | None:
        """The epoch's rows on the host: of all processes on the first one, None on the others."""
        rows = self._batches.rows()
        if self._world == 1:
            return rows
        parts: list[Any] | None = [None] * self._world if self._rank == 0 else None
        dist.gather_object(rows, parts)
        # A thread of torch lets go of what it sent after this process has gone on: should it end then, torch aborts.
        dist.barrier()
        return None if parts is None else joined(parts)

    def _numbered(self, rows: Rows) -> tuple[Rows, np.ndarray]:
        """Each sample once an epoch, with the label it always had; and the number of each."""
        classes = self._shape[0] if self._shape else 0
        outside = np.flatnonzero(rows.labels >= classes)
        if len(outside):
            label, id_ = rows.labels[outside[0]], self._ids.text(rows.ids[outside[0]])
            raise InputError(
                f"labels must lie in [0, {classes - 1}] (the head has {classes} classes), got {label} for {id_!r} "
                f"({len(outside):,} such samples)."
            )
        known, found = len(self._ids), self._ids.find(rows.ids)
        at = found.at
        seen, first = np.unique(at, return_index=True)
        labels = np.concatenate([self._summary.label, rows.labels[first[seen >= known]]])
        wrong = np.flatnonzero(labels[at] != rows.labels)
        if len(wrong):
            raise InputError(
                f"ids collide: {self._ids.text(rows.ids[wrong[0]])!r} had the label {labels[at[wrong[0]]]} and now has "
                f"{rows.labels[wrong[0]]}; give every sample an id of its own (its index in the data set, not in the "
                "batch)."
            )
        self._ids.add(found)
        if found.fresh:
            self._summary = self._summary.joined(Summary(len(found.fresh)))
            self._in_epoch = np.concatenate([self._in_epoch, np.zeros(len(found.fresh), np.int32)])
        first = np.sort(first)
        first = first[self._in_epoch[at[first]] != self.epoch]
        self._in_epoch[at] = self.epoch
        self._counts["repeated"] += len(at) - len(first)
        return rows.take(first), at[first]

    def _sound(self, rows: Rows) -> Rows:
        """Without samples that have no label (a negative one) or broken numbers: they are missing, and counted."""
        labelled = rows.labels >= 0
        finite = np.all([np.isfinite(column) for column in rows.values.values()], axis=0)
        self._counts["unlabelled"] += int((~labelled).sum())
        if bad := int((~finite).sum()):
            self._counts["bad"] += bad
            warnings.warn(
                f"{bad:,} of {len(finite):,} samples of {self._meta['unit']} {self.epoch} have features or logits that "
                "are NaN or infinite; they are missing from it.",
                UserWarning,
                stacklevel=4,
            )
        return rows.take(np.flatnonzero(labelled & finite))

    def _add(self, rows: Rows, at: np.ndarray) -> None:
        """Into the sums, rounded as on disk, so that sums made from the disk are the same."""
        values = rows.values
        for name in records.FLOATS:
            if name in values:
                exact = values[name].astype(np.float32)
                values[name] = exact if name in records.EXACT else records.rounded(exact)
        if rows.logits is None:
            self._logits = None
        else:
            old = (self._logits or Logits.unknown(0, rows.logits.cosines.shape[1])).grown(len(self._ids))
            for name, losses in swapped_losses(old.take(at), rows.logits, rows.labels).items():
                values[name] = records.rounded(losses)
            self._logits = old.updated(at, rows.logits)
        wide = {"label": rows.labels} | {name: values[name].astype(np.float64) for name in STORED}
        for name, (needs, function) in records.DERIVED.items():
            wide[name] = function(*(wide[need] for need in needs))
        self._summary.add(self.epoch, at, rows.labels, values["pred"], wide)

    def _table(self, rows: Rows, at: np.ndarray) -> pa.Table:
        order = self._ids.sorted(at)
        columns = {
            "id": self._ids.texts.take(pa.array(at[order])),
            "epoch": pa.array(np.full(len(order), self.epoch), pa.int32()),
            "label": pa.array(rows.labels[order], pa.int32()),
            "pred": pa.array(rows.values["pred"][order].astype(np.int32)),
        }
        for name in records.FLOATS:
            if name in rows.values:
                values = rows.values[name][order]
                columns[name] = pa.array(values, pa.float32(), mask=np.isnan(values))
        return pa.table(columns)

    def _write_head(self, head: np.ndarray) -> None:
        told = pa.table(
            {
                "epoch": pa.array(np.full(head.shape[1], self.epoch), pa.int32()),
                "class": pa.array(np.arange(head.shape[1]), pa.int32()),
                "norm": pa.array(head[0], pa.float32()),
                "bias": pa.array(head[1], pa.float32()),
            }
        )
        records.write_heads(self.path, self._index, told)

    def _write_logits(self) -> None:
        """What the next epoch is compared with, for a recorder that resumes: in the order in which it will number."""
        states = self._index.states
        if self._logits is not None:
            name = records.new_name("safetensors")
            state = self._logits.take(self._ids.order())
            with disk_in_words(self.path):
                write_whole(self.path / DYNAMICS / name, state.save, secrets.token_hex(4))
            states[str(self.epoch)] = name
        for old in sorted(states, key=int)[:-2]:  # two: a loop may resume an epoch behind the recorder
            del states[old]

    def _described(self) -> dict[str, Any]:
        classes, width = self._shape or (0, 0)
        return {
            **self._made,
            "model": {"name": self._name, "classes": classes, "features": width},
            **self._meta,
            "recorded": {"samples": len(self._ids), "epochs": self._index.epochs, **self._counts},
            "seconds": round(time.time() - self._started, 2),
        }

    # Looking.

    def summary(self) -> SampleTable:
        """One row a sample over all epochs so far; see `Dynamics.summary` for the columns."""
        if self._rank:
            raise StateError("summary() is known to the first process only; call it where the rank is 0.")
        order = self._ids.order()
        return self._summary.take(order).table(self._ids.texts.take(pa.array(order)), self._described())


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
