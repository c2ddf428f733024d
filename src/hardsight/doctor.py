"""`hardsight doctor`: what is installed, whether it fits together, and whether the arithmetic is right."""

from __future__ import annotations

import importlib
import math
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from hardsight import __version__
from hardsight.extras import EXTRAS, first_line, install

_CORE = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "scikit-learn",
    "pyarrow",
    "pandas",
    "pillow",
    "safetensors",
    "tyro",
)
_IMPORT_NAME = {"scikit-learn": "sklearn", "pillow": "PIL"}
# Errors of a torchvision that was built for another torch.
_MISMATCH = ("torchvision::nms", "undefined symbol", "partially initialized module 'torchvision'", "no attribute 'ext")


class Finding(NamedTuple):
    """One check: its state (ok, note or PROBLEM), what was checked, and the result."""

    state: str
    check: str
    text: str


def examine() -> dict[str, Any]:
    """Print every finding as it comes, and return them; ``healthy`` when nothing is broken."""
    results = []
    for finding in findings():
        print(f"{finding.state:<8}{finding.check:<16}{finding.text}", flush=True)
        results.append(finding._asdict())
    healthy = all(finding["state"] != "PROBLEM" for finding in results)
    print("\nall is well." if healthy else "\nfix what is marked PROBLEM; include the lines above in a bug report.")
    return {"healthy": healthy, "findings": results}


def findings() -> Iterator[Finding]:
    """The findings that `examine` prints; a check that fails is itself a finding."""
    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}, {platform.platform()}")
    yield Finding("ok", "hardsight", __version__)
    checks: dict[str, Callable[[], tuple[str, str]]] = {package: partial(_package, package) for package in _CORE}
    checks |= {name: partial(_optional, name, extra) for extra, names in EXTRAS.items() for name in names}
    for check, look in (checks | {"devices": _devices, "disk": _disk, "self-test": _self_test}).items():
        try:
            state, text = look()
        except Exception as error:
            state, text = "PROBLEM", f"{type(error).__name__}: {first_line(error)}"
        yield Finding(state, check, text)


def _package(package: str) -> tuple[str, str]:
    try:
        installed = version(package)
        importlib.import_module(_IMPORT_NAME.get(package, package))
    except PackageNotFoundError:
        return "PROBLEM", f"not installed; pip install {package}"
    except Exception as error:
        if package not in ("torchvision", "timm") or not any(sign in str(error) for sign in _MISMATCH):
            return "PROBLEM", f"installed but does not import: {first_line(error)}"
        import torch

        return "PROBLEM", (
            f"torch {version('torch')} is {'another' if torch.version.cuda else 'a CPU-only'} build and torchvision "
            f"{version('torchvision')} was built for a different one; their compiled parts do not fit. Install both "
            "from one index in one command, for instance: pip install --force-reinstall torch torchvision"
        )
    return "ok", installed


def _optional(package: str, extra: str) -> tuple[str, str]:
    try:
        return "ok", f"{version(package)} (extra {extra})"
    except PackageNotFoundError:
        return "note", f"not installed; {install(extra)} brings it"


def _devices() -> tuple[str, str]:
    import torch

    threads = f"{torch.get_num_threads()} CPU threads"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return "ok", f"{', '.join(names)}; {threads}"
    if torch.backends.mps.is_available():
        return "ok", f"Apple GPU (scores are computed on the CPU, which has float64); {threads}"
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return "note", f"no GPU; torch is {build}; {threads}"


def _disk() -> tuple[str, str]:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free > 2:
        return "ok", f"{free:.1f} GiB free here"
    return "PROBLEM" if free < 0.1 else "note", f"{free:.1f} GiB free here; a large run may not fit"


def _self_test() -> tuple[str, str]:
    """AVH of ordinary and hard cases against a plain loop in Python floats."""
    import torch

    from hardsight.scores import SCORES, compute_scores

    generator = torch.Generator().manual_seed(0)
    features, weight = torch.randn(64, 16, generator=generator), torch.randn(100, 16, generator=generator)
    labels = torch.randint(0, 100, (64,), generator=generator)
    features[0], features[1], features[2] = 0, weight[labels[1]] * 3, features[2] * 1e30
    worst, limit = 0.0, SCORES["avh"].tolerance[0]
    ours = compute_scores(features, weight, labels, None, ["avh"])["avh"].tolist()
    for avh, x, y in zip(ours, features.tolist(), labels.tolist(), strict=True):
        angles = []
        for w in weight.tolist():
            size = math.hypot(*x) * math.hypot(*w)
            cosine = math.fsum(a * b for a, b in zip(x, w, strict=True)) / size if size else 0.0
            angles.append(math.acos(max(-1.0, min(1.0, cosine))))
        truth = angles[y] / math.fsum(angles)
        worst = max(worst, abs(avh - truth) / truth if truth > 1e-7 else avh)
    text = f"AVH of 64 samples, 100 classes: off by {worst:.1e} at most (allowed {limit:.0e})"
    return "ok" if worst <= limit else "PROBLEM", text
