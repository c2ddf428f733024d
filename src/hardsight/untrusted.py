"""Read untrusted files: regular files only, JSON of a known shape, arrays without pickle, valid text.

Any error that a hostile or damaged file provokes in a parser ends here, in one sentence that never quotes the file.
"""

from __future__ import annotations

import json
import stat
import zipfile
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from hardsight.errors import InputError, MissingPathError, StateError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_JSON = 1 << 28  # bytes; the metadata of the largest run is far smaller


def check_regular(path: Path, argument: str) -> None:
    """Refuse missing files, and pipes and devices, which could block or be read endlessly."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # a name may hold a null byte
        raise MissingPathError(f"{argument}: there is no file {path}.") from None
    if stat.S_ISDIR(mode):
        raise MissingPathError(f"{argument}: there is no file {path}: it is a folder.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{argument}: {path} is a pipe or a device, expected a regular file.")


def read_json(path: Path, hint: Any, argument: str = "RUN") -> Any:
    """The content of a JSON file, checked once against the type that readers rely on; see `typed`.

    Raises:
        StateError: It is not JSON, or of another type.
    """
    check_regular(path, argument)
    try:
        if path.stat().st_size > MOST_JSON:
            raise InputError(f"it is larger than {MOST_JSON >> 20} MiB")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise InputError("it holds no JSON") from None
        return typed(content, hint)
    except InputError as error:
        raise StateError(f"{argument}: {path} is damaged: {error}.") from None


def typed(value: Any, hint: Any, place: str = "") -> Any:
    """Convert a JSON value according to a type hint: objects become dataclasses where it names some.

    Entries of a dataclass may be missing or null, those of a `TypedDict` only where it says so; both may have extra
    entries, which a dataclass drops. ``int`` means an integer of 64 bits, ``float`` such an integer or a float.

    Raises:
        InputError: The value, or an entry of it, which the error names, is missing or of another type.

    Examples:
        >>> typed({"a": [1, 2]}, dict[str, list[int] | None])
        {'a': [1, 2]}
        >>> typed({"a": [1, "2"]}, dict[str, list[int] | None])
        Traceback (most recent call last):
        hardsight.errors.InputError: its entry a[1] is missing or of another type than is written there
    """
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if kind in (Union, UnionType):
        errors = []
        for alternative in inner:
            try:
                return typed(value, alternative, place)
            except InputError as error:
                errors.append(error)
        raise errors[0]
    if kind is list and isinstance(value, list):
        return [typed(entry, inner[0], f"{place}[{i}]") for i, entry in enumerate(value)]
    if isinstance(value, dict) and kind is dict:
        return {name: typed(entry, inner[1], f"{place}.{name}".lstrip(".")) for name, entry in value.items()}
    if isinstance(value, dict) and (is_dataclass(hint) or is_typeddict(hint)):
        hints = _hints_of(hint)
        if is_dataclass(hint):
            entries = {name: entry for name, entry in value.items() if name in hints and entry is not None}
        else:
            required = [name for name in hints if hint.__total__ and get_origin(hints[name]) is not NotRequired]
            entries = dict.fromkeys(required) | value
        parts = {k: typed(entry, hints.get(k, Any), f"{place}.{k}".lstrip(".")) for k, entry in entries.items()}
        return hint(**parts)
    if kind is NotRequired:
        return typed(value, inner[0], place)
    whole = type(value) is int and -(2**63) <= value < 2**63
    if {int: whole, float: whole or type(value) is float}.get(hint, type(value) is hint):
        return value
    what = f"its entry {place} is missing or" if place else "it is"
    raise InputError(f"{what} of another type than is written there")


@cache
def _hints_of(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


class Arrays:
    """The arrays of an ``.npz`` by name, each read on demand and never by pickle.

    Args:
        path: The file.
        argument: The option that named it, for errors.
        most: Maximum bytes of an array; None: as many as fit into memory.
    """

    def __init__(self, path: Path, argument: str, most: int | None = None) -> None:
        check_regular(path, argument)
        self._path, self._argument, self._most = path, argument, most
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        except StoreError:
            raise
        except Exception:
            raise InputError(f"{argument}: {path.name} is not an .npz file, or it is truncated.") from None
        self._sizes = {info.filename.removesuffix(".npy"): info.file_size for info in members}

    @property
    def names(self) -> list[str]:
        return list(self._sizes)

    @property
    def size(self) -> int:
        """The declared size of all arrays together, in bytes."""
        return sum(self._sizes.values())

    def get(self, name: str) -> np.ndarray | None:
        """An array, or None if it does not exist."""
        return self[name] if name in self._sizes else None

    def __getitem__(self, name: str) -> np.ndarray:
        what = f"{self._argument}: {name} of {self._path.name}"
        if self._most is not None and self._sizes[name] > self._most:
            raise InputError(f"{what} has {self._sizes[name]:,} bytes, expected {self._most:,} at most.")
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return np.asarray(arrays[name])
        except StoreError:
            raise
        except Exception as error:
            if "Object arrays" in str(error):  # a pickle in disguise
                raise InputError(f"{what} holds Python objects, which are never loaded.") from None
            if isinstance(error, MemoryError):
                raise InputError(f"{what} does not fit into memory.") from None
            raise InputError(f"{what} is damaged.") from None


def check_table(table: pa.Table) -> pa.Table:
    """Validate an Arrow table from a file: Parquet does not check that text is text.

    Raises:
        ValueError: Some are not; Arrow's errors are ValueErrors, too.
    """
    table.validate(full=True)
    if len(set(table.column_names)) < len(table.column_names):
        raise InputError("columns repeat")
    return table


def read_arrays(path: Path, argument: str, most: int = 8 << 30) -> dict[str, np.ndarray]:
    """The arrays of an ``.npy``, ``.npz`` or torch file (``.pt``) by name, an ``.npy`` as ``counts``.

    Arrays of an ``.npz`` that only pickle could read are left out, unless there is nothing else. All arrays of an
    ``.npz`` together may have `most` bytes.
    """
    check_regular(path, argument)
    arrays: dict[str, np.ndarray] = {}
    if path.suffix.lower() in (".pt", ".pth"):
        with suppress(Exception):  # anything that a hostile file provokes
            arrays = {str(name): np.asarray(value) for name, value in _load_torch(path).items()}
    elif zipfile.is_zipfile(path):
        archive = Arrays(path, argument)
        if archive.size > most:
            raise InputError(f"{argument}: {path.name} unpacks to more than {most >> 30} GiB.")
        for name in archive.names:
            with suppress(InputError):
                arrays[name] = archive[name]
    else:
        with suppress(Exception), path.open("rb") as file:
            arrays["counts"] = np.asarray(np.load(file, allow_pickle=False))
    if not arrays:
        raise InputError(f"{argument}: {path.name!r} holds no arrays that can be read without pickle; give a CSV.")
    return arrays


def _load_torch(path: Path) -> Any:
    """The content of a torch file of tensors and NumPy arrays, read with ``weights_only``."""
    import torch
    from numpy._core.multiarray import _reconstruct  # pyrefly: ignore

    # The parts of an array in a torch file: the function that makes an empty one, the array, and its type.
    allowed: list[Any] = [(_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    allowed += [np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in ("u1", "i1", "i2", "i4", "i8"))]
    with torch.serialization.safe_globals(allowed):
        return torch.load(path, map_location="cpu", weights_only=True)
