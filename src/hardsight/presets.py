"""The papers' networks and how they were trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hardsight.errors import InputError
from hardsight.recipes import Recipe
from hardsight.registry import Registry, did_you_mean


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


def recipe_of(name: str) -> Recipe:
    """The recipe of a preset; for a network that is not a preset, or a model of another library, the default."""
    if name in PRESETS:
        return PRESETS[name].recipe
    networks = {preset.network: preset for preset in PRESETS.values()}
    if ":" not in name and name not in networks:
        raise InputError(f"there is no preset or network {name!r}; {did_you_mean(name, PRESETS | networks)}")
    return Recipe()


_PHOTOS = Recipe(90, schedule="step", steps=(30, 60), resized_crop=True, flip=True)
_FAST = Recipe(flip=True, label_smoothing=0.1, precision="bf16", channels_last=True)
_AVH = replace(_PHOTOS, batch_size=256, weight_decay=1e-4)
_AVH_32 = replace(_AVH, resized_crop=False, crop=4, warmup=1)  # from .1 at once ResNet-50 takes long to recover
_AVH_RATES = {"alexnet": 0.01, "vgg19": 0.01, "resnet50": 0.1, "densenet121": 0.1}
_CHOSEN = "batch 256 and weight decay 1e-4 are those of PyTorch's ImageNet example: the paper gives none"
_EL = replace(_AVH, batch_size=64, lr=0.025, nesterov=True, steps=(30, 60, 80))
_EL_EFFICIENTNET = replace(_EL, batch_size=32, lr=0.0125)
_EL_SCRIPT = "EL (AAAI 2022), released script"
_AMC = Recipe(
    300, 128, "adam", 0.003, weight_decay=0, schedule="ramp", warmup=80, rampdown=50, loss="amc:paper", drop_last=True
)

PRESETS: Registry[Preset] = Registry("preset")
PRESETS.update(
    {
        "small-cnn": Preset(
            "small-cnn",
            Recipe(15, 64, "adamw", 0.01, weight_decay=0.05, schedule="one-cycle", warmup=4.5),
            "small images, all of one size, on a CPU: digits for instance",
            "hardsight",
        ),
        **{
            name: Preset(
                name,
                replace(_AVH, lr=lr),
                f"90 epochs, rate {lr:g} ÷ 10 every 30; {_CHOSEN}",
                "AVH (ICML 2020) §3, App. B",
            )
            for name, lr in _AVH_RATES.items()
        },
        **{
            f"{name}-32": Preset(
                f"{name}-32",
                replace(_AVH_32, lr=lr),
                f"the same on 32-pixel images, shifted by up to 4; {_CHOSEN}",
                "AVH (ICML 2020) §3, App. B",
            )
            for name, lr in _AVH_RATES.items()
        },
        "cifar-resnet18": Preset(
            "resnet18-32",
            replace(
                _FAST,
                epochs=50,
                batch_size=512,
                lr=0.4,
                nesterov=True,
                schedule="one-cycle",
                warmup=6,
                crop=4,
                drop_last=True,
            ),
            "CIFAR-10 fast: 94.7% in about a minute on one current GPU",
            "hardsight",
        ),
        "cifar-resnet50": Preset(
            "resnet50", _EL, "ResNet-50 on CIFAR resized to 224 pixels, rate .025 ÷ 10 at 30, 60, 80", _EL_SCRIPT
        ),
        "cifar-efficientnet": Preset(
            "efficientnet_b0", _EL_EFFICIENTNET, "EfficientNet-B0 on CIFAR resized to 224 pixels", _EL_SCRIPT
        ),
        "efficientnet_b0-32": Preset(
            "efficientnet_b0-32",
            replace(_EL_EFFICIENTNET, resized_crop=False, crop=4),
            "the same on 32-pixel images, shifted by up to 4",
            _EL_SCRIPT,
        ),
        "efficientnet": Preset(
            "efficientnet_b0",
            replace(
                _FAST,
                epochs=450,
                batch_size=768,
                optimizer="rmsprop",
                lr=0.048,
                weight_decay=1e-5,
                schedule="step",
                steps=tuple(round(2.4 * k, 1) for k in range(1, 188)),
                step_factor=0.97,
                warmup=3,
                resized_crop=True,
                ema=0.9999,
            ),
            "EfficientNet-B0 on ImageNet; without RandAugment, random erasing and drop-connect of the released script",
            _EL_SCRIPT,
        ),
        "cnn10-pacs": Preset(
            "cnn10",
            replace(_PHOTOS, epochs=30, batch_size=40, lr=1e-3, schedule="constant", steps=()),
            "PACS, rate 1e-3, batch 40; epochs, weight decay and augmentation were chosen, the paper does not give "
            "them; it starts from ImageNet",
            "AVH (ICML 2020) App. F",
        ),
        "visda": Preset(
            "visda-resnet101",
            replace(_PHOTOS, epochs=20, batch_size=16, lr=1e-5, nesterov=True, steps=(7, 14), smallest_part=0.7),
            "VisDA-17: rate 1e-5 ÷ 10 every 7 epochs or rounds, batch 16, parts of 70–100%; start from ImageNet "
            "(weights)",
            "CBST (ECCV 2018), CRST (ICCV 2019); settings of DRST's released code, neither paper gives them",
        ),
        "amc13": Preset(
            "amc13",
            replace(_AMC, crop=2),
            "CIFAR-10, SVHN: 300 epochs of Adam, rate .003, ramps of 80 and 50, AMC-Loss at the paper's weight; shift "
            "±2 and no mirroring as released",
            "AMC-Loss (CVPRW 2020) §3.2",
        ),
        **{
            name: Preset(
                name,
                replace(_AMC, epochs=150, warmup=40, rampdown=30),
                "MNIST: 150 epochs of Adam, ramps of 40 and 30, AMC-Loss at the paper's weight",
                "AMC-Loss (CVPRW 2020) App. A",
            )
            for name in ("amc-2d", "amc-3d")
        },
        "mnist-el": Preset(
            "mnist-el",
            Recipe(100, 256, weight_decay=0, schedule="step", steps=(50, 64)),
            "MNIST: rate .1, × .1 from epoch 51, × .01 from 65; the released script declares a weight decay and never "
            "applies it",
            _EL_SCRIPT,
        ),
    }
)
