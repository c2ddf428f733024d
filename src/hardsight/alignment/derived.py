"""Columns made of what a model says, none of them from people: within classes, over epochs, networks and views.

`hardsight.alignment.candidates` makes those that a run allows; `leaderboard` ranks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import optimize, special
from torch import Tensor, nn

from hardsight.comparison import mid_ranks
from hardsight.extras import printable
from hardsight.hardness import SCORES
from hardsight.hardness.scores import compute_scores
from hardsight.heads import capture

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

RECORDED = ("avh", "angle", "confidence", "nll", "soft_margin", "margin", "norm", "el2n")


def as_column(values: Any, name: str) -> np.ndarray:
    """One number a sample, as float64."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{printable(name)} must be numbers, got something else ({error}).") from error
    if found.ndim != 1:
        raise ValueError(f"{printable(name)} must be one number a sample, got shape {found.shape}.")
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


def soft_margin(nll: Any) -> np.ndarray:
    """``logsumexp of the other logits − logit of the label``: confidence and nll before they saturate.

    In one network it ranks samples as they do, but its values keep differences where confidence is 1 for all: it is
    what to average over epochs, networks and views.

    Args:
        nll: ``(N,)`` negative log-likelihoods of the label.

    Examples:
        >>> soft_margin([np.log(2.0), np.log(1 + np.exp(3.0))]).round(6).tolist()
        [0.0, 3.0]
    """
    nll = np.maximum(as_column(nll, "nll"), np.finfo(np.float64).tiny)
    return nll + np.log(-np.expm1(-nll))


def mean_rank(columns: Mapping[str, Any], directions: Mapping[str, int]) -> np.ndarray:
    """Several columns as one: the mean of their ranks, each scaled to (0, 1) with 1 the hardest.

    Args:
        columns: ``(N,)`` each.
        directions: +1 for a column that falls with hardness (confidence), −1 for one that grows with it (AVH).

    Examples:
        >>> mean_rank({"avh": [0.1, 0.3], "confidence": [0.9, 0.2]}, {"avh": -1, "confidence": 1}).tolist()
        [0.25, 0.75]
    """
    if not columns or any(name not in directions for name in columns):
        raise ValueError(
            f"columns must be one or more, each with a direction; got {list(columns)}, {dict(directions)}."
        )
    ranks = [mid_ranks(-directions[name] * as_column(values, name)) for name, values in columns.items()]
    if len(lengths := {len(column) for column in ranks}) > 1:
        raise ValueError(f"columns must be of one length, got {' and '.join(map(str, sorted(lengths)))}.")
    return np.mean(ranks, axis=0)


def epoch_means(dynamics: Dynamics, scores: Sequence[str] = RECORDED) -> dict[str, np.ndarray]:
    """Each score averaged over all epochs (``avh_epochs``) and over their first third (``avh_early``).

    Args:
        dynamics: The recorded run; the order is that of its `ids`. An epoch that did not see a sample does not count.
        scores: Columns of its records.
    """
    early = -(-len(dynamics.epochs) // 3)
    found = {}
    for name in scores:
        values = dynamics.matrix(name)
        for ending, part in (("epochs", values), ("early", values[:, :early])):
            seen = np.isfinite(part)
            total = np.where(seen, part, 0.0).sum(1)
            found[f"{name}_{ending}"] = np.divide(total, seen.sum(1), out=np.full(len(part), np.nan), where=seen.any(1))
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
        raise ValueError(f"probabilities must be (members, samples, classes), got shape {p.shape}.")
    if (p < 0).any() or (np.abs(p.sum(2) - 1) > 1e-3).any():
        raise ValueError("probabilities must be 0 or more and sum to 1 over the classes; apply a softmax first.")
    total, aleatoric = special.entr(p.mean(0)).sum(1), special.entr(p).sum(2).mean(0)
    return {"total": total, "aleatoric": aleatoric, "epistemic": np.maximum(total - aleatoric, 0.0)}


@torch.no_grad()
def over_views(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    views: Iterable[Callable[[Tensor], Tensor]],
    scores: Sequence[str] = tuple(SCORES),
    batch: int = 1000,
) -> dict[str, np.ndarray]:
    """Each score averaged over changed pictures (``avh_views``): hard is what changes make hard.

    Args:
        network: The classifier, in eval mode.
        images: ``(N, C, H, W)`` as the network takes them, on its device.
        labels: ``(N,)`` class indices, there too.
        views: Functions of a batch of images: mirrored, shifted, degraded, or as they are.
        scores: Names of registered scores.
        batch: Images at a time.
    """
    found = []
    for view in views:
        parts = []
        for x, y in zip(images.split(batch), labels.split(batch), strict=True):
            with capture(network) as head:
                network(view(x))
            parts.append(compute_scores(head.features, head.weight, y, head.bias, scores))
        found.append({name: torch.cat([p[name] for p in parts]).cpu().numpy() for name in parts[0] if name != "pred"})
    if not found:
        raise ValueError("views must hold one function or more, got none.")
    return {f"{name}_views": np.mean([one[name] for one in found], axis=0) for name in found[0]}


def _same_length(labels: Any, values: np.ndarray) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != values.shape[:1]:
        raise ValueError(f"labels must be one class a sample ({len(values):,}), got shape {labels.shape}.")
    return labels


def _logits(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    logits = np.asarray(logits, dtype=np.float64)
    if logits.ndim != 2 or not np.isfinite(logits).all():
        raise ValueError(f"logits must be finite numbers (samples, classes), got shape {logits.shape}.")
    labels = _same_length(labels, logits).astype(np.int64)
    if len(labels) and not 0 <= labels.min() <= labels.max() < logits.shape[1]:
        raise ValueError(f"labels must be class indices below {logits.shape[1]}, got {labels.min()}…{labels.max()}.")
    return logits, labels
