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
    """A collator that keeps the ids of its samples for `RecorderCallback`, because callbacks see no batches.

    It adds ids and labels to the batch; a hook removes them before the model sees them.

    Args:
        collator: The collator that makes the batch from the other columns.
        key: The column of ids, strings or integers. Batches without it (an evaluation set) are left as they are.
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
            self._end_epoch()

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.stage == "validation" and self._hooks is not None:
            if "eval_runtime" not in (metrics or {}):
                raise StateError(
                    f"RecorderCallback records one evaluation set, got metrics {', '.join(metrics or {})}; "
                    "join the sets, or record with stage='train' only."
                )
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
        self._batch = kwargs[_KEY]["ids"], kwargs[_KEY]["labels"]


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


def compute_loss(loss: nn.Module, *, shift: bool = False) -> Callable[..., Tensor]:
    """A function for ``Trainer(compute_loss_func=…)`` that applies a loss to the model's logits and the ``labels``.

    Logits ``(N, C)`` go with labels ``(N,)``, token logits ``(N, T, C)`` with labels ``(N, T)`` where −100 is padding.
    Labels of the same shape as the logits are probabilities (mixup) or multi-label targets (with a BCE loss).
    The Trainer counts the labels of all batches that one step accumulates, by default in all processes; the sum of the
    losses is divided by that count, so accumulation gives the step of one large batch. Class weights multiply the loss
    of each label; unlike torch's mean, the result is not divided by their sum, so scale them to a mean of 1 over your
    labels. Changing the loss between steps (``loss.rho = …``) takes effect immediately.

    The Trainer passes what the collator calls ``labels`` and hides it from the model. An encoder-decoder model
    therefore needs decoder inputs from its collator: ``DataCollatorForSeq2Seq(tokenizer, model=model)``. The Trainer's
    ``label_smoothing_factor`` is not applied; give ``label_smoothing`` to the loss.

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
    reduction = getattr(loss, "reduction", None)
    if reduction != "mean":
        raise InputError(
            f"loss must have reduction='mean', got {reduction!r}: compute_loss itself divides by the number of labels "
            "that the Trainer counts."
        )
    if getattr(loss, "ignore_index", -100) != -100:
        raise InputError(
            f"loss must have ignore_index=-100, got {loss.ignore_index}: the Trainer counts every other label; "
            "let the collator pad labels with -100."
        )
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
        raise InputError(
            f"labels must have the shape of the logits without their last axis, the classes: expected "
            f"{tuple(logits.shape[:-1])}, got {tuple(labels.shape)}; truncate or pad both alike."
        )
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
    if isinstance(outputs, (tuple, list)):
        logits = outputs[0] if outputs else None
    else:
        logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputTypeError(
            "the model must return logits, as outputs.logits, outputs['logits'] or the first element of a tuple, got "
            f"a {type(outputs).__name__}."
        )
    return logits
