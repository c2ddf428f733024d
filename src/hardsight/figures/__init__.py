"""Figures for papers, drawn with matplotlib: from recorded runs, evaluations and the papers' small experiments."""

from __future__ import annotations

import importlib
from typing import Any

from hardsight.figures.catalog import FIGURES as FIGURES
from hardsight.figures.catalog import FigureKind as FigureKind

# Imported at first use: the command's help reads the registry and needs neither torch nor matplotlib.
_HOMES = {
    "adaptation": "plot_adaptation plot_adaptation_gallery",
    "curves": "plot_agreement plot_dynamics plot_loss_drivers plot_plateaus",
    "degradation": "plot_degradation plot_degraded_avh",
    "drawing": "draw",
    "evaluation": "plot_clusters plot_evaluated plot_maps plot_ood",
    "losses": "plot_bonuses plot_encouraging_loss plot_label_noise",
    "people": "plot_people",
    "points": "plot_data_map plot_embeddings plot_norm_growth plot_two_gaussians",
    "style": "write_figure",
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"hardsight.figures.{home}"), name)
    raise AttributeError(f"module 'hardsight.figures' has no attribute {name!r}")
