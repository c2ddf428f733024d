"""Class activation maps: which positions speak for a class.

How it differs from AMC-Loss's released code: there the map begins at 1 everywhere, so that nothing but strong
counter-evidence is ever dark; gradients are divided by their root mean square, one number for a picture, which then
only scales the evidence against that 1; and the division by the maximum has no guard. Here it is the weighted sum
alone, ReLU, divided by its maximum, and zeros where nothing speaks for the class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hardsight.devices import evaluating
from hardsight.errors import InputError, StateError
from hardsight.explanation.places import Place, find_place
from hardsight.heads import Head, capture, logits_of, uncompiled
from hardsight.models import Model, as_model

# Beyond this share of the largest value two results of float32 are different formulas.
_ROUNDING = 1e-3


class Explained(NamedTuple):
    """Maps of a batch with what the network said of it.

    Attributes:
        maps: ``(N, h, w)`` on the network's own grid.
        logits: ``(N, C)``.
        classes: ``(N,)`` that the maps explain.
        closed: Whether a closed form sufficed.
    """

    maps: Tensor
    logits: Tensor
    classes: Tensor
    closed: bool


def cam(
    model: Model | nn.Module,
    images: Tensor,
    classes: Tensor | np.ndarray | Sequence[int] | None = None,
    *,
    layer: str | None = None,
) -> Tensor:
    """Grad-CAM of a batch: for each picture, how much each position speaks for a class.

    Each channel of the last feature map is weighted with the mean gradient of the class's logit, the channels are
    summed, what is negative becomes 0, and the largest value 1. Where the network averages the map over positions and
    a linear layer follows, those gradients are that layer's weights and none is computed (CAM).

    The network runs in eval mode where it is, and is left as it was: modes, hooks, gradients and flags.

    Args:
        model: A convolutional network or a vision transformer (`RECIPES`).
        images: ``(N, C, H, W)``, as the network takes them.
        classes: ``(N,)`` whose logits are explained; the predicted ones by default.
        layer: Path of the layer to explain at; the last one that still has positions by default.

    Returns:
        ``(N, h, w)`` float32 in [0, 1], on the grid of that layer. A map is all 0 where nothing speaks for the class.

    Raises:
        ValueError: The network has no map of features over positions (an MLP).

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
        return explain(network, find_place(network, x, layer), x, classes).maps


def check_images(images: Any) -> None:
    """Refuse what is no batch of pictures."""
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images) or not images.is_floating_point():
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a float tensor (N, channels, height, width), N ≥ 1, got {got}.")


def explain(network: nn.Module, place: Place, images: Tensor, classes: Any = None) -> Explained:
    """`cam` of a network in eval mode at a place that is known, with the logits."""
    with torch.inference_mode(False), torch.no_grad(), capture(network) as head, _leaf(place) as seen:
        logits = logits_of(network, images)  # from the place on with gradients
        features, weight = head.features, head.weight
        if not seen:
            raise StateError(f"layer={place.path!r} did not run as often in this forward as in the one before.")
        values = place.as_map(seen[0].detach())
        judged = _judged(classes, logits.detach())
        closed = _averaged(values, features.detach(), head, logits.detach())
        if closed:
            weights = weight.detach().float()[judged]
        else:
            asked = logits.gather(1, judged[:, None]).sum()
            slope = torch.autograd.grad(asked, seen[0], allow_unused=True)[0] if asked.requires_grad else None
            if slope is None:
                raise InputError(f"layer={place.path!r}: the logits do not depend on its output; name another layer.")
            weights = place.as_map(slope).mean((2, 3))
    maps = torch.einsum("nc,nchw->nhw", weights, values).relu_()
    if not maps.isfinite().all():
        raise InputError("model: its features or gradients hold NaN or infinity; train it again, with a lower rate.")
    peak = maps.amax((1, 2), keepdim=True)
    return Explained(maps / peak.masked_fill(peak == 0, 1.0), logits.detach(), judged, closed)


def _judged(classes: Any, logits: Tensor) -> Tensor:
    """Which class of each sample is explained."""
    if classes is None:
        return logits.argmax(1)
    judged, (n, count) = torch.as_tensor(classes, device=logits.device), logits.shape
    if judged.shape != (n,) or judged.is_floating_point() or not ((judged >= 0) & (judged < count)).all():
        got = f"{judged.dtype} {tuple(judged.shape)}" if judged.shape != (n,) else f"{judged.tolist()[:5]} …"
        raise InputError(f"classes must be {n} class indices from 0 to {count - 1}, got {got}.")
    return judged.long()


@contextmanager
def _leaf(place: Place) -> Iterator[list[Tensor]]:
    """Begin the graph at one layer: what comes before costs neither memory nor time. The hook is gone on exit."""
    seen: list[Tensor] = []
    calls = 0

    def begin(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        if calls != place.call:
            return None
        seen.append(output.detach().requires_grad_())
        torch.set_grad_enabled(True)  # until the no_grad around the forward ends
        return seen[0].clone()  # what follows may change it in place

    handle = place.module.register_forward_hook(begin)
    try:
        yield seen
    finally:
        handle.remove()


def _averaged(values: Tensor, features: Tensor, head: Head, logits: Tensor) -> bool:
    """Whether the head sees the mean of the map and its output is the answer: looked at, not guessed from layers."""
    weight, bias = head.weight.detach(), None if head.bias is None else head.bias.detach()
    if values.shape[1] != features.shape[1] or len(weight) != logits.shape[1]:
        return False
    pairs = (values.mean((2, 3)), features.float()), (F.linear(features, weight, bias).float(), logits.float())
    return bool(torch.stack([(a - b).abs().max() <= _ROUNDING * b.abs().max() for a, b in pairs]).all())


def on_picture(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps ``(N, h, w)`` at the size of the picture, bilinear.

    Examples:
        >>> on_picture(torch.tensor([[[0.0, 1.0]]]), (1, 4))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    return F.interpolate(maps[:, None], tuple(size), mode="bilinear")[:, 0]
