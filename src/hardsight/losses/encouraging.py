"""The Encouraging Loss: cross-entropy with a bonus, in the shapes of torch's classification losses."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.grammar import loss_part
from hardsight.losses.margins import BONUSES, cross_entropy
from hardsight.losses.reduction import MarginLoss, Terms, check_common, check_values, reduced
from hardsight.registry import Range
from hardsight.schedules import Scheduled, deferred

_RANGES = {"log_end": Range(0, 1), "start": Range(0, 1, "[)"), "rho": Range(0)}


class LossParts(NamedTuple):
    """A loss in two, each reduced as the loss is: cross-entropy alone, and what the bonus adds."""

    ce: Tensor
    bonus: Tensor


class _Encouraging(nn.Module):
    """The options that the softmax and the sigmoid form share."""

    def _set_bonus(
        self,
        log_end: float = 0.75,
        start: float = 0.0,
        bonus: str | Callable[[Tensor], Tensor] = "log",
        gamma: float = 2.0,
        rho: float = 1.0,
        offset: bool = False,
        preset: str | None = None,
        validate: bool = False,
    ) -> None:
        check_common(self)
        if preset not in (None, "released"):
            raise InputError(f"preset must be 'released' or None, got {preset!r}.")
        if not callable(bonus) and bonus not in BONUSES:
            raise InputError(f"bonus must be {', '.join(BONUSES)} or a function of p, got {bonus!r}.")
        if (preset or start) and bonus != "log":
            given = f"preset {preset!r}" if preset else f"start={start}"
            raise InputError(f"{given} belongs to the bonus 'log', got {bonus!r}; leave it out.")
        Range(1).check(gamma, "gamma")  # otherwise −p^γ is not concave
        if callable(bonus) and not torch.compiler.is_compiling():
            _check_concave(bonus, offset)
        self.log_end, self.start, self.gamma, self.rho = log_end, start, gamma, rho
        self.bonus, self.offset, self.preset, self.validate = bonus, offset, preset, validate
        self._check_numbers()

    def _check_numbers(self) -> None:
        """At every step, because a schedule may change them."""
        for name, range_ in _RANGES.items():
            range_.check(getattr(self, name), name)
        if self.offset and self._endless:
            raise InputError("offset: with log_end = 1 the loss has no minimum; choose a log_end below 1.")

    @property
    def _endless(self) -> bool:
        """Whether the loss falls without end as p goes to 1."""
        return self.bonus == "log" and self.preset is None and self.log_end == 1 and self.rho > 0

    def _objective(self, m: Tensor) -> Tensor:
        """Cross-entropy and bonus, a function of the soft margin."""
        total = self._total(m)
        return total - self._total(m.new_full((), -math.inf)) if self.offset else total  # less that of p = 1

    def _total(self, m: Tensor) -> Tensor:
        ce = cross_entropy(m)
        if not self.rho:
            return ce
        if callable(self.bonus):
            return ce + self.rho * self.bonus((-ce).exp())  # p, with a slope that is not lost as it rounds to 1
        options = {"log_end": self.log_end, "start": self.start, "gamma": self.gamma}
        total = BONUSES[self.bonus](m, **options, released=self.preset is not None)
        return total if self.rho == 1 else ce + self.rho * (total - ce)

    def extra_repr(self) -> str:
        shown = ("start", "bonus", "rho", "preset")
        return ", ".join([f"log_end={self.log_end}", *(f"{name}={getattr(self, name)!r}" for name in shown)])


class EncouragingLoss(_Encouraging, MarginLoss):
    """Cross-entropy with a bonus for what is already classified well (Zhao et al., AAAI 2022).

    A drop-in: constructor, shapes, class weights, `ignore_index`, soft targets, label smoothing and reductions are
    those of `torch.nn.CrossEntropyLoss`. It is computed in float32 or better from the soft margin m, so no likelihood
    is clamped: with ``log_end = 1`` the loss is exactly m, and its slope at the target logit exactly −1.

    **Losses are negative** in normal operation. With ``log_end = 1`` there is no minimum: every sample pulls with 1
    for ever, so the many that are right outvote the few that are wrong, and logits grow without bound. The paper's
    code ends this with a clamp (`preset`). With soft targets, label smoothing or two classes it warns once.

    Args:
        weight: ``(C,)`` weight of each class.
        size_average, reduce: Deprecated in torch, see `reduction`.
        ignore_index: Targets that do not count. Where all are ignored the loss is 0.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: Share of each target spread over all classes, each with its bonus, as released.
        log_end: Where the bonus ``"log"``, ``log(1 − p)``, ends and continues along its tangent: 1 is the normal
            bonus, less is conservative, 0 is the bonus ``−p``.
        start: Reward only p above this (the aggressive bonus: ``log_end=1, start=0.5``).
        bonus: A name in `BONUSES`: ``"log"``, ``"power"`` (``−p^γ``), ``"cosine"`` (``cos πp − 1``); or a falling,
            concave function of p.
        gamma: The power of the bonus ``"power"``.
        rho: Factor of the bonus; a schedule may change it. 0 is cross-entropy.
        weight_bonus: Whether class weights weigh the bonus too. If not, its mean is over samples.
        offset: Add a constant so that the smallest possible loss is 0; needs ``log_end < 1``.
        match_gradient: Scale the loss of each batch so that its gradient at the logits is as long as that of
            cross-entropy, for a learning rate that was tuned for cross-entropy.
        preset: ``"released"`` clamps ``1 − p`` at 1e-5, as the paper's code does.
        validate: Check values (NaN, range and sums of targets) at every call; waits for the device.

    Examples:
        >>> logits, target = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1])
        >>> EncouragingLoss(log_end=1, reduction="none")(logits, target)  # exactly m
        tensor([-2.3069,  0.6931])
        >>> EncouragingLoss().parts(logits, target)
        LossParts(ce=tensor(0.5968), bonus=tensor(-1.2148))
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
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
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self._set_bonus(log_end, start, bonus, gamma, rho, offset, preset, validate)
        if match_gradient and self.reduction == "none":
            raise InputError("match_gradient needs reduction 'mean' or 'sum', got 'none'.")
        self.weight_bonus, self.match_gradient = weight_bonus, match_gradient

    def forward(self, input: Tensor, target: Tensor, terms: Terms | None = None) -> Tensor:
        self._check_numbers()
        loss = self._loss(input, target, terms)
        spread = target.is_floating_point() or self.label_smoothing > 0
        two = input.shape[min(input.ndim - 1, 1)] == 2
        if self._endless and (spread or two) and not torch.compiler.is_compiling():
            case = "soft targets or label smoothing" if spread else "two classes"
            _warn_once(f"EncouragingLoss: with log_end = 1 and {case} the loss has no minimum", 5)
        if not self.match_gradient:
            return loss
        scale = self._match(input, target)
        return torch.where(scale == 0, 0, loss * scale)  # cross-entropy has no slope left where the loss is −inf

    def parts(self, input: Tensor, target: Tensor, terms: Terms | None = None) -> LossParts:
        """Cross-entropy and bonus separately, for a log. Their sum is the loss (before `match_gradient`).

        Where `terms` of the same input and target are there already, they are not computed again.
        """
        self._check_numbers()
        terms = terms or self.terms(input, target)
        ce = cross_entropy(terms.m)
        bonus = self._reduced(terms, self._objective(terms.m) - ce, weighted=self.weight_bonus)
        return LossParts(self._reduced(terms, ce), bonus)

    def _loss(self, input: Tensor, target: Tensor, terms: Terms | None = None) -> Tensor:
        if self.weight is not None and not self.weight_bonus:
            return torch.add(*self.parts(input, target, terms))
        terms = terms or self.terms(input, target)
        return self._reduced(terms, self._objective(terms.m))

    @torch.no_grad()
    def _match(self, input: Tensor, target: Tensor) -> Tensor:
        """Length of the gradient of cross-entropy at the logits over that of this loss."""
        z = input.to(working_dtype(input))
        ours = torch.func.grad(self._loss)(z, target).norm()
        theirs = torch.func.grad(lambda z: self.parts(z, target).ce)(z).norm()
        return torch.where(ours > 0, theirs / ours.clamp_min(torch.finfo(ours.dtype).tiny), 1)


def encouraging_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **options: Any,
) -> Tensor:
    """`EncouragingLoss` as a function, called like `torch.nn.functional.cross_entropy`.

    Examples:
        >>> encouraging_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), log_end=1)
        tensor(-1.3069)
    """
    return EncouragingLoss(weight, None, ignore_index, None, reduction, label_smoothing, **options)(input, target)


class EncouragingBCELoss(_Encouraging, nn.BCEWithLogitsLoss):
    """The Encouraging Loss over sigmoids: `torch.nn.BCEWithLogitsLoss` with a bonus, for several labels per sample.

    Each entry is a problem of two classes with the soft margin ``−z`` where the target is 1 and ``z`` where it is 0, so
    ``log_end = 1`` has no minimum anywhere; it warns.

    Arguments are those of torch, and ``log_end``, ``start``, ``bonus``, ``gamma``, ``rho``, ``offset``, ``preset`` and
    ``validate`` as in `EncouragingLoss`.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
        **options: Any,
    ) -> None:
        super().__init__(weight, size_average, reduce, reduction, pos_weight)
        self._set_bonus(**options)
        if self._endless:
            _warn_once("EncouragingBCELoss: with log_end = 1 the loss has no minimum", 3)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self._check_numbers()
        if input.shape != target.shape:
            raise InputError(f"target must have the shape {tuple(input.shape)}, got {tuple(target.shape)}.")
        z = input.to(working_dtype(input))
        t = target.to(z.dtype)
        if self.validate and not torch.compiler.is_compiling():
            check_values(z, t, soft=True)
        positive = t * self._objective(-z) * (1 if self.pos_weight is None else self.pos_weight)
        loss = (positive + (1 - t) * self._objective(z)) * (1 if self.weight is None else self.weight)
        return reduced(loss, self.reduction, max(loss.numel(), 1))


def _named_endless(options: Mapping[str, Any]) -> bool:
    log = options["log_end"] == 1 and options["bonus"] == "log"
    return log and options["rho"] > 0 and not options["released"]


@loss_part(
    "objective",
    "el",
    reference="EL (AAAI 2022) Eq. 4–7",
    presets={  # the paper's bonuses end where its §4.1 clamps 1 − p; the exact one has no end
        "normal": {"log_end": 1.0, "start": 0.0, "released": True},
        "aggressive": {"log_end": 1.0, "start": 0.5, "released": True},
        "exact": {"log_end": 1.0, "released": False},
    },
    clamped=itemgetter("released"),
    endless=_named_endless,
    latest=itemgetter("defer"),
)
def _el(
    *,
    log_end: Annotated[float, _RANGES["log_end"]] = 0.75,
    start: Annotated[float, _RANGES["start"]] = 0.0,
    rho: Annotated[float, _RANGES["rho"]] = 1.0,
    bonus: Annotated[str, BONUSES] = "log",
    defer: Annotated[int, Range(0)] = 0,
    match: bool = False,
    released: bool = False,
    weight: Tensor | None,
    label_smoothing: float,
) -> tuple[nn.Module, list[Scheduled]]:
    """Encouraging Loss: cross-entropy with a bonus that rewards what is already right."""
    preset = "released" if released else None
    options: dict[str, Any] = {"log_end": log_end, "start": start, "rho": rho, "bonus": bonus, "match_gradient": match}
    loss = EncouragingLoss(weight, label_smoothing=label_smoothing, preset=preset, **options)
    return loss, [Scheduled(loss, rho=lambda t: rho * deferred(t, defer))] if defer else []


def _check_concave(bonus: Callable[[Tensor], Tensor], offset: bool) -> None:
    values = bonus(torch.linspace(0.01, 0.99, 99, dtype=torch.float64))
    steps, rounding = values.diff(), 1e-12 * values.abs().max()
    if not bool((steps <= rounding).all()) or not bool((steps.diff() <= rounding).all()):
        raise InputError("bonus must be a finite, falling and concave function of p, such as −p², and is not.")
    if offset and not bool(bonus(torch.ones((), dtype=torch.float64)).isfinite()):
        raise InputError("offset: the bonus has no end at p = 1, so there is no minimum to move to 0; leave it out.")


@functools.cache
def _warn_once(start: str, stacklevel: int) -> None:
    """Say once per process that a loss has no minimum, at the line that called it."""
    text = f"{start}: it rewards the largest probability without end, whatever the targets are. Choose log_end < 1."
    warnings.warn(text, stacklevel=stacklevel)
