"""Suspect labels, for the page."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from hardsight.errors import HardsightError
from hardsight.extras import first_line
from hardsight.labelerrors import RANKINGS, accuracy_note, label_errors, noise
from hardsight.report.lists import LENGTH, Listed
from hardsight.report.rows import Rows

_MOST_NUMBER = 1 << 22  # class numbers beyond it are ids of another kind, and counting by them would fill the memory


class Suspects(NamedTuple):
    """Suspicion of each row, suggested class codes (−1 for none), the suspects in order, and the noise by class."""

    suspicion: np.ndarray
    suggested: np.ndarray
    listed: Listed
    count: int
    share: float
    by: str
    noise: dict[int, float]
    note: str


def find_suspects(rows: Rows) -> tuple[Suspects | None, str]:
    """Label errors by the default ranking; or None, and why there are none."""
    if not rows.labelled:
        return None, "Label errors need labels, and this run has none."
    if (rows.pred < 0).any():
        return None, "Label errors need a prediction for every sample, which this table lacks."
    if rows.classes > _MOST_NUMBER:
        return None, f"Label errors are looked for among at most {_MOST_NUMBER:,} classes."
    try:
        found, estimate = label_errors(rows.table), noise(rows.table)
    except HardsightError as error:  # a table without the columns it takes
        return None, f"Label errors could not be looked for: {first_line(error)}"
    facts = found.meta.label_errors
    if facts["chance"]:
        return None, ""  # the first notice of the page says why
    ranked = found.to_arrow()
    place = pc.index_in(rows.ids, value_set=ranked["id"].combine_chunks()).to_numpy()
    suspicion = ranked["suspicion"].to_numpy()[place]
    suggested = pc.fill_null(ranked["suggested"], -1).to_numpy()[place]
    suggested = np.where(suggested >= 0, np.searchsorted(rows.numbers, suggested), -1)
    first = ranked.filter(ranked["suspect"]).slice(0, LENGTH)["id"]
    listed = pc.index_in(first, value_set=rows.ids.combine_chunks()).to_numpy().astype(np.int64)
    by, count = str(facts["by"]), int(facts["suspects"])
    summary = RANKINGS[by].summary.rstrip(".")
    known = estimate.rows.filter(pc.is_valid(estimate.rows["share"]))
    shares = dict(zip(known["class"].to_pylist(), known["share"].to_pylist(), strict=True))
    way = "all classes" if estimate.exact else "label and prediction"
    gate = facts["automatic"]
    if gate.kind == "implausible":
        counted = f"{count:,} labels to review, if you must: {gate.reason}"
    else:
        counted = (
            f"{count:,} labels to review: as many as confident learning counts as wrong (from the probabilities of "
            f"{way}; mistakes that the network is sure of are among them), where the prediction is another class, by "
            f"{by} ({summary[:1].lower()}{summary[1:]})."
        )
    note = " ".join(filter(None, (counted, accuracy_note(rows.table) if gate.kind != "implausible" else None)))
    first_few = f"The {LENGTH} most suspicious of {count:,}" if count > LENGTH else "Most suspicious first"
    about = f"{first_few}, by {by}: the label, and what the network reads instead."
    return (
        Suspects(
            suspicion=suspicion,
            suggested=suggested,
            listed=Listed("suspects", "Suspect labels", about, listed),
            count=count,
            share=count / max(int((rows.label >= 0).sum()), 1),
            by=by,
            noise=shares,
            note=note,
        ),
        "",
    )


def label_errors_section(found: Suspects, run: Any) -> dict[str, Any]:
    """The section on label errors; `run` is the folder, where there is one."""
    return {
        "note": found.note,
        "count": found.count,
        "share": found.share,
        "by": found.by,
        "next": f"hardsight clean {shlex.quote(str(run))}" if run is not None else "hs.clean(table)",
    }
