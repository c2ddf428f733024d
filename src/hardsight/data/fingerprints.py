"""What data are made of, as a hash: arrays by their bytes, files by size and time. A few items never stand for all."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from hardsight.runs import Identity, content_hash, identify

_PROCESS = secrets.token_hex(8)


def file_hash(files: Sequence[tuple[str, Path]], *more: Any) -> str:
    """Hash of files by their ids, sizes and times, and of whatever else."""
    return content_hash([(id_, _stamp(path)) for id_, path in files], *more)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is edited; None where there is none (a dangling link)."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def this_object(value: Any) -> str:
    """What an object has in common with itself alone, as long as it lives."""
    return f"{_PROCESS} {id(value)}"


def dataset_identity(dataset: Any, version: str | None = None) -> Identity | None:
    """The identity of a data set whose items are all in memory or in files, or that the user gave a version.

    None where the items lie behind code of the user's and can change unseen.
    """
    kind = type(dataset)  # a subclass may yield other items
    known = None
    if kind in (list, tuple):
        known = identify(dataset)
    elif kind is TensorDataset:
        known = identify(dataset.tensors)
    elif kind is ConcatDataset:
        parts = [dataset_identity(part, version) for part in dataset.datasets]
        known = None if None in parts else identify(parts)
    elif kind is Subset:
        part = dataset_identity(dataset.dataset, version)
        known = None if part is None else identify(part, list(dataset.indices))
    elif kind.__module__.startswith("torchvision."):
        known = _torchvision_identity(dataset)
    elif version is None and isinstance(getattr(dataset, "_fingerprint", None), str):
        known = identify(dataset._fingerprint)  # which Hugging Face keeps for the same purpose
    if known is None or known.gaps:
        known = None if version is None else identify(version, kind.__qualname__)
    return known


def _torchvision_identity(dataset: Any) -> Identity | None:
    """The state of a torchvision data set, where that holds the pixels of all samples or names a file for each."""
    state = {key: item for key, item in vars(dataset).items() if key != "root" and not isinstance(item, Path)}
    if isinstance(state.get("data"), (np.ndarray, Tensor)) and len(state["data"]) == len(dataset):
        return identify(type(dataset), state)
    for listed in [item for item in state.values() if isinstance(item, list) and len(item) == len(dataset)]:
        rows = [item if isinstance(item, tuple) else (item,) for item in listed]
        stamps = [_stamp(Path(row[0])) if row and isinstance(row[0], (str, Path)) else None for row in rows]
        if rows and None not in stamps:  # by the files' names and not their places: data may move
            files = [(Path(row[0]).name, stamp, *row[1:]) for row, stamp in zip(rows, stamps, strict=True)]
            return identify(type(dataset), files, {key: item for key, item in state.items() if item is not listed})
    return None
