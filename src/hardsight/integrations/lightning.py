"""Record training dynamics in a Lightning `Trainer`: ``Trainer(callbacks=[RecorderCallback("run")])``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hardsight.dynamics import Recorder
from hardsight.errors import InputError, InputTypeError
from hardsight.extras import need
from hardsight.integrations.watch import Watch, recorder_at, where

pl = need("lightning.pytorch")

_ID_KEYS = ("id", "ids", "index", "idx")
_LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def ids_and_labels(batch: Any) -> tuple[Any, Any]:
    """Ids and labels of a batch in the usual forms.

    A mapping with ``id``, ``ids``, ``index`` or ``idx`` and ``label``, ``labels``, ``target``, ``targets`` or ``y``;
    or three things: ids, inputs, labels. Ids are texts or integers, one a sample.
    """
    found = None
    if isinstance(batch, Mapping):
        ids, labels = (next((batch[k] for k in keys if k in batch), None) for keys in (_ID_KEYS, _LABEL_KEYS))
        found, form = (ids, labels), f"a mapping with {', '.join(map(str, batch))}"
    elif isinstance(batch, (tuple, list)):
        found = (batch[0], batch[2]) if len(batch) == 3 else None
        form = f"a {type(batch).__name__} of {len(batch)}"
    else:
        form = f"a {type(batch).__name__}"
    if found is None or found[1] is None or not _are_ids(found[0]):
        raise InputTypeError(
            f"the batch does not say which samples it holds: it is {form}, expected (ids, inputs, labels) or a mapping "
            "with id and label. Let the data set return the index of each sample too, or say how to read a batch: "
            "RecorderCallback(run, read=lambda batch: (ids, labels))."
        )
    return found


def _are_ids(ids: Any) -> bool:
    if isinstance(ids, Tensor):
        return ids.ndim == 1 and not ids.is_floating_point()
    return isinstance(ids, (list, tuple)) and all(isinstance(i, (str, int)) for i in ids)


class RecorderCallback(pl.Callback):
    """Records every sample of the training or validation batches of `Trainer.fit`.

    ::

        trainer = Trainer(callbacks=[RecorderCallback("run/train"), RecorderCallback("run/val", stage="validation")])
        trainer.fit(model, train_loader, val_loader)
        hs.Dynamics("run/train").summary()

    An epoch of the records is an epoch of the trainer, or a pass over the validation data. The sanity check before
    training is not recorded. With ``fit(ckpt_path=...)`` records go on where the checkpoint was made; what came after
    it is forgotten. Works with gradient accumulation, mixed precision, manual optimization and data-parallel
    strategies; where a training step runs the head several times, its first run is recorded.

    Args:
        run: Folder to write, or a `Recorder`.
        read: Function from a batch to its ids and labels.
        stage: ``"train"`` or ``"validation"``; give two callbacks for both.
        head: The head, or its path in the LightningModule, when `hardsight.find_head` should not choose.
        options: What `Recorder` takes beside the run: ``overwrite``, ``split``, ``unit``, ``name``, ``class_names``,
            ``data``, ``held_out``, ``note``.

    Attributes:
        recorder: The `Recorder`, once training has begun.
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
        self.recorder, self._path = where(run, stage)
        self._read, self.stage, self._layer, self._options = read, stage, head, options
        self._resumed: int | None = None
        self._own = self.recorder is None
        self._watch: Watch | None = None

    # Lightning's checkpoints.

    @property
    def state_key(self) -> str:
        return self._generate_state_key(stage=self.stage, run=self._path.name)

    def state_dict(self) -> dict[str, Any]:
        if self._watch is not None:
            self._watch.flush()
        return {} if self.recorder is None else {"epoch": self.recorder.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict.get("epoch")

    # Its hooks.

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._begin("train", trainer, pl_module, batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._end("train")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_epoch("train")

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._begin("validation", trainer, pl_module, batch)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end("validation")

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._end_epoch("validation")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.recorder is not None:  # what it holds of the epoch that broke off must not meet the epoch made again
            self._resumed = self.recorder.epoch
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _begin(self, stage: str, trainer: Any, pl_module: Any, batch: Any) -> None:
        if stage != self.stage:
            return
        if self._watch is None:  # only now is it sure which epoch this is: a checkpoint may be of an epoch's very end
            self._watch = Watch(pl_module, self._recorder_at(trainer), self._layer)
        self._watch.expect(*self._read(batch))

    def _recorder_at(self, trainer: Any) -> Recorder:
        if self.stage == "validation" and len(trainer.num_val_batches) > 1:
            raise InputError(
                f"RecorderCallback records one validation loader, got {len(trainer.num_val_batches)}; "
                "join their data sets, or call hardsight.Recorder in the validation step."
            )
        if self.recorder is None or (self._own and self._resumed is not None):
            epoch, self._resumed = self._resumed, None
            if self.stage == "train" and (epoch is not None or trainer.current_epoch):
                epoch = trainer.current_epoch + 1
            self.recorder = recorder_at(self._path, epoch, self._options)
        return self.recorder

    def _end(self, stage: str) -> None:
        if self._watch is not None and stage == self.stage:
            self._watch.forget()

    def _end_epoch(self, stage: str) -> None:
        if self._watch is not None and stage == self.stage:
            self._watch.end_epoch()
