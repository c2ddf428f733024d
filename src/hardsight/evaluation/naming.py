"""Titles of the questions, metrics and curves of an evaluation, and the format of their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Question(NamedTuple):
    """A question: its title, what it asks, and its most informative numbers, as pairs of metric and score.

    The headline is the first of its pairs that was measured, whatever the tests find. None of them depends on the scale
    of the logits, unless the question is about that scale.
    """

    title: str
    ask: str
    telling: tuple[tuple[str, str], ...] = ()
    headline: tuple[tuple[str, str], ...] = ()


QUESTIONS = {
    "calibration": Question(
        "Calibration",
        "Is the network calibrated? Of the samples with a confidence of 0.9, nine in ten should be right. “+T” is "
        "after temperature scaling, fitted on other samples.",
        (("accuracy", "softmax"), ("ece", "softmax"), ("ece", "softmax+T"), ("nll", "softmax")),
        (("ece", "softmax"),),
    ),
    "ood": Question(
        "Out of distribution",
        "Can the network tell OOD data from in-distribution data? Every score is higher for in-distribution data.",
        (("auroc", "max_logit"), ("auroc", "avc"), ("fpr95", "max_logit")),
        (("auroc", "max_logit"),),
    ),
    "uncertainty": Question(
        "Uncertainty",
        "Aleatoric uncertainty (noise in the data) and epistemic uncertainty (what the network has not learned), in "
        "nats, and their relation to hardness and errors.",
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
        "How many predictions stay correct when each image may be changed by ε? ε is in pixel values from 0 to 1, "
        "whatever the network's normalization. “worst” counts samples that resist every attack.",
        (("accuracy", "clean"), ("accuracy", "worst"), ("accuracy", "worst-l2")),
        (("accuracy", "worst"), ("accuracy", "worst-l2")),
    ),
    "explanation": Question(
        "Explanation",
        "Where does the network look: how small is the region, and does the decision depend on it?",
        (("insertion", ""), ("deletion", ""), ("mass_inside", ""), ("area", "")),
        (("mass_inside", ""),),
    ),
    "margins": Question(
        "Margins and energy",
        "By how much the correct class beats the best other class; below 0 the prediction is wrong.",
        (("margin", "angular"), ("margin_below_zero", "logit")),
        (("margin", "angular"),),
    ),
    "clusters": Question(
        "Clusters",
        "Are the features of a class close together, and far from those of other classes?",
        (("v_measure", "kmeans"), ("silhouette", "")),
        (("v_measure", "kmeans"),),
    ),
}

# Titles of metrics that differ from their names; "%": written as a percentage.
_METRICS = {
    "auroc": ("AUROC", "%"),
    "aupr_in": ("AUPR, in-distribution positive", "%"),
    "aupr_out": ("AUPR, OOD positive", "%"),
    "fpr95": ("FPR at 95% TPR", "%"),
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
    "nmi": ("normalized mutual information", ""),
    "silhouette": ("silhouette in angle", ""),
    "area": ("area above half the maximum", "%"),
    "mass_inside": ("share of the map inside the box", "%"),
    "entropy": ("entropy of the map", ""),
    "sanity": ("accuracy at an ε that allows any image", "%"),
    **{f"accuracy_bin{k}": (f"accuracy, bin {k} by hardness", "%") for k in range(1, 11)},
    "avh": ("mean AVH", ""),
    "norm": ("mean norm of the feature", ""),
    "confidence": ("mean confidence", "%"),
    "mean": ("mean, in nats", ""),
    "spearman": ("Spearman's ρ with AVH", ""),
    "error_auroc": ("AUROC of error detection", "%"),
}

# What a better or worse number means: a sentence, and how it goes for better and for worse.
_CALIBRATED = "{group} is {how} calibrated than {baseline}", "better", "less well"
_OOD = "{group} detects OOD data {how} than {baseline}", "better", "less well"
_MAPS = "the maps of {group} explain its predictions {how} than those of {baseline}", "better", "less well"
_CLUSTERED = "{group} clusters the samples of a class {how} than {baseline}", "better", "less well"
_MEANINGS = {
    ("calibration", "accuracy"): ("{group} is correct {how} often than {baseline}", "more", "less"),
    **{("calibration", metric): _CALIBRATED for metric in ("ece", "ace", "classwise_ece")},
    ("calibration", "nll"): ("{group} gives the correct class {how} probability than {baseline}", "more", "less"),
    ("calibration", "brier"): (
        "probabilities of {group} are {how} the truth than of {baseline}", "nearer to", "farther from",
    ),
    **{("ood", metric): _OOD for metric in ("auroc", "aupr_in", "aupr_out")},
    ("ood", "fpr95"): ("{group} accepts {how} OOD data than {baseline}", "less", "more"),
    ("uncertainty", "error_auroc"): (
        "uncertainty detects the errors of {group} {how} than of {baseline}", "better", "less well",
    ),
    ("robustness", "accuracy"): (
        "{how} predictions of {group} stay correct under attack than of {baseline}", "more", "fewer",
    ),
    **{("explanation", metric): _MAPS for metric in ("insertion", "deletion", "faithfulness", "infidelity")},
    ("explanation", "mass_inside"): ("{group} looks at the object {how} than {baseline}", "more", "less"),
    ("margins", "margin"): ("with {group} the correct class wins by {how} than with {baseline}", "more", "less"),
    ("margins", "margin_below_zero"): (
        "with {group} the correct class loses {how} often than with {baseline}", "less", "more",
    ),
    **{("clusters", metric): _CLUSTERED
       for metric in ("homogeneity", "completeness", "v_measure", "nmi", "silhouette")},
}  # fmt: skip


def meaning(test: Mapping[str, Any], better: bool) -> str:
    """What a difference means, in plain English.

    Examples:
        >>> test = {"question": "ood", "metric": "fpr95", "group": "EL", "baseline": "CE"}
        >>> meaning(test, better=True)
        'EL accepts less OOD data than CE'
    """
    plain = "{group} is {how} than {baseline}", "better", "worse"
    text, *ways = _MEANINGS.get((test["question"], test["metric"]), plain)
    return text.format(group=test["group"], baseline=test["baseline"], how=ways[not better])


class CurveKind(NamedTuple):
    """How a curve is drawn.

    Attributes:
        title: Above it.
        x: Under the x axis.
        y: Beside the y axis.
        unit: ``%`` where y is written as a percentage.
        least: No value is smaller.
        most: No value is larger.
        shape: ``line``; ``bars``: points are centers of bars and the shares in them, drawn as densities; ``bins``
            of confidence, and ``ranks``: points are means of n samples each.
        against: A second curve, of OOD data, drawn beside this one for each group.
        diagonal: Whether the line x = y is drawn, too.
        note: How to read it.
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
        note="Below the dashed line the network is overconfident, above it underconfident.",
    ),
    ("ood", "roc"): CurveKind(
        "ROC curves", "OOD data accepted", "in-distribution data accepted", "%", 0, 1, diagonal=True,
        note="The closer a line is to the upper left corner, the better the detector; the dashed line is chance.",
    ),
    ("ood", "inside"): CurveKind(
        "Scores of in-distribution and OOD data", "score", "density", least=0, shape="bars", against="outside",
        note="The less the two overlap, the better the detector.",
    ),
    ("margins", "margin"): CurveKind(
        "Margins", "margin", "density", least=0, shape="bars",
        note="Left of 0 the prediction is wrong. Logit margins grow with the scale of the logits, angular ones do not.",
    ),
    ("margins", "energy"): CurveKind(
        "Energy by rank", "rank of the class", "mean energy (−logit)",
        note="Rank 0 is the class itself, the others follow by their mean energy: the steeper, the sharper.",
    ),
    ("explanation", "insertion"): CurveKind(
        "Insertion", "share of the pixels shown", "probability of the class", "%", 0, 1,
        note="Pixels appear in the order of the map, highest first: the sooner the class is recognized, the better.",
    ),
    ("explanation", "deletion"): CurveKind(
        "Deletion", "share of the pixels removed", "probability of the class", "%", 0, 1,
        note="Pixels are removed in the order of the map, highest first: the sooner the class is lost, the better.",
    ),
    ("robustness", "attack"): CurveKind(
        "Accuracy under attack", "ε (pixel values from 0 to 1)", "accuracy", "%", 0, 1,
        note="It must fall to about 0 for large ε. If it does not, the attack failed, and the network is not robust.",
    ),
    ("robustness", "hardness"): CurveKind(
        "Accuracy by hardness", "mean AVH of the bin", "accuracy", "%", 0, 1, "ranks",
        note="Samples in bins of equal size, the easiest on the left.",
    ),
    ("robustness", "trajectory"): CurveKind(
        "Along an attack", "step", "mean",
        note="Means over the samples that were attacked, from the clean image at step 0.",
    ),
}  # fmt: skip


def curve_kind(question: str, curve: str) -> CurveKind:
    """How a curve is drawn; unknown curves get plain titles."""
    return CURVES.get((question, curve), CurveKind(curve.replace("_", " "), "", ""))


def score_title(score: str) -> str:
    """The title of a score or an attack."""
    return re.sub(r" at ([\d.]+)$", lambda at: f" at ε = {_strength(float(at[1]))}", score.replace("_", " "))


def metric_title(metric: str) -> str:
    """The title of a metric."""
    return _METRICS.get(metric, (metric.replace("_", " "), ""))[0]


def written(metric: str, value: float | None, signed: bool = False) -> str:
    """A metric's value with its unit; differences of percentages are in percentage points."""
    if value is None or not math.isfinite(value):
        return "–"
    sign = "+" if signed and value > 0 else ""
    if in_percent(metric):
        return f"{sign}{100 * value:.2f}{'' if signed else '%'}".replace("-", "−")
    return f"{sign}{number(value)}"


def in_percent(metric: str) -> bool:
    """Whether a metric is written as a percentage."""
    return _METRICS.get(metric, ("", ""))[1] == "%"


def number(value: float) -> str:
    """A number with about four digits and a real minus sign."""
    size = abs(value)
    if size and (size < 0.0005 or size >= 1e6):
        return f"{value:.2g}".replace("-", "−")
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3}f}".replace("-", "−")


def variant_title(score: str, on: str, level: float | None) -> str:
    """Which of a metric's numbers it is: the score or attack, the OOD data set, and ε.

    Examples:
        >>> variant_title("max_logit", "noise", None), variant_title("pgd", "", 8 / 255)
        ('max logit · noise', 'pgd · ε = 8/255')
    """
    eps = f"ε = {_strength(level)}" if level and level > 0 else ""
    return " · ".join(part for part in (score_title(score), on, eps) if part)


def number_title(metric: str, score: str, on: str, level: float | None) -> str:
    """A metric and its variant."""
    return ", ".join(filter(None, (metric_title(metric), variant_title(score, on, level))))


def _strength(eps: float) -> str:
    """ε as usually written: 8/255, 0.3."""
    steps = 255 * eps
    of_bytes = eps < 0.1 and abs(steps - round(steps)) < 0.005 * steps
    return f"{steps:.0f}/255" if of_bytes else f"{eps:.3g}"
