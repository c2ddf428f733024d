"""The images under a folder, in torchvision's order, whatever links lead where."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable


class Listing(NamedTuple):
    """The images of a folder: without classes and labels where there is no folder per class."""

    classes: list[str] | None
    files: list[Path]
    labels: np.ndarray | None


def list_images(root: Path, most: int | None = None) -> Listing:
    """Images in one folder per class (torchvision's `ImageFolder` layout and order), or in a single folder.

    A folder is read once, however many links lead to it, so links that loop come to an end and no image is listed
    twice. A link that only leads back is no class.

    Args:
        root: The folder.
        most: How many files and folders may lie under it, None: any number.
    """
    if not root.is_dir():
        raise MissingPathError(f"DATA: there is no folder {root}.")
    endings = need("torchvision.datasets.folder").IMG_EXTENSIONS
    above = [root.resolve(), *root.resolve().parents]
    visited = {place for path in above if (place := _place(path)) is not None}
    links: list[tuple[str, str]] = []
    images: dict[str, list[tuple[str, str]]] = {}
    scanned, repeated = 0, list[str]()

    def entries(folder: str) -> list[os.DirEntry[str]]:
        nonlocal scanned
        try:
            with os.scandir(folder) as listed:
                inside = []
                for entry in listed:
                    scanned += 1
                    if most is not None and scanned > most:
                        raise InputError(f"DATA: {root} holds more than {most:,} files and folders.")
                    inside.append(entry)
        except OSError:  # as `os.walk` does: a folder that must not be read has no images
            return []
        return inside

    def walk(class_: str, folder: str) -> None:
        """List the images of a folder and of the folders inside it; links to folders wait for their turn."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            place = _place(Path(folder))
            if place is None or place in visited:
                repeated.append(folder)
                continue
            visited.add(place)
            listed = images.setdefault(class_, [])
            for entry in entries(folder):
                if not _is_folder(entry):
                    if entry.name.lower().endswith(endings):
                        listed.append((folder, entry.name))
                elif entry.is_symlink():
                    links.append((class_, entry.path))
                else:
                    waiting.append(entry.path)

    first = entries(str(root))
    for entry in filter(_is_folder, first):
        if entry.is_symlink():
            links.append((entry.name, entry.path))
        else:
            walk(entry.name, entry.path)
    while links:  # real folders come first: an image is listed under its real name where it has one here
        links.sort(reverse=True)
        walk(*links.pop())
    if repeated:
        shown = printable(os.path.relpath(min(repeated), root))
        warnings.warn(
            f"DATA: {len(repeated):,} links in {root} lead to folders that are read already and were left out "
            f"(first: {shown}).",
            UserWarning,
            stacklevel=4,
        )
    if not images:
        names = sorted(entry.name for entry in first if entry.name.lower().endswith(endings) and not _is_folder(entry))
        return Listing(None, [root / name for name in names], None)
    classes = sorted(images)
    files = [[Path(folder, name) for folder, name in sorted(images[class_])] for class_ in classes]
    labels = np.repeat(np.arange(len(classes)), [len(inside) for inside in files])
    return Listing(classes, [file for inside in files for file in inside], labels)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _place(path: Path) -> tuple[int, int] | None:
    """What tells a folder from every other one; None where it is gone."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
