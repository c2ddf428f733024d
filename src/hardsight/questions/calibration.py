"""Calibration: is a network right as often as its confidence says?"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import InputError
from hardsight.probabilities import TEMPERATURES, blocks, fit_temperature
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.scores import check_labels, check_logits
from hardsight.stats import wilson

Binning = Literal["width", "mass"]
BINS = 15


class Reliability(NamedTuple):
    """Bins of similar confidence, ascending, without the empty ones: mean confidence, accuracy with Wilson's 95%
    interval, and number of samples.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


def reliability(confidence: Any, correct: Any, bins: int = BINS, binning: Binning = "width") -> Reliability:
    """The reliability diagram: how often samples of similar confidence are right.

    Args:
        confidence: ``(N,)`` in [0, 1].
        correct: ``(N,)`` true or false.
        bins: Number of bins.
        binning: ``"width"``: equal widths, closed on the right, ``(lo, hi]``; 0 falls into the first bin and 1 into the
            last. ``"mass"``: bins of equal numbers of samples, as far as ties allow: tied samples share a bin.

    Examples:
        >>> bins = reliability([0.9, 0.95, 0.3], [True, False, False], bins=2)
        >>> bins.confidence.round(3).tolist(), bins.accuracy.tolist()
        ([0.3, 0.925], [0.0, 0.5])
    """
    confidence, correct = _pairs(confidence, correct)
    if not isinstance(bins, int) or bins < 1:
        raise InputError(f"bins must be a whole number of 1 or more, got {bins!r}.")
    if binning == "width":
        edges = np.arange(1, bins) / bins  # rounded once, as 3 / 15 is
    elif binning == "mass":
        edges = np.sort(confidence)[-(-np.arange(1, bins) * len(confidence) // bins) - 1]
    else:
        raise InputError(f"binning must be 'width' or 'mass', got {binning!r}.")
    where = np.searchsorted(edges, confidence, "left")
    n = np.bincount(where, minlength=bins)
    filled = n > 0
    sure, right = (np.bincount(where, values, minlength=bins)[filled] for values in (confidence, correct))
    n = n[filled]
    return Reliability(sure / n, right / n, *wilson(right, n), n)


def ece(confidence: Any, correct: Any, bins: int = BINS, binning: Binning = "width") -> float:
    """Expected calibration error: mean gap between confidence and accuracy over the bins of `reliability`.

    With bins of equal mass it is called adaptive. It is biased upward where bins have few samples.

    Args:
        confidence: ``(N,)`` confidence of the predicted class, in [0, 1].
        correct: ``(N,)`` whether the prediction is right.
        bins: Number of bins.
        binning: See `reliability`.

    Examples:
        >>> round(ece([0.9, 0.95, 0.3], [True, False, False], bins=2), 4)  # (2 · .425 + .3) / 3
        0.3833
    """
    of_bins = reliability(confidence, correct, bins, binning)
    return float((of_bins.n * np.abs(of_bins.accuracy - of_bins.confidence)).sum() / of_bins.n.sum())


def classwise_ece(probabilities: Any, labels: Any, bins: int = BINS) -> float:
    """Calibration error of every class's probability over all samples, bins of equal width, mean over the classes.

    Args:
        probabilities: ``(N, C)`` in [0, 1].
        labels: ``(N,)`` class indices.
        bins: Number of bins per class.

    Examples:
        >>> round(classwise_ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 4)  # |.9 − 1| + .8 over 2 samples
        0.45
    """
    p = check_logits(probabilities, "probabilities")
    if p.min() < 0 or p.max() > 1:
        raise InputError(
            f"probabilities must lie in [0, 1], got {float(p.min()):.3g} to {float(p.max()):.3g}; take the softmax."
        )
    y = check_labels(labels, len(p), p.shape[1]).to(p.device)
    gap = torch.zeros(p.shape[1], bins, dtype=torch.float64)
    for part in blocks(p):
        gap += _class_gap(p[part], y[part], bins)
    return float(gap.abs().sum(1).mean() / len(p))


def _class_gap(p: Tensor, y: Tensor, bins: int) -> Tensor:
    """Sum of probability − label by class and bin ``(C, bins)``; the first bin has most of them."""
    classes = p.shape[1]
    edges = torch.arange(1, bins, dtype=torch.float64, device=p.device) / bins
    # edges[0] would be rounded to the precision of p, and 1 / 15 is another number there.
    above = p > edges[:1] if len(edges) else torch.zeros_like(p, dtype=torch.bool)
    rows, columns = above.nonzero(as_tuple=True)
    high = p[rows, columns].double()
    gap = torch.zeros(classes * bins, dtype=torch.float64, device=p.device)
    gap = gap.index_add_(0, columns * bins + torch.bucketize(high, edges), high).view(classes, bins)
    gap[:, 0] += p.sum(0, dtype=torch.float64) - gap.sum(1)
    at = torch.bucketize(p.gather(1, y[:, None])[:, 0].double(), edges)
    return (gap - torch.bincount(y * bins + at, minlength=classes * bins).view(classes, bins)).cpu()


_CALIBRATED = "{group} is {how} calibrated than {baseline}", "better", "less well"


@QUESTIONS.register(
    "calibration",
    title="Calibration",
    about="Is the network calibrated? Of the samples with a confidence of 0.9, nine in ten should be right. “+T” is "
    "after temperature scaling, fitted on other samples.",
    telling=(("accuracy", "softmax"), ("ece", "softmax"), ("ece", "softmax+T"), ("nll", "softmax")),
    headline=(("ece", "softmax"),),
    metrics={
        "accuracy": Metric("accuracy", "%", ("{group} is correct {how} often than {baseline}", "more", "less")),
        "ece": Metric("ECE", "%", _CALIBRATED),
        "ace": Metric("adaptive ECE", "%", _CALIBRATED),
        "classwise_ece": Metric("class-wise ECE", "%", _CALIBRATED),
        "nll": Metric(
            "negative log-likelihood", "",
            ("{group} gives the correct class {how} probability than {baseline}", "more", "less"),
        ),
        "brier": Metric(
            "Brier score", "",
            ("probabilities of {group} are {how} the truth than of {baseline}", "nearer to", "farther from"),
        ),
    },
    curves={
        "reliability": CurveKind(
            "Reliability", "confidence", "accuracy", "%", 0, 1, "bins", diagonal=True,
            note="Below the dashed line the network is overconfident, above it underconfident.",
        ),
    },
)  # fmt: skip
def ask(subject: Subject, *, seed: int = 0) -> Answer:
    """Calibration of softmax and of angular visual confidence, with and without a temperature.

    A temperature is fitted on one random half of the samples and used on the other, both ways, so that no sample is
    judged by a temperature fitted on it. AVC is at most about ``2 / C``: as a probability it is far too low; ``avc+T``
    is ``AVC^(1/T)``, scaled to sum to 1. ``temperature`` is the geometric mean of both halves.
    """
    predictions, n = subject.predictions, len(subject.predictions.rows)
    if n < 2:
        raise InputError(f"predictions must be of 2 samples or more, a half to fit and a half to judge, got {n}.")
    y = check_labels(subject.labels, n, len(predictions.weight))
    halves = torch.from_numpy(np.random.default_rng(seed).permutation(n)).tensor_split(2)
    answer = Answer(question="calibration")
    tiny = np.finfo(np.float32).tiny  # a class exactly opposite has AVC 0
    for name, raw in (("softmax", predictions.logits), ("avc", np.log(np.maximum(predictions.avc, tiny)))):
        z = check_logits(raw)
        fitted = [fit_temperature(z[half], y[half]) for half in halves]
        plain = torch.ones(n, dtype=z.dtype)
        crossed = plain.clone()
        crossed[halves[0]], crossed[halves[1]] = fitted[1], fitted[0]
        for score, temperature in ((name, plain), (f"{name}+T", crossed)):
            _judge(answer, score, z, y, temperature)
        answer.number("temperature", float(np.sqrt(fitted[0] * fitted[1])), score=name, n=n)
        if bound := set(fitted) & set(TEMPERATURES):
            answer.note(
                f"temperature bound: {name}",
                f"{name}: the temperature reached {bound.pop():g}, the end of its range: in one half every label "
                "has the largest value, or the values say nothing about the labels. Calibration needs more samples.",
            )
    classes, largest = len(predictions.weight), float(predictions.avc.max(1).mean())
    answer.note(
        "AVC",
        f"AVC is a share of angles over {classes} classes: its largest is {largest:.3g} on average, and chance is "
        f"{1 / classes:.3g}. It is not a probability of being right; avc+T can be one.",
    )
    return answer


def _judge(answer: Answer, score: str, z: Tensor, y: Tensor, temperature: Tensor) -> None:
    gap, columns = torch.zeros(z.shape[1], BINS, dtype=torch.float64), []
    for part in blocks(z):
        log_p = (z[part] / temperature[part, None]).log_softmax(1)
        p, target = log_p.exp(), y[part, None]
        confidence, predicted = p.max(1, keepdim=True)
        gap += _class_gap(p, y[part], BINS)
        at_label = p.gather(1, target)
        # Σ p² − 2 p_y + 1 without the cancellation at the end
        others = (p.square().sum(1, keepdim=True) - at_label.square()).clamp_min(0)
        brier = others + (1 - at_label).square()
        columns.append(torch.cat([confidence, predicted == target, -log_p.gather(1, target), brier], 1))
    confidence, correct, nll, brier = torch.cat(columns).cpu().double().T.contiguous().numpy()
    n, better = len(y), "" if score == "avc" else "lower"  # AVC is not a probability
    errors = {"ece": ece(confidence, correct), "ace": ece(confidence, correct, binning="mass")}
    errors["classwise_ece"] = float(gap.abs().sum(1).mean() / n)
    for metric, value in errors.items():
        answer.number(metric, value, score=score, n=n, better=better)
    answer.mean("nll", nll, score=score, better=better)
    answer.mean("brier", brier, score=score, better=better)
    if not score.endswith("+T"):  # a temperature changes no prediction
        answer.mean("accuracy", correct > 0, score=score, better="higher")
    bins = reliability(confidence, correct)
    answer.curve("reliability", bins.confidence, bins.accuracy, score=score, low=bins.low, high=bins.high, n=bins.n)


def _pairs(confidence: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    both = [x.detach().cpu().double().numpy() if isinstance(x, Tensor) else x for x in (confidence, correct)]
    sure, right = (np.asarray(x, dtype=np.float64) for x in both)
    if sure.ndim != 1 or not len(sure) or sure.shape != right.shape:
        raise InputError(
            f"confidence and correct must be of one length, (N,) with N ≥ 1, got {sure.shape} and {right.shape}."
        )
    if len(bad := np.flatnonzero(~((sure >= 0) & (sure <= 1)))):  # NaN is neither
        raise InputError(
            f"confidence must lie in [0, 1], got {sure[bad[0]]} at row {bad[0]} ({len(bad):,} such rows); take the "
            "softmax of logits."
        )
    if not np.isin(right, (0, 1)).all():
        raise InputError("correct must be true or false for each sample; compare predictions with labels.")
    return sure, right
