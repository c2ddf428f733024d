"""How arguments of the command are declared. Signatures are free of torch, so that help answers at once."""

from __future__ import annotations

from tyro.conf import arg


def optional(metavar: str) -> object:
    """An argument that may be left out: help says what it is, not that its default is None."""
    return arg(metavar=metavar, help_behavior_hint="")
