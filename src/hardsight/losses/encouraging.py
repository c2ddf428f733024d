"""The Encouraging Loss and its neighbours as drop-in replacements of torch's classification losses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.losses.objectives import BONUSES, cross_entropy, focal
from hardsight.losses.reduction import Terms, check_weight, reduced, terms_of

OwnBonus = Callable[[Tensor], Tensor]


class LossParts(NamedTuple):
    """A loss in two, each reduced as the loss is: what cross-entropy alone would be, and what the bonus adds."""

    ce: Tensor
    bonus: Tensor


class _Encouraging:
    """The options that the softmax and the sigmoid form share."""

    log_end: float
    start: float
    rho: float

    def _take(
        self, log_end: float, start: float, bonus: str | OwnBonus, gamma: float, rho: float, offset: bool, preset: Any
    ) -> None:
        if preset not in (None, "released"):
            raise InputError(f"preset must be 'released' or None, got {preset!r}.")
        if not callable(bonus) and bonus not in ("log", "power", "cosine"):
            raise InputError(f"bonus must be 'log', 'power', 'cosine' or a function of p, got {bonus!r}.")
        if preset == "released" and bonus != "log":
            raise InputError("preset 'released' clamps the logarithm of the bonus 'log'; leave it out for another one.")
        if not gamma >= 1:
            raise InputError(f"gamma must be 1 or more for the bonus −p^γ to be concave, got {gamma}.")
        if start and bonus != "log":
            raise InputError(f"start belongs to the bonus 'log', got {start} with another one; leave it out.")
        if callable(bonus) and not torch.compiler.is_compiling():
            _check_own(bonus, offset)
        self.log_end, self.start, self.gamma, self.rho = log_end, start, gamma, rho
        self.bonus, self.offset, self.preset = bonus, offset, preset
        self._checked()

    def _checked(self) -> None:
        """Options may be changed between steps: each step looks at them (they are plain numbers)."""
        if not 0 <= self.log_end <= 1:
            raise InputError(f"log_end must be between 0 and 1, got {self.log_end}.")
        if not 0 <= self.start < 1:
            raise InputError(f"start must be 0 or more and less than 1, got {self.start}.")
        if not 0 <= self.rho < math.inf:
            raise InputError(f"rho must be 0 or more and finite, got {self.rho}.")
        if self.offset and self._endless:
            raise InputError(
                "offset: with log_end = 1 the loss has no minimum that could be moved to 0; choose a log_end below 1, "
                "or leave offset out."
            )

    @property
    def _endless(self) -> bool:
        """Whether the loss falls for ever as p goes to 1."""
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
        kind = BONUSES["clamped" if self.preset else self.bonus]
        total = kind.total(m, **{name: getattr(self, name) for name in kind.options})
        return total if self.rho == 1 else ce + self.rho * (total - ce)

    def extra_repr(self) -> str:
        shown = {"start": 0.0, "bonus": "log", "gamma": 2.0, "rho": 1.0, "weight_bonus": True, "offset": False}
        shown |= {"match_gradient": False, "preset": None}
        values = {name: getattr(self, name, usual) for name, usual in shown.items()}
        return ", ".join([f"log_end={self.log_end}", *(f"{k}={v!r}" for k, v in values.items() if v != shown[k])])


class EncouragingLoss(_Encouraging, nn.CrossEntropyLoss):
    """Cross-entropy with a bonus for what is already classified well (Zhao et al., AAAI 2022).

    Drop-in: constructor, shapes, class weights, `ignore_index`, soft targets, label smoothing and reductions are those
    of `torch.nn.CrossEntropyLoss`. Computed in float32 or better from the soft margin m, so that no likelihood is
    clamped: with ``log_end = 1`` the loss is exactly m and its slope at the target logit exactly −1 at any likelihood.

    **Losses are negative** in normal operation; `offset` moves the minimum to 0 where there is one (``log_end < 1``).
    With ``log_end = 1`` there is none: every sample pulls with 1 for ever, so that the many which are right outvote the
    few which are wrong, and logits grow without bound; the paper's code ends it by a clamp (`preset`). With soft
    targets, label smoothing or two classes it is no proper score either, and warns once.

    Args:
        weight: ``(C,)`` weight of each class.
        size_average: Deprecated in torch, see `reduction`.
        ignore_index: Targets that do not count. Where all are ignored the loss is 0.
        reduce: Deprecated in torch, see `reduction`.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: Share of each target spread over all classes, each with its bonus, as released.
        log_end: Where the bonus ``"log"``, ``log(1 − p)``, ends and goes on along its tangent: 1 is the normal bonus,
            less is conservative, 0 the bonus ``−p``.
        start: Reward only p above this (the aggressive bonus: ``log_end=1, start=0.5``).
        bonus: ``"log"``; ``"power"`` (``−p^γ``) or ``"cosine"`` (``cos πp − 1``) of the released code; or your own
            falling, concave function of p.
        gamma: The power of the bonus ``"power"``.
        rho: Factor of the bonus; a schedule may change it. 0 is cross-entropy.
        weight_bonus: Whether class weights weigh the bonus too. If not, its mean is over samples.
        offset: Add a constant so that the smallest possible loss is 0.
        match_gradient: Scale the loss, batch by batch, so that its gradient at the logits is as long as that of
            cross-entropy, for a learning rate that was chosen for that. Directions stay: a bonus without an end has
            none with it either.
        preset: ``"released"`` counts ``1 − p`` as 1e-5 at least, as the paper's code does: the normal bonus then ends
            abruptly at p = .99999.
        validate: Check values (NaN, weights, range and sums of targets) at every call; waits for the device.

    Examples:
        >>> logits, target = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 1])
        >>> EncouragingLoss(log_end=1, reduction="none")(logits, target)  # exactly m
        tensor([-2.3069,  0.6931])
        >>> EncouragingLoss(rho=0)(logits, target) == nn.functional.cross_entropy(logits, target)
        tensor(True)
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
        bonus: Literal["log", "power", "cosine"] | OwnBonus = "log",
        gamma: float = 2.0,
        rho: float = 1.0,
        weight_bonus: bool = True,
        offset: bool = False,
        match_gradient: bool = False,
        preset: Literal["released"] | None = None,
        validate: bool = False,
    ) -> None:
        nn.CrossEntropyLoss.__init__(self, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        _check_common(self)
        self._take(log_end, start, bonus, gamma, rho, offset, preset)
        if match_gradient and self.reduction == "none":
            raise InputError("match_gradient needs a reduction to one number, got 'none'; choose 'mean' or 'sum'.")
        self.weight_bonus, self.match_gradient, self.validate = weight_bonus, match_gradient, validate

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self._checked()
        loss = self._loss(input, target)
        spread = target.is_floating_point() or self.label_smoothing > 0
        if self._endless and (spread or input.shape[0 if input.ndim == 1 else 1] == 2):
            why = "soft targets or label smoothing" if spread else "two classes"
            _warn_once(f"EncouragingLoss: with log_end = 1 and {why} the loss has no minimum; it goes on rewarding ", 5)
        if not self.match_gradient:
            return loss
        scale = self._match(input, target)
        return torch.where(scale == 0, 0, loss * scale)  # cross-entropy has no slope left where the loss is −inf

    def parts(self, input: Tensor, target: Tensor) -> LossParts:
        """Cross-entropy and bonus apart, for a log. Their sum is the loss (before `match_gradient`)."""
        self._checked()
        terms = self._terms(input, target)
        ce = cross_entropy(terms.m)
        bonus = reduced(terms, self._objective(terms.m) - ce, self.reduction, weighted=self.weight_bonus)
        return LossParts(reduced(terms, ce, self.reduction), bonus)

    def _terms(self, input: Tensor, target: Tensor) -> Terms:
        return terms_of(input, target, self.weight, self.ignore_index, self.label_smoothing, self.validate)

    def _loss(self, input: Tensor, target: Tensor) -> Tensor:
        if self.weight is not None and not self.weight_bonus:
            ce, bonus = self.parts(input, target)
            return ce + bonus
        terms = self._terms(input, target)
        return reduced(terms, self._objective(terms.m), self.reduction)

    @torch.no_grad()
    def _match(self, input: Tensor, target: Tensor) -> Tensor:
        """Length of cross-entropy's gradient at the logits over this loss's."""
        z = input.to(working_dtype(input))
        plain = lambda z: self.parts(z, target).ce  # noqa: E731
        ours = torch.func.grad(self._loss)(z, target).norm()
        theirs = torch.func.grad(plain)(z).norm()
        return torch.where(ours > 0, theirs / ours.clamp_min(torch.finfo(ours.dtype).tiny), 1)


class FocalLoss(nn.CrossEntropyLoss):
    """Focal loss, ``−(1 − p)^γ log p``, in the shapes of `torch.nn.CrossEntropyLoss`: the opposite of a bonus.

    Args:
        gamma: How strongly well-classified examples are turned down; 0 is cross-entropy.
        options: What `torch.nn.CrossEntropyLoss` takes, and ``validate``.

    Examples:
        >>> FocalLoss()(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.1733)
    """

    def __init__(self, gamma: float = 2.0, *, validate: bool = False, **options: Any) -> None:
        if not 0 <= gamma < math.inf:
            raise InputError(f"gamma must be 0 or more and finite, got {gamma}.")
        super().__init__(**options)
        _check_common(self)
        self.gamma, self.validate = gamma, validate

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        terms = terms_of(input, target, self.weight, self.ignore_index, self.label_smoothing, self.validate)
        return reduced(terms, focal(terms.m, self.gamma), self.reduction)

    def extra_repr(self) -> str:
        return f"gamma={self.gamma}"


class EncouragingBCELoss(_Encouraging, nn.BCEWithLogitsLoss):
    """The Encouraging Loss over sigmoids: `torch.nn.BCEWithLogitsLoss` with a bonus, for several labels at once.

    Each entry is a problem of two classes with the soft margin ``−z`` where the target is 1 and ``z`` where it is 0, so
    ``log_end = 1`` has no minimum anywhere; it warns.

    Args:
        weight: As in torch: broadcast against the input.
        size_average: Deprecated in torch.
        reduce: Deprecated in torch.
        reduction: ``mean``, ``sum`` or ``none``.
        pos_weight: ``(C,)`` weight of the positive entries.
        log_end: As in `EncouragingLoss`, and so are the rest.
        start: Reward only p above this.
        bonus: ``"log"``, ``"power"``, ``"cosine"`` or a function of p.
        gamma: The power of the bonus ``"power"``.
        rho: Factor of the bonus.
        offset: Add a constant so that the smallest possible loss is 0.
        preset: ``"released"`` clamps ``1 − p``.
        validate: Check values at every call; waits for the device.

    Examples:
        >>> EncouragingBCELoss(rho=0)(torch.tensor([0.0]), torch.tensor([1.0]))
        tensor(0.6931)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
        *,
        log_end: float = 0.75,
        start: float = 0.0,
        bonus: Literal["log", "power", "cosine"] | OwnBonus = "log",
        gamma: float = 2.0,
        rho: float = 1.0,
        offset: bool = False,
        preset: Literal["released"] | None = None,
        validate: bool = False,
    ) -> None:
        nn.BCEWithLogitsLoss.__init__(self, weight, size_average, reduce, reduction, pos_weight)
        _check_common(self)
        self._take(log_end, start, bonus, gamma, rho, offset, preset)
        self.validate = validate
        if self._endless:
            _warn_once("EncouragingBCELoss: with log_end = 1 the loss has no minimum; it goes on rewarding ", 3)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self._checked()
        if input.shape != target.shape:
            raise InputError(
                f"target must have the shape of the input, {tuple(input.shape)}, got {tuple(target.shape)}."
            )
        z = input.to(working_dtype(input))
        t = target.to(z.dtype)
        if self.validate and not torch.compiler.is_compiling():
            if z.isnan().any():
                raise InputError("input holds NaN; look at what the model returns, and at its learning rate.")
            if not ((t >= 0) & (t <= 1)).all():
                raise InputError("target must lie between 0 and 1.")
        positive = t * self._objective(-z)
        if self.pos_weight is not None:
            positive = positive * self.pos_weight
        loss = positive + (1 - t) * self._objective(z)
        if self.weight is not None:
            loss = loss * self.weight
        if self.reduction == "none":
            return loss
        return loss.sum() if self.reduction == "sum" else loss.sum() / max(loss.numel(), 1)


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

    Args:
        input: ``(N, C)`` or ``(N, C, …)`` logits.
        target: Class indices, or a distribution of the input's shape.
        weight: ``(C,)`` weight of each class.
        ignore_index: Targets that do not count.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: Share of each target spread over all classes.
        options: ``log_end`` and whatever else `EncouragingLoss` takes.

    Examples:
        >>> encouraging_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), log_end=1)
        tensor(-1.3069)
    """
    given = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    return EncouragingLoss(weight, **given, **options)(input, target)


def _check_common(loss: nn.Module) -> None:
    if loss.reduction not in ("mean", "sum", "none"):
        raise InputError(f"reduction must be 'mean', 'sum' or 'none', got {loss.reduction!r}.")
    if not 0 <= (smoothing := getattr(loss, "label_smoothing", 0.0)) <= 1:
        raise InputError(f"label_smoothing must be between 0 and 1, got {smoothing}.")
    # Where looking does not wait for a device: `encouraging_loss` comes here at every step.
    for name in ("weight", "pos_weight"):
        weight = getattr(loss, name, None)
        if weight is not None and weight.device.type == "cpu" and not torch.compiler.is_compiling():
            check_weight(weight, name)


def _check_own(bonus: OwnBonus, offset: bool) -> None:
    values = bonus(torch.linspace(0.01, 0.99, 99, dtype=torch.float64))
    steps, rounding = values.diff(), 1e-12 * values.abs().max()
    if not bool((steps <= rounding).all()) or not bool((steps.diff() <= rounding).all()):
        raise InputError(
            "bonus must be a finite function of p that falls and is concave (steeper as p grows), as −p² is; got one "
            "that is not."
        )
    if offset and not bool(bonus(torch.ones((), dtype=torch.float64)).isfinite()):
        raise InputError(
            "offset: with a bonus that has no end at p = 1 there is no minimum to move to 0; leave it out."
        )


_told: set[str] = set()


def _warn_once(start: str, stacklevel: int) -> None:
    """Say once a process that a loss has no minimum, at the line of whoever called it."""
    if torch.compiler.is_compiling() or start in _told:
        return
    _told.add(start)
    told = f"{start}the largest probability for ever, whatever the targets say. Choose log_end < 1."
    warnings.warn(told, stacklevel=stacklevel)
