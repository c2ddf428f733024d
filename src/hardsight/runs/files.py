"""Files that appear only when they are whole, and that replace nothing which hardsight did not write."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hardsight.errors import DiskError, ExistingPathError
from hardsight.stores import StorePath, map_paths

# The name of a file or folder until it is whole; a kill leaves it behind.
TEMPORARY = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{8}\.tmp")

# What marks a page as ours: the generator tag, or the title of a page from before pages had that tag.
_PAGE = re.compile(rb'<meta name="generator" content="hardsight">| \xc2\xb7 (hardness report|comparison)</title>')


def temporary_name(target: Path) -> Path:
    """A name beside the target that no other process takes."""
    return target.parent / f".{target.name[:200]}.{secrets.token_hex(4)}.tmp"


def write_whole(path: Path, writer: Callable[[Path], object]) -> None:
    """Write a temporary file, flush to disk, rename: the name appears only with complete content. Creates the folder.

    An object on a store appears when its upload is complete.
    """
    if isinstance(path, StorePath):
        path.write(writer)
        return
    temporary = temporary_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_together(*writers: Callable[[], object]) -> None:
    """Write several files at once: each waits for the disk. An error of one is raised when all have ended."""
    with ThreadPoolExecutor(max(1, len(writers))) as pool:
        written = [pool.submit(writer) for writer in writers]
    for future in written:
        future.result()


def write_text(path: Path, text: str) -> None:
    """Text as UTF-8, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Content as JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, default=str))


def sweep(folder: Path) -> None:
    """Remove what kills left half-written in a folder that nobody else writes to now."""
    for file in folder.glob(".*.tmp"):
        if TEMPORARY.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)


def remove_files(folder: Path, names: re.Pattern[str]) -> None:
    """Remove the files of a folder whose names match, half-written ones, and the folder unless others are in it."""
    sweep(folder)
    files = [file for file in folder.glob("*") if names.fullmatch(file.name) and file.is_file()]
    map_paths(lambda file: file.unlink(), files)
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def disk_errors(path: Path, argument: str = "RUN") -> Iterator[None]:
    """A full or read-only disk as a `DiskError`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "No space left" in str(error)
        refusals = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
        if not full and error.errno not in refusals:
            raise
        if full:
            why = "the disk is full; what was committed is safe. Free some space and run the same command again"
        else:
            why = f"{os.strerror(error.errno or 0)}; choose another place"
        raise DiskError(error.errno, f"{argument}: {path} cannot be written: {why}.") from error


def check_replaceable(target: Path, ours: Callable[[Path], bool], argument: str = "out") -> None:
    """Refuse to write over a file that hardsight did not write."""
    if (target.exists() or target.is_symlink()) and not (target.is_file() and ours(target)):
        why = "already exists and was not written by hardsight; name another file"
        raise ExistingPathError(f"{argument}: {target} {why}.")


def is_page(file: Path) -> bool:
    """Whether a file is a page that hardsight wrote."""
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return _PAGE.search(stream.read(8192)) is not None
