"""An image in any form, converted for a model's preprocessing or for display.

Gray, palette, RGBA, CMYK and 16-bit images become 8-bit RGB for networks with three input channels, 8-bit gray for
those with one, and whichever of the two they are if the network does not say (`channels` is None). Pillow itself clips
16-bit values at 255, which turns such images white.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import InputError
from hardsight.untrusted import check_regular

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 96  # of a thumbnail
_LOSSLESS = 40  # smaller ones would suffer from a codec that blurs colors


def open_image(source: Path | bytes, channels: int | None = None) -> Image:
    """Decode a file, or the bytes of one, fully (a truncated one raises here) as an 8-bit image."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(source, Path):
        check_regular(source, "image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            opened = Image.open(source if isinstance(source, Path) else io.BytesIO(source), formats=_formats())
        except UnidentifiedImageError:
            if isinstance(source, Path):
                raise
            raise InputError("the bytes are no image of a known format") from None  # Pillow names an address in memory
        with opened as image:
            image.load()
            return eight_bit(image, channels)


@cache
def _formats() -> tuple[str, ...]:
    """The formats of Pillow, frequent ones first, without PostScript: to decode it, Pillow runs Ghostscript."""
    from PIL import Image

    Image.init()
    return tuple(sorted({*Image.ID} - {"EPS"}, key=lambda name: (name not in ("JPEG", "PNG", "WEBP"), name)))


def eight_bit(image: Image, channels: int | None = None) -> Image:
    """Any Pillow mode as 8-bit RGB or gray."""
    from PIL import Image

    gray = image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I")
    mode = "L" if channels == 1 or (channels is None and gray) else "RGB"
    if image.mode.startswith("I"):  # 16-bit gray; Pillow opens some of them as 32-bit integers
        values = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise InputError(f"a {image.mode} image with values outside 0–65535 has no known scale")
        return Image.fromarray((values // 257).astype(np.uint8)).convert(mode)
    if image.mode == "F":
        raise InputError("a floating-point image has no known scale; save it with 8 or 16 bits")
    if image.mode == "P":  # a palette may hold transparency, which Pillow needs explicitly
        image = image.convert("RGBA")
    return image.convert(mode)


def to_image(value: Any, channels: int | None = None) -> Image:
    """A Pillow image, or a uint8 or uint16 array ``(H, W)``, ``(H, W, C)`` or ``(C, H, W)``, as an 8-bit image."""
    from PIL import Image

    if not isinstance(value, np.ndarray):
        return eight_bit(value, channels)
    if value.dtype not in (np.uint8, np.uint16):
        raise InputError(f"an image array must be uint8 or uint16 for this preprocessing, got {value.dtype}")
    values = channels_last(value if value.dtype == np.uint8 else (value // 257).astype(np.uint8))
    return eight_bit(Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values), channels)


def channels_last(values: np.ndarray) -> np.ndarray:
    """The array as ``(H, W, C)``, whatever its order of axes."""
    if values.ndim == 2:
        return values[..., None]
    if values.ndim != 3:
        raise InputError(f"an image array must have 2 or 3 axes, got shape {values.shape}")
    first = values.shape[0] in (1, 3, 4) and values.shape[-1] not in (1, 3, 4)
    return values.transpose(1, 2, 0) if first else values


def to_tensor(image: Any, channels: int | None = None) -> Tensor:
    """Float ``(channels, H, W)`` in [0, 1]; float arrays are taken as they are."""
    if isinstance(image, np.ndarray) and np.issubdtype(image.dtype, np.floating):
        values = channels_last(image)
        if values.shape[-1] == 1 and channels == 3:
            values = np.repeat(values, 3, -1)
        return torch.from_numpy(np.array(values.transpose(2, 0, 1), dtype=np.float32, order="C"))
    values = channels_last(np.asarray(to_image(image, channels)))
    return torch.from_numpy(np.array(values.transpose(2, 0, 1), order="C")).float() / 255


def display_image(value: Any) -> tuple[Image, set[str]]:
    """A data set's item as an 8-bit image to look at, and how it was converted.

    Args:
        value: A Pillow image, an array, a tensor (channels first), a batch of one image, or a mapping that holds one.

    Returns:
        The image, and a set of ``rotated`` (as its EXIF data say), ``scaled`` (from the smallest to the largest value,
        because some are outside 0 to 1) and ``channels`` (their mean, because there are not 1, 3 or 4).
    """
    from PIL import ImageOps

    if isinstance(value, Mapping):
        value = next((v for v in value.values() if hasattr(v, "shape") or hasattr(v, "getexif")), None)
    if value is None:
        raise InputError("the sample holds no image")
    if hasattr(value, "getexif"):
        if value.getexif().get(0x0112, 1) not in range(2, 9):
            return eight_bit(value), set()
        return eight_bit(ImageOps.exif_transpose(value)), {"rotated"}
    tensor = isinstance(value, Tensor)
    array = np.asarray(value.detach().cpu().float() if tensor and value.is_floating_point() else value)
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim not in (2, 3) or not array.size:
        raise InputError(f"the sample is not an image: its shape is {tuple(array.shape)}")
    first = tensor and array.ndim == 3 and (array.shape[0] in (1, 3, 4) or array.shape[-1] > 4)
    array = array.transpose(1, 2, 0) if first else channels_last(array)
    changes = set()
    if array.shape[-1] not in (1, 3, 4):
        changes.add("channels")
        array = array.mean(-1, keepdims=True)
    if array.dtype == bool:
        array = array * np.uint8(255)
    elif array.dtype.kind in "iu" and array.dtype != np.uint16 and array.min() >= 0 and array.max() <= 255:
        array = array.astype(np.uint8)
    elif array.dtype != np.uint16:
        array = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = array.min(), array.max()
        if low < 0 or high > 1:
            changes.add("scaled")
            array = (array - low) / (high - low) if high > low else np.full_like(array, 0.5)
        array = (array * 255).round().astype(np.uint8)
    return to_image(array), changes


def sample_image(samples: Any, place: int) -> tuple[Image, set[str]]:
    """A sample of a data set as an image to look at; a JPEG file is decoded no larger than a thumbnail needs."""
    from PIL import Image

    path = samples.path(place)
    if path is None:
        return display_image(samples.load(place, None)[0])
    check_regular(path, "image")
    with Image.open(path, formats=_formats()) as opened:
        opened.draft(None, (2 * SIDE, 2 * SIDE))
        opened.load()
        return display_image(opened)


def thumbnail_uri(image: Image) -> str:
    """A small WebP image as a data URI."""
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE), reducing_gap=3.0)
    quality = {"lossless": True, "quality": 100} if max(image.size) <= _LOSSLESS else {"quality": 80}
    file = io.BytesIO()
    image.convert("RGB").save(file, "WEBP", method=4, **quality)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
