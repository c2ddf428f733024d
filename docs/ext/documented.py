"""Fail the build when a public name, a subcommand or a score is documented nowhere."""

from __future__ import annotations

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import hardsight
from hardsight.cli import COMMANDS

logger = logging.getLogger(__name__)


def undocumented(env: BuildEnvironment) -> list[str]:
    """Public names and subcommands for which no page holds a description."""
    python = env.domains.python_domain.objects
    commands = {name for kind, name in env.domains.standard_domain.objects if kind == "subcommand"}
    names = [f"hardsight.{name}" for name in hardsight.__all__]
    names += [f"hardsight.{module}.{name}" for module, moved in hardsight._MOVED.items() for name in moved.split()]
    missing = [name for name in dict.fromkeys(names) if name not in python]
    return missing + [f"hardsight {name}" for name in COMMANDS if f"hardsight {name}" not in commands]


def check(app: Sphinx, env: BuildEnvironment) -> None:
    for name in undocumented(env):
        logger.error("%s is public but documented nowhere: describe it in docs/reference/.", name)
        app.statuscode = 1  # with and without -W


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_object_type("subcommand", "subcommand")
    app.connect("env-updated", check)
    return {"parallel_read_safe": True}
