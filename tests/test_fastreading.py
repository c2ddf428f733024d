"""The fast reading against the float64 reference, in units of the stated tolerances."""

import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from naive import naive_scores, triple
from readings import KINDS, errors, inputs

from hardsight import fastreading, reading
from hardsight.fastreading import Rows, applies_to, read_fast, read_rows
from hardsight.reading import Reading, evaluate, read_classes
from hardsight.scores import SCORES, compute_scores


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "c"), [(512, 300), (64, 1000), (7, 65)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_sure_are_within_the_tolerances(kind, d, c, dtype):
    x, w, y = inputs(kind, 200, d, c, dtype)
    for b in (None, torch.randn(c).to(dtype)):
        fields, sure = read_fast(x, w, y, b)
        if sure.any():
            off, same = errors(Reading(c, *fields), sure, x, w, y, b)
            assert max(off.values()) < 1
            assert same


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labeled", [True, False])
def test_all_rows_are_within_the_tolerances(kind, labeled):
    x, w, y = inputs(kind, 200, 64, 200)
    y = y if labeled else None
    off, same = errors(read_classes(x, w, y), slice(None), x, w, y, None)
    assert max(off.values()) < 1
    assert same


def test_most_rows_of_a_network_are_sure_and_only_the_others_are_read_again(monkeypatch):
    x, w, y = inputs("trained", 400, 256, 500)
    x[7] = 0
    asked, reference = [], reading._read
    monkeypatch.setattr(reading, "_read", lambda x, *rest: asked.append(len(x)) or reference(x, *rest))
    compute_scores(x, w, y, None)
    assert asked == [int((~read_fast(x, w, y, None)[1]).sum())]
    assert 1 <= asked[0] < 10


ROW = {
    "norm": 1,
    "logit": 0,
    "other_logit": -3,
    "angle": 1,
    "other_angle": 1,
    "arcsine": 0,
    "exp_sum": 2,
    "exp2_sum": 2,
}
ROW |= {"lin_sum": 0, "steepest": 0.1, "reach": 10, "noise": 0, "moved": 0}


@pytest.mark.parametrize(
    ("changes", "rounding", "limit"),
    [
        ({}, "moved", 8e-6),  # nll and el2n are relative
        ({"other_logit": 99}, "moved", 8e-6),  # and the free energy is absolute
        ({"exp_sum": math.exp(3)}, "moved", 3.2e-6),  # confidence is steepest at 1/2
        ({"other_logit": 99, "lin_sum": -2000}, "moved", 3e-6 * (1 + 1000 + math.log(2)) / 2000),  # entropy
        ({"other_logit": 99, "exp_sum": 1.01, "lin_sum": -0.06}, "moved", 7.7e-7),  # of one class, six below another
        ({}, "noise", 10 * 1e-6 * math.sqrt(0.99) * (99 * math.pi / 2 + 1) / 100),  # the sum of angles
        ({"arcsine": 90 * math.pi / 2}, "noise", 1e-5 * math.sqrt(0.99) * (9 * math.pi / 2 + 1) / 100),  # small angles
        ({"arcsine": -90 * math.pi / 2}, "noise", 1e-5 * math.sqrt(0.99) * (11 * math.pi / 2 - 1) / 100),  # large ones
        ({"steepest": 0.99}, "noise", 1e-5 * math.sqrt(1 - 0.99**2) * (99 * math.pi / 2 + 1) / 100),
    ],
)
def test_how_much_rounding_is_sure(changes, rounding, limit, monkeypatch):
    """Just below the limit a row is sure, just above it is in doubt. Sums alone are rounded by 2.4e-7."""
    levels = torch.tensor([0.9 * limit, 1.1 * limit, math.inf], dtype=torch.float64)
    row = ROW | changes
    numbers = torch.tensor([[row[name]] * 3 for name in Rows._fields[2:]], dtype=torch.float64)
    numbers[Rows._fields.index(rounding) - 2] = levels - (2.4e-7 if rounding == "moved" else 0)
    monkeypatch.setattr(fastreading, "read_rows", lambda *_: (torch.zeros(2, 3, dtype=torch.long), numbers))
    assert read_fast(torch.zeros(3, 4), torch.zeros(100, 4), torch.zeros(3), None)[1].tolist() == [True, False, False]


def test_squares_that_vanish_beside_that_of_the_runner_up_are_not_forgotten():
    x = torch.tensor([[2.0**20, 1.0]])  # reaches so far that a float32 logit is off by 0.1
    w = torch.zeros(64, 2)
    w[:, 0] = torch.linspace(-2, -1, 64)
    w[0], w[1] = torch.tensor([1.0, 0.0]), torch.tensor([1.0, -9.0])  # and e^-9 squared is no digit of 1
    numbers = fastreading.read_rows(x, w, torch.tensor([5]), None, True)[1]
    rows = Rows(None, None, *numbers[:, 0])
    assert rows.moved == pytest.approx((rows.noise * math.exp(-9)).item(), rel=0.01)
    assert not read_fast(x, w, torch.tensor([5]), None)[1].any()


def test_a_prediction_that_rounding_chose_is_in_doubt(monkeypatch):
    numbers = torch.tensor([[(ROW | {"other_logit": 1e-9})[name]] for name in Rows._fields[2:]], dtype=torch.float64)
    monkeypatch.setattr(fastreading, "read_rows", lambda *_: (torch.zeros(2, 1, dtype=torch.long), numbers))
    x, w = torch.zeros(1, 4), torch.zeros(100, 4)
    assert [read_fast(x, w, y, None)[1].item() for y in (torch.zeros(1), None)] == [True, False]


@pytest.mark.parametrize(("of_rows", "of_weights"), [(1e-13, 1), (1e13, 1), (1, 1e-13), (1, 1e13)])
def test_lengths_that_float32_products_cannot_have_are_in_doubt(of_rows, of_weights):
    x, w, y = inputs("random", 30, 16, 70)
    assert read_fast(x, w, y, None)[1].all()
    x, w = of_rows * x, w.clone()
    w[5] *= of_weights / w[5].norm()
    assert not read_fast(x, w, y, None)[1].any()
    off, same = errors(read_classes(x, w, y), slice(None), x, w, y, None)
    assert max(off.values()) < 1
    assert same


def test_equal_weights_tie_at_the_lower_class():
    x, w, _ = inputs("ties", 300, 512, 257)
    pred = compute_scores(x, w, None, None)["pred"]
    assert (pred < 128).sum() > 150  # the others are predictions of the class that has no twin
    assert torch.equal(pred, _first_largest(x, w))


def _first_largest(x, w):
    z = (x.double()[:, None] * w.double()).sum(-1)
    return (z == z.amax(1, keepdim=True)).byte().argmax(1)


def test_a_score_of_doubtful_rows_is_that_of_the_reference():
    x, w, y = inputs("zero", 60, 32, 100)
    norm, angle = evaluate([lambda r: r.norm, lambda r: r.angle], x, w, y, None)
    assert norm[::3].eq(0).all()
    assert (angle[::3] == torch.pi / 2).all()
    truth = naive_scores(x, w, y)
    np.testing.assert_allclose(angle, truth["angle"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x.double(), w, b),
        lambda x, w, b: (x, w, b.double()),
        lambda x, w, b: (x.requires_grad_(), w, b),
        lambda x, w, b: (x, w.requires_grad_(), b),
        lambda x, w, b: (x[:0], w, b),
        lambda x, w, b: (x, w[:63], b[:63]),
    ],
)
def test_where_the_reference_reads_alone(change):
    x, w, b = torch.randn(4, 8), torch.randn(64, 8), torch.randn(64)
    for tensors in ((x, w, b), (x.half(), w, b), (x.T.contiguous().T, w, None)):
        assert applies_to(*tensors)
    x, w, b = change(x, w, b)
    assert not applies_to(x, w, b)
    with torch.no_grad():
        assert applies_to(x, w, b) == (x.requires_grad or w.requires_grad)
    assert len(read_classes(x, w, None, b).norm) == len(x)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_angles_alone_are_the_same_without_logits(kind):
    x, w, y = inputs(kind, 100, 32, 80)
    whole = compute_scores(x, w, y, None)
    for name, score in SCORES.items():
        if not score.logits:
            relative, absolute = score.tolerance
            for labels, column in ((y, whole[name]), (whole["pred"], score(x, w))):
                np.testing.assert_allclose(score(x, w, labels), column, rtol=2 * relative, atol=2 * absolute + 1e-12)


def test_gradients_are_those_of_the_reference():
    x, w, y = torch.randn(5, 8, dtype=torch.float64), torch.randn(80, 8, dtype=torch.float64), torch.arange(5)
    assert torch.autograd.gradcheck(lambda x, w: evaluate([SCORES["avh"].of_reading], x, w, y, None), (
        x.requires_grad_(), w.requires_grad_()))  # fmt: skip


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is:FutureWarning")  # by torch itself
def test_derivatives_in_forward_mode_are_those_of_the_reference():
    x, w, y = inputs("random", 5, 8, 80)
    tangent = torch.randn_like(x)
    avh = SCORES["avh"]
    (gradient,) = torch.autograd.grad(avh(v := x.clone().requires_grad_(), w, y).sum(), v)
    _, moved = torch.func.jvp(lambda x: avh(x, w, y, validate=False), (x,), (tangent,))
    torch.testing.assert_close(moved.sum(), (gradient * tangent).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = avh(torch.autograd.forward_ad.make_dual(x, tangent), w, y, validate=False)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, moved)


def test_views_and_mixed_dtypes_give_the_numbers_of_their_copies():
    x, w, y = inputs("random", 90, 128, 100)
    whole = compute_scores(x, w, y, None)
    strided = torch.stack([x, x])[0].T.contiguous().T
    for values in (compute_scores(strided, w.T.contiguous().T, y, None), compute_scores(x, w, y.int(), None)):
        for name, truth in whole.items():
            torch.testing.assert_close(values[name], truth, rtol=1e-6, atol=1e-6, msg=name)
    mixed, exact = compute_scores(x.bfloat16(), w, y, None), compute_scores(x.bfloat16().double(), w.double(), y, None)
    for name, score in SCORES.items():
        np.testing.assert_allclose(mixed[name], exact[name], *score.tolerance, err_msg=name)


def test_the_operator_keeps_its_contract():
    x, w, y, b = triple(20, 16, 70)
    for bias in (b, None):
        for target in (y, None):
            results = torch.library.opcheck(read_rows, (x, w, target, bias, True))
            assert set(results.values()) == {"SUCCESS"}


def test_a_gpu_without_kernels_is_told_once(monkeypatch):
    monkeypatch.setattr(fastreading, "import_module", _missing)
    fastreading._kernels.cache_clear()
    for capability in ((7, 5), (9, 0)):
        with pytest.warns(UserWarning, match="slower"):
            assert fastreading._kernels(capability) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fastreading._kernels((9, 0)) is None
    fastreading._kernels.cache_clear()


def _missing(name):
    raise ImportError(name)


def test_memory_does_not_grow_with_a_copy_of_the_weights():
    """In a process of its own: 60,000 × 256 weights are 61 MB, and 123 MB as float64."""
    script = """
import resource, torch
from hardsight.scores import compute_scores
x, w, y = torch.randn(64, 256), torch.randn(60_000, 256), torch.zeros(64, dtype=torch.long)
x[0] = 0
compute_scores(x[:8], w[:100], y[:8], None)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
compute_scores(x, w, y, None)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert int(done.stdout) < 100, done.stderr


@pytest.mark.slow
def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    script = Path(__file__).with_name("interpreted_reading.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
