"""The maps of several networks on the same pictures, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.data import Samples
from hardsight.errors import InputError
from hardsight.explanation.answer import running
from hardsight.explanation.maps import check_images, explain, on_picture
from hardsight.explanation.places import find_place
from hardsight.models import Model

# Dark blue to light yellow, equally bright steps; from the picture's own colours by opacity.
_RAMP = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=np.float64)
_OPACITY = 0.55


class Gallery(NamedTuple):
    """Pictures and maps; everything but the pictures by the network's name.

    Attributes:
        ids: Of the pictures.
        pictures: ``(n, H, W, 3)`` uint8, as the first network sees them.
        maps: ``(n, H, W)`` float32 in [0, 1] of the predicted class.
        classes: ``(n,)`` predicted.
        confidence: ``(n,)`` their probabilities.
    """

    ids: list[str]
    pictures: np.ndarray
    maps: dict[str, np.ndarray]
    classes: dict[str, np.ndarray]
    confidence: dict[str, np.ndarray]


def cam_gallery(
    models: Mapping[str, Model | nn.Module],
    samples: Samples,
    ids: Sequence[str],
    *,
    device: str | torch.device | None = None,
) -> Gallery:
    """Maps of several networks on the same few pictures.

    Args:
        models: Networks by name.
        samples: The data set.
        ids: Which pictures, in the order wanted: few, they are one batch.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.

    Examples:
        >>> from hardsight.data import open_data
        >>> from hardsight.networks import build_network
        >>> nets = {name: build_network("small-cnn", 10, 1) for name in ("ce", "el")}
        >>> found = cam_gallery(nets, open_data("digits"), ["digits:5", "digits:0"], device="cpu")
        >>> found.pictures.shape, found.maps["el"].shape
        ((2, 8, 8, 3), (2, 8, 8))
    """
    places = samples.find(list(ids))
    if not ids or None in places:
        missing = repr(ids[places.index(None)]) if ids else "no id at all"
        raise InputError(f"ids must be of samples in the data, got {missing}.")
    rows = torch.tensor([place for place in places if place is not None])
    pictures: np.ndarray | None = None
    gallery = Gallery(list(ids), np.empty((0, 0, 0, 3), np.uint8), {}, {}, {})
    for name, model in models.items():
        with running(model, samples, device, 0) as (network, source):
            at, x, *_ = next(source.batches([rows]))
            if len(at) < len(rows):
                raise InputError(f"ids: {' '.join(next(iter(source.unreadable.items())))}; leave it out.")
            check_images(x)
            if pictures is None:
                pictures = _as_picture(x)
            found = explain(network, find_place(network, x), x)
            gallery.maps[name] = on_picture(found.maps, pictures.shape[1:3]).cpu().numpy()
            gallery.classes[name] = found.classes.cpu().numpy()
            gallery.confidence[name] = found.logits.float().softmax(1).amax(1).cpu().numpy()
    return gallery if pictures is None else gallery._replace(pictures=pictures)


def _as_picture(x: Tensor) -> np.ndarray:
    """What a network takes, as colours; standardised values are stretched, each picture to its own extremes."""
    x = x.float().cpu()
    if x.min() < 0 or x.max() > 1:
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        x = (x - low) / (high - low).clamp_min(1e-12)
    colours = x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)
    return (colours * 255).round().byte().permute(0, 2, 3, 1).numpy()


def overlay(pictures: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Maps ``(n, H, W)`` as heat over pictures ``(n, H, W, 3)`` uint8.

    Examples:
        >>> overlay(np.zeros((1, 1, 2, 3), np.uint8), np.array([[[0.0, 1.0]]])).tolist()
        [[[[0, 0, 2], [139, 140, 90]]]]
    """
    at = np.linspace(0, 1, len(_RAMP))
    heat = np.stack([np.interp(maps, at, channel) for channel in _RAMP.T], axis=-1)
    return np.rint((1 - _OPACITY) * pictures + _OPACITY * heat).astype(np.uint8)
