"""A loss of one's own in a Hugging Face `Trainer`, sentence or token level, right under gradient accumulation.

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
    """A function for ``Trainer(compute_loss_func=…)`` that gives a loss the model's logits and the batch's ``labels``.

    Logits ``(N, C)`` meet labels ``(N,)``, logits of tokens ``(N, T, C)`` labels ``(N, T)`` in which −100 is padding;
    labels of the logits' own shape are probabilities (mixup) or several labels a sample (with a BCE loss).
    The Trainer counts the labels of all batches that one step accumulates, by default in all processes; the sum of the
    losses is divided by that number, so that accumulation gives the step of one large batch. Class weights multiply
    each label's loss, and, unlike in torch's mean, nothing is divided by their sum: scale them to a mean of 1 over your
    labels. Changing the loss between steps (``loss.rho = …``) takes effect at once.

    The Trainer hands over what the collator calls ``labels`` and keeps it from the model. An encoder-decoder model
    therefore needs decoder inputs from its collator: ``DataCollatorForSeq2Seq(tokenizer, model=model)``. The Trainer's
    own ``label_smoothing_factor`` is not applied; give ``label_smoothing`` to the loss.

    Args:
        loss: A loss of logits and labels with ``reduction="mean"``.
        shift: For causal language models: the logits of each token are judged at the next token's label.

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
    return partial(_loss_of_outputs, loss, shift)  # which, unlike a function in here, can be sent to other processes


def _loss_of_outputs(
    loss: Any, shift: bool, outputs: Any, labels: Any, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    logits = _logits(outputs)
    if labels is None:
        raise InputError("the batch came without labels: let the collator put them under 'labels', the Trainer's name.")
    labels = labels.to(logits.device)
    if shift:  # the labels, not the logits, which are large: without their last token they would have to be copied
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
    # Under DataParallel the count comes once a device, and the Trainer multiplies the loss by their number.
    total = torch.as_tensor(num_items_in_batch, device=logits.device).sum().clamp_min(1)
    if not indices:  # of these the Trainer counts every entry
        return loss(logits, labels) * (labels.numel() / total)
    loss.reduction = "sum"  # for this call; a copy would not follow a compiled loss, or one that counts its calls
    try:
        return loss(logits, labels) / total
    finally:
        loss.reduction = "mean"


def _logits(outputs: Any) -> Tensor:
    if isinstance(outputs, Mapping):
        logits, form = outputs.get("logits"), f"a mapping with {', '.join(map(str, outputs))}"
    elif isinstance(outputs, (tuple, list)):
        logits, form = next(iter(outputs), None), f"a {type(outputs).__name__} of {len(outputs)}"
    else:
        logits, form = getattr(outputs, "logits", None), f"a {type(outputs).__name__}"
    if not isinstance(logits, Tensor):
        raise InputTypeError(
            f"the model must return logits, as outputs.logits, outputs['logits'] or the first of a tuple, got {form}; "
            "return them beside what else it returns."
        )
    return logits
