"""What a function or dataclass declares, read from its source text: help must not wait for torch to be imported."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

_PACKAGE = Path(__file__).parents[1]
_ENTRY = re.compile(r"^ {4}(\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)  # of the Args in a docstring
_OPTION = re.compile("(?<!`)`([a-z_]+)`(?!`)")
_TYPES = {kind.__name__: kind for kind in (int, float, bool, str, Path)}
REQUIRED: Any = object()


@dataclass(frozen=True)
class Declaration:
    """Parameters of a function, or fields of a dataclass; `groups` are the arguments of its ``@command``."""

    doc: str
    groups: tuple[str, ...]
    annotations: dict[str, ast.expr | None]
    defaults: dict[str, ast.expr]
    help: dict[str, str]

    def default(self, name: str, otherwise: Any) -> Any:
        """The default of a parameter; `otherwise` for one that is passed on as a keyword."""
        if name not in self.annotations:
            return otherwise
        return _value(self.defaults[name]) if name in self.defaults else REQUIRED

    def type(self, name: str) -> Any:
        """The type of a parameter, without ``Annotated`` and ``None``."""
        annotation = self.annotations.get(name)
        return bool if annotation is None else _type(annotation)


@cache
def declaration(path: str) -> Declaration:
    """Read ``"training.run:train"``: a module below `hardsight`, and a function or dataclass in it."""
    module, _, name = path.partition(":")
    node = next(node for node in _parsed(module).body if getattr(node, "name", None) == name)
    doc = ast.get_docstring(node) or ""  # pyrefly: ignore
    if isinstance(node, ast.ClassDef):
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
        annotations: dict[str, Any] = {field.target.id: field.annotation for field in fields}  # pyrefly: ignore
        defaults = {field.target.id: field.value for field in fields if field.value}  # pyrefly: ignore
        return Declaration(doc, (), annotations, defaults, _help(doc))
    given, decorators = node.args, node.decorator_list  # pyrefly: ignore
    groups = tuple(_text(group, module) for decorator in decorators for group in getattr(decorator, "args", ()))
    positional = [*given.posonlyargs, *given.args]
    last = positional[len(positional) - len(given.defaults) :]
    values = zip([*last, *given.kwonlyargs], [*given.defaults, *given.kw_defaults], strict=True)
    defaults = {parameter.arg: value for parameter, value in values if value}
    annotations = {parameter.arg: parameter.annotation for parameter in (*positional, *given.kwonlyargs)}
    return Declaration(doc, groups, annotations, defaults, _help(doc))


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(_PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text("utf-8"))


def _text(node: ast.expr, module: str) -> str:
    """A text, or the constant that holds it, here or in the module it is imported from."""
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    for line in _parsed(module).body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == node.id:
            return ast.literal_eval(line.value)
        if isinstance(line, ast.ImportFrom) and node.id in {alias.name for alias in line.names}:
            return _text(node, (line.module or "").removeprefix("hardsight."))
    raise AttributeError(f"{module} has no {node.id}")


def _help(docstring: str) -> dict[str, str]:
    """The help of each parameter, from the docstring, in a command's wording."""
    texts = {name: " ".join(text.split()) for name, text in _ENTRY.findall(docstring)}
    texts = {name: re.sub("; in Python .*?([.]( |$))", r"\1", text) for name, text in texts.items()}
    return {name: _OPTION.sub(lambda option: _flag(option[1]), text).replace("`", "") for name, text in texts.items()}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Path":
        return Path(*map(ast.literal_eval, node.args))
    return ast.literal_eval(node)


def _type(node: ast.expr) -> Any:
    if isinstance(node, ast.BinOp):  # float of float | None
        return _type(node.left)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Literal":
            return Literal[tuple(map(ast.literal_eval, inner))]  # pyrefly: ignore
        kind = _type(inner[0])
        return tuple[kind, ...] if node.value.id == "tuple" else kind
    return _TYPES[ast.unparse(node)]
