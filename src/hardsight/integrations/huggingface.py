"""Record training dynamics in a Hugging Face `Trainer`, whose callbacks see no batch: ids travel in the batch.

::

    trainer = Trainer(model, TrainingArguments("out", remove_unused_columns=False), train_dataset=data,
                      data_collator=with_ids(collator), callbacks=[RecorderCallback("run")])

The data set has a column ``id``. `with_ids` puts ids and labels into the batch, beside what the collator makes of the
rest; a hook takes them out again before the model sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hardsight.dynamics import Recorder
from hardsight.errors import InputError, StateError
from hardsight.extras import need
from hardsight.integrations.watch import Watch, recorder_at, where

transformers = need("transformers")

# Under this name ids and labels travel: through worker processes, to the device, past label smoothing.
_KEY = "hardsight"


def with_ids(collator: Callable[[list[Any]], Any], key: str = "id") -> Callable[[Sequence[Any]], Any]:
    """A collator that keeps the ids of its samples.

    Args:
        collator: The collator that makes the batch from the other columns.
        key: The column of ids: texts or integers. Batches of data without it (an evaluation set) are left as they are.

    Examples:
        >>> collate = with_ids(transformers.default_data_collator)
        >>> batch = collate([{"id": "a", "label": 0, "x": [1.0]}, {"id": "b", "label": 1, "x": [2.0]}])
        >>> batch["hardsight"]["ids"], batch["hardsight"]["labels"].tolist()
        (['a', 'b'], [0, 1])
    """
    return partial(_collate, collator, key)  # which, unlike a function in here, can be sent to worker processes


def _collate(collator: Callable[[list[Any]], Any], key: str, features: Sequence[Any]) -> Any:
    if not all(isinstance(feature, Mapping) and key in feature for feature in features):
        return collator(list(features))
    ids = [feature[key] for feature in features]
    batch = collator([{k: v for k, v in feature.items() if k != key} for feature in features])
    if "labels" not in batch:
        raise InputError(
            f"with_ids: the collator made a batch without labels, got {', '.join(map(str, batch))}; "
            "dynamics are recorded at the label of each sample."
        )
    ids = ids if any(isinstance(i, str) for i in ids) else torch.tensor(ids)
    batch[_KEY] = {"ids": ids, "labels": batch["labels"]}
    return batch


def _take_out(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs.pop(_KEY, None)
    return args, kwargs


class RecorderCallback(transformers.TrainerCallback):
    """Records every sample of the training or evaluation batches of `Trainer.train`; needs `with_ids`.

    An epoch of the records is an epoch of the trainer, or an evaluation. With ``resume_from_checkpoint`` records go on
    where the checkpoint was made; what came after it is forgotten. The model keeps a hook that takes ids out of its
    inputs, because evaluation after training meets the same collator.

    Args:
        run: Folder to write, or a `Recorder`.
        stage: ``"train"`` or ``"validation"``; give two callbacks for both.
        head: The head, or its path in the model, when `hardsight.find_head` should not choose.
        options: What `Recorder` takes beside the run: ``overwrite``, ``split``, ``unit``, ``name``, ``class_names``,
            ``data``, ``held_out``, ``note``.

    Attributes:
        recorder: The `Recorder`, once training has begun.
    """

    def __init__(
        self,
        run: str | Path | Recorder,
        *,
        stage: str = "train",
        head: str | nn.Module | None = None,
        **options: Any,
    ) -> None:
        self.recorder, self._path = where(run, stage)
        self.stage, self._layer, self._options = stage, head, options
        self._own = self.recorder is None
        self._watch: Watch | None = None
        self._hook: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if args.remove_unused_columns:
            raise InputError(
                "RecorderCallback needs TrainingArguments(remove_unused_columns=False): otherwise the Trainer drops "
                "the ids before the collator sees them. Drop columns that the model does not take from the data set."
            )
        if model is not None:
            self._clear(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        _refuse(args)
        self._clear(model)
        epoch = None
        if self.recorder is not None and self._watch is not None:  # an error ended the training before this one
            epoch = self.recorder.epoch
            self._stop()
        if state.global_step:  # resumed
            passes = sum("eval_runtime" in entry for entry in state.log_history)
            epoch = 1 + (math.floor(state.epoch + 1e-6) if self.stage == "train" else passes)
        if self.recorder is None or (self._own and epoch is not None):
            self.recorder = recorder_at(self._path, epoch, self._options)
        self._watch = Watch(model, self.recorder, self._layer)
        self._hook = model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stage == "train":
            self._end_epoch()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.stage == "validation" and self._watch is not None:
            if "eval_runtime" not in (metrics or {}):
                raise StateError(
                    f"RecorderCallback records one evaluation set, got metrics {', '.join(metrics or {})}; "
                    "join the sets, or record with stage='train' only."
                )
            self._end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._watch is not None:
            self._watch.flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._hook.remove()
            self._watch = None

    def _clear(self, model: nn.Module) -> None:
        """Once a model: what is not for it is taken out of its inputs."""
        if _take_out not in model._forward_pre_hooks.values():
            model.register_forward_pre_hook(_take_out, with_kwargs=True)

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._watch is None or module.training != (self.stage == "train"):
            return
        if _KEY not in kwargs:
            raise StateError(
                f"a {self.stage} batch came without ids: give the Trainer data_collator=with_ids(collator), and the "
                "data set a column of ids (with_ids(collator, key='id') says its name)."
            )
        self._watch.expect(kwargs[_KEY]["ids"], kwargs[_KEY]["labels"])

    def _end_epoch(self) -> None:
        if self._watch is not None:
            self._watch.forget()
            self._watch.end_epoch()


def _refuse(args: Any) -> None:
    """Ways of training in which no process sees whole batches, or no hook is called."""
    if args.n_gpu > 1:
        raise InputError(
            f"RecorderCallback cannot record under nn.DataParallel (the Trainer found {args.n_gpu} GPUs): start one "
            "process a GPU with `torchrun --nproc-per-node`, or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    if args.torch_compile:
        raise InputError("RecorderCallback needs torch_compile=False: compiled code does not see the hook on the head.")
    if args.fsdp or args.deepspeed:
        raise InputError("RecorderCallback cannot record under FSDP or DeepSpeed: no process holds the whole head.")
