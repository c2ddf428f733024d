"""The papers' networks and how they were trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hardsight.errors import InputError
from hardsight.networks import NETWORKS
from hardsight.recipes import Recipe
from hardsight.registry import Registry, did_you_mean


@dataclass(frozen=True)
class Preset:
    """A network (its name in `hardsight.networks.NETWORKS`) and how to train it.

    `summary` says what it is for, and the choices that the paper leaves open.
    """

    network: str
    recipe: Recipe
    summary: str
    reference: str


def recipe_of(name: str) -> Recipe:
    """The recipe of a preset; for a network that is not a preset, or a model of another library, the default."""
    if name in PRESETS:
        return PRESETS[name].recipe
    if ":" not in name and name not in NETWORKS:
        raise InputError(f"there is no preset or network {name!r}; {did_you_mean(name, [*PRESETS, *NETWORKS])}")
    return Recipe()


PRESETS: Registry[Preset] = Registry("preset")


def _add(name: str, recipe: Recipe, summary: str, reference: str, network: str | None = None) -> None:
    PRESETS[name] = Preset(network or name, recipe, summary, reference)


_SMALL = Recipe(15, 64, "adamw", 0.01, weight_decay=0.05, schedule="one-cycle", warmup=4.5)
_add("small-cnn", _SMALL, "small images, all of one size, on a CPU: digits for instance", "hardsight")

_FAST = Recipe(29, 512, lr=0.8, nesterov=True, schedule="one-cycle", warmup=3.5, crop=4, flip=True)
_FAST = replace(_FAST, label_smoothing=0.1, ema=0.99, precision="bf16", channels_last=True, drop_last=True, graph=True)
_ABOUT = "CIFAR-10 fast: 29 epochs in about half a minute on one current GPU"
_add("cifar-resnet18", _FAST, _ABOUT, "hardsight", "resnet18-32")

_PHOTOS = Recipe(90, 256, weight_decay=1e-4, schedule="step", steps=(30, 60), resized_crop=True, flip=True)
_SHIFTED = replace(_PHOTOS, resized_crop=False, crop=4, warmup=1)  # from 0.1 at once ResNet-50 takes long to recover
_GUESSED = "batch 256 and weight decay 1e-4 are those of PyTorch's ImageNet example: the paper gives none"
for _name, _lr in {"alexnet": 0.01, "vgg19": 0.01, "resnet50": 0.1, "densenet121": 0.1}.items():
    _ABOUT, _AT = f"90 epochs, rate {_lr:g} ÷ 10 every 30; {_GUESSED}", "AVH (ICML 2020) §3, App. B"
    _add(_name, replace(_PHOTOS, lr=_lr), _ABOUT, _AT)
    _add(f"{_name}-32", replace(_SHIFTED, lr=_lr), f"{_ABOUT}; 32-pixel images, shifted by up to 4", _AT)

_AT = "EL (AAAI 2022), released script"
_RESNET = replace(_PHOTOS, batch_size=64, lr=0.025, nesterov=True, steps=(30, 60, 80))
_ABOUT = "ResNet-50 on CIFAR resized to 224 pixels, rate 0.025 ÷ 10 at 30, 60, 80"
_add("cifar-resnet50", _RESNET, _ABOUT, _AT, "resnet50")
_B0, _ABOUT = replace(_RESNET, batch_size=32, lr=0.0125), "EfficientNet-B0 on CIFAR"
_add("cifar-efficientnet", _B0, f"{_ABOUT} resized to 224 pixels", _AT, "efficientnet_b0")
_B0 = replace(_B0, resized_crop=False, crop=4)
_add("efficientnet_b0-32", _B0, f"{_ABOUT}: 32-pixel images, shifted by up to 4", _AT)
_B0 = Recipe(450, 768, "rmsprop", 0.048, weight_decay=1e-5, warmup=3, label_smoothing=0.1, flip=True, resized_crop=True)
_B0 = replace(_B0, schedule="step", steps=tuple(round(2.4 * k, 1) for k in range(1, 188)), step_factor=0.97)
_B0 = replace(_B0, ema=0.9999, precision="bf16", channels_last=True)
_ABOUT = "EfficientNet-B0 on ImageNet; with dropout and stochastic depth of 0.2, without RandAugment and random erasing"
_add("efficientnet", _B0, _ABOUT, _AT, "efficientnet_b0")
_MNIST = Recipe(100, 256, weight_decay=0, schedule="step", steps=(50, 64))
_ABOUT = "MNIST: rate 0.1, × 0.1 from epoch 51, × 0.01 from 65; the script declares a weight decay and never applies it"
_add("mnist-el", _MNIST, _ABOUT, _AT)
# LE as in the released commands; the paper names 0.75 for EfficientNet on ImageNet. MNIST has the normal bonus, LE = 1.
for _name in ("resnet50", "cifar-resnet50", "cifar-efficientnet", "efficientnet_b0-32", "efficientnet", "mnist-el"):
    _CE, _loss = PRESETS[_name], "el:normal" if _name == "mnist-el" else "el:0.75"
    _ABOUT, _name = f"as {_name}, with the Encouraging Loss {_loss}", _name.replace("mnist-el", "mnist-normal")
    _add(f"{_name}-el", replace(_CE.recipe, loss=_loss), _ABOUT, _AT, _CE.network)

_INAT = replace(_PHOTOS, epochs=200, batch_size=512, lr=0.2, schedule="cosine", steps=())
_ABOUT = "iNaturalist-2018: 200 epochs, rate 0.2 falling along a cosine, batch 512"
_add("inat-resnet50", _INAT, _ABOUT, "EL (AAAI 2022), released configuration", "resnet50")

_LDAM = Recipe(
    200, 128, weight_decay=2e-4, schedule="step", steps=(160, 180), step_factor=0.01, warmup=5, crop=4, flip=True
)
_ABOUT = "long-tailed CIFAR: 200 epochs, rate 0.1 after 5 of warm-up, × 0.01 at 160 and 180"
_add("cifar-lt", _LDAM, _ABOUT, "LDAM (NeurIPS 2019), released code", "resnet32-32")

_PACS = replace(_PHOTOS, epochs=30, batch_size=40, lr=1e-3, weight_decay=5e-4, schedule="constant", steps=())
_ABOUT = "PACS, rate 1e-3, batch 40, from ImageNet; the paper gives no epochs, weight decay or augmentation"
for _name in ("cnn10", "cnn9"):
    _add(f"{_name}-pacs", _PACS, _ABOUT, "AVH (ICML 2020) App. F", _name)
    _add(f"{_name}-pacs-96", _PACS, f"{_ABOUT}; 96-pixel images", "AVH (ICML 2020) App. F", f"{_name}-96")
_VISDA = Recipe(20, 16, lr=1e-5, nesterov=True, schedule="step", steps=(7, 14), resized_crop=True, flip=True)
_ABOUT = "VisDA-17: rate 1e-5 ÷ 10 every 7 epochs or rounds, batch 16, parts of 70–100%; start from ImageNet (weights)"
_AT = "CBST (ECCV 2018), CRST (ICCV 2019); settings of DRST's released code, neither paper gives them"
_add("visda", replace(_VISDA, smallest_part=0.7), _ABOUT, _AT, "visda-resnet101")

_RAMPS = Recipe(300, 128, "adam", 0.003, weight_decay=0, schedule="ramp", warmup=80, rampdown=50, loss="amc:paper,down")
_RAMPS, _AT = replace(_RAMPS, drop_last=True), "AMC-Loss (CVPRW 2020)"
_ABOUT = (
    "CIFAR-10, SVHN: 300 epochs of Adam, ramps of 80 and 50 of rate and AMC-Loss, its weight as in the paper; shift ±2"
)
_add("amc13", replace(_RAMPS, crop=2), _ABOUT, f"{_AT} §3.2")
_ABOUT = "CIFAR-100 on its 20 super-classes (--label-column coarse), as amc13: the paper reports no other labels"
_add("amc13-cifar100", replace(_RAMPS, crop=2), _ABOUT, f"{_AT} §4.2", "amc13")
_ABOUT = "MNIST: 150 epochs of Adam, ramps of 40 and 30 of rate and AMC-Loss, its weight as in the paper"
for _name in ("amc-2d", "amc-3d"):
    _add(_name, replace(_RAMPS, epochs=150, warmup=40, rampdown=30), _ABOUT, f"{_AT} App. A")
