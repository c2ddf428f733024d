"""How to train, as data: a `Recipe`, and its learning rate as a pure function of time.

No torch here: the command reads recipes before anything is imported.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from hardsight.errors import InputError, InputTypeError
from hardsight.extras import printable
from hardsight.losses import parse_loss
from hardsight.schedules import beta1_ramp, ramp_down, ramp_up

Optimiser = Literal["sgd", "adam", "adamw", "rmsprop"]
Schedule = Literal["constant", "step", "cosine", "one-cycle", "ramp"]
MOST_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Recipe:
    """How to train. Times are in epochs and may be fractions.

    Attributes:
        epochs: Passes over the data.
        batch_size: Samples a step, over all processes together.
        optimiser: ``sgd``, ``adam``, ``adamw`` or ``rmsprop``.
        lr: Largest learning rate.
        momentum: Of SGD and RMSProp; Adam's β₁.
        nesterov: Nesterov's momentum (SGD).
        weight_decay: On every weight.
        schedule: ``constant``; ``step``: times `step_factor` at each of `steps`; ``cosine``: to 0; ``one-cycle``: up
            from a 25th and linearly down to next to 0; ``ramp``: AMC-Loss's Gaussian ramps up and down.
        warmup: Epochs in which the rate rises.
        steps: When the rate is multiplied (step).
        step_factor: By what.
        rampdown: Epochs of the ramp down (ramp).
        loss: What to minimise, by name: ``ce``, ``el:0.75``, ``avh``, ``el@arcface+amc``, …: `hardsight.losses`. The
            weight of pairs rises with the rate, over the `warmup`.
        label_smoothing: Share of a target that is spread over all classes.
        mixup: α of the mixing share's Beta(α, α); 0: none.
        crop: Pixels by which pictures are shifted at most, mirrored at the edge.
        resized_crop: A random part of the picture, resized.
        smallest_part: Smallest share of the picture in a random part.
        flip: Mirror half of the pictures.
        clip: Largest norm of the gradient; 0: none.
        ema: Decay of the averaged weights that are then evaluated and kept; 0: none.
        precision: ``float32``, or ``bf16`` (autocast).
        channels_last: Memory format.
        compile: `torch.compile` of all parts but the head.
        graph: Replay each step as one CUDA graph (one GPU, data that are arrays, batches of one size).
        drop_last: Leave out the last, smaller batch.
        frozen_norm: Batch norm keeps its running statistics and uses them, as in eval mode; its weights still learn.
        seed: Of weights, order and augmentation.
    """

    epochs: int = 30
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: Schedule = "cosine"
    warmup: float = 0.0
    steps: tuple[float, ...] = ()
    step_factor: float = 0.1
    rampdown: float = 0.0
    loss: str = "ce"
    label_smoothing: float = 0.0
    mixup: float = 0.0
    crop: int = 0
    resized_crop: bool = False
    smallest_part: float = 0.08
    flip: bool = False
    clip: float = 0.0
    ema: float = 0.0
    precision: Literal["float32", "bf16"] = "float32"
    channels_last: bool = False
    compile: bool = False
    graph: bool = False
    drop_last: bool = False
    frozen_norm: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for part in fields(self):
            object.__setattr__(self, part.name, _of_its_type(part.name, getattr(self, part.name), type(part.default)))
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                near = difflib.get_close_matches(str(value), choices, 1, 0.4)
                hint = f"; did you mean {near[0]}?" if near else "."
                raise InputError(f"recipe: {name} must be one of {', '.join(choices)}, got {value!r}{hint}")
        for name, (low, high) in _RANGES.items():
            value, below = getattr(self, name), name in _BELOW
            if not low <= value <= high or (below and value == high) or value == math.inf:
                low, high = (f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (low, high))
                ends = f"{low} or more" if high == "inf" else f"between {low} and {high}"
                ends = f"{low} or more and less than {high}" if below else ends
                ends = f"{ends} and finite" if value == math.inf and high == "inf" else ends
                raise InputError(
                    f"recipe: {name} must be {'an integer ' if _PARTS[name] is int else ''}{ends}, got {value!r}."
                )
        if any(not 0 <= step < math.inf for step in self.steps):
            raise InputError(f"recipe: steps must be 0 or more and finite, got {self.steps!r}.")
        if self.schedule == "step" and not self.steps:
            raise InputError("recipe: the schedule 'step' needs steps, the epochs at which the rate falls, got none.")
        if self.steps and self.schedule != "step":
            raise InputError(f"recipe: steps go with the schedule 'step', got {self.schedule!r}.")
        if self.warmup + self.rampdown > self.epochs:
            raise InputError(
                f"recipe: warmup and rampdown must fit into epochs, got {self.warmup:g} + {self.rampdown:g} of "
                f"{self.epochs}{_RESCALED}"
            )
        if self.warmup >= self.epochs:
            raise InputError(
                f"recipe: warmup must be shorter than epochs ({self.epochs}), got {self.warmup:g}{_RESCALED}"
            )
        if self.graph and not self.drop_last:
            raise InputError("recipe: graph needs batches of one size; set drop_last too.")
        if self.nesterov and (self.optimiser != "sgd" or not self.momentum):
            raise InputError("recipe: nesterov needs the optimiser 'sgd' with a momentum.")
        self._check_loss()

    def replace(self, **changes: Any) -> Recipe:
        """The recipe with some parts changed.

        With other epochs the times in it (warmup, steps, rampdown) change in proportion, unless they are given too;
        those in the name of a loss do not. (`dataclasses.replace` leaves them as they are.)

        Examples:
            >>> Recipe(epochs=90, schedule="step", steps=(30, 60), warmup=3).replace(epochs=30).steps
            (10.0, 20.0)
        """
        if unknown := [name for name in changes if name not in _PARTS]:
            raise InputError(f"recipe: there is no {printable(unknown[0])!r}; {_near(unknown[0])}")
        epochs = _of_its_type("epochs", changes.get("epochs", self.epochs), int)
        if epochs != self.epochs:
            longer = min(epochs, MOST_EPOCHS) / self.epochs  # what is more is refused below
            times = {"warmup": longer * self.warmup, "rampdown": longer * self.rampdown}
            changes = {**times, "steps": tuple(longer * step for step in self.steps), **changes}
        return replace(self, **changes)

    def _check_loss(self) -> None:
        name = parse_loss(self.loss)
        object.__setattr__(self, "loss", str(name))  # one name for one loss
        if self.label_smoothing and not name.objective.part.smoothed:
            got = f"label_smoothing {self.label_smoothing:g}"
            raise InputError(f"recipe: the loss {name} takes no label smoothing, got {got}; set label_smoothing=0.")
        if self.mixup and (sharp := name.needing_indices()):
            raise InputError(f"recipe: mixup blends classes, and {sharp[0]} needs one class a sample; set mixup=0.")
        if name.latest() >= self.epochs:
            raise InputError(
                f"recipe: the loss {name} changes after {name.latest()} epochs, and epochs is {self.epochs}; it must "
                "change earlier."
            )
        if name.pairs is not None and name.pairs.options["down"] and not self.rampdown:
            raise InputError(f"recipe: the loss {name} lowers the weight of pairs over the rampdown, which is 0.")


_PARTS: dict[str, Any] = {part.name: type(part.default) for part in fields(Recipe)}
_RESCALED = "; recipe.replace(epochs=…) rescales the times of a recipe."


def _near(name: str) -> str:
    near = difflib.get_close_matches(name, _PARTS, 2, 0.4)
    return f"did you mean {' or '.join(near)}?" if near else f"names are {', '.join(_PARTS)}."


def _of_its_type(name: str, value: Any, kind: type) -> Any:
    """A value as a recipe holds it, or a sentence where it is of another type."""
    if kind is tuple and isinstance(value, (tuple, list)):
        return tuple(_of_its_type(name, step, float) for step in value)
    if not isinstance(value, (bool, int, float, str)) and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        value = value.item()  # a number of NumPy or torch
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number if kind in (int, float) else isinstance(value, kind)):
        raise InputTypeError(f"recipe: {name} must be {_WORDS[kind]}, got {printable(repr(value))[:80]}.")
    if kind is int and isinstance(value, float):
        if not value.is_integer():
            raise InputError(f"recipe: {name} must be an integer, got {value!r}.")
        return int(value)
    if kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
        raise InputError(f"recipe: {name} must be finite, got a number of {value.bit_length():,} bits.")
    return value


_CHOICES = {
    "optimiser": ("sgd", "adam", "adamw", "rmsprop"),
    "schedule": ("constant", "step", "cosine", "one-cycle", "ramp"),
    "precision": ("float32", "bf16"),
}
# Ends belong to the range, but for the upper one of those `_BELOW` it.
_RANGES: dict[str, tuple[float, float]] = {
    "epochs": (1, MOST_EPOCHS),
    "batch_size": (1, 2**31 - 1),
    "lr": (0.0, math.inf),
    "momentum": (0.0, 1.0),
    "weight_decay": (0.0, math.inf),
    "warmup": (0.0, math.inf),
    "step_factor": (0.0, math.inf),
    "rampdown": (0.0, math.inf),
    "label_smoothing": (0.0, 1.0),
    "mixup": (0.0, math.inf),
    "crop": (0, 2**31 - 1),
    "smallest_part": (0.01, 1.0),
    "clip": (0.0, math.inf),
    "ema": (0.0, 1.0),
    "seed": (0, 2**63 - 1),
}
_BELOW = ("momentum", "ema")  # an average that never takes in anything new


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


def changed(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """A recipe with some parts changed as `Recipe.replace` does it, given as on a command line.

    Examples:
        >>> changed(Recipe(), ["epochs=90", "schedule=step", "steps=30,60", "flip=true"]).steps
        (30.0, 60.0)
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in _PARTS:
            raise InputError(f"recipe: expected NAME=VALUE, got {setting!r}; {_near(name)}")
        kind = _PARTS[name]
        try:
            changes[name] = _READERS[kind](text.strip())
        except (ValueError, KeyError):
            raise InputError(f"recipe: {name} must be {_WORDS[kind]}, got {text!r}.") from None
    return recipe.replace(**changes)


_READERS: dict[type, Callable[[str], Any]] = {
    bool: lambda text: {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()],
    int: int,
    float: float,
    str: str,
    tuple: lambda text: tuple(float(part) for part in text.split(",") if part),
}
_WORDS = {
    str: "a name",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    tuple: "numbers with commas between them",
}
