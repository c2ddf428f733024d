"""Where the object is in an image: boxes by id, or masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import Samples, id_texts
from hardsight.errors import InputError
from hardsight.idtables import as_arrow
from hardsight.untrusted import Arrays, check_regular

# By row of the data set: boxes x0, y0, x1, y1 or masks (height, width); their union counts.
Regions = Mapping[int, list[np.ndarray]]

_EDGES = ("x0", "y0", "x1", "y1")


def read_boxes(source: Any, samples: Samples) -> Regions:
    """Boxes or masks of a data set.

    Args:
        source: A CSV or Parquet file, data frame or mapping with columns id, x0, y0, x1, y1 (in pixels; several rows
            with one id are a union); or masks ``(n, H, W)``, one per sample in order, as an array, an ``.npy`` file, or
            an ``.npz`` file with ``masks`` and, for some samples only, ``ids``.
        samples: The data set.
    """
    file = Path(source) if isinstance(source, (str, Path)) else Path()
    if isinstance(source, (np.ndarray, Tensor)) or file.suffix in (".npy", ".npz"):
        ids, regions = _read_masks(file) if file.suffix else (None, np.asarray(source))
        n = len(samples) if ids is None else len(ids)
        if regions is None or regions.ndim != 3 or len(regions) != n:
            got = "none" if regions is None else regions.shape
            raise InputError(f"boxes must hold masks (n, height, width), one for each of {n:,} samples, got {got}.")
    else:
        ids, regions = _read_edges(source)
    rows = range(len(samples)) if ids is None else samples.find(ids)
    by_row: dict[int, list[np.ndarray]] = defaultdict(list)
    for row, region in zip(rows, regions, strict=True):
        if row is not None:
            by_row[row].append(region)
    if not by_row:
        example = ids[0] if ids else "none"
        raise InputError(
            f"boxes: none of its ids is in the data; expected ids like {samples.ids[0]!r}, got {example!r}."
        )
    return by_row


def _read_masks(path: Path) -> tuple[list[str] | None, np.ndarray | None]:
    check_regular(path, "boxes")
    if path.suffix == ".npz":
        arrays = Arrays(path, "boxes")
        ids = arrays.get("ids")
        return None if ids is None else id_texts(ids, f"boxes: ids of {path.name}"), arrays.get("masks")
    try:
        return None, np.asarray(np.load(path, allow_pickle=False, mmap_mode="r"))
    except Exception:  # whatever a hostile file provokes
        return None, None


def _read_edges(source: Any) -> tuple[list[str], np.ndarray]:
    table = as_arrow(source, "boxes")
    if missing := [name for name in ("id", *_EDGES) if name not in table.column_names]:
        raise InputError(f"boxes must have the columns id, x0, y0, x1, y1; there is no {missing[0]}.")
    try:
        edges = np.column_stack([table[name].to_numpy().astype(np.float64) for name in _EDGES])
    except (TypeError, ValueError):
        edges = np.array(np.nan)
    if not np.isfinite(edges).all():
        raise InputError("boxes: x0, y0, x1 and y1 must be numbers; some are missing or text.")
    return id_texts(table["id"].to_pylist(), "boxes"), edges


def masks_of(regions: Regions, rows: np.ndarray, size: tuple[int, int]) -> Tensor:
    """Masks ``(len(rows), *size)``, empty where nothing is given; a pixel is inside a box if its center is."""
    masks = np.zeros((len(rows), *size), bool)
    y, x = (np.arange(n) + 0.5 for n in size)
    for mask, row in zip(masks, rows.tolist(), strict=True):
        for region in regions.get(row, ()):
            inside = region != 0
            if region.ndim == 1:
                x0, y0, x1, y1 = region
                inside = ((y0 <= y) & (y < y1))[:, None] & ((x0 <= x) & (x < x1))
                if not inside.any():
                    box = ", ".join(f"{edge:g}" for edge in region)
                    raise InputError(f"boxes: the box ({box}) holds no pixel of an image of {size[1]} × {size[0]}.")
            if inside.shape != size:
                raise InputError(f"boxes: masks must have the size the network sees, {size}, got {inside.shape}.")
            mask |= inside
    return torch.from_numpy(masks)
