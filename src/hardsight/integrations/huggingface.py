"""The Hugging Face `Trainer`: record training dynamics, and train with any loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.errors import InputError, InputTypeError, StateError
from hardsight.extras import need
from hardsight.integrations.recording import HeadRecording

transformers = need("transformers")

# Key of ids and labels in a batch: through worker processes, to the device, past label smoothing.
_KEY = "hardsight"


def with_ids(collator: Callable[[list[Any]], Any], key: str = "id") -> Callable[[Sequence[Any]], Any]:
    """A collator that keeps ids and labels in the batch for `RecorderCallback`; a hook hides them from the model.

    Args:
        collator: The collator that makes the batch from the other columns.
        key: The column of ids, strings or integers. Batches without it (an evaluation set) are left unchanged.
    """
    return partial(_collate, collator, key)  # unlike a closure, it can be pickled for worker processes


def _collate(collator: Callable[[list[Any]], Any], key: str, features: Sequence[Any]) -> Any:
    if not all(isinstance(feature, Mapping) and key in feature for feature in features):
        return collator(list(features))
    ids = [feature[key] for feature in features]
    batch = collator([{k: v for k, v in feature.items() if k != key} for feature in features])
    if "labels" not in batch:
        raise InputError(f"with_ids: the collator must return a batch with labels, got {', '.join(map(str, batch))}.")
    ids = ids if any(isinstance(i, str) for i in ids) else torch.tensor(ids)
    batch[_KEY] = {"ids": ids, "labels": batch["labels"]}
    return batch


def _remove_ids(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs.pop(_KEY, None)
    return args, kwargs


def _hide_ids_from(model: nn.Module) -> None:
    if _remove_ids not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_remove_ids, with_kwargs=True)


class RecorderCallback(HeadRecording, transformers.TrainerCallback):
    """Records every sample of the training or evaluation batches of `Trainer.train`; needs `with_ids`.

    A recorded epoch is an epoch of the trainer, or an evaluation. With ``resume_from_checkpoint`` the records resume
    where the checkpoint was made, and later ones are discarded. The model keeps a hook that removes ids from its
    inputs, because evaluation after training uses the same collator.

    Args:
        run: Folder to write, or a `Recorder`; once training has started, it is the attribute ``recorder``.
        stage: ``"train"`` or ``"validation"``; use two callbacks for both.
        head: The head, or its path in the model, if `hardsight.find_head` should not choose.
        log: Called with the metrics of each epoch and the step. It can also be set once there is a trainer:
            ``callback.log_metrics = lambda metrics, step: trainer.log(metrics)`` sends them to its loggers.
        options: Other arguments of `Recorder`, such as ``overwrite``, ``data`` and ``held_out``.
    """

    def on_init_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any) -> None:
        if args.remove_unused_columns:
            raise InputError(
                "RecorderCallback needs TrainingArguments(remove_unused_columns=False), which keeps the ids; remove "
                "columns that the model does not take from the data set."
            )
        _hide_ids_from(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any) -> None:
        if args.n_gpu > 1 or args.torch_compile or args.fsdp or args.deepspeed:
            raise InputError(
                "RecorderCallback needs torch_compile=False, no FSDP or DeepSpeed, and one process per GPU (as "
                f"torchrun starts them; this one has {args.n_gpu}): otherwise no hook sees whole batches."
            )
        epoch = None
        if self.recorder is not None and self._hooks is not None:  # an error ended the previous training
            epoch = self.recorder.epoch
            self._detach()
        if state.global_step:  # resumed
            evaluations = sum("eval_runtime" in entry for entry in state.log_history)
            epoch = 1 + (math.floor(state.epoch + 1e-6) if self.stage == "train" else evaluations)
        _hide_ids_from(model)
        hooks = self._attach(model, epoch)
        hooks.callback(model.register_forward_pre_hook(self._read_ids, with_kwargs=True, prepend=True).remove)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.stage == "train":
            self._end_epoch(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, *, metrics: Mapping[str, Any], **kwargs: Any) -> None:
        if self.stage == "validation" and self._hooks is not None:
            if "eval_runtime" not in metrics:
                raise StateError(f"join the sets: expected one evaluation set, got the metrics {', '.join(metrics)}.")
            self._end_epoch(state.global_step)

    on_save = HeadRecording._flush
    on_train_end = HeadRecording._detach

    def _read_ids(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training != (self.stage == "train"):
            return
        if _KEY not in kwargs:
            remedy = "give the Trainer data_collator=with_ids(collator, key='id'), and the data set this column"
            raise StateError(f"a {self.stage} batch came without ids: {remedy}.")
        self._batch = kwargs[_KEY]["ids"], kwargs[_KEY]["labels"]


def compute_loss(loss: nn.Module, *, shift: bool = False) -> Callable[..., Tensor]:
    """A function for ``Trainer(compute_loss_func=…)`` that applies a loss to the model's logits and the ``labels``.

    Logits ``(N, C)`` go with labels ``(N,)``, token logits ``(N, T, C)`` with labels ``(N, T)`` where −100 is padding.
    Labels of the same shape as the logits are probabilities (mixup) or multi-label targets (with a BCE loss).
    The sum of the losses is divided by the Trainer's count of labels in all batches of a step, as in one large batch.
    It is not divided by the sum of class weights: scale them to a mean of 1 over your labels.

    An encoder-decoder model needs decoder inputs from its collator: ``DataCollatorForSeq2Seq(tokenizer, model=model)``.
    Instead of the Trainer's ``label_smoothing_factor``, give ``label_smoothing`` to the loss.

    Args:
        loss: A loss of logits and labels with ``reduction="mean"``.
        shift: For causal language models: the logits of each token are compared with the next token's label.

    Examples:
        >>> f = compute_loss(nn.CrossEntropyLoss())
        >>> logits, labels = torch.zeros(2, 3, 4), torch.tensor([[1, 2, -100], [3, -100, -100]])
        >>> f({"logits": logits}, labels)  # log 4
        tensor(1.3863)
        >>> f({"logits": logits}, labels, num_items_in_batch=6)  # half of the labels are in other batches
        tensor(0.6931)
    """
    for name, needed, default in (("reduction", "mean", None), ("ignore_index", -100, -100)):
        if (value := getattr(loss, name, default)) != needed:
            reason = "the sum of the losses is divided by the Trainer's count of labels that are not -100"
            raise InputError(f"loss must have {name}={needed!r}, got {value!r}: {reason}.")
    return partial(_loss_of_outputs, loss, shift)  # unlike a closure, it can be pickled


def _loss_of_outputs(
    loss: Any, shift: bool, outputs: Any, labels: Any, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    logits = _logits(outputs)
    if labels is None:
        raise InputError("the batch came without labels: the collator must put them under 'labels'.")
    labels = labels.to(logits.device)
    if shift:  # shift the labels, because cutting the large logits would copy them
        labels = F.pad(labels[..., 1:], (0, 1), value=-100)
    if labels.shape not in (logits.shape[:-1], logits.shape):
        raise InputError(f"labels must have the shape {tuple(logits.shape[:-1])}, got {tuple(labels.shape)}.")
    indices = labels.ndim < logits.ndim
    logits, labels = logits.flatten(0, -2), labels.flatten() if indices else labels.flatten(0, -2)
    if num_items_in_batch is None:
        return loss(logits, labels)
    # Under DataParallel there is one count per device, and the Trainer multiplies the loss by their number.
    total = torch.as_tensor(num_items_in_batch, device=logits.device).sum().clamp_min(1)
    if not indices:  # the Trainer counts every entry of these
        return loss(logits, labels) * (labels.numel() / total)
    loss.reduction = "sum"  # for this call only; a copy would break compiled losses and losses that count calls
    try:
        return loss(logits, labels) / total
    finally:
        loss.reduction = "mean"


def _logits(outputs: Any) -> Tensor:
    match outputs:
        case [Tensor() as logits, *_] | {"logits": Tensor() as logits}:
            return logits
        case _ if isinstance(logits := getattr(outputs, "logits", None), Tensor):
            return logits
    got = type(outputs).__name__
    raise InputTypeError(f"the model must return logits, as outputs.logits or first in a tuple, got a {got}.")
