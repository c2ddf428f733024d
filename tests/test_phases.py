"""What recorded runs say: what lowers the loss, plateaus, bounces, agreement with people, and norms."""

import itertools
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from recorded_runs import Matrices
from scipy import stats

from hardsight import phases, studies
from hardsight.correlation import pearson, spearman, standard_error, tie_share
from hardsight.phases import drivers, noise
from hardsight.phases.plateaus import plateau, settles, whole_change
from hardsight.studies import dip_and_bounce, phase_switch
from hardsight.studies.declared.avh_measures import standardized_gap


def naive_loss(cosines, norms, lengths, bias, label):
    logits = [norms * length * cosine + b for cosine, length, b in zip(cosines, lengths, bias, strict=True)]
    top = max(logits)
    return top + math.log(math.fsum(math.exp(z - top) for z in logits)) - logits[label]


def test_loss_drivers_equal_a_recomputation_from_saved_features(digits_run):
    run, kept = digits_run
    rows = phases.loss_drivers(run).to_pylist()
    where = np.array([int(key.split(":")[1]) for key in run.ids])
    parts = []
    for features, weight, bias in kept:
        norms, lengths = np.linalg.norm(features, axis=1), np.linalg.norm(weight, axis=1)
        parts.append((features @ weight.T / norms[:, None] / lengths, norms, lengths, bias))
    for k, row in ((1, rows[0]), (7, rows[6]), (11, rows[10])):
        old, new = parts[k - 1], parts[k]
        losses = [
            [
                naive_loss(angles[0][i], sizes[1][i], sizes[2], sizes[3], y)
                for angles, sizes in itertools.product((old, new), (old, new))
            ]
            for i, y in zip(where, run.labels, strict=True)
        ]
        both_old, new_norms, new_angles, both_new = np.array(losses).T
        by_angles = ((new_angles - both_old) + (both_new - new_norms)) / 2
        by_norms = ((new_norms - both_old) + (both_new - new_angles)) / 2
        assert row["epoch"] == k + 1
        assert row["by_angles"] == pytest.approx(by_angles.mean(), abs=2e-5)
        assert row["by_norms"] == pytest.approx(by_norms.mean(), abs=2e-5)
        assert row["change"] == pytest.approx((both_new - both_old).mean(), abs=2e-5)
        interval = stats.ttest_rel(by_norms, by_angles).confidence_interval(0.95)
        assert (row["lead_low"], row["lead_high"]) == pytest.approx(tuple(interval), abs=5e-5)
        driver = "angles" if interval.low > 0 else "norms" if interval.high < 0 else "unclear"
        assert row["driver"] == driver


def test_the_two_parts_add_up_to_the_change_and_swap_with_the_players():
    draw = np.random.default_rng(0)
    old, new, angles, norms = draw.exponential(size=(4, 200))
    parts = drivers.split_change(old, new, angles, norms)
    np.testing.assert_allclose(parts.by_angles + parts.by_norms, parts.change, atol=1e-12)
    swapped = drivers.split_change(old, new, norms, angles)
    np.testing.assert_allclose(parts.by_angles, swapped.by_norms, atol=1e-12)
    nothing = drivers.split_change(old, new, new, old)  # the norms stay: all is the angles'
    np.testing.assert_allclose(nothing.by_norms, 0, atol=1e-12)


def test_a_sample_that_misses_an_epoch_is_compared_with_the_one_in_which_it_was_seen():
    nan = np.nan
    run = Matrices(
        {
            "nll": [[3.0, 2.0, 1.0], [3.0, nan, 0.5]],
            "nll_angles": [[nan, 2.5, 1.5], [nan, nan, 1.0]],
            "nll_norms": [[nan, 2.5, 1.5], [nan, nan, 2.5]],
        }
    )
    rows = phases.loss_drivers(run).to_pylist()
    assert [(row["epoch"], row["n"]) for row in rows] == [(2, 1), (3, 2)]
    assert rows[1]["change"] == pytest.approx((-1.0 - 2.5) / 2)
    assert rows[1]["by_angles"] == pytest.approx((-0.5 - 2.0) / 2)
    assert rows[1]["lead_low"] is None  # two samples have no interval
    assert rows[1]["driver"] == "unclear"


def test_groups_of_drivers_are_the_drivers_of_the_groups(digits_run):
    run, _ = digits_run
    grouped = phases.loss_drivers(run, by="label").to_pylist()
    assert [row["group"] for row in grouped] == sorted(row["group"] for row in grouped)
    chosen = run.labels == 4
    alone = Matrices({name: run.matrix(name)[chosen] for name in ("nll", "nll_angles", "nll_norms")})
    expected = phases.loss_drivers(alone).drop_columns(["group"]).to_pylist()
    for found, wanted in zip([row for row in grouped if row.pop("group") == 4], expected, strict=True):
        assert found.pop("driver") == wanted.pop("driver")
        assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("values", "words"), [(np.full((3, 2), np.nan), "nll_angles and nll_norms"), (np.ones((9, 1)), "two epochs")]
)
def test_a_run_without_the_two_losses_or_with_one_epoch_is_refused_in_words(values, words):
    with pytest.raises(ValueError, match=words):
        phases.loss_drivers(Matrices(dict.fromkeys(("nll", "nll_angles", "nll_norms"), values)))


def test_the_switch_is_the_best_of_all_splits():
    draw = np.random.default_rng(1)
    for _ in range(50):
        names = draw.choice(["angles", "norms", "unclear"], 8)
        worth = [
            sum(
                1.0 if name == want else 0.5 if name == "unclear" else 0.0
                for name, want in zip(names, wanted, strict=True)
            )
            for wanted in (["angles"] * k + ["norms"] * (8 - k) for k in range(9))
        ]
        found = phase_switch(np.arange(2, 10), names)
        assert found.agreement == pytest.approx(max(worth) / 8)
        assert found.epoch == ([*range(2, 10), None][worth.index(max(worth))])


def test_the_covariance_of_a_mean_curve_is_that_of_a_bootstrap_over_samples(monkeypatch):
    monkeypatch.setattr(noise, "epoch_noise", lambda curve, sampling: np.zeros_like(sampling))
    draw = np.random.default_rng(2)
    rows = draw.normal(size=(60, 1)) + draw.exponential(size=(60, 6))
    rows[draw.random(rows.shape) < 0.2] = np.nan
    curves = noise.mean_curves(rows)
    np.testing.assert_allclose(curves.mean[0], np.nanmean(rows, 0))
    expected = np.cov(np.array([np.nanmean(rows[draw.integers(0, 60, 60)], 0) for _ in range(4000)]).T)
    np.testing.assert_allclose(curves.covariance, expected, atol=0.12 * expected.max())
    drawn = curves.draws(curves.mean, 4000)[:, 0]
    np.testing.assert_allclose(np.cov(drawn.T), curves.covariance, atol=0.12 * expected.max())
    value, low, high = curves.contrast(np.array([-1.0, 0, 0, 0, 0, 1.0]))
    assert value == pytest.approx(curves.mean[0, 5] - curves.mean[0, 0])
    error = math.sqrt(expected[0, 0] + expected[5, 5] - 2 * expected[0, 5])
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_noise_of_epochs_and_its_correlation_are_found(rho):
    draw, t = np.random.default_rng(3), np.arange(600)
    jumps = draw.normal(size=600)
    for k in range(1, 600):
        jumps[k] = rho * jumps[k - 1] + math.sqrt(1 - rho**2) * jumps[k]
    curve = np.exp(-t / 120) + (t < 200) + np.where(t < 300, 0.02, 0.005) * jumps
    found = noise.epoch_noise(curve, np.zeros((600, 600)))
    sd = np.sqrt(np.diag(found))
    assert np.median(sd[:300]) == pytest.approx(0.02, rel=0.3)
    assert np.median(sd[300:]) == pytest.approx(0.005, rel=0.3)
    assert found[400, 401] / sd[400] / sd[401] == pytest.approx(rho, abs=0.2)


def test_the_whole_change_is_from_the_first_epoch_to_the_last_fifth_and_of_a_constant_0_within_rounding():
    for epochs, expected in ((1, 0), (2, 1), (3, 1.5), (10, 8.5)):
        assert whole_change(epochs) @ (5 + np.arange(epochs)) == pytest.approx(expected)
    curves = noise.mean_curves(np.tile(np.random.default_rng(19).random((31, 1)), 10))
    value, low, high = curves.contrast(whole_change(10))
    assert low <= value == 0 <= high


def test_a_step_of_the_learning_rate_is_no_noise_and_many_samples_do_not_hide_that_epochs_jump():
    t = np.arange(90)
    found = noise.epoch_noise(np.exp(-t / 20) + (t < 30), np.zeros((90, 90)))
    assert np.sqrt(np.diag(found).max()) < 0.01
    draw, t = np.random.default_rng(4), np.arange(40)
    curve = np.exp(-t / 6) + 0.03 * draw.normal(size=40)
    found = plateau(curve + draw.normal(size=(5000, 1)) * 0.1)
    assert found.high - found.low >= 4


T = np.arange(50)
SHAPES = {
    "exponential": np.exp(-T / 5),
    "straight, then flat": np.maximum(0, 1 - T / 15),
    "steps": 0.5 * np.exp(-T / 3) + 0.3 * (T < 17) + 0.2 * (T < 33),
    "overshoot": np.exp(-T / 3) + 0.3 * np.clip((T - 12) / 25, 0, 1),
    "dip and bounce": 1.1 * np.exp(-T / 4) + 0.15 * (1 - np.exp(-np.maximum(T - 10, 0) / 8)),
}


def noisy(curve, draw, n=200, jump=0.01):
    """Samples that differ throughout, that fall unequally far and jump by themselves; and epochs that jump for all."""
    rows = curve * (1 + 0.3 * draw.normal(size=(n, 1))) + 0.5 * draw.normal(size=(n, 1))
    return rows + 0.2 * draw.normal(size=(n, len(curve))) + jump * (1 + 2 * (T < 15)) * draw.normal(size=len(curve))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("jump", [0.003, 0.02])
def test_the_interval_of_a_plateau_holds_the_truth(shape, jump):
    truth, held, runs = settles(SHAPES[shape], rising=False) + 1, 0, 60
    for seed in range(runs):
        found = plateau(noisy(SHAPES[shape], np.random.default_rng(seed), jump=jump), draws=200, seed=seed)
        held += (found.low or math.inf) <= truth <= (found.high or math.inf)
        assert found.epoch is None or found.low <= found.epoch <= (found.high or math.inf)
    assert held / runs >= 0.88  # 95 % less two and a half standard errors of 60 runs


def test_a_straight_line_and_a_flat_one_have_no_plateau():
    found = [plateau(noisy(1 - T / 50, np.random.default_rng(seed)), draws=200) for seed in range(20)]
    assert {one.why for one in found} == {"it still changes in the last fifth of the epochs"}
    found = [plateau(noisy(np.zeros(50), np.random.default_rng(seed)), draws=200) for seed in range(20)]
    assert sum(one.epoch is None for one in found) >= 17  # 5 % of them may look like a change
    assert "it does not change by more than its noise" in {one.why for one in found}


def test_settling_is_95_percent_of_the_change_worked_by_hand_whatever_the_units():
    for shape in SHAPES.values():
        at = settles(shape, rising=False)
        assert settles(3 + 7 * shape, rising=False) == settles(-shape, rising=True) == at
    curve = np.array([1.0, 0.5, 0.2, 0.06, 0.04, 0, 0, 0, 0, 0])
    assert settles(curve, rising=False) == 4  # .04 is the first below 5 % of the way
    late = np.r_[np.linspace(1, 0.2, 8), 0, 0]
    assert settles(late, rising=False) == 8  # a fifth of the epochs is left: the latest that counts
    assert settles(np.r_[np.linspace(1, 0.2, 9), 0], rising=False) == math.inf


def test_epochs_keep_their_own_numbers_and_few_epochs_are_said_to_be_few():
    rows = np.exp(-np.arange(20) / 2) + np.random.default_rng(5).normal(size=(30, 1))
    assert plateau(rows, np.arange(20) * 10 + 5).epoch == 10 * (plateau(rows).epoch - 1) + 5
    assert re.match("8 epochs .*5", plateau(rows[:, :5]).why)
    with pytest.raises(ValueError, match="20 columns"):
        plateau(rows, np.arange(3))


def test_what_stays_has_no_plateau_whatever_its_rounding():
    level = np.random.default_rng(19).random((31, 1))
    names = ("avh", "correct", "nll", "norm")
    run = Matrices({name: np.tile(k * level + 0.1, 20) for k, name in enumerate(names)})
    found = phases.plateaus(run, names)
    assert found["epoch"].to_pylist() == [None] * 4
    assert set(found["why"].to_pylist()) == {"it does not change by more than its noise"}


def test_epochs_between_two_plateaus_have_an_interval_that_holds_the_truth():
    held = 0
    for seed in range(40):
        draw = np.random.default_rng(seed)
        run = Matrices({"avh": noisy(np.exp(-T / 3), draw), "correct": noisy(1 - np.exp(-T / 7), draw)})
        first, second = phases.plateaus(run, ("avh", "correct"), draws=200, seed=seed).to_pylist()
        assert (first["later"], first["later_low"], first["later_high"]) == (0, 0, 0)
        truth = settles(1 - np.exp(-T / 7), rising=True) - settles(np.exp(-T / 3), rising=False)
        held += second["later_low"] <= truth <= second["later_high"]
    assert held / 40 >= 0.85


def test_what_never_stops_stops_later_than_anything():
    draw = np.random.default_rng(6)
    run = Matrices({"avh": noisy(np.exp(-T / 3), draw), "norm": noisy(T / 10, draw)})
    row = phases.plateaus(run, ("avh", "norm")).to_pylist()[1]
    assert (row["epoch"], row["later"]) == (None, math.inf)
    assert row["later_low"] > 0


def test_a_bounce_is_measured_between_stretches_worked_by_hand():
    curve = np.r_[9.0, 6, 4, 2, 1, 3, 4, 5, 5, 5, 5, 5]
    found = dip_and_bounce(curve + np.random.default_rng(7).normal(size=(40, 1)) * 1e-6)
    assert found.epoch == 5
    assert (found.dip, found.end, found.rise) == pytest.approx((2.0, 5.0, 3.0), abs=1e-5)
    with pytest.raises(ValueError, match="6 epochs, got 5"):
        dip_and_bounce(np.zeros((4, 5)))


def test_a_line_that_falls_to_its_end_has_a_negative_rise_and_needs_no_noise():
    line = np.linspace(1, 0, 20)
    found = dip_and_bounce(line + np.random.default_rng(0).normal(size=(50, 1)) * 0.01)
    assert found.rise == pytest.approx(line[-3:].mean() - line[-6:-3].mean())  # the lowest stretch before the last
    assert found.end == pytest.approx(found.dip + found.rise)
    assert found.low <= found.rise <= found.high < 0


def test_a_falling_curve_rises_by_chance_no_more_often_than_promised():
    for curve in (np.exp(-T / 3), np.zeros(50)):
        found = [dip_and_bounce(noisy(curve, np.random.default_rng(s)), draws=200, seed=s) for s in range(80)]
        assert np.mean([one.low > 0 for one in found]) <= 0.1
        assert np.mean([one.p <= 0.05 for one in found]) <= 0.1


def test_a_bounce_is_found_and_its_interval_holds_the_truth():
    curve = SHAPES["dip and bounce"]
    truth = dip_and_bounce(curve + np.zeros((3, 1)))
    found = [dip_and_bounce(noisy(curve, np.random.default_rng(s), jump=0.003), draws=200, seed=s) for s in range(60)]
    assert np.mean([one.low <= truth.rise <= one.high for one in found]) >= 0.9
    assert np.mean([one.epoch_low <= truth.epoch <= one.epoch_high for one in found]) >= 0.9
    assert np.mean([one.low > 0 for one in found]) >= 0.5


def saturated(draw, n, strength=0.5):
    """Confidences that crowd at 1, and human frequencies of which about half tie at 1."""
    ease = draw.normal(size=(n, 2)) @ np.array([[1.0, strength], [0.0, math.sqrt(1 - strength**2)]])
    human = np.minimum(np.round(50 * np.clip(1.02 + 0.3 * ease[:, 1], 0, 1)) / 50, 1)
    return 1 / (1 + np.exp(-3 - 2 * ease[:, 0])), human


def test_correlations_are_scipy_s_and_their_errors_those_of_the_jackknife():
    n = 400
    x, y = saturated(np.random.default_rng(8), n)
    assert 0.3 < (y == 1).mean() < 0.7
    for ours, theirs in ((spearman, stats.spearmanr), (pearson, stats.pearsonr)):
        found = ours(x, y)
        assert found.value == pytest.approx(theirs(x, y).statistic)
        without = np.array([theirs(np.delete(x, i), np.delete(y, i)).statistic for i in range(n)])
        jackknife = math.sqrt((n - 1) / n * np.square(without - without.mean()).sum())
        assert standard_error(found.influence) == pytest.approx(jackknife, rel=0.04)
        assert found.influence.mean() == pytest.approx(0, abs=1e-9)


def test_intervals_of_correlations_hold_with_half_of_all_values_tied():
    x, y = saturated(np.random.default_rng(9), 200_000)
    truth = {spearman: stats.spearmanr(x, y).statistic, pearson: stats.pearsonr(x, y).statistic}
    for kind, value in truth.items():
        found = [kind(*saturated(np.random.default_rng(seed), 150)) for seed in range(400)]
        assert np.mean([one.low <= value <= one.high for one in found]) == pytest.approx(0.95, abs=0.035)


def test_agreement_compares_scores_over_the_same_samples_and_keeps_its_level():
    rejected = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        ease = draw.normal(size=120)
        human = np.minimum(np.round(20 * np.clip(0.9 + 0.3 * (ease + draw.normal(size=120)), 0, 1)) / 20, 1)
        scores = {name: (sign * (ease + draw.normal(size=120)))[:, None] for name, sign in (("avh", -1), ("margin", 1))}
        row = phases.agreement(Matrices(scores), human, ("avh", "margin")).to_pylist()[1]
        rejected += row["p"] < 0.05
    assert rejected / 300 == pytest.approx(0.05, abs=0.03)


def test_rows_of_agreement_say_n_ties_and_what_is_missing():
    draw = np.random.default_rng(10)
    avh = draw.random((30, 2))
    avh[:5, 1] = np.nan
    human = np.r_[np.full(10, 1.0), draw.random(19), np.nan]
    run = Matrices({"avh": avh, "angle": 2 * avh, "norm": np.ones((30, 2))})
    rows = phases.agreement(run, dict(zip(run.ids, human, strict=True)), ("avh", "angle", "norm")).to_pylist()
    assert [row["n"] for row in rows] == [29] * 3 + [24] * 3
    assert rows[0]["ties"] == pytest.approx(45 / (29 * 28 / 2))
    assert rows[0]["spearman"] == pytest.approx(stats.spearmanr(avh[:29, 0], human[:29]).statistic)
    assert (rows[1]["ahead"], rows[1]["p"]) == (0, 1)  # the same order of the samples
    assert rows[2]["spearman"] is None  # a constant correlates with nothing
    assert rows[0]["ahead"] is None
    values = np.random.default_rng(11).integers(0, 4, 30)
    assert tie_share(values) == pytest.approx(np.mean([a == b for a, b in itertools.combinations(values, 2)]))


def test_human_frequencies_come_in_the_order_of_the_run_whatever_they_are_given_as(tmp_path):
    run = Matrices({"avh": np.zeros((3, 2))}, labels=np.array([0, 1, 1]))
    expected = [0.5, np.nan, 1.0]
    np.savez(tmp_path / "counts.npz", counts=np.array([[5, 5], [0, 0], [0, 7]]))
    table = pa.table({"id": [run.ids[2], run.ids[0]], "hsf": [1.0, 0.5]})
    for given in (table, np.array(expected), tmp_path / "counts.npz"):
        np.testing.assert_array_equal(phases.frequencies(run, given), expected)
    votes = pa.table({"id": [run.ids[0], run.ids[0], run.ids[2]], "vote": ["dog", "cat", "dog"]})
    run.meta.class_names = ["cat", "dog"]
    np.testing.assert_array_equal(phases.frequencies(run, votes), expected)


def test_norm_gaps_are_welch_s_difference_and_cohen_s_d():
    draw = np.random.default_rng(12)
    norm = draw.gamma(5, size=(300, 2)) + np.repeat([0, 1, 2], 100)[:, None]
    levels = np.repeat(["[0, 0.2)", "[0.4, 0.6)", "[0.8, 1]"], 100)
    row = studies.norm_gaps(Matrices({"norm": norm}), levels).to_pylist()[1]
    hard, easy = norm[:100, 1], norm[200:, 1]
    assert (row["hardest"], row["easiest"], row["n_hard"], row["n_easy"]) == ("[0, 0.2)", "[0.8, 1]", 100, 100)
    interval = stats.ttest_ind(easy, hard, equal_var=False).confidence_interval()
    assert (row["gap_low"], row["gap_high"]) == pytest.approx((interval.low, interval.high), rel=0.02)
    pooled = math.sqrt((easy.var(ddof=1) + hard.var(ddof=1)) / 2)
    assert row["gap_sd"] == pytest.approx((easy.mean() - hard.mean()) / pooled)
    assert row["gap_share"] == pytest.approx(2 * (easy.mean() - hard.mean()) / (easy.mean() + hard.mean()))
    turned = studies.norm_gaps(Matrices({"norm": norm}), levels, hardest="[0.8, 1]").to_pylist()[1]
    assert turned["gap"] == pytest.approx(-row["gap"])


def test_errors_of_gaps_are_those_of_a_bootstrap():
    draw = np.random.default_rng(13)
    easy, hard = draw.gamma(4, 2, 150), draw.gamma(4, 1.5, 60)
    errors = standardized_gap(easy, hard)[1]
    again = [standardized_gap(draw.choice(easy, 150), draw.choice(hard, 60))[0] for _ in range(2000)]
    np.testing.assert_allclose(errors, np.std(again, axis=0), rtol=0.08)


def test_norm_gaps_pass_over_small_levels_and_say_when_none_is_left():
    run = Matrices({"norm": np.random.default_rng(14).random((20, 1))})
    levels = np.array([0] * 3 + [1] * 8 + [2] * 9)
    assert studies.norm_gaps(run, levels).to_pylist()[0]["hardest"] == "1"
    with pytest.raises(ValueError, match=r"two values .*5 .*got 1"):
        studies.norm_gaps(run, np.array([0] * 3 + [1] * 17))
    with pytest.raises(ValueError, match=r"hardest .*0, 1, 2, got 7"):
        studies.norm_gaps(run, levels, hardest=7)


def test_the_hardest_level_is_at_an_end_or_refused():
    run = Matrices({"norm": np.random.default_rng(20).random((20, 1))})
    levels = np.array(["a_easy"] * 6 + ["b_hard"] * 7 + ["c_mid"] * 7)
    with pytest.raises(ValueError, match=r"a_easy .*c_mid, .*'b_hard'"):
        studies.norm_gaps(run, levels, hardest="b_hard")
    few = np.array(["a_easy"] * 2 + ["b_hard"] * 9 + ["c_mid"] * 9)  # the first is passed over: the second is the end
    for hardest in ("a_easy", "b_hard", None):
        assert studies.norm_gaps(run, few, hardest=hardest).to_pylist()[0]["hardest"] == "b_hard"
