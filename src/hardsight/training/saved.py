"""Read a training run: its network, recipe and plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from hardsight.errors import InputError, StateError
from hardsight.extras import first_line
from hardsight.models import Model, load_model
from hardsight.networks import NETWORKS
from hardsight.recipes import SETTINGS, Recipe, saved_settings
from hardsight.training.checkpoint import CHECKPOINT, PLAN
from hardsight.untrusted import read_json


def trained_model(run: Path, model: str | None = None, checkpoint: Path | None = None) -> Model:
    """The network of a training run with the weights of its last epoch.

    Args:
        run: The folder.
        model: The network to build, if it is not one of hardsight's.
        checkpoint: Its weights; those of the run if not given.
    """
    info = training_plan(run)["model"]
    if model is None and info["name"] not in NETWORKS:
        raise InputError(
            f"RUN: {run} does not say where {info['name']} comes from; name it, for example with --model timm:NAME or "
            f"file.py:function, and --checkpoint {run / CHECKPOINT}."
        )
    trained = load_model(model or f"hardsight:{info['name']}", checkpoint or run / CHECKPOINT)
    # Trained on arrays: the network resizes them itself.
    return replace(trained, transform=None, takes="any") if info["preprocessing"].startswith("none") else trained


def trained_recipe(run: Path) -> Recipe:
    """The recipe of a training run, except its loss."""
    saved = saved_settings(training_plan(run)["recipe"])
    try:
        return Recipe(**{name: value for name, value in saved.items() if name in SETTINGS})
    except InputError as error:
        raise StateError(f"RUN: {run / PLAN} is damaged: its recipe is invalid ({first_line(error)}).") from error


def is_training(run: Any) -> bool:
    """Whether this is the folder of a training run."""
    return isinstance(run, (str, Path)) and (Path(run) / PLAN).is_file()


class _Model(TypedDict):
    name: str
    preprocessing: str


class _Recipe(TypedDict):
    epochs: int
    seed: int
    batch_size: NotRequired[int]
    steps: NotRequired[list[float]]


class _Plan(TypedDict):
    model: _Model
    recipe: _Recipe
    loss: NotRequired[str | None]


def training_plan(run: Path) -> dict[str, Any]:
    """The stored plan of a training run: model, recipe and loss."""
    return read_json(run / PLAN, _Plan)
