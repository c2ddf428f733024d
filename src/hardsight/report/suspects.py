"""Suspect labels, for the page."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from hardsight.extras import first_line
from hardsight.labelerrors import RANKINGS, accuracy_note, label_errors, noise
from hardsight.report.lists import LENGTH, Listed
from hardsight.report.rows import Rows
from hardsight.report.words import percent

_MOST_NUMBER = 1 << 22  # class numbers beyond it are ids of another kind, and counting by them would fill the memory


class Suspects(NamedTuple):
    """Suspicion of each row, suggested class codes (−1 for none), the suspects in order, and the noise by class."""

    suspicion: np.ndarray
    suggested: np.ndarray
    listed: Listed
    count: int
    share: float
    low: float
    high: float
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
    except (ValueError, KeyError) as error:  # a table without the columns it takes
        return None, f"Label errors could not be looked for: {first_line(error)}"
    ranked = found.to_arrow()
    place = pc.index_in(rows.ids, value_set=ranked["id"].combine_chunks()).to_numpy()
    suspicion = ranked["suspicion"].to_numpy()[place]
    suggested = pc.fill_null(ranked["suggested"], -1).to_numpy()[place]
    suggested = np.where(suggested >= 0, np.searchsorted(rows.numbers, suggested), -1)
    first = ranked.filter(ranked["suspect"]).slice(0, LENGTH)["id"]
    listed = pc.index_in(first, value_set=rows.ids.combine_chunks()).to_numpy().astype(np.int64)
    by, count = str(found.meta["by"]), int(found.meta["suspects"])
    summary = RANKINGS[by].summary.rstrip(".")
    known = estimate.rows.filter(pc.is_valid(estimate.rows["share"]))
    shares = dict(zip(known["class"].to_pylist(), known["share"].to_pylist(), strict=True))
    way = "all classes" if estimate.exact else "label and prediction"
    note = (
        f"{count:,} of {int((rows.label >= 0).sum()):,} labels are suspect: as many as confident learning estimates to "
        f"be wrong ({percent(estimate.share, 2)}, 95 % interval {percent(estimate.low, 2)} to "
        f"{percent(estimate.high, 2)}, from the probabilities of {way}), chosen where the prediction is another class, "
        f"by {by} ({summary[:1].lower()}{summary[1:]}), and every label that the network contradicts for sure."
    )
    note = " ".join(filter(None, (note, accuracy_note(rows.table))))
    first_few = f"The {LENGTH} most suspicious of {count:,}" if count > LENGTH else "Most suspicious first"
    about = f"{first_few}, by {by}: the label, and what the network reads instead."
    return (
        Suspects(
            suspicion=suspicion,
            suggested=suggested,
            listed=Listed("suspects", "Suspect labels", about, listed),
            count=count,
            share=estimate.share,
            low=estimate.low,
            high=estimate.high,
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
        "low": found.low,
        "high": found.high,
        "by": found.by,
        "next": f"hardsight clean {shlex.quote(str(run))}" if run is not None else "hs.clean(table)",
    }
