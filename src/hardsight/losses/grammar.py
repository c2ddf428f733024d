"""The parts of a loss by name, and the grammar that joins them: ``OBJECTIVE[@LOGITS][+PAIRS]``.

A part is one function under `loss_part`: its options, defaults and ranges are read from its signature, its summary
from its docstring. The parser, the builder, the help of the command and the table in the docs know it from there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from hardsight.errors import InputError, InputTypeError
from hardsight.registry import Option, Range, Registry, check_choice, did_you_mean, options_of

Kind = Literal["objective", "logits", "pairs"]
F = TypeVar("F", bound=Callable[..., Any])

SIGNS: dict[Kind, str] = {"objective": "", "logits": "@", "pairs": "+"}
_FORM = "OBJECTIVE[@LOGITS][+PAIRS]"
_ONLY_IN_PYTHON = ("spherical", "taylor")  # the prediction of the network would need these logits too
_CLASS_WEIGHTS = (
    Option("weight", str, "none", choices=("none", "effective")),
    Option("beta", float, 0.9999, Range(0, 1)),
    Option("drw", int, 0, Range(0)),
)
_LABELS = Option("labels", str, "predicted", choices=("predicted", "true"))
# What `build_loss` passes to a function, and options of the grammar: neither may be an option of the function.
_CONTEXT: dict[Kind, set[str]] = {
    "objective": {"counts", "width", "label_smoothing", "weight"},
    "logits": {"counts", "width"},
    "pairs": {"counts", "width"},
}
_RESERVED: dict[Kind, set[str]] = {"objective": set(), "logits": {"learn"}, "pairs": {"labels", "down"}}
_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


def _never(options: Mapping[str, Any]) -> bool:
    return False


def _at_once(options: Mapping[str, Any]) -> int:
    return 0


@dataclass(frozen=True)
class LossPart:
    """A registered part of a loss.

    Attributes:
        name: As `parse_loss` takes it.
        function: See `loss_part`.
        kind: ``objective``, ``logits`` or ``pairs``.
        reference: Where it is defined.
        alias: Another name.
        presets: Values of several options under one name.
        indices: Whether it needs one class per sample, and not a distribution as mixup makes it.
        directions: Whether lengths and the bias play no part in these logits.
        learnable: Whether the scale of these logits can be learned.
        clamped: Of the values of the options, whether a clamp of 1 − p ends the bonus of this objective.
        endless: Of these, whether this objective has no minimum.
        latest: Of these, after how many epochs this objective changes for the last time.
    """

    name: str
    function: Callable[..., Any]
    kind: Kind
    reference: str
    alias: str = ""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    indices: bool = False
    directions: bool = False
    learnable: bool = False
    clamped: Callable[[Mapping[str, Any]], bool] = field(default=_never, compare=False)
    endless: Callable[[Mapping[str, Any]], bool] = field(default=_never, compare=False)
    latest: Callable[[Mapping[str, Any]], int] = field(default=_at_once, compare=False)

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.function.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def needs(self) -> set[str]:
        """Which of ``counts``, ``width``, ``label_smoothing`` and class weights `build_loss` passes to the function."""
        return _CONTEXT[self.kind] & inspect.signature(self.function).parameters.keys()

    @property
    def weighted(self) -> bool:
        """Whether it takes class weights."""
        return "weight" in self.needs

    @property
    def options(self) -> dict[str, Option]:
        """Those of the function, and those that its kind has. A value without a name is the first option's."""
        extra = [*_CLASS_WEIGHTS] if self.weighted else []
        if self.kind == "pairs":
            extra += [*([] if self.indices else [_LABELS]), Option("down", bool, False)]
        if self.learnable:
            extra.append(Option("learn", bool, False))
        return options_of(self.function) | {option.name: option for option in extra}


def _checked_part(name: str, function: Callable[..., Any], **facts: Any) -> LossPart:
    """A part that a name can say: the parser reads lower case, and other values of an option would be lost."""
    part = LossPart(name, function, **facts)
    check_choice(part.kind, SIGNS, "loss_part: the kind")
    for word in (name, *([part.alias] if part.alias else []), *part.presets):
        if not _NAME.fullmatch(word):
            raise InputError(f"loss_part: {word!r} must be lower case: a letter, then letters, digits, _, . and -.")
    for word in (name, part.alias):
        if word and (word in _ONLY_IN_PYTHON or word in LOSSES or word in _aliases()):
            raise InputError(f"loss_part: the name {word!r} is taken; choose another.")
    for option in options_of(function):
        if option != option.lower():
            raise InputError(f"loss_part: {name}'s option {option!r} must be lower case.")
        if option in _CONTEXT[part.kind]:
            raise InputError(
                f"loss_part: {name}'s {option} comes from build_loss, so it is no option; leave its default out, or "
                "rename it."
            )
        if option in _RESERVED[part.kind] or (part.weighted and option in {extra.name for extra in _CLASS_WEIGHTS}):
            raise InputError(f"loss_part: {name}'s option {option} has a meaning already; rename it.")
    return part


LOSSES: Registry[LossPart] = Registry("part of a loss", _checked_part)


def loss_part(kind: Kind, name: str | None = None, *, reference: str, **facts: Any) -> Callable[[F], F]:
    """A decorator that makes a function a part of a loss, by name.

    It is a function of a batch: ``(logits, target, …) → number`` for an objective, ``(features, weight[, target], …)``
    or ``(logits, …) → logits``, ``(features, labels, …) → number`` for pairs. Or, with keyword-only parameters, it
    builds one; an objective may come with a list of `Scheduled`. `build_loss` passes ``counts`` (samples of each class)
    and ``width`` (of the features) where they are parameters, and to an objective also ``label_smoothing`` and class
    weights (``weight``). All others are options.

    The name (that of the function if not given) and those of options are lower case; `facts` are other attributes of
    `LossPart`.

    Examples:
        >>> @loss_part("logits", reference="Hinton et al. (2015)")
        ... def tempered(logits, *, temperature: float = 2.0):
        ...     "Logits over a temperature."
        ...     return logits / temperature
        >>> str(parse_loss("el@tempered:4"))
        'el:0.75@tempered:4'
        >>> del LOSSES["tempered"]
    """

    def enter(function: F) -> F:
        target = inspect.signature(function).parameters.get("target")
        if kind == "logits" and target is not None and target.default is target.empty:
            facts["indices"] = True
        LOSSES.register(name, kind=kind, reference=reference, **facts)(function)
        return function

    return enter


@dataclass(frozen=True)
class BoundPart:
    """A part of a loss with a value for each of its options."""

    part: LossPart
    options: dict[str, Any]

    def __str__(self) -> str:
        """A preset, then what is no default; a number that comes first is always written."""
        declared = self.part.options
        first = next(iter(declared), None)
        rest = {
            name: value
            for name, value in self.options.items()
            if value != declared[name].default or (name == first and declared[name].type in (int, float))
        }
        items = []
        for preset, values in self.part.presets.items():
            if values.items() <= self.options.items():
                items.append(preset)
                rest = {name: value for name, value in rest.items() if name not in values}
                break
        for name, value in rest.items():
            text = value if isinstance(value, str) else f"{value:g}" if float(f"{value:g}") == value else repr(value)
            items.append(name if value is True else text if name == first else f"{name}={text}")
        return f"{self.part.name}:{','.join(items)}" if items else self.part.name


@dataclass(frozen=True)
class LossName:
    """A parsed name of a loss; its `str` is the canonical name.

    Attributes:
        objective: What is minimized, a function of logits.
        logits: What the logits are made of; None: those of the network.
        pairs: The term of pairs, if any.
    """

    objective: BoundPart
    logits: BoundPart | None = None
    pairs: BoundPart | None = None

    def __str__(self) -> str:
        return "".join(f"{SIGNS[bound.part.kind]}{bound}" for bound in self.parts)

    @property
    def parts(self) -> list[BoundPart]:
        return [bound for bound in (self.objective, self.logits, self.pairs) if bound is not None]

    @property
    def smoothed(self) -> bool:
        """Whether the objective takes label smoothing."""
        return "label_smoothing" in self.objective.part.needs

    @property
    def clamped(self) -> bool:
        """Whether 1 − p counts as 1e-5 at least, which ends the bonus."""
        return bool(self.objective.part.clamped(self.objective.options))

    @property
    def endless(self) -> bool:
        """Whether the objective has no minimum: the normal bonus without the paper's clamp."""
        return bool(self.objective.part.endless(self.objective.options))

    def needing_indices(self) -> list[str]:
        """Names of the parts that need one class per sample."""
        true = self.pairs is not None and self.pairs.options.get("labels") == "true"
        return [b.part.name for b in self.parts if b.part.indices or (true and b is self.pairs)]

    def latest(self) -> int:
        """After how many epochs the last deferred thing begins."""
        part, options = self.objective.part, self.objective.options
        return max(part.latest(options), options["drw"] if part.weighted else 0)


def parse_loss(text: str) -> LossName:
    """The loss of a name. Logits and pairs alone go with cross-entropy: ``arcface`` is ``ce@arcface``.

    Examples:
        >>> str(parse_loss("avh")), str(parse_loss("amc")), str(parse_loss("el:1"))
        ('ce@angular:16', 'ce+amc:paper', 'el:exact')
        >>> parse_loss("el:0.5,defer=25@arcface:0.3").logits.options
        {'margin': 0.3, 'scale': 30.0}
    """
    if not isinstance(text, str):
        raise InputTypeError(f"loss must be a name here, such as 'el:0.75', got a {type(text).__name__}.")
    first, *rest = re.split(r"([@+])(?=\s*[a-z])", text.lower())  # and not in 1e+3
    parts: dict[str, BoundPart] = {}
    for sign, piece in [("", first), *zip(rest[::2], rest[1::2], strict=True)]:
        bound = _parse_part(piece)
        kind, name = bound.part.kind, bound.part.name
        if sign and SIGNS[kind] != sign:
            place = f"after {SIGNS[kind]}" if SIGNS[kind] else "first"
            raise InputError(f"loss must be {_FORM}, got {text!r}; {name} goes {place}.")
        if kind in parts:
            raise InputError(f"loss: one part of each kind, got {parts[kind].part.name} and {name} in {text!r}.")
        parts[kind] = bound
    return LossName(parts.get("objective") or _parse_part("ce"), parts.get("logits"), parts.get("pairs"))


def forms(kind: Kind) -> str:
    """How parts of a kind are written, in one line; what is in brackets may be left out.

    Examples:
        >>> forms("pairs")
        'amc[:weight|paper|released], euclid[:weight|paper], center[:weight]'
    """
    listed = []
    for part in LOSSES.values():
        if part.kind == kind:
            first = next(iter(part.options.values()), None)
            values = [] if first is None or first.type is bool else [*first.choices[1:]] or [first.name]
            values += part.presets
            listed.append(f"{part.name}[:{'|'.join(values)}]" if values else part.name)
    return ", ".join(listed)


def _aliases() -> dict[str, str]:
    return {part.alias: part.name for part in LOSSES.values() if part.alias}


def _parse_part(text: str) -> BoundPart:
    name, colon, rest = (piece.strip() for piece in text.partition(":"))
    aliases = _aliases()
    if not name:
        raise InputError(f"loss must be {_FORM}, each NAME[:VALUE,KEY=VALUE,FLAG], and a name is missing.")
    if name in _ONLY_IN_PYTHON:
        raise InputError(f"loss: {name} logits are for training loops in Python only (hardsight.losses.{name}_logits).")
    if aliases.get(name, name) not in LOSSES:
        raise InputError(f"loss: there is no {name!r}; {did_you_mean(name, [*LOSSES, *aliases])}")
    part = LOSSES[aliases.get(name, name)]
    declared, values = part.options, {}
    for i, item in enumerate(rest.split(",") if colon else ()):
        for option, value in _parse_item(part, declared, item.strip(), first=i == 0).items():
            if values.setdefault(option, value) != value:
                raise InputError(f"loss: {name} has two values for {option}, in {text!r}.")
    if part.weighted and values.keys() & {"beta", "drw"}:  # of the weights
        values["weight"] = "effective"
    return BoundPart(part, {option: values.get(option, declared[option].default) for option in declared})


def _parse_item(part: LossPart, declared: dict[str, Option], item: str, first: bool) -> Mapping[str, Any]:
    """The options that an item between commas sets."""

    key, equals, text = (piece.strip() for piece in item.partition("="))
    if item in part.presets:
        return part.presets[item]
    if not equals and item in declared and declared[item].type is bool:
        return {item: True}
    if not equals and first and declared:
        key, text = next(iter(declared)), item
    if key not in declared or declared[key].type is bool or not (equals or first):
        hint = f"write {key} alone." if equals and key in declared else did_you_mean(key, [*declared, *part.presets])
        raise InputError(f"loss: {part.name} has no {item!r}; {hint}")
    what = f"{part.name}'s {key}"
    if part.presets and not equals:
        what = f"{part.name} takes {' or '.join(part.presets)}, or its {key}, which"
    return {key: declared[key].check(text, f"loss: {what}")}
