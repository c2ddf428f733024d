"""Batches on their way from a training step to rows: they wait, are read together, and come to the host at the end."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from hardsight.errors import StateError
from hardsight.scores import SCORES, read_classes

# Limits on the waiting batches: their number, and the numbers that they hold.
_TOGETHER, _TOGETHER_NUMBERS = 32, 1 << 23
# Most (samples × classes) whose cosines are kept from one epoch to the next, to be compared.
MOST_COSINES = 20_000_000

STORED = ("angle", "angle_sum", "soft_margin", "other_angle", "margin", "norm", "el2n", "pred")


class Rows(NamedTuple):
    """Samples of an epoch: ids as text, and columns ``(N,)`` by name, among them the label and the scores.

    The column `head` is the batch whose class weights scored a sample; `heads` are the norms and biases of these
    weights, ``(2, K, C)``. There are also cosines ``(N, C)``, unless they are too many.
    """

    ids: pa.Array
    columns: dict[str, np.ndarray]
    heads: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        # `take` is several times faster than an index in brackets.
        return Rows(self.ids.take(pa.array(rows)), {k: v.take(rows, 0) for k, v in self.columns.items()}, self.heads)

    def without(self, ids: pa.Array) -> Rows:
        """The rows of all other samples."""
        return self.take(np.flatnonzero(pc.is_null(pc.index_in(self.ids, value_set=ids)))) if len(ids) else self


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
        self._read: list[tuple[Any, ...]] = []  # ids of each batch, labels, scores, heads, cosines or None
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
        if any(_versions(batch[1], batch[4]) != batch[5] for batch in waiting):
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
        self._samples += labels.numel()
        cosines = reading.cosines if self._samples * weight.shape[1] <= MOST_COSINES else None
        self._with_cosines &= cosines is not None
        self._read.append((ids, labels, scores, heads, None if cosines is None else cosines.flatten(0, 1).float()))

    def rows(self, split: str, data: pa.Array | None) -> Rows | None:
        """All samples of the epoch on the host, in order, or None if there are none; afterwards this object is empty.

        `split` and `data` are those of `as_text`, which also fills the column `outside`.
        """
        self._read_waiting()
        read, self._read, self._samples = self._read, [], 0
        if not read:
            return None
        ids, labels, scores, heads, cosines = zip(*read, strict=True)
        sizes = [size for part in labels for size in [part.shape[1]] * len(part)]
        columns = dict(zip(STORED, torch.cat(scores, 1).cpu().numpy(), strict=True))
        columns["label"] = torch.cat([part.flatten() for part in labels]).cpu().numpy()
        columns["head"] = np.repeat(np.arange(len(sizes)), sizes)
        texts, columns["outside"] = as_text([*itertools.chain(*ids)], split, data)
        if self._with_cosines:
            columns["cosines"] = torch.cat(cosines).cpu().numpy()
        return Rows(texts, columns, torch.cat(heads, 1).cpu().numpy())


def _versions(*tensors: Tensor) -> list[int]:
    """How often each tensor was changed in place."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def as_text(batches: Sequence[Any], split: str, data: pa.Array | None) -> tuple[pa.Array, np.ndarray]:
    """Ids of batches as text, and which of them lie outside the data.

    An integer is an index of the data; without data, or outside them, it follows the split.
    """
    size = 0 if data is None else len(data)
    if all(isinstance(batch, Tensor) for batch in batches):  # at once: a loop over a million takes seconds
        numbers = torch.cat(list(batches)).cpu().numpy()
        inside = (numbers >= 0) & (numbers < size)
        texts = pc.binary_join_element_wise(split, pa.array(numbers).cast(pa.string()), ":")
        if data is not None:
            texts = pc.coalesce(data.take(pa.array(numbers, mask=~inside)), texts)
        return texts, ~inside & (data is not None)
    texts, outside = [], []
    for id_ in (id_ for batch in batches for id_ in (batch.tolist() if isinstance(batch, Tensor) else batch)):
        id_ = id_.item() if isinstance(id_, Tensor) else id_
        number = int(id_) if isinstance(id_, (int, np.integer)) else None
        outside.append(data is not None and number is not None and not 0 <= number < size)
        if number is None:  # half of a surrogate pair, as file names may hold, cannot be written as text
            texts.append(str(id_).encode("utf-8", "backslashreplace").decode())
        else:
            texts.append(data[number].as_py() if data is not None and 0 <= number < size else f"{split}:{number}")
    return pa.array(texts, pa.string()), np.array(outside, bool)


def numbered(ids: pa.Array, more: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Merge ids into sorted ids: all ids, sorted, and the positions of the old and of the others among them."""
    at = pc.index_in(more, value_set=ids)
    if not at.null_count:  # as in every epoch but the first
        return ids, np.arange(len(ids)), at.to_numpy()
    every = pc.unique(pa.concat_arrays([ids, more]))
    every = every.take(pc.sort_indices(every))
    return every, *(pc.index_in(part, value_set=every).to_numpy() for part in (ids, more))
