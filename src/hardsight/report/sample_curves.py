"""Single samples over the epochs: for as many samples as fit, each number in two characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.report.formatting import number
from hardsight.report.recorded import Recorded
from hardsight.report.training import drawn_epochs

ROOM = 1_500_000  # bytes that all of them may take
VALUES = ("avh", "confidence", "norm")

_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", dtype=np.uint8)
_STEPS = len(_LETTERS) ** 2 - 2  # the last code says that there is no number


def sample_curves(recorded: Recorded, places: Iterable[int], ids: list[str], total: int) -> dict[str, Any]:
    """Curves of these samples for the page.

    Args:
        recorded: The records.
        places: Points of the page, the most wanted first.
        ids: Their ids.
        total: How many points the page has.
    """
    dynamics = recorded.dynamics
    shown = drawn_epochs(dynamics.epochs)
    each = 2 * len(VALUES) * len(shown) + 6
    kept = list(places)[: ROOM // each]
    wanted = pa.array(ids[: len(kept)], pa.string())
    rows = recorded.rows_of(wanted, VALUES)
    line = pc.index_in(rows.table["id"], value_set=wanted).to_numpy()
    epoch = np.searchsorted(dynamics.epochs, rows.table["epoch"].to_numpy())
    found = {}
    for name in VALUES:
        values = np.full((len(kept), len(dynamics.epochs)), np.nan)
        values[line, epoch] = rows.column(name) * (dynamics.classes if name == "avh" else 1)
        found[name] = coded(values[:, shown])
    note = "" if len(kept) == total else f"{len(kept):,} of {total:,} points keep their curves on this page."
    return {"points": kept, "note": note, **found}


def coded(values: np.ndarray) -> dict[str, Any]:
    """Numbers as steps between the least and the greatest, two letters each, row after row."""
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 1.0)
    width = high - low if high > low else 1.0
    steps = np.round((np.where(known, values, low) - low) / width * _STEPS)
    steps = np.where(known, steps, _STEPS + 1).astype(np.int64)
    letters = _LETTERS[np.stack(np.divmod(steps.ravel(), len(_LETTERS)), axis=1)]
    return {"low": number(low, 9), "width": number(width, 9), "codes": letters.tobytes().decode("ascii")}
