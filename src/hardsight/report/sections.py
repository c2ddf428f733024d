"""What a section of the page consists of, and what sections are built from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.report.formatting import plain
from hardsight.report.rows import Rows

if TYPE_CHECKING:
    from hardsight.report.groups import Group
    from hardsight.report.label_errors import Suspects
    from hardsight.report.recorded import Recorded
    from hardsight.report.views import View

_LEVELS = ("alarm", "warn", "info")


@dataclass(frozen=True)
class Inputs:
    """What every section is built from."""

    rows: Rows
    run: Any = None  # the run folder, where there is one
    against: Any = None  # another run or table to compare with
    group_table: pa.Table | None = None  # group columns beside the table, as `read_by_id` reads them
    groups: Sequence[Group] = ()  # of the table and of `group_table`
    group_notes: Sequence[str] = ()  # what could not be used of them
    recorded: Recorded | None = None  # the training that the run recorded
    suspects: Suspects | str = ""  # labels that are probably wrong, or a sentence that says why none are looked for


class SampleList(NamedTuple):
    """Row numbers with a heading: a tab of the gallery."""

    key: str
    title: str
    note: str
    rows: np.ndarray


class Column(NamedTuple):
    """One number per sample and what it means; `harder` is ``larger``, ``smaller`` or empty."""

    values: np.ndarray
    title: str
    text: str
    harder: str
    kind: str = "number"


class Notice(NamedTuple):
    """A sentence at the top of the page: an ``alarm``, a ``warn``, or ``info``."""

    level: str
    text: str


@dataclass(frozen=True)
class Section:
    """One section of the page.

    Its key is its name in the payload and its anchor; the script that draws it registers under the same name. Without
    a title it adds lists, views, columns and notices, but no section below the samples.
    """

    key: str
    title: str = ""
    note: str = ""  # below the title
    tiles: Sequence[tuple[str, str, str]] = ()  # names, values and notes
    tables: Sequence[dict[str, Any]] = ()  # what `table` makes
    notes: Sequence[str] = ()  # sentences below the tables
    data: dict[str, Any] = field(default_factory=dict)  # what its script draws; arrays of row numbers become points
    lists: Sequence[SampleList] = ()  # tabs of the gallery
    examples: Sequence[np.ndarray] = ()  # rows that need pictures as much as those of the lists
    parts: Sequence[np.ndarray] = ()  # rows that need points, and pictures if there are more than the lists need
    views: Sequence[View] = ()  # scatter plots
    columns: dict[str, Column] = field(default_factory=dict)  # numbers of each sample
    notices: Sequence[Notice] = ()  # sentences at the top of the page

    def as_dict(self) -> dict[str, Any]:
        """What the page shows below its heading, without what is empty."""
        shown = {"note": self.note, "tiles": self.tiles, "tables": self.tables, "notes": self.notes}
        return {key: value for key, value in shown.items() if value} | self.data


def by_level(notices: Iterable[Notice]) -> list[dict[str, str]]:
    """Notices for the page, the gravest first."""
    return [notice._asdict() for notice in sorted(notices, key=lambda notice: _LEVELS.index(notice.level))]


def table(key: str, caption: str, columns: Sequence[tuple[Any, ...]], **options: Any) -> dict[str, Any]:
    """A table, which the page writes and its script sorts and filters.

    Args:
        key: Its name in the page.
        caption: What stands above it.
        columns: Key, title, kind and values of each; the kind is ``text``, ``flag``, ``chart`` (drawn by a script) or
            one that `formatting.written` takes. Low and high ends behind the values make a cell three numbers.
        options: ``title`` and ``note`` above it, ``sort`` (the key of the first order), ``ascending``, ``search`` (the
            key of the searched column), and what its script draws in a chart.
    """
    cells = []
    for _, _, _, values, *ends in columns:
        parts = [part if isinstance(part, list) else plain(part) for part in (values, *ends)]
        cells.append([list(part) for part in zip(*parts, strict=True)] if ends else parts[0])
    shown = [{"key": name, "title": title, "kind": kind} for name, title, kind, *_ in columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    return {"key": key, "caption": caption, "columns": shown, "rows": rows, **options}
