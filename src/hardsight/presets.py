"""The papers' networks and how they were trained. No torch here: the command reads presets before importing it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from hardsight.errors import InputError
from hardsight.recipes import Recipe


@dataclass(frozen=True)
class Preset:
    """A network and how to train it.

    Attributes:
        network: Name in `hardsight.networks.NETWORKS`.
        recipe: How to train it.
        summary: What it is for, and what was chosen where the paper does not say.
        reference: Where it comes from.
    """

    network: str
    recipe: Recipe
    summary: str
    reference: str


_PAPER = Recipe(
    epochs=90, batch_size=256, lr=0.1, weight_decay=1e-4, schedule="step", steps=(30, 60), resized_crop=True, flip=True
)
_PAPER_32 = replace(_PAPER, resized_crop=False, crop=4, warmup=1)  # from .1 at once ResNet-50 takes long to recover
_AVH = "AVH (ICML 2020) §3, App. B"
_CHOSEN = "batch 256 and weight decay 1e-4 are PyTorch's ImageNet example, the paper does not say"
_EL_CIFAR = Recipe(
    epochs=90,
    batch_size=64,
    lr=0.025,
    nesterov=True,
    weight_decay=1e-4,
    schedule="step",
    steps=(30, 60, 80),
    resized_crop=True,
    flip=True,
)
_AMC = Recipe(
    epochs=300,
    batch_size=128,
    optimiser="adam",
    lr=0.003,
    weight_decay=0.0,
    schedule="ramp",
    warmup=80,
    rampdown=50,
    loss="amc:paper",
    crop=2,
    drop_last=True,
)
_AMC_SMALL = replace(_AMC, epochs=150, warmup=40, rampdown=30, crop=0)

PRESETS = {
    "small-cnn": Preset(
        "small-cnn",
        Recipe(15, 64, "adamw", lr=0.01, weight_decay=0.05, schedule="one-cycle", warmup=4.5),
        "small pictures, all of one size, on a CPU: digits for instance",
        "hardsight",
    ),
    **{
        name: Preset(name, replace(_PAPER, lr=lr), f"90 epochs, rate {lr:g} ÷ 10 every 30; {_CHOSEN}", _AVH)
        for name, lr in (("alexnet", 0.01), ("vgg19", 0.01), ("resnet50", 0.1), ("densenet121", 0.1))
    },
    **{
        name: Preset(
            name, replace(_PAPER_32, lr=lr), f"the same on 32-pixel pictures, shifted by up to 4; {_CHOSEN}", _AVH
        )
        for name, lr in (("alexnet-32", 0.01), ("vgg19-32", 0.01), ("resnet50-32", 0.1), ("densenet121-32", 0.1))
    },
    "cifar-resnet18": Preset(
        "resnet18-32",
        Recipe(
            epochs=50,
            batch_size=512,
            lr=0.4,
            nesterov=True,
            weight_decay=5e-4,
            schedule="one-cycle",
            warmup=6,
            label_smoothing=0.1,
            crop=4,
            flip=True,
            drop_last=True,
            precision="bf16",
            channels_last=True,
        ),
        "CIFAR-10 fast: 94.7 % in about a minute on one current GPU",
        "hardsight",
    ),
    "cifar-resnet50": Preset(
        "resnet50",
        _EL_CIFAR,
        "ResNet-50 on CIFAR resized to 224 pixels, rate .025 ÷ 10 at 30, 60, 80",
        "EL (AAAI 2022), released script",
    ),
    "cifar-efficientnet": Preset(
        "efficientnet_b0",
        replace(_EL_CIFAR, batch_size=32, lr=0.0125),
        "EfficientNet-B0 on CIFAR resized to 224 pixels",
        "EL (AAAI 2022), released script",
    ),
    "efficientnet_b0-32": Preset(
        "efficientnet_b0-32",
        replace(_EL_CIFAR, batch_size=32, lr=0.0125, resized_crop=False, crop=4),
        "the same on 32-pixel pictures, shifted by up to 4",
        "EL (AAAI 2022), released script",
    ),
    "efficientnet": Preset(
        "efficientnet_b0",
        Recipe(
            epochs=450,
            batch_size=768,
            optimiser="rmsprop",
            lr=0.048,
            weight_decay=1e-5,
            schedule="step",
            steps=tuple(round(2.4 * k, 1) for k in range(1, 188)),
            step_factor=0.97,
            warmup=3,
            label_smoothing=0.1,
            resized_crop=True,
            flip=True,
            ema=0.9999,
            precision="bf16",
            channels_last=True,
        ),
        "EfficientNet-B0 on ImageNet; without RandAugment, random erasing and drop-connect of the released script",
        "EL (AAAI 2022), released script",
    ),
    "cnn10-pacs": Preset(
        "cnn10",
        Recipe(epochs=30, batch_size=40, lr=1e-3, weight_decay=5e-4, schedule="constant", resized_crop=True, flip=True),
        "PACS, rate 1e-3, batch 40; epochs, weight decay and augmentation are not said by the paper and chosen; the "
        "paper starts from ImageNet",
        "AVH (ICML 2020) App. F",
    ),
    "visda": Preset(
        "visda-resnet101",
        Recipe(
            epochs=20,
            batch_size=16,
            lr=1e-5,
            nesterov=True,
            weight_decay=5e-4,
            schedule="step",
            steps=(7, 14),
            resized_crop=True,
            smallest_part=0.7,
            flip=True,
        ),
        "VisDA-17: rate 1e-5 ÷ 10 every 7 epochs or rounds, batch 16, parts of 70–100 %; start from ImageNet (weights)",
        "CBST (ECCV 2018), CRST (ICCV 2019); settings of DRST's released code, neither paper gives them",
    ),
    "amc13": Preset(
        "amc13",
        _AMC,
        "CIFAR-10, SVHN: 300 epochs of Adam, rate .003, ramps of 80 and 50, AMC-Loss at the paper's weight; shift ±2 "
        "and no mirroring as released",
        "AMC-Loss (CVPRW 2020) §3.2",
    ),
    **{
        name: Preset(
            name,
            _AMC_SMALL,
            "MNIST: 150 epochs of Adam, ramps of 40 and 30, AMC-Loss at the paper's weight",
            "AMC-Loss (CVPRW 2020) App. A",
        )
        for name in ("amc-2d", "amc-3d")
    },
    "mnist-el": Preset(
        "mnist-el",
        Recipe(epochs=100, batch_size=256, lr=0.1, weight_decay=0.0, schedule="step", steps=(50, 64)),
        "MNIST: rate .1, × .1 from epoch 51, × .01 from 65; the released script declares a weight decay and never "
        "applies it",
        "EL (AAAI 2022), released script",
    ),
}


def recipe_of(name: str) -> Recipe:
    """The recipe of a preset; for a network that is no preset, or a model of another library, the ordinary one."""
    if name in PRESETS:
        return PRESETS[name].recipe
    networks = {preset.network for preset in PRESETS.values()}
    if ":" not in name and name not in networks:
        near = dict.fromkeys(difflib.get_close_matches(name, [*PRESETS, *networks], 3, 0.4))
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PRESETS)}."
        raise InputError(f"there is no preset or network {name!r}; {hint}")
    return Recipe()
