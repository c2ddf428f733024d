"""Labels that a network gives itself: one class per sample (CBST), or soft (CRST's LRENT), with MRKLD or without.

- **A class that nobody is predicted to** (threshold inf) counts as if its threshold were 1, as in the released codes.
- **CRST's rule for soft labels**, ``Σ −y log p + α Σ y log y < Σ −y log λ``, is ``Σ (p/λ)^(1/α) > 1`` at its own
  labels, and is computed so, in logarithms. What CBST would choose is chosen, and more.
- **MRKLD's weight is applied once**, as printed; the released code multiplies by it twice.

The (N, C) arrays may be memory-mapped: they are read some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hardsight.adaptation.thresholds import classes_of
from hardsight.errors import InputError

_BLOCK = 1 << 18  # numbers at a time: 2 MiB in float64, which stay in the cache


def pseudo_labels(confidence: Any, thresholds: Any = None) -> np.ndarray:
    """The class whose confidence is the largest multiple of its threshold, ``(N,)``; of equal ones the first.

    Args:
        confidence: ``(N, C)``, of 0 or more.
        thresholds: ``(C,)``; inf, a class without samples, counts as 1. None: the plain argmax.

    Examples:
        >>> pseudo_labels([[0.6, 0.4]], [0.9, 0.5])  # .67 and .8 of what is usual
        array([1])
    """
    return labeled(confidences(confidence), thresholds)[0]


def labeled(confidence: np.ndarray, thresholds: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Labels, see `pseudo_labels`, and the confidence of each, in one pass."""
    scale = None if thresholds is None else _positive(thresholds, confidence.shape[1])
    labels = np.empty(len(confidence), dtype=np.int64)
    values = np.empty(len(confidence), dtype=confidence.dtype)
    for part in blocks(confidence):
        block = read(confidence, part)
        labels[part] = (block if scale is None else block / scale).argmax(axis=1)
        values[part] = block[np.arange(len(block)), labels[part]]
    _some(values > 0)
    return labels, values


def lrent_labels(confidence: Any, thresholds: Any, alpha: float = 0.25) -> np.ndarray:
    """CRST's soft labels ``y ∝ (p/λ)^(1/α)``, ``(M, C)``; rows add up to 1.

    Args:
        confidence: ``(M, C)``, of 0 or more.
        thresholds: ``(C,)``; inf counts as 1.
        alpha: Above 0. At .25 they are sharper than p: a fourth power.

    Examples:
        >>> lrent_labels([[0.5, 0.5]], [0.5, 1.0]).round(4)  # 1 and 1/16
        array([[0.9412, 0.0588]])
    """
    powers, _ = _powers(confidences(confidence), thresholds, alpha)
    return powers / powers.sum(axis=1, keepdims=True)


def lrent_chosen(confidence: Any, thresholds: Any, alpha: float = 0.25, *, strict: bool = False) -> np.ndarray:
    """Which samples CRST chooses with soft labels, ``(N,)`` booleans: ``Σ (p/λ)^(1/α) >= 1``, or ``>``.

    Args:
        confidence: ``(N, C)``, of 0 or more.
        thresholds: ``(C,)``; inf counts as 1.
        alpha: Above 0.
        strict: ``>``, as printed.

    Examples:
        >>> lrent_chosen([[0.8, 0.2], [0.7, 0.3]], [0.8, 0.9])  # 1 + .002, .586 + .012
        array([ True, False])
    """
    confidence = confidences(confidence)
    kept = np.empty(len(confidence), dtype=bool)
    for part in blocks(confidence):
        powers, log_largest = _powers(confidence[part], thresholds, alpha)
        log_sum = log_largest + np.log(powers.sum(axis=1))
        kept[part] = log_sum > 0 if strict else log_sum >= 0
    return kept


def target_rows(labels: Any, classes: int, mrkld: float = 0.0) -> np.ndarray:
    """What the network is trained on, ``(M, C)`` float32, by the loss ``−Σ t_k log p_k``.

    MRKLD's term ``−(α/C) Σ log p_k`` has the same form: it adds α/C to every number of a row.

    Args:
        labels: ``(M,)`` classes, or ``(M, C)`` soft labels.
        classes: Number of classes, C.
        mrkld: MRKLD's weight, α.

    Examples:
        >>> target_rows([1], 2, mrkld=0.1)
        array([[0.05, 1.05]], dtype=float32)
    """
    rows = np.asarray(labels)
    if rows.ndim == 1:
        labels = classes_of(rows, classes)
        rows = np.zeros((len(labels), classes), dtype=np.float32)
        rows[np.arange(len(labels)), labels] = 1
    elif rows.ndim != 2 or rows.shape[1] != classes:
        raise InputError(f"labels must be (M,) classes or (M, {classes}) soft labels, got {rows.shape}.")
    return rows.astype(np.float32) + np.float32(mrkld / classes)


def _powers(confidence: np.ndarray, thresholds: Any, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """``(p/λ)^(1/α)`` over the largest of its row, and the logarithm of that: the powers themselves may overflow."""
    if not 0 < alpha < math.inf:
        raise InputError(f"alpha must be above 0, got {alpha}; CRST's is 0.25.")
    scale = _positive(thresholds, confidence.shape[1])
    with np.errstate(divide="ignore"):  # log 0 is −inf, which is right
        powers = np.log(read(confidence, slice(None)), dtype=np.float64)
    powers -= np.log(scale)
    powers /= alpha
    largest = powers.max(axis=1)
    _some(largest > -np.inf)
    powers -= largest[:, None]
    return np.exp(powers, out=powers), largest


def _some(found: np.ndarray) -> None:
    if not found.all():
        raise InputError(f"confidence must have a number above 0 in every row, got none in row {found.argmin():,}.")


def blocks(matrix: np.ndarray) -> Iterator[slice]:
    """Rows at a time that fit into the cache."""
    step = max(1, _BLOCK // matrix.shape[1])
    return (slice(start, start + step) for start in range(0, len(matrix), step))


def read(confidence: np.ndarray, part: slice) -> np.ndarray:
    """Some rows, checked."""
    block = confidence[part]
    if not (block.min(initial=0) >= 0 and block.max(initial=0) < np.inf):  # a NaN is neither
        row = int(np.argwhere(~((block >= 0) & (block < np.inf)))[0, 0])
        got = block[row][~((block[row] >= 0) & (block[row] < np.inf))][0]
        raise InputError(f"confidence must be of 0 or more, got {got} in row {(part.start or 0) + row:,}.")
    return block


def confidences(confidence: Any, name: str = "confidence") -> np.ndarray:
    """An ``(N, C)`` array, not copied; its values are checked when they are read."""
    matrix = np.asarray(confidence)
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise InputError(f"{name} must be (N, C), a row per sample and a column per class, got {matrix.shape}.")
    return matrix


def _positive(thresholds: Any, classes: int) -> np.ndarray:
    """Thresholds to divide by: that of a class without samples counts as 1."""
    scale = np.asarray(thresholds, dtype=np.float64)
    if scale.shape != (classes,) or not (scale > 0).all():
        raise InputError(f"thresholds must be ({classes},) and above 0, got {scale.shape}: {scale}.")
    return np.where(scale < np.inf, scale, 1.0)
