"""The registry of figures: what each shows and the function that draws it. Imports neither torch nor matplotlib."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from hardsight.registry import Registry


class FigureKind(NamedTuple):
    """A figure that can be drawn by name.

    Attributes:
        function: ``"module:function"`` in `hardsight`. It returns a matplotlib figure.
        summary: What it shows, in one line.
    """

    function: str
    summary: str

    def load(self) -> Callable[..., Any]:
        """The function that draws it."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"hardsight.{module}"), name)

    def inputs(self) -> dict[str, bool]:
        """Its parameters, and whether each is required: ``run`` or ``runs``, ``data``, ``groups``, ``human``, …"""
        parameters = inspect.signature(self.load()).parameters.items()
        return {name: parameter.default is parameter.empty for name, parameter in parameters}


FIGURES: Registry[FigureKind] = Registry("figure")
FIGURES |= {
    "dynamics": FigureKind("figures.curves:plot_dynamics", "norm, AVH, accuracy and confidence per epoch and group or "
        "human frequency, one row per network (Fig. 4, 9, 10, 13, 14)"),
    "loss-drivers": FigureKind("figures.curves:plot_loss_drivers", "what lowers the loss per epoch: angles or norms"),
    "plateaus": FigureKind("figures.curves:plot_plateaus", "where AVH, accuracy, loss and norm stop, with intervals"),
    "agreement": FigureKind("figures.curves:plot_agreement", "correlation of scores with human frequency per epoch, "
        "with intervals"),
    "people": FigureKind("figures.hardness:plot_people", "2-D histograms of human selection frequency and scores, "
        "one row per network (Fig. 5, 16); --human, or runs that hardsight align has compared with people"),
    "coarse-classes": FigureKind("figures.hardness:plot_coarse_classes", "norm against human frequency, counted on "
        "coarse classes (--coarser FILE with the columns class and coarse; Fig. 19)"),
    "degradation": FigureKind("figures.hardness:plot_degradation", "norm, AVH, accuracy and confidence per level of "
        "degradation (hardsight evaluate --degrade; the levels of Fig. 11, 12); --human adds human accuracy from a "
        "table of trials"),
    "degradation-avh": FigureKind("figures.hardness:plot_degraded_avh", "distribution of AVH at each level of "
        "degradation (Fig. 17, 18)"),
    "adaptation": FigureKind("figures.adaptation:plot_adaptation", "accuracy and correct pseudo-labels per round of "
        "hardsight adapt, one line per run (Fig. 6)"),
    "adaptation-gallery": FigureKind("figures.adaptation:plot_adaptation_gallery", "images of the target (--data) that "
        "one adaptation selects in its first round and the other does not (Fig. 21)"),
    "reliability": FigureKind("figures.evaluation:plot_reliability", "accuracy against confidence, softmax and AVC, "
        "before and after temperature scaling; RUN is a folder that hardsight evaluate wrote"),
    "ood": FigureKind("figures.evaluation:plot_ood", "scores of in-distribution and OOD data (hardsight evaluate "
        "--ood)"),
    "robustness": FigureKind("figures.evaluation:plot_attacks", "accuracy under attack against ε (hardsight evaluate "
        "--attack; EL Fig. 7)"),
    "margins": FigureKind("figures.evaluation:plot_margins", "distributions of logit and angular margins (hardsight "
        "evaluate; EL Fig. 1, 6)"),
    "energy": FigureKind("figures.evaluation:plot_energy", "energy of the classes by rank, of all samples and per "
        "class, or of one class by itself (hardsight evaluate, --label N; EL Fig. 1, 5)"),
    "maps": FigureKind("figures.evaluation:plot_maps", "where networks look in the same images (hardsight evaluate "
        "--explain; AMC Fig. 2, 6)"),
    "clusters": FigureKind("figures.evaluation:plot_clusters", "features by class: 2-D as they are, 3-D on the sphere, "
        "else t-SNE (hardsight evaluate; AMC Fig. 4, 5)"),
    "data-map": FigureKind("figures.curves:plot_data_map", "each sample by the mean and the spread of its confidence"),
    "iterations": FigureKind("studies.declared.iterations:plot_iterations", "norm, angle and AVH per iteration; "
        "without a RUN, of a small CNN trained on --data (Fig. 15)"),
    "embeddings": FigureKind("studies.declared.embeddings:plot_embeddings", "2-D features of a small CNN trained on "
        "--data (Fig. 2, 8)"),
    "raw-features": FigureKind("studies.declared.embeddings:plot_raw_features", "2-D features of the digits 0, 1, 2, "
        "3 and 6, by cross-entropy and with AMC-Loss, trained on --data (AMC Fig. 1)"),
    "two-gaussians": FigureKind("studies.declared.two_gaussians:plot_two_gaussians", "a toy: AVH and norm of two "
        "overlapping classes on the sphere (Fig. 3, 7)"),
    "adversarial-path": FigureKind("studies.declared.adversarial_path:plot_adversarial_path", "paths of adversarial "
        "examples in norm and AVH, and among 2-D features of a CNN and of D-SphereNet trained on --data (Fig. 22)"),
    "norm-growth": FigureKind("studies.declared.norm_growth:plot_norm_growth", "AVH is constant while confidence "
        "follows the norm (Fig. 20)"),
    "encouraging-loss": FigureKind("studies.el_figures:plot_encouraging_loss", "cross-entropy, bonus and their sum "
        "against the likelihood (EL Fig. 2)"),
    "bonuses": FigureKind("studies.el_figures:plot_bonuses", "the bonus from normal to conservative, and its gradient "
        "(EL Fig. 3)"),
    "label-noise": FigureKind("studies.el_figures:plot_label_noise", "with noisy labels a normal bonus has no minimum"),
}  # fmt: skip
