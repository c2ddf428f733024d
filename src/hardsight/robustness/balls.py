"""The pictures within ε of a given one: ways into that ball, back into it and up a gradient, in L∞ and L2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Norm = Literal["inf", "2"]


def within(point: Tensor, x: Tensor, eps: float, norm: Norm) -> Tensor:
    """The point brought back into the ε-ball around x, and then into [0, 1], which leads it no further from x.

    Examples:
        >>> within(torch.tensor([[0.9, 2.0]]), torch.tensor([[0.5, 0.9]]), 0.25, "inf")
        tensor([[0.7500, 1.0000]])
    """
    if norm == "inf":
        return point.clamp(x - eps, x + eps).clamp(0, 1)
    change = point - x
    length = torch.linalg.vector_norm(change.flatten(1), dim=1)
    short = torch.where(length > eps, eps / length, 1.0)
    return (x + change * beside(short, x)).clamp(0, 1)


def upward(gradient: Tensor, norm: Norm) -> Tensor:
    """The way of length 1 that climbs most, however small the gradient; nowhere where it is 0."""
    return gradient.sign() if norm == "inf" else _direction(gradient)


def anywhere(x: Tensor, eps: float, norm: Norm, seeds: Sequence[Sequence[int]], *, edge: bool) -> Tensor:
    """A random change: uniform in the ball, or at its edge (in L∞ at a corner).

    Each sample has a seed of its own, so that its change depends neither on its batch nor on the device.
    """
    draws = [np.random.default_rng(seed) for seed in seeds]
    shape = tuple(x.shape[1:])
    if norm == "inf":
        drawn = _stacked([draw.random(shape, np.float32) for draw in draws], x) * 2 - 1
        return eps * (drawn.sign() if edge else drawn)
    drawn = eps * _direction(_stacked([draw.standard_normal(shape, np.float32) for draw in draws], x))
    if edge:
        return drawn
    return drawn * beside(_stacked([draw.random((), np.float32) for draw in draws], x) ** (1 / x[0].numel()), x)


def _stacked(values: list[np.ndarray], x: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(values)).to(x.device)


def beside(values: Tensor, x: Tensor) -> Tensor:
    """One value per sample, in a shape that goes with x."""
    return values.view(-1, *[1] * (x.ndim - 1))


def _direction(values: Tensor) -> Tensor:
    """Each sample's values at length 1; the largest is divided out first, because squares of small numbers vanish."""
    for order in (torch.inf, 2):
        length = torch.linalg.vector_norm(values.flatten(1), order, dim=1)
        values = values / beside(torch.where(length > 0, length, 1.0), values)
    return values
