"""Prepare a training: the network and the data, after every check that can be made in advance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.checkpoints import start_from
from hardsight.data import MissingColumnError, Samples, Source, all_labels, as_pixels, class_mapping, mean_and_std
from hardsight.devices import loader_workers
from hardsight.distributed import rank_and_world
from hardsight.errors import InputError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, describe, input_channels, load_model, new_model
from hardsight.networks import NETWORKS, Network, image_transform
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe
from hardsight.registry import did_you_mean
from hardsight.scoring.checks import check_label_range, check_samples, class_count
from hardsight.training.loop import preserved_state, seed_all, seed_of
from hardsight.triple import as_tensor
from hardsight.userfile import is_file_function, load_function

# Images from which the mean and standard deviation are measured where data are loaded one by one.
_MEASURED = 1024
# Images that decide whether the data are grayscale.
_CHECKED_FOR_COLOR = 32


def execute_file(model: Any, seed: int) -> None:
    """Execute the file of ``file.py:function`` before the recipe is read, because it may register a loss."""
    if isinstance(model, str) and is_file_function(model):
        with preserved_state(torch.device("cpu")):
            seed_all(seed_of(seed, 0))
            load_function(model)


def prepare(
    model: str | nn.Module | Model,
    data: dict[str, Samples],
    recipe: Recipe,
    device: torch.device,
    workers: int | None,
    targets: Any = None,
    weights: str | Path | None = None,
) -> tuple[Model, dict[str, Source]]:
    """The network, and the data sets ``train`` and perhaps ``test``, after every check that can be made in advance."""
    samples, train_labels = data["train"], all_labels(data["train"], "DATA", skip=True)
    if len(np.unique(train_labels)) < 2:
        raise InputError("DATA: training needs two classes or more, and all samples are of one.")
    seed_all(seed_of(recipe.seed, 0))
    classifier, network = _build(model, samples, class_count(samples, int(train_labels.max()) + 1))
    if weights is not None:
        classifier = replace(classifier, weights=start_from(classifier.module, weights))
    smallest = 2 * (world := rank_and_world()[1]) * recipe.accumulate
    if not smallest <= recipe.batch_size <= len(samples):
        raise InputError(
            f"recipe: batch_size must be at least 2 per process and micro-batch ({smallest:,}) and at most the number "
            f"of samples ({len(samples):,}), got {recipe.batch_size:,}."
        )
    if recipe.sync_batchnorm and world > 1 and device.type != "cuda":
        raise InputError(f"recipe: sync_batchnorm works on GPUs only, got {device.type}; set sync_batchnorm=False.")
    outputs, names = find_head(classifier.module).classes, classifier.classes or samples.classes
    if classifier.classes is None and names is not None and len(names) == outputs:
        classifier = replace(classifier, classes=list(names))
    from_array, workers = network is not None or classifier.transform is None, loader_workers(workers, device)
    sources: dict[str, Source] = {}
    for name, samples in data.items():
        training, argument = name == "train", "DATA" if name == "train" else name
        labels = train_labels if training else all_labels(samples, argument, skip=True)
        try:
            check_samples(samples, None)
            check_label_range(labels, None, outputs)
        except InputError as error:
            raise InputError(f"{argument}: {str(error).removeprefix('DATA: ')}") from None
        mapping = class_mapping(names, samples.classes, outputs) if names else None
        y = torch.from_numpy(labels if mapping is None else mapping[labels])
        rows = _checked_targets(targets, len(y), outputs, mapping) if training and targets is not None else None
        pixels = as_pixels(samples, input_channels(classifier.module), device) if from_array else None
        sources[name] = Source(samples, y, pixels, classifier, workers, device, rows)
    train, preset = sources["train"], NETWORKS.get(classifier.name)
    # A resized crop needs the margin that the preprocessing of our networks, new or already trained, cuts off.
    if recipe.resized_crop and preset and classifier.preprocessing == describe(image_transform(preset.size)):
        train.model = replace(classifier, transform=image_transform(preset.size, margin=True))
    if network is not None and network.standardize:
        first: Any = classifier.module.get_submodule("normalise")
        if bool((first.std == 1).all()):  # otherwise it is loaded with the weights
            mean, std = mean_and_std(train.example_pixels(_MEASURED))
            first.mean.copy_(mean[:, None, None])
            first.std.copy_(std[:, None, None])
    if train.pixels is not None:
        classifier = replace(classifier, transform=None, takes="any")  # to be scored as trained: the network resizes
    return classifier, sources


def _checked_targets(targets: Any, count: int, outputs: int, mapping: np.ndarray | None) -> Tensor:
    """Target weights as float32 ``(count, outputs)``; `mapping` places the classes of the data among the outputs."""
    rows = as_tensor("targets", targets).detach().to("cpu", torch.float32, copy=True).numpy()
    shape = (count, outputs if mapping is None else len(mapping))
    if rows.shape != shape:
        raise InputError(f"targets must have one row per sample and one column per class, {shape}, got {rows.shape}.")
    for extreme in (rows.min(), rows.max()):  # both are NaN if any value is
        if not 0 <= extreme < np.inf:
            raise InputError(f"targets must be finite and 0 or more, got {extreme}.")
    if mapping is not None:
        rows, given = np.zeros((count, outputs), np.float32), rows
        rows[:, mapping] = given
    return torch.from_numpy(rows)


def _build(model: str | nn.Module | Model, samples: Samples, classes: int) -> tuple[Model, Network | None]:
    """The network to train; a named one is new and has as many outputs as the data have classes."""
    if not isinstance(model, str):
        given = as_model(model)
        return replace(given, module=uncompiled(given.module)), None
    kind, _, rest = model.partition(":")
    name = PRESETS[model].network if model in PRESETS else rest if kind == "hardsight" else model
    if name in NETWORKS:
        return new_model(f"hardsight:{name}", classes, channels=_channels(samples)), NETWORKS[name]
    if kind in ("timm", "torchvision") and rest:
        return new_model(f"{kind}:{rest.split('.')[0]}", classes), None  # timm's tags name weights
    if kind != "hardsight" and rest:
        return load_model(model), None
    raise InputError(f"MODEL: there is no {model!r}; {did_you_mean(rest or model, {**PRESETS, **NETWORKS})}")


def _channels(samples: Samples) -> int:
    """Color channels of the images: 1 if a sample of them is grayscale, otherwise 3."""
    pixels = as_pixels(samples, None, torch.device("cpu"))
    if pixels is not None and pixels.ndim != 4:
        raise InputError(f"DATA: this network takes images (channels, height, width), got {tuple(pixels.shape[1:])}.")
    if pixels is not None:
        return pixels.shape[1]
    gray = []
    for row in np.linspace(0, len(samples) - 1, min(_CHECKED_FOR_COLOR, len(samples))).astype(int).tolist():
        try:
            gray.append(getattr(samples.load(row, None)[0], "mode", "RGB") in ("1", "L"))
        except MissingColumnError:
            raise
        except Exception:  # noqa: S112 - reported later as an unreadable sample
            continue
    return 1 if gray and all(gray) else 3
