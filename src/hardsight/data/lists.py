"""Pictures named in a text file, a line each, as VisDA-17 and Office lists have it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.data.fingerprints import file_hash
from hardsight.data.samples import Samples, class_indices, file_id, path_text
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.images import open_picture


class ListSamples(Samples):
    """Pictures of a list: ``relative/path.png label`` a line, or the path alone where no line has a label.

    Paths are relative to the folder of the list, whose name is the split; ids are ``split/relative/path``. The first
    folder of the paths names a class where each holds all pictures of one label and no others. A file that is not
    there is a bad row of its own, a line that says nothing an error.

    Args:
        file: The list, such as ``visda/train/image_list.txt``.
    """

    def __init__(self, file: str | Path) -> None:
        file = Path(file)
        self.root, self.split = file.parent, path_text(file.resolve().parent.name)
        self.origin = f"list {path_text(file.name)}"
        lines = [(i, line.strip()) for i, line in enumerate(os.fsdecode(file.read_bytes()).split("\n"), 1)]
        found = [(i, *_path_and_label(f"{file.name}, line {i}", line)) for i, line in lines if line]
        if not found:
            raise InputError(f"DATA: {file} names no pictures; expected a line `relative/path.png label` for each.")
        numbers, self._names, labels = zip(*found, strict=True)
        if None not in labels:
            self.labels = class_indices(np.array(labels), file.name)
            self.classes = _folder_classes(self._names, labels)
        elif any(label is not None for label in labels):
            line = numbers[labels.index(None)]
            raise InputError(f"DATA: {file.name}, line {line} has no label and others have one; add it, or drop all.")

    def __len__(self) -> int:
        return len(self._names)

    def id(self, index: int) -> str:
        return file_id(self.split, self.path(index), self.root)

    def path(self, index: int) -> Path:
        """The file of a sample."""
        return self.root / self._names[index]

    def load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return open_picture(self.path(index), channels), None if self.labels is None else int(self.labels[index])

    def fingerprint(self) -> str:
        return file_hash([(self.id(i), self.path(i)) for i in range(len(self))], self.labels)


def _path_and_label(place: str, line: str) -> tuple[str, int | None]:
    path, _, label = line.rpartition(" ")
    if line.lower().endswith(need("torchvision.datasets.folder").IMG_EXTENSIONS):
        path, label = line, None
    elif not path or not (label.isascii() and label.isdecimal()):
        raise InputError(f"DATA: {place} must be `relative/path.png label` with a class index from 0.")
    if Path(path).is_absolute():
        raise InputError(f"DATA: {place}: the path must be relative to the list, so that ids stay put.")
    return path.strip(), None if label is None else int(label)


def _folder_classes(paths: tuple[str, ...], labels: tuple[int, ...]) -> list[str] | None:
    """Names of the classes in order, where each first folder stands for one label and each label for one folder."""
    pairs = {(Path(path).parts[0], label) for path, label in zip(paths, labels, strict=True)}
    names = [path_text(folder) for folder, _ in sorted(pairs, key=lambda pair: pair[1])]
    whole = sorted(label for _, label in pairs) == list(range(len(pairs)))
    return names if whole and len(set(names)) == len(names) else None
