"""One loss from parts: an objective of logits, the logits it is put on, and a term of pairs; by hand or by name."""

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
from hardsight.losses.encouraging import EncouragingLoss
from hardsight.losses.grammar import BoundPart, LossName, parse_loss
from hardsight.losses.imbalance import deferred_weights, effective_number_weights
from hardsight.losses.logits import BoundLogits
from hardsight.losses.pairs import CenterLoss
from hardsight.registry import options_of
from hardsight.schedules import Scheduled, ramp_down, ramp_up


class CompositeLoss(nn.Module):
    """An objective on logits of any kind, plus a term of pairs.

    Args:
        objective: ``(logits, target) → number``: `EncouragingLoss`, `torch.nn.CrossEntropyLoss`, ….
        logits: A function of `hardsight.losses.logits`, with its options bound by `functools.partial`; None: the
            logits of the network.
        pairs: ``(features, labels) → number``: `AMCLoss`, `EuclideanContrastiveLoss`, `CenterLoss`.
        pair_labels: Which samples belong together: ``"predicted"``, by the predictions of the network (AMC paper,
            Eq. 3), or ``"true"``. Predicted if not given, but true for a `CenterLoss`.
        hooks: What changes with time; `at` sets them.

    Attributes:
        last_parts: Of the latest batch, where there are several: ``ce`` and ``bonus`` of an Encouraging Loss (before
            `match_gradient`), or ``ce`` or ``objective``, and ``pairs``. Detached, on the device.
        pair_weight: Factor of the term of pairs; a schedule may change it.
        needs_head: Whether features and class weights must be given.
        one_norm: Whether the logits see directions only. Predict then with a head without bias whose class weights
            have the same length.

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
        if pair_labels not in ("predicted", "true", None):
            raise InputError(f"pair_labels must be 'predicted' or 'true', got {pair_labels!r}.")
        if isinstance(objective, nn.Module) and "features" in inspect.signature(objective.forward).parameters:
            raise InputError(
                f"objective must take logits and targets, and {type(objective).__name__} takes features; pass logits= "
                "and the objective separately, or pairs=."
            )
        for name, part in (("objective", objective), ("pairs", pairs)):
            if getattr(part, "reduction", "mean") == "none":
                raise InputError(f"{name}: its reduction must be 'mean' or 'sum', got 'none'.")
        if logits is not None and not isinstance(logits, BoundLogits):
            bound = logits if isinstance(logits, partial) else partial(logits)
            if bound.args:
                raise InputError("logits: name its options, as in partial(arcface_logits, margin=0.5).")
            logits = BoundLogits(bound.func, **bound.keywords)
        self.objective, self.logits, self.pairs, self.pair_weight = objective, logits, pairs, 1.0
        self.pair_labels = pair_labels or ("true" if isinstance(pairs, CenterLoss) else "predicted")
        self.hooks = tuple(hooks)
        self.needs_head = pairs is not None or (logits is not None and logits.of_features)
        self.one_norm = logits is not None and logits.directions
        self.last_parts: dict[str, Tensor] = {}

    def forward(
        self, logits: Tensor, target: Tensor, features: Tensor | None = None, weight: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch.

        Args:
            logits: ``(N, C)``, what the network returned.
            target: ``(N,)`` class indices, or distributions ``(N, C)`` where the parts take them.
            features: ``(N, D)`` input of the last linear layer, as `hardsight.capture` gives it.
            weight: ``(C, D)`` weight of that layer.
        """
        if self.needs_head and (features is None or weight is None):
            raise InputError(
                "features and weight are missing; run the model in hardsight.capture(model) and pass head.features and "
                "head.weight."
            )
        logits = logits.to(working_dtype(logits))
        z = logits if self.logits is None else self.logits(logits, target, features, weight)
        value, parts = self._objective(z, target)
        if self.pairs is not None and features is not None:
            pairs = self.pair_weight * self.pairs(features, self._labels(logits, target))
            parts["pairs"], value = pairs.detach(), value + pairs
        self.last_parts = parts if len(parts) > 1 else {}
        return value

    def at(self, time: float) -> bool:
        """Set what changes with time, in epochs from 0; returns whether a number was replaced (see `Scheduled.at`)."""
        return sum(hook.at(time) for hook in self.hooks) > 0  # every one, not only up to the first

    def extra_repr(self) -> str:
        functions = {"objective": self.objective, "pairs": self.pairs}
        shown = [f"{k}={f}" for k, f in functions.items() if f is not None and not isinstance(f, nn.Module)]
        return ", ".join([*shown, *[f"pair_labels={self.pair_labels!r}"] * (self.pairs is not None)])

    def _objective(self, z: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective and, detached, its parts."""
        # Once for both; methods of a subclass may not take them.
        terms = [self.objective.terms(z, target)] if type(self.objective) is EncouragingLoss else []
        value = self.objective(z, target, *terms)
        if isinstance(self.objective, EncouragingLoss):
            with torch.no_grad():
                return value, self.objective.parts(z, target, *terms)._asdict()
        return value, {"ce" if type(self.objective) is nn.CrossEntropyLoss else "objective": value.detach()}

    def _labels(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.pair_labels == "predicted":
            return logits.detach().argmax(1)
        if target.is_floating_point():
            raise InputError(
                f"target must hold class indices (N,) for pairs of true labels, got {tuple(target.shape)}; leave mixup "
                "out, or use pair_labels='predicted'."
            )
        return target


def build_loss(
    name: LossName | str,
    *,
    counts: Tensor | None = None,
    width: int | None = None,
    label_smoothing: float = 0.0,
    epochs: float = 0.0,
    warmup: float = 0.0,
    rampdown: float = 0.0,
) -> CompositeLoss:
    """The loss of a name, as ``hardsight train --loss`` takes it.

    The weight of pairs rises with the learning rate: it is 0 in the first epoch and follows `ramp_up` until `warmup`,
    as in AMC-Loss's released code. Without a warmup it is there from the start.

    Args:
        name: Such as ``"el:0.5@arcface:0.3+amc"``.
        counts: ``(C,)`` training samples of each class, for parts that need them.
        width: Number of features, for parts that need it.
        label_smoothing: Of the objective.
        epochs: Of the whole training.
        warmup: Epochs in which the weight of pairs rises.
        rampdown: Epochs in which it falls at the end, where the name says ``down``.

    Examples:
        >>> build_loss("focal")(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.1733)
    """
    name = parse_loss(name) if isinstance(name, str) else name
    context = {"counts": counts, "width": width}
    options, weight = name.objective.options, None
    weighted = name.objective.part.weighted
    if weighted and options["weight"] == "effective":
        weight = effective_number_weights(_require(name.objective, "counts", counts), options["beta"])
    built = _build(name.objective, context | {"label_smoothing": label_smoothing, "weight": weight})
    objective, hooks = built if isinstance(built, tuple) else (built, [])
    if weighted and counts is not None and options["drw"]:
        weights = deferred_weights(counts, options["drw"], options["beta"])
        hooks.append(Scheduled(objective, weight=lambda t: weights(math.floor(t) + 1)))
    logits = pairs = labels = None
    if name.logits is not None:
        logits = _build(name.logits, context)
        if isinstance(logits, partial):
            logits = BoundLogits(logits.func, name.logits.options.get("learn", False), **logits.keywords)
    if name.pairs is not None:
        pairs, labels = _build(name.pairs, context), name.pairs.options.get("labels", "true")
    loss = CompositeLoss(objective, logits, pairs, pair_labels=labels)
    down = name.pairs is not None and name.pairs.options["down"]
    if pairs is not None and (warmup or down):
        fall = rampdown if down else 0.0
        hooks.append(Scheduled(loss, pair_weight=lambda t: _pair_share(math.floor(t), epochs, warmup, fall)))
    loss.hooks = tuple(hooks)
    return loss


def _build(bound: BoundPart, context: dict[str, Any]) -> Any:
    """What the function of a part builds, or that function itself with its options bound."""
    function, needs = bound.part.function, bound.part.needs
    options = {name: bound.options[name] for name in options_of(function)}
    options |= {name: value for name, value in context.items() if name in needs}
    for name in needs & {"counts", "width"}:
        _require(bound, name, options[name])
    parameters = inspect.signature(function).parameters.values()
    builds = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    return function(**options) if builds else partial(function, **options)


def _require(bound: BoundPart, name: str, value: Any) -> Any:
    if value is None:
        what = "the number of samples of each class" if name == "counts" else "the number of features"
        raise InputError(f"loss: {bound.part.name} needs {what} ({name}); pass it to build_loss.")
    return value


def _pair_share(epoch: int, epochs: float, warmup: float, rampdown: float) -> float:
    """Share of the weight of pairs: nothing in a first epoch that is part of a warmup."""
    up = 0.0 if warmup and epoch == 0 else ramp_up(epoch, warmup)
    return up * ramp_down(epoch, epochs, rampdown)
