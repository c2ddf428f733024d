"""Libraries imported at first use, and text that is safe to print."""

from __future__ import annotations

import importlib
import json
import shlex
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from hardsight.errors import StateError

# Which extra of hardsight installs each optional dependency.
EXTRAS = {
    "hf": ("transformers", "accelerate", "datasets"),
    "frames": ("polars",),
    "clean": ("cleanlab",),
    "plots": ("matplotlib",),
    "lightning": ("lightning",),
    "metric-learning": ("pytorch_metric_learning",),
    "ood": ("pytorch_ood",),
    "attack": ("pyautoattack",),
    "graph": ("torch_geometric",),
    "text": ("sacrebleu",),
    "ray": ("ray",),
}


def need(name: str) -> Any:
    """Import a library, or say exactly how to get it."""
    package = name.split(".")[0]
    try:
        with warnings.catch_warnings(action="ignore"):  # about what a library itself imports
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        command = next((install(extra) for extra, packages in EXTRAS.items() if package in packages), None)
        raise StateError(f"{package} is not installed; {command or f'pip install {package}'} brings it.") from error
    except Exception as error:
        raise StateError(
            f"{package} is installed but does not import ({first_line(error)}); run `hardsight doctor`."
        ) from error


def install(extra: str) -> str:
    """The command that adds an extra, from wherever this hardsight was installed: there may be no release yet."""
    try:
        origin = json.loads(distribution("hardsight").read_text("direct_url.json") or "{}")  # PEP 610
    except PackageNotFoundError:  # run from a folder that was never installed
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        folder = url2pathname(urlsplit(origin["url"]).path)
        return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"
    if not (place := origin.get("url")):
        return f'pip install "hardsight[{extra}]"'
    if version := origin.get("vcs_info"):
        place = f"{version['vcs']}+{place}@{version['commit_id']}"
    return f'pip install "hardsight[{extra}] @ {place}"'


def is_graph(value: object) -> bool:
    """Whether something is a graph, or a batch of graphs, of torch-geometric."""
    # The class of a batch is created dynamically, in none of their modules.
    theirs = any(base.__module__.startswith("torch_geometric.") for base in type(value).__mro__)
    return theirs and hasattr(value, "edge_index")


def printable(value: object) -> str:
    """Text that cannot control a terminal: file and class names may hold escape sequences and line breaks."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
