"""Angles against scipy, arbitrary precision by hand, and finite differences."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from hardsight.angles import angle_matrix, arccos, float32_is_exact, paired_angle, unit
from hardsight.series import angle_sum_series, class_sums


def test_matrix_agrees_with_scipy():
    x, w = torch.randn(50, 12, dtype=torch.float64), torch.randn(9, 12, dtype=torch.float64)
    expected = np.arccos(1 - cdist(x.numpy(), w.numpy(), "cosine"))
    np.testing.assert_allclose(angle_matrix(x, w).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-7, 1e-3, 1.0, math.pi / 2, 3.0, math.pi - 1e-7, math.pi])
def test_paired_angle_is_exact_from_0_to_pi(angle):
    """Where arccos of a dot product has lost half the digits."""
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    v = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert paired_angle(u, 7 * v).item() == pytest.approx(angle, rel=1e-12, abs=1e-15)


def test_float32_pairs_stay_within_rounding():
    u = torch.randn(2000, 512)
    v = u + 1e-3 * torch.randn(2000, 512)
    truth = paired_angle(u.double(), v.double())
    assert (paired_angle(u, v) - truth).abs().max() < 2e-7
    naive = torch.acos(torch.cosine_similarity(u, v).clamp(-1, 1))
    assert (naive - truth).abs().max() > 1e-5  # what we are spared


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_length_does_not_matter(size):
    u, v = torch.randn(20, 8), torch.randn(20, 8)
    torch.testing.assert_close(paired_angle(size * u, v / size), paired_angle(u, v), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(angle_matrix(size * u, v), angle_matrix(u, v), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(unit(size * u)[1], size * u.norm(dim=1), rtol=1e-5, atol=0)


def test_float64_far_beyond_the_square_root_of_its_range():
    u = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(unit(1e300 * u)[1], 1e300 * u.norm(dim=1))
    torch.testing.assert_close(unit(1e-300 * u)[0], unit(u)[0])


def test_zero_vector_is_at_a_right_angle_to_everything():
    zero, v = torch.zeros(1, 3), torch.randn(4, 3)
    assert paired_angle(zero, v).tolist() == pytest.approx([math.pi / 2] * 4)
    assert paired_angle(zero, zero).item() == pytest.approx(math.pi / 2)
    assert angle_matrix(zero, v)[0].tolist() == pytest.approx([math.pi / 2] * 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    u, v = torch.randn(10, 64).to(dtype), torch.randn(10, 64).to(dtype)
    angles = paired_angle(u, v)
    assert angles.dtype == torch.float32
    torch.testing.assert_close(angles, paired_angle(u.double(), v.double()).float(), rtol=1e-6, atol=1e-6)


def test_autocast_does_not_round_the_cosines():
    u, v = torch.randn(10, 64), torch.randn(12, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        angles = angle_matrix(u, v)
    torch.testing.assert_close(angles, angle_matrix(u, v), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Please use the new API")  # torch 2.9 says so of its own setter
def test_lowered_matmul_precision_does_not_round_the_cosines():
    u, v = torch.randn(10, 64), torch.randn(12, 64)
    truth = angle_matrix(u, v)
    assert float32_is_exact(u.device)
    torch.set_float32_matmul_precision("medium")
    try:
        assert not float32_is_exact(u.device)
        torch.testing.assert_close(angle_matrix(u, v), truth, rtol=1e-6, atol=1e-6)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("function", [paired_angle, angle_matrix])
def test_gradients_agree_with_finite_differences(function):
    u = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    v = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (u, v))
    assert torch.autograd.gradgradcheck(function, (u, v))


@pytest.mark.parametrize("function", [paired_angle, angle_matrix])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_exactly_zero_where_there_is_no_direction(function, dtype):
    """Coincident, opposite, and zero vectors: the plain formulas give noise, infinity or NaN there."""
    w = torch.randn(1, 5, dtype=dtype)
    for x in (w.clone(), -2 * w, 3.7 * w, torch.zeros(1, 5, dtype=dtype)):
        u, v = x.requires_grad_(), w.clone().requires_grad_()
        function(u, v).sum().backward()
        assert u.grad.tolist() == [[0.0] * 5]
        assert v.grad.tolist() == [[0.0] * 5]


def test_gradient_stays_small_next_to_no_direction():
    """One rounding step away from coincident the length of the gradient is at most that of the slope bound."""
    w = torch.nn.functional.normalize(torch.randn(200, 16), dim=1)
    for function, bound in ((paired_angle, 1.01), (angle_matrix, 1000)):
        u = (w * (1 + 1e-7) + 1e-7 * torch.randn_like(w)).requires_grad_()
        function(u, w).diagonal().sum().backward() if function is angle_matrix else function(u, w).sum().backward()
        assert torch.isfinite(u.grad).all()
        assert u.grad.norm(dim=1).max() <= bound


def test_arccos_value_is_exact_where_its_slope_is_bounded():
    t = torch.tensor([1.0, 1 + 1e-6, -1.0, 1 - 1e-8, 0.3], dtype=torch.float64, requires_grad=True)
    value = arccos(t)
    assert value.tolist() == pytest.approx([0, 0, math.pi, math.acos(1 - 1e-8), math.acos(0.3)], abs=1e-15)
    value.sum().backward()
    assert t.grad[:4].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert t.grad[4].item() == pytest.approx(-1 / math.sqrt(1 - 0.09))


def test_compiles_whole():
    angle = torch.compile(angle_matrix, fullgraph=True, backend="aot_eager")
    u, v = torch.randn(4, 8), torch.randn(3, 8)
    torch.testing.assert_close(angle(u, v), angle_matrix(u, v))


@pytest.mark.parametrize(("classes", "width"), [(3, 2), (1000, 16), (50, 64)])
def test_series_certificate_holds(classes, width):
    x, w = torch.randn(100, width), torch.randn(classes, width)
    total, error = angle_sum_series(x, w)
    truth = angle_matrix(x.double(), w.double()).sum(1)
    assert ((total - truth).abs() <= error * (1 + 1e-9) + 1e-9).all()
    assert total.dtype == torch.float64
    # Parallel to a weight the dropped term is as large as the bound says.
    total, error = angle_sum_series(w[:1], w[:1])
    assert abs(total.item() - 0) == pytest.approx(error.item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("classes", "width", "lean"), [(3, 8, 0.0), (1000, 16, 1.0), (50, 64, 0.0), (9000, 32, 0.3)])
def test_series_of_16_bits_is_certified_too(dtype, classes, width, lean):
    x, w = torch.randn(100, width).to(dtype), (lean + torch.randn(classes, width)).to(dtype)
    x[3], x[4:40] = 0, w[:36] if classes > 36 else x[4:40]
    truth = angle_matrix(x.double(), w.double()).sum(1)
    for given in (w, class_sums(w, dtype), class_sums(w)):
        total, error = angle_sum_series(x, given)
        assert ((total - truth).abs() <= error + 1e-9).all()
    assert total[3].item() == pytest.approx(classes * math.pi / 2)
    narrow = angle_sum_series(x, w)[1] <= 1.3 * error + 1e-3 * classes
    assert narrow.nonzero()[:, 0].tolist() == [i for i in range(100) if i != 3]  # of a zero row nothing else is known


@pytest.mark.parametrize("classes", [20, 2000])
def test_what_16_bits_round_off_is_in_the_slack(classes):
    short = []
    for _ in range(10):
        w, x = torch.randn(classes, 24).bfloat16(), torch.eye(24).double()
        sums = class_sums(w, torch.bfloat16)
        truth = (unit(w.double())[0] @ x).norm(dim=0)
        first = sums.matrix[: sums.squares].double()
        square = sums.scale * (first.diagonal() if sums.gram else first.square().sum(0))
        short.append((truth - square.sqrt()).max())
        assert (truth <= (square + sums.inside).sqrt() + sums.outside).all()
    assert max(short) > 0  # so that without it the bound would not hold


@pytest.mark.parametrize("classes", [20, 2000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_error_of_the_series_is_that_of_the_squared_cosines(dtype, classes):
    for _ in range(10):
        w = (torch.linspace(0.1, 3, 24) * torch.randn(classes, 24)).to(dtype)  # some directions hold most weights
        x = torch.cat([torch.eye(24), torch.randn(40, 24)]).to(dtype)
        truth = (math.pi / 2 - 1) * (unit(x.double())[0] @ unit(w.double())[0].T).square().sum(1)
        error = angle_sum_series(x, w)[1]
        if dtype == torch.float64:
            torch.testing.assert_close(error, truth, rtol=1e-9, atol=1e-9)
        assert (error >= truth * (1 - 1e-9)).all()
        assert (error <= 1.3 * truth + 5e-3 * classes).all()


def test_what_16_bits_round_off_second_moments_is_in_the_error():
    w = torch.eye(24)[torch.randint(24, (2000,))].bfloat16()  # no row is rounded, but how many there are is
    error = angle_sum_series(torch.eye(24).bfloat16(), w)[1]
    assert (error >= (math.pi / 2 - 1) * w.double().sum(0)).all()


def test_series_of_lengths_that_float32_has_not():
    x, w = torch.tensor([[1e30, 1e30], [1e-30, 1e-30], [1.0, 1.0]]).bfloat16(), torch.randn(5, 2).bfloat16()
    total, error = angle_sum_series(x, w)
    truth = angle_matrix(x.double(), w.double()).sum(1)
    assert ((total - truth).abs() <= error + 1e-9).all()


def test_empty_inputs():
    assert paired_angle(torch.zeros(0, 4), torch.zeros(0, 4)).shape == (0,)
    assert angle_matrix(torch.zeros(0, 4), torch.randn(3, 4)).shape == (0, 3)
