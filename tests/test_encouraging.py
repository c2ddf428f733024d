"""The Encouraging Loss as a drop-in: shapes, weights, soft targets, reductions, and bad input in one sentence."""

import copy
import math
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import hardsight.losses.objectives as module
from hardsight.losses import (
    EncouragingBCELoss,
    EncouragingLoss,
    FocalLoss,
    MirrorMSELoss,
    cross_entropy,
    encouraging_loss,
    log_total,
    soft_margins,
)

D = torch.float64
SHAPES = [(4,), (6, 4), (6, 4, 5), (3, 4, 2, 3)]
SIGMOID = EncouragingBCELoss(validate=True)
CUBE = EncouragingLoss(bonus=lambda p: -(p**3))


def problem(shape, soft, ignored=True, scale=2.0):
    z = scale * torch.randn(shape, dtype=D)
    dim = 0 if len(shape) == 1 else 1
    if soft:
        return z, torch.randn(shape, dtype=D).softmax(dim)
    y = torch.randint(shape[dim], shape[:dim] + shape[dim + 1 :])
    if ignored and y.ndim:
        y.view(-1)[::4] = -100
    return z, y


def naive(z, y, objective, weight, smoothing, reduction, weight_bonus=True):
    """What torch documents, with an objective of m in place of −log p; one entry at a time."""
    classes = z.shape[0 if z.ndim == 1 else 1]
    soft = y.is_floating_point()
    rows = z[None] if z.ndim == 1 else z.movedim(1, -1).reshape(-1, classes)
    targets = (y[None] if z.ndim == 1 else y.movedim(1, -1)) if soft else y
    targets = targets.reshape(-1, classes) if soft else targets.reshape(-1)
    ones = torch.ones(classes, dtype=D)
    weight = ones if weight is None else weight
    ce_values, bonus_values, over, count = [], [], 0.0, 0
    for row, target in zip(rows, targets, strict=True):
        m = soft_margins(row[None])[0]
        ce, total = cross_entropy(m), objective(m)
        if not soft and target == -100:
            ce_values.append(torch.zeros((), dtype=D)), bonus_values.append(torch.zeros((), dtype=D))
            continue
        t = (target if soft else F.one_hot(target, classes)) * (1 - smoothing) + smoothing / classes
        ce_values.append((t * weight * ce).sum())
        bonus_values.append((t * (weight if weight_bonus else ones) * (total - ce)).sum())
        over, count = over + (1.0 if soft else weight[target].item()), count + 1
    ce, bonus = torch.stack(ce_values), torch.stack(bonus_values)
    if reduction == "none":
        return (ce + bonus).reshape(y.shape if not soft else z.sum(0 if z.ndim == 1 else 1).shape)
    if reduction == "sum":
        return (ce + bonus).sum()
    return ce.sum() / over + bonus.sum() / (over if weight_bonus else count)


@pytest.fixture(autouse=True)
def warn_again():
    module._warn_once.cache_clear()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_without_a_bonus_it_is_torchs_cross_entropy(shape, soft, smoothing, reduction, weighted):
    z, y = problem(shape, soft)
    weight = torch.tensor([0.5, 2.0, 0.0, 1.3], dtype=D) if weighted else None
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    expected = nn.CrossEntropyLoss(**options)(z, y)
    for actual in (EncouragingLoss(rho=0, **options)(z, y), FocalLoss(0.0, **options)(z, y)):
        torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(encouraging_loss(z, y, rho=0, **options), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight_bonus", [None, True, False])
def test_with_a_bonus_it_is_a_float64_loop(shape, soft, smoothing, reduction, weight_bonus):
    z, y = problem(shape, soft)
    weight = None if weight_bonus is None else torch.tensor([0.5, 2.0, 0.1, 1.3], dtype=D)
    common, both = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}, weight_bonus is not False
    loss = EncouragingLoss(log_end=0.6, start=0.2, weight_bonus=both, **common)
    expected = naive(z, y, lambda m: log_total(m, 0.6, 0.2), weight, smoothing, reduction, both)
    torch.testing.assert_close(loss(z, y), expected)
    parts = loss.parts(z, y)
    torch.testing.assert_close(parts.ce + parts.bonus, expected)
    torch.testing.assert_close(parts.ce, nn.CrossEntropyLoss(**common)(z, y))
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(loss.float()(z.float(), y.float() if soft else y).double(), expected, **close)


def test_released_label_smoothing_gives_every_class_its_bonus():
    # (1−ε)·EL(target) + ε·mean over classes of (bonus − log p), as the released code has it.
    z, y = problem((8, 5), soft=False, ignored=False)
    p = z.softmax(1)
    bonus = torch.where(p > 0.75, -(p - 0.75) / 0.25 + math.log(0.25), torch.log(1 - p))
    every = bonus - p.log()
    expected = (0.9 * every.gather(1, y[:, None])[:, 0] + 0.1 * every.mean(1)).mean()
    torch.testing.assert_close(EncouragingLoss(label_smoothing=0.1)(z, y), expected)

    # Mixup is the mixture of the losses.
    other, share = torch.randint(5, (8,)), 0.3
    mixed = share * F.one_hot(y, 5) + (1 - share) * F.one_hot(other, 5)
    loss = EncouragingLoss()
    torch.testing.assert_close(loss(z, mixed.double()), share * loss(z, y) + (1 - share) * loss(z, other))


@pytest.mark.parametrize(
    "options", [{}, {"log_end": 1.0}, {"log_end": 0.0}, {"bonus": "power"}, {"bonus": "cosine"}, {"start": 0.5}]
)
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.filterwarnings("ignore:EncouragingLoss. with log_end = 1")
def test_gradients(options, soft):
    z, y = problem((4, 5), soft, ignored=True)
    z.requires_grad_()
    loss = EncouragingLoss(torch.tensor([0.5, 2.0, 0.1, 1.3, 1.0], dtype=D), **options)
    assert gradcheck(lambda z: loss(z, y), z)
    assert gradgradcheck(lambda z: loss(z, y), z)


@pytest.mark.parametrize(
    "loss",
    [
        EncouragingLoss(),
        EncouragingLoss(log_end=1),
        EncouragingLoss(log_end=0.0, start=0.2, rho=0.3),
        EncouragingLoss(bonus="power"),
        CUBE,
        EncouragingLoss(label_smoothing=0.1),
        FocalLoss(),
        FocalLoss(0.5),
    ],
)
def test_extreme_logits_have_finite_values_and_right_gradients(loss):
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [27.631, 0.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    value = loss(z, torch.tensor([0, 0, 0, 1]))
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()
    double = z.detach().double().requires_grad_()
    exact = loss(double, torch.tensor([0, 0, 0, 1]))
    exact.backward()
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(z.grad.double(), double.grad, rtol=1e-5, atol=1e-25)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_indices_of_any_integer_type_and_soft_targets_of_any_precision(smoothing):
    z, y = torch.randn(4, 200), torch.tensor([0, 199, 156, 7])  # as a uint8, −100 would be 156
    loss = EncouragingLoss(torch.rand(200), label_smoothing=smoothing, validate=True)
    for dtype in (torch.uint8, torch.int32, torch.int16):
        torch.testing.assert_close(loss(z, y.to(dtype)), loss(z, y))
    loss.ignore_index = 7
    torch.testing.assert_close(loss(z, y.byte()), loss(z[:3], y[:3]))
    soft = torch.randn(4, 200).softmax(1)
    for dtype in (torch.float16, torch.bfloat16):
        torch.testing.assert_close(loss(z, soft.to(dtype)), loss(z, soft.to(dtype).float()))


def test_everything_ignored_is_zero_with_a_zero_gradient():
    z = torch.randn(3, 4, requires_grad=True)
    for loss in (
        EncouragingLoss(),
        EncouragingLoss(label_smoothing=0.1),
        EncouragingLoss(torch.ones(4), weight_bonus=False),
        FocalLoss(),
        EncouragingLoss(match_gradient=True),
    ):
        value = loss(z, torch.full((3,), -100))
        (gradient,) = torch.autograd.grad(value, z)
        assert value.item() == 0
        assert not gradient.any()
    assert EncouragingLoss()(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)).item() == 0


def test_ignored_positions_get_no_gradient_and_another_index_may_be_chosen():
    z = torch.randn(4, 3, 5, requires_grad=True)
    y = torch.randint(3, (4, 5))
    y[0], y[1, 2] = 1, 7
    loss = EncouragingLoss(ignore_index=7)(z, y)
    loss.backward()
    assert not z.grad[1, :, 2].any()
    assert z.grad[0].any()
    flat = z.detach().movedim(1, -1).reshape(-1, 3)[y.flatten() != 7]
    torch.testing.assert_close(loss, EncouragingLoss()(flat, y.flatten()[y.flatten() != 7]))


@pytest.mark.parametrize(
    "options",
    [
        {"log_end": 0.75},
        {"log_end": 0.0},
        {"log_end": 0.5, "start": 0.7},
        {"bonus": "power"},
        {"bonus": "cosine"},
        {"bonus": lambda p: -(p**3)},
        {"preset": "released", "log_end": 1.0},
        {"rho": 0.3},
    ],
)
def test_an_offset_moves_the_minimum_to_zero(options):
    z, y = torch.tensor([[60.0, 0.0, 0.0]], dtype=D), torch.tensor([0])
    assert EncouragingLoss(offset=True, **options)(z, y).item() == pytest.approx(0, abs=1e-9)
    z = 3 * torch.randn(100, 4, dtype=D)
    assert EncouragingLoss(offset=True, **options)(z, torch.randint(4, (100,))).item() > 0


def test_no_offset_where_there_is_no_minimum():
    with pytest.raises(ValueError, match=r"offset: .*log_end = 1 "):
        EncouragingLoss(log_end=1, offset=True)
    loss = EncouragingLoss(offset=True)
    loss.log_end = 1.0  # a schedule may say so later
    with pytest.raises(ValueError, match="no minimum"):
        loss(torch.zeros(1, 3), torch.tensor([0]))


def test_a_function_of_your_own_is_a_bonus():
    z, y = problem((8, 5), soft=False, ignored=False)
    custom = EncouragingLoss(bonus=lambda p: -(p**2))
    torch.testing.assert_close(custom(z, y), EncouragingLoss(bonus="power", gamma=2)(z, y))


def test_released_clamps_one_minus_p():
    y = torch.tensor([0])
    for gap, pull in ((11.0, -1.0), (14.0, 0.0)):  # the bonus ends at 1 − p = 1e-5
        z = torch.tensor([[gap, 0.0]], dtype=D, requires_grad=True)
        loss = EncouragingLoss(log_end=1, preset="released")(z, y)
        (actual,) = torch.autograd.grad(loss, z)
        assert actual[0, 0].item() == pytest.approx(pull, abs=1e-5)
    assert loss.item() == pytest.approx(math.log(1e-5), abs=1e-5)
    z = 4 * torch.randn(200, 4)
    p = z.softmax(1)[:, 0]
    bonus = torch.log(torch.clamp(1 - p, min=1e-5))
    tangent = torch.where(p > 0.75, -(p - 0.75) / 0.25 + math.log(0.25), bonus)
    y = torch.zeros(200, dtype=torch.long)
    for end, b in ((1.0, bonus), (0.75, tangent)):
        actual = EncouragingLoss(log_end=end, preset="released", reduction="none")(z, y)
        torch.testing.assert_close(actual, b - p.log(), rtol=2e-3, atol=2e-3)  # their 1 − p has few digits left


# Matching gradients.


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("weight_bonus", [False, True])
@pytest.mark.parametrize(
    "options", [{"log_end": 1.0}, {"log_end": 0.5, "rho": 0.4}, {"bonus": lambda p: -p}, {"label_smoothing": 0.1}]
)
@pytest.mark.filterwarnings("ignore:EncouragingLoss. with log_end = 1")
def test_a_matched_gradient_is_as_long_as_cross_entropys(soft, weighted, weight_bonus, options):
    z, y = problem((16, 5), soft, scale=5.0)
    z.requires_grad_()
    weight = torch.tensor([0.5, 2.0, 0.1, 1.3, 1.0], dtype=D) if weighted else None
    loss = EncouragingLoss(weight, match_gradient=True, weight_bonus=weight_bonus, **options)
    ce = nn.CrossEntropyLoss(weight, label_smoothing=options.get("label_smoothing", 0.0))
    ours, theirs = (torch.autograd.grad(f(z, y), z)[0] for f in (loss, ce))
    assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=1e-6)
    plain = EncouragingLoss(weight, weight_bonus=weight_bonus, **options)
    cosine = F.cosine_similarity(ours.flatten(), torch.autograd.grad(plain(z, y), z)[0].flatten(), 0)
    assert cosine.item() == pytest.approx(1)


# Where the normal bonus is no proper score.


def test_the_normal_bonus_warns_once_where_it_has_no_minimum():
    z, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    loss = EncouragingLoss(log_end=1)
    loss(z, y)
    soft, smooth = F.one_hot(y, 3).float(), EncouragingLoss(log_end=1, label_smoothing=0.1)
    for case in ((loss, z, soft), (loss, z[:, :2], y % 2), (smooth, z, y), (EncouragingBCELoss(log_end=1), z, soft)):
        module._warn_once.cache_clear()
        with pytest.warns(UserWarning, match=f"{type(case[0]).__name__}: .*log_end .*minimum") as caught:
            case[0](*case[1:])
        assert caught[0].filename == __file__  # where the loss is called, not in torch
        case[0](*case[1:])  # only once
    EncouragingLoss()(z, soft)


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_under_label_noise_the_normal_bonus_diverges_and_the_conservative_one_does_not(noise):
    m = torch.linspace(-40, 0, 4001, dtype=D)  # two classes: of p = ½ to 1; the label is the other one with `noise`
    expected = {end: (1 - noise) * log_total(m, end) + noise * log_total(-m, end) for end in (0.5, 0.75, 1.0)}
    assert expected[1.0].argmin() == 0
    assert expected[1.0][0] < -0.1 * 40 * (1 - 2 * noise)  # at the edge, and falling
    for end in (0.5, 0.75):
        best = expected[end].argmin().item()
        assert 0 < best < 4000
        assert (-m[best]).sigmoid() > 1 - noise  # bounded, but more confident than the truth


# Sigmoid.


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_sigmoid_form_without_a_bonus_is_torchs(reduction):
    z, t = 3 * torch.randn(6, 4, dtype=D), torch.rand(6, 4, dtype=D)
    weight, positive = torch.rand(4, dtype=D), 3 * torch.rand(4, dtype=D)
    expected = nn.BCEWithLogitsLoss(weight, reduction=reduction, pos_weight=positive)(z, t)
    torch.testing.assert_close(
        EncouragingBCELoss(weight, reduction=reduction, pos_weight=positive, rho=0)(z, t), expected
    )


def test_the_sigmoid_form_is_the_softmax_form_with_a_second_logit_of_zero():
    z, y = 3 * torch.randn(50, dtype=D), torch.randint(2, (50,))
    both = torch.stack([torch.zeros_like(z), z], 1)
    for options in ({}, {"log_end": 0.3, "start": 0.2}, {"bonus": "power", "rho": 0.7}, {"offset": True}):
        expected = EncouragingLoss(**options)(both, y)
        torch.testing.assert_close(EncouragingBCELoss(**options)(z, y.double()), expected)


def test_gradients_of_the_sigmoid_form():
    z = torch.randn(3, 4, dtype=D, requires_grad=True)
    t = torch.randint(2, (3, 4)).double()
    assert gradcheck(lambda z: EncouragingBCELoss()(z, t), z)
    assert gradgradcheck(lambda z: EncouragingBCELoss()(z, t), z)
    extreme = torch.tensor([1e4, -1e4], requires_grad=True)
    value = EncouragingBCELoss()(extreme, torch.tensor([1.0, 1.0]))
    value.backward()
    assert value.isfinite()
    assert extreme.grad.isfinite().all()


# A loss among others.


def test_it_is_a_module_like_any_other():
    loss = EncouragingLoss(torch.ones(3), log_end=0.5)
    assert isinstance(loss, nn.CrossEntropyLoss)
    assert "log_end=0.5" in repr(loss)
    with pytest.raises(TypeError):
        EncouragingLoss(None, None, -100)  # torch's deprecated options in between are gone
    with pytest.raises(TypeError, match="label_smoothing"):
        EncouragingBCELoss(label_smoothing=0.1)
    assert list(loss.state_dict()) == ["weight"]
    z, y = torch.randn(2, 3), torch.tensor([0, 2])
    for again in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        torch.testing.assert_close(again(z, y), loss(z, y))


class NoLooking(TorchDispatchMode):
    """Refuses what would wait for a device: reading a value, sizes that depend on values, copies from the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        assert func.overloadpacket not in (aten._local_scalar_dense, aten.nonzero, aten.lift_fresh, aten.masked_select)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "loss",
    [
        EncouragingLoss(torch.rand(4), weight_bonus=False, offset=True),
        EncouragingLoss(label_smoothing=0.1, match_gradient=True),
        EncouragingLoss(preset="released", log_end=1.0, start=0.5),
        EncouragingLoss(bonus=lambda p: -(p**2)),
        FocalLoss(),
        MirrorMSELoss(),
    ],
)
def test_a_step_looks_at_no_value(loss):
    for soft in (False, True):
        z, y = problem((6, 4), soft)
        with NoLooking():
            loss(z.requires_grad_(), y).backward()


@pytest.mark.slow
def test_one_graph_compiled():
    z, y = problem((6, 4), soft=False)
    z = z.float().requires_grad_()
    soft, weight = torch.rand(6, 4).softmax(1), torch.rand(4)
    losses = [EncouragingLoss(weight), EncouragingLoss(log_end=1.0), FocalLoss(label_smoothing=0.1)]
    losses.append(EncouragingLoss(weight, log_end=0.9, label_smoothing=0.1, match_gradient=True, offset=True))

    def everything(z):
        apart = [loss(z, target) for loss in losses for target in (y, soft)]
        return sum([*apart, encouraging_loss(z, y, weight, bonus=lambda p: -(p**2))])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        expected, actual = everything(z), torch.compile(everything, fullgraph=True, backend="aot_eager")(z)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(torch.autograd.grad(actual, z), torch.autograd.grad(expected, z))


def test_a_target_that_is_no_class_is_never_a_number():
    z, y = torch.randn(4, 5), torch.tensor([0, 5, 2, 4])
    with pytest.raises(RuntimeError, match="index 5 "):
        EncouragingLoss()(z, y)
    compiled = torch.compile(EncouragingLoss(reduction="none"), fullgraph=True, backend="aot_eager")
    assert compiled(z, y).isnan().tolist() == [False, True, False, False]


@pytest.mark.slow
def test_compiled_to_a_kernel():
    torch._dynamo.reset()
    z, y = torch.randn(32, 10, requires_grad=True), torch.randint(10, (32,))
    loss = EncouragingLoss()
    actual, expected = torch.compile(loss, fullgraph=True)(z, y), loss(z, y)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(torch.autograd.grad(actual, z), torch.autograd.grad(expected, z))


@pytest.mark.slow
def test_options_that_change_with_time_are_not_compiled_anew_each_time():
    torch._dynamo.reset()
    z, y = torch.randn(32, 10, requires_grad=True), torch.randint(10, (32,))
    loss = EncouragingLoss()
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager_decomp_partition")
    for step in range(1, 12):  # more often than torch would do that
        loss.rho, loss.log_end = 1 - step / 20, step / 12
        torch.testing.assert_close(fast(z, y), loss(z, y))


# Sentences.


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"log_end": 1.5}, r"log_end .*got 1\.5\."),
        ({"log_end": math.nan}, r"log_end .*got nan\."),
        ({"start": 1.0}, r"start .*got 1\.0\."),
        ({"start": 0.5, "bonus": "power"}, r"start .*'log'.*'power'"),
        ({"rho": -1}, r"rho .*got -1\."),
        ({"bonus": "nope", "rho": 0.0}, "bonus 'nope'"),
        ({"gamma": 0.5}, r"gamma .*got 0\.5"),
        ({"bonus": None}, "no bonus None"),
        ({"bonus": "sqrt"}, "bonus 'sqrt'; .*log"),
        ({"preset": "paper"}, r"preset .*got 'paper'\."),
        ({"preset": "released", "bonus": "power"}, "preset .*'log'.*'power'"),
        ({"reduction": "max"}, r"reduction .*got 'max'\."),
        ({"label_smoothing": 2}, r"label_smoothing .*got 2\."),
        ({"weight": torch.tensor([1.0, -1.0])}, r"weight .*got -1\.0\."),
        ({"weight": torch.tensor([1.0, math.nan])}, r"weight .*got nan\."),
        ({"match_gradient": True, "reduction": "none"}, r"match_gradient .*reduction"),
    ],
)
def test_bad_options_are_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        EncouragingLoss(**options)


@pytest.mark.parametrize(
    ("z", "y", "sentence"),
    [
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.long), r"target .*\(3,\), or probabilities"),
        (torch.zeros(2, 3), torch.eye(3).long()[:2], r"got \(2, 3\) torch\.int64\."),
        (torch.zeros(3, 4), torch.zeros(3), r"target .*\(3,\)"),
        (torch.zeros(3, 4, 5), torch.zeros(3, 4, dtype=torch.long), r"target .*\(3, 5\)"),
        (torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), r"input .*two classes"),
        (torch.zeros(3, 4, dtype=torch.long), torch.zeros(3, dtype=torch.long), r"input .*got \(3, 4\)"),
        (torch.zeros(()), torch.tensor(0), r"input .*got \(\)"),
        (torch.zeros(3, 4), torch.tensor([0, 4, 1]), r"\[0, 3\], got 4\."),
        (torch.zeros(3, 4), torch.tensor([0, -1, 1]), r"got -1\."),
        (torch.full((3, 4), math.nan), torch.tensor([0, 1, 2]), "input must .*NaN"),
        (torch.zeros(2, 2), torch.full((2, 2), 0.6), r"soft targets .* 1\.2"),
        (torch.zeros(2, 2), torch.tensor([[1.5, -0.5], [1, 0]]), r"target .*\[0, 1\], got 1\.5"),
    ],
)
def test_bad_values_are_one_sentence(z, y, sentence):
    for loss in (EncouragingLoss(validate=True), FocalLoss(validate=True)):
        with pytest.raises(ValueError, match=sentence):
            loss(z, y)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: EncouragingLoss(torch.ones(3))(torch.zeros(2, 4), torch.tensor([0, 1])), r"weight .*\(4,\), .*\(3,\)"),
        (lambda: SIGMOID(torch.zeros(2, 3), torch.zeros(2)), r"target .*\(2, 3\), got \(2,\)\."),
        (lambda: SIGMOID(torch.zeros(2), torch.tensor([0.0, 2.0])), r"target .*\[0, 1\], got 2"),
        (lambda: SIGMOID(torch.zeros(2), torch.tensor([0.0, -100.0])), r"target .*\[0, 1\], got -100"),
        (lambda: SIGMOID(torch.full((2,), math.nan), torch.zeros(2)), "input must .*NaN"),
        (lambda: EncouragingBCELoss(pos_weight=torch.tensor([-1.0])), "pos_weight must"),
        (lambda: setattr(EncouragingLoss(), "log_end", 1.5), r"log_end .*got 1\.5"),  # as a schedule would
    ],
)
def test_other_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


@pytest.mark.parametrize("target", [0, 2])
def test_where_only_the_target_is_possible_it_is_finite_like_cross_entropy(target):
    z = torch.full((1, 4), -math.inf).scatter_(1, torch.tensor([[target]]), 2.0).requires_grad_()
    y, inside = torch.tensor([target]), torch.zeros(4)
    inside[target] = 1
    assert EncouragingLoss(rho=0)(z, y) == torch.nn.functional.cross_entropy(z, y) == 0
    # At p = 1: cross-entropy 0, and the tangent of log(1 − p) at ¾, which is log ¼ − 1.
    assert EncouragingLoss()(z, y).item() == pytest.approx(math.log(0.25) - 1, rel=1e-6)
    assert EncouragingLoss(offset=True)(z, y) == 0
    assert EncouragingLoss(log_end=1, preset="released")(z, y).item() == pytest.approx(math.log(1e-5), rel=1e-6)
    assert FocalLoss(0.0)(z, y) == 0
    exact = EncouragingLoss(log_end=1)(z, y)
    assert exact == -math.inf
    (gradient,) = torch.autograd.grad(exact, z)
    assert gradient.tolist() == (-inside[None]).tolist()
    assert EncouragingLoss(weight=1 - inside, log_end=1)(z, y) == 0  # a class without a weight does not count
    assert EncouragingLoss(log_end=1, match_gradient=True)(z, y) == 0
