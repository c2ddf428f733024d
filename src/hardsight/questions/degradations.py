"""Images made harder by degrees, the AVH paper's second measure of hardness (Definition 4).

Each degradation has a clean level, at which an image comes back bit for bit, and levels that people find increasingly
hard. The paper uses contrast and additive uniform noise, after Geirhos et al. (2018); the others follow the same idea.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hardsight.data import ArraySamples, Samples, View, open_data
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.images import to_tensor
from hardsight.questions.pixels import check_pixels
from hardsight.registry import Registry
from hardsight.runs import Identity

GRAY = ", grey"  # how the origin of gray images ends: runs on disk are spelled so
_GRAY_WEIGHTS = (0.2125, 0.7154, 0.0721)  # of red, green and blue, as in Geirhos et al. (scikit-image)
_BLOCK = 256
_WORD, _PARITY = 0xFFFFFFFF, 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def sample_keys(name: str, ids: Sequence[Any], device: torch.device | None = None) -> Tensor:
    """A key ``(N, 2)`` for each sample, from its id and the purpose of its random numbers.

    Examples:
        >>> first, again, other = sample_keys("noise", ["test:0", "test:0", "test:1"])
        >>> bool((first == again).all()), bool((first == other).any())
        (True, False)
    """
    digests = [hashlib.sha256(f"{name}\0{id_}".encode("utf-8", "surrogatepass")).digest() for id_ in ids]
    keys = [np.frombuffer(digest, "<u4", 2).tolist() for digest in digests]
    return torch.tensor(keys, dtype=torch.int64, device=device).reshape(-1, 2)


def threefry(keys: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
    """Two random words of 32 bits for each key ``(N, 2)`` and counter ``(M,)``: both ``(N, M)``, int64.

    Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is exact wherever
    torch runs; torch's generators give different numbers on a GPU and a CPU, and in different batches.

    Examples:
        >>> [f"{int(word):08x}" for word in threefry(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([0]))]
        ['6b200159', '99ba4efe']
    """
    first, second = keys[:, :1], keys[:, 1:]
    schedule = (first, second, first ^ second ^ _PARITY)
    x0 = counters[None, :].add(first).bitwise_and_(_WORD)
    x1 = second.expand_as(x0).clone()  # the counter's upper word is 0
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x0.add_(x1).bitwise_and_(_WORD)
            x1 = (((x1 << by) & _WORD) | (x1 >> (32 - by))).bitwise_xor_(x0)
        x0.add_(schedule[(group + 1) % 3]).bitwise_and_(_WORD)
        x1.add_(schedule[(group + 2) % 3]).add_(group + 1).bitwise_and_(_WORD)
    return x0, x1


def uniform(keys: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each key, ``(N, count)`` float32: multiples of 2⁻²⁴, so that none is rounded."""
    counters = torch.arange((count + 1) // 2, device=keys.device)
    bits = torch.cat(threefry(keys, counters), 1)[:, :count]
    return (bits >> 8).float() * 2.0**-24


@dataclass(frozen=True)
class Degradation:
    """A way to make images harder.

    Attributes:
        name: Its name.
        function: ``(images, level, keys) → images``; keys ``(N, 2)`` seed anything random.
        levels: Default levels: the clean one, at which nothing changes, then harder and harder ones.
        range: Lowest and highest level.
        random: Whether it is random, so that ids are required.
    """

    name: str
    function: Callable[[Tensor, float, Tensor], Tensor]
    levels: tuple[float, ...]
    range: tuple[float, float] = (0.0, 1.0)
    random: bool = False

    @property
    def summary(self) -> str:
        """What it does, and what a level means, in one line."""
        return str(self.function.__doc__)

    @property
    def clean(self) -> float:
        """The level at which nothing changes."""
        return self.levels[0]

    @property
    def harder(self) -> Literal["lower", "higher"]:
        """Which levels people find harder."""
        return "lower" if self.levels[-1] < self.clean else "higher"

    def check(self, level: Any) -> float:
        """A level as a number within the range, or an error."""
        try:
            number = float(level)
        except (TypeError, ValueError):
            number = math.nan
        if not self.range[0] <= number <= self.range[1]:
            raise InputError(f"level of {self.name} must lie in [{self.range[0]:g}, {self.range[1]:g}], got {level!r}.")
        if self.name == "jpeg" and number != int(number):
            raise InputError(f"level of jpeg must be a whole number, got {level!r}.")
        return number


DEGRADATIONS: Registry[Degradation] = Registry("degradation", Degradation)


@DEGRADATIONS.register("contrast", levels=(1.0, 0.6, 0.3, 0.2, 0.1))
def _contrast(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Contrast around middle gray; the level is the share of it that stays."""
    return images * level + (1 - level) / 2


@DEGRADATIONS.register("noise", levels=(0.0, 0.1, 0.2, 0.3, 0.4), random=True)
def _noise(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Uniform noise on every value; the level is the most that it adds or subtracts."""
    drawn = uniform(keys, images[0].numel()).view_as(images)  # the same for every level, only wider
    return (images + (2 * drawn - 1) * level).clamp_(0, 1)


@DEGRADATIONS.register("blur", levels=(0.0, 0.01, 0.02, 0.04, 0.08), range=(0.0, 0.5))
def _blur(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Gaussian blur; the level is its standard deviation as a share of the shorter side."""
    side = min(images.shape[-2:])
    reach = min(math.ceil(3 * level * side), side - 1)  # a mirror shows no more than the image
    for size in ([2 * reach + 1, 1], [1, 2 * reach + 1]):  # one direction at a time: a wide 2D blur takes seconds
        images = _torchvision().gaussian_blur(images, size, [level * side] * 2)
    return images.clamp(0, 1)


@DEGRADATIONS.register("brightness", levels=(1.0, 0.6, 0.3, 0.2, 0.1))
def _brightness(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Darker images; the level is the share of the light that stays."""
    return _torchvision().adjust_brightness(images, level)


@DEGRADATIONS.register("jpeg", levels=(100, 30, 15, 10, 5), range=(1, 100))
def _jpeg(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """JPEG compression by Pillow, on the CPU; the level is its quality, 100 leaves the image unchanged."""
    pixels = (images * 255).round().to("cpu", torch.uint8).permute(0, 2, 3, 1).numpy()
    compressed = np.stack([_compress(image, int(level)) for image in pixels])
    # A GPU divides by a number through its reciprocal, which rounds differently.
    return (torch.from_numpy(compressed).permute(0, 3, 1, 2).to(images.dtype) / 255).to(images.device)


def _compress(image: np.ndarray, quality: int) -> np.ndarray:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(file, "jpeg", quality=quality)
    with Image.open(file) as compressed:
        return np.asarray(compressed).reshape(image.shape)


@DEGRADATIONS.register("resolution", levels=(1.0, 0.75, 0.5, 0.35, 0.25))
def _resolution(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Fewer pixels, scaled back to the original size; the level is the share of the pixels per side that stays."""
    size = list(images.shape[-2:])
    fewer = [max(1, round(level * side)) for side in size]
    resize = _torchvision().resize
    return resize(resize(images, fewer, antialias=True), size, antialias=True).clamp_(0, 1)


@DEGRADATIONS.register("occlusion", levels=(0.0, 0.1, 0.2, 0.3, 0.4), random=True)
def _occlusion(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """A gray rectangle at a random place; the level is the share of the image that it covers."""
    hidden = torch.ones((), dtype=torch.bool, device=images.device)
    drawn = (uniform(keys, 2) * 2**24).long()  # one place for all levels: a smaller rectangle lies within a larger one
    for axis, place in zip((-2, -1), drawn.T, strict=True):
        side = images.shape[axis]
        length = round(math.sqrt(level) * side)
        start = (place * (side - length + 1) >> 24)[:, None]  # in whole numbers, which no device rounds
        at = torch.arange(side, device=images.device)
        within = (at >= start) & (at < start + length)
        hidden = hidden & (within[:, None, :, None] if axis == -2 else within[:, None, None, :])
    return images.masked_fill(hidden, 0.5)


def _torchvision() -> Any:
    return need("torchvision.transforms.v2.functional")


def degrade(images: Tensor, name: str, level: float, ids: Sequence[Any] | None = None, gray: bool = False) -> Tensor:
    """Images made harder.

    Randomness depends on the id and the degradation alone: it is the same on CPU and GPU, in any batch and order, and
    at every level, which only amplifies it. Contrast, noise, brightness and occlusion give the same bits on
    every device; blur and resolution the same up to rounding. JPEG is computed on the CPU.

    Args:
        images: ``(N, 1 or 3, H, W)``, floating point in [0, 1], on any device.
        name: One of `DEGRADATIONS`.
        level: How much; the clean level returns the images bit for bit.
        ids: One per image, for noise and occlusion.
        gray: Remove color first, as Geirhos et al. did; noise is then gray too.

    Examples:
        >>> degrade(torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3), "contrast", 0.2).flatten().tolist()
        [0.4000000059604645, 0.5, 0.6000000238418579]
    """
    degradation = DEGRADATIONS[name]
    level = degradation.check(level)
    check_pixels(images, "images")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise InputError(f"images must be (N, channels, H, W) with 1 or 3 channels, got {tuple(images.shape)}.")
    if degradation.random and ids is None:
        raise InputError(f"ids must be given for {name}, one per image: they seed what is random.")
    if ids is not None and len(ids) != len(images):
        raise InputError(f"ids must hold one id per image: expected {len(images)}, got {len(ids)}.")
    channels = images.shape[1]
    if level == degradation.clean and not (gray and channels == 3):
        return images
    values = images.to(torch.promote_types(images.dtype, torch.float32))
    if gray and channels == 3:
        red, green, blue = (weight * part for weight, part in zip(_GRAY_WEIGHTS, values.split(1, 1), strict=True))
        values = (red + green + blue).clamp_(0, 1)
    if level != degradation.clean:
        values = degradation.function(values, level, sample_keys(name, () if ids is None else ids, images.device))
    return values.repeat(1, channels // values.shape[1], 1, 1).to(images.dtype)


def chosen_levels(
    degradations: Iterable[str], levels: Sequence[float] | Mapping[str, Sequence[float]] | None
) -> dict[str, tuple[float, ...]]:
    """The levels of every degradation, from clean to hardest, or an error.

    Examples:
        >>> chosen_levels(["contrast"], [0.3, 1])
        {'contrast': (1.0, 0.3)}
    """
    names = list(dict.fromkeys([degradations] if isinstance(degradations, str) else degradations))
    if not names:
        raise InputError("degradations must name at least one degradation, got none.")
    entries = {name: DEGRADATIONS[name] for name in names}
    if levels is not None and not isinstance(levels, Mapping):
        if len(names) > 1:
            raise InputError(
                f"--levels goes with one degradation, got {', '.join(names)}; in Python give levels by name."
            )
        levels = {names[0]: levels}
    if wrong := [name for name in levels or {} if name not in names]:
        raise InputError(f"levels are given for {wrong[0]!r}, which is not among {', '.join(names)}.")
    chosen = {}
    for name, entry in entries.items():
        values = {entry.check(level) for level in (levels or {}).get(name, entry.levels)}
        if not values:
            raise InputError(f"levels of {name} must hold at least one level, got none.")
        chosen[name] = tuple(sorted(values, reverse=entry.harder == "lower"))
    return chosen


class DegradedSamples(View):
    """A data set with images degraded as they are loaded, before any preprocessing; ids and labels stay the same.

    With `rounded`, images have 8 bits, for preprocessing that takes nothing finer.
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
            raise InputError("the data set yields mappings, which cannot be degraded; give raw images")
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
    """A data set of arrays repeated at every level of a degradation, to record while a network trains (Fig. 11, 12).

    Given to `train` as its test data, every level is recorded in every epoch; ``hardsight figure degradation
    RUN/test`` then draws the epochs of each level.

    Args:
        data: ``FILE.npz:test``, ``digits``, or other images in memory.
        name: Name of the degradation.
        levels: Levels, instead of the defaults.
        gray: Remove color first.

    Returns:
        8-bit images with the ids ``NAME=LEVEL/ID``.
    """
    samples = open_data(data)
    if samples.images is None:
        raise InputError(f"data must be images in memory (FILE.npz, digits), got {samples.origin}.")
    images, names, ids = [], [], samples.ids
    [levels] = chosen_levels(name, levels).values()
    for level in levels:
        for start in range(0, len(samples), _BLOCK):
            block = torch.stack([to_tensor(image) for image in samples.images[start : start + _BLOCK]])
            degraded = degrade(block, name, level, ids[start : start + _BLOCK], gray)
            images.append(_eight_bit(degraded.permute(0, 2, 3, 1).numpy()))
        names += [f"{name}={level:g}/{id_}" for id_ in ids]
    labels = None if samples.labels is None else np.tile(samples.labels, len(levels))
    origin = f"{samples.origin}, {name} at {len(levels)} levels" + (GRAY if gray else "")
    return ArraySamples(np.concatenate(images), labels, samples.split, origin, samples.classes, names)


def _eight_bit(values: np.ndarray) -> np.ndarray:
    return (values * 255).round().astype(np.uint8)
