"""Hardness scores: features ``(N, D)``, class weights ``(C, D)`` and labels ``(N,)`` in, one number per sample out.

Each score is one function of a `Reading`, registered in `SCORES` with its metadata. To add one, write the function
under ``@SCORES.register(...)``, with a summary, a formula and an example in its docstring, and put its name into the
sets of the property tests.
"""

from __future__ import annotations

import inspect
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


@dataclass(frozen=True, repr=False)
class Score:
    """A score and its metadata. Call it with the triple: ``avh(features, weight, labels)``.

    ``help(avh)`` shows the documentation of that score: the docstring of its function, and its metadata.

    Attributes:
        name: Its name in `SCORES`, in tables and on the command line.
        of_reading: The score as a function of a `Reading`.
        higher_is_harder: Direction: True when a larger value means a harder sample.
        tolerance: Maximum distance from a naive float64 computation: relative to the true value, plus absolute.
        reference: Where it is defined.
        range: Smallest and largest possible value.
        needs_labels: Whether it is computed at the label; without labels it is computed at the prediction and becomes
            ``<name>_pred``.
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

    def __post_init__(self) -> None:
        # Of the instance: help(), inspect and IPython look here before they turn to the class. No __wrapped__, which
        # would show the signature of the function of a reading.
        about = {"__name__": self.name, "__qualname__": self.name, "__doc__": self._documentation()}
        for attribute, value in (about | {"__module__": self.of_reading.__module__}).items():
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        return f"Score({self.name}: {self.harder} is harder, range {self.range_text})"

    def __call__(
        self, features: Any, weight: Any, labels: Any = None, *, bias: Any = None, validate: bool = True
    ) -> Tensor:
        """The score of each sample, ``(N,)``, differentiable, float32 or better.

        Args:
            features: ``(N, D)`` inputs of the last linear layer.
            weight: ``(C, D)`` weight of that layer.
            labels: ``(N,)`` class indices; None scores each sample at its predicted class.
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
        return (inspect.getdoc(self.of_reading) or "").partition("\n")[0]

    @property
    def harder(self) -> str:
        """Which values are harder: ``larger`` or ``smaller``."""
        return "larger" if self.higher_is_harder else "smaller"

    @property
    def range_text(self) -> str:
        """Its range in mathematical notation: ``[0, √2]``, ``(−∞, ∞)``."""
        low, high = (("−" if end < 0 else "") + _NAMED.get(abs(end), f"{abs(end):g}") for end in self.range)
        return f"{'(' if math.isinf(self.range[0]) else '['}{low}, {high}{')' if math.isinf(self.range[1]) else ']'}"

    @property
    def facts(self) -> list[str]:
        """Its metadata as sentences: direction and range, labels and bias, the reference."""
        labels = f"Needs labels; ``{self.column(False)}`` without them" if self.needs_labels else "Needs no labels"
        bias = "the bias counts" if self.logits else "the bias does not count"
        about = f"{self.harder.capitalize()} is harder; range {self.range_text}."
        return [about, f"{labels}; {bias}.", f"Reference: {self.reference}."]

    def _documentation(self) -> str:
        """The docstring of its function, with the facts and the arguments before the examples."""
        head, mark, examples = (inspect.getdoc(self.of_reading) or "").partition("Examples:\n")
        _, _, call = (inspect.getdoc(Score.__call__) or "").partition("\n\n")
        return "\n\n".join(filter(None, (head.rstrip(), "\n".join(self.facts), call, mark + examples)))

    def column(self, labeled: bool) -> str:
        """Its column in a table: ``avh``, or ``avh_pred`` if there are no labels."""
        return self.name if labeled or not self.needs_labels else f"{self.name}_pred"


_NAMED = {math.inf: "∞", math.pi: "π", math.sqrt(2): "√2"}


def _by_name(name: str) -> Score:
    return SCORES[name]


SCORES: Registry[Score] = Registry("score", Score)
_AVH = "Chen et al., Angular Visual Hardness, ICML 2020"
_EL = "Zhao et al., Encouraging Loss, AAAI 2022"
_EL2N = "Paul et al., Deep Learning on a Data Diet, NeurIPS 2021"
_ENERGY = "Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020"


def _share(part: Tensor, total: Tensor, classes: int) -> Tensor:
    """``part / total``; every class has an equal share if the total vanishes (all vectors coincide)."""
    nothing = total <= 1e-14 * classes
    return torch.where(nothing, 1 / classes, part / total.masked_fill(nothing, 1.0))


@SCORES.register(higher_is_harder=True, logits=False, range=(0, 1), tolerance=(1e-6, 1e-15), reference=f"{_AVH}, Eq. 1")
def avh(r: Reading) -> Tensor:
    """Angular visual hardness: angle to the target class over the sum of the angles to all classes.

    ``θ_y / Σ_k θ_k``; times the number of classes, 1 is chance.

    Examples:
        >>> avh([[1.0, 1.0]], torch.eye(2), [0])  # 45° of 45° + 45°
        tensor([0.5000])
    """
    return _share(r.angle, r.angle_sum, r.classes)


@SCORES.register(
    higher_is_harder=False, logits=False, range=(0, 1), tolerance=(1e-6, 1e-15), reference=f"{_AVH}, Eq. 3"
)
def avc(r: Reading) -> Tensor:
    """Angular visual confidence: ``π − angle`` of the target over the same sum for all classes.

    ``(π − θ_y) / Σ_k (π − θ_k)``

    Examples:
        >>> avc([[1.0, 0.0]], torch.eye(2), [0])  # 180° of 180° + 90°
        tensor([0.6667])
    """
    return _share(math.pi - r.angle, r.classes * math.pi - r.angle_sum, r.classes)


@SCORES.register(
    higher_is_harder=False,
    range=(0, 1),
    tolerance=(0.0, 1e-6),
    reference=f"{_AVH}, Definition 1 (plus the bias, if any)",
)
def confidence(r: Reading) -> Tensor:
    """Model confidence: softmax probability of the target class.

    ``exp(z_y) / Σ_k exp(z_k)``

    Examples:
        >>> confidence([[math.log(3), 0.0]], torch.eye(2), [0])  # 3 of 3 + 1
        tensor([0.7500])
    """
    return (-r.soft_margin).sigmoid()


@SCORES.register(
    higher_is_harder=True, range=(0, math.inf), tolerance=(1e-5, 1e-12), reference="cross-entropy of one sample"
)
def nll(r: Reading) -> Tensor:
    """Negative log-likelihood of the target class: the cross-entropy of the sample.

    ``log Σ_k exp(z_k) − z_y``

    Examples:
        >>> nll([[0.0, 0.0]], torch.eye(2), [0])  # log 2
        tensor([0.6931])
    """
    return F.softplus(r.soft_margin, threshold=700)  # torch's default drops digits past 20


@SCORES.register(higher_is_harder=True, tolerance=(1e-5, 1e-5), reference=f"log-odds; {_EL}, Eq. 9")
def soft_margin(r: Reading) -> Tensor:
    """Log-odds against the target: confidence before it saturates, to be averaged over epochs, views and networks.

    ``log Σ_{k≠y} exp(z_k) − z_y``, the logarithm of ``(1 − p_y) / p_y``.

    Examples:
        >>> SCORES["soft_margin"]([[3.0, 1.0]], torch.eye(2), [0])  # 1 − 3
        tensor([-2.])
    """
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
    """Euclidean length of the feature (see `norm_within_class` for the paper's scaling).

    ``‖x‖``

    Examples:
        >>> norm([[3.0, 4.0]], torch.eye(2))
        tensor([5.])
    """
    return r.norm


@SCORES.register(higher_is_harder=False, tolerance=(1e-6, 1e-5), reference="logit margin; target masked with −inf")
def margin(r: Reading) -> Tensor:
    """Logit of the target minus the largest other logit.

    ``z_y − max_{k≠y} z_k``

    Examples:
        >>> margin([[3.0, 1.0]], torch.eye(2), [1])  # 1 − 3
        tensor([-2.])
    """
    return r.logit - r.other_logit


@SCORES.register(
    higher_is_harder=True, logits=False, range=(0, math.pi), tolerance=(1e-6, 1e-7), reference=f"{_AVH}, Section 3"
)
def angle(r: Reading) -> Tensor:
    """Angle between the feature and the target's weight, in radians: AVH's numerator.

    ``θ_y``

    Examples:
        >>> angle([[0.0, 2.0]], torch.eye(2), [0])  # π/2
        tensor([1.5708])
    """
    return r.angle


@SCORES.register(
    higher_is_harder=True,
    logits=False,
    range=(-math.pi, math.pi),
    tolerance=(0.0, 1e-6),
    reference="angular gap to the nearest class",
)
def angular_margin(r: Reading) -> Tensor:
    """Angle to the target minus the angle to the nearest other class, in radians.

    ``θ_y − min_{k≠y} θ_k``: above 0 where another class is nearer.

    Examples:
        >>> angular_margin([[0.0, 2.0]], torch.eye(2), [0])  # π/2 − 0
        tensor([1.5708])
    """
    return r.angle - r.other_angle


@SCORES.register(
    higher_is_harder=True, needs_labels=False, range=(0, math.inf), tolerance=(1e-5, 2e-5), reference="Shannon, in nats"
)
def entropy(r: Reading) -> Tensor:
    """Entropy of the softmax, in nats.

    ``−Σ_k p_k log p_k``

    Examples:
        >>> entropy([[1.0, 1.0]], torch.eye(2))  # log 2
        tensor([0.6931])
    """
    m = r.soft_margin
    won, lost = (-m).sigmoid(), m.sigmoid()
    target_or_not = won * F.softplus(m, threshold=700) + lost * F.softplus(-m, threshold=700)
    return target_or_not + lost * (r.log_exp_sum - r.lin_sum / r.exp_sum)


@SCORES.register(higher_is_harder=True, range=(0, math.sqrt(2)), tolerance=(1e-5, 1e-12), reference=_EL2N)
def el2n(r: Reading) -> Tensor:
    """Length of the softmax minus the one-hot label.

    ``‖p − onehot(y)‖``

    Examples:
        >>> el2n([[0.0, 0.0]], torch.eye(2), [0])  # the length of (−½, ½)
        tensor([0.7071])
    """
    return r.soft_margin.sigmoid() * (1 + r.exp2_sum / r.exp_sum.square()).sqrt()


@SCORES.register(
    higher_is_harder=False,
    needs_labels=False,
    tolerance=(1e-6, 1e-5),
    reference=f"minus the least conditional energy; {_EL}",
)
def max_logit(r: Reading) -> Tensor:
    """Largest logit.

    ``max_k z_k``

    Examples:
        >>> max_logit([[3.0, 1.0]], torch.eye(2))
        tensor([3.])
    """
    return torch.maximum(r.logit, r.other_logit)


@SCORES.register(higher_is_harder=True, needs_labels=False, tolerance=(1e-6, 1e-5), reference=_ENERGY)
def free_energy(r: Reading) -> Tensor:
    """Free energy ``−logsumexp(z)`` at temperature 1.

    ``−log Σ_k exp(z_k)``

    Examples:
        >>> free_energy([[0.0, 0.0]], torch.eye(2))  # −log 2
        tensor([-0.6931])
    """
    return -torch.logaddexp(r.logit, r.other_logit + r.log_exp_sum)


# doctest looks into functions and classes, not into instances. Scores registered elsewhere are not in this module.
__test__ = {name: score.__doc__ for name, score in SCORES.items()}


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

    Unlike global scaling, this changes ranks over the whole set. A class whose norms are all equal gets 0.5.

    Examples:
        >>> norm_within_class(torch.tensor([1.0, 3.0, 2.0, 10.0, 30.0]), torch.tensor([0, 0, 0, 1, 1])).tolist()
        [0.0, 1.0, 0.5, 0.0, 1.0]
    """
    norms, labels = torch.as_tensor(norms), torch.as_tensor(labels)
    if norms.shape != labels.shape or norms.ndim != 1:
        raise InputError(f"norms and labels must be of one length, got {tuple(norms.shape)} and {tuple(labels.shape)}.")
    groups = labels.unique()
    group = torch.searchsorted(groups, labels)  # the same as `return_inverse`, in a third of the memory
    group.clamp_(max=len(groups) - 1)  # NaN, which a table has where a label is missing, comes last
    low = norms.new_full((len(groups),), math.inf).scatter_reduce(0, group, norms, "amin")
    high = norms.new_full((len(groups),), -math.inf).scatter_reduce(0, group, norms, "amax")
    span = high - low
    scaled = (norms - low[group]).div_(span.clamp_min(torch.finfo(norms.dtype).tiny)[group])
    return scaled.masked_fill_(~(span > 0)[group] | labels.isnan(), 0.5)


def avh_series(features: Any, weight: Any, labels: Any, sums: ClassSums | None = None) -> tuple[Tensor, Tensor]:
    """AVH from `hardsight.series.angle_sum_series`: O(D²) per sample for any number of classes; for C ≫ D.

    Args:
        features: ``(N, D)`` inputs of the last linear layer.
        weight: ``(C, D)`` weight of that layer.
        labels: ``(N,)`` class indices.
        sums: `hardsight.series.class_sums` of the weight, for many batches.

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
    # The true sum is at least the target's own angle, whatever the error bound says.
    low, high = torch.maximum(total - off, target), total + off
    value = _share(target, total, len(weight))
    return value, torch.maximum(_share(target, low, len(weight)) - value, value - _share(target, high, len(weight)))
