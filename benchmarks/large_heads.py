"""What losses of a hundred thousand and a million classes cost, in time and memory, against three matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Case, Comparison, Skipped
from hardsight.losses import (
    AVHLoss,
    CompositeLoss,
    EncouragingLoss,
    arcface_logits,
    cosface_logits,
    largeheads,
)

SHAPES = ((8192, 2304, 131_072), (4096, 512, 1_000_000))
LIMIT, MEMORY_LIMIT = 1.5, 512  # × three products; MiB beyond the gradients
CHECKED = (512, 5008)  # rows and classes at which gradients are compared with float64
CHUNK = 2**27  # products of the baseline that exist at a time

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def _without_logits(loss: CompositeLoss, x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return loss(None, y, x, w)


LOSSES: dict[str, Loss] = {
    "EL": EncouragingLoss().from_features,
    "AVH": AVHLoss(),
    "arcface": partial(_without_logits, CompositeLoss(torch.nn.CrossEntropyLoss(), arcface_logits)),
    "cosface": partial(_without_logits, CompositeLoss(torch.nn.CrossEntropyLoss(), cosface_logits)),
}


def large_heads() -> Iterator[Comparison]:
    """Losses of 131,072 and 1,000,000 classes, forward and backward, against three bfloat16 matrix products."""
    if not torch.cuda.is_available():
        raise Skipped("needs a GPU")
    for shape in SHAPES:
        for autocast in (False, True):
            yield _compare(*shape, autocast)
            torch.cuda.empty_cache()


def _compare(n: int, d: int, c: int, autocast: bool) -> Comparison:
    x, w, y = draw(n, d, c, 0)
    half_x, half_w = x.bfloat16(), w.bfloat16()
    if not autocast:
        x, w = half_x, half_w
    x, w = x.requires_grad_(), w.requires_grad_()
    cases = [Case("three products", lambda: three_products(half_x, half_w))]
    for name, loss in LOSSES.items():
        run = _step(loss.cuda() if isinstance(loss, torch.nn.Module) else loss, x, w, y, autocast)
        cases.append(Case(name, run, "three products", LIMIT, _check(loss, d, autocast), MEMORY_LIMIT))
    dtype = "float32 autocast=bfloat16" if autocast else "bfloat16"
    return Comparison(cases, f"N={n} D={d} C={c} dtype={dtype}", 15, device="cuda")


def draw(n: int, d: int, c: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features of a network that has learned something: a tenth of their length along the weight of the target."""
    generator = torch.Generator("cuda").manual_seed(seed)
    w = torch.randn(c, d, device="cuda", generator=generator) / d**0.5
    y = torch.randint(c, (n,), device="cuda", generator=generator)
    x = torch.randn(n, d, device="cuda", generator=generator) + w[y] * (0.1 * d**0.5)
    return x, w, y


def three_products(x: Tensor, w: Tensor) -> None:
    """The products of a linear layer forward and backward, with a matrix of gradients that costs nothing."""
    step = CHUNK // len(x)
    slope = x.new_ones(len(x), step)
    for chunk in w.split(step):
        x @ chunk.T
        slope[:, : len(chunk)] @ chunk
        slope[:, : len(chunk)].T @ x


def _step(loss: Loss, x: Tensor, w: Tensor, y: Tensor, autocast: bool) -> Callable[[], object]:
    def run() -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            value = loss(x, w, y)
        return torch.autograd.grad(value, (x, w))

    return run


def _check(loss: Loss, d: int, autocast: bool) -> Callable[[int], float]:
    """The error of the gradients against float64, in units of that of a plain bfloat16 head on the same inputs."""

    def check(seed: int) -> float:
        n, c = CHECKED
        x, w, y = draw(n, d, c, seed)
        if not autocast:
            x, w = x.bfloat16(), w.bfloat16()
        limit, largeheads.LARGE = largeheads.LARGE, 1
        try:
            found = _gradients(loss, x, w, y, autocast)
        finally:
            largeheads.LARGE = limit
        truth = _gradients(loss, x.double(), w.double(), y, False)
        plain = _gradients(_plain, x, w, y, autocast)
        exact = _gradients(_plain, x.double(), w.double(), y, False)
        usual = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(plain, exact, strict=True)]
        errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, truth, strict=True)]
        return max(error / other for error, other in zip(errors, usual, strict=True))

    return check


def _plain(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(16 * F.linear(F.normalize(x, dim=1), F.normalize(w, dim=1)), y)


def _gradients(loss: Loss, x: Tensor, w: Tensor, y: Tensor, autocast: bool) -> tuple[Tensor, ...]:
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        value = loss(x, w, y)
    return torch.autograd.grad(value, (x, w))
