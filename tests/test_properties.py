"""Named properties over the whole registry, as scikit-learn does for its metrics.

A new score must be put into each pair of sets below; the first test fails until it is.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_scores, triple

from hardsight.scores import SCORES, compute_scores

ALL = set(SCORES)

ANGULAR = {"avh", "avc", "angle", "angular_margin"}
IGNORES_BIAS = ANGULAR | {"norm"}
IGNORES_A_SHIFT_OF_ALL_LOGITS = IGNORES_BIAS | {"confidence", "nll", "soft_margin", "margin", "entropy", "el2n"}
FOLLOWS_A_SHIFT_OF_ALL_LOGITS = {"max_logit", "free_energy"}

NEEDS_LABELS = ANGULAR | {"confidence", "nll", "soft_margin", "margin", "el2n"}
NEEDS_NO_LABELS = {"norm", "entropy", "max_logit", "free_energy"}

HARDER_WHEN_HIGHER = {"avh", "nll", "soft_margin", "angle", "angular_margin", "entropy", "el2n", "free_energy"}
HARDER_WHEN_LOWER = {"avc", "confidence", "norm", "margin", "max_logit"}

SIZES = [5, 80]


def test_the_sets_cover_the_registry():
    pairs = [
        (IGNORES_A_SHIFT_OF_ALL_LOGITS, FOLLOWS_A_SHIFT_OF_ALL_LOGITS),
        (NEEDS_LABELS, NEEDS_NO_LABELS),
        (HARDER_WHEN_HIGHER, HARDER_WHEN_LOWER),
    ]
    for yes, no in pairs:
        assert yes | no == ALL
        assert not yes & no


def test_the_registry_says_what_the_sets_say():
    assert {n for n, s in SCORES.items() if s.needs_labels} == NEEDS_LABELS
    assert {n for n, s in SCORES.items() if s.higher_is_harder} == HARDER_WHEN_HIGHER
    for name, score in SCORES.items():
        assert (score.name, score.logits) == (name, name not in IGNORES_BIAS)
        assert score.reference
        assert score.summary
        assert max(score.tolerance) > 0
        assert score.range[0] < score.range[1]


def close(name, a, b, factor=4.0):
    """Equal up to a few of the score's own tolerances, each side having its own rounding."""
    relative, absolute = (factor * max(tolerance, 1e-12) for tolerance in SCORES[name].tolerance)
    np.testing.assert_allclose(a, b, rtol=relative, atol=absolute, err_msg=name)


def within(name, values, truth, least):
    """As close as the score promises, but for an error of the truth itself."""
    relative, absolute = SCORES[name].tolerance
    np.testing.assert_allclose(values, truth, rtol=relative, atol=max(absolute, least), err_msg=name)


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 7.0, 1e30])
def test_length_of_the_feature(classes, size):
    features, weight, labels, bias = triple(30, 12, classes)
    before = compute_scores(features, weight, labels, bias)
    after = compute_scores(size * features, weight, labels, bias)
    for name in ANGULAR:
        close(name, after[name], before[name])
    for name in ALL - ANGULAR:
        assert not np.allclose(after[name], before[name], rtol=1e-3, atol=0), name
        assert torch.isfinite(after[name]).all(), name


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_length_of_the_weights(classes, size):
    features, weight, labels, bias = triple(30, 12, classes)
    before = compute_scores(features, weight, labels, bias)
    after = compute_scores(features, size * weight, labels, bias)
    for name in IGNORES_BIAS:
        close(name, after[name], before[name])
    for name in ALL:
        assert torch.isfinite(after[name]).all(), name


@pytest.mark.parametrize("classes", SIZES)
def test_bias_and_shift(classes):
    features, weight, labels, bias = triple(30, 12, classes)
    plain = compute_scores(features, weight, labels, None)
    biased = compute_scores(features, weight, labels, bias)
    shifted = compute_scores(features, weight, labels, bias + 3.0)
    for name in IGNORES_BIAS:
        close(name, biased[name], plain[name])
    for name in ALL - IGNORES_BIAS:
        assert not np.allclose(biased[name], plain[name], rtol=1e-3, atol=1e-3), name
    for name in IGNORES_A_SHIFT_OF_ALL_LOGITS:
        close(name, shifted[name], biased[name])
    assert (shifted["max_logit"] - biased["max_logit"]).numpy() == pytest.approx(3.0, abs=1e-5)
    assert (shifted["free_energy"] - biased["free_energy"]).numpy() == pytest.approx(-3.0, abs=1e-5)


@pytest.mark.parametrize("classes", [*SIZES, 1500])
def test_order_of_classes_and_samples(classes):
    features, weight, labels, bias = triple(25, 10, classes)
    before = compute_scores(features, weight, labels, bias)
    order = torch.randperm(classes)
    place = torch.empty_like(order)
    place[order] = torch.arange(classes)
    renamed = compute_scores(features, weight[order], place[labels], bias[order])
    rows = torch.randperm(25)
    shuffled = compute_scores(features[rows], weight, labels[rows], bias)
    for name in ALL:
        close(name, renamed[name], before[name])
        close(name, shuffled[name], before[name][rows])
    assert (order[renamed["pred"]] == before["pred"]).all()


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(classes, dtype):
    """Whatever comes in, the arithmetic is exact for the numbers that came in."""
    features, weight, labels, bias = triple(20, 12, classes, dtype=dtype)
    truth = naive_scores(features.double(), weight.double(), labels, bias.double())
    values = compute_scores(features, weight, labels, bias)
    for name, score in SCORES.items():
        within(name, values[name], truth[name], 1e-12)
        assert score(features, weight, labels, bias=bias).dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("classes", SIZES)
def test_awkward_vectors(classes):
    """Zero, duplicate, coincident, opposite; tiny and huge beside one another."""
    features, weight, labels, _ = triple(12, 8, classes)
    features[0] = 0
    features[1], features[2] = weight[labels[1]], -weight[labels[2]]
    features[3] = features[4]
    labels[3] = labels[4]
    features[5], features[6] = features[5] * 1e-30, features[6] * 1e18
    weight[-1] = 0
    weight[-2] = weight[-3]
    truth = naive_scores(features, weight, labels)
    values = compute_scores(features, weight, labels, None)
    for name in ALL:
        within(name, values[name], truth[name], 3e-8)
        assert values[name][3] == values[name][4]


@pytest.mark.parametrize("classes", SIZES)
def test_values_lie_in_the_range_that_is_stated(classes):
    features, weight, labels, bias = triple(200, 6, classes, scale=5)
    for name, values in compute_scores(features, weight, labels, bias).items():
        if name != "pred":
            low, high = SCORES[name].range
            assert (values >= low).all(), name
            assert (values <= high).all(), name


@pytest.mark.parametrize("classes", [2, 5, 80, 1500])
@pytest.mark.parametrize("n", [0, 1])
def test_one_sample_and_none(classes, n):
    features, weight, labels, bias = triple(3, 6, classes)
    whole = compute_scores(features, weight, labels, bias)
    few = compute_scores(features[:n], weight, labels[:n], bias)
    for name in ALL:
        assert few[name].shape == (n,)
        close(name, few[name], whole[name][:n])
        assert SCORES[name](features[:n], weight, labels[:n], bias=bias).shape == (n,)


def test_a_wrong_label_is_harder_than_the_right_one():
    """Direction: what the registry calls harder must rise when the label is wrong."""
    features, weight, _, bias = triple(50, 12, 6)
    right = (features @ weight.T + bias).argmax(1)
    angular = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(weight).T
    by_logit = NEEDS_LABELS - ANGULAR, right, (right + 1) % 6, bias
    by_angle = ANGULAR, angular.argmax(1), angular.argmin(1), None
    for names, better, worse, added in (by_logit, by_angle):
        good, bad = (compute_scores(features, weight, y, added) for y in (better, worse))
        for name in names:
            sign = 1 if name in HARDER_WHEN_HIGHER else -1
            assert (sign * (bad[name] - good[name]) > 0).all(), name


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    classes=st.integers(2, 12),
    width=st.integers(1, 6),
    exponent=st.sampled_from([-30, -8, 0, 8]),
)
def test_arbitrary_numbers_agree_with_the_naive_loop(data, classes, width, exponent):
    """Whatever hypothesis thinks of: repeated values, zeros, tiny next to large."""
    number = st.floats(-4, 4, width=32).map(lambda v: float(np.float32(v)))
    x = np.array(data.draw(st.lists(number, min_size=width, max_size=width)), np.float32) * np.float32(10.0**exponent)
    w = np.array(data.draw(st.lists(number, min_size=classes * width, max_size=classes * width)), np.float32)
    w = w.reshape(classes, width)
    y = data.draw(st.integers(0, classes - 1))
    truth = naive_scores(x[None], w, [y])
    values = compute_scores(torch.from_numpy(x[None]), torch.from_numpy(w), torch.tensor([y]), None)
    for name in ALL:
        assert torch.isfinite(values[name]).all(), name
        if name not in ("avh", "avc") or _angle_sum(x, w) > 1e-6:  # else the share of almost nothing
            # The naive arccos has an error of 1e-8 next to 0 and π; nothing else is loosened.
            within(name, values[name], truth[name], 5e-8 if name in ANGULAR else 1e-12)


def _angle_sum(x, w):
    """Both the angles and their supplements: where either vanishes AVH or AVC is 0/0."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    size = np.linalg.norm(x) * np.linalg.norm(w, axis=1)
    angles = np.arccos(np.clip(np.divide(w @ x, size, out=np.zeros(len(w)), where=size > 0), -1, 1))
    return min(angles.sum(), (np.pi - angles).sum())
