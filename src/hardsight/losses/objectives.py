"""Objectives of logits: the Encouraging Loss over a softmax and over sigmoids, and focal loss."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError, InputTypeError
from hardsight.losses.base import MarginLoss, Terms, check_weights
from hardsight.losses.grammar import loss_part
from hardsight.losses.margins import (
    BONUSES,
    CURVES,
    Curve,
    cross_entropy,
    cross_entropy_curve,
    focal_curve,
    matched,
)
from hardsight.registry import Range
from hardsight.schedules import Scheduled, deferred

LogEnd, Start = Annotated[float, Range(0, 1)], Annotated[float, Range(0, 1, "[)")]
NotNegative = Annotated[float, Range(0)]

loss_part("objective", "ce", reference="torch.nn.CrossEntropyLoss")(nn.CrossEntropyLoss)


class LossParts(NamedTuple):
    """A loss in two parts, each reduced like the loss: cross-entropy alone, and what the bonus adds."""

    ce: Tensor
    bonus: Tensor

    def detached(self) -> LossParts:
        """The same numbers without a gradient."""
        return LossParts(*(part.detach() for part in self))


class EncouragingLoss(MarginLoss):
    """Cross-entropy with a bonus for samples that are already classified well (Zhao et al., AAAI 2022).

    A drop-in: shapes, class weights, `ignore_index`, soft targets, label smoothing and reductions are those of
    `torch.nn.CrossEntropyLoss`. It is computed in float32 or better from the soft margin m, so no likelihood is
    clamped: with ``log_end = 1`` the loss is exactly m, and its slope at the target logit exactly −1.

    **Losses are negative** in normal operation. With ``log_end = 1`` there is no minimum: every sample pulls with slope
    1 forever, so the many that are right outvote the few that are wrong, and logits grow without bound. The paper's
    code stops this with a clamp (`preset`). With soft targets, label smoothing or two classes it warns once.

    Args:
        weight, ignore_index, reduction, label_smoothing: As in torch; every class that smoothing reaches gets a bonus,
            as released. If all targets are ignored, the loss is 0.
        log_end: Where the bonus ``"log"``, ``log(1 − p)``, ends and continues along its tangent: 1 is the normal
            bonus, less is conservative, 0 is the bonus ``−p``.
        start: Reward only p above this (the aggressive bonus: ``log_end=1, start=0.5``).
        bonus: A name in `BONUSES`: ``"log"``, ``"power"`` (``−p^γ``), ``"cosine"`` (``cos πp − 1``); or a falling,
            concave function of p.
        gamma: The power of the bonus ``"power"``.
        rho: Factor of the bonus; a schedule may change it. 0 is cross-entropy.
        weight_bonus: Whether class weights apply to the bonus too. If not, its mean is over samples.
        offset: Add a constant so that the smallest possible loss is 0; needs ``log_end < 1``.
        match_gradient: Scale the loss of each batch so that its gradient at the logits has the same norm as that of
            cross-entropy, for a learning rate that was tuned for cross-entropy.
        preset: ``"released"`` clamps ``1 − p`` at 1e-5, as the paper's code does.
        validate: Check values (NaN, range and sums of targets) at every call; waits for the device.

    Examples:
        >>> logits, target = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1])
        >>> EncouragingLoss(log_end=1, reduction="none")(logits, target)  # exactly m
        tensor([-2.3069,  0.6931])
    """

    log_end: LogEnd
    start: Start
    gamma: Annotated[float, Range(1)]  # otherwise −p^γ is not concave
    rho: NotNegative
    preset: Literal["released"] | None

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        log_end: float = 0.75,
        start: float = 0.0,
        bonus: str | Callable[[Tensor], Tensor] = "log",
        gamma: float = 2.0,
        rho: float = 1.0,
        weight_bonus: bool = True,
        offset: bool = False,
        match_gradient: bool = False,
        preset: Literal["released"] | None = None,
        validate: bool = False,
    ) -> None:
        common = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
        super().__init__(weight, validate=validate, **common)
        self.log_end, self.start, self.gamma, self.rho, self.preset = log_end, start, gamma, rho, preset
        self.bonus, self.weight_bonus, self.offset, self.match_gradient = bonus, weight_bonus, offset, match_gradient
        if (preset or start) and bonus != "log":
            raise InputError(f"start and preset belong to the bonus 'log', got {bonus!r}; leave them out.")
        if match_gradient and reduction == "none":
            raise InputError("match_gradient needs reduction 'mean' or 'sum', got 'none'.")
        if not callable(bonus):
            _ = BONUSES[bonus]  # checked even if its factor is 0 now
        self._curve(torch.zeros(()))  # raises if an offset is asked for without a minimum

    @property
    def endless(self) -> bool:
        """Whether the loss falls without bound as p goes to 1."""
        return self.bonus == "log" and self.preset is None and self.log_end == 1 and self.rho > 0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return self._evaluate(input, target, False)

    def parts(self, input: Tensor, target: Tensor) -> LossParts:
        """Cross-entropy and bonus separately, for logging. Their sum is the loss (before `match_gradient`)."""
        terms = self.terms(input, target)
        return self._split(terms, self.margins(terms))[1]

    def with_parts(self, input: Tensor, target: Tensor) -> tuple[Tensor, LossParts]:
        """The loss, and its `parts` from the same pass; the parts have no gradient."""
        return self._evaluate(input, target, True)

    @property
    def needs_all_margins(self) -> bool:
        """Whether the target's margin is not enough and the full matrix of logits is needed."""
        return self.match_gradient or super().needs_all_margins

    def of_margins(self, m: Tensor, target: Tensor) -> Tensor:
        """The loss of soft margins ``(N,)`` at class indices ``(N,)``, wherever the margins come from."""
        return self._unmatched(self._terms_of_margins(m, target), m)

    def with_parts_of_margins(self, m: Tensor, target: Tensor) -> tuple[Tensor, LossParts]:
        """`with_parts` of soft margins ``(N,)`` at class indices ``(N,)``."""
        loss, both = self._split(self._terms_of_margins(m, target), m)
        return loss, both.detached()

    def _evaluate(self, input: Tensor, target: Tensor, parts: bool) -> Any:
        """The loss, with its parts if asked for."""
        fast = self._by_kernels(input, target)
        if fast is not None:
            if input.shape[1] == 2 and self.endless:
                _warn_once(type(self).__name__)
            loss, sums = fast
            return (loss, LossParts(sums[0], sums[1])) if parts else loss
        terms = self.terms(input, target)
        unclear = terms.shares is not None or terms.z.shape[1] == 2
        if unclear and self.endless and not torch.compiler.is_compiling():
            _warn_once(type(self).__name__)
        index = self._targets_of_one_pass(terms)
        if index is None or self._apart or callable(self.bonus) or self.bonus not in CURVES:
            if not parts:
                return self._plain(terms)
            m = self.margins(terms)
            loss, both = self._split(terms, m)
            return self._matched(loss, terms), both.detached()
        loss, *both = self._in_one_pass(terms, index, match=self.match_gradient, parts=parts)
        return (loss, LossParts(*both)) if parts else loss

    @property
    def _apart(self) -> bool:
        return self.weight is not None and not self.weight_bonus

    def _plain(self, terms: Terms) -> Tensor:
        return self._matched(self._unmatched(terms, self.margins(terms)), terms)

    def _unmatched(self, terms: Terms, m: Tensor) -> Tensor:
        return self._split(terms, m)[0] if self._apart else self._reduced(terms, self._curve(m).value)

    def _split(self, terms: Terms, m: Tensor) -> tuple[Tensor, LossParts]:
        """The loss and its parts, before gradients are matched."""
        value, _, ce = self._curve(m)
        ce = cross_entropy(m) if ce is None else ce
        reduced = self._reduced(terms, ce)
        if self._apart:
            bonus = self._reduced(terms, value - ce, weighted=False)
            return reduced + bonus, LossParts(reduced, bonus)
        loss = self._reduced(terms, value)
        return loss, LossParts(reduced, loss - reduced)

    def _curve(self, m: Tensor) -> Curve:
        """Cross-entropy and bonus, a function of the soft margin."""
        if not self.offset:
            return self._total(m)
        if self.endless:
            raise InputError("offset: with log_end = 1 the loss has no minimum; choose a log_end below 1.")
        value, slope, ce = self._total(m)
        return Curve(value - self._total(m.new_full((), -math.inf)).value, slope, ce)  # less the value at p = 1

    def _total(self, m: Tensor) -> Curve:
        rho, bonus = self.rho, self.bonus
        if not rho:
            return cross_entropy_curve(m)
        if callable(bonus):
            ce = cross_entropy(m)
            return Curve(ce + rho * bonus((-ce).exp()), None, ce)  # p, with a slope that is not lost as it rounds to 1
        options = {"log_end": self.log_end, "start": self.start, "gamma": self.gamma}
        options["released"] = self.preset is not None
        curve = CURVES[bonus](m, **options) if bonus in CURVES else Curve(BONUSES[bonus](m, **options))
        if rho == 1:
            return curve
        value, slope, ce = curve
        ce = cross_entropy(m) if ce is None else ce
        rest = m.sigmoid()
        return Curve(ce + rho * (value - ce), lambda: rest + rho * ((slope() if slope else 1) - rest), ce)

    def _numbers(self, kernels: Any) -> Any:
        log_end, start, offset = self.log_end, self.start, 0.0
        if not self.rho:
            return kernels.CROSS_ENTROPY
        if self.bonus != "log" or self.match_gradient or self._apart or (self.offset and self.endless):
            return None
        clamped = self.preset is not None and log_end >= 1 - 1e-5
        end, slant, level, shift = -1.0, 0.0, 0.0, 0.0
        if clamped:
            end, level = 1e-5, math.log(1e-5)
        elif log_end < 1:
            end, slant, level = 1 - log_end, 1 / (1 - log_end), math.log(1 - log_end) - 1
        if start:
            shift = math.log(1 - start) if clamped or start <= log_end else (1 - start) * slant + level
        if self.offset:
            offset = self.rho * (level - shift)  # the value at p = 1
        return kernels.Numbers("log", end, slant, level, 1 - start if start else 2.0, shift, self.rho, offset)

    def _matched(self, loss: Tensor, terms: Terms) -> Tensor:
        if not self.match_gradient:
            return loss

        def ours(z: Tensor) -> Tensor:
            return self._unmatched(terms, self.margins(terms._replace(z=z)))

        def theirs(z: Tensor) -> Tensor:
            return self._reduced(terms, cross_entropy(self.margins(terms._replace(z=z))))

        with torch.no_grad():
            scale = matched(torch.func.grad(ours)(terms.z), torch.func.grad(theirs)(terms.z))
        return torch.where(scale == 0, 0, loss * scale)  # cross-entropy has no slope left where the loss is −inf


def encouraging_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    """`EncouragingLoss` as a function, called like `torch.nn.functional.cross_entropy`."""
    return EncouragingLoss(weight, **options)(input, target)


@functools.cache
def _warn_once(name: str) -> None:
    warnings.warn(
        f"{name}: with log_end = 1 and soft targets, label smoothing or two classes there is no minimum: it rewards "
        "the largest probability without end, whatever the targets are. Choose log_end < 1.",
        stacklevel=6,  # where the loss is called
    )


class EncouragingBCELoss(EncouragingLoss):
    """The Encouraging Loss over sigmoids: `torch.nn.BCEWithLogitsLoss` with a bonus, for several labels per sample.

    Each entry is a two-class problem with the soft margin ``−z`` where the target is 1 and ``z`` where it is 0, so
    ``log_end = 1`` has no minimum anywhere and warns. `weight` and `pos_weight` are torch's; other options are those of
    `EncouragingLoss`, except ``ignore_index``, ``label_smoothing`` and ``weight_bonus``.
    """

    def __init__(self, weight: Tensor | None = None, *, pos_weight: Tensor | None = None, **options: Any) -> None:
        if unused := options.keys() & {"ignore_index", "label_smoothing", "weight_bonus"}:
            raise InputTypeError(f"EncouragingBCELoss does not take {' and '.join(unused)}.")
        super().__init__(**options)
        check_weights(weight=weight, pos_weight=pos_weight)
        self.register_buffer("entry_weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    @property
    def needs_all_margins(self) -> bool:
        """Always: each class is a separate question."""
        return True

    def _numbers(self, kernels: Any) -> Any:
        return None

    def terms(self, input: Tensor, target: Tensor) -> Terms:
        if input.shape != target.shape:
            raise InputError(f"target must have the shape {tuple(input.shape)}, got {tuple(target.shape)}.")
        z = input.to(working_dtype(input))
        t = target.to(z.dtype)
        self._check_values(1, input=z, target=t)
        positive = t if self.pos_weight is None else t * self.pos_weight
        shares = torch.stack([1 - t, positive], 1)
        shares = shares if self.entry_weight is None else shares * self.entry_weight.expand_as(z).unsqueeze(1)
        return Terms(z, shares, None, torch.ones_like(z, dtype=torch.bool), False)

    def margins(self, terms: Terms) -> Tensor:
        return torch.stack([terms.z, -terms.z], 1)


@loss_part(
    "objective",
    "el",
    reference="EL (AAAI 2022) Eq. 6, 7",
    presets={  # the paper's bonuses end where its §4.1 clamps 1 − p; the exact one has no end
        "normal": {"log_end": 1.0, "start": 0.0, "released": True},
        "aggressive": {"log_end": 1.0, "start": 0.5, "released": True},
        "exact": {"log_end": 1.0, "released": False},
    },
    latest="defer",
)
def _el(
    *,
    log_end: LogEnd = 0.75,
    start: Start = 0.0,
    rho: NotNegative = 1.0,
    bonus: Annotated[str, BONUSES] = "log",
    defer: Annotated[int, Range(0)] = 0,
    match: bool = False,
    released: bool = False,
    uniform: bool = False,
    weight: Tensor | None,
    label_smoothing: float,
) -> tuple[nn.Module, list[Scheduled]]:
    """Encouraging Loss: cross-entropy with a bonus that rewards what is already right."""
    preset = "released" if released else None
    options: dict[str, Any] = {"log_end": log_end, "start": start, "rho": rho, "bonus": bonus, "match_gradient": match}
    options["weight_bonus"] = not uniform
    loss = EncouragingLoss(weight, label_smoothing=label_smoothing, preset=preset, **options)
    return loss, [Scheduled(loss, rho=partial(_deferred_rho, rho, defer))] if defer else []


def _deferred_rho(rho: float, start: float, time: float) -> float:
    return rho * deferred(time, start)


@loss_part("objective", "focal", reference="Lin et al. (ICCV 2017)")
class FocalLoss(MarginLoss):
    """Focal loss, ``−(1 − p)^γ log p``, which down-weights what is already right: the opposite of a bonus.

    With ``gamma=0`` it is cross-entropy. Other options are those of torch, and ``validate`` as in `EncouragingLoss`.
    """

    gamma: NotNegative

    def __init__(
        self, gamma: float = 2.0, weight: Tensor | None = None, label_smoothing: float = 0.0, **options: Any
    ) -> None:
        super().__init__(weight, label_smoothing=label_smoothing, **options)
        self.gamma = gamma

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        fast = self._by_kernels(input, target)
        if fast is not None:
            return fast[0]
        terms = self.terms(input, target)
        index = self._targets_of_one_pass(terms)
        return self._plain(terms) if index is None else self._in_one_pass(terms, index)[0]

    def _curve(self, m: Tensor) -> Curve:
        return focal_curve(m, self.gamma)

    def _numbers(self, kernels: Any) -> Any:
        return kernels.Numbers("focal", factor=self.gamma) if self.gamma else kernels.CROSS_ENTROPY
