"""What an evaluation found, for a terminal of 100 columns: the first table of its page, and its sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_WIDTH, _NAME = 100, 22
# Whether there are intervals, and how long a label may be: what fits first, and groups should stand side by side.
_WAYS = (True, 60), (False, 60), (False, 32)
_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
_SIGNS = {"better": "▲", "worse": "▼", "": ""}


def told(out: Path) -> list[str]:
    """The telling numbers of an evaluation, what they mean, and what must be said with them.

    Args:
        out: The folder that `hardsight.evaluate` wrote.
    """
    from hardsight.extras import printable
    from hardsight.figures.evaluated import read_evaluated
    from hardsight.report.comparisonpage import payload

    shown, _ = payload(read_evaluated(out))
    groups = shown["groups"]
    heads = [_cut(printable(one["name"])) + (f" ({one['runs']})" if one["runs"] > 1 else "") for one in groups]
    tables = [_blocks(_lines(shown["overview"], *way), heads) for way in _WAYS]
    fits = [max(len(line) for block in blocks for line in block) <= _WIDTH for blocks in tables]
    blocks = tables[0] if fits[0] and len(tables[0]) == 1 else tables[1] if fits[1] else tables[2]
    meant = [f"{one['title']} – {text}" for one in shown["verdicts"] for text in one["texts"]] if groups[1:] else []
    said = [f"! {one['text']}{f' ({who})' if (who := one['who']) else ''}" for one in shown["warnings"]]
    more = sum(len(question["words"]) for question in shown["questions"])
    said += [f"All numbers, curves and {more} remark{'' if more == 1 else 's'} are on the page."]
    parts = [_filled([shown["lead"]]), *blocks, _filled([shown["reading"]]), _filled(meant), _filled(said)]
    return [line for part in parts if part for line in (*part, "")][:-1]


def _lines(overview: Sequence[dict[str, Any]], intervals: bool, width: int) -> list[list[str]]:
    """Titles, and of every number its label, a cell a group, and n."""
    from hardsight.extras import printable

    lines: list[list[str]] = []
    for question in overview:
        lines.append([printable(question["title"])])
        for row in question["rows"]:
            label = f"  {_cut(printable(row['title']), width)}{_ARROWS[row['better']]}"
            lines.append([label, *(_cell(cell, intervals) for cell in row["cells"]), row["n"]])
    return lines


def _cell(cell: dict[str, str], intervals: bool) -> str:
    spread = cell["spread"] if cell["spread"].startswith("±") else f"({cell['spread']})" * intervals
    return " ".join(filter(None, (cell["text"], spread if cell["spread"] else "", _SIGNS[cell["flag"]])))


def _filled(texts: Iterable[str]) -> list[str]:
    from hardsight.extras import printable

    return [
        textwrap.fill(printable(text), _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in texts if text
    ]


def _blocks(lines: Sequence[Sequence[str]], heads: Sequence[str]) -> list[list[str]]:
    """The table in as many blocks of columns as the width asks for; the first group stands in each."""
    numbers = [line for line in lines if len(line) > 1]
    first, last = (max([len(line[place]) for line in numbers], default=1) for place in (0, -1))
    widths = [max([len(head), *(len(line[k + 1]) for line in numbers)]) for k, head in enumerate(heads)]
    room, blocks = _WIDTH - first - last - 2, [[0]]
    for k in range(1, len(heads)):
        if len(blocks[-1]) > 1 and sum(widths[j] + 2 for j in (*blocks[-1], k)) > room:
            blocks.append([0])
        blocks[-1].append(k)
    table = [["", *heads, "n"], *lines]

    def printed(line: Sequence[str], block: Sequence[int]) -> str:
        cells = "".join(f"  {line[k + 1]:<{widths[k]}}" for k in block) if len(line) > 1 else ""
        return f"{line[0]:<{first}}{cells}  {line[-1]:>{last}}" if cells else line[0]

    return [[printed(line, block) for line in table] for block in blocks]


def _cut(text: str, width: int = _NAME) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
