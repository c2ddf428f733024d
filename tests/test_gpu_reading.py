"""The fast reading on a GPU: within the stated tolerances, as good as a plain one, and in bounded memory."""

import pytest
import torch
from readings import KINDS, errors, inputs

from hardsight import fastreading
from hardsight.angles import angle_matrix, paired_angle
from hardsight.fastreading import read_fast
from hardsight.reading import Reading, read_classes
from hardsight.scores import SCORES, avh_series, compute_scores
from hardsight.series import angle_sum_series, class_sums

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def all_work(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(fastreading, "_LEAST_WORK", 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_rows_are_within_the_tolerances(kind, dtype):
    for n, d, c in ((700, 512, 1000), (300, 2048, 321), (300, 4096, 321), (70, 63, 65)):
        x, w, y = inputs(kind, n, d, c, dtype, "cuda")
        for target, bias in ((y, None), (None, torch.randn(c, device="cuda"))):
            fields, sure = read_fast(x, w, target, bias)
            if sure.any():
                off, same = errors(Reading(c, *fields), sure, x, w, target, bias)
                assert max(off.values()) < 1
                assert same
            off, same = errors(read_classes(x, w, target, bias), slice(None), x, w, target, bias)
            assert max(off.values()) < 1
            assert same


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_are_as_near_to_the_truth_as_plain_operations(dtype):
    x, w, y = inputs("trained", 2048, 1024, 4096, dtype, "cuda")
    truth = (x.double() @ w.double().T).log_softmax(1).gather(1, y[:, None])[:, 0].neg()
    plain = (x @ w.T).float().log_softmax(1).gather(1, y[:, None])[:, 0].neg()
    ours = compute_scores(x, w, y, None)["nll"]
    assert (ours - truth).abs().max() <= (plain - truth).abs().max()


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(("d", "c"), [(512, 300), (128, 5000), (72, 70), (63, 200)])
def test_the_series_is_certified(dtype, d, c):
    for kind in KINDS:
        x, w, y = inputs(kind, 300, d, c, dtype, "cuda")
        target = paired_angle(x.double(), w[y].double())
        truth = target / angle_matrix(x.double(), w.double()).sum(1)
        for sums in (None, class_sums(w, dtype)):
            value, error = avh_series(x, w, y, sums)
            assert ((value - truth).abs() <= error + 1e-12).all()
        # As narrow as in float64, but for what 16 bits round off; of a zero row nothing is known.
        wide = angle_sum_series(x, w)[1] > 1.3 * angle_sum_series(x, class_sums(w))[1] + 2e-3 * c
        assert not (wide & (x != 0).any(1)).any()


def test_views_that_no_kernel_takes_as_they_are():
    x, w, y = inputs("random", 256, 512, 128, torch.bfloat16, "cuda")
    shifted = torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)  # starts between multiples of 16 bytes
    whole = compute_scores(x, w, y, None)
    for views in ((x.T.contiguous().T, w), (shifted, w), (x, w.T.contiguous().T)):
        for name, values in compute_scores(*views, y, None).items():
            torch.testing.assert_close(values, whole[name], rtol=1e-7, atol=1e-7, msg=name)


@pytest.mark.parametrize(("n", "d", "c"), [(16384, 512, 500_000), (64, 256, 1_000_000), (262_144, 512, 100)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_is_bounded_whatever_the_numbers_of_rows_and_classes(n, d, c, dtype):
    n = n if dtype == torch.bfloat16 else min(n, 2048)  # float32 takes ten times as long
    x, w = torch.randn(n, d, device="cuda", dtype=dtype), torch.randn(c, d, device="cuda", dtype=dtype)
    y = torch.randint(c, (n,), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = compute_scores(
        x[: 2048 if dtype == torch.float32 else n], w, y[: 2048 if dtype == torch.float32 else n], None
    )
    outputs = sum(values.nbytes for values in results.values())
    assert torch.cuda.max_memory_allocated() - before - 2 * outputs < 512 * 2**20


def test_plain_operations_where_there_are_no_kernels(monkeypatch):
    x, w, y = inputs("trained", 600, 256, 500, torch.bfloat16, "cuda")
    ours = compute_scores(x, w, y, None)
    fastreading._kernels.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    with pytest.warns(UserWarning, match="slower"):
        plain = compute_scores(x, w, y, None)
    fastreading._kernels.cache_clear()
    for name, score in SCORES.items():
        relative, absolute = score.tolerance
        torch.testing.assert_close(plain[name], ours[name], rtol=2 * relative, atol=2 * absolute + 1e-12, msg=name)
