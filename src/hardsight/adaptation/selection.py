"""Which target samples to train on, and with which labels: pure functions on arrays.

Each class has a threshold λ: the confidence ranked at a portion among the samples that are predicted to it. Labels are
the argmax of confidence over threshold, so that a class the network is unsure of gets its share. A sample is chosen
where what selects reaches the threshold of its label: λ itself, or, where something else selects, a second one, β.

The AVH paper does not say whether "predicted to class k" means the softmax or AVC. Here it is the plain argmax of what
gives labels, for λ and for β, so that both rank the same samples.

Beside the (N, C) arrays, which may be memory-mapped, selecting takes some 35 bytes a sample and 4 MiB: 315 MiB for
10 million samples of 1,000 classes (``python -m benchmarks selection`` measures it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from hardsight.adaptation.methods import Method, parse_method
from hardsight.adaptation.pseudolabels import blocks, confidences, labeled, lrent_chosen, lrent_labels, target_rows
from hardsight.adaptation.thresholds import chosen, class_thresholds
from hardsight.errors import InputError


def portion_at(round: int, start: float = 0.2, step: float = 0.05, most: float = 0.5) -> float:
    """The portion of samples to choose in a round, counted from 0: it grows as the network gets better.

    Args:
        round: Which round.
        start: In the first round.
        step: More in each following round.
        most: Where it stops. The defaults are CRST's for the target; for the source its are .03, .0025, .06.

    Examples:
        >>> [portion_at(r) for r in (0, 1, 2, 9)]
        [0.2, 0.25, 0.3, 0.5]
    """
    if not (0 < start <= most <= 1 and 0 <= step < math.inf):
        raise InputError(
            f"a portion must lie in (0, 1] and not shrink: start, step and most as in 0.2, 0.05, 0.5, got {start}, "
            f"{step}, {most}."
        )
    if round < 0:
        raise InputError(f"round must be counted from 0, got {round}.")
    return float(np.round(min(start + step * round, most), 12))  # .3, not .30000000000000004


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples to train on, and with which labels.

    Attributes:
        rows: ``(M,)`` which of the N samples, ascending.
        labels: ``(M,)`` their classes; of soft labels the largest.
        label_thresholds: ``(C,)`` λ of what gives labels.
        select_thresholds: ``(C,)`` β of what selects; λ where both are one.
        counts: ``(C,)`` how many were chosen for each class.
        predicted: ``(C,)`` how many of all N are predicted to each class, by the plain argmax of what gives labels.
        method: How they were chosen.
        confidence: ``(N, C)`` the array that gave labels, not copied.
    """

    rows: np.ndarray
    labels: np.ndarray
    label_thresholds: np.ndarray
    select_thresholds: np.ndarray
    counts: np.ndarray
    predicted: np.ndarray
    method: Method
    confidence: np.ndarray

    @cached_property
    def targets(self) -> np.ndarray:
        """``(M, C)`` float32, see `target_rows`; made when asked for, because it may be larger than all the rest."""
        classes, method = self.confidence.shape[1], self.method
        if not method.soft:
            return target_rows(self.labels, classes, method.mrkld)
        targets = np.empty((len(self.rows), classes), dtype=np.float32)
        for part in blocks(targets):
            soft = lrent_labels(self.confidence[self.rows[part]], self.label_thresholds, method.alpha)
            targets[part] = target_rows(soft, classes, method.mrkld)
        return targets


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
    """Label the target and choose what to train on.

    Soft labels are chosen by CRST's rule where one confidence labels and selects, else like others, at their largest.

    Args:
        method: One of `hardsight.adaptation.METHODS`, or what `parse_method` takes.
        p: ``(N, C)`` softmax probabilities.
        avc: ``(N, C)`` angular visual confidence, where the method needs it.
        at: For other scores a function of a score's name and ``(N,)`` classes: the score at them, ``(N,)``, turned so
            that higher is more confident.
        portion: In (0, 1], see `class_thresholds` and `portion_at`.
        balance: ``"class"``, ``"global"``, or ``(C,)`` shares of the classes.
        strict: Choose above the threshold only; see `chosen`.

    Examples:
        >>> p = [[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.4, 0.6]]
        >>> found = select("cbst", p, portion=0.4)
        >>> found.label_thresholds, found.rows, found.labels  # .45/.6 is more than .55/.9, and still too little
        (array([0.9, 0.6]), array([0, 3]), array([0, 1]))
    """
    method = parse_method(method)
    given = {"softmax": p, "avc": avc}
    arrays = {name: confidences(array, name) for name, array in given.items() if array is not None}
    if lost := [name for name in (method.label_by, method.select_by) if name in given and name not in arrays]:
        raise InputError(f"{method.name} needs {lost[0]} of every class, and it was not given.")
    if len({array.shape for array in arrays.values()}) > 1:
        raise InputError(f"p and avc must be of one shape, got {arrays['softmax'].shape} and {arrays['avc'].shape}.")
    confidence = arrays[method.label_by]
    classes = confidence.shape[1]
    predicted, values = labeled(confidence)
    ranked = partial(class_thresholds, predicted=predicted, classes=classes, portion=portion, balance=balance)
    label_thresholds = select_thresholds = ranked(values)
    labels, values = labeled(confidence, label_thresholds)
    if method.select_by != method.label_by:
        values = _at(method.select_by, predicted, arrays, at)
        select_thresholds = ranked(values)
        if (moved := labels != predicted).any():
            # Only these are judged anew: the ranked sample must meet its own value again, to the last bit.
            values = np.where(moved, _at(method.select_by, labels, arrays, at), values)
    if method.soft and method.select_by == method.label_by:
        kept = lrent_chosen(confidence, label_thresholds, method.alpha, strict=strict)
    else:
        kept = chosen(values, labels, select_thresholds, strict=strict)
    rows = np.flatnonzero(kept)
    counts, of_all = np.bincount(labels[rows], minlength=classes), np.bincount(predicted, minlength=classes)
    return Selection(rows, labels[rows], label_thresholds, select_thresholds, counts, of_all, method, confidence)


def _at(name: str, labels: np.ndarray, arrays: dict[str, np.ndarray], at: Callable[..., Any] | None) -> np.ndarray:
    """How confident each sample is of these classes by that name."""
    if name in arrays:
        return arrays[name][np.arange(len(labels)), labels]
    if at is None:
        raise InputError(f"at must be a function that gives {name} at given classes, got None.")
    return np.asarray(at(name, labels))
