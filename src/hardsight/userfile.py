"""A function in a user's own file, named ``path/to/file.py:function``: the only code of others that is ever run."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardsight.errors import InputError, MissingPathError, StateError
from hardsight.extras import first_line


def is_file_function(spec: str) -> bool:
    """Whether a model name is ``path/to/file.py:function``."""
    return ":" in spec and spec.rpartition(":")[0].endswith(".py")


@dataclass(frozen=True)
class FileFunction:
    """A function in a user's file. Its neighbours can be imported while it runs; its errors name its lines."""

    path: Path
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        file = os.fsencode(self.path.name).decode("utf-8", "backslashreplace")  # the same in every locale
        return f"{file}:{self.function.__name__}"

    def __call__(self, *args: Any) -> Any:
        with _beside(self.path), _blamed(self.path, f"{self.function.__name__}()"):
            return self.function(*args)


def load_function(spec: str) -> FileFunction:
    """The function that ``path/to/file.py:function`` names."""
    file, _, function = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise MissingPathError(f"MODEL: there is no file {path}.")
    found = importlib.util.spec_from_file_location(f"hardsight_user_{path.stem}", path)
    if found is None or found.loader is None:
        raise InputError(f"MODEL: {path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # so that classes defined there can be pickled to loader workers
    with _beside(path), _blamed(path, "importing it"):
        found.loader.exec_module(module)
    build = getattr(module, function, None)
    if not callable(build):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise InputError(f"MODEL: {path.name} has no function {function!r}; it defines {', '.join(own) or 'none'}.")
    return FileFunction(path, build)


def takes_training_data(function: Callable[..., Any]) -> bool:
    """Whether a function must be given something: then it trains a model, else it builds one."""
    if isinstance(function, FileFunction):
        function = function.function
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    """The neighbours of a file can be imported."""
    here = str(path.resolve().parent)
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def _blamed(path: Path, doing: str) -> Iterator[None]:
    """An error in the user's own file, with the line it came from."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a file that ends the program would end it as if all were done
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
        at = f" at line {lines[-1]}" if lines else ""
        raise StateError(
            f"MODEL: {doing} failed in {path.name}{at}: {type(error).__name__}: {first_line(error)}"
        ) from error
