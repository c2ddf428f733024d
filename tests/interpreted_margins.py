"""The kernels of losses of logits in Triton's interpreter on the CPU, against float64."""

import math
import os
import warnings

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch

from hardsight.losses import EncouragingLoss, FocalLoss, MirrorMSELoss, base, marginkernels

OPTIONS = [
    {},
    {"log_end": 1.0},
    {"log_end": 0.0},
    {"log_end": 1.0, "start": 0.5},
    {"log_end": 0.6, "start": 0.8},
    {"log_end": 1.0, "preset": "released"},
    {"log_end": 1.0, "preset": "released", "start": 0.3},
    {"rho": 0.0},
    {"rho": 0.4, "log_end": 1.0},
    {"offset": True, "start": 0.3, "rho": 0.5},
]


def problem(classes, dtype):
    z, y = (4 * torch.randn(20, classes)).to(dtype), torch.randint(classes, (20,))
    y[::5] = -100
    z[5, 1:] = -math.inf  # ignored
    z[1, y[1]], z[2, y[2]], z[3, (y[3] + 1) % classes] = 60, -60, -math.inf
    if classes > 2:
        z[4], z[4, 1], y[4] = -math.inf, 0.5, 1  # only the target is possible
    return z, y


def check(loss, classes, dtype):
    z, y = problem(classes, dtype)
    ours, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    value = loss(ours, y)
    assert value.dtype == torch.float32
    assert calls, "no kernel ran"
    calls.clear()
    (gradient,) = torch.autograd.grad(1.7 * value, ours)
    base.kernels_for, kernels_for = (lambda *_: None), base.kernels_for
    expected = loss.double()(exact, y)
    base.kernels_for = kernels_for
    slope = torch.autograd.grad(1.7 * expected, exact)[0]
    loss.float()
    close = {"rtol": 2e-6, "atol": 2e-6} if expected.isfinite() else {}
    torch.testing.assert_close(value.double(), expected, **close)
    rounding = 1e-5 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(gradient.double(), slope, rtol=rounding, atol=1e-25 if dtype == torch.float32 else 1e-7)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    calls = []
    forward = marginkernels.forward
    marginkernels.forward = lambda *args: calls.append(1) or forward(*args)
    module = lambda input, target, loss: marginkernels if loss.reduction != "none" else None  # noqa: E731
    base.kernels_for = module
    for classes, dtype in ((2, torch.float32), (7, torch.float32), (300, torch.float32), (7, torch.bfloat16)):
        for options in OPTIONS:
            check(EncouragingLoss(**options), classes, dtype)
        check(FocalLoss(), classes, dtype)
        check(FocalLoss(0.0), classes, dtype)
        check(FocalLoss(0.5, weight=torch.rand(classes), reduction="sum"), classes, dtype)
    weight = torch.rand(7)
    weight[1] = 0
    check(EncouragingLoss(weight), 7, torch.float32)
    check(EncouragingLoss(weight, log_end=1, reduction="sum"), 7, torch.float32)
    # Parts, a second derivative, a target that is no class, and nothing that counts.
    z, y = torch.randn(20, 7), torch.randint(7, (20,))
    loss = EncouragingLoss()
    value, parts = loss.with_parts(z.requires_grad_(), y)
    torch.testing.assert_close(tuple(parts), tuple(part.detach() for part in loss.parts(z, y)))
    (slope,) = torch.autograd.grad(value, z, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), z)
    exact = z.detach().double()
    hessian = torch.func.hessian(lambda z: loss._plain(loss.terms(z, y)))(exact).reshape(140, 140)
    torch.testing.assert_close(second.flatten().double(), 2 * hessian @ slope.flatten().double(), rtol=1e-4, atol=1e-7)
    y[0] = 7
    assert loss(z, y).isnan()
    nothing = loss(z, torch.full_like(y, -100))
    assert nothing == 0
    assert not torch.autograd.grad(nothing, z)[0].any()
    from hardsight.losses import mirror

    mirror.kernels_for = module
    z, y = problem(7, torch.float32)
    ours, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    value = MirrorMSELoss()(ours, y)
    mirror.kernels_for = lambda *_: None
    expected = MirrorMSELoss()(exact, y)
    torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=2e-6)
    pairs = [torch.autograd.grad(*given)[0].double() for given in ((value, ours), (expected, exact))]
    torch.testing.assert_close(*pairs, rtol=1e-5, atol=1e-25)
    print("equal")
