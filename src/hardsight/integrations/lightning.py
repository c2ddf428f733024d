"""Record training dynamics in a Lightning `Trainer`: ``Trainer(callbacks=[RecorderCallback("run")])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hardsight.dynamics import Recorder
from hardsight.errors import InputError, InputTypeError
from hardsight.extras import need
from hardsight.integrations.recording import HeadRecording, Log

pl = need("lightning.pytorch")

_ID_KEYS = ("id", "ids", "index", "idx")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def ids_and_labels(batch: Any) -> tuple[Any, Any]:
    """Ids (strings or integers) and labels of a batch: a triple (ids, inputs, labels), or a mapping.

    Its keys are ``id``, ``ids``, ``index`` or ``idx``, and ``label``, ``labels``, ``target``, ``targets`` or ``y``.
    """
    if isinstance(batch, Mapping):
        ids, labels = (next((batch[k] for k in keys if k in batch), None) for keys in (_ID_KEYS, _LABEL_KEYS))
    else:
        ids, _, labels = batch if isinstance(batch, (tuple, list)) and len(batch) == 3 else (None, None, None)
    if isinstance(ids, Tensor):
        valid = ids.ndim == 1 and not ids.is_floating_point()
    else:
        valid = isinstance(ids, (list, tuple)) and all(isinstance(i, (str, int)) for i in ids)
    if not valid or labels is None:
        keys = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        raise InputTypeError(
            "the batch has no ids: expected (ids, inputs, labels) or a mapping with id and label, got a "
            f"{type(batch).__name__}{keys}. Return ids from the data set, or read them with a function read=."
        )
    return ids, labels


class RecorderCallback(HeadRecording, pl.Callback):
    """Records every sample of the training or validation batches of `Trainer.fit`.

    A recorded epoch is an epoch of the trainer, or a pass over the validation data; the sanity check is not recorded.
    With ``fit(ckpt_path=…)`` the records resume where the checkpoint was made, and later ones are discarded.

    Args:
        run: Folder to write, or a `Recorder`; once training has started, it is the attribute ``recorder``.
        read: Function from a batch to its ids and labels.
        stage: ``"train"`` or ``"validation"``; use two callbacks for both.
        head: The head, or its path in the LightningModule, if `hardsight.find_head` should not choose.
        log: Called with the metrics of each epoch and the step; if not given, they go to the trainer's loggers.
        options: Other arguments of `Recorder`, such as ``overwrite``, ``data`` and ``held_out``.
    """

    def __init__(
        self, run: str | Path | Recorder, *, read: Callable[[Any], tuple[Any, Any]] = ids_and_labels,
        stage: str = "train", head: str | nn.Module | None = None, log: Log | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(run, stage=stage, head=head, log=log, **options)
        self._read = read
        self._resumed: int | None = None
        for name in ("batch_start", "batch_end", "epoch_end"):  # what Lightning calls in this stage
            setattr(self, f"on_{stage}_{name}", getattr(self, f"_{name}"))

    @property
    def state_key(self) -> str:
        return self._generate_state_key(stage=self.stage, run=self._path.name)

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {} if self.recorder is None else {"epoch": self.recorder.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict.get("epoch")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.recorder is not None:  # rows of the interrupted epoch must not mix with those of the repeated one
            self._resumed = self.recorder.epoch
        self._detach()

    teardown = HeadRecording._detach

    def _epoch_end(self, trainer: Any, *_: Any) -> None:
        self._end_epoch(trainer.global_step, *(logger.log_metrics for logger in trainer.loggers))

    def _batch_start(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self._hooks is None:  # only now is the epoch certain: a checkpoint may be from the very end of one
            if self.stage == "validation" and len(trainer.num_val_batches) > 1:
                raise InputError(
                    f"join the data sets: expected one validation loader, got {len(trainer.num_val_batches)}."
                )
            epoch, self._resumed = self._resumed, None
            if self.stage == "train" and (epoch is not None or (self.recorder is None and trainer.current_epoch)):
                epoch = trainer.current_epoch + 1
            self._attach(pl_module, epoch)
        self._batch = self._read(batch)
