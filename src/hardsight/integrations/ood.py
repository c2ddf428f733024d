"""hardsight's OOD scores in OpenOOD and pytorch-ood, and pytorch-ood's detectors evaluated on hardsight's data.

In `hardsight.questions` and OpenOOD, higher is more in-distribution; in pytorch-ood, higher is more OOD.
Neither library is needed to import this module. OpenOOD is on no package index.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from hardsight.data import Samples, Source, all_labels
from hardsight.devices import evaluating, find_device
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.heads import capture, find_head, logits_of, uncompiled
from hardsight.models import Model, as_model
from hardsight.predictions import predict
from hardsight.questions import DETECTORS, Detection, detection, ood_scores


def _base(module: str, name: str) -> Any:
    """A class of a library to inherit from, which the library checks; `object` if it is not installed."""
    return getattr(need(module), name) if importlib.util.find_spec(module.partition(".")[0]) else object


_Postprocessor: Any = _base("openood.postprocessors", "BasePostprocessor")
_Detector: Any = _base("pytorch_ood.api", "FeaturesDetector")


def _unfitted(name: str) -> str:
    if DETECTORS[name].needs == "training":
        raise InputError(f"name: {name!r} is fitted on training data; use that library's own, or hardsight evaluate.")
    return name


def _scores(name: str, logits: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    values = torch.from_numpy(ood_scores(logits, features, weight, [name])[name])
    return values.to(features.device, torch.float32 if features.device.type == "mps" else None)


@torch.no_grad()
def _logits_and_scores(name: str, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    network = uncompiled(model)
    with capture(network) as head:
        logits = logits_of(network, x)
        return logits, _scores(name, logits, head.features, head.weight)


class Postprocessor(_Postprocessor):
    """A score of `hardsight.questions.DETECTORS` as an OpenOOD post-processor.

    Use it as ``openood.evaluation_api.Evaluator(net, "cifar10", postprocessor=Postprocessor("avc")).eval_ood()``.

    Args:
        name: ``avc``, ``avh``, ``angular_margin``, ``max_logit``, ``free_energy`` or ``msp``.
    """

    # Required by the evaluator: there are no hyperparameters to search for.
    APS_mode = False
    hyperparam_search_done = True

    def __init__(self, name: str) -> None:
        self.name, self.config = _unfitted(name), None

    def setup(self, net: nn.Module, id_loader_dict: Any, ood_loader_dict: Any) -> None:
        """Nothing to fit."""

    def postprocess(self, net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
        """Predicted class and score of each sample of a batch, ``(N,)`` both."""
        logits, scores = _logits_and_scores(self.name, net, data)
        return logits.argmax(1), scores

    def inference(self, net: nn.Module, data_loader: Any, progress: bool = True) -> tuple[np.ndarray, ...]:
        """Predicted classes, scores and labels of all batches ``{"data": …, "label": …}``, on the network's device."""
        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        batches = tqdm(data_loader, disable=None if progress else True)
        parts = [(*self.postprocess(net, batch["data"].to(device)), batch["label"]) for batch in batches]
        predicted, scores, labels = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        return predicted.astype(int), scores, labels.astype(int)


class HeadDetector(_Detector):
    """A score of `hardsight.questions.DETECTORS` as a detector of pytorch-ood: ``predict`` and ``predict_features``.

    Args:
        name: ``avc``, ``avh``, ``angular_margin``, ``max_logit``, ``free_energy`` or ``msp``.
        model: The classifier; its last linear layer alone is enough for ``predict_features``.

    Examples:
        >>> HeadDetector("avc", nn.Linear(2, 3)).predict_features(torch.ones(4, 2)).shape
        torch.Size([4])
    """

    def __init__(self, name: str, model: nn.Module) -> None:
        need("pytorch_ood")
        super().__init__()
        self.name, self.model = _unfitted(name), model
        find_head(model)  # an error now rather than at the first batch

    def predict(self, x: Tensor) -> Tensor:
        """Outlier scores ``(N,)`` of inputs, with the network in its current mode (use eval mode)."""
        return -_logits_and_scores(self.name, self.model, x.to(self.device))[1]

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Outlier scores ``(N,)`` of features ``(N, D)``, the input of the last linear layer."""
        layer: Any = find_head(self.model).module
        weight = layer.weight.flatten(1)
        return -_scores(self.name, F.linear(x, weight, layer.bias), x, weight)


def detect(
    detector: Any, model: Model | nn.Module, inside: Samples, outside: Samples, *, fit: Samples | None = None,
    batch_size: int = 256, device: str | torch.device | None = None, workers: int = 0,
) -> Detection:  # fmt: skip
    """Evaluate any detector of pytorch-ood as `ood.detection` does: in-distribution is positive, ties are defined.

    Detectors of logits or features get those of the last linear layer, all others the network's inputs, in eval mode.

    Args:
        detector: Built on the same network (or on None if it only uses logits or features).
        model: The network with its preprocessing.
        inside: In-distribution data that the network was not trained on.
        outside: OOD data.
        fit: Labeled data to fit the detector on first; None if it needs none, or is already fitted.
        batch_size: Samples per batch.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.
        workers: Loader processes, for data that are not arrays.
    """
    classifier, target = as_model(model), find_device(device)
    detector.to(target)
    kind = next((k for k in ("_logits", "_features") if hasattr(detector, f"predict{k}")), "")

    def outputs(samples: Samples) -> Tensor:
        predictions = predict(classifier, samples, logits=True, batch_size=batch_size, device=target, workers=workers)
        return torch.from_numpy(np.ascontiguousarray(getattr(predictions, kind[1:]))).to(target)

    def inputs(samples: Samples, labels: Tensor | None = None) -> _Loader:
        return _Loader(Source.of(classifier, samples, target, workers, labels), batch_size)

    def score(samples: Samples) -> np.ndarray:
        batches = outputs(samples).split(batch_size) if kind else (x for x, _ in inputs(samples))
        parts = [getattr(detector, f"predict{kind}")(batch) for batch in batches]
        return np.concatenate([part.detach().cpu().double().numpy() for part in parts])

    with evaluating(classifier.module, target):  # gradients stay on: some detectors need them
        if fit is not None:
            labels = torch.as_tensor(all_labels(fit, "fit")).long()
            data = (outputs(fit), labels.to(target)) if kind else (inputs(fit, labels),)
            getattr(detector, f"fit{kind}")(*data)
        try:
            return detection(-score(inside), -score(outside))
        except need("pytorch_ood.api").RequiresFittingException as error:
            raise InputError(f"detector: {type(detector).__name__} needs labeled data to fit, as fit=.") from error


@dataclass
class _Loader:
    """Batches ``(inputs, labels)`` that can be iterated repeatedly."""

    source: Source
    batch_size: int

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return ((x, y) for _, x, y, _ in self.source.batches(torch.arange(len(self.source)).split(self.batch_size)))

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch_size)
