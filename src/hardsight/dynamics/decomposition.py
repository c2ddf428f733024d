"""Angle or norm? The loss of each sample with one of the two from this epoch and the other from the one before.

A logit is ``‖x‖‖w_k‖ cos θ_k + b_k``. With L(θ, r) the loss at angles θ and at norms and biases r, a recorder keeps
L(θ', r) and L(θ, r') beside L(θ', r'), so that every change of the loss can be divided between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hardsight.records import softplus

# Most (samples × classes) that are compared: their cosines are kept from one epoch to the next.
MOST_COSINES = 20_000_000
# So few at a time that what is computed on the way stays in a processor's cache.
_CHUNK = 1 << 16
_THREADS = 4


@dataclass(frozen=True)
class Logits:
    """Logits of samples in parts: cosines ``(N, C)``, feature norms ``(N,)``, and each sample's head.

    Attributes:
        head: The row of `lengths` and `biases` that belongs to each sample; −1 where the sample is unknown.
    """

    cosines: np.ndarray
    norms: np.ndarray
    head: np.ndarray
    lengths: np.ndarray
    biases: np.ndarray

    @classmethod
    def unknown(cls, n: int, classes: int) -> Logits:
        """Of n samples of which nothing is known."""
        return cls(
            np.zeros((n, classes), np.float32),
            np.zeros(n, np.float32),
            np.full(n, -1, np.int32),
            np.zeros((0, classes), np.float32),
            np.zeros((0, classes), np.float32),
        )

    def take(self, order: np.ndarray) -> Logits:
        """The samples in another order."""
        # Rows in another order: `take` is several times faster than an index in brackets.
        return replace(self, **{k: getattr(self, k).take(order, 0) for k in ("cosines", "norms", "head")})

    @classmethod
    def joined(cls, parts: Sequence[Logits]) -> Logits:
        """Samples of several parts, one after the other."""
        offsets = np.cumsum([0, *(len(part.lengths) for part in parts)])
        heads = [np.where(part.head < 0, -1, part.head + o) for part, o in zip(parts, offsets, strict=False)]
        whole = {k: np.concatenate([getattr(part, k) for part in parts]) for k in vars(parts[0])}
        return cls(**whole | {"head": np.concatenate(heads).astype(np.int32)})

    def updated(self, at: np.ndarray, new: Logits) -> Logits:
        """With samples `at` replaced by new ones; heads that no sample refers to any more are dropped."""
        both = Logits.joined([self, new])
        rows = np.arange(len(self.head))
        rows[at] = len(self.head) + np.arange(len(at))
        taken = both.take(rows)
        used = np.bincount(taken.head + 1, minlength=len(both.lengths) + 1)[1:] > 0
        renumbered = np.concatenate([[-1], np.cumsum(used) - 1]).astype(np.int32)
        head, lengths, biases = renumbered[taken.head + 1], both.lengths[used], both.biases[used]
        return replace(taken, head=head, lengths=lengths, biases=biases)

    def save(self, path: Path) -> None:
        from safetensors.numpy import save

        path.write_bytes(save({name: np.ascontiguousarray(value) for name, value in vars(self).items()}))

    @classmethod
    def load(cls, path: Path) -> Logits | None:
        """What `save` wrote; None where the file holds something else, so that there is nothing to compare with."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            logits = cls(**{name: value.copy() for name, value in load_file(path).items()})
            (n, classes), heads = logits.cosines.shape, len(logits.lengths)
        except (SafetensorError, KeyError, TypeError, ValueError):  # KeyError: a type that numpy does not have
            return None
        shapes = {"cosines": (n, classes), "norms": (n,), "head": (n,)}
        shapes |= dict.fromkeys(("lengths", "biases"), (heads, classes))
        for name, array in vars(cls.unknown(0, 1)).items():
            if getattr(logits, name).shape != shapes[name] or getattr(logits, name).dtype != array.dtype:
                return None
        return logits if not n or -1 <= logits.head.min() <= logits.head.max() < heads else None


def swapped_losses(old: Logits, new: Logits, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Cross-entropy with new angles and old norms, and with old angles and new norms; NaN where there is no old.

    Biases go with the norms: they are whatever of a logit is no angle.
    """
    shared = np.flatnonzero(old.head >= 0)
    step = max(1, _CHUNK // max(1, new.cosines.shape[1]))
    parts = [shared[start : start + step] for start in range(0, len(shared), step)]
    losses = {name: np.full(len(labels), np.nan) for name in ("nll_angles", "nll_norms")}

    def compute(rows: np.ndarray) -> None:
        losses["nll_angles"][rows] = _nll(new.cosines.take(rows, 0), old, rows, labels[rows])
        losses["nll_norms"][rows] = _nll(old.cosines.take(rows, 0), new, rows, labels[rows])

    with ThreadPoolExecutor(_THREADS) as pool:  # NumPy computes in several at once
        list(pool.map(compute, parts))
    return losses


def _nll(cosines: np.ndarray, rest: Logits, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The losses of some rows: at these cosines, and with the norms and biases that they have in `rest`."""
    head = rest.head[rows]
    logits = rest.lengths.take(head, 0).astype(np.float64)
    logits *= cosines
    logits *= rest.norms[rows][:, None]
    logits += rest.biases.take(head, 0)
    logits = np.ascontiguousarray(logits.T)  # a few classes beside each other would be added up one by one
    place = (labels, np.arange(len(labels)))
    target = logits[place]
    logits[place] = -np.inf
    top = logits.max(0)
    soft_margin = top + np.log(np.exp(logits - top).sum(0)) - target
    return softplus(soft_margin)
