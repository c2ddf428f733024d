"""Which round to keep where the target has no labels: validators, and how well they picked where it has some.

Each is a function of the target's probabilities ``(N, C)`` and features ``(N, D)``; higher is better. None sees a
label, and none is right everywhere: information maximisation and the nuclear norm want classes of equal size, entropy
is content with a network that predicts one class, and so is neighbourhood density.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import entr

from hardsight.adaptation.pseudolabels import blocks, confidences, read
from hardsight.errors import InputError

_TEMPERATURE = 0.05  # of the neighbourhood density, as in its paper
_COMPARED = 4096  # samples that it compares with one another: all pairs of 55,388 would take a minute a round
_BLOCK = 256  # rows of their similarities at a time


def information_maximisation(probabilities: Any, features: Any = None) -> float:
    """Entropy of the mean prediction minus the mean entropy: sure of each, and not of one class for all.

    Examples:
        >>> round(information_maximisation(np.eye(4)), 4)  # log 4
        1.3863
    """
    count, total = len(probabilities), sum(block.sum(axis=0) for block in _rows(probabilities))
    return float(entr(total / count).sum()) + entropy(probabilities)


def entropy(probabilities: Any, features: Any = None) -> float:
    """Minus the mean entropy of the predictions, in nats.

    Examples:
        >>> round(entropy([[0.5, 0.5], [1.0, 0.0]]), 4)  # half of log 2
        -0.3466
    """
    return -float(sum(entr(block).sum() for block in _rows(probabilities)) / len(probabilities))


def nuclear_norm(probabilities: Any, features: Any = None) -> float:
    """Sum of the singular values of all predictions over the largest it can be: 1 is sure and of equal classes.

    Examples:
        >>> nuclear_norm(np.eye(4)), round(nuclear_norm([[1.0, 0.0], [1.0, 0.0]]), 4)
        (1.0, 0.7071)
    """
    products = sum(block.T @ block for block in _rows(probabilities))  # (C, C), however many samples there are
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(products), 0.0))
    count = len(probabilities)
    return float(values.sum() / math.sqrt(count * min(count, len(values))))


def snd(probabilities: Any, features: Any = None) -> float:
    """Soft neighbourhood density: mean entropy of the similarities of each prediction to all others.

    Examples:
        >>> round(snd(np.eye(2)[[0, 0, 0, 1, 1, 1]]), 4)  # two equal neighbours: log 2
        0.6931
    """
    return _density(probabilities)


def snd_features(probabilities: Any, features: Any) -> float:
    """Soft neighbourhood density of the features in place of the predictions."""
    return _density(features)


def _density(vectors: Any) -> float:
    """Of some thousand samples, spread over all: densities of fewer are lower, and so in every round alike."""
    vectors = confidences(vectors, "features")
    if len(vectors) < 2:
        raise InputError(f"neighbourhood density needs two samples or more, got {len(vectors)}.")
    compared = min(len(vectors), _COMPARED)
    x = vectors[np.arange(compared) * len(vectors) // compared].astype(np.float64)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    x, total = x.astype(np.float32), 0.0  # ample for a mean over thousands, and twice as fast
    for start in range(0, compared, _BLOCK):
        logits = x[start : start + _BLOCK] @ x.T / np.float32(_TEMPERATURE)
        own = np.arange(len(logits))
        logits[own, own + start] = -1e5  # nobody is a neighbour of itself; −inf would make 0 · inf
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        mass = weights.sum(axis=1)
        total += float((np.log(mass) - np.einsum("ij,ij->i", weights, logits) / mass).sum(dtype=np.float64))
    return total / compared


def _rows(probabilities: Any) -> Iterator[np.ndarray]:
    """Some rows at a time, float64."""
    p = confidences(probabilities, "probabilities")
    if not len(p):
        raise InputError("probabilities must have a row or more, got none: the target is empty.")
    return (read(p, part).astype(np.float64) for part in blocks(p))


@dataclass(frozen=True)
class Validator:
    """A way to judge a network on a target without labels.

    Attributes:
        name: Its name in `VALIDATORS` and of its column.
        function: Of probabilities ``(N, C)`` and features ``(N, D)``; higher is better.
        summary: What it is, in one line.
        reference: Where it comes from.
    """

    name: str
    function: Callable[[Any, Any], float]
    summary: str
    reference: str


_SND = "Saito et al., Tune it the Right Way, ICCV 2021"

VALIDATORS: dict[str, Validator] = {
    function.__name__: Validator(function.__name__, function, str(function.__doc__).splitlines()[0], reference)
    for function, reference in (
        (information_maximisation, "Shi and Sha, Learning of Discriminative Clusters, ICML 2012"),
        (snd, _SND),
        (snd_features, f"{_SND}; of features as in Musgrave et al., Three New Validators, 2022"),
        (nuclear_norm, "Cui et al., Batch Nuclear-norm Maximization, CVPR 2020"),
        (entropy, "Morerio et al., Minimal-Entropy Correlation Alignment, ICLR 2018"),
    )
}


def measure_of(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """By which accuracy rounds are compared: on the test where every round has it, or else on the target."""
    measures = ("test_accuracy", "target_accuracy")
    return next((name for name in measures if rounds and all(_known(row, name) for row in rounds)), None)


def picked(rounds: Sequence[Mapping[str, Any]], names: Iterable[str] = tuple(VALIDATORS)) -> list[dict[str, Any]]:
    """Which round each validator picks, and, where true labels are known, what that is worth.

    Args:
        rounds: A mapping a round: ``round``, the validators' values, and ``test_accuracy`` or ``target_accuracy``
            where there is one in every round; the first of the two counts.
        names: Validators.

    Returns:
        A row a validator: ``validator``, ``round`` (the first of equals; None where it has no value), ``measure``
        (which accuracy), ``accuracy`` in that round, ``behind_oracle``: how far the best round is above it, and
        ``ahead_of_last``: how far it is above the last.

    Examples:
        >>> rounds = [{"round": 0, "snd": 1.0, "test_accuracy": 0.5}, {"round": 1, "snd": 2.0, "test_accuracy": 0.75},
        ...           {"round": 2, "snd": 1.5, "test_accuracy": 1.0}]
        >>> picked(rounds, ["snd"])
        [{'validator': 'snd', 'round': 1, 'measure': 'test_accuracy', 'accuracy': 0.75, 'behind_oracle': 0.25,
          'ahead_of_last': -0.25}]
    """
    measure, rows = measure_of(rounds), []
    for name in names:
        best = max((row for row in rounds if _known(row, name)), key=lambda row: row[name], default=None)
        found = dict.fromkeys(("validator", "round", "measure", "accuracy", "behind_oracle", "ahead_of_last"))
        found |= {"validator": name, "round": None if best is None else best["round"], "measure": measure}
        if best is not None and measure is not None:
            accuracy, top = best[measure], max(row[measure] for row in rounds)
            found |= {"accuracy": accuracy, "behind_oracle": top - accuracy}
            found["ahead_of_last"] = accuracy - rounds[-1][measure]
        rows.append(found)
    return rows


def _known(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None and math.isfinite(row[name])
