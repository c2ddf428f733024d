"""What the pages take from the code at build time, so that it cannot go stale.

``{score-table}`` and ``{score-list}`` are `hardsight.SCORES`, ``{ranking-table}`` is `hardsight.labelerrors.RANKINGS`,
``{preset-table}`` and ``{network-table}`` are what can be trained by name, ``{loss-table}``, ``{pacing-table}`` and
``{figure-table}`` the losses, pacings and figures that there are, ``{command-help} NAME`` is what ``--help`` prints,
``{run-schemas}`` are the tables of a run, ``{module-list}`` the first line of each module, ``{layers}`` the contract of
imports in ``pyproject.toml``. A public name written as code becomes a link.
"""

from __future__ import annotations

import ast
import importlib
import io
import os
import re
import tomllib
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import nested_parse_with_titles

import hardsight
from hardsight import cli
from hardsight.figures import FIGURES, FigureKind
from hardsight.labelerrors import DEFAULT
from hardsight.losses import LOSSES, LossPart
from hardsight.losses.grammar import SIGNS
from hardsight.networks import NETWORKS
from hardsight.recipes import Recipe
from hardsight.runs import SCHEMAS
from hardsight.sampling import PACINGS

SOURCE = Path(hardsight.__file__).parent
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


class _Lines(SphinxDirective):
    """A directive that writes reStructuredText."""

    optional_arguments = 1

    def lines(self) -> Iterable[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(__file__)
        box = nodes.container()
        nested_parse_with_titles(self.state, StringList(list(self.lines()), source=__file__), box)
        return box.children


class ScoreTable(_Lines):
    """All scores at a glance."""

    def lines(self) -> Iterable[str]:
        rows = [
            (f"``{s.name}``", s.harder, "yes" if s.needs_labels else "no", _unbroken(s.range_text), _tolerance(s))
            for s in hardsight.SCORES.values()
        ]
        return _table(("score", "harder when", "needs labels", "range", "tolerance"), rows)


class ScoreList(_Lines):
    """One entry per score: what the registry knows of it."""

    def lines(self) -> Iterable[str]:
        yield from (".. py:currentmodule:: hardsight", "")
        for s in hardsight.SCORES.values():
            # One of them shares its name with the function that makes the same number from logits.
            taken = () if s.name in hardsight.__all__ else ("   :no-index:",)
            name = s.name if not taken else f'SCORES["{s.name}"]'
            yield from (f".. py:data:: {name}", "   :type: hardsight.scores.Score", *taken, "")
            yield from (f"   {s.summary}", "")
            yield from (f"   | {fact}" for fact in s.facts)
            yield from (f"   | Tolerance: {_tolerance(s)}.", "")


class RankingTable(_Lines):
    """The rankings of label errors, the default first; the other scores, which have a page of their own, in one row."""

    def lines(self) -> Iterable[str]:
        default, *others = sorted(hardsight.labelerrors.RANKINGS.values(), key=lambda r: r.name != DEFAULT)
        scores = [f"``{r.name}``" for r in others if r.name in hardsight.SCORES]
        rows = [(f"``{r.name}``", _about(r)) for r in others if r.name not in hardsight.SCORES]
        rows.insert(0, (f"``{default.name}``, the default", _about(default)))
        rows.insert(1, (", ".join(scores), "The score itself: what is harder is more suspicious."))
        return _table(("ranking", "what it is"), rows)


class PresetTable(_Lines):
    """What can be trained by name: the network and how its paper trains it."""

    def lines(self) -> Iterable[str]:
        rows = [
            (
                f"``{name}``" + (f" (``{preset.network}``)" if preset.network != name else ""),
                _recipe(preset.recipe),
                f"{preset.summary} ({preset.reference}).",
            )
            for name, preset in hardsight.presets.PRESETS.items()
        ]
        return _table(("preset (network)", "recipe", "what it is"), rows)


class NetworkTable(_Lines):
    """The networks, with what was chosen where a paper does not say."""

    def lines(self) -> Iterable[str]:
        rows = [
            (f"``{n.name}``", "any" if n.size is None else str(n.size), f"{n.summary} ({n.reference}).")
            for n in NETWORKS.values()
        ]
        return _table(("network", "pixels", "what it is"), rows)


class LossTable(_Lines):
    """The parts of a loss by name, with their options and defaults."""

    def lines(self) -> Iterable[str]:
        rows = [
            (f"``{sign}{part.name}``", f"{part.summary} ({part.reference})", _loss_options(part))
            for kind, sign in SIGNS.items()
            for part in LOSSES.values()
            if part.kind == kind
        ]
        return _table(("part", "what it is", "options with their defaults"), rows)


class PacingTable(_Lines):
    """The pacings by name: the first line of each."""

    def lines(self) -> Iterable[str]:
        rows = [(f"``{name}``", (pacing.__doc__ or "").splitlines()[0]) for name, pacing in PACINGS.items()]
        return _table(("pacing", "share of the data at time t"), rows)


class FigureTable(_Lines):
    """The figures by name, and what each is drawn from."""

    def lines(self) -> Iterable[str]:
        rows = [(f"``{name}``", _options(kind.summary), _drawn_from(kind)) for name, kind in FIGURES.items()]
        return _table(("figure", "shows", "drawn from"), rows)


class RunSchemas(_Lines):
    """The tables of a run: version, key, and the columns that must be there."""

    def lines(self) -> Iterable[str]:
        rows = [
            (
                f"``{kind}``",
                str(schema.version),
                ", ".join(f"``{column}``" for column in schema.key),
                ", ".join(f"``{column}`` {type_}" for column, type_ in schema.columns.items()),
            )
            for kind, schema in SCHEMAS.items()
        ]
        return _table(("table", "version", "key", "columns that are always there"), rows)


class ModuleList(_Lines):
    """One line a module: the first of its docstring, read without importing it."""

    def lines(self) -> Iterable[str]:
        rows = []
        for path in sorted(SOURCE.rglob("*.py"), key=lambda p: (p.parent.parts, p.name)):
            self.env.note_dependency(str(path))
            about = ast.get_docstring(ast.parse(path.read_text()))
            if not about:
                raise self.error(f"{path.name} has no docstring")
            name = path.relative_to(SOURCE).as_posix().replace("/__init__.py", "/")
            rows.append((f"``{name}``", about.splitlines()[0]))
        return _table(("module", "what it is"), rows)


class Layers(_Lines):
    """The order of the modules, from the contract that import-linter checks."""

    def lines(self) -> Iterable[str]:
        self.env.note_dependency(str(PROJECT))
        contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
        order = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
        return ["::", "", *(f"   {layer.replace(' | ', '   ')}" for layer in order), ""]


class CommandHelp(SphinxDirective):
    """What the command prints for ``--help``; the argument is a subcommand, or nothing."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(cli.__file__)
        said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # the encoding decides how boxes are drawn
        with patch.dict(os.environ, COLUMNS="80"), redirect_stdout(said), suppress(SystemExit):
            cli.main([*self.arguments, "--help"])
        said.seek(0)
        text = said.read().rstrip()
        if "usage:" not in text:
            raise self.error(f"hardsight {' '.join(self.arguments)} --help printed no usage")
        return [nodes.literal_block(text, text, language="text")]


# Where each public name is described: at the top, or in its module.
PLACES = {name: f"hardsight.{name}" for name in hardsight.__all__}
PLACES |= {name: f"hardsight.{module}.{name}" for module, names in hardsight._MOVED.items() for name in names.split()}
PUBLIC_NAME = re.compile(r"(?P<home>(?:hs\.|hardsight\.)(?:\w+\.)?)?(?P<name>\w+)(?:\.(?P<part>\w+))?(?:\(.*\))?")


LINKS = (addnodes.pending_xref, nodes.reference)

# Without hs. before it, "train" is a split of the data, a folder or a command.
WORDS = {"train"}


def link_public_names(app: Sphinx, doctree: nodes.document) -> None:
    """Make code that is a public name of hardsight a link, which the build then checks."""
    for literal in list(doctree.findall(nodes.literal)):
        found = PUBLIC_NAME.fullmatch(literal.astext())
        if found is None or found["name"] not in PLACES or isinstance(literal.parent, LINKS):
            continue
        if found["name"] in WORDS and not found["home"]:
            continue
        module, _, name = PLACES[found["name"]].rpartition(".")
        owner, part = getattr(importlib.import_module(module), name), found["part"]
        if part and not isinstance(owner, type):  # actions.csv is a file, not a part of `actions`
            continue
        described = part and hasattr(owner, part) and part not in getattr(owner, "__annotations__", ())  # not a field
        target = f"{PLACES[found['name']]}.{part}" if described else PLACES[found["name"]]
        link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=target, refwarn=True)
        link["refdoc"] = app.env.docname
        literal.replace_self(link)
        link += literal


RANGE = re.compile(r"(?:~?typ\w+\.)?Annotated\[([^,\[]+), ~?[\w.]*Range\(.*?ends='..'\)\]")


def without_ranges(
    app: Sphinx, what: str, name: str, owner: Any, options: Any, given: str | None, returned: Any
) -> Any:
    """Signatures with the types of numbers, without the ranges that their annotations hold."""
    return (RANGE.sub(r"\1", given), returned) if given and "Range(" in given else None


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: auto", ""]
    for row in (head, *rows):
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return [*lines, ""]


def _about(ranking: hardsight.labelerrors.Ranking) -> str:
    return f"{ranking.summary.rstrip('.')} ({ranking.reference})."


def _recipe(recipe: Recipe) -> str:
    times = f" at {', '.join(f'{t:g}' for t in recipe.steps)}" if 0 < len(recipe.steps) < 5 else ""
    rate = f"{recipe.optimizer}, rate {recipe.lr:g}, {recipe.schedule}{times}"
    return f"{recipe.epochs} epochs, batch {recipe.batch_size}, {rate}"


def _options(text: str) -> str:
    """Options as code: a dash must not become another one."""
    return re.sub(r"--\w+", r"``\g<0>``", text)


def _drawn_from(kind: FigureKind) -> str:
    inputs = kind.inputs()
    runs = (
        "one run" if "run" in inputs else "" if "runs" not in inputs else "runs" if inputs["runs"] else "runs, or none"
    )
    options = {name: required for name, required in inputs.items() if name in ("data", "groups", "human")}
    needs = [f"``--{name}``" for name, required in options.items() if required]
    takes = " or ".join(f"``--{name}``" for name, required in options.items() if not required)
    return ", ".join(filter(None, [runs, *needs, takes and f"{takes} if you like"])) or "nothing"


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _loss_options(part: LossPart) -> str:
    listed = []
    for name, option in part.options.items():
        values = "|".join(option.choices) or f"{option.default:g}"
        listed.append(f"``{name}``" if option.type is bool else f"``{name}={values}``")
    return ", ".join([*listed, *(f"or ``{preset}``" for preset in part.presets)])


def _tolerance(score: hardsight.scores.Score) -> str:
    kinds = zip(score.tolerance, ("relative", "absolute"), strict=True)
    return " + ".join(f"{_power(size)} {kind}" for size, kind in kinds if size) or "exact"


def _power(size: float) -> str:
    digits, _, exponent = f"{size:.0e}".partition("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if digits == "1" else f"{digits}·{power}"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", link_public_names)
    app.connect("autodoc-process-signature", without_ranges)
    for name, directive in {
        "score-table": ScoreTable,
        "score-list": ScoreList,
        "ranking-table": RankingTable,
        "preset-table": PresetTable,
        "network-table": NetworkTable,
        "loss-table": LossTable,
        "pacing-table": PacingTable,
        "figure-table": FigureTable,
        "run-schemas": RunSchemas,
        "module-list": ModuleList,
        "layers": Layers,
        "command-help": CommandHelp,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True}
