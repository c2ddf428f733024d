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
import pkgutil
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, UseAppendAction, arg

from hardsight.cli import COMMANDS
from hardsight.errors import InputError

_ENTRY = re.compile(r"^ {4}(\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)  # of the Args in a docstring
_NAMES = re.compile(r"\{(hardsight[\w.]*)\.(\w+)(?:\((\w+)\))?\}")  # a registry, or a function of a text
_TYPES: dict[str, Any] = {"N": int, "K": int, "SHARE": float, "MINUTES": float, "SHELL": Literal["bash", "zsh", "fish"]}
_TYPES |= dict.fromkeys(("RUN", "FILE", "FOLDER", "PATH"), Path)
_GROUPS: dict[str, tuple[str, ...]] = {}


def command(*groups: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the options of a command, in groups: ``"module:name [title] out=FILE run=<RUN> strict"``.

    ``out=FILE`` is an option and its value, ``run=<RUN>`` a value without a name, ``also=MODEL…`` repeatable,
    ``eps=NUMBER,…`` a list with commas, ``strict`` as its annotation says, and ``attack:attacks=NAME`` a parameter of
    another name. Options that the docstring of the command explains are its own, the others those of the function.
    ``module:name()`` is called with the command line and returns a dataclass, which holds the defaults.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        _GROUPS[function.__name__] = groups
        return function

    return declare


def structure(name: str, args: Sequence[str] = ()) -> Any:
    """The options of a command as a dataclass, which is what tyro reads."""
    entries: list[Any] = []
    function = _function(name)  # whose module declares the groups
    for text in _GROUPS[name]:
        path, *kinds = text.split()
        source = pkgutil.resolve_name(f"hardsight.{path.removesuffix('()')}")
        source = source(args) if path.endswith("()") else source
        title = kinds.pop(0)[1:-1] if kinds[0].startswith("[") else ""
        group = [_entry(kind, function, source) for kind in kinds]
        entries += [(title, make_dataclass(title, group))] if title else group
    about = arg(help="Print the result as JSON, and all else to stderr.", help_behavior_hint="")
    entries.append(("json", Annotated[bool, about, FlagCreatePairsOff], field(default=False)))
    return make_dataclass(name, entries, kw_only=True)


def _function(name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"hardsight.cli.{COMMANDS[name][0]}"), name)


def _help(function: Any) -> dict[str, str]:
    """What a docstring says of each parameter, as a command says it."""
    texts = {name: " ".join(text.split()) for name, text in _ENTRY.findall(inspect.getdoc(function) or "")}
    texts = {name: re.sub("; in Python .*?([.]( |$))", r"\1", text) for name, text in texts.items()}
    return {name: re.sub("(?<!`)`([a-z_]+)`(?!`)", r"--\1", text).replace("`", "") for name, text in texts.items()}


def _entry(kind: str, function: Any, source: Any) -> tuple[str, Any, Any]:
    """An option as a field of that dataclass."""
    name, _, shown = kind.partition("=")
    written, _, option = name.rpartition(":")
    source = function if option in _help(function) else source
    declarer = source if callable(source) else type(source)
    parameter = inspect.signature(declarer).parameters.get(option)
    default: Any = getattr(source, option, parameter.default if parameter else None if shown else False)
    metavar, marks = shown.strip("<>") if shown.endswith(",…") else shown.strip("<>…"), []
    declared = get_type_hints(declarer).get(option, bool)
    type_ = _TYPES.get(metavar) or (str if metavar and callable(source) else declared)
    if "<" in shown:
        marks.append(Positional)
    if ",…" in shown:
        marks.append(numbers if "NUMBER" in shown else _names)
        default = None if default in (None, ()) else ",".join(map(str, default))
    elif "…" in shown:
        type_, default = tuple[type_, ...], default or ()
        marks += [] if "<" in shown else [UseAppendAction]
    elif type_ is bool and callable(source):
        marks.append(FlagCreatePairsOff)  # a flag of a recipe may be on in the preset: help shows --flip and --no-flip
    default = Path(default) if type_ is Path and isinstance(default, str) else default
    aliases = ["-o"] if option == "out" else None
    text, shows = _help(declarer).get(option), "" if isinstance(default, bool) or default in (None, ()) else None
    about = arg(name=written or None, metavar=metavar or None, help=text, help_behavior_hint=shows, aliases=aliases)
    hint = Annotated[type_ | None if default is None else type_, about, *marks]  # pyrefly: ignore
    return option, hint, field(default=MISSING if default is inspect.Parameter.empty else default)


def _names(text: str, option: str = "") -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str, option: str) -> list[float]:
    """The numbers between commas; 8/255 is one."""
    try:
        return [float(Fraction(part)) for part in _names(text)]
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{option} must be numbers with commas between them, 0.1 or 8/255, got {text!r}.") from None


def run_command(name: str, args: list[str]) -> None:
    """Run a command with its options, or explain it."""
    if not {"-h", "--help"}.isdisjoint(args):
        _explain(name, args)
        raise SystemExit(0)
    parsed = tyro.cli(structure(name, args), prog=f"hardsight {name}", args=args, config=(OmitArgPrefixes,))
    named = {re.sub("^--(no-)?", "", text.partition("=")[0]).replace("-", "_") for text in args if text[:2] == "--"}
    with contextlib.redirect_stdout(sys.stderr) if parsed.json else contextlib.nullcontext():
        result = _function(name)(**_given(parsed, named))
    if parsed.json and result is not None:
        print(json.dumps(plain(result), indent=1, allow_nan=False))
    if result is not None and result.get("healthy") is False:
        raise SystemExit(1)


def _given(parsed: Any, named: set[str]) -> dict[str, Any]:
    """The options that differ from their defaults, or that the command line names: a preset's may be the same."""
    values: dict[str, Any] = {}
    for entry in fields(parsed):
        given, marks = getattr(parsed, entry.name), get_args(entry.type)[1:]
        if is_dataclass(given):
            values |= _given(given, named)
        elif entry.name != "json" and (entry.name in named or given != entry.default):
            option = f"--{marks[0].name or entry.name.replace('_', '-')}"
            read = next(filter(inspect.isfunction, marks), None)
            values[entry.name] = given if read is None else read(given, option)
    return values


def take(chosen: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some of the options that were given, which are taken out."""
    return {name: chosen.pop(name) for name in names if name in chosen}


def _explain(name: str, args: Sequence[str]) -> None:
    """Print the help of a command, which ends with its examples."""
    printed = io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding)
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(structure(name, args), prog=f"hardsight {name}", args=["--help"], config=(OmitArgPrefixes,))
    printed.seek(0)
    usage, _, boxes = printed.read().partition("\n\n")
    text, _, examples = (inspect.getdoc(_function(name)) or "").partition("Examples:\n")
    prose, width = _NAMES.sub(_listed, text.partition("\nArgs:\n")[0]).strip(), shutil.get_terminal_size().columns
    for paragraph in (usage, *prose.split("\n\n")):
        print(textwrap.fill(paragraph, min(width, 100), break_on_hyphens=False, break_long_words=False), end="\n\n")
    print(f"{boxes.strip()}\nexamples:\n{textwrap.indent(textwrap.dedent(examples), '  ')}")


def _listed(match: re.Match[str]) -> str:
    entries = getattr(importlib.import_module(match[1]), match[2])
    return entries(match[3]) if match[3] else ", ".join(entries)


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
