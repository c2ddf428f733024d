"""Self-training methods: which target samples to train on, and with which labels; pure functions of arrays.

Each class has a threshold λ: the confidence ranked at a portion among the samples that are predicted to it. Labels are
the argmax of confidence over threshold, so that a class of low confidence gets its share. A sample is selected if it
reaches the threshold of its label: λ itself or, where another score selects, a second one, β. The ``(N, C)`` arrays may
be memory-mapped: beside them selecting takes about 35 bytes per sample and 4 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from hardsight.errors import InputError
from hardsight.registry import Range, Registry, check_choice, did_you_mean
from hardsight.scores import SCORES

_BLOCK = 1 << 18  # numbers at a time: 2 MiB in float64, which stay in the cache
_RULES = ("softmax", "avc")  # confidences of every class, which can give labels


@dataclass(frozen=True)
class Method:
    """How target samples are labeled and selected; data only."""

    name: str
    label_by: str = "softmax"  #: The confidence that gives labels, softmax or avc (angular visual confidence).
    select_by: str = "softmax"  #: What must be high for a sample to be selected, softmax, avc or any score.
    soft: bool = False  #: LRENT's soft labels instead of one class per sample.
    alpha: float = 0.25  #: How soft LRENT's labels are; one class per sample in the limit of 0.
    mrkld: float = 0.0  #: Weight of MRKLD, which draws predictions on selected samples toward the uniform distribution.
    summary: str = ""  #: What it is, in one line.
    reference: str = ""  #: Where it comes from.


METHODS: Registry[Method] = Registry("self-training method")


def _add(name: str, summary: str, reference: str, **options: Any) -> None:
    METHODS[name] = Method(name, **options, summary=summary, reference=reference)


_CRST = "Zou et al., Confidence Regularized Self-Training, ICCV 2019"
_AVH = "Chen et al., Angular Visual Hardness, ICML 2020"
_add("cbst", "Labels and selection by the softmax.", "Zou et al., Class-Balanced Self-Training, ECCV 2018")
_add("crst", "CBST with soft labels (LRENT) and regularized predictions (MRKLD).", _CRST, soft=True, mrkld=0.1)
_add("crst-mrkld", "CBST with regularized predictions (MRKLD).", _CRST, mrkld=0.1)
_add("crst-lrent", "CBST with soft labels (LRENT).", _CRST, soft=True)
_add("cbst+avh", "Labels by the softmax, selection by AVC.", f"{_AVH}, Eq. 4", select_by="avc")
_add("cbst+avh-slides", "Labels and selection by AVC.", f"{_AVH}, slides of the talk", label_by="avc", select_by="avc")
_add("cbst+avh-hybrid", "Labels by AVC, selection by the softmax.", "in neither paper nor slides", label_by="avc")


def parse_method(method: str | Method) -> Method:
    """The method of a name in `METHODS`, or of ``NAME+SCORE`` for any score; a `Method` is checked.

    Examples:
        >>> parse_method("crst+avh").select_by, parse_method("cbst+margin").select_by
        ('avc', 'margin')
    """
    if isinstance(method, Method):
        check_choice(method.label_by, _RULES, "label_by")
        check_choice(method.select_by, (*_RULES, *SCORES), "select_by")
        Range(0, math.inf, "()").check(method.alpha, "alpha")
        Range(0).check(method.mrkld, "mrkld")
        return method
    if method in METHODS:
        return METHODS[method]
    base, _, score = str(method).partition("+")
    if base in METHODS and score in SCORES:
        # These two exist for every class, averaged over mirrored images, and need not be computed again.
        rule = {"confidence": "softmax", "avh": "avc"}.get(score, score)
        return replace(METHODS[base], name=str(method), select_by=rule, summary=f"As {base}, but {rule} selects.")
    names = dict.fromkeys([*METHODS, *(f"{base}+{score}" for base in METHODS if "+" not in base for score in SCORES)])
    raise InputError(f"there is no self-training method {method!r}; {did_you_mean(method, names)}")


def portion_at(round: int, start: float = 0.2, step: float = 0.05, most: float = 0.5) -> float:
    """The portion to select in a round, counted from 0; the defaults are CRST's for the target."""
    if not (0 < start <= most <= 1 and 0 <= step < math.inf and round >= 0):
        got = f"{start}, {step}, {most} in round {round}"
        raise InputError(f"a portion must lie in (0, 1] and not shrink: 0.2, 0.05, 0.5, for example; got {got}.")
    return float(np.round(min(start + step * round, most), 12))  # .3, not .30000000000000004


def class_thresholds(
    values: Any, predicted: Any, classes: int, portion: float, *, balance: str | np.ndarray = "class"
) -> np.ndarray:
    """The value ``(N,)`` ranked at a portion among the samples predicted to each class, ``(C,)``; inf for no sample.

    With the balance ``"class"`` it is the portion of each class, rounded down, but at least one sample; with
    ``"global"`` of all samples together; with ``(C,)`` shares as many of each as gives the selection these shares.

    Examples:
        >>> class_thresholds([0.9, 0.8, 0.7, 0.6, 0.5], [0, 0, 0, 0, 1], 3, 0.5)
        array([0.8, 0.5, inf])
    """
    values, predicted = _check_values(values, predicted, classes)
    if not len(values):
        raise InputError("values must hold at least one sample, got none: the target is empty.")
    Range(0, 1, "(]").check(portion, "portion")
    counts, shares = np.bincount(predicted, minlength=classes), check_balance(balance, classes)
    if not isinstance(shares, str):
        ranks = np.minimum(round_down(portion * len(values) * shares), counts)
    elif shares == "class":
        ranks = np.maximum(round_down(portion * counts), counts > 0)
    else:
        nth = len(values) - max(1, int(round_down(portion * len(values))))
        return np.where(counts > 0, np.partition(values, nth)[nth].astype(np.float64), np.inf)
    # One stable sort by class (a radix sort up to 65,536 classes) is faster than a mask per class.
    grouped = values[np.argsort(predicted.astype(np.min_scalar_type(classes)), kind="stable")]
    thresholds, ends = np.full(classes, np.inf), counts.cumsum()
    for k in np.flatnonzero(ranks):
        group, nth = grouped[ends[k] - counts[k] : ends[k]], counts[k] - int(ranks[k])
        thresholds[k] = np.partition(group, nth)[nth]
    return thresholds


def pseudo_labels(confidence: np.ndarray, thresholds: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The class whose confidence ``(N, C)`` is the largest multiple of its threshold ``(C,)``, the first in a tie; and
    that confidence. The threshold inf (of a class without samples) counts as 1; without thresholds it is the argmax.
    """
    scale = 1.0 if thresholds is None else _divisors(thresholds, confidence.shape[1])
    labels, values = np.empty(len(confidence), np.int64), np.empty(len(confidence), confidence.dtype)
    for rows, block in blocks(confidence):
        labels[rows] = (block / scale).argmax(axis=1)
        values[rows] = block[np.arange(len(block)), labels[rows]]
    _check_positive(values > 0)
    return labels, values


def lrent_labels(confidence: Any, thresholds: Any, alpha: float = 0.25) -> np.ndarray:
    """CRST's soft labels ``y ∝ (p/λ)^(1/α)``, ``(M, C)``; the threshold inf counts as 1."""
    powers = _powers(as_matrix(confidence), thresholds, alpha)[0]
    return powers / powers.sum(axis=1, keepdims=True)


def lrent_chosen(confidence: Any, thresholds: Any, alpha: float = 0.25, *, strict: bool = False) -> np.ndarray:
    """Which samples CRST selects with soft labels, ``(N,)`` booleans: ``Σ (p/λ)^(1/α) >= 1``, or ``>`` if strict.

    This is CRST's rule ``Σ −y log p + α Σ y log y < Σ −y log λ`` at its own labels; it selects more than CBST does.
    """
    matrix = as_matrix(confidence)
    log_sums = np.empty(len(matrix))
    for rows, block in blocks(matrix):
        powers, log_largest = _powers(block, thresholds, alpha)
        log_sums[rows] = log_largest + np.log(powers.sum(axis=1))
    return log_sums > 0 if strict else log_sums >= 0


def _powers(confidence: np.ndarray, thresholds: Any, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """``(p/λ)^(1/α)`` over the largest of its row, and the logarithm of that: the powers themselves may overflow."""
    Range(0, math.inf, "()").check(alpha, "alpha")
    with np.errstate(divide="ignore"):  # log 0 is −inf, which is right
        powers = np.log(confidence, dtype=np.float64)
    powers -= np.log(_divisors(thresholds, confidence.shape[1]))
    powers /= alpha
    largest = powers.max(axis=1)
    _check_positive(largest > -np.inf)
    powers -= largest[:, None]
    return np.exp(powers, out=powers), largest


def target_rows(labels: Any, classes: int, mrkld: float = 0.0) -> np.ndarray:
    """What to train toward with the loss ``−Σ t_k log p_k``: ``(M, C)`` float32, of classes ``(M,)`` or soft labels.

    MRKLD's term ``−(α/C) Σ log p_k`` has the same form: it adds α/C to every entry.
    """
    rows = np.asarray(labels)
    if rows.ndim == 1:
        rows = np.eye(classes, dtype=np.float32)[_check_classes(rows, classes)]
    elif rows.shape[1:] != (classes,):
        raise InputError(f"labels must be (M,) classes or (M, {classes}) soft labels, got {rows.shape}.")
    return rows.astype(np.float32) + np.float32(mrkld / classes)


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples to train on, and with which labels."""

    rows: np.ndarray  #: ``(M,)`` which of the N samples, ascending.
    labels: np.ndarray  #: ``(M,)`` their classes; the largest of soft labels.
    label_thresholds: np.ndarray  #: ``(C,)`` λ, of the confidence that gives labels.
    select_thresholds: np.ndarray  #: ``(C,)`` β, of the score that selects; λ where they are the same.
    counts: np.ndarray  #: ``(C,)`` how many are selected per class.
    predicted: np.ndarray  #: ``(C,)`` how many of all N are predicted to each class, by the plain argmax.
    method: Method  #: The method.
    confidence: np.ndarray  #: ``(N, C)`` the array that gave the labels, not copied.

    @cached_property
    def targets(self) -> np.ndarray:
        """``(M, C)`` float32, see `target_rows`; computed on demand, because it may be larger than all the rest."""
        classes, method = self.confidence.shape[1], self.method
        if not method.soft:
            return target_rows(self.labels, classes, method.mrkld)
        parts = np.array_split(self.rows, 1 + len(self.rows) * classes // _BLOCK)  # soft labels are float64
        soft = (lrent_labels(self.confidence[part], self.label_thresholds, method.alpha) for part in parts)
        return np.concatenate([target_rows(part, classes, method.mrkld) for part in soft])


def select(
    method: Method | str,
    p: Any,
    avc: Any = None,
    at: Callable[[str, np.ndarray], Any] | None = None,
    portion: float = 0.2,
    *,
    balance: str | np.ndarray = "class",
    strict: bool = False,
) -> Selection:
    """Label the target and select what to train on.

    Soft labels are selected by CRST's rule if one confidence labels and selects, else like others, at their largest.

    Args:
        method: One of `hardsight.adaptation.METHODS`, or what `parse_method` takes.
        p: ``(N, C)`` softmax probabilities.
        avc: ``(N, C)`` angular visual confidence, where the method needs it.
        at: For other scores a function of a score's name and ``(N,)`` classes that gives the score at these classes,
            ``(N,)``, with the sign that makes higher more confident.
        portion: In (0, 1], see `class_thresholds` and `portion_at`.
        balance: ``"class"``, ``"global"``, or ``(C,)`` class shares.
        strict: Select only above the threshold.

    Examples:
        >>> selection = select("cbst", [[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.4, 0.6]], portion=0.4)
        >>> selection.label_thresholds, selection.rows, selection.labels  # .45/.6 is more than .55/.9, but too little
        (array([0.9, 0.6]), array([0, 3]), array([0, 1]))
    """
    method = parse_method(method)
    arrays = {name: as_matrix(array, name) for name, array in (("softmax", p), ("avc", avc)) if array is not None}
    if missing := [name for name in (method.label_by, method.select_by) if name in _RULES and name not in arrays]:
        raise InputError(f"{method.name} needs {missing[0]} of every class, but it is not given.")
    if len({array.shape for array in arrays.values()}) > 1:
        raise InputError(f"p and avc must have one shape, got {arrays['softmax'].shape} and {arrays['avc'].shape}.")

    confidence, same = arrays[method.label_by], method.select_by == method.label_by
    classes = confidence.shape[1]

    def scores_at(labels: np.ndarray) -> np.ndarray:
        """The score that selects, at these classes."""
        if method.select_by in arrays:
            return arrays[method.select_by][np.arange(len(labels)), labels]
        if at is None:
            raise InputError(f"at must be a function that gives {method.select_by} at given classes, got None.")
        return _check_values(at(method.select_by, labels), labels, classes)[0]

    # For both thresholds "predicted to class k" is the plain argmax of the labeling confidence, so both rank the same.
    predicted, values = pseudo_labels(confidence)
    thresholds = partial(class_thresholds, predicted=predicted, classes=classes, portion=portion, balance=balance)
    label_thresholds = select_thresholds = thresholds(values)
    labels, values = pseudo_labels(confidence, label_thresholds)
    if not same:
        values = scores_at(predicted)
        select_thresholds = thresholds(values)
        if (moved := labels != predicted).any():
            # Only these are computed again: the ranked sample must equal its own value to the last bit.
            values = np.where(moved, scores_at(labels), values)
    if method.soft and same:
        selected = lrent_chosen(confidence, label_thresholds, method.alpha, strict=strict)
    else:
        limit = select_thresholds[labels]
        selected = values > limit if strict else values >= limit
    rows = np.flatnonzero(selected)
    counts, of_all = np.bincount(labels[rows], minlength=classes), np.bincount(predicted, minlength=classes)
    return Selection(rows, labels[rows], label_thresholds, select_thresholds, counts, of_all, method, confidence)


def blocks(matrix: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of rows that fit into the cache, each with its slice; values must be finite and 0 or more."""
    step = max(1, _BLOCK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        block = matrix[start : start + step]
        if not (block.min() >= 0 and block.max() < np.inf):  # NaN is neither
            row, column = np.argwhere(~((block >= 0) & (block < np.inf)))[0]
            got = f"{block[row, column]} in row {start + row:,}"
            raise InputError(f"confidence must be finite and 0 or more, got {got}.")
        yield slice(start, start + len(block)), block


def as_matrix(values: Any, name: str = "confidence") -> np.ndarray:
    """An ``(N, C)`` array, not copied; its values are checked when they are read."""
    matrix = np.asarray(values)
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InputError(f"{name} must be (N, C), a row per sample and a column per class, got {matrix.shape}.")
    return matrix


def _check_positive(positive: np.ndarray) -> None:
    if not positive.all():
        raise InputError(f"confidence must have a number above 0 in every row, got none in row {positive.argmin():,}.")


def _check_classes(labels: Any, classes: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.size and (labels.dtype.kind not in "iu" or not 0 <= labels.min() <= labels.max() < classes):
        raise InputError(f"labels must be (N,) integers, 0 to {classes - 1}, got {labels.dtype} {labels}.")
    return labels.astype(np.int64, copy=False)


def _check_values(values: Any, labels: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    values, labels = np.asarray(values), _check_classes(labels, classes)
    if values.ndim != 1 or values.shape != labels.shape:
        raise InputError(f"values and classes must both be (N,), got {values.shape} and {labels.shape}.")
    if not (finite := np.isfinite(values)).all():
        raise InputError(f"values must be finite, got {values[~finite][0]} in row {np.argmin(finite):,}.")
    return values, labels


def _divisors(thresholds: Any, classes: int) -> np.ndarray:
    scale = np.asarray(thresholds, dtype=np.float64)
    if scale.shape != (classes,) or not (scale > 0).all():
        raise InputError(f"thresholds must be ({classes},) and above 0, got {scale.shape}: {scale}.")
    return np.where(scale < np.inf, scale, 1.0)


def check_balance(balance: Any, classes: int) -> str | np.ndarray:
    """A balance as `class_thresholds` takes it, shares as float64."""
    if isinstance(balance, str):
        check_choice(balance, ("class", "global"), f"balance (or {classes} class shares)")
        return balance
    shares = np.asarray(balance, dtype=np.float64)
    if shares.shape != (classes,) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        got = f"{shares.size} with the sum {shares.sum():g}"
        raise InputError(f"balance must be {classes} shares of 0 or more that sum to 1, got {got}.")
    return shares


def round_down(amount: Any) -> np.ndarray:
    """Rounded down as if it had been multiplied exactly: .29 of 100 is 29, not 28.999999999999996."""
    return np.floor(np.round(amount, 6)).astype(np.int64)
