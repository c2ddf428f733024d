"""The table that image viewers (FiftyOne, Spotlight) open: every column of a plain type."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.data import Samples
from hardsight.images import to_image

PICTURE_BYTES = 64 << 20  # pictures that are not files are written up to this size in all, the most suspicious first


def viewer_table(rows: pa.Table, samples: Samples | None, where: list[int | None]) -> pa.Table:
    """One row per sample: where it is, what it is called, what the net says, and what to do.

    Args:
        rows: Rows of the lists.
        samples: The data, if they could be opened.
        where: Index of each row's sample among them; None where it is not there.

    Returns:
        ``id``, ``filepath`` (of data that are files), ``image`` (PNG, of data that are not), ``ground_truth``,
        ``prediction`` and ``suggested`` (class names), ``action``, ``suspicion``, ``p_label``, ``p_pred``, ``reason``
        and the scores.
    """
    columns: dict[str, Any] = {"id": rows["id"], "filepath": _paths(samples, where), "image": _pictures(samples, where)}
    renamed = {"ground_truth": "label_name", "prediction": "pred_name", "suggested": "suggested_name"}
    columns |= {name: rows[column] for name, column in renamed.items()}
    done = {*columns, *renamed.values(), "label", "pred"}
    return pa.table(columns | {name: rows[name] for name in rows.column_names if name not in done})


def _paths(samples: Samples | None, where: list[int | None]) -> pa.Array:
    paths = [None if samples is None or place is None else samples.path(place) for place in where]
    return pa.array([None if path is None else _text(path.absolute()) for path in paths], pa.string())


def _text(path: Path) -> str | None:
    """A path as text; a name of other bytes than UTF-8 cannot be written in a table."""
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        return None


def _pictures(samples: Samples | None, where: list[int | None]) -> pa.Array:
    pictures: list[bytes | None] = [None] * len(where)
    left = PICTURE_BYTES
    for row, place in enumerate(where):
        if samples is None or place is None or samples.path(place) is not None:
            continue
        pictures[row] = _png(samples, place)
        left -= len(pictures[row] or b"")
        if left < 0:
            pictures[row] = None
            break
    return pa.array(pictures, pa.binary())


def _png(samples: Samples, index: int) -> bytes | None:
    """A sample as PNG; None for what is no picture (tensors of unknown scale) or cannot be read."""
    file = io.BytesIO()
    try:
        x = samples.load(index, None)[0]
        if isinstance(x, np.ndarray) and x.dtype == bool:
            x = x.astype(np.uint8) * 255
        to_image(x).save(file, "PNG")
    except Exception:
        return None
    return file.getvalue()
