"""Batches on the device: from arrays that live there as a whole, or from a loader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hardsight.angles import as_float64
from hardsight.data.prepared import load_batches
from hardsight.data.samples import Samples
from hardsight.devices import moved
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.heads import uncompiled
from hardsight.models import Model, input_channels

# Rows of the data set (on the host); network inputs, labels and training targets (on the device).
Batch = tuple[Tensor, Any, Tensor, Tensor]


@dataclass
class Source:
    """A data set that yields batches on the device.

    Attributes:
        samples: The data set.
        labels: ``(n,)`` class indices in the network's order of classes.
        pixels: All images ``(n, C, H, W)``, uint8 or float, where they are arrays; None: a loader reads them.
        model: The network with its preprocessing, for the loader.
        workers: Loader processes.
        device: Where batches go.
        targets: ``(n, C)`` target weights to train toward instead of the labels; None: the labels.
        unreadable: Ids of samples that could not be read since it was last cleared, and why.
    """

    samples: Samples
    labels: Tensor
    pixels: Tensor | None
    model: Model
    workers: int
    device: torch.device
    targets: Tensor | None = None
    unreadable: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Model, samples: Samples, device: torch.device, workers: int = 0, labels: Tensor | None = None
    ) -> Source:
        """The batches of a data set for a network; without `labels`, all labels are 0."""
        network = uncompiled(model.module)
        pixels = as_pixels(samples, input_channels(network), device) if model.transform is None else None
        labels = torch.zeros(len(samples), dtype=torch.long) if labels is None else labels
        return cls(samples, labels, pixels, replace(model, module=network), workers, device)

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, parts: Sequence[Tensor]) -> Iterator[Batch]:
        """One batch per element of `parts`, rows of the data set on the host; pixels in [0, 1]."""
        if self.pixels is None:
            yield from self._loaded(parts)
            return
        if not parts:
            return
        # Once for the whole pass: a copy in each step would make the device wait.
        indices = torch.cat(list(parts)).to(self.pixels.device).split([len(rows) for rows in parts])
        labels = self.labels.to(self.pixels.device)
        targets = labels if self.targets is None else self.targets.to(self.pixels.device)
        for rows, index in zip(parts, indices, strict=True):
            x = self.pixels[index].to(self.device, non_blocking=True)
            x = x.float() / 255 if x.dtype == torch.uint8 else x
            y, t = (values[index].to(self.device, non_blocking=True) for values in (labels, targets))
            yield rows, x, y, t

    def example_pixels(self, count: int) -> Tensor:
        """All images where they are arrays, otherwise up to `count` of them, evenly spaced over the data."""
        if self.pixels is not None:
            return self.pixels
        rows = torch.linspace(0, len(self) - 1, min(count, len(self))).long()
        return torch.cat([x.cpu() for _, x, *_ in self._loaded(rows.split(64))])

    def _loaded(self, parts: Sequence[Tensor]) -> Iterator[Batch]:
        targets = self.labels if self.targets is None else self.targets
        batches = [part.tolist() for part in parts]
        for indices, inputs, _, bad in load_batches(
            self.samples, self.model, batches, self.device, self.workers, labeled=False
        ):
            reasons = {printable(self.samples.ids[row]): reason for row, reason in bad.items()}
            self.unreadable |= reasons
            if not indices:
                first = ": ".join(next(iter(reasons.items())))
                raise InputError(f"DATA: no sample of a whole batch can be read; first: {first}.")
            rows = torch.tensor(indices)
            y, t = (values[rows].to(self.device, non_blocking=True) for values in (self.labels, targets))
            yield rows, moved(inputs, self.device), y, t


def warn_unreadable(argument: str, reasons: Mapping[str, str], count: int, stacklevel: int = 3) -> None:
    """Warn of the samples, out of `count`, that cannot be read, if there are any."""
    if reasons:
        first = ": ".join(next(iter(reasons.items())))
        message = f"{len(reasons):,} of {count:,} samples left out because they cannot be read; first: {first}."
        warnings.warn(f"{argument}: {message}", UserWarning, stacklevel)


def as_pixels(samples: Samples, channels: int | None, device: torch.device) -> Tensor | None:
    """All images as one tensor ``(n, C, H, W)``, or None where they must be loaded one by one.

    Args:
        samples: The data set.
        channels: Channels of the network's input, None if unknown.
        device: Where to put them, unless they would take more than half of its free memory.
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


def mean_and_std(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel ``(C,)``, summed in float64 over all images."""
    count, total, square = 0, torch.zeros(pixels.shape[1]).double(), torch.zeros(pixels.shape[1]).double()
    for part in pixels.split(4096):
        values = as_float64(part) / 255 if part.dtype == torch.uint8 else as_float64(part)
        total += values.sum((0, 2, 3)).cpu()
        square += values.square().sum((0, 2, 3)).cpu()
        count += values[:, 0].numel()
    mean = total / count
    return mean, (square / count - mean.square()).clamp_min(1e-12).sqrt()
