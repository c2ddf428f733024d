"""Data sets as samples with labels and stable ids: the protocol, arrays in memory, and columns of rows.

An id is ``split/relative/path`` for files and ``split:index`` for arrays, or comes from the user. It depends on the
sample alone: not on order, loader workers, processes, or files added beside it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import InputError, InputTypeError
from hardsight.extras import first_line, is_graph, printable
from hardsight.runs import Identity, content_hash
from hardsight.scores import MOST_CLASSES
from hardsight.triple import MULTI_LABEL


class MissingColumnError(InputError):
    """The data have no such column: wrong for every sample, so it is an error and not a bad row."""


class Samples:
    """A data set: `load` gives one sample, and the attributes are known without loading any."""

    labels: np.ndarray | None = None  #: All labels, where they are known without loading the samples.
    declared: np.ndarray | None = None  #: Labels that the data set lists although its items may yield others.
    classes: Sequence[str] | None = None  #: Names of the labels, or None.
    split: str = "data"  #: First part of every id.
    pixels: bool = True  #: Whether samples are raw images, for a model's preprocessing, or tensors ready to use.
    images: Any = None  #: All images as one array, where they are one.
    label_key: str = "labels"  #: Name of the labels in their ``.npz``.
    root: Path | None = None  #: The folder, where the data set is a folder of images.
    origin: str = ""  #: What the data set is called in messages.
    source: dict[str, Any] | None = None  #: How `data_of` opens it again; None when it was given as an object.
    version: str | None = None  #: The user's name for this state of data that can change unnoticed.
    #: A user's way from items to the inputs and the labels of a batch, or None; with it, `load` gives items.
    collate: Callable[[list[Any]], tuple[Any, Any]] | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    @cached_property
    def ids(self) -> list[str]:
        """One id per sample."""
        return [f"{self.split}:{index}" for index in range(len(self))]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        """Sample and label (None when there is none). May raise: that makes one bad row."""
        x, label = self._load(index, channels)
        return x, label if self.labels is None else int(self.labels[index])

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        """Sample and the label that comes with it, if any."""
        raise NotImplementedError

    def tensor(self) -> Tensor | None:
        """All samples as one tensor ``(n, …)``, images ``(n, C, H, W)``; None where they must be loaded one by one."""
        return None

    def column(self, name: str) -> list[Any]:
        """A column of a table of samples, read without the images beside it; classes as their names."""
        raise InputError(f"DATA: there is no column {name!r} of {printable(self.origin)}; pass one value per sample.")

    def path(self, index: int) -> Path | None:
        """The file of a sample; None where samples are not files."""
        return None

    def find(self, ids: Sequence[str]) -> list[int | None]:
        """Indices of the samples with these ids; None for ids that the data do not have."""
        index = {id_: i for i, id_ in enumerate(self.ids)}
        return [index.get(id_) for id_ in ids]

    def readable(self, channels: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Those of the first eight samples that can be read, with their labels."""
        for index in range(min(len(self), 8)):
            try:
                sample = self.load(index, channels)
            except MissingColumnError:
                raise
            except Exception:  # noqa: S112 - a bad row later, not a failure here
                continue
            yield sample

    def first(self) -> Any:
        """The first sample that can be read, or None."""
        return next(self.readable(), (None, None))[0]

    @cached_property
    def identity(self) -> Identity:
        """A hash that changes when the data do, computed once; its gaps name data that can change unnoticed."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """The hash of the data; for data that can change unnoticed it is valid in this process only."""
        return self.identity.hash

    def reopened(self) -> Self:
        """The same data set, to be hashed again: it may have changed in place since it was opened."""
        samples = copy(self)
        vars(samples).pop("identity", None)
        return samples


def class_indices(labels: np.ndarray, origin: str) -> np.ndarray:
    """Labels that are class indices, or an error: no booleans, durations, or unlimited numbers."""
    if labels.dtype.kind not in "iu":
        raise InputError(f"DATA: labels of {origin} must be class indices (64-bit integers), got {labels.dtype}.")
    if labels.size and int(labels.max()) >= MOST_CLASSES:
        raise InputError(f"DATA: labels of {origin} must be class indices below {MOST_CLASSES:,}, got {labels.max()}.")
    return labels


def class_index(label: Any) -> int:
    """A label as a class index."""
    if "bool" not in str(getattr(label, "dtype", type(label))):
        with suppress(TypeError):
            return operator.index(label)
    if math.prod(getattr(label, "shape", ())) != 1 or isinstance(label, (list, tuple)):
        raise InputTypeError(f"a label must be one class index: {MULTI_LABEL}.")
    got = "none" if label is None else getattr(label, "dtype", type(label).__name__)
    raise InputTypeError(f"a label must be a class index (an integer), got {got}.")


def all_labels(samples: Samples, argument: str, *, skip: bool = False) -> np.ndarray:
    """Every label as a class index; where they are not known beforehand, every sample is read once.

    A sample that cannot be read is an error. With `skip` it gets the most frequent label, for callers that leave it out
    when it cannot be read again.
    """
    if not len(samples):
        raise InputError(f"{argument} is empty: {samples.origin}.")
    labels, unread = samples.labels, []
    if labels is None:
        labels = np.zeros(len(samples), np.int64)
        for index in range(len(samples)):
            try:
                labels[index] = class_index(samples.load(index, None)[1])
            except MissingColumnError:
                raise
            except Exception as error:
                unread.append(index)
                if not skip or isinstance(error, InputTypeError) or len(unread) == len(samples):
                    sample = f"{printable(samples.ids[index])!r} of {printable(samples.origin)}"
                    reason = first_line(error).rstrip(".")
                    raise InputError(f"{argument}: sample {sample} cannot be used: {reason}.") from error
        values, counts = np.unique(np.delete(labels, unread), return_counts=True)
        labels[unread] = values[counts.argmax()]
    if labels.min() < 0:
        raise InputError(f"{argument}: labels must be class indices from 0, got {int(labels.min())}.")
    return labels.astype(np.int64)


def id_texts(ids: Iterable[Any], name: str = "ids", count: int | None = None, start: int = 0) -> list[str]:
    """Ids as text, `count` of them. A missing id is refused: all samples without one would be the same sample.

    `start` is the row of the first, for messages.
    """
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
        raise InputTypeError(f"{name} must be a list with one id per sample, got {type(ids).__name__}.")
    values = [id_.item() if getattr(id_, "ndim", 1) == 0 else id_ for id_ in ids]
    for row, value in enumerate(values, start):
        if value is None or (isinstance(value, float) and value != value) or str(value) in ("<NA>", "NaT"):
            raise InputError(f"{name}: every sample must have an id, and that of row {row:,} is missing.")
    if count is not None and len(values) != count:
        raise InputError(f"{name} must be one id per sample: expected {count:,}, got {len(values):,}.")
    try:  # a Parquet writer may not mark its bytes as text
        return [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError:
        raise InputError(f"{name} must be text or numbers, got bytes that are not UTF-8.") from None


class ArraySamples(Samples):
    """Images in memory: ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)``; uint8 becomes [0, 1]."""

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray | None,
        split: str,
        origin: str,
        classes: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
    ) -> None:
        if images.ndim not in (3, 4) or (len(images) and not images.size) or images.dtype.kind not in "uif":
            got = f"{images.dtype} {images.shape}"
            raise InputError(f"DATA: images of {origin} must be numbers (N, H, W[, C]), got {got}.")
        if labels is not None:
            labels = labels[:, 0] if labels.shape == (len(images), 1) else labels
            if labels.shape != (len(images),):
                raise InputError(f"DATA: {origin} has {len(images):,} images but labels of shape {labels.shape}.")
            labels = class_indices(labels, origin)
        self.images, self.labels, self.split, self.origin, self.classes = images, labels, split, origin, classes
        self._has_ids = ids is not None
        if ids is not None:
            self.ids = id_texts(ids, f"DATA: ids of {origin}", len(images))

    def __len__(self) -> int:
        return len(self.images)

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return self.images[index], None

    def tensor(self) -> Tensor | None:
        images = self.images[:, None] if self.images.ndim == 3 else self.images
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            return None
        if self.images.ndim == 4 and images.shape[-1] in (1, 3, 4):
            images = images.transpose(0, 3, 1, 2)
        return torch.from_numpy(images if images.flags.writeable else images.copy())

    @cached_property
    def identity(self) -> Identity:
        ids = [self.ids] if self._has_ids else []
        return Identity(content_hash(self.images, self.labels, self.split, *ids), ())


IMAGE_COLUMNS = ("image", "img", "pixel_values", "x")
_TOKEN_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")  # what a tokenizer of Hugging Face writes
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "targets", "class", "y")


@dataclass(frozen=True)
class Columns:
    """Which columns of a row hold the image, the label and the id.

    Examples:
        >>> Columns(label="coarse").read({"image": "a cat", "fine": 3, "coarse": 0})
        ('a cat', 0)
    """

    image: str | None = None
    label: str | None = None
    id: str | None = None

    def read(self, item: Any) -> tuple[Any, Any]:
        """``(x, label)`` of an item in any of the usual forms."""
        if isinstance(item, Mapping):
            image, label = pick_column(item, self.image, IMAGE_COLUMNS), self.label_in(item)
            tokens = {name: torch.as_tensor(item[name]) for name in _TOKEN_COLUMNS if image is None and name in item}
            if image is None and not tokens:
                raise MissingColumnError(f"DATA has no image column and no input_ids; columns: {shortened(item)}.")
            return tokens or item[image], None if label is None else item[label]
        if is_graph(item):
            return item, item.y
        return (*item[:2], None)[:2] if isinstance(item, (tuple, list)) else (item, None)

    def split(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and labels (None when there are none) of a batch that a user's function made."""
        if isinstance(batch, Mapping):
            label = next((name for name in (self.label, *LABEL_COLUMNS) if name in batch), None)
            return {name: batch[name] for name in batch if name != label}, None if label is None else batch[label]
        return (*batch[:2], None)[:2] if isinstance(batch, (tuple, list)) else (batch, None)

    def label_in(self, names: Collection[str]) -> str | None:
        """The label column among these names, or None."""
        return pick_column(names, self.label, LABEL_COLUMNS)


def pick_column(names: Collection[str], given: str | None, usual: Sequence[str], data: str = "DATA") -> str | None:
    """The column that the user names, or the first with a usual name; None where there is none."""
    if given is not None and given not in names:
        raise MissingColumnError(f"{data} has no column {given!r}; columns: {shortened(names)}.")
    return given or next((name for name in usual if name in names), None)


def shortened(names: Iterable[str]) -> str:
    """The first dozen names, for a message."""
    return ", ".join(printable(name)[:80] for name in islice(names, 12)) or "nothing"
