"""Registries: functions by name, looked up with "did you mean", with options read from their signatures.

An entry is one decorated function. Help, errors, tables in the docs and the grammar of `--loss` come from it.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from hardsight.errors import InputError

T = TypeVar("T")


def did_you_mean(name: object, known: Iterable[str], most: int = 3) -> str:
    """The end of a message about an unknown name.

    Examples:
        >>> did_you_mean("avg", ["avh", "avc", "norm"]), did_you_mean("?", ["avh", "norm"])
        ('did you mean avh or avc?', 'there are avh, norm.')
    """
    known = list(dict.fromkeys(known))
    if near := difflib.get_close_matches(str(name), known, most, 0.5):
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(known[:12]) or 'none'}{' …' if len(known) > 12 else ''}."


class Registry(dict[str, T]):
    """Entries by name; an unknown name raises an `InputError` that suggests the nearest ones.

    Args:
        kind: The name of an entry in messages: ``"score"``, ``"detector"``.
        entry: Makes an entry from ``(name, function, **facts)``; the function itself if not given.
    """

    def __init__(self, kind: str, entry: Callable[..., T] = lambda name, function: function) -> None:
        super().__init__()
        self.kind, self._entry = kind, entry
        self._origins: dict[str, tuple[str, object]] = {}

    def register(self, name: str | None = None, **facts: Any) -> Callable[[Callable[..., Any]], T]:
        """A decorator that adds a function, under its own name if none is given, and returns the entry.

        The same function of the same module replaces its entry: the file was edited, or a notebook cell run again.
        """

        def add(function: Callable[..., Any]) -> T:
            key, origin = name or function.__name__, (function.__module__, getattr(function, "__qualname__", function))
            if key in self and self._origins.get(key) != origin:
                raise InputError(f"there is a {self.kind} {key!r} already.")
            self[key], self._origins[key] = self._entry(key, function, **facts), origin
            return self[key]

        return add

    def __missing__(self, name: str) -> NoReturn:
        raise InputError(f"there is no {self.kind} {name!r}; {did_you_mean(name, self)}")

    def names(self, chosen: str | Iterable[str]) -> list[str]:
        """The chosen names as a list; each must be registered."""
        names = [chosen] if isinstance(chosen, str) else list(chosen)
        _ = [self[name] for name in names]
        return names


class Range(NamedTuple):
    """Which numbers an option takes; brackets say whether each end is included: ``Range(0, 1, "[)")``."""

    low: float = -math.inf
    high: float = math.inf
    ends: str = "[]"

    def holds(self, value: float) -> bool:
        """Whether a number lies in the range; NaN and the infinities never do."""
        at_end = (value == self.low and self.ends[0] == "[") or (value == self.high and self.ends[1] == "]")
        return (self.low < value < self.high or at_end) and abs(value) < math.inf

    def check(self, value: float, what: str) -> None:
        """Refuse a number outside of the range; `what` begins the sentence."""
        _require(hasattr(value, "__float__") and self.holds(value), what, f"a number in {self}", value)

    def __str__(self) -> str:
        low, high = (str(end) if isinstance(end, int) else f"{end:.5g}" for end in (self.low, self.high))
        text = f"{self.ends[0]}{low}, {high}{self.ends[1]}".replace("[-inf", "(−inf").replace("inf]", "inf)")
        return text.replace("inf", "∞")


ANY = Range()


class Option(NamedTuple):
    """An option of a registered function, or a field of a dataclass: ``float``, ``int``, ``bool`` or ``str``."""

    name: str
    type: type
    default: Any
    range: Range = ANY
    choices: Collection[str] = ()
    several: bool = False

    @classmethod
    def of(cls, name: str, hint: Any, default: Any) -> Option:
        """An option as declared by its annotation.

        ``Annotated[float, Range(0)]`` is a number, ``Literal["a", "b"]`` a choice, ``Annotated[str, SOME_REGISTRY]``
        the name of an entry, ``bool`` a flag and ``tuple[float, ...]`` several numbers.
        """
        hint, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if get_origin(hint) is tuple:
            return cls.of(name, get_args(hint)[0], default)._replace(several=True)
        if get_origin(hint) in (Union, UnionType):  # float of float | Tensor
            hint = get_args(hint)[0]
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        choices = next((extra for extra in extras if isinstance(extra, Registry)), choices)  # which may grow
        limits = next((extra for extra in extras if isinstance(extra, Range)), ANY)
        return cls(name, str if choices else hint, default, limits, choices)

    def check(self, value: Any, what: str) -> Any:
        """The value (or its text) as the function takes it, or an error that begins with `what`."""
        if self.several:
            parts = [part for part in value.split(",") if part] if isinstance(value, str) else value
            _require(isinstance(parts, (tuple, list)), what, "numbers separated by commas", value)
            return tuple(self._replace(several=False).check(part, what) for part in parts)
        if getattr(value, "ndim", None) == 0:
            value = value.item()  # a number of NumPy or torch
        if self.type is str:
            allowed = isinstance(value, str) and value in (self.choices or (value,))
            _require(allowed, what, " or ".join(self.choices) or "a text", value)
            return value
        if self.type is bool:
            flag = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
            _require(isinstance(flag, bool), what, "true or false", value)
            return flag
        number = math.nan
        with suppress(TypeError, ValueError, OverflowError):
            number = value if isinstance(value, self.type) else float(value)
            if self.type is int and isinstance(value, str) and math.isfinite(number):
                number = int(value)  # a float has 53 bits; for 1e3 and 4.0 this fails, and the float stays
        allowed = not isinstance(value, bool) and self.range.holds(number) and not (self.type is int and number % 1)
        _require(allowed, what, f"{'an integer' if self.type is int else 'a number'} in {self.range}", value)
        return self.type(number)


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a function: keyword-only parameters with a default, and others with a default and a `Range`.

    For a class, those of its constructor; its attributes of the same names may hold the annotations.
    """
    hints, parameters = get_type_hints(function, include_extras=True), inspect.signature(function).parameters
    if isinstance(function, type):
        hints = get_type_hints(function.__init__, include_extras=True) | hints
    options = {name: Option.of(name, hints.get(name, float), p.default) for name, p in parameters.items()}
    return {
        name: option
        for name, option in options.items()
        if option.default is not inspect.Parameter.empty
        and (parameters[name].kind is inspect.Parameter.KEYWORD_ONLY or option.range is not ANY)
    }


def check_choice(value: Any, choices: Iterable[str], what: str) -> None:
    """Refuse a value that is not one of the choices; `what` begins the sentence."""
    _require(value in choices, what, " or ".join(choices), value)


def whole_number(name: str, value: Any, least: int, most: float = math.inf) -> int:
    """An integer between two limits; anything else, and its text, is refused."""
    _require(not isinstance(value, str), name, "an integer", value)
    return Option(name, int, least, Range(least, most)).check(value, name)


def _require(condition: bool, what: str, expected: str, value: Any) -> None:
    if not condition:
        raise InputError(f"{what} must be {expected}, got {value!r:.80}.")
