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
    ids, labels, form = None, None, f"a {type(batch).__name__}"
    if isinstance(batch, Mapping):
        ids, labels = (next((batch[k] for k in keys if k in batch), None) for keys in (_ID_KEYS, _LABEL_KEYS))
        form = f"a mapping with {', '.join(map(str, batch))}"
    elif isinstance(batch, (tuple, list)):
        form += f" of {len(batch)}"
        if len(batch) == 3:
            ids, _, labels = batch
    if isinstance(ids, Tensor):
        valid = ids.ndim == 1 and not ids.is_floating_point()
    else:
        valid = isinstance(ids, (list, tuple)) and all(isinstance(i, (str, int)) for i in ids)
    if not valid or labels is None:
        raise InputTypeError(
            f"the batch does not say which samples it holds: it is {form}, expected (ids, inputs, labels) or a mapping "
            "with id and label. Let the data set return the index of each sample too, or pass a function that reads "
            "batches: RecorderCallback(run, read=lambda batch: (ids, labels))."
        )
    return ids, labels


class RecorderCallback(HeadRecording, pl.Callback):
    """Records every sample of the training or validation batches of `Trainer.fit`.

    ::

        trainer = Trainer(callbacks=[RecorderCallback("run/train"), RecorderCallback("run/val", stage="validation")])
        trainer.fit(model, train_loader, val_loader)
        hs.Dynamics("run/train").summary()

    A recorded epoch is an epoch of the trainer, or a pass over the validation data; the sanity check is not recorded.
    With ``fit(ckpt_path=...)`` the records resume where the checkpoint was made, and later ones are discarded. Works
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
        super().__init__(run, stage, head, options)
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

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._start_batch("train", trainer, pl_module, batch)

    def on_train_batch_end(self, *args: Any) -> None:
        self._after("train", self._end_batch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._after("train", self._end_epoch)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._start_batch("validation", trainer, pl_module, batch)

    def on_validation_batch_end(self, *args: Any) -> None:
        self._after("validation", self._end_batch)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._after("validation", self._end_epoch)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.recorder is not None:  # its part of the broken epoch must not mix with the repeated epoch
            self._resumed = self.recorder.epoch
        self._detach()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._detach()

    def _start_batch(self, stage: str, trainer: Any, pl_module: Any, batch: Any) -> None:
        if stage != self.stage:
            return
        if self._hooks is None:  # only now is the epoch certain: a checkpoint may be from the very end of one
            if stage == "validation" and len(trainer.num_val_batches) > 1:
                raise InputError(
                    f"RecorderCallback records one validation loader, got {len(trainer.num_val_batches)}; "
                    "join their data sets, or call hardsight.Recorder in the validation step."
                )
            epoch, self._resumed = self._resumed, None
            if stage == "train" and (epoch is not None or (self.recorder is None and trainer.current_epoch)):
                epoch = trainer.current_epoch + 1
            self._attach(pl_module, epoch)
        self._expect(*self._read(batch))

    def _after(self, stage: str, end: Callable[[], None]) -> None:
        if self._hooks is not None and stage == self.stage:
            end()
