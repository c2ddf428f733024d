"""Losses of logits by kernels on a GPU, against the same losses by plain operations in float64."""

import math

import pytest
import torch

from hardsight.losses import CompositeLoss, EncouragingLoss, FocalLoss, MirrorMSELoss
from hardsight.losses.base import kernels_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LOSSES = {
    "el": EncouragingLoss,
    "el with a late start": lambda **options: EncouragingLoss(log_end=0.6, start=0.8, **options),
    "el as released": lambda **options: EncouragingLoss(log_end=1.0, preset="released", **options),
    "half a bonus": lambda **options: EncouragingLoss(rho=0.5, offset=True, **options),
    "focal": FocalLoss,
    "mirror": MirrorMSELoss,
}


def draw(classes, dtype=torch.float32):
    torch.manual_seed(0)
    z, y = 4 * torch.randn(64, classes, device="cuda"), torch.randint(classes, (64,), device="cuda")
    z[2, y[2]], z[3, y[3]] = 60, -60
    y[::5] = -100
    return z.to(dtype).requires_grad_(), y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 7, 1000, 5000])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient(name, classes, dtype):
    weight = {} if name == "mirror" else {"weight": torch.arange(classes, device="cuda") / classes}
    for reduction, options in (("mean", {}), ("sum", weight)):
        loss = LOSSES[name](reduction=reduction, **options)
        z, y = draw(classes, dtype)
        assert kernels_for(z, y, loss) is not None
        value = loss(z, y)
        (gradient,) = torch.autograd.grad(1.7 * value, z)
        exact = z.detach().double().requires_grad_()
        expected = loss.double()(exact, y)
        (slope,) = torch.autograd.grad(1.7 * expected, exact)
        torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=2e-6)
        rounding = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
        least = 1e-24 if dtype == torch.float32 else 1e-7
        torch.testing.assert_close(gradient.double(), slope, rtol=rounding, atol=least)


def test_parts_are_those_of_plain_operations():
    z, y = draw(50)
    loss = CompositeLoss(EncouragingLoss())
    value = loss(z, y).item()
    expected = EncouragingLoss().double().parts(z.detach().double(), y)
    for part, exact in zip(loss.last_parts.values(), expected, strict=True):
        assert part.item() == pytest.approx(exact.item(), rel=1e-5, abs=5e-6)
    assert value == pytest.approx(sum(part.item() for part in expected), rel=1e-5)


def test_a_label_that_is_no_class_is_not_read_from_elsewhere():
    z, y = draw(50)
    y[1] = 50
    assert math.isnan(EncouragingLoss()(z, y).item())


def test_in_a_cuda_graph():
    z, y = draw(50)
    loss, z = EncouragingLoss(), z.detach().requires_grad_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            loss(z, y).backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph, z.grad = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        value = loss(z, y)
        value.backward()
    with torch.no_grad():
        z.copy_(torch.randn_like(z))
    graph.replay()
    again = z.detach().clone().requires_grad_()
    expected = loss(again, y)
    torch.testing.assert_close((value, z.grad), (expected, *torch.autograd.grad(expected, again)))
