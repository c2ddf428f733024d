"""Columns made of what a model says: within classes and over networks."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from hardsight.people.candidates import temperature_confidence, within_class
from hardsight.probabilities import fit_temperature, uncertainty


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


def test_temperature_is_where_the_likelihood_has_no_slope():
    random = np.random.default_rng(0)
    truth = random.normal(size=(2000, 5))
    labels = np.array([random.choice(5, p=p) for p in special.softmax(truth, axis=1)])
    assert fit_temperature(3 * truth, labels) == pytest.approx(3, rel=0.1)
    found = fit_temperature(3 * truth, labels)
    p = special.softmax(3 * truth / found, axis=1)
    slope = ((p * truth).sum(1) - truth[np.arange(2000), labels]).mean()
    assert abs(slope) < 1e-4
    shifted = special.log_softmax(3 * truth, axis=1)
    np.testing.assert_allclose(
        temperature_confidence(shifted, labels), p[np.arange(2000), labels], rtol=1e-6, atol=1e-9
    )


def test_uncertainty_is_entropy_and_mutual_information():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(6, 30))
    found = uncertainty(p)
    for i in range(30):
        total = stats.entropy(p[:, i].mean(0))
        aleatoric = np.mean([stats.entropy(member) for member in p[:, i]])
        # The mutual information of member and class, from their joint distribution.
        joint = p[:, i] / 6
        information = stats.entropy(joint.ravel(), np.outer(joint.sum(1), joint.sum(0)).ravel())
        assert [getattr(found, k)[i] for k in ("total", "aleatoric", "epistemic")] == pytest.approx(
            [total, aleatoric, information]
        )
    assert uncertainty(p[:1]).epistemic == pytest.approx(np.zeros(30))
