"""Margins and energies: by how much the right class wins, in logits and in angles, and how sharp its energy is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.answers import Answer, Point, point, row
from hardsight.errors import InputError
from hardsight.predictions import Predictions
from hardsight.scores import check_labels, check_logits
from hardsight.stats import mean_interval, share_interval

# Numbers read at a time, bars of a histogram, classes whose energies are kept one by one, and points of a long curve.
_NUMBERS, _BARS, _CLASSES, _CURVE = 4_096_000, 50, 20, 100


# Whoever multiplies all logits by ten changes no answer, so a larger margin in logits is not a better one.
_BETTER = {"logit": "", "angular": "higher"}


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
    parts, rows = [], _rows(z)
    for block, at in zip(z.split(rows), y.split(rows), strict=True):
        target = block.gather(1, at[:, None])
        other = block.scatter(1, at[:, None], 0.0 if released else -torch.inf).amax(1, keepdim=True)
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
    energy = np.full((z.shape[1], z.shape[1]), np.nan)
    for classes, found in _by_class(z, y):
        energy[classes] = found
    return energy


def _by_class(z: Tensor, y: Tensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of `energy_by_class`, some classes that have samples at a time: all of very many would fill the memory."""
    rows, order = _rows(z), y.argsort(stable=True)
    known, counts = y.unique(return_counts=True)
    members = order.split([int(part.sum()) for part in counts.split(rows)])
    for classes, n, of in zip(known.split(rows), counts.split(rows), members, strict=True):
        energy = torch.zeros(len(classes), z.shape[1], dtype=torch.float64, device=z.device)
        for part in of.split(rows):
            energy.index_add_(0, torch.searchsorted(classes, y[part]), z[part].double())
        energy /= -n[:, None]
        own = energy.gather(1, classes[:, None])
        energy.scatter_(1, classes[:, None], -torch.inf)  # first
        energy = energy.sort(1).values
        energy[:, :1] = own
        yield classes.cpu().numpy(), energy.cpu().numpy()


def _rows(z: Tensor) -> int:
    return max(1, _NUMBERS // z.shape[1])


def _checked(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    z = check_logits(logits)
    return z, check_labels(labels, len(z), z.shape[1]).to(z.device)


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
        raise InputError("predictions hold no logits; make them with predict(…, logits=True).")
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
            better = "lower" if metric == "margin_below_zero" else _BETTER[score]
            answer.rows.append(
                row("margins", metric, values.mean(), score=score, low=low, high=high, n=n, better=better)
            )
            answer.samples[f"{metric}:{score}"] = values
        answer.points.extend(_bars(margin, score))
    energy = -predictions.logits[np.arange(n), labels].astype(np.float64)
    low, high = mean_interval(energy)
    answer.rows.append(row("margins", "energy", energy.mean(), score="target", low=low, high=high, n=n))
    answer.samples["energy:target"] = energy
    answer.points.extend(_energies(*_checked(predictions.logits, labels)))
    released = (logit_margin(predictions.logits, labels, released=True) < kinds["logit"]).mean()
    if released:
        answer.note(
            "released margin",
            f"All other logits are negative in {released:.1%} of the samples: there the margin as the Encouraging "
            "Loss's released code computes it is too small, and the one given here is not.",
        )
    return answer


def _bars(margin: np.ndarray, score: str) -> list[Point]:
    counts, edges = np.histogram(margin, _BARS)
    middle = (edges[1:] + edges[:-1]) / 2
    return [
        point("margins", "margin", x, count / len(margin), score=score, n=count)
        for x, count in zip(middle, counts, strict=True)
    ]


def _energies(z: Tensor, y: Tensor) -> list[Point]:
    total, count, curves = np.zeros(z.shape[1]), 0, {}
    for classes, energy in _by_class(z, y):
        total, count = total + energy.sum(0), count + len(classes)
        if z.shape[1] <= _CLASSES:
            curves |= {f"class {k}": values for k, values in zip(classes, energy, strict=True)}
    curves = {"mean over classes": total / count} | curves
    ranks = np.unique(np.linspace(0, z.shape[1] - 1, _CURVE).round().astype(int))
    return [point("margins", "energy", r, values[r], score=name) for name, values in curves.items() for r in ranks]
