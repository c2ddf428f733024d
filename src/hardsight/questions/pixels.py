"""A network that takes pixels: its normalization becomes its first layer, so ε means the same for every network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.errors import InputError
from hardsight.heads import uncompiled
from hardsight.models import Model
from hardsight.networks import Normalize


class PixelModel(NamedTuple):
    """A network that takes pixels.

    Attributes:
        loading: The model with the part of its preprocessing that makes pixels (resizing, cropping).
        network: Pixels ``(N, C, H, W)`` in [0, 1] → the network's output; the normalization is its first layer.
    """

    loading: Model
    network: nn.Module


def pixel_model(model: Model) -> PixelModel:
    """Move the normalization at the end of a model's preprocessing into the network.

    It knows torchvision's ``Compose`` (which timm uses) and ``Normalize``, the transforms of torchvision's weights, and
    Hugging Face's image processors. Any other preprocessing counts as making pixels; attacks refuse what it returns
    unless it is in [0, 1].

    Examples:
        >>> from torchvision.transforms import Compose, Normalize, ToTensor
        >>> net = Model(nn.Flatten(), "flat", Compose([ToTensor(), Normalize(0.5, 0.25)]))
        >>> split = pixel_model(net)
        >>> split.loading.transform, split.network(torch.ones(1, 1, 1, 1)).item()
        (ToTensor(), 2.0)
    """
    network = uncompiled(model.module)
    before, mean, std = _split(model.transform)
    if mean is None:
        return PixelModel(replace(model, module=network), network)
    mean, std = (torch.as_tensor(values).flatten().tolist() for values in (mean, std))
    takes = "any" if before is None else model.takes
    loading = replace(model, module=network, transform=before, takes=takes)
    return PixelModel(loading, nn.Sequential(Normalize(mean, std), network))


def _split(transform: Any) -> tuple[Callable[[Any], Any] | None, Any, Any]:
    """The preprocessing without its final normalization, and the mean and std of that; None if it has none."""
    sequential = isinstance(transform, nn.Sequential)
    *rest, last = transform if sequential else getattr(transform, "transforms", None) or [transform]
    if type(last).__name__ == "Normalize":
        if len(rest) < 2:
            return (rest[0] if rest else None), last.mean, last.std
        return (type(transform)(*rest) if sequential else type(transform)(rest)), last.mean, last.std
    if all(hasattr(transform, name) for name in ("crop_size", "resize_size", "mean", "std")):
        plain = copy.copy(transform)  # of torchvision's weights
        plain.mean, plain.std = [0.0] * len(transform.mean), [1.0] * len(transform.std)
        return plain, transform.mean, transform.std
    processor: Any = getattr(transform, "processor", None)
    if getattr(processor, "do_normalize", False) and is_dataclass(transform):
        plain = copy.copy(processor)
        plain.do_normalize = False
        return replace(transform, processor=plain), processor.image_mean, processor.image_std
    return transform, None, None


def check_pixels(x: Any, name: str = "x", least: int = 4) -> None:
    """Refuse anything but a batch of pixels in [0, 1], with `least` dimensions or more."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < least or not x.numel():
        got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"{name} must be a float tensor of one image or more, (N, C, H, W), got {got}; scale 8-bit images by / 255."
        )
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise InputError(
            f"{name} must hold pixels in [0, 1], got {float(x.min()):.3g} to {float(x.max()):.3g}; normalize in the "
            "network's first layer, or by a Normalize at the end of its preprocessing."
        )
