"""The AMC paper's Fig. 1: raw 2-D features of digits, by cross-entropy and with the AMC-Loss."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from hardsight.data import ArraySamples, DataName, Samples, all_labels, as_pixels, load_digits, open_data
from hardsight.errors import InputError
from hardsight.figures.style import COLORS, left_title, new_figure
from hardsight.heads import capture
from hardsight.presets import PRESETS
from hardsight.training import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = (0, 1, 2, 3, 6)  # those that the paper draws; the network learns all ten
LOSSES = {"ce": "cross-entropy", "amc:paper,down": "with AMC-Loss"}
_MOST = 10_000  # samples of each split, as in the paper


class RawFeatures(NamedTuple):
    """Features ``(N, 2)`` as the network computes them, neither centered nor scaled, and labels ``(N,)``."""

    features: np.ndarray
    labels: np.ndarray


def raw_features(
    data: str, loss: str = "ce", *, classes: Sequence[int] = CLASSES, epochs: int = 150, seed: int = 0
) -> dict[str, RawFeatures]:
    """Train the preset ``amc-2d`` with a loss, and give the 2-D features of some classes by split.

    Args:
        data: An ``.npz`` with a training and a test part, or ``digits`` (every fifth is kept out).
        loss: As for `hardsight.train`.
        classes: Labels to keep; all classes are trained on.
        epochs: Of the training; its ramps are rescaled.
        seed: Seed of the training.
    """
    splits = _splits(data)
    with tempfile.TemporaryDirectory() as folder:
        recipe = PRESETS["amc-2d"].recipe.replace(epochs=epochs, loss=loss, seed=seed)
        out = Path(folder) / "run"
        network = train("amc-2d", splits["train"], out=out, recipe=recipe, record=(), progress=False).model.module
    device = next(network.parameters()).device
    return {name: _embed(network, samples, device, classes) for name, samples in splits.items()}


def plot_raw_features(data: str, seed: int = 0, epochs: int = 150) -> Figure:
    """Raw 2-D features of the digits 0, 1, 2, 3 and 6, training and test, by each loss (AMC Fig. 1).

    Args:
        data: MNIST as an ``.npz``, or ``digits``.
        seed: Seed of the training.
        epochs: Of the training.
    """
    figure, axes = new_figure(len(LOSSES), 2)
    for row, (loss, title) in zip(axes, LOSSES.items(), strict=True):
        for axis, (name, part) in zip(row, raw_features(data, loss, epochs=epochs, seed=seed).items(), strict=True):
            for label, color in zip(CLASSES, COLORS, strict=False):
                x, y = part.features[part.labels == label].T
                axis.scatter(x, y, s=3, color=color, linewidths=0, rasterized=True, label=str(label))
            axis.set(aspect="equal")
            left_title(axis, f"{title}, {name}, n = {len(part.labels):,}", 9)
    axes[0, 0].legend(fontsize=8, frameon=False, markerscale=3)
    return figure


def _splits(data: str) -> dict[str, Samples]:
    if data == "digits":
        images, labels = load_digits()
        test = np.arange(len(labels)) % 5 == 0
        rows = {"train": ~test, "test": test}
        return {name: ArraySamples(images[part], labels[part], "digits", name) for name, part in rows.items()}
    name = DataName.parse(data)
    if not name.name.endswith(".npz"):
        raise InputError(f"data must be digits or an .npz with a training and a test part, got {data}.")
    return {split: open_data(str(name._replace(split=split))) for split in ("train", "test")}


@torch.no_grad()
def _embed(network: torch.nn.Module, samples: Samples, device: torch.device, classes: Sequence[int]) -> RawFeatures:
    labels = all_labels(samples, "data")[:_MOST]
    pixels = as_pixels(samples, None, device)
    if pixels is None:
        raise InputError("data must be arrays, so that all images have one size.")
    rows, features = np.flatnonzero(np.isin(labels, classes)), []
    with capture(network) as head:
        for part in torch.from_numpy(rows).split(1000):
            x = pixels[part.to(device)]
            network(x.float() / 255 if x.dtype == torch.uint8 else x)
            features.append(head.features.float().cpu().numpy())
    return RawFeatures(np.concatenate(features), labels[rows])
