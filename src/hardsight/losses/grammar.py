"""The parts of a loss by name, and the grammar that joins them: ``OBJECTIVE[@LOGITS][+PAIRS]``.

A part is a class or function decorated with `loss_part`; the parser, builder, help and docs read its options from its
signature.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from hardsight.errors import InputError, InputTypeError
from hardsight.registry import Option, Range, Registry, check_choice, did_you_mean, options_of

Kind = Literal["objective", "logits", "pairs"]
F = TypeVar("F", bound=Callable[..., Any])

SIGNS: dict[Kind, str] = {"objective": "", "logits": "@", "pairs": "+"}
_ALIASES = {"avh": "angular"}
_FORM = "OBJECTIVE[@LOGITS][+PAIRS]"
_CONTEXT = {"counts", "width", "label_smoothing"}  # what `build_loss` passes; an objective also gets class weights
_SHARED: dict[Kind, list[Option]] = {  # the options that `build_loss` takes care of
    "objective": [
        Option("weight", str, "none", choices=("none", "effective")),
        Option("beta", float, 0.9999, Range(0, 1)),
        Option("drw", int, 0, Range(0)),
    ],
    "logits": [Option("learn", bool, False)],
    "pairs": [Option("labels", str, "predicted", choices=("predicted", "true")), Option("down", bool, False)],
}


@dataclass(frozen=True)
class LossPart:
    """A registered part of a loss."""

    name: str
    function: Callable[..., Any]  # see `loss_part`
    kind: Kind
    reference: str
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # values of several options under one name
    indices: bool = False  # whether it needs one class per sample, not a distribution such as mixup yields
    directions: bool = False  # whether these logits depend on directions only; their scale can be learned
    latest: str = ""  # the option that says after how many epochs an objective changes

    def __post_init__(self) -> None:
        check_choice(self.kind, SIGNS, "loss_part: the kind")
        declared = options_of(self.function)
        for name in (self.name, *self.presets, *declared):
            if not re.fullmatch("[a-z][a-z0-9_.-]*", name) or name in _ALIASES:
                raise InputError(f"loss_part: {name!r} cannot be a name; take lower case, digits, _, . and -.")
        for name in declared.keys() & (_CONTEXT | {option.name for option in _SHARED[self.kind]}):
            raise InputError(f"loss_part: {self.name}'s {name} belongs to build_loss; rename it, or drop its default.")

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0].rstrip(".")

    @cached_property
    def needs(self) -> set[str]:
        """Which of ``counts``, ``width``, ``label_smoothing`` and class weights `build_loss` passes to the function."""
        context = _CONTEXT | {"weight"} if self.kind == "objective" else _CONTEXT
        return context & inspect.signature(self.function).parameters.keys()

    @cached_property
    def options(self) -> dict[str, Option]:
        """Options of the function and of its kind. A value without a name sets the first one."""
        shared = _SHARED[self.kind] if self.kind == "pairs" or self.directions or "weight" in self.needs else []
        shared = [option for option in shared if not (option.name == "labels" and self.indices)]
        return options_of(self.function) | {option.name: option for option in shared}


LOSSES: Registry[LossPart] = Registry("part of a loss", LossPart)


def loss_part(kind: Kind, name: str | None = None, *, reference: str, **facts: Any) -> Callable[[F], F]:
    """Decorator that registers a class or function as a part of a loss, by default under its own name.

    A function works on a batch: ``(logits, target, …) → number`` for an objective, ``(features, weight[, target], …)``
    or ``(logits, …) → logits``, ``(features, labels, …) → number`` for pairs. A class, or a function with keyword-only
    parameters, builds one; an objective may come with a list of `Scheduled`. `build_loss` passes ``counts`` (samples of
    each class) and ``width`` (of the features) where they are parameters, and to an objective also ``label_smoothing``
    and class weights (``weight``). All others are options. `facts` are other attributes of `LossPart`.

    Examples:
        >>> @loss_part("logits", reference="Hinton et al. (2015)")
        ... def tempered(logits, *, temperature: float = 2.0):
        ...     return logits / temperature
        >>> str(parse_loss("el@tempered:4"))
        'el:0.75@tempered:4'
        >>> del LOSSES["tempered"]
    """

    def enter(function: F) -> F:
        target = inspect.signature(function).parameters.get("target")
        indices = kind == "logits" and target is not None and target.default is target.empty
        LOSSES.register(name, kind=kind, reference=reference, **{"indices": indices} | facts)(function)
        return function

    return enter


@dataclass(frozen=True)
class BoundPart:
    """The name of a part with a value for each of its options."""

    name: str
    options: dict[str, Any]

    @property
    def part(self) -> LossPart:
        """What is registered under the name."""
        return LOSSES[self.name]

    def __str__(self) -> str:
        """A preset, then options that differ from their defaults; a leading number is always written."""
        declared, presets = self.part.options, self.part.presets
        first = next(iter(declared), None)
        items = [preset for preset, values in presets.items() if values.items() <= self.options.items()][:1]
        for name, value in self.options.items():
            shown = value != declared[name].default or (name == first and declared[name].type in (int, float))
            if not shown or (items and name in presets.get(items[0], ())):
                continue
            if isinstance(value, bool):
                items.append(name if value else f"{name}=false")
            else:
                short = value if isinstance(value, str) else f"{value:g}"
                text = short if isinstance(value, str) or float(short) == value else repr(value)
                items.append(text if name == first else f"{name}={text}")
        return f"{self.name}:{','.join(items)}" if items else self.name


@dataclass(frozen=True)
class LossName:
    """A parsed name of a loss: an objective, and the logits and pairs that go with it. Its `str` is canonical."""

    objective: BoundPart
    logits: BoundPart | None = None
    pairs: BoundPart | None = None

    def __str__(self) -> str:
        return "".join(f"{SIGNS[bound.part.kind]}{bound}" for bound in self.parts)

    @property
    def parts(self) -> list[BoundPart]:
        """The parts that are set."""
        return [bound for bound in (self.objective, self.logits, self.pairs) if bound is not None]

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The functions registered for its parts, and for the entries that their options name."""
        named = [
            option.choices[bound.options[option.name]]
            for bound in self.parts
            for option in bound.part.options.values()
            if isinstance(option.choices, Registry)
        ]
        return [bound.part.function for bound in self.parts] + named

    @property
    def smoothed(self) -> bool:
        """Whether the objective takes label smoothing."""
        return "label_smoothing" in self.objective.part.needs

    def needing_indices(self) -> list[str]:
        """Names of the parts that need one class per sample."""
        return [b.name for b in self.parts if b.part.indices or (b is self.pairs and b.options["labels"] == "true")]

    def latest(self) -> int:
        """After how many epochs the last deferred change takes effect."""
        return max(self.objective.options.get(name, 0) for name in (self.objective.part.latest, "drw"))


def parse_loss(text: str) -> LossName:
    """Parse the name of a loss. Logits or pairs alone imply cross-entropy: ``arcface`` is ``ce@arcface``.

    Examples:
        >>> str(parse_loss("avh")), str(parse_loss("amc")), str(parse_loss("el:1"))
        ('ce@angular:16', 'ce+amc:paper', 'el:exact')
    """
    if not isinstance(text, str):
        raise InputTypeError(f"loss must be a name here, such as 'el:0.75', got a {type(text).__name__}.")
    first, *rest = re.split(r"([@+])(?=\s*[a-z])", text.lower())  # but not at 1e+3
    parts: dict[str, BoundPart] = {}
    for sign, piece in [("", first), *zip(rest[::2], rest[1::2], strict=True)]:
        bound = _parse_part(piece)
        kind = bound.part.kind
        if sign and SIGNS[kind] != sign:
            place = f"after {SIGNS[kind]}" if SIGNS[kind] else "first"
            raise InputError(f"loss must be {_FORM}, got {text!r}; {bound.name} goes {place}.")
        if kind in parts:
            raise InputError(f"loss: one part of each kind, got {parts[kind].name} and {bound.name} in {text!r}.")
        parts[kind] = bound
    return LossName(parts.get("objective") or _parse_part("ce"), parts.get("logits"), parts.get("pairs"))


def _parse_part(text: str) -> BoundPart:
    name, colon, rest = (piece.strip() for piece in text.partition(":"))
    name = _ALIASES.get(name, name)
    if not name:
        raise InputError(f"loss must be {_FORM}, each NAME[:VALUE,KEY=VALUE,FLAG], and a name is missing.")
    if name not in LOSSES:
        raise InputError(f"loss: no part is registered as {name!r}; {did_you_mean(name, [*LOSSES, *_ALIASES])}")
    part, values = LOSSES[name], {}
    for i, item in enumerate(rest.split(",") if colon else ()):
        for option, value in _parse_item(part, item.strip(), first=i == 0).items():
            if values.setdefault(option, value) != value:
                raise InputError(f"loss: {name} has two values for {option}, in {text!r}.")
    if "weight" in part.needs and values.keys() & {"beta", "drw"}:  # of the weights
        values["weight"] = "effective"
    return BoundPart(name, {option: values.get(option, part.options[option].default) for option in part.options})


def _parse_item(part: LossPart, item: str, first: bool) -> Mapping[str, Any]:
    """The options that an item between commas sets."""
    if item in part.presets:
        return part.presets[item]
    key, equals, text = (piece.strip() for piece in item.partition("="))
    if not equals and key in part.options and part.options[key].type is bool:
        text = "true"
    elif not equals and first and part.options:
        key, text = next(iter(part.options)), item
    elif not equals or key not in part.options:
        raise InputError(f"loss: {part.name} has no {item!r}; {did_you_mean(key, [*part.options, *part.presets])}")
    presets = f" ({', '.join(part.presets)} or a value)" if part.presets and not equals else ""
    return {key: part.options[key].check(text, f"loss: {part.name}'s {key}{presets}")}


def forms(kind: Kind) -> str:
    """The syntax of the parts of a kind, on one line; brackets mark what may be omitted.

    Examples:
        >>> forms("pairs")
        'amc[:weight|paper|released], euclid[:weight|paper], center[:weight]'
    """
    lines = []
    for part in (part for part in LOSSES.values() if part.kind == kind):
        first = next(iter(part.options.values()), None)
        values = [] if first is None or first.type is bool else [*first.choices][1:] or [first.name]
        lines.append(f"{part.name}[:{'|'.join([*values, *part.presets])}]" if values or part.presets else part.name)
    return ", ".join(lines)
