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
_BELOW_1 = Range(0, 1, "[)")  # an average with a decay of 1 never takes in anything new


@dataclass(frozen=True)
class Recipe:
    """How to train. Times are in epochs and may be fractions.

    Values may be texts, as a command line or a configuration file has them: ``lr="1e-3"``, ``steps="30,60"``.

    Attributes:
        epochs: Passes over the data.
        batch_size: Samples per step, over all processes together.
        optimizer: ``sgd``, ``adam``, ``adamw`` or ``rmsprop``.
        lr: Peak learning rate.
        momentum: Of SGD and RMSProp; Adam's β₁.
        nesterov: Nesterov's momentum (SGD).
        weight_decay: On every weight.
        schedule: ``constant``; ``step``: times `step_factor` at each of `steps`; ``cosine``: down to 0;
            ``one-cycle``: up from lr/25, then linearly down to almost 0; ``ramp``: AMC-Loss's Gaussian ramps.
        warmup: Epochs in which the rate rises.
        steps: Epochs at which the rate is multiplied (step).
        step_factor: Factor at each of the steps (step).
        rampdown: Epochs of the ramp down (ramp).
        loss: What to minimize, by name: ``ce``, ``el:0.75``, ``avh``, ``el@arcface+amc``, …: `hardsight.losses`. The
            weight of a pair term rises with the rate, over the warmup.
        label_smoothing: Share of the target that is spread over all classes.
        mixup: α of mixup's Beta(α, α); 0 disables it.
        crop: Random shift of up to so many pixels, with reflection padding.
        resized_crop: Random resized crop.
        smallest_part: Smallest share of the image in a random resized crop.
        flip: Random horizontal flip.
        clip: Clip the gradient to this norm; 0 disables it.
        ema: Decay of the averaged weights, which are then evaluated and saved; 0 disables it.
        precision: ``float32``, or ``bf16`` (autocast).
        channels_last: Use the channels-last memory format.
        compile: `torch.compile` of all parts but the head.
        graph: Replay each step as one CUDA graph (one GPU, data that are arrays, batches of one size).
        drop_last: Drop the last incomplete batch.
        frozen_norm: Batch norm uses its running statistics and keeps them, as in eval mode; its weights still learn.
        seed: Of weights, order and augmentation.
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

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.check(getattr(self, name), f"recipe: {name}"))
        if (self.schedule == "step") != bool(self.steps):
            raise InputError(
                "recipe: steps, the epochs at which the rate falls, go with the schedule 'step', got "
                f"{self.steps or 'none'} with {self.schedule!r}."
            )
        if self.warmup + self.rampdown > self.epochs or self.warmup >= self.epochs:
            raise InputError(
                f"recipe: warmup and rampdown must fit into epochs, got {self.warmup:g} + {self.rampdown:g} of "
                f"{self.epochs}; recipe.replace(epochs=…) rescales them."
            )
        if self.graph and not self.drop_last:
            raise InputError("recipe: graph needs batches of one size; set drop_last too.")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise InputError("recipe: nesterov needs the optimizer 'sgd' with a momentum.")
        self._check_loss()

    def replace(self, **changes: Any) -> Recipe:
        """The recipe with some settings changed.

        With other epochs the times in it (warmup, steps, rampdown) change in proportion, unless they are given too;
        those in the name of a loss do not. Another schedule has no steps. (`dataclasses.replace` does neither.)

        Examples:
            >>> Recipe(epochs=90, schedule="step", steps=(30, 60), warmup=3).replace(epochs=30).steps
            (10.0, 20.0)
        """
        SETTINGS.names(changes)
        ratio = SETTINGS["epochs"].check(changes.get("epochs", self.epochs), "recipe: epochs") / self.epochs
        if ratio != 1:
            times = {"warmup": ratio * self.warmup, "rampdown": ratio * self.rampdown}
            changes = {**times, "steps": tuple(ratio * step for step in self.steps), **changes}
        if changes.get("schedule", "step") != "step":
            changes = {"steps": (), **changes}
        return replace(self, **changes)

    def _check_loss(self) -> None:
        name = parse_loss(self.loss)
        object.__setattr__(self, "loss", str(name))  # one name for one loss
        if self.label_smoothing and not name.smoothed:
            got = f"label_smoothing {self.label_smoothing:g}"
            raise InputError(f"recipe: the loss {name} takes no label smoothing, got {got}; set label_smoothing=0.")
        if self.mixup and (sharp := name.needing_indices()):
            raise InputError(f"recipe: mixup blends classes, and {sharp[0]} needs one class per sample; set mixup=0.")
        if name.latest() >= self.epochs:
            raise InputError(
                f"recipe: the loss {name} changes after {name.latest()} epochs, and epochs is {self.epochs}; it must "
                "change earlier."
            )
        if name.pairs is not None and name.pairs.options["down"] and not self.rampdown:
            raise InputError(f"recipe: the loss {name} lowers the weight of pairs over the rampdown, which is 0.")


SETTINGS: Registry[Option] = Registry("recipe setting")
_hints = get_type_hints(Recipe, include_extras=True)
SETTINGS.update({field.name: Option.of(field.name, _hints[field.name], field.default) for field in fields(Recipe)})


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Settings as a command line has them, for `Recipe.replace`.

    Examples:
        >>> Recipe().replace(**parse_settings(["epochs=90", "schedule=step", "steps=30,60", "flip=true"])).steps
        (30.0, 60.0)
    """
    return {name: value for name, _, value in (setting.partition("=") for setting in settings)}


def saved_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe that a run saved, under the names of today."""
    renamed = {"optimiser": "optimizer"}
    return {renamed.get(name, name): value for name, value in saved.items()}


def learning_rate(recipe: Recipe, time: float) -> float:
    """The learning rate after so many epochs (a fraction inside one).

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
    if r.schedule == "ramp":  # per whole epoch, as AMC-Loss has it
        epoch = math.floor(time)
        return r.lr * ramp_up(epoch, r.warmup) * ramp_down(epoch, r.epochs, r.rampdown)
    warm = min(1.0, time / r.warmup) if r.warmup else 1.0
    if r.schedule == "step":
        return r.lr * warm * r.step_factor ** sum(time >= step - 1e-9 for step in r.steps)
    if r.schedule == "cosine" and time >= r.warmup:
        return r.lr * 0.5 * (1 + math.cos(math.pi * (time - r.warmup) / left))
    return r.lr * warm


def momentum_at(recipe: Recipe, time: float) -> float:
    """The momentum after so many epochs: AMC-Loss lowers Adam's β₁ to .5 while it ramps down the rate."""
    if recipe.schedule != "ramp":
        return recipe.momentum
    return beta1_ramp(math.floor(time), recipe.epochs, recipe.rampdown, recipe.momentum)
