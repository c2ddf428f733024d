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

IGNORES_FEATURE_LENGTH = {"avh", "avc", "angle", "angular_margin"}
FOLLOWS_FEATURE_LENGTH = ALL - IGNORES_FEATURE_LENGTH

IGNORES_WEIGHT_LENGTH = {"avh", "avc", "angle", "angular_margin", "norm"}
FOLLOWS_WEIGHT_LENGTH = ALL - IGNORES_WEIGHT_LENGTH

IGNORES_BIAS = {"avh", "avc", "angle", "angular_margin", "norm"}
FOLLOWS_BIAS = ALL - IGNORES_BIAS

IGNORES_A_SHIFT_OF_ALL_LOGITS = IGNORES_BIAS | {"confidence", "nll", "soft_margin", "margin", "entropy", "el2n"}
FOLLOWS_A_SHIFT_OF_ALL_LOGITS = {"max_logit", "free_energy"}

NEEDS_LABELS = {"avh", "avc", "confidence", "nll", "soft_margin", "margin", "angle", "angular_margin", "el2n"}
NEEDS_NO_LABELS = {"norm", "entropy", "max_logit", "free_energy"}

HARDER_WHEN_HIGHER = {"avh", "nll", "soft_margin", "angle", "angular_margin", "entropy", "el2n", "free_energy"}
HARDER_WHEN_LOWER = {"avc", "confidence", "norm", "margin", "max_logit"}

SIZES = [5, 80]


def test_the_sets_cover_the_registry():
    pairs = [
        (IGNORES_FEATURE_LENGTH, FOLLOWS_FEATURE_LENGTH),
        (IGNORES_WEIGHT_LENGTH, FOLLOWS_WEIGHT_LENGTH),
        (IGNORES_BIAS, FOLLOWS_BIAS),
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
        assert score.name == name
        assert score.reference
        assert score.summary
        assert max(score.tolerance) > 0
        assert score.range[0] < score.range[1]


def close(name, a, b, factor=4.0):
    """Equal up to a few of the score's own tolerances, each side having its own rounding."""
    relative, absolute = SCORES[name].tolerance
    np.testing.assert_allclose(
        a, b, rtol=factor * max(relative, 1e-12), atol=factor * max(absolute, 1e-12), err_msg=name
    )


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 7.0, 1e30])
def test_length_of_the_feature(classes, size):
    features, weight, labels, bias = triple(30, 12, classes)
    before = compute_scores(features, weight, labels, bias)
    after = compute_scores(size * features, weight, labels, bias)
    for name in IGNORES_FEATURE_LENGTH:
        close(name, after[name], before[name])
    for name in FOLLOWS_FEATURE_LENGTH:
        assert not np.allclose(after[name], before[name], rtol=1e-3, atol=0), name
        assert torch.isfinite(after[name]).all(), name


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_length_of_the_weights(classes, size):
    features, weight, labels, bias = triple(30, 12, classes)
    before = compute_scores(features, weight, labels, bias)
    after = compute_scores(features, size * weight, labels, bias)
    for name in IGNORES_WEIGHT_LENGTH:
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
    for name in FOLLOWS_BIAS:
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
    found = compute_scores(features, weight, labels, bias)
    for name, score in SCORES.items():
        relative, absolute = score.tolerance
        np.testing.assert_allclose(found[name], truth[name], rtol=relative, atol=max(absolute, 1e-12), err_msg=name)
        assert score(features, weight, labels, bias=bias).dtype == (
            torch.float64 if dtype == torch.float64 else torch.float32
        )


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
    found = compute_scores(features, weight, labels, None)
    for name, score in SCORES.items():
        relative, absolute = score.tolerance
        np.testing.assert_allclose(found[name], truth[name], rtol=relative, atol=max(absolute, 3e-8), err_msg=name)
        assert found[name][3] == found[name][4]


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
    good, bad = (compute_scores(features, weight, y, bias) for y in (right, (right + 1) % 6))
    for name in NEEDS_LABELS - {"avh", "avc", "angle", "angular_margin"}:
        sign = 1 if name in HARDER_WHEN_HIGHER else -1
        assert (sign * (bad[name] - good[name]) > 0).all(), name
    angular = torch.nn.functional.normalize(features) @ torch.nn.functional.normalize(weight).T
    good, bad = (compute_scores(features, weight, y, None) for y in (angular.argmax(1), angular.argmin(1)))
    for name in ("avh", "avc", "angle", "angular_margin"):
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
    found = compute_scores(torch.from_numpy(x[None]), torch.from_numpy(w), torch.tensor([y]), None)
    for name, score in SCORES.items():
        assert torch.isfinite(found[name]).all(), name
        if name not in ("avh", "avc") or _angle_sum(x, w) > 1e-6:  # else the share of almost nothing
            relative, absolute = score.tolerance
            # The naive arccos has an error of 1e-8 next to 0 and π; nothing else is loosened.
            loose = 5e-8 if name in ("avh", "avc", "angle", "angular_margin") else 1e-12
            np.testing.assert_allclose(found[name], truth[name], rtol=relative, atol=max(absolute, loose), err_msg=name)


def _angle_sum(x, w):
    """Both the angles and their supplements: where either vanishes AVH or AVC is 0/0."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    size = np.linalg.norm(x) * np.linalg.norm(w, axis=1)
    angles = np.arccos(np.clip(np.divide(w @ x, size, out=np.zeros(len(w)), where=size > 0), -1, 1))
    return min(angles.sum(), (np.pi - angles).sum())
