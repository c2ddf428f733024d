"""A new head on features that stay as they are: regularized multinomial logistic regression."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the penalty, to choose from
_SMALL = 1 << 24  # numbers up to which a second thread costs more than it saves on a busy machine


@contextmanager
def one_thread(small: bool = True) -> Iterator[None]:
    """One thread for small work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if small else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fit_head(
    features: Tensor, labels: Tensor, classes: int, strength: float, *, bias: bool = True, steps: int = 200
) -> tuple[Tensor, Tensor | None]:
    """Weight ``(C, D)`` and bias ``(C,)`` that minimize mean cross-entropy + strength/2 · ‖weight·scale‖².

    `scale` is the root mean square of the features' norms, so that one strength fits every network. Features are
    neither centered nor scaled by axis: that would turn the weights, and with them every angle. The start is zero: a
    head that has seen the labels would pass them on.
    """
    scale = features.square().sum(1).mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny)
    x = features.float() / scale
    weight = torch.zeros(classes, x.shape[1], device=x.device, requires_grad=True)
    offset = torch.zeros(classes, device=x.device, requires_grad=bias)
    solver = torch.optim.LBFGS(
        [weight, offset] if bias else [weight],
        max_iter=steps,
        history_size=10,
        tolerance_grad=1e-6,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ weight.T + offset, labels) + strength / 2 * weight.square().sum()
        value.backward()
        return value

    with one_thread(x.device.type == "cpu" and x.numel() <= _SMALL):
        solver.step(loss)  # pyrefly: ignore[bad-argument-type]
    return weight.detach() / scale, offset.detach() if bias else None


def choose_strength(
    features: Tensor, labels: Tensor, classes: int, seed: int, *, bias: bool = True, most: int = 20_000
) -> float:
    """The strength of `STRENGTHS` with the smallest cross-entropy on a fifth of these samples, held out for it."""
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:most].to(features.device)
    validation, used = order[: len(order) // 5], order[len(order) // 5 :]
    if not len(validation):
        return STRENGTHS[-2]
    losses = []
    for strength in STRENGTHS:
        weight, offset = fit_head(features[used], labels[used], classes, strength, bias=bias)
        logits = features[validation].float() @ weight.T
        losses.append(float(F.cross_entropy(logits if offset is None else logits + offset, labels[validation])))
    return STRENGTHS[losses.index(min(losses))]
