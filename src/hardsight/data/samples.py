"""Data sets as samples with labels and stable ids: the protocol, arrays in memory, and columns of rows.

An id is ``split/relative/path`` for files and ``split:index`` for arrays, or comes from the user. It depends on the
sample alone: not on order, loader workers, processes, or files added beside it.
"""

from __future__ import annotations

import operator
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.errors import InputError, InputTypeError
from hardsight.extras import first_line, printable
from hardsight.runs import UNIDENTIFIED, content_hash
from hardsight.scores import MOST_CLASSES


class MissingColumnError(InputError):
    """The data have no such column: wrong for every sample, so it is an error and not a bad row."""


class Samples:
    """A data set: `load` gives one sample, and the attributes are known without loading any.

    Attributes:
        ids: One id per sample.
        labels: All labels, where they are known without loading the samples.
        listed: Labels that the data set lists although its items may yield others; None where `labels` are known.
        classes: Names of the labels, or None.
        split: First part of every id.
        pixels: Whether samples are raw images (they need a model's preprocessing) or tensors ready to use.
        images: All images as one array, where they are one.
        label_key: Name of the labels in their ``.npz``.
        root: The folder, where the data set is a folder of images.
        origin: What the data set is called in messages.
        source: How to open it again, as `data_of` takes it; None when it was given as an object.
        version: The user's label for this state of data that can change unnoticed; see `unseen`.
    """

    labels: np.ndarray | None = None
    listed: np.ndarray | None = None
    classes: Sequence[str] | None = None
    split: str = "data"
    pixels: bool = True
    images: Any = None
    label_key: str = "labels"
    root: Path | None = None
    origin: str = ""
    source: dict[str, Any] | None = None
    version: str | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    @cached_property
    def ids(self) -> list[str]:
        return [f"{self.split}:{index}" for index in range(len(self))]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        """Sample and label (None when there is none). May raise: that makes one bad row."""
        raise NotImplementedError

    def tensor(self) -> Tensor | None:
        """All samples as one tensor ``(n, …)``, images ``(n, C, H, W)``; None where they must be loaded one by one."""
        return None

    def path(self, index: int) -> Path | None:
        """The file of a sample; None where samples are not files."""
        return None

    def find(self, ids: Sequence[str]) -> list[int | None]:
        """Indices of the samples with these ids; None for ids that the data do not have."""
        index: dict[str, int | None] = dict.fromkeys(ids)
        index |= {id_: i for i, id_ in enumerate(self.ids) if id_ in index}
        return [index[id_] for id_ in ids]

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

    def fingerprint(self) -> str:
        """Hash that changes when the data do; of data that can change unnoticed it holds in this process only."""
        raise NotImplementedError

    def identity(self) -> str:
        """The fingerprint for a plan on disk: of data that can change unnoticed, different on every call."""
        return self.fingerprint() if self.unseen is None else f"{self.fingerprint()}-{secrets.token_hex(8)}"

    @property
    def unseen(self) -> str | None:
        """The kind of data, where they can change unnoticed and have no version; otherwise None."""
        return None


def version_hint(*several: Samples | None) -> dict[str, Any]:
    """An entry for a plan over data that can change unnoticed, so that a refusal to resume says what to do."""
    kinds = [samples.unseen for samples in several if samples is not None and samples.unseen]
    return {UNIDENTIFIED: {"what": kinds}} if kinds else {}


def class_indices(labels: np.ndarray, origin: str) -> np.ndarray:
    """Labels that are class indices, or an error: no booleans, durations, or unlimited numbers."""
    if labels.dtype.kind not in "iu":
        got = "integers beyond 64 bits" if labels.dtype.kind == "O" else str(labels.dtype)
        raise InputError(f"DATA: labels of {origin} must be integers, got {got}; labels are class indices.")
    if labels.size and int(labels.max()) >= MOST_CLASSES:
        raise InputError(f"DATA: labels of {origin} must be class indices below {MOST_CLASSES:,}, got {labels.max()}.")
    return labels


def all_labels(samples: Samples, argument: str) -> np.ndarray:
    """Every label as a class index; where the data do not list them, every sample is read once."""
    if not len(samples):
        raise InputError(f"{argument} is empty: {samples.origin}.")
    labels = samples.labels
    if labels is None:
        labels = np.array([_label_of(samples, index, argument) for index in range(len(samples))])
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        got = "none" if all(label is None for label in labels.flat) else f"{labels.flat[0]!r} for one"
        origin = printable(samples.origin)
        raise InputError(f"{argument}: a class index (an integer) is needed for every sample of {origin}, got {got}.")
    if labels.min() < 0:
        raise InputError(f"{argument}: labels must be class indices from 0, got {int(labels.min())}.")
    return labels.astype(np.int64)


def class_index(label: Any) -> int:
    """A label as a class index, or a TypeError; a boolean is none."""
    if isinstance(label, bool) or str(getattr(label, "dtype", "")) in ("bool", "torch.bool"):
        raise InputTypeError("a boolean is no class index.")
    return operator.index(label)


def _label_of(samples: Samples, index: int, argument: str) -> Any:
    """The label that a sample yields, as a plain number where it is one."""
    try:
        label = samples.load(index, None)[1]
    except MissingColumnError:
        raise
    except Exception as error:
        raise InputError(
            f"{argument}: sample {printable(samples.ids[index])!r} cannot be read ({first_line(error)}), and its label "
            "is known from nowhere else; leave it out."
        ) from error
    return label.item() if isinstance(label, Tensor) and label.numel() == 1 else label


def id_texts(ids: Iterable[Any], name: str = "ids", count: int | None = None) -> list[str]:
    """Ids as text, `count` of them. A missing id is refused: all samples without one would be the same sample."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
        raise InputTypeError(f"{name} must be a list with one id per sample, got {type(ids).__name__}.")
    values = [id_.item() if getattr(id_, "ndim", 1) == 0 else id_ for id_ in ids]
    for index, value in enumerate(values):
        if value is None or (isinstance(value, float) and value != value) or str(value) in ("<NA>", "NaT"):
            raise InputError(f"{name}: every sample must have an id, and that of row {index:,} is missing.")
    if count is not None and len(values) != count:
        raise InputError(f"{name} must be one id per sample: expected {count:,}, got {len(values):,}.")
    return [str(value) for value in values]


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
        if images.ndim not in (3, 4) or (len(images) and not images.size):
            raise InputError(f"DATA: images of {origin} must be (N, H, W[, C]), got shape {images.shape}.")
        if images.dtype.kind not in "uif":
            raise InputError(f"DATA: images of {origin} must be numbers, got {images.dtype}.")
        if labels is not None:
            labels = labels[:, 0] if labels.shape == (len(images), 1) else labels
            if labels.shape != (len(images),):
                raise InputError(f"DATA: {origin} has {len(images):,} images but labels of shape {labels.shape}.")
            labels = class_indices(labels, origin)
        self.images, self.labels, self.split, self.origin, self.classes = images, labels, split, origin, classes
        self._hashed_ids: list[list[str]] = []  # given ids are part of the fingerprint
        if ids is not None:
            self.ids = id_texts(ids, f"DATA: ids of {origin}", len(images))
            self._hashed_ids = [self.ids]

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return self.images[index], None if self.labels is None else int(self.labels[index])

    def tensor(self) -> Tensor | None:
        images = self.images[:, None] if self.images.ndim == 3 else self.images
        if images.dtype != np.uint8 and images.dtype.kind != "f":
            return None
        if self.images.ndim == 4 and images.shape[-1] in (1, 3, 4):
            images = images.transpose(0, 3, 1, 2)
        return torch.from_numpy(images if images.flags.writeable else images.copy())

    def fingerprint(self) -> str:
        return content_hash(self.images, self.labels, self.split, *self._hashed_ids)


_IMAGE_COLUMNS = ("image", "img", "pixel_values", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "targets", "class", "y")


@dataclass(frozen=True)
class Columns:
    """Which columns of a row hold the image, the label and the id."""

    image: str | None = None
    label: str | None = None
    id: str | None = None

    def read(self, item: Any) -> tuple[Any, Any]:
        """``(x, label)`` of an item in any of the usual forms."""
        if isinstance(item, Mapping):
            image = pick_column(item, self.image, _IMAGE_COLUMNS)
            if image is None:
                raise MissingColumnError(f"DATA has no image column; columns: {listed(item)}.")
            label = self.label_in(item)
            return item[image], None if label is None else item[label]
        if isinstance(item, (tuple, list)):
            return item[0], item[1] if len(item) > 1 else None
        return item, None

    def label_in(self, names: Collection[str]) -> str | None:
        """The label column among these names, or None."""
        return pick_column(names, self.label, LABEL_COLUMNS)


def pick_column(names: Collection[str], given: str | None, usual: Sequence[str], data: str = "DATA") -> str | None:
    """The column that the user names, or the first with a usual name; None where there is none."""
    if given is not None and given not in names:
        raise MissingColumnError(f"{data} has no column {given!r}; columns: {listed(names)}.")
    return given or next((name for name in usual if name in names), None)


def listed(names: Iterable[str]) -> str:
    """The first dozen names, for a message."""
    return ", ".join(printable(name)[:80] for name in islice(names, 12)) or "nothing"


def path_text(path: str) -> str:
    """A path as text, whatever bytes it is made of: the same in every locale."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def file_id(split: str, name: str) -> str:
    """The id of a file, from its path relative to the folder of the data."""
    return f"{split}/{path_text(name.replace(os.sep, '/'))}"


def file_stamp(path: str | Path) -> tuple[int, int] | None:
    """What changes when a file is edited; None where there is none (a dangling link)."""
    try:
        status = os.stat(path)  # noqa: PTH116 - fast
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
