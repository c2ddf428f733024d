"""Pictures made harder by degrees, the AVH paper's second measure of hardness (Definition 4): `degrade`.

Each degradation has a clean level, at which a picture comes back bit for bit, and levels that people find harder and
harder. The paper has contrast and additive uniform noise, after Geirhos et al. (2018); the others are more of the same.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hardsight.degradation.randomness import sample_keys, uniform
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.registry import Registry

# What Geirhos et al. turned colour into gray with: scikit-image's weights of red, green and blue.
_GREY_WEIGHTS = (0.2125, 0.7154, 0.0721)


@dataclass(frozen=True)
class Degradation:
    """A way to make pictures harder.

    Attributes:
        name: Its name.
        function: ``(images, level, keys) → images``; keys ``(N, 2)`` seed what is random, where anything is.
        clean: The level at which nothing is changed.
        levels: What is evaluated unless told otherwise: the clean level, then harder and harder ones.
        range: Lowest and highest level.
        summary: What it does, and what a level means, in one line.
        random: Whether it draws anything, so that ids must be given.
    """

    name: str
    function: Callable[[Tensor, float, Tensor], Tensor]
    clean: float
    levels: tuple[float, ...]
    range: tuple[float, float]
    summary: str
    random: bool = False

    @property
    def harder(self) -> Literal["lower", "higher"]:
        """Which levels people find harder."""
        return "lower" if self.levels[-1] < self.clean else "higher"


def _entry(
    name: str, function: Any, *, levels: tuple[float, ...], range_: tuple[float, float], random: bool = False
) -> Degradation:
    return Degradation(name, function, levels[0], levels, range_, str(function.__doc__).strip(), random)


# Functions of images; the docstring is the summary, the first level the clean one.
DEGRADATIONS: Registry[Degradation] = Registry("degradation", _entry)


@DEGRADATIONS.register("contrast", levels=(1.0, 0.6, 0.3, 0.2, 0.1), range_=(0.0, 1.0))
def _contrast(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Contrast around middle gray; the level is the share of it that stays."""
    return images * level + (1 - level) / 2


@DEGRADATIONS.register("noise", levels=(0.0, 0.1, 0.2, 0.3, 0.4), range_=(0.0, 1.0), random=True)
def _noise(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Uniform noise on every value; the level is the most that it adds or takes away."""
    drawn = uniform(keys, images[0].numel()).view_as(images)  # the same for every level, only wider
    return (images + (2 * drawn - 1) * level).clamp_(0, 1)


@DEGRADATIONS.register("blur", levels=(0.0, 0.01, 0.02, 0.04, 0.08), range_=(0.0, 0.5))
def _blur(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Gaussian blur; the level is its standard deviation as a share of the shorter side."""
    side = min(images.shape[-2:])
    reach = min(math.ceil(3 * level * side), side - 1)  # a mirror shows no more than the picture
    for size in ([2 * reach + 1, 1], [1, 2 * reach + 1]):  # one direction at a time: a wide blur at once takes seconds
        images = _torchvision().gaussian_blur(images, size, [level * side] * 2)
    return images.clamp(0, 1)


@DEGRADATIONS.register("brightness", levels=(1.0, 0.6, 0.3, 0.2, 0.1), range_=(0.0, 1.0))
def _brightness(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Darker pictures; the level is the share of the light that stays."""
    return _torchvision().adjust_brightness(images, level)


@DEGRADATIONS.register("jpeg", levels=(100, 30, 15, 10, 5), range_=(1, 100))
def _jpeg(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """JPEG compression by Pillow, on the CPU; the level is its quality, 100 the picture as it is."""
    pixels = (images * 255).round().to("cpu", torch.uint8).permute(0, 2, 3, 1).numpy()
    made = np.stack([_compressed(picture, int(level)) for picture in pixels])
    # A GPU divides by a number through its reciprocal, which rounds otherwise.
    return (torch.from_numpy(made).permute(0, 3, 1, 2).to(images.dtype) / 255).to(images.device)


def _compressed(picture: np.ndarray, quality: int) -> np.ndarray:
    """What JPEG leaves of a picture ``(H, W, C)`` of 8 bits. (torchvision is giving its own encoder up.)"""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture).save(file, "jpeg", quality=quality)
    with Image.open(file) as left:
        return np.asarray(left).reshape(picture.shape)


@DEGRADATIONS.register("resolution", levels=(1.0, 0.75, 0.5, 0.35, 0.25), range_=(0.0, 1.0))
def _resolution(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """Fewer pixels, scaled back to as many; the level is the share of the pixels a side that stays."""
    size = list(images.shape[-2:])
    fewer = [max(1, round(level * side)) for side in size]
    resize = _torchvision().resize
    return resize(resize(images, fewer, antialias=True), size, antialias=True).clamp_(0, 1)


@DEGRADATIONS.register("occlusion", levels=(0.0, 0.1, 0.2, 0.3, 0.4), range_=(0.0, 1.0), random=True)
def _occlusion(images: Tensor, level: float, keys: Tensor) -> Tensor:
    """A gray rectangle at a place of its own; the level is the share of the picture that it covers."""
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
    """Pictures made harder.

    What is random depends on the id and the degradation alone: it is the same on CPU and GPU, in any batch and order,
    and the same for every level, which only makes more of it. Contrast, noise, brightness and occlusion give the same
    bits on every device; blur and resolution the same up to rounding. JPEG is made on the CPU, wherever pictures are.

    Args:
        images: ``(N, 1 or 3, H, W)``, floating point in [0, 1], on any device.
        name: One of `DEGRADATIONS`.
        level: How much; the clean level returns the pictures bit for bit.
        ids: One a picture, for noise and occlusion.
        gray: Take the color away first, as Geirhos et al. did; noise is then gray too.

    Examples:
        >>> degrade(torch.tensor([0.0, 0.5, 1.0]).view(1, 1, 1, 3), "contrast", 0.2).flatten().tolist()
        [0.4000000059604645, 0.5, 0.6000000238418579]
    """
    how, level = DEGRADATIONS[name], checked_level(name, level)
    if not isinstance(images, Tensor) or not images.is_floating_point() or images.ndim != 4:
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a floating-point tensor (N, channels, H, W) in [0, 1], got {got}.")
    if images.shape[1] not in (1, 3) or not images[:1].numel() > 0:
        raise InputError(f"images must have 1 or 3 channels and pixels, got {tuple(images.shape)}.")
    low, high = (float(end) for end in images.detach().aminmax())
    if not (low >= 0 and high <= 1):
        raise InputError(f"images must lie in [0, 1] (before any normalization), got {low:g} to {high:g}.")
    if how.random and ids is None:
        raise InputError(f"ids must be given for {name}, one a picture: they seed what is random.")
    if ids is not None and len(ids) != len(images):
        raise InputError(f"ids must hold one id per image: expected {len(images)}, got {len(ids)}.")
    colour = images.shape[1]
    wide = images.to(torch.promote_types(images.dtype, torch.float32))
    if gray and colour == 3:
        red, green, blue = (weight * channel for weight, channel in zip(_GREY_WEIGHTS, wide.split(1, 1), strict=True))
        wide = (red + green + blue).clamp_(0, 1)
    elif level == how.clean:
        return images
    if level != how.clean:
        wide = how.function(wide, level, sample_keys(name, () if ids is None else ids, images.device))
    return wide.repeat(1, colour // wide.shape[1], 1, 1).to(images.dtype)


def checked_level(name: str, level: Any) -> float:
    """A level as a number within its degradation's range, or a sentence."""
    low, high = DEGRADATIONS[name].range
    try:
        number = float(level)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise InputError(f"level of {name} must lie in [{low:g}, {high:g}], got {level!r}.")
    if name == "jpeg" and number != int(number):
        raise InputError(f"level of jpeg must be a whole number, got {level!r}.")
    return number


def chosen_levels(
    degradations: Iterable[str], levels: Sequence[float] | Mapping[str, Sequence[float]] | None
) -> list[tuple[str, float]]:
    """Every degradation with every level, from clean to hardest, or a sentence.

    Examples:
        >>> chosen_levels(["contrast"], [0.3, 1])
        [('contrast', 1.0), ('contrast', 0.3)]
    """
    names = list(dict.fromkeys([degradations] if isinstance(degradations, str) else degradations))
    if not names:
        raise InputError("degradations must name at least one degradation, got none.")
    defaults = {name: DEGRADATIONS[name].levels for name in names}
    if levels is not None and not isinstance(levels, Mapping):
        if len(names) > 1:
            raise InputError(
                f"--levels goes with one degradation, got {', '.join(names)}; in Python give levels by name."
            )
        levels = {names[0]: levels}
    if wrong := [name for name in levels or {} if name not in names]:
        raise InputError(f"levels are given for {wrong[0]!r}, which is not among {', '.join(names)}.")
    chosen = []
    for name, usual in defaults.items():
        own = {checked_level(name, level) for level in (levels or {}).get(name, usual)}
        if not own:
            raise InputError(f"levels of {name} must hold at least one level, got none.")
        chosen += [(name, level) for level in sorted(own, reverse=DEGRADATIONS[name].harder == "lower")]
    return chosen
