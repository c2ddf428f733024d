"""Temperature scaling and uncertainty, which need only logits or probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from scipy.special import entr, rel_entr
from torch import Tensor

from hardsight.errors import InputError
from hardsight.scores import check_labels, check_logits
from hardsight.triple import as_tensor

TEMPERATURES = (1e-3, 1e3)  # the range of temperatures
# Numbers read at a time, and samples that a first guess of the temperature is made from.
_NUMBERS, _FEW = 4_096_000, 4096
# The sum of a row's probabilities may differ from 1 by this much: half precision, over many classes.
_SUM = 0.02


class Uncertainty(NamedTuple):
    """Uncertainty of every sample ``(N,)``, in nats; ``total = aleatoric + epistemic``."""

    total: np.ndarray  # entropy of the mean prediction
    aleatoric: np.ndarray  # mean entropy of the predictions
    epistemic: np.ndarray  # mutual information: how much the predictions differ


def uncertainty(probabilities: Any) -> Uncertainty:
    """The uncertainty of several predictions (MC-dropout passes, networks) in its two parts, neither ever negative.

    Args:
        probabilities: ``(T, N, C)``: T predictions for N samples.

    Examples:
        >>> opposite = uncertainty([[[1.0, 0.0]], [[0.0, 1.0]]])
        >>> opposite.aleatoric.tolist(), opposite.epistemic.round(4).tolist()
        ([0.0], [0.6931])
    """
    p = check_predictions(probabilities)
    mean = np.maximum(p.mean(0, dtype=np.float64), np.finfo(np.float64).tiny)  # of values above 0 it must not be 0
    aleatoric, epistemic = np.zeros(p.shape[1]), np.zeros(p.shape[1])
    for prediction in p:  # one at a time: (T, N, C) may be large, and float64 twice that
        prediction = prediction.astype(np.float64)
        aleatoric += entr(prediction).sum(1) / len(p)
        # Their mean distance from the mean, not the difference of the entropies: no digits cancel.
        epistemic += rel_entr(prediction, mean).sum(1) / len(p)
    aleatoric, epistemic = np.maximum(aleatoric, 0.0), np.maximum(epistemic, 0.0)
    return Uncertainty(aleatoric + epistemic, aleatoric, epistemic)


def check_predictions(probabilities: Any) -> np.ndarray:
    """``(T, N, C)``, T predictions for N samples, as an array; or one sentence about what is wrong."""
    p = probabilities.detach().float().cpu().numpy() if isinstance(probabilities, Tensor) else np.asarray(probabilities)
    if p.ndim != 3 or not p.size:
        raise InputError(f"probabilities must have shape (T, N, C), T predictions for N samples, got {p.shape}.")
    for prediction in p:
        check_probabilities("probabilities", prediction)
    return p


def check_probabilities(name: str, probabilities: Any) -> Tensor:
    """Probabilities ``(N, C)`` in float64 on the CPU with rows that sum to 1, or one sentence about what is wrong."""
    p = as_tensor(name, probabilities).detach().cpu()
    if p.ndim != 2 or p.shape[1] < 2 or not len(p) or p.is_complex() or p.dtype == torch.bool:
        got = f"{p.dtype} {tuple(p.shape)}"
        raise InputError(f"{name} must be probabilities (samples, classes) of two classes or more, got {got}.")
    p = p.double()
    total = p.sum(1)
    faults = {
        "hold NaN or infinity": ~torch.isfinite(p).all(1),
        "hold negative numbers": (p < 0).any(1),
        "do not sum to 1": (total - 1).abs() > _SUM,
    }
    for fault, rows in faults.items():
        if rows.any():
            row = int(rows.nonzero()[0, 0])
            example = f"row {row} sums to {float(total[row]):.4g}" if "sum" in fault else f"row {row} is the first"
            raise InputError(
                f"{name} must be probabilities, but {int(rows.sum()):,} of {len(p):,} rows {fault} ({example}); of "
                "logits take the softmax first."
            )
    return p / total[:, None]


def fit_temperature(logits: Any, labels: Any) -> float:
    """The temperature T that minimizes the negative log-likelihood of ``logits / T`` within `TEMPERATURES`.

    If every label has the largest logit, that is the lower bound; if logits are uninformative, the upper one.

    Args:
        logits: ``(N, C)``, for data that the network was not trained on.
        labels: ``(N,)`` class indices.

    Examples:
        >>> round(fit_temperature([[4.0, 0.0]] * 3 + [[0.0, 4.0]], [0, 0, 0, 0]), 4)  # right 3 times in 4: 4 / log 3
        3.641
    """
    z = check_logits(logits)
    y = check_labels(labels, len(z), z.shape[1]).to(z.device)
    return _fit(lambda: ((z[part], y[part]) for part in blocks(z)), len(z))


def fit_temperature_in_parts(parts: Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]], n: int) -> float:
    """`fit_temperature` for n samples that are not all in memory at once.

    Args:
        parts: Returns logits ``(M, C)`` and labels ``(M,)`` in batches; it is called for every step.
        n: The total number of samples.
    """
    return _fit(lambda: ((torch.from_numpy(z).double(), torch.from_numpy(y)) for z, y in parts()), n)


_Parts: TypeAlias = Callable[[], Iterable[tuple[Tensor, Tensor]]]  # logits and labels, in batches


def _fit(parts: _Parts, n: int) -> float:
    step, start, few, largest, apart = max(n // _FEW, 1), 0, [], True, 0.0
    for z, y in parts():
        target = z.gather(1, y[:, None])[:, 0]
        largest = largest and bool((z.amax(1) == target).all())
        apart += float((z.mean(1) - target).sum(dtype=torch.float64))
        if n > 2 * _FEW:  # as copies: a view would keep the part in memory
            few.append((z[-start % step :: step].clone(), y[-start % step :: step].clone()))
        start += len(z)
    # The slope by 1/T is Σ (mean logit − target) at T = ∞ and Σ (largest − target) at T = 0; it only grows.
    if largest:
        return TEMPERATURES[0]
    if apart >= 0:
        return TEMPERATURES[1]
    low, inverse, high = 1 / TEMPERATURES[1], 1.0, 1 / TEMPERATURES[0]
    if n > 2 * _FEW:  # most steps use a few samples, so that one or two with all of them are enough
        some = [torch.cat(each) for each in zip(*few, strict=True)]
        inverse = 1 / _fit(lambda: [(some[0], some[1])], len(some[0]))
    tried: set[float] = set()
    for _ in range(100):
        slope, curvature = _slopes(parts, n, inverse)
        tried.add(inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = float(np.clip(inverse - slope / curvature, low, high)) if curvature > 0 else low
        if step in tried and slope:  # Newton's step overshoots the minimum: go half way on a logarithmic scale
            step = float(np.sqrt(low * high))
        moved, inverse = abs(step - inverse), step
        if low >= high or moved <= 1e-4 * inverse:  # at a bound; or the next step would be about the square of this
            break
    return float(np.clip(1 / inverse, *TEMPERATURES))


def _slopes(parts: _Parts, n: int, inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean negative log-likelihood by 1/T."""
    slope = curvature = 0.0
    for block, labels in parts():
        below = block - block.amax(1, keepdim=True)
        weights = (below * inverse).exp_()
        total, target = weights.sum(1), below.gather(1, labels[:, None])[:, 0]
        mean = weights.mul_(below).sum(1).div_(total).double()
        square = weights.mul_(below).sum(1).div_(total).double()
        slope += float((mean - target).sum())
        curvature += float((square - mean**2).sum())
    return slope / n, curvature / n


def blocks(values: Tensor) -> Iterator[slice]:
    """Rows that are read at a time."""
    rows = max(1, _NUMBERS // values.shape[1])
    return (slice(start, start + rows) for start in range(0, len(values), rows))
