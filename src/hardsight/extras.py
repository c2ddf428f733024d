"""Libraries imported at first use, and small checks of what users give, each with its sentence."""

from __future__ import annotations

import importlib
import operator
from typing import Any

from hardsight.errors import InputError, StateError

# Which extra of hardsight brings what is not an ordinary dependency.
_EXTRA = {
    "transformers": "hf",
    "accelerate": "hf",
    "datasets": "hf",
    "pandas": "frames",
    "polars": "frames",
    "cleanlab": "clean",
    "matplotlib": "plots",
    "lightning": "lightning",
    "pytorch_metric_learning": "metric-learning",
    "pytorch_ood": "ood",
    "pyautoattack": "attack",
}


def need(name: str) -> Any:
    """Import a library, or say exactly how to get it."""
    package = name.split(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        wanted = f"hardsight[{_EXTRA[package]}]" if package in _EXTRA else package
        raise StateError(f"{package} is not installed; install it with: pip install '{wanted}'") from error
    except Exception as error:
        raise StateError(
            f"{package} is installed but does not import ({first_line(error)}); run `hardsight doctor`."
        ) from error


def printable(value: object) -> str:
    """Text that cannot command a terminal: file and class names may hold escape sequences and line breaks."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An integer between two limits, or a sentence that states them.

    Examples:
        >>> whole_number("epochs", 3, 1, 10)
        3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number, got {printable(repr(value))[:80]}.")
    if number < least or (most is not None and number > most):
        limits = f"{least:,} or more" if most is None else f"between {least:,} and {most:,}"
        raise InputError(f"{name} must be {limits}, got {number:,}.")
    return number
