"""Measures of maps: how compact they are, and how much of the network's output they explain.

A map of zeros counts as a flat one.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.errors import InputError
from hardsight.heads import logits_of
from hardsight.registry import whole_number

# `infidelity` hides cells of this many rows and columns.
_CELLS = 4


def entropy(maps: Tensor) -> Tensor:
    """Entropy of each map ``(N, H, W)`` as a distribution over positions: 0 for one position, 1 for a flat map.

    Examples:
        >>> entropy(torch.tensor([[[1.0, 1.0], [0.0, 0.0]]])).tolist()
        [0.5]
    """
    shares = _shares(maps)
    return torch.special.entr(shares).sum(1) / math.log(max(shares.shape[1], 2))


def area(maps: Tensor) -> Tensor:
    """Share of the positions of each map ``(N, H, W)`` that reach half its maximum.

    Examples:
        >>> area(torch.tensor([[[1.0, 0.5], [0.4, 0.0]]])).tolist()
        [0.5]
    """
    flat = maps.flatten(1)
    return (flat >= flat.amax(1, keepdim=True) / 2).float().mean(1)


def mass_inside(maps: Tensor, masks: Tensor) -> Tensor:
    """Share of each map ``(N, H, W)`` that lies inside a mask ``(N, H, W)``; NaN where the mask is empty.

    Examples:
        >>> mass_inside(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[[True, False]]])).tolist()
        [0.75]
    """
    if masks.shape != maps.shape:
        raise InputError(f"masks must have the maps' shape {tuple(maps.shape)}, got {tuple(masks.shape)}.")
    inside = masks.flatten(1).bool()
    return (_shares(maps) * inside).sum(1).masked_fill(~inside.any(1), math.nan)


def _shares(maps: Tensor) -> Tensor:
    flat = maps.flatten(1)
    total = flat.sum(1, keepdim=True)
    return torch.where(total > 0, flat / total.masked_fill(total == 0, 1.0), 1 / flat.shape[1])


class Curves(NamedTuple):
    """Probability of the class ``(N, steps + 1)`` while 0, 1/steps, … 1 of the pixels are shown, or hidden."""

    insertion: Tensor
    deletion: Tensor

    def areas(self) -> tuple[Tensor, Tensor]:
        """The areas under both curves, ``(N,)`` each."""
        step = 1 / (self.insertion.shape[1] - 1)
        return torch.trapezoid(self.insertion, dx=step, dim=1), torch.trapezoid(self.deletion, dx=step, dim=1)


@torch.no_grad()
def insertion_deletion(
    network: nn.Module,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    *,
    steps: int = 10,
    baseline: Literal["blur", "mean"] = "blur",
) -> Curves:
    """Show, or hide, pixels in the order of the map and record the probability of the class (Petsiuk et al., 2018).

    Both curves begin and end with the same two images, so insertion − deletion is 0 on average for an arbitrary order,
    however confident the network is. Ties are broken in a fixed random order.

    Args:
        network: In eval mode.
        images: ``(N, C, H, W)``.
        maps: ``(N, H, W)``.
        classes: ``(N,)`` whose probability is recorded.
        steps: Number of equal parts of the pixels.
        baseline: What replaces hidden pixels: the blurred image, or its mean color.

    Examples:
        >>> net = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1, 2, bias=False))
        >>> _ = net[2].weight.data.copy_(torch.tensor([[8.0], [0.0]]))
        >>> image = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
        >>> curves = insertion_deletion(net, image, image[:, 0], torch.tensor([0]), steps=4, baseline="mean")
        >>> [round(float(area), 2) for area in curves.areas()]
        [0.93, 0.76]
    """
    n, _, height, width = images.shape
    if maps.shape != (n, height, width):
        raise InputError(f"maps must have the images' size {(n, height, width)}, got {tuple(maps.shape)}.")
    steps = whole_number("steps", steps, 1)
    hidden = blur(images) if baseline == "blur" else images.mean((2, 3), keepdim=True).expand_as(images)
    shuffled = torch.randperm(height * width, generator=torch.Generator().manual_seed(0)).to(maps.device)
    order = shuffled[maps.flatten(1)[:, shuffled].argsort(dim=1, descending=True, stable=True)]
    rank = order.argsort(dim=1).view(n, 1, height, width)

    def probability(images: Tensor) -> Tensor:
        return logits_of(network, images).float().softmax(1).gather(1, classes[:, None])[:, 0]

    original, baseline_probability = probability(images), probability(hidden)
    insertion, deletion = [baseline_probability], [original]
    for step in range(1, steps):
        first = rank < round(height * width * step / steps)
        insertion.append(probability(torch.where(first, images, hidden)))
        deletion.append(probability(torch.where(first, hidden, images)))
    return Curves(torch.stack([*insertion, original], 1), torch.stack([*deletion, baseline_probability], 1))


@torch.no_grad()
def infidelity(network: nn.Module, images: Tensor, maps: Tensor, logits: Tensor, classes: Tensor) -> Tensor:
    """Share of the change of the logit, when parts are hidden, that the map does not predict (Yeh et al., 2019).

    The parts are 4 × 4 cells, blurred one at a time. For a perfect map the logit falls by d in proportion to the map's
    mass a in the cell. The best factor β ≥ 0 is fitted, as in captum with ``normalize=True``, and the error is divided
    by E[d²], so that small and large logits compare: 1 − cos²(a, d). 0 is perfect; 1 means that the cosine is not
    positive, or that nothing changes. `logits` are those of the original images, `classes` those to watch.
    """
    hidden, mass, fall = blur(images), [], []
    before = logits.gather(1, classes[:, None])[:, 0]
    for cell in cells(images.shape[2], images.shape[3]).to(images.device):
        changed = logits_of(network, torch.where(cell, hidden, images))
        fall.append(before - changed.gather(1, classes[:, None])[:, 0])
        mass.append((maps * cell).sum((1, 2)))
    a, d = (torch.stack(values, 1).cpu().double() for values in (mass, fall))  # not every device has float64
    scale = a.square().sum(1) * d.square().sum(1)
    cosine = (a * d).sum(1).clamp_min(0) / scale.sqrt().masked_fill(scale == 0, math.inf)
    return (1 - cosine.square()).clamp_min(0).float()


def cells(height: int, width: int) -> Tensor:
    """Masks ``(16, height, width)`` of the cells that `infidelity` hides."""
    row, column = (torch.arange(n) * _CELLS // n for n in (height, width))
    return row[:, None] * _CELLS + column == torch.arange(_CELLS**2)[:, None, None]


def blur(images: Tensor) -> Tensor:
    """Images ``(N, C, H, W)`` under a Gaussian an eighth of their shorter side wide: colors stay, shapes go."""
    from torchvision.transforms.v2.functional import gaussian_blur

    sigma = min(images.shape[2:]) / 8
    # The mirrored border cannot be wider than the image.
    size = [2 * min(math.ceil(3 * sigma), n - 1) + 1 for n in (images.shape[3], images.shape[2])]
    return gaussian_blur(images, size, [sigma, sigma])
