"""Images in files: a folder, in torchvision's order and following links, or a list of paths."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NotRequired, TypedDict

import numpy as np

from hardsight.data.samples import Samples, class_indices
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable
from hardsight.images import open_image
from hardsight.runs import Identity, content_hash
from hardsight.stores import StorePath
from hardsight.untrusted import read_json


def path_text(path: str) -> str:
    """A path as text, whatever bytes it is made of: the same in every locale."""
    return path if path.isascii() else os.fsencode(path).decode("utf-8", "backslashreplace")


def file_id(split: str, name: str) -> str:
    """The id of a file, from its path relative to the folder of the data."""
    return f"{split}/{path_text(name if os.sep == '/' else name.replace(os.sep, '/'))}"


def file_stamp(path: str | Path) -> tuple[int, int] | None:
    """What changes when a file is edited; None where there is none (a dangling link)."""
    try:
        status = path.stat() if isinstance(path, StorePath) else os.stat(path)  # noqa: PTH116 - fast
    except (OSError, ValueError):  # a name may hold a null byte
        return None
    return status.st_size, status.st_mtime_ns


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
        folder = f"{self._folder}/"
        stamps = (file_stamp(folder + name) or (-1, -1) for name in self._names)
        # Labels, too: a class without images renumbers those after it.
        return Identity(FILES + content_hash(*text_columns(self.ids), number_column(stamps), self.labels), ())


FILES = "files-"  # prefix of a hash of files, so that it is never compared with those of older versions


def text_columns(texts: Sequence[str]) -> tuple[str, np.ndarray]:
    """Texts packed into two values: a million small ones would take longer to hash than to list."""
    return "".join(texts), np.array([len(text) for text in texts])


def number_column(rows: Iterable[Iterable[int]]) -> np.ndarray:
    """Integers of any size, modulo 2**64."""
    numbers: list[int] = []
    for row in rows:
        numbers += row
    return np.array([number % 2**64 for number in numbers], dtype=np.uint64)


def open_folder(root: str | Path, most: int | None = None) -> FileSamples:
    """Images in one folder per class (torchvision's `ImageFolder` layout), or unlabeled in a single folder.

    More than `most` files and folders under it are an error, if given.
    """
    root = Path(root)
    if not root.is_dir():
        raise MissingPathError(f"DATA: there is no folder {root}.")
    endings = need("torchvision.datasets.folder").IMG_EXTENSIONS
    images: dict[str, dict[str, list[str]]] = {}  # by class and folder, those in the root itself under ""
    for folder, names in _walk(root, most):
        kept = sorted([name for name in names if name.lower().endswith(endings)])
        images.setdefault(folder.partition("/")[0], {})[folder] = kept
    unlabeled, classes = images.pop("", {}), sorted(images)
    parts = [images[name] for name in classes] or [unlabeled]
    files = [[_join(folder, name) for folder in sorted(part) for name in part[folder]] for part in parts]
    names = list(chain.from_iterable(files))
    if not names:
        raise InputError(
            f"DATA: no images in {root}; expected one folder per class ({root.name}/cat/1.png) with files ending in "
            f"{', '.join(endings)}."
        )
    labels = np.repeat(np.arange(len(classes)), [len(part) for part in files]) if classes else None
    samples = FileSamples(root, names, labels, classes, f"folder {path_text(root.name)}")
    samples.root = root
    return samples


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _walk(root: Path, most: int | None) -> Iterator[tuple[str, list[str]]]:
    """Folders under a root, relative to it, and the files in each.

    A folder is read once, however many links lead to it, so links that loop come to an end and no image is listed
    twice. Links come last: an image is listed under its real name where it has one here.
    """
    visited, links, repeated, scanned = {str(path) for path in root.resolve().parents}, [""], [], 0
    while links:
        start = links.pop(0)
        pending = [(start, os.path.realpath(root / start))]
        while pending:
            folder, place = pending.pop()
            if place in visited:
                repeated.append(folder)
                continue
            visited.add(place)
            try:
                with os.scandir(f"{root}/{folder}") as entries:
                    listed = [(entry.name, _is_folder(entry), entry) for entry in entries]
            except OSError:
                if folder != start:  # a class even if its folder is unreadable
                    yield folder, []
                continue
            scanned += len(listed)
            if most is not None and scanned > most:
                raise InputError(f"DATA: {root} holds more than {most:,} files and folders.")
            yield folder, [name for name, is_folder, _ in listed if not is_folder]
            for name, is_folder, entry in listed:
                if is_folder and (entry.is_symlink() or getattr(entry, "is_junction", bool)()):
                    links.append(_join(folder, name))
                elif is_folder:
                    pending.append((_join(folder, name), f"{place}{os.sep}{name}"))
        links.sort(key=PurePath)
    if repeated:
        warnings.warn(
            f"DATA: {len(repeated):,} links in {root} lead to folders that were read already and are left out "
            f"(first: {printable(min(repeated))}).",
            UserWarning,
            stacklevel=4,
        )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


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


class _Image(TypedDict):
    id: int
    file_name: str


class _Annotation(TypedDict):
    image_id: int
    category_id: int


class _Category(TypedDict):
    id: int
    name: NotRequired[str]


class _Annotations(TypedDict):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def open_annotations(file: str | Path) -> FileSamples:
    """Images that a JSON file lists with their classes, in the layout of COCO and iNaturalist (``train2018.json``).

    File names are relative to the folder of the list. Classes are numbered in the order of ``categories``.
    """
    file = Path(file)
    content = read_json(file, _Annotations, "DATA")
    places = {category["id"]: number for number, category in enumerate(content["categories"])}
    labels = {row["image_id"]: places.get(row["category_id"]) for row in content["annotations"]}
    for image in content["images"]:
        if labels.get(image["id"]) is None:
            raise InputError(
                f"DATA: {file.name}: {printable(image['file_name'])} has no annotation with a known class."
            )
        if PurePath(image["file_name"]).is_absolute() or ".." in PurePath(image["file_name"]).parts:
            raise InputError(f"DATA: {file.name}: file names must be relative to the list and stay in its folder.")
    if not content["images"]:
        raise InputError(f"DATA: {file.name} lists no images.")
    names = [PurePath(image["file_name"]).as_posix() for image in content["images"]]
    indices = np.array([labels[image["id"]] for image in content["images"]], dtype=np.int64)
    classes = [category.get("name", str(category["id"])) for category in content["categories"]]
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
