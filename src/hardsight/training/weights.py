"""Start from the weights of another network that shares all layers but the last."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from hardsight.checkpoints import read_checkpoint, without_prefix
from hardsight.errors import HardsightError, InputError
from hardsight.runs import content_hash

# Mean and spread of ImageNet's colours, which torchvision's weights were trained with.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def start_from(module: nn.Module, file: str | Path) -> str:
    """Load what fits of a checkpoint, such as torchvision's for ImageNet, and say in words what was loaded.

    Every tensor must be in it by name and shape, but for those at the end, a new head, which stay as they are. The
    first layer of a network of `hardsight.networks` then standardises colours as torchvision does, unless the
    checkpoint has that layer, too.

    Args:
        module: The network, changed in place.
        file: A state dict, ``.safetensors`` or ``.pt``, read as data.
    """
    try:
        state = read_checkpoint(file)
    except HardsightError as error:
        raise type(error)(str(error).replace("--checkpoint", "weights", 1)) from None
    own = module.state_dict()
    theirs = {key: key.removeprefix("network.") for key in own}  # libraries have no layer before the network
    state = without_prefix(state, {*own, *theirs.values()})
    found = {key: state.get(key, state.get(name)) for key, name in theirs.items()}
    fitting = {key: held for key, held in found.items() if held is not None and held.shape == own[key].shape}
    # Old checkpoints do not count batches, those of others do not hold our first layer.
    needed = [key for key in own if not key.startswith("normalise.") and not key.endswith(".num_batches_tracked")]
    new = [key for key in needed if key not in fitting]
    if len(new) == len(needed) or new != needed[len(needed) - len(new) :]:
        held = found[new[0]]
        got = "is not in it" if held is None else f"is {tuple(held.shape)} and not {tuple(own[new[0]].shape)}"
        raise InputError(
            f"weights: {Path(file).name} must fit all but the last layers of the network, and {new[0]} {got}."
        )
    module.load_state_dict(fitting, strict=False)
    if "normalise.mean" not in fitting and "normalise.mean" in own and len(own["normalise.mean"]) == 3:
        for name, colours in zip(("mean", "std"), _IMAGENET, strict=True):
            own[f"normalise.{name}"].copy_(torch.tensor(colours)[:, None, None])
    return f"{Path(file).name} ({_hash(fitting)}), new: {', '.join(new) or 'nothing'}"


def _hash(state: dict[str, Tensor]) -> str:
    return content_hash(*(part for name, tensor in state.items() for part in (name, tensor.float().numpy())))[:8]
