"""Batches on their way from a training step to rows: they wait, are read together, and come to the host at the end.

Ids become text, and places among all samples that a recorder has recorded, which it keeps sorted by id.
"""

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
    """Samples of an epoch.

    Attributes:
        ids: As text.
        columns: ``(N,)`` by name: label, scores, and in `head` the batch whose weights a sample met; also cosines
            ``(N, C)``, unless there are too many.
        heads: Norms and biases of the class weights in each batch, ``(2, K, C)``.
    """

    ids: pa.Array
    columns: dict[str, np.ndarray]
    heads: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        # `take` is several times faster than an index in brackets.
        return Rows(self.ids.take(pa.array(rows)), {k: v.take(rows, 0) for k, v in self.columns.items()}, self.heads)


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other, with the columns that all of them have."""
    parts = [part for part in parts if len(part.ids)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    offsets = np.cumsum([0, *(part.heads.shape[1] for part in parts[:-1])], dtype=np.int32)
    columns["head"] = columns["head"] + np.repeat(offsets, [len(part.ids) for part in parts])
    ids, heads = pa.concat_arrays([part.ids for part in parts]), np.concatenate([part.heads for part in parts], 1)
    return Rows(ids, columns, heads)


class _Batch(NamedTuple):
    features: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor

    def versions(self) -> list[int | None]:
        return [None if t.is_inference() else t._version for t in (self.features, self.labels)]


class Batches:
    """The batches of an epoch. Nothing here waits for a CUDA device until `rows` is called."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, _Batch, list[int | None]]] = []
        self._ids: list[Any] = []
        self._read: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []  # labels, scores, heads, cosines
        self._batches = self._samples = 0
        self._with_cosines = True
        self.last_weight: Tensor | None = None  # of the latest batch

    def add(self, ids: Any, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> None:
        """Keep a batch. The head is copied, because the optimizer changes it in place."""
        if self._waiting and self._waiting[0][1].features.shape != features.shape:
            self._read_waiting()
        self.last_weight = weight = weight.detach().clone()
        bias = None if bias is None else bias.detach().clone()
        batch = _Batch(_detached(features), weight, bias, _detached(labels.long()))
        self._waiting.append((as_batch(ids), batch, batch.versions()))
        numbers = len(features) * max(features.shape[1], len(weight)) + weight.numel()
        if len(self._waiting) >= min(_TOGETHER, max(1, _TOGETHER_NUMBERS // numbers)):
            self._read_waiting()

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if any(batch.versions() != versions for _, batch, versions in waiting):
            raise StateError(
                "features or labels were changed in place after update(); give update() a copy: head.features.clone(). "
                f"The last {len(waiting)} batches are not recorded."
            )

        def stacked(tensors: Sequence[Any]) -> Any:
            stack = None if tensors[0] is None else torch.stack(tuple(tensors))
            return stack.cpu() if stack is not None and stack.device.type == "mps" else stack  # it has no float64

        features, weight, bias, labels = map(stacked, zip(*(batch for _, batch, _ in waiting), strict=True))
        # A label outside the classes is reported at the end of the epoch: checking now would make the step wait.
        target = labels.clamp(0, weight.shape[1] - 1)
        with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
            reading = read_classes(features, weight, target, bias, keep_cosines=True)
            columns = {name: SCORES[name].of_reading(reading) for name in ("margin", "norm", "el2n")}
            columns |= {name: getattr(reading, name) for name in STORED if name not in columns}
            scores = torch.stack([columns[name].float().flatten() for name in STORED])
            lengths = torch.linalg.vector_norm(weight.double(), dim=-1).float()
            heads = torch.stack([lengths, torch.zeros_like(lengths) if bias is None else bias.float()])
        self._ids += [ids for ids, _, _ in waiting]
        self._samples += labels.numel()
        self._with_cosines &= self._samples * weight.shape[1] <= MOST_COSINES and reading.cosines is not None
        cosines = reading.cosines if self._with_cosines else None
        self._read.append((labels, scores, heads, cosines if cosines is None else cosines.flatten(0, 1).float()))

    def rows(self, split: str, data: pa.Array | None) -> Rows | None:
        """All samples of the epoch on the host, in order, None without any; afterwards none are left here.

        Args:
            split: What comes before the integers among the ids.
            data: The ids of the data whose indices these are.
        """
        self._read_waiting()
        (read, ids), self._read, self._ids, self._samples = (self._read, self._ids), [], [], 0
        if not read:
            return None
        labels, scores, heads, cosines = zip(*read, strict=True)
        sizes = [size for part in labels for size in [part.shape[1]] * len(part)]
        columns = dict(zip(STORED, torch.cat(scores, 1).cpu().numpy(), strict=True))
        columns["label"] = torch.cat([part.flatten() for part in labels]).cpu().numpy()
        columns["head"] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        texts, columns["outside"] = as_text(ids, split, data)
        if self._with_cosines:
            columns["cosines"] = torch.cat(cosines).cpu().numpy()  # pyrefly: ignore[bad-argument-type]
        return Rows(texts, columns, torch.cat(heads, 1).cpu().numpy())


def _detached(tensor: Tensor) -> Tensor:
    """A tensor that is read later, without its graph. Changes to one made in inference mode would go unnoticed."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def as_batch(ids: Any) -> Tensor | list[int | str]:
    """A copy of a batch's ids: a tensor if all of them are integers, otherwise texts and integers."""
    if isinstance(ids, Tensor):
        return ids.detach().clone()
    plain = [_plain(id_) for id_ in ids]
    integers = all(isinstance(id_, int) and abs(id_) < 1 << 62 for id_ in plain)
    return torch.tensor(plain, dtype=torch.long) if integers else plain


def _plain(id_: Any) -> int | str:
    whole = isinstance(id_, (int, np.integer)) or (isinstance(id_, Tensor) and not id_.is_floating_point())
    # Half of a surrogate pair, as file names may hold, cannot be written as text.
    return int(id_) if whole else str(id_).encode("utf-8", "backslashreplace").decode()


def as_text(batches: list[Tensor | list[int | str]], split: str, data: pa.Array | None) -> tuple[pa.Array, np.ndarray]:
    """Ids of batches as text, and which of them lie outside the data.

    An integer is an index of the data; without data, or outside them, it follows the split.

    Examples:
        >>> as_text([[3, "a"]], "data", None)[0].to_pylist()
        ['data:3', 'a']
        >>> texts, outside = as_text([torch.tensor([1, 2])], "data", pa.array(["x", "y"]))
        >>> texts.to_pylist(), outside.tolist()
        (['y', 'data:2'], [False, True])
    """
    if all(isinstance(batch, Tensor) for batch in batches):
        numbers = torch.cat(batches).cpu().numpy()  # pyrefly: ignore[bad-argument-type]
        texts = pc.binary_join_element_wise(split, pa.array(numbers).cast(pa.string()), ":")
        if data is None:
            return texts, np.zeros(len(texts), bool)
        outside = (numbers < 0) | (numbers >= len(data))
        return pc.coalesce(data.take(pa.array(numbers, mask=outside)), texts), outside
    ids = [id_ for batch in batches for id_ in (batch.tolist() if isinstance(batch, Tensor) else batch)]
    outside = np.array([data is not None and isinstance(i, int) and not 0 <= i < len(data) for i in ids], bool)

    def text(id_: int | str, outside: bool) -> str:
        if isinstance(id_, str):
            return id_
        return f"{split}:{id_}" if data is None or outside else data[id_].as_py()

    return pa.array(map(text, ids, outside), pa.string()), outside


def numbered(previous: pa.Array, ids: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """All ids sorted, and the places of the old and of the given ones among them.

    Examples:
        >>> every, old, new = numbered(pa.array(["b", "d"]), pa.array(["d", "a", "d"]))
        >>> every.to_pylist(), old.tolist(), new.tolist()
        (['a', 'b', 'd'], [1, 2], [2, 0, 2])
    """
    at = pc.index_in(ids, value_set=previous)
    if not at.null_count:
        return previous, np.arange(len(previous)), at.to_numpy().astype(np.int64)
    every = pc.unique(pa.concat_arrays([previous, ids.filter(pc.is_null(at))]))
    every = every.take(pc.sort_indices(every))
    old, new = (pc.index_in(part, value_set=every).to_numpy().astype(np.int64) for part in (previous, ids))
    return every, old, new
