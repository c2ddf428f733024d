"""The threshold of each class, and which samples reach it.

Where papers and released code differ, this was chosen:

- **Reaching the threshold is enough** (``>=``, as in CRST's code), which keeps the ranked sample and all that tie with
  it: where the softmax is saturated, many samples at exactly 1, more than the portion is chosen. ``strict`` (``>``) is
  what the papers print, and chooses none of those.
- **The portion of a class is rounded down, but is one sample at least.** In the released codes a class with too few
  samples gets none (a threshold of 1), or by an index of −0 all of them.
- **A class that nobody is predicted to** has the threshold inf, which nothing reaches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hardsight.errors import InputError


def class_thresholds(
    values: Any, predicted: Any, classes: int, portion: float, *, balance: str | np.ndarray = "class"
) -> np.ndarray:
    """The value ranked at a portion among the samples predicted to each class, ``(C,)`` float64.

    Args:
        values: ``(N,)`` how confident each sample is; higher is more.
        predicted: ``(N,)`` the class that each is predicted to.
        classes: Number of classes, C.
        portion: In (0, 1].
        balance: ``"class"``: the portion of each class, rounded down, one sample at least. ``"global"``: of all samples
            together, so that classes the network is sure of get most. ``(C,)`` shares of the classes that add up to 1:
            so many of each that the chosen have these shares, as far as there are samples.

    Returns:
        inf for a class that gets no sample.

    Examples:
        >>> class_thresholds([0.9, 0.8, 0.7, 0.6, 0.5], [0, 0, 0, 0, 1], 3, 0.5)
        array([0.8, 0.5, inf])
        >>> class_thresholds([0.9, 0.8, 0.7, 0.6, 0.5], [0, 0, 0, 0, 1], 3, 0.5, balance="global")
        array([0.8, 0.8, inf])
    """
    values, predicted = _judged(values, predicted, classes)
    if not len(values):
        raise InputError("values must hold a sample or more, got none: the target is empty.")
    if not 0 < portion <= 1:
        raise InputError(f"portion must lie in (0, 1], got {portion}; 0.2 chooses every fifth sample.")
    counts, shares = np.bincount(predicted, minlength=classes), check_balance(balance, classes)
    if not isinstance(shares, str):
        ranks = np.minimum(down(portion * len(values) * shares), counts)
    elif shares == "class":
        ranks = np.maximum(down(portion * counts), counts > 0)
    else:
        nth = len(values) - max(1, int(down(portion * len(values))))
        return np.where(counts > 0, np.partition(values, nth)[nth].astype(np.float64), np.inf)
    # One stable sort by class (a radix sort up to 65,536 of them) beats a mask a class.
    grouped = values[np.argsort(predicted.astype(np.min_scalar_type(classes)), kind="stable")]
    thresholds, ends = np.full(classes, np.inf), counts.cumsum()
    for k in np.flatnonzero(ranks):
        group, nth = grouped[ends[k] - counts[k] : ends[k]], counts[k] - int(ranks[k])
        group.partition(nth)
        thresholds[k] = group[nth]
    return thresholds


def chosen(values: Any, labels: Any, thresholds: Any, *, strict: bool = False) -> np.ndarray:
    """Which samples reach the threshold of their label, ``(N,)`` booleans.

    Args:
        values: ``(N,)``, each sample's at its label.
        labels: ``(N,)``.
        thresholds: ``(C,)``; nothing reaches inf.
        strict: Only what lies above it, as the papers print.

    Examples:
        >>> chosen([0.9, 0.8, 0.7], [0, 0, 1], [0.8, 0.9])
        array([ True,  True, False])
    """
    thresholds = np.asarray(thresholds, dtype=np.float64)
    values, labels = _judged(values, labels, len(thresholds))
    return values > thresholds[labels] if strict else values >= thresholds[labels]


def _judged(values: Any, labels: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and classes of as many samples, checked."""
    values, labels = np.asarray(values), classes_of(labels, classes)
    if values.shape != labels.shape:
        raise InputError(f"values and classes must be (N,) both, got {values.shape} and {labels.shape}.")
    if not (finite := np.isfinite(values)).all():
        raise InputError(f"values must be finite, got {values[~finite][0]} in row {np.argmin(finite):,}.")
    return values, labels


def classes_of(labels: Any, classes: int) -> np.ndarray:
    """``(N,)`` class numbers, checked."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
        raise InputError(f"labels must be (N,) whole numbers, got {labels.shape} of {labels.dtype}.")
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise InputError(f"labels must be 0 to {classes - 1}, got {labels.min()} to {labels.max()}.")
    return labels.astype(np.int64, copy=False)


def check_balance(balance: Any, classes: int) -> str | np.ndarray:
    """A balance as `class_thresholds` takes it, shares as float64."""
    if isinstance(balance, str):
        if balance not in ("class", "global"):
            raise InputError(f"balance must be class, global, or {classes} shares of the classes, got {balance!r}.")
        return balance
    shares = np.asarray(balance, dtype=np.float64)
    if shares.shape != (classes,) or not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise InputError(
            f"balance must be {classes} shares of 0 or more that add up to 1, got {shares.size} that add up to "
            f"{shares.sum():g}; divide them by their sum."
        )
    return shares


def down(amount: Any) -> np.ndarray:
    """Rounded down, as if it had been multiplied exactly: .29 of 100 are 29, not 28.999999999999996."""
    return np.floor(np.round(amount, 6)).astype(np.int64)
