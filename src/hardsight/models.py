"""Model names → a model, the preprocessing that belongs to it, and its class names.

``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``, ``hardsight:NAME`` (a network of `hardsight.networks`) or
``path/to/file.py:function``. Weights come from the library, or from a checkpoint file, which is read as data and never
executed.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from hardsight.errors import InputError, InputTypeError, StateError
from hardsight.extras import first_line, need, printable
from hardsight.heads import find_head, unwrap
from hardsight.networks import NETWORKS, build_network, picture_transform
from hardsight.runs import content_hash, module_attributes
from hardsight.untrusted import Arrays, check_regular
from hardsight.userfile import FileFunction, is_file_function, load_function, takes_training_data


@dataclass(frozen=True)
class Model:
    """A classifier with what must travel with it.

    Attributes:
        module: The network.
        name: How it is called in tables.
        transform: Its preprocessing, or None.
        takes: What `transform` takes: ``"pil"`` images, or ``"tensor"`` ``(channels, height, width)`` in [0, 1];
            ``"any"`` tries the picture first; ``"items"`` takes whatever the data set yields, tensors too.
        classes: Names of its outputs in order, or None.
        weights: Where its weights came from, in words.
        built: What it can be built from again without running anybody's file: ``model``, the name that `load_model`
            takes, and ``checkpoint``, a path or None. None for a network of the user's own.
    """

    module: nn.Module
    name: str
    transform: Callable[[Any], Any] | None = None
    takes: Literal["pil", "tensor", "any", "items"] = "any"
    classes: Sequence[str] | None = None
    weights: str = "as given"
    built: dict[str, str | None] | None = None

    @property
    def preprocessing(self) -> str:
        """The preprocessing in words, as it is printed and recorded."""
        if self.transform is None:
            return "none: pixels in [0, 1]"
        return describe(self.transform)


def describe(function: Any) -> str:
    """A callable in words for people; whether two are the same is for `identify` to say."""
    if isinstance(function, (FunctionType, BuiltinFunctionType, type)):
        return f"function {function.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(function).split()))


def load_model(spec: str | FileFunction, checkpoint: str | Path | None = None) -> Model:
    """Build the model that a name stands for.

    Args:
        spec: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``, ``hardsight:NAME`` or ``path/to/file.py:function``. The
            function (also one that is loaded already) returns the network, ``(network, transform)`` or ``(network,
            transform, class_names)``.
        checkpoint: State dict (``.safetensors``, or ``.pt`` read with ``weights_only``) that replaces the weights. The
            network is built for the number of classes that the checkpoint holds.
    """
    state = None if checkpoint is None else read_checkpoint(checkpoint)
    if isinstance(spec, FileFunction) or is_file_function(spec):
        model = _from_file(spec if isinstance(spec, FileFunction) else load_function(spec))
    elif (kind := spec.partition(":")[0]) in _BUILDERS and (rest := spec.partition(":")[2]):
        path = None if checkpoint is None else str(Path(checkpoint).absolute())
        model = replace(_BUILDERS[kind](rest, state), built={"model": spec, "checkpoint": path})
    else:
        raise InputError(
            f"MODEL must be timm:NAME, torchvision:NAME, hf:NAME or path/to/file.py:function, got {spec!r}."
            + (f" Name the function: {spec}:build, say." if spec.endswith(".py") else "")
        )
    if state is not None:
        load_weights(model.module, state, str(checkpoint))
        model = replace(model, weights=f"checkpoint {Path(str(checkpoint)).name}")
    return model


def as_model(model: Model | nn.Module | str, preprocess: Callable[[Any], Any] | Literal["raw"] | None = None) -> Model:
    """Whatever a user calls a model, as a `Model`; `preprocess` replaces its own preprocessing ("raw": by none)."""
    if isinstance(model, str):
        model = load_model(model)
    elif isinstance(model, nn.Module):
        model = Model(model, type(unwrap(model)).__name__)
    elif not isinstance(model, Model):
        raise InputTypeError(
            "model must be an nn.Module, a name or a hardsight.Model (or, with folds, a function that trains), "
            f"got {type(model).__name__}."
        )
    if preprocess is None:
        return model
    model = replace(model, built=None)  # it would be built with its own preprocessing
    return (
        replace(model, transform=None, takes="any")
        if preprocess == "raw"
        else replace(model, transform=preprocess, takes="items")
    )


def input_channels(module: nn.Module) -> int | None:
    """Colour channels the network takes, 1 or 3, as its first convolution says; None when it does not say."""
    first = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
    return first.in_channels if first is not None and first.in_channels in (1, 3) else None


def fingerprint(module: nn.Module) -> str:
    """Hash of every weight and buffer, of the architecture, and of the code that is not a library's."""
    return content_hash(unwrap(module))


def architecture(module: nn.Module) -> str:
    """Hash of what a network computes, whatever its weights are."""
    parts = [(name, type(part), module_attributes(part)) for name, part in unwrap(module).named_modules()]
    return content_hash(parts, [(k, str(v.dtype), list(v.shape)) for k, v in unwrap(module).state_dict().items()])


# ---------------------------------------------------------------------------------------------------------------------
# Builders: (name, state dict or None) → Model. With a state dict no weights are downloaded.


def _build_timm(name: str, state: dict[str, Tensor] | None) -> Model:
    timm = need("timm")
    base = name.split(".")[0]
    if base not in timm.list_models():
        raise InputError(_unknown("timm", name, [*timm.list_models(), *timm.list_pretrained()]))
    if state is None:
        module = _pretrained(f"timm:{name}", lambda: timm.create_model(name, pretrained=True))
    else:
        module = _sized(lambda **kw: timm.create_model(name, pretrained=False, **kw), state)
    config = timm.data.resolve_model_data_config(module)
    return Model(module, name, timm.data.create_transform(**config, is_training=False), "pil", None, "timm, pretrained")


def _build_torchvision(name: str, state: dict[str, Tensor] | None) -> Model:
    zoo = need("torchvision.models")
    from torchvision.models import get_model, get_model_weights, list_models

    if name not in list_models(module=zoo):
        raise InputError(_unknown("torchvision", name, list_models(module=zoo)))
    weights: Any = get_model_weights(name).DEFAULT  # pyrefly: ignore[missing-attribute]
    if state is None:
        module = _pretrained(f"torchvision:{name}", lambda: get_model(name, weights=weights))
        return Model(module, name, weights.transforms(), "pil", weights.meta["categories"], f"torchvision, {weights}")
    with warnings.catch_warnings():  # two of them warn about how they will initialise weights, which are loaded here
        warnings.simplefilter("ignore", FutureWarning)
        module = _sized(lambda **kw: get_model(name, weights=None, **kw), state)
    # The recipe's transform still fits the architecture; its class names fit only its own weights.
    return Model(module, name, weights.transforms(), "pil")


def _build_hf(name: str, state: dict[str, Tensor] | None) -> Model:
    transformers = need("transformers")
    classifier, processors = transformers.AutoModelForImageClassification, transformers.AutoImageProcessor
    processor = _pretrained(f"hf:{name}", lambda: processors.from_pretrained(name, trust_remote_code=False))
    if state is None:
        module = _pretrained(f"hf:{name}", lambda: classifier.from_pretrained(name, trust_remote_code=False))
    else:

        def build(**options: int) -> nn.Module:
            # With another number of classes the configuration forgets their names.
            given = {"num_labels": options["num_classes"]} if options else {}
            configs = transformers.AutoConfig
            config = _pretrained(f"hf:{name}", lambda: configs.from_pretrained(name, trust_remote_code=False, **given))
            return classifier.from_config(config, trust_remote_code=False)

        module = _sized(build, state)
    config: Any = module.config
    names = [str(config.id2label[i]) for i in range(config.num_labels)]
    placeholder = all(label == f"LABEL_{i}" for i, label in enumerate(names))
    return Model(module, name, _Processor(processor), "pil", None if placeholder else names, "Hugging Face, pretrained")


def _build_own(name: str, state: dict[str, Tensor] | None) -> Model:
    if name not in NETWORKS:
        raise InputError(_unknown("hardsight", name, list(NETWORKS)))
    if state is None:
        raise InputError(
            f"MODEL: hardsight:{name} has no weights of its own; train it and give --checkpoint RUN/checkpoint.pt."
        )
    channels = len(_stripped(state, build_network(name, 2)).get("normalise.mean", range(3)))
    module = _sized(lambda num_classes=2: build_network(name, num_classes, channels), state)
    return Model(module, name, picture_transform(NETWORKS[name].size), "pil")


_BUILDERS: dict[str, Callable[[str, dict[str, Tensor] | None], Model]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
    "hf": _build_hf,
    "hardsight": _build_own,
}


@dataclass(frozen=True)
class _Processor:
    """A Hugging Face image processor as a transform of one image."""

    processor: Any

    def __call__(self, image: Any) -> Tensor:
        return self.processor(images=image, return_tensors="pt")["pixel_values"][0]

    def __repr__(self) -> str:
        return repr(self.processor)


def made_model(made: Any, name: str) -> Model:
    """What a user's function returned, as a `Model`."""
    if isinstance(made, Model):
        return made
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise InputError(
            f"MODEL: {name} must return an nn.Module, (module, transform) or (module, transform, class_names), "
            f"got {type(made).__name__}."
        )
    network, transform, classes = (*parts, None, None)[:3]
    if transform is not None and not callable(transform):
        raise InputError(f"MODEL: the transform of {name} must be callable, got {type(transform)}.")
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Sequence)):
        raise InputError(f"MODEL: class_names of {name} must be a list of names, got {type(classes).__name__}.")
    return Model(network, name, transform, "any", None if classes is None else list(classes))


def _from_file(build: FileFunction) -> Model:
    if takes_training_data(build):
        raise InputError(f"MODEL: {build.name} must be given training data: it trains, so score it with --folds 5.")
    return made_model(build(), build.name)


def _sized(build: Callable[..., nn.Module], state: dict[str, Tensor]) -> nn.Module:
    """The network with as many classes as the checkpoint holds."""
    module = build()
    head = find_head(module)
    held, built = _stripped(state, module).get(f"{head.path}.weight"), cast("Tensor", head.module.weight)
    if held is not None and held.shape[1:] == built.shape[1:] and held.shape[:1] not in ((), built.shape[:1]):
        module = build(num_classes=len(held))
    return module


def _pretrained(name: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except Exception as error:  # each library fails in its own way when there is no network
        raise StateError(
            f"MODEL: the weights of {name} could not be had ({type(error).__name__}: {first_line(error)}). "
            "Check the name and the network, or give a file with --checkpoint."
        ) from error


def _unknown(library: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{library} knows {len(known):,} names, none like it."
    return f"MODEL: {library} has no model {name!r}; {hint}"


# ---------------------------------------------------------------------------------------------------------------------
# Checkpoints.


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a ``.safetensors`` or torch file, found inside the usual wrappings; nothing is executed."""
    path = Path(path)
    check_regular(path, "--checkpoint")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        try:
            return load_file(path)  # it checks that every tensor lies in the file
        except Exception as error:
            raise InputError(
                f"--checkpoint: {path.name} is no safetensors file ({first_line(error)}); it may be cut "
                "short, so save or copy it again."
            ) from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise InputError(
                f"--checkpoint: {path.name} holds more than tensors and was not opened, because loading it could "
                f"execute code ({_refused(error)}). Where you trust it, save the weights alone: "
                "torch.save(model.state_dict(), …)."
            ) from error
        raise InputError(
            f"--checkpoint: {path.name} is no torch file ({type(error).__name__}); it may be cut short; save or copy "
            "it again."
        ) from error
    for key in ("state_dict", "model_state_dict", "model", "net", "state_dict_ema"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    entries = content.items() if isinstance(content, dict) else ()
    state = {name: tensor for name, tensor in entries if isinstance(name, str) and isinstance(tensor, Tensor)}
    if not state:
        raise InputError(f"--checkpoint: {path.name} holds no state dict (found {type(content).__name__}).")
    for name, tensor in state.items():
        if tensor.layout != torch.strided or _larger_than_stored(tensor):
            raise InputError(
                f"--checkpoint: {printable(name)[:80]} of {path.name} is no plain tensor: its shape "
                f"{tuple(tensor.shape)} is more than the file holds."
            )
    return state


def _larger_than_stored(tensor: Tensor) -> bool:
    """Whether a tensor repeats a few stored numbers without end: a small file could then fill any memory."""
    size = tensor.numel() * tensor.element_size()
    return size > _MOST_REPEATED and size > tensor.untyped_storage().nbytes()


_MOST_REPEATED = 1 << 26  # bytes; some networks store a small table as one repeated row


def _refused(error: BaseException) -> str:
    """What an unpickler refused, without torch's advice to allow it."""
    lines = [line.strip() for line in str(error).splitlines() if "GLOBAL" in line or "Unsupported" in line]
    words = (lines or [type(error).__name__])[0].split(" was not an allowed")[0]
    return words.removeprefix("WeightsUnpickler error: ")[:160]


def read_head(path: str | Path) -> tuple[Tensor, Tensor | None]:
    """Weight ``(C, D)`` and bias of a linear layer saved by itself, or as the only such layer of a state dict."""
    path = Path(path)
    if path.suffix == ".npz":
        arrays = Arrays(path, "--head")
        try:
            state = {name: torch.from_numpy(arrays[name]) for name in arrays.names}
        except TypeError:  # texts, dates
            raise InputError(f"--head: {path.name} is no .npz of number arrays.") from None
    else:
        state = read_checkpoint(path)
    layers = {k: v for k, v in state.items() if k.split(".")[-1] == "weight" and v.ndim in (2, 4)}
    weights = ["weight"] if "weight" in layers else list(layers)
    if len(weights) != 1:
        raise InputError(
            f"--head: {path.name} must hold one (classes, features) weight, found {', '.join(weights or state)}."
        )
    return state[weights[0]].flatten(1), state.get(weights[0].removesuffix("weight") + "bias")


def load_weights(module: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Put a state dict into a network, exactly: missing, unexpected or misshapen keys are an error that names them."""
    own = unwrap(module).state_dict()
    state = _stripped(state, module)
    # Batches are counted since torch 0.4.1, and only for training; torch itself fills the count in.
    missing = [key for key in own if key not in state and key.rpartition(".")[2] != "num_batches_tracked"]
    extra = [key for key in state if key not in own]
    wrong = [
        f"{key} is {_described(state[key])}, expected {_described(own[key])}"
        for key in own
        if key in state and (state[key].shape, state[key].is_complex()) != (own[key].shape, own[key].is_complex())
    ]
    problems = [
        f"{len(keys)} {what}: {', '.join(keys[:5])}{' …' if len(keys) > 5 else ''}"
        for what, keys in (("missing keys", missing), ("unexpected keys", extra), ("wrong shapes", wrong))
        if keys
    ]
    if problems:
        raise InputError(f"--checkpoint: {Path(name).name} does not fit the model; {'; '.join(problems)}.")
    unwrap(module).load_state_dict(state)


def _described(tensor: Tensor) -> str:
    return f"{'complex ' if tensor.is_complex() else ''}{tuple(tensor.shape)}"


def _stripped(state: dict[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Without the prefixes that DDP, `torch.compile` and Lightning put before every key."""
    own = unwrap(module).state_dict().keys()
    state = {key: value for key, value in state.items() if key != "n_averaged"}  # what AveragedModel counts with
    while not own & state.keys():
        heads = {key.partition(".")[0] for key in state}
        if len(heads) != 1 or next(iter(heads)) not in ("module", "_orig_mod", "model", "net"):
            break
        state = {key.partition(".")[2]: value for key, value in state.items()}
    return state
