"""The maps of several networks on the same images, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.data import Samples, Source
from hardsight.devices import evaluating, find_device, loader_workers
from hardsight.errors import InputError
from hardsight.explanation.maps import check_images, explain, find_layer, resize_maps
from hardsight.models import Model, as_model

# Dark blue to light yellow in steps of equal brightness, and the opacity of the heat over the image.
_RAMP = np.array([(0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=np.float64)
_OPACITY = 0.55


class Gallery(NamedTuple):
    """Images and maps; all but the images by the name of the network.

    Attributes:
        ids: Ids of the images.
        images: ``(n, H, W, 3)`` uint8, as the first network sees them.
        maps: ``(n, H, W)`` float32 in [0, 1] of the predicted class.
        classes: ``(n,)`` predicted.
        confidence: ``(n,)`` their probabilities.
    """

    ids: list[str]
    images: np.ndarray
    maps: dict[str, np.ndarray]
    classes: dict[str, np.ndarray]
    confidence: dict[str, np.ndarray]


@contextmanager
def running(
    model: Model | nn.Module, samples: Samples, device: str | torch.device | None, workers: int | None = None
) -> Iterator[tuple[nn.Module, Source]]:
    """A network in eval mode on the device, and its data as batches there; the network is left as it was."""
    where = find_device(device)
    source = Source.of(as_model(model), samples, where, loader_workers(workers, where))
    with evaluating(source.model.module, where):
        yield source.model.module, source


def cam_gallery(
    models: Mapping[str, Model | nn.Module],
    samples: Samples,
    ids: Sequence[str],
    *,
    device: str | torch.device | None = None,
) -> Gallery:
    """Maps of several networks on the same few images.

    Args:
        models: Networks by name.
        samples: The data set.
        ids: Ids of the images, in order; they form one batch.
        device: cpu, cuda, cuda:1, mps; the first GPU if there is one.

    Examples:
        >>> from hardsight.data import open_data
        >>> from hardsight.networks import build_network
        >>> nets = {name: build_network("small-cnn", 10, 1) for name in ("ce", "el")}
        >>> gallery = cam_gallery(nets, open_data("digits"), ["digits:5", "digits:0"], device="cpu")
        >>> gallery.images.shape, gallery.maps["el"].shape
        ((2, 8, 8, 3), (2, 8, 8))
    """
    rows = samples.find(list(ids))
    if not ids or None in rows:
        missing = repr(ids[rows.index(None)]) if ids else "no id at all"
        raise InputError(f"ids must be of samples in the data, got {missing}.")
    gallery = Gallery(list(ids), np.empty((0, 0, 0, 3), np.uint8), {}, {}, {})
    for name, model in models.items():
        with running(model, samples, device, 0) as (network, source):
            at, x, *_ = next(source.batches([torch.tensor(rows)]))
            if len(at) < len(rows):
                raise InputError(f"ids: {' '.join(next(iter(source.unreadable.items())))}; leave it out.")
            check_images(x)
            if not len(gallery.images):
                gallery = gallery._replace(images=_as_rgb(x))
            found = explain(network, find_layer(network, x), x)
            gallery.maps[name] = resize_maps(found.maps, gallery.images.shape[1:3]).cpu().numpy()
            gallery.classes[name] = found.classes.cpu().numpy()
            gallery.confidence[name] = found.logits.float().softmax(1).amax(1).cpu().numpy()
    return gallery


def _as_rgb(x: Tensor) -> np.ndarray:
    """Network inputs as colors; if they are standardized, each image is stretched to its extremes."""
    x = x.float().cpu()
    if x.min() < 0 or x.max() > 1:
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        x = (x - low) / (high - low).clamp_min(1e-12)
    colors = x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)
    return (colors * 255).round().byte().permute(0, 2, 3, 1).numpy()


def overlay(images: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """Maps ``(n, H, W)`` as heat over images ``(n, H, W, 3)`` uint8.

    Examples:
        >>> overlay(np.zeros((1, 1, 2, 3), np.uint8), np.array([[[0.0, 1.0]]])).tolist()
        [[[[0, 0, 2], [139, 140, 90]]]]
    """
    steps = np.linspace(0, 1, len(_RAMP))
    heat = np.stack([np.interp(maps, steps, channel) for channel in _RAMP.T], axis=-1)
    return np.rint((1 - _OPACITY) * images + _OPACITY * heat).astype(np.uint8)
