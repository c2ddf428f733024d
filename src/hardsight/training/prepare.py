"""Names → what to train on what: the network, and the data on the device or behind a loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.data import MissingColumnError, Samples, Source, all_labels, as_pixels, class_mapping, mean_and_std
from hardsight.devices import loader_workers
from hardsight.errors import InputError, InputTypeError
from hardsight.heads import find_head, uncompiled
from hardsight.models import Model, as_model, describe, input_channels, load_model, new_model
from hardsight.networks import NETWORKS, Network, image_transform
from hardsight.presets import PRESETS
from hardsight.recipes import Recipe
from hardsight.registry import did_you_mean
from hardsight.scoring.checks import check_label_range, check_samples, class_count
from hardsight.training.loop import seed_all, seed_of, steady
from hardsight.training.processes import Processes
from hardsight.training.weights import start_from
from hardsight.userfile import is_file_function, load_function

# So many pictures tell the mean and spread of data that are loaded one by one.
_MEASURED = 1024
# So many tell whether they have colour.
_LOOKED_AT = 32


def execute_file(model: Any, seed: int) -> None:
    """Execute the file of ``file.py:function``, once: it may register a loss, so before a recipe names that one.

    What it draws depends on the seed of the training alone.
    """
    if isinstance(model, str) and is_file_function(model):
        with steady(torch.device("cpu")):
            seed_all(seed_of(seed, 0))
            load_function(model)


def prepared(
    model: str | nn.Module | Model,
    samples: Samples,
    tested: Samples | None,
    recipe: Recipe,
    group: Processes,
    workers: int | None,
    targets: Any = None,
    weights: str | Path | None = None,
) -> tuple[Model, Source, Source | None]:
    """The network, and the data on the device or behind a loader, after every check that can be made beforehand."""
    labels = all_labels(samples, "DATA", skip=True)
    classes = class_count(samples, int(labels.max()) + 1)
    if classes < 2 or len(set(labels.tolist())) < 2:
        raise InputError("DATA: training needs two classes or more to tell apart, and all samples are of one.")
    seed_all(seed_of(recipe.seed, 0))
    found, network = _model(model, samples, classes)
    if weights is not None:
        found = replace(found, weights=start_from(found.module, weights))
    if recipe.batch_size > len(samples):
        raise InputError(
            f"recipe: batch_size must be at most the number of samples ({len(samples):,}), got {recipe.batch_size:,}."
        )
    if recipe.batch_size < 2 * group.world:
        each = f" for each of {group.world} processes" if group.world > 1 else ""
        raise InputError(f"recipe: batch_size must be at least 2{each}, got {recipe.batch_size}.")
    outputs, names = find_head(found.module).classes, found.classes or samples.classes
    if found.classes is None and names is not None and len(names) == outputs:
        found = replace(found, classes=list(names))
    workers = loader_workers(workers, group.device)

    def source(samples: Samples, labels: np.ndarray, argument: str, transform: Any, targets: Any = None) -> Source:
        try:
            check_samples(samples, None)
            check_label_range(labels, None, outputs)
        except InputError as error:
            raise InputError(f"{argument}: {str(error).removeprefix('DATA: ')}") from None
        mapping = class_mapping(names, samples.classes, outputs) if names else None
        plain = network is not None or found.transform is None
        pixels = as_pixels(samples, input_channels(found.module), group.device) if plain else None
        known = torch.from_numpy(labels if mapping is None else mapping[labels])
        rows = None if targets is None else checked_targets(targets, len(samples), outputs, mapping)
        return Source(samples, known, pixels, replace(found, transform=transform), workers, group.device, rows)

    transform, own = found.transform, NETWORKS.get(found.name)
    # A random part needs the margin that the preprocessing of our networks, new or trained before, cuts off.
    if recipe.resized_crop and own is not None and found.preprocessing == describe(image_transform(own.size)):
        transform = image_transform(own.size, margin=True)
    train = source(samples, labels, "DATA", transform, targets)
    test = None if tested is None else source(tested, all_labels(tested, "test", skip=True), "test", found.transform)
    if network is not None and network.standardize:
        first: Any = found.module.get_submodule("normalise")
        if bool((first.std == 1).all()):  # else the weights have told how
            for told, measured in zip(
                (first.mean, first.std), mean_and_std(train.example_pixels(_MEASURED)), strict=True
            ):
                told.copy_(measured[:, None, None])
    if train.pixels is not None:
        found = replace(found, transform=None, takes="any")  # so it is scored as it was trained: the network resizes
    return found, train, test


def checked_targets(targets: Any, count: int, outputs: int, mapping: np.ndarray | None = None) -> Tensor:
    """Rows of target weights, float32 ``(count, outputs)``, after every check.

    Args:
        targets: An array ``(count, C)``.
        count: Samples.
        outputs: Classes of the network.
        mapping: ``(C,)`` where the classes of the data lie among them; None: they are the same.

    Examples:
        >>> checked_targets([[0.0, 1.0]], 1, 3, np.array([2, 0]))
        tensor([[1., 0., 0.]])
    """
    try:
        rows = np.array(targets.detach().cpu().float().numpy() if isinstance(targets, Tensor) else targets, np.float32)
    except (TypeError, ValueError):
        raise InputTypeError(f"targets must be an array of numbers, got {type(targets).__name__}.") from None
    wanted = (count, outputs if mapping is None else len(mapping))
    if rows.shape != wanted:
        raise InputError(
            f"targets must have a row per sample and a column per class, shape {wanted}, got {rows.shape}."
        )
    for end in (rows.min(), rows.max()):  # NaN is both
        if not 0 <= end < np.inf:
            raise InputError(f"targets must hold finite numbers that are 0 or more, got {end}.")
    if mapping is not None:
        placed = np.zeros((count, outputs), np.float32)
        placed[:, mapping] = rows
        rows = placed
    return torch.from_numpy(rows)


def _model(model: str | nn.Module | Model, samples: Samples, classes: int) -> tuple[Model, Network | None]:
    """The network to train; a named one is new and has as many outputs as the data have classes."""
    if not isinstance(model, str):
        found = as_model(model)
        return replace(found, module=uncompiled(found.module)), None
    kind, _, rest = model.partition(":")
    name = PRESETS[model].network if model in PRESETS else rest if kind == "hardsight" else model
    if name in NETWORKS:
        return new_model(f"hardsight:{name}", classes, channels=_channels(samples)), NETWORKS[name]
    if kind in ("timm", "torchvision") and rest:
        return new_model(f"{kind}:{rest.split('.')[0]}", classes), None  # a tag of timm names weights
    if kind != "hardsight" and rest:
        return load_model(model), None
    raise InputError(f"MODEL: there is no {model!r}; {did_you_mean(rest or model, {**PRESETS, **NETWORKS})}")


def _channels(samples: Samples) -> int:
    """Colour channels of the pictures: one where all are grey, as far as some from all over the data tell."""
    pixels = as_pixels(samples, None, torch.device("cpu"))
    if pixels is not None:
        if pixels.ndim != 4:
            raise InputError(
                f"DATA: this network takes pictures (channels, height, width), got {tuple(pixels.shape[1:])}."
            )
        return pixels.shape[1]
    grey = False
    for row in np.linspace(0, len(samples) - 1, min(_LOOKED_AT, len(samples))).astype(int).tolist():
        try:
            picture = samples.load(row, None)[0]
        except MissingColumnError:
            raise
        except Exception:  # noqa: S112 - a bad row later, not a failure here
            continue
        grey = getattr(picture, "mode", "RGB") in ("1", "L")
        if not grey:
            break
    return 1 if grey else 3
