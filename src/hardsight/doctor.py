"""`hardsight doctor`: what is installed, whether it fits together, and whether the arithmetic is right."""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from hardsight import __version__

_EXTRAS = {"hf": ("transformers", "datasets"), "frames": ("pandas", "polars")}
_CORE = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "pyarrow", "pillow", "safetensors", "tyro")
_IMPORT_NAME = {"scikit-learn": "sklearn", "pillow": "PIL"}


class Finding(NamedTuple):
    """One thing looked at: fine, worth knowing, or broken, in words."""

    state: str  # "ok", "note" or "PROBLEM"
    what: str
    words: str


def examine() -> bool:
    """Print every finding; True when nothing is broken."""
    sound = True
    for finding in findings():
        print(f"{finding.state:<8}{finding.what:<16}{finding.words}", flush=True)
        sound &= finding.state != "PROBLEM"
    print("\nall is well." if sound else "\nmend what is marked PROBLEM; a bug report should hold the lines above.")
    return sound


def findings() -> Iterator[Finding]:
    """What `examine` prints, one by one."""
    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}, {platform.platform()}")
    yield Finding("ok", "hardsight", __version__)
    for package in _CORE:
        yield from _guarded(package, lambda package=package: [_package(package)])
    for extra, packages in _EXTRAS.items():
        for package in packages:
            yield _optional(package, extra)
    yield from _guarded("devices", lambda: [_devices()])
    yield from _guarded("disk", lambda: [_disk()])
    yield from _guarded("self-test", lambda: [_self_test()])


def _guarded(what: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except Exception as error:
        return [Finding("PROBLEM", what, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")]


def _package(package: str) -> Finding:
    try:
        found = version(package)
    except PackageNotFoundError:
        return Finding("PROBLEM", package, f"not installed; pip install {package}")
    try:
        importlib.import_module(_IMPORT_NAME.get(package, package))
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        if package in ("torchvision", "timm") and _torchvision_mismatch(first):
            return Finding("PROBLEM", package, f"{found} does not import: {mismatch_words()}")
        return Finding("PROBLEM", package, f"{found} is installed but does not import: {first}")
    return Finding("ok", package, found)


def _torchvision_mismatch(message: str) -> bool:
    """The ways in which a torchvision built for another torch fails."""
    signs = (
        "torchvision::nms",
        "undefined symbol",
        "partially initialized module 'torchvision'",
        "has no attribute 'extension'",
    )
    return any(sign in message for sign in signs)


def mismatch_words() -> str:
    """What is wrong between torch and torchvision, and how to mend it."""
    torch_version, vision_version = version("torch"), version("torchvision")
    cpu = "+cpu" in torch_version or _torch_has_no_cuda()
    kind = "a CPU-only build" if cpu else "another build"
    return (
        f"torch {torch_version} is {kind} and torchvision {vision_version} was built for a different one; their "
        "compiled parts do not fit. Install both from one index in one command, for instance: "
        "pip install --force-reinstall torch torchvision"
    )


def _torch_has_no_cuda() -> bool:
    import torch

    return torch.version.cuda is None


def _optional(package: str, extra: str) -> Finding:
    try:
        return Finding("ok", package, f"{version(package)} (extra {extra})")
    except PackageNotFoundError:
        return Finding("note", package, f"not installed; pip install 'hardsight[{extra}]' brings it")


def _devices() -> Finding:
    import torch

    threads = f"{torch.get_num_threads()} CPU threads"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("ok", "devices", f"{', '.join(names)}; {threads}")
    if torch.backends.mps.is_available():
        return Finding("ok", "devices", f"Apple GPU (scores are computed on the CPU, which has float64); {threads}")
    built = "built for CUDA " + torch.version.cuda if torch.version.cuda else "built without CUDA"
    return Finding("note", "devices", f"no GPU seen; torch is {built}; {threads}")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    state = "ok" if free > 2 else "PROBLEM" if free < 0.1 else "note"
    return Finding(state, "disk", f"{free:.1f} GiB free here" + ("" if free > 2 else "; a large run may not fit"))


def _self_test() -> Finding:
    """AVH of ordinary and hard cases against a plain loop in Python floats."""
    import math

    import torch

    from hardsight.scores import SCORES, compute_scores

    generator = torch.Generator().manual_seed(0)
    features = torch.randn(64, 16, generator=generator)
    weight = torch.randn(100, 16, generator=generator)
    labels = torch.randint(0, 100, (64,), generator=generator)
    features[0], features[1], features[2] = 0, weight[labels[1]] * 3, features[2] * 1e30
    ours = compute_scores(features, weight, labels, None, ["avh"])
    worst = 0.0
    for i, (x, y) in enumerate(zip(features.tolist(), labels.tolist(), strict=True)):
        length = math.sqrt(math.fsum(v * v for v in x))
        angles = []
        for w in weight.tolist():
            dot = math.fsum(a * b for a, b in zip(x, w, strict=True))
            size = length * math.sqrt(math.fsum(v * v for v in w))
            angles.append(math.acos(max(-1.0, min(1.0, dot / size))) if size else math.pi / 2)
        truth = angles[y] / math.fsum(angles)
        worst = max(worst, abs(float(ours["avh"][i]) - truth) / truth if truth > 1e-7 else float(ours["avh"][i]))
    limit = SCORES["avh"].tolerance.relative
    state = "ok" if worst <= limit else "PROBLEM"
    return Finding(
        state, "self-test", f"AVH of 64 samples, 100 classes: off by {worst:.1e} at most (allowed {limit:.0e})"
    )
