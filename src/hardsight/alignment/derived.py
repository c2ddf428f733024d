"""Columns made of what a model says, none of them from people: within classes, over epochs and networks.

`hardsight.alignment.candidates` makes those that a run allows; `leaderboard` ranks them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize, special

from hardsight.comparison import mid_ranks
from hardsight.errors import InputError
from hardsight.extras import printable


def as_column(values: Any, name: str) -> np.ndarray:
    """One number per sample, as float64."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{printable(name)} must be numbers, got something else ({error}).") from error
    if found.ndim != 1:
        raise InputError(f"{printable(name)} must be one number per sample, got shape {found.shape}.")
    return found


def within_class(values: Any, labels: Any) -> np.ndarray:
    """A score's ranks within the class, scaled to (0, 1): what offsets between classes add to it is gone.

    Args:
        values: ``(N,)`` of any score; NaN stays NaN.
        labels: ``(N,)`` class indices.

    Examples:
        >>> within_class([1.0, 3.0, 70.0, 50.0], [0, 0, 1, 1]).tolist()
        [0.25, 0.75, 0.75, 0.25]
    """
    values = as_column(values, "values")
    labels = _same_length(labels, values)
    found = np.full(len(values), np.nan)
    for label in np.unique(labels):
        rows = labels == label
        found[rows] = mid_ranks(values[rows])
    return found


def fitted_temperature(logits: Any, labels: Any) -> float:
    """The temperature between .01 and 100 at which the labels are likeliest, ``softmax(logits / T)``.

    Args:
        logits: ``(N, C)``; log-probabilities do as well, they differ by a constant in each row.
        labels: ``(N,)`` class indices: those of the data, never what people said.

    Examples:
        >>> round(fitted_temperature([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]], [0, 0, 0, 1]), 3)  # 4 / log 3
        3.641
    """
    logits, labels = _logits(logits, labels)
    own = np.take_along_axis(logits, labels[:, None], 1)[:, 0]

    def loss(log_temperature: float) -> float:
        scale = np.exp(-log_temperature)
        return float((special.logsumexp(scale * logits, axis=1) - scale * own).mean())

    return float(np.exp(optimize.minimize_scalar(loss, bounds=np.log((0.01, 100.0)), method="bounded").x))


def temperature_confidence(logits: Any, labels: Any, temperature: float | None = None) -> np.ndarray:
    """Confidence at the label after temperature scaling.

    Args:
        logits: ``(N, C)``, or log-probabilities.
        labels: ``(N,)`` class indices.
        temperature: By which logits are divided; fitted to these labels if None.

    Examples:
        >>> temperature_confidence([[2.0, 0.0]], [0], temperature=2.0).round(4).tolist()
        [0.7311]
    """
    logits, labels = _logits(logits, labels)
    scale = 1 / (fitted_temperature(logits, labels) if temperature is None else temperature)
    return np.take_along_axis(special.softmax(scale * logits, axis=1), labels[:, None], 1)[:, 0]


def uncertainty(probabilities: Any) -> dict[str, np.ndarray]:
    """What an ensemble (networks, or passes with dropout) does not know, in nats.

    ``total`` is the entropy of the mean prediction, ``aleatoric`` the mean entropy of the members: what none of them
    can tell. ``epistemic`` is the rest, the mutual information of prediction and member: what they disagree about.

    Args:
        probabilities: ``(members, N, C)``.

    Examples:
        >>> {k: v.round(3).tolist() for k, v in uncertainty([[[1.0, 0.0]], [[0.0, 1.0]]]).items()}
        {'total': [0.693], 'aleatoric': [0.0], 'epistemic': [0.693]}
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 3 or not len(p):
        raise InputError(f"probabilities must be (members, samples, classes), got shape {p.shape}.")
    if (p < 0).any() or (np.abs(p.sum(2) - 1) > 1e-3).any():
        raise InputError("probabilities must be 0 or more and sum to 1 over the classes; apply a softmax first.")
    total, aleatoric = special.entr(p.mean(0)).sum(1), special.entr(p).sum(2).mean(0)
    return {"total": total, "aleatoric": aleatoric, "epistemic": np.maximum(total - aleatoric, 0.0)}


def _same_length(labels: Any, values: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != values.shape[:1]:
        raise InputError(f"labels must be one class per sample ({len(values):,}), got shape {labels.shape}.")
    return labels


def _logits(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    logits = np.asarray(logits, dtype=np.float64)
    if logits.ndim != 2 or not np.isfinite(logits).all():
        raise InputError(f"logits must be finite numbers (samples, classes), got shape {logits.shape}.")
    labels = _same_length(labels, logits).astype(np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
        raise InputError(f"labels must be class indices below {logits.shape[1]}, got {labels.min()}…{labels.max()}.")
    return logits, labels
