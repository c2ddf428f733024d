"""Do the samples that lie nearest in feature space have the same label?"""

from __future__ import annotations

from typing import Any

import numpy as np
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


def neighbour_agreement(
    features: Any,
    labels: Any,
    reference: Any = None,
    reference_labels: Any = None,
    *,
    k: int = 10,
    softness: float | None = None,
) -> np.ndarray:
    """Share of the nearest neighbours in feature space that have the sample's label.

    Args:
        features: ``(N, D)`` inputs of the last linear layer.
        labels: ``(N,)`` class indices.
        reference: ``(M, D)`` features to look among; None: the samples themselves, each without itself.
        reference_labels: ``(M,)`` class indices of the reference.
        k: How many neighbours.
        softness: Neighbours count by ``exp(cosine / softness)``, .07 is usual; None: all alike.

    Examples:
        >>> neighbour_agreement([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], [0, 1, 1], k=2).tolist()
        [0.0, 0.5, 0.5]
    """
    if (reference is None) != (reference_labels is None):
        raise ValueError("reference and reference_labels go together: give both, or none for the samples themselves.")
    x = torch.as_tensor(features, dtype=torch.float32)
    y = torch.as_tensor(labels, device=x.device)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(f"features must be (N, D) and labels (N,), got {tuple(x.shape)} and {tuple(y.shape)}.")
    among = None if reference is None else torch.as_tensor(reference, dtype=torch.float32, device=x.device)
    theirs = y if reference_labels is None else torch.as_tensor(reference_labels, device=x.device)
    cosines, rows = neighbours(x, among, k)
    same = (theirs[rows] == y[:, None]).double()
    weights = torch.ones_like(same) if softness is None else (cosines.double() / softness).softmax(1)
    return ((same * weights).sum(1) / weights.sum(1)).cpu().numpy()
