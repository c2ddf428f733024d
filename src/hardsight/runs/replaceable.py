"""Which files hardsight wrote and so may write over, and which are somebody else's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from hardsight.errors import ExistingPathError

# What every page says of itself, and what it said before it did.
_PAGE = re.compile(r'<meta name="generator" content="hardsight">| · (hardness report|comparison)</title>')


def check_replaceable(target: Path, ours: Callable[[Path], bool]) -> None:
    """Refuse to write over a file that hardsight did not write."""
    if (target.exists() or target.is_symlink()) and not (target.is_file() and ours(target)):
        raise ExistingPathError(f"out: {target} is there already and not written by hardsight; name another file.")


def is_page(file: Path) -> bool:
    """Whether a file is a page that hardsight wrote."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as text:
        return _PAGE.search(text.read(8192)) is not None


def is_alignment(file: Path) -> bool:
    """Whether a file is the summary of an alignment that hardsight wrote."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "coefficient" in content
