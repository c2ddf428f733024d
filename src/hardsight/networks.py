"""The papers' networks by name, and small forms of them for 32-pixel images.

Every network takes pixels in [0, 1]: its first layer resizes and standardizes them, with the mean and standard
deviation of the training data as buffers, so that a checkpoint is complete.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.extras import need
from hardsight.registry import Registry


class Normalize(nn.Module):
    """Pixels in [0, 1] → ``size × size`` pixels with mean 0 and standard deviation 1 in each channel.

    Args:
        mean: One number per channel.
        std: One number per channel.
        size: Pixels per side that the network takes; images of another size are resized.

    Examples:
        >>> Normalize([0.5], [0.25], 2)(torch.ones(1, 1, 2, 2)).flatten().tolist()
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
    """Noise on the input during training, as in Table 2 of AMC-Loss."""

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
        size: Pixels per side that it takes; None: any, as long as all images have the same.
        summary: What it is, and the choices that its paper leaves open.
        reference: Where it comes from.
        standardize: Whether pixels are standardized, or go in as they are.
    """

    name: str
    build: Callable[[int, int], nn.Module]
    size: int | None
    summary: str
    reference: str
    standardize: bool = True


NETWORKS: Registry[Network] = Registry("network", Network)


def build_network(name: str, classes: int, channels: int = 3) -> nn.Sequential:
    """A network with new weights behind a first layer that resizes and, once its buffers are set, standardizes pixels.

    Examples:
        >>> build_network("amc-2d", classes=10, channels=1)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    network = NETWORKS[name]
    first = Normalize([0.0] * channels, [1.0] * channels, network.size)
    # Checkpoints hold these names.
    return nn.Sequential(OrderedDict(normalise=first, network=network.build(classes, channels)))


def image_transform(size: int | None, *, margin: bool = False) -> Callable[[Any], Tensor]:
    """A Pillow image of any shape → ``(channels, size, size)`` in [0, 1]: its center crop, as for ImageNet.

    With `margin` an eighth more stays around it, for random crops.
    """
    transforms = need("torchvision.transforms")
    if size is None:
        return transforms.ToTensor()
    # Every pixel of a small image counts: the protocol's margin is for photographs.
    side = size * 8 // 7 if size >= 128 else size
    return transforms.Compose(
        [transforms.Resize(side), transforms.CenterCrop(side if margin else size), transforms.ToTensor()]
    )


_AVH = "Chen et al., Angular Visual Hardness (ICML 2020)"
_EL = "Zhao et al., Well-classified Examples are Underestimated (AAAI 2022)"
_AMC = "Choi et al., AMC-Loss (CVPR Workshops 2020)"


def small_cnn(classes: int = 10, channels: int = 1) -> nn.Sequential:
    """Two convolutions and a linear head, for images of any one size: about 20,000 weights."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, classes)),
    )


NETWORKS.register(
    "small-cnn",
    size=None,
    summary="two convolutions, for images that are all of one size, whichever; trains on a laptop in seconds",
    reference="hardsight",
)(small_cnn)


@NETWORKS.register(
    "strided-cnn",
    size=32,
    summary="three convolutions of stride 2 and 128 features: learns color images of 32 pixels on a CPU in a minute",
    reference="hardsight",
)
def _strided_cnn(classes: int, channels: int) -> nn.Sequential:
    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*conv(channels, 32), *conv(32, 64), *conv(64, 128)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


# ---------------------------------------------------------------------------------------------------------------------
# torchvision's networks, and their forms for 32 pixels.


def _torchvision(name: str, classes: int, channels: int) -> nn.Module:
    network = need("torchvision.models").get_model(name, weights=None, num_classes=classes)
    if channels != 3:
        _replace_first_convolution(network, in_channels=channels)
    return network


def _replace_first_convolution(network: nn.Module, **changes: Any) -> None:
    """The same first convolution with some arguments changed."""
    path, old = next((p, m) for p, m in network.named_modules() if isinstance(m, nn.Conv2d))
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding")
    new = nn.Conv2d(**{name: getattr(old, name) for name in names} | {"bias": old.bias is not None} | changes)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    network.set_submodule(path, new)


def _small(name: str, pool: str | None, classes: int, channels: int) -> nn.Module:
    """A 3×3 stem of stride 1 without pooling: what turns a 224-pixel network into one for 32 pixels."""
    network = _torchvision(name, classes, channels)
    _replace_first_convolution(network, kernel_size=3, stride=1, padding=1)
    if pool is not None:
        network.set_submodule(pool, nn.Identity())
    return network


_STEM = "3×3 stem of stride 1 without max-pooling, the usual form for CIFAR"
for _name, _title, _where in (
    ("alexnet", "AlexNet", f"{_AVH} §3"),
    ("vgg19", "VGG-19 without batch norm", f"{_AVH} §3"),
    ("resnet50", "ResNet-50", f"{_AVH} §3"),
    ("densenet121", "DenseNet-121", f"{_AVH} §3"),
    ("efficientnet_b0", "EfficientNet-B0", f"{_EL} Table 1"),
):
    NETWORKS.register(_name, size=224, summary=f"torchvision's {_title}", reference=_where)(
        partial(_torchvision, _name)
    )
for _name, _pool, _title, _where in (
    ("resnet50", "maxpool", f"ResNet-50, {_STEM}", f"{_AVH} App. B.2"),
    ("densenet121", "features.pool0", f"DenseNet-121 (growth 32), {_STEM}", f"{_AVH} App. B.2"),
    ("resnet18", "maxpool", f"ResNet-18, {_STEM}", "He et al., 2016"),
    ("efficientnet_b0", None, "EfficientNet-B0 with a 3×3 stem of stride 1", f"{_EL} Table 1"),
):
    NETWORKS.register(f"{_name}-32", size=32, summary=_title, reference=_where)(partial(_small, _name, _pool))


class _Basic(nn.Module):
    """Two 3×3 convolutions around which the input goes; where the shape changes, every other pixel of it with channels
    of zeros, so that the way around has no weights (He et al., 2016, option A)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stride, self.more = width // channels, width - channels
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, width, 3, self.stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        around = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more)) if self.more else x
        return F.relu(self.layers(x) + around)


def _narrow_resnet(blocks: int, classes: int, channels: int) -> nn.Module:
    """16, 32 and 64 channels, with a number of blocks each; 64 features."""
    widths = [16] * (blocks + 1) + [32] * blocks + [64] * blocks
    network = nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(_Basic(before, after) for before, after in pairwise(widths)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)),
    )
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return network


_NARROW = "for CIFAR: 16, 32 and 64 channels, 64 features"
for _depth, _blocks, _where in (
    (32, 5, "He et al. (CVPR 2016) §4.2; LDAM's network for long-tailed CIFAR"),
    (8, 1, "He et al. (CVPR 2016) §4.2, with n = 1"),
):
    NETWORKS.register(f"resnet{_depth}-32", size=32, summary=f"the narrow ResNet-{_depth} {_NARROW}", reference=_where)(
        partial(_narrow_resnet, _blocks)
    )


@NETWORKS.register(
    "visda-resnet101",
    size=224,
    summary="torchvision's ResNet-101 with 2048 → 512 → ReLU → classes for its head: 512 features, for VisDA-17",
    reference="CRST (ICCV 2019); head of DRST's released code",
)
def _visda_resnet101(classes: int, channels: int) -> nn.Module:
    network: Any = _torchvision("resnet101", classes, channels)
    network.fc = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, classes))
    return network


@NETWORKS.register(
    "alexnet-32",
    size=32,
    summary="AlexNet with its five convolutions and 4,096-wide layers; 3×3 stem of stride 2, 2×2 pools",
    reference=f"{_AVH} App. B.2",
)
def _alexnet_32(classes: int, channels: int) -> nn.Module:
    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2), nn.ReLU(inplace=True)]

    network = nn.Sequential(
        *(*conv(channels, 64, 3, 2), nn.MaxPool2d(2), *conv(64, 192, 5), nn.MaxPool2d(2)),
        *(*conv(192, 384, 3), *conv(384, 256, 3), *conv(256, 256, 3), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Dropout(), nn.Linear(256 * 2 * 2, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, classes)),
    )
    return _he_initialized(network)


@NETWORKS.register(
    "vgg19-32",
    size=32,
    summary="VGG-19's sixteen convolutions, 512-wide layers; no batch norm, as in the paper: it trains at its rate of "
    ".01 from He's initialization, and batch norm would change the norms that are watched",
    reference=f"{_AVH} App. B.2",
)
def _vgg19_32(classes: int, channels: int) -> nn.Module:
    vgg = need("torchvision.models.vgg")
    network = nn.Sequential(
        *(*vgg.make_layers(vgg.cfgs["E"]), nn.Flatten()),
        *(nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(512, classes)),
    )
    if channels != 3:
        _replace_first_convolution(network, in_channels=channels)
    return _he_initialized(network)


def _he_initialized(network: nn.Sequential) -> nn.Sequential:
    """All layers but the head: from torch's default initialization, deep networks without batch norm hardly train."""
    for layer in network[:-1]:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # pyrefly: ignore[bad-argument-type]
    return network


# ---------------------------------------------------------------------------------------------------------------------
# Networks that only the papers describe.


def _plain_cnn(stem: bool, classes: int, channels: int) -> nn.Module:
    """Blocks of three 3×3 convolutions after an optional 7×7 one, each followed by a pool; 512 features."""
    layers: list[nn.Module] = []
    width = channels
    if stem:
        layers = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
        width = 64
    for outputs in (64, 128, 256):
        for _ in range(3):
            layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            width = outputs
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, classes))


for _pixels in (224, 96):
    _end = "" if _pixels == 224 else f"-{_pixels}"
    NETWORKS.register(
        f"cnn10{_end}",
        size=_pixels,
        summary="ten convolutions (7×7×64, then 3×3: 3×64, 3×128, 3×256), 512 features, for PACS; chosen, because the "
        f"paper does not say: stride 2 and padding 3 of the first, {_pixels} pixels, average over positions before the "
        "512",
        reference=f"{_AVH} App. F",
    )(partial(_plain_cnn, True))
    NETWORKS.register(
        f"cnn9{_end}",
        size=_pixels,
        summary="cnn10 without the 7×7 convolution: nine, as the talk's slides call it",
        reference="AVH, slides of the talk",
    )(partial(_plain_cnn, False))


def _leaky(inputs: int, outputs: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1)]


@NETWORKS.register(
    "amc13",
    size=32,
    summary="nine convolutions, three pools and a linear layer, 128 features; pixels go in as they are, because the "
    "noise of .15 is meant for them",
    reference=f"{_AMC} Table 2, top",
    standardize=False,
)
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


for _features in (2, 3):
    NETWORKS.register(
        f"amc-{_features}d",
        size=28,
        summary=f"four convolutions and {_features} features that can be drawn; the table lacks the projection "
        f"64 → {_features}, which is linear here",
        reference=f"{_AMC} Table 2, bottom",
        standardize=False,
    )(partial(_amc_small, _features))


@NETWORKS.register(
    "mnist-el",
    size=28,
    summary="eleven 3×3×64 convolutions (the first without padding), PReLU and batch norm, 256 features, linear layer "
    "without bias",
    reference=f"{_EL}, MNIST",
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
