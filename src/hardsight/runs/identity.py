"""What decides a result, as a hash: a result is reused only where everything that decides it has the same hash.

Values are hashed by what they hold, never by how they print: arrays and tensors byte by byte, containers item by item,
objects by their class and by the state that pickle would store. Code of a library is known by its name; a user's
functions and classes by their source text and by the values that they read. Whatever cannot be hashed this way is a
*gap*: the hash does not cover it, and whoever reuses results must ask for a version.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import inspect
import os
import secrets
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

UNIDENTIFIED = "unidentified"  # the key of a plan that lists what can change unnoticed


class Identity(NamedTuple):
    """A hash, and what it does not cover."""

    hash: str
    gaps: tuple[str, ...]

    @property
    def key(self) -> str:
        """The hash if it covers everything; otherwise a text that equals no other."""
        return f"{self.hash}-{secrets.token_hex(8)}" if self.gaps else self.hash


def gaps_entry(*identities: Identity) -> dict[str, Any]:
    """A plan's entry about gaps: it equals no other plan, and a refusal to resume names what has no version."""
    gaps = [gap for identity in identities for gap in identity.gaps]
    return {UNIDENTIFIED: {"what": gaps, "once": secrets.token_hex(8)}} if gaps else {}


Identity.__module__ = "hardsight.identity"  # where it was first: fingerprints of data in existing runs hold the name


def identify(*values: Any) -> Identity:
    """The identity of some values together.

    Examples:
        >>> identify([1, 2]) == identify([1, 2]), identify([1, 2]) == identify((1, 2)), identify(1) == identify(1.0)
        (True, False, False)
        >>> identify(x for x in "ab").gaps
        ('generator',)
    """
    hasher = _Hasher()
    digest = hasher.digest(values)
    return Identity(digest.hex()[:32], tuple(hasher.gaps))


def content_hash(*values: Any) -> str:
    """Hash of values that holds all of them; it equals no other where one of them cannot be hashed."""
    return identify(*values).key


_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, type(Ellipsis))
# What every module has, and what does not affect its output; hooks are hashed separately.
# The last three are set by compiling, by torch and by Lightning.
_MODULE_STATE = frozenset(vars(nn.Module())) | {"_compiled_call_impl", "_is_torch_compile", "_compile_kwargs"}
_DESCRIPTORS = (property, staticmethod, classmethod, cached_property)


def module_attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds beside its weights, submodules and mode."""
    return {key: item for key, item in vars(module).items() if key not in _MODULE_STATE}


def is_users(function: object) -> bool:
    """Whether a registered function or class is a user's: its name alone does not tell what it does."""
    return str(getattr(function, "__module__", None)).partition(".")[0] not in ("hardsight", "torch")


class _Hasher:
    """Digests of values, each computed once; `gaps` collects the kinds of value that have none."""

    def __init__(self) -> None:
        self.gaps: dict[str, None] = {}
        self._stack: list[int] = []
        self._cache: dict[int, tuple[object, bytes]] = {}  # with the object, so that its id stays its own

    def digest(self, value: Any) -> bytes:
        if type(value) in _PLAIN:
            return _plain(value)
        if id(value) in self._stack:  # a cycle: how far up it leads
            return _join("cycle", str(len(self._stack) - self._stack.index(id(value))))
        if id(value) not in self._cache:
            self._stack.append(id(value))
            try:
                digest = self._composite(value)
            except Exception:  # it has no source text, no storage, cannot be pickled, is nested too deeply …
                name = value.__qualname__ if isinstance(value, (FunctionType, type)) else type(value).__name__
                self.gaps[name] = None
                digest = _join("gap", type(value).__qualname__)
            finally:
                self._stack.pop()
            self._cache[id(value)] = (value, digest)
        return self._cache[id(value)][1]

    def _composite(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            return _join(kind.__name__, *map(self.digest, value))
        if kind in (set, frozenset):
            return _join(kind.__name__, *sorted(map(self.digest, value)))
        if kind is dict:
            return _join("dict", *sorted(self.digest(key) + self.digest(item) for key, item in value.items()))
        if kind in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            array = np.ascontiguousarray(value)
            content = self.digest(value.tolist()) if array.dtype.hasobject else array.reshape(-1).view(np.uint8).data
            return _join("array", str(array.dtype), str(value.shape), content)
        if isinstance(value, Tensor):
            return _tensor_digest(value)
        if isinstance(value, nn.Module):
            if len(self._stack) <= 2:  # the outermost, in the tuple of all values
                self._hash_weights(value)
            hooks = [list(vars(value)[name].values()) for name in ("_forward_hooks", "_forward_pre_hooks")]
            tensors = [dict(value._parameters), dict(value._buffers), dict(value._modules)]
            parts = map(self.digest, [*tensors, module_attributes(value), hooks])
            return _join("module", self.digest(kind), *parts)
        if isinstance(value, PurePath):
            return _join("path", value.as_posix())
        if kind is FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, ModuleType):
            name = value.__name__
            return _join("import", name, *([] if _in_library(name) else [Path(str(value.__file__)).read_bytes()]))
        if isinstance(value, _DESCRIPTORS):
            names = ("fget", "fset", "__func__", "func")
            return _join(kind.__name__, *(self.digest(getattr(value, name, None)) for name in names))
        return self._reduced(value)

    def _hash_weights(self, module: nn.Module) -> None:
        """Digests of large tensors, computed side by side: hashing them is most of the work."""
        tensors = (t for t in (*module.parameters(), *module.buffers()) if id(t) not in self._cache)
        large = [t for t in tensors if t.layout == torch.strided and t.nbytes > 1 << 16]  # a sparse one has no size
        if len(large) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool, suppress(Exception):  # met again, and a gap there
                for tensor, digest in zip(large, pool.map(_tensor_digest, large), strict=True):
                    self._cache[id(tensor)] = (tensor, digest)

    def _function(self, value: Any) -> bytes:
        cells = []
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # it is empty until its variable is set
                cells.append(cell.cell_contents)
        state = self.digest([value.__defaults__, value.__kwdefaults__, cells])
        parts: list[str | bytes] = ["function", value.__module__ or "", value.__qualname__, state]
        if not _in_library(value.__module__):
            read = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
            parts += [_source(value.__code__), self.digest(read)]
        return _join(*parts)

    def _class(self, value: type) -> bytes:
        parts: list[str | bytes] = ["class", value.__module__, value.__qualname__]
        if not _in_library(value.__module__):
            parts += [self.digest(list(value.__bases__)), self.digest(list(getattr(value, "__dataclass_fields__", ())))]
            for name, item in sorted(vars(value).items()):
                if _is_written(value, name, item):
                    parts += [_plain(name), self.digest(item)]
        return _join(*parts)

    def _reduced(self, value: Any) -> bytes:
        """Any other object, by what pickle would store of it."""
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        if isinstance(reduced, str):  # a global of a library, or one with the user's function inside
            module = getattr(value, "__module__", None) or type(value).__module__
            inner = [] if _in_library(module) else [self.digest(value.__wrapped__)]
            return _join("global", module, reduced, *inner)
        make, arguments, state, items, pairs = (*reduced[:5], None, None, None)[:5]
        parts = [make, arguments, state, None if items is None else list(items), None if pairs is None else [*pairs]]
        return _join("object", self.digest(type(value)), *map(self.digest, parts))


def _plain(value: Any) -> bytes:
    if type(value) is str:  # perhaps one of a million ids
        content = value.encode("utf-8", "surrogatepass")
        return hashlib.sha256(b"3:str%d:%b" % (len(content), content)).digest()
    if isinstance(value, (float, complex)):
        return _join("number", type(value).__name__, value.real.hex(), value.imag.hex())
    return _join(type(value).__name__, value if isinstance(value, (bytes, bytearray)) else str(value))


def _tensor_digest(value: Tensor) -> bytes:
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return _join("tensor", str(value.dtype), str(tuple(value.shape)), content)


def _join(*parts: str | bytes | bytearray | memoryview) -> bytes:
    """A digest of parts that no other division into parts shares."""
    contents = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]
    if not any(isinstance(content, memoryview) for content in contents):  # most values: small, and there are many
        return hashlib.sha256(b"".join([b"%d:%b" % (len(content), content) for content in contents])).digest()
    digest = hashlib.sha256()
    for content in contents:
        digest.update(b"%d:" % memoryview(content).nbytes)
        digest.update(content)
    return digest.digest()


def _is_written(owner: type, name: str, item: Any) -> bool:
    """Whether a member of a class was written by the user, not made by Python, `dataclass` or `NamedTuple`."""
    function = inspect.isroutine(item) or isinstance(item, _DESCRIPTORS)
    if (name.startswith("__") and not function) or inspect.ismemberdescriptor(item) or name == "_abc_impl":
        return False
    if isinstance(item, FunctionType) and (is_dataclass(owner) or hasattr(owner, "_fields")):
        return inspect.unwrap(item).__code__.co_filename != "<string>"
    return True


def _source(code: CodeType) -> str:
    """The text of a function, with its columns, which tell two functions in one line apart."""
    columns = [column for _, _, *both in code.co_positions() for column in both if column is not None]
    return f"{min(columns, default=0)}-{max(columns, default=0)} {inspect.getsource(code)}"


# `co_names` holds attributes, too. The last is what the body of a class inside a function has from Python 3.12 on.
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _names(code: CodeType) -> Iterator[str]:
    """The globals that code and the code inside it read."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in _READS_GLOBAL)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


_LIBRARIES = [Path(sysconfig.get_paths()[key]) for key in ("purelib", "platlib")]


def _in_library(module: str | None) -> bool:
    """Whether a module is Python's, this package's or an installed one, which its name and version tell apart."""
    top = str(module).partition(".")[0]
    if top in sys.stdlib_module_names or top == "hardsight":
        return True
    imported = sys.modules.get(top)
    places = [getattr(imported, "__file__", None), *getattr(imported, "__path__", ())]
    return any(place is not None and Path(place).is_relative_to(root) for place in places for root in _LIBRARIES)
