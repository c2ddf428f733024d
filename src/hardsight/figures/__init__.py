"""Figures for papers, drawn with matplotlib: from recorded runs, evaluations and the papers' small experiments."""

from __future__ import annotations

from typing import Any

from hardsight.figures.catalog import FIGURES as FIGURES
from hardsight.figures.catalog import FigureKind as FigureKind

_OTHERS = (FigureKind("figures.drawing:draw", "by name"), FigureKind("figures.style:write_figure", "to a file"))


def __getattr__(name: str) -> Any:
    # Imported at first use: the command's help reads the registry and needs neither torch nor matplotlib.
    for kind in (*FIGURES.values(), *_OTHERS):
        if kind.function.endswith(f":{name}"):
            return kind.load()
    raise AttributeError(f"module 'hardsight.figures' has no attribute {name!r}")
