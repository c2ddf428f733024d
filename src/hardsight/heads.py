"""From a model to the triple: find its last linear layer and capture what that layer saw.

`find_head` names the layer, `capture` records its input in a context whose hooks are gone on exit.
A forward that does not reach the head exactly once is an error that names the cause, never a silent
wrong number.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import register_optimizer_step_post_hook

from hardsight.errors import InputError, StateError


class HeadLayer(NamedTuple):
    """Where a model's last linear layer is."""

    path: str
    module: nn.Module

    @property
    def classes(self) -> int:
        """Rows of its weight, told without computing a parametrised one."""
        return (_shape(self.module) or (0, 0))[0]


def find_head(model: nn.Module, head: str | nn.Module | None = None) -> HeadLayer:
    """The last linear layer of a classifier.

    A given `head` always wins. Otherwise: timm's own `get_classifier`, else the last of the shallowest
    `nn.Linear` layers (1×1 convolutions where there is none). Wrappers (DDP, `torch.compile`) are looked
    through.

    Args:
        model: Any classifier.
        head: Path of the layer inside the model (``"classifier.2"``) or the layer itself.

    Returns:
        `HeadLayer` with the path inside the unwrapped model.

    Raises:
        ValueError: No layer, or several, could be the head; the message lists the candidates.

    Examples:
        >>> find_head(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))).path
        '2'
    """
    root = unwrap(model)
    if isinstance(head, nn.Module):
        for path, module in root.named_modules():
            if module is head:
                return _checked(root, path)
        raise InputError(f"head must be a layer of the model, got a {type(head).__name__} that is not in it.")
    if head is not None:
        return _checked(root, head)
    if hasattr(root, "get_classifier"):
        return _timm_head(root)
    return _last_linear(root)


def unwrap(model: nn.Module) -> nn.Module:
    """The plain module inside DDP, DataParallel and `torch.compile` wrappers."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # pyrefly: ignore[bad-assignment]
        elif isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif type(model).__name__ == "AveragedModel" and hasattr(model, "module"):
            model = model.module  # pyrefly: ignore[bad-assignment]
        else:
            return model


def uncompiled(model: nn.Module) -> nn.Module:
    """`unwrap`, and a view of a module compiled in place (`model.compile()`) that runs eagerly."""
    model = unwrap(model)
    if model._compiled_call_impl is not None:
        model = copy.copy(model)  # shares parameters and submodules
        model._compiled_call_impl = None
    return model


def _checked(root: nn.Module, path: str) -> HeadLayer:
    try:
        module = root.get_submodule(path)
    except AttributeError:
        raise InputError(f"head={path!r} is not in the model; {_candidates(root)}") from None
    if _shape(module) is None:
        raise InputError(
            f"head={path!r} is a {type(module).__name__}, which has no (classes, features) weight; {_candidates(root)}"
        )
    return HeadLayer(path, module)


def _timm_head(root: nn.Module) -> HeadLayer:
    classifier = root.get_classifier()  # pyrefly: ignore[not-callable]
    if isinstance(classifier, (tuple, list, nn.ModuleList)):
        inside = {id(module) for part in classifier for module in part.modules()}
        layers = [HeadLayer(p, m) for p, m in root.named_modules() if id(m) in inside and _shape(m) is not None]
        raise InputError(
            f"several layers could be the head: {', '.join(map(_describe, layers))}; the model combines them. "
            f"Say which one with head={layers[0].path!r}, for instance."
        )
    if not isinstance(classifier, nn.Module):
        return _last_linear(root)
    if not any(_shape(module) is not None for module in classifier.modules()):
        raise InputError(
            "the model has no head: its classifier is "
            f"{type(classifier).__name__}. Create it with num_classes > 0, or name a layer with head=."
        )
    return _last_linear(root, classifier)


def _last_linear(root: nn.Module, part: nn.Module | None = None) -> HeadLayer:
    """The last linear layer of `root`, or of a part of it; the path is always the one in `root`."""
    inside = {id(module) for module in (part or root).modules()}
    found = [HeadLayer(p, m) for p, m in root.named_modules() if id(m) in inside and _shape(m) is not None]
    layers = [layer for layer in found if isinstance(layer.module, nn.Linear)]
    layers = layers or [layer for layer in found if isinstance(layer.module, nn.Conv2d)]
    if not layers:
        raise InputError(
            f"no head found: {type(root).__name__} has no nn.Linear and no 1×1 convolution. "
            "Name the layer that holds the (classes, features) weight with head=."
        )
    depth = min(layer.path.count(".") for layer in layers)
    shallow = [layer for layer in layers if layer.path.count(".") == depth]
    best = shallow[-1]
    rivals = [layer for layer in shallow[:-1] if _is_rival(root, layer, best, layers)]
    if rivals:
        raise InputError(
            f"several layers could be the head: {', '.join(_describe(layer) for layer in [*rivals, best])}. "
            f"Say which one with head={best.path!r}, for instance."
        )
    return best


def _is_rival(root: nn.Module, layer: HeadLayer, best: HeadLayer, layers: list[HeadLayer]) -> bool:
    """Whether a layer looks like a second output: nothing takes its output, and it resembles the last one."""
    shared = 0
    for a, b in zip(layer.path.split("."), best.path.split("."), strict=False):
        if a != b:
            break
        shared += 1
    if isinstance(root.get_submodule(".".join(best.path.split(".")[:shared])), nn.Sequential):
        return False  # there the order says which is last
    outputs, inputs = _shape(layer.module) or (0, 0)
    best_outputs, best_inputs = _shape(best.module) or (0, 0)
    after = layers[layers.index(layer) + 1 :]
    if any((_shape(other.module) or (0, 0))[1] == outputs for other in after):
        return False
    return inputs == best_inputs or outputs == best_outputs


def _shape(module: nn.Module) -> tuple[int, int] | None:
    """(classes, features) of a layer that can be a head, else None."""
    if isinstance(module, nn.Conv2d) and (module.kernel_size != (1, 1) or module.groups != 1):
        return None
    if isinstance(module, (nn.Embedding, nn.LayerNorm)):
        return None
    shape = _weight_shape(module)
    if shape is None or len(shape) not in (2, 4) or shape[2:].numel() != 1 or not shape.numel():
        return None
    return shape[0], shape[1]


def _weight_shape(module: nn.Module) -> torch.Size | None:
    """Shape of the weight without computing it: a spectral norm changes its buffers each time it is computed."""
    if parametrize.is_parametrized(module, "weight"):
        originals = dict(module.parametrizations["weight"].named_parameters())  # pyrefly: ignore
        return max((p.shape for p in originals.values()), key=lambda shape: shape.numel())
    weight = getattr(module, "weight", None)
    if isinstance(weight, nn.UninitializedParameter):  # a lazy layer knows its classes, not yet its features
        return torch.Size([int(module.out_features), 1]) if isinstance(module, nn.Linear) else None
    return weight.shape if isinstance(weight, Tensor) else None


def _describe(layer: HeadLayer) -> str:
    outputs, inputs = _shape(layer.module) or (0, 0)
    return f"{layer.path or '(the model itself)'} ({inputs} → {outputs})"


def _candidates(root: nn.Module) -> str:
    layers = [HeadLayer(p, m) for p, m in root.named_modules() if isinstance(m, nn.Linear)]
    layers = layers or [HeadLayer(p, m) for p, m in root.named_modules() if _shape(m) is not None]
    if not layers:
        return "the model has no linear layer"
    listed = ", ".join(_describe(layer) for layer in layers[-8:])
    more = f" and {len(layers) - 8} before them" if len(layers) > 8 else ""
    return f"linear layers: {listed}{more}"


class Head:
    """What the last linear layer saw in the latest forward.

    Attributes:
        path: Where the layer is in the model.
        features: ``(N, D)`` input of the layer, with its graph; positions of a 1×1 convolution are averaged.
        weight: ``(C, D)`` weight that these features met.
        bias: ``(C,)`` bias that they met, or None.
    """

    def __init__(self, layer: HeadLayer) -> None:
        self.path = layer.path
        self._module = layer.module
        self._features: Tensor | None = None
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._seen: dict[str, list[tuple[Tensor, int]]] = {}
        self._same_weight = ExitStack()
        self._stepped = False
        self._running = False
        self._fired = 0
        self._unread = False

    @property
    def features(self) -> Tensor:
        features = self._unchanged("features", self._features)
        self._unread = False
        return features

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
        if stepped or any(tensor._version != version for tensor, version in self._seen[name]):
            cause = "an operation in place after the head" if name == "features" else "an optimiser step or a load"
            raise StateError(
                f"head.{name} has changed since these features were computed ({cause}?); read it before that, or run "
                "the model again."
            )
        return value

    # The hooks.

    def _start(self, *_: Any) -> None:
        if self._unread:
            raise StateError(
                "several forwards in one capture context: the first one's features were never read. "
                "Read head.features after each forward, or open one context a forward."
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
                f"the head {self.path!r} ran outside the model's forward: activation checkpointing runs it again "
                "in backward (leave the head out of the checkpointed part), or it was called directly."
            )
        self._fired += 1
        if self._fired > 1:
            return
        x = args[0] if args else next(iter(kwargs.values()))
        self._features = _as_rows(x, module, self.path)
        self._weight, self._bias = weight, bias if isinstance(bias, Tensor) else None  # pyrefly: ignore[bad-assignment]
        # A weight that is computed (weight norm) changes when the tensors behind it do.
        self._stepped = False
        behind: dict[str, list[Any]] = {"features": [x], "weight": [weight, *module.parameters()]}
        self._seen = {name: [(t, t._version) for t in ts if not t.is_inference()] for name, ts in behind.items()}

    def _step(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        """Fused optimisers change weights without counting it in their version."""
        own = {id(p) for p in self._module.parameters()}
        self._stepped |= any(id(p) in own for group in optimiser.param_groups for p in group["params"])

    def _stop(self, *_: Any) -> None:
        """Also when the forward raised."""
        self._running = False
        self._same_weight.close()

    def _end(self, model: nn.Module, *_: Any) -> None:
        if self._fired == 1:
            self._unread = True
            return
        self._features = None
        if self._fired > 1:
            raise StateError(
                f"the head {self.path!r} ran {self._fired} times in one forward (several crops, or a head shared by "
                "several outputs); name another layer with head=, or call the model on one input at a time."
            )
        raise StateError(
            f"the head {self.path!r} did not run in this forward. Either another layer makes the output (name it with "
            "head=), or its weight is used through F.linear, or the part of the model around it is compiled or "
            f"replaced; {_candidates(model)}."
        )


def _as_rows(x: Tensor, module: nn.Module, path: str) -> Tensor:
    if isinstance(module, nn.Conv2d):
        return x.flatten(2).mean(2)  # the layer is linear: the mean of its logits is the logit of the mean
    if x.ndim > 2 and x.shape[1:-1].numel() == 1:
        x = x.flatten(1)
    if x.ndim != 2:
        raise StateError(
            f"the head {path!r} saw an input of shape {tuple(x.shape)}, expected (samples, features): "
            "it classifies positions, not samples; name the layer that classifies samples with head=."
        )
    return x


@contextmanager
def capture(model: nn.Module, head: str | nn.Module | None = None) -> Iterator[Head]:
    """Record what the last linear layer sees while the model runs; the hooks are gone on exit.

    Each forward inside the context must reach the head exactly once and its features must be read
    before the next forward; anything else raises and names the cause.

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
            f"model is compiled, and compiled code does not see hooks: capture and call {plain} instead "
            "(it shares the weights)."
        )
    layer = find_head(model, head)
    sharded = [*layer.module.parameters(), *_around(model, layer)]
    if any(type(part).__name__ in ("DTensor", "FullyShardedDataParallel") for part in sharded):
        raise InputError(
            f"the head {layer.path!r} is sharded (FSDP): no process holds its whole weight. "
            "Gather the model, or keep the head out of the sharding."
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


def _around(model: nn.Module, layer: HeadLayer) -> Iterator[nn.Module]:
    """The model and every module that holds the head."""
    yield model
    root, names = unwrap(model), layer.path.split(".")
    for depth in range(len(names)):
        yield root.get_submodule(".".join(names[:depth]))


def output_matrices(output: Any) -> list[Tensor]:
    """What may be logits in whatever a model returns: the ``(N, K)`` tensors of a tuple, a dict or an object."""
    if isinstance(output, Tensor):
        return [output] if output.ndim == 2 else []
    if isinstance(getattr(output, "logits", None), Tensor):
        return output_matrices(output.logits)
    items = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return [matrix for item in items for matrix in output_matrices(item)]
