"""Columns made of what a model says: within classes, over networks and views, in neighbourhoods."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import special, stats

from hardsight.alignment.derived import (
    fitted_temperature,
    mean_rank,
    over_views,
    soft_margin,
    temperature_confidence,
    uncertainty,
    within_class,
)
from hardsight.alignment.neighbours import neighbour_agreement, neighbours


def test_within_class_removes_what_is_added_to_a_class():
    random = np.random.default_rng(0)
    values, labels = random.normal(size=60), np.arange(60) % 3
    moved = 5 * values + 100 * labels
    np.testing.assert_array_equal(within_class(values, labels), within_class(moved, labels))
    for label in range(3):
        ranks = (stats.rankdata(moved[labels == label]) - 0.5) / 20
        np.testing.assert_allclose(within_class(moved, labels)[labels == label], ranks)


def test_within_class_keeps_gaps_and_constant_classes():
    values = np.array([1.0, np.nan, 3.0, 7.0, 7.0])
    labels = np.array([0, 0, 0, 1, 1])
    np.testing.assert_array_equal(within_class(values, labels), [0.25, np.nan, 0.75, 0.5, 0.5])
    with pytest.raises(ValueError, match="one class a sample"):
        within_class(values, labels[:3])


def test_soft_margin_undoes_nll_where_confidence_is_saturated():
    truth = np.array([-600.0, -40.0, -1.0, 0.0, 1.0, 50.0, 1000.0])
    np.testing.assert_allclose(soft_margin(np.logaddexp(0, truth)), truth, rtol=1e-12, atol=1e-12)
    assert np.isfinite(soft_margin([0.0])).all()


def test_mean_rank_takes_directions():
    columns = {"avh": [0.1, 0.2, 0.9], "confidence": [0.5, 0.9, 0.1]}
    expected = (np.array([1, 2, 3]) + np.array([2, 1, 3])) / 2
    np.testing.assert_allclose(mean_rank(columns, {"avh": -1, "confidence": 1}), (expected - 0.5) / 3)
    with pytest.raises(ValueError, match="one or more, each with a direction; got"):
        mean_rank({}, {})
    with pytest.raises(ValueError, match="each with a direction"):
        mean_rank(columns, {"avh": -1})
    with pytest.raises(ValueError, match="of one length, got 1 and 2"):
        mean_rank({"avh": [0.1, 0.2], "angle": [1.0]}, {"avh": -1, "angle": -1})


def test_temperature_is_where_the_likelihood_has_no_slope():
    random = np.random.default_rng(0)
    truth = random.normal(size=(2000, 5))
    labels = np.array([random.choice(5, p=p) for p in special.softmax(truth, axis=1)])
    assert fitted_temperature(3 * truth, labels) == pytest.approx(3, rel=0.1)
    found = fitted_temperature(3 * truth, labels)
    p = special.softmax(3 * truth / found, axis=1)
    slope = ((p * truth).sum(1) - truth[np.arange(2000), labels]).mean()
    assert abs(slope) < 1e-4
    shifted = special.log_softmax(3 * truth, axis=1)
    np.testing.assert_allclose(
        temperature_confidence(shifted, labels), p[np.arange(2000), labels], rtol=1e-6, atol=1e-9
    )


def test_temperature_of_perfect_predictions_stays_finite():
    assert 0.01 <= fitted_temperature(np.eye(3) * 5, [0, 1, 2]) < 0.2
    for logits, labels, words in (
        ([[np.nan, 1.0]], [0], "finite numbers"),
        ([[0.0, 1.0]], [2], "below 2"),
        ([[0.0, 1.0]], [0, 1], "one class a sample"),
    ):
        with pytest.raises(ValueError, match=words):
            fitted_temperature(logits, labels)


def test_uncertainty_is_entropy_and_mutual_information():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(6, 30))
    found = uncertainty(p)
    for i in range(30):
        total = stats.entropy(p[:, i].mean(0))
        aleatoric = np.mean([stats.entropy(member) for member in p[:, i]])
        # The mutual information of member and class, from their joint distribution.
        joint = p[:, i] / 6
        information = stats.entropy(joint.ravel(), np.outer(joint.sum(1), joint.sum(0)).ravel())
        assert [found[k][i] for k in ("total", "aleatoric", "epistemic")] == pytest.approx(
            [total, aleatoric, information]
        )
    assert uncertainty(p[:1])["epistemic"] == pytest.approx(np.zeros(30))
    with pytest.raises(ValueError, match="members, samples, classes"):
        uncertainty(p[0])
    with pytest.raises(ValueError, match="apply a softmax"):
        uncertainty(3 * p)


@pytest.mark.parametrize("own", [True, False])
def test_neighbour_agreement_is_that_of_a_loop(own):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(50, 6)), random.integers(0, 3, 50)
    among, theirs = (x, y) if own else (random.normal(size=(70, 6)), random.integers(0, 3, 70))
    unit = lambda v: v / np.linalg.norm(v, axis=1, keepdims=True)  # noqa: E731
    cosines = unit(x) @ unit(among).T
    if own:
        np.fill_diagonal(cosines, -np.inf)
    for k, softness in itertools.product((1, 7), (None, 0.07)):
        expected = []
        for row, label in zip(cosines, y, strict=True):
            nearest = np.argsort(-row)[:k]
            weights = np.ones(k) if softness is None else np.exp(row[nearest] / softness)
            expected.append((weights * (theirs[nearest] == label)).sum() / weights.sum())
        given = () if own else (among, theirs)
        np.testing.assert_allclose(neighbour_agreement(x, y, *given, k=k, softness=softness), expected, atol=1e-5)


def test_neighbours_leave_out_the_sample_itself_in_every_block(monkeypatch):
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    whole = neighbours(x, k=3)[1]
    assert not (whole == torch.arange(100)[:, None]).any()
    monkeypatch.setattr("hardsight.alignment.neighbours.BLOCK", 700)
    assert torch.equal(neighbours(x, k=3)[1], whole)


def test_neighbours_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match=r"between 1 and the number of other samples \(2\), got 3"):
        neighbours(torch.eye(3), k=3)
    with pytest.raises(ValueError, match="go together"):
        neighbour_agreement(np.eye(3), [0, 1, 2], np.eye(3))
    with pytest.raises(ValueError, match=r"features must be \(N, D\)"):
        neighbour_agreement(np.eye(3), [0, 1])


def test_views_are_averaged():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    images, labels = torch.rand(20, 3, 2, 2), torch.arange(20) % 3
    views = [lambda x: x, lambda x: x.flip(3)]
    found = over_views(network.eval(), images, labels, views, ("avh", "nll"), batch=7)
    assert set(found) == {"avh_views", "nll_views"}
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(network(v(images)), labels, reduction="none") for v in views]
    np.testing.assert_allclose(found["nll_views"], torch.stack(losses).mean(0).numpy(), rtol=1e-5)
    with pytest.raises(ValueError, match="one function or more"):
        over_views(network, images, labels, [])
