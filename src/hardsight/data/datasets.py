"""The data sets of torch, torchvision and Hugging Face as samples, and what decides whether they are the same."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hardsight.data.samples import (
    Columns,
    Samples,
    class_index,
    class_indices,
    file_id,
    file_stamp,
    id_texts,
    path_text,
    pick_column,
)
from hardsight.errors import InputError
from hardsight.runs import Identity, content_hash, identify

_PROCESS = secrets.token_hex(8)


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
