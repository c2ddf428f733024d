"""Small networks and their training by Adam, for the AVH paper's small experiments.

What the paper does not say (networks, learning rates) is chosen here and stated with each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.data import open_data
from hardsight.devices import find_device
from hardsight.studies.declared.training import pixels_and_labels

Part = tuple[Tensor, Tensor]


def split_pixels(data: Any, device: str | None) -> tuple[Part, Part, list[str]]:
    """Training and test pixels in [0, 1] with their labels, and the names of the classes."""
    name = str(data)
    opened = [
        open_data(part) for part in ([f"{name}:train", f"{name}:test"] if name.lower().endswith(".npz") else [data])
    ]
    parts = [pixels_and_labels(samples, find_device(device)) for samples in opened]
    parts = [(pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels, labels) for pixels, labels in parts]
    if len(parts) == 1:
        (pixels, labels), test = parts[0], torch.arange(len(parts[0][1])) % 5 == 0
        parts = [(pixels[~test], labels[~test]), (pixels[test], labels[test])]
    count = int(max(labels.max() for _, labels in parts)) + 1
    return parts[0], parts[1], list(opened[0].classes or map(str, range(count)))


def plain_cnn(classes: int, channels: int, features: int | None = None) -> nn.Sequential:
    """Two convolutions (16 and 32 channels), a layer of 128, and fewer features if asked for."""
    head = [nn.Linear(128, classes)] if features is None else [nn.Linear(128, features), nn.Linear(features, classes)]
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Flatten()),
        *(nn.Linear(512, 128), nn.ReLU(), *head),
    )


def fit(
    build: Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int,
    *,
    decay: bool = True,
    before: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    after: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Build a network and train it by Adam; the learning rate falls to 0 along a cosine, unless it is constant.

    `before` makes the images of a step from those of its batch, and `after` is called when it is done. The same seed
    gives the same numbers; the caller's generator is left as it was.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = build().to(x.device).train()
        optimizer = torch.optim.Adam(net.parameters(), lr)
        batches = iter(())
        for step in range(steps):
            if decay:
                optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
            batch = next(batches, None)
            if batch is None:
                batches = iter(torch.randperm(len(x)).split(batch_size))
                batch = next(batches)
            images = x[batch] if before is None else before(net, x[batch], y[batch])
            loss = F.cross_entropy(net(images), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if after is not None:
                after(net)
    return net.eval()
