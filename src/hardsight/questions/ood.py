"""Out-of-distribution detection: which samples are like the training data, and how well a score tells them apart.

Every score here is **higher for what is more like the training data**; in-distribution samples are the positive class.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.angles import unit
from hardsight.data import Samples, in_form_of, open_data
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.printing import percent
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.registry import Registry
from hardsight.runs import is_users
from hardsight.scores import SCORES, Reading, check_logits, check_triple, read_classes
from hardsight.scoring.checks import check_samples
from hardsight.stats import auroc, fpr_at_95_tpr

# Numbers read at a time, bars of a histogram, and points of a ROC curve.
_NUMBERS, _BARS, _CURVE = 4_096_000, 50, 200
# Share of pairs that tie, above which a note says so.
_TIED = 0.01


class Training(NamedTuple):
    """A network's outputs for its training data: features ``(N, D)``, logits ``(N, C)`` and labels ``(N,)``."""

    features: Any
    logits: Any
    labels: Any


@dataclass(frozen=True)
class Detector:
    """A score that says how much a sample is like the training data.

    Attributes:
        name: Its name in `DETECTORS`.
        needs: ``logits``; ``features``: also features and the class weights; ``training``: also `Training`.
        function: Takes a `hardsight.scores.Reading` at the predicted class; if fitted on training data,
            ``(features, logits, weight, bias, training)``. Returns float64 tensors; higher is more in-distribution.
        summary: What it is, in one line.
        reference: Where it comes from.
    """

    name: str
    needs: str
    function: Callable[..., Tensor]
    summary: str
    reference: str


def _entry(name: str, function: Callable[..., Tensor], *, reference: str, needs: str = "logits") -> Detector:
    return Detector(name, needs, function, str(function.__doc__), reference)


DETECTORS: Registry[Detector] = Registry("detector", _entry)
_AVH = "Chen et al., Angular Visual Hardness, ICML 2020"
for _detector in (
    Detector(
        "max_logit", "logits", SCORES["max_logit"].of_reading, "Largest logit: minus the smallest conditional energy.",
        "Zhao et al., Encouraging Loss, AAAI 2022, Section 5",
    ),
    Detector(
        "free_energy", "logits", lambda r: -SCORES["free_energy"].of_reading(r),
        "Minus the free energy: logsumexp of the logits.",
        "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020",
    ),
    Detector(
        "msp", "logits", lambda r: -SCORES["nll"].of_reading(r),
        "Log of the largest softmax probability: the ranks of the probability, without the ties where that rounds to "
        "1.", "Hendrycks and Gimpel, A Baseline for Detecting Misclassified and OOD Examples, ICLR 2017",
    ),
    Detector(
        "avc", "features",
        lambda r: SCORES["avc"].of_reading(replace(r, angle=torch.minimum(r.angle, r.other_angle))),
        "Largest angular visual confidence: that of the class nearest in angle, which need not be the predicted one.",
        f"{_AVH}, Eq. 3",
    ),
    Detector(
        "avh", "features", lambda r: 1 - SCORES["avh"].of_reading(r), "1 − AVH at the predicted class.",
        f"{_AVH}, Eq. 1",
    ),
    Detector(
        "angular_margin", "features", lambda r: -SCORES["angular_margin"].of_reading(r),
        "Angle to the nearest other class minus the angle to the predicted one, in radians.",
        "angular gap between the two nearest classes",
    ),
    Detector("norm", "features", lambda r: r.norm, "Norm of the feature.", f"{_AVH}, Section 5: the feature norm"),
):  # fmt: skip
    DETECTORS[_detector.name] = _detector


@DETECTORS.register(
    "mahalanobis", needs="training", reference="Lee et al., A Simple Unified Framework for Detecting OOD, NeurIPS 2018"
)
def _mahalanobis(features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor, training: Training) -> Tensor:
    """Minus the squared Mahalanobis distance to the nearest class mean, with one covariance for all classes."""
    classes, members = training.labels.unique(return_inverse=True)
    count = torch.bincount(members)[:, None]
    means = torch.zeros(len(classes), features.shape[1]).to(features).index_add_(0, members, training.features) / count
    centered = training.features - means[members]
    values, vectors = torch.linalg.eigh(centered.T @ centered / len(centered))
    kept = values > values.max() * len(values) * torch.finfo(values.dtype).eps  # features that are never active
    whiten = vectors[:, kept] / values[kept].sqrt()
    return -torch.cdist(features @ whiten, means @ whiten).amin(1).square()


@DETECTORS.register(
    "knn", needs="training", reference="Sun et al., OOD Detection with Deep Nearest Neighbors, ICML 2022"
)
def _knn(features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor, training: Training) -> Tensor:
    """Minus the distance to the 50th nearest training feature, all of norm 1."""
    neighbors, k = unit(training.features)[0], min(50, len(training.features))
    rows = unit(features)[0].split(max(1, _NUMBERS // len(neighbors)))
    return torch.cat([-torch.cdist(part, neighbors).kthvalue(k, dim=1).values for part in rows])


@DETECTORS.register("vim", needs="training", reference="Wang et al., ViM: OOD with Virtual-logit Matching, CVPR 2022")
def _vim(features: Tensor, logits: Tensor, weight: Tensor, bias: Tensor, training: Training) -> Tensor:
    """Logsumexp of the logits minus a virtual logit: the norm outside the principal subspace of training features."""
    width = features.shape[1]
    kept = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    origin = -torch.linalg.pinv(weight) @ bias
    centered = training.features - origin
    outside = torch.linalg.eigh(centered.T @ centered).eigenvectors[:, : width - kept]  # in ascending order
    scale = training.logits.amax(1).mean() / (centered @ outside).norm(dim=1).mean()
    return logits.logsumexp(1) - scale * ((features - origin) @ outside).norm(dim=1)


def ood_scores(
    logits: Any,
    features: Any = None,
    weight: Any = None,
    names: Iterable[str] | None = None,
    *,
    bias: Any = None,
    training: Training | None = None,
) -> dict[str, np.ndarray]:
    """Scores of every sample, ``(N,)`` float64 by name; higher is more like the training data.

    Logits alone give ``max_logit``, ``free_energy`` and ``msp``; the angles and the norm also need the features and the
    class weights; ``mahalanobis``, ``knn`` and ``vim`` are fitted on training data. One pass serves all but these.

    Args:
        logits: ``(N, C)``; half precision is read as float32.
        features: ``(N, D)`` input of the last linear layer.
        weight: ``(C, D)`` of that layer.
        names: In `DETECTORS`; None takes all that can be computed.
        bias: ``(C,)`` of that layer, for ``vim``; None if it has none.
        training: The network's outputs for its training data; never use test data here.

    Examples:
        >>> {name: values.round(3).tolist() for name, values in ood_scores([[2.0, 0.0], [0.1, 0.0]]).items()}
        {'max_logit': [2.0, 0.1], 'free_energy': [2.127, 0.744], 'msp': [-0.127, -0.644]}
    """
    available = ["logits"]
    if features is not None and weight is not None:
        available += ["features"] if training is None else ["features", "training"]
    if names is None:
        names = [name for name, detector in DETECTORS.items() if detector.needs in available]
    names = DETECTORS.names(names)
    for name in names:
        if DETECTORS[name].needs not in available:
            also = ", and training=Training(features, logits, labels)" * (DETECTORS[name].needs == "training")
            raise InputError(f"names: {name!r} needs features (N, D) and the last layer's weight (C, D){also}.")
    reading = _read(check_logits(logits))
    if any(DETECTORS[name].needs != "logits" for name in names):
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
    arguments: dict[str, list[Any]] = {"logits": [reading], "features": [reading]}
    if training is not None and weight is not None:
        arrays = [_float64(x) for x in (features, logits, weight, np.zeros(len(weight)) if bias is None else bias)]
        labels = torch.as_tensor(training.labels, dtype=torch.int64)
        arguments["training"] = [*arrays, Training(_float64(training.features), _float64(training.logits), labels)]
    values = {name: DETECTORS[name].function(*arguments[DETECTORS[name].needs]) for name in names}
    return {name: of_detector.double().cpu().numpy() for name, of_detector in values.items()}


def _float64(values: Any) -> Tensor:
    return torch.as_tensor(values).detach().to("cpu", torch.float64)


def _read(logits: Tensor) -> Reading:
    """A `Reading` from logits alone; sums are relative to the runner-up, which keeps the digits of 1 − p."""
    parts = []
    for z in logits.split(max(1, _NUMBERS // logits.shape[1])):
        logit, target = z.max(1)
        others = z.scatter(1, target[:, None], -torch.inf)
        other = others.amax(1)
        exp_sum = others.sub_(other[:, None]).exp_().sum(1)
        parts.append((target, logit.double(), other.double(), exp_sum.double()))
    target, logit, other, exp_sum = map(torch.cat, zip(*parts, strict=True))
    nan, nobody = torch.full_like(logit, torch.nan), torch.full_like(target, -1)  # the runner-up is not used here
    return Reading(logits.shape[1], target, nan, nan, nan, nan, logit, other, nobody, exp_sum, nan, nan)


class Detection(NamedTuple):
    """How well a score tells in-distribution from OOD samples."""

    auroc: float  # chance that an in-distribution sample scores above an OOD one; ties count half
    aupr_in: float  # average precision, in-distribution positive
    aupr_out: float  # the same, OOD positive
    fpr95: float  # false-positive rate at 95% TPR
    n_in: int
    n_out: int
    auroc_low: float  # DeLong's 95% interval
    auroc_high: float
    fpr95_low: float  # 95% interval, see `hardsight.stats.fpr_at_95_tpr`
    fpr95_high: float
    tied: float  # share of the pairs that tie; 1: the scores are constant


def detection(inside: Any, outside: Any) -> Detection:
    """How well scores tell in-distribution samples, the positive class, from OOD samples.

    Samples that tie are accepted together, so their order does not matter: constant scores have AUROC 0.5 and FPR95 1.
    Average precision does not interpolate; libraries that do are a little higher.

    Args:
        inside: ``(N,)`` scores of in-distribution samples; higher must mean more in-distribution.
        outside: ``(M,)`` scores of OOD samples.

    Examples:
        >>> result = detection([4.0, 3.0, 2.0], [1.0, 2.5])
        >>> round(result.auroc, 3), result.fpr95
        (0.833, 0.5)
    """
    from sklearn.metrics import average_precision_score

    inside, outside = _scores("inside", inside), _scores("outside", outside)
    n_in, n_out = len(inside), len(outside)
    area, (fpr95, low, high) = auroc(inside, outside), fpr_at_95_tpr(inside, outside)
    values, is_inside = np.concatenate([inside, outside]), np.arange(n_in + n_out) < n_in
    aupr_in, aupr_out = average_precision_score(is_inside, values), average_precision_score(~is_inside, -values)
    aupr = float(aupr_in), float(aupr_out)
    return Detection(area.value, *aupr, fpr95, n_in, n_out, area.low, area.high, low, high, area.tied)


def _scores(name: str, values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().double().numpy()
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or not len(scores):
        raise InputError(f"{name} must be scores (N,), one or more, got shape {scores.shape}.")
    if len(bad := np.flatnonzero(~np.isfinite(scores))):
        raise InputError(
            f"{name} hold NaN or infinity at {len(bad):,} of {len(scores):,} samples (first: {bad[0]}); leave those "
            "samples out."
        )
    return scores


class OODData(NamedTuple):
    """A data set that a network was not trained for."""

    name: str
    samples: Samples
    resized: Samples  # to the size and colors of the network's own data, for networks without preprocessing
    notes: tuple[tuple[str, str], ...] = ()  # what must be known about it: kind and text


def open_ood(ood: Any, inside: Samples) -> list[OODData]:
    """Open OOD data sets, each what `hardsight.open_data` takes or ``(name, data)``, in the form of `inside`."""
    opened: list[OODData] = []
    for data in [ood] if isinstance(ood, (str, Path)) else ood:
        name, data = data if isinstance(data, tuple) else (None, data)
        try:
            samples = open_data(data)
            check_samples(samples, None)
            name = name or (Path(data).name if isinstance(data, (str, Path)) else samples.origin)
            opened.append(_matched(printable(name), samples, inside))
        except (InputError, MissingPathError) as error:
            raise type(error)(f"ood: {str(error).removeprefix('DATA: ')}") from None
        if opened[-1].name in [other.name for other in opened[:-1]]:
            raise InputError(f"ood: {opened[-1].name!r} is given twice; give each data set a name: (name, data).")
    return opened


def _matched(name: str, samples: Samples, inside: Samples) -> OODData:
    if samples.pixels != inside.pixels:
        raise InputError(f"{name}: raw images and tensors cannot be mixed; give it in the form of the run's own data.")
    notes, shape, wanted = [], _shape(samples), _shape(inside)
    resized = in_form_of(samples, inside)  # refused where that is impossible
    if resized is not samples and shape and wanted:
        sizes = " × ".join(map(str, shape)), " × ".join(map(str, wanted))
        text = (
            f"{name}: its images are {sizes[0]} and were resized to {sizes[1]}, as the run's own are: a network may "
            "detect the resizing, not the content. Better give images of that size."
        )
        notes.append((f"resized: {name}", text))
    elif shape and wanted and shape != wanted:
        raise InputError(f"{name}: its samples are {shape} and the run's own are {wanted}; give that shape.")
    a, b = samples.tensor(), inside.tensor()
    if samples.fingerprint() == inside.fingerprint() or (a is not None and b is not None and a.equal(b)):
        text = f"{name}: these are the run's own data, so nothing is out of distribution; give others."
        notes.append((f"same data: {name}", text))
        warnings.warn(f"ood: {text}", UserWarning, stacklevel=6)
    return OODData(name, samples, resized, tuple(notes))


def _shape(samples: Samples) -> tuple[int, ...] | None:
    """The shape of a sample that is a tensor or an array; None of an image that the preprocessing will resize."""
    values = samples.tensor()
    first = samples.first() if values is None else values[0]
    return tuple(first.shape) if isinstance(first, Tensor) else None


def _chosen(detectors: str | Sequence[str] | None) -> list[str]:
    """Names of detectors; by default all that need no training data."""
    return DETECTORS.names(detectors or [name for name, detector in DETECTORS.items() if detector.needs != "training"])


def _prepare(options: Mapping[str, Any], samples: Samples) -> list[dict[str, Any]]:
    detectors = _chosen(options["detectors"])
    return [{"ood": ood, "detectors": detectors} for ood in open_ood(options["ood"], samples)]


def _decided_by(subject: Subject, options: Mapping[str, Any]) -> list[Any]:
    detectors = [DETECTORS[name] for name in options["detectors"]]
    fitted = any(detector.needs == "training" for detector in detectors)
    functions = [detector.function for detector in detectors if is_users(detector.function)]
    training = [subject.training_data.identity.key, subject.training_data.labels] if fitted else None
    return [options["ood"].samples.identity.key, functions, training]


_DETECTED = "{group} detects OOD data {how} than {baseline}", "better", "less well"


@QUESTIONS.register(
    "ood",
    title="Out of distribution",
    about="Can the network tell OOD data from in-distribution data? Every score is higher for in-distribution data.",
    telling=(("auroc", "max_logit"), ("auroc", "avc"), ("fpr95", "max_logit")),
    headline=(("auroc", "max_logit"),),
    metrics={
        "auroc": Metric("AUROC", "%", _DETECTED),
        "aupr_in": Metric("AUPR, in-distribution positive", "%", _DETECTED),
        "aupr_out": Metric("AUPR, OOD positive", "%", _DETECTED),
        "fpr95": Metric("FPR at 95% TPR", "%", ("{group} accepts {how} OOD data than {baseline}", "less", "more")),
    },
    curves={
        "roc": CurveKind(
            "ROC curves", "OOD data accepted", "in-distribution data accepted", "%", 0, 1, diagonal=True,
            note="The closer a line is to the upper left corner, the better the detector; the dashed line is chance.",
        ),
        "inside": CurveKind(
            "Scores of in-distribution and OOD data", "score", "density", least=0, shape="bars", against="outside",
            note="The less the two overlap, the better the detector.",
        ),
    },
    needs="ood",
    prepare=_prepare,
    decided_by=_decided_by,
)  # fmt: skip
def ask(subject: Subject, *, ood: OODData, detectors: Sequence[str] | None = None) -> Answer:
    """How well every detector tells one set of OOD data from the network's own; scores are columns ``score:detector``.

    Detectors that are fitted on training data need `Subject.training`.
    """
    # The preprocessing resizes images of any size for the network.
    outside = subject.predict(ood.resized if subject.network.transform is None else ood.samples)
    names = _chosen(detectors)
    training = subject.training_output if any(DETECTORS[name].needs == "training" for name in names) else None
    scores = [
        ood_scores(of.logits, of.features, of.weight, names, bias=of.bias, training=training and Training(*training))
        for of in (subject.predictions, outside)
    ]
    answer, on = Answer(question="ood", ood_samples={"id": np.array(outside.ids)}), ood.name
    for kind, text in ood.notes:
        answer.note(kind, text, "warn")
    for name in names:
        inside, ood_values = scores[0][name], scores[1][name]
        answer.samples[f"score:{name}"], answer.ood_samples[f"score:{name}"] = inside, ood_values
        result = detection(inside, ood_values)
        of = {"score": name, "on": on, "n": result.n_in + result.n_out}
        answer.number("auroc", result.auroc, low=result.auroc_low, high=result.auroc_high, better="higher", **of)
        answer.number("aupr_in", result.aupr_in, better="higher", **of)
        answer.number("aupr_out", result.aupr_out, better="higher", **of)
        answer.number("fpr95", result.fpr95, low=result.fpr95_low, high=result.fpr95_high, better="lower", **of)
        _add_curves(answer, inside, ood_values, name, on)
        if result.tied == 1:
            text = f"{name} is the same for every sample of {on} and in-distribution: it tells nothing."
            answer.note(f"constant: {name}, {on}", text)
        elif result.tied > _TIED:
            pairs = f"of the pairs of an in-distribution sample and one of {on}; each counts half."
            answer.note(f"ties: {name}, {on}", f"{name} ties in {percent(result.tied, 0)} {pairs}")
    return answer


def _add_curves(answer: Answer, inside: np.ndarray, outside: np.ndarray, name: str, on: str) -> None:
    """Histograms of both sets over the same bars, and the ROC curve at points evenly along it."""
    from sklearn.metrics import roc_curve

    scores = np.concatenate([inside, outside])
    low, high = scores.min(), scores.max()
    if high - low < 1e-12 * max(abs(low), abs(high)):  # too close together for bars between
        low, high = low - 0.5, high + 0.5
    edges = np.histogram_bin_edges(scores, _BARS, (low, high))
    for curve, values in (("inside", inside), ("outside", outside)):
        answer.histogram(curve, values, edges, score=name, on=on)
    accepted_ood, accepted, _ = roc_curve(np.arange(len(scores)) < len(inside), scores)
    along = np.unique(np.searchsorted(accepted_ood + accepted, np.linspace(0, 2, _CURVE)).clip(max=len(accepted) - 1))
    answer.curve("roc", accepted_ood[along], accepted[along], score=name, on=on)
