"""pytorch-ood: hardsight's scores as its detectors, and its detectors judged on hardsight's data.

There, higher is more out of distribution; in `hardsight.ood`, higher is more inside. The sign is turned here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    """A score of `hardsight.ood.DETECTORS` as a detector of pytorch-ood; made by `as_detector`."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        self.name, self.model = name, model

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores ``(N,)`` of inputs, through the network as it is (put it into eval mode)."""
        network = uncompiled(self.model)
        with capture(network) as head:
            logits = logits_of(network, x.to(self.device))
            return self._scored(logits, head.features, head.weight)

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Outlier scores ``(N,)`` of features ``(N, D)``, the input of the last linear layer."""
        layer: Any = find_head(self.model).module
        weight = layer.weight.flatten(1)
        return self._scored(F.linear(x, weight, layer.bias), x, weight)

    def _scored(self, logits: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        values = ood_scores(logits, features, weight, [self.name])[self.name]
        return -torch.from_numpy(values).to(features.device, torch.float32 if features.device.type == "mps" else None)

    def __repr__(self) -> str:
        return f"HeadDetector({self.name!r})"


def as_detector(name: str, model: nn.Module) -> HeadDetector:
    """A score of hardsight as a detector of pytorch-ood: ``fit``, ``fit_features`` (nothing to do), ``predict``,
    ``predict_features``; higher is more out of distribution.

    Args:
        name: In `ood.DETECTORS`: ``avc``, ``avh``, ``angular_margin``, ``max_logit``, ``free_energy``, ``msp``.
        model: The classifier; its last linear layer alone is enough for ``predict_features``.

    Examples:
        >>> detector = as_detector("avc", nn.Linear(2, 3))
        >>> detector.predict_features(torch.ones(4, 2)).shape
        torch.Size([4])
    """
    if name not in DETECTORS:
        raise InputError(f"name must be one of {', '.join(DETECTORS)}, got {name!r}.")
    find_head(model)  # a sentence now rather than at the first batch
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
    """Any detector of pytorch-ood, judged as `ood.detection` judges: the inside is positive, ties are defined.

    Detectors of logits or features get those of the network's last linear layer; all others get its inputs, in eval
    mode. The network is left as it was.

    Args:
        detector: Built on the same network (or on None where it only sees logits or features).
        model: The network with its preprocessing.
        inside: Data like those it was trained on, which it has not seen.
        outside: Samples of another data set.
        fit: Labeled data to fit the detector on first; None where it needs none, or is fitted.
        batch_size: Samples at a time.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.

    Examples:
        >>> from pytorch_ood.detector import MaxLogit
        >>> from hardsight.data import open_data
        >>> net, digits = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), open_data("digits")
        >>> detect(MaxLogit(None), net, digits, digits, device="cpu").auroc
        0.5
    """
    found, where = as_model(model), find_device(device)
    kind = next((k for k in ("logits", "features") if hasattr(detector, f"predict_{k}")), None)
    detector.to(where)

    def told(samples: Samples) -> Tensor:
        said = predict(found, samples, logits=True, batch_size=batch_size, device=where, workers=workers)
        return torch.from_numpy(np.ascontiguousarray(getattr(said, str(kind)))).to(where)

    def seen(samples: Samples) -> _Batches:
        return _Batches(samples, found, batch_size, where, workers)

    if fit is not None:
        fit = View(fit, labels=all_labels(fit, "fit"))
        if kind is None:
            with evaluating(found.module, where):
                detector.fit(seen(fit))
        else:
            getattr(detector, f"fit_{kind}")(told(fit), torch.as_tensor(np.asarray(fit.labels)).long().to(where))
    score: Callable[[Samples], np.ndarray]
    if kind is None:

        def score(samples: Samples) -> np.ndarray:
            with evaluating(found.module, where):  # gradients stay on: some detectors follow them
                return np.concatenate([_numbers(detector.predict(x)) for x, _ in seen(samples)])
    else:

        def score(samples: Samples) -> np.ndarray:
            parts = told(samples).split(batch_size)
            return np.concatenate([_numbers(getattr(detector, f"predict_{kind}")(part)) for part in parts])

    try:
        return detection(-score(inside), -score(outside))
    except api.RequiresFittingException as error:
        name = type(detector).__name__
        raise InputError(f"detector: {name} must be fitted first; give fit=, labelled data to fit it on.") from error


def _numbers(scores: Tensor) -> np.ndarray:
    return scores.detach().cpu().double().numpy()


@dataclass(frozen=True)
class _Batches:
    """A data set as a loader of ``(inputs, labels)`` that can be gone through again and again."""

    samples: Samples
    model: Model
    batch_size: int
    device: torch.device
    workers: int

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        network, n = uncompiled(self.model.module), len(self.samples)
        known = self.samples.labels
        labels = torch.zeros(n, dtype=torch.long) if known is None else torch.as_tensor(np.asarray(known)).long()
        raw = self.model.transform is None
        pixels = as_pixels(self.samples, input_channels(network), self.device) if raw else None
        source = Source(self.samples, labels, pixels, self.model, self.workers, self.device)
        for _, x, y, _ in source.batches(torch.arange(n).split(self.batch_size)):
            yield x, y

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)
