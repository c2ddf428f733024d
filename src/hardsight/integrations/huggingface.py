"""Record training dynamics in a Hugging Face `Trainer`, whose callbacks see no batches: ids travel inside them.

::

    trainer = Trainer(model, TrainingArguments("out", remove_unused_columns=False), train_dataset=data,
                      data_collator=with_ids(collator), callbacks=[RecorderCallback("run")])

The data set has a column ``id``. `with_ids` adds ids and labels to what the collator returns; a hook removes them
before the model sees them.
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
from hardsight.integrations.recording import HeadRecording

transformers = need("transformers")

# Key of ids and labels in a batch: through worker processes, to the device, past label smoothing.
_KEY = "hardsight"


def with_ids(collator: Callable[[list[Any]], Any], key: str = "id") -> Callable[[Sequence[Any]], Any]:
    """A collator that keeps the ids of its samples.

    Args:
        collator: The collator that makes the batch from the other columns.
        key: The column of ids, strings or integers. Batches without it (an evaluation set) are left as they are.

    Examples:
        >>> collate = with_ids(transformers.default_data_collator)
        >>> batch = collate([{"id": "a", "label": 0, "x": [1.0]}, {"id": "b", "label": 1, "x": [2.0]}])
        >>> batch["hardsight"]["ids"], batch["hardsight"]["labels"].tolist()
        (['a', 'b'], [0, 1])
    """
    return partial(_collate, collator, key)  # unlike a closure, it can be pickled for worker processes


def _collate(collator: Callable[[list[Any]], Any], key: str, features: Sequence[Any]) -> Any:
    if not all(isinstance(feature, Mapping) and key in feature for feature in features):
        return collator(list(features))
    ids = [feature[key] for feature in features]
    batch = collator([{k: v for k, v in feature.items() if k != key} for feature in features])
    if "labels" not in batch:
        raise InputError(
            f"with_ids: the collator returned a batch without labels, got {', '.join(map(str, batch))}; "
            "dynamics are recorded at the label of each sample."
        )
    ids = ids if any(isinstance(i, str) for i in ids) else torch.tensor(ids)
    batch[_KEY] = {"ids": ids, "labels": batch["labels"]}
    return batch


def _remove_ids(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs.pop(_KEY, None)
    return args, kwargs


class RecorderCallback(HeadRecording, transformers.TrainerCallback):
    """Records every sample of the training or evaluation batches of `Trainer.train`; needs `with_ids`.

    A recorded epoch is an epoch of the trainer, or an evaluation. With ``resume_from_checkpoint`` the records resume
    where the checkpoint was made, and later ones are discarded. The model keeps a hook that removes ids from its
    inputs, because evaluation after training uses the same collator.

    Args:
        run: Folder to write, or a `Recorder`.
        stage: ``"train"`` or ``"validation"``; use two callbacks for both.
        head: The head, or its path in the model, if `hardsight.find_head` should not choose.
        options: Other arguments of `Recorder`: ``overwrite``, ``split``, ``unit``, ``name``, ``class_names``,
            ``data``, ``held_out``, ``note``.

    Attributes:
        recorder: The `Recorder`, once training has started.
    """

    def __init__(
        self,
        run: str | Path | Recorder,
        *,
        stage: str = "train",
        head: str | nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(run, stage, head, options)

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if args.remove_unused_columns:
            raise InputError(
                "RecorderCallback needs TrainingArguments(remove_unused_columns=False): otherwise the Trainer drops "
                "the ids before the collator sees them. Remove columns that the model does not take from the data set."
            )
        if model is not None:
            _hide_ids_from(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        _check_supported(args)
        _hide_ids_from(model)
        epoch = None
        if self.recorder is not None and self._hooks is not None:  # an error ended the previous training
            epoch = self.recorder.epoch
            self._detach()
        if state.global_step:  # resumed
            evaluations = sum("eval_runtime" in entry for entry in state.log_history)
            epoch = 1 + (math.floor(state.epoch + 1e-6) if self.stage == "train" else evaluations)
        self._attach(model, epoch)
        hook = model.register_forward_pre_hook(self._read_ids, with_kwargs=True, prepend=True)
        if self._hooks is not None:
            self._hooks.callback(hook.remove)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stage == "train" and self._hooks is not None:
            self._end_batch()
            self._end_epoch()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.stage == "validation" and self._hooks is not None:
            if "eval_runtime" not in (metrics or {}):
                raise StateError(
                    f"RecorderCallback records one evaluation set, got metrics {', '.join(metrics or {})}; "
                    "join the sets, or record with stage='train' only."
                )
            self._end_batch()
            self._end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._detach()

    def _read_ids(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training != (self.stage == "train"):
            return
        if _KEY not in kwargs:
            raise StateError(
                f"a {self.stage} batch came without ids: give the Trainer data_collator=with_ids(collator), and the "
                "data set a column of ids (named by with_ids(collator, key='id'))."
            )
        self._expect(**kwargs[_KEY])


def _hide_ids_from(model: nn.Module) -> None:
    if _remove_ids not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_remove_ids, with_kwargs=True)


def _check_supported(args: Any) -> None:
    """Refuse ways of training in which no process sees whole batches, or no hook is called."""
    if args.n_gpu > 1:
        raise InputError(
            f"RecorderCallback cannot record under nn.DataParallel (the Trainer found {args.n_gpu} GPUs): start one "
            "process per GPU with `torchrun --nproc-per-node`, or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    if args.torch_compile:
        raise InputError("RecorderCallback needs torch_compile=False: compiled code does not run the hook on the head.")
    if args.fsdp or args.deepspeed:
        raise InputError("RecorderCallback cannot record under FSDP or DeepSpeed: no process holds the whole head.")
