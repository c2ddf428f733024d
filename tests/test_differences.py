"""Tests of two agreements: resampling against scipy, closed forms against published examples, levels by simulation."""

import numpy as np
import pytest
from scipy import special, stats

from hardsight.correlation import COEFFICIENTS, fisher_z, meng, p_value, resampled, standard_error, steiger
from hardsight.people import compare_all, compare_scores, over_nets
from hardsight.stats import holm

SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}


@pytest.fixture(scope="module")
def people():
    """Columns in which AVH follows people closely, confidence loosely and saturated, and the norm not at all."""
    draw = np.random.default_rng(0)
    n = 300
    ease = draw.normal(size=n)
    columns = {
        "id": [f"test:{k}" for k in range(n)],
        "label": np.zeros(n, int),
        "avh": -ease + draw.normal(size=n),
        "confidence": 1 / (1 + np.exp(-3 - 2 * ease + 5 * draw.normal(size=n))),
        "norm": draw.normal(size=n),
    }
    hsf = np.minimum(np.round(50 * np.clip(1 + 0.3 * ease, 0, 1)) / 50, 1)
    return columns, dict(zip(columns["id"], hsf.tolist(), strict=True))


@pytest.mark.parametrize("levels", [6, 10**6])
def test_a_resample_is_the_coefficient_of_the_samples_drawn(levels):
    draw = np.random.default_rng(1)
    y = np.round(draw.random(80) * levels) / levels
    columns = np.stack([np.round(y + draw.normal(size=80), 1), draw.normal(size=80) - y])
    found = resampled(columns, y, tuple(COEFFICIENTS), resamples=6, seed=3)
    for k in range(6):
        rows = np.random.default_rng([3, k]).integers(0, 80, 80)
        for s, column in enumerate(columns):
            wanted = [SCIPY[name](column[rows], y[rows]).statistic for name in COEFFICIENTS]
            np.testing.assert_allclose(found[k, s], wanted, atol=1e-12)


def test_the_same_seed_gives_the_same_resamples_on_any_number_of_threads(monkeypatch):
    columns, y = np.random.default_rng(2).normal(size=(2, 50)), np.arange(50.0) % 7
    found = resampled(columns, y, resamples=20, seed=5)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    np.testing.assert_array_equal(resampled(columns, y, resamples=20, seed=5), found)
    assert (resampled(columns, y, resamples=20, seed=6) != found).any()


def test_coefficients_come_in_the_order_asked_and_constants_are_nan():
    columns, y = np.stack([np.arange(30.0), np.ones(30)]), np.random.default_rng(3).random(30)
    found = resampled(columns, y, ("kendall", "pearson"), resamples=4)
    assert np.isnan(found[:, 1]).all()
    assert np.isfinite(found[:, 0]).all()
    np.testing.assert_array_equal(resampled(columns, y, ("pearson",), resamples=4)[:, 0, 0], found[:, 0, 1])
    once = np.full(30, 0.1)
    once[3] = 0.7
    found = resampled(columns[:1], once, resamples=40)[:, 0]
    missed = [3 not in np.random.default_rng([0, k]).integers(0, 30, 30) for k in range(40)]
    np.testing.assert_array_equal(np.isnan(found), np.stack([missed] * 3, 1))


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_the_spread_of_resamples_is_the_jackknife_s_standard_error(coefficient):
    draw = np.random.default_rng(4)
    y = np.minimum(np.round(10 * draw.random(400)), 7)
    columns = y + draw.normal(size=(2, 400)) * 3
    many = resampled(columns, y, (coefficient,), resamples=400)[:, :, 0]
    first, second = (COEFFICIENTS[coefficient](column, y).influence for column in columns)
    assert (many[:, 0] - many[:, 1]).std() == pytest.approx(standard_error(first - second), rel=0.12)


@pytest.mark.parametrize(
    ("found", "published", "digits"),
    [
        # Guilford and Fruchter (1978), p. 164, print 2.18 from rounded z; Glass and Stanley (1970) give the formula.
        (lambda: fisher_z(0.92, 0.82, 60, 50), 2.19, 2),
        # Meng, Rosenthal and Rubin (1992): their example, one-sided p = .047.
        (lambda: meng(0.63, -0.03, -0.19, 15), 1.68, 2),
        (lambda: p_value(meng(0.63, -0.03, -0.19, 15), sided=1), 0.047, 3),
        # Silver, Hittner and May (2006), DEPCOR.
        (lambda: meng(0.3, 0.4, 0.5, 100), -1.0707, 4),
        (lambda: p_value(meng(0.3, 0.4, 0.5, 100)), 0.2843, 4),
        (lambda: steiger(0.3, 0.4, 0.5, 100), -1.0718, 4),
        (lambda: p_value(steiger(0.3, 0.4, 0.5, 100)), 0.2838, 4),
        # Steiger (1980), p. 249, Case A: −.8913 there, from a covariance rounded to .0042.
        (lambda: steiger(0.4, 0.5, 0.1, 103), -0.889, 3),
    ],
)
def test_closed_forms_give_published_examples(found, published, digits):
    assert round(found(), digits) == published


def test_closed_forms_are_at_their_level_for_normal_data():
    draw = np.random.default_rng(5)
    rejected = {"steiger": 0, "meng": 0, "fisher": 0}
    for _ in range(2000):
        ease, own = draw.normal(size=60), draw.normal(size=(3, 60))
        r = np.corrcoef([ease + own[0], ease + own[1], ease + own[2]])
        for name, z in (
            ("steiger", steiger(r[0, 1], r[0, 2], r[1, 2], 60)),
            ("meng", meng(r[0, 1], r[0, 2], r[1, 2], 60)),
            ("fisher", fisher_z(r[0, 1], r[0, 2], 60, 60)),
        ):
            rejected[name] += p_value(z) < 0.05
    assert 70 <= rejected["steiger"] <= 130
    assert 70 <= rejected["meng"] <= 130
    assert rejected["fisher"] < 80  # it does not know that the two rise and fall together


def test_closed_forms_agree_in_large_samples_and_change_sign_with_their_order():
    assert steiger(0.36, 0.34, 0.8, 30_000) == pytest.approx(meng(0.36, 0.34, 0.8, 30_000), rel=1e-3)
    for test in (steiger, meng):
        assert test(0.2, 0.5, 0.3, 50) == pytest.approx(-test(0.5, 0.2, 0.3, 50))
        assert test(0.4, 0.4, 1.0, 50) == 0
        assert test(0.4, 0.3, 1.0, 50) > 1e6
    for test, numbers, words in (
        (fisher_z, (1.0, 0.5, 10, 10), "r1 must"),
        (steiger, (0.3, float("nan"), 0.1, 10), "r13 must"),
        (meng, (0.3, 0.2, 0.1, 3), "^n .*4"),
    ):
        with pytest.raises(ValueError, match=words):
            test(*numbers)


@pytest.mark.parametrize("test", ["bootstrap", "jackknife", "steiger", "meng", "fisher"])
def test_every_test_finds_a_large_difference_and_says_so(people, test):
    found = compare_scores(people[0], "avh", "confidence", people[1], coefficient="pearson", test=test, resamples=300)
    x, y = people[0]["avh"], list(people[1].values())
    wanted = -stats.pearsonr(x, y).statistic - stats.pearsonr(people[0]["confidence"], y).statistic
    assert found.difference == pytest.approx(wanted)
    assert found.n == 300
    assert found.p < 0.05
    assert found.statistic > 1.9
    assert found.sentence.startswith("avh agrees with people better than confidence does: +")
    assert (found.low is None) == (test in ("steiger", "meng", "fisher"))
    assert found.low is None or found.low < found.difference < found.high


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_bootstrap_and_jackknife_agree(people, coefficient):
    one, other = (
        compare_scores(*_both(people), coefficient=coefficient, test=test, resamples=600)
        for test in ("bootstrap", "jackknife")
    )
    assert one.difference == other.difference
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.25 * (other.high - other.low))


def _both(people):
    return people[0], "avh", "norm", people[1]


def test_turning_the_two_around_turns_the_difference_around(people):
    columns, hsf = people
    one = compare_scores(columns, "avh", "confidence", hsf, resamples=300)
    other = compare_scores(columns, "confidence", "avh", hsf, resamples=300)
    assert (other.difference, other.low, other.high) == pytest.approx((-one.difference, -one.high, -one.low))
    assert other.p == one.p
    assert other.sentence.startswith("avh agrees with people better than confidence does: −")


def test_one_sided_asks_whether_the_first_is_better(people):
    columns, hsf = people
    better = compare_scores(columns, "avh", "confidence", hsf, test="jackknife", sided=1)
    worse = compare_scores(columns, "confidence", "avh", hsf, test="jackknife", sided=1)
    assert better.p + worse.p == pytest.approx(1)
    assert better.p < 0.05
    assert "no difference" in worse.sentence
    assert "one-sided" in worse.sentence
    assert compare_scores(columns, "confidence", "avh", hsf, sided=1, resamples=200).p > 0.9


@pytest.mark.parametrize("test", ["bootstrap", "jackknife"])
def test_scores_that_order_alike_do_not_differ(people, test):
    columns = {**people[0], "nll": -np.log(people[0]["confidence"])}
    found = compare_scores(columns, "confidence", "nll", people[1], test=test, resamples=200)
    assert (found.difference, found.statistic) == (pytest.approx(0, abs=1e-12), 0)
    assert found.p == 1


@pytest.mark.parametrize("test", ["steiger", "meng", "fisher", "jackknife"])
def test_a_score_and_its_multiple_do_not_differ(people, test):
    for factor in (0.3, 0.7, 1.9):
        columns = {**people[0], "angle": people[0]["avh"] * factor + 0.1}
        found = compare_scores(columns, "avh", "angle", people[1], coefficient="pearson", test=test)
        assert (found.p, found.statistic) == (pytest.approx(1), pytest.approx(0, abs=1e-9))


def test_the_jackknife_is_at_its_level_with_saturated_scores_and_ties_and_meng_is_not():
    rejected = {"jackknife": 0, "meng": 0}
    for seed in range(300):
        draw = np.random.default_rng(seed)
        ease, own = draw.normal(size=500), draw.normal(size=(2, 500))
        y = draw.binomial(51, 1 / (1 + np.exp(-4.15 - 1.9 * ease))) / 51
        x = 1 / (1 + np.exp(-7 - 4 * (0.5 * ease + 0.8 * own)))
        first, second, between = (COEFFICIENTS["pearson"](a, b) for a, b in ((x[0], y), (x[1], y), x))
        error = standard_error(first.influence - second.influence)
        rejected["jackknife"] += p_value((first.value - second.value) / error) < 0.05
        rejected["meng"] += p_value(meng(first.value, second.value, between.value, 500)) < 0.05
    assert rejected["jackknife"] < 30
    assert rejected["meng"] > 45


@pytest.mark.parametrize("coefficient", COEFFICIENTS)
def test_the_jackknife_is_that_of_leaving_out_one_sample_at_a_time(coefficient):
    draw, n = np.random.default_rng(8), 150
    ease, shared = draw.normal(size=(2, n))
    columns = {
        "id": [str(k) for k in range(n)],
        "avh": -(ease + shared + 0.3 * draw.normal(size=n)),
        "confidence": ease + shared + 0.8 * draw.normal(size=n),
    }
    hsf = np.round(10 * special.expit(1 + ease)) / 10

    def agreements(kept):
        return [sign * SCIPY[coefficient](columns[name][kept], hsf[kept]).statistic
                for name, sign in (("avh", -1), ("confidence", 1))]  # fmt: skip

    whole = np.array([agreements(np.arange(n) != i) for i in range(n)])
    first, second, error = (
        np.sqrt((n - 1) / n * ((x - x.mean()) ** 2).sum()) for x in (*whole.T, whole[:, 0] - whole[:, 1])
    )
    assert np.hypot(first, second) > 1.4 * error  # the two rise and fall together
    test = compare_scores(columns, "avh", "confidence", dict(zip(columns["id"], hsf, strict=True)),
                          coefficient=coefficient, test="jackknife")  # fmt: skip
    assert (test.high - test.difference) / stats.norm.ppf(0.975) == pytest.approx(error, rel=0.08)
    assert test.difference - test.low == pytest.approx(test.high - test.difference)
    assert test.statistic == pytest.approx(test.difference / error, rel=0.08)
    assert test.p == pytest.approx(2 * stats.norm.sf(abs(test.statistic)))
    drawn = compare_scores(columns, "avh", "confidence", hsf, coefficient=coefficient, resamples=800)
    assert (drawn.high - drawn.low) / 2 / stats.norm.ppf(0.975) == pytest.approx(error, rel=0.15)  # paired, too


def test_only_samples_with_both_scores_and_answers_count(people):
    columns, hsf = {**people[0], "avh": people[0]["avh"].copy()}, dict(list(people[1].items())[:200])
    columns["avh"][:50] = np.nan
    assert compare_scores(columns, "avh", "confidence", hsf, test="jackknife").n == 150


def test_every_score_is_tested_against_one_with_holm_s_correction(people):
    columns = {**people[0], "margin": np.ones(300), "entropy": np.random.default_rng(6).normal(size=300)}
    rows = compare_all(columns, "avh", people[1], resamples=300).to_pylist()
    assert [row["second"] for row in rows] == ["confidence", "norm", "entropy"]  # margin is constant
    alone = compare_scores(columns, "avh", "confidence", people[1], resamples=300)
    assert rows[0]["difference"] == alone.difference
    assert rows[0]["p"] == alone.p
    np.testing.assert_array_equal([row["p_holm"] for row in rows], holm(np.array([row["p"] for row in rows])))


def test_over_nets_is_student_s_test_of_the_nets():
    values = [0.01, 0.05, 0.02, 0.04]
    found, wanted = over_nets(values), stats.ttest_1samp(values, 0)
    assert found.p == pytest.approx(wanted.pvalue)
    assert (found.low, found.high) == pytest.approx(wanted.confidence_interval(0.95))
    assert (found.nets, found.architectures) == (4, 4)
    assert "above 0 in 4 of 4" in found.sentence


def test_seeds_are_averaged_before_architectures_are_compared_and_of_one_speak_for_it_alone():
    found = over_nets([0.1, 0.3, 0.5, 0.2, 0.6], ["a", "a", "a", "b", "c"])
    wanted = stats.ttest_1samp([0.3, 0.2, 0.6], 0)
    assert (found.p, found.nets, found.architectures) == (pytest.approx(wanted.pvalue), 5, 3)
    assert "3 architectures (5 networks)" in found.sentence
    found = over_nets([0.1, 0.2, 0.3], ["a", "a", "a"])
    assert found.architectures == 1
    assert found.p is not None
    assert "3 seeds of one architecture" in found.sentence
    assert over_nets([0.1]).p is None
    assert "nothing about others" in over_nets([0.1]).sentence


@pytest.mark.parametrize(("values", "names"), [([], None), ([0.1, np.nan], None), ([0.1, 0.2], ["a"])])
def test_over_nets_wants_one_finite_number_a_net(values, names):
    with pytest.raises(ValueError, match=r"values .*finite"):
        over_nets(values, names)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficient": "tau"}, "coefficient .*'tau'"),
        ({"test": "t"}, "test .*'t'"),
        ({"test": "meng"}, "meng .*spearman"),
        ({"resamples": 10}, "resamples .*100"),
        ({"sided": 3}, "sided .*got 3"),
    ],
)
def test_what_cannot_be_tested_is_said(people, options, message):
    with pytest.raises(ValueError, match=message):
        compare_scores(people[0], "avh", "confidence", people[1], **options)


def test_constant_unknown_and_missing_scores_are_sentences(people):
    columns, hsf = {**people[0], "el2n": np.full(300, 0.5), "mine": np.arange(300.0)}, people[1]
    with pytest.raises(ValueError, match=r"el2n .*0\.5 for all 300"):
        compare_scores(columns, "avh", "el2n", hsf)
    with pytest.raises(ValueError, match=r"directions .*'mine'"):
        compare_scores(columns, "avh", "mine", hsf)
    with pytest.raises(ValueError, match=r"scores .*got 'margin'"):
        compare_scores(columns, "avh", "margin", hsf)
    with pytest.raises(ValueError, match=r"4 samples .*got 3"):
        compare_scores(columns, "avh", "norm", dict(list(hsf.items())[:3]))
    alone = {"id": columns["id"], "avh": columns["avh"], "norm": np.ones(300)}
    with pytest.raises(ValueError, match=r"scores .*avh, .*none"):
        compare_all(alone, "avh", hsf)
