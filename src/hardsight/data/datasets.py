"""The data sets of torch, torchvision and Hugging Face as samples, and what decides whether they are the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hardsight.data.folders import FILES, file_id, file_stamp, number_column, path_text, text_columns
from hardsight.data.samples import Columns, Samples, class_index, class_indices, id_texts, pick_column
from hardsight.errors import InputError
from hardsight.extras import is_graph
from hardsight.runs import Identity, content_hash, identify


class DatasetSamples(Samples):
    """A user's map-style data set: items are ``(x, label)``, ``x`` alone, or a mapping with image and label."""

    def __init__(
        self,
        dataset: Any,
        split: str | None = None,
        ids: Sequence[Any] | None = None,
        columns: Columns | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self._columns, count = columns or Columns(), len(dataset)
        self.collate = None if collate is None else partial(_collated, collate, self._columns)
        self._rows: np.ndarray | None = None
        while type(dataset) is Subset:  # a subclass may yield other items
            rows = np.asarray(dataset.indices, dtype=np.int64)
            self._rows = rows if self._rows is None else rows[self._rows]
            dataset = dataset.dataset
        self._dataset: Any = dataset
        # The function that creates the items: a subclass may override its base's.
        self._getitem: Any = getattr(type(dataset), "__getitem__", None)
        self.split = split or _split_of(dataset)
        self.origin = f"{type(dataset).__name__}, {count:,} samples"
        self.classes = _class_names(dataset, self._columns)
        if ids is not None:
            self.ids = id_texts(ids, "ids", count)
        declared = self._declared_labels()
        labels = None if declared is None else self._yielded_labels(declared)
        if labels is not None and labels.ndim == 1:
            if missing := labels.tolist().count(None):
                raise InputError(f"DATA: {missing:,} of {count:,} labels are missing; drop those rows or the column.")
            if labels.dtype.kind in "UO":  # names instead of numbers
                names, labels = np.unique(labels.astype(str), return_inverse=True)
                self.classes = names.tolist()
            self.labels = self._selected(class_indices(labels, self.origin))
        elif labels is None and declared is not None and declared.ndim == 1 and declared.dtype.kind in "iu":
            self.declared = self._selected(declared)
        first = self.first() if collate is None else None
        self.pixels = first is not None and not isinstance(first, (Tensor, dict)) and not is_graph(first)

    def __len__(self) -> int:
        return len(self._dataset) if self._rows is None else len(self._rows)

    def _selected(self, values: Any) -> Any:
        """The values of the rows that a `Subset` selects."""
        return values if self._rows is None else values[self._rows]

    def _declared_labels(self) -> np.ndarray | None:
        """All labels, where the data set lists them without opening its samples."""
        dataset = self._dataset
        if _has_columns(dataset):
            name = self._columns.label_in(dataset.column_names)
            return None if name is None else np.asarray(list(dataset[name]))
        if isinstance(dataset, TensorDataset):
            return np.asarray(dataset.tensors[1]) if len(dataset.tensors) > 1 else None
        targets = getattr(dataset, "targets", None)
        fits = isinstance(targets, (list, np.ndarray, Tensor)) and len(targets) == len(dataset)
        return labels if fits and (labels := np.asarray(targets)).dtype.kind in "iu" else None

    def _yielded_labels(self, declared: np.ndarray) -> np.ndarray | None:
        """Declared labels as the items yield them; None if a user's code computes them, so that only the items tell."""
        dataset = self._dataset
        if self._getitem is TensorDataset.__getitem__ or _has_columns(dataset):
            return declared
        if not str(getattr(self._getitem, "__module__", "")).startswith("torchvision.datasets."):
            return None
        files = getattr(dataset, "samples", None)
        if isinstance(files, list) and len(files) == len(declared):  # the items come from here
            declared = np.asarray([file[1] for file in files])
        transform, both = getattr(dataset, "target_transform", None), getattr(dataset, "transforms", None)
        standard = both is None or type(both).__module__ == "torchvision.datasets.vision"
        labels = None
        if standard and getattr(both, "target_transform", None) is transform:  # some classes use one, some the other
            with suppress(Exception):  # whatever a user's function raises: a bad row later, not a failure here
                indices = declared.tolist() if transform is None else map(transform, declared.tolist())
                labels = np.array([class_index(label) for label in indices])
        if labels is None or not np.array_equal(labels, declared):
            self.classes = None  # they name the labels before the transform
        return labels

    @cached_property
    def ids(self) -> list[str]:
        dataset, column = self._dataset, self._columns.id
        rows = range(len(dataset)) if self._rows is None else self._rows.tolist()
        if column is not None and _has_columns(dataset):
            return id_texts(self.column(column), f"--id-column {column}")
        if column is not None:
            items = (item if isinstance(item, Mapping) else {} for item in (dataset[row] for row in rows))
            return id_texts([item[pick_column(item, column, ())] for item in items], f"--id-column {column}")
        if hasattr(dataset, "class_to_idx") and getattr(dataset, "samples", None) is not None:  # torchvision's folders
            split, start = path_text(Path(dataset.root).resolve().name), os.fspath(dataset.root).rstrip(os.sep) + os.sep
            files = (str(dataset.samples[row][0]) for row in rows)
            names = (f.removeprefix(start) if f.startswith(start) else os.path.relpath(f, start) for f in files)
            return [file_id(split, name) for name in names]
        selection = getattr(dataset, "_indices", None)  # of a selected or shuffled Hugging Face data set
        if hasattr(selection, "column"):
            rows = selection.column(0).to_numpy()[list(rows)].tolist()
        return [f"{self.split}:{row}" for row in rows]

    def column(self, name: str) -> list[Any]:
        dataset = self._dataset
        if not _has_columns(dataset):
            return super().column(name)
        pick_column(dataset.column_names, name, ())
        values = np.asarray(list(dataset[name]), object)  # read without the images beside it
        if (names := getattr((getattr(dataset, "features", None) or {}).get(name), "names", None)) is not None:
            values = np.asarray([names[value] if value in range(len(names)) else None for value in values], object)
        return self._selected(values).tolist()

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        item = self._dataset[index if self._rows is None else int(self._rows[index])]
        return self._columns.read(item) if self.collate is None else (item, self._columns.split(item)[1])

    def tensor(self) -> Tensor | None:
        plain = self._getitem is TensorDataset.__getitem__ and self.collate is None
        whole = self._dataset.tensors[0] if plain else None
        return None if whole is None or whole.ndim < 2 else self._selected(whole)

    @cached_property
    def identity(self) -> Identity:
        dataset = self._dataset
        content = _dataset_identity(dataset, self.version)
        collate = identify(self.collate)
        gaps = () if content else (f"a {type(dataset).__name__}",)
        if collate.gaps and self.version is None:
            gaps = (*gaps, "the collate function of a DataLoader")
        labels = self.declared if self.labels is None else self.labels
        hash_ = content_hash(
            content or id(dataset),
            self.ids,
            labels,
            self._rows,
            self._columns,
            *([collate.hash] if self.collate else []),
        )
        return Identity(_with_prefix(hash_, [content] if content else []), gaps)


def _has_columns(dataset: Any) -> bool:
    """Whether it is a data set of Hugging Face."""
    return hasattr(dataset, "column_names")


def _collated(function: Callable[[list[Any]], Any], columns: Columns, items: list[Any]) -> tuple[Any, Any]:
    return columns.split(function(items))


def _split_of(dataset: Any) -> str:
    split, train = getattr(dataset, "split", None), getattr(dataset, "train", None)
    if split is not None and str(split) not in ("", "None"):
        return str(split)
    return "data" if not isinstance(train, bool) else "train" if train else "test"


def _class_names(dataset: Any, columns: Columns) -> list[str] | None:
    names, features = getattr(dataset, "classes", None), getattr(dataset, "features", None)
    if isinstance(features, Mapping):  # Hugging Face
        names = getattr(features.get(columns.label_in(features)), "names", None)
    return [str(name) for name in names] if isinstance(names, (list, tuple)) and names else None


def _dataset_identity(dataset: Any, version: str | None) -> Identity | None:
    """The identity of a data set whose items are all in memory or in files, or that the user gave a version.

    None where the items come from the user's code and can change unnoticed. A few items never stand for all.
    """
    kind, identity = type(dataset), None  # a subclass may yield other items
    if kind in (list, tuple):
        identity = identify(dataset)
    elif kind is TensorDataset:
        identity = identify(dataset.tensors)
    elif kind is ConcatDataset:
        parts = [part for data in dataset.datasets if (part := _dataset_identity(data, version)) is not None]
        if len(parts) == len(dataset.datasets):
            identity = Identity(_with_prefix(identify(parts).hash, parts), ())
    elif kind is Subset:
        part = _dataset_identity(dataset.dataset, version)
        if part is not None:
            identity = Identity(_with_prefix(identify(part, list(dataset.indices)).hash, [part]), ())
    elif kind.__module__.startswith("torchvision."):
        identity = _torchvision_identity(dataset)
    elif version is None and isinstance(getattr(dataset, "_fingerprint", None), str):
        identity = identify(dataset._fingerprint)  # which Hugging Face keeps for the same purpose
    if identity is not None and not identity.gaps:
        return identity
    return None if version is None else identify(version, kind.__qualname__)


def _with_prefix(hash_: str, parts: Sequence[Identity]) -> str:
    """The hash of data composed of other data: a hash of files if one of them has one."""
    return FILES + hash_ if any(part.hash.startswith(FILES) for part in parts) else hash_


def _torchvision_identity(dataset: Any) -> Identity | None:
    """The state of a torchvision data set, where that holds the pixels of all samples or names a file for each."""
    state = {key: item for key, item in vars(dataset).items() if key != "root" and not isinstance(item, Path)}
    if isinstance(state.get("data"), (np.ndarray, Tensor)) and len(state["data"]) == len(dataset):
        return identify(type(dataset), state)
    for files in [item for item in state.values() if isinstance(item, list) and len(item) == len(dataset)]:
        rows = [item if isinstance(item, tuple) else (item,) for item in files]
        stamps = [file_stamp(row[0]) if row and isinstance(row[0], (str, Path)) else None for row in rows]
        if rows and None not in stamps:  # by the files' names and not their folders: data may move
            names = text_columns([os.path.basename(row[0]) for row in rows])  # noqa: PTH119 - fast
            regular = len({len(row) for row in rows}) == 1
            others = [_compact(list(c)) for c in zip(*rows, strict=True)][1:] if regular else [row[1:] for row in rows]
            rest = {key: _compact(item) for key, item in state.items() if item is not files}
            identity = identify(type(dataset), *names, number_column(filter(None, stamps)), others, rest)
            return identity._replace(hash=FILES + identity.hash)
    return None


def _compact(values: Any) -> Any:
    """A list of integers as an array, which is hashed faster; anything else unchanged."""
    integers = isinstance(values, list) and set(map(type, values)) == {int}
    return np.array(values) if integers and -(2**63) <= min(values) <= max(values) < 2**63 else values
