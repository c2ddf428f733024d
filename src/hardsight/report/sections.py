"""The parts of a section of the page: lists, numbers, scatter plots, tables and notices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hardsight.directions import harder_end
from hardsight.printing import signed
from hardsight.report.formatting import counted, plain, score_title
from hardsight.report.rows import BLOCK, Rows, joint_counts
from hardsight.scores import SCORES
from hardsight.stats import mean_ranks

_LEVELS = ("alarm", "warn", "info")
WIDTH, HEIGHT = 60, 48  # cells of a scatter plot


class SampleList(NamedTuple):
    """Row numbers with a heading: a tab of the gallery."""

    key: str
    title: str
    note: str
    rows: np.ndarray


class Column(NamedTuple):
    """One number per sample and what it means; `harder` is ``larger``, ``smaller`` or empty.

    Numbers that are needed again after all sections are built come from a function, so they are not kept until then.
    """

    values: np.ndarray | Callable[[], np.ndarray]
    title: str
    text: str
    harder: str
    kind: str = "number"

    def read(self) -> np.ndarray:
        """The numbers."""
        return self.values() if callable(self.values) else self.values


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
    examples: Sequence[np.ndarray] = ()  # rows that need pictures as much as rows in lists do
    parts: Sequence[np.ndarray] = ()  # rows that need points, and pictures if the lists leave some
    views: Sequence[View] = ()  # scatter plots
    columns: dict[str, Column] = field(default_factory=dict)  # numbers of each sample
    notices: Sequence[Notice] = ()  # sentences at the top of the page

    def as_dict(self) -> dict[str, Any]:
        """The content below the heading, without empty parts."""
        shown = {"note": self.note, "tiles": self.tiles, "tables": self.tables, "notes": self.notes}
        return {key: value for key, value in shown.items() if value} | self.data


def by_level(notices: Iterable[Notice]) -> list[dict[str, str]]:
    """Notices for the page, the most serious first."""
    return [notice._asdict() for notice in sorted(notices, key=lambda notice: _LEVELS.index(notice.level))]


def table(key: str, caption: str, columns: Sequence[tuple[Any, ...]], **options: Any) -> dict[str, Any]:
    """A table, which the page writes and its script sorts and filters.

    A column is a key, a title, a kind (``text``, ``flag``, ``chart``, or one that `formatting.written` takes), values,
    and perhaps low and high ends. Options are ``title`` and ``note`` above the table, ``sort`` (the key of the first
    order), ``ascending``, ``search`` (the key of the searched column), and what its script draws in a chart.
    """
    cells = []
    for _, _, _, values, *ends in columns:
        parts = [part if isinstance(part, list) else plain(part) for part in (values, *ends)]
        cells.append([list(part) for part in zip(*parts, strict=True)] if ends else parts[0])
    shown = [{"key": name, "title": title, "kind": kind} for name, title, kind, *_ in columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    return {"key": key, "caption": caption, "columns": shown, "rows": rows, **options}


class Axis(NamedTuple):
    """One axis of a view: a column, its title, and the range drawn; values beyond it are counted at the edge."""

    column: str
    title: str
    low: float
    high: float

    def bins(self, values: np.ndarray, count: int) -> np.ndarray:
        """Bin of each value, −1 for NaN; the last bin is closed, as in NumPy's histograms."""
        bins = np.empty(len(values), dtype=np.int16)
        for start in range(0, len(values), BLOCK):
            part = values[start : start + BLOCK]
            valid = ~np.isnan(part)
            scaled = np.clip((np.where(valid, part, self.low) - self.low) / (self.high - self.low), 0.0, 1.0)
            bins[start : start + BLOCK] = np.where(valid, np.minimum((scaled * count).astype(np.int64), count - 1), -1)
        return bins

    def beyond(self, values: np.ndarray) -> int:
        """How many values lie outside the range."""
        return int(((values < self.low) | (values > self.high)).sum())


class View(NamedTuple):
    """Two columns of the page against each other; `color` names a column from 0 to 1 that colors the points."""

    key: str
    title: str
    note: str
    x: Axis
    y: Axis
    color: str = ""

    def cells(self, columns: Mapping[str, Column]) -> np.ndarray:
        """Cell of each row in the view's grid, row 0 the lowest y; −1 where x or y is NaN."""
        column, line = (a.bins(columns[a.column].read(), n) for a, n in ((self.x, WIDTH), (self.y, HEIGHT)))
        return np.where((column >= 0) & (line >= 0), line * np.int16(WIDTH) + column, np.int16(-1))

    def as_dict(self, columns: Mapping[str, Column]) -> dict[str, Any]:
        """For the page."""
        x, y = (columns[axis.column].read() for axis in (self.x, self.y))
        beyond = self.x.beyond(x) + self.y.beyond(y)
        edge = f" {counted(beyond, 'value lies', 'values lie')} beyond the edge and drawn there." if beyond else ""
        counts = joint_counts(self.y.bins(y, HEIGHT), self.x.bins(x, WIDTH), (HEIGHT, WIDTH)).ravel()
        density = {"nx": WIDTH, "ny": HEIGHT, "counts": counts.tolist(), "max": int(counts.max())}
        drawing = {"note": self.note + edge, "x": self.x._asdict(), "y": self.y._asdict(), "density": density}
        return self._asdict() | drawing


def axis(column: str, title: str, values: np.ndarray) -> Axis:
    """An axis over the values, NaN aside, with round ends; a few far outliers do not stretch it."""
    valid = ~np.isnan(values)
    valid = values if valid.all() else values[valid]
    if not len(valid):
        return Axis(column, title, 0.0, 1.0)
    low, inner_low, inner_high, high = (float(v) for v in np.quantile(valid, [0.0, 0.001, 0.999, 1.0]))
    reach = 3 * (inner_high - inner_low)
    if inner_high > inner_low:
        low, high = max(low, inner_low - reach), min(high, inner_high + reach)
    if 0 < low <= 0.4 * high:
        low = 0.0
    if not high - low > 1e-5 * max(abs(low), abs(high)):  # equal but for rounding: six digits cannot tell them apart
        low, high = low - 0.5 * max(abs(low), 1.0), high + 0.5 * max(abs(high), 1.0)
    step = 10.0 ** np.floor(np.log10(high - low)) / 10
    low, high = float(np.floor(low / step + 1e-9) * step), float(np.ceil(high / step - 1e-9) * step)
    return Axis(column, title, float(f"{low:.6g}"), float(f"{high:.6g}"))


def score_axis(rows: Rows, name: str, values: np.ndarray | None = None) -> Axis:
    """The axis of a score, with its direction in words; over values other than the score's own if given."""
    where = "" if rows.labeled or not SCORES[name].needs_labels else " at the prediction"
    title = {
        "avh": f"C·AVH{where} (1 = chance; larger = harder)",
        "confidence": f"confidence in the {'label' if rows.labeled else 'prediction'}",
        "norm": "norm of the feature",
    }.get(name, f"{score_title(name)}{where} ({harder_end(name)} = harder)")
    if name in ("confidence", "avc"):
        return Axis(name, title, 0.0, 1.0)
    return axis(name, title, rows.scores[name] if values is None else values)


def rank_axis(column: str, score: str | None) -> Axis:
    return Axis(column, f"rank{f' by {score_title(score)}' if score else ''} (1 = hardest)", 0.0, 1.0)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> tuple[float | None, int]:
    """Spearman's correlation over the rows that have both, None if undefined; and the number of these rows."""
    both = ~np.isnan(a) & ~np.isnan(b)
    a, b = (values if both.all() else values[both] for values in (a, b))
    n = len(a)
    if n < 3 or a.min() == a.max() or b.min() == b.max():
        return None, n
    u, v = mean_ranks(a), mean_ranks(b)  # scipy's spearmanr takes three times the memory
    for ranks in (u, v):
        ranks -= (n + 1) / 2
    return float(np.clip(u @ v / np.sqrt((u @ u) * (v @ v)), -1, 1)), n


def correlation_note(rows: Rows, values: np.ndarray, title: str, others: tuple[str | None, ...]) -> str:
    """Spearman's correlation of some values with the hardness by other scores, in words."""
    pairs = {name: rank_correlation(values, rows.hardness_by(name)) for name in others if name is not None}
    texts = [f"with hardness by {score_title(k)} is {signed(rho)}" for k, (rho, _) in pairs.items() if rho is not None]
    if not texts:
        return f"The rank correlation of {title} with hardness does not exist (too few different values)."
    n = min(n for _, n in pairs.values())
    return f"Spearman's rank correlation of {title} {' and '.join(texts)} (n = {n:,})."
