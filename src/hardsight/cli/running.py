"""How a command runs: tyro reads its options, `--json` prints the values it returns, `--help` ends with its examples.

A command is a function that prints lines for people and returns a dictionary for programs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json as json_format
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_type_hints

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from hardsight.cli import COMMANDS

CONFIG = (FlagCreatePairsOff, OmitArgPrefixes)
_JSON = Annotated[bool, arg(help="Print the result as JSON, and all else to stderr.", help_behavior_hint="")]
_NAMES = re.compile(r"\{(hardsight[\w.]*)\.(\w+)(?:\((\w+)\))?\}")  # a registry, or a function of a word


def run_command(name: str, options: list[str]) -> None:
    """Run a command with its options, or explain it."""
    function, asks_help = command(name), not {"-h", "--help"}.isdisjoint(options)
    text = function.__doc__ or ""
    if asks_help:  # only now: some registries import torch
        function.__doc__ = _NAMES.sub(_listed, text)
    try:
        tyro.cli(function, prog=f"hardsight {name}", args=options, config=CONFIG)
    except SystemExit as stop:
        if asks_help and not stop.code:
            _, title, examples = text.partition("Examples:")
            print(f"{title.lower()}\n{inspect.cleandoc(examples)}".replace("\n", "\n  ").strip())
        raise


def _listed(match: re.Match[str]) -> str:
    value = getattr(importlib.import_module(match[1]), match[2])
    return value(match[3]) if match[3] else ", ".join(value)


def command(name: str) -> Callable[..., None]:
    """The function of a command, with the option `--json`."""
    function = getattr(importlib.import_module(f"hardsight.cli.{COMMANDS[name][0]}"), name)

    def run(*args: Any, json: bool = False, **options: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
            values = function(*args, **options)
        if json and values is not None:
            print(json_format.dumps(plain(values), indent=1, allow_nan=False))
        if values is not None and values.get("healthy") is False:
            raise SystemExit(1)

    signature = inspect.signature(function)
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # pyrefly: ignore
    run.__annotations__ = {**get_type_hints(function, include_extras=True), "json": _JSON}
    run.__name__, run.__doc__ = name, function.__doc__
    return run


def completion(shell: Annotated[Positional[Literal["bash", "zsh", "fish"]], arg(metavar="SHELL")]) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    Args:
        shell: Your shell.

    Examples:
        hardsight completion bash > ~/.local/share/bash-completion/completions/hardsight
        hardsight completion zsh > ~/.zfunc/_hardsight
    """
    tyro.extras.subcommand_cli_from_dict(
        {name: command(name) for name in COMMANDS},
        prog="hardsight",
        config=CONFIG,
        args=["--tyro-print-completion", shell],
    )


def plain(value: Any) -> Any:
    """A value as JSON holds it: tables as lists of rows, what is not finite as null, all else as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    for convert in ("to_pylist", "tolist"):  # of Arrow, of NumPy
        if hasattr(value, convert):
            return plain(getattr(value, convert)())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
