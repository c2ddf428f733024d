"""Samples as batches on the device: whole arrays that live there, or a loader for what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hardsight.angles import as_float64
from hardsight.data import Samples, load_batches
from hardsight.devices import moved
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.models import Model

# Rows of the data set; network inputs, labels, and what to train toward, on the device.
Batch = tuple[Tensor, Any, Tensor, Tensor]


@dataclass
class Source:
    """A data set to train or to test on.

    Attributes:
        samples: The data set.
        labels: ``(n,)`` class indices as the network counts them.
        pixels: All pictures ``(n, C, H, W)`` where they are arrays, uint8 or float; None: they are loaded.
        model: The network with its preprocessing, for what is loaded.
        workers: Loader processes.
        device: Where batches go.
        targets: ``(n, C)`` rows to train toward instead of the labels, with the network's classes; None: the labels.
        unreadable: Ids of samples that could not be read since it was last emptied, and why.
    """

    samples: Samples
    labels: Tensor
    pixels: Tensor | None
    model: Model
    workers: int
    device: torch.device
    targets: Tensor | None = None
    unreadable: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, parts: Sequence[Tensor]) -> Iterator[Batch]:
        """Batches of the given rows (on the host) in order; pixels in [0, 1]."""
        if self.pixels is None:
            yield from self._loaded(parts)
            return
        if not parts:
            return
        # Once for the whole pass: a copy a step would make the device wait.
        places = torch.cat(list(parts)).to(self.pixels.device).split([len(rows) for rows in parts])
        labels = self.labels.to(self.pixels.device)
        targets = labels if self.targets is None else self.targets.to(self.pixels.device)
        for rows, at in zip(parts, places, strict=True):
            x = self.pixels[at].to(self.device, non_blocking=True)
            x = x.float() / 255 if x.dtype == torch.uint8 else x
            y, t = (values[at].to(self.device, non_blocking=True) for values in (labels, targets))
            yield rows, x, y, t

    def some(self, count: int) -> Tensor:
        """All pictures where they are arrays, otherwise up to `count` of them from all over the data."""
        if self.pixels is not None:
            return self.pixels
        rows = torch.linspace(0, len(self) - 1, min(count, len(self))).long()
        return torch.cat([x.cpu() for _, x, *_ in self._loaded(rows.split(64))])

    def _loaded(self, parts: Sequence[Tensor]) -> Iterator[Batch]:
        batches = [part.tolist() for part in parts]
        loader = load_batches(self.samples, self.model, batches, self.device, self.workers, labeled=False)
        for places, inputs, _, bad in loader:
            reasons = {printable(self.samples.ids[row]): reason for row, reason in bad.items()}
            self.unreadable |= reasons
            if not places:
                first = ": ".join(next(iter(reasons.items())))
                raise InputError(f"DATA: no sample of a whole batch can be read; first: {first}.")
            rows = torch.tensor(places)
            targets = self.labels if self.targets is None else self.targets
            y, t = (values[rows].to(self.device, non_blocking=True) for values in (self.labels, targets))
            yield rows, moved(inputs, self.device), y, t


def as_pixels(samples: Samples, channels: int | None, device: torch.device) -> Tensor | None:
    """All pictures as one tensor ``(n, C, H, W)``, or None where they must be loaded one by one.

    Args:
        samples: The data set.
        channels: Channels that the network takes, None if it does not say.
        device: Where to put them, unless they would take more than half of its memory.
    """
    pixels = samples.tensor()
    if pixels is None:
        return None
    if pixels.dtype != torch.uint8:
        pixels = pixels.float()
    if device.type != "cuda" or pixels.nbytes < torch.cuda.mem_get_info(device)[0] // 2:
        pixels = pixels.to(device)
    if pixels.ndim != 4 or channels is None or channels == pixels.shape[1]:
        return pixels
    return pixels.expand(-1, channels, -1, -1) if pixels.shape[1] == 1 else None


def mean_and_spread(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel ``(C,)``, exact whatever the number of pictures."""
    count, total, square = 0, torch.zeros(pixels.shape[1]).double(), torch.zeros(pixels.shape[1]).double()
    for part in pixels.split(4096):
        values = as_float64(part) / 255 if part.dtype == torch.uint8 else as_float64(part)
        total += values.sum((0, 2, 3)).cpu()
        square += values.square().sum((0, 2, 3)).cpu()
        count += values[:, 0].numel()
    mean = total / count
    return mean, (square / count - mean.square()).clamp_min(1e-12).sqrt()
