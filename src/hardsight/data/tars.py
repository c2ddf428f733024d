"""Tar shards in the layout of WebDataset, indexed by their headers: names of members become ids and never paths."""

from __future__ import annotations

import io
import json
import math
import os
import re
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hardsight.data.folders import path_text
from hardsight.data.samples import LABEL_COLUMNS, class_indices, pick_column
from hardsight.data.shards import MOST_IMAGE, ShardSamples, compressed_error
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.stores import StorePath, map_paths

_IMAGES = ("jpg", "jpeg", "png", "webp")
_SHARDS_AT_ONCE = 16  # shards whose offsets are in memory twice
_MOST_NUMBER = 64  # bytes of a .cls
_MOST_TEXT = 1 << 20  # bytes of a .json, or of a header that describes the next member
_MOST_NAME = 4096  # bytes of a name
_HOSTILE = re.compile(r"^/|(^|/)\.\.(/|$)|[\x00-\x1f\x7f]")


Notes = dict[str, tuple[int, str]]  # what is unusual: how often, and the first name


class _Scan(NamedTuple):
    """What the headers of a shard say, by key: offsets of the images, labels, why a sample cannot be read; whether the
    shard has its end, and what is unusual.
    """

    images: dict[str, tuple[int, int]]
    labels: dict[str, Any]
    broken: dict[str, str]
    ended: bool
    notes: Notes


class TarSamples(ShardSamples):
    """Tar shards: ``key.jpg`` (or .jpeg, .png, .webp) with ``key.cls``, ``key.json`` or no label.

    Ids are ``shard/key``. A key is a name up to the first dot of its last part. Members that are not plain files
    (links, devices) or have hostile names, and keys without an image, are left out and counted in a warning. A
    truncated sample is a bad row; a key that repeats, and a label that is missing or none, are errors.
    """

    def _read(self) -> None:
        self.ids, places, values, self._left = [], [], [], math.inf if self._most is None else self._most
        self._broken: dict[int, str] = {}  # rows that cannot be read, and why
        self._cut: dict[int, str] = {}  # the last rows of shards that end early
        notes: Notes = {}
        for shard, (path, (images, labels, broken, ended, noted)) in enumerate(self._scanned()):
            self._broken |= {len(self.ids) + row: broken[key] for row, key in enumerate(images) if key in broken}
            places.append(np.array([(shard, *place) for place in images.values()], np.int64).reshape(-1, 3))
            values += map(labels.get, images)
            split = path_text(path.stem)
            self.ids += [f"{split}/{key}" for key in images]
            if images and not ended:
                self._cut[len(self.ids) - 1] = f"{path.name} ends before the label of this sample: it is truncated"
            for what, (count, first) in noted.items():
                before, first = notes.get(what, (0, first))
                notes[what] = before + count, first
        self._places = np.concatenate(places)
        self.labels = self._as_labels(values)
        if notes:
            texts = [f"{count:,} {what} (first: {printable(name)})" for what, (count, name) in notes.items()]
            warnings.warn(f"DATA: {printable(self.origin)} has {'; '.join(texts)}.", UserWarning, stacklevel=6)

    def _scanned(self) -> Iterator[tuple[Path, _Scan]]:
        """Every shard with what its headers say; on a store, which answers slowly, several are read at a time."""
        sizes = dict(zip(self._files, (size for size, _ in self._stamps), strict=True))

        def scan(path: Path) -> _Scan:
            with path.open("rb") as file:
                return self._scan(file, path, sizes[path])

        step = _SHARDS_AT_ONCE if isinstance(self._files[0], StorePath) else 1
        for start in range(0, len(self._files), step):
            paths = self._files[start : start + step]
            yield from zip(paths, map_paths(scan, paths), strict=True)

    def _scan(self, file: BinaryIO, path: Path, size: int) -> _Scan:
        notes: Notes = {}

        def note(what: str, name: str) -> None:
            count, first = notes.get(what, (0, name[:80]))
            notes[what] = count + 1, first

        parts: dict[str, dict[str, tuple[int, int]]] = {"image": {}, "cls": {}, "json": {}}
        numbers, broken, keys, ended = {}, {}, {}, True  # `keys` in their order
        for raw, kind, start, length in _members(file, path.name):
            self._left -= 1
            if self._left < 0:
                raise InputError(f"DATA: {path.name} has too many members to be opened because a run names it.")
            name = raw.decode("utf-8", "backslashreplace").removeprefix("./")
            first = name.rfind("/") + 1
            stem, _, ending = name[first:].partition(".")
            if kind == _END:
                ended = False
                note("shards that end early: they may be truncated", path.name)
            elif kind not in _PLAIN:
                if kind != b"5":  # a folder
                    note("members that are not plain files, left out", name)
            elif len(raw) > _MOST_NAME or _HOSTILE.search(name):
                note("members with hostile names, left out", name)
            elif stem:  # otherwise a hidden file
                key = keys[key] = name[: first + len(stem)]
                ending = ending.lower()
                part = parts.get("image" if ending in _IMAGES else ending)
                if part is None:
                    continue
                if key in part:
                    what = f"two images or two labels of the key {printable(key)[:80]!r}"
                    raise InputError(f"DATA: {path.name} has {what}; samples must have one of each.")
                if start + length > size:
                    broken[key], length = f"{path.name} ends inside this sample: the file is truncated", 0
                part[key] = start, length
                if ending == "cls":
                    numbers[key] = file.read(min(length, _MOST_NUMBER + 1))
        images, labels = parts["image"], {}
        for key in keys:
            if key not in images:
                note("keys without a .jpg, .jpeg, .png or .webp, left out", key)
        for key in images:
            if key in broken:
                continue
            try:
                if key in numbers and self._columns.label is None:  # otherwise the label is a field of the .json
                    labels[key] = _number(numbers[key])
                elif key in parts["json"]:
                    start, length = parts["json"][key]
                    file.seek(start)
                    labels[key] = self._field(file.read(min(length, _MOST_TEXT + 1)))
            except InputError as error:
                raise type(error)(f"DATA: {path.name}, key {printable(key)[:80]!r}: {error}") from None
        return _Scan(images, labels, broken, ended, notes)

    def _field(self, content: bytes) -> int | str | None:
        """The label in a .json."""
        try:
            fields = json.loads(content if len(content) <= _MOST_TEXT else b"")
        except (ValueError, RecursionError):
            raise InputError(f"its .json holds no JSON, or more than {_MOST_TEXT >> 20} MiB.") from None
        fields = fields if isinstance(fields, dict) else {}
        label = fields.get(pick_column(fields, self._columns.label, LABEL_COLUMNS, "its .json"))
        if label is not None and type(label) is not int and not (isinstance(label, str) and _is_name(label)):
            raise InputError(f"its label must be a class index or a class name, got {type(label).__name__}.")
        return label

    def _as_labels(self, values: list[Any]) -> np.ndarray | None:
        """Class indices; names are numbered alphabetically, over all shards together."""
        self.classes, kinds = None, {type(value) for value in values} - {type(None)}
        if not kinds:
            return None
        self._broken |= {row: why for row, why in self._cut.items() if values[row] is None and row not in self._broken}
        missing = [row for row, value in enumerate(values) if value is None and row not in self._broken]
        if missing:
            count = f"{len(missing):,} of {len(values):,} samples (first: {printable(self.ids[missing[0]])[:80]})"
            raise InputError(f"DATA: {count} have no label and the others have one; add or drop them.")
        if len(kinds) > 1:
            raise InputError(f"DATA: labels of {printable(self.origin)} must all be class indices or all be names.")
        placeholder = next(value for value in values if value is not None)  # stands for what is never read
        values = [placeholder if value is None else value for value in values]
        if kinds == {str}:
            self.classes = sorted(set(values))
            places = {name: place for place, name in enumerate(self.classes)}
            values = [places[value] for value in values]
        return class_indices(np.array(values), printable(self.origin)).astype(np.int64)

    def _bytes(self, index: int) -> bytes:
        if index in self._broken:
            raise InputError(self._broken[index])
        shard, start, length = self._places[index].tolist()
        if length > MOST_IMAGE:
            raise InputError(f"the image has {length:,} bytes, expected {MOST_IMAGE:,} at most")
        file = self._opened(shard, _open)
        file.seek(start)
        return file.read(length)


class _File(io.FileIO):
    """A file that is closed, without a warning, once nobody needs it."""

    def __del__(self) -> None:
        self.close()


def _open(path: Path) -> BinaryIO | io.FileIO:
    return path.open("rb") if isinstance(path, StorePath) else _File(path)


def _number(content: bytes) -> int:
    text = content.strip()
    if len(content) > _MOST_NUMBER or not text.removeprefix(b"-").isdigit():
        raise InputError("its .cls must hold a class index.")
    return int(text)


def _is_name(text: str) -> bool:
    try:
        return len(text.encode()) <= _MOST_NAME
    except UnicodeEncodeError:  # half of a character that takes two
        return False


_COMPRESSED = b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"  # gzip, bzip2, xz and Zstandard
_PLAIN = b"0", b"\0", b"7"
_DESCRIBING = b"L", b"K", b"x", b"g", b"X"  # the next member, or all
_END = b""  # stands for the missing end of a tar
_ZEROS = bytes(512)


def _members(file: BinaryIO, name: str) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Name, type, offset and length of the members of a tar (ustar, GNU or pax), and `_END` where its end is missing.

    Only headers are read, 512 bytes each. `file` is then at the content of the member.
    """
    offset, end, long_name, long_size = 0, file.seek(0, os.SEEK_END), None, None
    while True:
        file.seek(min(offset, end))  # a header may state any length
        block = file.read(512)
        if block == _ZEROS:
            return
        if len(block) < 512 and offset:
            yield b"", _END, offset, 0
            return
        if (length := _length(block)) is None:
            if block.startswith(_COMPRESSED) and not offset:
                raise compressed_error(name)
            what = f"is damaged at byte {offset:,}" if offset else "is not a tar file, or it is truncated"
            raise InputError(f"DATA: {printable(name)} {what}.")
        kind, start = block[156:157], offset + 512
        if kind in _DESCRIBING:
            offset = start + (length + 511) // 512 * 512
            if length > _MOST_TEXT:
                raise InputError(f"DATA: {printable(name)} has a header of {length:,} bytes; use plain tar.")
            if kind == b"L":
                long_name = file.read(length).rstrip(b"\0")
            elif kind == b"x":
                entries = dict(_entries(file.read(length)))
                long_name, value = entries.get(b"path", long_name), entries.get(b"size", b"")
                long_size = int(value) if value.isdigit() and len(value) < 20 else None
                if any(key.startswith(b"GNU.sparse") for key in entries):
                    kind = b"S"
        if kind in (b"S", b"M"):
            raise InputError(f"DATA: {printable(name)} is a sparse or multi-volume archive; use plain tar.")
        if kind in _DESCRIBING:
            continue
        length = 0 if kind in b"123456" else length if long_size is None else long_size  # links and the like have none
        offset = start + (length + 511) // 512 * 512
        if long_name is None:
            long_name, prefix = block[:100].split(b"\0", 1)[0], block[345:500].split(b"\0", 1)[0]
            if prefix and block[257:263] == b"ustar\0":
                long_name = prefix + b"/" + long_name
        yield long_name, kind, start, length
        long_name = long_size = None


def _length(block: bytes) -> int | None:
    """The length that a header states; None where the block is no header."""
    if len(block) < 512:
        return None
    field, size = block[148:156], block[124:136]
    try:
        total = int(field.strip(b" \0"), 8) - 8 * 32 + sum(field)  # of the bytes, which Adler-32 adds up fast
        length = int.from_bytes(size[1:], "big") if size[0] == 0x80 else int(size.strip(b" \0") or b"0", 8)
    except ValueError:
        return None
    return length if length >= 0 and zlib.adler32(block) % 65536 == (total + 1) % 65521 else None


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a pax header, each ``length key=value`` and a line break; another form ends them."""
    start = 0
    while (space := content.find(b" ", start, start + 20)) > start and content[start:space].isdigit():
        end = start + int(content[start:space])
        if end <= space:
            return
        key, _, value = content[space + 1 : end - 1].partition(b"=")
        yield key, value
        start = end
