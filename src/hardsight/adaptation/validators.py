"""Label-free validators: which round to keep where the target has no labels.

Each is a function of the target's probabilities ``(N, C)`` and features ``(N, D)``; higher is better. None of them is
right everywhere: information maximization and the nuclear norm expect classes of equal size; entropy and neighborhood
density are content with a network that predicts a single class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import entr

from hardsight.adaptation.selection import as_matrix, blocks
from hardsight.errors import InputError
from hardsight.registry import Registry

_TEMPERATURE = 0.05  # of the neighborhood density, as in its paper
_COMPARED = 4096  # samples to compare with one another: all pairs of 55,388 would take a minute per round
_BLOCK = 256  # rows of their similarities at a time

VALIDATORS: Registry[Callable[..., float]] = Registry("validator")


@VALIDATORS.register()
def information_maximisation(probabilities: Any, features: Any = None) -> float:
    """Entropy of the mean prediction minus the mean entropy: confident, but not of one class (Shi and Sha 2012)."""
    total = sum(block.sum(axis=0) for block in _rows(probabilities))
    return float(entr(total / len(probabilities)).sum()) + entropy(probabilities)


@VALIDATORS.register()
def snd(probabilities: Any, features: Any = None) -> float:
    """Soft neighborhood density: entropy of the similarities of each prediction to all others (Saito et al. 2021)."""
    return _density(probabilities)


@VALIDATORS.register()
def snd_features(probabilities: Any, features: Any) -> float:
    """Soft neighborhood density of the features instead of the predictions (Musgrave et al. 2022)."""
    return _density(features)


@VALIDATORS.register()
def nuclear_norm(probabilities: Any, features: Any = None) -> float:
    """Sum of the singular values of all predictions over its maximum, which is 1 (Cui et al. 2020)."""
    products = sum(block.T @ block for block in _rows(probabilities))  # (C, C), however many samples there are
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(products), 0.0))
    return float(values.sum() / math.sqrt(len(probabilities) * min(len(probabilities), len(values))))


@VALIDATORS.register()
def entropy(probabilities: Any, features: Any = None) -> float:
    """Minus the mean entropy of the predictions, in nats (Morerio et al. 2018)."""
    return -float(sum(entr(block).sum() for block in _rows(probabilities)) / len(probabilities))


def _rows(probabilities: Any) -> Iterator[np.ndarray]:
    matrix = as_matrix(probabilities, "probabilities")
    if not len(matrix):
        raise InputError("probabilities must have at least one row, got none: the target is empty.")
    return (block.astype(np.float64) for _, block in blocks(matrix))


def _density(vectors: Any) -> float:
    """The density of some thousand samples spread over all; fewer samples have a lower one, but so in every round."""
    vectors = as_matrix(vectors, "features")
    if len(vectors) < 2:
        raise InputError(f"neighborhood density needs at least two samples, got {len(vectors)}.")
    count = min(len(vectors), _COMPARED)
    x = vectors[np.arange(count) * len(vectors) // count].astype(np.float64)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    x, total = x.astype(np.float32), 0.0  # ample for a mean over thousands, and twice as fast
    for start in range(0, count, _BLOCK):
        logits = x[start : start + _BLOCK] @ x.T / np.float32(_TEMPERATURE)
        diagonal = np.arange(len(logits))
        logits[diagonal, diagonal + start] = -1e5  # no sample is its own neighbor; −inf would make 0 · inf
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        mass = weights.sum(axis=1)
        total += float((np.log(mass) - np.einsum("ij,ij->i", weights, logits) / mass).sum(dtype=np.float64))
    return total / count


def measure_of(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """The accuracy that rounds are compared by: on the test set if every round has it, else on the target."""
    measures = ("test_accuracy", "target_accuracy")
    return next((name for name in measures if rounds and all(_is_number(row.get(name)) for row in rounds)), None)


def picked(rounds: Sequence[Mapping[str, Any]], names: Iterable[str] = tuple(VALIDATORS)) -> list[dict[str, Any]]:
    """Which round each validator picks and, where true labels are known, how good it is.

    Each of the `rounds` has ``round``, the validators' values, and perhaps ``test_accuracy`` or ``target_accuracy``.
    There is one row per validator: ``validator``, ``round`` (the first in a tie; None without values), ``measure``,
    ``accuracy`` of that round, ``behind_oracle`` (how far the best round is above it) and ``ahead_of_last``.
    """
    measure, rows = measure_of(rounds), []
    for name in names:
        row = dict.fromkeys(("validator", "round", "measure", "accuracy", "behind_oracle", "ahead_of_last"))
        row |= {"validator": name, "measure": measure}
        if rated := [other for other in rounds if _is_number(other.get(name))]:
            best = max(rated, key=lambda other: other[name])
            row["round"] = best["round"]
            if measure is not None:
                row["accuracy"] = best[measure]
                row["behind_oracle"] = max(other[measure] for other in rounds) - best[measure]
                row["ahead_of_last"] = best[measure] - rounds[-1][measure]
        rows.append(row)
    return rows


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
