"""Which samples get a thumbnail, and the thumbnails: whatever a data set yields, as small WebP pictures."""

from __future__ import annotations

import base64
import io
import itertools
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hardsight.data import Samples, data_of
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.images import channels_last, eight_bit, to_image
from hardsight.report.formatting import counted, cut
from hardsight.report.points import spread
from hardsight.runs import Meta
from hardsight.untrusted import check_regular

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 96
SMALL = 64  # pictures up to here are shown with their pixels
_LOSSLESS = 40  # smaller ones would suffer from a codec that blurs colors
_LISTS_SHARE = 0.75  # of the thumbnails, at most, go to the lists while points of the scatter lack one


@dataclass
class Thumbnails:
    """Thumbnails of rows.

    Attributes:
        of_row: Place of each row's thumbnail.
        uris: The thumbnails as data URIs.
        note: How many have pictures, and why not more.
        pixelated: Whether the pictures are so small that smoothing would blur them.
        notices: What went wrong, in words.
    """

    of_row: dict[int, int] = field(default_factory=dict)
    uris: list[str] = field(default_factory=list)
    note: str = ""
    pixelated: bool = False
    notices: list[str] = field(default_factory=list)


def choose(
    lists: Sequence[np.ndarray], parts: Sequence[np.ndarray], points: np.ndarray, cells: np.ndarray, cap: int
) -> list[int]:
    """Rows to picture, the most wanted first: heads of the lists in turn, then points spread over the scatter.

    Args:
        lists: Rows of each list over all, in order.
        parts: Rows of each list of a class or a cluster, in order.
        points: Rows that are drawn.
        cells: Cell of each of `points` in the main view.
        cap: How many.
    """
    listed = list(dict.fromkeys([*_in_turn(lists), *_in_turn(parts)]))
    for_lists = listed[: max(int(_LISTS_SHARE * cap), cap - len(points))]
    return list(itertools.islice(dict.fromkeys([*for_lists, *points[spread(cells)].tolist(), *listed]), cap))


def _in_turn(lists: Sequence[np.ndarray]) -> list[int]:
    """The first of each list, then the second of each, and so on."""
    turns = itertools.zip_longest(*(rows.tolist() for rows in lists))
    return [row for turn in turns for row in turn if row is not None]


def open_samples(meta: Meta, data: Any) -> tuple[Samples | None, str]:
    """The data set of a run, or None and a sentence that says why not."""
    if data is None and not meta.source:
        return None, "The run does not say where its pictures are; name the data with --data to see them."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = data_of(meta, data)
    except Exception as error:  # whatever a data set may raise: the page is made all the same
        moved = "" if data is not None else " If the data have moved, say where they are with --data."
        return None, f"The pictures could not be opened: {cut(first_line(error), 400, 1200)}{moved}"
    return samples, ""


def make_thumbnails(samples: Samples, rows: Sequence[int], ids: Sequence[str], total: int, room: int) -> Thumbnails:
    """Thumbnails of these rows, as many as fit into `room` bytes.

    Args:
        samples: The data set.
        rows: Row numbers, the most wanted first.
        ids: Their ids.
        total: How many samples the run has.
        room: Bytes that all thumbnails may take in the page.
    """
    thumbnails = Thumbnails()
    try:
        places = samples.find(ids)
    except Exception as error:
        thumbnails.notices.append(f"The pictures could not be looked up: {cut(first_line(error))}")
        places = [None] * len(ids)
    missing = sum(place is None for place in places)
    failed: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    used, sides, full = 0, [], False
    for row, id_, place in zip(rows, ids, places, strict=True):
        if place is None:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                uri, side, remarks = _thumbnail(samples, place)
        except Exception as error:  # one unreadable picture leaves a gap, no more
            failed.append((id_, first_line(error)))
            continue
        if used + len(uri) + 3 > room:
            full = True
            break
        used += len(uri) + 3
        counts.update(remarks)
        sides.append(side)
        thumbnails.of_row[row] = len(thumbnails.uris)
        thumbnails.uris.append(uri)
    thumbnails.pixelated = bool(sides) and max(sides) <= SMALL
    if missing:
        thumbnails.notices.append(
            f"{missing:,} of {len(ids):,} pictures that were looked for are not in the data"
            + ("; name the data that were scored with --data." if missing == len(ids) else ".")
        )
    if failed:
        first = f"{cut(printable(failed[0][0]), 80)}: {cut(failed[0][1], 120)}"
        thumbnails.notices.append(f"{counted(len(failed), 'picture')} could not be read (first: {first}).")
    thumbnails.notices += [f"{counted(n, *_REMARKS[remark])}" for remark, n in counts.items()]
    thumbnails.note = f"{len(thumbnails.uris):,} of {total:,} have pictures" + _why(
        len(thumbnails.uris), len(rows), total, full
    )
    return thumbnails


def _why(shown: int, wanted: int, total: int, full: bool) -> str:
    if full:
        return "; more would not fit into the page"
    if shown == total or shown < wanted:
        return ""
    return "; --pictures N shows more"


_REMARKS = {
    "scaled": (
        "picture holds values outside 0 to 1 and is shown from its smallest to its largest value",
        "pictures hold values outside 0 to 1 and are shown each from its smallest to its largest value",
    ),
    "turned": (
        "picture carries a rotation (EXIF) and is shown upright; the network is given it as it is stored",
        "pictures carry a rotation (EXIF) and are shown upright; the network is given them as they are stored",
    ),
    "channels": (
        "picture has another number of channels than 1, 3 or 4 and is shown as their mean",
        "pictures have another number of channels than 1, 3 or 4 and are shown as their mean",
    ),
}


def _thumbnail(samples: Samples, place: int) -> tuple[str, int, set[str]]:
    """A data URI, the longer side of the original, and what should be said about it."""
    remarks: set[str] = set()
    path = samples.path(place)
    if path is not None:
        shown, side = _from_file(path, remarks)
    else:
        shown, side = _from_sample(samples.load(place, None)[0], remarks)
    if max(shown.size) > SIDE:
        shown.thumbnail((SIDE, SIDE), reducing_gap=3.0)
    shown = shown.convert("RGB")
    written = io.BytesIO()
    if max(shown.size) <= _LOSSLESS:
        shown.save(written, "WEBP", lossless=True, quality=100, method=4)
    else:
        shown.save(written, "WEBP", quality=80, method=4)
    return f"data:image/webp;base64,{base64.b64encode(written.getvalue()).decode()}", side, remarks


def _from_file(path: Path, remarks: set[str]) -> tuple[Image, int]:
    """A file decoded no larger than needed: a JPEG decoder can halve while it decodes."""
    from PIL import Image

    check_regular(path, "image")
    with Image.open(path) as opened:
        side = max(opened.size)
        opened.draft(None, (2 * SIDE, 2 * SIDE))
        opened.load()
        return _upright(opened, remarks), side


def _upright(opened: Image, remarks: set[str]) -> Image:
    from PIL import ImageOps

    if opened.getexif().get(0x0112, 1) in range(2, 9):
        remarks.add("turned")
        opened = ImageOps.exif_transpose(opened)
    return eight_bit(opened)


def _from_sample(value: Any, remarks: set[str]) -> tuple[Image, int]:
    """A picture from what a data set yields: Pillow pictures, arrays, tensors, or a mapping that holds one."""
    if isinstance(value, Mapping):
        value = next((v for v in value.values() if hasattr(v, "shape") or hasattr(v, "getexif")), None)
    if isinstance(value, Mapping) or value is None:
        raise InputError("the sample holds no picture")
    if hasattr(value, "getexif"):
        shown = _upright(value, remarks)
        return shown, max(value.size)
    array = value.detach().cpu().float().numpy() if isinstance(value, Tensor) and value.is_floating_point() else value
    array = np.asarray(array)
    while array.ndim > 3 and array.shape[0] == 1:  # a batch of one
        array = array[0]
    if array.ndim not in (2, 3) or not array.size:
        raise InputError(f"the sample is not an image: its shape is {tuple(array.shape)}")
    if isinstance(value, Tensor) and array.ndim == 3 and (array.shape[0] in (1, 3, 4) or array.shape[-1] > 4):
        array = array.transpose(1, 2, 0)  # torch puts channels first
    else:
        array = channels_last(array)
    if array.shape[-1] not in (1, 3, 4):
        remarks.add("channels")
        array = array.mean(-1, keepdims=True)
    shown = to_image(_as_bytes(array, remarks))
    return shown, max(shown.size)


def _as_bytes(array: np.ndarray, remarks: set[str]) -> np.ndarray:
    """Values of any type as uint8: [0, 1] as it is, other ranges from their smallest to their largest value."""
    if array.dtype in (np.uint8, np.uint16):
        return array
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    values = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        remarks.add("scaled")
        values = (values - low) / (high - low) if high > low else np.full_like(values, 0.5)
    return (values * 255).round().astype(np.uint8)
