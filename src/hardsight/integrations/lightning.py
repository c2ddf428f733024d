"""Record training dynamics in a Lightning `Trainer`: ``Trainer(callbacks=[RecorderCallback("run")])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hardsight.dynamics import Recorder
from hardsight.errors import InputError, InputTypeError
from hardsight.extras import need
from hardsight.integrations.recording import HeadRecording

pl = need("lightning.pytorch")

_ID_KEYS = ("id", "ids", "index", "idx")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def ids_and_labels(batch: Any) -> tuple[Any, Any]:
    """Ids and labels of a batch in one of the usual forms.

    A mapping with ``id``, ``ids``, ``index`` or ``idx`` and ``label``, ``labels``, ``target``, ``targets`` or ``y``;
    or a triple (ids, inputs, labels). Ids are strings or integers, one per sample.
    """
    ids = labels = None
    if isinstance(batch, Mapping):
        ids, labels = (next((batch[k] for k in keys if k in batch), None) for keys in (_ID_KEYS, _LABEL_KEYS))
    elif isinstance(batch, (tuple, list)) and len(batch) == 3:
        ids, _, labels = batch
    if isinstance(ids, Tensor):
        valid = ids.ndim == 1 and not ids.is_floating_point()
    else:
        valid = isinstance(ids, (list, tuple)) and all(isinstance(i, (str, int)) for i in ids)
    if not valid or labels is None:
        keys = f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""
        raise InputTypeError(
            "the batch does not say which samples it holds: expected (ids, inputs, labels) or a mapping with id and "
            f"label, got a {type(batch).__name__}{keys}. Let the data set return the index of each sample too, or pass "
            "a function that reads batches: RecorderCallback(run, read=lambda batch: (ids, labels))."
        )
    return ids, labels


def _in_stage(stage: str, method: Callable[..., None]) -> Callable[..., None]:
    """A hook of Lightning that calls a method of the callback if it records this stage."""

    def hook(self: Any, *args: Any) -> None:
        if self.stage == stage:
            method(self, *args)

    return hook


class RecorderCallback(HeadRecording, pl.Callback):
    """Records every sample of the training or validation batches of `Trainer.fit`.

    A recorded epoch is an epoch of the trainer, or a pass over the validation data; the sanity check is not recorded.
    With ``fit(ckpt_path=…)`` the records resume where the checkpoint was made, and later ones are discarded. It works
    with gradient accumulation, mixed precision, manual optimization and data-parallel strategies; if a training step
    runs the head several times, the first run is recorded.

    Args:
        run: Folder to write, or a `Recorder`.
        read: Function from a batch to its ids and labels.
        stage: ``"train"`` or ``"validation"``; use two callbacks for both.
        head: The head, or its path in the LightningModule, if `hardsight.find_head` should not choose.
        options: Other arguments of `Recorder`: ``overwrite``, ``split``, ``unit``, ``name``, ``class_names``,
            ``data``, ``held_out``, ``note``.

    Attributes:
        recorder: The `Recorder`, once training has started.
    """

    def __init__(
        self,
        run: str | Path | Recorder,
        *,
        read: Callable[[Any], tuple[Any, Any]] = ids_and_labels,
        stage: str = "train",
        head: str | nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(run, stage=stage, head=head, **options)
        self._read = read
        self._resumed: int | None = None

    @property
    def state_key(self) -> str:
        return self._generate_state_key(stage=self.stage, run=self._path.name)

    def state_dict(self) -> dict[str, Any]:
        self._flush()
        return {} if self.recorder is None else {"epoch": self.recorder.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict.get("epoch")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.recorder is not None:  # its part of the broken epoch must not mix with the repeated epoch
            self._resumed = self.recorder.epoch
        self._detach()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._detach()

    def _start_batch(self, trainer: Any, pl_module: Any, batch: Any, *_: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if self._hooks is None:  # only now is the epoch certain: a checkpoint may be from the very end of one
            if self.stage == "validation" and len(trainer.num_val_batches) > 1:
                raise InputError(
                    f"RecorderCallback records one validation loader, got {len(trainer.num_val_batches)}; "
                    "join their data sets, or call hardsight.Recorder in the validation step."
                )
            epoch, self._resumed = self._resumed, None
            if self.stage == "train" and (epoch is not None or (self.recorder is None and trainer.current_epoch)):
                epoch = trainer.current_epoch + 1
            self._attach(pl_module, epoch)
        self._batch = self._read(batch)

    on_train_batch_start = _in_stage("train", _start_batch)
    on_train_batch_end = _in_stage("train", HeadRecording._end_batch)
    on_train_epoch_end = _in_stage("train", HeadRecording._end_epoch)
    on_validation_batch_start = _in_stage("validation", _start_batch)
    on_validation_batch_end = _in_stage("validation", HeadRecording._end_batch)
    on_validation_epoch_end = _in_stage("validation", HeadRecording._end_epoch)
