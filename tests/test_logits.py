"""Logits against naive float64 loops, pytorch-metric-learning and closed forms; the AVH loss against cross-entropy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from printed_eq5 import printed_eq5

from hardsight.angles import angle_matrix
from hardsight.losses import (
    AVHLoss,
    EncouragingLoss,
    adjusted_logits,
    angular_logits,
    arcface_logits,
    cosface_logits,
    cosine_logits,
    ldam_margins,
    sphereface_logits,
)

COUNTS = [10, 1, 200, 3, 50]

# Each as a function of (features, weight, target).
DIRECTIONS_ONLY = {
    "angular": lambda x, w, y: angular_logits(x, w),
    "angular with target": lambda x, w, y: angular_logits(x, w, target=y),
    "cosine": lambda x, w, y: cosine_logits(x, w),
    "cosface": cosface_logits,
    "arcface": arcface_logits,
    "sphereface": sphereface_logits,
}


def batch(n=8, width=6, classes=5, dtype=torch.float64, grad=False):
    x, w = torch.randn(n, width, dtype=dtype), torch.randn(classes, width, dtype=dtype)
    return x.requires_grad_(grad), w.requires_grad_(grad), torch.randint(classes, (n,))


def at_angles(angles, dtype=torch.float64):
    """Features at given angles to the first of two orthogonal classes, both of them, and targets."""
    angles = torch.as_tensor(angles, dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], 1).to(dtype)
    return x, torch.eye(2, dtype=dtype), torch.zeros(len(x), dtype=torch.long)


# ---------------------------------------------------------------------------------------------------------------------
# Values.


def naive(name, x, w, y, s, m):
    """The formula, one pair at a time."""
    out = np.zeros((len(x), len(w)))
    for i in range(len(x)):
        for k in range(len(w)):
            cos = sum(a * b for a, b in zip(x[i], w[k], strict=True))
            cos /= math.sqrt(sum(a * a for a in x[i])) * math.sqrt(sum(b * b for b in w[k]))
            angle, target = math.acos(cos), k == y[i]
            if name == "angular":
                out[i, k] = math.pi - angle
            elif name == "cosface":
                out[i, k] = cos - m * target
            elif name == "arcface" and target:
                out[i, k] = math.cos(angle + m) if angle + m <= math.pi else cos - m * math.sin(m)
            elif name == "sphereface" and target:
                quadrant = math.floor(m * angle / math.pi)
                out[i, k] = (-1) ** quadrant * math.cos(m * angle) - 2 * quadrant
            else:
                out[i, k] = cos
            out[i, k] *= s
    return torch.tensor(out)


@pytest.mark.parametrize(
    ("name", "function", "margin"),
    [
        ("angular", lambda x, w, y, m: angular_logits(x, w, 7.0, y), 0),
        ("angular", lambda x, w, y, m: angular_logits(x, w, 7.0), 0),
        ("cosine", lambda x, w, y, m: cosine_logits(x, w, 7.0), 0),
        ("cosface", lambda x, w, y, m: cosface_logits(x, w, y, m, 7.0), 0.35),
        ("arcface", lambda x, w, y, m: arcface_logits(x, w, y, m, 7.0), 0.5),
        ("arcface", lambda x, w, y, m: arcface_logits(x, w, y, m, 7.0), 1.5),
        ("sphereface", lambda x, w, y, m: sphereface_logits(x, w, y, m, 7.0), 1),
        ("sphereface", lambda x, w, y, m: sphereface_logits(x, w, y, m, 7.0), 3),
        ("sphereface", lambda x, w, y, m: sphereface_logits(x, w, y, m, 7.0), 4),
    ],
)
def test_agrees_with_the_formula_in_a_loop(name, function, margin):
    x, w, y = batch(40)
    expected = naive(name, x.tolist(), w.tolist(), y.tolist(), 7.0, margin)
    torch.testing.assert_close(function(x, w, y, margin), expected, rtol=1e-12, atol=1e-12)
    # In float32, within rounding of what came in.
    x, w = x.float(), w.float()
    expected = naive(name, x.tolist(), w.tolist(), y.tolist(), 7.0, margin)
    actual = function(x, w, y, margin)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-5)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # its binomials, by numpy on tensors
@pytest.mark.parametrize("name", ["ArcFace", "CosFace", "SphereFace", "NormalizedSoftmax"])
def test_cross_entropy_of_them_is_pytorch_metric_learning_s_loss(name):
    """Its weight is (D, C), its margins are in degrees, and SphereFace multiplies by the length of the feature.

    It differs on purpose where vectors coincide: the slope of its arccos is infinite or NaN there, ours is 0.
    """
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, w, y = batch(30, grad=True)
    lengths = x.detach().norm(dim=1, keepdim=True)
    ours, theirs, options = {
        "ArcFace": (arcface_logits(x, w, y, 0.5, 30.0), losses.ArcFaceLoss, {"margin": math.degrees(0.5), "scale": 30}),
        "CosFace": (cosface_logits(x, w, y, 0.35, 30.0), losses.CosFaceLoss, {"margin": 0.35, "scale": 30}),
        "SphereFace": (sphereface_logits(x, w, y, 4, lengths), losses.SphereFaceLoss, {"margin": 4, "scale": 1}),
        "NormalizedSoftmax": (cosine_logits(x, w, 20.0), losses.NormalizedSoftmaxLoss, {"temperature": 0.05}),
    }[name]
    theirs = theirs(5, 6, **options)
    theirs.W.data = w.detach().T.clone()
    loss, expected = F.cross_entropy(ours, y), theirs(x, y)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    (gw,) = torch.autograd.grad(loss, w, retain_graph=True)
    (expected_gw,) = torch.autograd.grad(expected, theirs.W, retain_graph=True)
    torch.testing.assert_close(gw, expected_gw.T, rtol=1e-8, atol=1e-10)
    if name != "SphereFace":  # there the length is a part of theirs that the feature has a gradient through
        (gx,), (expected_gx,) = torch.autograd.grad(loss, x), torch.autograd.grad(expected, x)
        torch.testing.assert_close(gx, expected_gx, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5, 1.0, math.pi / 2])
def test_arcface_falls_with_the_angle_from_0_to_pi(margin):
    x, w, y = at_angles(torch.linspace(0, math.pi, 2001))
    at_target = arcface_logits(x, w, y, margin, scale=1.0)[:, 0]
    assert (at_target.diff() < 0).all()
    assert at_target[0].item() == pytest.approx(math.cos(margin))
    assert at_target[-1].item() == pytest.approx(-1 - margin * math.sin(margin))


@pytest.mark.parametrize("margin", [1, 2, 3, 4, 7])
def test_sphereface_falls_without_a_step_from_1_to_1_less_2m(margin):
    x, w, y = at_angles(torch.linspace(0, math.pi, 2001))
    at_target = sphereface_logits(x, w, y, margin, scale=1.0)[:, 0]
    assert (at_target.diff() < 1e-12).all()
    assert at_target.diff().abs().max() < 1.01 * margin * math.pi / 2000
    assert at_target[[0, -1]].tolist() == pytest.approx([1, 1 - 2 * margin])


def test_without_a_margin_all_are_the_cosine():
    x, w, y = batch()
    plain = cosine_logits(x, w, 30.0)
    for other in (cosface_logits(x, w, y, 0.0), arcface_logits(x, w, y, 0.0), sphereface_logits(x, w, y, 1)):
        torch.testing.assert_close(other, plain)


def test_ldam_is_cosface_with_a_margin_a_class():
    x, w, y = batch()
    margins = ldam_margins(torch.tensor(COUNTS)).double()
    actual = cosface_logits(x, w, y, margins)
    for i in range(len(x)):
        expected = cosface_logits(x[i : i + 1], w, y[i : i + 1], margins[y[i]].item())
        torch.testing.assert_close(actual[i : i + 1], expected)
    torch.testing.assert_close(cosface_logits(x, w, y, torch.tensor(0.35)), cosface_logits(x, w, y))
    assert cosface_logits(x.float(), w.float(), y, margins).dtype == torch.float32


def test_the_target_s_angle_keeps_the_digits_that_arccos_loses():
    angles = torch.tensor([1e-6, 1e-4, 1e-3, math.pi - 1e-4])
    x, w, y = at_angles(angles, torch.float32)
    exact = math.pi - angles.double()
    error = lambda logits: (logits[:, 0].double() - exact).abs().max()  # noqa: E731
    assert error(angular_logits(x, w, 1.0, y)) < 3e-7
    assert error(angular_logits(x, w, 1.0)) > 1e-5


def test_a_target_that_is_no_class_gets_no_margin():
    x, w, y = batch(grad=True)
    y[[0, 3]] = -100
    rows = [0, 3]
    for name in ("angular with target", "cosface", "arcface", "sphereface"):
        actual = DIRECTIONS_ONLY[name](x, w, y)
        plain = angular_logits(x, w) if name.startswith("angular") else cosine_logits(x, w, 30.0)
        torch.testing.assert_close(actual[rows], plain[rows])
        loss = F.cross_entropy(actual, y)  # which ignores −100
        loss.backward()
        assert torch.isfinite(x.grad).all()
        assert x.grad[rows].abs().max() == 0
        x.grad = None


def test_adjusted_logits_turn_likelihoods_into_posteriors():
    """Bayes: softmax(log p(x|y) + log prior) is p(y|x)."""
    likelihood = torch.rand(6, 5, dtype=torch.float64)
    joint = likelihood * torch.tensor(COUNTS) / sum(COUNTS)
    actual = adjusted_logits(likelihood.log(), COUNTS).softmax(1)
    torch.testing.assert_close(actual, joint / joint.sum(1, keepdim=True))


def test_adjusted_logits_take_lists_tensors_shares_and_more_dimensions():
    z = torch.randn(2, 5, 3, 4)
    expected = z + 0.5 * (torch.tensor(COUNTS) / sum(COUNTS)).log()[:, None, None]
    for counts in (COUNTS, torch.tensor(COUNTS), torch.tensor(COUNTS).double() / sum(COUNTS)):
        torch.testing.assert_close(adjusted_logits(z, counts, tau=0.5), expected)
    torch.testing.assert_close(adjusted_logits(z, COUNTS, tau=0.0), z)
    equal = adjusted_logits(z, [7] * 5)
    torch.testing.assert_close(equal.softmax(1), z.softmax(1))
    huge = adjusted_logits(z, [10**9, 1, 1, 1, 0])
    assert torch.isfinite(huge).all()
    assert torch.isfinite(F.cross_entropy(huge, torch.full((2, 3, 4), 4)))


# ---------------------------------------------------------------------------------------------------------------------
# Properties of all.


@pytest.mark.parametrize("name", DIRECTIONS_ONLY)
@pytest.mark.parametrize("classes", [2, 5, 10_000])
def test_the_order_of_classes_and_samples_does_not_matter(name, classes):
    x, w, y = batch(5, 4, classes)
    order, rows = torch.randperm(classes), torch.randperm(5)
    before, after = DIRECTIONS_ONLY[name](x, w, y), DIRECTIONS_ONLY[name](x[rows], w[order], order.argsort()[y[rows]])
    assert before.shape == (5, classes)
    torch.testing.assert_close(after, before[rows][:, order])


def test_adjusted_logits_follow_the_order_of_classes_and_are_float32():
    z, order, counts = torch.randn(4, 5), torch.randperm(5), torch.tensor(COUNTS)
    torch.testing.assert_close(adjusted_logits(z[:, order], counts[order]), adjusted_logits(z, counts)[:, order])
    z = z.bfloat16()
    torch.testing.assert_close(adjusted_logits(z, COUNTS), adjusted_logits(z.float(), COUNTS), rtol=0, atol=0)


@pytest.mark.parametrize("name", DIRECTIONS_ONLY)
def test_gradients_agree_with_finite_differences(name):
    x, w, y = batch(4, 5, 3, grad=True)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x, w: DIRECTIONS_ONLY[name](x, w, y), (x, w))


@pytest.mark.parametrize("name", DIRECTIONS_ONLY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coincident_opposite_and_zero_vectors_have_finite_gradients(name, dtype):
    x, w, y = batch(4, dtype=dtype)
    x[0], x[1], x[2] = w[y[0]], -3 * w[y[1]], 0
    w[4] = 0
    x, w = x.requires_grad_(), w.requires_grad_()
    logits = DIRECTIONS_ONLY[name](x, w, y)
    assert torch.isfinite(logits).all()
    EncouragingLoss(log_end=1)(logits, y).backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(w.grad).all()
    assert x.grad[2].tolist() == [0.0] * 6  # a zero vector has no direction
    assert w.grad[4].tolist() == [0.0] * 6


@pytest.mark.parametrize("name", ["angular with target", "arcface", "sphereface"])
@pytest.mark.parametrize("sign", [1, -1])
def test_at_0_and_pi_the_target_s_own_gradient_is_exactly_0(name, sign):
    x, w, y = batch(4, grad=True)
    x = (sign * 2 * w.detach()[y]).requires_grad_()
    DIRECTIONS_ONLY[name](x, w, y).gather(1, y[:, None]).sum().backward()
    assert x.grad.abs().max() == 0


@pytest.mark.parametrize("name", DIRECTIONS_ONLY)
def test_an_empty_batch_is_empty(name):
    x, w, y = batch(0)
    assert DIRECTIONS_ONLY[name](x, w, y).shape == (0, 5)


@pytest.mark.slow
def test_all_compile_whole_and_so_look_at_no_value():
    x, w, y = batch(dtype=torch.float32)

    def everything(x, w, y):
        z = x @ w.T
        outputs = [function(x, w, y) for function in DIRECTIONS_ONLY.values()]
        return [*outputs, adjusted_logits(z, COUNTS)]

    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(compiled(x, w, y), everything(x, w, y), strict=True):
        torch.testing.assert_close(actual, expected)


# ---------------------------------------------------------------------------------------------------------------------
# The AVH loss.


def test_avh_loss_is_cross_entropy_of_minus_the_scaled_angle():
    """Shift invariance: the π in s·(π − θ) plays no part."""
    x, w, y = batch(30)
    angles = angle_matrix(x, w)
    for smoothing in (0.0, 0.1):
        for reduction in ("mean", "sum", "none"):
            expected = F.cross_entropy(-16 * angles, y, reduction=reduction, label_smoothing=smoothing)
            loss = AVHLoss(16.0, reduction=reduction, label_smoothing=smoothing)
            torch.testing.assert_close(loss(x, w, y), expected, rtol=1e-10, atol=1e-12)


def test_equation_5_as_printed_lowers_the_target_s_probability_and_the_avh_loss_raises_it():
    x, w, y = batch(30)
    chance = angular_logits(x, w, 8.0).softmax(1).gather(1, y[:, None]).mean()
    reached = {}
    for name, loss in (("printed", lambda v: printed_eq5(v, w, y, 8.0)), ("ours", lambda v: AVHLoss(8.0)(v, w, y))):
        v = x.clone().requires_grad_()
        optimizer = torch.optim.Adam([v], 0.05)
        for _ in range(60):
            optimizer.zero_grad()
            loss(v).backward()
            optimizer.step()
        reached[name] = angular_logits(v, w, 8.0).softmax(1).gather(1, y[:, None]).mean()
    assert reached["printed"] < 0.2 * chance
    assert reached["ours"] > 0.95


def test_avh_loss_keeps_its_digits_as_p_goes_to_1():
    """p = 1 − 1e-12: a likelihood has rounded to 1 long before, in float32 already at 1 − 6e-8."""
    w = torch.eye(3)
    x = torch.tensor([[1.0, 0.05, -0.1], [1.0, -0.1, 0.02]])
    y = torch.tensor([0, 0])
    results = []
    for dtype in (torch.float32, torch.float64):
        v = x.to(dtype).requires_grad_()
        loss = AVHLoss(20.0)(v, w.to(dtype), y)
        results.append((loss.double(), *torch.autograd.grad(loss, v)))
    (loss, gradient), (exact, exact_gradient) = results
    assert exact < 1e-12
    torch.testing.assert_close(loss, exact, rtol=2e-5, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=2e-5, atol=1e-18)


def test_avh_loss_takes_soft_targets():
    x, w, y = batch()
    soft = torch.rand(8, 5, dtype=torch.float64).softmax(1)
    torch.testing.assert_close(AVHLoss()(x, w, soft), F.cross_entropy(angular_logits(x, w), soft))
    torch.testing.assert_close(AVHLoss()(x, w, F.one_hot(y, 5).double()), AVHLoss()(x, w, y))


def test_ignored_targets_count_for_nothing():
    x, w, y = batch(grad=True)
    ignoring = y.clone()
    ignoring[::2] = -100
    torch.testing.assert_close(AVHLoss()(x, w, ignoring), AVHLoss()(x[1::2], w, y[1::2]))
    for nothing in (AVHLoss()(x, w, torch.full_like(y, -100)), AVHLoss()(x[:0], w, y[:0])):
        assert nothing.item() == 0
        gradients = torch.autograd.grad(nothing, [x, w])
        assert all(g.abs().max() == 0 for g in gradients)


def test_the_scale_is_fixed_set_or_learned_and_stays_positive():
    x, w, y = batch(dtype=torch.float32)
    fixed, learned = AVHLoss(12.0), AVHLoss(12.0, learnable=True)
    assert fixed.scale == 12
    assert not list(fixed.parameters())
    assert learned.scale.item() == pytest.approx(12, rel=1e-6)
    torch.testing.assert_close(fixed(x, w, y), learned(x, w, y))
    learned(x, w, y).backward()
    (expected,) = torch.autograd.grad(
        F.cross_entropy((s := torch.tensor(12.0, requires_grad=True)) * -angle_matrix(x, w), y), s
    )
    assert learned.logits.log_scale.grad.item() == pytest.approx(12 * expected.item(), rel=1e-4)  # d/d log s = s·d/ds
    with torch.no_grad():
        learned.logits.log_scale -= 30 * learned.logits.log_scale.grad.sign()
    assert learned.scale > 0
    for loss in (fixed, learned):
        loss.scale = 5.0
        torch.testing.assert_close(loss(x, w, y), AVHLoss(5.0)(x, w, y))
        again = AVHLoss(1.0, learnable=loss.learnable)
        again.load_state_dict(loss.state_dict())
        assert again.scale == loss.scale
        with pytest.raises(ValueError, match="scale must"):
            loss.scale = 0.0
    assert "scale=5" in repr(fixed)


@pytest.mark.slow
def test_a_schedule_of_the_scale_does_not_recompile():
    from torch._dynamo.testing import CompileCounter

    x, w, y = batch(dtype=torch.float32)
    loss, counter = AVHLoss(), CompileCounter()
    compiled = torch.compile(loss, fullgraph=True, backend=counter)
    for scale in (2.0, 4.0, 8.0, 16.0):
        loss.scale = scale
        torch.testing.assert_close(compiled(x, w, y), F.cross_entropy(-scale * angle_matrix(x, w), y))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_avh_loss_compiles_whole_with_its_gradient():
    x, w, y = batch(dtype=torch.float32, grad=True)
    loss = AVHLoss(learnable=True)
    leaves = [x, w, loss.logits.log_scale]
    actual = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x, w, y), leaves)
    for ours, expected in zip(actual, torch.autograd.grad(loss(x, w, y), leaves), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused, in a sentence.

X, W, Y = torch.randn(4, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cosine_logits(X, W[:, :2]), r"\(4, 3\) and \(5, 2\)"),
        (lambda: angular_logits(X[0], W), r"features \(N, D\).*got \(3,\)"),
        (lambda: arcface_logits(X, W, Y[:2]), r"target .*\(4,\), got \(2,\)"),
        (lambda: cosface_logits(X, W, torch.rand(4, 5)), "soft targets"),
        (lambda: cosface_logits(X, W, Y, -0.1), r"margin .*got -0\.1"),
        (lambda: cosface_logits(X, W, Y, torch.ones(4)), r"margin .*\(5,\), got \(4,\)"),
        (lambda: arcface_logits(X, W, Y, 28.6), r"radians.*got 28\.6"),
        (lambda: arcface_logits(X, W, Y, math.nan), "margin .*got nan"),
        (lambda: sphereface_logits(X, W, Y, 1.5), "margin .*integer"),
        (lambda: sphereface_logits(X, W, Y, 0), "margin .*integer"),
        (lambda: cosine_logits(X, W, 0.0), "scale .*got 0"),
        (lambda: angular_logits(X, W, math.nan), "scale must"),
        (lambda: adjusted_logits(X, COUNTS), r"counts .*\(3,\), got \(5,\)"),
        (lambda: adjusted_logits(X, [1, -2, 3]), r"counts .*got \[-2\]"),
        (lambda: adjusted_logits(X[0], [1, 2, 3]), r"logits .*\(N, C, …\)"),
        (lambda: AVHLoss(-1.0), "scale .*got -1"),
        (lambda: AVHLoss(reduction="avg"), "reduction .*'avg'"),
        (lambda: AVHLoss(label_smoothing=2.0), r"label_smoothing .*got 2\.0"),
        (lambda: AVHLoss(label_smoothing="a"), "label_smoothing .*got 'a'"),
        (lambda: AVHLoss(scale="a"), "scale .*got 'a'"),
        (lambda: AVHLoss(scale=None), "scale .*got None"),
        (lambda: AVHLoss()(X, W, F.one_hot(Y, 5)), r"target .*got \(4, 5\)"),
        (lambda: AVHLoss(validate=True)(X * math.nan, W, Y), "features must .*NaN"),
        (lambda: AVHLoss(validate=True)(X, W, Y + 3), r"target .*\[0, 4\].*got 5"),
    ],
)
def test_bad_input_is_a_sentence(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("name", DIRECTIONS_ONLY)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 7.0, 1e30])
def test_lengths_do_not_matter(name, size):
    x, w, y = batch(dtype=torch.float32)
    before = DIRECTIONS_ONLY[name](x, w, y)
    torch.testing.assert_close(DIRECTIONS_ONLY[name](size * x, w, y), before, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(DIRECTIONS_ONLY[name](x, size * w, y), before, rtol=1e-4, atol=1e-4)


def test_avh_loss_gradients_agree_with_finite_differences():
    x, w, y = batch(4, 5, 3, grad=True)
    for loss in (AVHLoss(8.0), AVHLoss(8.0, label_smoothing=0.1)):
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda x, w, loss=loss: loss(x, w, y), (x, w))
