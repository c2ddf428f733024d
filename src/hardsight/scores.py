"""Hardness scores: features ``(N, D)``, class weights ``(C, D)`` and labels ``(N,)`` in, one number per sample out.

Each score is one function of a `Reading`, registered in `SCORES` with what people must know about it. To add one,
write the function under ``@SCORES.register(...)`` and put its name into the sets of the property tests.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.angles import working_dtype
from hardsight.errors import InputError
from hardsight.fastreading import target_angle
from hardsight.reading import Reading, evaluate, read_classes  # noqa: F401
from hardsight.registry import Registry
from hardsight.series import ClassSums, angle_sum_series
from hardsight.triple import MOST_CLASSES, bad_rows, check_labels, check_logits, check_triple  # noqa: F401


@dataclass(frozen=True)
class Score:
    """A score and what people must know about it. Call it with the triple: ``avh(features, weight, labels)``.

    Attributes:
        name: Its name in `SCORES`, in tables and on the command line.
        of_reading: The score as a function of a `Reading`.
        higher_is_harder: Direction: True when a larger value means a harder sample.
        tolerance: How far it may be from a naive float64 computation: relative to the true value, plus absolute.
        reference: Where it is defined.
        range: Smallest and largest value it can take.
        needs_labels: Judged at the label; without labels it is judged at the prediction and becomes ``<name>_pred``.
        logits: Whether it depends on logits (lengths and bias) or on angles and norms alone.
    """

    name: str
    of_reading: Callable[[Reading], Tensor]
    higher_is_harder: bool
    tolerance: tuple[float, float]
    reference: str
    range: tuple[float, float] = (-math.inf, math.inf)
    needs_labels: bool = True
    logits: bool = True

    def __call__(
        self, features: Any, weight: Any, labels: Any = None, *, bias: Any = None, validate: bool = True
    ) -> Tensor:
        """The score of each sample, ``(N,)``, differentiable, float32 or better.

        Args:
            features: ``(N, D)`` inputs of the last linear layer.
            weight: ``(C, D)`` weight of that layer.
            labels: ``(N,)`` class indices; None judges each sample at its predicted class.
            bias: ``(C,)`` bias of that layer. Leave it out for the bias-free logits of the paper's Definition 1.
            validate: Check values (NaN, label range) first.
        """
        if validate:
            features, weight, labels, bias = check_triple(features, weight, labels, bias)
        (values,) = evaluate([self.of_reading], features, weight, labels, bias, self.logits or labels is None)
        return values.to(working_dtype(features, weight)).to(features.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_name, (self.name,)  # a score is its entry in the registry, in every process

    @property
    def summary(self) -> str:
        """What it is, in one line."""
        return str(self.of_reading.__doc__)

    def column(self, labeled: bool) -> str:
        """Its column in a table: ``avh``, or ``avh_pred`` when there are no labels to judge by."""
        return self.name if labeled or not self.needs_labels else f"{self.name}_pred"


def _by_name(name: str) -> Score:
    return SCORES[name]


SCORES: Registry[Score] = Registry("score", Score)
_AVH = "Chen et al., Angular Visual Hardness, ICML 2020"
_EL = "Zhao et al., Encouraging Loss, AAAI 2022"
_EL2N = "Paul et al., Deep Learning on a Data Diet, NeurIPS 2021"
_ENERGY = "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020"


def _share(part: Tensor, total: Tensor, classes: int) -> Tensor:
    """``part / total``; every class has an equal share where the total vanishes (all vectors coincide)."""
    nothing = total <= 1e-14 * classes
    return torch.where(nothing, 1 / classes, part / total.masked_fill(nothing, 1.0))


@SCORES.register(higher_is_harder=True, logits=False, range=(0, 1), tolerance=(1e-6, 1e-15), reference=f"{_AVH}, Eq. 1")
def avh(r: Reading) -> Tensor:
    """Angular visual hardness: angle to the target class over the sum of the angles to all classes."""
    return _share(r.angle, r.angle_sum, r.classes)


@SCORES.register(
    higher_is_harder=False, logits=False, range=(0, 1), tolerance=(1e-6, 1e-15), reference=f"{_AVH}, Eq. 3"
)
def avc(r: Reading) -> Tensor:
    """Angular visual confidence: ``π − angle`` of the target over the same sum for all classes."""
    return _share(math.pi - r.angle, r.classes * math.pi - r.angle_sum, r.classes)


@SCORES.register(
    higher_is_harder=False,
    range=(0, 1),
    tolerance=(0.0, 1e-6),
    reference=f"{_AVH}, Definition 1 (plus the bias, if any)",
)
def confidence(r: Reading) -> Tensor:
    """Model confidence: softmax probability of the target class."""
    return (-r.soft_margin).sigmoid()


@SCORES.register(
    higher_is_harder=True, range=(0, math.inf), tolerance=(1e-5, 1e-12), reference="cross-entropy of one sample"
)
def nll(r: Reading) -> Tensor:
    """Negative log-likelihood of the target class: the cross-entropy of the sample."""
    return F.softplus(r.soft_margin, threshold=700)  # torch's default drops digits past 20


@SCORES.register(higher_is_harder=True, tolerance=(1e-5, 1e-5), reference=f"log-odds; {_EL}, Eq. 9")
def soft_margin(r: Reading) -> Tensor:
    """Log-odds against the target: confidence before it saturates, to be averaged over epochs, views and networks."""
    return r.soft_margin


@SCORES.register(
    higher_is_harder=False,
    needs_labels=False,
    logits=False,
    range=(0, math.inf),
    tolerance=(1e-6, 0.0),
    reference=f"{_AVH}, Section 3",
)
def norm(r: Reading) -> Tensor:
    """Euclidean length of the feature (see `norm_within_class` for the paper's scaling)."""
    return r.norm


@SCORES.register(higher_is_harder=False, tolerance=(1e-6, 1e-5), reference="logit margin; target masked with −inf")
def margin(r: Reading) -> Tensor:
    """Logit of the target minus the largest other logit."""
    return r.logit - r.other_logit


@SCORES.register(
    higher_is_harder=True, logits=False, range=(0, math.pi), tolerance=(1e-6, 1e-7), reference=f"{_AVH}, Section 3"
)
def angle(r: Reading) -> Tensor:
    """Angle between the feature and the target's weight, in radians: AVH's numerator."""
    return r.angle


@SCORES.register(
    higher_is_harder=True,
    logits=False,
    range=(-math.pi, math.pi),
    tolerance=(0.0, 1e-6),
    reference="angular gap to the nearest class",
)
def angular_margin(r: Reading) -> Tensor:
    """Angle to the target minus the angle to the nearest other class, in radians."""
    return r.angle - r.other_angle


@SCORES.register(
    higher_is_harder=True, needs_labels=False, range=(0, math.inf), tolerance=(1e-5, 2e-5), reference="Shannon, in nats"
)
def entropy(r: Reading) -> Tensor:
    """Entropy of the softmax, in nats."""
    m = r.soft_margin
    won, lost = (-m).sigmoid(), m.sigmoid()
    target_or_not = won * F.softplus(m, threshold=700) + lost * F.softplus(-m, threshold=700)
    return target_or_not + lost * (r.log_exp_sum - r.lin_sum / r.exp_sum)


@SCORES.register(higher_is_harder=True, range=(0, math.sqrt(2)), tolerance=(1e-5, 1e-12), reference=_EL2N)
def el2n(r: Reading) -> Tensor:
    """Length of the softmax minus the one-hot label."""
    return r.soft_margin.sigmoid() * (1 + r.exp2_sum / r.exp_sum.square()).sqrt()


@SCORES.register(
    higher_is_harder=False,
    needs_labels=False,
    tolerance=(1e-6, 1e-5),
    reference=f"minus the least conditional energy; {_EL}",
)
def max_logit(r: Reading) -> Tensor:
    """Largest logit."""
    return torch.maximum(r.logit, r.other_logit)


@SCORES.register(higher_is_harder=True, needs_labels=False, tolerance=(1e-6, 1e-5), reference=_ENERGY)
def free_energy(r: Reading) -> Tensor:
    """Free energy ``−logsumexp(z)`` at temperature 1."""
    return -torch.logaddexp(r.logit, r.other_logit + r.log_exp_sum)


def compute_scores(
    features: Tensor, weight: Tensor, labels: Tensor | None, bias: Tensor | None, names: Iterable[str] = tuple(SCORES)
) -> dict[str, Tensor]:
    """Several scores from one pass over checked inputs: ``pred`` and one float64 ``(N,)`` per column."""
    scores = [SCORES[name] for name in names]
    columns = ["pred", *(score.column(labels is not None) for score in scores)]
    functions = [operator.attrgetter("pred"), *(score.of_reading for score in scores)]
    return dict(zip(columns, evaluate(functions, features, weight, labels, bias), strict=True))


def norm_within_class(norms: Any, labels: Any) -> Tensor:
    """Norms min–max scaled to [0, 1] within each class, as in the AVH paper's correlation study.

    Unlike a global scaling this changes ranks over the whole set. A class whose norms are all equal gets 0.5.

    Examples:
        >>> norm_within_class(torch.tensor([1.0, 3.0, 2.0, 10.0, 30.0]), torch.tensor([0, 0, 0, 1, 1])).tolist()
        [0.0, 1.0, 0.5, 0.0, 1.0]
    """
    norms, labels = torch.as_tensor(norms), torch.as_tensor(labels)
    if norms.shape != labels.shape or norms.ndim != 1:
        raise InputError(f"norms and labels must be of one length, got {tuple(norms.shape)} and {tuple(labels.shape)}.")
    groups, group = labels.unique(return_inverse=True)
    low = norms.new_full((len(groups),), math.inf).scatter_reduce(0, group, norms, "amin")
    high = norms.new_full((len(groups),), -math.inf).scatter_reduce(0, group, norms, "amax")
    span = (high - low)[group]
    return torch.where(span > 0, (norms - low[group]) / span.clamp_min(torch.finfo(norms.dtype).tiny), 0.5)


def avh_series(features: Any, weight: Any, labels: Any, sums: ClassSums | None = None) -> tuple[Tensor, Tensor]:
    """AVH from `hardsight.series.angle_sum_series`: O(D²) per sample however many classes there are; for C ≫ D.

    Args:
        features: ``(N, D)`` inputs of the last linear layer.
        weight: ``(C, D)`` weight of that layer.
        labels: ``(N,)`` class indices.
        sums: `hardsight.series.class_sums` of the weight, where there are many batches.

    Returns:
        ``(avh, error)``: two ``(N,)`` float64 tensors; the exact AVH lies within ``avh ± error``.
    """
    if sums is not None and not sums.length.isfinite():
        raise InputError("sums hold NaN or infinity: so does the weight that they were computed from.")
    # With sums, the weight need not be read as a whole.
    features, weight, labels, _ = check_triple(features, weight, labels, finite_head=sums is None)
    if labels is None:
        raise InputError("labels must be given: finding the predicted class would touch every class.")
    target = target_angle(features, weight, labels)
    total, off = angle_sum_series(features, sums or weight)
    # The true sum is at least the target's own angle, whatever the certificate says.
    low, high = torch.maximum(total - off, target), total + off
    value = _share(target, total, len(weight))
    return value, torch.maximum(_share(target, low, len(weight)) - value, value - _share(target, high, len(weight)))
