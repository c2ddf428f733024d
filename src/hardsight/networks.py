"""The papers' networks by name, and small forms of them for 32-pixel pictures.

Every one takes pixels in [0, 1]: its first layer resizes and standardises them, with the mean and spread of the
training data as buffers, so that a checkpoint needs nothing beside it.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.errors import InputError
from hardsight.extras import need


class Normalise(nn.Module):
    """Pixels in [0, 1] → ``size × size`` pixels with mean 0 and spread 1 in each channel.

    Args:
        mean: One number a channel.
        std: One number a channel.
        size: Pixels a side that the network takes; pictures of another size are resized.

    Examples:
        >>> Normalise([0.5], [0.25], 2)(torch.ones(1, 1, 2, 2)).flatten().tolist()
        [2.0, 2.0, 2.0, 2.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], size: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"size={self.size}"


class GaussianNoise(nn.Module):
    """Noise on the input while training, as AMC-Loss's Table 2 has it."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.spread = spread

    def forward(self, x: Tensor) -> Tensor:
        return x + self.spread * torch.randn_like(x) if self.training else x


@dataclass(frozen=True)
class Network:
    """A network that can be built by name.

    Attributes:
        name: Its name.
        build: ``(classes, channels) →`` the network itself, without its first layer.
        size: Pixels a side it takes; None: any, as long as all pictures have the same.
        summary: What it is, and what was chosen where its paper does not say.
        reference: Where it comes from.
        standardise: Whether pixels are standardised, or go in as they are.
    """

    name: str
    build: Callable[[int, int], nn.Module]
    size: int | None
    summary: str
    reference: str
    standardise: bool = True


def build_network(name: str, classes: int, channels: int = 3) -> nn.Sequential:
    """A network with new weights behind a first layer that resizes and, once it is told how, standardises pixels.

    Examples:
        >>> build_network("amc-2d", classes=10, channels=1)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    if name not in NETWORKS:
        near = difflib.get_close_matches(name, NETWORKS, 3, 0.4) or list(NETWORKS)
        raise InputError(f"MODEL: there is no network {name!r}; did you mean {' or '.join(near)}?")
    network = NETWORKS[name]
    first = Normalise([0.0] * channels, [1.0] * channels, network.size)
    return nn.Sequential(OrderedDict(normalise=first, network=network.build(classes, channels)))


def picture_transform(size: int | None, *, margin: bool = False) -> Callable[[Any], Tensor]:
    """A Pillow picture of any shape → ``(channels, size, size)`` in [0, 1]: its middle, as for ImageNet.

    With `margin` an eighth more stays around it, for random crops.
    """
    transforms = need("torchvision.transforms")
    if size is None:
        return transforms.ToTensor()
    # Of small pictures every pixel counts: the protocol's margin is for photographs.
    side = size * 8 // 7 if size >= 128 else size
    return transforms.Compose(
        [transforms.Resize(side), transforms.CenterCrop(side if margin else size), transforms.ToTensor()]
    )


# ---------------------------------------------------------------------------------------------------------------------
# torchvision's networks, and their forms for 32 pixels.


def _torchvision(name: str, classes: int, channels: int) -> nn.Module:
    network = need("torchvision.models").get_model(name, weights=None, num_classes=classes)
    if channels != 3:
        _replace_first_convolution(network, in_channels=channels)
    return network


def _visda_resnet101(classes: int, channels: int) -> nn.Module:
    network: Any = _torchvision("resnet101", classes, channels)
    network.fc = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, classes))
    return network


def _replace_first_convolution(network: nn.Module, **changed: Any) -> None:
    """The same first convolution with some of its arguments changed."""
    path, old = next((p, m) for p, m in network.named_modules() if isinstance(m, nn.Conv2d))
    kept = ("in_channels", "out_channels", "kernel_size", "stride", "padding")
    options = {name: getattr(old, name) for name in kept} | {"bias": old.bias is not None} | changed
    new = nn.Conv2d(**options)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, new)


def _small(name: str, pool: str | None, classes: int, channels: int) -> nn.Module:
    """A 3×3 stem of stride 1 without pooling: what turns a 224-pixel network into one for 32 pixels."""
    network = _torchvision(name, classes, channels)
    _replace_first_convolution(network, kernel_size=3, stride=1, padding=1)
    if pool is not None:
        parent, _, last = pool.rpartition(".")
        setattr(network.get_submodule(parent), last, nn.Identity())
    return network


def _alexnet_32(classes: int, channels: int) -> nn.Module:
    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU(inplace=True)]

    network = nn.Sequential(
        *(*conv(channels, 64, 3, 2), nn.MaxPool2d(2), *conv(64, 192, 5), nn.MaxPool2d(2)),
        *(*conv(192, 384, 3), *conv(384, 256, 3), *conv(256, 256, 3), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Dropout(), nn.Linear(256 * 2 * 2, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, classes)),
    )
    return _started(network)


def _vgg19_32(classes: int, channels: int) -> nn.Module:
    vgg = need("torchvision.models.vgg")
    network = nn.Sequential(
        *(*vgg.make_layers(vgg.cfgs["E"]), nn.Flatten()),
        *(nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(512, classes)),
    )
    if channels != 3:
        _replace_first_convolution(network, in_channels=channels)
    return _started(network)


def _started(network: nn.Sequential) -> nn.Sequential:
    """He's start for every layer but the head: from torch's own, deep networks without batch norm hardly begin."""
    for layer in network[:-1]:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # pyrefly: ignore[bad-argument-type]
    return network


# ---------------------------------------------------------------------------------------------------------------------
# Networks that only the papers describe.


def _cnn10(classes: int, channels: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for outputs in (64, 128, 256):
        layers.append(nn.MaxPool2d(2))
        for _ in range(3):
            layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            width = outputs
    layers += [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, classes))


def _leaky(inputs: int, outputs: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]


def _amc13(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(
        GaussianNoise(0.15),
        *(*_leaky(channels, 128, 3, 1), *_leaky(128, 128, 3, 1), *_leaky(128, 128, 3, 1)),
        *(nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*_leaky(128, 256, 3, 1), *_leaky(256, 256, 3, 1), *_leaky(256, 256, 3, 1)),
        *(nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*_leaky(256, 512, 3), *_leaky(512, 256, 1), *_leaky(256, 128, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)),
    )


def _amc_small(features: int, classes: int, channels: int) -> nn.Module:
    return nn.Sequential(
        *(GaussianNoise(0.15), *_leaky(channels, 64, 3, 1), nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*_leaky(64, 64, 3, 1), nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*_leaky(64, 128, 3), *_leaky(128, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(64, features), nn.Linear(features, classes)),
    )


def _mnist_el(classes: int, channels: int) -> nn.Module:
    def conv(inputs: int, padding: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 64, 3, padding=padding), nn.PReLU(), nn.BatchNorm2d(64)]

    layers: list[nn.Module] = [nn.BatchNorm2d(channels), *conv(channels, 0)]
    for count in (3, 4, 3):
        layers += [layer for _ in range(count) for layer in conv(64)] + [nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(576, 256), nn.BatchNorm1d(256), nn.Linear(256, classes, bias=False)
    )


def small_cnn(classes: int = 10, channels: int = 1) -> nn.Sequential:
    """Two convolutions and a linear head, for pictures of any one size: about 20,000 weights."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, classes)),
    )


_AVH = "Chen et al., Angular Visual Hardness (ICML 2020)"
_EL = "Zhao et al., Well-classified Examples are Underestimated (AAAI 2022)"
_AMC = "Choi et al., AMC-Loss (CVPR Workshops 2020)"
_STEM = "3×3 stem of stride 1 without max-pooling, the usual form for CIFAR"

NETWORKS = {
    network.name: network
    for network in (
        Network(
            "small-cnn",
            small_cnn,
            None,
            "two convolutions, for pictures that are all of one size, whichever; trains on a laptop in seconds",
            "hardsight",
        ),
        Network("alexnet", partial(_torchvision, "alexnet"), 224, "torchvision's AlexNet", f"{_AVH} §3"),
        Network("vgg19", partial(_torchvision, "vgg19"), 224, "torchvision's VGG-19 without batch norm", f"{_AVH} §3"),
        Network("resnet50", partial(_torchvision, "resnet50"), 224, "torchvision's ResNet-50", f"{_AVH} §3"),
        Network("densenet121", partial(_torchvision, "densenet121"), 224, "torchvision's DenseNet-121", f"{_AVH} §3"),
        Network(
            "alexnet-32",
            _alexnet_32,
            32,
            "AlexNet with its five convolutions and 4,096-wide layers; 3×3 stem of stride 2, 2×2 pools",
            f"{_AVH} App. B.2",
        ),
        Network(
            "vgg19-32",
            _vgg19_32,
            32,
            "VGG-19's sixteen convolutions, 512-wide layers; no batch norm, as the paper's: it trains at its rate of "
            ".01 from He's start, and batch norm would change the norms that are watched",
            f"{_AVH} App. B.2",
        ),
        Network("resnet50-32", partial(_small, "resnet50", "maxpool"), 32, f"ResNet-50, {_STEM}", f"{_AVH} App. B.2"),
        Network(
            "densenet121-32",
            partial(_small, "densenet121", "features.pool0"),
            32,
            f"DenseNet-121 (growth 32), {_STEM}",
            f"{_AVH} App. B.2",
        ),
        Network("resnet18-32", partial(_small, "resnet18", "maxpool"), 32, f"ResNet-18, {_STEM}", "He et al., 2016"),
        Network(
            "efficientnet_b0",
            partial(_torchvision, "efficientnet_b0"),
            224,
            "torchvision's EfficientNet-B0",
            f"{_EL} Table 1",
        ),
        Network(
            "efficientnet_b0-32",
            partial(_small, "efficientnet_b0", None),
            32,
            "EfficientNet-B0 with a 3×3 stem of stride 1",
            f"{_EL} Table 1",
        ),
        Network(
            "cnn10",
            _cnn10,
            224,
            "ten convolutions (7×7×64, then 3×3: 3×64, 3×128, 3×256), 512 features, for PACS; not said by the paper "
            "and chosen: stride 2 and padding 3 of the first, 224 pixels, average over positions before the 512",
            f"{_AVH} App. F",
        ),
        Network(
            "visda-resnet101",
            _visda_resnet101,
            224,
            "torchvision's ResNet-101 with 2048 → 512 → ReLU → classes for its head: 512 features, for VisDA-17",
            "CRST (ICCV 2019); head of DRST's released code",
        ),
        Network(
            "amc13",
            _amc13,
            32,
            "nine convolutions, three pools and a linear layer, 128 features; pixels go in as they are, because the "
            "noise of .15 is meant for them",
            f"{_AMC} Table 2, top",
            standardise=False,
        ),
        *(
            Network(
                f"amc-{features}d",
                partial(_amc_small, features),
                28,
                f"four convolutions and {features} features that can be drawn; the table lacks the projection "
                f"64 → {features}, which is linear here",
                f"{_AMC} Table 2, bottom",
                standardise=False,
            )
            for features in (2, 3)
        ),
        Network(
            "mnist-el",
            _mnist_el,
            28,
            "eleven 3×3×64 convolutions (the first without padding), PReLU and batch norm, 256 features, linear "
            "layer without bias",
            f"{_EL}, MNIST",
        ),
    )
}
