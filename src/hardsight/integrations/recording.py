"""What the recording callbacks of other libraries' trainers share: a hook on the head feeds a recorder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hardsight.distributed import rank_and_world
from hardsight.dynamics import Recorder
from hardsight.errors import InputError, StateError
from hardsight.heads import capture, enclosing, find_head
from hardsight.stores import local_path
from hardsight.table import SampleTable

Log = Callable[[dict[str, float], int], object]  # metrics by name, and the step


class HeadRecording:
    """Passes what the head receives to a recorder while the forward pass is still running.

    Features are thus paired with the weight that was applied to them, whatever the trainer does next: accumulate
    gradients, step, or run the batch again. Only the first forward pass of each batch is recorded.
    """

    recorder: Recorder | None

    def __init__(
        self, run: str | Path | Recorder, *, stage: str = "train", head: str | nn.Module | None = None,
        log: Log | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if stage not in ("train", "validation"):
            raise InputError(f"stage must be 'train' or 'validation', got {stage!r}.")
        self._given = isinstance(run, Recorder)
        self.recorder, self._path = (run, run.path) if isinstance(run, Recorder) else (None, local_path(run))
        self.stage, self._layer, self._options = stage, head, options
        self.log_metrics = log  # `log` of a callback is Lightning's
        self._hooks: ExitStack | None = None  # while attached
        self._batch: tuple[Any, Any] | None = None  # ids and labels of the next forward pass
        self._has_run = False

    def _attach(self, model: nn.Module, epoch: int | None) -> ExitStack:
        """Hook the head until the result is closed; with an epoch, records resume there and earlier ones are kept."""
        if self.recorder is None or (epoch is not None and not self._given):
            resumed: dict[str, Any] = {} if epoch is None else {"epoch": epoch, "overwrite": False}
            self.recorder = Recorder(self._path, **(self._options | resumed))
        layer = find_head(model, self._layer)
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in enclosing(model, layer)):
            inside = f"the head {layer.path!r} is inside a compiled module, which runs no hooks"
            raise InputError(f"model: {inside}; compile only the part before the head.")
        self._batch, self._has_run, self._hooks = None, False, ExitStack()
        # The layer alone: a trainer may call its model through any method.
        self._head = self._hooks.enter_context(capture(layer.module))
        self._head.path = layer.path
        self._hooks.callback(layer.module.register_forward_hook(self._record).remove)
        return self._hooks

    def _detach(self, *_: Any, **__: Any) -> None:
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None

    def _batch_end(self, *_: Any) -> None:
        self._batch = None
        if self._hooks is not None and not self._has_run:
            reasons = "another layer computes the output (name it with head=), or its weight is used through F.linear"
            raise StateError(f"the head {self._head.path!r} did not run in the first batch: {reasons}.")

    def _end_epoch(self, step: int, *logs: Log) -> None:
        """Commit the epoch, and log the mean of each score over its samples."""
        self._batch_end()
        if self._hooks is None or self.recorder is None:
            return
        self.recorder.end_epoch()
        if (logs := logs if self.log_metrics is None else (self.log_metrics,)) and rank_and_world()[0] == 0:
            metrics = self._metrics(self.recorder)
            for log in logs:
                log(metrics, step)

    def _metrics(self, recorder: Recorder) -> dict[str, float]:
        table = SampleTable.load(recorder.path, partial=True)  # the epoch that was just committed
        values = {name: float(np.nanmean(table[name])) for name in table.scores if np.isfinite(table[name]).any()}
        values |= {} if table.accuracy is None else {"accuracy": table.accuracy}
        return {f"hardsight/{self.stage}/{name}": value for name, value in values.items()}

    def _flush(self, *_: Any, **__: Any) -> None:
        """Commit what came since the last commit, so that a run resumed inside the epoch is complete."""
        if self._hooks is not None and self.recorder is not None:
            self.recorder.flush()

    def _record(self, *_: Any) -> None:
        features = self._head.features  # always read: unread features make the next forward pass an error
        if self._batch is None or self.recorder is None:
            return
        (ids, labels), self._batch = self._batch, None
        if len(ids) != len(features):
            cause = "several views per sample, or batches cut or mixed after their ids were read, cannot be recorded"
            rows = f"{len(features)} rows for a batch of {len(ids)} ids"
            raise StateError(f"the head {self._head.path!r} received {rows}: {cause}.")
        self.recorder.update(ids, self._head, labels)
        self._has_run = True
