"""Which samples get a thumbnail, and the thumbnails, as small WebP images."""

from __future__ import annotations

import base64
import io
import itertools
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hardsight.data import Samples, data_of
from hardsight.extras import first_line, printable
from hardsight.images import display_image
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
    """Thumbnails of rows."""

    of_row: dict[int, int] = field(default_factory=dict)  # the place of each row's thumbnail
    uris: list[str] = field(default_factory=list)  # the thumbnails as data URIs
    note: str = ""  # how many have pictures, and why not more
    pixelated: bool = False  # whether the pictures are so small that smoothing would blur them
    notices: list[str] = field(default_factory=list)  # what went wrong


def choose(
    lists: Sequence[np.ndarray], parts: Sequence[np.ndarray], points: np.ndarray, cells: np.ndarray, cap: int
) -> list[int]:
    """At most `cap` rows to picture, the most wanted first: heads of the lists in turn, then points over the scatter.

    `lists` are over all samples, `parts` of a class or a cluster; `cells` are those of `points` in the main view.
    """
    wanted = list(dict.fromkeys([*_in_turn(lists), *_in_turn(parts)]))
    for_lists = wanted[: max(int(_LISTS_SHARE * cap), cap - len(points))]
    return list(itertools.islice(dict.fromkeys([*for_lists, *points[spread(cells)].tolist(), *wanted]), cap))


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
    """Thumbnails of these rows, the most wanted first, as many as fit into `room` bytes, of a run of `total`."""
    thumbnails, changes, failed, full = Thumbnails(), Counter[str](), [], False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = _places(samples, ids, thumbnails.notices)
        for row, id_, place in zip(rows, ids, places, strict=True):
            if place is None:
                continue
            try:
                image, changed = _open(samples, place)
                small = max(image.size) <= SMALL
                uri = _data_uri(image)
            except Exception as error:  # an unreadable picture leaves a gap, no more
                failed.append(f"{cut(printable(id_), 80)}: {cut(first_line(error), 120)}")
                continue
            room -= len(uri) + 3
            if full := room < 0:
                break
            changes.update(changed)
            thumbnails.pixelated = small and (thumbnails.pixelated or not thumbnails.uris)
            thumbnails.of_row[row] = len(thumbnails.uris)
            thumbnails.uris.append(uri)
    if failed:
        thumbnails.notices.append(f"{counted(len(failed), 'picture')} could not be read (first: {failed[0]}).")
    thumbnails.notices += [f"{counted(n, 'picture')} {_CHANGES[change]}." for change, n in changes.items()]
    thumbnails.note = f"{len(thumbnails.uris):,} of {total:,} have pictures"
    if full:
        thumbnails.note += "; more would not fit into the page"
    elif len(thumbnails.uris) == len(rows) < total:
        thumbnails.note += "; --pictures N shows more"
    return thumbnails


_CHANGES = {
    "scaled": "with values outside 0 to 1: shown from the smallest to the largest value",
    "rotated": "with a rotation (EXIF): shown upright, but the network is given what is stored",
    "channels": "with another number of channels than 1, 3 or 4: shown as their mean",
}


def _places(samples: Samples, ids: Sequence[str], notices: list[str]) -> Sequence[int | None]:
    """Where the samples are in the data set; what is missing goes to the notices."""
    try:
        places = samples.find(ids)
    except Exception as error:
        notices.append(f"The pictures could not be looked up: {cut(first_line(error))}")
        return [None] * len(ids)
    if missing := sum(place is None for place in places):
        remedy = "; name the data that were scored with --data" if missing == len(ids) else ""
        notices.append(f"{missing:,} of {len(ids):,} pictures that were looked for are not in the data{remedy}.")
    return places


def _open(samples: Samples, place: int) -> tuple[Image, set[str]]:
    """A sample as an image; a JPEG file is decoded no larger than needed."""
    from PIL import Image

    path = samples.path(place)
    if path is None:
        return display_image(samples.load(place, None)[0])
    check_regular(path, "image")
    with Image.open(path) as opened:
        opened.draft(None, (2 * SIDE, 2 * SIDE))
        opened.load()
        return display_image(opened)


def _data_uri(image: Image) -> str:
    if max(image.size) > SIDE:
        image.thumbnail((SIDE, SIDE), reducing_gap=3.0)
    quality = {"lossless": True, "quality": 100} if max(image.size) <= _LOSSLESS else {"quality": 80}
    file = io.BytesIO()
    image.convert("RGB").save(file, "WEBP", method=4, **quality)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
