"""Labels that the demo changed on purpose: how many of them are suspects."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hardsight.report.formatting import counted
from hardsight.report.label_errors import Suspects
from hardsight.report.rows import Rows
from hardsight.report.sections import Notice, Section


def build(rows: Rows) -> Section | None:
    """A sentence at the top of the page."""
    if (counts := planted_counts(rows)) is None:
        return None
    found, changed, others = counts
    text = f"{found} of the {counted(changed, 'label')} we changed are among the suspects; "
    text += f"{counted(others, 'other looks', 'others look')} wrong to us. The cards say which ones we changed."
    return Section("planted", notices=[Notice("info", text)])


def planted_codes(rows: Rows) -> np.ndarray | None:
    """Code of the class that each row had before its label was changed, −1 where it was not; None without any."""
    planted = rows.meta.planted
    if not planted:
        return None
    places = rows.places_of(pa.array(planted, pa.string())).tolist()
    codes = np.full(len(rows), -1, rows.label.dtype)
    for at, number in zip(places, planted.values(), strict=True):
        if at >= 0 and number in rows.numbers:
            codes[at] = np.searchsorted(rows.numbers, number)
    return codes if (codes >= 0).any() else None


def planted_counts(rows: Rows) -> tuple[int, int, int] | None:
    """How many changed labels are suspects, how many were changed, and how many other suspects there are."""
    codes = planted_codes(rows)
    if codes is None or not isinstance(rows.suspects, Suspects):
        return None
    found = int((codes[rows.suspects.rows] >= 0).sum())
    return found, int((codes >= 0).sum()), rows.suspects.count - found
