"""How something was made: what a reader needs to believe it or to repeat it."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import Distribution, version
from typing import Any

import torch

_PACKAGES = ("hardsight", "torch", "torchvision", "timm", "transformers", "numpy", "scipy", "pyarrow", "pillow")


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Command, time, versions, machine and seed."""
    on_gpu = device is not None and device.type == "cuda"
    return {
        "format": 1,
        "command": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {**_versions()},
        "device": torch.cuda.get_device_name(device) if on_gpu else str(device or "cpu"),
        "seed": torch.initial_seed(),
    }


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in _PACKAGES if any(Distribution.discover(name=name))}
