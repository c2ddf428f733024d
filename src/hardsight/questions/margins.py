"""Margins and energies: by how much the right class wins, in logits and in angles, and how sharp its energy is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.printing import percent
from hardsight.questions.answers import Answer
from hardsight.questions.subject import QUESTIONS, CurveKind, Metric, Subject
from hardsight.scores import check_labels, check_logits

# Numbers read at a time, bars of a histogram, classes whose energies are kept one by one, and points of a long curve.
_NUMBERS, _BARS, _CLASSES, _CURVE = 4_096_000, 50, 20, 100


def logit_margin(logits: Any, labels: Any, *, released: bool = False) -> np.ndarray:
    """Logit of the target minus the largest other logit, ``(N,)`` float64; negative where the target loses.

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)`` class indices.
        released: Follow the Encouraging Loss's released code: the target is masked with 0 instead of −∞, so the
            largest other logit counts as 0 where all are negative. Only for reproducing its Figures 1 and 6.

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
    """Mean conditional energy of every class over the samples of each class, sorted: ``(C, C)`` float64.

    Row k belongs to the samples of class k: first the energy ``−z_k`` of that class, then those of the others,
    ascending; NaN without samples. A sharp energy is one whose first entry lies far below the rest.

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)`` class indices.

    Examples:
        >>> energy_by_class([[3.0, 1.0, 2.0], [5.0, 1.0, 2.0]], [0, 0])[0].tolist()
        [-4.0, -2.0, -1.0]
    """
    z, y = _checked(logits, labels)
    energy = np.full((z.shape[1], z.shape[1]), np.nan)
    for classes, of_classes in _by_class(z, y):
        energy[classes] = of_classes
    return energy


def _by_class(z: Tensor, y: Tensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of `energy_by_class`, a few non-empty classes at a time: with very many, all would fill the memory."""
    rows, order = _rows(z), y.argsort(stable=True)
    present, counts = y.unique(return_counts=True)
    members = order.split([int(part.sum()) for part in counts.split(rows)])
    for classes, n, of in zip(present.split(rows), counts.split(rows), members, strict=True):
        energy = torch.zeros(len(classes), z.shape[1], dtype=torch.float64, device=z.device)
        for part in of.split(rows):
            energy.index_add_(0, torch.searchsorted(classes, y[part]), z[part].double())
        energy /= -n[:, None]
        target = energy.gather(1, classes[:, None])
        energy = energy.scatter_(1, classes[:, None], -torch.inf).sort(1).values  # the class itself first
        energy[:, :1] = target
        yield classes.cpu().numpy(), energy.cpu().numpy()


def _rows(z: Tensor) -> int:
    return max(1, _NUMBERS // z.shape[1])


def _checked(logits: Any, labels: Any) -> tuple[Tensor, Tensor]:
    z = check_logits(logits)
    return z, check_labels(labels, len(z), z.shape[1]).to(z.device)


@QUESTIONS.register(
    "margins",
    title="Margins and energy",
    about="By how much the correct class beats the best other class; below 0 the prediction is wrong.",
    telling=(("margin", "angular"), ("margin_below_zero", "logit")),
    headline=(("margin", "angular"),),
    metrics={
        "margin": Metric(
            "mean margin", "", ("with {group} the correct class wins by {how} than with {baseline}", "more", "less")
        ),
        "margin_below_zero": Metric(
            "share with a margin below 0", "%",
            ("with {group} the correct class loses {how} often than with {baseline}", "less", "more"),
        ),
        "energy": Metric("mean energy"),
    },
    curves={
        "margin": CurveKind(
            "Margins", "margin", "density", least=0, shape="bars",
            note="Left of 0 the prediction is wrong. Logit margins grow with the scale of the logits, angular ones do "
            "not.",
        ),
        "energy": CurveKind(
            "Energy by rank", "rank of the class", "mean energy (−logit)",
            note="Rank 0 is the class itself, the others follow by their mean energy: the steeper, the sharper.",
        ),
    },
)  # fmt: skip
def ask(subject: Subject) -> Answer:
    """Margins in logits and in angles, and energies: rows, histograms, and energy by rank of the class.

    Logit margins and energies grow with the scale of the logits, which a network may change without changing any
    prediction, so a larger one is not better; the angular margin does not.
    """
    answer, (z, y) = Answer(question="margins"), _checked(subject.predictions.logits, subject.labels)
    margins, angular = logit_margin(z, y), subject.predictions.at("angular_margin", subject.labels)
    for score, margin, better in (("logit", margins, ""), ("angular", angular, "higher")):
        answer.mean("margin", margin, score=score, better=better)
        answer.mean("margin_below_zero", margin < 0, score=score, better="lower")
        answer.histogram("margin", margin, _BARS, score=score)
    answer.mean("energy", -z.gather(1, y[:, None])[:, 0].double().cpu().numpy(), score="target")
    total, count, curves = np.zeros(z.shape[1]), 0, {}
    for classes, energy in _by_class(z, y):
        total, count = total + energy.sum(0), count + len(classes)
        if z.shape[1] <= _CLASSES:
            curves |= {f"class {k}": values for k, values in zip(classes, energy, strict=True)}
    ranks = np.unique(np.linspace(0, z.shape[1] - 1, _CURVE).round().astype(int))
    for name, values in ({"mean over classes": total / count} | curves).items():
        answer.curve("energy", ranks, values[ranks], score=name)
    if released := (logit_margin(z, y, released=True) < margins).mean():
        answer.note(
            "released margin",
            f"All other logits are negative in {percent(released)} of the samples: there the Encouraging Loss's "
            "released code computes too small a margin, unlike the one given here.",
        )
    return answer
