"""Where in a network the last map of features over positions is: found by running it once and looking.

Convolutional networks, ConvNeXt and Swin need no recipe: the last output that still has positions is the map, channels
first or last. In a vision transformer only the class token goes on behind the last block, and maps taken there are
zero; its recipe names the norm before the last attention, through which every patch still reaches the answer.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hardsight.errors import InputError
from hardsight.heads import find_head, logits_of
from hardsight.registry import did_you_mean

# Which layer of a network of tokens: the last path that ends so.
RECIPES = {
    "timm": r"blocks\.\d+\.norm1",
    "torchvision": r"encoder_layer_\d+\.ln_1",
    "transformers": r"layernorm_before",
}


class Place(NamedTuple):
    """One output of one layer."""

    path: str
    module: nn.Module
    call: int  # which of the layer's calls in one forward, from 1
    grid: tuple[int, int] | None  # of patches, where the output is tokens (N, T, D); None: it has its own axes
    channels_last: bool

    def as_map(self, values: Tensor) -> Tensor:
        """The output, or its gradient, as ``(N, C, h, w)`` in float32; class and register tokens stand first and go."""
        values = values.float()
        if self.grid is None:
            return values.permute(0, 3, 1, 2) if self.channels_last else values
        patches = values[:, -self.grid[0] * self.grid[1] :]
        return patches.transpose(1, 2).reshape(len(values), -1, *self.grid)


class _Output(NamedTuple):
    path: str
    module: nn.Module
    call: int
    value: Tensor


def find_place(network: nn.Module, images: Tensor, layer: str | None = None) -> Place:
    """The layer whose output is explained: the named one, or the last that has positions and is not just pooled.

    Args:
        network: In eval mode, not compiled.
        images: ``(N, C, H, W)``; the first one is looked at.
        layer: Its path inside the network.
    """
    outputs = _outputs(network, images[:1])
    features = int(find_head(network).module.weight.shape[1])  # pyrefly: ignore
    if layer is not None:
        return _named(network, outputs, layer, features)
    pools = tuple(f"{path}." for path, module in network.named_modules() if path and "Pool" in type(module).__name__)
    pooled = {output.value.data_ptr() for output in outputs if f"{output.path}.".startswith(pools)}
    for output in reversed(outputs):
        if output.value.data_ptr() in pooled:  # or a container that ends in it
            continue
        if _has_positions(output.value, features):
            return _place(output, outputs, features)
        if output.value.ndim == 3 and output.value.shape[1] > 1:
            return _place(_last_norm(network, outputs), outputs, features)
    raise InputError(
        f"model: no layer of this {type(network).__name__} gives features over positions (samples, channels, height, "
        "width), so there is no map to draw; take a convolutional network or a vision transformer."
    )


def _outputs(network: nn.Module, images: Tensor) -> list[_Output]:
    """What each layer returns for one picture, in the order in which they are done."""
    found: list[_Output] = []
    calls: dict[nn.Module, int] = {}

    def note(path: str, module: nn.Module, value: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(value, Tensor) and value.ndim > 2 and len(value) == len(images):
            found.append(_Output(path, module, calls[module], value))

    handles = [
        module.register_forward_hook(lambda module, _, value, path=path: note(path, module, value))
        for path, module in network.named_modules()
        if path
    ]
    try:
        with torch.no_grad():
            logits_of(network, images)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _has_positions(value: Tensor, features: int) -> bool:
    if value.ndim != 4:
        return False
    height, width = value.shape[1:3] if _channels_last(value, features) else value.shape[2:]
    return height * width > 1


def _channels_last(value: Tensor, features: int) -> bool:
    """Swin's maps end in the axis that the head takes; others begin with it, or have another number of channels."""
    return value.ndim == 4 and value.shape[-1] == features != value.shape[1]


def _place(output: _Output, outputs: list[_Output], features: int) -> Place:
    path, module, call, value = output
    if value.ndim == 4:
        return Place(path, module, call, None, _channels_last(value, features))
    # Patches are made by the last convolution.
    grids = [o.value.shape[2:] for o in outputs if isinstance(o.module, nn.Conv2d) and o.value.ndim == 4]
    if not grids or grids[-1].numel() > value.shape[1]:
        raise InputError(
            f"layer={path!r} gives {value.shape[1]} tokens, which are no grid of patches; name another layer."
        )
    return Place(path, module, call, (grids[-1][0], grids[-1][1]), False)


def _last_norm(network: nn.Module, outputs: list[_Output]) -> _Output:
    pattern = re.compile(rf"(^|.*\.)({'|'.join(RECIPES.values())})$")
    for output in reversed(outputs):
        if pattern.match(output.path) and output.value.ndim == 3:
            return output
    raise InputError(
        f"model: this {type(network).__name__} works on tokens and no recipe knows its layers; name the norm before "
        "its last attention with layer=."
    )


def _named(network: nn.Module, outputs: list[_Output], layer: str, features: int) -> Place:
    paths = [path for path, _ in network.named_modules() if path]
    if layer not in paths:
        last = [output.path for output in reversed(outputs)]  # these are what is usually meant
        raise InputError(f"layer={layer!r} is not in the model; {did_you_mean(layer, dict.fromkeys([*last, *paths]))}")
    found = [output for output in outputs if output.path == layer]
    if not found or not (found[-1].value.ndim == 3 or _has_positions(found[-1].value, features)):
        raise InputError(
            f"layer={layer!r} gives no features over positions (samples, channels, height, width) in a forward; name "
            "one that does, or leave layer out."
        )
    return _place(found[-1], outputs, features)
