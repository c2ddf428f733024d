"""Things by name: register them, look them up with "did you mean", and read their options off their signatures.

A thing is one decorated function. Its name, summary, options, defaults and ranges are read from the function, so
that help, error messages, tables in the docs and the grammar of `--loss` need no list of their own.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import UnionType
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
        names = [chosen] if isinstance(chosen, str) else list(chosen)
        for name in names:
            self[name]
        return names


class Range(NamedTuple):
    """Which numbers an option takes; brackets say whether an end belongs to it: ``Range(0, 1, "[)")``."""

    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"

    def holds(self, value: float) -> bool:
        """Whether a number lies in the range; NaN and the infinities never do."""
        above = value > self.low or (value == self.low and self.ends[0] == "[")
        below = value < self.high or (value == self.high and self.ends[1] == "]")
        return above and below and abs(value) < math.inf

    def check(self, value: float, what: str) -> None:
        """A sentence that begins with `what` if a number lies outside."""
        if not self.holds(value):
            raise InputError(f"{what} must be a number in {self}, got {value!r}.")

    def __str__(self) -> str:
        low, high = (str(end) if isinstance(end, int) else f"{end:.5g}" for end in (self.low, self.high))
        left = f"{self.ends[0]}{low}" if math.isfinite(self.low) else "(−∞"
        return f"{left}, {f'{high}{self.ends[1]}' if math.isfinite(self.high) else '∞)'}"


ANY = Range()


def check_choice(value: Any, choices: Iterable[str], what: str) -> None:
    """A sentence that begins with `what` if a value is not one of the choices."""
    if value not in choices:
        raise InputError(f"{what} must be {' or '.join(choices)}, got {value!r:.80}.")


@dataclass(frozen=True)
class Option:
    """An option of a registered function, or a field of a dataclass.

    Attributes:
        name: Of the keyword.
        type: ``float``, ``int``, ``bool`` or ``str``.
        default: Its value where it is not given.
        range: Which numbers it takes.
        choices: Which texts it takes.
        several: Whether it takes a tuple of them.
    """

    name: str
    type: type
    default: Any
    range: Range = ANY
    choices: tuple[str, ...] = ()
    several: bool = False

    @classmethod
    def of(cls, name: str, hint: Any, default: Any) -> Option:
        """An option as its annotation declares it.

        ``Annotated[float, Range(0, ends="()")]`` is a number, ``Literal["a", "b"]`` a choice,
        ``Annotated[str, SOME_REGISTRY]`` the name of an entry, ``bool`` a flag and ``tuple[float, ...]`` several
        numbers.
        """
        hint, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if get_origin(hint) is tuple:
            return replace(cls.of(name, get_args(hint)[0], default), several=True)
        if isinstance(hint, UnionType):  # float of float | Tensor
            hint = get_args(hint)[0]
        entries = next((extra for extra in extras if isinstance(extra, Registry)), ())
        choices = tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else tuple(entries)
        range_ = next((extra for extra in extras if isinstance(extra, Range)), ANY)
        return cls(name, str if choices else hint, default, range_, choices)

    def check(self, value: Any, what: str) -> Any:
        """The value (or its text) as the function takes it, or a sentence that begins with `what`."""
        if self.several:
            parts = [part for part in value.split(",") if part] if isinstance(value, str) else value
            if not isinstance(parts, (tuple, list)):
                raise InputError(f"{what} must be numbers separated by commas, got {value!r:.80}.")
            return tuple(replace(self, several=False).check(part, what) for part in parts)
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            value = value.item()  # a number of NumPy or torch
        if self.type is str:
            if not isinstance(value, str) or (self.choices and value not in self.choices):
                raise InputError(f"{what} must be {' or '.join(self.choices) or 'a text'}, got {value!r:.80}.")
            return value
        if self.type is bool:
            flag = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
            if not isinstance(flag, bool):
                raise InputError(f"{what} is a flag, true or false, got {value!r:.80}.")
            return flag
        number = math.nan
        if not isinstance(value, bool):
            with suppress(TypeError, ValueError, OverflowError):
                number = value if isinstance(value, self.type) else float(value)
                if self.type is int and isinstance(value, str) and math.isfinite(number):
                    number = int(value)  # a float has 53 bits; for 1e3 and 4.0 this fails, and the float stays
        if not self.range.holds(number) or (self.type is int and number % 1):
            kind = "an integer" if self.type is int else "a number"
            raise InputError(f"{what} must be {kind} in {self.range}, got {value!r:.80}.")
        return self.type(number)


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The keyword-only parameters with a default, and others with a default and a `Range`: what a user may set."""
    hints = get_type_hints(function, include_extras=True)
    options = {}
    for name, parameter in inspect.signature(function).parameters.items():
        option = Option.of(name, hints.get(name, float), parameter.default)
        settable = parameter.kind is parameter.KEYWORD_ONLY or option.range is not ANY
        if settable and parameter.default is not parameter.empty:
            options[name] = option
    return options
