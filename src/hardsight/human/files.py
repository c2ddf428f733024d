"""Files of human answers, told apart by their content; arrays are read without pickle."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.human.answers import Human
from hardsight.human.tables import from_table, tallied
from hardsight.idtables import as_arrow
from hardsight.untrusted import Arrays, check_regular

# CIFAR-10N's three people each saw an image; its `aggre_label` and `worse_label` are picked from those three answers,
# and the clean labels are the data set's own. 100N has one person an image.
_LABELLINGS = ("random_label1", "random_label2", "random_label3"), ("noisy_label",)
_LARGEST = 8 << 30  # bytes of arrays: more than any release of human labels holds


def read(path: Path, classes: tuple[str, ...] | None) -> Human:
    """What a file says; see `hardsight.human.read_human`."""
    check_regular(path, "human")
    name, suffix = printable(path.name), path.suffix.lower()
    if suffix == ".json":
        raise InputError(
            f"human: {name} is not a table of answers. Sets of valid labels (ReaL's real.json) have no frequencies; "
            "give raters.npz, or a CSV of id,hsf."
        )
    if suffix not in (".npy", ".npz", ".pt", ".pth"):
        return from_table(as_arrow(path, "human"), name, classes)
    arrays = _torch_arrays(path) if suffix in (".pt", ".pth") else _numpy_arrays(path)
    return _from_arrays(arrays, name, classes)


def _from_arrays(arrays: dict[str, np.ndarray], name: str, classes: tuple[str, ...] | None) -> Human:
    for names in _LABELLINGS:
        if set(names) <= set(arrays):
            return Human(None, _votes([arrays[key] for key in names], name, classes), None, name, classes)
    if "info" in arrays and (rating := arrays.get("tensor", arrays.get("scores"))) is not None:
        return _raters(rating, arrays["info"], name)
    for key in ("counts", "probs", *(list(arrays) if len(arrays) == 1 else ())):
        if key in arrays:
            _check_names(arrays[key], name, classes)
            return Human(None, arrays[key], None, name, classes)
    raise InputError(
        f"human: {name} must hold counts (samples × classes) called counts, CIFAR-N's labellings or ReaL's raters; got "
        f"{', '.join(printable(key) for key in list(arrays)[:8]) or 'nothing'}."
    )


def _check_names(counts: np.ndarray, name: str, classes: tuple[str, ...] | None) -> None:
    if classes is not None and counts.ndim == 2 and counts.shape[1] != len(classes):
        raise InputError(f"human: {name} has {counts.shape[1]:,} columns of counts for {len(classes):,} classes.")


def _votes(labellings: list[np.ndarray], name: str, classes: tuple[str, ...] | None) -> np.ndarray:
    """Counts of several people's labels of the same samples; negative: no answer."""
    if any(one.ndim != 1 or one.dtype.kind not in "iu" or len(one) != len(labellings[0]) for one in labellings):
        raise InputError(f"human: {name} must hold labellings as class numbers, one a sample each.")
    votes = np.stack(labellings).astype(np.int64)
    given = votes >= 0
    size = max(int(votes.max(initial=0)) + 1, len(classes or ()))
    return tallied(np.nonzero(given)[1], votes[given], votes.shape[1], size, name)


def _raters(rating: np.ndarray, info: np.ndarray, name: str) -> Human:
    """ReaL: for each question (file, class), who of the raters said no, maybe, yes."""
    if info.ndim != 2 or info.shape[1] != 2 or rating.ndim != 3 or rating.shape[1:] != (len(info), 3):
        raise InputError(
            f"human: {name} must hold raters × questions × (no, maybe, yes) and the (file, class) of each question, "
            f"got shapes {rating.shape} and {info.shape}."
        )
    files, rows = np.unique(info[:, 0].astype(str), return_inverse=True)
    try:
        labels = info[:, 1].astype(np.int64)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"human: {name} must name classes by numbers.") from None
    if labels.min(initial=0) < 0:
        raise InputError(f"human: {name} must name classes by numbers from 0, got {labels.min()}.")
    shape = len(files), int(labels.max(initial=0)) + 1
    asked, counts = (
        tallied(rows, labels, *shape, name, times.sum(0)) for times in ((rating != 0).any(2), rating[:, :, 2] != 0)
    )
    return Human(files.astype(object), counts, None, name, None, asked)


def _numpy_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name; those that only pickle could read are left out, unless nothing else is there."""
    readable: dict[str, np.ndarray] = {}
    if zipfile.is_zipfile(path):
        archive = Arrays(path, "human")
        if archive.size > _LARGEST:
            raise InputError(f"human: {printable(path.name)} unpacks to more than {_LARGEST >> 30} GiB; give a CSV.")
        for name in archive.names:
            with contextlib.suppress(InputError):
                readable[name] = archive[name]
    else:
        with contextlib.suppress(Exception), path.open("rb") as file:  # whatever a hostile file provokes
            readable["counts"] = np.asarray(np.load(file, allow_pickle=False))
    if not readable:
        raise InputError(f"human: {printable(path.name)} holds no arrays that can be read without pickle; give a CSV.")
    return readable


def _torch_arrays(path: Path) -> dict[str, np.ndarray]:
    """Tensors and arrays of a dictionary, read with ``weights_only``."""
    import torch

    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            content = torch.load(path, map_location="cpu", weights_only=True)
        arrays = {str(key): np.asarray(value) for key, value in content.items()}
    except Exception as error:  # whatever a hostile file provokes
        raise InputError(
            f"human: {printable(path.name)} holds no dictionary of arrays that can be read without pickle; save them "
            "with numpy.savez and give the .npz."
        ) from error
    return arrays


def _numpy_globals() -> list[Any]:
    """What numpy's arrays are made of in a .pt: the array, its type, and the function that makes an empty one."""
    from numpy._core.multiarray import _reconstruct  # pyrefly: ignore

    made: list[Any] = [(_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    kinds = [type(np.dtype(kind)) for kind in ("u1", "i1", "i2", "i4", "i8")]
    return [*made, np.ndarray, np.dtype, *kinds]
