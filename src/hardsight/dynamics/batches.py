"""Batches on their way from a training step to rows: they wait, are read together, and come to the host at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hardsight.dynamics.decomposition import MOST_COSINES, Logits
from hardsight.errors import StateError
from hardsight.scores import SCORES, read_classes

# The most batches that wait, and the most numbers that they hold.
_TOGETHER, _TOGETHER_NUMBERS = 32, 1 << 23

STORED = ("angle", "angle_sum", "soft_margin", "other_angle", "margin", "norm", "el2n", "pred")


class Rows(NamedTuple):
    """Samples of one epoch in the order in which they came.

    Attributes:
        ids: Integers, or texts and integers.
        values: ``(N,)`` by column.
        logits: What the next epoch is compared with, or None.
        head: Norms and biases ``(2, C)`` of the class weights of the last batch.
    """

    ids: np.ndarray
    labels: np.ndarray
    values: dict[str, np.ndarray]
    logits: Logits | None
    head: np.ndarray | None

    def take(self, order: np.ndarray) -> Rows:
        values = {name: column.take(order) for name, column in self.values.items()}
        logits = self.logits and self.logits.take(order)
        return Rows(self.ids.take(order), self.labels.take(order), values, logits, self.head)


NO_ROWS = Rows(np.zeros(0, np.int64), np.zeros(0, np.int64), dict.fromkeys(STORED, np.zeros(0)), None, None)


class _Batch(NamedTuple):
    ids: Any
    features: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor

    def versions(self) -> list[int | None]:
        return [None if t.is_inference() else t._version for t in (self.features, self.labels)]


class _Read(NamedTuple):
    """Some batches of one size after reading, still on their device."""

    size: int
    labels: Tensor  # (K·B,)
    values: Tensor  # (columns, K·B)
    heads: Tensor  # (2, K, C)
    cosines: Tensor | None  # (K·B, C)


class Batches:
    """The batches of an epoch. Nothing here waits for a CUDA device until `rows` is called."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Batch, list[int | None]]] = []
        self._read: list[_Read] = []
        self._ids: list[Any] = []
        self._samples = 0
        self._with_cosines = True
        self.last_weight: Tensor | None = None  # of the latest batch

    def add(self, ids: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> None:
        """Keep a batch. The head is copied, because the optimizer changes it in place."""
        if self._waiting and self._waiting[0][0].features.shape != features.shape:
            self._read_waiting()
        weight = weight.detach().clone()
        bias = None if bias is None else bias.detach().clone()
        ids = ids.detach().clone() if isinstance(ids, Tensor) else list(ids)
        batch = _Batch(ids, _detached(features), weight, bias, _detached(labels.long()))
        self._waiting.append((batch, batch.versions()))
        self.last_weight = weight
        numbers = len(features) * max(features.shape[1], len(weight)) + weight.numel()
        if len(self._waiting) >= min(_TOGETHER, max(1, _TOGETHER_NUMBERS // numbers)):
            self._read_waiting()

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if any(batch.versions() != versions for batch, versions in waiting):
            raise StateError(
                "features or labels were changed in place after update(); give update() a copy: head.features.clone(). "
                f"The last {len(waiting)} batches are not recorded."
            )
        batches = [batch for batch, _ in waiting]
        device = batches[0].features.device

        def stacked(name: str) -> Any:
            if getattr(batches[0], name) is None:
                return None
            stack = torch.stack([getattr(batch, name) for batch in batches])
            return stack.cpu() if device.type == "mps" else stack  # it has no float64

        weight, bias, labels = stacked("weight"), stacked("bias"), stacked("labels")
        # A label outside the classes is reported at the end of the epoch: checking now would make the step wait.
        target = labels.clamp(0, weight.shape[1] - 1)
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            reading = read_classes(stacked("features"), weight, target, bias, keep_cosines=True)
            columns = {name: SCORES[name].of_reading(reading) for name in ("margin", "norm", "el2n")}
            columns |= {name: getattr(reading, name) for name in STORED if name not in columns}
            values = torch.stack([columns[name].double().flatten() for name in STORED])
            lengths = torch.linalg.vector_norm(weight.double(), dim=-1)
            heads = torch.stack([lengths, torch.zeros_like(lengths) if bias is None else bias.double()])
        self._ids += [batch.ids for batch in batches]
        self._samples += labels.numel()
        self._with_cosines &= self._samples * weight.shape[1] <= MOST_COSINES
        keep = self._with_cosines and reading.cosines is not None
        cosines = reading.cosines.flatten(0, 1).float() if keep else None  # pyrefly: ignore
        self._read.append(_Read(len(batches[0].features), labels.flatten(), values, heads, cosines))

    def rows(self) -> Rows:
        """All samples of the epoch on the host, in order; afterwards none are left here."""
        self._read_waiting()
        read, ids = self._read, _concatenated([_on_host(batch) for batch in self._ids])
        self._read, self._ids, self._samples = [], [], 0
        if not read:
            return NO_ROWS
        values = torch.cat([r.values for r in read], 1).cpu().numpy()
        labels = torch.cat([r.labels for r in read]).cpu().numpy()
        heads = torch.cat([r.heads for r in read], 1).float().cpu().numpy()
        columns = dict(zip(STORED, values, strict=True))
        logits = None
        cosines = [r.cosines for r in read if r.cosines is not None]
        if self._with_cosines and len(cosines) == len(read):
            sizes = np.repeat([r.size for r in read], [r.heads.shape[1] for r in read])
            head = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            logits = Logits(torch.cat(cosines).cpu().numpy(), columns["norm"].astype(np.float32), head, *heads)
        return Rows(ids, labels, columns, logits, heads[:, -1])


def _detached(tensor: Tensor) -> Tensor:
    """A tensor that is read later, without its graph. Changes to one made in inference mode would go unnoticed."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def _on_host(ids: Any) -> np.ndarray:
    """Ids of a batch as an array of integers, or else of texts and integers."""
    values = ids.cpu().numpy() if isinstance(ids, Tensor) else np.array([_plain(id_) for id_ in ids], dtype=object)
    if values.dtype == object and all(type(value) is int and abs(value) < 1 << 62 for value in values.tolist()):
        values = values.astype(np.int64)
    return values


def _plain(id_: Any) -> Any:
    whole = isinstance(id_, (int, np.integer)) or (isinstance(id_, Tensor) and not id_.is_floating_point())
    # Half of a surrogate pair, as file names may hold, cannot be written as text.
    return int(id_) if whole else str(id_).encode("utf-8", "backslashreplace").decode()


def _concatenated(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Ids one after the other: integers if all are, otherwise objects."""
    if all(part.dtype != object for part in parts):
        return np.concatenate([np.zeros(0, np.int64), *parts])
    return np.concatenate([part.astype(object) for part in parts])


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows of several processes or commits, one after the other; the head is that of the first."""
    parts = [part for part in parts if len(part.ids)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    logits = [part.logits for part in parts if part.logits is not None]
    ids, labels = _concatenated([part.ids for part in parts]), np.concatenate([part.labels for part in parts])
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in STORED}
    return Rows(ids, labels, values, Logits.joined(logits) if len(logits) == len(parts) else None, parts[0].head)
