"""Class activation maps: which positions of an image speak for a class.

The layer is found by running the network once. In convolutional networks, ConvNeXt and Swin it is the last output that
still has positions. In a vision transformer only the class token is used after the last block, so maps taken there
are zero; `RECIPES` name the norm before the last attention, through which every patch still reaches the output.

AMC-Loss's released code differs: its map begins at 1 everywhere, so that nothing but strong counter-evidence is dark;
it divides gradients by their root mean square; and its division by the maximum has no guard.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.devices import evaluating
from hardsight.errors import InputError, StateError
from hardsight.heads import find_head, logits_of, uncompiled
from hardsight.models import Model, as_model
from hardsight.registry import did_you_mean

# How the path of the layer ends in a network of tokens.
RECIPES = {
    "timm": r"blocks\.\d+\.norm1",
    "torchvision": r"encoder_layer_\d+\.ln_1",
    "transformers": r"layernorm_before",
}


class Layer(NamedTuple):
    """One output of one layer."""

    path: str
    module: nn.Module
    call: int  # which of the layer's calls in a forward pass, from 1
    grid: tuple[int, int] | None  # rows and columns of patches if the output is tokens (N, T, D)
    channels_last: bool

    def as_map(self, values: Tensor) -> Tensor:
        """The output, or its gradient, as ``(N, C, h, w)`` in float32, without class and register tokens."""
        values = values.float()
        if self.grid is None:
            return values.permute(0, 3, 1, 2) if self.channels_last else values
        patches = values[:, -self.grid[0] * self.grid[1] :]
        return patches.transpose(1, 2).reshape(len(values), -1, *self.grid)


class Maps(NamedTuple):
    """Maps ``(N, h, w)`` on the grid of the layer, the logits ``(N, C)``, and the explained classes ``(N,)``."""

    maps: Tensor
    logits: Tensor
    classes: Tensor


def cam(
    model: Model | nn.Module,
    images: Tensor,
    classes: Tensor | np.ndarray | Sequence[int] | None = None,
    *,
    layer: str | None = None,
) -> Tensor:
    """Grad-CAM of a batch: how much each position of each image speaks for a class.

    The channels of the last feature map are weighted by the mean gradient of the class's logit and summed; negative
    values become 0, and the largest 1. Where a linear layer follows the mean over positions, this is CAM.

    The network runs in eval mode on its own device; its modes, hooks, gradients and flags are restored.

    Args:
        model: A convolutional network or a vision transformer (`RECIPES`).
        images: ``(N, C, H, W)``, as the network takes them.
        classes: ``(N,)`` class indices to explain; the predicted ones by default.
        layer: Path of the layer to explain; by default the last one that still has positions.

    Returns:
        ``(N, h, w)`` float32 in [0, 1], on the grid of that layer. A map is all 0 where nothing speaks for the class.

    Raises:
        ValueError: The network has no features over positions (an MLP).

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
        >>> _ = net[0].weight.data.fill_(1.0), net[3].weight.data.copy_(torch.eye(2))
        >>> cam(net, torch.tensor([[[[1.0, 2.0], [-1.0, 4.0]]]]), [0])
        tensor([[[0.2500, 0.5000],
                 [0.0000, 1.0000]]])
    """
    network = uncompiled(as_model(model).module)
    check_images(images)
    device = next((p.device for p in network.parameters()), images.device)
    with evaluating(network, device):
        x = images.to(device)
        return explain(network, find_layer(network, x, layer), x, classes).maps


def check_images(images: Any) -> None:
    """Refuse anything but a batch of images."""
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images) or not images.is_floating_point():
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a float tensor (N, channels, height, width), N ≥ 1, got {got}.")


def explain(network: nn.Module, layer: Layer, images: Tensor, classes: Any = None) -> Maps:
    """`cam` of a network in eval mode at a layer from `find_layer`, with the logits."""
    outputs: list[Tensor] = []

    def detach(path: str, call: int, output: Any) -> Tensor | None:
        """Start the graph at the layer: what comes before costs neither memory nor time."""
        if call != layer.call:
            return None
        outputs.append(output.detach().requires_grad_())
        torch.set_grad_enabled(True)  # until the no_grad around the forward pass ends
        return outputs[0].clone()  # later layers may change it in place

    with torch.inference_mode(False), torch.no_grad():
        with _hooks({layer.path: layer.module}, detach):
            logits = logits_of(network, images)
        if not outputs:
            raise StateError(f"layer={layer.path!r} ran less often in this forward pass than in the one before.")
        indices = _class_indices(classes, logits.detach())
        target = logits.gather(1, indices[:, None]).sum()
        gradient = torch.autograd.grad(target, outputs[0], allow_unused=True)[0] if target.requires_grad else None
        if gradient is None:
            raise InputError(f"layer={layer.path!r}: the logits do not depend on its output; name another layer.")
        weights, values = layer.as_map(gradient).mean((2, 3)), layer.as_map(outputs[0].detach())
    maps = torch.einsum("nc,nchw->nhw", weights, values).relu_()
    if not maps.isfinite().all():
        raise InputError("model: its features or gradients hold NaN or infinity; train it again, with a lower rate.")
    peak = maps.amax((1, 2), keepdim=True)
    return Maps(maps / peak.masked_fill(peak == 0, 1.0), logits.detach(), indices)


def _class_indices(classes: Any, logits: Tensor) -> Tensor:
    """The class to explain for each sample."""
    if classes is None:
        return logits.argmax(1)
    indices, (n, count) = torch.as_tensor(classes, device=logits.device), logits.shape
    if indices.shape != (n,) or indices.is_floating_point() or not ((indices >= 0) & (indices < count)).all():
        got = f"{indices.dtype} {tuple(indices.shape)} of {indices.flatten().tolist()[:5]}"
        raise InputError(f"classes must be {n} class indices from 0 to {count - 1}, got {got}.")
    return indices.long()


def resize_maps(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Resize maps ``(N, h, w)`` to the size of the image, bilinearly.

    Examples:
        >>> resize_maps(torch.tensor([[[0.0, 1.0]]]), (1, 4))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    return F.interpolate(maps[:, None], tuple(size), mode="bilinear")[:, 0]


# ---------------------------------------------------------------------------------------------------------------------
# The layer to explain.


def find_layer(network: nn.Module, images: Tensor, path: str | None = None) -> Layer:
    """The layer whose output is explained: the named one, or the last that has positions and is not pooled.

    The network is in eval mode and not compiled; the first image is passed through it.
    """
    modules = {name: module for name, module in network.named_modules() if name}
    features = int(find_head(network).module.weight.shape[1])  # pyrefly: ignore
    outputs: list[tuple[Layer, Tensor]] = []

    def keep(path: str, call: int, value: Any) -> None:
        if isinstance(value, Tensor) and value.ndim > 2 and len(value) == 1:
            # Swin's maps end in the axis that the head takes; others begin with it, or have other channels.
            channels_last = value.ndim == 4 and value.shape[-1] == features != value.shape[1]
            outputs.append((Layer(path, modules[path], call, None, channels_last), value))

    with torch.no_grad(), _hooks(modules, keep):
        logits_of(network, images[:1])
    layer, value = _last(modules, outputs) if path is None else _named(modules, outputs, path)
    if value.ndim == 4:
        return layer
    # The last convolution makes the patches.
    grids = [v.shape[2:] for at, v in outputs if isinstance(at.module, nn.Conv2d) and v.ndim == 4]
    if not grids or grids[-1].numel() > value.shape[1]:
        raise InputError(
            f"layer={layer.path!r} gives {value.shape[1]} tokens, not a grid of patches; name another layer."
        )
    return layer._replace(grid=(grids[-1][0], grids[-1][1]))


def _has_positions(layer: Layer, value: Tensor) -> bool:
    return value.ndim == 4 and layer.as_map(value)[0, 0].numel() > 1


def _last(modules: Mapping[str, nn.Module], outputs: Sequence[tuple[Layer, Tensor]]) -> tuple[Layer, Tensor]:
    """The last output that has positions; in a network of tokens, the one that a recipe names."""
    pools = tuple(f"{path}." for path, module in modules.items() if "Pool" in type(module).__name__)
    pooled = {value.data_ptr() for layer, value in outputs if f"{layer.path}.".startswith(pools)}
    for layer, value in reversed(outputs):
        if value.data_ptr() in pooled:  # or a container that ends in a pool
            continue
        if _has_positions(layer, value):
            return layer, value
        if value.ndim == 3 and value.shape[1] > 1:
            norm = re.compile(rf"(^|.*\.)({'|'.join(RECIPES.values())})$")
            norms = [output for output in outputs if norm.match(output[0].path) and output[1].ndim == 3]
            if norms:
                return norms[-1]
            raise InputError(
                "model: no recipe fits this network of tokens; name the norm before its last attention with layer=."
            )
    raise InputError(
        "model: no layer gives features over positions (samples, channels, height, width), so there is no map; take a "
        "convolutional network or a vision transformer."
    )


def _named(
    modules: Mapping[str, nn.Module], outputs: Sequence[tuple[Layer, Tensor]], path: str
) -> tuple[Layer, Tensor]:
    if path not in modules:
        names = dict.fromkeys([*(layer.path for layer, _ in reversed(outputs)), *modules])  # the last are usually meant
        raise InputError(f"layer={path!r} is not in the model; {did_you_mean(path, names)}")
    outputs = [output for output in outputs if output[0].path == path]
    if not outputs or not (outputs[-1][1].ndim == 3 or _has_positions(*outputs[-1])):
        raise InputError(f"layer={path!r} gives no features over positions (samples, channels, height, width).")
    return outputs[-1]


@contextmanager
def _hooks(modules: Mapping[str, nn.Module], hook: Callable[[str, int, Any], Any]) -> Iterator[None]:
    """Call ``hook(path, call, output)`` after each call of each layer, counted from 1; what it returns is passed on."""
    calls: Counter[str] = Counter()

    def run(path: str, module: nn.Module, args: Any, output: Any) -> Any:
        calls[path] += 1
        return hook(path, calls[path], output)

    handles = [module.register_forward_hook(partial(run, path)) for path, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
