"""Two runs over the same samples: the join, the tests, and the page's section."""

import numpy as np
import pyarrow as pa
import pytest
from report_runs import listed, table_rows
from scipy import stats

from hardsight import SampleTable
from hardsight.comparison import compare, mean_change, paired_accuracy
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload


def a_run(ids, label, seed, classes=5, names=None, lower=0.0, name="net", **columns):
    draw = np.random.default_rng(seed)
    n = len(ids)
    rows = {
        "id": [f"x:{i}" for i in ids],
        "label": label,
        "pred": np.where(draw.random(n) < 0.7, label, draw.integers(0, classes, n)),
        "avh": (draw.random(n) - lower) / classes,
        "confidence": draw.random(n),
        "nll": draw.random(n),
    }
    rows |= columns
    return SampleTable(pa.table(rows), {"model": {"name": name, "classes": classes}, "class_names": names or []})


LABELS = np.random.default_rng(7).integers(0, 5, 300)


def before_and_after():
    """Two runs that share 250 of 300 and 280 samples, in different orders."""
    old, new = np.random.default_rng(1).permutation(300), np.random.default_rng(2).permutation(np.arange(50, 300))
    new = np.r_[new, 1000 + np.arange(30)]
    labels = np.r_[LABELS, np.zeros(1000, int)]
    return a_run(old, LABELS[old], 3, name="old"), a_run(new, labels[new % 1030], 4, lower=0.1, name="new")


def pairs():
    before, after = before_and_after()
    old = {row["id"]: row for row in before.to_arrow().to_pylist()}
    return before, after, [(row, old[row["id"]]) for row in after.to_arrow().to_pylist() if row["id"] in old]


def test_rows_are_the_naive_join():
    before, after, both = pairs()
    found = compare(after, before)
    assert found["id"].tolist() == [new["id"] for new, _ in both]
    assert found.meta.comparison["counts"] == {
        "matched": 250, "only_after": 30, "only_before": 50, "relabelled": 0, "judged": 250,
    }  # fmt: skip
    for name in ("avh", "confidence", "nll", "pred"):
        assert found[name].tolist() == [new[name] for new, _ in both]
        assert found[f"{name}_before"].tolist() == [old[name] for _, old in both]
    np.testing.assert_allclose(found["avh_change"], [5 * (new["avh"] - old["avh"]) for new, old in both])
    ranks = [stats.rankdata([pair[k]["avh"] for pair in both]) for k in (0, 1)]
    np.testing.assert_allclose(found["rank_change"], (ranks[0] - ranks[1]) / 250, atol=1e-12)
    right = np.array([[row["pred"] == row["label"] for row in pair] for pair in both])
    assert found["fixed"].tolist() == (right[:, 0] & ~right[:, 1]).tolist()
    assert found["broken"].tolist() == (~right[:, 0] & right[:, 1]).tolist()


def test_the_mean_change_is_scipy_s_paired_t_and_accuracy_is_tested_by_mcnemar_s_exact_test():
    before, after, both = pairs()
    meta = compare(after, before).meta.comparison
    change = meta["mean_change"]
    test = stats.ttest_rel([5 * new["avh"] for new, _ in both], [5 * old["avh"] for _, old in both])
    assert change["p"] == pytest.approx(test.pvalue)
    assert (change["low"], change["high"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert change["n"] == 250
    right = np.array([[row["pred"] == row["label"] for row in pair] for pair in both])
    fixed, broken = int((right[:, 0] & ~right[:, 1]).sum()), int((~right[:, 0] & right[:, 1]).sum())
    assert meta["mcnemar"]["p"] == pytest.approx(stats.binomtest(fixed, fixed + broken).pvalue)
    assert meta["accuracy"] == pytest.approx(right[:, 0].mean())
    assert meta["accuracy_before"] == pytest.approx(right[:, 1].mean())
    assert meta["accuracy_change"] == pytest.approx((fixed - broken) / 250)


def test_equal_runs_have_not_changed():
    run = a_run(np.arange(300), LABELS, 3)
    found = compare(run, run)
    assert (found["avh_change"] == 0).all()
    assert found.meta.comparison["mcnemar"]["p"] == 1.0
    change = found.meta.comparison["mean_change"]
    assert (change["value"], change["low"], change["high"], change["p"]) == (0.0, 0.0, 0.0, 1.0)
    assert not found["fixed"].any()


def test_few_or_no_pairs_have_no_interval():
    assert mean_change(np.array([1.0, 2.0, np.nan]), np.zeros(3))["low"] is None
    assert mean_change(np.array([]), np.array([]))["value"] is None
    nobody = np.zeros(3, bool)
    assert paired_accuracy(nobody, nobody, nobody)["mcnemar"] is None


def test_another_number_of_classes_compares_through_c_avh():
    before, after = a_run(np.arange(300), LABELS, 3), a_run(np.arange(300), LABELS, 4, classes=50)
    np.testing.assert_allclose(compare(after, before)["avh_change"], 50 * after["avh"] - 5 * before["avh"])


def test_classes_are_matched_by_name():
    names = list("abcde")
    order = np.random.default_rng(0).permutation(5)  # class k of before is class order[k] of after
    after = a_run(np.arange(300), LABELS, 3, names=names)
    turned = np.argsort(order)
    before = a_run(np.arange(300), turned[LABELS], 4, names=[names[k] for k in order], pred=turned[after["pred"]])
    found = compare(after, before)
    assert not found["relabelled"].any()
    assert found["pred_before"].tolist() == after["pred"].tolist()
    assert not found["fixed"].any()


def test_classes_that_only_the_other_model_has_may_be_predicted():
    after = a_run(np.arange(300), LABELS, 3, names=list("abcde"))
    before = a_run(np.arange(300), LABELS, 4, classes=7, names=list("abcdefg"), pred=np.full(300, 6))
    found = compare(after, before)
    assert found.to_arrow()["pred_before"].null_count == 300
    assert found.meta.comparison["accuracy_before"] == 0
    assert found["fixed"].tolist() == (after["pred"] == LABELS).tolist()


def test_relabelled_samples_are_left_out_of_the_change():
    mended = LABELS.copy()
    mended[:20] = (mended[:20] + 1) % 5
    found = compare(a_run(np.arange(300), mended, 3), a_run(np.arange(300), LABELS, 4))
    assert found["relabelled"].tolist() == [True] * 20 + [False] * 280
    assert np.isnan(found["avh_change"][:20]).all()
    assert not (found["fixed"] | found["broken"])[:20].any()
    assert found.meta.comparison["mean_change"]["n"] == 280
    assert found.meta.comparison["counts"]["judged"] == 280


def test_without_labels_scores_at_the_prediction_are_compared():
    def run(seed):
        draw = np.random.default_rng(seed)
        columns = {"id": [f"{i}" for i in range(40)], "pred": draw.integers(0, 3, 40), "avh_pred": draw.random(40)}
        return SampleTable(pa.table(columns), {"model": {"classes": 3}})

    found = compare(run(0), run(1))
    np.testing.assert_allclose(found["avh_change"], 3 * (run(0)["avh_pred"] - run(1)["avh_pred"]))
    assert "label" not in found
    assert found.meta.comparison["mcnemar"] is None


def test_runs_without_avh_are_compared_by_what_both_have():
    before, after = (t.to_arrow().drop_columns(["avh", "nll"]) for t in before_and_after())
    found = compare(SampleTable(after), SampleTable(before))
    assert found.meta.comparison["by"] == "confidence"
    assert found.meta.comparison["harder"] == "smaller"
    np.testing.assert_allclose(found["confidence_change"], found["confidence"] - found["confidence_before"])
    bare = [SampleTable(t.drop_columns(["confidence"])) for t in (after, before)]
    assert "mean_change" not in compare(*bare).meta.comparison


def test_folders_are_taken_too(tmp_path):
    before, after = before_and_after()
    before.save(tmp_path / "b")
    after.save(tmp_path / "a")
    found = compare(str(tmp_path / "a"), tmp_path / "b")
    assert found.meta.comparison["mean_change"] == compare(after, before).meta.comparison["mean_change"]


@pytest.mark.parametrize(
    ("after", "before", "sentence"),
    [
        (a_run(range(9), [0] * 9, 0), a_run(range(20, 29), [0] * 9, 0), r"in common .*'x:0'"),
        (a_run(range(9), [0] * 9, 0, names=["a", "b"]), a_run(range(9), [0] * 9, 0, names=["c", "b"]),
         r"classes; 1 .*\(c\)"),
        (a_run(range(9), [0] * 9, 0), a_run(range(9), [1] * 9, 0), "labels of 9 of 9"),
        (a_run(range(9), [0] * 9, 0), SampleTable.from_columns({"id": ["x:1"], "pred": [0]}),
         "after has labels"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_a_sentence(after, before, sentence):
    with pytest.raises(ValueError, match=sentence):
        compare(after, before)
    with pytest.raises(TypeError, match=r"before .*SampleTable .*int"):
        compare(before_and_after()[0], 3)


@pytest.fixture(scope="module")
def page():
    before, after = before_and_after()
    return make_payload(Rows(after), against=before), compare(after, before)


def test_lists_of_what_changed_are_full_sorts(page):
    payload, found = page
    order = sorted(range(len(found)), key=lambda i: (-found["avh_change"][i], found["id"][i]))
    assert listed(payload, "harder") == [found["id"][i] for i in order if found["avh_change"][i] > 0][:48]
    order = sorted(range(len(found)), key=lambda i: (found["avh_change"][i], found["id"][i]))
    assert listed(payload, "easier") == [found["id"][i] for i in order if found["avh_change"][i] < 0][:48]


def test_before_and_after_have_one_scale_and_numpy_s_density(page):
    payload, found = page
    view = payload["views"][-1]
    assert view["key"] == "before-after"
    over = (view["x"]["low"], view["x"]["high"])
    assert over == (view["y"]["low"], view["y"]["high"])
    counts, _, _ = np.histogram2d(5 * found["avh"], 5 * found["avh_before"], (48, 60), [over, over])
    assert view["density"]["counts"] == counts.astype(int).ravel().tolist()
    columns = payload["points"]["scores"]
    assert sum(value is not None for value in columns["before"]) == 250
    assert set(columns) == set(payload["scores"])


def test_classes_that_changed_have_scipy_s_paired_intervals(page):
    payload, found = page
    rows = table_rows(payload["comparison"]["tables"][0])
    changes = [abs(row["change"][0]) for row in rows]
    assert changes == sorted(changes, reverse=True)
    assert len(rows) == 5
    for row in rows:
        own = found["label"] == int(row["class"])
        test = stats.ttest_rel(5 * found["avh"][own], 5 * found["avh_before"][own])
        assert row["n"] == own.sum()
        assert row["change"][1:] == pytest.approx(list(test.confidence_interval(0.95)), rel=1e-3)
        assert row["accuracy"] == pytest.approx(np.mean(found["pred"][own] == found["label"][own]), rel=1e-3)
        assert row["accuracy_before"] == pytest.approx(
            np.mean(found["pred_before"][own] == found["label"][own]), rel=1e-3
        )


def test_tiles_say_what_changed(page):
    payload, found = page
    tiles = {name: {"value": value, "note": note} for name, value, note in payload["comparison"]["tiles"]}
    meta = found.meta.comparison
    assert tiles["in both runs"]["value"] == "250"
    assert tiles["in both runs"]["note"] == "30 only in this run, 50 only in the other"
    assert tiles["wrong before, right now"]["value"] == str(meta["mcnemar"]["fixed"])
    assert f"p = {meta['mcnemar']['p']:.2g}" in tiles["accuracy"]["note"]
    assert tiles["mean change of C·AVH"]["value"] == f"{meta['mean_change']['value']:+.3g}".replace("-", "−")
    assert payload["comparison"]["note"].startswith("new against old")


def test_a_comparison_without_scores_in_common_still_makes_a_page():
    before, after = before_and_after()
    bare = SampleTable(before.to_arrow().select(["id", "label", "pred"]))
    payload = make_payload(Rows(after), against=bare)
    assert payload["comparison"]["tiles"][1][0] == "accuracy"
    assert all(row["change"][0] is None for row in table_rows(payload["comparison"]["tables"][0]))
