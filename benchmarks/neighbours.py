"""Nearest neighbours in feature space."""

from __future__ import annotations

import torch
from torch import Tensor

from hardsight.angles import unit

BLOCK = 1 << 27  # cosines at a time: half a gigabyte


def neighbours(features: Tensor, reference: Tensor | None = None, k: int = 10) -> tuple[Tensor, Tensor]:
    """Cosines and rows ``(N, k)`` of the nearest neighbours by cosine, nearest first.

    Args:
        features: ``(N, D)``, on any device.
        reference: ``(M, D)`` features to look among, of the training samples for instance; None: the samples
            themselves, each without itself.
        k: How many.

    Examples:
        >>> neighbours(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), k=1)[1].flatten().tolist()
        [1, 0, 1]
    """
    others = len(features) - 1 if reference is None else len(reference)
    if not 1 <= k <= others:
        raise ValueError(f"k must be between 1 and the number of other samples ({others:,}), got {k}.")
    with torch.no_grad():
        own = unit(features)[0]
        among = own if reference is None else unit(reference.to(features.device))[0].to(own.dtype)
        rows = max(1, BLOCK // len(among))
        found = []
        for start in range(0, len(own), rows):
            cosines = own[start : start + rows] @ among.T
            if reference is None:
                each = torch.arange(len(cosines), device=cosines.device)
                cosines[each, start + each] = -torch.inf
            found.append(cosines.topk(k))
    return torch.cat([part.values for part in found]), torch.cat([part.indices for part in found])
