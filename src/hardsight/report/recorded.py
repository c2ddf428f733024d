"""What a recorded training says of each sample: columns of its points, the data map, lists, and its own curves."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import floats
from hardsight.report.formatting import counted, cut_name, number
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH
from hardsight.report.sections import Column, Notice, SampleList
from hardsight.report.views import Axis, View, axis
from hardsight.table import harder_end

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

MOST_EPOCHS = 200  # that are drawn
CURVES_BYTES = 2_000_000  # of the curves of single samples
CURVES = ("avh", "confidence", "norm")

# Column of the summary: title, meaning, kind. On the page "confidence" is the last epoch's.
_COLUMNS = {
    "confidence": ("mean confidence", "Probability of the label, mean over the {unit}s.", "number"),
    "variability": ("variability", "Standard deviation of the label's probability over the {unit}s.", "number"),
    "correctness": ("correctness", "Share of the {unit}s in which it was predicted right.", "number"),
    "aum": ("area under the margin",
            "The label's logit minus the largest other, mean over the {unit}s (Pleiss et al., 2020).", "number"),
    "forgetting": ("forgetting events",
                   "How often it was right and, the next time it was seen, wrong (Toneva et al., 2019).", "int"),
    "learned": ("first learned in", "The first {unit} in which it was right; – is never.", "int"),
    "seen": ("recorded in", "The number of {unit}s in which it was recorded.", "int"),
}  # fmt: skip

_STEPS = 65_534  # of a curve from the smallest to the largest value; the next code is a gap


class Recorded(NamedTuple):
    """A recorded training beside the rows of the page."""

    dynamics: Dynamics
    unit: str  # epoch, or whatever lies between two ends
    shown: np.ndarray  # places of the epochs that are drawn, evenly spread where there are many
    hardness: np.ndarray  # (M,) mean AVH of each recorded sample, in the order of the records
    columns: dict[str, Column]  # one value per row of the page; NaN where there is none
    notices: list[Notice]

    @property
    def several(self) -> bool:
        return len(self.dynamics.epochs) > 1


def read_recorded(rows: Rows, dynamics: Dynamics) -> Recorded:
    """Take the summary of each sample of the page from its records."""
    summary, epochs, unit = dynamics.summary(), dynamics.epochs, cut_name(dynamics.unit)
    by_row = summary.aligned(rows.ids.combine_chunks())
    columns = {}
    for column, (title, text, kind) in _COLUMNS.items():
        name = "mean_confidence" if column == "confidence" else column
        columns[name] = Column(floats(by_row[column]), title, text.format(unit=unit), harder_end(name), kind)
    if (columns["seen"].values == len(epochs)).all():
        del columns["seen"]  # the same for all
    last = int(epochs[-1])  # a run that is still being recorded may have more by now
    bad, absent = rows.table.meta.recorded.bad if rows.table.meta.recorded else 0, len(dynamics) - len(rows)
    gaps = int((summary["seen"] < len(epochs)).sum())
    # Whether it applies, what it says.
    entries = [
        (dynamics.unfinished, f"{unit} {last} is not finished: this page shows its samples so far.".capitalize()),
        (bad, f"{counted(bad, 'reading was', 'readings were')} NaN or infinite and are missing from their {unit}s."),
        (absent > 0, f"{counted(absent, 'recorded sample was', 'recorded samples were')} not seen in {unit} {last}, "
                     "whose scores this page shows; they count in the curves only."),
        (gaps > absent, f"{counted(gaps, 'sample was', 'samples were')} not seen in every {unit}; means are over the "
                        f"{unit}s in which they were."),
        (len(epochs) == 1, f"One {unit} is recorded so far: there are no curves yet, and no data map."),
    ]  # fmt: skip
    shown = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), MOST_EPOCHS)).round().astype(np.int64))
    notices = [Notice("info", text) for applies, text in entries if applies]
    return Recorded(dynamics, unit, shown, floats(summary.to_arrow()["avh"]), columns, notices)


def data_map(recorded: Recorded) -> View:
    """Mean confidence against variability (Swayamdipta et al., 2020)."""
    unit = recorded.unit
    note = (
        f"A data map over {counted(len(recorded.dynamics.epochs), unit)}: high up lie the samples that were easy to "
        "learn, low down those that were hard to learn (wrong labels are among them), to the right the ambiguous ones."
    )
    x = axis("variability", f"variability of the confidence over the {unit}s", recorded.columns["variability"].values)
    y = Axis("mean_confidence", f"mean confidence in the label over the {unit}s", 0.0, 1.0)
    return View("datamap", "Data map: confidence and its variability", note, x, y, "correctness")


def recorded_lists(recorded: Recorded) -> list[SampleList]:
    """Most forgotten; learned last or never; lowest area under the margin; equal ones by the last."""
    forgetting, learned, aum = (recorded.columns[name].values for name in ("forgetting", "learned", "aum"))
    valid, unit = ~np.isnan(aum), recorded.unit

    def first(key: np.ndarray, among: np.ndarray, k: int) -> np.ndarray:
        where = np.flatnonzero(among)
        if len(where) > k:  # sort only those that may be among the first
            where = where[key[where] <= np.partition(key[where], k - 1)[k - 1]]
        return where[np.lexsort((aum[where], key[where]))][:k]

    forgotten = first(-forgetting, valid & (forgetting > 0), LENGTH)
    never = first(aum, valid & np.isnan(learned), LENGTH // 2)
    late = first(-learned, valid & ~np.isnan(learned), LENGTH - len(never))
    count = int((valid & np.isnan(learned)).sum())
    which = f"the {len(never)} with the lowest area under the margin" if count > len(never) else "they"
    note = (
        f"{counted(count, 'sample was', 'samples were')} never right: {which} come first, then those learned last."
        if count
        else f"Every sample was right in some {unit}; the one that took longest comes first."
    )
    mean = f"By the mean over the {unit}s of the label's logit minus the largest other: wrong labels lie low."
    often = f"By how often it was right in one {unit} and then wrong."
    return [
        SampleList("forgotten", "Most forgotten", often, forgotten),
        SampleList("late", "Learned last or never", note, np.concatenate([never, late])),
        SampleList("low_aum", "Lowest area under the margin", mean, first(aum, valid, LENGTH)),
    ]


def sample_curves(recorded: Recorded, places: list[int], ids: list[str], total: int) -> dict[str, Any]:
    """Curves of single samples, of as many as fit, at these points of the page's `total`, the most wanted first."""
    dynamics, shown = recorded.dynamics, recorded.shown
    kept = places[: 3 * CURVES_BYTES // (8 * len(CURVES) * len(shown) + 24)]
    wanted = pa.array(ids[: len(kept)], pa.string())
    rows = dynamics.rows_of(wanted, CURVES)
    line = pc.index_in(rows.table["id"], value_set=wanted).to_numpy()
    epoch = np.searchsorted(dynamics.epochs, rows.table["epoch"].to_numpy())
    curves = {}
    for name in CURVES:
        values = np.full((len(kept), len(dynamics.epochs)), np.nan)
        values[line, epoch] = rows.column(name) * (dynamics.classes if name == "avh" else 1)
        curves[name] = coded(values[:, shown])
    note = "" if len(kept) == total else f"{len(kept):,} of {total:,} points keep their curves on this page."
    return {"points": kept, "note": note, **curves}


def coded(values: np.ndarray) -> dict[str, Any]:
    """Numbers as 16-bit steps between the smallest and the largest in base64, row after row."""
    valid = np.isfinite(values)
    low, high = (float(values[valid].min()), float(values[valid].max())) if valid.any() else (0.0, 1.0)
    width = high - low if high > low else 1.0
    steps = np.where(valid, np.round((np.where(valid, values, low) - low) / width * _STEPS), _STEPS + 1)
    return {
        "low": number(low, 9),
        "width": number(width, 9),
        "steps": b64encode(steps.astype("<u2").tobytes()).decode(),
    }
