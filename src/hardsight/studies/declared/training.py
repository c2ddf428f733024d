"""What many studies do in a cell: split its data, train a preset by its settings, and embed images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.data import ArraySamples, Columns, Samples, View, all_labels, as_pixels, load_digits, open_data
from hardsight.errors import InputError
from hardsight.heads import capture
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe
from hardsight.studies.study import Cell
from hardsight.training import Trained, train

# CIFAR-10 in a minute of a CPU: a small network and a fifth of the training images, about 61% accurate.
SMALL_CIFAR = {
    "data": "cifar10.npz",
    "model": "small-cnn",
    "network": "strided-cnn",
    "recipe": {"epochs": 10, "batch_size": 128, "crop": 2, "flip": True},
    "pool": 10_000,
}
# MNIST for as many epochs as in the EL paper, without weight decay as there; about 96% accurate.
SMALL_MNIST = {
    "data": "mnist.npz",
    "model": "small-cnn",
    "network": "strided-cnn",
    "recipe": {"epochs": 100, "batch_size": 128, "weight_decay": 0.0},
    "pool": 5000,
}


def split_digits(every: int = 5) -> tuple[ArraySamples, ArraySamples]:
    """scikit-learn's digits to train on, and every fifth (or so) of them to test."""
    images, labels = load_digits()
    test = np.arange(len(labels)) % every == 0
    first, second = (ArraySamples(images[part], labels[part], "digits", "digits") for part in (~test, test))
    return first, second


def split_data(cell: Cell) -> tuple[Samples, Samples]:
    """Training and test samples of the data set that the settings name, with its labels or those of `label`.

    A folder of images has them in ``train`` and ``val``. Of the training samples only the first ``pool`` are taken.
    """
    name, columns = cell.file(cell.settings["data"]), Columns(label=cell.settings.get("label"))
    if name == "digits":
        training, test = split_digits()
        return first_of(training, cell.settings.get("pool")), test
    folder = Path(name, "train").is_dir()
    parts = ("/train", "/val") if folder else (":train", ":test")
    training, test = (open_data(name + part, columns=columns) for part in parts)
    return first_of(training, cell.settings.get("pool")), test


def first_of(samples: Samples, n: int | None) -> Samples:
    """The first n samples; all of them if there are no more, or n is None."""
    return samples if n is None or n >= len(samples) else View(samples, np.arange(n))


def recipe_of(cell: Cell, preset: str = "", **changes: Any) -> Recipe:
    """A preset's recipe with the settings and the seed of a cell; plain float32 without a GPU."""
    recipe = PRESETS[preset or cell.settings["model"]].recipe.replace(**cell.settings["recipe"])
    return on_device(recipe.replace(**{"seed": cell.seed, **changes}), cell.device)


def on_device(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe without what only a GPU does well."""
    on_cpu = {"precision": "float32", "graph": False, "channels_last": False}
    return recipe if device.type == "cuda" else recipe.replace(**on_cpu)


def train_cell(
    cell: Cell, data: tuple[Samples, ...], recipe: Recipe, network: Any = None, out: Path | None = None, **options: Any
) -> Trained:
    """Train on the first samples and test on the second, if any; nothing is recorded unless asked for."""
    options = {"record": (), "device": cell.device, "progress": False, **options}
    network = cell.settings["model"] if network is None else network
    return train(network, *data, out=out or cell.folder / "run", recipe=recipe, **options)


def pixels_and_labels(samples: Samples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images ``(N, C, H, W)`` and labels ``(N,)``."""
    pixels = as_pixels(samples, None, device)
    if pixels is None:
        raise InputError(f"data must be images in memory, an .npz or digits, got {samples.origin}.")
    return pixels, torch.from_numpy(all_labels(samples, "data")).long().to(pixels.device)


class Embedded(NamedTuple):
    """Features ``(N, D)`` and logits ``(N, C)`` of images, and the head that connects them."""

    features: Tensor
    logits: Tensor
    weight: Tensor
    bias: Tensor | None


@torch.no_grad()
def embed(network: nn.Module, pixels: Tensor) -> Embedded:
    """One pass in eval mode and without augmentation; uint8 becomes [0, 1]."""
    network.eval()
    device, features, logits = next(network.parameters()).device, [], []
    with capture(network) as head:
        for part in pixels.split(1000):
            part = part.to(device)
            logits.append(network(part.float() / 255 if part.dtype == torch.uint8 else part).float())
            features.append(head.features.float())
        bias = None if head.bias is None else head.bias.detach().float()
        return Embedded(torch.cat(features), torch.cat(logits), head.weight.detach().float(), bias)
