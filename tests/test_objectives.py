"""Objectives of the soft margin against float64 loops, and the identities of the Encouraging Loss paper (Eq. 3–10)."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from hardsight.losses import BONUSES, EncouragingLoss, cross_entropy, focal, log_total, soft_margin, soft_margins

LOG_ENDS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)


def naive_margin(z, y):
    others = [v for k, v in enumerate(z) if k != y]
    top = max(others)
    return top + math.log(math.fsum(math.exp(v - top) for v in others)) - z[y]


def naive_bonus(p, q, end, start):
    """Eq. 7 as it is printed, with q = 1 − p given apart; shifted to begin at `start`."""

    def log_or_tangent(p, q):
        return math.log(q) if p <= end else -(p - end) / (1 - end) + math.log(1 - end)

    if p < start:
        return 0.0
    return log_or_tangent(p, q) - (log_or_tangent(start, 1 - start) if start else 0.0)


def naive_total(m, end, start=0.0):
    p, q = 1 / (1 + math.exp(m)), 1 / (1 + math.exp(-m))
    return (math.log1p(math.exp(m)) if m < 30 else m) + naive_bonus(p, q, end, start)


# The soft margin.


@pytest.mark.parametrize("classes", [2, 3, 10, 300])
@pytest.mark.parametrize("scale", [0.1, 5, 300])
def test_soft_margins_equal_a_float64_loop(classes, scale):
    z = scale * torch.randn(8, classes, dtype=torch.float64)
    y = torch.randint(classes, (8,))
    expected = [[naive_margin(row, k) for k in range(classes)] for row in z.tolist()]
    torch.testing.assert_close(soft_margins(z), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    at_target = torch.tensor([row[k] for row, k in zip(expected, y.tolist(), strict=True)], dtype=torch.float64)
    torch.testing.assert_close(soft_margin(z, y), at_target, rtol=1e-13, atol=1e-13)
    close = {"rtol": 1e-6, "atol": 1e-6 * max(1, scale)}
    torch.testing.assert_close(soft_margin(z.float(), y).double(), at_target, **close)
    torch.testing.assert_close(soft_margins(z.float()).double(), soft_margins(z), **close)


def test_a_soft_margin_keeps_its_digits_where_the_likelihood_is_one():
    z = torch.tensor([[1e4, -1e4, 0.0], [27.631, 0.0, -50.0], [-1e4, 1e4, 1e4]])
    actual = soft_margin(z, torch.zeros(3, dtype=torch.long))
    expected = torch.tensor([-1e4, -27.631, 2e4 + math.log(2)])
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(soft_margins(z)[:, 0], expected, rtol=1e-6, atol=0)


def test_soft_margins_reach_dimensions_behind_the_classes():
    z, y = torch.randn(3, 5, 4, 2), torch.randint(5, (3, 4, 2))
    flat = soft_margin(z.movedim(1, -1).reshape(-1, 5), y.flatten())
    torch.testing.assert_close(soft_margin(z, y).flatten(), flat)
    torch.testing.assert_close(soft_margin(z, y.byte()), soft_margin(z, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_comes_back_as_float32(dtype):
    z, y = torch.randn(4, 5).to(dtype), torch.arange(4)
    assert soft_margin(z, y).dtype == soft_margins(z).dtype == torch.float32
    torch.testing.assert_close(soft_margin(z, y), soft_margin(z.float(), y))


def test_gradients_of_soft_margins():
    z = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for function in (lambda z: soft_margin(z, torch.tensor([0, 3, 1])), soft_margins):
        assert gradcheck(function, z)
        assert gradgradcheck(function, z)


# Objectives.


@pytest.mark.parametrize("end", LOG_ENDS)
@pytest.mark.parametrize("start", [0.0, 0.3, 0.5, 0.8])
def test_the_log_bonus_equals_the_printed_formula(end, start):
    m = torch.linspace(-25, 25, 301, dtype=torch.float64)
    expected = torch.tensor([naive_total(v, end, start) for v in m.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_total(m, end, start), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_total(m.float(), end, start).double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("end", LOG_ENDS)
@pytest.mark.parametrize("start", [0.0, 0.3, 0.5, 0.8])
def test_the_loss_is_continuous_wherever_the_bonus_starts_and_its_logarithm_ends(end, start):
    for p in {start, end} - {0.0, 1.0}:
        around = torch.tensor([p - 1e-9, p, p + 1e-9], dtype=torch.float64)
        values = log_total(-torch.logit(around), end, start)
        assert (values.max() - values.min()).item() < 1e-7  # released, it jumps by 0.75 with start 0.5 and end 0.75


def closed_slope(name, m, end=1.0, gamma=2.0):
    p, q = 1 / (1 + math.exp(m)), 1 / (1 + math.exp(-m))
    if name == "cosine":
        return q * (1 + math.pi * math.sin(math.pi * min(p, q)) * p)
    if name == "power":
        return q * (1 + gamma * p**gamma)
    return 1.0 if q >= 1 - end else q * (1 + p / (1 - end))


@pytest.mark.parametrize("name", BONUSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_keep_their_digits_at_any_likelihood(name, dtype):
    # p = 1 − 1e-12 is m = −27.6. In float32 p has been 1 since −17.
    m = torch.linspace(-80.3, 40, 222, dtype=dtype, requires_grad=True)
    ends = [{"log_end": end} for end in (*LOG_ENDS, 1 - 1e-9)] if name == "log" else []
    for options in ends or [{"gamma": 1.0}, {"gamma": 3.5}] * (name == "power") or [{}]:
        (actual,) = torch.autograd.grad(BONUSES[name](m, **options).sum(), m)
        expected = [closed_slope(name, v, options.get("log_end", 1.0), options.get("gamma", 2.0)) for v in m.tolist()]
        close = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 0}
        torch.testing.assert_close(actual.double(), torch.tensor(expected, dtype=torch.float64), **close)


def test_with_an_end_next_to_1_the_tangent_keeps_its_digits():
    m = torch.linspace(-60, 5, 66)
    actual = log_total(m, 1 - 1e-9).double()
    torch.testing.assert_close(actual, log_total(m.double(), 1 - 1e-9), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_has_a_slope_of_0_where_one_minus_p_is_0(gamma):
    m = torch.tensor([-1e4, -200.0, -27.6], requires_grad=True)
    (actual,) = torch.autograd.grad(focal(m, gamma).sum(), m)
    q = 1 / (1 + math.exp(27.6))
    exact = q**gamma * (gamma * (1 - q) * math.log1p(math.exp(-27.6)) + q)
    assert actual.tolist() == pytest.approx([0, 0, exact], rel=1e-5, abs=0)


def test_cross_entropy_and_focal_equal_torch():
    z, y = 3 * torch.randn(50, 7, dtype=torch.float64), torch.randint(7, (50,))
    m = soft_margin(z, y)
    ce = F.cross_entropy(z, y, reduction="none")
    torch.testing.assert_close(cross_entropy(m), ce)
    torch.testing.assert_close(focal(m, 2.0), (1 - (-ce).exp()) ** 2 * ce)


@pytest.mark.parametrize("name", BONUSES)
def test_gradients_of_objectives(name):
    m = torch.tensor([-8.0, -2.3, -0.4, 0.2, 1.7, 6.0], dtype=torch.float64, requires_grad=True)  # off the kinks
    for options in [{}] if name in ("power", "cosine") else [{"log_end": e, "start": 0.0} for e in LOG_ENDS]:
        for check in (gradcheck, gradgradcheck):
            assert check(lambda m, o=options: BONUSES[name](m, **o), m)


# The paper's equations. z: logits of one sample with target 0; p its likelihood.


def sample(scale=1.0):
    z = (scale * torch.randn(6, dtype=torch.float64)).requires_grad_()
    return z, torch.tensor(0), z.detach().softmax(0)[0].item()


def gradient(loss, z):
    return torch.autograd.grad(loss, z)[0]


def test_eq_3_cross_entropy_pulls_with_one_minus_p():
    z, y, p = sample(3)
    for loss in (F.cross_entropy, EncouragingLoss(rho=0)):
        assert gradient(loss(z, y), z)[0].item() == pytest.approx(p - 1)


def test_eq_4_and_9_energies():
    z, y, _ = sample(2)
    energy = -z
    among_all = energy[0] + torch.log(torch.exp(-energy).sum())
    among_others = energy[0] + torch.log(torch.exp(-energy[1:]).sum())
    torch.testing.assert_close(EncouragingLoss(rho=0)(z, y), among_all)
    torch.testing.assert_close(EncouragingLoss(log_end=1)(z, y), among_others)


def test_eq_5_and_10_margins_grow_faster_by_the_paper_s_ratio():
    z, y, _ = sample(2)
    a = torch.exp(z.detach()[1:] - z.detach()[0])
    ce, el = gradient(F.cross_entropy(z, y), z), gradient(EncouragingLoss(log_end=1)(z, y), z)
    torch.testing.assert_close(ce[1:], a / (1 + a.sum()))
    torch.testing.assert_close(el[1:], a / a.sum())
    torch.testing.assert_close(el / ce, torch.full_like(ce, ((1 + a.sum()) / a.sum()).item()))


def test_eq_6_the_normal_bonus_is_the_mirrored_cross_entropy_and_exactly_m():
    z, y, p = sample(2)
    assert EncouragingLoss(log_end=1)(z, y).item() == pytest.approx(-math.log(p) + math.log(1 - p))
    z = torch.randn(100, 9) * 10
    y = torch.randint(9, (100,))
    assert torch.equal(EncouragingLoss(log_end=1, reduction="none")(z, y), soft_margin(z, y))


@pytest.mark.parametrize("end", LOG_ENDS[:-1])
def test_eq_7_the_conservative_bonus_as_printed(end):
    for scale in (0.5, 2, 4):
        z, y, p = sample(scale)
        assert EncouragingLoss(log_end=end)(z, y).item() == pytest.approx(-math.log(p) + naive_bonus(p, 1 - p, end, 0))


@pytest.mark.parametrize("logit", [-1e4, -30.0, 0.0, 5.0, 12.0, 30.0, 1e4])
def test_eq_8_the_pull_on_the_target_is_exactly_one_at_any_likelihood(logit):
    for dtype in (torch.float32, torch.float64):
        z = torch.tensor([[logit, 0.5, -1.0, 0.0]], dtype=dtype, requires_grad=True)
        actual = gradient(EncouragingLoss(log_end=1)(z, torch.tensor([0])), z)[0]
        assert actual[0].item() == -1
        torch.testing.assert_close(actual[1:], z.detach()[0, 1:].softmax(0))


@pytest.mark.parametrize("end", LOG_ENDS[:-1])
def test_eq_8_beyond_log_end_the_pull_is_the_papers(end):
    z, y, p = sample(3)
    expected = 1.0 if p <= end else (1 / p + 1 / (1 - end)) * p * (1 - p)
    assert gradient(EncouragingLoss(log_end=end)(z, y), z)[0].item() == pytest.approx(-expected)
