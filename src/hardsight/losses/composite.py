"""A loss built from parts, by hand or by name: an objective, the logits it is applied to, and a pair term."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.base import MarginLoss
from hardsight.losses.grammar import BoundPart, LossName, parse_loss
from hardsight.losses.imbalance import deferred_weights
from hardsight.losses.logits import BoundLogits
from hardsight.losses.objectives import EncouragingLoss, FocalLoss
from hardsight.losses.pairs import CenterLoss
from hardsight.registry import check_choice, options_of
from hardsight.schedules import Scheduled, ramp_down, ramp_up


class CompositeLoss(nn.Module):
    """An objective on logits of any kind, plus a pair term.

    Args:
        objective: ``(logits, target) → number``: `EncouragingLoss`, `torch.nn.CrossEntropyLoss`, ….
        logits: A function of `hardsight.losses.logits`, with its options bound by `functools.partial`; None: the
            logits of the network.
        pairs: ``(features, labels) → number``: `AMCLoss`, `EuclideanContrastiveLoss`, `CenterLoss`.
        pair_labels: Which labels decide that two samples belong together: ``"predicted"``, those of the network (AMC
            paper, Eq. 3), or ``"true"``. Default: predicted, except for a `CenterLoss`: true.
        hooks: Schedules, applied by `at`.

    Attributes:
        last_parts: The parts of the latest batch's loss, if it has several: ``ce`` and ``bonus`` of an Encouraging Loss
            (before `match_gradient`), or ``ce`` or ``objective``, and ``pairs``. Detached, on the device.
        pair_weight: Factor of the pair term; a schedule may change it.
        needs_head: Whether features and class weights must be given.
        one_norm: Whether the logits depend on directions only: predict with a head without bias whose weight vectors
            all have the same length.

    Examples:
        >>> from hardsight.losses import AMCLoss, arcface_logits
        >>> loss = CompositeLoss(EncouragingLoss(), partial(arcface_logits, margin=0.3), AMCLoss(preset="paper"))
        >>> x, w, y = torch.randn(8, 4), torch.randn(3, 4), torch.arange(8) % 3
        >>> loss(x @ w.T, y, x, w).shape, list(loss.last_parts)
        (torch.Size([]), ['ce', 'bonus', 'pairs'])
    """

    def __init__(
        self,
        objective: Callable[[Tensor, Tensor], Tensor],
        logits: Callable[..., Tensor] | None = None,
        pairs: Callable[[Tensor, Tensor], Tensor] | None = None,
        *,
        pair_labels: Literal["predicted", "true"] | None = None,
        hooks: Sequence[Scheduled] = (),
    ) -> None:
        super().__init__()
        self.pair_labels = pair_labels or ("true" if isinstance(pairs, CenterLoss) else "predicted")
        check_choice(self.pair_labels, ("predicted", "true"), "pair_labels")
        if isinstance(objective, nn.Module) and "features" in inspect.signature(objective.forward).parameters:
            raise InputError(
                f"objective must take logits and targets, and {type(objective).__name__} takes features; pass logits= "
                "and the objective separately, or pairs=."
            )
        for name, part in (("objective", objective), ("pairs", pairs)):
            if getattr(part, "reduction", "mean") == "none":
                raise InputError(f"{name}: its reduction must be 'mean' or 'sum', got 'none'.")
        if logits is not None and not isinstance(logits, BoundLogits):
            bound = partial(logits)
            if bound.args:
                raise InputError("logits: name its options, as in partial(arcface_logits, margin=0.5).")
            logits = BoundLogits(bound.func, **bound.keywords)
        self.objective, self.logits, self.pairs, self.pair_weight = objective, logits, pairs, 1.0
        self.hooks = tuple(hooks)
        self.needs_head = pairs is not None or (logits is not None and logits.of_features)
        self.one_norm = logits is not None and logits.directions
        self.last_parts: dict[str, Tensor] = {}

    def forward(
        self, logits: Tensor | None, target: Tensor, features: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """The loss of the network's logits ``(N, C)`` at class indices ``(N,)`` or, where parts take them, ``(N, C)``.

        Features ``(N, D)`` and weight ``(C, D)`` are the input and weight of its last layer: see `hardsight.capture`.
        The network's logits may be None if nothing needs them: the objective computes its own from features, and no
        pairs use predicted labels. With many classes, no matrix of logits is then formed (`AVHLoss` and an objective's
        `from_features` do the same).
        """
        if self.needs_head and (features is None or weight is None):
            raise InputError(
                "features and weight are missing; run the model in hardsight.capture(model) and pass head.features and "
                "head.weight."
            )
        predicted = self.pairs is not None and self.pair_labels == "predicted"
        if logits is not None:
            logits = logits.to(working_dtype(logits))
        elif predicted or self.logits is None or not self.logits.of_features:
            raise InputError(
                "logits may be None only if the loss computes its own from features; pass the network's logits, or "
                "call the objective's from_features."
            )
        value, parts = self._with_parts(logits, target, features, weight)
        if self.pairs is not None and features is not None:
            if self.pair_labels == "true" and target.is_floating_point():
                raise InputError(
                    f"target must hold class indices (N,) for pairs of true labels, got {tuple(target.shape)}; leave "
                    "mixup out, or use pair_labels='predicted'."
                )
            labels = target if logits is None or not predicted else logits.detach().argmax(1)
            pairs = self.pair_weight * self.pairs(features, labels)
            parts["pairs"], value = pairs.detach(), value + pairs
        self.last_parts = parts if len(parts) > 1 else {}
        return value

    def _with_parts(
        self, logits: Tensor | None, target: Tensor, features: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective's value, and its parts."""
        objective, head = self.objective, self.logits
        large = head is not None and head.skips_matrix(target, features, weight)
        margins = _margin_loss(objective) if large else None
        if head is not None and margins is not None and features is not None and weight is not None:
            margins.check_head(features, weight, target)
            m = head.soft_margin(target, features, weight)
            if isinstance(objective, EncouragingLoss):
                value, both = objective.with_parts_of_margins(m, target)
                return value, both._asdict()
            value = margins.of_margins(m, target)
            return value, {"objective" if margins is objective else "ce": value.detach()}
        z: Any = logits if head is None else head(logits, target, features, weight)
        if not isinstance(objective, EncouragingLoss):
            value = objective(z, target)
            return value, {"ce" if type(objective) is nn.CrossEntropyLoss else "objective": value.detach()}
        if type(objective).forward is EncouragingLoss.forward:
            value, both = objective.with_parts(z, target)
            return value, both._asdict()
        with torch.no_grad():
            both = objective.parts(z, target)
        return objective(z, target), both._asdict()

    def at(self, time: float) -> bool:
        """Apply the schedules at a time in epochs from 0; returns whether a number changed (see `Scheduled.at`)."""
        return sum(hook.at(time) for hook in self.hooks) > 0  # runs every hook; `any` would stop at the first


def _margin_loss(objective: object) -> MarginLoss | None:
    """The objective as a `MarginLoss`, if it needs only the target's margin."""
    if type(objective) is nn.CrossEntropyLoss and not objective.label_smoothing:
        options: dict[str, Any] = {"ignore_index": objective.ignore_index, "reduction": objective.reduction}
        return EncouragingLoss(objective.weight, rho=0.0, **options)
    # A subclass may compute something else.
    exact_type = type(objective) in (EncouragingLoss, FocalLoss)
    return objective if exact_type and isinstance(objective, MarginLoss) and not objective.needs_all_margins else None


def build_loss(
    name: LossName | str,
    *,
    counts: Tensor | None = None,
    width: int | None = None,
    label_smoothing: float = 0.0,
    epochs: float = 0.0,
    warmup: float = 0.0,
    rampdown: float = 0.0,
    first_epoch: int = 0,
) -> CompositeLoss:
    """Build a loss from its name, as ``hardsight train --loss`` does.

    The pair weight rises with the learning rate: it follows `ramp_up` until `warmup`. With epochs counted from 0, it is
    0 in epoch 0, as in AMC-Loss's released code; Algorithm 1 of the paper counts from 1. Without a warmup the full
    weight applies from the start.

    Args:
        name: Such as ``"el:0.5@arcface:0.3+amc"``.
        counts, width: Training samples per class ``(C,)``, and number of features, for parts that need them.
        label_smoothing: Of the objective.
        epochs: Number of training epochs.
        warmup: Epochs over which the pair weight rises.
        rampdown: Epochs at the end over which it falls, if the name contains ``down``.
        first_epoch: Number of the first epoch: 0 as released, 1 as in the paper.

    Examples:
        >>> build_loss("focal")(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.1733)
    """
    name = name if isinstance(name, LossName) else parse_loss(name)
    options, context = name.objective.options, {"counts": counts, "width": width, "label_smoothing": label_smoothing}
    weights: Any = None
    if options.get("weight") == "effective":
        weights = deferred_weights(_require(name.objective, "counts", counts), options["drw"], options["beta"])
    built = _build(name.objective, context | {"weight": weights and weights(options["drw"] + 1).clone()})
    objective, hooks = built if isinstance(built, tuple) else (built, [])
    if weights and options["drw"]:
        hooks.append(Scheduled(objective, weight=partial(_weights_at, weights)))
    logits = None
    if name.logits is not None:
        logits = _build(name.logits, context)
        if isinstance(logits, partial):
            logits = BoundLogits(logits.func, name.logits.options.get("learn", False), **logits.keywords)
    if name.pairs is None:
        loss = CompositeLoss(objective, logits)
    else:
        options = name.pairs.options
        loss = CompositeLoss(objective, logits, _build(name.pairs, context), pair_labels=options.get("labels", "true"))
        down = rampdown if options["down"] else 0.0
        if warmup or down:
            share = partial(_pair_share, epochs=epochs, warmup=warmup, rampdown=down, first=first_epoch)
            hooks.append(Scheduled(loss, pair_weight=share))
    loss.hooks = tuple(hooks)
    return loss


def _pair_share(time: float, epochs: float, warmup: float, rampdown: float, first: int) -> float:
    """Share of the pair weight: 0 in an epoch 0 that is part of a warmup."""
    epoch = math.floor(time) + first
    return 0.0 if warmup and epoch == 0 else ramp_up(epoch, warmup) * ramp_down(epoch, epochs, rampdown)


def _weights_at(weights: Callable[[int], Tensor], time: float) -> Tensor:
    return weights(math.floor(time) + 1)


def _build(bound: BoundPart, context: dict[str, Any]) -> Any:
    """What the part's function builds, or the function itself with its options bound."""
    function, options = bound.part.function, {name: bound.options[name] for name in options_of(bound.part.function)}
    options |= {name: _require(bound, name, context[name]) for name in bound.part.needs}
    parameters = inspect.signature(function).parameters.values()
    builds = isinstance(function, type) or all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    return function(**options) if builds else partial(function, **options)


def _require(bound: BoundPart, name: str, value: Any) -> Any:
    if value is None and name in ("counts", "width"):
        what = "samples of each class" if name == "counts" else "features"
        raise InputError(f"loss: {bound.name} needs the number of {what} ({name}); pass it to build_loss.")
    return value
