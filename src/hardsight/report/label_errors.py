"""Labels that are probably wrong."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import floats
from hardsight.errors import HardsightError
from hardsight.extras import first_line
from hardsight.labelerrors import RANKINGS, accuracy_note, label_errors, noise
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH
from hardsight.report.sections import Column, Notice, SampleList, Section

_MOST_NUMBER = 1 << 22  # larger class numbers are ids of another kind; counting by them would fill the memory
_RECORDED = (
    "Records cannot tell how many labels are wrong: see the lowest areas under the margin, or score with --folds."
)


class Suspects(NamedTuple):
    """What `label_errors` says of each row: its suspicion and the suggested class code (−1 for none); and in sum."""

    suspicion: np.ndarray
    suggested: np.ndarray
    first: np.ndarray  # rows of the most suspicious ones
    count: int
    by: str
    noise: dict[int, float]  # estimated share of wrong labels by class number
    note: str


def build(rows: Rows) -> Section:
    """The section, or a notice that says why there is none."""
    suspects = rows.suspects
    if not isinstance(suspects, Suspects):
        reason = _RECORDED if rows.recorded is not None else suspects
        return Section("label_errors", notices=[Notice("info", reason)] if reason and rows.labeled else [])
    count = suspects.count
    first = f"The {LENGTH} most suspicious of {count:,}" if count > LENGTH else "Most suspicious first"
    note = f"{first}, by {suspects.by}: the label, and what the network predicts instead."
    command = f"hardsight clean {shlex.quote(str(rows.run))}" if rows.run is not None else "hs.clean(table)"
    data = {"count": count, "command": command, "command_note": "Next, list what to keep, relabel and drop:"}
    lists = [SampleList("suspects", "Suspect labels", note, suspects.first)]
    text = "How much speaks against the label; larger is more suspect."
    columns = {"suspicion": Column(suspects.suspicion, "suspicion", text, "")}
    return Section("label_errors", "Suspect labels", suspects.note, data=data, lists=lists, columns=columns)


def find_suspects(rows: Rows) -> Suspects | str:
    """Label errors by the default ranking, or a sentence that says why there are none."""
    if not rows.labeled:
        return "Label errors need labels, and this run has none."
    if (rows.pred < 0).any():
        return "Label errors need a prediction for every sample, which this table lacks."
    if rows.classes > _MOST_NUMBER:
        return f"Label errors are looked for among at most {_MOST_NUMBER:,} classes."
    try:
        errors, estimate = label_errors(rows.table), noise(rows.table)
    except HardsightError as error:  # a table without the columns it needs
        return f"Label errors could not be looked for: {first_line(error)}"
    details, by = errors.meta.label_errors, str(errors.meta.label_errors["by"])
    if details["chance"]:
        return ""  # the first notice of the page says why
    count, gate, summary = int(details["suspects"]), details["automatic"], RANKINGS[by].summary.rstrip(".")
    source = "all classes" if estimate.exact else "label and prediction"
    note = (
        f"{count:,} labels to review: as many as confident learning counts as wrong (from the probabilities of "
        f"{source}; confident mistakes of the network are among them), where the prediction is another class, by "
        f"{by} ({summary[:1].lower()}{summary[1:]}). {accuracy_note(rows.table) or ''}"
    )
    if gate.kind == "implausible":
        note = f"{count:,} labels to review, if you must: {gate.reason}"
    by_row, ids = errors.aligned(rows.ids), errors.to_arrow()
    suggested = pc.fill_null(by_row["suggested"], -1).to_numpy()
    first = ids.filter(ids["suspect"]).slice(0, LENGTH)["id"].cast(pa.string())
    suggested = np.where(suggested >= 0, np.searchsorted(rows.numbers, suggested), -1)
    places = pc.index_in(first, value_set=rows.ids).to_numpy().astype(np.int64)
    shares = {row["class"]: row["share"] for row in estimate.rows.to_pylist() if row["share"] is not None}
    return Suspects(floats(by_row["suspicion"]), suggested, places, count, by, shares, note.strip())
