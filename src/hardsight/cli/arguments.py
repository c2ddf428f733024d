"""Arguments that commands share. Signatures are free of torch, so that help answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import arg


def optional(metavar: str | None, **options: Any) -> object:
    """An argument that may be left out: help says what it is, not that its default is None."""
    return arg(metavar=metavar, help_behavior_hint="", **options)


@dataclass(frozen=True)
class Compute:
    """Where and how networks run."""

    device: Annotated[str | None, optional("NAME")] = None
    """cpu, cuda, cuda:1 or mps; the first GPU if there is one."""
    batch_size: int = 64
    """Samples per forward pass."""
    workers: Annotated[int | None, optional("N")] = None
    """Loader processes, for data that are not arrays."""


def listed(text: str | None) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]
