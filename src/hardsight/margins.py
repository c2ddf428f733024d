"""Margins and energies: by how much the right class wins, in logits and in angles, and how sharp its energy is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.answers import Answer, Point, point, row
from hardsight.hardness import check_labels, check_logits
from hardsight.intervals import mean_interval, share_interval
from hardsight.predictions import Predictions

# Rows read at a time, bars of a histogram, classes whose energies are kept one by one, and points of a long curve.
_ROWS, _BARS, _CLASSES, _CURVE = 4096, 50, 20, 100


def logit_margin(logits: Any, labels: Any, *, released: bool = False) -> np.ndarray:
    """Logit of the target minus the largest other logit, ``(N,)`` float64; negative where the target loses.

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)`` class indices.
        released: As the Encouraging Loss's released code has it: the target is masked with 0 instead of −∞, so the
            largest other logit counts as 0 where all are negative. For reproducing its Figures 1 and 6, nothing else.

    Examples:
        >>> logit_margin([[3.0, 1.0], [2.0, -1.0]], [0, 0]).tolist()
        [2.0, 3.0]
        >>> logit_margin([[3.0, 1.0], [2.0, -1.0]], [0, 0], released=True).tolist()
        [2.0, 2.0]
    """
    z, y = _checked(logits, labels)
    parts = []
    for block, at in zip(z.split(_ROWS), y.split(_ROWS), strict=True):
        target = block.gather(1, at)
        other = block.scatter(1, at, 0.0 if released else -torch.inf).amax(1, keepdim=True)
        parts.append((target.cpu().double() - other.cpu().double())[:, 0])
    return torch.cat(parts).numpy()


def energy_by_class(logits: Any, labels: Any) -> np.ndarray:
    """Mean conditional energy of every class over the samples of each, sorted: ``(C, C)`` float64.

    Row k belongs to the samples of class k: first the energy ``−z_k`` of their own class, then those of the other
    classes, ascending. A sharp energy is one whose first entry lies far below the rest. Rows of classes without samples
    are NaN.

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)`` class indices.

    Examples:
        >>> energy_by_class([[3.0, 1.0, 2.0], [5.0, 1.0, 2.0]], [0, 0])[0].tolist()
        [-4.0, -2.0, -1.0]
    """
    z, y = _checked(logits, labels)
    classes, y = z.shape[1], y[:, 0]
    total = torch.zeros(classes, classes, dtype=torch.float64, device=z.device)
    for block, at in zip(z.split(_ROWS), y.split(_ROWS), strict=True):
        total.index_add_(0, at, block.double())
    energy = -(total / y.bincount(minlength=classes)[:, None])  # 0 / 0 is NaN
    own = energy.diagonal().clone()
    energy.fill_diagonal_(-torch.inf)  # first
    energy = energy.sort(1).values
    energy[:, 0] = own
    return energy.cpu().numpy()


def _checked(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    z = check_logits(logits)
    return z, check_labels(labels, len(z), z.shape[1]).to(z.device)[:, None]


def margins_answer(predictions: Predictions, labels: Any) -> Answer:
    """Margins in logits and in angles, and energies, of a network on labelled data.

    Logit margins and energies grow with the scale of the logits, which a network may change without changing any
    answer; the angular margin does not.

    Args:
        predictions: With logits.
        labels: ``(N,)`` class indices, in the order of the predictions.

    Returns:
        Rows ``margin`` (mean) and ``margin_below_zero`` (share) for ``logit`` and ``angular``, and ``energy`` of the
        target (mean); curves ``margin`` (shares in bars of equal width) and ``energy`` (by rank, 0 is the class itself;
        the mean over all classes, and each one where there are few).
    """
    if predictions.logits is None:
        raise ValueError("predictions hold no logits; make them with predict(…, logits=True).")
    labels = check_labels(labels, len(predictions.rows), len(predictions.weight)).numpy()
    answer, n = Answer(), len(labels)
    kinds = {
        "logit": logit_margin(predictions.logits, labels),
        "angular": predictions.at("angular_margin", labels),
    }
    for score, margin in kinds.items():
        below = (margin < 0).astype(np.float64)
        ends = {"margin": mean_interval(margin), "margin_below_zero": share_interval(below.sum(), n)}
        for (metric, (low, high)), values in zip(ends.items(), (margin, below), strict=True):
            better = "higher" if metric == "margin" else "lower"
            answer.rows.append(
                row("margins", metric, values.mean(), score=score, low=low, high=high, n=n, better=better)
            )
            answer.samples[f"{metric}:{score}"] = values
        answer.points.extend(_bars(margin, score))
    energy = -predictions.logits[np.arange(n), labels].astype(np.float64)
    low, high = mean_interval(energy)
    answer.rows.append(row("margins", "energy", energy.mean(), score="target", low=low, high=high, n=n))
    answer.samples["energy:target"] = energy
    answer.points.extend(_energies(energy_by_class(predictions.logits, labels)))
    released = (logit_margin(predictions.logits, labels, released=True) < kinds["logit"]).mean()
    if released:
        answer.words.append(
            f"All other logits are negative in {released:.1%} of the samples: there the margin as the Encouraging "
            "Loss's released code computes it is too small, and the one given here is not."
        )
    return answer


def _bars(margin: np.ndarray, score: str) -> list[Point]:
    counts, edges = np.histogram(margin, _BARS)
    middle = (edges[1:] + edges[:-1]) / 2
    return [
        point("margins", "margin", x, count / len(margin), score=score, n=count)
        for x, count in zip(middle, counts, strict=True)
    ]


def _energies(energy: np.ndarray) -> list[Point]:
    known = np.flatnonzero(~np.isnan(energy[:, 0]))
    curves = {"mean over classes": energy[known].mean(0)}
    if len(energy) <= _CLASSES:
        curves |= {f"class {k}": energy[k] for k in known}
    ranks = np.unique(np.linspace(0, len(energy) - 1, _CURVE).round().astype(int))
    return [point("margins", "energy", r, values[r], score=name) for name, values in curves.items() for r in ranks]
