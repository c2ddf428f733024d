"""Batches on their way from a training step to rows: they wait, are read together, and come to the host at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.dynamics.decomposition import MOST_COSINES, Logits
from hardsight.hardness import SCORES
from hardsight.hardness.stacked import read_stacked

# Batches wait until there are so many, or until they hold so many numbers.
_TOGETHER, _TOGETHER_NUMBERS = 16, 1 << 24

STORED = ("angle", "angle_sum", "soft_margin", "margin", "norm", "el2n", "pred")


class Rows(NamedTuple):
    """Samples of one epoch in the order in which they came.

    Attributes:
        values: ``(N,)`` by column.
        logits: What the next epoch is compared with, or None.
        head: Norms and biases ``(2, C)`` of the class weights that the last batch met.
    """

    ids: np.ndarray
    labels: np.ndarray
    values: dict[str, np.ndarray]
    logits: Logits | None
    head: np.ndarray | None

    def take(self, order: np.ndarray) -> Rows:
        values = {name: column[order] for name, column in self.values.items()}
        return Rows(self.ids[order], self.labels[order], values, self.logits and self.logits.take(order), self.head)


class _Batch(NamedTuple):
    features: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor


class _Read(NamedTuple):
    """Some batches of one size after reading, still where they were computed."""

    size: int
    labels: Tensor  # (K·B,)
    values: Tensor  # (columns, K·B)
    heads: Tensor  # (2, K, C)
    cosines: Tensor | None  # (K·B, C)


class Batches:
    """The batches of an epoch. Nothing here waits for a GPU until `rows` is asked."""

    def __init__(self) -> None:
        self._waiting: list[_Batch] = []
        self._read: list[_Read] = []
        self._ids: list[Any] = []
        self._samples = 0
        self.with_cosines = True
        self.last_weight: Tensor | None = None  # that the latest batch met

    def add(self, ids: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> None:
        """Keep a batch. Everything is copied: the optimiser changes weights in place, a loop may change the rest."""
        if self._waiting and self._waiting[0].features.shape != features.shape:
            self._read_waiting()
        copied = [t if t is None else t.detach().clone() for t in (features, weight, bias, labels.long())]
        self._waiting.append(_Batch(*copied))  # pyrefly: ignore
        self.last_weight = self._waiting[-1].weight
        self._ids.append(ids.detach().clone() if isinstance(ids, Tensor) else list(ids))
        self._samples += len(features)
        numbers = len(features) * max(features.shape[1], len(weight)) + weight.numel()
        if len(self._waiting) >= min(_TOGETHER, max(1, _TOGETHER_NUMBERS // numbers)):
            self._read_waiting()

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        device = waiting[0].features.device

        def stacked(name: str) -> Any:
            if getattr(waiting[0], name) is None:
                return None
            whole = torch.stack([getattr(batch, name) for batch in waiting])
            return whole.cpu() if device.type == "mps" else whole  # it has no float64

        weight, bias, labels = stacked("weight"), stacked("bias"), stacked("labels")
        # A label outside is an error, but found at the end of the epoch: looking now would make the step wait.
        target = labels.clamp(0, weight.shape[1] - 1)
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            reading, cosines, lengths = read_stacked(stacked("features"), weight, target, bias)
            columns = {"angle": reading.angle, "angle_sum": reading.angle_sum, "soft_margin": reading.soft_margin}
            columns |= {name: SCORES[name].of_reading(reading) for name in ("margin", "norm", "el2n")}
            columns["pred"] = reading.pred
            values = torch.stack([columns[name].double() for name in STORED])
            heads = torch.stack([lengths, torch.zeros_like(lengths) if bias is None else bias.double()])
        self.with_cosines &= self._samples * weight.shape[1] <= MOST_COSINES
        kept = cosines.float() if self.with_cosines else None
        self._read.append(_Read(len(waiting[0].features), labels.flatten(), values, heads, kept))

    def rows(self, split: str) -> Rows:
        """All samples of the epoch on the host, in order; then there are none. Integer ids get the split before."""
        self._read_waiting()
        read, ids = self._read, [name for batch in self._ids for name in named(batch, split)]
        self._read, self._ids, self._samples = [], [], 0
        if not read:
            return Rows(np.zeros(0, object), np.zeros(0, np.int64), dict.fromkeys(STORED, np.zeros(0)), None, None)
        values = torch.cat([r.values for r in read], 1).cpu().numpy()
        labels = torch.cat([r.labels for r in read]).cpu().numpy()
        heads = torch.cat([r.heads for r in read], 1).float().cpu().numpy()
        logits = None
        cosines = [r.cosines for r in read if r.cosines is not None]
        if self.with_cosines and len(cosines) == len(read):
            sizes = np.repeat([r.size for r in read], [r.heads.shape[1] for r in read])
            met = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            norms = values[STORED.index("norm")].astype(np.float32)
            logits = Logits(torch.cat(cosines).cpu().numpy(), norms, met, heads[0], heads[1])
        columns = dict(zip(STORED, values, strict=True))
        return Rows(np.array(ids, dtype=object), labels, columns, logits, heads[:, -1])


def named(ids: Any, split: str) -> list[str]:
    """Ids as text; integers get the split before them."""
    values = ids.tolist() if isinstance(ids, (Tensor, np.ndarray)) else ids
    return [f"{split}:{int(i)}" if isinstance(i, (int, np.integer, Tensor)) else str(i) for i in values]


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several processes, one after the other."""
    parts = [part for part in parts if len(part.ids)] or list(parts[:1])
    logits = None
    found = [part.logits for part in parts if part.logits is not None]
    if len(found) == len(parts):
        offsets = np.cumsum([0, *(len(own.lengths) for own in found)])[:-1]
        logits = Logits(
            np.concatenate([own.cosines for own in found]),
            np.concatenate([own.norms for own in found]),
            np.concatenate([own.head + offset for own, offset in zip(found, offsets, strict=True)]).astype(np.int32),
            np.concatenate([own.lengths for own in found]),
            np.concatenate([own.biases for own in found]),
        )
    return Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.labels for part in parts]),
        {name: np.concatenate([part.values[name] for part in parts]) for name in STORED},
        logits,
        parts[0].head,
    )
