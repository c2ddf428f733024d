"""Weights and margins from class counts, against exact arithmetic."""

import math
from decimal import Decimal, getcontext

import pytest
import torch
import torch.nn.functional as F

from hardsight.losses import EncouragingLoss, cosface_logits, deferred_weights, effective_number_weights, ldam_margins

LONG_TAIL = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]  # CIFAR-10-LT with a factor of 100


def exact_weights(counts, beta):
    """(1 − β)/(1 − βⁿ), rescaled to sum to the number of classes, in 60 digits."""
    getcontext().prec = 60
    b = Decimal(beta)
    raw = [(1 - b) / (1 - b**n) if n else Decimal(0) for n in counts]
    return [float(w * sum(n > 0 for n in counts) / sum(raw)) for w in raw]


@pytest.mark.parametrize("beta", [0.9, 0.99, 0.9999, 1 - 1e-9, 1 - 1e-12, 1 - 2**-53])
@pytest.mark.parametrize("counts", [LONG_TAIL, [1, 10**9, 10**6, 3], [10**9, 10**9 + 1], [7]])
def test_effective_numbers_agree_with_exact_arithmetic(counts, beta):
    actual = effective_number_weights(torch.tensor(counts), beta)
    assert actual.dtype == torch.float32
    assert actual.tolist() == pytest.approx(exact_weights(counts, beta), rel=2e-7)
    assert actual.sum().item() == pytest.approx(len(counts), rel=1e-6)


def test_from_equal_weights_to_inverse_frequency():
    counts = torch.tensor(LONG_TAIL)
    assert effective_number_weights(counts, 0.0).tolist() == [1.0] * 10
    inverse = effective_number_weights(counts, 1.0).double()
    products = inverse * counts
    torch.testing.assert_close(products, products[:1].expand(10), rtol=1e-6, atol=0)
    torch.testing.assert_close(inverse.float(), effective_number_weights(counts, 1 - 1e-13), rtol=1e-6, atol=0)
    assert (effective_number_weights(counts).diff() > 0).all()  # rarer is heavier


@pytest.mark.parametrize("beta", [0.0, 0.9999, 1.0])
def test_a_class_without_samples_has_no_weight_and_leaves_the_others_as_they_are(beta):
    actual = effective_number_weights([100, 0, 10, 0], beta)
    others = effective_number_weights([100, 10], beta)
    assert actual.tolist() == [others[0], 0, others[1], 0]


def test_ldam_margins_fall_with_the_fourth_root():
    margins = ldam_margins(LONG_TAIL)
    assert margins.tolist() == pytest.approx([0.5 * (50 / n) ** 0.25 for n in LONG_TAIL])
    assert margins.max() == margins[-1] == 0.5
    assert ldam_margins([16, 1], largest=0.3).tolist() == pytest.approx([0.15, 0.3])
    assert ldam_margins([16, 1, 0]).tolist() == pytest.approx([0.25, 0.5, 0.5])
    assert ldam_margins([10**9, 1])[0].item() == pytest.approx(0.5 * 1e9**-0.25)


def test_drw_weights_come_after_the_epoch_it_starts_at():
    weights = deferred_weights(LONG_TAIL, start=180)
    late = effective_number_weights(LONG_TAIL)
    for epoch in (0, 1, 179, 180):
        assert weights(epoch).tolist() == [1.0] * 10
    for epoch in (181, 200):
        torch.testing.assert_close(weights(epoch), late, rtol=0, atol=0)
    assert deferred_weights(LONG_TAIL, 0)(1).tolist() == late.tolist()


def test_lists_arrays_and_tensors_of_any_type_give_the_same():
    import numpy as np

    expected = effective_number_weights(LONG_TAIL)
    for counts in (np.array(LONG_TAIL), torch.tensor(LONG_TAIL).float(), torch.tensor(LONG_TAIL).int()):
        torch.testing.assert_close(effective_number_weights(counts), expected)
        torch.testing.assert_close(ldam_margins(counts), ldam_margins(LONG_TAIL))


def test_they_fit_into_losses():
    """LDAM-DRW: cosines with margins by class under a weighted loss, any of ours or torch's."""
    x, w = torch.randn(8, 6, requires_grad=True), torch.randn(10, 6, requires_grad=True)
    y = torch.arange(8)
    logits = cosface_logits(x, w, y, ldam_margins(LONG_TAIL))
    weights = deferred_weights(LONG_TAIL, 1)(2)
    expected = F.cross_entropy(logits, y, weights)
    torch.testing.assert_close(EncouragingLoss(weights, rho=0)(logits, y), expected)
    EncouragingLoss(weights)(logits, y).backward()
    assert x.grad.abs().max() > 0
    assert w.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: effective_number_weights([1, -1]), r"counts .*got \[-1\]"),
        (lambda: effective_number_weights([1.0, math.nan]), r"counts .*got \[nan\]"),
        (lambda: effective_number_weights([0, 0]), "counts .*none above"),
        (lambda: ldam_margins([]), "counts .*none above"),
        (lambda: ldam_margins(torch.ones(2, 2)), r"counts .*\(C,\), got \(2, 2\)"),
        (lambda: effective_number_weights([1, 2], 1.1), r"beta .*got 1\.1"),
        (lambda: deferred_weights([1, 2], 3, -0.1), r"beta .*got -0\.1"),
        (lambda: deferred_weights([1, 2], -3), "start"),
        (lambda: deferred_weights([1, 2], math.nan), "start"),
        (lambda: ldam_margins([1, 2], 0.0), "largest must"),
    ],
)
def test_bad_input_is_a_sentence(call, says):
    with pytest.raises(ValueError, match=says):
        call()
