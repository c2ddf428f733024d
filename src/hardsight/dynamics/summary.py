"""What is known of each sample after training, from sums that grow by epoch: never more than O(N) numbers.

The names are those of their papers: *forgetting events* (Toneva et al., 2019), *area under the margin* (Pleiss et al.,
2020), *EL2N* (Paul et al., 2021), *confidence, variability* and *correctness* of data maps (Swayamdipta et al., 2020).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from hardsight.records import Block
from hardsight.runs import Meta
from hardsight.table import SampleTable

# What is averaged over the epochs in which a sample was seen, and what the mean is called.
MEANS = {
    "margin": "aum",
    "confidence": "confidence",
    "correct": "correctness",
    "el2n": "el2n",
    "avh": "avh",
    "angle": "angle",
    "norm": "norm",
    "nll": "nll",
}
# What has no upper bound, and whose size tells that an epoch has exploded.
_SIZES = {"margin": "margin", "nll": "margin", "norm": "norm"}
EXPLODED = 10.0

_ARRAYS = ("seen", "forgetting", "learned", "label", "pred", "spread")


class Sizes:
    """How large margins and norms are in each epoch: root mean squares over its samples."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, tuple[int, float]]] = {"margin": {}, "norm": {}}

    def add(self, epoch: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Samples of one epoch or several, each with its margin and norm."""
        epochs, place = np.unique(epoch, return_inverse=True)
        counts = np.bincount(place, minlength=len(epochs))
        for name, sums in self._sums.items():
            squares = np.bincount(place, np.square(values[name].astype(np.float64)), minlength=len(epochs))
            for number, count, square in zip(epochs.tolist(), counts.tolist(), squares.tolist(), strict=True):
                before = sums.get(number, (0, 0.0))
                sums[number] = before[0] + count, before[1] + square

    def factors(self) -> dict[str, dict[int, float]]:
        """By what values of an exploded epoch are multiplied, which brings them to the size of the median epoch."""
        factors = {}
        for name, sums in self._sums.items():
            sizes = {epoch: (square / count) ** 0.5 for epoch, (count, square) in sums.items() if count}
            typical = float(np.median(list(sizes.values()))) if sizes else 0.0
            factors[name] = {epoch: typical / size for epoch, size in sizes.items() if size > EXPLODED * typical > 0}
        return {value: factors[name] for value, name in _SIZES.items() if factors[name]}


class Summary:
    """Running sums over epochs, one entry per sample; `add` takes the epochs of a sample in order."""

    def __init__(self, n: int = 0) -> None:
        self.seen = np.zeros(n, np.int32)
        self.forgetting = np.zeros(n, np.int32)
        self.learned = np.full(n, -1, np.int32)
        self.label = np.full(n, -1, np.int32)
        self.pred = np.full(n, -1, np.int32)
        self.sums = {name: np.zeros(n) for name in MEANS}
        self.spread = np.zeros(n)  # sum of squares of the confidence around its running mean (Welford)

    def __len__(self) -> int:
        return len(self.seen)

    def joined(self, other: Summary) -> Summary:
        """These samples, then the other ones."""
        both = Summary()
        for name in _ARRAYS:
            setattr(both, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        both.sums = {name: np.concatenate([own, other.sums[name]]) for name, own in self.sums.items()}
        return both

    def take(self, order: np.ndarray) -> Summary:
        """The samples in another order."""
        taken = Summary()
        for name in _ARRAYS:
            setattr(taken, name, getattr(self, name)[order])
        taken.sums = {name: own[order] for name, own in self.sums.items()}
        return taken

    def add(
        self, epoch: int, at: np.ndarray, label: np.ndarray, pred: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> None:
        """One epoch: samples `at`, each once and in ascending order, with their values by name (those of `MEANS`)."""
        if len(at) == len(self):
            at = slice(None)  # pyrefly: ignore[bad-assignment] - all of them, which is what most epochs have
        right = pred == label
        was_right = (self.pred[at] == self.label[at]) & (self.seen[at] > 0)
        self.forgetting[at] += was_right & ~right
        learned = self.learned[at]
        self.learned[at] = np.where(right & (learned < 0), epoch, learned)
        seen = self.seen[at] + 1
        before = self.sums["confidence"][at] / np.maximum(seen - 1, 1)
        for name, total in self.sums.items():
            total[at] += values[name]
        p = values["confidence"]
        self.spread[at] += np.where(seen > 1, (p - before) * (p - self.sums["confidence"][at] / seen), 0.0)
        self.seen[at], self.label[at], self.pred[at] = seen, label, pred

    def table(self, ids: pa.Array, meta: Meta | None = None) -> SampleTable:
        """One row per sample that was seen."""
        known = np.flatnonzero(self.seen > 0)
        seen = self.seen[known]
        learned = self.learned[known]
        columns = {
            "id": ids.take(pa.array(known)),
            "label": self.label[known].astype(np.int64),
            "pred": self.pred[known].astype(np.int64),
            "seen": seen,
            "forgetting": self.forgetting[known],
            "learned": pa.array(learned, mask=learned < 0),
            "variability": np.sqrt(self.spread[known] / seen),
        }
        columns |= {MEANS[name]: total[known] / seen for name, total in self.sums.items()}
        return SampleTable(pa.table(columns), meta)


def summarise(
    block: Block, epochs: Collection[int] | None = None, factors: Mapping[str, Mapping[int, float]] | None = None
) -> tuple[Summary, np.ndarray, np.ndarray]:
    """The summary of a block's samples, and the first and the last epoch in which each was seen.

    Args:
        block: The rows.
        epochs: Which epochs count; None all.
        factors: What `Sizes.factors` gives.
    """
    summary, last = Summary(len(block.ids)), np.zeros(len(block.ids), np.int32)
    first = np.full(len(block.ids), np.iinfo(np.int32).max, np.int32)
    epoch = block.table["epoch"].to_numpy()
    values = {name: block.column(name) for name in MEANS}
    label, pred = (block.table[name].to_numpy() for name in ("label", "pred"))
    order = np.argsort(epoch, kind="stable")
    numbers, starts = np.unique(epoch[order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        if epochs is not None and number not in epochs:
            continue
        at, scale = block.code[rows], {name: of.get(number, 1.0) for name, of in (factors or {}).items()}
        scaled = {name: scale.get(name, 1.0) * column[rows] for name, column in values.items()}
        summary.add(number, at, label[rows], pred[rows], scaled)
        first[at], last[at] = np.minimum(first[at], number), number
    return summary, first, last
