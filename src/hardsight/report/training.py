"""The section on training: curves by group, what drives the loss, the data map, and numbers of each sample."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.directions import harder_end
from hardsight.dynamics import Dynamics
from hardsight.dynamics.batches import MOST_COSINES
from hardsight.phases.drivers import LossChange, split_change
from hardsight.report.formatting import counted, cut_name, number, plain
from hardsight.report.groups import MOST_COLUMNS, given_groups
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH, top
from hardsight.report.sections import Axis, Column, Notice, SampleList, Section, View, axis
from hardsight.stats import Moments, moments, wilson
from hardsight.tablefiles import floats

MOST_LINES = 12  # in one chart
MOST_EPOCHS = 200  # that are drawn
CURVES_BYTES = 2_000_000  # of the curves of single samples
CURVES = ("avh", "confidence", "norm")
_STEPS = 65_534  # steps of a curve from the smallest to the largest value; the next code is a gap
_TOGETHER = 1 << 20  # rows that are read at a time
_CHANGES = LossChange._fields
_FIFTHS = ("easiest fifth", "second fifth", "middle fifth", "fourth fifth", "hardest fifth")

# Value, title, meaning, number format, and the range of possible values.
_VALUES = {
    "avh": ("C·AVH", "1 is chance, larger is harder.", "number", 0.0, None),
    "norm": ("norm", "Length of the feature.", "number", 0.0, None),
    "correct": ("accuracy", "Share predicted right.", "percent", 0.0, 1.0),
    "confidence": ("confidence", "Probability of the label.", "number", 0.0, 1.0),
    "nll": ("loss (nll)", "Cross-entropy of the label.", "number", 0.0, None),
}

# Column of the summary: title and meaning. On the page "confidence" is the last epoch's.
_COLUMNS = {
    "confidence": ("mean confidence", "Probability of the label, mean over the {unit}s."),
    "variability": ("variability", "Standard deviation of the label's probability over the {unit}s."),
    "correctness": ("correctness", "Share of the {unit}s in which it was predicted right."),
    "aum": ("area under the margin", "Mean of the label's logit minus the largest other (Pleiss et al., 2020)."),
    "soft_margin_late": (
        "late soft margin",
        "Soft margin, standardized within each {unit}, mean over the later half: what agrees best with people.",
    ),
    "forgetting": ("forgetting events", "How often it was right and, the next time, wrong (Toneva et al., 2019)."),
    "learned": ("first learned in", "The first {unit} in which it was right; – is never."),
    "seen": ("recorded in", "The number of {unit}s in which it was recorded."),
}  # fmt: skip


class Division(NamedTuple):
    """A way to divide the samples: a name for each part, and each sample's part (−1 for none)."""

    key: str
    title: str
    names: list[str]
    codes: np.ndarray
    note: str = ""
    ordered: bool = False  # whether the parts go from easy to hard
    driven: bool = False  # whether the page shows what drove the loss of each part


def build(rows: Rows) -> Section | None:
    """Curves once there are two epochs; lists, the data map and numbers of each sample, if the run was recorded."""
    recorded = rows.recorded
    if recorded is None:
        return None
    section = Section("training", columns=recorded.columns, notices=recorded.notices)
    if len(recorded.shown) < 2:
        return section
    dynamics, unit, shown = recorded.dynamics, recorded.unit, recorded.shown
    divisions = _divisions(rows, recorded)
    measured = _measure(recorded, divisions)
    some = f" {len(shown)} of them are drawn." if len(shown) < len(dynamics.epochs) else ""
    note = (
        f"{counted(len(dynamics), 'sample')} over {counted(len(dynamics.epochs), unit)}.{some} Lines are means over "
        "samples, bands their standard deviation to either side (not an interval of the mean); for accuracy, Wilson's "
        "95% interval."
    )
    keys = ("key", "title", "text", "kind", "least", "most")
    data = {
        "unit": unit,
        "epochs": dynamics.epochs[shown].tolist(),
        "values": [dict(zip(keys, (key, *value), strict=True)) for key, value in _VALUES.items()],
        "groupings": [_grouping(recorded, *pair) for pair in zip(divisions, measured, strict=True)],
        "drivers": _drivers(recorded, divisions, measured),
        "heads": _heads(recorded, rows),
    }
    lists, views = recorded_lists(recorded), [data_map(recorded)]
    return replace(section, title="Training", note=note, data=data, lists=lists, views=views)


def _divisions(rows: Rows, recorded: Recorded) -> list[Division]:
    """All samples; classes by label, all of them or the hardest; fifths by mean AVH; and columns of the user's own."""
    dynamics, unit, n = recorded.dynamics, recorded.unit, len(recorded.dynamics)
    divisions = [Division("all", "all samples", ["all samples"], np.zeros(n, dtype=np.int64), driven=True)]
    numbers, codes = np.unique(dynamics.labels, return_inverse=True)
    if len(numbers) > 1:
        note, shown = "", np.arange(len(numbers))
        if len(numbers) > MOST_LINES:
            shown = np.sort(top(moments(recorded.hardness, codes, len(numbers)).mean, MOST_LINES))
            note = f"The {MOST_LINES} hardest of {len(numbers):,} classes, by mean AVH over all {unit}s."
        place = np.full(len(numbers), -1)
        place[shown] = np.arange(len(shown))
        names = [rows.name_of(int(number)) for number in numbers[shown]]
        divisions.append(Division("class", "class", names, place[codes], note))
    if n >= 2 * len(_FIFTHS):
        fifths = np.empty(n, dtype=np.int64)  # equal samples in the order of their ids
        fifths[np.argsort(recorded.hardness, kind="stable")] = np.arange(n) * len(_FIFTHS) // n
        note = f"Fifths of the samples by mean AVH over all {unit}s; their curves of AVH lie apart by construction."
        divisions.append(Division("hardness", "hardness (fifths)", list(_FIFTHS), fifths, note, True, True))
    groups = []
    if rows.group_table is not None:
        groups = given_groups(pa.array(dynamics.ids, pa.string()), rows.group_table)[0][-MOST_COLUMNS:]
    for column, values, codes, note in groups:  # the largest values first
        if len(values) > MOST_LINES:
            note = f"{note} The {MOST_LINES} largest of its values are drawn.".strip()
        codes = np.where(codes < MOST_LINES, codes, -1).astype(np.int64)
        divisions.append(Division(f"group {column}", column, values[:MOST_LINES], codes, note))
    return divisions


def _measure(recorded: Recorded, divisions: list[Division]) -> list[dict[str, Moments]]:
    """Number, mean and spread of every value by part and epoch, for all divisions from one pass over the records."""
    dynamics = recorded.dynamics
    measured = [
        {name: Moments(len(parts.names), len(dynamics.epochs)) for name in (*_VALUES, *_CHANGES * parts.driven)}
        for parts in divisions
    ]
    for block in dynamics.records.blocks((*_VALUES, "nll_angles", "nll_norms"), rows=_TOGETHER):
        values = {key: block.column(key) for key in _VALUES}
        # The change of each row's loss since the last epoch with its sample, and its two parts.
        again, nll = np.r_[False, block.place[1:] == block.place[:-1]], values["nll"]
        old = np.where(again, np.r_[np.nan, nll[:-1]], np.nan)
        split = split_change(old, nll, block.column("nll_angles"), block.column("nll_norms"))
        values |= split._replace(change=np.where(np.isnan(split.by_angles), np.nan, split.change))._asdict()
        for parts, by_name in zip(divisions, measured, strict=True):
            cell = parts.codes[block.place] * len(dynamics.epochs) + block.epoch - 1
            for name, moments_ in by_name.items():
                moments_.add(values[name], cell)
    return measured


def _grouping(recorded: Recorded, parts: Division, measured: dict[str, Moments]) -> dict[str, Any]:
    """The curves of each part: means with their spread, accuracies with Wilson's interval."""
    lines = []
    for code, name in enumerate(parts.names):
        n = measured["correct"].n[code, recorded.shown]
        line: dict[str, Any] = {"name": name, "n": plain(n.astype(np.int64))}
        for key in _VALUES:
            scale = recorded.dynamics.classes if key == "avh" else 1
            mean = scale * measured[key].mean[code, recorded.shown]
            band = {"sd": scale * np.sqrt(measured[key].variance[code, recorded.shown])}
            if key == "correct":
                band = dict(zip(("low", "high"), wilson(mean * n, n), strict=True))
            line[key] = {curve: plain(values) for curve, values in {"mean": mean, **band}.items()}
        lines.append(line)
    return {"key": parts.key, "title": parts.title, "note": parts.note, "ordered": parts.ordered, "lines": lines}


def _drivers(recorded: Recorded, divisions: list[Division], measured: list[dict[str, Moments]]) -> dict[str, Any]:
    """How much new angles and new norms changed the mean loss in each epoch; no lines if unknown."""
    # Changes in epochs that are not drawn count in the next one that is.
    starts = np.r_[0, recorded.shown[:-1] + 1]
    lines = []
    for parts, by_name in zip(divisions, measured, strict=True):
        for code, name in enumerate(parts.names * parts.driven):
            line: dict[str, Any] = {"name": name}
            for key in _CHANGES:
                n, mean = by_name[key].n[code], np.nan_to_num(by_name[key].mean[code])
                line[key] = plain(np.where(np.add.reduceat(n, starts) > 0, np.add.reduceat(mean, starts), np.nan))
            lines.append(line)
    note = (
        f"The change of the mean loss since the {recorded.unit} before (below zero it falls), divided into the effects "
        "of new angles and of new norms (of features and class weights) and biases: the Shapley values, which add up."
    )
    if not any(value is not None for line in lines for value in line["by_angles"]):
        most = f"it is recorded up to {MOST_COSINES:,} samples × classes, and from the second {recorded.unit} on"
        lines, note = [], f"What drove the loss is not known here: {most}."
    return {"note": note, "lines": lines}


def _heads(recorded: Recorded, rows: Rows) -> dict[str, Any] | None:
    """Norms of the class weights: each class, or with many their mean, spread, smallest and largest."""
    heads, epochs = recorded.dynamics.heads, recorded.dynamics.epochs
    if not len(heads):
        return None
    heads = heads.filter(pc.is_in(heads["epoch"], pa.array(epochs[recorded.shown])))
    epoch, number = (heads[name].to_numpy().astype(np.int64) for name in ("epoch", "class"))
    classes, code = np.unique(number, return_inverse=True)
    norms = np.full((len(classes), len(recorded.shown)), np.nan)
    norms[code, np.searchsorted(epochs[recorded.shown], epoch)] = floats(heads["norm"])
    note = f"Length of the weight of each class at the end of each {recorded.unit}."
    lines = [{"name": rows.name_of(int(k)), "mean": plain(line)} for k, line in zip(classes, norms, strict=True)]
    if len(classes) > MOST_LINES:
        note = (
            f"Length of the weights of {len(classes):,} classes: mean, one standard deviation over the classes, ends."
        )
        ends = {"largest": norms.max(0), "mean": norms.mean(0), "smallest": norms.min(0)}
        lines = [{"name": name, "mean": plain(line)} for name, line in ends.items()]
        lines[1]["sd"] = plain(norms.std(0))
    return {"note": note, "lines": lines}


class Recorded(NamedTuple):
    """A recorded training beside the rows of the page."""

    dynamics: Dynamics
    unit: str  # epoch, or whatever lies between two ends
    shown: np.ndarray  # positions of the drawn epochs, evenly spread if there are many
    hardness: np.ndarray  # (M,) mean AVH of each recorded sample, in the order of the records
    columns: dict[str, Column]  # one value per row of the page; NaN where there is none
    notices: list[Notice]


def read_recorded(rows: Rows, dynamics: Dynamics) -> Recorded:
    """Take the summary of each sample of the page from its records."""
    summary, epochs, unit = dynamics.summary(), dynamics.epochs, cut_name(dynamics.unit)
    by_row = summary.aligned(rows.ids.combine_chunks())
    columns = {}
    for column, (title, text) in _COLUMNS.items():
        name = "mean_confidence" if column == "confidence" else column
        kind = "int" if column in ("forgetting", "learned", "seen") else "number"
        columns[name] = Column(floats(by_row[column]), title, text.format(unit=unit), harder_end(name), kind)
    if (columns["seen"].read() == len(epochs)).all():
        del columns["seen"]  # the same for all
    last = int(epochs[-1])  # a run that is still being recorded may have more by now
    bad, absent = rows.meta.recorded.bad if rows.meta.recorded else 0, len(dynamics) - len(rows)
    gaps = int((summary["seen"] < len(epochs)).sum())
    # Whether it applies, text.
    entries = [
        (dynamics.unfinished, f"{unit} {last} is not finished: this page shows its samples so far.".capitalize()),
        (bad, f"{counted(bad, 'reading was', 'readings were')} NaN or infinite and are missing from their {unit}s."),
        (absent > 0, f"Not seen in {unit} {last}, and so in the curves only: {counted(absent, 'sample')}."),
        (gaps > absent, f"{counted(gaps, 'sample was', 'samples were')} not seen in every {unit}."),
        (len(epochs) == 1, f"One {unit} is recorded so far: there are no curves yet, and no data map."),
    ]  # fmt: skip
    shown = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), MOST_EPOCHS)).round().astype(np.int64))
    notices = [Notice("info", text) for applies, text in entries if applies]
    return Recorded(dynamics, unit, shown, floats(summary.to_arrow()["avh"]), columns, notices)


def data_map(recorded: Recorded) -> View:
    """Mean confidence against variability (Swayamdipta et al., 2020)."""
    unit = recorded.unit
    note = f"A data map over {counted(len(recorded.dynamics.epochs), unit)}: samples that were easy to learn are at "
    note += "the top, hard ones (wrong labels among them) at the bottom, ambiguous ones on the right."
    x = axis("variability", f"variability of the confidence over the {unit}s", recorded.columns["variability"].read())
    y = Axis("mean_confidence", f"mean confidence in the label over the {unit}s", 0.0, 1.0)
    return View("datamap", "Data map: confidence and its variability", note, x, y, "correctness")


def recorded_lists(recorded: Recorded) -> list[SampleList]:
    """Hardest late in training; most forgotten; learned last or never; lowest area under the margin."""
    names = ("forgetting", "learned", "aum", "soft_margin_late")
    forgetting, learned, aum, margin = (recorded.columns[name].read() for name in names)
    valid, unit = ~np.isnan(aum), recorded.unit

    def first(key: np.ndarray, among: np.ndarray, k: int) -> np.ndarray:
        where = np.flatnonzero(among)
        return where[np.lexsort((aum[where], key[where]))][:k]

    hardest = first(-margin, valid & ~np.isnan(margin), LENGTH)
    forgotten = first(-forgetting, valid & (forgetting > 0), LENGTH)
    never = first(aum, valid & np.isnan(learned), LENGTH // 2)
    late = first(-learned, valid & ~np.isnan(learned), LENGTH - len(never))
    count = int((valid & np.isnan(learned)).sum())
    which = f"the {len(never)} with the lowest area under the margin" if count > len(never) else "they"
    note = f"{counted(count, 'sample was', 'samples were')} never right: {which} come first, then those learned last."
    note = note if count else f"Every sample was right in some {unit}; the one that took longest comes first."
    mean = f"By the mean over the {unit}s of the label's logit minus the largest other: wrong labels lie low."
    often = f"By how often it was right in one {unit} and then wrong."
    later = f"By the soft margin over the later half of the {unit}s, each standardized: what agrees best with people."
    return [
        SampleList("late_margin", "Hardest late in training", later, hardest),
        SampleList("forgotten", "Most forgotten", often, forgotten),
        SampleList("late", "Learned last or never", note, np.concatenate([never, late])),
        SampleList("low_aum", "Lowest area under the margin", mean, first(aum, valid, LENGTH)),
    ]


def sample_curves(recorded: Recorded, places: list[int], ids: list[str], total: int) -> dict[str, Any]:
    """Curves of single samples, as many as fit, for these points of the page's `total`, by priority."""
    dynamics, shown = recorded.dynamics, recorded.shown
    kept = places[: 3 * CURVES_BYTES // (8 * len(CURVES) * len(shown) + 24)]
    wanted = pa.array(ids[: len(kept)], pa.string())
    low, high = (limit or "" for limit in pc.min_max(wanted).as_py().values())
    block = dynamics.records.block(CURVES, ids=(low, high + "\0"), where=pc.field("id").isin(wanted))
    line = pc.index_in(block.ids, value_set=wanted).to_numpy()[block.place]
    curves = {}
    for name in CURVES:
        values = np.full((len(kept), len(dynamics.epochs)), np.nan)
        values[line, block.epoch - 1] = block.column(name) * (dynamics.classes if name == "avh" else 1)
        curves[name] = coded(values[:, shown])
    note = "" if len(kept) == total else f"{len(kept):,} of {total:,} points keep their curves on this page."
    return {"points": kept, "note": note, **curves}


def coded(values: np.ndarray) -> dict[str, Any]:
    """Numbers as 16-bit steps between the smallest and the largest in base64, row after row."""
    valid = np.isfinite(values)
    low, high = (float(values[valid].min()), float(values[valid].max())) if valid.any() else (0.0, 1.0)
    width = high - low if high > low else 1.0
    steps = np.where(valid, np.round((np.where(valid, values, low) - low) / width * _STEPS), _STEPS + 1)
    text = b64encode(steps.astype("<u2").tobytes()).decode()
    return {"low": number(low, 9), "width": number(width, 9), "steps": text}
