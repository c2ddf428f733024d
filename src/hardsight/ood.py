"""Out-of-distribution detection: which samples are like the training data, and how well a score tells.

Every score here is **higher for what is more like the training data**, and the inside is the positive class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.answers import Answer, Point, point, row
from hardsight.errors import InputError
from hardsight.predictions import Predictions
from hardsight.registry import Registry
from hardsight.scores import SCORES, Reading, check_logits, check_triple, read_classes
from hardsight.stats import auroc, fpr_at_95_tpr

# Numbers read at a time, bars of a histogram, and points of a ROC curve.
_NUMBERS, _BARS, _CURVE = 4_096_000, 50, 200
# Pairs that tie, from which on that is said.
_TIED = 0.01


@dataclass(frozen=True)
class Detector:
    """A score that says how much a sample is like the training data.

    Attributes:
        name: Its name in `DETECTORS`.
        angular: Whether it needs features and the class weights; otherwise logits are enough.
        function: Of a `hardsight.scores.Reading` at the predicted class; higher is more inside.
        summary: What it is, in one line.
        reference: Where it comes from.
    """

    name: str
    angular: bool
    function: Callable[[Reading], Tensor]
    summary: str
    reference: str


def _entry(name: str, function: Callable[[Reading], Tensor], *, reference: str, angular: bool = False) -> Detector:
    return Detector(name, angular, function, str(function.__doc__), reference)


DETECTORS: Registry[Detector] = Registry("detector", _entry)
_AVH = "Chen et al., Angular Visual Hardness, ICML 2020"


@DETECTORS.register("max_logit", reference="Zhao et al., Encouraging Loss, AAAI 2022, Section 5")
def _max_logit(r: Reading) -> Tensor:
    """Largest logit: minus the smallest conditional energy."""
    return SCORES["max_logit"].of_reading(r)


@DETECTORS.register("free_energy", reference="Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020")
def _free_energy(r: Reading) -> Tensor:
    """Minus the free energy: logsumexp of the logits."""
    return -SCORES["free_energy"].of_reading(r)


@DETECTORS.register(
    "msp", reference="Hendrycks and Gimpel, A Baseline for Detecting Misclassified and OOD Examples, ICLR 2017"
)
def _msp(r: Reading) -> Tensor:
    """Log of the largest softmax probability: the ranks of the probability, without the ties where that rounds to 1."""
    return -SCORES["nll"].of_reading(r)


@DETECTORS.register("avc", angular=True, reference=f"{_AVH}, Eq. 3")
def _avc(r: Reading) -> Tensor:
    """Largest angular visual confidence: that of the class nearest in angle, which need not be the predicted one."""
    return SCORES["avc"].of_reading(replace(r, angle=torch.minimum(r.angle, r.other_angle)))


@DETECTORS.register("avh", angular=True, reference=f"{_AVH}, Eq. 1")
def _avh(r: Reading) -> Tensor:
    """1 − AVH at the predicted class."""
    return 1 - SCORES["avh"].of_reading(r)


@DETECTORS.register("angular_margin", angular=True, reference="angular gap between the two nearest classes")
def _angular_margin(r: Reading) -> Tensor:
    """Angle to the nearest other class minus the angle to the predicted one, in radians."""
    return -SCORES["angular_margin"].of_reading(r)


def ood_scores(
    logits: Any, features: Any = None, weight: Any = None, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Scores of every sample, ``(N,)`` float64 by name; higher is more like the training data.

    Logits alone give ``max_logit``, ``free_energy`` and ``msp``; ``avc``, ``avh`` and ``angular_margin`` also need the
    features and the class weights. One pass serves them all.

    Args:
        logits: ``(N, C)``; half precision is read as float32.
        features: ``(N, D)`` input of the last linear layer.
        weight: ``(C, D)`` of that layer.
        names: In `DETECTORS`; None takes all that can be computed.

    Examples:
        >>> {name: values.round(3).tolist() for name, values in ood_scores([[2.0, 0.0], [0.1, 0.0]]).items()}
        {'max_logit': [2.0, 0.1], 'free_energy': [2.127, 0.744], 'msp': [-0.127, -0.644]}
    """
    given = features is not None and weight is not None
    if names is None:
        names = [name for name, detector in DETECTORS.items() if given or not detector.angular]
    names = DETECTORS.names(names)
    for name in names:
        if DETECTORS[name].angular and not given:
            raise InputError(
                f"names: {name!r} is an angle; give features (N, D) and the last layer's weight (C, D), too."
            )
    reading = _read(check_logits(logits))
    if any(DETECTORS[name].angular for name in names):
        features, weight, *_ = check_triple(features, weight)
        if (len(features), len(weight)) != (len(reading.target), reading.classes):
            raise InputError(
                f"features and weight must go with logits {(len(reading.target), reading.classes)}, got "
                f"{len(features):,} features and {len(weight):,} classes; take all three from one forward."
            )
        with torch.no_grad():
            angles = read_classes(features.detach(), weight.detach(), reading.target)
        reading = replace(
            reading, angle=angles.angle, angle_sum=angles.angle_sum, other_angle=angles.other_angle, norm=angles.norm
        )
    return {name: DETECTORS[name].function(reading).double().cpu().numpy() for name in names}


def _read(logits: Tensor) -> Reading:
    """What logits alone tell, at the predicted class; the angles are NaN.

    Sums are taken relative to the runner-up, so that float32 keeps the digits of ``1 − p`` however sure a network is.
    """
    parts = []
    for z in logits.split(max(1, _NUMBERS // logits.shape[1])):
        logit, target = z.max(1)
        others = z.scatter(1, target[:, None], -torch.inf)
        other = others.amax(1)
        exp_sum = others.sub_(other[:, None]).exp_().sum(1)
        parts.append((target, logit.double(), other.double(), exp_sum.double()))
    target, logit, other, exp_sum = map(torch.cat, zip(*parts, strict=True))
    nan, nobody = torch.full_like(logit, torch.nan), torch.full_like(target, -1)  # nothing here asks who comes second
    return Reading(logits.shape[1], target, nan, nan, nan, nan, logit, other, nobody, exp_sum, nan, nan)


class Detection(NamedTuple):
    """How well a score tells the inside from the outside.

    Attributes:
        auroc: The chance that an inside sample scores above an outside one; pairs that tie count half.
        aupr_in: Average precision of finding the inside.
        aupr_out: The same of finding the outside.
        fpr95: False-positive rate at 95 % TPR: the smallest share of the outside that any threshold lets in which keeps
            95 % of the inside or more.
        n_in: Samples inside.
        n_out: Samples outside.
        auroc_low: DeLong's 95 % interval.
        auroc_high: Its upper end.
        fpr95_low: 95 % interval, the threshold's own uncertainty included; see `hardsight.stats.fpr_at_95_tpr`.
        fpr95_high: Its upper end.
        tied: Share of the pairs of an inside and an outside sample whose scores are equal; 1: the scores are constant.
    """

    auroc: float
    aupr_in: float
    aupr_out: float
    fpr95: float
    n_in: int
    n_out: int
    auroc_low: float
    auroc_high: float
    fpr95_low: float
    fpr95_high: float
    tied: float


def detection(inside: Any, outside: Any) -> Detection:
    """How well scores tell the inside from the outside; the inside is the positive class.

    Samples that tie are kept or refused together, so the result does not depend on the order of the samples and nothing
    is random. Constant scores have AUROC .5 and FPR95 1. Average precision does not interpolate: the trapezes of other
    libraries are a little higher, and give constant scores more than the share of the positives.

    Args:
        inside: ``(N,)`` scores of samples like the training data; higher must mean more inside.
        outside: ``(M,)`` scores of strangers.

    Examples:
        >>> found = detection([4.0, 3.0, 2.0], [1.0, 2.5])
        >>> round(found.auroc, 3), found.fpr95
        (0.833, 0.5)
    """
    from sklearn.metrics import average_precision_score

    inside, outside = _scores("inside", inside), _scores("outside", outside)
    n_in, n_out = len(inside), len(outside)
    area = auroc(inside, outside)
    fpr95, fpr95_low, fpr95_high = fpr_at_95_tpr(inside, outside)
    values, is_inside = np.concatenate([inside, outside]), np.arange(n_in + n_out) < n_in
    return Detection(
        area.value,
        float(average_precision_score(is_inside, values)),
        float(average_precision_score(~is_inside, -values)),
        fpr95,
        n_in,
        n_out,
        area.low,
        area.high,
        fpr95_low,
        fpr95_high,
        area.tied,
    )


def _scores(name: str, values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise InputError(f"{name} must be scores (N,), one or more, got shape {scores.shape}.")
    if not np.isfinite(scores).all():
        raise InputError(
            f"{name} hold NaN or infinity at {(~np.isfinite(scores)).sum():,} of {len(scores):,} samples (first: "
            f"{int(np.flatnonzero(~np.isfinite(scores))[0])}); leave those samples out."
        )
    return scores


def ood_answer(inside: Predictions, outside: Predictions, on: str, detectors: Iterable[str] | None = None) -> Answer:
    """How well a network tells strangers from its own data, by every detector.

    Args:
        inside: What it says of data like those it was trained on, with logits.
        outside: What the same network says of strangers, with logits.
        on: What to call the strangers.
        detectors: In `DETECTORS`; None takes all.

    Returns:
        Rows ``auroc``, ``aupr_in``, ``aupr_out``, ``fpr95`` by detector; curves ``inside`` and ``outside`` (shares of
        each set in bars of equal width) and ``roc`` (x: outside let in, y: inside kept); the scores themselves as
        columns ``score:detector`` of both sets.
    """
    for name, told in (("inside", inside), ("outside", outside)):
        if told.logits is None:
            raise InputError(f"{name}: these predictions hold no logits; make them with predict(…, logits=True).")
    names = list(DETECTORS if detectors is None else detectors)
    own, others = (ood_scores(told.logits, told.features, told.weight, names) for told in (inside, outside))
    answer = Answer(ood_samples={"id": np.array(outside.ids)})
    for name in names:
        found = detection(own[name], others[name])
        answer.samples[f"score:{name}"], answer.ood_samples[f"score:{name}"] = own[name], others[name]
        intervals = {"auroc": found[6:8], "fpr95": found[8:10]}
        for metric in ("auroc", "aupr_in", "aupr_out", "fpr95"):
            low, high = intervals.get(metric, (np.nan, np.nan))
            better = "lower" if metric == "fpr95" else "higher"
            n = found.n_in + found.n_out
            value = getattr(found, metric)
            answer.rows.append(row("ood", metric, value, score=name, on=on, low=low, high=high, n=n, better=better))
        answer.points.extend(_curves(own[name], others[name], name, on))
        if found.tied == 1:
            answer.note(
                f"constant: {name}, {on}", f"{name} is the same for every sample of {on} and inside: it tells nothing."
            )
        elif found.tied > _TIED:
            answer.note(
                f"ties: {name}, {on}",
                f"{name} ties in {found.tied:.0%} of the pairs of an inside sample and one of {on}; each counts half.",
            )
    return answer


def _curves(inside: np.ndarray, outside: np.ndarray, name: str, on: str) -> list[Point]:
    """Histograms of both sets over the same bars, and the ROC curve at points evenly along it."""
    from sklearn.metrics import roc_curve

    every = np.concatenate([inside, outside])
    low, high = every.min(), every.max()
    if high - low < 1e-12 * max(abs(low), abs(high)):  # too near one another for bars between
        low, high = low - 0.5, high + 0.5
    edges = np.histogram_bin_edges(every, _BARS, (low, high))
    middle, points = (edges[1:] + edges[:-1]) / 2, []
    for curve, values in (("inside", inside), ("outside", outside)):
        counts = np.histogram(values, edges)[0]
        points += [
            point("ood", curve, x, count / len(values), score=name, on=on, n=count)
            for x, count in zip(middle, counts, strict=True)
        ]
    truth = np.arange(len(inside) + len(outside)) < len(inside)
    let_in, kept, _ = roc_curve(truth, every)
    along = np.unique(np.searchsorted(let_in + kept, np.linspace(0, 2, _CURVE)).clip(max=len(kept) - 1))
    return points + [point("ood", "roc", let_in[i], kept[i], score=name, on=on) for i in along]
