"""A map of the features to brush: the stored sketches in two dimensions, by PCA and, where it is installed, UMAP."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import numpy as np

from hardsight.report.formatting import percent
from hardsight.report.rows import Rows
from hardsight.report.sections import Column, Section, View, axis
from hardsight.report.vectors import direction_blocks, directions, having

MOST_UMAP = 20_000  # rows: more would take minutes
_BLOCK = 100_000  # rows at a time
_LEAST = 3
_SEED = 20260804


def build(rows: Rows) -> Section | None:
    """Views of the scatter plot, if the run keeps sketches."""
    n = int(having(rows, "sketch").sum())
    if n < _LEAST or rows.main is None:  # the first view of the page is a score's
        return None
    mean, axes, shares = principal(rows, n)
    note = "Directions of the features; samples that lie close together look alike to the network."
    titles = [
        f"{name} component ({percent(part)} of the variance)"
        for name, part in zip(("first", "second"), shares, strict=True)
    ]
    maps = [("pca", "Map of the features (PCA)", note, titles, lambda: _projected(rows, mean, axes))]
    if n <= MOST_UMAP and importlib.util.find_spec("umap") is not None:
        note += " Distances between groups mean little."
        titles = ["first UMAP axis", "second UMAP axis"]
        maps.append(("umap", "Map of the features (UMAP)", note, titles, lambda: _umap(rows)))
    views, columns = [], {}
    for key, title, text, titles, compute in maps:
        names, ends = [f"{key}_x", f"{key}_y"], []
        for line, (name, label) in enumerate(zip(names, titles, strict=True)):
            read = partial(_line, rows, key, compute, line)
            columns[name] = Column(read, label, "Place on the map of the features.", "", "place")
            ends.append(axis(name, label, read()))
        views.append(View(f"map-{key}", title, text, *ends))
    return Section("embedding", views=views, columns=columns)


def _line(rows: Rows, key: str, compute: Callable[[], np.ndarray], line: int) -> np.ndarray:
    return rows.kept(f"map {key}", compute)[line]


def principal(rows: Rows, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and first two principal axes of the `n` sketches, and the axes' shares of the variance."""
    total, product = 0.0, 0.0
    for _, units in direction_blocks(rows, _BLOCK):  # all of them would not fit beside the table
        units = units.astype(np.float64)
        total, product = total + units.sum(0), product + units.T @ units
    mean = np.atleast_1d(total / n)
    variances, axes = np.linalg.eigh(product / n - np.outer(mean, mean))
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(axes.shape[1])])  # a sign independent of the library
    shares = variances[::-1][:2] / max(float(variances.sum()), np.finfo(float).tiny)
    if axes.shape[1] < 2:  # a sketch of one number
        axes, shares = np.pad(axes, ((0, 0), (0, 1))), np.append(shares, 0.0)
    return mean, axes, shares


def _projected(rows: Rows, mean: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Coordinates on two axes, ``(2, N)``; NaN without a sketch."""
    places = np.full((2, len(rows)), np.nan)
    for where, units in direction_blocks(rows, _BLOCK):
        places[:, where] = ((units - mean) @ axes).T
    return places


def _umap(rows: Rows) -> np.ndarray:
    from umap import UMAP

    where, places = np.flatnonzero(having(rows, "sketch")), np.full((2, len(rows)), np.nan)
    near = min(15, len(where) - 1)
    fitted = UMAP(n_neighbors=near, random_state=_SEED).fit_transform(directions(rows, where))
    places[:, where] = np.asarray(fitted).T
    return places
