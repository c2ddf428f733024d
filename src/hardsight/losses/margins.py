"""The soft margin ``m = logsumexp_{k≠y}(z_k) − z_y``, of which every objective is a function.

``p_y = sigmoid(−m)``, cross-entropy is ``softplus(m)`` and the normal Encouraging Loss is ``m`` itself. It is taken
from the pair ``(z_y, logsumexp_{k≠y} z_k)``: made from a likelihood it would be lost where p rounds to 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hardsight.angles import working_dtype


def soft_margin(logits: Tensor, target: Tensor) -> Tensor:
    """The soft margin of the target class: negative where the target beats all others together.

    Args:
        logits: ``(N, C, …)``, two classes or more.
        target: ``(N, …)`` class indices.

    Returns:
        ``(N, …)`` in float32 or better. With a single other class it is the difference of two logits.

    Examples:
        >>> soft_margin(torch.tensor([[40.0, 1.0, 1.0]]), torch.tensor([0]))  # p = 1 − 2e-17
        tensor([-38.3069])
    """
    z = logits.to(working_dtype(logits))
    mine = chosen(z, target)
    if torch.compiler.is_compiling():  # the gradient of `gather` is a scatter, which compiles to kernels of its own
        own = torch.where(mine.any(1), torch.where(mine, z, 0).sum(1), math.nan)  # `gather` would raise
    else:
        own = z.gather(1, target.long().unsqueeze(1)).squeeze(1)
    others = z.masked_fill(mine, -math.inf)
    # Relative to the largest: a `logsumexp` of 1e4 has lost the digits from which its gradient is made. The level
    # cancels in the derivative, so it is a constant to autograd.
    level = others.detach().amax(1, keepdim=True)
    masked = level == -math.inf  # all other logits are −inf: so is m, with a slope of −1 at the target and 0 elsewhere
    total = (others - level.masked_fill(masked, 0)).exp().sum(1).masked_fill(masked.squeeze(1), 1)
    return total.log() + (level.squeeze(1) - own)


def soft_margins(logits: Tensor) -> Tensor:
    """The soft margin of every class, as if each were the target in turn.

    ``log(1 − p_k) − log p_k`` is exact while p_k ≤ ½; the one class that may be above is taken from its own pair.

    Args:
        logits: ``(N, C, …)``, two classes or more.

    Returns:
        ``(N, C, …)`` in float32 or better.

    Examples:
        >>> soft_margins(torch.tensor([[0.0, 0.0, 0.0, 0.0]]))  # log 3: three others as large
        tensor([[1.0986, 1.0986, 1.0986, 1.0986]])
    """
    z = logits.to(working_dtype(logits))
    top = z.argmax(1)
    log_p = z.log_softmax(1)
    others = torch.log1p(-log_p.exp().clamp_max(0.6)) - log_p  # finite also where the other branch is taken
    return torch.where(chosen(z, top), soft_margin(z, top).unsqueeze(1), others)


def chosen(logits: Tensor, classes: Tensor) -> Tensor:
    """Which entries of ``(N, C, …)`` belong to the class chosen in ``(N, …)``."""
    index = torch.arange(logits.shape[1], device=logits.device)
    return classes.unsqueeze(1) == index.view(-1, *[1] * (logits.ndim - 2))
