"""Labels that are probably wrong."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from hardsight.errors import HardsightError
from hardsight.extras import first_line
from hardsight.labelerrors import RANKINGS, accuracy_note, label_errors, noise
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH
from hardsight.report.sections import Inputs, Notice, SampleList, Section

_MOST_NUMBER = 1 << 22  # larger class numbers are ids of another kind; counting by them would fill the memory
_RECORDED = (
    "Records hold too little to estimate how many labels are wrong: look among the lowest areas under the margin, or "
    "score the data with --folds."
)


class Suspects(NamedTuple):
    """Labels that are probably wrong.

    Attributes:
        suspicion: ``(N,)``, larger is more suspect.
        suggested: ``(N,)`` class codes, −1 for none.
        first: Rows of the most suspicious ones.
        count: How many there are.
        share: Of the labels.
        by: The ranking.
        noise: Estimated share of wrong labels by class number.
        note: How they were counted.
    """

    suspicion: np.ndarray
    suggested: np.ndarray
    first: np.ndarray
    count: int
    share: float
    by: str
    noise: dict[int, float]
    note: str


def build(inputs: Inputs) -> Section:
    """The section, or a notice that says why there is none."""
    suspects = inputs.suspects
    if not isinstance(suspects, Suspects):
        reason = _RECORDED if inputs.recorded is not None else suspects
        return Section("label_errors", notices=[Notice("info", reason)] if reason and inputs.rows.labeled else [])
    count, by = suspects.count, suspects.by
    first = f"The {LENGTH} most suspicious of {count:,}" if count > LENGTH else "Most suspicious first"
    note = f"{first}, by {by}: the label, and what the network predicts instead."
    command = f"hardsight clean {shlex.quote(str(inputs.run))}" if inputs.run is not None else "hs.clean(table)"
    data = {"count": count, "command": command, "command_note": "Next, write lists of what to keep, relabel and drop:"}
    listed = SampleList("suspects", "Suspect labels", note, suspects.first)
    return Section("label_errors", "Suspect labels", suspects.note, data=data, lists=[listed])


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
    details = errors.meta.label_errors
    if details["chance"]:
        return ""  # the first notice of the page says why
    ranked = errors.to_arrow()
    place = pc.index_in(rows.ids, value_set=ranked["id"].combine_chunks()).to_numpy()
    suggested = pc.fill_null(ranked["suggested"], -1).to_numpy()[place]
    first = ranked.filter(ranked["suspect"]).slice(0, LENGTH)["id"]
    by, count = str(details["by"]), int(details["suspects"])
    summary = RANKINGS[by].summary.rstrip(".")
    valid = estimate.rows.filter(pc.is_valid(estimate.rows["share"]))
    gate = details["automatic"]
    if gate.kind == "implausible":
        note = f"{count:,} labels to review, if you must: {gate.reason}"
    else:
        source = "all classes" if estimate.exact else "label and prediction"
        note = (
            f"{count:,} labels to review: as many as confident learning counts as wrong (from the probabilities of "
            f"{source}; confident mistakes of the network are among them), where the prediction is another class, by "
            f"{by} ({summary[:1].lower()}{summary[1:]})."
        )
        note = " ".join(filter(None, (note, accuracy_note(rows.table))))
    return Suspects(
        suspicion=ranked["suspicion"].to_numpy()[place],
        suggested=np.where(suggested >= 0, np.searchsorted(rows.numbers, suggested), -1),
        first=pc.index_in(first, value_set=rows.ids.combine_chunks()).to_numpy().astype(np.int64),
        count=count,
        share=count / max(int((rows.label >= 0).sum()), 1),
        by=by,
        noise=dict(zip(valid["class"].to_pylist(), valid["share"].to_pylist(), strict=True)),
        note=note,
    )
