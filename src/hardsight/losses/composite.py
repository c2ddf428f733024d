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
from hardsight.losses.encouraging import EncouragingLoss, FocalLoss
from hardsight.losses.imbalance import deferred_weights, effective_number_weights, ldam_margins
from hardsight.losses.logits import (
    adjusted_logits,
    angular_logits,
    arcface_logits,
    cosface_logits,
    cosine_logits,
    sphereface_logits,
)
from hardsight.losses.mirror import MirrorMSELoss
from hardsight.losses.names import Chosen, LossName, parse_loss
from hardsight.losses.pairs import AMCLoss, CenterLoss, EuclideanContrastiveLoss
from hardsight.schedules import Scheduled, deferred, ramp_down, ramp_up

# Logits of directions alone: a head without bias whose class weights are of one length predicts the same.
_DIRECTIONS = (angular_logits, cosine_logits, cosface_logits, arcface_logits, sphereface_logits)


class BoundLogits(nn.Module):
    """A function of `hardsight.losses.logits` with its options, which move to a device with the loss they are part of.

    Args:
        function: ``(features, weight[, target], …) → logits``, or ``(logits, …) → logits``.
        learn: Learn the scale, as its logarithm; it begins at the one given.
        options: Of the function. Tensors and the scale are buffers, so that a schedule may change them in place.

    Examples:
        >>> bound = BoundLogits(angular_logits, scale=1.0)
        >>> bound(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[2.0, 0.0]]), torch.eye(2))
        tensor([[3.1416, 1.5708]])
    """

    def __init__(self, function: Callable[..., Tensor], learn: bool = False, **options: Any) -> None:
        super().__init__()
        self.function, self.learn = function, learn
        takes = inspect.signature(function).parameters
        self.of_features = "features" in takes
        self._target = takes.get("target")
        if learn:
            self.log_scale = nn.Parameter(torch.tensor(math.log(options.pop("scale"))))
        held = {k: torch.as_tensor(v) for k, v in options.items() if isinstance(v, Tensor) or k == "scale"}
        for name, value in held.items():
            self.register_buffer(name, value)
        self._held, self._plain = tuple(held), {k: v for k, v in options.items() if k not in held}

    @property
    def of_directions(self) -> bool:
        """Whether lengths and the bias play no part."""
        return self.function in _DIRECTIONS

    def forward(self, logits: Tensor, target: Tensor, features: Tensor | None, weight: Tensor | None) -> Tensor:
        """Logits ``(N, C)`` for an objective; only what the function takes is looked at."""
        options = {**self._plain, **{name: getattr(self, name) for name in self._held}}
        if self.learn:
            options["scale"] = self.log_scale.exp()
        if self._target is not None:
            soft = target.is_floating_point()
            if soft and self._target.default is inspect.Parameter.empty:
                raise InputError(
                    f"target must hold class indices (N,), got {tuple(target.shape)}: {self._name} needs one class a "
                    "sample; leave mixup out, or choose logits without a margin."
                )
            options["target"] = None if soft else target
        return self.function(features, weight, **options) if self.of_features else self.function(logits, **options)

    def extra_repr(self) -> str:
        return ", ".join([self._name, *(f"{k}={v}" for k, v in self._plain.items()), *["learn"] * self.learn])

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


class CompositeLoss(nn.Module):
    """An objective on logits of any kind, plus a term of pairs.

    Args:
        objective: ``(logits, target) → number``: `EncouragingLoss`, `torch.nn.CrossEntropyLoss`, ….
        logits: A function of `hardsight.losses.logits`, with its options bound by `functools.partial`; None: the
            network's own logits.
        pairs: ``(features, labels) → number``: `AMCLoss`, `EuclideanContrastiveLoss`, `CenterLoss`.
        pair_labels: What tells which samples belong together: ``"predicted"``, the network's own predictions (AMC
            paper, Eq. 3), or ``"true"``. Predicted if not given, but true for a `CenterLoss`.
        hooks: What changes with time; `at` sets them.

    Attributes:
        last_parts: Of the latest batch, where there are several: ``ce`` and ``bonus`` of an Encouraging Loss (before
            `match_gradient`), or ``ce`` or ``objective``, and ``pairs``. Detached, on the device.
        needs_head: Whether features and class weights must be given.
        one_norm: Whether the logits see directions only. Predict then with a head without bias whose class weights
            are of one length.

    Examples:
        >>> from functools import partial
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
                f"objective must take logits and targets, and {type(objective).__name__} takes features; give logits= "
                "and the objective apart, or pairs=."
            )
        for name, part in (("objective", objective), ("pairs", pairs)):
            if getattr(part, "reduction", "mean") == "none":
                raise InputError(
                    f"{name}: its reduction must be 'mean' or 'sum', got 'none'; parts add up to one number."
                )
        if logits is not None and not isinstance(logits, BoundLogits):
            bound = logits if isinstance(logits, partial) else partial(logits)
            if bound.args:
                raise InputError("logits: name its options, as in partial(arcface_logits, margin=0.5).")
            logits = BoundLogits(bound.func, **bound.keywords)
        self.objective, self.logits, self.pairs = objective, logits, pairs
        self.pair_labels = pair_labels or ("true" if isinstance(pairs, CenterLoss) else "predicted")
        self.hooks = tuple(hooks)
        self.needs_head = pairs is not None or (logits is not None and logits.of_features)
        self.one_norm = logits is not None and logits.of_directions
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
                "features and weight are missing, and this loss is made of them; run the model in "
                "hardsight.capture(model) and pass head.features and head.weight."
            )
        logits = logits.to(working_dtype(logits))
        z = logits if self.logits is None else self.logits(logits, target, features, weight)
        value = self.objective(z, target)
        parts = self._apart(z, target, value)
        if self.pairs is not None and features is not None:
            pairs = self.pairs(features, self._labels(logits, target))
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

    @torch.no_grad()
    def _apart(self, z: Tensor, target: Tensor, value: Tensor) -> dict[str, Tensor]:
        if isinstance(self.objective, EncouragingLoss):
            return self.objective.parts(z, target)._asdict()
        return {"ce" if type(self.objective) is nn.CrossEntropyLoss else "objective": value.detach()}

    def _labels(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.pair_labels == "predicted":
            return logits.detach().argmax(1)
        if target.is_floating_point():
            raise InputError(
                f"target must hold class indices (N,) for pairs of true labels, got {tuple(target.shape)}; leave mixup "
                "out, or take pair_labels='predicted'."
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
    """The loss that a name says, as ``hardsight train --loss`` takes it.

    The weight of pairs rises with the learning rate: it is 0 in the first epoch and follows `ramp_up` until `warmup`,
    as in AMC-Loss's released code. Without a warmup it is there from the start.

    Args:
        name: Such as ``"el:0.5@arcface:0.3+amc"``.
        counts: ``(C,)`` training samples of each class, for parts that need them.
        width: Features of a sample, for parts that need them.
        label_smoothing: Of the objective.
        epochs: Of the whole training.
        warmup: Epochs in which the weight of pairs rises.
        rampdown: Epochs in which it falls at the end, where the name says ``down``.

    Examples:
        >>> build_loss("focal")(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.1733)
    """
    name = parse_loss(name) if isinstance(name, str) else name

    def known(chosen: Chosen, value: Any, what: str) -> Any:
        if value is None:
            raise InputError(f"loss: {chosen.part.name} needs {what}, which is not known here; give it to build_loss.")
        return value

    def class_counts(chosen: Chosen) -> Tensor:
        return known(chosen, counts, "the number of samples of each class (counts)")

    hooks = []
    objective = _objective(name.objective, class_counts, label_smoothing, hooks)
    logits = None if name.logits is None else _logits(name.logits, class_counts)
    pairs = labels = None
    if name.pairs is not None:
        options, kind = dict(name.pairs.options), name.pairs.part.name
        down, labels = options.pop("down"), options.pop("labels", None)
        if kind == "center":
            options["classes"] = len(class_counts(name.pairs))
            options["width"] = known(name.pairs, width, "the number of features (width)")
        pairs = _PAIRS[kind](**options)
        if warmup or down:
            whole = pairs.weight
            hooks.append(
                Scheduled(
                    pairs, weight=lambda t: whole * _pair_share(math.floor(t), epochs, warmup, rampdown if down else 0)
                )
            )
    return CompositeLoss(objective, logits, pairs, pair_labels=labels, hooks=hooks)


_PAIRS = {"amc": AMCLoss, "euclid": EuclideanContrastiveLoss, "center": CenterLoss}
_LOGITS = {
    "angular": angular_logits,
    "cosine": cosine_logits,
    "cosface": cosface_logits,
    "arcface": arcface_logits,
    "sphereface": sphereface_logits,
}


def _objective(
    chosen: Chosen, class_counts: Callable[[Chosen], Tensor], smoothing: float, hooks: list[Scheduled]
) -> nn.Module:
    kind, options = chosen.part.name, dict(chosen.options)
    if kind in ("mirror", "mse"):
        return MirrorMSELoss(**options, mirror=kind == "mirror")
    weighted, beta, drw = options.pop("weight") != "none", options.pop("beta"), options.pop("drw")
    given: dict[str, Any] = {"label_smoothing": smoothing}
    if weighted:
        given["weight"] = effective_number_weights(class_counts(chosen), beta)
    if kind == "el":
        defer, rho = options.pop("defer"), options["rho"]
        given |= {"match_gradient": options.pop("match"), "preset": "released" if options.pop("released") else None}
        objective = EncouragingLoss(**given, **options)
        if defer:
            hooks.append(Scheduled(objective, rho=lambda t: rho * deferred(t, defer)))
    else:
        objective = FocalLoss(**given, **options) if kind == "focal" else nn.CrossEntropyLoss(**given)
    if drw:
        weights = deferred_weights(class_counts(chosen), drw, beta)
        hooks.append(Scheduled(objective, weight=lambda t: weights(math.floor(t) + 1)))
    return objective


def _logits(chosen: Chosen, class_counts: Callable[[Chosen], Tensor]) -> BoundLogits:
    kind, options = chosen.part.name, dict(chosen.options)
    if kind == "adjusted":
        return BoundLogits(adjusted_logits, counts=class_counts(chosen).float(), **options)
    if kind == "ldam":
        margins = ldam_margins(class_counts(chosen), options["largest"])
        return BoundLogits(cosface_logits, margin=margins, scale=options["scale"])
    return BoundLogits(_LOGITS[kind], **options)


def _pair_share(epoch: int, epochs: float, warmup: float, rampdown: float) -> float:
    """Share of the weight of pairs: nothing in a first epoch that is part of a warmup."""
    up = 0.0 if warmup and epoch == 0 else ramp_up(epoch, warmup)
    return up * ramp_down(epoch, epochs, rampdown)
