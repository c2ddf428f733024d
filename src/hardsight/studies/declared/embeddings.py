"""2-D features of small CNNs: classes as rays (AVH Fig. 2, 8), with and without AMC-Loss (AMC Fig. 1)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hardsight.data import DataName, open_data
from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.figures.style import COLORS, left_title, new_figure, plain
from hardsight.presets import PRESETS
from hardsight.printing import percent
from hardsight.scores import compute_scores
from hardsight.studies.declared.small_networks import fit, plain_cnn, split_pixels
from hardsight.studies.declared.training import embed, pixels_and_labels, split_digits
from hardsight.studies.study import STUDIES, Cell, Measure, Scale
from hardsight.training import train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Embeddings(NamedTuple):
    """2-D features of samples that the network was not trained on, and its class weights.

    Attributes:
        features: ``(N, 2)``.
        labels: ``(N,)``.
        avh: ``(N,)``.
        weight: ``(C, 2)``.
        accuracy: Accuracy of the network on these samples.
        classes: Names of the classes.
    """

    features: np.ndarray
    labels: np.ndarray
    avh: np.ndarray
    weight: np.ndarray
    accuracy: float
    classes: list[str]


def embeddings(
    data: Any, *, steps: int = 1500, batch_size: int = 128, lr: float = 3e-3, seed: int = 0, device: str | None = None
) -> Embeddings:
    """Train a CNN with two-dimensional features and embed held-out samples (Fig. 2 and 8).

    The network has two convolutions (16 and 32 channels), a layer of 128 and then 2 features; Adam with a learning
    rate that falls to 0 along a cosine.

    Args:
        data: As for `hardsight.train`: an .npz with a training and a test part, or ``digits`` (every fifth is held
            out).
    """
    training, test, classes = split_pixels(data, device)
    net = fit(lambda: plain_cnn(len(classes), training[0].shape[1], 2), *training, steps, batch_size, lr, seed)
    features, _, weight, bias = embed(net, test[0])
    scores = compute_scores(features, weight, test[1], bias, ("avh",))
    right = float((scores["pred"].cpu() == test[1].cpu()).double().mean())
    points, labels, avh, axes = (tensor.cpu().numpy() for tensor in (features, test[1], scores["avh"], weight))
    return Embeddings(points, labels, avh, axes, right, classes)


@STUDIES.register(
    "embeddings",
    question="Are classes rays from the origin in two dimensions?",
    paper="AVH, Fig. 2 and 8",
    factors={},
    measures={
        "accuracy": Measure("Accuracy", True, "higher"),
        "nearest": Measure("Accuracy by the nearest class direction", True),
        "length": Measure("Length of the mean direction, mean over classes"),
        "shortest": Measure("Length of the mean direction, smallest of the classes"),
    },
    scales={
        "smoke": Scale(2, 3, settings={"data": "digits", "steps": 50}),
        "paper": Scale(3, 40, settings={"data": "mnist.npz", "steps": 1500}),
    },
)
def _embeddings(cell: Cell) -> dict[str, float]:
    result = embeddings(
        cell.file(cell.settings["data"]), steps=cell.settings["steps"], seed=cell.seed, device=str(cell.device)
    )
    directions, axes = (
        v / np.linalg.norm(v, axis=1, keepdims=True).clip(1e-12) for v in (result.features, result.weight)
    )
    lengths = np.array([np.linalg.norm(directions[result.labels == k].mean(0)) for k in range(len(axes))])
    nearest = ((directions @ axes.T).argmax(1) == result.labels).mean()
    return {"accuracy": result.accuracy, "nearest": nearest, "length": lengths.mean(), "shortest": lengths.min()}


def plot_embeddings(data: str, seed: int = 0) -> Figure:
    """2-D features by class with the directions of the class weights, and the same points by C·AVH (Fig. 2 and 8).

    Args:
        data: What the small CNN of `hardsight.studies.embeddings` is trained on.
        seed: Seed of its training.
    """
    study = embeddings(data, seed=seed)
    figure, axes = new_figure(1, 2)
    by_class, by_avh = axes[0]
    classes, (x, y) = len(study.weight), study.features.T
    reach = draw_rays(by_class, study.features, study.labels, study.weight, study.classes)
    order = np.argsort(study.avh)  # the hardest on top
    hardness = classes * study.avh[order]
    points = by_avh.scatter(x[order], y[order], c=hardness, s=3, cmap="viridis", linewidths=0, rasterized=True)
    figure.colorbar(points, ax=by_avh, label="C · AVH (lighter is harder)")
    by_avh.set(xlim=(-1.15 * reach, 1.15 * reach), ylim=(-1.15 * reach, 1.15 * reach), aspect="equal")
    by_avh.set_xlabel("first feature")
    left_title(by_class, f"features by class, n = {len(x):,}, accuracy {percent(study.accuracy)}", 9)
    left_title(by_avh, "the same points by hardness", 9)
    return figure


def draw_rays(
    axis: Axes, features: np.ndarray, labels: np.ndarray, weight: np.ndarray, names: Sequence[str], alpha: float = 1.0
) -> float:
    """2-D features by class and the directions of the class weights; returns how far the axes reach."""
    colors = COLORS if len(weight) <= len(COLORS) else need("matplotlib").colormaps["tab10"].colors
    reach = 1.05 * float(np.quantile(np.linalg.norm(features, axis=1), 0.995))
    for k, vector in enumerate(weight):
        x, y = features[labels == k].T
        axis.scatter(x, y, s=3, color=colors[k % len(colors)], linewidths=0, alpha=alpha, rasterized=True)
        direction = vector / max(float(np.linalg.norm(vector)), 1e-12)
        axis.plot([0, reach * direction[0]], [0, reach * direction[1]], color="black", linewidth=0.8)
        axis.annotate(plain(names[k]), 1.06 * reach * direction, fontsize=9, ha="center", va="center")
    axis.set(xlim=(-1.15 * reach, 1.15 * reach), ylim=(-1.15 * reach, 1.15 * reach), aspect="equal")
    axis.set(xlabel="first feature", ylabel="second feature")
    return reach


CLASSES = (0, 1, 2, 3, 6)  # those that the paper draws; the network learns all ten
LOSSES = {"ce": "cross-entropy", "amc:paper,down": "with AMC-Loss"}
_MOST = 10_000  # at most so many samples per split, as in the paper


class RawFeatures(NamedTuple):
    """Features ``(N, 2)`` as the network computes them, neither centered nor scaled, and labels ``(N,)``."""

    features: np.ndarray
    labels: np.ndarray


def raw_features(data: str, loss: str = "ce", *, epochs: int = 150, seed: int = 0) -> dict[str, RawFeatures]:
    """Train the preset ``amc-2d`` with a loss, and return the 2-D features of the drawn classes by split.

    Args:
        data: An ``.npz`` with a training and a test part, or ``digits`` (every fifth sample is held out).
        loss: As for `hardsight.train`.
        epochs: Of the training; its ramps are rescaled.
        seed: Seed of the training.
    """
    name = DataName.parse(data)
    if data != "digits" and not name.name.endswith(".npz"):
        raise InputError(f"data must be digits or an .npz with a training and a test part, got {data}.")
    parts = ("train", "test")
    splits = split_digits() if data == "digits" else [open_data(str(name._replace(split=part))) for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        recipe = PRESETS["amc-2d"].recipe.replace(epochs=epochs, loss=loss, seed=seed)
        out = Path(folder) / "run"
        network = train("amc-2d", splits[0], out=out, recipe=recipe, record=(), progress=False).model.module
    features = {}
    for part, samples in zip(parts, splits, strict=True):
        pixels, labels = pixels_and_labels(samples, next(network.parameters()).device)
        rows = np.flatnonzero(np.isin(labels[:_MOST].cpu(), CLASSES))
        drawn = embed(network, pixels[rows]).features.cpu().numpy()
        features[part] = RawFeatures(drawn, labels.cpu().numpy()[rows])
    return features


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
            axis.set(aspect="equal", xlabel="first feature", ylabel="second feature")
            left_title(axis, f"{title}, {name}, n = {len(part.labels):,}", 9)
    axes[0, 0].legend(fontsize=8, frameon=False, markerscale=3)
    return figure
