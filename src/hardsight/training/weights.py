"""Start from the weights of another network that shares all layers but the last."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from hardsight.checkpoints import read_checkpoint, without_prefix
from hardsight.errors import HardsightError, InputError
from hardsight.runs import content_hash

# Mean and standard deviation of ImageNet's colors, which torchvision's weights were trained with.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def start_from(module: nn.Module, file: str | Path) -> str:
    """Load the matching part of a checkpoint, such as torchvision's for ImageNet, and describe what was loaded.

    Every tensor must be in it by name and shape, except those at the end, a new head, which stay as they are. The
    first layer of a network of `hardsight.networks` then normalizes colors as torchvision does, unless the checkpoint
    has that layer too.

    Args:
        module: The network, changed in place.
        file: A state dict, ``.safetensors`` or ``.pt``, read as data.
    """
    try:
        state = read_checkpoint(file)
    except HardsightError as error:
        raise type(error)(str(error).replace("--checkpoint", "weights", 1)) from None
    current = module.state_dict()
    names = {key: key.removeprefix("network.") for key in current}  # other libraries have no layer before the network
    state = without_prefix(state, {*current, *names.values()})
    stored = {key: state.get(key, state.get(name)) for key, name in names.items()}
    matching = {key: value for key, value in stored.items() if value is not None and value.shape == current[key].shape}
    # Old checkpoints do not count batches; those of other libraries do not have our first layer.
    needed = [key for key in current if not key.startswith("normalise.") and not key.endswith(".num_batches_tracked")]
    new = [key for key in needed if key not in matching]
    if len(new) == len(needed) or new != needed[len(needed) - len(new) :]:
        value = stored[new[0]]
        got = "is not in it" if value is None else f"is {tuple(value.shape)} and not {tuple(current[new[0]].shape)}"
        raise InputError(
            f"weights: {Path(file).name} must fit all but the last layers of the network, and {new[0]} {got}."
        )
    module.load_state_dict(matching, strict=False)
    if "normalise.mean" not in matching and "normalise.mean" in current and len(current["normalise.mean"]) == 3:
        for name, colors in zip(("mean", "std"), _IMAGENET, strict=True):
            current[f"normalise.{name}"].copy_(torch.tensor(colors)[:, None, None])
    hashed = content_hash(*(part for name, tensor in matching.items() for part in (name, tensor.float().numpy())))[:8]
    return f"{Path(file).name} ({hashed}), new: {', '.join(new) or 'nothing'}"
