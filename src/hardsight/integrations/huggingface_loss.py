"""Any loss in a Hugging Face `Trainer`, per sequence or per token, correct under gradient accumulation.

::

    trainer = Trainer(model, arguments, train_dataset=data, compute_loss_func=compute_loss(EncouragingLoss()))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.errors import InputError, InputTypeError


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
    if isinstance(outputs, Mapping):
        logits = outputs.get("logits")
    elif isinstance(outputs, (tuple, list)):
        logits = next(iter(outputs), None)
    else:
        logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputTypeError(
            "the model must return logits, as outputs.logits, outputs['logits'] or the first element of a tuple, got "
            f"a {type(outputs).__name__}."
        )
    return logits
