"""Where in a picture the object is: boxes by id, or masks, as users have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.data import Samples, id_texts
from hardsight.errors import InputError
from hardsight.idtables import as_arrow
from hardsight.untrusted import Arrays, check_regular

_EDGES = ("x0", "y0", "x1", "y1")


@dataclass(frozen=True)
class Regions:
    """What is known of some samples, by their row in the data set.

    Attributes:
        boxes: ``(k, 4)`` boxes x0, y0, x1, y1 of each; their union counts.
        masks: ``(n, H, W)``, not 0 inside.
        at: Which of the masks belongs to a row.
    """

    boxes: dict[int, np.ndarray] = field(default_factory=dict)
    masks: np.ndarray | None = None
    at: dict[int, int] = field(default_factory=dict)

    def inside(self, rows: np.ndarray, size: tuple[int, int]) -> Tensor:
        """Masks ``(len(rows), *size)``, empty where nothing is known; a pixel is inside a box where its centre is."""
        out = torch.zeros(len(rows), *size, dtype=torch.bool)
        if self.masks is not None:
            if self.masks.shape[1:] != size:
                raise InputError(f"boxes: masks must have the size the network sees, {size}, got {self.masks.shape}.")
            known = np.flatnonzero([row in self.at for row in rows.tolist()])
            chosen = [self.at[row] for row in rows[known].tolist()]
            out[torch.from_numpy(known)] = torch.from_numpy(np.asarray(self.masks[chosen]) != 0)
            return out
        y, x = (np.arange(n) + 0.5 for n in size)
        for i, row in enumerate(rows.tolist()):
            for x0, y0, x1, y1 in self.boxes.get(row, ()):
                inside = ((y0 <= y) & (y < y1))[:, None] & ((x0 <= x) & (x < x1))
                if not inside.any():
                    raise InputError(
                        f"boxes: the box ({x0:g}, {y0:g}, {x1:g}, {y1:g}) holds no pixel of a picture of {size[1]} × "
                        f"{size[0]}; give x0 < x1 and y0 < y1 in the pixels that the network sees."
                    )
                out[i] |= torch.from_numpy(inside)
        return out


def read_regions(given: Any, samples: Samples) -> Regions:
    """Boxes or masks of a data set.

    Args:
        given: A CSV or Parquet file, data frame or mapping with columns id, x0, y0, x1, y1 (pixels, several rows an id
            are a union); or masks ``(n, H, W)``, one a sample in order, as an array, an ``.npy`` file, or an ``.npz``
            file with ``masks`` and, if they are not all there, ``ids``.
        samples: The data set.
    """
    if isinstance(given, (str, Path)) and Path(given).suffix in (".npy", ".npz"):
        return _masks(*_arrays(Path(given)), samples)
    if isinstance(given, (np.ndarray, Tensor)):
        return _masks(np.asarray(given), None, samples)
    table = as_arrow(given, "boxes")
    if missing := [name for name in ("id", *_EDGES) if name not in table.column_names]:
        raise InputError(f"boxes must have the columns id, x0, y0, x1, y1; there is no {missing[0]}.")
    try:
        edges = np.column_stack([table[name].to_numpy().astype(np.float64) for name in _EDGES])
    except (TypeError, ValueError) as error:
        raise InputError(
            f"boxes: x0, y0, x1 and y1 must be numbers, got {table.schema.field(_EDGES[0]).type}."
        ) from error
    if not np.isfinite(edges).all():
        raise InputError("boxes: x0, y0, x1 and y1 must be numbers, and some are missing; drop those rows.")
    boxes: dict[int, list[np.ndarray]] = {}
    for row, box in zip(_rows(id_texts(table["id"].to_pylist(), "boxes"), samples), edges, strict=True):
        if row is not None:
            boxes.setdefault(row, []).append(box)
    return Regions(boxes={row: np.array(of) for row, of in boxes.items()})


def _arrays(path: Path) -> tuple[np.ndarray, list[str] | None]:
    check_regular(path, "boxes")
    if path.suffix == ".npz":
        arrays = Arrays(path, "boxes")
        masks, ids = arrays.get("masks"), arrays.get("ids")
        if masks is None:
            raise InputError(f"boxes: {path.name} must hold masks (n, height, width) under the name masks.")
        return masks, None if ids is None else id_texts(ids, f"boxes: ids of {path.name}")
    try:
        return np.asarray(np.load(path, allow_pickle=False, mmap_mode="r")), None
    except Exception as error:  # whatever a hostile file provokes
        raise InputError(f"boxes: {path.name} must hold masks (n, height, width) and is not a .npy file.") from error


def _masks(masks: np.ndarray, ids: list[str] | None, samples: Samples) -> Regions:
    expected = len(samples) if ids is None else len(ids)
    if masks.ndim != 3 or len(masks) != expected:
        raise InputError(
            f"boxes: masks must be (n, height, width), one for each of {expected:,} samples, got {masks.shape}."
        )
    rows = range(len(samples)) if ids is None else _rows(ids, samples)
    return Regions(masks=masks, at={row: i for i, row in enumerate(rows) if row is not None})


def _rows(ids: list[str], samples: Samples) -> list[int | None]:
    unique = list(dict.fromkeys(ids))
    place = dict(zip(unique, samples.find(unique), strict=True))
    if all(row is None for row in place.values()):
        first = ids[0] if ids else "none"
        raise InputError(
            f"boxes: none of its ids is in the data; ids there look like {samples.ids[0]!r}, got {first!r}."
        )
    return [place[id_] for id_ in ids]
