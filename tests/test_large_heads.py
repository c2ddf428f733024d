"""Heads in chunks of classes: values and gradients against naive float64 formulas and against the matrix of logits."""

import importlib.util
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hardsight.errors import InputError
from hardsight.losses import (
    AMCLoss,
    AVHLoss,
    BoundLogits,
    CompositeLoss,
    EncouragingBCELoss,
    EncouragingLoss,
    FocalLoss,
    angular_logits,
    arcface_logits,
    cosface_logits,
    cosine_logits,
    headchunks,
    largeheads,
    ldam_margins,
    margin_of_nll,
    soft_margin,
    sphereface_logits,
)
from hardsight.losses.largeheads import head_terms

KINDS = ["linear", "cosine", "angular"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks of classes, the last of them smaller, and several chunks of rows."""
    monkeypatch.setattr(headchunks, "_CPU_CHUNK", 64 * 8)
    monkeypatch.setattr(headchunks, "_ROWS_CHUNK", 1)
    torch.manual_seed(0)


def batch(n=70, width=8, classes=200, dtype=torch.float64):
    x, w = torch.randn(n, width, dtype=dtype), torch.randn(classes, width, dtype=dtype)
    y = torch.randint(classes, (n,))
    y[1], y[2], y[3], y[4] = y[0], -100, classes, classes - 1  # twice the same, two that are no class, the last one
    return x.requires_grad_(), w.requires_grad_(), y


def naive_terms(x, w, y, b=None, kind="linear", scale=1.0):
    """The formulas with the whole matrix, by functions of torch alone."""
    angles = None
    if kind == "linear":
        z = x @ w.T + (0 if b is None else b)
    else:
        cosines = torch.nn.functional.normalize(x, dim=1) @ torch.nn.functional.normalize(w, dim=1).T
        angles = cosines.clamp(-1 + 1e-15, 1 - 1e-15).acos()
        z = scale * (cosines if kind == "cosine" else math.pi - angles)
    at_target = (z if angles is None else angles)[torch.arange(len(x)), y.clamp(0, len(w) - 1)]
    mask = torch.arange(len(w)) == y[:, None]
    return at_target, torch.logsumexp(z.masked_fill(mask, -math.inf), 1)


def gradients(terms, y, classes, inputs):
    """Those of a random combination, in which rows without a class have no part at their target."""
    generator = torch.Generator().manual_seed(1)
    c, d = torch.randn(2, len(y), generator=generator, dtype=torch.float64)
    d = d * ((y >= 0) & (y < classes))
    return torch.autograd.grad((c * terms[0] * d + d * terms[0] + c * terms[1]).sum(), inputs)


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_the_matrix(kind):
    x, w, y = batch()
    b = torch.randn(len(w), dtype=x.dtype, requires_grad=True) if kind == "linear" else None
    scale = 1.0 if kind == "linear" else torch.tensor(7.0, dtype=x.dtype, requires_grad=True)
    inputs = [t for t in (x, w, b, scale) if isinstance(t, torch.Tensor)]
    terms, truth = head_terms(x, w, y, b, kind=kind, scale=scale), naive_terms(x, w, y, b, kind, scale)
    known = (y >= 0) & (y < len(w))
    torch.testing.assert_close(terms.at_target[known], truth[0][known], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(terms.others, truth[1], rtol=1e-12, atol=1e-12)
    for got, expected in zip(gradients(terms, y, 200, inputs), gradients(truth, y, 200, inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind):
    x, w, y = batch(6, 3, 130)
    b = torch.randn(130, dtype=x.dtype, requires_grad=True) if kind == "linear" else None
    scale = torch.rand(6, 1, dtype=x.dtype).add_(2).requires_grad_() if kind != "linear" else None

    def terms(x, w, other):
        return head_terms(x, w, y, other) if kind == "linear" else head_terms(x, w, y, kind=kind, scale=other)

    known = (y >= 0) & (y < 130)
    others = b if kind == "linear" else scale
    assert torch.autograd.gradcheck(lambda *inputs: terms(*inputs).others, (x, w, others))
    assert torch.autograd.gradcheck(lambda *inputs: terms(*inputs).at_target[known], (x, w, others))


@pytest.mark.parametrize("kind", ["cosine", "angular"])
def test_no_direction_and_no_angle_have_no_gradient(kind):
    """A zero feature, a zero weight, and features along the weight of their target, of another class, and opposite."""
    x, w, y = batch(8, 4, 100, torch.float32)
    y[:] = torch.arange(8)
    with torch.no_grad():
        w[1], x[0] = 0, 0
        x[2], x[3], x[4] = 3 * w[2], 2 * w[50], -w[4]
    terms = head_terms(x, w, y, kind=kind, scale=16.0)
    logits = cosine_logits if kind == "cosine" else angular_logits
    z = logits(x, w, 16.0) if kind == "cosine" else logits(x, w, 16.0, y)
    mask = torch.arange(100) == y[:, None]
    others = z.masked_fill(mask, -math.inf).logsumexp(1)
    torch.testing.assert_close(terms.others, others, rtol=2e-6, atol=2e-6)
    assert terms.at_target[[0, 1, 2, 4]].tolist() == pytest.approx([math.pi / 2, math.pi / 2, 0, math.pi], abs=1e-7)
    got = torch.autograd.grad(terms.others.sum() + terms.at_target.sum(), (x, w))
    angle = angular_logits(x, w, 1.0, y)[mask]
    expected = torch.autograd.grad(others.sum() - angle.sum(), (x, w))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)
    assert got[0][0].eq(0).all()
    assert got[1][1].eq(0).all()


@pytest.mark.parametrize("factor", [1e-30, 1e30])
@pytest.mark.parametrize("kind", ["cosine", "angular"])
def test_lengths_do_not_matter(kind, factor):
    x, w, y = batch(dtype=torch.float32)
    plain = head_terms(x, w, y, kind=kind, scale=16.0)
    scaled = head_terms(x * factor, w / factor, y, kind=kind, scale=16.0)
    for a, b in zip(plain, scaled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    grad = torch.autograd.grad(scaled.others.sum(), w)[0]
    torch.testing.assert_close(grad, torch.autograd.grad(plain.others.sum(), w)[0], rtol=1e-4, atol=1e-5)


def test_large_logits_keep_their_gradient():
    x, w, y = batch(dtype=torch.float32)
    x64, w64 = ((t.detach().double() * 60).requires_grad_() for t in (x, w))
    truth = torch.autograd.grad(naive_terms(x64, w64, y)[1].sum(), x64)[0]
    x, w = x64.detach().float().requires_grad_(), w64.detach().float()
    terms = head_terms(x, w, y)
    assert terms.others.max() > 1e4
    got = torch.autograd.grad(terms.others.sum(), x)[0]
    assert ((got - truth).norm() / truth.norm()).item() < 1e-2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [1, 2, 64, 65])
def test_few_classes(kind, classes):
    x, w, _ = batch(5, 4, max(classes, 5))
    w = w.detach()[:classes].requires_grad_()
    y = torch.arange(5) % classes
    terms, truth = head_terms(x, w, y, kind=kind), naive_terms(x, w, y, kind=kind)
    torch.testing.assert_close(terms.others, truth[1], rtol=1e-12, atol=1e-12)
    got = torch.autograd.grad(torch.where(terms.others.isfinite(), terms.others, 0).sum(), (x, w))
    assert all(g.isfinite().all() for g in got)
    if classes == 1:
        assert all(g.eq(0).all() for g in got)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch(kind):
    w = torch.randn(100, 4, requires_grad=True)
    terms = head_terms(torch.zeros(0, 4), w, torch.zeros(0, dtype=torch.long), kind=kind)
    assert terms.others.shape == terms.at_target.shape == (0,)
    terms.others.sum().backward()
    assert w.grad.eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_non_contiguous_inputs_and_small_integers(kind):
    x, w, y = batch()
    y[2:4] = 0
    views = x.detach().T.contiguous().T, w.detach().repeat(1, 2)[:, ::2].contiguous()
    strided = w.detach().repeat_interleave(2, 0)[::2]
    plain = head_terms(x, w, y, kind=kind)
    assert not views[0].is_contiguous()
    for a, b in zip(plain, head_terms(views[0], strided, y.to(torch.uint8), kind=kind), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_a_cpu_multiplies_in_float32(kind, dtype):
    x, w, y = batch(dtype=torch.float32)
    x, w = x.detach().to(dtype).requires_grad_(), w.detach().to(dtype).requires_grad_()
    terms = head_terms(x, w, y, kind=kind)
    x64, w64 = (t.detach().double().requires_grad_() for t in (x, w))
    truth = naive_terms(x64, w64, y, kind=kind)
    assert terms.others.dtype == torch.float32
    torch.testing.assert_close(terms.others.double(), truth[1], rtol=1e-5, atol=1e-5)
    got, expected = gradients(terms, y, 200, (x, w)), gradients(truth, y, 200, (x64, w64))
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).norm() < 4 * torch.finfo(dtype).eps * b.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_rounds_the_inputs_as_a_linear_layer_does(kind):
    x, w, y = batch(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = head_terms(x, w, y, kind=kind)
    rounded = head_terms(x.detach().bfloat16(), w.detach().bfloat16(), y, kind=kind)
    torch.testing.assert_close(terms.others, rounded.others)
    torch.testing.assert_close(terms.at_target, rounded.at_target)
    grads = gradients(terms, y, 200, (x, w))
    assert [g.dtype for g in grads] == [torch.float32] * 2
    x64, w64 = (t.detach().bfloat16().double().requires_grad_() for t in (x, w))
    for a, b in zip(grads, gradients(naive_terms(x64, w64, y, kind=kind), y, 200, (x64, w64)), strict=True):
        assert (a.double() - b).norm() < 1e-5 * b.norm()
    x64 = x.detach().double()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert head_terms(x64, w.detach().double(), y, kind=kind).others.dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen", ["features", "weight"])
def test_what_is_frozen_gets_no_gradient(kind, frozen):
    x, w, y = batch()
    expected = gradients(head_terms(x, w, y, kind=kind), y, 200, (x, w))
    terms = head_terms(x.detach() if frozen == "features" else x, w.detach() if frozen == "weight" else w, y, kind=kind)
    learned = w if frozen == "features" else x
    got = gradients(terms, y, 200, (learned,))[0]
    torch.testing.assert_close(got, expected[frozen == "features"])


class LargestTensor(TorchDispatchMode):
    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return out


@pytest.mark.parametrize("kind", KINDS)
def test_neither_logits_nor_their_gradient_exist_at_once(kind):
    x, w, y = batch(50, 8, 4000, torch.float32)
    with LargestTensor() as largest:
        terms = head_terms(x, w, y, kind=kind)
        (terms.others - terms.at_target).sum().backward()
    assert largest.numbers <= w.numel() < x.shape[0] * w.shape[0] / 4


def test_there_is_no_second_derivative():
    x, w, y = batch()
    grad = torch.autograd.grad(head_terms(x, w, y).others.square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    "change",
    [
        {"features": torch.zeros(3, 5)},
        {"weight": torch.zeros(4)},
        {"weight": torch.zeros(0, 4)},
        {"target": torch.zeros(3)},
        {"target": torch.zeros(2, dtype=torch.long)},
        {"bias": torch.zeros(3)},
        {"scale": 2.0},
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(change):
    inputs = {"features": torch.zeros(3, 4), "weight": torch.zeros(5, 4), "target": torch.zeros(3, dtype=torch.long)}
    with pytest.raises(InputError, match=next(iter(change))):
        head_terms(**inputs | change)


# ---------------------------------------------------------------------------------------------------------------------
# Margins on the target.

HEADS = {
    "angular": (angular_logits, {}),
    "cosine": (cosine_logits, {"scale": 5.0}),
    "cosface": (cosface_logits, {"margin": 0.2}),
    "ldam": (cosface_logits, {"margin": ldam_margins(torch.arange(1, 201))}),
    "arcface": (arcface_logits, {"scale": 20.0, "margin": 0.4}),
    "sphereface": (sphereface_logits, {"margin": 3}),
}


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_the_margin_of_a_head_is_that_of_its_logits(name, learn):
    function, options = HEADS[name]
    head = BoundLogits(function, learn, **({"scale": 30.0} | options if learn else options)).double()
    x, w, y = batch()
    y[2:4] = 5
    inputs = (x, w, *head.parameters())
    truth = soft_margin(head(x, y, x, w), y)
    found = head.soft_margin(y, x, w)
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)
    weights = torch.randn(len(y), dtype=torch.float64)
    for a, b in zip(*(torch.autograd.grad((m * weights).sum(), inputs) for m in (found, truth)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_one_scale_per_row():
    x, w, y = batch()
    y[2:4] = 5
    head = BoundLogits(sphereface_logits, scale=x.detach().norm(dim=1, keepdim=True))
    torch.testing.assert_close(head.soft_margin(y, x, w), soft_margin(head(x, y, x, w), y), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("function", "options"),
    [(arcface_logits, {"margin": 3.0}), (sphereface_logits, {"margin": 0}), (cosface_logits, {"margin": -1.0})],
)
def test_bad_margins_are_refused(function, options):
    x, w, y = batch()
    with pytest.raises(InputError, match="margin"):
        BoundLogits(function, **options).soft_margin(y, x, w)


def test_margins_of_another_number_of_classes_are_refused():
    x, w, y = batch()
    with pytest.raises(InputError, match="margin"):
        BoundLogits(cosface_logits, margin=torch.ones(3)).soft_margin(y, x, w)


# ---------------------------------------------------------------------------------------------------------------------
# Losses that use it.


@pytest.fixture
def large(monkeypatch):
    """A head of 200 classes is large; without it, the same loss of the matrix."""

    def both(compute):
        results = []
        for limit in (1 << 60, 1):
            monkeypatch.setattr(largeheads, "LARGE", limit)
            results.append(compute())
        return results

    return both


def value_and_gradients(loss, inputs):
    value = loss()
    weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view(value.shape) + 0.1
    return [value.detach(), *torch.autograd.grad((value * weights).sum(), inputs)]


WEIGHTS = torch.linspace(0.0, 3.0, 200, dtype=torch.float64)
OBJECTIVES = {
    "cross-entropy": lambda: EncouragingLoss(rho=0),
    "conservative": EncouragingLoss,
    "exact": lambda: EncouragingLoss(log_end=1, reduction="none"),
    "released": lambda: EncouragingLoss(log_end=1, start=0.5, preset="released", reduction="sum"),
    "offset": lambda: EncouragingLoss(bonus="power", offset=True, ignore_index=7),
    "weighted": lambda: EncouragingLoss(WEIGHTS),
    "bonus not weighted": lambda: EncouragingLoss(WEIGHTS, weight_bonus=False),
    "focal": lambda: FocalLoss(1.5, WEIGHTS, reduction="none"),
    "smoothed": lambda: EncouragingLoss(label_smoothing=0.1),
    "matched": lambda: EncouragingLoss(match_gradient=True),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_from_features(name, large):
    loss = OBJECTIVES[name]()
    x, w, y = batch()
    y[2:5] = loss.ignore_index
    b = torch.randn(200, dtype=x.dtype, requires_grad=True)
    plain = value_and_gradients(lambda: loss(x @ w.T + b, y), (x, w, b))
    for found in large(lambda: value_and_gradients(lambda: loss.from_features(x, w, y, b), (x, w, b))):
        for a, expected in zip(found, plain, strict=True):
            torch.testing.assert_close(a, expected, rtol=1e-9, atol=1e-11)


def test_from_features_makes_no_matrix(monkeypatch):
    monkeypatch.setattr(largeheads, "LARGE", 1)
    x, w, y = batch(50, 8, 4000, torch.float32)
    y[2:4] = -100
    for loss in (AVHLoss(), CompositeLoss(torch.nn.CrossEntropyLoss(), arcface_logits), EncouragingLoss()):
        with LargestTensor() as largest:
            if isinstance(loss, CompositeLoss):
                loss(None, y, x, w).backward()
            else:
                (loss.from_features if isinstance(loss, EncouragingLoss) else loss)(x, w, y).backward()
        assert largest.numbers <= w.numel()


def test_all_ignored_is_zero(large):
    x, w, y = batch()
    loss = EncouragingLoss()
    for found in large(lambda: value_and_gradients(lambda: loss.from_features(x, w, torch.full_like(y, -100)), (x, w))):
        assert all(t.eq(0).all() for t in found)


def test_a_target_that_is_no_class_is_not_passed_over(monkeypatch):
    monkeypatch.setattr(largeheads, "LARGE", 1)
    x, w, y = batch()
    y[2:4] = -100
    assert EncouragingLoss().from_features(x, w, y).isfinite()
    y[3] = 200
    assert EncouragingLoss().from_features(x, w, y).isnan()
    with pytest.raises(InputError, match="target"):
        EncouragingLoss(validate=True).from_features(x, w, y)


def test_bad_values_are_refused_as_those_of_the_matrix_are(large):
    x, w, y = (tensor.detach() for tensor in batch())
    y.clamp_(0, 199)
    y[2] = -100
    losses = (
        EncouragingLoss(validate=True).from_features,
        AVHLoss(validate=True),
        lambda x, w, y: CompositeLoss(EncouragingLoss(validate=True), arcface_logits)(None, y, x, w),
        lambda x, w, y: CompositeLoss(FocalLoss(validate=True), arcface_logits)(None, y, x, w),
    )
    outside = y.clone()
    outside[3] = 200
    broken = w.clone()
    broken[5, 1] = math.nan
    for loss in losses:
        assert all(value.isfinite() for value in large(lambda loss=loss: loss(x, w, y)))
        for bad in ((x * math.nan, w, y), (x, broken, y), (x, w, outside)):
            for limit in (1 << 60, 1):
                largeheads.LARGE = limit  # the fixture puts it back
                with pytest.raises(InputError):
                    loss(*bad)


@pytest.mark.parametrize("limit", [1, 1 << 60])
def test_weights_of_another_number_of_classes_are_refused(limit, monkeypatch):
    monkeypatch.setattr(largeheads, "LARGE", limit)
    x, w, y = batch()
    loss = EncouragingLoss(torch.ones(300))
    with pytest.raises(InputError, match="weight"):
        loss.from_features(x, w, y)
    with pytest.raises(InputError, match="weight"):
        CompositeLoss(loss, arcface_logits)(None, y, x, w)


def test_soft_targets_keep_the_matrix(large):
    x, w, _ = batch()
    shares = torch.rand(70, 200, dtype=torch.float64).softmax(1)
    for found in large(lambda: EncouragingLoss(rho=0).from_features(x, w, shares)):
        torch.testing.assert_close(found, torch.nn.functional.cross_entropy(x @ w.T, shares))


def test_sigmoids_keep_the_matrix(large):
    x, w, _ = batch()
    targets = (torch.rand(70, 200) < 0.1).double()
    loss = EncouragingBCELoss(rho=0)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(x @ w.T, targets)
    for found in large(lambda: loss.from_features(x, w, targets)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"label_smoothing": 0.1}], ids=str)
def test_the_avh_loss(learnable, options, large):
    loss = AVHLoss(9.0, learnable, **options).double()
    x, w, y = batch()
    y[2:4] = -100
    inputs = (x, w, *loss.parameters())
    plain, found = large(lambda: value_and_gradients(lambda: loss(x, w, y), inputs))
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


COMPOSITES = {
    "ce": lambda: CompositeLoss(torch.nn.CrossEntropyLoss(WEIGHTS, ignore_index=3), arcface_logits),
    "smoothed": lambda: CompositeLoss(torch.nn.CrossEntropyLoss(label_smoothing=0.1), arcface_logits),
    "el": lambda: CompositeLoss(EncouragingLoss(WEIGHTS), partial(cosface_logits, margin=0.1)),
    "focal": lambda: CompositeLoss(FocalLoss(), angular_logits),
    "pairs": lambda: CompositeLoss(EncouragingLoss(), cosine_logits, AMCLoss(preset="paper"), pair_labels="true"),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composite_losses_without_logits(name, large):
    loss = COMPOSITES[name]().double()
    x, w, y = batch()
    y[2:4] = 3
    parts = []

    def compute():
        result = value_and_gradients(lambda: loss(None, y, x, w), (x, w))
        parts.append(dict(loss.last_parts))
        return result

    plain, found = large(compute)
    for a, b in zip(found, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(*parts)
    torch.testing.assert_close(loss(x @ w.T, y, x, w), plain[0])


def test_a_subclass_keeps_its_own_formula(large):
    class Doubled(EncouragingLoss):
        def forward(self, input, target, *rest):
            return 2 * super().forward(input, target, *rest)

    x, w, y = batch()
    y[2:4] = 0
    plain, found = large(lambda: CompositeLoss(Doubled(), arcface_logits)(None, y, x, w))
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize(
    "loss",
    [CompositeLoss(EncouragingLoss()), CompositeLoss(EncouragingLoss(), cosine_logits, AMCLoss(preset="paper"))],
    ids=["linear", "predicted pairs"],
)
def test_logits_that_are_needed_must_be_given(loss):
    x, w, y = batch()
    with pytest.raises(InputError, match="logits"):
        loss(None, y, x, w)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch 2.9 looks at it when it resumes a frame
def test_it_can_be_called_from_compiled_code(monkeypatch):
    monkeypatch.setattr(largeheads, "LARGE", 1)
    x, w, y = batch()
    y[2:4] = 0
    loss = AVHLoss().double()
    found = torch.compile(lambda x: 2 * loss(x, w, y), backend="eager")(x)
    torch.testing.assert_close(found, 2 * loss(x, w, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_margin_of_a_cross_entropy(dtype):
    m = torch.tensor([-12.0, -3.0, 0.0, 3.0, 100.0], dtype=torch.float64)
    nll = torch.nn.functional.softplus(m).to(dtype).requires_grad_()
    found = margin_of_nll(nll)
    torch.testing.assert_close(found.double(), m, rtol=1e-5, atol=1e-6)
    slope = torch.autograd.grad(found.sum(), nll)[0]  # one over 1 − p
    torch.testing.assert_close(slope.double(), 1 / m.sigmoid(), rtol=1e-5, atol=1e-6)


def test_a_cross_entropy_of_zero_has_a_finite_margin_and_no_gradient():
    nll = torch.tensor([0.0, -1e-9], requires_grad=True)
    m = margin_of_nll(nll)
    assert m.tolist() == pytest.approx([-15.94, -15.94], abs=0.01)
    assert torch.autograd.grad(m.sum(), nll)[0].tolist() == [0, 0]


@pytest.mark.skipif(not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="an older torch")
def test_objectives_on_the_rows_of_torchs_linear_cross_entropy():
    x, w, y = batch(dtype=torch.float32)
    y[2:4] = 0
    options = torch.nn.LinearCrossEntropyOptions()
    nll = torch.nn.functional.linear_cross_entropy(x, w, y, reduction="none", options=options)
    loss = EncouragingLoss()
    found = value_and_gradients(lambda: loss.of_margins(margin_of_nll(nll), y), (x, w))
    for a, b in zip(found, value_and_gradients(lambda: loss(x @ w.T, y), (x, w)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# Kernels.


@pytest.mark.parametrize("missing", ["Triton", "capability"])
def test_without_kernels_it_says_so(missing, monkeypatch):
    if missing == "Triton":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.warns(UserWarning, match=missing):
        assert headchunks._kernels.__wrapped__(torch.device("cuda"), "cosine", torch.bfloat16) is None


class WrongSums(headchunks.PlainChunks):
    def sums(self, *args):
        level, total, linear = super().sums(*args)
        return headchunks.Sums(level, total * 1.01, linear)


class WrongTarget(headchunks.PlainChunks):
    def gradient(self, *args):
        return super().gradient(*args).roll(1, 1)


class WrongShares(headchunks.PlainChunks):
    def gradient(self, *args):
        grad = super().gradient(*args)
        return torch.where(grad < 0, grad, 1.05 * grad)


class Failing(headchunks.PlainChunks):
    def sums(self, *args):
        raise MemoryError("too little shared memory")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [headchunks.PlainChunks, WrongSums, WrongTarget, WrongShares])
def test_kernels_that_are_wrong_are_noticed(kind, chunks):
    device = torch.device("cpu")
    agree = headchunks.kernels_agree(chunks(kind, torch.float32, device), device, 40, 300)
    assert agree == (chunks is headchunks.PlainChunks)


@pytest.mark.parametrize(("chunks", "said"), [(WrongSums, "wrong"), (Failing, "shared memory")])
def test_kernels_that_are_wrong_or_fail_are_left_out(chunks, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(headchunks, "FusedChunks", lambda kind, dtype, device, modules: chunks(kind, dtype, device))
    monkeypatch.setattr(headchunks.importlib, "import_module", lambda name: None)
    with pytest.warns(UserWarning, match=said):
        assert headchunks._kernels.__wrapped__(torch.device("cpu"), "cosine", torch.float32) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_in_the_interpreter(kind):
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_heads.py")
    done = subprocess.run([sys.executable, script, kind], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
