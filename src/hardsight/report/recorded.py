"""What a recorded training says of each sample: columns of its points, the data map, and lists."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import floats
from hardsight.records import Block
from hardsight.report.formatting import counted, cut_name
from hardsight.report.points import axis
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH
from hardsight.report.sections import Column, Notice, SampleList
from hardsight.report.views import View
from hardsight.table import harder_end

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

# Column of the points: column of the summary, title, meaning.
_COLUMNS = {
    "mean_confidence": ("confidence", "mean confidence", "Probability of the label, mean over the {unit}s."),
    "variability": (
        "variability",
        "variability",
        "Standard deviation of the label's probability over the {unit}s.",
    ),
    "correctness": ("correctness", "correctness", "Share of the {unit}s in which it was predicted right."),
    "aum": (
        "aum",
        "area under the margin",
        "The label's logit minus the largest other, mean over the {unit}s (Pleiss et al., 2020).",
    ),
    "forgetting": (
        "forgetting",
        "forgetting events",
        "How often it was right and, the next time it was seen, wrong (Toneva et al., 2019).",
    ),
    "learned": ("learned", "first learned in", "The first {unit} in which it was right; – is never."),
    "seen": ("seen", "recorded in", "The number of {unit}s in which it was recorded."),
}
_COUNTS = ("forgetting", "learned", "seen")


class Recorded(NamedTuple):
    """A recorded training beside the rows of the page.

    Attributes:
        dynamics: The records.
        ids: Of all samples that were recorded, in the order of the records.
        summary: One row each.
        columns: ``(N,)`` by name, one value per row of the page; NaN where there is none.
    """

    dynamics: Dynamics
    ids: pa.Array
    summary: pa.Table
    columns: dict[str, np.ndarray]

    @property
    def unit(self) -> str:
        """``epoch``, or whatever lies between two ends."""
        return cut_name(self.dynamics.unit)

    @property
    def several(self) -> bool:
        return len(self.dynamics.epochs) > 1

    @property
    def last(self) -> int:
        """The last epoch; a run that is still being recorded may have more by now."""
        return int(self.dynamics.epochs[-1])

    def rows_of(self, ids: pa.Array, columns: Collection[str]) -> Block:
        """The records of some samples, in any order."""
        return self.dynamics.rows_of(ids, columns)


def read_recorded(rows: Rows, dynamics: Dynamics) -> Recorded:
    """Take the summary of each sample of the page from its records."""
    ids = pa.array(dynamics.ids, pa.string())
    summary = dynamics.summary().aligned(ids)
    place = pc.index_in(rows.ids, value_set=ids).combine_chunks()
    columns = {name: floats(summary[of].take(place)) for name, (of, *_) in _COLUMNS.items()}
    if (columns["seen"] == len(dynamics.epochs)).all():
        del columns["seen"]  # the same for all
    return Recorded(dynamics, ids, summary, columns)


def columns_of(recorded: Recorded) -> dict[str, Column]:
    """The columns with their meaning."""
    columns = {}
    for name, values in recorded.columns.items():
        _, title, text = _COLUMNS[name]
        kind = "int" if name in _COUNTS else "number"
        columns[name] = Column(values, title, text.format(unit=recorded.unit), harder_end(name), kind)
    return columns


def data_map(recorded: Recorded) -> list[View]:
    """Mean confidence against variability (Swayamdipta et al., 2020); a single epoch has no variability."""
    if not recorded.several:
        return []
    xs, ys = recorded.columns["variability"], recorded.columns["mean_confidence"]
    unit, count = recorded.unit, len(recorded.dynamics.epochs)
    note = (
        f"A data map over {counted(count, unit)}: high up lie the samples that were easy to learn, low down those that "
        "were hard to learn (wrong labels are among them), to the right the ambiguous ones."
    )
    x = axis("variability", f"variability of the confidence over the {unit}s", xs)
    y = axis("mean_confidence", f"mean confidence in the label over the {unit}s", ys, (0.0, 1.0))
    return [View("datamap", "Data map: confidence and its variability", note, x, y, xs, ys, "correctness")]


def recorded_lists(recorded: Recorded) -> list[SampleList]:
    """Most forgotten; learned last or never; lowest area under the margin; equal ones by the last."""
    if not recorded.several:
        return []
    forgetting, learned, aum = (recorded.columns[name] for name in ("forgetting", "learned", "aum"))
    valid, unit = ~np.isnan(aum), recorded.unit
    forgotten = _first(-forgetting, aum, valid & (forgetting > 0), LENGTH)
    never = _first(aum, aum, valid & np.isnan(learned), LENGTH // 2)
    late = _first(-learned, aum, valid & ~np.isnan(learned), LENGTH - len(never))
    count = int((valid & np.isnan(learned)).sum())
    first = f"the {len(never)} with the lowest area under the margin" if count > len(never) else "they"
    note = (
        f"{counted(count, 'sample was', 'samples were')} never right: {first} come first, then those learned last."
        if count
        else f"Every sample was right in some {unit}; the one that took longest comes first."
    )
    mean = f"By the mean over the {unit}s of the label's logit minus the largest other: wrong labels lie low."
    often = f"By how often it was right in one {unit} and then wrong."
    return [
        SampleList("forgotten", "Most forgotten", often, forgotten),
        SampleList("late", "Learned last or never", note, np.concatenate([never, late])),
        SampleList("low_aum", "Lowest area under the margin", mean, _first(aum, aum, valid, LENGTH)),
    ]


def _first(key: np.ndarray, then: np.ndarray, among: np.ndarray, k: int) -> np.ndarray:
    """The k rows with the smallest key, equal ones by `then` and by their order."""
    where = np.flatnonzero(among)
    if len(where) > k:  # sort only those that may be among the first
        where = where[key[where] <= np.partition(key[where], k - 1)[k - 1]]
    return where[np.lexsort((then[where], key[where]))][:k]


def recorded_notices(rows: Rows, recorded: Recorded) -> list[Notice]:
    """What a reader must know of the records."""
    dynamics, unit = recorded.dynamics, recorded.unit
    seen, last = recorded.summary["seen"], recorded.last
    texts, bad = [], rows.table.meta.recorded.bad if rows.table.meta.recorded else 0
    if dynamics.unfinished:
        texts.append(f"{unit} {last} is not finished: its samples so far are what this page shows.".capitalize())
    if bad > 0:
        texts.append(
            f"{counted(bad, 'reading was', 'readings were')} NaN or infinite and are missing from the {unit}s in which "
            "they came."
        )
    absent = len(dynamics) - len(rows)
    if absent > 0:
        texts.append(
            f"{counted(absent, 'recorded sample was', 'recorded samples were')} not seen in {unit} {last}, whose "
            "scores this page shows; they count in the curves only."
        )
    gaps = int(pc.sum(pc.less(seen, len(dynamics.epochs))).as_py())
    if gaps > absent:
        texts.append(
            f"{counted(gaps, 'sample was', 'samples were')} not seen in every {unit}; means are over the {unit}s in "
            "which they were."
        )
    if not recorded.several:
        texts.append(f"One {unit} is recorded so far: there are no curves yet, and no data map.")
    return [Notice("info", text) for text in texts]
