"""Tests of differences against scipy, naive loops, published examples and simulated truths."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from hardsight.comparison import mean_change
from hardsight.evaluation.statistics import compare_groups, flag_of
from hardsight.people import over_nets
from hardsight.stats import (
    auroc,
    auroc_difference,
    fpr_at_95_tpr,
    mcnemar,
    normal_difference,
    paired_difference,
    pooled_difference,
    student,
    welch_difference,
)

# One rule for what does not vary.


def test_a_constant_difference_has_no_test_anywhere():
    constant, zero = np.full(6, 0.25), np.zeros(6)
    base = np.array([0.1, 0.5, 0.3, 0.2, 0.7, 0.6])
    for values, p in ((constant, math.nan), (zero, 1.0)):
        for test in (
            paired_difference(values),
            paired_difference(base + values, base),
            welch_difference(values, zero),
            pooled_difference(values, zero),
            normal_difference(values[0], 0.0),
            student(values[0], 0.0, 5),
        ):
            assert float(test.p) == pytest.approx(p, nan_ok=True)
            assert float(test.low) == pytest.approx(0.0 if p == 1 else math.nan, nan_ok=True)
        change = mean_change(base + values, base)
        nets = over_nets(values.tolist())
        for told in (change, nets._asdict()):
            assert (told["p"], told["low"]) == ((1.0, 0.0) if p == 1 else (None, None))
        assert change["value"] == pytest.approx(values[0], abs=1e-15)


def test_a_difference_over_seeds_that_is_constant_up_to_rounding_has_no_test():
    a = np.array([0.9312, 0.9288, 0.9301])
    assert math.isnan(paired_difference(a + 0.01, a).p)
    assert math.isnan(paired_difference((a + 0.01).astype(np.float32).astype(float), a).p)
    assert float(paired_difference(a + np.array([0.01, 0.0102, 0.0098]), a).p) < 0.01


@pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 7), (1, 4)])
def test_pooled_differences_are_scipys(n, m):
    random = np.random.default_rng(n)
    a, b = random.normal(size=n), random.normal(1, 3, size=m)
    test, witness = pooled_difference(a, b), stats.ttest_ind(a, b, equal_var=True)
    interval = witness.confidence_interval()
    assert (test.p, test.low, test.high) == pytest.approx((witness.pvalue, interval.low, interval.high))


def test_pooled_differences_give_the_p_values_of_the_amc_paper():
    runs = np.array([-2, -1, 0, 1, 2]) / np.sqrt(2.5)  # five runs of mean 0 and deviation 1
    table = {"MNIST": (99.65, 0.01, 99.66, 0.01, 0.1525), "CIFAR10": (82.60, 0.21, 82.97, 0.20, 0.0214),
             "SVHN": (95.29, 0.06, 95.52, 0.05, 0.0002), "CIFAR100": (65.57, 0.20, 66.19, 0.22, 0.0016)}  # fmt: skip
    for euclid, sd, amc, other_sd, p in table.values():
        assert float(pooled_difference(amc + other_sd * runs, euclid + sd * runs).p) == pytest.approx(p, abs=5e-5)


# Rounding.


def test_rounding_is_no_difference_however_consistent():
    random = np.random.default_rng(0)
    angles = random.uniform(-1, 2, 5000)
    noise = 1e-8 * (1 + 0.1 * random.normal(size=5000))  # always of one sign
    test = paired_difference(angles + noise, angles)
    assert stats.ttest_rel(angles + noise, angles).pvalue < 1e-100
    assert float(test.p) == 1.0
    assert test.low <= 0 <= test.high
    assert float(test.value) == pytest.approx(1e-8, rel=0.1)
    # A real effect of a hundred thousandth is still found.
    real = paired_difference(angles + 1e3 * noise, angles)
    assert float(real.p) == pytest.approx(stats.ttest_rel(angles + 1e3 * noise, angles).pvalue, abs=1e-12)
    assert real.low > 0


def test_a_mean_of_zero_with_spread_keeps_its_interval():
    a, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 4.0, 3.0])
    test, expected = paired_difference(a, b), stats.ttest_rel(a, b)
    assert float(test.p) == 1.0
    assert (test.low, test.high) == pytest.approx(expected.confidence_interval())


@pytest.mark.parametrize("seeds", [1, 4])
def test_a_head_scaled_by_ten_wins_nothing(seeds):
    """Angular margins of the same directions, computed in float32 from weights of two lengths."""
    rows, columns = [], {}
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        features = random.normal(size=(2000, 8)).astype(np.float32)
        weight = random.normal(size=(5, 8)).astype(np.float32)
        for group, scale in (("plain", 1.0), ("scaled", 10.0)):
            scaled = weight * np.float32(scale)
            cosines = features @ scaled.T / np.linalg.norm(features, axis=1)[:, None] / np.linalg.norm(scaled, axis=1)
            first, second = np.sort(np.arccos(cosines).astype(np.float64))[:, :2].T
            run = f"{group}-{seed}"
            columns[run] = [([str(i) for i in range(2000)], second - first)]
            number = {"question": "margins", "metric": "margin", "score": "angular", "on": "", "level": math.nan}
            rows.append({**number, "better": "higher", "run": run, "group": group, "seed": seed})
            rows[-1]["value"] = (second - first).mean()
    assert rows[0]["value"] != rows[1]["value"]  # rounding
    [test] = compare_groups(rows, lambda row: columns[row["run"]])
    assert test["p"] == 1.0
    assert test["low"] <= 0 <= test["high"]
    assert flag_of(test) == ""


# McNemar.


def test_the_interval_of_two_shares_rejects_exactly_when_the_exact_test_does():
    tables = [(more, less, n) for n in (15, 40) for more in range(13) for less in range(13) if more + less <= n]
    for more, less, n in tables:
        test = mcnemar(more, less, n)
        p = stats.binomtest(more, more + less).pvalue if more + less else 1.0
        assert float(test.p) == pytest.approx(p)
        assert (p < 0.05) == bool(test.low > 1e-12 or test.high < -1e-12), (more, less, n)
        assert test.low <= test.value <= test.high
        turned = mcnemar(less, more, n)
        assert (turned.low, turned.high) == pytest.approx((-test.high, -test.low), abs=1e-9)


@pytest.mark.parametrize("shares", [(0.2, 0.1), (0.2, 0.0), (0.05, 0.05), (0.9, 0.05)])
@pytest.mark.parametrize("n", [30, 200])
def test_the_interval_of_two_shares_covers_their_difference(shares, n):
    drawn = np.random.default_rng(n).multinomial(n, [*shares, 1 - sum(shares)], 250)
    tests = {(more, less): mcnemar(more, less, n) for more, less, _ in drawn.tolist()}
    truth = shares[0] - shares[1]
    covered = [tests[more, less].low <= truth <= tests[more, less].high for more, less, _ in drawn.tolist()]
    assert np.mean(covered) > 0.93


def test_the_interval_of_two_shares_narrows_to_that_of_many_samples():
    more, less, n = 3000, 2000, 50_000
    test = mcnemar(more, less, n)
    error = math.sqrt((more + less) / n**2 - (more - less) ** 2 / n**3)  # Wald's, which holds for so many
    ends = [test.value + sign * 1.96 * error for sign in (-1, 1)]
    assert (test.low, test.high) == pytest.approx(ends, rel=0.01)


# Areas under ROC curves.


def test_the_paired_difference_of_areas_is_delongs_by_naive_double_loops():
    random = np.random.default_rng(1)
    above, below = np.round(random.normal(0.8, 1, (2, 30)), 1), np.round(random.normal(0, 1, (2, 22)), 1)
    above[1] += above[0]
    below[1] += below[0]
    wins_of = [[[(x > y) + (x == y) / 2 for y in below[k]] for x in above[k]] for k in (0, 1)]
    rows = [[sum(row) / 22 for row in wins] for wins in wins_of]
    columns = [[sum(wins[i][j] for i in range(30)) / 30 for j in range(22)] for wins in wins_of]
    areas = [sum(row) / 30 for row in rows]
    variance = 0.0
    for parts, n in ((rows, 30), (columns, 22)):
        for i, j, sign in ((0, 0, 1), (1, 1, 1), (0, 1, -2)):
            products = [(parts[i][k] - areas[i]) * (parts[j][k] - areas[j]) for k in range(n)]
            variance += sign * sum(products) / (n - 1) / n
    test = auroc_difference((above[0], above[1]), (below[0], below[1]))
    assert float(test.value) == pytest.approx(areas[0] - areas[1], abs=1e-12)
    assert float(test.p) == pytest.approx(2 * stats.norm.sf(abs(areas[0] - areas[1]) / math.sqrt(variance)), rel=1e-9)
    assert float(test.high - test.value) == pytest.approx(1.959963984540054 * math.sqrt(variance), rel=1e-9)


# Albumin, total protein, 10 − Krebs-Goplerud score and benefit from surgery of 43 patients (DeLong et al., 1988).
PATIENTS = """
3.0 5.8 0 0 3.2 6.3 5 1 3.9 6.8 7 1 2.8 4.8 4 0 3.2 5.8 7 1 0.9 4.0 5 0 2.5 5.7 2 0 1.6 5.6 5 1 3.8 5.7 5 1
3.7 6.7 4 1 3.2 5.4 6 1 3.8 6.6 4 1 4.1 6.6 5 1 3.6 5.7 5 1 4.3 7.0 6 1 3.6 6.7 6 0 2.3 4.4 4 1 4.2 7.6 6 0 4.0 6.6 4 0
3.5 5.8 4 1 3.8 6.8 3 1 3.0 4.7 2 0 4.5 7.4 5 1 3.7 7.4 5 1 3.1 6.6 4 1 4.1 8.2 4 1 4.3 7.0 5 1 4.3 6.5 6 1 3.2 5.1 5 1
2.6 4.7 4 1 3.3 6.8 4 0 1.7 4.0 3 0 3.7 6.1 5 1 3.3 6.3 3 1 4.2 7.7 4 1 3.5 6.2 5 1 2.9 5.7 1 0 2.1 4.8 3 1 2.8 6.2 2 0
4.0 7.0 3 1 3.3 5.7 4 1 3.7 6.9 5 1 3.6 6.6 5 1"""


def test_delongs_own_example():
    albumin, protein, score, benefit = np.array(PATIENTS.split(), float).reshape(-1, 4).T

    def halves(values):
        return values[benefit == 1], values[benefit == 0]

    areas = [auroc(*halves(values)).value for values in (score, protein, albumin)]
    assert np.round(areas, 4).tolist() == [0.7258, 0.6478, 0.7366]
    for other, difference, p in ((protein, -0.078, 0.4561), (albumin, 0.0108, 0.9102)):
        above, below = zip(halves(other), halves(score), strict=True)
        test = auroc_difference(above, below)
        assert round(float(test.value), 4) == difference
        assert round(float(test.p), 4) == p


def test_the_paired_test_of_areas_is_at_its_level():
    random, rejected = np.random.default_rng(2), 0
    for _ in range(600):
        above, below = random.normal(1, 1, 60), random.normal(0, 1, 50)
        noise = [random.normal(0, 0.5, (2, n)) for n in (60, 50)]
        rejected += auroc_difference((above + noise[0][0], above + noise[0][1]),
                                     (below + noise[1][0], below + noise[1][1])).p < 0.05  # fmt: skip
    assert 12 <= rejected <= 48


# The false-positive rate at 95 % TPR.

SHAPES = {
    "normal": (lambda r, n: r.normal(1, 1, n), lambda r, n: r.normal(0, 1, n)),
    "far": (lambda r, n: r.normal(4, 1, n), lambda r, n: r.normal(0, 1, n)),
    "wide": (lambda r, n: r.normal(2, 2, n), lambda r, n: r.normal(0, 1, n)),
    "heavy": (lambda r, n: r.laplace(2, 1, n), lambda r, n: r.laplace(0, 1, n)),
    "tied": (lambda r, n: np.round(4 * r.normal(1.5, 1, n)), lambda r, n: np.round(4 * r.normal(0, 1, n))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_interval_of_the_false_positive_rate_covers_the_truth(shape):
    inside, outside = SHAPES[shape]
    random = np.random.default_rng(5)
    threshold = np.sort(inside(random, 10**6))[50_000]
    truth = float((outside(random, 10**6) >= threshold).mean())
    for n, m in itertools.product((50, 400), (50, 1000)):
        ends = [fpr_at_95_tpr(inside(random, n), outside(random, m))[1:] for _ in range(120)]
        assert np.mean([low <= truth <= high for low, high in ends]) >= 0.9, (n, m)
    # And it is no wider than it must be: about that of many resamples of both sets.
    a, b = inside(random, 2000), outside(random, 2000)
    drawn = [fpr_at_95_tpr(random.choice(a, 2000), random.choice(b, 2000))[0] for _ in range(150)]
    low, high = fpr_at_95_tpr(a, b)[1:]
    spread = np.quantile(drawn, 0.975) - np.quantile(drawn, 0.025)
    assert high - low <= 1.4 * spread + 4 / 2000
