"""Calibration: is a network right as often as its confidence says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import InputError
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.scores import check_labels, check_logits
from hardsight.stats import wilson

Binning = Literal["width", "mass"]
BINS = 15

# Where a temperature is looked for.
TEMPERATURES = (1e-3, 1e3)

# Numbers read at a time, and samples that a first guess of the temperature is made from.
_NUMBERS, _FEW = 4_096_000, 4096


class Reliability(NamedTuple):
    """Bins of similar confidence, ascending, without the empty ones: mean confidence, accuracy with Wilson's 95%
    interval, and number of samples.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray


def reliability(confidence: Any, correct: Any, bins: int = 15, binning: Binning = "width") -> Reliability:
    """The reliability diagram: how often samples of like confidence are right.

    Args:
        confidence: ``(N,)`` in [0, 1].
        correct: ``(N,)`` true or false.
        bins: How many.
        binning: ``"width"``: equal widths, closed on the right, ``(lo, hi]``; 0 falls into the first bin and 1 into the
            last. ``"mass"``: bins of as equal numbers of samples as ties allow, for samples that tie share a bin.

    Examples:
        >>> bins = reliability([0.9, 0.95, 0.3], [True, False, False], bins=2)
        >>> bins.confidence.round(3).tolist(), bins.accuracy.tolist()
        ([0.3, 0.925], [0.0, 0.5])
    """
    confidence, correct = _pairs(confidence, correct)
    if not isinstance(bins, int) or bins < 1:
        raise InputError(f"bins must be a whole number of 1 or more, got {bins!r}.")
    if binning == "width":
        edges = np.arange(1, bins) / bins  # rounded once, as whoever writes 3 / 15 has it
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


def ece(confidence: Any, correct: Any, bins: int = 15, binning: Binning = "width") -> float:
    """Expected calibration error: mean gap between confidence and accuracy over the bins of `reliability`.

    With bins of equal mass it is called adaptive. It is biased upward where bins have few samples.

    Args:
        confidence: ``(N,)`` in [0, 1]; that of the predicted class.
        correct: ``(N,)`` whether the prediction is right.
        bins: How many.
        binning: See `reliability`.

    Examples:
        >>> round(ece([0.9, 0.95, 0.3], [True, False, False], bins=2), 4)  # (2 · .425 + .3) / 3
        0.3833
    """
    of_bins = reliability(confidence, correct, bins, binning)
    return float((of_bins.n * np.abs(of_bins.accuracy - of_bins.confidence)).sum() / of_bins.n.sum())


def classwise_ece(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """Calibration error of every class's probability over all samples, bins of equal width, mean over the classes.

    Args:
        probabilities: ``(N, C)`` in [0, 1].
        labels: ``(N,)`` class indices.
        bins: Of each class.

    Examples:
        >>> round(classwise_ece([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 4)  # |.9 − 1| + .8 over 2 samples
        0.45
    """
    p, y = _checked_probabilities(probabilities, labels)
    gaps = _ClasswiseGaps(p.shape[1], bins)
    for part in _blocks(p):
        gaps.add(p[part], y[part])
    return gaps.mean(len(p))


def fit_temperature(logits: Any, labels: Any) -> float:
    """The temperature T at which the negative log-likelihood of ``logits / T`` is least, within `TEMPERATURES`.

    Where every label has the largest logit, that is the lower bound; where logits say nothing, the upper one.

    Args:
        logits: ``(N, C)``; of data that the network was not trained on.
        labels: ``(N,)`` class indices.

    Examples:
        >>> round(fit_temperature([[4.0, 0.0]] * 3 + [[0.0, 4.0]], [0, 0, 0, 0]), 4)  # right 3 times in 4: 4 / log 3
        3.641
    """
    z = check_logits(logits)
    return _fit(z, check_labels(labels, len(z), z.shape[1]).to(z.device))


def _fit(z: Tensor, y: Tensor) -> float:
    target = z.gather(1, y[:, None])[:, 0]
    # The slope by 1/T is Σ (mean logit − target) at T = ∞ and Σ (largest − target) at T = 0; it only grows.
    if (z.amax(1) == target).all():
        return TEMPERATURES[0]
    if (z.mean(1) - target).sum(dtype=torch.float64) >= 0:
        return TEMPERATURES[1]
    low, inverse, high = 1 / TEMPERATURES[1], 1.0, 1 / TEMPERATURES[0]
    if len(z) > 2 * _FEW:  # most steps with a few samples, so that one or two with all of them are enough
        few = torch.arange(0, len(z), len(z) // _FEW, device=z.device)
        inverse = 1 / _fit(z[few], y[few])
    tried: set[float] = set()
    for _ in range(100):
        slope, curvature = _slopes(z, y, inverse)
        tried.add(inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = float(np.clip(inverse - slope / curvature, low, high)) if curvature > 0 else low
        if step in tried and slope:  # Newton's step leads past where the minimum is: half way on a logarithmic scale
            step = float(np.sqrt(low * high))
        moved, inverse = abs(step - inverse), step
        if low >= high or moved <= 1e-4 * inverse:  # at a bound; or the next step would be about the square of this
            break
    return float(np.clip(1 / inverse, *TEMPERATURES))


def _slopes(z: Tensor, y: Tensor, inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean negative log-likelihood by 1/T."""
    slope = curvature = 0.0
    for part in _blocks(z):
        block = z[part]
        below = block - block.amax(1, keepdim=True)
        weights = (below * inverse).exp_()
        total, target = weights.sum(1), below.gather(1, y[part, None])[:, 0]
        mean = weights.mul_(below).sum(1).div_(total).double()
        square = weights.mul_(below).sum(1).div_(total).double()
        slope += float((mean - target).sum())
        curvature += float((square - mean**2).sum())
    return slope / len(z), curvature / len(z)


class _ClasswiseGaps:
    """Sums of probabilities and labels by class and bin, some rows at a time; the first bin has most of them."""

    def __init__(self, classes: int, bins: int) -> None:
        self.edges = torch.arange(1, bins, dtype=torch.float64) / bins
        self.gap = torch.zeros(classes, bins, dtype=torch.float64)

    def add(self, p: Tensor, y: Tensor) -> None:
        classes, bins = self.gap.shape
        edges = self.edges.to(p.device)
        # edges[0] would be rounded to the precision of p, and 1 / 15 is another number there.
        above = p > edges[:1] if len(edges) else torch.zeros_like(p, dtype=torch.bool)
        rows, columns = above.nonzero(as_tuple=True)
        high = p[rows, columns].double()
        place = columns * bins + torch.bucketize(high, edges)
        gap = torch.zeros(classes * bins, dtype=torch.float64, device=p.device)
        gap = gap.index_add_(0, place, high).view(classes, bins)
        gap[:, 0] += p.sum(0, dtype=torch.float64) - gap.sum(1)
        own = torch.bucketize(p.gather(1, y[:, None])[:, 0].double(), edges)
        gap -= torch.bincount(y * bins + own, minlength=classes * bins).view(classes, bins)
        self.gap += gap.cpu()

    def mean(self, n: int) -> float:
        return float(self.gap.abs().sum(1).mean() / n)


class _Judged(NamedTuple):
    """``(N,)`` arrays of one way to make probabilities, and the class-wise calibration error."""

    confidence: np.ndarray
    correct: np.ndarray
    nll: np.ndarray
    brier: np.ndarray
    classwise: float


def _judge(z: Tensor, y: Tensor, temperature: Tensor) -> _Judged:
    gaps, columns = _ClasswiseGaps(z.shape[1], BINS), []
    for part in _blocks(z):
        log_p = (z[part] / temperature[part, None]).log_softmax(1)
        p, target = log_p.exp(), y[part]
        confidence, predicted = p.max(1)
        gaps.add(p, target)
        columns.append((confidence, predicted == target, -log_p.gather(1, target[:, None])[:, 0], _brier(p, target)))
    confidence, correct, nll, brier = (torch.cat(part).cpu() for part in zip(*columns, strict=True))
    columns = [x.double().numpy() for x in (confidence, correct, nll, brier)]
    return _Judged(columns[0], columns[1], columns[2], columns[3], gaps.mean(len(z)))


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
    """Calibration of softmax and of angular visual confidence, as they are and with a temperature.

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
        fitted = [_fit(z[half], y[half]) for half in halves]
        plain = torch.ones(n, dtype=z.dtype)
        crossed = plain.clone()
        crossed[halves[0]], crossed[halves[1]] = fitted[1], fitted[0]
        for score, temperature in ((name, plain), (f"{name}+T", crossed)):
            _add(answer, score, _judge(z, y, temperature))
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


def _add(answer: Answer, score: str, judged: _Judged) -> None:
    n, better = len(judged.correct), "" if score == "avc" else "lower"  # AVC is no probability to begin with
    errors = {
        "ece": ece(judged.confidence, judged.correct),
        "ace": ece(judged.confidence, judged.correct, binning="mass"),
        "classwise_ece": judged.classwise,
    }
    for metric, value in errors.items():
        answer.number(metric, value, score=score, n=n, better=better)
    answer.mean("nll", judged.nll, score=score, better=better)
    answer.mean("brier", judged.brier, score=score, better=better)
    if not score.endswith("+T"):  # a temperature changes no prediction
        answer.mean("accuracy", judged.correct > 0, score=score, better="higher")
    x, y, low, high, count = reliability(judged.confidence, judged.correct)
    answer.curve("reliability", x, y, score=score, low=low, high=high, n=count)


def _brier(p: Tensor, y: Tensor) -> Tensor:
    """Of each sample; ``Σ p² − 2 p_y + 1`` without the cancellation at the end."""
    own = p.gather(1, y[:, None])[:, 0]
    return (p.square().sum(1) - own.square()).clamp_min(0) + (1 - own).square()


def _blocks(values: Tensor) -> Iterator[slice]:
    n, classes = values.shape
    rows = max(1, _NUMBERS // classes)
    return (slice(start, start + rows) for start in range(0, n, rows))


def _pairs(confidence: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    both = [x.detach().cpu().double().numpy() if isinstance(x, Tensor) else x for x in (confidence, correct)]
    sure, right = (np.asarray(x, dtype=np.float64) for x in both)
    if sure.ndim != 1 or not len(sure) or sure.shape != right.shape:
        raise InputError(
            f"confidence and correct must be of one length, (N,) with N ≥ 1, got {sure.shape} and {right.shape}."
        )
    if not ((sure >= 0) & (sure <= 1)).all():  # NaN is neither
        bad = ~((sure >= 0) & (sure <= 1))
        raise InputError(
            f"confidence must lie in [0, 1], got {sure[bad][0]} at row {int(np.flatnonzero(bad)[0])} "
            f"({bad.sum():,} such rows); take the softmax of logits."
        )
    if not np.isin(right, (0, 1)).all():
        raise InputError("correct must be true or false for each sample; compare predictions with labels.")
    return sure, right


def _checked_probabilities(probabilities: Any, labels: Any) -> tuple[Tensor, Tensor]:
    p = check_logits(probabilities, "probabilities")
    if p.min() < 0 or p.max() > 1:
        raise InputError(
            f"probabilities must lie in [0, 1], got {float(p.min()):.3g} to {float(p.max()):.3g}; take the softmax."
        )
    return p, check_labels(labels, len(p), p.shape[1]).to(p.device)
