"""Checkpoint files → weights. They are read as data: nothing in them is executed."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.heads import unwrap
from hardsight.runs import content_hash
from hardsight.untrusted import Arrays, check_regular

# Keys under which training scripts store the state dict, the weights themselves before their moving average.
_NESTED = ("state_dict", "model_state_dict", "model", "net", "state_dict_ema", "model_ema", "ema_state_dict")
# Mean and standard deviation of ImageNet's colors, which torchvision's weights were trained with.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_MOST_REPEATED = 1 << 26  # bytes; some networks store a small table as one repeated row


def read_checkpoint(path: str | Path, argument: str = "--checkpoint") -> dict[str, Tensor]:
    """The state dict in a ``.safetensors`` or torch file, also if it is nested as in files of training scripts.

    Errors name it by `argument`.
    """
    path = Path(path)
    check_regular(path, argument)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes may raise anything, and the error may quote them
        lines = [line.strip() for line in str(error).splitlines()]
        if not any("weights_only" in line or "Unsupported" in line for line in lines):
            raise InputError(
                f"{argument}: {path.name} cannot be read as a checkpoint ({type(error).__name__}): it is truncated, "
                "or not a file of torch or safetensors; save or copy it again."
            ) from error
        # What the unpickler refused, without torch's advice on how to allow it.
        refused = [line for line in lines if "GLOBAL" in line or "Unsupported" in line] or [type(error).__name__]
        what = refused[0].split(" was not an allowed")[0].removeprefix("WeightsUnpickler error: ")[:160]
        raise InputError(
            f"{argument}: {path.name} holds more than tensors and was not opened, because loading it could execute "
            f"code ({what}). If you trust it, save the weights alone: torch.save(model.state_dict(), …)."
        ) from error
    for _ in range(3):  # no deeper: a file may nest itself
        inner = [content[key] for key in _NESTED if isinstance(content, dict) and isinstance(content.get(key), dict)]
        content = inner[0] if inner else content
    entries = content.items() if isinstance(content, dict) else ()
    state = {name: tensor for name, tensor in entries if isinstance(name, str) and isinstance(tensor, Tensor)}
    if not state:
        raise InputError(f"{argument}: {path.name} holds no state dict, but a {type(content).__name__}.")
    for name, tensor in state.items():
        # A tensor that repeats a few stored numbers endlessly: a small file could fill any memory.
        size = tensor.numel() * tensor.element_size()
        if tensor.layout != torch.strided or (size > _MOST_REPEATED and size > tensor.untyped_storage().nbytes()):
            raise InputError(
                f"{argument}: {printable(name)[:80]} of {path.name} is not a plain tensor: its shape "
                f"{tuple(tensor.shape)} is more than the file holds."
            )
    return state


def load_weights(module: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Load a state dict by torch's strict rules: missing, unexpected or misshapen keys are an error that names them.

    If the state dict does not fit, the module keeps its weights.
    """
    module, file = unwrap(module), Path(name).name
    before = copy.deepcopy(module.state_dict())
    state = without_prefix(state, before)
    if cast := [key for key, value in state.items() if value.is_complex() and not before.get(key, value).is_complex()]:
        raise InputError(f"--checkpoint: {file} does not fit the model: {cast[0]} is complex.")
    try:
        module.load_state_dict(state)  # a plain dict has no versions, so torch fills in counters that are newer than it
    except (RuntimeError, IndexError) as error:
        module.load_state_dict(before)
        problems = [textwrap.shorten(printable(line.strip(" \t.")), 200) for line in str(error).splitlines()[1:5]]
        raise InputError(f"--checkpoint: {file} does not fit the model: {'; '.join(problems)}.") from error


def start_from(module: nn.Module, file: str | Path) -> str:
    """Load the matching part of a checkpoint, such as torchvision's for ImageNet, and describe what was loaded.

    It must hold every tensor by name and shape, except those at the end, a new head, which stay unchanged. The first
    layer of a network of `hardsight.networks` then normalizes colors as torchvision does, unless the checkpoint
    contains that layer too.

    Args:
        module: The network, changed in place.
        file: A state dict, ``.safetensors`` or ``.pt``, read as data.
    """
    state, current = read_checkpoint(file, "weights"), module.state_dict()
    names = {key: key.removeprefix("network.") for key in current}  # other libraries have no layer before the network
    state = without_prefix(state, {*current, *names.values()})
    stored = {key: state.get(key, state.get(name)) for key, name in names.items()}
    matching = {key: value for key, value in stored.items() if value is not None and value.shape == current[key].shape}
    # Old checkpoints lack batch counters; those of other libraries lack our first layer.
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


def without_prefix(state: dict[str, Tensor], keys: Collection[str]) -> dict[str, Tensor]:
    """Strip the prefix that DDP, `torch.compile`, Lightning or an average adds to every key; some of `keys` remain."""
    state = {key: value for key, value in state.items() if key != "n_averaged"}  # a counter of AveragedModel
    stripped = state
    while stripped.keys().isdisjoint(keys):
        if len({key.partition(".")[0] for key in stripped}) != 1 or not all("." in key for key in stripped):
            return state
        stripped = {key.partition(".")[2]: value for key, value in stripped.items()}
    return stripped


def read_head(path: str | Path) -> tuple[Tensor, Tensor | None]:
    """Weight ``(C, D)`` and bias of a linear layer saved by itself, or as the only such layer of a state dict."""
    path = Path(path)
    if path.suffix == ".npz":
        arrays = Arrays(path, "--head")
        try:
            state = {name: torch.from_numpy(arrays[name]) for name in arrays.names}
        except TypeError:  # texts, dates
            raise InputError(f"--head: {path.name} is not an .npz file of numeric arrays.") from None
    else:
        state = read_checkpoint(path)
    layers = [key for key, value in state.items() if key.split(".")[-1] == "weight" and value.ndim in (2, 4)]
    weights = ["weight"] if "weight" in layers else layers
    if len(weights) != 1:
        raise InputError(
            f"--head: {path.name} must hold one (classes, features) weight, got {', '.join(weights or state)}."
        )
    return state[weights[0]].flatten(1), state.get(weights[0].removesuffix("weight") + "bias")
