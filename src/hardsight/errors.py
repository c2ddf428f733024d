"""The errors that hardsight raises on purpose. The command prints these as one sentence; anything else is a bug in
hardsight or in the user's code, and keeps its traceback.

Each is also the built-in error that a caller would expect, so ``except ValueError`` catches an `InputError`.
"""

from __future__ import annotations


class HardsightError(Exception):
    """Base of every error whose message is written for the user.

    Examples:
        >>> from hardsight import SCORES
        >>> try:
        ...     SCORES["entropi"]
        ... except HardsightError as error:
        ...     print(error)
        there is no score 'entropi'; did you mean entropy?
    """


class InputError(HardsightError, ValueError):
    """An argument, a file or a data set is not what it must be."""


class InputTypeError(HardsightError, TypeError):
    """An argument is of the wrong type."""


class StateError(HardsightError, RuntimeError):
    """The request cannot be carried out in the present state: an unfinished run, a missing library."""


class StoreError(HardsightError, RuntimeError):
    """An object store refuses, does not answer, or cannot do what was requested."""


class MissingPathError(HardsightError, FileNotFoundError):
    """A file or folder that was named does not exist."""


class ExistingPathError(HardsightError, FileExistsError):
    """Something exists that must not be overwritten."""


class MissingKeyError(HardsightError, KeyError):
    """A name that was looked up does not exist."""

    __str__ = Exception.__str__  # a KeyError would quote its own message


class DivergedError(HardsightError, FloatingPointError):
    """A training's loss is no longer finite."""


class DiskError(HardsightError, OSError):
    """A disk is full, read-only or not to be written to."""
