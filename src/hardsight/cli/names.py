"""Names that help lists, from the registries: ``python -m hardsight.cli.names`` writes them to names.json.

Help reads the file, because importing a registry imports torch. A test fails where the file is out of date.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).with_name("names.json")
_PLACE = re.compile(r"\{(hardsight[\w.]*)\.(\w+)(?:\((\w+)\))?\}")  # a registry, or a function of a text


def filled(text: str) -> str:
    """A text with the names of each registry in place of ``{hardsight.scores.SCORES}``."""

    def names(match: re.Match[str]) -> str:
        # Names registered in this process are listed, too.
        return _listed(match) if match[1] in sys.modules else json.loads(FILE.read_text("utf-8"))[match[0][1:-1]]

    return _PLACE.sub(names, text)


def registered() -> dict[str, str]:
    """The names of every registry that a command's help lists."""
    texts = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py")) if path != Path(__file__)]
    places = {match[0][1:-1]: match for text in texts for match in _PLACE.finditer(text)}
    return {place: _listed(match) for place, match in sorted(places.items())}


def _listed(match: re.Match[str]) -> str:
    entries = getattr(importlib.import_module(match[1]), match[2])
    return entries(match[3]) if match[3] else ", ".join(entries)


if __name__ == "__main__":
    FILE.write_text(json.dumps(registered(), indent=1, ensure_ascii=False) + "\n", "utf-8")
