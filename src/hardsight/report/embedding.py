"""A map of the features to brush: the stored sketches in two dimensions, by PCA and, where it is installed, UMAP."""

from __future__ import annotations

import importlib.util

import numpy as np

from hardsight.report.formatting import percent
from hardsight.report.rows import Rows
from hardsight.report.sections import Column, Section, View, axis
from hardsight.report.vectors import directions, having

MOST_UMAP = 20_000  # rows: more would take minutes
_BLOCK = 100_000  # rows at a time
_LEAST = 3
_SEED = 20260804


def build(rows: Rows) -> Section | None:
    """Views of the scatter plot, where the run keeps sketches."""
    where = np.flatnonzero(having(rows, "sketch"))
    if len(where) < _LEAST or rows.main is None:  # the first view of the page is a score's
        return None
    places, shares = principal(rows, where)
    note = "Directions of the features; samples that lie close together look alike to the network."
    titles = [
        f"{name} component ({percent(part)} of the variance)"
        for name, part in zip(("first", "second"), shares, strict=True)
    ]
    maps = [("pca", "Map of the features (PCA)", note, titles, places)]
    if len(where) <= MOST_UMAP and importlib.util.find_spec("umap") is not None:
        from umap import UMAP

        near = min(15, len(where) - 1)
        places = np.asarray(UMAP(n_neighbors=near, random_state=_SEED).fit_transform(directions(rows, where)))
        note += " Distances between groups mean little."
        maps.append(("umap", "Map of the features (UMAP)", note, ["first UMAP axis", "second UMAP axis"], places))
    views, columns = [], {}
    for key, title, text, titles, places in maps:
        values = np.full((2, len(rows)), np.nan)
        values[:, where] = places.T
        names = [f"{key}_x", f"{key}_y"]
        columns |= {
            name: Column(part, label, "Place on the map of the features.", "", "place")
            for name, part, label in zip(names, values, titles, strict=True)
        }
        x, y = (axis(name, label, part) for name, label, part in zip(names, titles, values, strict=True))
        views.append(View(f"map-{key}", title, text, x, y))
    return Section("embedding", views=views, columns=columns)


def principal(rows: Rows, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two principal components of the sketches of some rows, and their shares of the variance."""
    blocks = [where[start : start + _BLOCK] for start in range(0, len(where), _BLOCK)]
    total, product = 0.0, 0.0
    for block in blocks:  # in blocks: of a million rows, all of them would not fit beside the table
        units = directions(rows, block).astype(np.float64)
        total, product = total + units.sum(0), product + units.T @ units
    mean = np.atleast_1d(total / len(where))
    variances, axes = np.linalg.eigh(product / len(where) - np.outer(mean, mean))
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(axes.shape[1])])  # a sign that no library decides
    places = np.concatenate([(directions(rows, block) - mean) @ axes for block in blocks])
    shares = variances[::-1][:2] / max(float(variances.sum()), np.finfo(float).tiny)
    if axes.shape[1] < 2:  # a sketch of one number
        places, shares = np.pad(places, ((0, 0), (0, 1))), np.append(shares, 0.0)
    return places, shares
