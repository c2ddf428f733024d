"""Libraries imported at first use, and text that is safe to print."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from hardsight.errors import StateError

# Which extra of hardsight brings what is not an ordinary dependency.
EXTRAS = {
    "hf": ("transformers", "accelerate", "datasets"),
    "frames": ("pandas", "polars"),
    "clean": ("cleanlab",),
    "plots": ("matplotlib",),
    "lightning": ("lightning",),
    "metric-learning": ("pytorch_metric_learning",),
    "ood": ("pytorch_ood",),
    "attack": ("pyautoattack",),
    "graph": ("torch_geometric",),
    "text": ("sacrebleu",),
}


def need(name: str) -> Any:
    """Import a library, or say exactly how to get it."""
    package = name.split(".")[0]
    try:
        with warnings.catch_warnings(action="ignore"):  # about what a library itself imports
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        wanted = next((f"hardsight[{extra}]" for extra, packages in EXTRAS.items() if package in packages), package)
        raise StateError(f"{package} is not installed; install it with: pip install '{wanted}'") from error
    except Exception as error:
        raise StateError(
            f"{package} is installed but does not import ({first_line(error)}); run `hardsight doctor`."
        ) from error


def is_graph(value: object) -> bool:
    """Whether something is a graph, or a batch of graphs, of torch-geometric."""
    # A batch has a class that is made on the spot, of no module of theirs.
    theirs = any(base.__module__.startswith("torch_geometric.") for base in type(value).__mro__)
    return theirs and hasattr(value, "edge_index")


def printable(value: object) -> str:
    """Text that cannot command a terminal: file and class names may hold escape sequences and line breaks."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
