"""Model names → a model, the preprocessing that belongs to it, and its class names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal

from torch import Tensor, nn

from hardsight.checkpoints import load_weights, read_checkpoint, start_from, without_prefix
from hardsight.errors import InputError, InputTypeError, StateError
from hardsight.extras import first_line, need
from hardsight.heads import find_head, unwrap
from hardsight.networks import NETWORKS, build_network, image_transform
from hardsight.registry import Registry, did_you_mean
from hardsight.runs import Identity, content_hash, identify, module_attributes
from hardsight.userfile import FileFunction, is_file_function, load_function, takes_training_data

State = dict[str, Tensor]


@dataclass(frozen=True)
class Model:
    """A classifier with its preprocessing and class names.

    Attributes:
        module: The network.
        name: Its name in tables.
        transform: Its preprocessing, or None.
        takes: What `transform` takes: ``"pil"`` images, or ``"tensor"`` ``(channels, height, width)`` in [0, 1];
            ``"any"`` tries the image first; ``"items"`` takes whatever the data set yields, tensors too.
        classes: Names of its outputs in order, or None.
        weights: Where its weights came from, as text.
        built: What it can be rebuilt from without running a user's file: ``model``, the name that `load_model` takes,
            and ``checkpoint``, a path or None. None for a user's network.

    Examples:
        >>> Model(nn.Linear(4, 3), "probe", classes=["cat", "dog", "owl"]).preprocessing
        'none: pixels in [0, 1]'
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
        """The preprocessing as text, as it is printed and recorded."""
        return "none: pixels in [0, 1]" if self.transform is None else describe(self.transform)


def describe(function: Any) -> str:
    """A callable as text for people; `content_hash` tells whether two are the same."""
    if isinstance(function, (FunctionType, BuiltinFunctionType, type)):
        return f"function {function.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(function).split()))


def load_model(spec: str | FileFunction, checkpoint: str | Path | None = None) -> Model:
    """Build the model that a name stands for.

    Args:
        spec: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``, ``hardsight:NAME`` (a network of `hardsight.networks`)
            or ``path/to/file.py:function``, also loaded already. The function returns the network, ``(network,
            transform)`` or ``(network, transform, class_names)``.
        checkpoint: State dict (``.safetensors`` or ``.pt``, read as data and never executed) that replaces the weights.
            The network is built for the number of classes that the checkpoint holds.

    Examples:
        >>> load_model("timm:resnet18").preprocessing  # pretrained  # doctest: +SKIP
        >>> load_model("net.py:build", "weights.pt").module  # doctest: +SKIP
    """
    state = None if checkpoint is None else read_checkpoint(checkpoint)
    if isinstance(spec, FileFunction) or is_file_function(spec):
        build = spec if isinstance(spec, FileFunction) else load_function(spec)
        if takes_training_data(build):
            raise InputError(f"MODEL: {build.name} must be given training data: it trains, so score it with --folds 5.")
        model = returned_model(build(), build.name)
    elif (kind := spec.partition(":")[0]) in _SOURCES and (name := spec.partition(":")[2]):
        model = _SOURCES[kind](name, state)
        if state is not None:  # with as many classes as the checkpoint holds
            key = f"{find_head(model.module).path}.weight"
            own = unwrap(model.module).state_dict()
            weight, built = (d.get(key) for d in (without_prefix(state, own), own))
            if weight is not None and built is not None and weight.ndim and weight.shape[1:] == built.shape[1:]:
                model = model if len(weight) == len(built) else _SOURCES[kind](name, state, num_classes=len(weight))
        path = None if checkpoint is None else str(Path(checkpoint).absolute())
        model = replace(model, built={"model": spec, "checkpoint": path})
    else:
        raise InputError(
            "MODEL must be timm:NAME, torchvision:NAME, hf:NAME, hardsight:NAME or path/to/file.py:function, got "
            f"{spec!r}." + (f" Name the function: {spec}:build, for instance." if spec.endswith(".py") else "")
        )
    if state is not None:
        load_weights(model.module, state, str(checkpoint))
        model = replace(model, weights=f"checkpoint {Path(str(checkpoint)).name}")
    return model


def new_model(spec: str, classes: int, **options: int) -> Model:
    """A network of timm, torchvision or hardsight with new weights for a number of classes."""
    kind, _, name = spec.partition(":")
    return _SOURCES[kind](name, {}, num_classes=classes, **options)


def backbone(spec: str, classes: int, weights: str | Path | None = None) -> Model:
    """A pretrained network whose features are of interest; its head may be new, for a number of classes.

    Args:
        spec: As for `load_model`. Networks of timm that come without a head get one.
        classes: Number of classes of the new head.
        weights: A checkpoint of all but the last layers, read as data, in place of the library's weights.
    """
    kind, _, name = spec.partition(":")
    if weights is None or is_file_function(spec):
        model = _SOURCES[kind](name, None, num_classes=classes) if kind == "timm" else load_model(spec)
        return model if weights is None else replace(model, weights=start_from(model.module, weights))
    if kind not in _SOURCES:
        load_model(spec)  # the error explains the names
    model = new_model(spec, classes)
    return replace(model, weights=start_from(model.module, weights))


def as_model(
    model: Model | nn.Module | str | FileFunction,
    preprocess: Callable[[Any], Any] | Literal["raw"] | None = None,
    checkpoint: str | Path | None = None,
) -> Model:
    """Convert anything that a user may pass as a model to a `Model`.

    Args:
        model: A network, or anything that `load_model` takes.
        preprocess: Replaces its preprocessing ("raw": none).
        checkpoint: Weights of a named model, as for `load_model`.
    """
    if isinstance(model, (str, FileFunction)):
        model = load_model(model, checkpoint)
    elif isinstance(model, nn.Module):
        model = Model(model, type(unwrap(model)).__name__)
    elif not isinstance(model, Model):
        raise InputTypeError(
            "model must be an nn.Module, a name or a hardsight.Model (or, with folds, a function that trains), "
            f"got {type(model).__name__}."
        )
    if preprocess is None:
        return model
    if preprocess == "raw":
        return replace(model, transform=None, takes="any", built=None)
    return replace(model, transform=preprocess, takes="items", built=None)


def input_channels(module: nn.Module) -> int | None:
    """Color channels that the first convolution takes, 1 or 3; None if unknown."""
    first = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
    return first.in_channels if first is not None and first.in_channels in (1, 3) else None


def network_identity(module: nn.Module) -> Identity:
    """Identity of every weight and buffer, of the architecture, and of code that is not part of a library."""
    return identify(unwrap(module))


def architecture(module: nn.Module) -> str:
    """Hash of what a network computes, whatever its weights are."""
    parts = [(name, type(part), module_attributes(part)) for name, part in unwrap(module).named_modules()]
    return content_hash(parts, [(k, str(v.dtype), list(v.shape)) for k, v in unwrap(module).state_dict().items()])


def returned_model(returned: Any, name: str) -> Model:
    """The result of a user's function, as a `Model`."""
    if isinstance(returned, Model):
        return returned
    parts = returned if isinstance(returned, tuple) else (returned,)
    if not 1 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise InputError(
            f"MODEL: {name} must return an nn.Module, (module, transform) or (module, transform, class_names), "
            f"got {type(returned).__name__}."
        )
    network, transform, classes = (*parts, None, None)[:3]
    if transform is not None and not callable(transform):
        raise InputError(f"MODEL: the transform of {name} must be callable, got {type(transform).__name__}.")
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Sequence)):
        raise InputError(f"MODEL: class_names of {name} must be a list of names, got {type(classes).__name__}.")
    return Model(network, name, transform, "any", None if classes is None else list(classes))


# ---------------------------------------------------------------------------------------------------------------------
# Where models come from: (name, state dict that will be loaded) → Model. Without a state dict (None) the model has the
# weights of the library; with one nothing is downloaded.

_SOURCES: Registry[Callable[..., Model]] = Registry("source of models")


@_SOURCES.register("timm")
def _timm(name: str, state: State | None, **classes: int) -> Model:
    timm = need("timm")
    _check_name("timm", name.split(".")[0], timm.list_models())
    with _loading(f"timm:{name}"):
        module = timm.create_model(name, pretrained=state is None, **classes)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(module), is_training=False)
    return Model(module, name, transform, "pil", weights="timm, pretrained" if state is None else "new")


@_SOURCES.register("torchvision")
def _torchvision(name: str, state: State | None, **classes: int) -> Model:
    models = need("torchvision.models")
    _check_name("torchvision", name, models.list_models(module=models))
    weights: Any = models.get_model_weights(name).DEFAULT
    with _loading(f"torchvision:{name}"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # two networks print how they will initialize weights
        module = models.get_model(name, weights=weights if state is None else None, **classes)
    # The class names belong to these weights, the transform to the architecture.
    names, source = (weights.meta["categories"], f"torchvision, {weights}") if state is None else (None, "new")
    return Model(module, name, weights.transforms(), "pil", names, source)


@_SOURCES.register("hf")
def _hugging_face(name: str, state: State | None, **classes: int) -> Model:
    hub = need("transformers")
    classifier, safe = hub.AutoModelForImageClassification, {"trust_remote_code": False}
    with _loading(f"hf:{name}"):
        processor = hub.AutoImageProcessor.from_pretrained(name, **safe)
        if state is None:
            module = classifier.from_pretrained(name, **safe)
        else:  # with a different number of classes the configuration drops their names
            labels = {"num_labels": classes["num_classes"]} if classes else {}
            module = classifier.from_config(hub.AutoConfig.from_pretrained(name, **safe, **labels), **safe)
    names = [str(module.config.id2label[i]) for i in range(module.config.num_labels)]
    placeholder = all(label == f"LABEL_{i}" for i, label in enumerate(names))
    return Model(module, name, _Processor(processor), "pil", None if placeholder else names, "Hugging Face, pretrained")


@_SOURCES.register("hardsight")
def _hardsight(name: str, state: State | None, num_classes: int = 2, channels: int = 3) -> Model:
    _check_name("hardsight", name, NETWORKS)
    if state is None:
        raise InputError(
            f"MODEL: hardsight:{name} has no pretrained weights; train it and give --checkpoint RUN/checkpoint.pt."
        )
    channels = next((len(mean) for key, mean in state.items() if key.endswith("normalise.mean")), channels)
    module = build_network(name, num_classes, channels)
    return Model(module, name, image_transform(NETWORKS[name].size), "pil", weights="new")


def _check_name(library: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise InputError(f"MODEL: {library} has no model {name!r}; {did_you_mean(name, names)}")


@contextmanager
def _loading(spec: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, LookupError, NameError, TypeError):  # a bug keeps its traceback
        raise
    except Exception as error:  # anything that libraries raise when weights cannot be fetched or read
        raise StateError(
            f"MODEL: {spec} could not be loaded ({type(error).__name__}: {first_line(error)}). "
            "Check the name and the network, or give a file with --checkpoint (of a study, --weights)."
        ) from error


@dataclass(frozen=True)
class _Processor:
    """A Hugging Face image processor as a transform of one image."""

    processor: Any

    def __call__(self, image: Any) -> Tensor:
        return self.processor(images=image, return_tensors="pt")["pixel_values"][0]

    def __repr__(self) -> str:
        return repr(self.processor)
