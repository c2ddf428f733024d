"""One writer per folder: an operating-system lock that is released when its owner ends, however it ends.

The lock is a file that names its owner, so that a second process can say who is writing. A process can take a lock
again that it has; the lock is free when all of its uses are over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardsight.errors import StateError

_NAME = ".lock"
# What lies in a folder while it is being written, and after its writer was killed.
LOCK_FILES = re.compile(r"(\.[^/]+)?\.lock(\.\d{4})?")
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


@dataclass
class _Taken:
    """A lock of this process, and how many use it."""

    descriptor: int
    shared: bool
    process: int
    uses: int = 1


_locks: dict[str, _Taken] = {}


class Lock:
    """A lock on a file; a context manager, and released when nobody refers to it any more.

    Args:
        file: The file to lock; it is created, and removed at the end.
        what: The folder or file that is written, for the error.
        shared: Let others share it; they are only kept from taking it alone.

    Raises:
        StateError: Another process has it; the error names it.
    """

    def __init__(self, file: Path, what: Path, *, shared: bool = False) -> None:
        # By one name each: a record lock is lost when any other descriptor of its file is closed.
        key = str(file.parent.resolve() / file.name)
        lock = _locks.get(key)
        if lock is not None and lock.process == os.getpid():
            lock.uses += 1
        else:
            _locks[key] = _Taken(_acquire(file, what, shared), shared, os.getpid())
        self.release = weakref.finalize(self, _release, key, file)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def folder_lock(folder: Path, *, shard: tuple[int, int] = (0, 1)) -> contextlib.ExitStack:
    """The lock of a folder, which is made if needed; processes of one job share it, and each locks its own share.

    Args:
        folder: The folder that is written.
        shard: Rank of this process and number of processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        rank, world = shard
        stack.enter_context(Lock(folder / _NAME, folder, shared=world > 1))
        if world > 1:
            stack.enter_context(Lock(folder / f"{_NAME}.{rank:04d}", folder))
        return stack.pop_all()


def beside_lock(target: Path) -> Lock:
    """The lock of a file or folder that is replaced as a whole: it lies beside it."""
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    return Lock(target.parent / f".{target.name[:100]}{_NAME}", target)


def _acquire(file: Path, what: Path, shared: bool) -> int:
    """A descriptor of the locked file. Its last owner may have removed the file just before: then once more."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            if not _try(descriptor, shared):
                owner = _owner(descriptor)
                raise StateError(f"{what} is being written by {owner}; wait for it, or name another place.")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), file.stat()):
                    _sign(descriptor)
                    stack.pop_all()
                    return descriptor


def _release(key: str, file: Path) -> None:
    lock = _locks.get(key)
    if lock is None or lock.process != os.getpid():  # a forked process has no part in it
        return
    lock.uses -= 1
    if lock.uses:
        return
    del _locks[key]
    # A shared lock is left to whoever is last. On Windows an open file cannot be removed; left behind it harms nobody.
    with contextlib.suppress(OSError):
        if not lock.shared or _try(lock.descriptor, shared=False):
            file.unlink()
    with contextlib.suppress(OSError):
        os.close(lock.descriptor)


def _sign(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": platform.node(), "command": " ".join(sys.argv)[:200]}
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(owner).encode())


def _owner(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        owner: Any = json.loads(os.read(descriptor, 4096))
        return f"process {int(owner['pid'])} on {owner['host']} ({owner['command']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try(descriptor: int, shared: bool) -> bool:
        """There is no shared lock: that of its own share keeps a second job away."""
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # a locked byte cannot be read, so it lies far behind the text
        try:
            if not shared:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try(descriptor: int, shared: bool) -> bool:
        """A record lock: unlike `flock` it is not inherited by loader processes, which may outlive their owner."""
        try:
            fcntl.lockf(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _UNSUPPORTED  # a file system without locks is no reason to stop
        return True
