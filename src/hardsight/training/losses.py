"""The loss of a run: chosen by name or given, told in words, and what the head must be for it."""

from __future__ import annotations

import inspect
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

# ``(logits, targets) → scalar``; with an attribute `needs_head` that is true, ``(logits, targets, features, weight)``.
Loss = Callable[..., Tensor]


def chosen_loss(given: Loss | None, recipe: Recipe, network: nn.Module, labels: Tensor, soft: bool = False) -> Loss:
    """The loss that was given, or the one that the recipe names, which may need to know the training labels.

    With `soft` it is put on target rows.
    """
    layer = find_head(network)
    if given is None:
        if soft and (needs_indices := parse_loss(recipe.loss).needing_indices()):
            raise InputError(
                f"targets: {needs_indices[0]} needs one class per sample; leave targets out, or choose another loss."
            )
        weight = layer.module._parameters.get("weight")  # as it is: a computed one may change when it is read
        given = build_loss(
            recipe.loss,
            counts=torch.bincount(labels.cpu(), minlength=layer.classes),
            width=weight.shape[1] if type(weight) is nn.Parameter else None,
            label_smoothing=recipe.label_smoothing,
            epochs=recipe.epochs,
            warmup=recipe.warmup,
            rampdown=recipe.rampdown,
        )
    elif not callable(given) or isinstance(given, type):
        got = f"the class {given.__name__}; call it" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InputTypeError(f"loss must be a name or a function of (logits, targets), got {got}.")
    elif not hasattr(given, "needs_head") and "features" in _arguments(given):
        raise InputTypeError(
            f"loss: {type(given).__name__} takes features, and the engine passes (logits, targets); name it ('avh', "
            "'amc'), or make a CompositeLoss of an objective, logits and pairs."
        )
    elif isinstance(given, EncouragingLoss):
        given = CompositeLoss(given)  # which keeps its parts for the history
    if getattr(given, "one_norm", False) and parametrize.is_parametrized(layer.module):
        raise InputError(
            f"loss: it sees only directions of class weights, and those of the head {layer.path!r} are computed "
            "(parametrized), so that they cannot be brought to one norm; train a plain linear head."
        )
    if hasattr(given, "at"):
        given.at(0.0)  # also where it was used before
    return given


def _arguments(loss: Loss) -> Any:
    try:
        return inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    except (TypeError, ValueError):  # something built in
        return ()


def cost(loss: Loss, logits: Tensor, targets: Tensor, head: Any) -> Tensor:
    """The loss of a batch in float32; `head` is what was captured, or None."""
    needed = (head.features, head.weight) if head is not None and getattr(loss, "needs_head", False) else ()
    value = loss(logits.float(), targets, *needed)
    if value.ndim:
        raise InputError(f"loss must return one number per batch, got shape {tuple(value.shape)}; average it.")
    return value


def loss_identity(loss: Loss | None, recipe: Recipe) -> str:
    """What must be the same for a run to be resumed with this loss."""
    if loss is None:
        name = "cross-entropy" if recipe.loss == "ce" else recipe.loss
        users = [function for function in parse_loss(recipe.loss).functions if is_users(function)]
        return f"{name} ({_short_hash(users)})" if users else name
    if not isinstance(loss, nn.Module):
        return f"{describe(loss)} ({_short_hash(loss)})"
    paths = {id(part): path for path, part in loss.named_modules()}
    parts = [(paths[id(part)], type(part), _options(part, paths)) for part in loss.modules()]
    shapes = [(name, list(weight.shape)) for name, weight in loss.named_parameters()]  # which training changes
    return f"{type(loss).__name__} ({_short_hash(parts, shapes, dict(loss.named_buffers()))})"


def _options(part: nn.Module, paths: dict[int, str]) -> dict[str, Any]:
    """What a part of a loss holds, but for weights and what it keeps of a batch; targets of schedules by their path."""
    options = module_attributes(part)
    if isinstance(part, CompositeLoss):
        del options["last_parts"]
        options["hooks"] = [(paths.get(id(hook.target), hook.target), hook.functions) for hook in part.hooks]
    if isinstance(part, EncouragingLoss) and isinstance(part.bonus, str):
        options["bonus"] = (part.bonus, BONUSES[part.bonus])
    return options


def _short_hash(*values: Any) -> str:
    """Half of a hash, with what makes it equal no other where a value cannot be hashed."""
    key = content_hash(*values)
    return key[:16] + key[32:]


@torch.no_grad()
def to_one_norm(network: nn.Module) -> None:
    """Bring the head's class weights to their mean length and its bias to 0, which logits of directions do not see.

    The head then predicts what they would, wherever it is used.
    """
    layer: Any = find_head(network).module
    directions, lengths = unit(layer.weight.flatten(1))
    layer.weight.copy_((directions * lengths.mean()).view_as(layer.weight))
    if layer.bias is not None:
        layer.bias.zero_()
