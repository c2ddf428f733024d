"""What losses cost against cross-entropy, AMC-Loss in a training step, and losses of a million classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hardsight as hs
from benchmarks.measure import Case, Comparison, Skipped
from hardsight import losses as hl
from hardsight.networks import build_network

Loss = Callable[..., Tensor]

EAGER, COMPILED = 1.5, 1.15  # times the first of a group


def _head(logits: Loss, loss: Loss, margin: bool = False) -> Loss:
    """A last layer and its loss: products of features and class weights, and their gradients, are part of it."""

    def head(features: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return loss(logits(features, weight, *([target] if margin else [])), target)

    return head


OF_LOGITS: dict[str, Loss] = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "EL, log_end .75": hs.EncouragingLoss(),
    "EL, log_end 1": hs.EncouragingLoss(log_end=1),
    "EL, gradient matched": hs.EncouragingLoss(log_end=1, match_gradient=True),
    "focal": hl.FocalLoss(),
    "mirror": hl.MirrorMSELoss(),
    "CompositeLoss(EL)": hl.CompositeLoss(hs.EncouragingLoss()),
}
# Apart from the others, whose caches it would empty: each class has a bonus, not a mean of log p.
SMOOTHED: dict[str, Loss] = {
    "cross-entropy, smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "EL, smoothed": hs.EncouragingLoss(label_smoothing=0.1),
}
HEADS: dict[str, Loss] = {
    "linear, cross-entropy": _head(F.linear, F.cross_entropy),
    "linear, EL": _head(F.linear, hs.EncouragingLoss()),
    "cosine": _head(hl.cosine_logits, F.cross_entropy),
    "cosface": _head(hl.cosface_logits, F.cross_entropy, True),
    "arcface": _head(hl.arcface_logits, F.cross_entropy, True),
    "sphereface": _head(hl.sphereface_logits, F.cross_entropy, True),
    "arcface, EL": _head(hl.arcface_logits, hs.EncouragingLoss(), True),
    "AVH loss": hl.AVHLoss(),
}


def losses() -> Iterator[Comparison]:
    """Forward and backward of losses against cross-entropy, eager and compiled; a training step with AMC-Loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = ((256, 0, 1000), (64, 0, 10_000)) if device == "cpu" else ((1024, 0, 1000),)
    groups = [*itertools.product(sizes, (OF_LOGITS, SMOOTHED)), ((1024, 2048, 1000), HEADS)]
    threads = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(1)
        for (size, group), compiled in itertools.product(groups, (False, True)):
            yield _compare(group, *size, device, compiled)
    finally:
        torch.set_num_threads(threads)
    yield _amc_step(device)


def _draw(n: int, d: int, c: int, device: str, seed: int) -> list[Tensor]:
    """Features, class weights and labels; logits and labels where there is no width."""
    torch.manual_seed(seed)
    inputs = [torch.randn(n, d), torch.randn(c, d) / d**0.5] if d else [torch.randn(n, c)]
    return [tensor.to(device) for tensor in (*inputs, torch.randint(c, (n,)))]


def _compare(losses: dict[str, Loss], n: int, d: int, c: int, device: str, compiled: bool) -> Comparison:
    """Losses against the first, forward and backward, with gradients at everything but the target."""
    prefix, limit = ("compiled ", COMPILED) if compiled else ("", EAGER)
    draw, cases = partial(_draw, n, d, c, device), []
    for name, loss in losses.items():
        call = torch.compile(loss, fullgraph=True) if compiled else loss
        bounds = (
            (cases[0].name, None if losses is SMOOTHED else limit, partial(_error, call, loss, draw)) if cases else ()
        )
        cases.append(Case(prefix + name, partial(_gradients, call, *draw(0)), *bounds))
    config = f"N={n} D={d} C={c} dtype=float32" if d else f"N={n} C={c} dtype=float32"
    return Comparison(cases, config, 15 if d else 60, 20 if device == "cuda" else 1, device)


def _gradients(loss: Loss, *tensors: Tensor) -> list[Tensor]:
    """The value and its gradients."""
    *inputs, target = tensors
    for tensor in inputs:
        tensor.requires_grad_()
    value = loss(*inputs, target)
    return [value, *torch.autograd.grad(value, inputs)]


def _error(call: Loss, loss: Loss, draw: Callable, seed: int) -> float:
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
            features, loss = head.features, F.cross_entropy(logits.float(), y)
            if pairs:
                loss = loss + amc(features, logits.argmax(1))
        loss.backward()

    name = "ResNet-18 step"
    cases = [Case(name, partial(step, False)), Case(f"{name} + AMC", partial(step, True), name, 1.02)]
    return Comparison(cases, f"N={samples} C=10", 60 if gpu else 15, 1, device)


# Losses of so many classes that the logits never exist, against three matrix products.


def _without_logits(logits: Loss) -> Loss:
    loss = hl.CompositeLoss(nn.CrossEntropyLoss(), logits)
    return lambda x, w, y: loss(None, y, x, w)


LARGE: dict[str, Loss] = {
    "EL": hs.EncouragingLoss().from_features,
    "AVH": hl.AVHLoss(),
    "arcface": _without_logits(hl.arcface_logits),
    "cosface": _without_logits(hl.cosface_logits),
}
LARGE_SHAPES = ((8192, 2304, 131_072), (4096, 512, 1_000_000))
LARGE_LIMIT, LARGE_MEMORY = 1.5, 512  # × three products; MiB beyond the gradients
CHECKED = (512, 5008)  # rows and classes at which gradients are compared with float64
CHUNK = 2**27  # products of the baseline that exist at a time


def large_heads() -> Iterator[Comparison]:
    """Losses of 131,072 and 1,000,000 classes, forward and backward, against three bfloat16 matrix products."""
    if not torch.cuda.is_available():
        raise Skipped("needs a GPU")
    for shape, mixed in itertools.product(LARGE_SHAPES, (False, True)):
        yield _compare_large(*shape, mixed)
        torch.cuda.empty_cache()


def _compare_large(n: int, d: int, c: int, mixed: bool) -> Comparison:
    """In bfloat16, or in float32 with autocast."""
    x, w, y = _near_targets(n, d, c, 0)
    half_x, half_w = x.bfloat16(), w.bfloat16()
    if not mixed:
        x, w = half_x, half_w
    cases = [Case("three products", partial(_three_products, half_x, half_w))]
    for name, loss in LARGE.items():
        run = partial(_gradients, _autocast(loss) if mixed else loss, x, w, y)
        cases.append(
            Case(name, run, "three products", LARGE_LIMIT, partial(_large_error, loss, d, mixed), LARGE_MEMORY)
        )
    dtype = "float32 autocast=bfloat16" if mixed else "bfloat16"
    return Comparison(cases, f"N={n} D={d} C={c} dtype={dtype}", 15, device="cuda")


def _autocast(loss: Loss) -> Loss:
    return torch.autocast("cuda", torch.bfloat16)(loss)


def _near_targets(n: int, d: int, c: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of a network that has learned something: a tenth of their length along the weight of the target."""
    generator = torch.Generator("cuda").manual_seed(seed)
    w = torch.randn(c, d, device="cuda", generator=generator) / d**0.5
    y = torch.randint(c, (n,), device="cuda", generator=generator)
    x = torch.randn(n, d, device="cuda", generator=generator) + w[y] * (0.1 * d**0.5)
    return x, w, y


def _three_products(x: Tensor, w: Tensor) -> None:
    """The products of a linear layer forward and backward, with a matrix of gradients that costs nothing."""
    step = CHUNK // len(x)
    slope = x.new_ones(len(x), step)
    for chunk in w.split(step):
        x @ chunk.T
        slope[:, : len(chunk)] @ chunk
        slope[:, : len(chunk)].T @ x


def _large_error(loss: Loss, d: int, mixed: bool, seed: int) -> float:
    """The error of the gradients against float64, in units of that of a plain bfloat16 head on the same inputs."""
    x, w, y = _near_targets(CHECKED[0], d, CHECKED[1], seed)
    if not mixed:
        x, w = x.bfloat16(), w.bfloat16()
    errors = []
    for head in (loss, _plain_head):
        with mock.patch.object(hl.largeheads, "LARGE", 1):  # as if there were many classes
            actual = _gradients(_autocast(head) if mixed else head, x, w, y)[1:]
        exact = _gradients(head, x.double(), w.double(), y)[1:]
        errors.append([((a.double() - e).norm() / e.norm()).item() for a, e in zip(actual, exact, strict=True)])
    return max(error / usual for error, usual in zip(*errors, strict=True))


def _plain_head(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(16 * F.linear(F.normalize(x, dim=1), F.normalize(w, dim=1)), y)
