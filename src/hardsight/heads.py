"""From a model to the triple: find its last linear layer, and capture that layer's input.

`find_head` names the layer, `capture` records its input in a context whose hooks are removed on exit. A forward pass
that does not run the head exactly once is an error that names the cause, never a wrong number.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import register_optimizer_step_post_hook

from hardsight.errors import InputError, StateError
from hardsight.extras import is_graph
from hardsight.printing import Result

_SIZES_OF_GRAPHS = ("num_graphs", "batch_size", "num_nodes")  # which a batch of graphs has but does not list


class HeadLayer(NamedTuple):
    """Where a model's last linear layer is."""

    path: str
    module: nn.Module

    @property
    def classes(self) -> int:
        """Rows of its weight, without computing a parametrized one."""
        return _size(self.module)[0]


def find_head(model: nn.Module, head: str | nn.Module | None = None) -> HeadLayer:
    """The last linear layer of a classifier.

    A given `head` always takes precedence. Otherwise: timm's own `get_classifier`, else the last of the shallowest
    `nn.Linear` layers (1×1 convolutions if there is none). The search starts inside wrappers (DDP, `torch.compile`).

    Args:
        model: Any classifier.
        head: Path of the layer inside the model (``"classifier.2"``) or the layer itself.

    Returns:
        `HeadLayer` with the path inside the unwrapped model. If no layer or several could be the head, an error lists
        the candidates.

    Examples:
        >>> find_head(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))).path
        '2'
    """
    root = unwrap(model)
    if head is None:
        return _timm_head(root) if hasattr(root, "get_classifier") else _last_linear(root, root)
    layers = (HeadLayer(path, module) for path, module in root.named_modules(remove_duplicate=False))
    layer = next((layer for layer in layers if head in layer), None)
    if layer is None:
        name = repr(head) if isinstance(head, str) else f"a {type(head).__name__}"
        raise InputError(f"head={name} is not a layer of the model; {_candidates(root)}")
    if not any(_size(layer.module)):
        kind = type(layer.module).__name__
        raise InputError(f"head={head!r} is a {kind}, which has no (classes, features) weight; {_candidates(root)}")
    return layer


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)


def unwrap(model: nn.Module) -> nn.Module:
    """The plain module inside DDP, DataParallel, `torch.compile` and averaging wrappers."""
    while hasattr(model, "_orig_mod") or isinstance(model, _WRAPPERS):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module  # pyrefly: ignore[bad-assignment]
    return model


def enclosing(model: nn.Module, layer: HeadLayer) -> list[nn.Module]:
    """The model, every module around a layer of it, and the layer."""
    inside = unwrap(model).named_modules(remove_duplicate=False)
    return [model, *(module for path, module in inside if not path or f"{layer.path}.".startswith(f"{path}."))]


def uncompiled(model: nn.Module) -> nn.Module:
    """`unwrap`, and a view of a module compiled in place (`model.compile()`) that runs eagerly."""
    model = unwrap(model)
    if model._compiled_call_impl is not None:
        model = copy.copy(model)  # shares parameters and submodules
        model._compiled_call_impl = None
    return model


def _timm_head(root: nn.Module) -> HeadLayer:
    classifier = root.get_classifier()  # pyrefly: ignore[not-callable]
    parts = list(classifier) if isinstance(classifier, (tuple, list, nn.ModuleList)) else [classifier]
    if not all(isinstance(part, nn.Module) for part in parts):
        return _last_linear(root, root)
    layers = [layer for part in parts for layer in _layers(root, part)]
    if not layers:
        raise InputError("the model has no head. Create it with num_classes > 0, or name a layer with head=.")
    if len(parts) > 1:
        raise _ambiguous(layers)
    return _last_linear(root, parts[0])


def _last_linear(root: nn.Module, part: nn.Module) -> HeadLayer:
    """The last linear layer of a part of the model."""
    layers = _layers(root, part, nn.Linear) or _layers(root, part, nn.Conv2d)
    if not layers:
        raise InputError(
            f"no head found: {type(root).__name__} has no nn.Linear and no 1×1 convolution. "
            "Name the layer that holds the (classes, features) weight with head=."
        )
    depth = min(layer.path.count(".") for layer in layers)
    *others, last = [layer for layer in layers if layer.path.count(".") == depth]
    if rivals := [layer for layer in others if _is_rival(root, layer, last, layers)]:
        raise _ambiguous([*rivals, last])
    return last


def _is_rival(root: nn.Module, layer: HeadLayer, last: HeadLayer, layers: list[HeadLayer]) -> bool:
    """Whether a layer looks like a second output: no layer takes its output, and it resembles the last one."""
    shared = os.path.commonprefix([layer.path.split("."), last.path.split(".")])  # noqa: RUF071 (of lists of names)
    if isinstance(root.get_submodule(".".join(shared)), nn.Sequential):
        return False  # there the order determines which is last
    outputs, inputs = _size(layer.module)
    if any(_size(later.module)[1] == outputs for later in layers[layers.index(layer) + 1 :]):
        return False
    return inputs == _size(last.module)[1] or outputs == last.classes


def _layers(root: nn.Module, part: nn.Module, kind: type[nn.Module] = nn.Module) -> list[HeadLayer]:
    """What could be a head in a part of the model, by its path in the whole."""
    inside = set(part.modules())
    modules = [HeadLayer(path, module) for path, module in root.named_modules() if module in inside]
    return [layer for layer in modules if isinstance(layer.module, kind) and any(_size(layer.module))]


def _size(module: nn.Module) -> tuple[int, int]:
    """(classes, features) of a layer that can be a head, else (0, 0)."""
    shape = _weight_shape(module)
    other = isinstance(module, (nn.Embedding, nn.LayerNorm)) or (isinstance(module, nn.Conv2d) and module.groups != 1)
    if other or len(shape) not in (2, 4) or shape[2:].numel() != 1 or not shape.numel():
        return 0, 0
    return shape[0], shape[1]


def _weight_shape(module: nn.Module) -> torch.Size:
    """Shape of the weight without computing it: a spectral norm changes its buffers each time it is computed."""
    if parametrize.is_parametrized(module, "weight"):
        originals = module.parametrizations["weight"].parameters()  # pyrefly: ignore
        return max((original.shape for original in originals), key=lambda shape: shape.numel())
    weight = getattr(module, "weight", None)
    if isinstance(weight, nn.UninitializedParameter):  # a lazy layer knows its classes, but not yet its features
        return torch.Size([int(module.out_features), 1]) if isinstance(module, nn.Linear) else torch.Size()
    return weight.shape if isinstance(weight, Tensor) else torch.Size()


def _listed(layers: list[HeadLayer]) -> str:
    sizes = [(layer.path or "(the model itself)", *_size(layer.module)) for layer in layers]
    return ", ".join(f"{path} ({features} → {classes})" for path, classes, features in sizes)


def _ambiguous(layers: list[HeadLayer]) -> InputError:
    path = layers[-1].path
    return InputError(
        f"several layers could be the head: {_listed(layers)}. Name one of them: for instance head={path!r}."
    )


def _candidates(root: nn.Module) -> str:
    layers = _layers(root, root, nn.Linear) or _layers(root, root)
    more = f" and {len(layers) - 8} before them" if len(layers) > 8 else ""
    return f"linear layers: {_listed(layers[-8:])}{more}" if layers else "the model has no linear layer"


class Head(Result):
    """Input and weight of the last linear layer in the latest forward pass.

    Attributes:
        path: Where the layer is in the model.
        features: ``(N, D)`` input of the layer, with its graph; positions of a 1×1 convolution are averaged, and for a
            language model that classifies texts it is the position whose logits the model returns.
        weight: ``(C, D)`` weight that was applied to these features.
        bias: ``(C,)`` bias that was added, or None.
    """

    def __init__(self, layer: HeadLayer) -> None:
        self.path = layer.path
        self._module = layer.module
        self._features: Tensor | None = None
        self._position_logits: Tensor | None = None
        self._weight: Tensor | None = None
        self._bias: Any = None
        self._versions: dict[str, list[tuple[Tensor, int]]] = {}
        self._same_weight = ExitStack()
        self._stepped = self._running = self._unread = False
        self._fired = 0

    def __repr__(self) -> str:
        weight = getattr(self._module, "weight", None)
        shape = "" if weight is None else f"{weight.shape[0]:,} classes × {weight.flatten(1).shape[1]:,} features"
        rows = "no batch yet" if self._features is None else f"a batch of {len(self._features):,}"
        return self._line(None, self.path or "the model itself", *filter(None, (shape, rows)))

    @property
    def features(self) -> Tensor:
        self._unread = False
        return self._unchanged("features", self._features)

    @property
    def weight(self) -> Tensor:
        weight = self._unchanged("weight", self._weight)
        return weight.reshape(len(weight), -1)

    @property
    def bias(self) -> Tensor | None:
        self._unchanged("weight", self._weight)
        return self._bias

    def _unchanged(self, name: str, value: Tensor | None) -> Tensor:
        if value is None:
            raise StateError(f"head.{name} is not there yet: call the model once inside the capture context.")
        stepped = name == "weight" and self._stepped
        if stepped or any(tensor._version != version for tensor, version in self._versions[name]):
            raise StateError(
                f"head.{name} has changed since the model ran (a step, a load, an operation in place?); read "
                "it before that, or run the model again."
            )
        return value

    # The hooks.

    def _start(self, *_: Any) -> None:
        if self._unread:
            raise StateError(
                "several forward passes in one capture context: the features of the first were never read. "
                "Read head.features after each pass, or open one context per pass."
            )
        self._running, self._fired = True, 0

    def _before(self, module: nn.Module, *_: Any) -> None:
        if parametrize.is_parametrized(module):  # so that the weight read afterwards is the one that was used
            self._same_weight.enter_context(parametrize.cached())

    def _fire(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        with self._same_weight:
            weight, bias = module.weight, getattr(module, "bias", None)
        if not self._running:
            raise StateError(
                f"the head {self.path!r} ran outside the model's forward pass: activation checkpointing runs it again "
                "in the backward pass (leave the head out of the checkpointed part), or it was called directly."
            )
        self._fired += 1
        if self._fired > 1:
            return
        x = args[0] if args else next(iter(kwargs.values()))
        self._features = _as_rows(x, module)
        self._position_logits = None if self._features.ndim == 2 else output
        self._weight, self._bias = weight, bias if isinstance(bias, Tensor) else None  # pyrefly: ignore[bad-assignment]
        # A computed weight (weight norm) changes when the tensors behind it do.
        self._stepped = False
        behind: dict[str, list[Any]] = {"features": [x], "weight": [weight, *module.parameters()]}
        self._versions = {name: [(t, t._version) for t in ts if not t.is_inference()] for name, ts in behind.items()}

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Fused optimizers change weights without increasing their version."""
        # By identity, among all weights of a network in every step: hashing tensors takes ten times as long.
        mine = {id(parameter) for parameter in self._module.parameters()}
        groups = (group["params"] for group in optimizer.param_groups)
        self._stepped = self._stepped or any(not mine.isdisjoint(map(id, parameters)) for parameters in groups)

    def _stop(self, *_: Any) -> None:
        """Also when the forward pass raised."""
        self._running = False
        self._same_weight.close()

    def _end(self, model: nn.Module, _: Any, output: Any) -> None:
        features, logits = self._features, self._position_logits
        self._features = self._position_logits = None
        if self._fired == 1 and features is not None:
            self._features = features if logits is None else _at_output(features, logits, output, self.path)
            self._unread = True
            return
        if self._fired > 1:
            raise StateError(
                f"the head {self.path!r} ran {self._fired} times in one forward pass (several crops, or a head shared "
                "by several outputs); name another layer with head=, or call the model on one input at a time."
            )
        raise StateError(
            f"the head {self.path!r} did not run in this forward pass. Either another layer computes the output (name "
            "it with head=), or its weight is used through F.linear, or the part of the model around it is compiled or "
            f"replaced; {_candidates(model)}."
        )


def _as_rows(x: Tensor, module: nn.Module) -> Tensor:
    """The input of a head as rows ``(N, D)``; with several positions per sample it stays as it is."""
    if isinstance(module, nn.Conv2d):
        return x.flatten(2).mean(2)  # the layer is linear: the mean of its logits is the logit of the mean
    return x.flatten(1) if x.ndim > 2 and x.shape[1:-1].numel() == 1 else x


def _at_output(x: Tensor, logits: Tensor, output: Any, path: str) -> Tensor:
    """The input of a head at the one position of each sample whose logits the model returns.

    Decoder language models with a head for classification score every token and return the last one's logits. Only
    their code knows which token that is, so it is recognized by its logits; this waits for the device.
    """
    matrices = [m for m in output_matrices(output) if x.ndim == 3 and m.shape == (len(x), logits.shape[-1])]
    for matrix in matrices:
        same = (logits == matrix[:, None].to(logits.dtype)).all(2)
        position = same.int().argmax(1)
        features = x[torch.arange(len(x), device=x.device), position]
        twins = (x == features[:, None]).all(2)  # equal tokens in equal places: either is right
        if same.any(1).all() and not (same & ~twins).any():
            return features
        if same.any(1).all():
            raise StateError(
                f"the head {path!r} gives several positions of one text the same logits, so that the one it is "
                "classified by cannot be told; run the model in float32."
            )
    raise StateError(
        f"the input of the head {path!r} has the shape {tuple(x.shape)}, expected (samples, features): "
        "it classifies positions, not samples; name the layer that classifies samples with head=."
    )


@contextmanager
def capture(model: nn.Module, head: str | nn.Module | None = None) -> Iterator[Head]:
    """Record the input of the last linear layer while the model runs; the hooks are removed on exit.

    Each forward pass inside the context must run the head exactly once, and its features must be read before the next
    one; anything else is an error that names the cause.

    Args:
        model: Any classifier, not compiled (DDP-wrapped is fine).
        head: Path of the layer, or the layer, when `find_head` should not choose.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> with capture(model) as head:
        ...     _ = model(torch.ones(2, 2, 2))
        >>> head.features.shape, head.weight.shape
        (torch.Size([2, 4]), torch.Size([3, 4]))
    """
    root = unwrap(model)
    if hasattr(model, "_orig_mod") or root._compiled_call_impl is not None:
        plain = "model._orig_mod" if hasattr(model, "_orig_mod") else "the model before model.compile()"
        raise InputError(
            f"model is compiled, and compiled code does not run hooks: capture and call {plain} instead "
            "(it shares the weights)."
        )
    layer = find_head(model, head)
    if any(
        type(part).__name__ in ("DTensor", "FullyShardedDataParallel")
        for part in (*enclosing(model, layer), *layer.module.parameters())
    ):
        raise InputError(
            f"the head {layer.path!r} is sharded (FSDP): no process holds its whole weight. "
            "Gather the model, or keep the head out of the sharding (fully_shard(…, ignored_params=…))."
        )
    record = Head(layer)
    handles = [
        root.register_forward_pre_hook(record._start),
        layer.module.register_forward_pre_hook(record._before),
        layer.module.register_forward_hook(record._fire, with_kwargs=True),
        root.register_forward_hook(record._stop, always_call=True),
        root.register_forward_hook(record._end),
        register_optimizer_step_post_hook(record._step),
    ]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def output_matrices(output: Any) -> list[Tensor]:
    """Possible logits in the output of a model: the ``(N, K)`` tensors of a tuple, a dict or an object."""
    if isinstance(output, Tensor):
        return [output] if output.ndim == 2 else []
    if isinstance(getattr(output, "logits", None), Tensor):
        return output_matrices(output.logits)
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return [matrix for item in items for matrix in output_matrices(item)]


def forward(network: nn.Module, inputs: Any) -> Any:
    """The output of a network for a batch: a tensor, named inputs, or graphs.

    Networks for graphs take the batch as a whole, or the attributes that they name: ``forward(x, edge_index, batch)``.
    """
    if isinstance(inputs, dict):
        return network(**inputs)
    if is_graph(inputs):
        parameters = inspect.signature(network.forward).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        required = [p.name for p in named if p.default is p.empty]
        sizes = [name for name in _SIZES_OF_GRAPHS if hasattr(inputs, name)]
        attributes = {p.name: getattr(inputs, p.name) for p in named if p.name in inputs or p.name in sizes}
        missing = [name for name in required if name not in attributes]
        if attributes and not missing:
            return network(**attributes)
        if missing != required or len(required) > 1:
            raise InputError(f"the network takes {', '.join(missing)}, which the graphs do not have.")
    return network(inputs)


def logits_of(network: nn.Module, x: Any) -> Tensor:
    """The logits ``(N, C)`` of a batch, however the network returns them."""
    matrices = output_matrices(forward(network, x))
    if not matrices:
        raise InputError("the model must return logits (samples, classes), or something that holds them.")
    return matrices[0]
