"""Files of human selection frequencies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardsight.extras import first_line
from hardsight.phases.samples import frequencies

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics


def read_human(file: str | Path, dynamics: Dynamics) -> np.ndarray:
    """Human selection frequencies in the order of ``dynamics.ids``, NaN where there is none.

    Args:
        file: CSV or Parquet with the columns ``id`` and one other; or annotators' counts ``(samples, classes)`` as .npy
            or .npz (``counts``, or its only array), in the order of the data, so that the number at the end of an id
            (``test:17``) is its row. The frequency is the label's share of the counts; where there are none, NaN.
        dynamics: The run, for its ids and labels.
    """
    path = Path(file)
    if path.suffix.lower() not in (".npy", ".npz"):
        return frequencies(dynamics, path)
    counts = _read_counts(path)
    rows = np.array([int(tail) if (tail := key.rpartition(":")[2]).isdigit() else -1 for key in dynamics.ids.tolist()])
    if rows.min(initial=0) < 0 or rows.max(initial=-1) >= len(counts) or dynamics.labels.max() >= counts.shape[1]:
        raise ValueError(
            f"human: the ids of the run must end in a row of {path.name} ({len(counts):,} × {counts.shape[1]}) and its "
            f"labels be columns of it, like test:17; got ids like {dynamics.ids[0]!r}. Give a CSV of id and frequency."
        )
    total = counts[rows].sum(1)
    chosen = counts[rows, dynamics.labels]
    return frequencies(dynamics, np.divide(chosen, total, out=np.full(len(rows), np.nan), where=total > 0))


def _read_counts(path: Path) -> np.ndarray:
    if not path.is_file():
        raise FileNotFoundError(f"human: there is no file {path}.")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            counts = loaded
        else:
            with loaded:
                name = "counts" if "counts" in loaded.files else loaded.files[0]
                counts = loaded[name]
    except (ValueError, OSError, IndexError) as error:
        raise ValueError(f"human: {path.name} holds no array of counts ({first_line(error)}).") from error
    if counts.ndim != 2 or counts.dtype.kind not in "iuf" or (counts < 0).any():
        raise ValueError(f"human: {path.name} must hold counts (samples × classes), 0 or more, got {counts.shape}.")
    return counts.astype(np.float64)
