"""Correlations against scipy, influences against what they mean, intervals against simulation."""

import numpy as np
import pytest
from scipy import stats

from hardsight.correlation import COEFFICIENTS, below_pairs, kendall, pearson, standard_error

SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}


def tied(seed, n, levels=8):
    """Two correlated arrays with many ties, some of them in both."""
    draw = np.random.default_rng(seed)
    x = draw.integers(0, levels, n).astype(float)
    return x, np.minimum(np.round(x / 2 + draw.normal(size=n)), 3)


@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize(("n", "levels"), [(4, 3), (25, 2), (60, 8), (60, 1000), (501, 30)])
def test_a_coefficient_is_scipy_s(name, n, levels):
    for seed in range(10):
        x, y = tied(seed, n, levels)
        if np.ptp(x) and np.ptp(y):
            assert COEFFICIENTS[name](x, y).value == pytest.approx(SCIPY[name](x, y).statistic, abs=1e-12)


def test_kendall_of_continuous_values_is_scipy_s():
    x, noise = np.random.default_rng(0).normal(size=(2, 3000))
    assert kendall(x, x + noise).value == pytest.approx(stats.kendalltau(x, x + noise).statistic, abs=1e-12)


def weighted(name, x, y, w):
    """A coefficient of samples that count by weight, by the definition."""
    w = w / w.sum()
    if name == "kendall":
        both = w[:, None] * w
        apart_x, apart_y = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
        return (both * apart_x * apart_y).sum() / np.sqrt((both * apart_x**2).sum() * (both * apart_y**2).sum())
    if name == "spearman":
        x, y = (((v[:, None] > v) + (v[:, None] == v) / 2) @ w for v in (x, y))
    x, y = x - w @ x, y - w @ y
    return (w * x * y).sum() / np.sqrt((w * x * x).sum() * (w * y * y).sum())


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_an_influence_is_what_a_little_more_of_a_sample_changes(name):
    x, y = tied(1, 40)
    found, step = COEFFICIENTS[name](x, y), 1e-6
    assert weighted(name, x, y, np.ones(40)) == pytest.approx(found.value, abs=1e-12)
    for i in range(40):
        ends = []
        for sign in (1, -1):
            w = np.full(40, (1 - sign * step) / 40)
            w[i] += sign * step
            ends.append(weighted(name, x, y, w))
        assert found.influence[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)
    assert found.influence.sum() == pytest.approx(0, abs=1e-9)


def test_kendall_s_standard_error_is_that_of_leaving_one_out():
    x, y = tied(2, 300)
    left = np.array([stats.kendalltau(np.delete(x, i), np.delete(y, i)).statistic for i in range(300)])
    jackknife = np.sqrt(299 / 300 * ((left - left.mean()) ** 2).sum())
    assert standard_error(kendall(x, y).influence) == pytest.approx(jackknife, rel=0.02)


def test_kendall_does_not_care_about_order_swapping_or_scale():
    x, y = tied(3, 200)
    order = np.random.default_rng(0).permutation(200)
    found = kendall(x, y)
    shuffled = kendall(x[order], y[order])
    assert shuffled.value == pytest.approx(found.value, abs=1e-15)
    np.testing.assert_allclose(shuffled.influence, found.influence[order], atol=1e-12)
    np.testing.assert_allclose(kendall(y, x).influence, found.influence, atol=1e-12)
    np.testing.assert_allclose(kendall(-(x**3), y).influence, -found.influence, atol=1e-12)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_a_constant_has_no_correlation_and_a_perfect_one_no_interval(name):
    x = np.arange(12.0)
    for found in (COEFFICIENTS[name](x, np.full(12, 0.1)), COEFFICIENTS[name](np.ones(12), x)):
        assert np.isnan([found.value, found.low, found.high]).all()
        assert np.isnan(found.influence).all()
    for scale in (2, 1e-200, 1e200):
        assert COEFFICIENTS[name](x, -scale * x)[:3] == pytest.approx((-1, -1, -1))
    equal = [np.random.default_rng(seed).normal(size=9) for seed in range(50)]
    assert max(COEFFICIENTS[name](one, one).value for one in equal) == 1  # no more, whatever is rounded


def test_below_pairs_are_all_pairs_that_lie_below_in_both():
    draw = np.random.default_rng(4)
    for size, levels in ((1, 1), (30, 4), (33, 33)):
        x, y = draw.integers(0, levels, (2, size))
        found = [
            (int(lower[k]), int(own))
            for lower, upper, upto, start in below_pairs(x, y)
            for own, first, last in zip(upper, start, upto, strict=True)
            for k in range(first, last)
        ]
        wanted = {(j, i) for i in range(size) for j in range(size) if x[j] < x[i] and y[j] < y[i]}
        assert len(found) == len(set(found))
        assert set(found) == wanted


def test_kendall_s_interval_holds_the_truth_with_saturated_scores_and_ties():
    def drawn(seed, n):
        ease = np.random.default_rng(seed).normal(size=(2, n))
        people = np.minimum(np.round(50 * np.clip(1 + 0.3 * (0.6 * ease[0] + 0.8 * ease[1]), 0, 1)) / 50, 1)
        return 1 / (1 + np.exp(-3 - 3 * ease[0])), people

    truth = kendall(*drawn(10**6, 100_000)).value
    found = [kendall(*drawn(seed, 200)) for seed in range(400)]
    held = np.mean([one.low <= truth <= one.high for one in found])
    assert 0.92 <= held <= 0.975


@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize("n", [10, 30])
def test_intervals_cover_the_truth_from_the_smallest_number_of_samples_on(name, n):
    for strength in (0.0, 0.4, 0.8):
        # Of normal variables: Pearson's correlation itself, and what it makes of the two others.
        truth = {
            "pearson": strength,
            "spearman": 6 / np.pi * np.arcsin(strength / 2),
            "kendall": 2 / np.pi * np.arcsin(strength),
        }[name]
        draw, held = np.random.default_rng(n), 0
        for _ in range(400):
            x, noise = draw.normal(size=(2, n))
            found = COEFFICIENTS[name](x, strength * x + np.sqrt(1 - strength**2) * noise)
            held += found.low <= truth <= found.high
        assert held >= 0.925 * 400


def test_a_correlation_of_three_samples_has_no_interval():
    found = COEFFICIENTS["pearson"](np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0]))
    assert np.isnan([found.low, found.high]).all()


def test_pearsons_interval_covers_with_heavy_tails_and_with_saturated_scores():
    draw, held = np.random.default_rng(7), {"heavy": 0, "saturated": 0}
    for _ in range(800):
        x, noise = draw.standard_t(4, size=(2, 10))
        found = pearson(x, 0.8 * x + 0.6 * noise)
        held["heavy"] += found.low <= 0.8 <= found.high
        ease, people = draw.normal(size=(2, 20))
        people = np.minimum(np.round(50 * np.clip(1.02 + 0.3 * people, 0, 1)) / 50, 1)  # half of them tie at 1
        found = pearson(1 / (1 + np.exp(-3 - 2 * ease)), people)
        held["saturated"] += found.low <= 0 <= found.high
    assert held["heavy"] >= 0.915 * 800
    assert held["saturated"] >= 0.945 * 800
