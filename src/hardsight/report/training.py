"""The section on training: means over the epochs by group, what drives the loss, and the class weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import floats
from hardsight.dynamics.batches import MOST_COSINES
from hardsight.phases.drivers import LossChange, split_change
from hardsight.records import Block
from hardsight.report.formatting import counted, plain
from hardsight.report.groups import MOST_COLUMNS, Group, given_groups
from hardsight.report.recorded import Recorded, data_map, recorded_lists
from hardsight.report.samples import top
from hardsight.report.sections import Inputs, Section
from hardsight.stats import Moments, moments, wilson

MOST_LINES = 12  # in one chart
_TOGETHER = 1 << 20  # rows that are read at a time
_CHANGES = LossChange._fields
_FIFTHS = ("easiest fifth", "second fifth", "middle fifth", "fourth fifth", "hardest fifth")

# Value, title, what it is, how it is written, and the range that it cannot leave.
_VALUES = {
    "avh": ("C·AVH", "1 is chance, larger is harder.", "number", 0.0, None),
    "norm": ("norm", "Length of the feature.", "number", 0.0, None),
    "correct": ("accuracy", "Share predicted right.", "percent", 0.0, 1.0),
    "confidence": ("confidence", "Probability of the label.", "number", 0.0, 1.0),
    "nll": ("loss (nll)", "Cross-entropy of the label.", "number", 0.0, None),
}


class Parts(NamedTuple):
    """A way to divide the samples: a name for each part, and each sample's part (−1 for none)."""

    key: str
    title: str
    names: list[str]
    codes: np.ndarray
    note: str = ""
    ordered: bool = False  # whether the parts go from easy to hard
    driven: bool = False  # whether the page shows what drove the loss of each part


def build(inputs: Inputs) -> Section | None:
    """Curves once there are two epochs; lists, the data map and numbers of each sample, where the run was recorded."""
    recorded = inputs.recorded
    if recorded is None:
        return None
    section = Section("training", columns=recorded.columns, notices=recorded.notices)
    if not recorded.several:
        return section
    dynamics, unit, shown = recorded.dynamics, recorded.unit, recorded.shown
    groups = []
    if inputs.group_table is not None:
        ids = pa.chunked_array([pa.array(dynamics.ids, pa.string())])
        groups = given_groups(ids, inputs.group_table)[0][-MOST_COLUMNS:]
    divisions = [
        Parts("all", "all samples", ["all samples"], np.zeros(len(dynamics), dtype=np.int64), driven=True),
        *_classes(recorded, inputs.rows.name_of),
        *_fifths(recorded),
        *map(_of_group, groups),
    ]
    measured = _measure(recorded, divisions)
    some = f" {len(shown)} of them are drawn." if len(shown) < len(dynamics.epochs) else ""
    note = (
        f"{counted(len(dynamics), 'sample')} over {counted(len(dynamics.epochs), unit)}.{some} Lines are means over "
        f"the samples seen in an {unit}; bands are one standard deviation to either side, which is how far the samples "
        "spread and not how sure the mean is. For accuracy the band is Wilson's 95% interval."
    )
    keys = ("title", "text", "kind", "least", "most")
    data = {
        "unit": unit,
        "epochs": dynamics.epochs[shown].tolist(),
        "values": [{"key": key, **dict(zip(keys, value, strict=True))} for key, value in _VALUES.items()],
        "groupings": [_grouping(recorded, *pair) for pair in zip(divisions, measured, strict=True)],
        "drivers": _drivers(recorded, divisions, measured),
        "heads": _heads(recorded, inputs.rows.name_of),
    }
    lists, views = recorded_lists(recorded), [data_map(recorded)]
    return replace(section, title="Training", note=note, data=data, lists=lists, views=views)


def _classes(recorded: Recorded, class_name: Callable[[int], str]) -> list[Parts]:
    """Classes by label: all of them, or the hardest."""
    numbers, codes = np.unique(recorded.dynamics.labels, return_inverse=True)
    if len(numbers) < 2:
        return []
    note, shown = "", np.arange(len(numbers))
    if len(numbers) > MOST_LINES:
        shown = np.sort(top(moments(recorded.hardness, codes, len(numbers)).mean, MOST_LINES))
        note = f"The {MOST_LINES} hardest of {len(numbers):,} classes, by mean AVH over all {recorded.unit}s."
    place = np.full(len(numbers), -1)
    place[shown] = np.arange(len(shown))
    return [Parts("class", "class", [class_name(int(number)) for number in numbers[shown]], place[codes], note)]


def _fifths(recorded: Recorded) -> list[Parts]:
    """Fifths of the samples by their mean AVH; equal ones in the order of their ids."""
    n = len(recorded.dynamics)
    if n < 2 * len(_FIFTHS):
        return []
    codes = np.empty(n, dtype=np.int64)
    codes[np.argsort(recorded.hardness, kind="stable")] = np.arange(n) * len(_FIFTHS) // n
    note = (
        f"Fifths of the samples by their own mean AVH over all {recorded.unit}s: their curves of AVH lie apart by "
        "construction; how they move does not."
    )
    return [Parts("hardness", "hardness (fifths)", list(_FIFTHS), codes, note, ordered=True, driven=True)]


def _of_group(group: Group) -> Parts:
    """A column of the user's own; its values come with the largest first."""
    note = group.note
    if len(group.values) > MOST_LINES:
        note = f"{note} The {MOST_LINES} largest of its values are drawn.".strip()
    codes = np.where(group.codes < MOST_LINES, group.codes, -1)
    return Parts(f"group {group.column}", group.column, group.values[:MOST_LINES], codes, note)


def _measure(recorded: Recorded, divisions: list[Parts]) -> list[dict[str, Moments]]:
    """Number, mean and spread of every value by part and epoch, for all divisions from one pass over the records."""
    dynamics = recorded.dynamics
    measured = [
        {name: Moments(len(parts.names), len(dynamics.epochs)) for name in (*_VALUES, *_CHANGES * parts.driven)}
        for parts in divisions
    ]
    for start, block in dynamics.blocks((*_VALUES, "nll_angles", "nll_norms"), rows=_TOGETHER):
        epoch = np.searchsorted(dynamics.epochs, block.table["epoch"].to_numpy())
        values = {key: block.column(key) for key in _VALUES}
        values |= _changes(block, values["nll"])._asdict()
        for parts, by_name in zip(divisions, measured, strict=True):
            cell = parts.codes[start + block.code] * len(dynamics.epochs) + epoch
            for name, moments_ in by_name.items():
                moments_.add(values[name], cell)
    return measured


def _changes(block: Block, nll: np.ndarray) -> LossChange:
    """The change of each row's loss since the epoch in which its sample was last seen, and its two parts."""
    again = np.r_[False, block.code[1:] == block.code[:-1]]
    old = np.where(again, np.r_[np.nan, nll[:-1]], np.nan)
    split = split_change(old, nll, block.column("nll_angles"), block.column("nll_norms"))
    return split._replace(change=np.where(np.isnan(split.by_angles), np.nan, split.change))


def _grouping(recorded: Recorded, parts: Parts, measured: dict[str, Moments]) -> dict[str, Any]:
    """The curves of each part: means with their spread, accuracies with Wilson's interval."""
    lines = []
    for code, name in enumerate(parts.names):
        n = measured["correct"].n[code, recorded.shown]
        line: dict[str, Any] = {"name": name, "n": plain(n.astype(np.int64))}
        for key in _VALUES:
            scale = recorded.dynamics.classes if key == "avh" else 1
            mean = scale * measured[key].mean[code, recorded.shown]
            if key == "correct":
                low, high = wilson(mean * n, n)
                line[key] = {"mean": plain(mean), "low": plain(low), "high": plain(high)}
            else:
                line[key] = {
                    "mean": plain(mean),
                    "sd": plain(scale * np.sqrt(measured[key].variance[code, recorded.shown])),
                }
        lines.append(line)
    return {"key": parts.key, "title": parts.title, "note": parts.note, "ordered": parts.ordered, "lines": lines}


def _drivers(recorded: Recorded, divisions: list[Parts], measured: list[dict[str, Moments]]) -> dict[str, Any]:
    """By how much new angles and new norms changed the mean loss in each epoch; no lines where that is not known."""
    # What happened in epochs that are not drawn counts in the next one that is.
    starts = np.r_[0, recorded.shown[:-1] + 1]
    lines = []
    for parts, by_name in zip(divisions, measured, strict=True):
        for code, name in enumerate(parts.names * parts.driven):
            line: dict[str, Any] = {"name": name}
            for key in _CHANGES:
                n, mean = by_name[key].n[code], np.nan_to_num(by_name[key].mean[code])
                line[key] = plain(np.where(np.add.reduceat(n, starts) > 0, np.add.reduceat(mean, starts), np.nan))
            lines.append(line)
    if not any(value is not None for line in lines for value in line["by_angles"]):
        most = f"it is recorded up to {MOST_COSINES:,} samples × classes, and from the second {recorded.unit} on"
        return {"note": f"What drove the loss is not known here: {most}.", "lines": []}
    note = (
        f"By how much the mean loss changed since the {recorded.unit} before, divided into what the new angles and "
        "what the new norms (of features and class weights) and biases did: the mean of both orders in which one can "
        "be changed after the other, so that the two add up to the change. Below zero the loss falls."
    )
    return {"note": note, "lines": lines}


def _heads(recorded: Recorded, class_name: Callable[[int], str]) -> dict[str, Any] | None:
    """Norms of the class weights: each class, or with many their mean, spread, smallest and largest."""
    heads, epochs = recorded.dynamics.heads, recorded.dynamics.epochs
    if not len(heads):
        return None
    heads = heads.filter(pc.is_in(heads["epoch"], pa.array(epochs[recorded.shown])))
    epoch, number = (heads[name].to_numpy().astype(np.int64) for name in ("epoch", "class"))
    classes, code = np.unique(number, return_inverse=True)
    norms = np.full((len(classes), len(recorded.shown)), np.nan)
    norms[code, np.searchsorted(epochs[recorded.shown], epoch)] = floats(heads["norm"])
    if len(classes) <= MOST_LINES:
        lines = [{"name": class_name(int(k)), "mean": plain(line)} for k, line in zip(classes, norms, strict=True)]
        return {"note": f"Length of the weight of each class at the end of each {recorded.unit}.", "lines": lines}
    lines = [
        {"name": "largest", "mean": plain(norms.max(0))},
        {"name": "mean", "mean": plain(norms.mean(0)), "sd": plain(norms.std(0))},
        {"name": "smallest", "mean": plain(norms.min(0))},
    ]
    note = f"Length of the weights of {len(classes):,} classes: mean, one standard deviation over the classes, ends."
    return {"note": note, "lines": lines}
