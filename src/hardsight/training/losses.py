"""The loss of a training run: by name or given, its identity, and what it requires of the head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hardsight.angles import unit
from hardsight.errors import InputError, InputTypeError
from hardsight.heads import find_head
from hardsight.losses import BONUSES, CompositeLoss, EncouragingLoss, build_loss, parse_loss
from hardsight.models import describe
from hardsight.recipes import Recipe
from hardsight.runs import content_hash, is_users, module_attributes

# ``(logits, targets) → scalar``; with a true attribute `needs_head`, ``(logits, targets, features, weight) → scalar``.
Loss = Callable[..., Tensor]


def make_loss(loss: Loss | None, recipe: Recipe, network: nn.Module, labels: Tensor, soft: bool = False) -> Loss:
    """The given loss, or the one that the recipe names, for the labels to train on; `soft` if targets are weights."""
    layer = find_head(network)
    if loss is None:
        if soft and (needs_indices := parse_loss(recipe.loss).needing_indices()):
            raise InputError(
                f"targets: {needs_indices[0]} needs one class per sample; omit targets, or choose another loss."
            )
        weight = layer.module._parameters.get("weight")  # not `.weight`: reading a computed one may change it
        loss = build_loss(
            recipe.loss,
            counts=torch.bincount(labels.cpu(), minlength=layer.classes),
            width=weight.shape[1] if type(weight) is nn.Parameter else None,
            label_smoothing=recipe.label_smoothing,
            epochs=recipe.epochs,
            warmup=recipe.warmup,
            rampdown=recipe.rampdown,
            first_epoch=int(recipe.schedule == "ramp"),
        )
    elif not callable(loss) or isinstance(loss, type):
        got = f"the class {loss.__name__}; call it" if isinstance(loss, type) else f"a {type(loss).__name__}"
        raise InputTypeError(f"loss must be a name or a function of (logits, targets), got {got}.")
    elif not hasattr(loss, "needs_head") and "features" in _arguments(loss):
        raise InputTypeError(
            f"loss: {type(loss).__name__} takes features, but training passes (logits, targets); use its name ('avh', "
            "'amc'), or a CompositeLoss of an objective, logits and pairs."
        )
    elif isinstance(loss, EncouragingLoss):
        loss = CompositeLoss(loss)  # which keeps its parts for the history
    if getattr(loss, "one_norm", False) and parametrize.is_parametrized(layer.module):
        raise InputError(
            f"loss: it uses only the directions of class weights, but those of the head {layer.path!r} are computed "
            "(parametrized) and cannot be scaled to one norm; use a plain linear head."
        )
    if hasattr(loss, "at"):
        loss.at(0.0)  # it may have been used before
    return loss


def _arguments(loss: Loss) -> Any:
    try:
        return inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    except (TypeError, ValueError):  # a built-in
        return ()


def loss_of_logits(name: str, **context: Any) -> CompositeLoss:
    """The loss of a name, with arguments of `build_loss`, for a loop that passes only logits and targets."""
    loss = build_loss(name, **context)
    if (late := parse_loss(name).latest()) >= context.get("epochs", math.inf):
        raise InputError(f"loss: {name} changes after {late} epochs, and epochs is {context['epochs']}.")
    if loss.needs_head:
        raise InputError(
            f"loss: {name} needs features and class weights; here it must be one of logits, such as ce or el:0.5."
        )
    return loss


def batch_loss(loss: Loss, logits: Tensor, targets: Tensor, head: Any) -> Tensor:
    """The loss of a batch in float32; `head` is the captured head, or None."""
    needed = (head.features, head.weight) if head is not None and getattr(loss, "needs_head", False) else ()
    value = loss(logits.float(), targets, *needed)
    if value.ndim:
        raise InputError(f"loss must return one number per batch, got shape {tuple(value.shape)}; average it.")
    return value


def loss_identity(loss: Loss | None, recipe: Recipe) -> str:
    """What must be the same for a run to resume with this loss."""
    if loss is None:
        name = "cross-entropy" if recipe.loss == "ce" else recipe.loss
        users = [function for function in parse_loss(recipe.loss).functions if is_users(function)]
        return f"{name} ({_short_hash(users)})" if users else name
    if not isinstance(loss, nn.Module):
        return f"{describe(loss)} ({_short_hash(loss)})"
    paths = {id(part): path for path, part in loss.named_modules()}
    parts = [(paths[id(part)], type(part), _options(part, paths)) for part in loss.modules()]
    shapes = [(name, list(weight.shape)) for name, weight in loss.named_parameters()]  # training changes the values
    return f"{type(loss).__name__} ({_short_hash(parts, shapes, dict(loss.named_buffers()))})"


def _options(part: nn.Module, paths: dict[int, str]) -> dict[str, Any]:
    """The attributes of a part of a loss without weights and batch results; targets of schedules by their path."""
    options = module_attributes(part)
    if isinstance(part, CompositeLoss):
        del options["last_parts"]
        options["hooks"] = [(paths.get(id(hook.target), hook.target), hook.functions) for hook in part.hooks]
    if isinstance(part, EncouragingLoss) and isinstance(part.bonus, str):
        options["bonus"] = (part.bonus, BONUSES[part.bonus])
    return options


def _short_hash(*values: Any) -> str:
    """Half of a hash, and whatever marks it as incomparable if a value cannot be hashed."""
    key = content_hash(*values)
    return key[:16] + key[32:]


@torch.no_grad()
def equalize_norms(network: nn.Module) -> None:
    """Scale the head's class weights to their mean norm and drop its bias, so that it predicts as angular logits do."""
    layer: Any = find_head(network).module
    directions, norms = unit(layer.weight.flatten(1))
    layer.weight.copy_((directions * norms.mean()).view_as(layer.weight))
    if layer.bias is not None:
        layer.bias.zero_()
