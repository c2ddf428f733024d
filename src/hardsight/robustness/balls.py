"""The pictures within ε of a given one: ways into that ball, back into it and up a gradient, in L∞ and L2."""

from __future__ import annotations

from typing import Literal

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


def anywhere(x: Tensor, eps: float, norm: Norm, generator: torch.Generator, *, edge: bool) -> Tensor:
    """A random change: uniform in the ball, or at its edge (in L∞ at a corner)."""
    if norm == "inf":
        drawn = torch.rand(x.shape, generator=generator, device=x.device) * 2 - 1
        return eps * (drawn.sign() if edge else drawn)
    drawn = eps * _direction(torch.randn(x.shape, generator=generator, device=x.device))
    if edge:
        return drawn
    return drawn * beside(torch.rand(len(x), generator=generator, device=x.device) ** (1 / x[0].numel()), x)


def beside(values: Tensor, x: Tensor) -> Tensor:
    """One value a sample, in a shape that goes with x."""
    return values.view(-1, *[1] * (x.ndim - 1))


def _direction(values: Tensor) -> Tensor:
    """Each sample's values at length 1; the largest is divided out first, because squares of small numbers vanish."""
    for order in (torch.inf, 2):
        length = torch.linalg.vector_norm(values.flatten(1), order, dim=1)
        values = values / beside(torch.where(length > 0, length, 1.0), values)
    return values
