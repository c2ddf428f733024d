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
OF_LOGITS: dict[str, Callable[[], nn.Module]] = {
    "EL, log_end .75": hs.EncouragingLoss,
    "EL, log_end 1": partial(hs.EncouragingLoss, log_end=1),
    "EL, gradient matched": partial(hs.EncouragingLoss, log_end=1, match_gradient=True),
    "focal": FocalLoss,
    "mirror": MirrorMSELoss,
    "CompositeLoss(EL)": lambda: CompositeLoss(hs.EncouragingLoss()),
}


def losses() -> Iterator[Comparison]:
    """Forward and backward of losses against cross-entropy, eager and compiled; a training step with AMC-Loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(1)
        for samples, classes in ((256, 1000), (64, 10_000)) if device == "cpu" else ((1024, 1000),):
            for compiled in (False, True):
                yield _of_logits(samples, classes, device, compiled)
                yield _smoothed(samples, classes, device, compiled)
        for compiled in (False, True):
            yield _of_features(1024, 2048, 1000, device, compiled)
    finally:
        torch.set_num_threads(threads)
    yield _amc_step(device)


def _logits(samples: int, classes: int, device: str, seed: int) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    return torch.randn(samples, classes).to(device), torch.randint(classes, (samples,)).to(device)


def _of_logits(samples: int, classes: int, device: str, compiled: bool) -> Comparison:
    draw = partial(_logits, samples, classes, device)
    cases = [_case("cross-entropy", nn.CrossEntropyLoss(), draw, compiled)]
    for name, make in OF_LOGITS.items():
        cases.append(_case(name, make(), draw, compiled, "cross-entropy", COMPILED if compiled else EAGER, make()))
    return _comparison(cases, f"N={samples} C={classes} dtype=float32", device)


def _smoothed(samples: int, classes: int, device: str, compiled: bool) -> Comparison:
    """Apart from the others, whose caches it would empty. Each class has its bonus: far more than a mean of log p."""
    draw, smoothed = partial(_logits, samples, classes, device), {"label_smoothing": 0.1}
    baseline = "cross-entropy, smoothed"
    cases = [_case(baseline, nn.CrossEntropyLoss(**smoothed), draw, compiled)]
    cases.append(_case("EL, smoothed", hs.EncouragingLoss(**smoothed), draw, compiled, baseline))
    return _comparison(cases, f"N={samples} C={classes} dtype=float32", device)


def _of_features(samples: int, width: int, classes: int, device: str, compiled: bool) -> Comparison:
    """A last layer and its loss: the products of features and class weights, and their gradients, are part of both."""

    def draw(seed: int) -> tuple[Tensor, ...]:
        torch.manual_seed(seed)
        weight = torch.randn(classes, width) / width**0.5
        return torch.randn(samples, width).to(device), weight.to(device), torch.randint(classes, (samples,)).to(device)

    def of(logits: Callable[..., Tensor], loss: Callable[..., Tensor], takes_target: bool = False) -> Callable:
        def head(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
            return loss(logits(features, weight, *([target] if takes_target else [])), target)

        return head

    el = hs.EncouragingLoss()
    heads = {
        "linear, EL": of(F.linear, el),
        "cosine": of(cosine_logits, F.cross_entropy),
        "cosface": of(cosface_logits, F.cross_entropy, True),
        "arcface": of(arcface_logits, F.cross_entropy, True),
        "sphereface": of(sphereface_logits, F.cross_entropy, True),
        "arcface, EL": of(arcface_logits, el, True),
        "AVH loss": AVHLoss(),
    }
    limit = COMPILED if compiled else EAGER
    cases = [_case("linear, cross-entropy", of(F.linear, F.cross_entropy), draw, compiled)]
    for name, head in heads.items():
        cases.append(_case(name, head, draw, compiled, "linear, cross-entropy", limit, head))
    return _comparison(cases, f"N={samples} D={width} C={classes} dtype=float32", device)


def _case(
    name: str,
    loss: Callable[..., Tensor],
    draw: Callable[[int], tuple[Tensor, ...]],
    compiled: bool,
    baseline: str = "",
    limit: float | None = None,
    reference: Callable[..., Tensor] | None = None,
) -> Case:
    """Forward and backward, with gradients at everything but the target."""
    call = torch.compile(loss, fullgraph=True) if compiled else loss
    *tensors, target = draw(0)
    for tensor in tensors:
        tensor.requires_grad_()

    def run() -> list[Tensor | None]:
        for tensor in tensors:
            tensor.grad = None
        call(*tensors, target).backward()
        return [tensor.grad for tensor in tensors]

    def check(seed: int) -> float:
        *drawn, target = draw(seed)
        for tensor in drawn:
            tensor.requires_grad_()
        value = call(*drawn, target)
        actual = [value, *torch.autograd.grad(value, drawn)]
        exact = [tensor.detach().double().requires_grad_() for tensor in drawn]
        value = reference(*exact, target)  # pyrefly: ignore[not-callable]
        expected = [value, *torch.autograd.grad(value, exact)]
        # As the tests of every loss have it: the value to 1e-5, gradients to 1e-4 of the largest.
        pairs = zip(actual, expected, strict=True)
        errors = [((a.double() - e).abs().max() / (e.abs().max() + (not k))).item() for k, (a, e) in enumerate(pairs)]
        return max(errors[0] / 1e-5, *(error / 1e-4 for error in errors[1:]))

    name = f"compiled {name}" if compiled else name
    baseline = f"compiled {baseline}" if compiled and baseline else baseline
    return Case(name, run, baseline, limit, check if reference else None)


def _comparison(cases: list[Case], config: str, device: str) -> Comparison:
    repeats = 20 if device == "cuda" else 1
    rounds = 60 if "D=" not in config else 15
    return Comparison(cases, config, rounds, repeats, device)


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
