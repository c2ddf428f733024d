"""Images in files: a folder, in torchvision's order and whatever links lead where, or a list of paths."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from hardsight.data.samples import Samples, class_indices, file_id, file_stamp, path_text
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable
from hardsight.images import open_image
from hardsight.runs import content_hash


class FileSamples(Samples):
    """Images in files, given by their paths relative to a folder; the name of the folder is the split."""

    def __init__(
        self, folder: Path, names: Sequence[str], labels: np.ndarray | None, classes: Sequence[str] | None, origin: str
    ) -> None:
        self._folder, self._names, self.labels, self.origin = folder, names, labels, origin
        self.classes = None if classes is None else [path_text(name) for name in classes]
        self.split = path_text(folder.resolve().name)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def ids(self) -> list[str]:
        return [file_id(self.split, name) for name in self._names]

    def path(self, index: int) -> Path:
        return self._folder / self._names[index]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return open_image(self.path(index), channels), None if self.labels is None else int(self.labels[index])

    def fingerprint(self) -> str:
        stamps = [file_stamp(f"{self._folder}/{name}") for name in self._names]
        files = list(zip(self.ids, stamps, strict=True))
        return content_hash(files) if self.root is not None else content_hash(files, self.labels)  # folders are labels


def open_folder(root: str | Path, most: int | None = None) -> FileSamples:
    """Images in one folder per class (torchvision's `ImageFolder` layout), or unlabeled in a single folder.

    More than `most` files and folders under it are an error, if given.
    """
    root = Path(root)
    if not root.is_dir():
        raise MissingPathError(f"DATA: there is no folder {root}.")
    endings = need("torchvision.datasets.folder").IMG_EXTENSIONS
    images = _list_images(root, endings, most)
    unlabeled = images.pop("", [])
    classes = sorted(images)
    files = [file for name in classes for file in sorted(images[name])] if classes else sorted(unlabeled)
    if not files:
        raise InputError(
            f"DATA: no images in {root}; expected one folder per class ({root.name}/cat/1.png) with files ending in "
            f"{', '.join(endings)}."
        )
    labels = np.repeat(np.arange(len(classes)), [len(images[name]) for name in classes]) if classes else None
    names = [f"{folder}/{name}" if folder else name for folder, name in files]
    samples = FileSamples(root, names, labels, classes or None, f"folder {path_text(root.name)}")
    samples.root = root
    return samples


def _list_images(root: Path, endings: tuple[str, ...], most: int | None) -> dict[str, list[tuple[str, str]]]:
    """Images by class as ``(folder, name)``, with folders relative to the root; those in the root itself under "".

    A folder is read once, however many links lead to it, so links that loop come to an end and no image is listed
    twice. A link that only leads back is no class.
    """
    visited = {_inode(path) for path in root.resolve().parents} - {None}
    folders, links = [("", "")], list[tuple[str, str]]()
    images: dict[str, list[tuple[str, str]]] = {}
    scanned, repeated = 0, list[str]()
    while folders or links:
        if not folders:  # links come last: an image is listed under its real name where it has one here
            links.sort(reverse=True)
        class_, folder = folders.pop() if folders else links.pop()
        inode = _inode(f"{root}/{folder}")
        if inode is None or inode in visited:
            repeated.append(folder)
            continue
        visited.add(inode)
        inside = images.setdefault(class_, [])
        for entry in _entries(f"{root}/{folder}"):
            scanned += 1
            if most is not None and scanned > most:
                raise InputError(f"DATA: {root} holds more than {most:,} files and folders.")
            if _is_folder(entry):
                pending = links if entry.is_symlink() else folders
                pending.append((class_ or entry.name, f"{folder}/{entry.name}" if folder else entry.name))
            elif entry.name.lower().endswith(endings):
                inside.append((folder, entry.name))
    if repeated:
        warnings.warn(
            f"DATA: {len(repeated):,} links in {root} lead to folders that were read already and are left out "
            f"(first: {printable(min(repeated))}).",
            UserWarning,
            stacklevel=4,
        )
    return images


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # one that must not be read has no images
        yield from entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _inode(path: str | Path) -> tuple[int, int] | None:
    """What tells a folder from every other one; None where it is gone."""
    try:
        status = os.stat(path)  # noqa: PTH116 - fast
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_list(file: str | Path) -> FileSamples:
    """Images of a list in the layout of VisDA-17: ``relative/path.png label`` per line, or the path alone in all lines.

    Paths are relative to the folder of the list. The first folder of the paths names a class where each holds all
    images of one label and no others. A missing file is a bad row, a line of another form an error.
    """
    file = Path(file)
    lines = [(i, line.strip()) for i, line in enumerate(os.fsdecode(file.read_bytes()).split("\n"), 1)]
    rows = [(i, *_path_and_label(f"{file.name}, line {i}", line)) for i, line in lines if line]
    if not rows:
        raise InputError(f"DATA: {file} names no images; expected lines `relative/path.png label`.")
    unlabeled = [number for number, _, label in rows if label is None]
    if 0 < len(unlabeled) < len(rows):
        raise InputError(f"DATA: {file.name}, line {unlabeled[0]} has no label and others have one; add or drop them.")
    names = [name for _, name, _ in rows]
    labels = None if unlabeled else class_indices(np.array([label for *_, label in rows]), file.name)
    classes = None if labels is None else _folder_classes(names, labels.tolist())
    return FileSamples(file.parent, names, labels, classes, f"list {path_text(file.name)}")


def _path_and_label(place: str, line: str) -> tuple[str, int | None]:
    path, _, label = line.rpartition(" ")
    if line.lower().endswith(need("torchvision.datasets.folder").IMG_EXTENSIONS):
        path, label = line, None
    elif not path or not (label.isascii() and label.isdecimal()):
        raise InputError(f"DATA: {place} must be `relative/path.png label` with a class index from 0.")
    if PurePath(path).is_absolute():
        raise InputError(f"DATA: {place}: the path must be relative to the list, so that ids stay the same.")
    return PurePath(path.strip()).as_posix(), None if label is None else int(label)


def _folder_classes(names: Sequence[str], labels: Sequence[int]) -> list[str] | None:
    """Names of the classes in order, where each first folder stands for one label and each label for one folder."""
    pairs = {(PurePath(name).parts[0], label) for name, label in zip(names, labels, strict=True)}
    folders = [folder for folder, _ in sorted(pairs, key=lambda pair: pair[1])]
    complete = sorted(label for _, label in pairs) == list(range(len(pairs)))
    return folders if complete and len(set(folders)) == len(folders) else None
