"""Losses with their gradient in one pass, against the same losses by plain operations, and how often these are run."""

import math
import subprocess
import sys
import weakref
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from hardsight.losses import CompositeLoss, EncouragingLoss, FocalLoss, MirrorMSELoss, soft_margin

D = torch.float64
OPTIONS = [
    {},
    {"log_end": 1.0},
    {"log_end": 0.0},
    {"log_end": 1.0, "start": 0.5},
    {"log_end": 0.6, "start": 0.8},
    {"log_end": 1.0, "preset": "released"},
    {"log_end": 1.0, "preset": "released", "start": 0.3},
    {"bonus": "power", "gamma": 3.0},
    {"bonus": "cosine"},
    {"rho": 0.0},
    {"rho": 0.4, "log_end": 1.0},
    {"rho": 2.5, "bonus": "power"},
    {"offset": True},
    {"match_gradient": True, "log_end": 1.0},
    {"match_gradient": True, "rho": 0.5},
]
LOSSES = [
    *(partial(EncouragingLoss, **options) for options in OPTIONS),
    partial(FocalLoss, 2.0),
    partial(FocalLoss, 0.5),
    partial(FocalLoss, 0.0),
]


def problem(shape=(40, 6), scale=4.0, dtype=D):
    z, y = scale * torch.randn(shape, dtype=dtype), torch.randint(shape[1], shape[:1] + shape[2:])
    y.view(-1)[::5] = -100
    return z, y


def both(loss, z, y):
    """Value and gradient as a training has them, and by operations that can be transformed."""
    v = z.clone().requires_grad_()
    value = loss(v, y)
    weights = torch.arange(1, value.numel() + 1, dtype=value.dtype).reshape(value.shape)
    (gradient,) = torch.autograd.grad(value, v, weights)
    plain, expected = torch.func.vjp(lambda z: loss(z, y), z)
    return (value.detach(), gradient), (plain.detach(), expected(weights)[0])


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(40, 6), (40, 2), (5, 4, 3, 2)])
@pytest.mark.filterwarnings("ignore:EncouragingLoss. with log_end = 1")
def test_one_pass_is_the_plain_loss_with_its_gradient(make, weighted, reduction, shape):
    if reduction == "none" and make.keywords.get("match_gradient"):
        pytest.skip("matched over a batch")
    weight = torch.rand(shape[1], dtype=D) if weighted else None
    if weighted:
        weight[1] = 0
    actual, expected = both(make(weight=weight, reduction=reduction), *problem(shape))
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("classes", [2, 7])
def test_the_mirror_in_one_pass_is_the_plain_one(reduction, classes):
    actual, expected = both(MirrorMSELoss(reduction=reduction), *problem((40, classes)))
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("loss", [EncouragingLoss(), EncouragingLoss(log_end=1), FocalLoss(), MirrorMSELoss()])
def test_strides_precisions_and_views_do_not_matter(loss):
    z, y = problem((40, 6), dtype=torch.float32)
    expected = both(loss, z, y)[0]
    wide = torch.randn(6, 80)
    wide[:, ::2] = z.T
    for given in (wide.T[::2], z.T.contiguous().T):
        assert not given.is_contiguous()
        torch.testing.assert_close(both(loss, given, y)[0], expected)
    torch.testing.assert_close(both(loss, z, y.int())[0], expected)
    half = z.bfloat16()
    value, gradient = both(loss, half, y)[0]
    assert (value.dtype, gradient.dtype) == (torch.float32, torch.bfloat16)
    exact = both(loss, half.float(), y)[0]
    torch.testing.assert_close((value, gradient), (exact[0], exact[1].bfloat16()))


@pytest.mark.parametrize("make", [EncouragingLoss, partial(EncouragingLoss, log_end=1), FocalLoss, MirrorMSELoss])
def test_float32_keeps_its_digits_at_any_gap(make):
    loss = make(reduction="none")
    gaps = torch.tensor([-1e4, -90.0, -17.0, 0.0, 17.0, 90.0, 1e4])
    z = torch.stack([gaps, torch.zeros(7), -torch.rand(7)], 1)
    y = torch.zeros(7, dtype=torch.long)
    actual, expected = both(loss, z, y)[0], both(loss, z.double(), y)[1]
    torch.testing.assert_close(actual[0].double(), expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(actual[1].double(), expected[1], rtol=1e-5, atol=1e-30)


def test_where_the_others_are_impossible_or_the_lowest_number():
    low = torch.finfo(torch.float32).min
    z = torch.tensor([[0.0, -math.inf, -math.inf], [0.0, low, low], [0.0, -math.inf, low]], requires_grad=True)
    m = soft_margin(z, torch.zeros(3, dtype=torch.long))
    assert m.tolist() == [-math.inf, low, low]
    (gradient,) = torch.autograd.grad(m.sum(), z)
    assert gradient.tolist() == [[-1, 0, 0], [-1, 0.5, 0.5], [-1, 0, 1]]


def test_nan_is_not_hidden_and_what_is_ignored_may_be_infinite():
    y = torch.tensor([0, 1])
    for bad in (0, 1):
        for loss in (EncouragingLoss(), EncouragingLoss(log_end=1), FocalLoss(), MirrorMSELoss()):
            z = torch.randn(2, 3)
            z[0, bad] = math.nan
            z.requires_grad_()
            value = loss(z, y)
            (gradient,) = torch.autograd.grad(value, z)
            assert value.isnan()
            assert gradient[0].isnan().any() or (bad == 0 and loss.log_end == 1)  # whose slope is −1 whatever z_y is
            assert gradient[1].isfinite().all()
    z = torch.tensor([[0.0, -math.inf, -math.inf], [-math.inf, 0.0, 1.0], [0.3, 1.0, -2.0]], requires_grad=True)
    y = torch.tensor([-100, -100, 1])
    for loss in (EncouragingLoss(), EncouragingLoss(log_end=1), FocalLoss(), MirrorMSELoss()):
        value = loss(z, y)
        torch.testing.assert_close(value, loss(z[2:], y[2:]))
        (gradient,) = torch.autograd.grad(value, z)
        assert not gradient[:2].any()
        assert gradient[2].isfinite().all()


@pytest.mark.parametrize("loss", [EncouragingLoss(), EncouragingLoss(log_end=1), FocalLoss(), MirrorMSELoss()])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:FutureWarning")  # by torch itself
def test_transforms_of_torch_func_and_forward_mode(loss):
    z, y = problem((5, 4))
    y = y.clamp_min(0)
    (gradient,) = torch.autograd.grad(loss(v := z.clone().requires_grad_(), y), v)
    torch.testing.assert_close(torch.func.grad(loss)(z, y), gradient)
    each = torch.func.vmap(torch.func.grad(lambda z, y: loss(z[None], y[None])))(z, y)
    for k, row in enumerate(each):
        v = z[k : k + 1].clone().requires_grad_()
        torch.testing.assert_close(row[None], torch.autograd.grad(loss(v, y[k : k + 1]), v)[0])
    tangent = torch.randn_like(z)
    _, moved = torch.func.jvp(lambda z: loss(z, y), (z,), (tangent,))
    torch.testing.assert_close(moved, (gradient * tangent).sum())
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(loss(forward_ad.make_dual(z, tangent), y)).tangent
    torch.testing.assert_close(dual, moved)


def test_gradients_can_be_taken_again_and_added():
    z, y = problem((8, 5))
    z.requires_grad_()
    value = EncouragingLoss()(z, y)
    first, second = (torch.autograd.grad(value, z, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    (3 * value).backward()
    (EncouragingLoss()(z, y)).backward()
    torch.testing.assert_close(z.grad, 4 * first)
    # A penalty on the length of the gradient, as double backward has it.
    (slope,) = torch.autograd.grad(EncouragingLoss()(z, y), z, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.square().sum(), z)
    hessian = torch.func.hessian(EncouragingLoss())(z.detach(), y).reshape(40, 40)
    torch.testing.assert_close(curvature.flatten(), 2 * hessian @ slope.detach().flatten())


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("make", [EncouragingLoss, FocalLoss, MirrorMSELoss, lambda **_: soft_margin])
def test_a_loss_may_be_changed_in_place(make, reduction):
    z, y = problem((8, 5))
    z, y = z.requires_grad_(), y.clamp_min(0)
    expected = torch.autograd.grad(make(reduction=reduction)(z, y).sum() / 4, z)
    value = make(reduction=reduction)(z, y)
    value /= 4  # as many do who accumulate gradients
    torch.testing.assert_close(torch.autograd.grad(value.sum(), z), expected)
    assert not value.detach_().requires_grad


@pytest.mark.parametrize("loss", [EncouragingLoss(), FocalLoss(), MirrorMSELoss()])
def test_logits_do_not_outlive_the_backward_pass(loss):
    z, y = problem((8, 5))
    logits = z.requires_grad_() * 1
    alive = weakref.ref(logits)
    value = loss(logits, y)
    del logits
    assert alive() is not None
    value.backward()
    assert alive() is None  # though the loss is


def test_parts_of_one_sample_have_the_shape_of_its_loss():
    z, y = problem((1, 5))
    for loss in (EncouragingLoss(reduction="none"), EncouragingLoss(reduction="none", bonus=lambda p: -p)):
        value, parts = loss.with_parts(z[0].requires_grad_(), y[0])
        assert value.shape == parts.ce.shape == parts.bonus.shape == ()


def test_all_ignored_is_zero_without_denormal_numbers():
    z, y = torch.randn(3, 4), torch.full((3,), -100)
    try:
        torch.set_flush_denormal(True)
        values = [loss(z, y).item() for loss in (EncouragingLoss(), FocalLoss(), EncouragingLoss(torch.ones(4)))]
    finally:
        torch.set_flush_denormal(False)
    assert values == [0, 0, 0]


def test_class_weights_can_be_learned():
    z, y = problem((8, 5))
    z.requires_grad_()
    for loss in (EncouragingLoss, partial(FocalLoss, 2.0)):
        weight = torch.rand(5, dtype=D, requires_grad=True)
        assert torch.autograd.gradcheck(lambda z, w, loss=loss: loss(weight=w)(z, y), (z, weight))


@dataclass
class Falling:  # equal to others like it, so not hashable
    steepness: float

    def __call__(self, p):
        return -self.steepness * p


def test_any_object_that_can_be_called_is_a_bonus():
    z, y = problem((8, 5))
    torch.testing.assert_close(EncouragingLoss(bonus=Falling(1.0))(z, y), EncouragingLoss(log_end=0)(z, y))


class Count(TorchDispatchMode):
    """How often each operation runs on as many numbers as the logits have, and softplus at all."""

    def __init__(self, size):
        super().__init__()
        self.size, self.passes, self.softplus = size, [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in (*args, out) if isinstance(t, torch.Tensor)]
        name = func.overloadpacket.__name__
        if name not in ("detach", "view", "unsqueeze", "_to_copy") and any(t.numel() == self.size for t in tensors):
            self.passes.append(name)
        self.softplus += name == "softplus"
        return out


@pytest.mark.parametrize(
    "objective",
    [EncouragingLoss(), EncouragingLoss(log_end=1), EncouragingLoss(rho=0.5), EncouragingLoss(torch.ones(50))],
)
def test_a_step_takes_one_softmax_and_no_loss_twice_for_its_parts(objective):
    z, y = problem((30, 50), dtype=torch.float32)
    z.requires_grad_()
    loss = CompositeLoss(objective)
    with Count(z.numel()) as count:
        loss(z, y).backward()
    assert count.softplus == 1
    assert count.passes.count("_softmax") == 1
    # A copy, three entries written, two maxima, one gathered, the softmax and the gradient.
    assert len(count.passes) <= 10, count.passes


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_parts_of_any_objective_take_one_softplus(smoothing):
    z, y = problem((30, 5), dtype=torch.float32)
    for objective in (
        EncouragingLoss(label_smoothing=smoothing),
        EncouragingLoss(torch.rand(5), weight_bonus=False, label_smoothing=smoothing),
        EncouragingLoss(bonus=lambda p: -p, label_smoothing=smoothing),
    ):
        with Count(z.numel()) as count:
            CompositeLoss(objective)(z.requires_grad_(), y)
        assert count.softplus == 1


def test_the_mean_of_very_many_pixels_is_exact():
    z = torch.zeros(1, 3, 700, 700)
    z[:, 0] = 1e-3
    y = torch.zeros(1, 700, 700, dtype=torch.long)
    expected = F.cross_entropy(z[:, :, 0, 0].double(), y[:, 0, 0])
    assert EncouragingLoss(rho=0)(z, y).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:EncouragingLoss. with log_end = 1")
def test_compiled_is_not_compiled():
    losses = [make(weight=torch.rand(6, dtype=D)) for make in LOSSES] + [MirrorMSELoss()]
    losses += [make(reduction="none") for make in (EncouragingLoss, FocalLoss, MirrorMSELoss)]
    z, y = problem()
    z[1], z[1, 2], y[1] = -math.inf, 0.5, 2  # only the target is possible
    z[2, 3] = -math.inf

    def everything(z):
        losses_of_margins = [soft_margin(z[2:], y[2:].clamp_min(0)).tanh().sum()]
        return torch.stack([*losses_of_margins, *(loss(z, y).nan_to_num(neginf=-7).sum() for loss in losses)])

    actual = torch.compile(everything, fullgraph=True, backend="aot_eager")(v := z.clone().requires_grad_())
    expected = everything(u := z.clone().requires_grad_())
    torch.testing.assert_close(actual, expected)
    for k in range(len(expected)):
        pulls = torch.eye(len(expected), dtype=D)[k]
        ours = torch.autograd.grad(actual, v, pulls, retain_graph=True)[0]
        torch.testing.assert_close(ours, torch.autograd.grad(expected, u, pulls, retain_graph=True)[0])


@pytest.mark.slow
def test_transforms_can_be_compiled():
    z, y = problem((5, 4))
    loss = EncouragingLoss()
    compiled = torch.compile(torch.func.grad(loss), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(z, y), torch.func.grad(loss)(z, y))


@pytest.mark.slow
def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_margins.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [*LOSSES, MirrorMSELoss])
@pytest.mark.filterwarnings("ignore:EncouragingLoss. with log_end = 1")
def test_kernels_on_a_gpu(make, dtype):
    for classes in (2, 1000, 5000):
        z, y = (t.cuda() for t in problem((64, classes), dtype=torch.float32))
        z = z.to(dtype)
        ours, exact = z.clone().requires_grad_(), z.double().requires_grad_()
        value, expected = make()(ours, y), make()(exact, y)
        torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=2e-6)
        grads = [torch.autograd.grad(*given)[0].double() for given in ((value, ours), (expected, exact))]
        small = dtype != torch.float32
        torch.testing.assert_close(*grads, rtol=8e-3 if small else 1e-5, atol=1e-7 if small else 1e-25)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_an_impossible_target_has_the_gradient_of_cross_entropy(gamma):
    z = torch.tensor([[-math.inf, 1.0, 2.0]], requires_grad=True)
    slopes = [torch.autograd.grad(loss(z, torch.tensor([0])), z)[0] for loss in (FocalLoss(gamma), F.cross_entropy)]
    torch.testing.assert_close(*slopes)


def test_a_target_that_is_no_class_gives_no_number():
    assert MirrorMSELoss(mirror=False)(torch.randn(2, 3), torch.tensor([0, 7])).isnan()
    assert MirrorMSELoss(mirror=False)(torch.randn(2, 3), torch.tensor([0, -100])).isfinite()
