"""Random augmentation of whole batches on the device: shift, resized crop, flip, mixup."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.errors import InputError
from hardsight.recipes import Recipe


def augment(x: Tensor, recipe: Recipe, generator: torch.Generator, size: int | None = None) -> Tensor:
    """Augment a batch of images ``(N, C, H, W)`` as the recipe says; `size` is the side of a resized crop."""
    if recipe.resized_crop:
        return resized_crop(x, generator, size, recipe.flip, recipe.smallest_part)
    if recipe.crop:
        x = shift(x, recipe.crop, generator)
    if recipe.flip:
        flipped = torch.rand(len(x), 1, 1, 1, device=x.device, generator=generator) < 0.5
        x = torch.where(flipped, x.flip(3), x)
    return x


def shift(x: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Shift each image by up to `pixels` in both directions, with reflection padding."""
    n, channels, height, width = x.shape
    if pixels >= min(height, width):
        raise InputError(f"recipe: crop must be smaller than the images ({height}×{width}), got {pixels}.")
    offsets = torch.randint(-pixels, pixels + 1, (2, n, 1), device=x.device, generator=generator)
    rows = _reflect(torch.arange(height, device=x.device) + offsets[0], height)[:, None, :, None]
    columns = _reflect(torch.arange(width, device=x.device) + offsets[1], width)[:, None, None, :]
    image = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return x[image, channel, rows, columns]


def _reflect(index: Tensor, length: int) -> Tensor:
    """Reflect indices outside the image into it, without repeating the edge."""
    return (length - 1) - ((length - 1) - index.abs()).abs()


def resized_crop(
    x: Tensor, generator: torch.Generator, size: int | None = None, flip: bool = False, smallest: float = 0.08
) -> Tensor:
    """Crop a part of each image with an aspect ratio between 3:4 and 4:3 and resize it; flip half of them if `flip`."""
    n, channels, height, width = x.shape
    draw = torch.rand(5, n, device=x.device, generator=generator)
    area = smallest + (1 - smallest) * draw[0]
    aspect = torch.exp((2 * draw[1] - 1) * (math.log(4 / 3) / 2))
    tall, wide = (area.sqrt() / aspect).clamp(max=1), (area.sqrt() * aspect).clamp(max=1)
    # In grid_sample's coordinates −1 and 1 are the edges of the image.
    top, left = (1 - tall) * (2 * draw[2] - 1), (1 - wide) * (2 * draw[3] - 1)
    side = torch.where(draw[4] < 0.5, -wide, wide) if flip else wide
    zero = torch.zeros_like(area)
    theta = torch.stack([torch.stack([side, zero, left], 1), torch.stack([zero, tall, top], 1)], 1)
    grid = F.affine_grid(theta, [n, channels, size or height, size or width], align_corners=False).to(x.dtype)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def mixup(x: Tensor, y: Tensor, classes: int, alpha: float, generator: random.Random) -> tuple[Tensor, Tensor]:
    """Blend each image with another of the batch, by a share from Beta(α, α), and the targets with them.

    `y` are class indices ``(N,)`` or target weights; the blended targets are weights ``(N, classes)``.
    """
    share = generator.betavariate(alpha, alpha)
    targets = (y if y.is_floating_point() else F.one_hot(y, classes)).to(x.dtype)
    return torch.lerp(x.flip(0), x, share), torch.lerp(targets.flip(0), targets, share)
