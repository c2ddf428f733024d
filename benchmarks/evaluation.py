"""What the questions of `hardsight evaluate` cost: OOD, calibration and margins of 50,000 × 1,000 logits, and maps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Case, Comparison
from hardsight.networks import build_network
from hardsight.predictions import Predictions
from hardsight.questions import (
    QUESTIONS,
    OODData,
    cam,
    classwise_ece,
    detection,
    ece,
    energy_by_class,
    fit_temperature,
    logit_margin,
    ood_scores,
)

SAMPLES, CLASSES, WIDTH, MAPS = 50_000, 1000, 512, 10_000
LIMIT, MAPS_LIMIT = 5, 60  # seconds, on 2 cores and on a GPU


def _arrays(logits: torch.Tensor, labels: torch.Tensor) -> None:
    """All measures from logits alone; the first half of the samples is the inside, and fits the temperature."""
    half = len(logits) // 2
    for scores in ood_scores(logits).values():
        detection(scores[:half], scores[half:])
    temperature = fit_temperature(logits[:half], labels[:half])
    p = (logits / temperature).softmax(1)
    confidence, predicted = p.max(1)
    for binning in ("width", "mass"):
        ece(confidence, predicted == labels, binning=binning)
    classwise_ece(p, labels)
    logit_margin(logits, labels), energy_by_class(logits, labels)


def _theirs(logits: torch.Tensor, labels: torch.Tensor) -> None:
    """Less than that with other libraries: no temperature, no class-wise and no adaptive error, no energies."""
    from pytorch_ood.detector import EnergyBased, MaxLogit, MaxSoftmax
    from pytorch_ood.metrics import OODMetrics
    from sklearn.metrics import log_loss
    from torchmetrics.functional.classification import multiclass_calibration_error

    outside = torch.where(torch.arange(len(logits)) < len(logits) // 2, 0, -1)
    for detector in (MaxLogit, EnergyBased, MaxSoftmax):
        OODMetrics().update(detector.score(logits), outside).compute()
    p = logits.softmax(1)
    multiclass_calibration_error(p, labels, logits.shape[1], 15)
    log_loss(labels.numpy(), p.numpy(), labels=np.arange(logits.shape[1]))


def _predictions(features: torch.Tensor, weight: torch.Tensor, logits: torch.Tensor) -> Predictions:
    from hardsight.angles import angle_matrix

    left = torch.pi - angle_matrix(features, weight)
    arrays = [t.numpy() for t in (logits.softmax(1), left / left.sum(1, keepdim=True), features, features.norm(dim=1))]
    rows = np.arange(len(features))
    return Predictions([str(i) for i in rows], rows, *arrays, weight.numpy(), None, logits=logits.numpy())


def evaluation() -> Iterator[Comparison]:
    """Measures of 50,000 × 1,000 logits from arrays and as whole answers; with a GPU, maps of 10,000 images."""
    torch.manual_seed(0)
    weight = torch.randn(CLASSES, WIDTH) / WIDTH**0.5
    labels = torch.randint(0, CLASSES, (SAMPLES,))
    features = 10 * weight[labels] + 2 * torch.randn(SAMPLES, WIDTH)
    logits = features @ weight.T
    predictions = _predictions(features, weight, logits)
    facts = {"predictions": predictions, "labels": labels, "network": SimpleNamespace(transform=None)}
    subject: Any = SimpleNamespace(**facts, predict=lambda data: predictions)
    itself: Any = OODData("itself", None, None)

    def answers() -> None:
        QUESTIONS["ood"].ask(subject, ood=itself)
        QUESTIONS["calibration"].ask(subject)
        QUESTIONS["margins"].ask(subject)

    theirs = "pytorch-ood, torchmetrics, sklearn"
    yield Comparison(
        [
            Case(theirs, partial(_theirs, logits, labels)),
            Case("OOD, calibration, margins", partial(_arrays, logits, labels), limit=LIMIT),
            Case("the same as answers, with angles", answers, theirs),
        ],
        rounds=3,
    )
    if torch.cuda.is_available():
        network, images = build_network("resnet18-32", 10).cuda().eval(), torch.rand(MAPS, 3, 32, 32)
        maps = Case(
            f"CAM of {MAPS:,} images",
            lambda: [cam(network, part.cuda()).cpu() for part in images.split(500)],
            limit=MAPS_LIMIT,
        )
        yield Comparison([maps], rounds=3, device="cuda")
