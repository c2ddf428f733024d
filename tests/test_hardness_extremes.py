"""Scores where float32 screening cannot be trusted: near ties, opposite and collapsed weights, denormal features."""

import math

import numpy as np
import pytest
import torch
from naive import naive_scores

import hardsight as hs
from hardsight.scores import SCORES, compute_scores


def within(found, truth, tolerance):
    np.testing.assert_allclose(found, truth, rtol=tolerance.relative, atol=tolerance.absolute)


@pytest.mark.parametrize("apart", [40, 1030])  # in one block of classes, and across two
def test_near_ties_of_small_logits_are_settled_in_float64(apart):
    """Every class twice, apart by less than float32 can tell, where nothing else has the rows computed again."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 64, generator=draw)
    weight[:, 0] = 0
    weight /= weight.norm(dim=1, keepdim=True)
    features = weight + torch.randn(40, 64, generator=draw) / 8  # at some 45° from its class: no cosine is steep
    features[:, 0] = 0.1
    features /= features.norm(dim=1, keepdim=True)
    twins = weight.clone()
    twins[:, 0] = torch.where(torch.arange(40) % 2 == 0, 1e-8, -1e-8)  # every other twin wins by 1e-9
    weight = torch.cat([weight, torch.randn(apart - 40, 64, generator=draw) / 100, twins])
    logits = features.double() @ weight.double().T
    first, second = logits.topk(2).values.T
    assert ((first - second) < 2e-9).all()
    assert (logits.argmax(1) >= apart).tolist() == [True, False] * 20
    found = compute_scores(features, weight, logits.argmin(1), None)
    assert found["pred"].tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("last", [True, False])
def test_opposite_weights_in_one_block_of_classes(last):
    """A third of the weights point away but for 2e-4 radians, which float32 cosines round to π."""
    draw = torch.Generator().manual_seed(0)
    direction = torch.randn(1, 64, generator=draw)
    features = torch.tensor([[1.0], [2.0], [0.5]]) * direction
    opposite = -(direction + 2e-4 * torch.randn(512, 64, generator=draw))
    weight = torch.cat([torch.randn(1024, 64, generator=draw), opposite])
    weight = weight if last else weight.flip(0)
    labels = torch.tensor([0, 5, 7]) + (0 if last else 600)
    angles = hs.paired_angle(features.double()[:, None], weight.double()[None])
    ordered = angles.sort(1).values
    assert ordered[:, 1024:].min() > math.pi - 1e-3
    assert ordered[:, 0].min() > 0.5  # nothing else makes a row doubtful
    assert ordered[:, 1023].max() < math.pi - 0.5
    expected = angles[torch.arange(3), labels] / angles.sum(1)
    within(compute_scores(features, weight, labels, None)["avh"], expected, SCORES["avh"].tolerance)
    within(hs.avh(features.double(), weight.double(), labels), expected, SCORES["avh"].tolerance)


@pytest.mark.parametrize("size", [1e-42, 1e-44])
def test_denormal_features_have_the_angles_that_their_numbers_say(size):
    draw = torch.Generator().manual_seed(0)
    features = size * torch.randn(12, 64, generator=draw).abs()
    weight = torch.randn(80, 64, generator=draw).abs()  # all cosines of one sign, so that errors add up
    labels = torch.arange(12)
    assert (features.abs().amax(1) > 0).all()
    truth = naive_scores(features, weight, labels)
    found = compute_scores(features, weight, labels, None)
    for name in ("avh", "avc", "angle", "angular_margin", "norm"):
        within(found[name], truth[name], SCORES[name].tolerance)


@pytest.mark.parametrize("classes", [3, 200])
def test_the_series_bound_holds_on_a_collapsed_head(classes):
    """All weights but the target's lie on the feature: the target's angle is the whole sum, and AVH is 1."""
    features = torch.zeros(1, 8)
    features[0, 0] = 1
    weight = features.repeat(classes, 1)
    weight[0, 1] = 1e-6
    labels = torch.tensor([0])
    exact = hs.avh(features.double(), weight.double(), labels)
    assert exact.item() == pytest.approx(1)
    value, error = hs.avh_series(features, weight, labels)
    assert (value - exact).abs() <= error * (1 + 1e-9)
    # Spread out a little, the sum is bounded from below by more than the target's angle.
    torch.manual_seed(0)
    weight = features + 0.05 * torch.randn(classes, 8)
    labels = torch.arange(2)
    features = features.repeat(2, 1)
    exact = hs.avh(features.double(), weight.double(), labels)
    value, error = hs.avh_series(features, weight, labels)
    assert ((value - exact).abs() <= error * (1 + 1e-9)).all()
    assert (error >= 0).all()
