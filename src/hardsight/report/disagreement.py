"""Where the rank by the angle and the rank by the logits are furthest apart."""

from __future__ import annotations

import numpy as np

from hardsight.report.formatting import score_title
from hardsight.report.rows import Rows
from hardsight.report.samples import largest, rank_column
from hardsight.report.sections import Section, View, rank_axis


def build(rows: Rows) -> Section | None:
    """Two lists and a scatter plot of the ranks."""
    if rows.logit is None:
        return None
    angle, logit = score_title(rows.main), score_title(rows.logit)
    gap = np.round(rows.rank_main - rows.rank_logit, 12)  # equal differences must be equal
    note = "Ranked harder by {} than by {}; the largest difference of ranks first."
    by_angle = largest("angle_hard", "Hard by angle, easy by confidence", note.format(angle, logit), gap, gap > 0)
    by_logit = largest("logit_hard", "Hard by confidence, easy by angle", note.format(logit, angle), -gap, gap < 0)
    saturates = " (confidence itself saturates at 1)" if rows.logit == "nll" else ""
    note = f"Ranks by {angle} and by {logit}{saturates}, from 0 to 1."
    x, y = rank_axis("rank_angle", rows.main), rank_axis("rank_logit", rows.logit)
    view = View("ranks", "Rank by angle against rank by logit", note, x, y)
    columns = {"rank_angle": rank_column(lambda: rows.rank_main, rows.main, "the angle")}
    columns["rank_logit"] = rank_column(lambda: rows.rank_logit, rows.logit, logit)
    return Section("disagreement", lists=[by_angle, by_logit], views=[view], columns=columns)
