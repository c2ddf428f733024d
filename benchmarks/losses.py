"""What losses cost: those of the soft margin and heads with margins against cross-entropy, and AMC-Loss in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hardsight as hs
from benchmarks.measure import Case, Comparison
from hardsight.losses import (
    AVHLoss,
    CompositeLoss,
    FocalLoss,
    MirrorMSELoss,
    arcface_logits,
    cosface_logits,
    cosine_logits,
    sphereface_logits,
)
from hardsight.networks import build_network

EAGER, COMPILED = 1.5, 1.15  # times cross-entropy
OF_LOGITS: dict[str, nn.Module] = {
    "EL, log_end .75": hs.EncouragingLoss(),
    "EL, log_end 1": hs.EncouragingLoss(log_end=1),
    "EL, gradient matched": hs.EncouragingLoss(log_end=1, match_gradient=True),
    "focal": FocalLoss(),
    "mirror": MirrorMSELoss(),
    "CompositeLoss(EL)": CompositeLoss(hs.EncouragingLoss()),
}


def losses() -> Iterator[Comparison]:
    """Forward and backward of losses against cross-entropy, eager and compiled; a training step with AMC-Loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(1)
        for samples, classes in ((256, 1000), (64, 10_000)) if device == "cpu" else ((1024, 1000),):
            draw, config = partial(_logits, samples, classes, device), f"N={samples} C={classes}"
            for compiled in (False, True):
                yield _compare(("cross-entropy", nn.CrossEntropyLoss()), OF_LOGITS, draw, config, compiled)
                # Apart from the others, whose caches it would empty: each class has a bonus, not a mean of log p.
                plain, smoothed = nn.CrossEntropyLoss(label_smoothing=0.1), hs.EncouragingLoss(label_smoothing=0.1)
                pair = ("cross-entropy, smoothed", plain), {"EL, smoothed": smoothed}
                yield _compare(*pair, draw, config, compiled, limited=False)
        n, d, c = 1024, 2048, 1000
        for compiled in (False, True):
            baseline, draw = (
                ("linear, cross-entropy", _head(F.linear, F.cross_entropy)),
                partial(_features, n, d, c, device),
            )
            yield _compare(baseline, HEADS, draw, f"N={n} D={d} C={c}", compiled)
    finally:
        torch.set_num_threads(threads)
    yield _amc_step(device)


def _logits(samples: int, classes: int, device: str, seed: int) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    return torch.randn(samples, classes).to(device), torch.randint(classes, (samples,)).to(device)


def _features(samples: int, width: int, classes: int, device: str, seed: int) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    weight = torch.randn(classes, width) / width**0.5
    return torch.randn(samples, width).to(device), weight.to(device), torch.randint(classes, (samples,)).to(device)


def _head(logits: Callable[..., Tensor], loss: Callable[..., Tensor], takes_target: bool = False) -> Callable:
    """A last layer and its loss: products of features and class weights, and their gradients, are part of it."""

    def head(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return loss(logits(features, weight, *([target] if takes_target else [])), target)

    return head


HEADS: dict[str, Callable] = {
    "linear, EL": _head(F.linear, hs.EncouragingLoss()),
    "cosine": _head(cosine_logits, F.cross_entropy),
    "cosface": _head(cosface_logits, F.cross_entropy, True),
    "arcface": _head(arcface_logits, F.cross_entropy, True),
    "sphereface": _head(sphereface_logits, F.cross_entropy, True),
    "arcface, EL": _head(arcface_logits, hs.EncouragingLoss(), True),
    "AVH loss": AVHLoss(),
}


def _compare(
    baseline: tuple[str, Callable],
    others: dict[str, Callable],
    draw: Callable,
    config: str,
    compiled: bool,
    limited: bool = True,
) -> Comparison:
    """Losses against a baseline, forward and backward, with gradients at everything but the target."""
    prefix, limit = ("compiled ", COMPILED) if compiled else ("", EAGER)
    cases = []
    for name, loss in (baseline, *others.items()):
        call, tensors = torch.compile(loss, fullgraph=True) if compiled else loss, draw(0)
        check = partial(_error, call, loss, draw)
        against = (prefix + baseline[0], limit if limited else None, check) if name != baseline[0] else ()
        cases.append(Case(prefix + name, partial(_gradients, call, *tensors), *against))
    device, repeats = tensors[0].device.type, 20 if tensors[0].is_cuda else 1
    return Comparison(cases, f"{config} dtype=float32", 15 if "D=" in config else 60, repeats, device)


def _gradients(loss: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """The value and its gradients."""
    *inputs, target = tensors
    for tensor in inputs:
        tensor.requires_grad_()
    value = loss(*inputs, target)
    return [value, *torch.autograd.grad(value, inputs)]


def _error(call: Callable[..., Tensor], loss: Callable[..., Tensor], draw: Callable, seed: int) -> float:
    """As the tests of every loss have it: the value to 1e-5, gradients to 1e-4 of the largest."""
    *inputs, target = draw(seed)
    actual, exact = _gradients(call, *inputs, target), _gradients(loss, *(x.double() for x in inputs), target)
    errors = [
        ((a.double() - e).abs().max() / (e.abs().max() + (not k))).item()
        for k, (a, e) in enumerate(zip(actual, exact, strict=True))
    ]
    return max(errors[0] / 1e-5, *(error / 1e-4 for error in errors[1:]))


def _amc_step(device: str) -> Comparison:
    """A training step of CIFAR's ResNet-18 with and without AMC-Loss on its 512 features."""
    gpu = device == "cuda"
    network = build_network("resnet18-32", 10).to(device)
    samples = 512 if gpu else 16
    x, y = torch.randn(samples, 3, 32, 32, device=device), torch.randint(10, (samples,), device=device)
    amc = hs.AMCLoss(preset="paper")

    def step(pairs: bool) -> None:
        network.zero_grad(set_to_none=True)
        with hs.capture(network) as head, torch.autocast(device, torch.bfloat16, enabled=gpu):
            logits = network(x)
            loss = F.cross_entropy(logits.float(), y)
            if pairs:
                loss = loss + amc(head.features, logits.argmax(1))
            else:
                head.features  # noqa: B018  read as the other one does
        loss.backward()

    name = "ResNet-18 step"
    cases = [Case(name, partial(step, False)), Case(f"{name} + AMC", partial(step, True), name, 1.02)]
    return Comparison(cases, f"N={samples} C=10", 60 if gpu else 15, 1, device)
