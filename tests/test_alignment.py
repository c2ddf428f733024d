"""`align` and the paper's hypotheses and tables."""

import math
import re

import numpy as np
import pytest
from scipy import stats

from hardsight.correlation import resampled
from hardsight.people import align, align_run, alignment, candidates, compare_scores, differences, hypotheses, match
from hardsight.scores import norm_within_class
from hardsight.studies.quoted import printed_tables
from hardsight.table import SampleTable

SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}


@pytest.fixture(scope="module")
def seen():
    """Columns of 240 samples of three classes, and how many of 20 people chose each class."""
    draw = np.random.default_rng(0)
    n = 240
    ease, label = draw.normal(size=n), draw.integers(0, 3, n)
    columns = {
        "id": [f"test:{k}" for k in range(n)],
        "label": label,
        "avh": -ease + draw.normal(size=n),
        "confidence": np.round(1 / (1 + np.exp(-2 - 2 * ease + draw.normal(size=n))), 2),
        "norm": 10.0 * label + 3 + draw.normal(size=n),
        "comment": ["text"] * n,
    }
    chosen = draw.binomial(20, 1 / (1 + np.exp(-2 - 2 * ease)))
    counts = np.zeros((n, 3), int)
    counts[np.arange(n), label] = chosen
    counts[np.arange(n), (label + 1) % 3] = 20 - chosen
    return columns, counts


def hsf(seen):
    columns, counts = seen
    return counts[np.arange(len(counts)), columns["label"]] / 20


def test_every_row_is_scipy_s_coefficient_on_the_samples_of_its_bin(seen):
    columns, people = seen[0], hsf(seen)
    found = align(columns, dict(zip(columns["id"], people, strict=True)))
    rows = found.rows.to_pylist()
    assert [row["bin"] for row in rows[::3]] == 3 * [
        "all",
        "[0, 0.2)",
        "[0.2, 0.4)",
        "[0.4, 0.6)",
        "[0.6, 0.8)",
        "[0.8, 1]",
    ]
    # Text and labels are no scores.
    assert {row["score"]: row["direction"] for row in rows} == {"avh": -1, "confidence": 1, "norm": 1}
    for row in rows:
        low, high = (0, 2) if row["bin"] == "all" else map(float, row["bin"].strip("[])").split(","))
        inside = (people >= low) & ((people < high) | (row["bin"] == "[0.8, 1]"))
        assert row["n"] == inside.sum()
        x, y = np.asarray(columns[row["score"]])[inside], people[inside]
        assert row["value"] == pytest.approx(SCIPY[row["coefficient"]](x, y).statistic, abs=1e-12)
        assert row["agreement"] == row["direction"] * row["value"]
        assert row["low"] <= row["value"] <= row["high"]
        equal = sum((values[:, None] == values).sum() - len(values) for values in (y,))
        assert row["ties"] == pytest.approx(equal / (len(y) * (len(y) - 1)))
    assert sum(row["n"] for row in rows if row["score"] == "avh" and row["coefficient"] == "kendall") == 480
    overall = {row["score"]: row["agreement"] for row in rows if row["bin"] == "all"}
    assert overall["avh"] > 0.3
    assert overall["confidence"] > 0.3


def test_counts_frequencies_tables_and_run_folders_say_the_same(seen, tmp_path):
    columns, shares = seen[0], hsf(seen)
    numbers = align(columns, shares).rows
    assert align(*seen).rows.equals(numbers)
    table = SampleTable.from_columns(columns)
    assert align(table, shares).rows.equals(numbers)
    assert align(table.save(tmp_path / "run"), dict(zip(columns["id"], shares, strict=True))).rows.equals(numbers)


def test_counts_give_a_ceiling_and_frequencies_do_not(seen):
    found = align(*seen, coefficients=["pearson"])
    assert [one.coefficient for one in found.ceilings] == ["pearson"]
    assert 0.8 < found.ceilings[0].ceiling < 1
    assert align(seen[0], hsf(seen)).ceilings == []


def test_custom_edges_bins_and_scores(seen):
    rows = align(seen[0], hsf(seen), edges=(0, 0.5, 1), scores=["avh"], coefficients=["kendall"]).rows.to_pylist()
    assert [row["bin"] for row in rows] == ["all", "[0, 0.5)", "[0.5, 1]"]


def test_the_norm_is_scaled_within_each_class_if_asked(seen):
    columns, shares = seen[0], hsf(seen)
    rows = align(columns, shares, norm="class", coefficients=["spearman"]).rows.to_pylist()
    found = next(row for row in rows if row["score"] == "norm_within_class" and row["bin"] == "all")
    scaled = norm_within_class(columns["norm"], columns["label"]).numpy()
    assert found["value"] == pytest.approx(stats.spearmanr(scaled, hsf(seen)).statistic)
    assert not any(row["score"] == "norm" for row in rows)
    named = align(columns, shares, norm="class", scores=["norm"], coefficients=["spearman"]).rows.to_pylist()
    assert named[0]["score"] == "norm_within_class"


def test_what_is_missing_is_reported_not_hidden(seen):
    columns, people = dict(seen[0]), hsf(seen)
    columns["avh"] = columns["avh"].copy()
    columns["avh"][:7] = [np.nan, np.inf, -np.inf, *4 * [np.nan]]
    columns["margin"] = np.full(240, 2.0)
    given = dict(zip(columns["id"][:200], people[:200], strict=True)) | {"elsewhere": 0.5}
    found = align(columns, given)
    assert "200 of 240 samples" in found.notes[0]
    assert "elsewhere" in found.notes[0]
    assert any(re.match("avh .*finite .* 7 ", note) for note in found.notes)
    assert any(re.match("margin .*2 for all", note) for note in found.notes)
    rows = {(row["score"], row["bin"]): row for row in found.rows.to_pylist()}
    assert rows["avh", "all"]["n"] == 193
    assert rows["confidence", "all"]["n"] == 200
    assert rows["margin", "all"]["value"] is None
    assert rows["margin", "all"]["score_ties"] == 1


def test_few_samples_have_no_interval_and_fewer_no_value(seen):
    columns, people = seen[0], hsf(seen)
    by_people = np.argsort(people, kind="stable")
    chosen = [*by_people[:3], *by_people[-6:]]
    few = {name: np.asarray(values)[chosen] for name, values in columns.items()}
    rows = align(few, people[chosen], scores=["avh"], coefficients=["spearman"], edges=(0, 0.7, 1)).rows.to_pylist()
    assert rows[0]["n"] == 9
    assert rows[0]["value"] is not None
    assert rows[0]["low"] is None
    assert rows[1]["n"] == 3
    assert rows[1]["value"] is None


@pytest.mark.parametrize(
    ("without", "people", "options", "message"),
    [
        ((), np.full(240, 0.5), {}, r"human .*0\.5 for all 240"),
        ((), {"test:0": 0.1, "test:1": 0.2, "test:2": 0.3}, {}, "human .*4 samples .*got 3"),
        ((), {"test:0": 0.1, "test:1": 1.2}, {}, "1.2"),
        ((), {"a": 0.1, "b": 0.2}, {}, "240 samples"),
        (("label",), None, {}, "table .*column label"),
        (("avh", "confidence", "norm"), None, {}, "table .*score"),
        (("id",), None, {}, "table .*SampleTable.* id"),
        ((), None, {"edges": (1, 0)}, "edges must"),
        ((), None, {"norm": "batch"}, "norm .*'batch'"),
        ((), None, {"coefficients": ["tau"]}, "coefficients .*'tau'"),
        ((), None, {"scores": ["comment"]}, "comment .*string"),
        ((), None, {"scores": ["avg"]}, "scores .*'avg'"),
    ],
)
def test_what_cannot_be_aligned_is_said(seen, without, people, options, message):
    columns = {name: values for name, values in seen[0].items() if name not in without}
    with pytest.raises(ValueError, match=message):
        align(columns, seen[1] if people is None else people, **options)


def test_the_four_hypotheses_have_outcomes_in_words(seen):
    found = {one.name: one for one in hypotheses(*seen, resamples=200)}
    assert list(found) == [f"Hypothesis {k}" for k in (1, 2, 3, 4)]
    assert found["Hypothesis 1"].verdict == found["Hypothesis 2"].verdict == "holds"
    assert found["Hypothesis 3"].verdict == "does not hold"  # made so: confidence follows people more closely
    assert found["Hypothesis 4"].verdict == "not decided"  # the norm is noise, and 240 samples are few
    for one in found.values():
        assert set(one.numbers) == set(SCIPY)
        assert one.sentence.startswith(one.claim)
    row = align(seen[0], hsf(seen), scores=["norm"], norm="class", coefficients=["kendall"]).rows.to_pylist()[0]
    assert found["Hypothesis 4"].numbers["kendall"]["value"] == pytest.approx(row["agreement"])


def test_a_norm_that_says_nothing_of_many_samples_does_not_correlate():
    draw = np.random.default_rng(1)
    columns = {
        "id": [f"test:{k}" for k in range(12000)],
        "label": draw.integers(0, 3, 12000),
        "norm": draw.random(12000),
    }
    (found,) = hypotheses(columns, draw.random(12000))
    assert (found.name, found.verdict, found.paper) == ("Hypothesis 4", "does not hold", "not shown")


def test_hypotheses_without_their_scores_are_left_out_and_constant_scores_decide_nothing(seen):
    columns = {name: seen[0][name] for name in ("id", "label", "confidence")}
    assert [one.name for one in hypotheses(columns, seen[1])] == ["Hypothesis 2"]
    constant = {**seen[0], "confidence": np.ones(240)}
    found = {one.name: one for one in hypotheses(constant, seen[1])}
    assert list(found) == [f"Hypothesis {k}" for k in (1, 2, 3, 4)]
    assert found["Hypothesis 1"].verdict == "holds"
    for name in ("Hypothesis 2", "Hypothesis 3"):
        assert (found[name].verdict, found[name].numbers) == ("not decided", {})
        assert "1 for all 240" in found[name].sentence
    with pytest.raises(ValueError, match="human must differ"):
        hypotheses(columns, np.ones(240))


def test_hypotheses_take_tests_that_were_made_already(seen, monkeypatch):
    tests = [
        compare_scores(seen[0], *pair, seen[1], coefficient=name, resamples=200)
        for name in SCIPY
        for pair in (("avh", "confidence"), ("confidence", "avh"))
    ]
    expected = hypotheses(*seen, resamples=200)
    monkeypatch.setattr(differences, "resampled", None)
    assert hypotheses(*seen, tests=tests) == expected


def test_a_run_is_resampled_once_and_a_constant_score_does_not_stop_it(seen, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(differences, "resampled", lambda *given: calls.append(given[2]) or resampled(*given[:3], 100))
    found = align_run(SampleTable.from_columns(seen[0]).save(tmp_path / "run"), seen[1])
    assert calls == [(name,) for name in SCIPY]
    by_name = {one.name: one for one in found.hypotheses}
    low = [by_name["Hypothesis 3"].numbers[name]["low"] for name in SCIPY]
    assert [test.low for test in found.differences] == low
    constant = SampleTable.from_columns({**seen[0], "confidence": np.ones(240)}).save(tmp_path / "constant")
    found = align_run(constant, seen[1])
    assert len(found.differences) == 0
    assert any("confidence must differ" in text for text in found.notes)
    with pytest.raises(ValueError, match="confidence must differ"):
        align_run(constant, seen[1], compare=["avh", "confidence"])


def test_people_are_matched_once_with_the_samples_of_a_run(seen, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(candidates, "match", lambda *given: calls.append(given) or match(*given))
    found = align_run(SampleTable.from_columns(seen[0]).save(tmp_path / "run"), seen[1])
    assert len(calls) == 1
    assert (len(found.leaderboard), len(found.differences), len(found.hypotheses), len(found.ceilings)) == (4, 3, 4, 3)


def test_the_paper_s_tables_1_and_2_are_scipy_s_coefficients_and_fisher_s_z(seen, tmp_path):
    columns, people = seen[0], hsf(seen)
    found = align_run(SampleTable.from_columns(columns).save(tmp_path / "run"), seen[1])
    counts, *rows = found.table1()
    scores = {name: (np.asarray(columns[name]), sign) for name, sign in (("avh", -1), ("confidence", 1), ("norm", 1))}
    scores["norm_within_class"] = norm_within_class(columns["norm"], columns["label"]).numpy(), 1
    assert [row["score"] for row in rows] == list(scores)
    edges = {"all": (0, 2), "[0, 0.2)": (0, 0.2), "[0.2, 0.4)": (0.2, 0.4), "[0.8, 1]": (0.8, 2)}
    for name, (low, high) in edges.items():
        inside = (people >= low) & (people < high)
        assert counts[name] == inside.sum()
        for row, (values, sign) in zip(rows, scores.values(), strict=True):
            assert row[name] == pytest.approx(sign * stats.spearmanr(values[inside], people[inside]).statistic)
    for row in rows:
        assert row["z"] == pytest.approx(0.5 * math.log((1 + row["all"]) / (1 - row["all"])))
    for row in found.table2():
        avh, confidence = (
            sign * SCIPY[row["coefficient"]](x, people).statistic for x, sign in list(scores.values())[:2]
        )
        z = (math.atanh(avh) - math.atanh(confidence)) / math.sqrt(2 / 237)
        assert (row["z_avh"], row["z_confidence"]) == pytest.approx((math.atanh(avh), math.atanh(confidence)))
        assert (row["Z"], row["p"]) == pytest.approx((z, stats.norm.sf(z)))
    text = found.text()
    assert all(f"{row['z']:.3f}" in text and f"{row['[0.8, 1]']:.3f}" in text for row in rows)
    assert all(f"{row['Z']:.3f}" in text for row in found.table2())


def test_fewer_than_ten_samples_decide_nothing():
    ease = np.arange(9.0)
    columns = {"id": list("abcdefghi"), "avh": -ease, "confidence": ease % 3}
    assert [one.verdict for one in hypotheses(columns, ease / 9, resamples=200)] == 3 * ["not decided"]
    assert compare_scores(columns, "avh", "confidence", ease / 9, resamples=200).sentence.startswith("no difference")


def test_the_paper_s_tables_follow_from_their_coefficients_but_for_one_row():
    rows = printed_tables().to_pylist()
    assert [sum(row["table"] == table for row in rows) for table in "26789"] == [3] * 5
    (slip,) = [row for row in rows if not row["agrees"]]
    assert (slip["table"], slip["net"], slip["coefficient"]) == ("9", "DenseNet-121", "spearman")
    assert round(slip["Z"], 3) == 5.295
    assert slip["printed_Z"] == "6.2"
    assert "ResNet-50's Pearson row" in slip["note"]
    pasted = next(row for row in rows if (row["table"], row["coefficient"]) == ("8", "pearson"))
    assert round(pasted["z_avh"], 4) == float(slip["printed_z_avh"])
    assert pasted["printed_Z"] == slip["printed_Z"]
    for row in rows:  # by hand
        z = [0.5 * math.log((1 + r) / (1 - r)) for r in (row["r_avh"], row["r_mc"])]
        assert [row["z_avh"], row["z_mc"]] == pytest.approx(z)
        assert row["Z"] == pytest.approx((z[0] - z[1]) * math.sqrt(29984 / 2))
        assert row["p_one_sided"] == pytest.approx(stats.norm.sf(row["Z"]))
    weak = [row for row in rows if row["p_two_sided"] > 0.05]
    names = [*SCIPY], ["spearman", "kendall"]
    expected = [(net, name) for net, own in zip(("AlexNet", "VGG-19"), names, strict=True) for name in own]
    assert [(row["net"], row["coefficient"]) for row in weak] == expected
    assert all("not significant" in row["note"] for row in weak)


COUNTS = np.random.default_rng(2).integers(1, 9, (40, 2))
PEOPLE = {f"test:{k}": share for k, share in enumerate(np.random.default_rng(1).random(40).round(1))}


@pytest.mark.parametrize(
    ("where", "what", "call"),
    [
        (differences, "resampled", lambda run: hypotheses(run, PEOPLE)),
        (alignment, "ceiling", lambda run: align(run, COUNTS)),
        (alignment, "compare_scores", lambda run: align_run(run, PEOPLE)),
    ],
)
def test_a_bug_of_ours_is_no_sentence(where, what, call, tmp_path, monkeypatch):
    def broken(*args, **options):
        return np.ones(2) + np.ones(3)

    random = np.random.default_rng(0)
    columns = {"id": list(PEOPLE), "label": np.arange(40) % 2, "pred": np.arange(40) % 2}
    columns |= {name: random.random(40) for name in ("avh", "confidence", "norm")}
    table = SampleTable.from_columns(columns)
    table.save(tmp_path / "run")
    monkeypatch.setattr(where, what, broken)
    with pytest.raises(ValueError, match="broadcast"):
        call(tmp_path / "run")
