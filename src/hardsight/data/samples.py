"""Data sets as samples with labels and ids that stay put.

An id is ``split/relative/path`` for files and ``split:index`` for arrays, or the user's own column. It depends on
the sample alone: not on order, loader workers, processes, or files added beside it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from hardsight.data.fingerprints import dataset_identity, file_hash, this_object
from hardsight.data.folders import list_images
from hardsight.errors import InputError, InputTypeError, StateError
from hardsight.extras import need
from hardsight.images import open_picture
from hardsight.runs import UNIDENTIFIED, content_hash
from hardsight.scores import MOST_CLASSES


class MissingColumnError(InputError):
    """The data have no such column: wrong for every sample, so no bad row but an error."""


class Samples:
    """A data set as scoring sees it: `load` one sample, `id` of it, and what is known beforehand.

    Attributes:
        split: First part of every id.
        classes: Names of the labels, or None.
        labels: All labels, when they are known without loading the samples.
        pixels: Whether samples are raw pictures (they need a model's preprocessing) or tensors ready to use.
        origin: The data set in words.
        source: How to open it again, as `data_of` takes it; None when it was given as an object.
        version: The user's word that data which can change unseen are the same; see `unseen`.
    """

    split: str = "data"
    source: dict[str, Any] | None = None
    version: str | None = None
    classes: Sequence[str] | None = None
    labels: np.ndarray | None = None
    pixels: bool = True
    origin: str = ""

    def __len__(self) -> int:
        raise InputTypeError("a stream has no length")

    def id(self, index: int) -> str:
        return f"{self.split}:{index}"

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        """Sample and label (None when there is none). May raise: that makes one bad row."""
        raise NotImplementedError

    def find(self, ids: Sequence[str]) -> list[int | None]:
        """Where the samples with these ids are; None for those that are not there."""
        wanted = dict.fromkeys(ids)
        for index in range(len(self)):
            if (id_ := self.id(index)) in wanted:
                wanted[id_] = index
        return [wanted[id_] for id_ in ids]

    def readable(self, channels: int | None = None) -> Iterator[Any]:
        """Those of the first eight samples that can be read."""
        for index in range(min(len(self), 8)):
            try:
                x = self.load(index, channels)[0]
            except MissingColumnError:
                raise
            except Exception:  # noqa: S112 - a bad row later, not a failure here
                continue
            yield x

    def first(self, channels: int | None = None) -> Any:
        """The first sample that can be read, or None."""
        return next(self.readable(channels), None)

    def fingerprint(self) -> str:
        """Hash that changes when the data do; of data that can change unseen it holds in this process only."""
        raise NotImplementedError

    def identity(self) -> str:
        """The fingerprint for a plan on disk: of data that can change unseen it equals no other, not even its own."""
        return self.fingerprint() if self.unseen is None else f"{self.fingerprint()}-{secrets.token_hex(8)}"

    @property
    def unseen(self) -> str | None:
        """What kind of data this is, where they can change unseen and have no version; otherwise None."""
        whole = getattr(self, "whole", None)
        return None if whole is None else whole.unseen


def version_hint(*several: Samples | None) -> dict[str, str]:
    """What a plan says, where some data can change unseen, so that its refusal says what to do."""
    kinds = [samples.unseen for samples in several if samples is not None and samples.unseen]
    advice = f" {', '.join(kinds)} can change unseen; a run over open_data(data, version=…) can be resumed."
    return {UNIDENTIFIED: advice} if kinds else {}


def class_indices(labels: np.ndarray, origin: str) -> np.ndarray:
    """Labels that are class indices, or a sentence: no truth values, durations, or numbers without end."""
    if labels.dtype.kind not in "iu":
        got = "integers beyond 64 bits" if labels.dtype.kind == "O" else str(labels.dtype)
        raise InputError(f"DATA: labels of {origin} must be integers, got {got}; labels are class indices.")
    if labels.size and int(labels.max()) >= MOST_CLASSES:
        raise InputError(f"DATA: labels of {origin} must be class indices below {MOST_CLASSES:,}, got {labels.max()}.")
    return labels


def id_texts(ids: Iterable[Any], name: str = "ids") -> list[str]:
    """Ids as text. A missing one is refused: all that are missing would be one sample."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable) or getattr(ids, "ndim", 1) != 1:
        raise InputTypeError(f"{name} must be a list with one id per sample, got {type(ids).__name__}.")
    values = [id_.item() if getattr(id_, "ndim", 1) == 0 else id_ for id_ in ids]
    for index, value in enumerate(values):
        if value is None or (isinstance(value, float) and value != value) or str(value) in ("<NA>", "NaT"):
            raise InputError(f"{name}: every sample must have an id, and that of row {index:,} is missing.")
    return [str(value) for value in values]


class FolderSamples(Samples):
    """Images in one folder per class (torchvision's `ImageFolder` layout), or unlabelled in a single folder.

    Args:
        root: The folder.
        most: How many files and folders may lie under it, None: any number.
    """

    def __init__(self, root: str | Path, most: int | None = None) -> None:
        self.root = Path(root)
        self.split = path_text(self.root.resolve().name)
        self.origin = f"folder {path_text(self.root.name)}"
        classes, self._files, self.labels = list_images(self.root, most)
        self.classes = None if classes is None else [path_text(name) for name in classes]
        if not self._files:
            raise InputError(
                f"DATA: no pictures in {self.root}; expected one folder a class ({self.root.name}/cat/1.png) with "
                f"files ending in {', '.join(need('torchvision.datasets.folder').IMG_EXTENSIONS)}."
            )

    def __len__(self) -> int:
        return len(self._files)

    def id(self, index: int) -> str:
        return file_id(self.split, self._files[index], self.root)

    def path(self, index: int) -> Path:
        """The file of a sample."""
        return self._files[index]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return open_picture(self._files[index], channels), None if self.labels is None else int(self.labels[index])

    def fingerprint(self) -> str:
        return file_hash([(self.id(i), path) for i, path in enumerate(self._files)])


def file_id(split: str, path: Path, root: Path) -> str:
    """``split/relative/path`` as text."""
    return f"{split}/{path_text(path.relative_to(root).as_posix())}"


def path_text(path: str) -> str:
    """A path as text, whatever bytes it is made of: the same one in every locale."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class ArraySamples(Samples):
    """Pictures in memory: ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)``; uint8 becomes [0, 1]."""

    label_key = "labels"  # what the labels are called in their .npz

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
        if labels is not None and (labels.ndim != 1 or len(labels) != len(images)):
            labels = (
                labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 and len(labels) == len(images) else labels
            )
            if labels.shape != (len(images),):
                raise InputError(f"DATA: {origin} has {len(images):,} images but labels of shape {labels.shape}.")
        if labels is not None:
            labels = class_indices(labels, origin)
        if ids is not None and len(ids) != len(images):
            raise InputError(f"DATA: {origin} has {len(images):,} images but {len(ids):,} ids.")
        self.images, self.labels, self.split, self.origin, self.classes = images, labels, split, origin, classes
        self._ids = None if ids is None else id_texts(ids, f"ids of {origin}")

    def __len__(self) -> int:
        return len(self.images)

    def id(self, index: int) -> str:
        return super().id(index) if self._ids is None else self._ids[index]

    def find(self, ids: Sequence[str]) -> list[int | None]:
        if self._ids is not None:
            return super().find(ids)
        places = [id_.removeprefix(f"{self.split}:") for id_ in ids]
        numbers = [int(place) if place.isdecimal() and place.isascii() else None for place in places]
        return [i if i is not None and i < len(self) and self.id(i) == ids[k] else None for k, i in enumerate(numbers)]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return self.images[index], None if self.labels is None else int(self.labels[index])

    def fingerprint(self) -> str:
        return content_hash(self.images, self.labels, self.split, *([] if self._ids is None else [self._ids]))


class DatasetSamples(Samples):
    """A user's map-style data set: items are ``(x, label)``, ``x`` alone, or a mapping with image and label."""

    def __init__(
        self,
        dataset: Any,
        split: str | None = None,
        ids: Sequence[Any] | None = None,
        columns: Columns | None = None,
    ) -> None:
        self._columns = columns or Columns()
        self._dataset, self._index = _unnested(dataset)
        self.split = split or _split_of(self._dataset)
        self.origin = f"{type(self._dataset).__name__}, {len(dataset):,} samples"
        self.classes = _class_names(self._dataset, self._columns)
        self._ids = None if ids is None else id_texts(ids)
        if self._ids is not None and len(self._ids) != len(dataset):
            raise InputError(f"ids must hold one id a sample: expected {len(dataset)}, got {len(self._ids)}.")
        known = self._known_labels()
        if known is not None and known.dtype == object and (missing := sum(label is None for label in known)):
            raise InputError(f"DATA: {missing:,} of {len(known):,} labels are missing; drop those rows or the column.")
        if known is not None and known.dtype.kind in "UO":  # names instead of numbers
            self.classes = sorted(set(map(str, known)))
            known = np.searchsorted(self.classes, known.astype(str))
        if known is not None and known.ndim == 1:
            known = class_indices(known, self.origin)
            self.labels = known if self._index is None else known[self._index]
        first = self.first()
        self.pixels = first is not None and not isinstance(first, (Tensor, dict))

    def __len__(self) -> int:
        return len(self._dataset) if self._index is None else len(self._index)

    def _at(self, index: int) -> int:
        return index if self._index is None else int(self._index[index])

    def _known_labels(self) -> np.ndarray | None:
        """All labels, where the data set can tell them without opening its samples."""
        if hasattr(self._dataset, "column_names"):  # Hugging Face
            name = self._columns.label_in(self._dataset.column_names)
            return None if name is None else np.asarray(list(self._dataset[name]))
        targets = getattr(self._dataset, "targets", None)
        if isinstance(self._dataset, TensorDataset) and len(self._dataset.tensors) > 1:
            return np.asarray(self._dataset.tensors[1])
        listed = isinstance(targets, (list, np.ndarray, Tensor)) and len(targets) == len(self._dataset)
        known = np.asarray(targets) if listed else None
        return known if known is not None and known.dtype.kind in "iu" else None

    @cached_property
    def _id_column(self) -> list[str] | None:
        if self._columns.id is None or not hasattr(self._dataset, "column_names"):
            return None
        if self._columns.id not in self._dataset.column_names:
            raise InputError(
                f"--id-column: the data have no column {self._columns.id!r}; {_listed(self._dataset.column_names)}"
            )
        return id_texts(self._dataset[self._columns.id], f"--id-column {self._columns.id}")

    def id(self, index: int) -> str:
        if self._ids is not None:
            return self._ids[index]
        at = self._at(index)
        if self._columns.id is not None:
            return self._id_column[at] if self._id_column is not None else self._columns.id_of(self._dataset[at])
        files = getattr(self._dataset, "samples", None) if hasattr(self._dataset, "class_to_idx") else None
        if files is not None:  # torchvision's folders know their files
            root = Path(self._dataset.root)
            return file_id(path_text(root.resolve().name), Path(files[at][0]), root)
        return f"{self.split}:{at if self._rows is None else self._rows[at]}"

    @cached_property
    def _rows(self) -> np.ndarray | None:
        """Where the samples of a selected or shuffled Hugging Face data set lay before: ids name the sample."""
        chosen = getattr(self._dataset, "_indices", None)
        return chosen.column(0).to_numpy() if hasattr(chosen, "column") else None

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        x, label = self._columns.read(self._dataset[self._at(index)])
        if isinstance(label, str) and self.classes is not None and self.labels is not None:
            return x, int(self.labels[index])
        return x, label

    def fingerprint(self) -> str:
        ids = [self.id(i) for i in range(len(self))]
        known = dataset_identity(self._dataset, self.version) or this_object(self._dataset)
        return content_hash(known, ids, self.labels, self._index, self._columns)

    @property
    def unseen(self) -> str | None:
        return None if dataset_identity(self._dataset, self.version) else f"a {type(self._dataset).__name__}"


def _split_of(dataset: Any) -> str:
    own = getattr(dataset, "split", None)
    if own is not None and str(own) not in ("", "None"):
        return str(own)
    train = getattr(dataset, "train", None)
    return "data" if not isinstance(train, bool) else "train" if train else "test"


class ChosenSamples(Samples):
    """Some samples of a data set, under the ids they have there."""

    def __init__(self, whole: Samples, index: np.ndarray) -> None:
        self.whole, self.index = whole, np.asarray(index)
        self.split, self.classes, self.pixels = whole.split, whole.classes, whole.pixels
        self.labels = None if whole.labels is None else whole.labels[self.index]
        self.origin = f"{len(self.index):,} samples of {whole.origin}"

    def __len__(self) -> int:
        return len(self.index)

    def id(self, index: int) -> str:
        return self.whole.id(int(self.index[index]))

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return self.whole.load(int(self.index[index]), channels)

    def fingerprint(self) -> str:
        return content_hash(self.whole.fingerprint(), self.index)


class StreamSamples(Samples):
    """A data set that can only be read in order (Hugging Face streaming, `IterableDataset`)."""

    def __init__(self, dataset: Any, split: str | None = None, columns: Columns | None = None) -> None:
        self.dataset, self._columns = dataset, columns or Columns()
        self.split = split or _split_of(dataset)
        self.classes = _class_names(dataset, self._columns)
        self.origin = f"stream of {type(dataset).__name__}"
        self._begun: Iterator[Any] | None = iter(dataset)
        self._head = list(islice(self._begun, 1))  # looked at now, scored with the rest
        first = self.first()
        self.pixels = first is not None and not isinstance(first, (Tensor, dict))

    def readable(self, channels: int | None = None) -> Iterator[Any]:
        yield from (self._columns.read(item)[0] for item in self._head)

    def __iter__(self) -> Iterator[tuple[str, Any, Any]]:
        begun, self._begun = self._begun, None
        items = iter(self.dataset) if begun is None else chain(self._head, begun)
        if items is self.dataset:
            raise StateError(f"DATA: {self.origin} has been read already and cannot be read again; open it anew.")
        for index, item in enumerate(items):
            x, label = self._columns.read(item)
            yield self.id(index) if self._columns.id is None else self._columns.id_of(item), x, label

    def fingerprint(self) -> str:
        return content_hash(self.version or this_object(self.dataset), self.split, self._columns)

    @property
    def unseen(self) -> str | None:
        return f"a {self.origin}" if self.version is None else None


def _unnested(dataset: Any) -> tuple[Any, np.ndarray | None]:
    """The data set under `Subset`s, and which of its samples are meant: an id names the sample, not its place."""
    index: np.ndarray | None = None
    while type(dataset) is Subset:  # a subclass may yield other items
        inner = np.asarray(dataset.indices)
        index = inner if index is None else inner[index]
        dataset = dataset.dataset
    return dataset, index


@dataclass(frozen=True)
class Columns:
    """Which columns of a row hold the image, the label and the id."""

    image: str | None = None
    label: str | None = None
    id: str | None = None

    def read(self, item: Any) -> tuple[Any, Any]:
        """``(x, label)`` of an item in any of the usual forms."""
        if isinstance(item, Mapping):
            image = _find(item, self.image, _IMAGE_COLUMNS)
            if image is None:
                raise MissingColumnError(f"no image column found; {_listed(item)}")
            label = self.label_in(item)
            return item[image], None if label is None else item[label]
        if isinstance(item, (tuple, list)):
            return item[0], item[1] if len(item) > 1 else None
        return item, None

    def label_in(self, names: Collection[str]) -> str | None:
        return _find(names, self.label, LABEL_COLUMNS)

    def id_of(self, item: Any) -> str:
        if not isinstance(item, Mapping) or self.id not in item:
            raise MissingColumnError(f"--id-column: the data have no column {self.id!r}; {_listed(item)}")
        return id_texts([item[self.id]], f"--id-column {self.id}")[0]


_IMAGE_COLUMNS = ("image", "img", "pixel_values", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "targets", "class", "y")


def _find(names: Collection[str], given: str | None, usual: Sequence[str]) -> str | None:
    if given is not None and given not in names:
        raise MissingColumnError(f"the data have no column {given!r}; {_listed(names)}")
    return given or next((name for name in usual if name in names), None)


def _listed(names: Any) -> str:
    return f"columns: {', '.join(map(str, names))}." if isinstance(names, (Mapping, list)) else "items are no mappings."


def _class_names(dataset: Any, columns: Columns) -> list[str] | None:
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):  # Hugging Face
        name = columns.label_in(features)
        names = getattr(features.get(name), "names", None) if name else None
        return None if names is None else [str(n) for n in names]
    names = getattr(dataset, "classes", None)
    return [str(n) for n in names] if isinstance(names, (list, tuple)) and names else None
