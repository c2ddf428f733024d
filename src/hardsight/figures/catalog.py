"""The registry of figures: what each shows and the function that draws it. Imports neither torch nor matplotlib."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from hardsight.registry import Registry

_MANY = (1, 20)
_ONE = (1, 1)


class FigureKind(NamedTuple):
    """A figure that can be drawn by name.

    Attributes:
        function: ``"module:function"`` in `hardsight.figures`. The names of its parameters say what it is drawn from:
            ``runs`` (paths by name), ``data``, ``groups``, ``human``, ``seed``. Those without a default are required.
        summary: What it shows, in one line.
        runs: The smallest and the largest number of runs.
    """

    function: str
    summary: str
    runs: tuple[int, int] = (0, 0)

    def load(self) -> Callable[..., Any]:
        """The function that draws it."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"hardsight.figures.{module}"), name)

    @property
    def needs(self) -> tuple[str, ...]:
        """Options that are required: ``data``, ``human``."""
        return self._options(required=True)

    @property
    def takes(self) -> tuple[str, ...]:
        """Options that may be given: ``data``, ``groups``, ``human``."""
        return self._options(required=False)

    def _options(self, required: bool) -> tuple[str, ...]:
        parameters = inspect.signature(self.load()).parameters
        names = (name for name in ("data", "groups", "human") if name in parameters)
        return tuple(name for name in names if (parameters[name].default is inspect.Parameter.empty) == required)


FIGURES: Registry[FigureKind] = Registry("figure")
FIGURES |= {
    "dynamics": FigureKind("curves:draw_dynamics", "norm, AVH, accuracy and confidence per epoch and group or human "
        "frequency, one row per network (Fig. 4, 9, 10, 13)", _MANY),
    "loss-drivers": FigureKind("curves:draw_loss_drivers", "what lowers the loss, angles or norms, per epoch and "
        "cumulative", _MANY),
    "plateaus": FigureKind("curves:draw_plateaus", "where AVH, accuracy, loss and norm stop changing, with intervals",
        _ONE),
    "agreement": FigureKind("curves:draw_agreement", "correlation of scores with human frequency per epoch, with "
        "intervals", _MANY),
    "people": FigureKind("people:draw_people", "2-D histograms of human selection frequency and scores, one row per "
        "network (Fig. 5, 16); --human, or runs that hardsight align has compared with people", _MANY),
    "degradation": FigureKind("degradation:draw_degradation", "norm, AVH, accuracy and confidence per level of "
        "degradation (hardsight evaluate --degrade; Fig. 11, 12); --human adds human accuracy from a table of trials",
        _MANY),
    "degradation-avh": FigureKind("degradation:draw_degraded_avh", "distribution of AVH at each level of degradation "
        "(Fig. 17, 18)", _MANY),
    "adaptation": FigureKind("adaptation:draw_adaptation", "accuracy and correct pseudo-labels per round of hardsight "
        "adapt, one line per run (Fig. 6)", _MANY),
    "adaptation-gallery": FigureKind("adaptation:draw_gallery", "images of the target (--data) that one adaptation "
        "selects in its first round and the other does not (Fig. 21)", (2, 2)),
    "reliability": FigureKind("evaluation:draw_reliability", "accuracy against confidence, softmax and AVC, before and "
        "after temperature scaling; RUN is a folder that hardsight evaluate wrote", _ONE),
    "ood": FigureKind("evaluation:draw_ood", "scores of in-distribution and OOD data (hardsight evaluate --ood)", _ONE),
    "robustness": FigureKind("evaluation:draw_attacks", "accuracy under attack against ε (hardsight evaluate --attack; "
        "EL Fig. 7)", _ONE),
    "margins": FigureKind("evaluation:draw_margins", "distributions of logit and angular margins (hardsight evaluate; "
        "EL Fig. 1, 6)", _ONE),
    "energy": FigureKind("evaluation:draw_energy", "energy of the classes by rank, of all samples and per class "
        "(hardsight evaluate; EL Fig. 5)", _ONE),
    "maps": FigureKind("evaluation:draw_maps", "where networks look in the same images (hardsight evaluate --explain; "
        "AMC Fig. 2, 6)", _ONE),
    "clusters": FigureKind("evaluation:draw_clusters", "features by class: 2-D as they are, 3-D on the sphere, else "
        "t-SNE (hardsight evaluate; AMC Fig. 1, 4, 5)", _ONE),
    "data-map": FigureKind("points:draw_data_map", "each sample by the mean and the spread of its confidence", _ONE),
    "iterations": FigureKind("curves:draw_iterations", "norm, angle and AVH per iteration; without a RUN, of a small "
        "CNN trained on --data (Fig. 15)", (0, 20)),
    "embeddings": FigureKind("points:draw_embeddings", "2-D features of a small CNN trained on --data (Fig. 2, 8)"),
    "two-gaussians": FigureKind("points:draw_two_gaussians", "a toy: AVH and norm of two overlapping classes on the "
        "sphere (Fig. 3, 7)"),
    "norm-growth": FigureKind("points:draw_norm_growth", "AVH is constant while confidence follows the norm (Fig. 20)"),
    "encouraging-loss": FigureKind("losses:plot_encouraging_loss", "cross-entropy, bonus and their sum against the "
        "likelihood (EL Fig. 2)"),
    "bonuses": FigureKind("losses:plot_bonuses", "the bonus from normal to conservative, and its gradient (EL Fig. 3)"),
    "label-noise": FigureKind("losses:plot_label_noise", "why the normal bonus has no minimum when labels are noisy"),
}  # fmt: skip
