"""pytorch-ood: hardsight's scores as its detectors, and its detectors evaluated on hardsight's data.

There, higher is more out-of-distribution; in `hardsight.ood`, higher is more in-distribution. The sign changes here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.data import Samples, Source, View, all_labels, as_pixels
from hardsight.devices import evaluating, find_device
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.heads import capture, find_head, logits_of, uncompiled
from hardsight.models import Model, as_model, input_channels
from hardsight.ood import DETECTORS, Detection, detection, ood_scores
from hardsight.predictions import predict

api = need("pytorch_ood.api")


class HeadDetector(api.FeaturesDetector):
    """A score of `hardsight.ood.DETECTORS` as a detector of pytorch-ood; see `as_detector`."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        (self.name,), self.model = DETECTORS.names(name), model
        find_head(model)  # an error now rather than at the first batch

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores ``(N,)`` of inputs, with the network in its current mode (use eval mode)."""
        network = uncompiled(self.model)
        with capture(network) as head:
            logits = logits_of(network, x.to(self.device))
            return self._scores(logits, head.features, head.weight)

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Outlier scores ``(N,)`` of features ``(N, D)``, the input of the last linear layer."""
        layer: Any = find_head(self.model).module
        weight = layer.weight.flatten(1)
        return self._scores(F.linear(x, weight, layer.bias), x, weight)

    def _scores(self, logits: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        values = ood_scores(logits, features, weight, [self.name])[self.name]
        return -torch.from_numpy(values).to(features.device, torch.float32 if features.device.type == "mps" else None)

    def __repr__(self) -> str:
        return f"HeadDetector({self.name!r})"


def as_detector(name: str, model: nn.Module) -> HeadDetector:
    """A score of hardsight as a detector of pytorch-ood: ``fit`` and ``fit_features`` (no-ops), ``predict``,
    ``predict_features``; higher is more out-of-distribution.

    Args:
        name: In `ood.DETECTORS`: ``avc``, ``avh``, ``angular_margin``, ``max_logit``, ``free_energy``, ``msp``.
        model: The classifier; its last linear layer alone is enough for ``predict_features``.

    Examples:
        >>> detector = as_detector("avc", nn.Linear(2, 3))
        >>> detector.predict_features(torch.ones(4, 2)).shape
        torch.Size([4])
    """
    return HeadDetector(name, model)


def detect(
    detector: Any,
    model: Model | nn.Module,
    inside: Samples,
    outside: Samples,
    *,
    fit: Samples | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    workers: int = 0,
) -> Detection:
    """Evaluate any detector of pytorch-ood as `ood.detection` does: in-distribution is positive, ties are defined.

    Detectors of logits or features get those of the network's last linear layer; all others get its inputs, in eval
    mode. The network is left unchanged.

    Args:
        detector: Built on the same network (or on None if it only uses logits or features).
        model: The network with its preprocessing.
        inside: In-distribution data that the network was not trained on.
        outside: OOD data.
        fit: Labeled data to fit the detector on first; None if it needs none, or is already fitted.
        batch_size: Samples per batch.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Examples:
        >>> from pytorch_ood.detector import MaxLogit
        >>> from hardsight.data import open_data
        >>> net, digits = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), open_data("digits")
        >>> detect(MaxLogit(None), net, digits, digits, device="cpu").auroc
        0.5
    """
    classifier, target = as_model(model), find_device(device)
    kind = next((k for k in ("logits", "features") if hasattr(detector, f"predict_{k}")), None)
    detector.to(target)

    def outputs(samples: Samples) -> Tensor:
        predictions = predict(classifier, samples, logits=True, batch_size=batch_size, device=target, workers=workers)
        return torch.from_numpy(np.ascontiguousarray(getattr(predictions, str(kind)))).to(target)

    def score(samples: Samples) -> np.ndarray:
        if kind is not None:
            parts = [getattr(detector, f"predict_{kind}")(part) for part in outputs(samples).split(batch_size)]
        else:
            with evaluating(classifier.module, target):  # gradients stay on: some detectors need them
                parts = [detector.predict(x) for x, _ in _Loader(samples, classifier, batch_size, target, workers)]
        return np.concatenate([part.detach().cpu().double().numpy() for part in parts])

    if fit is not None:
        fit = View(fit, labels=all_labels(fit, "fit"))
        if kind is not None:
            labels = torch.as_tensor(np.asarray(fit.labels)).long().to(target)
            getattr(detector, f"fit_{kind}")(outputs(fit), labels)
        else:
            with evaluating(classifier.module, target):
                detector.fit(_Loader(fit, classifier, batch_size, target, workers))
    try:
        return detection(-score(inside), -score(outside))
    except api.RequiresFittingException as error:
        name = type(detector).__name__
        raise InputError(f"detector: {name} must be fitted first; pass labeled data as fit=.") from error


class _Loader:
    """A data set as a loader of ``(inputs, labels)`` that can be iterated repeatedly."""

    def __init__(self, samples: Samples, model: Model, batch_size: int, device: torch.device, workers: int) -> None:
        n, labels = len(samples), samples.labels
        y = torch.zeros(n, dtype=torch.long) if labels is None else torch.as_tensor(np.asarray(labels)).long()
        channels = input_channels(uncompiled(model.module))
        pixels = as_pixels(samples, channels, device) if model.transform is None else None
        self._source = Source(samples, y, pixels, model, workers, device)
        self._batches = torch.arange(n).split(batch_size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return ((x, y) for _, x, y, _ in self._source.batches(self._batches))

    def __len__(self) -> int:
        return len(self._batches)
