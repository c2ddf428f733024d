"""Data sets made of others: some rows, other labels, images of another size, several as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hardsight.data.samples import Samples
from hardsight.errors import InputError
from hardsight.runs import Identity, content_hash

_GRAY = (0.299, 0.587, 0.114)  # weights of red, green and blue, as in Pillow (ITU-R 601)
_BLOCK = 4096


class View(Samples):
    """Some samples of a data set under the ids they have there, perhaps with other labels or resized images.

    Labels and sizes are not part of the fingerprint, so a view of data opened again is the same data.

    Args:
        whole: The data set.
        rows: Which of its samples, in which order; all if not given.
        labels: Class indices of these samples, instead of those in the data.
        classes: Names of `labels`.
        resized: ``(N, C, H, W)``, all images of the data set in another form, where all rows are taken.
    """

    def __init__(
        self,
        whole: Samples,
        rows: np.ndarray | None = None,
        *,
        labels: np.ndarray | None = None,
        classes: Sequence[str] | None = None,
        resized: Tensor | None = None,
    ) -> None:
        self.whole, self._all, self._resized = whole, rows is None, resized
        self.rows = np.arange(len(whole)) if rows is None else np.asarray(rows, dtype=np.int64)
        self.labels, self.classes = labels, classes
        if labels is None:
            self.labels, self.declared = (
                None if values is None else values[self.rows] for values in (whole.labels, whole.declared)
            )
            self.classes = whole.classes
        self.collate = whole.collate
        self.split, self.pixels, self.source = whole.split, whole.pixels, whole.source if self._all else None
        self.origin = whole.origin if self._all else f"{len(self):,} samples of {whole.origin}"
        if resized is not None:
            self.origin += f", resized to {' × '.join(map(str, resized.shape[1:]))}"

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def ids(self) -> list[str]:
        ids = self.whole.ids
        return [ids[row] for row in self.rows]

    def column(self, name: str) -> list[Any]:
        values = self.whole.column(name)
        return [values[row] for row in self.rows]

    def path(self, index: int) -> Path | None:
        return self.whole.path(int(self.rows[index]))

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        if self._resized is None:
            return self.whole.load(int(self.rows[index]), channels)
        values = self._resized[index]
        return values.permute(1, 2, 0).numpy() if self.pixels else _unit(values), None

    def tensor(self) -> Tensor | None:
        values = self.whole.tensor() if self._resized is None else self._resized
        return values if values is None or self._all else values[torch.from_numpy(self.rows)]

    @cached_property
    def identity(self) -> Identity:
        whole = self.whole.identity
        return whole if self._all else whole._replace(hash=content_hash(whole.hash, self.rows))

    def reopened(self) -> Self:
        view = super().reopened()
        view.whole = self.whole.reopened()
        if self._resized is not None and (values := view.whole.tensor()) is not None:
            view._resized = in_form(values, self._resized.shape[1:])
        return view


class JoinedSamples(Samples):
    """Several labeled data sets as one, with ids ``name/id``.

    Images in memory are brought to the size and the colors of the first part, so that all are one tensor; what is
    loaded one by one is unchanged, for the model's preprocessing. The parts are all raw images or all tensors.
    """

    split = "joined"

    def __init__(self, parts: dict[str, Samples]) -> None:
        first = next(iter(parts.values()))
        self._names, self._parts = list(parts), [in_form_of(part, first) for part in parts.values()]
        self.pixels = first.pixels
        if any(part.collate is not None for part in parts.values()):
            raise InputError(
                "data sets are joined sample by sample: pass them without a DataLoader's collate function."
            )
        self.labels = np.concatenate([np.asarray(part.labels) for part in self._parts])
        named = {tuple(part.classes or ()) for part in parts.values()}
        self.classes = first.classes if len(named) == 1 else None
        self.origin = " and ".join(part.origin for part in parts.values())
        self._ends = np.cumsum([len(part) for part in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def ids(self) -> list[str]:
        return [f"{name}/{id_}" for name, part in zip(self._names, self._parts, strict=True) for id_ in part.ids]

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part].load(index - int(self._ends[part]) + len(self._parts[part]), channels)

    def tensor(self) -> Tensor | None:
        tensors = [tensor for part in self._parts if (tensor := part.tensor()) is not None]
        if len(tensors) < len(self._parts):
            return None
        if any(values.dtype != torch.uint8 for values in tensors):
            tensors = [_unit(values).float() for values in tensors]
        return torch.cat([in_form(values, tensors[0].shape[1:]) for values in tensors])

    @cached_property
    def identity(self) -> Identity:
        parts = [part.identity for part in self._parts]
        gaps = tuple(gap for part in parts for gap in part.gaps)
        return Identity(content_hash(self._names, [part.hash for part in parts], self.labels), gaps)

    def reopened(self) -> Self:
        joined = super().reopened()
        joined._parts = [part.reopened() for part in self._parts]
        return joined


def _unit(values: Tensor) -> Tensor:
    return values.float() / 255 if values.dtype == torch.uint8 else values


def in_form(values: Tensor, form: Sequence[int]) -> Tensor:
    """Images ``(n, C, H, W)`` resized (bilinear, antialiased) and made gray or RGB: ``(n, *form)``, same dtype.

    Examples:
        >>> in_form(torch.full((1, 3, 2, 2), 100, dtype=torch.uint8), (1, 1, 1)).tolist()
        [[[[100]]]]
    """
    shape, form = tuple(values.shape[1:]), tuple(form)
    if shape == form:
        return values
    if len(shape) != 3 or len(form) != 3 or (shape[0] != form[0] and {shape[0], form[0]} != {1, 3}):
        raise InputError(f"samples of shape {shape} cannot be brought to {form}: expected gray or RGB images of each.")
    out = values.new_empty(len(values), *form)
    for i in range(0, len(values), _BLOCK):
        x = values[i : i + _BLOCK].float()
        if shape[0] == 3 and form[0] == 1:
            x = (x * x.new_tensor(_GRAY)[:, None, None]).sum(1, keepdim=True)
        if shape[1:] != form[1:]:
            x = F.interpolate(x, form[1:], mode="bilinear", antialias=True)
        out[i : i + _BLOCK] = x if values.is_floating_point() else x.round().clamp(0, 255)  # one channel fills three
    return out


def in_form_of(samples: Samples, like: Samples) -> Samples:
    """A data set with its images in the size and the colors of another's, so that a network sees both at one scale.

    Returns the data set itself if it has that form, or if images are loaded one by one.
    """
    values, other = samples.tensor(), like.tensor()
    if values is None or other is None or values.ndim != 4 or values.shape[1:] == other.shape[1:]:
        return samples
    return View(samples, resized=in_form(values, other.shape[1:]))
