"""Groups compared number by number: every test against scipy, Holm by hand, and nothing claimed that none bears out."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hardsight.evaluation.latex import escaped, latex_table
from hardsight.evaluation.statistics import compare_groups, flag_of
from hardsight.stats import paired_difference, welch_difference


def rows_of(groups, metric="auroc", question="ood", better="higher", seeds=None, level=math.nan):
    """A row per run of each group."""
    return [
        {
            "question": question, "metric": metric, "score": "msp", "on": "", "level": level, "better": better,
            "run": f"{group}-{i}", "group": group, "value": value,
            "seed": i if seeds is None else seeds[group][i],
        }
        for group, values in groups.items()
        for i, value in enumerate(values)
    ]  # fmt: skip


def nothing(row):
    return None


def only(rows, columns=nothing):
    [test] = compare_groups(rows, columns)
    return test


A, B = [0.95, 0.96, 0.94, 0.97], [0.97, 0.965, 0.98, 0.975]


def test_equal_seeds_are_compared_in_pairs_whatever_their_order():
    test = only(rows_of({"ce": A, "el": [B[i] for i in (2, 0, 3, 1)]}, seeds={"ce": [0, 1, 2, 3], "el": [2, 0, 3, 1]}))
    found = stats.ttest_rel(B, A)
    ends = found.confidence_interval()
    assert test["how"] == "paired t over 4 seeds"
    assert (test["p"], test["low"], test["high"]) == pytest.approx((found.pvalue, ends.low, ends.high))
    assert (test["mean"], test["sd"], test["n"]) == pytest.approx((np.mean(B), np.std(B, ddof=1), 4))
    assert (test["baseline"], test["baseline_mean"]) == ("ce", pytest.approx(np.mean(A)))
    assert test["difference"] == pytest.approx(np.mean(B) - np.mean(A))


@pytest.mark.parametrize("seeds", [[0, 1, 2, 4], [None] * 4, [0, 0, 1, 2]])
def test_other_seeds_unknown_ones_and_repeated_ones_are_compared_by_welch(seeds):
    test = only(rows_of({"ce": A, "el": B}, seeds={"ce": seeds if None in seeds else [0, 1, 2, 3], "el": seeds}))
    found = stats.ttest_ind(B, A, equal_var=False)
    ends = found.confidence_interval()
    assert test["how"] == "Welch's t over 4 and 4 runs"
    assert (test["p"], test["low"], test["high"]) == pytest.approx((found.pvalue, ends.low, ends.high))
    fewer = only(rows_of({"ce": A, "el": B[:2]}))
    assert fewer["p"] == pytest.approx(stats.ttest_ind(B[:2], A, equal_var=False).pvalue)


def test_holm_goes_over_all_tests_of_a_question_and_over_no_other():
    made = np.random.default_rng(0)
    rows = []
    for question, metrics in (("ood", ("auroc", "fpr95", "aupr")), ("margins", ("margin",))):
        for metric in metrics:
            shift = made.normal(0.02, 0.01)
            groups = {g: made.normal(0.9 + k * shift, 0.01, 5) for k, g in enumerate(("ce", "el", "amc"))}
            rows += rows_of(groups, metric, question)
    rows += rows_of({"ce": A, "el": B}, "temperature", "ood", better="")  # of which neither side is better
    tests = compare_groups(rows, nothing)
    assert len(tests) == 2 * 4 + 1
    for question, count in (("ood", 6), ("margins", 2)):
        family = sorted(
            (test for test in tests if test["question"] == question and test["better"]), key=lambda test: test["p"]
        )
        assert len(family) == count
        largest = 0.0
        for k, test in enumerate(family):
            largest = min(1.0, max(largest, (count - k) * test["p"]))
            assert test["p_holm"] == pytest.approx(largest)
    plain = next(test for test in tests if not test["better"])
    assert math.isfinite(plain["p"])
    assert math.isnan(plain["p_holm"])
    assert flag_of(plain) == ""


def test_a_difference_counts_only_after_correction_and_the_sign_follows_what_is_better():
    far = {"ce": [0.1, 0.12, 0.11], "el": [0.9, 0.91, 0.92]}
    assert flag_of(only(rows_of(far))) == "better"
    assert flag_of(only(rows_of(far, better="lower"))) == "worse"
    crowd = [row for k in range(40) for row in rows_of({"ce": A, "el": B}, metric=f"m{k}")]
    raw = only(rows_of({"ce": A, "el": [a + d for a, d in zip(A, (0.02, 0.03, 0.025, 0.021), strict=True)]}))
    assert raw["p_holm"] == raw["p"] < 0.01
    tests = compare_groups(crowd + rows_of({"ce": A, "el": B}, metric="last"), nothing)
    assert all(flag_of(test) == "" for test in tests)


def columns_of(values, ids=None):
    def columns(row):
        return [((ids or {}).get(row["run"], [f"s{i}" for i in range(len(values[row["run"]]))]), values[row["run"]])]

    return columns


def single(values, **options):
    return only(rows_of({"ce": [np.nanmean(values["ce-0"])], "el": [np.nanmean(values["el-0"])]}, **options),
                columns_of(values))  # fmt: skip


def test_one_run_each_is_compared_over_samples():
    made = np.random.default_rng(1)
    values = {"ce-0": made.normal(size=50), "el-0": made.normal(0.3, size=50)}
    test = single(values)
    found = stats.ttest_rel(values["el-0"], values["ce-0"])
    assert test["how"] == "paired t over 50 samples"
    assert (test["p"], test["low"]) == pytest.approx((found.pvalue, found.confidence_interval().low))
    assert math.isnan(test["sd"])
    right = {name: (column > 0).astype(float) for name, column in values.items()}
    test = single(right)
    more, less = (right["el-0"] > right["ce-0"]).sum(), (right["el-0"] < right["ce-0"]).sum()
    assert test["how"] == "McNemar's exact test over 50 samples"
    assert test["p"] == pytest.approx(stats.binomtest(int(more), int(more + less)).pvalue)
    assert test["low"] < test["difference"] < test["high"]


def test_samples_are_paired_by_id_and_those_without_a_value_left_out():
    a, b = np.array([1.0, 2.0, 4.0, 8.0, np.nan]), np.array([9.0, 3.5, 2.5, 0.0, 5.0, 7.0])
    ids = {"ce-0": ["a", "b", "c", "d", "e"], "el-0": ["d", "c", "b", "x", "a", "e"]}
    columns = columns_of({"ce-0": a, "el-0": b}, ids)
    test = only(rows_of({"ce": [3.0], "el": [4.0]}), columns)
    assert test["p"] == pytest.approx(stats.ttest_rel([5.0, 2.5, 3.5, 9.0], [1.0, 2.0, 4.0, 8.0]).pvalue)
    assert test["how"] == "paired t over 4 samples"


def test_what_cannot_be_tested_says_why():
    test = only(rows_of({"ce": A, "el": B[:1]}))
    assert test["how"] == "no test: one of the groups has one run only"
    assert math.isnan(test["p"])
    assert test["difference"] == pytest.approx(B[0] - np.mean(A))
    assert only(rows_of({"ce": A[:1], "el": B[:1]}))["how"] == "no test: one run each, and no mean over samples"
    constant = only(rows_of({"ce": [0.5, 0.6, 0.7], "el": [0.6, 0.7, 0.8]}))
    assert constant["how"] == "no test: without any spread"
    assert flag_of(constant) == ""
    assert only(rows_of({"ce": [0.5, 0.6], "el": [0.5, 0.6]}))["p"] == 1.0
    assert float(welch_difference(np.array([0.5, 0.5]), np.array([0.5, 0.5])).p) == 1.0
    equal = only(rows_of({"ce": [0.1] * 3, "el": [0.2] * 3}, seeds={"ce": [0, 1, 2], "el": [3, 4, 5]}))
    assert equal["how"] == "no test: without any spread"  # of which rounding alone makes 1e-34
    assert flag_of(equal) == ""
    alone = welch_difference(np.array([0.1] * 3), np.array([0.2, 0.3, 0.1]))
    assert float(alone.p) == pytest.approx(stats.ttest_1samp([0.2, 0.3, 0.1], 0.1).pvalue)
    assert compare_groups(rows_of({"ce": A}), nothing) == []
    assert compare_groups([], nothing) == []
    few = single({"ce-0": np.array([1.0, np.nan]), "el-0": np.array([2.0, 3.0])})
    assert few["how"] == "no test: fewer than two samples in common"


def test_nan_is_no_value_and_levels_without_one_are_alike():
    test = only(rows_of({"ce": [*A, math.nan], "el": [*B, 0.5]}))
    assert (test["n"], test["baseline_n"]) == (5, 4)
    assert test["how"] == "Welch's t over 5 and 4 runs"  # seeds are no longer the same
    assert compare_groups(rows_of({"ce": [math.nan], "el": B}), nothing) == []
    assert len(compare_groups(rows_of({"ce": A, "el": B}) + rows_of({"ce": A, "el": B}, level=0.1), nothing)) == 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 2)), min_size=3, max_size=12))
def test_t_on_differences_is_scipys(differences):
    values = np.array(differences)
    found = paired_difference(values)
    if np.ptp(values) == 0:
        assert float(found.p) == 1.0 if values[0] == 0 else math.isnan(found.p)
        return
    expected = stats.ttest_1samp(values, 0)
    assert float(found.p) == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# LaTeX.


HOSTILE = r"50%_of #1 & {all} $x^2$ ~ \end{tabular} <b>"


def test_names_cannot_command_latex():
    text = escaped(HOSTILE + "\x1b[31m\n")
    bare = text
    for command in ("textbackslash{}", "textasciitilde{}", "textasciicircum{}", "textless{}", "textgreater{}"):
        bare = bare.replace("\\" + command, "")
    bare = re.sub(r"\\[{}$&%#_]", "", bare)
    assert not set(bare) & set("\\{}$&%#_~^<>\n\x1b")
    table = latex_table(rows_of({HOSTILE: A, "b_2": B}), [])
    body = [line for line in table.splitlines() if not line.startswith("%")]
    assert all(line.count("&") - line.count(r"\&") == 2 for line in body if line.endswith(r"\\"))
    assert sum(line == r"\end{tabular}" for line in body) == 1


def test_bold_is_the_best_only_where_the_corrected_test_says_so():
    far = rows_of({"ce": [0.10, 0.12, 0.11], "el": [0.90, 0.91, 0.92], "amc": [0.80, 0.81, 0.83]})
    table = latex_table(far, compare_groups(far, nothing))
    assert table.count("mathbf") == 1
    assert r"$0.1100 \pm 0.0100$ & $\mathbf{0.9100} \pm 0.0100$" in table
    assert "ce ($n = 3$) & el ($n = 3$) & amc ($n = 3$)" in table
    lower = rows_of({"ce": [0.10, 0.12, 0.11], "el": [0.90, 0.91, 0.92], "amc": [0.80, 0.81, 0.83]}, better="lower")
    assert r"$\mathbf{0.1100} \pm" in latex_table(lower, compare_groups(lower, nothing))
    near = rows_of({"ce": A, "el": [a + 0.001 * (-1) ** i for i, a in enumerate(A)]})
    assert "mathbf" not in latex_table(near, compare_groups(near, nothing))
    half = rows_of({"ce": [0.10, 0.12, 0.11], "el": [0.90, 0.91, 0.92], "amc": [0.1, 0.13, 0.1]}, better="lower")
    assert "mathbf" not in latex_table(half, compare_groups(half, nothing))  # the first is not surely best of all
    alone = rows_of({"ce": [math.nan], "el": [0.5]})
    assert "-- & $0.5000$" in latex_table(alone, compare_groups(alone, nothing))
