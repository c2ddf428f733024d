"""Options of commands, and how a command runs.

A command is a function that takes the options that were given, prints lines for people and returns a dictionary for
programs. What a Python function declares is not repeated: `command` names its parameters, and their defaults and help
are read from its signature and docstring.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, UseAppendAction, arg

from hardsight.cli import COMMANDS
from hardsight.cli.names import filled
from hardsight.cli.signatures import REQUIRED, Declaration, declaration
from hardsight.errors import InputError
from hardsight.registry import did_you_mean
from hardsight.stores import as_path

_TYPES: dict[str, Any] = {"N": int, "SHARE": float, "MINUTES": float, "SHELL": Literal["bash", "zsh", "fish"]}
_TYPES |= dict.fromkeys(("RUN", "FILE", "FOLDER", "PATH"), Path)


def command(*groups: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the options of a command, in groups: ``"module:name [title] out=FILE run=<RUN> strict"``.

    ``out=FILE`` is an option and its value, ``run=<RUN>`` a value without a name, ``also=MODEL…`` repeatable,
    ``eps=NUMBER,…`` a list with commas, ``strict`` as its annotation says, and ``attack:attacks=NAME`` a parameter of
    another name. Options that the docstring of the command explains are its own, all others belong to the function.
    ``module:name()`` takes its defaults from the preset that the command line names, and its types as declared.
    """

    return lambda function: function  # `structure` reads the groups from the source text


def structure(name: str, args: Sequence[str] = ()) -> Any:
    """The options of a command as a dataclass, which is what tyro reads."""
    entries: list[Any] = []
    declared = _declared(name)
    for text in declared.groups:
        path, *kinds = text.split()
        source = declaration(path.removesuffix("()"))
        values = _preset(args) if path.endswith("()") else None
        title = kinds.pop(0)[1:-1] if kinds[0].startswith("[") else ""
        group = [_entry(kind, declared, source, values) for kind in kinds]
        entries += [(title, make_dataclass(title, group))] if title else group
    about = arg(help="Print the result as JSON, and everything else to stderr.", help_behavior_hint="")
    entries.append(("json", Annotated[bool, about, FlagCreatePairsOff], field(default=False)))
    return make_dataclass(name, entries, kw_only=True)


def _declared(name: str) -> Declaration:
    return declaration(f"cli.{COMMANDS[name][0]}:{name}")


def _function(name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"hardsight.cli.{COMMANDS[name][0]}"), name)


def _preset(args: Sequence[str]) -> dict[str, Any]:
    """The recipe of the preset that a command line names, whose values are the defaults."""
    named = dict(pairwise(part for word in args for part in word.split("=", 1)))
    if not (name := named.get("--recipe") or named.get("--model")):
        return {}
    from hardsight.presets import PRESETS

    return vars(PRESETS[name].recipe) if name in PRESETS else {}


def _entry(kind: str, command: Declaration, source: Declaration, preset: dict[str, Any] | None) -> tuple[str, Any, Any]:
    """An option as a field of that dataclass."""
    name, _, shown = kind.partition("=")
    written, _, option = name.rpartition(":")
    source = command if option in command.help else source
    default = (preset or {}).get(option, source.default(option, None if shown else False))
    metavar, marks = shown.strip("<>") if shown.endswith(",…") else shown.strip("<>…"), []
    type_ = _TYPES.get(metavar) or (str if metavar and preset is None else source.type(option))
    if "<" in shown:
        marks.append(Positional)
    if ",…" in shown:
        marks.append(numbers if "NUMBER" in shown else _names)
        default = None if default in (None, ()) else ",".join(map(str, default))
    elif "…" in shown:
        type_, default = tuple[type_, ...], default or ()
        marks += [] if "<" in shown else [UseAppendAction]
    elif type_ is bool and preset is None:
        marks.append(FlagCreatePairsOff)  # a flag of a recipe may be on in the preset: help shows --flip and --no-flip
    default = Path(default) if type_ is Path and isinstance(default, str) else default
    aliases = ["-o"] if option == "out" else None
    text, shows = source.help.get(option), "" if isinstance(default, bool) or default in (None, ()) else None
    about = arg(name=written or None, metavar=metavar or None, help=text, help_behavior_hint=shows, aliases=aliases)
    hint = Annotated[type_ | None if default is None else type_, about, *marks]  # pyrefly: ignore
    return option, hint, field(default=MISSING if default is REQUIRED else default)


def _names(text: str, option: str = "") -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str, option: str) -> list[float]:
    """The numbers between commas; 8/255 is one."""
    try:
        return [float(Fraction(part)) for part in _names(text)]
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{option} must be comma-separated numbers such as 0.1 or 8/255, got {text!r}.") from None


def run_command(name: str, args: list[str]) -> None:
    """Run a command with its options, or explain it."""
    if not {"-h", "--help"}.isdisjoint(args):
        _explain(name, args)
        raise SystemExit(0)
    options = structure(name, args)
    _check_flags(name, options, args)
    parsed = tyro.cli(options, prog=f"hardsight {name}", args=args, config=(OmitArgPrefixes,))
    named = {re.sub("^--(no-)?", "", text.partition("=")[0]).replace("-", "_") for text in args if text[:2] == "--"}
    with contextlib.redirect_stdout(sys.stderr) if parsed.json else contextlib.nullcontext():
        result = _function(name)(**_given(parsed, named))
    if parsed.json and result is not None:
        print(json.dumps(plain(result), indent=1, allow_nan=False))
    if result is not None and result.get("healthy") is False:
        raise SystemExit(1)


def _check_flags(name: str, options: Any, args: Sequence[str]) -> None:
    """Refuse an option that the command lacks, and suggest the nearest ones."""
    flags = ["--help", *_flags(options)]
    for word in args:
        flag = word.partition("=")[0].replace("_", "-")
        if flag == "--":
            return
        if flag.startswith("--") and flag not in flags:
            raise InputError(f"hardsight {name} has no option {word.partition('=')[0]}; {did_you_mean(flag, flags, 2)}")


def _flags(options: Any) -> Iterator[str]:
    for entry in fields(options):
        marks = get_args(entry.type)[1:]
        if is_dataclass(entry.type):
            yield from _flags(entry.type)
        elif Positional not in marks:
            flag = marks[0].name or entry.name.replace("_", "-")
            yield f"--{flag}"
            if isinstance(entry.default, bool):
                yield f"--no-{flag}"


def _given(parsed: Any, named: set[str]) -> dict[str, Any]:
    """The options that differ from their defaults or that the command line names, which may equal a preset's."""
    values: dict[str, Any] = {}
    for entry in fields(parsed):
        given, marks = getattr(parsed, entry.name), get_args(entry.type)[1:]
        if is_dataclass(given):
            values |= _given(given, named)
        elif entry.name != "json" and (entry.name in named or given != entry.default):
            option = f"--{marks[0].name or entry.name.replace('_', '-')}"
            read = next(filter(inspect.isfunction, marks), None)
            values[entry.name] = _on_stores(given) if read is None else read(given, option)
    return values


def _on_stores(given: Any) -> Any:
    """Paths with both slashes of ``s3://`` restored."""
    if isinstance(given, tuple):
        return tuple(map(_on_stores, given))
    return as_path(given) if isinstance(given, Path) else given


def take(chosen: dict[str, Any], *names: str) -> dict[str, Any]:
    """Remove some options from those given, and return them."""
    return {name: chosen.pop(name) for name in names if name in chosen}


def _explain(name: str, args: Sequence[str]) -> None:
    """Print the help of a command, which ends with its examples."""
    printed = io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(structure(name, args), prog=f"hardsight {name}", args=["--help"], config=(OmitArgPrefixes,))
    printed.seek(0)
    usage, _, boxes = printed.read().partition("\n\n")
    text, _, examples = _declared(name).doc.partition("Examples:\n")
    prose, width = filled(text.partition("\nArgs:\n")[0]).strip(), shutil.get_terminal_size().columns
    for paragraph in (usage, *prose.split("\n\n")):
        print(textwrap.fill(paragraph, min(width, 100), break_on_hyphens=False, break_long_words=False), end="\n\n")
    print(f"{boxes.strip()}\nexamples:\n{textwrap.indent(textwrap.dedent(examples), '  ')}")


def plain(value: Any) -> Any:
    """A value for JSON: tables as lists of rows, non-finite numbers as null, other types as text."""
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


@command("cli.options:completion shell=<SHELL>")
def completion(shell: str) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    Args:
        shell: Your shell.

    Examples:
        hardsight completion bash > ~/.local/share/bash-completion/completions/hardsight
        hardsight completion zsh > ~/.zfunc/_hardsight
    """
    commands = {name: structure(name) for name in COMMANDS}
    options = ["--tyro-print-completion", shell]
    tyro.extras.subcommand_cli_from_dict(commands, prog="hardsight", config=(OmitArgPrefixes,), args=options)
