"""The paper's claims over recorded nets: hardness against accuracy, and a verdict by its rule for each claim."""

import numpy as np
import pytest
from recorded_runs import Matrices
from scipy import stats

from hardsight import studies
from hardsight.errors import InputError
from hardsight.studies.claims import JUDGES, Judge, claims
from hardsight.studies.declared.avh_claims import SMALL, Net, verdict
from hardsight.studies.declared.avh_measures import permutation_p

T = np.arange(50)


@pytest.mark.parametrize(
    ("x", "y"), [np.random.default_rng(16).normal(size=(2, 5)), np.array([[1.0, 1, 2, 3, 4], [5.0, 4, 4, 2, 3]])]
)
def test_the_exact_p_over_nets_is_scipy_s_permutation_test_also_with_ties(x, y):
    theirs = stats.permutation_test(
        (x,), lambda a: abs(stats.spearmanr(a, y).statistic), permutation_type="pairings", alternative="greater"
    )
    assert permutation_p(x, y) == pytest.approx(theirs.pvalue)
    assert permutation_p(np.ones(5), y) is None


def test_hardness_against_accuracy_over_nets_and_within_them():
    right = np.array([0.9, 0.8, 0.7, 0.6])
    runs = {
        f"net {k}": Matrices(
            {"avh": np.tile(0.1 * (1 - a * T / 60), (9, 1)), "correct": np.tile(a * np.sqrt(T / 50), (9, 1))}
        )
        for k, a in enumerate(right)
    }
    rows = studies.hardness_against_accuracy(runs).to_pylist()
    over, within = [r for r in rows if r["scope"] == "over nets"], [r for r in rows if r["scope"] == "within net"]
    assert len(over) == 51
    assert (over[-1]["epoch"], over[-1]["n"], over[-1]["spearman"]) == (None, 4, pytest.approx(-1))
    assert over[-1]["p"] == pytest.approx(2 / 24)  # the least that four nets can give
    assert over[0]["spearman"] is None  # all alike at first
    assert [row["spearman"] for row in within] == pytest.approx([-1] * 4)
    assert studies.hardness_against_accuracy({"a": runs["net 0"]}).to_pylist()[0]["spearman"] is None


def as_claimed(*, reverse: bool, n=400, epochs=40):
    """A net without shortcuts that does all that the paper says, or nothing of it."""
    draw, t = np.random.default_rng(18), np.arange(epochs)
    human = np.clip(np.round(draw.beta(3, 1, n) * 50) / 50, 0, 1)
    hard = (1 - human)[:, None]
    jump = 1e-4 * draw.normal(size=(n, epochs))
    fast, slow = np.exp(-t / 2), np.exp(-t / 8)
    if reverse:
        fast, slow, hard = slow, fast, draw.random((n, 1))
    avh = 0.05 + 0.05 * fast + 0.03 * hard + 0.05 * jump
    norm = 5 - 0.5 * hard + 20 * (1 - slow) * (1 - 0.8 * hard) + jump
    if not reverse:
        avh += 0.004 * np.clip((t - 10) / 20, 0, 1)
    else:
        norm = norm[:, ::-1]
    early = t < epochs // 3
    angle_part, norm_part = np.where(early, -0.2, -0.001), np.where(early, -0.01, -0.05)
    if reverse:
        angle_part, norm_part = norm_part, angle_part
    steps = (angle_part + norm_part) * (1 if reverse else 1 - 1.6 * (hard > 0.6)) + 1e-3 * draw.normal(size=(n, epochs))
    if reverse:
        steps *= early
    nll = 9 + np.cumsum(steps, 1)
    old = np.c_[np.full(n, np.nan), nll[:, :-1]]
    share = np.where(early, 0.9, 0.05) if not reverse else np.where(early, 0.1, 0.9)
    new_angles, new_norms = old + share * (nll - old), old + (1 - share) * (nll - old)
    right = draw.random((n, 1)) < (0.3 + 0.6 * (1 - slow))
    confidence = np.clip(human[:, None] + 0.4 * draw.normal(size=(n, 1)) - 0.1 * slow + jump, 0, 1)
    columns = {"avh": avh, "norm": norm, "nll": nll, "nll_angles": new_angles, "nll_norms": new_norms}
    return Matrices({**columns, "correct": right, "confidence": confidence}), human


def verdicts(table):
    return {(row["claim"], row["net"]): row["verdict"] for row in table.to_pylist()}


def test_a_run_that_does_what_the_paper_says_agrees_and_its_opposite_does_not():
    run, human = as_claimed(reverse=False)
    found = studies.observations({"vgg": run}, human)
    others = ("not consistent", "within a net", "first decay", "three stages")  # the next test has the last two
    wrong = {
        claim: verdict
        for (claim, net), verdict in verdicts(found).items()
        if net == "vgg" and verdict != "yes" and not any(words in claim for words in others)
    }
    assert wrong == {}
    other, human = as_claimed(reverse=True)
    against = verdicts(studies.observations({"resnet": other}, human))
    for words in ("keeps increasing", "hits a plateau", "throughout", "First the angles", "more strongly than conf"):
        assert next(v for (claim, _), v in against.items() if words in claim) == "no", words


def staged(slopes, drops, n=300):
    """A net of three stages of ten epochs: the slope of the norm in each, and how far AVH falls in its second half."""
    draw = np.random.default_rng(3)
    norm = 5 + np.cumsum(np.repeat(slopes, 10)) + draw.normal(size=(n, 1)) + 1e-3 * draw.normal(size=(n, 30))
    falls = np.concatenate([np.r_[-0.2, np.zeros(4), np.full(5, -drop / 5)] for drop in drops])
    avh = 1 + np.cumsum(falls) + 0.1 * draw.normal(size=(n, 1)) + 1e-4 * draw.normal(size=(n, 30))
    return Matrices({"avh": avh, "norm": norm, "correct": norm > 6, "nll": avh})


def by_rule(name, run, human=None, shortcuts=True, decays=(10, 20)):
    """What a judge says of one net."""
    return verdict(JUDGES[name], Net("net", run, human, shortcuts, decays))


@pytest.mark.parametrize(("slopes", "answer"), [((0.1, 1, 0.1), "yes"), ((1, 0.1, 1), "no"), ((1, 1, 3), "not shown")])
def test_the_norm_climbs_at_the_first_decay_and_not_at_another(slopes, answer):
    finding = by_rule("norm_climbs_at_the_decay", staged(slopes, (0, 0, 0)))
    assert finding.verdict == answer
    assert finding.value == pytest.approx(slopes[1] - slopes[0], abs=1e-3)
    assert finding.low <= finding.value <= finding.high


def test_a_first_stage_that_is_short_is_compared_with_as_many_epochs_after_it():
    """The norm grows by 1 per epoch for eight epochs and by 3 afterwards; a third of the second stage is longer."""
    steps = np.r_[np.full(8, 1.0), np.full(52, 3.0)]
    norm = 5 + np.cumsum(steps) + np.random.default_rng(0).normal(size=(300, 1))
    run = Matrices({"avh": norm, "norm": norm, "correct": norm > 6, "nll": norm})
    finding = by_rule("norm_climbs_at_the_decay", run, decays=(8,))
    assert (finding.verdict, finding.value) == ("yes", pytest.approx(2))


def test_without_decays_nothing_is_said_of_them():
    run = staged((1, 1, 1), (0, 0, 0))
    for name in ("norm_climbs_at_the_decay", "avh_settles_in_every_stage"):
        assert by_rule(name, run, decays=()).verdict == "not measured"
        assert by_rule(name, run, decays=(2, 20)).verdict == "not measured"  # a stage of two epochs


@pytest.mark.parametrize(("drops", "answer"), [((0, 0, 0), "yes"), ((0, 0.5, 0), "partly"), ((0.5, 0.5, 0.5), "no")])
def test_avh_settles_in_every_stage_or_in_some(drops, answer):
    run = staged((1, 1, 1), drops)
    assert by_rule("avh_settles_in_every_stage", run).verdict == answer
    assert by_rule("avh_settles_in_every_stage", run, shortcuts=False).verdict == "not measured"


@pytest.mark.parametrize(("sign", "answer"), [(1, "yes"), (-1, "no")])
def test_gaps_of_avh_between_human_levels_have_a_sign(sign, answer):
    run, human = as_claimed(reverse=False)
    run.columns["avh"] = 1 - sign * human[:, None] + 1e-2 * np.random.default_rng(0).normal(size=(400, 40))
    assert by_rule("avh_gaps_throughout", run, human).verdict == answer
    run.columns["avh"][:, :30] = np.random.default_rng(1).normal(size=(400, 30))  # no gap in most epochs
    assert by_rule("avh_gaps_throughout", run, human).verdict == "no"


@pytest.mark.parametrize(("sign", "answer"), [(1, "yes"), (-1, "no")])
def test_gaps_of_the_norm_have_the_other_sign(sign, answer):
    run, human = as_claimed(reverse=False)
    run.columns["norm"] = 9 + sign * human[:, None] + 1e-2 * np.random.default_rng(0).normal(size=(400, 40))
    finding = by_rule("norm_gaps_throughout", run, human)
    assert (finding.verdict, finding.value > 0) == (answer, sign > 0)
    run.columns["norm"][:, :10] = 1.0  # no gap in a quarter of the epochs
    assert by_rule("norm_gaps_throughout", run, human).verdict == ("partly" if sign > 0 else "no")


@pytest.mark.parametrize(
    ("hard", "easy", "answer"),
    [(1, 2, "yes"), (2, 1, "partly"), (-1, 1, "partly"), (-1, -2, "no"), (2, 2, "partly"), (0, 0, "not shown")],
)
def test_norms_of_hard_samples_grow_but_less(hard, easy, answer):
    draw, human = np.random.default_rng(7), np.repeat([0.1, 0.5, 1.0], 40)
    slope = np.repeat([hard, 5, easy], 40)[:, None]  # the level between decides nothing
    norm = 9 + slope * np.linspace(0, 1, 40) + 1e-2 * draw.normal(size=(120, 40))
    finding = by_rule("hard_norms_grow_slower", Matrices({"norm": norm}), human)
    assert (finding.verdict, finding.n) == (answer, 80)
    growth = norm[:, -8:].mean(1) - norm[:, 0]
    theirs = stats.ttest_ind(growth[:40], growth[80:], equal_var=False)
    assert finding.value == pytest.approx(growth[:40].mean() - growth[80:].mean())
    assert finding[4:6] == pytest.approx(tuple(theirs.confidence_interval()))


def driven(angles, norms, human):
    """A run whose angles and norms change the loss by so much per epoch; 0 is noise around 0."""
    draw, shape = np.random.default_rng(2), (len(human), 40)
    steps = [mean + 0.02 * draw.normal(size=shape) for mean in (angles, norms)]
    nll = 90 + np.cumsum(sum(steps), 1)
    old = np.c_[np.full(len(human), np.nan), nll[:, :-1]]
    return Matrices({"nll": nll, "nll_angles": old + steps[0], "nll_norms": old + steps[1]})


@pytest.mark.parametrize(
    ("angles", "norms", "answer"),
    [(-0.1, -0.1, "no"), (-0.1, 0.1, "partly"), (0.1, 0, "not shown"), (0.1, 0.1, "yes"), (0, 0, "not shown")],
)
def test_losses_of_hard_samples_stay_only_if_it_is_shown(angles, norms, answer):
    human = np.repeat([0.1, 1.0], 40)
    assert by_rule("hard_losses_stay", driven(angles, norms, human), human).verdict == answer


@pytest.mark.parametrize(
    ("angles", "norms", "answer"),
    [(-0.01, -0.1, "yes"), (-0.1, -0.05, "partly"), (-0.1, 0.1, "no"), (-0.1, 0, "not shown")],
)
def test_norms_lower_the_loss_of_easy_samples_more_than_angles_or_less(angles, norms, answer):
    human = np.repeat([0.1, 1.0], 40)
    finding = by_rule("norms_lower_easy_losses", driven(angles, norms, human), human)
    assert (finding.verdict, finding.n) == (answer, 40)


@pytest.mark.parametrize(("rise", "plain", "short"), [(0.3, "yes", "no"), (0, "no", "yes")])
@pytest.mark.parametrize("noise", [1e-3, 3])
def test_a_bounce_and_its_absence_are_shown_by_intervals(rise, plain, short, noise):
    draw, t = np.random.default_rng(13), np.arange(40)
    avh = np.exp(-t / 3) + rise * np.clip((t - 15) / 10, 0, 1) + noise * draw.normal(size=(200, 40))
    columns = {"avh": avh, "correct": avh, "nll": avh, "norm": avh}
    answers = [by_rule("plain_nets_bounce", Matrices(columns), shortcuts=has).verdict for has in (False, True)]
    assert answers == ([plain, short] if noise < 1 else ["not shown"] * 2)


@pytest.mark.parametrize(("pace", "answer"), [(12, "yes"), (1, "no"), (-12, "no"), (4, "not shown")])
def test_confidence_outlasts_avh_if_it_still_rises(pace, answer):
    draw, t = np.random.default_rng(9), np.arange(60)
    noise = 1e-3 * draw.normal(size=(2, 300, 60))
    avh, confidence = 0.05 + 0.05 * np.exp(-t / 4) + noise[0], 0.5 - np.sign(pace) * 0.3 * np.exp(-t / abs(pace))
    columns = {"avh": avh, "confidence": confidence + noise[1], "correct": avh, "nll": avh, "norm": avh}
    assert by_rule("confidence_outlasts_avh", Matrices(columns)).verdict == answer


@pytest.mark.parametrize(("sign", "answer"), [(1, "yes"), (-1, "no")])
def test_norm_and_accuracy_go_together_or_against_each_other(sign, answer):
    steps = np.random.default_rng(5).random(30)
    norm, right = np.cumsum(steps), np.cumsum(sign * steps) / 40
    columns = {"norm": np.tile(norm, (9, 1)), "correct": np.tile(0.5 + right, (9, 1))}
    finding = by_rule("norm_follows_accuracy", Matrices(columns))
    assert (finding.verdict, finding.value) == (answer, pytest.approx(sign))


def test_only_errors_raised_on_purpose_become_a_verdict(monkeypatch):
    def missing(net):
        raise InputError("levels must hold two values.")

    def broken(net):
        return np.ones(2) + np.ones(3)

    net = Net("net", Matrices({"avh": np.zeros((9, 30))}), None, None)
    assert verdict(Judge("missing", missing), net)[:2] == ("not measured", "levels must hold two values.")
    with pytest.raises(ValueError, match="broadcast"):
        verdict(Judge("broken", broken), net)


def test_a_shortcut_net_is_judged_by_the_opposite_rule():
    run, human = as_claimed(reverse=False)
    plain, short = (verdicts(studies.observations({"net": run}, human, shortcuts={"net": k})) for k in (False, True))
    for words in ("shortcuts make norms equal", "bounces back"):
        claim = next(key for key in plain if words in key[0])
        assert (plain[claim], short[claim]) == ("yes", "no")


def test_observations_of_a_real_run_state_numbers_intervals_and_n(digits_run):
    run = digits_run[0]
    human = 1 - stats.rankdata(run.matrix("avh")[:, 5]) / len(run)
    rows = studies.observations({"resnet-small": run, "again": run, "vgg": run}, human).to_pylist()
    assert len(rows) == 3 * (len(claims("observations")) - 1) + 1  # one is about all nets
    assert all(row["measured"] and row["rule"] for row in rows)
    assert all(row["n"] > 0 for row in rows if row["verdict"] != "not measured")
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows if row["low"] is not None and row["high"])
    shortcut = [row for row in rows if "shortcuts make norms equal" in row["claim"]]
    assert [row["verdict"] == "not measured" for row in shortcut] == [False, True, False]
    assert str(SMALL) in shortcut[0]["rule"]


def test_without_people_claims_about_them_are_not_measured(digits_run):
    rows = studies.observations({"resnet": digits_run[0]}).to_pylist()
    silent = [row["claim"] for row in rows if row["verdict"] == "not measured"]
    assert len(silent) == 12  # two are about decays of the learning rate
    assert any(row["verdict"] in ("yes", "partly", "no") for row in rows)


def part(run, samples=slice(None), epochs=slice(None)):
    return Matrices({name: values[samples, epochs] for name, values in run.columns.items()})


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_a_short_run_says_nothing_of_the_course_of_training(epochs):
    run, human = as_claimed(reverse=False)
    rows = studies.observations({"vgg": part(run, epochs=slice(epochs))}, human).to_pylist()
    told = {row["claim"]: row["measured"] for row in rows if row["verdict"] == "not measured"}
    assert [row["claim"] for row in rows if row["claim"] not in told] == [
        "Nets with shortcuts make norms equal over human hardness, nets without keep the gap.",
        "AVH correlates with human selection frequency more strongly than confidence does.",
    ]  # both are about the last epoch
    assert told["The norm of features keeps increasing during training."] == f"8 epochs are needed, {epochs} are there"
    assert all(row["value"] is None for row in rows if row["claim"] in told)


def test_few_samples_are_not_measured():
    run, human = as_claimed(reverse=False)
    for n in (1, 4):
        nets = {f"vgg {k}": part(run, samples=slice(n)) for k in range(3)}
        rows = studies.observations(nets, human[:n]).to_pylist()
        assert {row["verdict"] for row in rows} == {"not measured"}
        assert rows[1]["measured"] == f"5 samples are needed, {n} are there"  # the first is about all nets
    rows = studies.observations({"vgg": part(run, samples=slice(6))}, human[:6]).to_pylist()
    assert any("10 samples" in row["measured"] for row in rows)


def test_a_run_that_stays_is_said_to_stay():
    run, human = as_claimed(reverse=False)
    still = Matrices({name: np.repeat(values[:, 1:2], 40, 1) for name, values in run.columns.items()})
    rows = {row["claim"]: row for row in studies.observations({"vgg": still}, human).to_pylist()}
    assert not any("nan" in row["measured"] for row in rows.values())
    grows = rows["The norm of features keeps increasing during training."]
    assert (grows["verdict"], grows["value"]) == ("not shown", 0)
    waits = next(row for claim, row in rows.items() if "increases slowly" in claim)
    assert waits["measured"].startswith("AVH has no plateau")
    assert waits["verdict"] == "not measured"


def test_the_words_about_a_falling_net_do_not_call_its_end_higher():
    run, _ = as_claimed(reverse=False)
    run.columns["avh"] = np.linspace(1, 0, 40) + 0.01 * np.random.default_rng(0).normal(size=(400, 1))
    row = next(r for r in studies.observations({"vgg": run}).to_pylist() if "bounces back" in r["claim"])
    assert row["verdict"] == "no"
    assert "last 4 epochs" in row["measured"]
    assert "changes by −" in row["measured"]
