"""An evaluation for a terminal of 100 columns: the first table of its page, and its sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hardsight.evaluation.results import Evaluation
from hardsight.extras import printable
from hardsight.printing import text_table
from hardsight.report.comparisonpage import comparison
from hardsight.report.comparisonpage_numbers import ARROWS
from hardsight.report.formatting import counted

_WIDTH, _NAME = 100, 22
# Whether there are intervals, and how long a label may be: the first that fits, and groups should stand side by side.
_LAYOUTS = (True, 60), (False, 60), (False, 32)
_SIGNS = {"better": "▲", "worse": "▼", "": ""}


def evaluation_lines(evaluation: Evaluation) -> list[str]:
    """The most telling numbers of an evaluation, what they mean, and its warnings.

    Args:
        evaluation: What `hardsight.evaluate` returns.
    """
    page = comparison(evaluation)
    titles = [f"{_cut(name, _NAME)}{f' ({len(runs)})' * (len(runs) > 1)}" for name, runs in evaluation.groups.items()]
    tables = [_blocks(_rows(page["highlights"], *layout), titles) for layout in _LAYOUTS]
    fits = [max(len(line) for block in blocks for line in block) <= _WIDTH for blocks in tables]
    blocks = tables[0] if fits[0] and len(tables[0]) == 1 else tables[1] if fits[1] else tables[2]
    verdicts = (
        [f"{title} – {text}" for title, texts in page["verdicts"].items() for text in texts] if titles[1:] else []
    )
    notes = [f"! {notice.text}" for notice in page["notices"]]
    remarks = sum(len(section.notices) for section in page["sections"])
    notes.append(f"All numbers, curves and {counted(remarks, 'remark')} are on the page.")
    parts = [_filled([page["lead"]]), *blocks, _filled([page["legend"]]), _filled(verdicts), _filled(notes)]
    return [line for part in parts if part for line in (*part, "")][:-1]


def _rows(highlights: Mapping[str, Sequence[dict[str, Any]]], intervals: bool, width: int) -> list[dict[str, str]]:
    """A row per question with its title alone, and one per number: its label, a cell per group, and n."""
    rows = []
    for question, numbers in highlights.items():
        rows.append({"": question})
        for number in numbers:
            cells = {str(k): _cell(cell, intervals) for k, cell in enumerate(number["cells"])}
            rows.append({"": f"  {_cut(number['title'], width)}{ARROWS[number['better']]}", **cells, "n": number["n"]})
    return rows


def _cell(cell: Mapping[str, str], intervals: bool) -> str:
    interval = f"({cell['interval']})" if intervals and cell["interval"] else ""
    return " ".join(filter(None, (cell["text"], cell["sd"], interval, _SIGNS[cell["flag"]])))


def _blocks(rows: Sequence[Mapping[str, str]], titles: Sequence[str]) -> list[list[str]]:
    """The table in as many blocks of columns as the width asks for; the first group stands in each."""

    def table(groups: Sequence[int]) -> list[str]:
        return text_table(rows, {"": "", **{str(k): titles[k] for k in groups}, "n": "n"})

    blocks = [[0]]
    for k in range(1, len(titles)):
        if len(blocks[-1]) > 1 and max(map(len, table([*blocks[-1], k]))) > _WIDTH:
            blocks.append([0])
        blocks[-1].append(k)
    return [table(block) for block in blocks]


def _filled(texts: Iterable[str]) -> list[str]:
    return [
        textwrap.fill(printable(text), _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for text in texts if text
    ]


def _cut(text: str, width: int) -> str:
    text = printable(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"
