"""CIFAR-100's binary version: each image is a byte for its super-class, one for its class, and 3 × 32 × 32 pixels."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from hardsight.data.samples import ArraySamples, MissingColumnError
from hardsight.errors import InputError, MissingPathError
from hardsight.untrusted import check_regular

_SPLITS = ("test", "train")
_CLASSES = {"coarse": 20, "fine": 100}  # in the order of the bytes
_IMAGE = (3, 32, 32)
_RECORD = len(_CLASSES) + 3 * 32 * 32
_MOST_NAMES = 1 << 16  # bytes of a file of class names


def is_cifar100(path: Path) -> bool:
    """Whether a folder holds ``train.bin`` or ``test.bin`` and no folders, which would be classes."""
    if not path.is_dir() or not any((path / f"{split}.bin").is_file() for split in _SPLITS):
        return False
    with os.scandir(path) as entries:
        return not any(entry.is_dir() for entry in entries)


def open_cifar100(folder: Path, split: str, label: str | None = None, most: int | None = None) -> ArraySamples:
    """A split of CIFAR-100 in the layout of the folder ``cifar-100-binary``; nothing is unpickled.

    Args:
        folder: The folder, with ``train.bin`` and ``test.bin``. Class names are read if it has them.
        split: ``train`` or ``test``.
        label: ``fine``, the 100 classes and the default, or ``coarse``, the 20 super-classes.
        most: Largest size of the file in bytes.
    """
    label = label or "fine"
    if label not in _CLASSES:
        raise MissingColumnError(f"DATA: the labels of {folder.name} are fine or coarse, got {label!r}.")
    if split not in _SPLITS:
        raise InputError(f"DATA: the splits of {folder.name} are train and test, got {split!r}.")
    file = folder / f"{split}.bin"
    check_regular(file, "DATA")
    size = file.stat().st_size
    if most is not None and size > most:
        raise InputError(f"DATA: {file.name} has {size:,} bytes, expected {most:,} at most.")
    content = file.read_bytes()
    if not content or len(content) % _RECORD:
        raise InputError(
            f"DATA: {file.name} must hold images of {_RECORD:,} bytes each, as CIFAR-100's binary version does, got "
            f"{len(content):,} bytes: it is truncated, or another file."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    for place, (name, count) in enumerate(_CLASSES.items()):
        if (largest := int(records[:, place].max())) >= count:
            raise InputError(f"DATA: the {name} labels of {file.name} must be below {count}, got {largest}.")
    labels = records[:, list(_CLASSES).index(label)].astype(np.int64)
    images = records[:, len(_CLASSES) :].reshape(-1, *_IMAGE)
    other = "" if label == "fine" else ", super-classes"
    return ArraySamples(images, labels, split, f"{folder.name}, split {split}{other}", _names(folder, label))


def _names(folder: Path, label: str) -> list[str] | None:
    """One name per class; None where the folder has no file of them."""
    file = folder / f"{label}_label_names.txt"
    try:
        check_regular(file, "DATA")
    except MissingPathError:
        return None
    content = file.read_bytes() if file.stat().st_size <= _MOST_NAMES else b""
    names = content.decode(errors="replace").split()
    if len(names) != _CLASSES[label]:
        raise InputError(f"DATA: {file.name} must name {_CLASSES[label]} classes, one per line.")
    return names
