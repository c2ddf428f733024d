"""Which samples are drawn as points and get a thumbnail, and the thumbnails, as small WebP images."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hardsight.data import Samples, changed_since, data_of
from hardsight.errors import MissingPathError
from hardsight.extras import first_line, printable
from hardsight.images import SIDE as SIDE
from hardsight.images import sample_image, thumbnail_uri
from hardsight.report.formatting import counted, cut
from hardsight.report.page import MOST_BYTES
from hardsight.report.rows import BLOCK, Rows, counts
from hardsight.report.sections import Notice

MOST_POINTS = 10_000
_SEED = 20260801  # rows are sorted by id, so that the same samples are drawn however the table was ordered
SMALL = 64  # pictures up to here are shown with their pixels
_LISTS_SHARE = 0.75  # of the thumbnails, at most, go to the lists while points of the scatter lack one


@dataclass
class Thumbnails:
    """Thumbnails of rows."""

    of_row: dict[int, int] = field(default_factory=dict)  # the place of each row's thumbnail
    uris: list[str] = field(default_factory=list)  # the thumbnails as data URIs
    note: str = ""  # how many have pictures, and why no more
    pixelated: bool = False  # whether the pictures are so small that smoothing would blur them
    notices: list[str] = field(default_factory=list)  # what went wrong


def choose_points(n: int, required: np.ndarray, cell: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Rows to draw, in order: every required one, then a sample spread over regions, classes, and all rows.

    Two fifths are spread evenly over the occupied cells of the main view, so that rare regions are visible, two fifths
    evenly over the classes, and the rest over all `n` rows. `cell` and `group` are those of each row, −1 for none.
    """
    if n <= MOST_POINTS:
        return np.arange(n)
    selected = np.zeros(n, dtype=bool)
    selected[required] = True
    order = np.random.default_rng(_SEED).permutation(n)
    room = max(MOST_POINTS - int(selected.sum()), 0)
    for strata, share in ((cell, 0.4), (group, 0.4), (np.zeros(n, dtype=np.int8), 1.0)):
        left = max(MOST_POINTS - int(selected.sum()), 0)
        selected[_first_of_each(order, strata, selected, min(left, int(share * room)))] = True
    return np.flatnonzero(selected)


def _first_of_each(order: np.ndarray, strata: np.ndarray, selected: np.ndarray, k: int) -> np.ndarray:
    """The first `k` in the order of `spread` of the rows that are not selected and have a stratum."""
    size = int(strata.max(initial=-1)) + 1
    total, taken = counts(np.where(selected, strata.dtype.type(-1), strata), size), np.zeros(size, dtype=np.int64)
    turns = 0  # of each stratum no more rows are needed than there are turns until `k` are taken
    while (reached := int(np.minimum(total, turns).sum())) < min(k, int(total.sum())):
        turns += max((k - reached) // max(int((total > turns).sum()), 1), 1)
    candidates = []
    for start in range(0, len(order), BLOCK):
        rows = order[start : start + BLOCK]
        rows = rows[~selected[rows] & (strata[rows] >= 0)]
        rows = rows[taken[strata[rows]] < turns]
        candidates.append(rows[_turns(strata[rows]) + taken[strata[rows]] < turns])
        taken += counts(strata[candidates[-1]], size)
        if int(taken.sum()) == reached:
            break
    free = np.concatenate(candidates)
    return free[spread(strata[free])[:k]]


def _turns(strata: np.ndarray) -> np.ndarray:
    """How many items of its stratum come before each item."""
    by_stratum = np.argsort(strata, kind="stable")
    ordered = strata[by_stratum]
    turn = np.empty(len(strata), dtype=np.int64)
    turn[by_stratum] = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return turn


def spread(strata: np.ndarray) -> np.ndarray:
    """Positions of the items: the first of each stratum, then the second of each, and so on."""
    return np.argsort(_turns(strata), kind="stable")


def choose(lists: Sequence[Any], parts: Sequence[Any], points: np.ndarray, cells: np.ndarray, cap: int) -> list[int]:
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


def pictures_of(rows: Rows, data: Any, selected: Sequence[int]) -> tuple[Thumbnails, list[Notice]]:
    """Thumbnails of the selected rows, and notes about them; any error of a data set becomes a notice."""
    none = Thumbnails(note=f"0 of {counted(len(rows), 'sample')} have pictures")
    if not selected:
        return none, []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = data_of(rows.meta, data)
            thumbnails = make_thumbnails(samples, selected, rows.ids_at(selected), len(rows))
    except Exception as error:
        moved = " If the data have moved, say where they are with --data."
        moved *= data is None and isinstance(error, MissingPathError)
        return none, [Notice("warn", f"No pictures: {cut(first_line(error), 400, 1200)}{moved}")]
    changed = f"{samples.origin} has changed since it was scored; pictures may be those of other samples."
    notices = [Notice("info" if thumbnails.uris else "warn", text) for text in thumbnails.notices]
    return thumbnails, [Notice("warn", changed), *notices] if changed_since(samples, rows.meta) else notices


_CHANGES = {
    "scaled": "with values outside 0 to 1: shown from the smallest to the largest value",
    "rotated": "with a rotation (EXIF): shown upright, but the network gets the stored pixels",
    "channels": "with a number of channels other than 1, 3 or 4: shown as their mean",
}


def make_thumbnails(samples: Samples, rows: Sequence[int], ids: Sequence[str], total: int) -> Thumbnails:
    """Thumbnails of these rows of a run of `total`, by priority, until they alone would fill the page."""
    thumbnails, changes, failed, size, places = Thumbnails(), Counter[str](), [], 0, samples.find(ids)
    for row, id_, place in zip(rows, ids, places, strict=True):
        if place is None or size > MOST_BYTES:
            continue
        try:
            image, changed = sample_image(samples, place)
            small = max(image.size) <= SMALL
            uri = thumbnail_uri(image)
        except Exception as error:  # an unreadable picture only leaves a gap
            failed.append(f"{cut(printable(id_), 80)}: {cut(first_line(error), 120)}")
            continue
        size += len(uri)
        changes.update(changed)
        thumbnails.pixelated = small and (thumbnails.pixelated or not thumbnails.uris)
        thumbnails.of_row[row] = len(thumbnails.uris)
        thumbnails.uris.append(uri)
    if missing := sum(place is None for place in places):
        remedy = "; name the data that were scored with --data" if missing == len(ids) else ""
        thumbnails.notices.append(f"{missing:,} of {len(ids):,} pictures are not in the data{remedy}.")
    if failed:
        thumbnails.notices.append(f"{counted(len(failed), 'picture')} could not be read (first: {failed[0]}).")
    thumbnails.notices += [f"{counted(n, 'picture')} {_CHANGES[change]}." for change, n in changes.items()]
    more = "; --pictures N shows more" if len(thumbnails.uris) == len(rows) < total else ""
    thumbnails.note = f"{len(thumbnails.uris):,} of {total:,} have pictures{more}"
    return thumbnails
