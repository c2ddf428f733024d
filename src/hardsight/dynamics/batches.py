"""Batches on their way from a training step to rows: they wait, are read together, and come to the host at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hardsight.errors import StateError
from hardsight.scores import SCORES, read_classes

# The most batches that wait, and the most numbers that they hold.
_TOGETHER, _TOGETHER_NUMBERS = 32, 1 << 23
# Most (samples × classes) whose cosines are kept from one epoch to the next, to be compared.
MOST_COSINES = 20_000_000

STORED = ("angle", "angle_sum", "soft_margin", "other_angle", "margin", "norm", "el2n", "pred")


class Rows(NamedTuple):
    """Samples of an epoch: ids as text, and columns ``(N,)`` by name, among them the label and the scores.

    The column `head` is the batch whose class weights a sample met; `heads` are the norms and biases of these weights,
    ``(2, K, C)``. There are also cosines ``(N, C)``, unless they are too many.
    """

    ids: pa.Array
    columns: dict[str, np.ndarray]
    heads: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        # `take` is several times faster than an index in brackets.
        return Rows(self.ids.take(pa.array(rows)), {k: v.take(rows, 0) for k, v in self.columns.items()}, self.heads)


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other, with the columns that all of them have."""
    parts = [part for part in parts if len(part.ids)] or parts[:1]
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    offsets = np.cumsum([0, *(part.heads.shape[1] for part in parts[:-1])])
    columns["head"] += np.repeat(offsets, [len(part.ids) for part in parts])
    ids, heads = pa.concat_arrays([part.ids for part in parts]), np.concatenate([part.heads for part in parts], 1)
    return Rows(ids, columns, heads)


class Batches:
    """The batches of an epoch. Nothing here waits for a CUDA device until `rows` is called."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, ...]] = []  # ids, features, weight, bias, labels, versions
        self._ids: list[Any] = []  # of each batch
        self._read: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []  # labels, scores, heads, cosines
        self._samples, self._with_cosines = 0, True
        self.last_weight: Tensor | None = None  # of the latest batch

    def add(self, ids: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> None:
        """Keep a batch. The head is copied, because the optimizer changes it in place."""
        if self._waiting and self._waiting[0][1].shape != features.shape:
            self._read_waiting()
        # Changes to a tensor that was made in inference mode would go unnoticed.
        features, labels = (t.clone() if t.is_inference() else t.detach() for t in (features, labels.long()))
        self.last_weight = weight = weight.detach().clone()
        bias = None if bias is None else bias.detach().clone()
        ids = ids.detach().clone() if isinstance(ids, Tensor) else [*ids]
        self._waiting.append((ids, features, weight, bias, labels, _versions(features, labels)))
        numbers = len(features) * max(features.shape[1], len(weight)) + weight.numel()
        if len(self._waiting) >= min(_TOGETHER, max(1, _TOGETHER_NUMBERS // numbers)):
            self._read_waiting()

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if any(_versions(features, labels) != versions for _, features, _, _, labels, versions in waiting):
            raise StateError(
                "features or labels were changed in place after update(); give update() a copy: head.features.clone(). "
                f"The last {len(waiting)} batches are not recorded."
            )

        def stacked(tensors: Sequence[Any]) -> Any:
            stack = None if tensors[0] is None else torch.stack(tuple(tensors))
            return stack.cpu() if stack is not None and stack.device.type == "mps" else stack  # it has no float64

        ids, *tensors, _ = zip(*waiting, strict=True)
        features, weight, bias, labels = map(stacked, tensors)
        # A label outside the classes is reported at the end of the epoch: checking now would make the step wait.
        target = labels.clamp(0, weight.shape[1] - 1)
        with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
            reading = read_classes(features, weight, target, bias, keep_cosines=True)
            columns = {name: SCORES[name].of_reading(reading) for name in ("margin", "norm", "el2n")}
            columns |= {name: getattr(reading, name) for name in STORED if name not in columns}
            scores = torch.stack([columns[name].float().flatten() for name in STORED])
            lengths = torch.linalg.vector_norm(weight.double(), dim=-1).float()
            heads = torch.stack([lengths, torch.zeros_like(lengths) if bias is None else bias.float()])
        self._ids += ids
        self._samples += labels.numel()
        self._with_cosines &= self._samples * weight.shape[1] <= MOST_COSINES and reading.cosines is not None
        cosines = reading.cosines if self._with_cosines else None
        self._read.append((labels, scores, heads, cosines if cosines is None else cosines.flatten(0, 1).float()))

    def rows(self, split: str, data: Sequence[str] | None) -> Rows | None:
        """All samples of the epoch on the host, in order, None without any; afterwards none are left here.

        `split` and `data` are those of `as_text`, which also fills the column `outside`.
        """
        self._read_waiting()
        (read, ids), self._read, self._ids, self._samples = (self._read, self._ids), [], [], 0
        if not read:
            return None
        labels, scores, heads, cosines = zip(*read, strict=True)
        sizes = [size for part in labels for size in [part.shape[1]] * len(part)]
        columns = dict(zip(STORED, torch.cat(scores, 1).cpu().numpy(), strict=True))
        columns["label"] = torch.cat([part.flatten() for part in labels]).cpu().numpy()
        columns["head"] = np.repeat(np.arange(len(sizes)), sizes)
        texts, columns["outside"] = as_text(ids, split, data)
        if self._with_cosines:
            columns["cosines"] = torch.cat(cosines).cpu().numpy()  # pyrefly: ignore[bad-argument-type]
        return Rows(texts, columns, torch.cat(heads, 1).cpu().numpy())


def _versions(*tensors: Tensor) -> list[int]:
    """How often each tensor was changed in place."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def as_text(batches: Sequence[Any], split: str, data: Sequence[str] | None) -> tuple[pa.Array, np.ndarray]:
    """Ids of batches as text, and which of them lie outside the data.

    An integer is an index of the data; without data, or outside them, it follows the split.

    Examples:
        >>> texts, outside = as_text([[1, "a"], torch.tensor([2])], "data", ["x", "y"])
        >>> texts.to_pylist(), outside.tolist()
        (['y', 'a', 'data:2'], [False, False, True])
    """
    names, texts, outside = data or (), [], []
    for id_ in (id_ for batch in batches for id_ in (batch.tolist() if isinstance(batch, Tensor) else batch)):
        if isinstance(id_, (int, np.integer)) or (isinstance(id_, Tensor) and not id_.is_floating_point()):
            number = int(id_)
            inside = 0 <= number < len(names)
            texts.append(names[number] if inside else f"{split}:{number}")
            outside.append(data is not None and not inside)
        else:  # half of a surrogate pair, as file names may hold, cannot be written as text
            texts.append(str(id_).encode("utf-8", "backslashreplace").decode())
            outside.append(False)
    return pa.array(texts, pa.string()), np.array(outside, bool)


def numbered(ids: pa.Array, more: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """All ids sorted, and the places of the old ones, which are sorted, and of the others among them.

    Examples:
        >>> every, old, new = numbered(pa.array(["b", "d"]), pa.array(["d", "a", "d"]))
        >>> every.to_pylist(), old.tolist(), new.tolist()
        (['a', 'b', 'd'], [1, 2], [2, 0, 2])
    """
    every = pc.unique(pa.concat_arrays([ids, more]))
    every = every.take(pc.sort_indices(every)) if len(every) > len(ids) else ids
    old, new = (pc.index_in(part, value_set=every).to_numpy().astype(np.int64) for part in (ids, more))
    return every, old, new
