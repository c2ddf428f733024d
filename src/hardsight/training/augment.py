"""Random changes of whole batches on the device: shift, random part, mirror, mix."""

from __future__ import annotations

import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.errors import InputError
from hardsight.recipes import Recipe


def augment(x: Tensor, recipe: Recipe, generator: torch.Generator, size: int | None = None) -> Tensor:
    """A batch of pictures ``(N, C, H, W)``, each changed at random as the recipe says.

    Args:
        x: Pictures.
        recipe: What to do.
        generator: On the device of the pictures.
        size: Pixels a side of a random part; as large as the pictures if None.
    """
    if recipe.resized_crop:
        return random_part(x, generator, size, recipe.flip, recipe.smallest_part)
    if recipe.crop:
        x = shift(x, recipe.crop, generator)
    if recipe.flip:
        mirrored = torch.rand(len(x), 1, 1, 1, device=x.device, generator=generator) < 0.5
        x = torch.where(mirrored, x.flip(3), x)
    return x


def shift(x: Tensor, pixels: int, generator: torch.Generator) -> Tensor:
    """Each picture moved by up to so many pixels both ways; what comes in is mirrored at the edge."""
    n, _, height, width = x.shape
    if pixels >= min(height, width):
        raise InputError(f"recipe: crop must be smaller than the pictures ({height}×{width}), got {pixels}.")
    moves = torch.randint(-pixels, pixels + 1, (2, n, 1), device=x.device, generator=generator)
    rows = _mirrored(torch.arange(height, device=x.device) + moves[0], height)[:, None, :, None]
    columns = _mirrored(torch.arange(width, device=x.device) + moves[1], width)[:, None, None, :]
    batch = torch.arange(n, device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return x[batch, channels, rows, columns]


def _mirrored(place: Tensor, length: int) -> Tensor:
    """Places outside the picture reflected into it, without repeating the edge."""
    return (length - 1) - ((length - 1) - place.abs()).abs()


def random_part(
    x: Tensor, generator: torch.Generator, size: int | None = None, flip: bool = False, smallest: float = 0.08
) -> Tensor:
    """A part of each picture with sides between 3:4 and 4:3, resized, half of them mirrored if `flip`."""
    n, channels, height, width = x.shape
    draw = torch.rand(5, n, device=x.device, generator=generator)
    area = smallest + (1 - smallest) * draw[0]
    shape = torch.exp((2 * draw[1] - 1) * (math.log(4 / 3) / 2))
    tall, wide = (area.sqrt() / shape).clamp(max=1), (area.sqrt() * shape).clamp(max=1)
    # grid_sample's coordinates: −1 and 1 are the edges of the picture, wherever the part ends up inside.
    top, left = (1 - tall) * (2 * draw[2] - 1), (1 - wide) * (2 * draw[3] - 1)
    side = torch.where(draw[4] < 0.5, -wide, wide) if flip else wide
    zero = torch.zeros_like(area)
    theta = torch.stack([torch.stack([side, zero, left], 1), torch.stack([zero, tall, top], 1)], 1)
    out = (n, channels, size or height, size or width)
    grid = F.affine_grid(theta, list(out), align_corners=False).to(x.dtype)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def mix(x: Tensor, y: Tensor, classes: int, alpha: float, chance: random.Random) -> tuple[Tensor, Tensor]:
    """Mixup: each picture blended with another of the batch, and the targets ``(N, classes)`` with them.

    Args:
        x: Pictures.
        y: ``(N,)`` class indices, or target rows ``(N, classes)``.
        classes: How many there are.
        alpha: Of the share's Beta(α, α).
        chance: Where the share comes from.
    """
    share = chance.betavariate(alpha, alpha)
    targets = (y if y.is_floating_point() else F.one_hot(y, classes)).to(x.dtype)
    return torch.lerp(x.flip(0), x, share), torch.lerp(targets.flip(0), targets, share)
