"""How a round retrains: the recipe of a round, and the samples and targets that it trains on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.adaptation.methods import Method
from hardsight.adaptation.pseudolabels import target_rows
from hardsight.adaptation.roles import Roles
from hardsight.adaptation.thresholds import down
from hardsight.data import JoinedSamples, View
from hardsight.presets import recipe_of
from hardsight.recipes import Recipe, learning_rate
from hardsight.training.checkpoint import is_training, trained_recipe
from hardsight.training.loop import seed_of

# Rounds go on from a trained network: at this share of the rate that it was trained with.
_GENTLER = 0.1
_CONSTANT: dict[str, Any] = {"schedule": "constant", "warmup": 0.0, "steps": (), "rampdown": 0.0}


def recipe_for_rounds(model: Any, recipe: Recipe | str | None = None) -> Recipe:
    """The recipe that is given or named; otherwise as the model was trained, gently and with plain cross-entropy.

    Args:
        model: What self-training begins with.
        recipe: A recipe, the name of a preset, or None.

    Examples:
        >>> recipe_for_rounds("cifar-resnet18").lr
        0.08
    """
    if isinstance(recipe, Recipe):
        return recipe
    if recipe is not None:
        return recipe_of(recipe)
    if is_training(model):
        own = trained_recipe(Path(model))
    else:
        own = recipe_of(str(model)) if isinstance(model, (str, Path)) else Recipe()
    return replace(own, lr=round(own.lr * _GENTLER, 12), loss="ce", label_smoothing=0.0, mixup=0.0, **_CONSTANT)


def recipe_at(whole: Recipe, number: int, epochs: int, samples: int) -> Recipe:
    """The recipe of a round: at the rate that the whole schedule has when it begins.

    Args:
        whole: For all rounds together.
        number: Of the round, from 1.
        epochs: Of the round.
        samples: How many it has: a batch is not larger.

    Examples:
        >>> steps = Recipe(epochs=20, lr=1.0, schedule="step", steps=(7, 14))
        >>> [round(recipe_at(steps, number, 1, 1000).lr, 3) for number in (1, 7, 8, 15)]
        [1.0, 1.0, 0.1, 0.01]
    """
    return replace(
        whole,
        epochs=epochs,
        lr=learning_rate(whole, (number - 1) * epochs),
        batch_size=min(whole.batch_size, samples),
        seed=seed_of(whole.seed, number),
        **_CONSTANT,
    )


def to_train_on(
    roles: Roles, table: pa.Table, method: Method, portion: float, number: int, seed: int
) -> tuple[JoinedSamples, np.ndarray]:
    """What a round trains on, and a row of targets for each: some of the source, what was chosen, what is labeled.

    Args:
        roles: The data sets.
        table: What was chosen; see `selection_table`.
        method: By which method.
        portion: Of the source.
        number: Of the round.
        seed: Of the draw from the source.
    """
    chosen, classes = table.filter(pc.is_valid(table["label"])), roles.classes
    labels = chosen["label"].to_numpy()
    if method.soft:
        targets = chosen["target"].combine_chunks().flatten().to_numpy().reshape(-1, classes)
    else:
        targets = target_rows(labels, classes, method.mrkld)
    count = len(roles.source.samples)
    drawn = np.random.default_rng([seed, number]).permutation(count)[: max(1, int(down(portion * count)))]
    parts = [("source", roles.source, np.sort(drawn))]
    parts += [] if roles.labeled is None else [("labelled", roles.labeled, np.arange(len(roles.labeled.samples)))]
    labeled = {name: View(role.samples, rows, labels=role.known(rows)) for name, role, rows in parts}
    rows = np.array(roles.target.samples.find(chosen["id"].to_pylist()), dtype=np.int64)
    # The source comes first: images of other sizes are brought to its own, which the network knows.
    selected = {"source": labeled.pop("source"), "target": View(roles.target.samples, rows, labels=labels)}
    true = [target_rows(part.labels, classes) for part in (selected["source"], *labeled.values())]
    return JoinedSamples({**selected, **labeled}), np.concatenate([true[0], targets, *true[1:]])
