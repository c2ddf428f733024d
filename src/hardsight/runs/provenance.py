"""How something was made: what a reader needs to believe it or to repeat it."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import Distribution, version
from pathlib import Path
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


@cache
def source_revision(folder: Path = Path(__file__).parents[1]) -> str:
    """The git revision of a source folder, with ``+changes`` if files differ from it; empty if git has none."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not what happens to lie within another project
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""
