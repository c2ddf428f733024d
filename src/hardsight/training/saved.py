"""The network that a training run left."""

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
        model: What to build, where the network is not one of hardsight's.
        checkpoint: Its weights; the run's own if not given.
    """
    told = training_plan(run)["model"]
    if model is None and told["name"] not in NETWORKS:
        raise InputError(
            f"RUN: {run} does not say where {told['name']} is from; name it with --model timm:NAME, say, or "
            f"file.py:function, and --checkpoint {run / CHECKPOINT}."
        )
    found = load_model(model or f"hardsight:{told['name']}", checkpoint or run / CHECKPOINT)
    # Arrays went in as they are: the network itself resizes them.
    return replace(found, transform=None, takes="any") if told["preprocessing"].startswith("none") else found


def trained_recipe(run: Path) -> Recipe:
    """How a training run was trained, but for its loss."""
    saved = saved_settings(training_plan(run)["recipe"])
    try:
        return Recipe(**{name: value for name, value in saved.items() if name in SETTINGS})
    except InputError as error:
        raise StateError(f"RUN: {run / PLAN} is damaged: its recipe is none ({first_line(error)}).") from error


def is_training(run: Any) -> bool:
    """Whether something names the folder of a training run."""
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
    """What a training run says about itself: model, recipe and loss."""
    return read_json(run / PLAN, _Plan)
