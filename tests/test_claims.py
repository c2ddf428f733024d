"""Claims of the papers: judges against SciPy, verdicts of several lines, and the page against the committed rows."""

import csv
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from hardsight.cli import main
from hardsight.errors import InputError, MissingPathError
from hardsight.studies import STUDIES, Measure, Results, Scale, Study, ledger, rank_networks, read_results
from hardsight.studies.claims import JUDGES, Claim, Finding, all_claims, claims, pairs
from hardsight.studies.declared import stated
from hardsight.studies.ledger import VERDICTS, Entry, Ledger, judge_claim, verdict_of
from hardsight.studies.rowfiles import read_rows
from hardsight.studies.tables import conditions, matches
from hardsight.table import SampleTable

pytestmark = pytest.mark.slow  # rows and tables of ours depend on no version of a library
ROWS = Path("docs/results")
PAGE = ROWS / "claims.md"
TOY = Study(
    "toy", dict, "?", "", {"net": ("a", "b", "c"), "loss": ("ce", "el", "amc")},
    {"accuracy": Measure("Accuracy", True), "margin": Measure("Margin"), "other": Measure("Other")},
    {"smoke": Scale(1, 1)}, compare="loss", baseline="ce",
)  # fmt: skip
SEEDS = 6
# Seeds differ by far more than losses do: only pairs show the difference.
EASE = 0.6 + 0.05 * np.random.default_rng(0).normal(size=SEEDS)
NOISE = 0.001 * np.random.default_rng(1).normal(size=SEEDS)


def rows_of(columns, net="a"):
    """Rows of the toy study: values by loss, one per seed."""
    return [
        {"net": net, "loss": loss, "seed": seed, "accuracy": value, "margin": value, "other": 1 - value}
        for loss, values in columns.items()
        for seed, value in enumerate(values)
    ]


def judge(rows, name="difference", **claim):
    """The only line of a claim."""
    settings = {"measure": "accuracy", "where": "loss=el", "expected": "higher", "judge": name, **claim}
    ((_, line),) = JUDGES[name].function(Claim("EL", "", "", "toy", **settings), Results(TOY, rows, None, 0))
    return line


@pytest.mark.parametrize(
    ("gain", "expected", "verdict"),
    [
        (0.01, "higher", "yes"), (0.01, "lower", "no"), (-0.01, "higher", "no"), (-0.01, "lower", "yes"),
        (0, "higher", "not shown"), (0, "lower", "not shown"),
    ],
)  # fmt: skip
def test_a_difference_is_scipy_s_paired_test_on_the_claimed_side(gain, expected, verdict):
    el = EASE + gain + NOISE
    line = judge(rows_of({"el": el, "ce": EASE}), expected=expected)
    theirs = stats.ttest_rel(el, EASE)
    assert (line.verdict, line.n) == (verdict, SEEDS)
    assert (line.value, line.p) == (pytest.approx((el - EASE).mean()), pytest.approx(theirs.pvalue))
    assert (line.low, line.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert stats.ttest_ind(el, EASE).pvalue > 0.3  # unpaired, nothing would be shown


def test_pairs_are_seeds_and_not_places():
    el = EASE + 0.01 + NOISE
    rows = rows_of({"el": el, "ce": EASE})
    shuffled = [rows[k] for k in np.random.default_rng(2).permutation(len(rows))]
    assert judge(shuffled)[2:7] == pytest.approx(judge(rows)[2:7])
    lacking = [row for row in rows if (row["loss"], row["seed"]) not in (("ce", 0), ("el", 5))]
    assert judge(lacking).n == SEEDS - 2
    assert judge(lacking).p == pytest.approx(stats.ttest_rel(el[1:5], EASE[1:5]).pvalue)


def test_what_it_is_compared_with_can_be_named():
    rows = rows_of({"el": EASE + 0.01 + NOISE, "ce": EASE, "amc": EASE + 0.02})
    assert judge(rows, against="loss=amc").value == pytest.approx(judge(rows).value - 0.02)
    other = rows + rows_of({"el": EASE + 0.03}, "b")
    assert judge(other, where="net=b and loss=el", against="net=a").value == pytest.approx(0.02 - NOISE.mean())
    assert judge(rows, against="measure=other").value == pytest.approx((2 * (EASE + 0.01 + NOISE) - 1).mean())
    assert judge(rows, against="measure=-margin").value == pytest.approx(2 * (EASE + 0.01 + NOISE).mean())
    with pytest.raises(InputError, match="where must be"):
        judge(rows, against="arm=amc")
    with pytest.raises(InputError, match="higher or lower"):
        judge(rows, expected="better")


@pytest.mark.parametrize(
    ("gain", "expected", "effect", "verdict"),
    [
        (0, "higher", 0.01, "no"), (0, "higher", 0.0005, "not shown"), (0, "lower", -0.01, "no"),
        (0.02, "higher", 0.01, "yes"), (0.005, "higher", 0.01, "yes"),
    ],
)  # fmt: skip
def test_an_interval_short_of_the_paper_s_effect_refutes_it_unless_there_is_one(gain, expected, effect, verdict):
    el = EASE + gain + NOISE
    line = judge(rows_of({"el": el, "ce": EASE}), expected=expected, effect=effect)
    assert line.verdict == verdict
    short = stats.ttest_1samp(el - EASE - effect, 0)
    excluded = (short.statistic < 0) == (expected == "higher") and short.pvalue < 0.05
    assert line.p_effect == (pytest.approx(short.pvalue) if excluded else 1.0)


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.0, "yes"), (0.003, "yes"), (0.0048, "not shown"), (0.0052, "not shown"), (-0.01, "no")]
)
def test_the_same_within_a_bound_is_two_one_sided_tests(gain, verdict):
    el = EASE + gain + NOISE - NOISE.mean()
    line = judge(rows_of({"el": el, "ce": EASE}), "same", expected="±0.005")
    tests = [
        stats.ttest_1samp(el - EASE, end, alternative=side) for end, side in ((-0.005, "greater"), (0.005, "less"))
    ]
    assert line.verdict == verdict
    assert (verdict == "yes") == (max(test.pvalue for test in tests) < 0.025)
    ends = [stats.ttest_1samp(el - EASE, end).pvalue for end in (-0.005, 0.005)]
    assert line.p == pytest.approx(max(ends))  # the end that is nearer decides
    nothing = judge(rows_of({"el": gain + NOISE - NOISE.mean()}), "same", expected="±0.005", against="nothing")
    assert (nothing.verdict, nothing.value) == (verdict, pytest.approx(gain))


def test_equal_numbers_are_the_same_without_a_test():
    line = judge(rows_of({"el": EASE, "ce": EASE}), "same", expected="±0.005")
    assert (line.verdict, line.n, line.p) == ("yes", SEEDS, None)
    assert verdict_of([line]) == "holds"


@pytest.mark.parametrize(
    ("expected", "verdict"), [("> 2", "yes"), ("< 2", "no"), ("> 4", "no"), ("< 4", "yes"), ("> 3", "not shown")]
)
def test_a_ratio_is_a_test_of_logarithms(expected, verdict):
    spread = 1 + 0.02 * np.random.default_rng(4).normal(size=SEEDS)
    el = 3 * EASE * spread
    line = judge(rows_of({"el": el, "ce": EASE}), "ratio", measure="margin", expected=expected)
    logs = stats.ttest_1samp(np.log(el / EASE), np.log(float(expected[2:])))
    assert (line.verdict, line.p) == (verdict, pytest.approx(logs.pvalue))
    assert line.value == pytest.approx(stats.gmean(el / EASE))
    assert line.low < line.value < line.high
    with pytest.raises(InputError, match="above 0"):
        judge(rows_of({"el": -el, "ce": EASE}), "ratio", expected=expected)


@pytest.mark.parametrize(
    ("expected", "verdict"), [("> 0.4", "yes"), ("< 0.4", "no"), ("> 0.8", "no"), ("> 0.6", "not shown")]
)
def test_a_level_is_a_test_of_one_sample(expected, verdict):
    line = judge(rows_of({"el": EASE}), "level", expected=expected)
    theirs = stats.ttest_1samp(EASE, float(expected[2:]))
    assert (line.verdict, line.p) == (verdict, pytest.approx(theirs.pvalue))
    assert (line.low, line.high) == pytest.approx(tuple(theirs.confidence_interval()))
    with pytest.raises(InputError, match="NUMBER"):
        judge(rows_of({"el": EASE}), "level", expected="higher")


def test_over_networks_seeds_are_averaged_and_do_not_count():
    gains = {"a": 0.01, "b": 0.02, "c": -0.005}
    rows = [row for net, gain in gains.items() for row in rows_of({"ce": EASE, "el": EASE + gain + NOISE}, net)]
    line = judge(rows, over="net")
    theirs = stats.ttest_1samp(np.array(list(gains.values())) + NOISE.mean(), 0)
    assert (line.n, line.p) == (3, pytest.approx(theirs.pvalue))
    assert line.verdict == "not shown"  # though 18 seeds would show it
    with pytest.raises(InputError, match="over must be"):
        judge(rows, over="loss of")


def test_what_cannot_decide_says_so():
    rows = rows_of({"el": EASE + 0.01 + NOISE, "ce": EASE})
    assert judge([row for row in rows if row["seed"] == 0]).verdict == "not measured"
    two = judge([row for row in rows if row["seed"] < 2])
    assert (two.verdict, two.n) == ("not shown", 2)
    assert judge(rows, where="loss=amc").verdict == "not measured"
    equal = judge(rows_of({"el": EASE, "ce": EASE}))
    assert (equal.verdict, equal.n) == ("not measured", SEEDS)


def line(verdict, p=None, p_effect=None):
    return Finding(verdict, "", 5, p=p, p_effect=p_effect)


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([line("yes", 0.01), line("yes", 0.02)], "holds"),
        ([line("yes", 0.03), line("yes", 0.04)], "not shown"),  # Holm: 0.06, 0.06
        ([line("yes", 0.01), line("not shown", 0.5)], "partly"),
        ([line("yes", 0.01), line("no", 0.01)], "partly"),
        ([line("no", 0.01), line("not shown", 0.5)], "does not hold"),
        ([line("no", 0.03), line("no", 0.04)], "not shown"),
        ([line("no", 0.6, 0.01)], "does not hold"),  # the paper's effect is excluded
        ([line("no", 0.6, 0.03), line("no", 0.6, 0.04)], "not shown"),
        ([line("not shown", 0.2)], "not shown"),
        ([line("yes"), line("partly")], "partly"),
        ([line("yes"), line("not measured")], "holds"),
        ([line("no"), line("not shown")], "does not hold"),
        ([line("not measured")], "not run"),
        ([], "not run"),
    ],
)
def test_lines_become_a_verdict(lines, verdict):
    assert verdict_of(lines) == verdict


@pytest.mark.parametrize(("n", "shown"), [(4, "4 (why)"), (5, "5")])
def test_why_there_are_few_seeds_is_said_below_five(n, shown):
    claim = Claim("EL", "here", "It is so.", "toy", "difference", few="why", headline="it is so")
    lines = tuple((on, Finding("yes", "", number)) for on, number in (("a", n), ("b", n)))
    book = Ledger((Entry(claim, "holds", (*lines, ("c", Finding("not measured", "", 1)))),), ROWS)
    assert [row["n"] for row in book.rows("EL")] == [shown]
    (headline,) = book.headlines()
    assert ("why" in headline) == (n < 5)


def test_the_summary_of_several_lines_names_the_least_and_the_most():
    texts = {0.02: "+2.00 [+1.00, +3.00] points, 5 seeds", -0.01: "−1.00 [−3.00, +1.00] points, 5 seeds", 0.01: "x"}
    lines = tuple((text, Finding("yes" if value > 0 else "no", text, 5, value)) for value, text in texts.items())
    brief = Entry(Claim("EL", "", "", "toy", "difference"), "partly", lines).brief
    assert brief == "of 3 comparisons: 2 yes, 1 no; from −1.00 to +2.00 points, 5 seeds"


def test_what_rows_say_about_themselves_is_counted(tmp_path):
    (tmp_path / "toy.csv").write_text("seed,revision,torch,hardware\n0,abc,2.1,\n1,,2.1,\n")
    book = Ledger((Entry(Claim("EL", "", "", "toy", rows=("toy.csv", "absent.csv")), "not run", ()),), tmp_path)
    there, absent = book.provenance()
    assert (there["number"], there["seed"], there["versions"]) == (2, "yes", "yes")
    assert (there["revision"], there["hardware"], there["command"]) == ("1 of them", "–", "–")
    assert (absent["number"], absent["seed"]) == (0, "–")


def test_the_summary_counts_what_is_decided():
    def entry(verdict):
        return Entry(Claim("EL", "", "", "toy", "difference"), verdict, ())

    counted = Counter(dict(zip(VERDICTS, (3, 4, 5, 6, 7, 8), strict=True)))
    sentence = Ledger(tuple(map(entry, counted.elements())), ROWS).sentence()
    assert list(map(int, re.findall(r"\d+", sentence))) == [33, 12, 3, 4, 5, 6, 7, 8, 0]


PRINTED = {claim.paper: claim for claim in all_claims() if claim.judge == "printed_gains"}


def test_the_gains_that_papers_print_are_tested_as_the_amc_paper_tests_them():
    lines = dict(JUDGES["printed_gains"].function(PRINTED["AMC"]))
    for setting, p in (("cifar10", 0.0214), ("svhn", 0.0002), ("cifar100-coarse", 0.0016)):
        assert float(re.search(r"p = (\S+) ", lines[setting].measured)[1]) == pytest.approx(p, abs=5e-5, rel=0.05)
    el = dict(JUDGES["printed_gains"].function(PRINTED["EL"]))
    test = stats.ttest_ind_from_stats(92.97, 0.42, 5, 92.34, 0.70, 5)
    assert el["cifar10-resnet50"].verdict == "not shown"
    assert f"p = {test.pvalue:.2g}" in el["cifar10-resnet50"].measured
    assert len(el) == 11  # Table 1 has as many columns
    assert [on for on, line in el.items() if line.verdict != "yes"] == ["cifar10-resnet50"]


def test_a_baseline_that_is_ahead_speaks_against_a_printed_gain(monkeypatch):
    rows = [
        {"loss": loss, "measure": "accuracy", "value": value, "sd": "0.001", "source": "EL Table 1"}
        for loss, value in (("ce", "0.9"), ("el:0.5", "0.8"))
    ]
    monkeypatch.setattr(stated, "published", lambda name: rows if name == "nci1" else [])
    assert [line.verdict for _, line in JUDGES["printed_gains"].function(PRINTED["EL"])] == ["no"]


def test_margins_grow_faster_only_if_the_slope_says_so(monkeypatch):
    claim = next(claim for claim in all_claims() if claim.judge == "margin_growth")
    assert {line.verdict for _, line in JUDGES["margin_growth"].function(claim)} == {"yes"}
    monkeypatch.setattr(stated, "build_loss", lambda name: torch.nn.CrossEntropyLoss())
    assert {line.verdict for _, line in JUDGES["margin_growth"].function(claim)} == {"no"}


def table(hardness, right, n=300):
    """Scores of a network: mean C·AVH, and the share that is right."""
    label = np.arange(n) % 10
    pred = np.where(np.arange(n) < right * n, label, (label + 1) % 10)
    avh = hardness / 10 + 0.01 * np.random.default_rng(n).normal(size=n)
    return SampleTable.from_columns({"id": np.arange(n).astype(str), "label": label, "pred": pred, "avh": avh})


def ranked(results, measure="avh"):
    """The findings on how networks rank by a measure, without those that could not be had."""
    (claim,) = (c for c in claims("net-ranking") if (c.judge, c.measure, c.not_run) == ("rank", measure, ""))
    findings = JUDGES["rank"].function(claim, results)
    return [(on, finding) for on, finding in findings if finding.verdict != "not measured"]


def test_scored_runs_are_ranked_by_mean_avh_and_accuracy(tmp_path):
    right = [0.5, 0.6, 0.7, 0.8, 0.9]
    hardness = [0.9, 0.7, 0.8, 0.5, 0.3]
    runs = {f"net {k}": table(*pair) for k, pair in enumerate(zip(hardness, right, strict=True))}
    for name, scored in runs.items():
        scored.save(tmp_path / name)
    results = rank_networks({name: tmp_path / name for name in runs})
    assert not ranked(results, "agreement")  # without people
    ((_, finding),) = ranked(results)
    assert (finding.n, finding.verdict) == (5, "not shown")
    assert finding.value == pytest.approx(stats.spearmanr([r["avh"] for r in results.rows], right).statistic)
    assert finding.value == pytest.approx(-0.9)
    assert [r["accuracy"] for r in results.rows] == pytest.approx(right)
    falling = rank_networks({f"net {k}": table(1 - r, r) for k, r in enumerate(right)})
    assert [(finding.verdict, finding.value) for _, finding in ranked(falling)] == [("yes", pytest.approx(-1))]
    rising = rank_networks({f"net {k}": table(r, r) for k, r in enumerate(right)})
    assert [(finding.verdict, finding.value) for _, finding in ranked(rising)] == [("no", pytest.approx(1))]
    assert not ranked(rank_networks(dict(list(runs.items())[:2])))


def test_networks_are_ranked_in_every_bin_of_human_frequency():
    human = np.linspace(0, 1, 300)
    human[:3] = np.nan
    runs = {f"net {k}": table(1 - 0.1 * k, 0.5 + 0.1 * k) for k in range(4)}
    results = rank_networks(runs, human)
    bins = {row["bin"]: row["n"] for row in results.rows if row["network"] == "net 0"}
    assert len(bins) == 6
    assert bins["all samples"] == 300
    assert sum(count for name, count in bins.items() if name != "all samples") == 297
    assert {on for on, _ in ranked(results)} <= set(bins)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "yes"), (-1, "no")])
def test_networks_are_ranked_by_their_agreement_with_people(sign, verdict):
    human, noise = np.linspace(0, 1, 300), np.random.default_rng(0).random(300)
    runs = {}
    for k in range(5):
        columns = {name: table(0, 0.5 + sign * 0.1 * k)[name] for name in ("id", "label", "pred")}
        runs[f"net {k}"] = SampleTable.from_columns({**columns, "avh": 1 - human + (4 - k) * noise})
    results = rank_networks(runs, human)
    assert np.all(np.diff([row["agreement"] for row in results.rows if row["bin"] == "all samples"]) > 0)
    ((_, finding),) = ranked(results, "agreement")
    assert (finding.n, finding.verdict, finding.value) == (5, verdict, pytest.approx(sign))


# The registry and the page.


EXPERIMENTS = [experiment for claim in all_claims() for experiment in claim.experiments]


@pytest.mark.parametrize("claim", EXPERIMENTS, ids=lambda claim: f"{claim.paper}: {claim.claim[:50]} {claim.on}")
def test_every_claim_is_complete(claim):
    assert claim.paper in ("AVH", "EL", "AMC")
    assert claim.source
    assert claim.data
    assert claim.claim.endswith(".")
    reasons = [bool(claim.rows), bool(claim.not_run), bool(claim.not_testable)]
    if claim.judge and JUDGES[claim.judge].of == "nothing":
        assert not any(reasons)
        return
    assert sum(reasons) == 1
    if not claim.judge:
        assert not claim.study
        return
    assert JUDGES[claim.judge].rule
    assert bool(JUDGES[claim.judge].number) == (JUDGES[claim.judge].of == "run")
    kind = STUDIES[claim.study]
    assert bool(claim.measure) == (JUDGES[claim.judge].of == "study")
    if claim.measure:
        assert claim.measure in kind.measures
        assert all(line.verdict == "not measured" for _, line in JUDGES[claim.judge].function(claim, empty(kind)))


def empty(kind):
    return Results(kind, [], None, 0)


def test_no_claim_stands_twice():
    assert max(Counter((claim.paper, claim.source, claim.claim) for claim in all_claims()).values()) == 1
    for claim in all_claims():
        names = [experiment.on for experiment in claim.experiments]
        assert len(set(names)) == len(names)
        assert all(names) or names == [""]
    sentences = Counter(claim.claim for claim in claims("observations"))
    assert max(sentences.values()) == 1  # they are keys of recorded rows


@pytest.mark.parametrize("claim", [claim for claim in EXPERIMENTS if claim.rows], ids=lambda claim: claim.claim[:60])
def test_every_claim_with_rows_is_about_rows_that_are_there(claim):
    lines = judge_claim(claim, ROWS)
    assert any(line.verdict != "not measured" for _, line in lines)
    if JUDGES[claim.judge].of == "study":
        results = read_results(claim.study, [ROWS / name for name in claim.rows])
        levels = [dict(zip(results.columns, part.levels, strict=True)) for part in pairs(claim, results)]
        for name, among in conditions(claim.where, (*results.study.factors, *results.study.details)).items():
            for level in among:
                present = any(matches({name: ""} | line, {name: [level]}) for line in levels)
                assert present, f"no rows of {name}={level}"


@pytest.mark.parametrize("claim", [c for c in EXPERIMENTS if c.rows and c.effect], ids=lambda claim: claim.claim[:60])
def test_the_paper_s_effect_is_one_that_could_be_reached_here(claim):
    results = read_results(claim.study, [ROWS / name for name in claim.rows])
    for part in pairs(claim, results):  # shares: a gain of 2 points on 99% is excluded whatever is measured
        assert 0 <= part.base.mean() + claim.effect <= 1


@pytest.mark.parametrize("name", ["dynamics-observations.csv", "observations-small.csv"])
def test_rows_of_recorded_runs_were_judged_by_the_present_rules(name):
    rules = {claim.claim: JUDGES[claim.judge].rule for claim in claims("observations")}
    assert not {row["claim"] for row in read_rows(ROWS / name) if row["rule"] != rules[row["claim"]]}


def test_experiments_on_one_claim_share_a_verdict_and_its_correction(tmp_path):
    """Two lines with p = 0.03 each: either alone holds, together neither stands."""
    draw = np.array([-1, -0.5, 0, 0.5, 1]) / 100
    gain = draw + 0.0105
    p = stats.ttest_1samp(gain, 0).pvalue
    assert 0.025 < p < 0.05
    for file, study in (("a.csv", "el-log-end"), ("b.csv", "el-small")):
        lines = ["loss,seed,accuracy"]
        lines += [f"ce,{seed},0.5" for seed in range(5)]
        lines += [f"el:0.75,{seed},{0.5 + value}" for seed, value in enumerate(gain)]
        (tmp_path / file).write_text("\n".join(lines) + "\n")
        assert study in STUDIES
    alone = Claim("EL", "here", "It is so.", "el-log-end", "difference", "accuracy", "loss=el:0.75", rows=("a.csv",))
    alone = alone._replace(expected="higher", data="A (paper: P)", on="first")
    both = alone._replace(also=({"on": "second", "study": "el-small", "rows": ["b.csv"], "data": "B"},))
    (line,) = judge_claim(alone, tmp_path)
    assert (line[0], verdict_of([line[1]])) == ("", "holds")
    lines = judge_claim(both, tmp_path)
    assert [on for on, _ in lines] == ["first", "second"]
    assert [finding.p for _, finding in lines] == [pytest.approx(p)] * 2
    assert verdict_of([finding for _, finding in lines]) == "not shown"
    entry = Entry(both._replace(headline="it is so"), "not shown", lines)
    book = Ledger((entry,), tmp_path)
    (row,) = book.rows("EL")
    assert (row["data"], row["study"]) == ("first: A (paper: P); second: B", "el-log-end, el-small")
    assert book.headlines()[0].endswith("(first: A; second: B)")
    assert [part["rows"] for part in book.provenance()] == ["a.csv", "b.csv"]


def test_own_rows_take_the_place_of_every_experiment_of_their_study(tmp_path):
    rows = "loss,seed,accuracy\n" + "".join(f"ce,{k},0.5\nel:0.75,{k},{0.6 + k / 1000}\n" for k in range(5))
    (tmp_path / "committed.csv").write_text(rows)
    also = [{"on": "second"}, {"on": "third", "study": "el-small"}]
    claim = Claim("EL", "here", "It is so.", "el-log-end", "difference", "accuracy", "loss=el:0.75", also=tuple(also))
    claim = claim._replace(expected="higher", rows=("committed.csv",), on="first")
    assert [on for on, _ in judge_claim(claim, tmp_path)] == ["first", "second", "third"]
    folder = tmp_path / "el-log-end-quick"
    folder.mkdir()
    (folder / "rows.csv").write_text(rows.replace("0.6", "0.4"))
    assert [on for on, _ in judge_claim(claim, tmp_path)] == ["first", "second", "third"]  # of another scale
    lines = judge_claim(claim, tmp_path, "quick")
    assert [(on, line.verdict) for on, line in lines] == [("el-log-end", "no"), ("third", "yes")]


def test_every_study_that_a_claim_names_knows_the_claim():
    """`judged` reads a study's claims: also those that it tests beside another study."""
    for claim in all_claims():
        for experiment in claim.experiments:
            if experiment.judge and experiment.study:
                assert experiment in claims(experiment.study)


def test_a_claim_whose_rows_vanish_is_not_run(tmp_path):
    for file in ROWS.glob("*.csv"):
        shutil.copy(file, tmp_path)
    before = ledger(tmp_path).entries
    (tmp_path / "pacs.csv").unlink()
    changed = [new for old, new in zip(before, ledger(tmp_path).entries, strict=True) if old.verdict != new.verdict]
    assert {(entry.claim.study, entry.verdict) for entry in changed} == {("pacs", "not run")}
    assert all("pacs.csv" in entry.measured for entry in changed)
    for name in ("dynamics-observations.csv", "observations-small.csv"):
        text = (tmp_path / name).read_text().replace("First the angles lower", "At first the angles lower")
        (tmp_path / name).write_text(text)
    (renamed,) = (new for new in ledger(tmp_path, ["AVH"]).entries if new.claim.judge == "two_phases")
    assert (renamed.verdict, renamed.measured) == ("not run", "epoch of the handover: not measured")


def test_rows_of_this_machine_take_the_place_of_committed_ones(tmp_path):
    claim = next(claim for claim in all_claims() if claim.study == "curriculum")
    assert [line.verdict for _, line in judge_claim(claim, tmp_path)] == ["not measured"]
    orders = {"easy to hard": EASE + 0.01 + NOISE, "random order": EASE}
    rows = [
        {"noise": "0", "order": order, "seed": seed, "accuracy": value}
        for order, values in orders.items()
        for seed, value in enumerate(values)
    ]
    folder = tmp_path / "curriculum-paper"
    folder.mkdir()
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    entry = next(entry for entry in ledger(tmp_path).entries if entry.claim == claim)
    assert (entry.verdict, entry.n) == ("holds", str(SEEDS))


@pytest.fixture(scope="module")
def book():
    """Every claim, judged on the committed rows."""
    return ledger(ROWS)


def test_the_committed_page_is_what_the_committed_rows_give(book):
    assert PAGE.read_text(encoding="utf-8") == book.markdown()


def test_the_page_keeps_its_promises(book):
    summary = book.summary()
    assert [row["claims"] for row in summary] == [sum(row[verdict] for verdict in VERDICTS) for row in summary]
    assert summary[-1]["claims"] == len(all_claims()) == sum(row["claims"] for row in summary[:-1])
    for entry in book.entries:
        fewest = min((line.n for _, line in entry.lines if line.verdict != "not measured"), default=5)
        if entry.claim.headline and fewest < 5:
            assert entry.caveat, f"{entry.claim.headline}: why is n = {fewest}?"
        if entry.verdict == "does not hold":
            assert entry.claim.checked, f"{entry.claim.claim}: what was checked before the paper is contradicted?"
        if entry.verdict == "not testable":
            assert not entry.lines
    assert {entry.claim.paper for entry in book.entries if entry.claim.headline} == {"AVH", "EL", "AMC"}


def test_a_verdict_that_needs_the_tests_of_the_page_to_be_few_is_marked(book):
    entries = book.entries
    margins = next(entry for entry in entries if "doubles the margins" in entry.claim.headline)
    assert margins.stands
    translation = next(entry for entry in entries if "improves translation" in entry.claim.headline)
    (weak,) = (line for on, line in translation.lines if on == "fr-en")
    tests = sum(line.p is not None for entry in entries for _, line in entry.lines)
    assert 2 * weak.p < 0.05 < (tests - 60) * weak.p
    assert (translation.verdict, translation.stands) == ("partly", False)


@pytest.mark.parametrize(("p_effect", "stands"), [(1e-9, True), (0.03, False)])
def test_an_excluded_effect_is_corrected_over_the_page_as_an_effect(monkeypatch, p_effect, stands):
    module = sys.modules[ledger.__module__]
    several = tuple(Claim("EL", "", f"Claim {k}.", "toy", "difference") for k in range(4))
    monkeypatch.setattr(module, "all_claims", lambda: several)
    monkeypatch.setattr(module, "judge_claim", lambda *_: (("", line("no", 0.6, p_effect)),))
    entries = ledger(ROWS).entries
    assert [(entry.verdict, entry.stands) for entry in entries] == [("does not hold", stands)] * 4


def test_recorded_verdicts_follow_from_the_numbers_beside_them():
    with (ROWS / "dynamics-observations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rules = {claim.claim: JUDGES[claim.judge] for claim in claims("observations")}
    for row in rows:
        assert row["rule"] == rules[row["claim"]].rule
        if rules[row["claim"]].name == "avh_ahead_of_confidence":
            low, high = float(row["low"]), float(row["high"])
            assert row["verdict"] == ("yes" if low > 0 else "no" if high < 0 else "not shown")
        if rules[row["claim"]].name == "norm_waits" and row["value"]:
            low, high = float(row["low"]), float(row["high"])
            assert row["verdict"] == ("yes" if high < 0.5 else "partly" if low <= 0.5 else "no")


def test_agreement_by_network_is_that_of_the_wide_table():
    results = read_results("people", ROWS / "alignment-people.csv")
    with (ROWS / "alignment-reporting.csv").open(newline="") as file:
        wide = {row["score"]: row for row in csv.DictReader(file) if row["people"] == "all"}
    lines = results.lines("pearson", "half=reporting and score=avh|confidence|angle")
    assert len(lines) == 18
    for part in lines:
        named = dict(zip(results.columns, part.levels, strict=True))
        row = wide[named["score"]]
        values = [float(value) for name, value in row.items() if re.fullmatch(rf"{named['network']}-\d pearson", name)]
        assert (part.n, part.mean) == (3, pytest.approx(np.mean(values)))


def test_the_command_prints_and_writes_the_page(tmp_path, capsys):
    main(["study", "claims", "AMC", "--rows", str(ROWS), "--to", str(tmp_path / "amc.html")])
    printed = capsys.readouterr().out
    assert "AMC-Loss (CVPR workshops 2020)" in printed
    assert "Encouraging" not in printed
    page = (tmp_path / "amc.html").read_text()
    assert "<script" not in page
    assert page.count("<table>") >= 5
    main(["study", "claims", "--rows", str(ROWS), "--to", str(tmp_path / "all.md"), "--json"])
    assert (tmp_path / "all.md").read_text() == PAGE.read_text()
    assert len(json.loads(capsys.readouterr().out)["claims"]) == len(all_claims())


def test_a_paper_or_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"AVHH.* AVH\b"):
        ledger(ROWS, ["AVHH"])
    with pytest.raises(MissingPathError):
        ledger(tmp_path / "nothing")
    assert repr(ledger(tmp_path, ["AMC"])).startswith("Ledger(")
