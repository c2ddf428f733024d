"""A function in a user's file, named ``path/to/file.py:function``: the only user code that is ever run."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from hardsight.errors import InputError, MissingPathError, StateError
from hardsight.extras import first_line

USER_MODULE = "hardsight_user_"  # prefix of the module name of a user's file


def is_file_function(spec: str) -> bool:
    """Whether a model name is ``path/to/file.py:function``."""
    return ":" in spec and spec.rpartition(":")[0].endswith(".py")


@dataclass(frozen=True)
class FileFunction:
    """A function in a user's file. Files beside it can be imported while it runs; its errors name its lines."""

    path: Path
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        file = os.fsencode(self.path.name).decode("utf-8", "backslashreplace")  # the same in every locale
        return f"{file}:{self.function.__name__}"

    def __call__(self, *args: Any) -> Any:
        with _running(self.path, f"{self.function.__name__}()"):
            return self.function(*args)


def load_function(spec: str) -> FileFunction:
    """The function that ``path/to/file.py:function`` names. A file is executed once, until it changes."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise MissingPathError(f"MODEL: there is no file {path}.")
    status = path.stat()
    module = _execute(path.resolve(), status.st_mtime_ns, status.st_size)
    sys.modules[module.__name__] = module  # so that loader workers can unpickle its classes, whatever else was loaded
    function = getattr(module, name, None)
    if not callable(function):
        defined = [n for n, v in vars(module).items() if callable(v) and v.__module__ == module.__name__]
        raise InputError(f"MODEL: {path.name} has no function {name!r}; it defines {', '.join(defined) or 'none'}.")
    return FileFunction(path, function)


class _FromSource(SourceFileLoader):
    """Compiles the file itself: Python's bytecode cache cannot tell files of the same size and second apart."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@cache
def _execute(path: Path, *_version: int) -> ModuleType:
    name = f"{USER_MODULE}{path.stem}"
    spec: Any = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with _running(path, "importing it"):
        spec.loader.exec_module(module)
    return module


def takes_training_data(function: object) -> bool:
    """Whether a function trains a model: any Python function, or one of a file that requires an argument."""
    if not isinstance(function, FileFunction):
        return inspect.isroutine(function) or isinstance(function, partial)
    try:
        parameters = inspect.signature(function.function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)


@contextmanager
def _running(path: Path, task: str) -> Iterator[None]:
    """Make files beside a user's file importable, and let errors name the line in the file."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    except (Exception, SystemExit) as error:  # a file that exits would end the program as if it had succeeded
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
        at = f" at line {lines[-1]}" if lines else ""
        raise StateError(
            f"MODEL: {task} failed in {path.name}{at}: {type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        sys.path.remove(folder)
