"""One writer per folder: an operating-system lock that ends with its owner, however the owner ends."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hardsight.errors import StateError
from hardsight.stores import StorePath

# What lies in a folder while it is being written, and after its writer was killed.
LOCK_FILES = re.compile(r"(\.[^/]+)?\.lock(\.\d{4})?")
_PATIENCE = 5.0  # seconds; processes of one job look at the lock of the whole folder one after another


def folder_lock(folder: Path, shard: tuple[int, int] = (0, 1), patience: float = 0) -> ExitStack:
    """The lock of a folder, which is created if needed; processes of one job each lock their share of it.

    Args:
        folder: The folder that is written.
        shard: Rank of this process and number of processes.
        patience: How many seconds to wait for those who write the folder now.
    """
    if isinstance(folder, StorePath):
        return ExitStack()  # no store has locks; the last writer of a marker counts
    folder.mkdir(parents=True, exist_ok=True)
    rank, world = shard
    whole, share = folder / ".lock", folder / f".lock.{rank:04d}"
    # Each takes its own lock before it looks at those of others, so that of two at least one notices.
    with _lock(share if world > 1 else whole, folder, patience) as stack:
        for other in [whole] if world > 1 else folder.glob(".lock.*"):
            _lock(other, folder, _PATIENCE if world > 1 else patience).close()
        return stack.pop_all()


def beside_lock(target: Path, patience: float = 0) -> ExitStack:
    """The lock of a file or folder that is replaced as a whole: it lies beside it. −1 waits for as long as it takes."""
    if isinstance(target, StorePath):
        return ExitStack()
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    return _lock(target.parent / f".{target.name[:100]}.lock", target, patience)


def _lock(file: Path, what: Path, patience: float = 0) -> ExitStack:
    """Lock a file, which names its owner. A process can take a lock that it holds again; the last release frees it."""
    lock = FileLock(file.parent.resolve() / file.name, thread_local=False, is_singleton=True)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        owner = "another process"
        with suppress(OSError, ValueError):
            owner = file.read_text(encoding="utf-8") or owner
        raise StateError(f"{what} is being written by {owner}; wait for it, or name another place.") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        return ExitStack()  # a file system without locks is no reason to stop
    with ExitStack() as stack:
        stack.callback(_release, lock, os.getpid())
        file.write_text(f"process {os.getpid()} on {platform.node()} ({' '.join(sys.argv)[:200]})", encoding="utf-8")
        return stack.pop_all()


def _release(lock: FileLock, process: int) -> None:
    if process == os.getpid():  # a forked process has no part in it
        with suppress(OSError):  # on Windows an open file cannot be removed; left behind it harms nobody
            if lock.lock_counter == 1:
                Path(lock.lock_file).unlink()
        lock.release()
