"""Text for a terminal: tables, intervals, percentages, and alarms.

Numbers for people, in the terminal, on pages and in notes, come from `number_text`, `percent`, `signed` and `points`:
``93.5%``, ``+0.012``, ``−0.012``, ``+1.3 points``. Numbers for programs (CSV, JSON, Parquet, values in a table's cells)
stay as Python writes them.
"""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hardsight.extras import printable

_MOST_SHOWN = 20  # rows of a result in a notebook
_NUMBER = re.compile(r"[-+−]?[\d.,]+%?|–|")


def text_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | Sequence[str] = ()) -> list[str]:
    """One line of titles and one per row, in aligned columns: numbers to the right, text to the left.

    Args:
        rows: Cells by column: texts, numbers, None or NaN for unknown values; a column that a row lacks stays empty.
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


def class_name(names: Sequence[str], k: int | None) -> str | int | None:
    """A class for people: its name, or its number if it has none."""
    return names[k] if k is not None and 0 <= k < len(names) else k


def number_text(value: float, style: str = ".3f") -> str:
    """A number in one of Python's formats, with a true minus sign; a number that rounds to 0 has no sign.

    Examples:
        >>> number_text(-0.5), number_text(0.0124, "+.3f"), number_text(-0.0001, "+.3f"), number_text(-1e-5, ".1e")
        ('−0.500', '+0.012', '0.000', '−1.0e−05')
    """
    text = format(value, style)
    return (text if text.strip("+-0.,%") else text.lstrip("+-")).replace("-", "−")


def signed(value: float, style: str = ".3f") -> str:
    """A difference or a correlation, always with its sign.

    Examples:
        >>> signed(0.0124), signed(-0.0124), signed(-3, ".0f"), signed(0)
        ('+0.012', '−0.012', '−3', '0.000')
    """
    return number_text(value, f"+{style}")


def percent(share: float, digits: int = 1) -> str:
    """A share as text, with one digit: none for a share of few, two in tables that compare networks.

    Examples:
        >>> percent(0.9351), percent(2 / 3, 0), percent(0.93514, 2)
        ('93.5%', '67%', '93.51%')
    """
    return number_text(share, f".{digits}%")


def points(difference: float, digits: int = 1) -> str:
    """A difference of two shares, in percentage points, which a ``%`` would leave ambiguous.

    Examples:
        >>> points(0.013), points(-0.00511, 2)
        ('+1.3 points', '−0.51 points')
    """
    return f"{signed(100 * difference, f'.{digits}f')} points"


def interval(value: float | None, low: float | None, high: float | None, style: str = ".3f") -> str:
    """A number with its interval, if known.

    Examples:
        >>> interval(0.93, 0.91, 0.95, ".2f"), interval(0.935, None, None, ".1%"), interval(None, None, None)
        ('0.93 [0.91, 0.95]', '93.5%', '–')
        >>> interval(-0.012, -0.03, 0.006, "+.3f")
        '−0.012 [−0.030, +0.006]'
    """
    if value is None or value != value:
        return "–"
    if low is None or high is None or low != low or high != high:
        return number_text(value, style)
    return f"{number_text(value, style)} [{number_text(low, style)}, {number_text(high, style)}]"


_TITLES = {
    "avh": "C·AVH", "avc": "angular confidence", "nll": "loss (nll)", "soft_margin": "soft margin", "el2n": "EL2N",
    "margin": "logit margin", "angular_margin": "angular margin", "max_logit": "largest logit",
    "free_energy": "free energy",
}  # fmt: skip


def score_title(name: str | None) -> str:
    """The title of a score on pages and in the terminal."""
    return "no score" if name is None else _TITLES.get(name, name)


def html_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = (), images: Mapping[int, str] | None = None
) -> str:
    """Rows as an HTML table whose cells are text, whatever they hold; thumbnails, by row, come first.

    Examples:
        >>> html_table([{"id": "<b>", "avh": 0.5}])
        '<table><thead><tr><th>id</th><th>avh</th></tr></thead><tbody><tr><td>&lt;b&gt;</td><td>0.5</td></tr>...'
    """
    names = columns or list(rows[0] if rows else ())
    titles = [*([""] if images else []), *(html.escape(printable(name)) for name in names)]
    body = []
    for i, row in enumerate(rows):
        uri = (images or {}).get(i)
        pictured = [f'<img src="{html.escape(uri)}" alt="">' if uri else ""] if images else []
        body.append([*pictured, *(html.escape(cell(row.get(name, ""))) for name in names)])
    lines = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in body)
    return f"<table><thead><tr><th>{'</th><th>'.join(titles)}</th></tr></thead><tbody>{lines}</tbody></table>"


class Result:
    """An object that prints as one line; a notebook shows its most important rows below."""

    def _shown_rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows that a notebook shows."""
        return ()

    def _line(self, path: Path | None, *details: str) -> str:
        place = "" if path is None else f"{str(path)!r}: "
        return printable(f"{type(self).__name__}({place}{', '.join(details)})")

    def _repr_html_(self) -> str:
        rows = self._shown_rows()
        more = f"<p>… {len(rows) - _MOST_SHOWN:,} more</p>" if len(rows) > _MOST_SHOWN else ""
        table = f"{html_table(rows[:_MOST_SHOWN])}{more}" if rows else ""
        return f"<p>{html.escape(repr(self))}</p>{table}"


def alarm(text: object, kind: str = "warning") -> None:
    """Print a line to stderr, in red if that is a terminal and the user has not disabled color."""
    line = f"{kind}: {printable(text)}"
    colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.flush()  # it comes first, even if both streams are one
    print(f"\033[1;31m{line}\033[0m" if colored else line, file=sys.stderr, flush=True)
