"""Samples of several data sets as one, with pictures of one form; and one data set in the form of another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from hardsight.data.samples import ArraySamples, ChosenSamples, Samples
from hardsight.errors import InputError
from hardsight.runs import content_hash

# Weights of red, green and blue in a grey picture, as Pillow has them (ITU-R 601).
_GREY = (0.299, 0.587, 0.114)
_BLOCK = 4096


class JoinedSamples(Samples):
    """Some samples of several data sets as one, with labels of their own.

    Arrays are brought to the size and the colours of the first part, so that all pictures are one tensor; what is
    loaded one by one stays as it is, for the model's preprocessing.

    Args:
        parts: ``(name, samples, rows, labels)`` of each: ids become ``name/id``, `rows` ``(m,)`` are those that are
            meant, and `labels` ``(m,)`` their class indices, whatever the data say.

    Examples:
        >>> digits = ArraySamples(np.zeros((3, 8, 8), np.uint8), None, "test", "three digits")
        >>> one = np.array([1])
        >>> both = JoinedSamples([("a", digits, one, np.array([7])), ("b", digits, one, np.array([4]))])
        >>> both.id(1), both.labels.tolist()
        ('b/test:1', [7, 4])
    """

    split = "joined"

    def __init__(self, parts: Sequence[tuple[str, Samples, np.ndarray, np.ndarray]]) -> None:
        if not parts:
            raise InputError("parts must hold a data set or more, got none.")
        self._parts = [(name, samples, *_checked(name, samples, rows, labels)) for name, samples, rows, labels in parts]
        kinds = {samples.pixels for _, samples, *_ in parts}
        if len(kinds) > 1:
            raise InputError("parts: raw pictures and tensors ready to use cannot be joined; give all as one or other.")
        self.pixels = kinds.pop()
        self.labels = np.concatenate([labels for *_, labels in self._parts])
        self.classes = next((samples.classes for _, samples, *_ in parts if samples.classes is not None), None)
        self.origin = " and ".join(f"{len(rows):,} samples of {samples.origin}" for _, samples, rows, _ in self._parts)
        self._ends = np.cumsum([len(rows) for _, _, rows, _ in self._parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _place(self, index: int) -> tuple[str, Samples, int, int]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        name, samples, rows, labels = self._parts[part]
        at = index - self._ends[part]  # counted from the end of the part
        return name, samples, int(rows[at]), int(labels[at])

    def id(self, index: int) -> str:
        name, samples, row, _ = self._place(index)
        return f"{name}/{samples.id(row)}"

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        _, samples, row, label = self._place(index)
        if self.tensor is None:
            return samples.load(row, channels)[0], label
        x = self.tensor[index]
        return (x.permute(1, 2, 0).numpy() if self.pixels else x), label

    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def unseen(self) -> str | None:
        return next((samples.unseen for _, samples, *_ in self._parts if samples.unseen), None)

    @cached_property
    def _fingerprint(self) -> str:
        return content_hash(
            *(x for name, samples, *arrays in self._parts for x in (name, samples.fingerprint(), *arrays))
        )

    @cached_property
    def tensor(self) -> Tensor | None:
        """All samples as one tensor ``(n, …)``, None where some must be loaded one by one."""
        found = [values for _, samples, *_ in self._parts if (values := in_memory(samples)) is not None]
        if len(found) < len(self._parts):
            return None
        chosen = [values[torch.from_numpy(rows)] for values, (_, _, rows, _) in zip(found, self._parts, strict=True)]
        if any(values.dtype != torch.uint8 for values in chosen):
            chosen = [values.float() / 255 if values.dtype == torch.uint8 else values.float() for values in chosen]
        return torch.cat([in_form(values, chosen[0].shape[1:]) for values in chosen])


def _checked(name: str, samples: Samples, rows: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    rows, labels = (np.asarray(x) if np.size(x) else np.empty(0, np.int64) for x in (rows, labels))
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or labels.shape != rows.shape or labels.dtype.kind not in "iu":
        raise InputError(
            f"parts: rows and labels of {name!r} must be integers, one of each a sample, got {rows.dtype} {rows.shape} "
            f"and {labels.dtype} {labels.shape}."
        )
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(samples):
        raise InputError(
            f"parts: rows of {name!r} must lie between 0 and {len(samples) - 1}, got {rows.min()} to {rows.max()}."
        )
    return rows.astype(np.int64), labels.astype(np.int64)


def in_memory(samples: Samples) -> Tensor | None:
    """All inputs of a data set as one tensor ``(n, …)``, pictures ``(n, C, H, W)``; None where they must be loaded."""
    if isinstance(samples, JoinedSamples):
        return samples.tensor
    if isinstance(samples, FormedSamples):
        return samples.values
    if isinstance(samples, RelabelledSamples):
        return in_memory(samples.whole)
    if isinstance(samples, ChosenSamples):
        whole = in_memory(samples.whole)
        return None if whole is None else whole[torch.from_numpy(samples.index)]
    if isinstance(samples, ArraySamples):
        images = samples.images[:, None] if samples.images.ndim == 3 else samples.images
        if samples.images.ndim == 4 and images.shape[-1] in (1, 3, 4):  # as `pictures.channels_last` tells them apart
            images = images.transpose(0, 3, 1, 2)
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            return None
        return torch.from_numpy(images if images.flags.writeable else images.copy())
    dataset = getattr(samples, "_dataset", None)
    if not isinstance(dataset, TensorDataset) or dataset.tensors[0].ndim < 2:
        return None
    index = getattr(samples, "_index", None)
    return dataset.tensors[0] if index is None else dataset.tensors[0][torch.from_numpy(index)]


def in_form(values: Tensor, form: Sequence[int]) -> Tensor:
    """Pictures ``(n, C, H, W)`` resized (bilinear, antialiased) and made grey or coloured: ``(n, *form)``, same dtype.

    Examples:
        >>> in_form(torch.full((1, 3, 2, 2), 100, dtype=torch.uint8), (1, 1, 1)).tolist()
        [[[[100]]]]
    """
    own, form = tuple(values.shape[1:]), tuple(form)
    if own == form:
        return values
    if len(own) != 3 or len(form) != 3 or (own[0] != form[0] and {own[0], form[0]} != {1, 3}):
        raise InputError(
            f"samples of shape {own} cannot be brought to {form}: expected grey or coloured pictures of each."
        )
    out = values.new_empty(len(values), *form)
    for i in range(0, len(values), _BLOCK):
        x = values[i : i + _BLOCK].float()
        if own[0] == 3 and form[0] == 1:
            x = (x * x.new_tensor(_GREY)[:, None, None]).sum(1, keepdim=True)
        if own[1:] != form[1:]:
            x = F.interpolate(x, form[1:], mode="bilinear", antialias=True)
        out[i : i + _BLOCK] = x if values.is_floating_point() else x.round().clamp(0, 255)  # one channel fills three
    return out


def in_form_of(samples: Samples, like: Samples) -> Samples:
    """A data set with its pictures in the size and the colours of another's; itself where it is so, or is loaded.

    Ids and labels stay. A network that was trained on the one then sees the other at the same scale.

    Args:
        samples: The data set.
        like: The other one.

    Examples:
        >>> small, large = (ArraySamples(np.zeros((2, n, n), np.uint8), None, "test", "zeros") for n in (8, 16))
        >>> in_form_of(small, large).images.shape, in_form_of(small, small) is small
        ((2, 16, 16, 1), True)
    """
    values, other = in_memory(samples), in_memory(like)
    if values is None or other is None or values.ndim != 4 or values.shape[1:] == other.shape[1:]:
        return samples
    return FormedSamples(samples, in_form(values, other.shape[1:]))


class FormedSamples(ArraySamples):
    """The pictures of a data set in another size or other colours: its ids and labels, and its fingerprint.

    The form is no part of the fingerprint, so that data opened again are found to be the same.

    Args:
        whole: The data set.
        values: ``(n, C, H, W)`` its pictures in their new form.
    """

    def __init__(self, whole: Samples, values: Tensor) -> None:
        size = " × ".join(map(str, values.shape[1:]))
        ids = [whole.id(i) for i in range(len(whole))]
        origin = f"{whole.origin}, brought to {size}"
        images = values.permute(0, 2, 3, 1).numpy()
        super().__init__(images, whole.labels, whole.split, origin, whole.classes, ids)
        self.whole, self.values = whole, values
        self.pixels, self.source = whole.pixels, whole.source

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        x, label = super().load(index, channels)
        if self.pixels:
            return x, label
        ready = self.values[index]  # channels first, as a network takes it
        return (ready.float() / 255 if ready.dtype == torch.uint8 else ready), label

    def fingerprint(self) -> str:
        return self.whole.fingerprint()


class RelabelledSamples(Samples):
    """A data set with other labels; all else, its fingerprint, too, stays.

    Args:
        whole: The data set.
        labels: ``(n,)`` class indices.
        classes: Their names.

    Examples:
        >>> digits = ArraySamples(np.zeros((2, 8, 8), np.uint8), np.array([0, 1]), "test", "two digits", ["a", "b"])
        >>> turned = RelabelledSamples(digits, np.array([1, 0]), ["b", "a"])
        >>> turned.load(0, None)[1], turned.fingerprint() == digits.fingerprint()
        (1, True)
    """

    def __init__(self, whole: Samples, labels: np.ndarray, classes: Sequence[str] | None) -> None:
        self.whole, self._labels, self.classes = whole, labels, classes
        self.labels = labels
        self.split, self.origin, self.pixels, self.source = whole.split, whole.origin, whole.pixels, whole.source

    def __len__(self) -> int:
        return len(self.whole)

    def id(self, index: int) -> str:
        return self.whole.id(index)

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return self.whole.load(index, channels)[0], int(self._labels[index])

    def fingerprint(self) -> str:
        return self.whole.fingerprint()
