"""What the questions, metrics and curves of an evaluation are called, and how their numbers are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Question(NamedTuple):
    """A question: its title, what it asks, and which numbers tell most, as pairs of metric and score.

    The headline is the first of its pairs that was measured, whatever the tests say of it and of others. None of them
    depends on the scale of the logits, except where that scale is what is asked for.
    """

    title: str
    ask: str
    telling: tuple[tuple[str, str], ...] = ()
    headline: tuple[tuple[str, str], ...] = ()


QUESTIONS = {
    "calibration": Question(
        "Calibration",
        "Does the network know how sure it may be? Of samples with a confidence of .9, nine in ten should be right. "
        "“+T” is after a temperature that was fitted on other samples.",
        (("accuracy", "softmax"), ("ece", "softmax"), ("ece", "softmax+T"), ("nll", "softmax")),
        (("ece", "softmax"),),
    ),
    "ood": Question(
        "Out of distribution",
        "Can the network tell pictures of another data set from those of its own? Every score is higher for its own.",
        (("auroc", "max_logit"), ("auroc", "avc"), ("fpr95", "max_logit")),
        (("auroc", "max_logit"),),
    ),
    "uncertainty": Question(
        "Uncertainty",
        "What the network cannot know (aleatoric) and what it has not learned (epistemic), in nats, and what both have "
        "to do with hardness and errors.",
        (
            ("spearman", "ensemble epistemic"),
            ("spearman", "dropout epistemic"),
            ("error_auroc", "ensemble total"),
            ("error_auroc", "dropout total"),
        ),
        (("error_auroc", "ensemble total"), ("error_auroc", "dropout total")),
    ),
    "robustness": Question(
        "Robustness",
        "How many samples stay right when each may be changed by ε? ε is in pixel values from 0 to 1, whatever the "
        "network's normalization. “worst” is what no attack fools.",
        (("accuracy", "clean"), ("accuracy", "worst"), ("accuracy", "worst-l2")),
        (("accuracy", "worst"), ("accuracy", "worst-l2")),
    ),
    "explanation": Question(
        "Explanation",
        "Where the network looks: how small the region is, and whether the decision rests on it.",
        (("insertion", ""), ("deletion", ""), ("mass_inside", ""), ("area", "")),
        (("mass_inside", ""),),
    ),
    "margins": Question(
        "Margins and energy",
        "By how much the right class wins against the best of the others; below 0 the sample is wrong.",
        (("margin", "angular"), ("margin_below_zero", "logit")),
        (("margin", "angular"),),
    ),
    "clusters": Question(
        "Clusters",
        "Do the features of a class lie together, and apart from other classes?",
        (("v_measure", "kmeans"), ("silhouette", "")),
        (("v_measure", "kmeans"),),
    ),
}

# Metrics that are called otherwise than their names say; a % in the second place: written in per cent.
_METRICS = {
    "auroc": ("AUROC", "%"),
    "aupr_in": ("AUPR, own data positive", "%"),
    "aupr_out": ("AUPR, other data positive", "%"),
    "fpr95": ("FPR at 95 % TPR", "%"),
    "accuracy": ("accuracy", "%"),
    "ece": ("ECE", "%"),
    "ace": ("adaptive ECE", "%"),
    "classwise_ece": ("class-wise ECE", "%"),
    "nll": ("negative log-likelihood", ""),
    "brier": ("Brier score", ""),
    "margin_below_zero": ("share with a margin below 0", "%"),
    "margin": ("mean margin", ""),
    "energy": ("mean energy", ""),
    "v_measure": ("V-measure", ""),
    "nmi": ("normalised mutual information", ""),
    "silhouette": ("silhouette in angle", ""),
    "area": ("area above half the maximum", "%"),
    "mass_inside": ("share of the map inside the box", "%"),
    "entropy": ("entropy of the map", ""),
    "sanity": ("accuracy at an ε that allows any picture", "%"),
    **{f"accuracy_bin{k}": (f"accuracy, bin {k} by hardness", "%") for k in range(1, 11)},
    "avh": ("mean AVH", ""),
    "norm": ("mean norm of the feature", ""),
    "confidence": ("mean confidence", "%"),
    "mean": ("mean, in nats", ""),
    "spearman": ("Spearman's ρ with AVH", ""),
    "error_auroc": ("AUROC of finding errors", "%"),
}

# What it means that a number of one network is better or worse than that of another, for whoever has not read of it.
_SURE = "{own} knows [better|less well] than {first} how sure it may be"
_TOLD_APART = "{own} tells other data from its own [better|less well] than {first}"
_MAPS = "the maps of {own} show [better|less well] than those of {first} what its answers rest on"
_TOGETHER = "{own} brings the samples of a class together [better|less well] than {first}"
_MEANINGS = {
    ("calibration", "accuracy"): "{own} is right [more|less] often than {first}",
    **{("calibration", metric): _SURE for metric in ("ece", "ace", "classwise_ece")},
    ("calibration", "nll"): "{own} gives the right class [more|less] probability than {first}",
    ("calibration", "brier"): "probabilities of {own} are [nearer to|farther from] the truth than those of {first}",
    **{("ood", metric): _TOLD_APART for metric in ("auroc", "aupr_in", "aupr_out")},
    ("ood", "fpr95"): "{own} takes [less|more] other data for its own than {first}",
    ("uncertainty", "error_auroc"): "the doubts of {own} point [better|less well] to its errors than those of {first}",
    ("robustness", "accuracy"): "[more|fewer] pictures stay right under attack with {own} than with {first}",
    **{("explanation", metric): _MAPS for metric in ("insertion", "deletion", "faithfulness", "infidelity")},
    ("explanation", "mass_inside"): "{own} looks at the object [more|less] than {first}",
    ("margins", "margin"): "with {own} the right class wins by [more|less] than with {first}",
    ("margins", "margin_below_zero"): "with {own} the right class loses [less|more] often than with {first}",
    **{("clusters", metric): _TOGETHER
       for metric in ("homogeneity", "completeness", "v_measure", "nmi", "silhouette")},
}  # fmt: skip


def meaning(test: Mapping[str, Any], better: bool) -> str:
    """What a difference means, in plain words.

    Examples:
        >>> test = {"question": "ood", "metric": "fpr95", "group": "EL", "baseline": "CE"}
        >>> meaning(test, better=True)
        'EL takes less other data for its own than CE'
    """
    words = _MEANINGS.get((test["question"], test["metric"]), "{own} is [better|worse] than {first}")
    chosen = re.sub(r"\[(.*?)\|(.*?)\]", lambda found: found[1 if better else 2], words)
    return chosen.format(own=test["group"], first=test["baseline"])


class CurveKind(NamedTuple):
    """How a curve is drawn.

    Attributes:
        title: Above it.
        x: Under the x axis.
        y: Beside the y axis.
        unit: ``%`` where y is written in per cent.
        least: No value is smaller.
        most: No value is larger.
        shape: ``line``; ``bars``: points are the middles of bars and shares in them, drawn as densities; ``bins``
            of confidence, and ``ranks``: points are means of n samples each.
        against: A second curve, of other data, to be drawn beside this one for each group.
        diagonal: Whether the line x = y is drawn, too.
        note: What to know when reading it.
    """

    title: str
    x: str
    y: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    shape: str = "line"
    against: str = ""
    diagonal: bool = False
    note: str = ""


CURVES = {
    ("calibration", "reliability"): CurveKind(
        "Reliability", "confidence", "accuracy", "%", 0, 1, "bins", diagonal=True,
        note="Below the dashed line the network is surer than it may be, above it less sure.",
    ),
    ("ood", "roc"): CurveKind(
        "ROC curves", "other data let in", "own data kept", "%", 0, 1, diagonal=True,
        note="The more a line bends to the upper left, the better the detector; the dashed line is chance.",
    ),
    ("ood", "inside"): CurveKind(
        "Scores of its own and of other data", "score", "density", least=0, shape="bars", against="outside",
        note="The less the two overlap, the better they are told apart.",
    ),
    ("margins", "margin"): CurveKind(
        "Margins", "margin", "density", least=0, shape="bars",
        note="Left of 0 the sample is wrong. Logit margins grow with the scale of the logits, angular ones do not.",
    ),
    ("margins", "energy"): CurveKind(
        "Energy by rank", "rank of the class", "mean energy (−logit)",
        note="Rank 0 is the class itself, the others follow by their mean energy: the steeper, the sharper.",
    ),
    ("explanation", "insertion"): CurveKind(
        "Insertion", "share of the pixels shown", "probability of the class", "%", 0, 1,
        note="Pixels appear in the order of the map, highest first: the sooner the class is recognised, the better.",
    ),
    ("explanation", "deletion"): CurveKind(
        "Deletion", "share of the pixels taken away", "probability of the class", "%", 0, 1,
        note="Pixels go in the order of the map, highest first: the sooner the class is lost, the better.",
    ),
    ("robustness", "attack"): CurveKind(
        "Accuracy under attack", "ε (pixel values from 0 to 1)", "accuracy", "%", 0, 1,
        note="It must fall to about 0 for large ε; where it does not, the attack fails, and the network is not robust.",
    ),
    ("robustness", "hardness"): CurveKind(
        "Accuracy by hardness", "mean AVH of the bin", "accuracy", "%", 0, 1, "ranks",
        note="Samples in bins of equal numbers, from the easiest on the left.",
    ),
    ("robustness", "trajectory"): CurveKind(
        "Along an attack", "step", "mean",
        note="Means of the samples that were followed, from the clean picture at step 0.",
    ),
}  # fmt: skip


def curve_kind(question: str, curve: str) -> CurveKind:
    """How a curve is drawn; one that is not known here, plainly."""
    return CURVES.get((question, curve), CurveKind(curve.replace("_", " "), "", ""))


def score_title(score: str) -> str:
    """A score or an attack as a reader wants to see it."""
    return re.sub(r" at ([\d.]+)$", lambda at: f" at ε = {_strength(float(at[1]))}", score.replace("_", " "))


def metric_title(metric: str) -> str:
    """A metric as a reader wants to see it."""
    return _METRICS.get(metric, (metric.replace("_", " "), ""))[0]


def written(metric: str, value: float | None, signed: bool = False) -> str:
    """A metric's value with its unit; differences of per cent are points."""
    if value is None or not math.isfinite(value):
        return "–"
    sign = "+" if signed and value > 0 else ""
    if in_percent(metric):
        return f"{sign}{100 * value:.2f}{'' if signed else ' %'}".replace("-", "−")
    return f"{sign}{number(value)}"


def in_percent(metric: str) -> bool:
    """Whether a metric is a share that is written in per cent."""
    return _METRICS.get(metric, ("", ""))[1] == "%"


def number(value: float) -> str:
    """Four digits, and a true minus."""
    size = abs(value)
    if size and (size < 0.0005 or size >= 1e6):
        return f"{value:.2g}".replace("-", "−")
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3}f}".replace("-", "−")


def about(row: Mapping[str, Any]) -> str:
    """What a number is about besides its metric: the score, the other data set, the level."""
    level = row["level"]
    at = f"ε = {_strength(level)}" if level > 0 else ""
    return " · ".join(part for part in (score_title(row["score"]), row["on"], at) if part)


def _strength(eps: float) -> str:
    """ε as people write it: 8/255 and 0.3."""
    steps = 255 * eps
    of_bytes = eps < 0.1 and abs(steps - round(steps)) < 0.005 * steps
    return f"{steps:.0f}/255" if of_bytes else f"{eps:.3g}"
