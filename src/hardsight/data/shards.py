"""Images inside large files, tar or Parquet: which files a name means, and what both kinds share.

Nothing is extracted. Labels and ids are read when the data are opened, an image when it is asked for.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from hardsight.data.folders import FILES, file_stamp, number_column, path_text, text_columns
from hardsight.data.samples import Columns, Samples
from hardsight.errors import InputError
from hardsight.extras import need, printable
from hardsight.images import open_image
from hardsight.runs import Identity, content_hash
from hardsight.stores import StorePath, as_path, map_paths
from hardsight.untrusted import check_regular

_SHARDS = (".tar", ".parquet")
_COMPRESSED = re.compile(r"\.(tar\.\w+|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_RANGE = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
_MOST_SHARDS = 1_000_000
MOST_IMAGE = 1 << 28  # bytes of an encoded image


def shard_files(path: Path, most: int | None = None) -> list[Path]:
    """The shards that a file, a pattern ``images-{000..127}.tar`` or a folder names; none if it holds other data.

    A folder means its shards where it holds no folders, no images and, if given, at most `most` files. Other files in
    it are left alone, and so are Parquet files beside tars, which describe them.
    """
    if path.is_dir():
        images, names = need("torchvision.datasets.folder").IMG_EXTENSIONS, []
        with suppress(OSError), _entries(path) as entries:
            for entry in entries:
                if entry.name.lower().endswith(images) or as_path(entry).is_dir() or len(names) == most:
                    return []
                names.append(entry.name)
        names = sorted(name for name in names if not name.startswith("."))
        if compressed := [name for name in names if _COMPRESSED.search(name)]:
            raise compressed_error(compressed[0])
        ending = next((ending for ending in _SHARDS if any(name.endswith(ending) for name in names)), None)
        return [] if ending is None else [path / name for name in names if name.endswith(ending)]
    if _COMPRESSED.search(path.name) and path.is_file():
        raise compressed_error(path.name)
    if not path.name.endswith(_SHARDS):
        return []
    return [path] if path.exists() else _expanded(str(path))


def _entries(folder: Path) -> AbstractContextManager[Iterable[Any]]:
    return nullcontext(folder.glob("*")) if isinstance(folder, StorePath) else os.scandir(folder)


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern of shards."""
    return name.endswith(_SHARDS) and _RANGE.search(name) is not None


def _expanded(pattern: str) -> list[Path]:
    names, count = [""], 1
    for text in re.split(r"(\{\d{1,18}\.\.\d{1,18}\})", pattern):
        bounds, parts = _RANGE.fullmatch(text), [text]
        if bounds is not None:
            first, last, width = int(bounds[1]), int(bounds[2]), len(bounds[1])
            if (count := count * max(0, last + 1 - first)) > _MOST_SHARDS or not count:
                raise InputError(f"DATA: the pattern must name 1 to {_MOST_SHARDS:,} files, got {printable(pattern)}.")
            parts = [f"{number:0{width}}" for number in range(first, last + 1)]
        names = [name + part for name in names for part in parts]
    return [] if names == [pattern] else [as_path(name) for name in names]


def compressed_error(name: str) -> InputError:
    """What to do about a compressed archive."""
    return InputError(f"DATA: {printable(name)} is compressed, so no image in it can be reached; use plain .tar files.")


class _OpenFiles(threading.local):
    """Files that this thread has open. Another thread or process, forked or spawned, opens its own."""

    def __init__(self, most: int) -> None:
        self._most, self._process, self._files = most, os.getpid(), dict[Path, Any]()

    def __reduce__(self) -> tuple[Any, ...]:
        return _OpenFiles, (self._most,)

    def get(self, path: Path, open_file: Callable[[], Any]) -> Any:
        if self._process != os.getpid():  # after a fork: two processes must not share a file position
            self.__init__(self._most)
        if path not in self._files:
            if len(self._files) == self._most:
                self._files.pop(next(iter(self._files)))  # which closes it
            self._files[path] = open_file()
        return self._files[path]


class ShardSamples(Samples):
    """Images in shards. Its identity is made of the names, sizes and times of the shards, the ids and the labels."""

    _most_open = 64  # files, per process

    def __init__(self, files: Sequence[Path], columns: Columns | None = None, most: int | None = None) -> None:
        self._files, self._columns, self._most = list(files), columns or Columns(), most
        map_paths(lambda path: check_regular(path, "DATA"), files)
        self._stamps = [stamp or (-1, -1) for stamp in map_paths(file_stamp, files)]
        folder, name = path_text(files[0].resolve().parent.name), path_text(files[0].name)
        self.origin = name if len(files) == 1 else f"{len(files):,} files, {name} and others, in {folder}"
        self._open = _OpenFiles(self._most_open)
        self._read()
        if not len(self):
            raise InputError(f"DATA: no images in {printable(self.origin)}.")

    def _read(self) -> None:
        """Set ids, labels and classes."""
        raise NotImplementedError

    def _bytes(self, index: int) -> bytes:
        """The encoded image of a sample."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.ids)

    def _load(self, index: int, channels: int | None) -> tuple[Any, Any]:
        return open_image(self._bytes(index), channels), None

    def _opened(self, shard: int, open_file: Callable[[Path], Any]) -> Any:
        path = self._files[shard]

        def opened() -> Any:
            if file_stamp(path) != self._stamps[shard]:  # the offsets would be wrong
                raise InputError(f"{path.name} has changed since it was opened")
            return open_file(path)

        return self._open.get(path, opened)

    @cached_property
    def identity(self) -> Identity:
        names, ids = text_columns([path_text(path.name) for path in self._files]), text_columns(self.ids)
        stamps = number_column(self._stamps)
        return Identity(FILES + content_hash(*names, stamps, *ids, self.labels, self.classes, self._columns), ())

    def reopened(self) -> Self:
        samples = super().reopened()
        if map_paths(file_stamp, self._files) != self._stamps:
            samples.__init__(self._files, self._columns, self._most)
        return samples
