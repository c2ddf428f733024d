"""Data sets as their degraded selves: one level at a time for scoring, all levels at once for recording."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import ArraySamples, Samples, View, open_data
from hardsight.degradation.degradations import DEGRADATIONS, chosen_levels, degrade
from hardsight.errors import InputError
from hardsight.images import to_tensor
from hardsight.runs import Identity

GRAY = ", grey"  # how the origin of gray images ends: runs on disk are spelled so
_BLOCK = 256


class DegradedSamples(View):
    """A data set whose pictures are degraded when they are loaded, before any preprocessing; ids and labels stay.

    Args:
        whole: The data set.
        name: Which degradation.
        level: How much of it.
        gray: Take the color away first.
        rounded: Give 8-bit pictures, for preprocessing that takes nothing finer.
    """

    def __init__(self, whole: Samples, name: str, level: float, *, gray: bool = False, rounded: bool = True) -> None:
        super().__init__(whole)
        self.name, self.level, self.gray, self.rounded, self.source = name, level, gray, rounded, None
        self.origin = f"{whole.origin}, {name} {level:g}" + (GRAY if gray else "")

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        x, label = self.whole.load(index, channels)
        if self.level == DEGRADATIONS[self.name].clean and not self.gray:
            return x, label
        if isinstance(x, dict):
            raise InputError("the data set yields mappings, which cannot be degraded; give raw pictures")
        pixels = x if isinstance(x, Tensor) else to_tensor(x, channels)
        pixels = degrade(pixels[None], self.name, self.level, [self.ids[index]], self.gray)[0]
        if isinstance(x, Tensor):
            return pixels, label
        array = pixels.permute(1, 2, 0).numpy()
        return _eight_bit(array) if self.rounded else array, label

    def tensor(self) -> None:
        return None

    def path(self, index: int) -> None:
        return None

    @cached_property
    def identity(self) -> Identity:
        whole = self.whole.identity
        text = f"{whole.hash} {self.name} {self.level!r} {self.gray} {self.rounded}"
        return whole._replace(hash=hashlib.sha256(text.encode()).hexdigest()[:16])


def at_every_level(data: Any, name: str, levels: Sequence[float] | None = None, *, gray: bool = False) -> ArraySamples:
    """A data set of arrays once for every level of a degradation: what to record while a network trains (Fig. 11, 12).

    Given to `train` as its test data, every level is recorded in every epoch; ``hardsight figure degradation
    RUN/test`` then draws the epochs of each level.

    Args:
        data: ``FILE.npz:test``, ``digits``, or other pictures in memory.
        name: Which degradation.
        levels: Which levels, if not its own.
        gray: Take the color away first.

    Returns:
        8-bit pictures with the ids ``NAME=LEVEL/ID``.
    """
    samples = open_data(data)
    if samples.images is None:
        raise InputError(f"data must be images in memory (FILE.npz, digits), got {samples.origin}.")
    ids = samples.ids
    images, names = [], []
    for _, level in chosen_levels(name, levels):
        for start in range(0, len(samples), _BLOCK):
            block = torch.stack([to_tensor(image) for image in samples.images[start : start + _BLOCK]])
            made = degrade(block, name, level, ids[start : start + _BLOCK], gray)
            images.append(_eight_bit(made.permute(0, 2, 3, 1).numpy()))
        names += [f"{name}={level:g}/{id_}" for id_ in ids]
    labels = None if samples.labels is None else np.tile(samples.labels, len(names) // len(ids))
    origin = f"{samples.origin}, {name} at {len(names) // len(ids)} levels" + (GRAY if gray else "")
    return ArraySamples(np.concatenate(images), labels, samples.split, origin, samples.classes, names)


def _eight_bit(values: np.ndarray) -> np.ndarray:
    return (values * 255).round().astype(np.uint8)
