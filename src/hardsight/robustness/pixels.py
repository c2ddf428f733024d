"""Where a network's pixels are: its preprocessing cut in two, so that ε means the same whatever the normalization."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from hardsight.data import Samples, Source, all_labels, class_mapping
from hardsight.errors import InputError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model
from hardsight.networks import Normalize
from hardsight.scoring.checks import check_samples


class PixelModel(NamedTuple):
    """A network from pixels on.

    Attributes:
        loading: The model with that part of its preprocessing alone which makes pixels (resizing, cropping).
        network: Pixels ``(N, C, H, W)`` in [0, 1] → what the network returns; the normalization is its first layer.
    """

    loading: Model
    network: nn.Module


def pixel_model(model: Model) -> PixelModel:
    """Move the normalization at the end of a model's preprocessing into the network.

    Known are torchvision's ``Compose`` (and with it timm's) and ``Normalize``, the transforms that come with
    torchvision's weights, and Hugging Face's image processors. Of any other preprocessing the whole is taken to make
    pixels; when these are not in [0, 1], attacking them ends in a sentence.

    Examples:
        >>> from torchvision.transforms import Compose, Normalize, ToTensor
        >>> net = Model(nn.Flatten(), "flat", Compose([ToTensor(), Normalize(0.5, 0.25)]))
        >>> made = pixel_model(net)
        >>> made.loading.transform, made.network(torch.ones(1, 1, 1, 1)).item()
        (ToTensor(), 2.0)
    """
    network = uncompiled(model.module)
    before, mean, std = _cut(model.transform)
    if mean is None:
        return PixelModel(replace(model, module=network), network)
    takes = "any" if before is None else model.takes
    mean, std = (torch.as_tensor(values).flatten().tolist() for values in (mean, std))
    loading = replace(model, module=network, transform=before, takes=takes)
    return PixelModel(loading, nn.Sequential(Normalize(mean, std), network))


def _cut(transform: Any) -> tuple[Callable[[Any], Any] | None, Any, Any]:
    """The preprocessing without a normalization at its end, and the mean and spread of that; None: there is none."""
    listed = isinstance(transform, nn.Sequential)
    steps = list(transform) if listed else getattr(transform, "transforms", None) or [transform]
    if type(last := steps[-1]).__name__ == "Normalize":
        rest = steps[:-1]
        before = (type(transform)(*rest) if listed else type(transform)(rest)) if len(rest) > 1 else (*rest, None)[0]
        return before, last.mean, last.std
    if all(hasattr(transform, name) for name in ("crop_size", "resize_size", "mean", "std")):
        plain = copy.copy(transform)  # torchvision's, which come with its weights
        plain.mean, plain.std = [0.0] * len(transform.mean), [1.0] * len(transform.std)
        return plain, transform.mean, transform.std
    processor: Any = getattr(transform, "processor", None)
    if getattr(processor, "do_normalize", False) and is_dataclass(transform):
        plain = copy.copy(processor)
        plain.do_normalize = False
        return replace(transform, processor=plain), processor.image_mean, processor.image_std
    return transform, None, None


def pixel_source(model: Model, samples: Samples, device: torch.device, workers: int = 0) -> tuple[PixelModel, Source]:
    """A network from pixels on, and a labeled data set as its pixels; labels are counted as the network does."""
    if not samples.pixels and model.takes != "items":  # tensors ready to use pass by the preprocessing
        model = replace(model, transform=None, takes="any")
    made, labels = pixel_model(model), all_labels(samples, "DATA")
    loading, outputs = made.loading, find_head(made.loading.module).classes
    check_samples(samples, None)
    if outputs < 2:
        raise InputError(f"model must tell two classes or more apart to be attacked, got {outputs}.")
    mapping = class_mapping(loading.classes, samples.classes, outputs)
    if labels.max() >= (known := outputs if mapping is None else len(mapping)):
        raise InputError(f"DATA: labels must lie in [0, {known - 1}], one a class, got {labels.max()}.")
    labels = torch.from_numpy(labels if mapping is None else mapping[labels])
    return made, Source.of(loading, samples, device, workers, labels)
