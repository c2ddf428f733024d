"""Text for a terminal: tables, intervals, percentages, and what must not be overlooked."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardsight.extras import printable

_NUMBER = re.compile(r"[-+−]?[\d.,]+%?|–|")


def text_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | Sequence[str] = ()) -> list[str]:
    """One line of titles and one per row, in aligned columns: numbers to the right, text to the left.

    Args:
        rows: Cells by column: texts, numbers, None or NaN for what is unknown; a column that a row lacks stays empty.
        columns: Columns to show, with their titles if it is a mapping; those of the first row if not given.

    Examples:
        >>> rows = [{"score": "avh", "rho": 0.5, "n": 1200}, {"score": "norm", "rho": None, "n": 90}]
        >>> print(*text_table(rows), sep="\\n")
        score  rho      n
        avh    0.5  1,200
        norm     –     90
    """
    names = columns or (rows[0] if rows else ())
    titles = columns if isinstance(columns, Mapping) else {name: name for name in names}
    table = [[titles[name], *(cell(row.get(name, "")) for row in rows)] for name in names]
    return ["  ".join(line).rstrip() for line in zip(*map(_aligned, table), strict=True)]


def _aligned(column: Sequence[str]) -> list[str]:
    width, numbers = max(map(len, column)), all(_NUMBER.fullmatch(cell) for cell in column[1:])
    return [cell.rjust(width) if numbers else cell.ljust(width) for cell in column]


def cell(value: Any) -> str:
    """A value of a table as text."""
    if value is None or value != value:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else printable(value)


def interval(value: float | None, low: float | None, high: float | None, style: str = ".3f") -> str:
    """A number with its interval, as far as they are known.

    Examples:
        >>> interval(0.93, 0.91, 0.95, ".2f"), interval(0.935, None, None, ".1%"), interval(None, None, None)
        ('0.93 [0.91, 0.95]', '93.5%', '–')
    """
    if value is None or value != value:
        return "–"
    if low is None or high is None or low != low or high != high:
        return format(value, style)
    return f"{value:{style}} [{low:{style}}, {high:{style}}]"


class Result:
    """An object of a user's that prints as one line, in a notebook, too."""

    def _line(self, path: Path | None, *details: str) -> str:
        place = "" if path is None else f"{str(path)!r}: "
        return printable(f"{type(self).__name__}({place}{', '.join(details)})")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def alarm(text: object, kind: str = "warning") -> None:
    """Print a line to stderr, in red where that is a terminal and the user has not asked for no color."""
    line = f"{kind}: {printable(text)}"
    colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.flush()  # it comes first, also where both streams are one
    print(f"\033[1;31m{line}\033[0m" if colored else line, file=sys.stderr, flush=True)
