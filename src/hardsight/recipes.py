"""How to train, as data: a `Recipe`, and its learning rate as a pure function of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

from hardsight.errors import InputError
from hardsight.losses import parse_loss
from hardsight.registry import Option, Range, Registry
from hardsight.schedules import beta1_ramp, ramp_down, ramp_up

MOST_EPOCHS = 1_000_000
_POSITIVE_INT = Range(1, 2**31 - 1)
_NOT_NEGATIVE = Range(0)
_BELOW_1 = Range(0, 1, "[)")  # an average with a decay of 1 never changes


@dataclass(frozen=True)
class Recipe:
    """How to train. Times are in epochs and may be fractions; values may be texts, as from a command line.

    Attributes:
        epochs: Passes over the data.
        batch_size: Samples per step, over all processes together.
        optimizer: ``sgd``, ``adam``, ``adamw`` or ``rmsprop``.
        lr: Peak learning rate.
        momentum: Momentum of SGD and RMSProp; Adam's β₁.
        nesterov: Nesterov's momentum (SGD).
        weight_decay: Weight decay of every weight.
        schedule: ``constant``; ``step``: times `step_factor` at each of `steps`; ``cosine``: down to 0;
            ``one-cycle``: up from lr/25, then linearly down to almost 0; ``ramp``: AMC-Loss's Gaussian ramps.
        warmup: Epochs during which the rate rises.
        steps: Epochs at which the rate is multiplied (step).
        step_factor: Factor at each of the steps (step).
        rampdown: Epochs of the ramp down (ramp).
        loss: What to minimize, by name: ``ce``, ``el:0.75``, ``avh``, ``el@arcface+amc``, … (see `hardsight.losses`).
            The weight of a pair term rises with the rate, over the warmup; with ``down`` it falls over the rampdown.
        label_smoothing: Share of the target that is spread over all classes.
        mixup: α of mixup's Beta(α, α); 0 disables it.
        crop: Random shift of up to this many pixels, with reflection padding.
        resized_crop: Random resized crop.
        smallest_part: Smallest share of the image in a random resized crop.
        flip: Random horizontal flip.
        clip: Clip the gradient to this norm; 0 disables it.
        ema: Decay of the averaged weights, which are then evaluated and saved; 0 disables it.
        precision: ``float32``, or ``bf16`` (autocast).
        channels_last: Use the channels-last memory format.
        compile: Compile all parts but the head with torch.compile.
        graph: Replay each step as one CUDA graph (one GPU, data in arrays, batches of one size).
        drop_last: Drop the last incomplete batch.
        frozen_norm: Batch norm uses its running statistics and keeps them, as in eval mode; its weights still learn.
        seed: Random seed of weights, order and augmentation.
        accumulate: Micro-batches per step: each batch is split into this many parts, and their gradients are added up.
            Batch norm, mixup and pair terms use only the samples of a micro-batch.
        sync_batchnorm: Batch norm uses the samples of all processes (several GPUs; torch's SyncBatchNorm).

    Examples:
        >>> recipe = Recipe(epochs=10).replace(lr="0.01", loss="el")
        >>> recipe.lr, recipe.loss
        (0.01, 'el:0.75')
    """

    epochs: Annotated[int, Range(1, MOST_EPOCHS)] = 30
    batch_size: Annotated[int, _POSITIVE_INT] = 128
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd"
    lr: Annotated[float, _NOT_NEGATIVE] = 0.1
    momentum: Annotated[float, _BELOW_1] = 0.9
    nesterov: bool = False
    weight_decay: Annotated[float, _NOT_NEGATIVE] = 5e-4
    schedule: Literal["constant", "step", "cosine", "one-cycle", "ramp"] = "cosine"
    warmup: Annotated[float, _NOT_NEGATIVE] = 0.0
    steps: tuple[Annotated[float, _NOT_NEGATIVE], ...] = ()
    step_factor: Annotated[float, _NOT_NEGATIVE] = 0.1
    rampdown: Annotated[float, _NOT_NEGATIVE] = 0.0
    loss: str = "ce"
    label_smoothing: Annotated[float, Range(0, 1)] = 0.0
    mixup: Annotated[float, _NOT_NEGATIVE] = 0.0
    crop: Annotated[int, Range(0, 2**31 - 1)] = 0
    resized_crop: bool = False
    smallest_part: Annotated[float, Range(0.01, 1)] = 0.08
    flip: bool = False
    clip: Annotated[float, _NOT_NEGATIVE] = 0.0
    ema: Annotated[float, _BELOW_1] = 0.0
    precision: Literal["float32", "bf16"] = "float32"
    channels_last: bool = False
    compile: bool = False
    graph: bool = False
    drop_last: bool = False
    frozen_norm: bool = False
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    accumulate: Annotated[int, _POSITIVE_INT] = 1
    sync_batchnorm: bool = False

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.check(getattr(self, name), f"recipe: {name}"))
        loss = parse_loss(self.loss)
        object.__setattr__(self, "loss", str(loss))  # one name for one loss
        needing, times = ", ".join(loss.needing_indices()), f"{self.warmup:g} + {self.rampdown:g} of {self.epochs}"
        _require(
            (self.schedule == "step") == bool(self.steps),
            f"steps go with the schedule 'step', got {self.steps or 'none'} with {self.schedule!r}",
        )
        _require(
            self.warmup + self.rampdown <= self.epochs and self.warmup < self.epochs,
            f"warmup and rampdown must fit into epochs, got {times}; recipe.replace(epochs=…) rescales them",
        )
        _require(self.drop_last or not self.graph, "graph needs batches of one size; set drop_last too")
        whole = self.accumulate == 1 or not self.graph
        _require(whole, "graph replays whole batches, and accumulate splits them; set graph=False or accumulate=1")
        sgd = self.optimizer == "sgd" and self.momentum > 0
        _require(sgd or not self.nesterov, "nesterov needs the optimizer 'sgd' with a momentum")
        smoothed = loss.smoothed or not self.label_smoothing
        _require(smoothed, f"the loss {loss} takes no label smoothing; set label_smoothing=0")
        _require(not (self.mixup and needing), f"mixup blends classes, and {needing} needs one per sample; set mixup=0")
        in_time = loss.latest() < self.epochs
        _require(in_time, f"the loss {loss} changes after {loss.latest()} epochs, and epochs is {self.epochs}")
        falls = loss.pairs is not None and loss.pairs.options["down"]
        _require(self.rampdown or not falls, f"the loss {loss} lowers the weight of pairs over a rampdown, which is 0")

    def replace(self, **changes: Any) -> Recipe:
        """The recipe with some settings changed.

        If epochs change, its times (warmup, steps, rampdown) change in proportion, unless they are also given; those in
        the name of a loss do not. A change of schedule clears the steps. (`dataclasses.replace` does neither.)

        Examples:
            >>> Recipe(epochs=90, schedule="step", steps=(30, 60), warmup=3).replace(epochs=30).steps
            (10.0, 20.0)
        """
        SETTINGS.names(changes)
        ratio = SETTINGS["epochs"].check(changes.get("epochs", self.epochs), "recipe: epochs") / self.epochs
        warmup, rampdown, *steps = (round(ratio * time, 9) for time in (self.warmup, self.rampdown, *self.steps))
        if changes.get("schedule", "step") != "step":
            steps = []
        return replace(self, **{"warmup": warmup, "rampdown": rampdown, "steps": tuple(steps), **changes})


def _require(condition: object, sentence: str) -> None:
    if not condition:
        raise InputError(f"recipe: {sentence}.")


_hints = get_type_hints(Recipe, include_extras=True)
SETTINGS: Registry[Option] = Registry("recipe setting")
SETTINGS.update({field.name: Option.of(field.name, _hints[field.name], field.default) for field in fields(Recipe)})


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """``["flip=true", "steps=30,60"]``, as from a command line, for `Recipe.replace`."""
    return {name: value for name, _, value in (setting.partition("=") for setting in settings)}


def saved_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that a run saved, under their current names."""
    return {"optimizer" if name == "optimiser" else name: value for name, value in saved.items()}


def learning_rate(recipe: Recipe, time: float) -> float:
    """The learning rate after a number of epochs (fractional within one).

    Examples:
        >>> r = Recipe(epochs=90, schedule="step", steps=(30, 60), lr=0.1)
        >>> [round(learning_rate(r, t), 6) for t in (0, 29.99, 30, 60)]
        [0.1, 0.1, 0.01, 0.001]
    """
    r, left = recipe, recipe.epochs - recipe.warmup
    if r.schedule == "one-cycle":
        if time < r.warmup:
            return r.lr * (1 / 25 + (1 - 1 / 25) * time / r.warmup)
        return r.lr * (1 + (1 / 250_000 - 1) * (time - r.warmup) / left)
    if r.schedule == "ramp":  # per whole epoch, counted from 1, as in AMC-Loss's Algorithm 1
        epoch = math.floor(time) + 1
        return r.lr * ramp_up(epoch, r.warmup) * ramp_down(epoch, r.epochs, r.rampdown)
    warm = min(1.0, time / r.warmup) if r.warmup else 1.0
    if r.schedule == "step":
        return r.lr * warm * r.step_factor ** sum(time >= step - 1e-9 for step in r.steps)
    if r.schedule == "cosine" and time >= r.warmup:
        return r.lr * 0.5 * (1 + math.cos(math.pi * (time - r.warmup) / left))
    return r.lr * warm


def momentum_at(recipe: Recipe, time: float) -> float:
    """The momentum after a number of epochs: AMC-Loss lowers Adam's β₁ to 0.5 while it ramps down the rate."""
    if recipe.schedule != "ramp":
        return recipe.momentum
    return beta1_ramp(math.floor(time) + 1, recipe.epochs, recipe.rampdown, recipe.momentum)
