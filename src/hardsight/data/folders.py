"""Images in files: a folder, in torchvision's order and whatever links lead where, or a list of paths."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from hardsight.data.samples import Samples, class_indices
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable
from hardsight.images import open_image
from hardsight.runs import Identity, content_hash


def path_text(path: str) -> str:
    """A path as text, whatever bytes it is made of: the same in every locale."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def file_id(split: str, name: str) -> str:
    """The id of a file, from its path relative to the folder of the data."""
    return f"{split}/{path_text(name.replace(os.sep, '/'))}"


def file_stamp(path: str | Path) -> tuple[int, int] | None:
    """What changes when a file is edited; None where there is none (a dangling link)."""
    with suppress(OSError):
        status = os.stat(path)  # noqa: PTH116 - fast
        return status.st_size, status.st_mtime_ns
    return None


class FileSamples(Samples):
    """Images in files, given by their paths relative to a folder; the name of the folder is the split."""

    def __init__(
        self, folder: Path, names: Sequence[str], labels: np.ndarray | None, classes: Sequence[str], origin: str
    ) -> None:
        self._folder, self._names, self.labels, self.origin = folder, names, labels, origin
        self.classes = [path_text(name) for name in classes] or None
        self.split = path_text(folder.resolve().name)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def ids(self) -> list[str]:
        return [file_id(self.split, name) for name in self._names]

    def path(self, index: int) -> Path:
        return self._folder / self._names[index]

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return open_image(self.path(index), channels), None

    @cached_property
    def identity(self) -> Identity:
        stamps = [file_stamp(f"{self._folder}/{name}") for name in self._names]
        labels = () if self.root is not None else (self.labels,)  # the folders in the ids are the labels
        return Identity(content_hash(list(zip(self.ids, stamps, strict=True)), *labels), ())


def open_folder(root: str | Path, most: int | None = None) -> FileSamples:
    """Images in one folder per class (torchvision's `ImageFolder` layout), or unlabeled in a single folder.

    More than `most` files and folders under it are an error, if given.
    """
    root = Path(root)
    if not root.is_dir():
        raise MissingPathError(f"DATA: there is no folder {root}.")
    endings = need("torchvision.datasets.folder").IMG_EXTENSIONS
    images: dict[str, list[tuple[str, str]]] = {}  # by class, those in the root itself under ""
    for folder, names in _walk(root, most):
        class_ = folder.partition("/")[0]
        images.setdefault(class_, []).extend((folder, name) for name in names if name.lower().endswith(endings))
    unlabeled, classes = images.pop("", []), sorted(images)
    files = [file for name in classes for file in sorted(images[name])] if classes else sorted(unlabeled)
    if not files:
        raise InputError(
            f"DATA: no images in {root}; expected one folder per class ({root.name}/cat/1.png) with files ending in "
            f"{', '.join(endings)}."
        )
    labels = np.repeat(np.arange(len(classes)), [len(images[name]) for name in classes]) if classes else None
    names = [f"{folder}/{name}" if folder else name for folder, name in files]
    samples = FileSamples(root, names, labels, classes, f"folder {path_text(root.name)}")
    samples.root = root
    return samples


def _walk(root: Path, most: int | None) -> Iterator[tuple[str, list[str]]]:
    """Folders under a root, relative to it, and the files in each.

    A folder is read once, however many links lead to it, so links that loop come to an end and no image is listed
    twice. Links come last: an image is listed under its real name where it has one here.
    """
    visited, pending, repeated, scanned = {str(path) for path in root.resolve().parents}, [root], [], 0
    while pending:
        start = str(pending.pop(0))
        real = os.path.realpath(start)
        for folder, folders, files in os.walk(start):
            name = Path(folder).relative_to(root).as_posix()
            if (place := real + folder[len(start) :]) in visited:
                repeated.append(name)
                folders.clear()
                continue
            visited.add(place)
            scanned += len(folders) + len(files)
            if most is not None and scanned > most:
                raise InputError(f"DATA: {root} holds more than {most:,} files and folders.")
            yield "" if name == "." else name, files
            for path in (Path(folder, name) for name in folders):
                if path.is_symlink():
                    pending.append(path)
                else:  # a class even if it must not be read
                    yield path.relative_to(root).as_posix(), []
        pending.sort()
    if repeated:
        warnings.warn(
            f"DATA: {len(repeated):,} links in {root} lead to folders that were read already and are left out "
            f"(first: {printable(min(repeated))}).",
            UserWarning,
            stacklevel=4,
        )


def open_list(file: str | Path) -> FileSamples:
    """Images of a list in the layout of VisDA-17: ``relative/path.png label`` per line, or the path alone in all lines.

    Paths are relative to the folder of the list. The first folder of the paths names a class where each holds all
    images of one label and no others. A missing file is a bad row, a line of another form an error.
    """
    file = Path(file)
    lines = enumerate(os.fsdecode(file.read_bytes()).split("\n"), 1)
    rows = {i: _path_and_label(f"DATA: {file.name}, line {i}", line.strip()) for i, line in lines if line.strip()}
    if not rows:
        raise InputError(f"DATA: {file} names no images; expected lines `relative/path.png label`.")
    names, labels = [name for name, _ in rows.values()], [label for _, label in rows.values() if label is not None]
    if labels and (unlabeled := [i for i, (_, label) in rows.items() if label is None]):
        raise InputError(f"DATA: {file.name}, line {unlabeled[0]} has no label and others have one; add or drop them.")
    # Names of the classes in order, where each first folder stands for one label and each label for one folder.
    pairs = sorted({(label, PurePath(name).parts[0]) for name, label in zip(names, labels, strict=False)})
    classes = [folder for _, folder in pairs]
    if [label for label, _ in pairs] != list(range(len(pairs))) or len(set(classes)) < len(classes):
        classes = []
    indices = class_indices(np.array(labels), file.name) if labels else None
    return FileSamples(file.parent, names, indices, classes, f"list {path_text(file.name)}")


def _path_and_label(place: str, line: str) -> tuple[str, int | None]:
    path, _, label = line.rpartition(" ")
    if line.lower().endswith(need("torchvision.datasets.folder").IMG_EXTENSIONS):
        path, label = line, None
    elif not path or not (label.isascii() and label.isdecimal()):
        raise InputError(f"{place} must be `relative/path.png label` with a class index from 0.")
    if PurePath(path).is_absolute():
        raise InputError(f"{place}: the path must be relative to the list, so that ids stay the same.")
    return PurePath(path.strip()).as_posix(), None if label is None else int(label)
