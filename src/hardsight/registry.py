"""Things by name: register them, look them up with "did you mean", and read their options off their signatures.

A thing is one decorated function. Its name, summary, options, defaults and ranges are read from the function, so
that help, error messages, tables in the docs and the grammar of `--loss` need no list of their own.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from hardsight.errors import InputError

T = TypeVar("T")


def did_you_mean(name: object, known: Iterable[str], most: int = 3) -> str:
    """How a message about an unknown name ends.

    Examples:
        >>> did_you_mean("avg", ["avh", "avc", "norm"])
        'did you mean avh or avc?'
        >>> did_you_mean("?", ["avh", "norm"])
        'there are avh, norm.'
    """
    known = list(known)
    near = difflib.get_close_matches(str(name), known, most, 0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(known[:12])}{' …' if len(known) > 12 else ''}." if known else "there are none."


class Registry(dict[str, T]):
    """Entries by name; an unknown name raises an `InputError` that suggests the nearest ones.

    Args:
        kind: What an entry is called in messages: ``"score"``, ``"detector"``.
        entry: Makes an entry of ``(name, function, **facts)``; the function itself if not given.

    Examples:
        >>> shapes = Registry("shape")
        >>> @shapes.register()
        ... def circle(radius: float = 1.0): ...
        >>> list(shapes)
        ['circle']
    """

    def __init__(self, kind: str, entry: Callable[..., T] = lambda name, function: function) -> None:
        super().__init__()
        self.kind, self._entry = kind, entry

    def register(self, name: str | None = None, **facts: Any) -> Callable[[Callable[..., Any]], T]:
        """A decorator that enters a function, under its own name if none is given, and returns the entry."""

        def enter(function: Callable[..., Any]) -> T:
            key = name or function.__name__
            if key in self:
                raise InputError(f"there is a {self.kind} {key!r} already.")
            self[key] = self._entry(key, function, **facts)
            return self[key]

        return enter

    def __missing__(self, name: str) -> NoReturn:
        raise InputError(f"there is no {self.kind} {name!r}; {did_you_mean(name, self)}")

    def names(self, chosen: str | Iterable[str]) -> list[str]:
        """The chosen names as a list, each of them known."""
        listed = [chosen] if isinstance(chosen, str) else list(chosen)
        return [name for name in listed if self[name] is not None]


class Range(NamedTuple):
    """Which numbers an option takes; brackets say whether an end belongs to it: ``Range(0, 1, "[)")``."""

    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"

    def holds(self, value: float) -> bool:
        """Whether a number lies in the range; NaN and the infinities never do."""
        above = value > self.low or (value == self.low and self.ends[0] == "[")
        below = value < self.high or (value == self.high and self.ends[1] == "]")
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        low = f"{self.ends[0]}{self.low:.5g}" if math.isfinite(self.low) else "(−∞"
        return f"{low}, {f'{self.high:.5g}{self.ends[1]}' if math.isfinite(self.high) else '∞)'}"


ANY = Range()


@dataclass(frozen=True)
class Option:
    """An option of a registered function.

    Attributes:
        name: Of the keyword.
        type: ``float``, ``int``, ``bool`` or ``str``.
        default: Its value where it is not given.
        range: Which numbers it takes.
        choices: Which texts it takes.
    """

    name: str
    type: type
    default: Any
    range: Range = ANY
    choices: tuple[str, ...] = ()

    def check(self, value: Any, what: str) -> Any:
        """The value (or its text) as the function takes it, or a sentence that begins with `what`."""
        if self.choices:
            if value not in self.choices:
                raise InputError(f"{what} must be {' or '.join(self.choices)}, got {value!r}.")
            return value
        if self.type is bool:
            if not isinstance(value, bool):
                raise InputError(f"{what} is a flag, True or False, got {value!r}.")
            return value
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self.range.holds(number) or (self.type is int and number % 1):
            kind = "an integer" if self.type is int else "a number"
            raise InputError(f"{what} must be {kind} in {self.range}, got {value!r}.")
        return int(number) if self.type is int else number


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters with a default: what a user may set.

    ``scale: Annotated[float, Range(0, ends="()")] = 16.0`` is a number, ``kind: Literal["a", "b"] = "a"`` a choice,
    ``flag: bool = False`` a flag.
    """
    hints = get_type_hints(function, include_extras=True)
    options = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            continue
        hint, extras = hints.get(parameter.name, float), ()
        if get_origin(hint) is Annotated:
            hint, *extras = get_args(hint)
        choices = tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()
        range_ = next((extra for extra in extras if isinstance(extra, Range)), ANY)
        options[parameter.name] = Option(parameter.name, str if choices else hint, parameter.default, range_, choices)
    return options
