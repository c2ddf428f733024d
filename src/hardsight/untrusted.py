"""Reading what others wrote: regular files only, JSON of a known shape, arrays without pickle, text that is text.

Whatever a hostile or damaged file provokes in a parser ends here, in one sentence that never quotes the file.
"""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.errors import InputError, MissingPathError, StateError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_JSON = 1 << 28  # bytes; the largest run says far less about itself


def check_regular(path: Path, argument: str) -> None:
    """Refuse what is missing, and pipes and devices, which would be waited for or read without end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # a name may hold a null byte
        raise MissingPathError(f"{argument}: there is no file {path}.") from None
    if stat.S_ISDIR(mode):
        raise MissingPathError(f"{argument}: there is no file {path}: it is a folder.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{argument}: {path} is a pipe or a device, expected a regular file.")


def read_json(path: Path, shape: Any, argument: str = "RUN") -> Any:
    """The content of a JSON file, checked once against the shape that readers rely on; see `misfit`.

    Raises:
        StateError: It is not JSON, or not of that shape.
    """
    try:
        check_regular(path, argument)
    except InputError:
        raise StateError(f"{argument}: {path} is damaged: it is not a regular file.") from None
    if path.stat().st_size > MOST_JSON:
        raise StateError(f"{argument}: {path} is damaged: it is larger than {MOST_JSON >> 20} MiB.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        content, shape = None, {}
    if (place := misfit(content, shape)) is not None:
        what = f"its entry {place} is of another type than is written there" if place else "it holds no JSON object"
        raise StateError(f"{argument}: {path} is damaged: {what}.")
    return content


def misfit(value: Any, shape: Any, place: str = "") -> str | None:
    """Where a JSON value is not of a shape, None where it fits.

    Args:
        value: The content of a JSON file, or a part of it.
        shape: A type; ``[shape]`` for a list; ``{name: shape}`` for an object, whose other entries are free unless
            ``{str: shape}`` is among them; a tuple of alternatives; None for null; ``object`` for anything. Entries of
            an object may be absent. ``int`` means what fits into 64 bits, ``float`` any number.
        place: What the value is called.

    Examples:
        >>> shape = {"epochs": [int], "note": (str, None)}
        >>> misfit({"epochs": [1, 2], "other": 3}, shape) is None, misfit({"epochs": [1, "2"]}, shape)
        (True, 'epochs[1]')
    """
    if isinstance(shape, tuple):
        places = [misfit(value, kind, place) for kind in shape]
        return None if None in places else places[0]
    if isinstance(shape, list) and isinstance(value, list):
        inner = (misfit(entry, shape[0], f"{place}[{i}]") for i, entry in enumerate(value))
        return next((problem for problem in inner if problem is not None), None)
    if isinstance(shape, dict) and isinstance(value, dict):
        rest = shape.get(str, object)
        inner = (misfit(entry, shape.get(k, rest), f"{place}.{k}".lstrip(".")) for k, entry in value.items())
        return next((problem for problem in inner if problem is not None), None)
    if isinstance(shape, (list, dict)):
        return place
    if isinstance(value, bool) and shape in (int, float):
        return place
    if shape is int:
        return None if isinstance(value, int) and -(2**63) <= value < 2**63 else place
    kind = {float: (int, float), None: type(None)}.get(shape, shape)
    return None if isinstance(value, kind) else place


class Arrays:
    """The arrays of an ``.npz`` by name, each read when it is asked for and never by pickle.

    Args:
        path: The file.
        argument: What the user named it with.
        most: Bytes that an array may have, None: as many as fit into memory.
    """

    def __init__(self, path: Path, argument: str, most: int | None = None) -> None:
        check_regular(path, argument)
        self._path, self._argument, self._most = path, argument, most
        try:
            with zipfile.ZipFile(path) as archive:
                members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        except Exception:
            raise InputError(f"{argument}: {path.name} is not an .npz file, or it is truncated.") from None
        self._sizes = {info.filename.removesuffix(".npy"): info.file_size for info in members}

    @property
    def names(self) -> list[str]:
        return list(self._sizes)

    @property
    def size(self) -> int:
        """Bytes that all of them together say they have."""
        return sum(self._sizes.values())

    def get(self, name: str) -> np.ndarray | None:
        """An array, None where there is none."""
        return self[name] if name in self._sizes else None

    def __getitem__(self, name: str) -> np.ndarray:
        what = f"{self._argument}: {name} of {self._path.name}"
        if self._most is not None and self._sizes[name] > self._most:
            raise InputError(f"{what} has {self._sizes[name]:,} bytes, expected {self._most:,} at most.")
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return np.asarray(arrays[name])
        except Exception as error:
            if "Object arrays" in str(error):  # a pickle in disguise
                raise InputError(f"{what} holds Python objects, which are never loaded.") from None
            if isinstance(error, MemoryError):
                raise InputError(f"{what} does not fit into memory.") from None
            raise InputError(f"{what} is damaged.") from None


def check_table(table: pa.Table) -> pa.Table:
    """An Arrow table from a file whose values are what they claim to be: Parquet does not check that text is text.

    Raises:
        ValueError: Some are not; Arrow's errors are ValueErrors, too.
    """
    table.validate(full=True)
    if len(set(table.column_names)) < len(table.column_names):
        raise InputError("columns repeat")
    return table
