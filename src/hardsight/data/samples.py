"""Data sets as samples with labels and stable ids: the protocol, arrays, and the data sets of torch and Hugging Face.

An id is ``split/relative/path`` for files and ``split:index`` for arrays, or comes from the user. It depends on the
sample alone: not on order, loader workers, processes, or files added beside it.
"""

from __future__ import annotations

import operator
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hardsight.errors import InputError, InputTypeError
from hardsight.extras import first_line, printable
from hardsight.runs import UNIDENTIFIED, Identity, content_hash, identify
from hardsight.scores import MOST_CLASSES

_PROCESS = secrets.token_hex(8)


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


class DatasetSamples(Samples):
    """A user's map-style data set: items are ``(x, label)``, ``x`` alone, or a mapping with image and label."""

    def __init__(
        self, dataset: Any, split: str | None = None, ids: Sequence[Any] | None = None, columns: Columns | None = None
    ) -> None:
        self._columns, count = columns or Columns(), len(dataset)
        self._dataset: Any = dataset
        self._rows: np.ndarray | None = None
        while type(self._dataset) is Subset:  # a subclass may yield other items
            rows = np.asarray(self._dataset.indices, dtype=np.int64)
            self._rows = rows if self._rows is None else rows[self._rows]
            self._dataset = self._dataset.dataset
        self.split = split or _split_of(self._dataset)
        self.origin = f"{type(self._dataset).__name__}, {count:,} samples"
        self.classes = _class_names(self._dataset, self._columns)
        if ids is not None:
            self.ids = id_texts(ids, "ids", count)
        listed = self._listed_labels()
        labels = None if listed is None else self._yielded(listed)
        if listed is not None and labels is None and listed.ndim == 1 and listed.dtype.kind in "iu":
            self.listed = self._selected(listed)
        if labels is not None and labels.dtype == object and (missing := sum(label is None for label in labels)):
            raise InputError(f"DATA: {missing:,} of {len(labels):,} labels are missing; drop those rows or the column.")
        if labels is not None and labels.dtype.kind in "UO":  # names instead of numbers
            self.classes = sorted(set(map(str, labels)))
            labels = np.searchsorted(self.classes, labels.astype(str))
        if labels is not None and labels.ndim == 1:
            self.labels = self._selected(class_indices(labels, self.origin))
        first = self.first()
        self.pixels = first is not None and not isinstance(first, (Tensor, dict))

    def __len__(self) -> int:
        return len(self._dataset) if self._rows is None else len(self._rows)

    def _selected(self, values: Any) -> Any:
        """The values of the rows that a `Subset` selects."""
        return values if self._rows is None else values[self._rows]

    def _listed_labels(self) -> np.ndarray | None:
        """All labels, where the data set lists them without opening its samples."""
        if hasattr(self._dataset, "column_names"):  # Hugging Face
            name = self._columns.label_in(self._dataset.column_names)
            return None if name is None else np.asarray(list(self._dataset[name]))
        if isinstance(self._dataset, TensorDataset) and len(self._dataset.tensors) > 1:
            return np.asarray(self._dataset.tensors[1])
        targets = getattr(self._dataset, "targets", None)
        if not isinstance(targets, (list, np.ndarray, Tensor)) or len(targets) != len(self._dataset):
            return None
        labels = np.asarray(targets)
        return labels if labels.dtype.kind in "iu" else None

    def _yielded(self, listed: np.ndarray) -> np.ndarray | None:
        """Listed labels as the items yield them; None where only the items tell, because a user's code makes them."""
        dataset = self._dataset
        if hasattr(dataset, "column_names"):
            return listed
        if isinstance(dataset, TensorDataset):
            return listed if _yields_tensors(dataset) and len(dataset.tensors) > 1 else None
        if not str(getattr(_getitem_of(dataset), "__module__", "")).startswith("torchvision.datasets."):
            return None
        files = next(
            (files for name in ("samples", "imgs") if isinstance(files := getattr(dataset, name, None), list)), ()
        )
        if len(files) == len(listed):  # the items come from here
            listed = np.asarray([file[1] for file in files])
        labels = _target_transformed(dataset, listed)
        if labels is None or not np.array_equal(labels, listed):
            self.classes = None  # they name the labels as they are listed
        return labels

    @cached_property
    def ids(self) -> list[str]:
        dataset, column = self._dataset, self._columns.id
        rows = range(len(dataset)) if self._rows is None else self._rows.tolist()
        if column is not None:
            if hasattr(dataset, "column_names"):  # Hugging Face reads a column without the images beside it
                pick_column(dataset.column_names, column, (), "--id-column: DATA")
                values = list(dataset[column])
                return id_texts([values[row] for row in rows], f"--id-column {column}")
            items = (item if isinstance(item, Mapping) else {} for item in (dataset[row] for row in rows))
            values = [item[pick_column(item, column, (), "--id-column: DATA")] for item in items]
            return id_texts(values, f"--id-column {column}")
        if hasattr(dataset, "class_to_idx") and getattr(dataset, "samples", None) is not None:  # torchvision's folders
            split, start = path_text(Path(dataset.root).resolve().name), os.fspath(dataset.root).rstrip(os.sep) + os.sep
            files = (str(dataset.samples[row][0]) for row in rows)
            names = (f.removeprefix(start) if f.startswith(start) else os.path.relpath(f, start) for f in files)
            return [file_id(split, name) for name in names]
        selection = getattr(dataset, "_indices", None)  # of a selected or shuffled Hugging Face data set
        if hasattr(selection, "column"):
            rows = selection.column(0).to_numpy()[list(rows)].tolist()
        return [f"{self.split}:{row}" for row in rows]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        row = index if self._rows is None else int(self._rows[index])
        x, label = self._columns.read(self._dataset[row])
        if isinstance(label, str) and self.classes is not None and self.labels is not None:
            return x, int(self.labels[index])
        return x, label

    def tensor(self) -> Tensor | None:
        if not _yields_tensors(self._dataset) or self._dataset.tensors[0].ndim < 2:
            return None
        return self._selected(self._dataset.tensors[0])

    def fingerprint(self) -> str:
        content = dataset_identity(self._dataset, self.version) or f"{_PROCESS} {id(self._dataset)}"
        labels = self.listed if self.labels is None else self.labels
        return content_hash(content, self.ids, labels, self._rows, self._columns)

    @property
    def unseen(self) -> str | None:
        return None if dataset_identity(self._dataset, self.version) else f"a {type(self._dataset).__name__}"


def _getitem_of(dataset: Any) -> Any:
    """The function that makes the items: a subclass may have another than its base."""
    return getattr(type(dataset), "__getitem__", None)


def _yields_tensors(dataset: Any) -> bool:
    """Whether items are rows of the data set's tensors as they are."""
    return isinstance(dataset, TensorDataset) and _getitem_of(dataset) is TensorDataset.__getitem__


def _target_transformed(dataset: Any, labels: np.ndarray) -> np.ndarray | None:
    """Labels after the `target_transform` of a torchvision data set; None where that makes no class indices."""
    transform, both = getattr(dataset, "target_transform", None), getattr(dataset, "transforms", None)
    standard = both is None or type(both).__module__ == "torchvision.datasets.vision"
    if not standard or getattr(both, "target_transform", None) is not transform:  # some classes use one, some the other
        return None
    if transform is None:
        return labels
    try:
        return np.asarray([class_index(transform(label)) for label in labels.tolist()], dtype=np.int64)
    except Exception:  # whatever a user's function raises: a bad row later, not a failure here
        return None


def _split_of(dataset: Any) -> str:
    split, train = getattr(dataset, "split", None), getattr(dataset, "train", None)
    if split is not None and str(split) not in ("", "None"):
        return str(split)
    return "data" if not isinstance(train, bool) else "train" if train else "test"


def _class_names(dataset: Any, columns: Columns) -> list[str] | None:
    names = getattr(dataset, "classes", None)
    names = names if isinstance(names, (list, tuple)) and names else None
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):  # Hugging Face
        names = getattr(features.get(columns.label_in(features)), "names", None)
    return None if names is None else [str(name) for name in names]


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


_hashed: ContextVar[dict[tuple[int, str | None], tuple[Any, Identity | None]] | None] = ContextVar(
    "_hashed", default=None
)


@contextmanager
def hashed_once() -> Iterator[None]:
    """Inside, every data set is hashed once. Outside, always anew: it may change in place between two runs."""
    token = _hashed.set({})
    try:
        yield
    finally:
        _hashed.reset(token)


def dataset_identity(dataset: Any, version: str | None = None) -> Identity | None:
    """The identity of a data set whose items are all in memory or in files, or that the user gave a version.

    None where the items come from the user's code and can change unnoticed. A few items never stand for all.
    """
    known, key = _hashed.get(), (id(dataset), version)
    if known is None:
        return _dataset_identity(dataset, version)
    if key not in known:
        known[key] = dataset, _dataset_identity(dataset, version)  # with the data set: its id must not become another's
    return known[key][1]


def _dataset_identity(dataset: Any, version: str | None) -> Identity | None:
    kind = type(dataset)  # a subclass may yield other items
    identity = None
    if kind in (list, tuple):
        identity = identify(dataset)
    elif kind is TensorDataset:
        identity = identify(dataset.tensors)
    elif kind is ConcatDataset:
        parts = [dataset_identity(part, version) for part in dataset.datasets]
        identity = None if None in parts else identify(parts)
    elif kind is Subset:
        part = dataset_identity(dataset.dataset, version)
        identity = None if part is None else identify(part, list(dataset.indices))
    elif kind.__module__.startswith("torchvision."):
        identity = _torchvision_identity(dataset)
    elif version is None and isinstance(getattr(dataset, "_fingerprint", None), str):
        identity = identify(dataset._fingerprint)  # which Hugging Face keeps for the same purpose
    if identity is None or identity.gaps:
        identity = None if version is None else identify(version, kind.__qualname__)
    return identity


def _torchvision_identity(dataset: Any) -> Identity | None:
    """The state of a torchvision data set, where that holds the pixels of all samples or names a file for each."""
    state = {key: item for key, item in vars(dataset).items() if key != "root" and not isinstance(item, Path)}
    if isinstance(state.get("data"), (np.ndarray, Tensor)) and len(state["data"]) == len(dataset):
        return identify(type(dataset), state)
    for listed in [item for item in state.values() if isinstance(item, list) and len(item) == len(dataset)]:
        rows = [item if isinstance(item, tuple) else (item,) for item in listed]
        stamps = [file_stamp(row[0]) if row and isinstance(row[0], (str, Path)) else None for row in rows]
        if rows and None not in stamps:  # by the files' names and not their folders: data may move
            files = [(Path(row[0]).name, stamp, *row[1:]) for row, stamp in zip(rows, stamps, strict=True)]
            return identify(type(dataset), files, {key: item for key, item in state.items() if item is not listed})
    return None
