"""Which figures there are and what each needs; free of torch and matplotlib, because the command's help reads it."""

from __future__ import annotations

from typing import NamedTuple

from hardsight.registry import Registry

_MANY = 20


class FigureKind(NamedTuple):
    """A figure that can be drawn by name.

    Attributes:
        summary: What it shows, in one line.
        runs: Fewest and most recorded runs that it takes.
        needs: What else it cannot do without: ``data``, ``human``.
        takes: What else it can use: ``data``, ``groups``, ``human``.
    """

    summary: str
    runs: tuple[int, int]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


_KINDS = {
    "dynamics": FigureKind(
        "norm, AVH, accuracy, confidence by epoch and group or human frequency, a row per network (Fig. 4, 9, 10, 13)",
        (1, _MANY),
        takes=("groups", "human"),
    ),
    "loss-drivers": FigureKind("what lowers the loss, angles or norms, by epoch and summed up", (1, _MANY)),
    "plateaus": FigureKind("where AVH, accuracy, loss and norm stop changing, with intervals", (1, 1)),
    "agreement": FigureKind(
        "correlation of scores with human frequency by epoch, with intervals", (1, _MANY), needs=("human",)
    ),
    "people": FigureKind(
        "2-D histograms of human selection frequency and scores, a row per network (Fig. 5, 16); --human, or runs that "
        "hardsight align has seen",
        (1, _MANY),
        takes=("human",),
    ),
    "degradation": FigureKind(
        "norm, AVH, accuracy and confidence by level of degradation (hardsight evaluate --degrade; Fig. 11, 12), "
        "--human: with the accuracy of people from a trial table",
        (1, _MANY),
        takes=("human",),
    ),
    "degradation-avh": FigureKind("where AVH lies at each level of degradation (Fig. 17, 18)", (1, _MANY)),
    "adaptation": FigureKind(
        "accuracy and right pseudo-labels against round of hardsight adapt, a line per run (Fig. 6)", (1, _MANY)
    ),
    "adaptation-gallery": FigureKind(
        "pictures of the target (--data) that the first round of one adaptation chooses and that of another does not "
        "(Fig. 21)",
        (2, 2),
        needs=("data",),
    ),
    "reliability": FigureKind(
        "accuracy by confidence, softmax and AVC, before and after a temperature; RUN is what hardsight evaluate wrote",
        (1, 1),
    ),
    "ood": FigureKind("scores of own and of other data (hardsight evaluate --ood)", (1, 1)),
    "robustness": FigureKind("accuracy under attack by ε (hardsight evaluate --attack; EL Fig. 7)", (1, 1)),
    "margins": FigureKind("distributions of margins, in logits and angles (hardsight evaluate; EL Fig. 1, 6)", (1, 1)),
    "energy": FigureKind(
        "energy of the classes by rank, of all samples and of each class (hardsight evaluate; EL Fig. 5)", (1, 1)
    ),
    "maps": FigureKind(
        "where networks look in the same pictures (hardsight evaluate --explain; AMC Fig. 2, 6)", (1, 1)
    ),
    "clusters": FigureKind(
        "features by class: two as they are, three on the sphere, t-SNE of more (hardsight evaluate; AMC Fig. 1, 4, 5)",
        (1, 1),
    ),
    "data-map": FigureKind("each sample by mean and spread of its confidence", (1, 1)),
    "iterations": FigureKind(
        "norm, angle and AVH by iteration; without a RUN, of a small CNN that is trained on --data (Fig. 15)",
        (0, _MANY),
        takes=("data",),
    ),
    "embeddings": FigureKind(
        "2-D features of a small CNN that is trained on --data (Fig. 2, 8)", (0, 0), needs=("data",)
    ),
    "two-gaussians": FigureKind("a toy: AVH and norm of two overlapping classes on the sphere (Fig. 3, 7)", (0, 0)),
    "norm-growth": FigureKind("AVH stays while confidence follows the norm (Fig. 20)", (0, 0)),
    "encouraging-loss": FigureKind("cross-entropy, bonus and their sum over the likelihood (EL Fig. 2)", (0, 0)),
    "bonuses": FigureKind("the bonus from normal to conservative, and what it pulls (EL Fig. 3)", (0, 0)),
    "label-noise": FigureKind("why the normal bonus has no minimum when labels are noisy", (0, 0)),
}

FIGURES: Registry[FigureKind] = Registry("figure")
FIGURES.update(_KINDS)
