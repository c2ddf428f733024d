"""Paths on object stores (``s3://``, ``gs://``, ``hf://``), which runs and data use like paths on a disk.

Credentials and endpoints come from the environment (``AWS_ENDPOINT_URL``, ``AWS_PROFILE`` …). Objects appear
atomically, so nothing is renamed; folders are prefixes, and there are no locks.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from hardsight.errors import HardsightError, InputError, MissingPathError, StoreError
from hardsight.extras import first_line, need
from hardsight.registry import did_you_mean

# How a user gives each store its credentials.
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN",
}
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(/(?P<rest>.*))?", re.DOTALL)  # C:/ is a drive, not a scheme
_CONNECT_SECONDS, _REQUEST_SECONDS, _TRIES = 5, 60, 3
_BUFFER = 1 << 20  # bytes per request: images of a shard are read sequentially
_AT_ONCE = 16  # requests

_REFUSED = re.compile(
    "ACCESS_DENIED|ACCESS_KEY|SIGNATURE|TOKEN|Token|access token|PERMISSION_DENIED|UNAUTHENTICATED|HTTP status 40[0-3]"
    "|40[13] Client|Unauthorized|Forbidden"
)
_SILENT = re.compile("NETWORK_CONNECTION|curlCode|CURL error|UNAVAILABLE|[Tt]imed? ?out|[Cc]onnect")

_In = TypeVar("_In")
_Out = TypeVar("_Out")
if TYPE_CHECKING:
    _LocalPath = Path
else:
    _LocalPath = type(Path())  # before Python 3.12 only this class can be subclassed


def is_url(text: str) -> bool:
    """Whether a text is a URL with a scheme: ``s3://bucket/key``, but not ``hf:NAME``.

    Examples:
        >>> is_url("s3://bucket/run"), is_url("hf:imdb"), is_url("C:/run")
        (True, False, False)
    """
    return _URL.fullmatch(text) is not None and "://" in text


def as_path(path: str | Path) -> Path:
    """A user's path, on a disk or on an object store. `Path` turns ``s3://`` into ``s3:/``, which is undone.

    Examples:
        >>> str(as_path("s3://bucket/run") / "meta.json"), str(as_path(Path("s3://bucket/run")))
        ('s3://bucket/run/meta.json', 's3://bucket/run')
        >>> as_path("file:///tmp/run") == as_path("/tmp/run")
        True
    """
    if isinstance(path, StorePath) or (match := _URL.fullmatch(text := os.fspath(path))) is None:
        return Path(path) if isinstance(path, str) else path
    if "://" not in text and Path(text).parts and Path(Path(text).parts[0]).is_dir():
        return Path(text)
    scheme, rest = match["scheme"].lower(), (match["rest"] or "").lstrip("/")
    if scheme == "file" and rest:
        return _local(text, rest)
    text = text if "://" in text else text.replace(":/", "://", 1)
    if scheme not in {"file", *_CREDENTIALS}:
        raise InputError(
            f"{text!r} is on no store that hardsight knows: {did_you_mean(scheme, ['file', *_CREDENTIALS])}"
        )
    if not rest:
        wanted = (
            "a file or folder, as in file:///folder" if scheme == "file" else f"a bucket, as in {scheme}://bucket/name"
        )
        raise InputError(f"{text!r} must name {wanted}.")
    return StorePath(f"{scheme}:/{rest}")


def _local(text: str, rest: str) -> Path:
    """The path of a ``file://`` URL, in which characters that a URL cannot hold are escaped like ``%20``."""
    host = "" if "://" not in text else text.partition("://")[2].partition("/")[0]
    if host not in ("", "localhost"):
        raise InputError(f"{text!r} names another machine, {host!r}; the path of a local file is file:///folder/file.")
    rest = unquote(rest[len(host) :].lstrip("/"))
    return Path("/" + rest if os.name == "posix" else rest)


def local_path(path: str | Path) -> Path:
    """A path on a disk; object stores are refused."""
    if isinstance(path := as_path(path), StorePath):
        os.fspath(path)
    return path


def readable(path: Path) -> Any:
    """A source that pyarrow can open: a path on a disk unchanged, an object as a file."""
    return path.open("rb") if isinstance(path, StorePath) else path


def map_paths(function: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
    """Map a function over paths; on a store, where each call waits for the network, several at a time."""
    items = list(items)
    if not any(isinstance(item, StorePath) for item in items):
        return list(map(function, items))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, items))


class StorePath(_LocalPath):
    """A path on an object store: the methods of `Path` that runs and data need, and no access to the disk."""

    def __str__(self) -> str:
        return super().__str__().replace(os.sep, "/").replace(":/", "://", 1)

    def __fspath__(self) -> str:
        # Methods that are not overridden below would look for a local file of this name.
        raise StoreError(f"{self} is on an object store, and this needs a disk: name a local path and copy it.")

    @property
    def _key(self) -> str:
        return "/".join(self.parts[1:])

    @property
    def _store(self) -> Any:
        return _filesystem(self.parts[0][:-1], self.parts[1], _endpoint(), os.getpid())

    def _info(self) -> Any:
        with _store_errors(self):
            return self._store.get_file_info(self._key)

    def exists(self, **_: Any) -> bool:
        return self._info().type.name != "NotFound"

    def is_file(self, **_: Any) -> bool:
        return self._info().is_file

    def is_dir(self, **_: Any) -> bool:
        return self._info().type.name == "Directory"

    def is_symlink(self) -> bool:
        return False

    def absolute(self) -> StorePath:
        return self

    def resolve(self, strict: bool = False) -> StorePath:
        return self

    def stat(self, **_: Any) -> Any:
        """Size, time and kind."""
        info = self._info()
        if info.type.name == "NotFound":
            raise MissingPathError(f"there is no {self}.")
        mode = stat.S_IFREG if info.is_file else stat.S_IFDIR
        return SimpleNamespace(st_size=info.size, st_mtime_ns=info.mtime_ns or 0, st_mode=mode)

    def glob(self, pattern: str, **_: Any) -> Generator[Any]:
        """Direct children that match a pattern; folders only if the pattern ends with a slash."""
        names = pattern.removesuffix("/")
        for entry in self._list(recursive=False):
            if fnmatchcase(entry.base_name, names) and (names == pattern or not entry.is_file):
                yield self / entry.base_name

    def rglob(self, pattern: str, **_: Any) -> Generator[Any]:
        """The objects below."""
        for entry in self._list(recursive=True):
            if entry.is_file and fnmatchcase(entry.base_name, pattern):
                yield self / entry.path[len(self._key) :].lstrip("/")

    def _list(self, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        with _store_errors(self):
            return self._store.get_file_info(FileSelector(self._key, allow_not_found=True, recursive=recursive))

    def open(self, mode: str = "rb", *_: Any, **__: Any) -> Any:  # pyrefly: ignore[bad-override]
        """The object, to read from."""
        if mode != "rb":
            os.fspath(self)
        with _store_errors(self):
            return io.BufferedReader(_Object(self, self._store.open_input_file(self._key)), _BUFFER)

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str | None = None, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def write(self, writer: Callable[[Path], object]) -> None:
        """Upload a local file that a function writes."""
        if self.parts[0] == "hf:":
            raise StoreError(f"{self} can only be read: hardsight writes to a disk, s3:// or gs://.")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, self.name)
            writer(file)
            with file.open("rb") as content, _store_errors(self), self._store.open_output_stream(self._key) as sink:
                while block := content.read(1 << 24):
                    sink.write(block)

    def mkdir(self, *_: Any, **__: Any) -> None:
        pass

    def rmdir(self) -> None:
        pass

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with _store_errors(self):
                self._store.delete_file(self._key)
        except MissingPathError:
            if not missing_ok:
                raise


class _Object(io.RawIOBase):
    """An open object that raises readable errors."""

    def __init__(self, path: StorePath, file: Any) -> None:
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        with _store_errors(self._path):
            return self._file.readinto(buffer)


def _endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


@cache
def _filesystem(scheme: str, bucket: str, endpoint: str | None, process: int) -> Any:
    """The file system of a bucket; every process has its own, because a fork must not share connections."""
    from pyarrow import fs

    if scheme == "hf":
        return fs.PyFileSystem(fs.FSSpecHandler(need("huggingface_hub").HfFileSystem()))
    try:
        store = _s3(bucket, endpoint) if scheme == "s3" else fs.GcsFileSystem(retry_time_limit=timedelta(seconds=15))
    except (ImportError, AttributeError):
        raise StoreError(f"this pyarrow cannot reach {scheme}:// ; install one from PyPI or conda-forge.") from None
    try:
        missing = store.get_file_info(bucket).type.name == "NotFound"
    except OSError as error:
        if not _REFUSED.search(str(error)):
            raise
        missing = False  # a user who may read an object may not be allowed to see its bucket
    if missing:
        raise StoreError(f"there is no bucket {scheme}://{bucket}: create it, or check its name and the endpoint.")
    return store


def _s3(bucket: str, endpoint: str | None) -> Any:
    from pyarrow import fs

    place: dict[str, Any] = {"endpoint_override": endpoint}
    if endpoint is None:
        try:
            place = {"region": fs.resolve_s3_region(bucket)}
        except OSError:  # the environment may still define it, and the first request reports any error
            place = {}
    return fs.S3FileSystem(
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_REQUEST_SECONDS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        **place,
    )


@contextmanager
def _store_errors(path: StorePath) -> Iterator[None]:
    """Turn errors of a store or its library into readable ones."""
    try:
        yield
    except HardsightError:
        raise
    except FileNotFoundError:
        raise MissingPathError(f"there is no {path}.") from None
    except Exception as error:  # each library has errors of its own
        scheme, text = path.parts[0][:-1], str(error)
        if _REFUSED.search(text):
            why = "credentials are missing, wrong or without this permission"
            raise StoreError(f"{path} is refused: {why}; set {_CREDENTIALS[scheme]}.") from error
        if _SILENT.search(text):
            where = f" at {_endpoint()}" if scheme == "s3" and _endpoint() else ""
            raise StoreError(
                f"{path} cannot be reached: no store answers{where}; check network and address."
            ) from error
        raise StoreError(f"{path}: the store fails ({first_line(error)}); run the same command again.") from error
