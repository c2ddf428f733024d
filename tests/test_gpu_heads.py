"""Large heads on a GPU, three ways: float64, a plain head in the same precision, and the kernels."""

import math

import pytest
import torch
import torch.nn.functional as F

from hardsight.losses import AVHLoss, EncouragingLoss, angular_logits, cosine_logits, headchunks, largeheads
from hardsight.losses.largeheads import head_terms

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

KINDS = ["linear", "cosine", "angular"]
DTYPES = {"float16": torch.float16, "float32": torch.float32, "autocast": torch.float32}  # else bfloat16


def draw(kind, dtype, n=300, width=128, classes=5003, seed=0):
    """Features near the weight of their target, some ignored, many of one class; a bias for a linear head."""
    generator = torch.Generator("cuda").manual_seed(seed)
    options = {"device": "cuda", "generator": generator}
    w = torch.randn(classes, width, **options) * 0.2
    y = torch.randint(classes, (n,), **options)
    y[:40] = 17
    x = 2 * w[y] + torch.randn(n, width, **options) * torch.rand(n, 1, **options)
    x[40], x[41], x[42] = 0, 3 * w[y[41]], w[5] * 1.1 + x[42] * 0.05
    y[43:50] = -100
    b = torch.randn(classes, **options) if kind == "linear" else None
    return [None if t is None else t.to(dtype) for t in (x, w, b)] + [y]


def margin(kind, x, w, b, y, scale):
    at_target, others = head_terms(x, w, y, b, kind=kind, scale=1.0 if kind == "linear" else scale)
    if kind == "linear":
        return others - at_target
    return others - scale * (torch.cos(at_target) if kind == "cosine" else math.pi - at_target)


def dense_margin(kind, x, w, b, y, scale, plain=False):
    """The same from the matrix of logits: by our logits, or in the precision of the inputs."""
    if kind == "linear":
        z = F.linear(x, w, b)
    elif plain:
        # The usual 1e-12 is 0 in float16, and 0.999 is 1 in bfloat16, where arccos has no slope.
        cosines = F.normalize(x, dim=1, eps=1e-6) @ F.normalize(w, dim=1, eps=1e-6).T
        z = scale * (cosines if kind == "cosine" else math.pi - cosines.clamp(-0.99, 0.99).acos())
    else:
        z = cosine_logits(x, w, scale) if kind == "cosine" else angular_logits(x, w, scale, y)
    z = z if z.dtype == torch.float64 else z.float()
    mask = torch.arange(len(w), device="cuda") == y[:, None]
    return z.masked_fill(mask, -math.inf).logsumexp(1) - z.gather(1, y.clamp_min(0)[:, None]).squeeze(1)


def loss_and_gradients(function, kind, inputs, y, dtype, autocast=False, **options):
    tensors = [None if t is None else t.to(dtype).detach().requires_grad_() for t in inputs]
    scale = torch.tensor(16.0, device="cuda", dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    scale.requires_grad_(kind != "linear")
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        m = function(kind, *tensors, y, scale, **options)
    losses = torch.where(y < 0, 0, F.softplus(m))
    learned = [t for t in (*tensors, scale) if t is not None and t.requires_grad]
    grads = torch.autograd.grad(losses.mean(), learned)
    return [torch.where(y < 0, 0, m.detach()).double(), *(g.double() for g in grads)]


@pytest.mark.parametrize("case", ["bfloat16", "float16", "float32", "autocast", "odd width", "without Triton"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_further_from_float64_than_a_plain_head(kind, case, monkeypatch):
    dtype = DTYPES.get(case, torch.bfloat16)
    *inputs, y = draw(kind, dtype, width=131 if case == "odd width" else 128)
    if case == "without Triton":
        monkeypatch.setattr(headchunks, "_kernels", lambda *_: None)
    monkeypatch.setattr(headchunks, "_HALF_CHUNK", 300 * 2048)
    monkeypatch.setattr(headchunks, "_CAST_CHUNK", 128 * 2048)
    monkeypatch.setattr(headchunks, "_GPU_CHUNK", 300 * 1000)
    autocast = case == "autocast"
    truth = loss_and_gradients(dense_margin, kind, inputs, y, torch.float64)
    values = loss_and_gradients(margin, kind, inputs, y, dtype, autocast)
    plain = loss_and_gradients(dense_margin, kind, inputs, y, dtype, autocast, plain=True)
    slack = 1e-6 if dtype == torch.float32 and not autocast else 1e-4
    for ours, theirs, exact in zip(values, plain, truth, strict=True):
        error, usual = (((t - exact).norm() / exact.norm()).item() for t in (ours, theirs))
        assert error <= 1.1 * usual + slack


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_float32_whatever_tf32_is_set_to(kind):
    *inputs, y = draw(kind, torch.float32)
    truth = loss_and_gradients(dense_margin, kind, inputs, y, torch.float64)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high" if kind != "linear" else "highest")
        values = loss_and_gradients(margin, kind, inputs, y, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    for ours, exact in zip(values, truth, strict=True):
        assert (ours - exact).norm() <= 5e-6 * exact.norm()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_the_number_of_logits(kind, autocast):
    n, width, classes = 4096, 512, 262_144  # 4 GiB of logits in float32
    dtype = torch.float32 if autocast else torch.bfloat16
    x = torch.randn(n, width, device="cuda").to(dtype).requires_grad_()
    w = torch.randn(classes, width, device="cuda").to(dtype).requires_grad_()
    y = torch.randint(classes, (n,), device="cuda")
    loss = EncouragingLoss() if kind == "linear" else AVHLoss()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        value = (loss.from_features if kind == "linear" else loss)(x, w, y)
    value.backward()
    gradients = sum(t.grad.numel() * t.grad.element_size() for t in (x, w))
    assert torch.cuda.max_memory_allocated() - before - gradients < 512 * 2**20


def test_many_rows_of_one_class_are_summed_before_they_are_rounded():
    """Adding 2,000 rows to a bfloat16 weight one by one would stop growing after 256 of them."""
    x = torch.randn(2000, 64, device="cuda").bfloat16()
    w = torch.randn(500, 64, device="cuda").bfloat16()
    y = torch.full((2000,), 3, device="cuda")
    grads = []
    for dtype in (torch.bfloat16, torch.float64):
        weight = w.to(dtype, copy=True).requires_grad_()
        head_terms(x.to(dtype), weight, y, kind="cosine").at_target.sum().backward()
        grads.append(weight.grad.double())
    assert (grads[0] - grads[1]).norm() < 4e-3 * grads[1].norm()


def test_tensors_that_begin_anywhere_in_memory():
    x, w, _, y = draw("cosine", torch.bfloat16)
    shifted = [torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t) for t in (x, w)]
    for a, b in zip(head_terms(x, w, y, kind="cosine"), head_terms(*shifted, y, kind="cosine"), strict=True):
        torch.testing.assert_close(a, b)


def test_a_loss_that_is_large_by_itself():
    x, w, _, y = draw("cosine", torch.bfloat16)
    assert len(x) * len(w) < largeheads.LARGE
    x, y = x.repeat(50, 1), y.repeat(50)
    assert len(x) * len(w) > largeheads.LARGE
    loss = AVHLoss().cuda()
    expected = AVHLoss()(x[:300].double(), w.double(), y[:300])
    assert loss(x, w, y).item() == pytest.approx(expected.item(), rel=1e-5)
