"""What a section of the page consists of, and what sections are built from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.report.formatting import NAME_BYTES, cut_name
from hardsight.report.rows import Rows

if TYPE_CHECKING:
    from hardsight.report.groups import Group
    from hardsight.report.label_errors import Suspects
    from hardsight.report.recorded import Recorded
    from hardsight.report.views import View

_NAMES_BYTES = 900_000  # all class names together
_LEVELS = ("alarm", "warn", "info")


@dataclass(frozen=True)
class Inputs:
    """What every section is built from.

    Attributes:
        rows: The samples.
        run: The run folder, where there is one.
        against: Another run or table to compare with.
        group_table: Group columns that were given beside the table, as `read_by_id` reads them.
        groups: Group columns of the table and of `group_table`.
        group_notes: What could not be used of them.
        recorded: The training that the run recorded, where it did.
        suspects: Labels that are probably wrong, or a sentence that says why none are looked for.
    """

    rows: Rows
    run: Any = None
    against: Any = None
    group_table: pa.Table | None = None
    groups: Sequence[Group] = ()
    group_notes: Sequence[str] = ()
    recorded: Recorded | None = None
    suspects: Suspects | str = ""

    def class_name(self, code: int) -> str:
        """Name of a class, short enough that all of them fit into the page."""
        return self.name_of(int(self.rows.numbers[code]))

    def name_of(self, number: int) -> str:
        """The same by the class number of the model."""
        room = int(np.clip(_NAMES_BYTES // max(self.rows.codes, 1), 24, NAME_BYTES))
        return cut_name(self.rows.name_of(number), room)


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

    Attributes:
        key: Its name in the payload and its anchor; the script that draws it registers under the same name.
        title: Its heading; without one it adds lists, views, columns and notices, but no section below the samples.
        data: What the script draws, besides ``note`` and ``tiles``; an array of row numbers in it becomes points.
        lists: Tabs of the gallery.
        examples: Rows that need pictures as much as those of the lists.
        parts: Rows that need points, and pictures if there are more than the lists need.
        views: Scatter plots.
        columns: Numbers of each sample, by name.
        notices: Sentences at the top of the page.
    """

    key: str
    title: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    lists: Sequence[SampleList] = ()
    examples: Sequence[np.ndarray] = ()
    parts: Sequence[np.ndarray] = ()
    views: Sequence[View] = ()
    columns: dict[str, Column] = field(default_factory=dict)
    notices: Sequence[Notice] = ()


def by_level(notices: Iterable[Notice]) -> list[Notice]:
    """The gravest first."""
    return sorted(notices, key=lambda notice: _LEVELS.index(notice.level))


def table(
    key: str, caption: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[Any], **options: Any
) -> dict[str, Any]:
    """A table that the page sorts and filters.

    Args:
        key: Its name in the page.
        caption: What stands above it.
        columns: Key, title and kind (``text``, ``int``, ``percent``, ``number``, ``signed``, ``flag``) of each. A
            value whose row also has ``KEY_low`` and ``KEY_high`` is shown with that interval.
        rows: A mapping per row.
        options: ``sort`` (the key of the first order), ``ascending``, ``search`` (the key of the searched column).
    """
    shown = [{"key": name, "title": title, "kind": kind} for name, title, kind in columns]
    return {"key": key, "caption": caption, "columns": shown, "rows": rows, **options}
