"""Neighbors in feature space, from the stored sketches: outliers, near-duplicates, and what lies beside a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hardsight.report.formatting import counted
from hardsight.report.rows import Rows
from hardsight.report.samples import LENGTH, top
from hardsight.report.sections import Column, SampleList, Section
from hardsight.report.vectors import directions, having, sample_of

K = 5
MOST_ROWS = 30_000  # compared with one another; above this, a random sample
_DUPLICATE = 0.1  # of the median distance to the nearest neighbor
_SEED = 20260803


def build(rows: Rows) -> Section | None:
    """Two lists of the gallery and a column, if the run keeps sketches of at least `K` + 1 samples."""
    valid, among = having(rows, "sketch"), ""
    where = sample_of(valid, MOST_ROWS, _SEED)
    if (total := int(valid.sum())) > len(where):
        among = f" Among {MOST_ROWS:,} samples drawn at random from {total:,}."
    if len(where) <= K:
        return None
    place, distance = nearest(directions(rows, where))
    outliers = where[top(distance[:, -1], LENGTH)]

    def isolation() -> np.ndarray:
        values = np.full(len(rows), np.nan)
        values[where] = distance[:, -1]
        return values

    note = f"Farthest from their {K}th neighbor in feature space (directions of the features).{among}"
    lists = [SampleList("outliers", "Outliers", note, outliers), *_duplicates(rows, where, place, distance, among)]
    text = f"Distance to the {K}th nearest neighbor among the directions of the features; larger is more unusual."
    columns = {"isolation": Column(isolation, f"distance to the {K}th neighbor", text, "")}
    return Section("neighbors", lists=lists, columns=columns)


def nearest(units: np.ndarray, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    """Positions and distances of the `k` nearest other rows, the nearest first; ties in row order."""
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(units)
    place = np.asarray(search.kneighbors(return_distance=False), dtype=np.int64)
    # From the differences: products cancel, and distances of duplicates would be noise.
    distance = np.stack([np.linalg.norm(units - units[column], axis=1) for column in place.T], axis=1)
    order = np.lexsort((place, distance), axis=1)
    return np.take_along_axis(place, order, axis=1), np.take_along_axis(distance, order, axis=1)


def neighbors_of(rows: Rows, points: np.ndarray) -> dict[str, Any] | None:
    """The `K` nearest of some rows among themselves, as positions; −1 for a row without a sketch."""
    stored = having(rows, "sketch")[points]
    if stored.sum() <= K:
        return None
    places = np.full((len(points), K), -1)
    places[stored] = np.flatnonzero(stored)[nearest(directions(rows, points[stored]))[0]]
    return {"k": K, "places": places.ravel().tolist()}


def _duplicates(rows: Rows, where: np.ndarray, place: np.ndarray, distance: np.ndarray, among: str) -> list[SampleList]:
    """Groups of samples that are nearly the same, side by side; those with different labels first, then the closest."""
    limit = _DUPLICATE * float(np.median(distance[:, 0]))
    first, column = np.nonzero(distance <= limit)
    if not len(first):
        return []
    second, gap = place[first, column], distance[first, column]
    count, group = connected_components(coo_array((np.ones(len(first)), (first, second)), (len(where),) * 2), False)
    least = np.full(count, np.inf)
    np.minimum.at(least, group[first], gap)
    label = rows.label[where]
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(lowest, group[label >= 0], label[label >= 0])
    np.maximum.at(highest, group[label >= 0], label[label >= 0])
    groups = np.flatnonzero(np.isfinite(least))
    conflict = highest > lowest
    members = np.flatnonzero(np.isfinite(least[group]))
    members = members[np.lexsort((members, group[members], least[group[members]], ~conflict[group[members]]))]
    note = f"{counted(len(groups), 'group')} of samples whose features are nearly the same, side by side, the closest "
    note += f"first: at most a tenth of the median distance to the nearest neighbor apart.{among}"
    if (different := int(conflict[groups].sum())) > 0:
        note += f" {counted(different, 'group has', 'groups have')} different labels and come first."
    return [SampleList("duplicates", "Near-duplicates", note, where[members[:LENGTH]])]
