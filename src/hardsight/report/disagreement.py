"""Where the rank by the angle and the rank by the logits are furthest apart."""

from __future__ import annotations

import numpy as np

from hardsight.report.formatting import score_title
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH, rank_column, top
from hardsight.report.sections import Inputs, SampleList, Section
from hardsight.report.views import View, rank_axis


def build(inputs: Inputs) -> Section | None:
    """Two lists and a scatter plot of the ranks."""
    rows = inputs.rows
    if rows.rank_logit is None:
        return None
    angle, logit = score_title(rows.main), score_title(rows.logit)
    saturates = " (confidence itself saturates at 1)" if rows.logit == "nll" else ""
    note = f"Ranks by {angle} and by {logit}{saturates}, from 0 to 1."
    x, y = rank_axis("rank_angle", rows.main), rank_axis("rank_logit", rows.logit)
    view = View("ranks", "Rank by angle against rank by logit", note, x, y, rows.rank_main, rows.rank_logit)
    columns = {
        "rank_angle": rank_column(rows.rank_main, rows.main, "the angle"),
        "rank_logit": rank_column(rows.rank_logit, rows.logit, logit),
    }
    return Section("disagreement", lists=disagreements(rows), views=[view], columns=columns)


def disagreements(rows: Rows) -> list[SampleList]:
    """Where the rank by the angle and the rank by the logits are furthest apart."""
    if rows.rank_logit is None or rows.logit is None or rows.main is None:
        return []
    gap = np.round(rows.rank_main - rows.rank_logit, 12)  # equal differences must be equal
    lists = []
    angle, logit = score_title(rows.main), score_title(rows.logit)
    for key, heading, values, harder, easier in (
        ("angle_hard", "Hard by angle, easy by confidence", gap, angle, logit),
        ("logit_hard", "Hard by confidence, easy by angle", -gap, logit, angle),
    ):
        with np.errstate(invalid="ignore"):
            values = np.where(values > 0, values, np.nan)
        note = f"Ranked harder by {harder} than by {easier}; the largest difference of ranks first."
        lists.append(SampleList(key, heading, note, top(values, LENGTH)))
    return lists
