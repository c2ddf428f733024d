"""Figures for papers, by matplotlib: from recorded runs, and from the AVH paper's small experiments."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hardsight.figures.catalogue import FIGURES as FIGURES
from hardsight.figures.catalogue import FigureKind as FigureKind

if TYPE_CHECKING:
    from hardsight.figures.adaptation import plot_adaptation as plot_adaptation
    from hardsight.figures.adaptation import plot_adaptation_gallery as plot_adaptation_gallery
    from hardsight.figures.curves import plot_agreement as plot_agreement
    from hardsight.figures.curves import plot_dynamics as plot_dynamics
    from hardsight.figures.curves import plot_loss_drivers as plot_loss_drivers
    from hardsight.figures.curves import plot_plateaus as plot_plateaus
    from hardsight.figures.degradation import plot_degradation as plot_degradation
    from hardsight.figures.degradation import plot_degraded_avh as plot_degraded_avh
    from hardsight.figures.drawing import draw as draw
    from hardsight.figures.evaluated import read_evaluated as read_evaluated
    from hardsight.figures.evaluation import plot_clusters as plot_clusters
    from hardsight.figures.evaluation import plot_evaluated as plot_evaluated
    from hardsight.figures.evaluation import plot_maps as plot_maps
    from hardsight.figures.evaluation import plot_ood as plot_ood
    from hardsight.figures.losses import plot_bonuses as plot_bonuses
    from hardsight.figures.losses import plot_encouraging_loss as plot_encouraging_loss
    from hardsight.figures.losses import plot_label_noise as plot_label_noise
    from hardsight.figures.people import plot_people as plot_people
    from hardsight.figures.points import plot_data_map as plot_data_map
    from hardsight.figures.points import plot_embeddings as plot_embeddings
    from hardsight.figures.points import plot_norm_growth as plot_norm_growth
    from hardsight.figures.points import plot_two_gaussians as plot_two_gaussians
    from hardsight.figures.style import write_figure as write_figure

# The catalogue is read by the command's help, which waits for no torch: the rest is imported at first use.
_HOMES = {
    "adaptation": ("plot_adaptation", "plot_adaptation_gallery"),
    "curves": ("plot_agreement", "plot_dynamics", "plot_loss_drivers", "plot_plateaus"),
    "degradation": ("plot_degradation", "plot_degraded_avh"),
    "drawing": ("draw",),
    "evaluated": ("read_evaluated",),
    "evaluation": ("plot_clusters", "plot_evaluated", "plot_maps", "plot_ood"),
    "losses": ("plot_bonuses", "plot_encouraging_loss", "plot_label_noise"),
    "people": ("plot_people",),
    "points": ("plot_data_map", "plot_embeddings", "plot_norm_growth", "plot_two_gaussians"),
    "style": ("write_figure",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"hardsight.figures.{home}"), name)
    raise AttributeError(f"module 'hardsight.figures' has no attribute {name!r}")
