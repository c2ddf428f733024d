"""The comparison page says what the files of an evaluation say, and can be looked at."""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_pages import answers_of, write_evaluation
from report_pages import HOSTILE

import hardsight as hs
from hardsight.evaluation import read_evaluation
from hardsight.evaluation.naming import QUESTIONS, meaning, score_title, variant_title, written
from hardsight.questions.answers import Note
from hardsight.report.comparisonpage import comparison, write_comparison

MASKED = "Gradient masking (scale): pgd leaves 90 % right and pgd-margin 3 %."


def page_of(folder, **options):
    return comparison(read_evaluation(write_evaluation(folder, **options)))


def section_of(page, question):
    return next(section for section in page["sections"] if section.key == question)


def row_of(page, question, title):
    [table] = section_of(page, question).tables
    return next(row[2:] for row in table["rows"] if row[0].rstrip(" ↑↓") == title)


def test_a_cell_is_the_mean_and_standard_deviation_of_the_runs(tmp_path):
    page = page_of(tmp_path)
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    cells = row_of(page, "calibration", "accuracy")
    for cell, group in zip(cells, ("CE", "EL", "AMC"), strict=True):
        values = [
            100 * row["value"]
            for row in rows
            if (row["group"], row["metric"], row["level"] == row["level"]) == (group, "accuracy", False)
        ]
        assert cell["text"] == f"{np.mean(values):.2f}%"
        assert cell["sd"] == f"± {np.std(values, ddof=1):.2f}"


def test_one_run_has_its_interval_and_its_numbers_are_said_in_words(tmp_path):
    page = page_of(tmp_path, groups=("CE",), seeds=1)
    assert row_of(page, "calibration", "accuracy")[0]["interval"] == "91.53 to 94.53%"
    assert "nothing to compare" in page["lead"]
    texts = page["verdicts"]
    assert texts["Out of distribution"][0].startswith(
        "AUROC, max logit · fashion_mnist 95.03%; AUROC, max logit · noise 95.03%"
    )


@pytest.mark.parametrize(("p", "better", "difference", "flag"), [
    (0.049, "higher", 0.02, "better"), (0.049, "higher", -0.02, "worse"), (0.049, "lower", -0.02, "better"),
    (0.051, "higher", 0.02, ""), (float("nan"), "higher", 0.02, ""), (0.001, "", 0.02, ""),
])  # fmt: skip
def test_marks_follow_the_corrected_test_and_the_direction(tmp_path, p, better, difference, flag):
    write_evaluation(tmp_path, groups=("CE", "EL"))
    tests = pq.read_table(tmp_path / "tests.parquet")
    changed = [
        one | {"p": 1e-9, "p_holm": p if better else float("nan"), "better": better, "difference": difference}
        for one in tests.to_pylist()
    ]
    pq.write_table(pa.Table.from_pylist(changed, tests.schema), tmp_path / "tests.parquet")
    page = comparison(read_evaluation(tmp_path))
    first, second = row_of(page, "calibration", "accuracy")
    assert (first["flag"], second["flag"]) == ("", flag)
    said = page["verdicts"]["Calibration"][0]
    if not flag:
        assert "no clear difference from CE" in said or "Not tested" in said
    else:
        how = {"better": "better", "worse": "less well"}[flag]
        assert said.startswith(f"EL is {how} calibrated than CE: ECE, softmax ")
        assert said.endswith(f", p = 0.049). In all, 5 of 5 numbers are {flag}.")
        assert "Welch's t over runs" in page["legend"]


def test_differences_in_what_tells_little_are_not_the_verdict(tmp_path):
    write_evaluation(tmp_path, groups=("CE", "EL"))
    tests = pq.read_table(tmp_path / "tests.parquet")
    changed = [one | {"p_holm": 0.01 if one["score"] == "avc" else 0.9} for one in tests.to_pylist()]
    pq.write_table(pa.Table.from_pylist(changed, tests.schema), tmp_path / "tests.parquet")
    said = comparison(read_evaluation(tmp_path))["verdicts"]["Calibration"][0]
    assert said.startswith("EL: no clear difference from CE in ECE, softmax ")
    assert said.endswith("In all, 2 of 5 numbers are better.")


def clusters_of(folder, v_measures, silhouettes, p):
    """An evaluation of one run each in which V-measure cannot be tested and the silhouette is."""
    write_evaluation(folder, groups=("CE", "EL"), seeds=1)
    rows, tests = (pq.read_table(folder / f"{name}.parquet") for name in ("rows", "tests"))
    made, compared = [], []
    for metric, score, values, p_holm in (
        ("v_measure", "kmeans", v_measures, np.nan),
        ("silhouette", "", silhouettes, p),
    ):
        number = {"question": "clusters", "metric": metric, "score": score, "on": ""}
        number |= {"level": np.nan, "better": "higher"}
        made += [number | {"run": f"{name}-0", "group": name, "value": value, "low": np.nan, "high": np.nan, "n": 99}
                 for name, value in zip(("CE", "EL"), values, strict=True)]  # fmt: skip
        test = {"group": "EL", "baseline": "CE", "mean": values[1], "baseline_mean": values[0], "n": 1, "baseline_n": 1}
        test |= {"difference": values[1] - values[0], "p": p_holm, "p_holm": p_holm, "low": np.nan, "high": np.nan}
        compared.append(number | test | {"reason": "" if p_holm == p_holm else "no mean of samples"})
    pq.write_table(pa.Table.from_pylist(made, rows.schema), folder / "rows.parquet")
    pq.write_table(pa.Table.from_pylist(compared, tests.schema), folder / "tests.parquet")
    page = comparison(read_evaluation(folder))
    return page["verdicts"]["Clusters"][0]


def test_the_headline_is_chosen_before_any_test_and_never_the_number_that_happens_to_be_sure(tmp_path):
    said = clusters_of(tmp_path, (0.849, 0.773), (0.2, 0.3), 0.001)
    assert said.startswith("V-measure, kmeans: CE 0.849, EL 0.773. Not tested")
    assert "together" not in said
    assert said.endswith("In all, 1 of 1 number is better.")


def test_a_headline_of_several_data_sets_has_a_sentence_for_each(tmp_path):
    page = page_of(tmp_path, groups=("CE", "EL"))
    verdict = page["verdicts"]["Out of distribution"][0]
    assert verdict.count("AUROC, max logit · fashion_mnist") == verdict.count("AUROC, max logit · noise") == 1
    assert "FPR" not in verdict


def test_a_verdict_without_a_headline_names_its_group(tmp_path, monkeypatch):
    monkeypatch.setitem(QUESTIONS, "ood", replace(QUESTIONS["ood"], headline=()))
    first, second = page_of(tmp_path)["verdicts"]["Out of distribution"]
    assert re.match(r"EL\b.*\bCE\b", first)
    assert re.match(r"AMC\b.*\bCE\b", second)


def test_numbers_that_could_not_be_tested_stand_side_by_side(tmp_path):
    page = page_of(tmp_path, seeds=1)
    texts = page["verdicts"]
    assert re.fullmatch(
        r"AUROC, max logit · fashion_mnist: CE 9.*%, EL 9.*%, AMC 9.*%\. .* Not tested \(too few runs\)\.",
        texts["Out of distribution"][0],
    )


def test_accuracy_under_attack_is_shown_where_about_half_is_left_and_own_data_are_densities(tmp_path):
    page = page_of(tmp_path)
    [row] = page["highlights"]["Robustness"]
    assert row["title"] == "accuracy, fgsm · ε = 0.1"
    chart = chart_of(page, "ood-inside")
    assert [one["name"] for one in chart["sets"]][:2] == ["msp · fashion_mnist", "msp · noise"]
    panels = chart["sets"][0]["panels"]
    assert [panel["name"] for panel in panels] == ["CE", "EL", "AMC"]
    assert [line["name"] for line in panels[0]["lines"]] == ["in-distribution data", "fashion_mnist"]
    assert not any(one["key"] == "ood-outside" for one in charts_in(page))


def test_many_groups_are_said_together(tmp_path):
    page = page_of(tmp_path, groups=[f"g{k}" for k in range(6)], seeds=2)
    for texts in page["verdicts"].values():
        assert texts[-1].startswith("No number tells") or all(" of " in text for text in texts)
    assert page["title"] == "g0 · g1 · g2 · g3 · g4 · g5"


def test_each_kind_of_note_is_shown_once_and_warnings_come_first(tmp_path):
    notes = [Note("AVC", f"AVC is {0.1 + seed / 10:.3f} on average.", "info", "calibration", f"{group}-{seed}", group)
             for group in ("CE", "EL", "AMC") for seed in range(3)]  # fmt: skip
    notes += [
        Note("gradient masking: scale", MASKED, "warn", "robustness", "EL-0", "EL"),
        Note("no gradient masking", "No sign of gradient masking.", "info", "robustness", "CE-0", "CE"),
        Note("training samples", "It was trained on these samples.", "warn", "", "CE-1", "CE"),
    ]
    page = page_of(tmp_path, notes=notes)
    assert [notice.text for notice in page["notices"]] == [
        f"{MASKED} (EL-0)",
        "It was trained on these samples. (CE-1)",
    ]
    [note] = section_of(page, "calibration").notices
    assert note.text == "AVC is 0.100 on average. (numbers of CE-0; alike for all others)"
    assert [notice.text for notice in section_of(page, "robustness").notices] == ["No sign of gradient masking. (CE-0)"]


def charts_in(page):
    return [chart for section in page["sections"] for chart in section.data["charts"]]


def chart_of(page, key):
    return next(chart for chart in charts_in(page) if chart["key"] == key)


def test_curves_of_a_group_are_means_of_its_runs_with_their_spread(tmp_path):
    page = page_of(tmp_path)
    panels = {panel["name"]: panel for panel in chart_of(page, "robustness-attack")["sets"][0]["panels"]}
    points = pq.read_table(tmp_path / "points.parquet").to_pylist()
    line = panels["pgd"]["lines"][1]
    for k, eps in enumerate(panels["pgd"]["x"]):
        own = [p["y"] for p in points if (p["curve"], p["score"], p["group"], p["x"]) == ("attack", "pgd", "EL", eps)]
        assert line["y"][k] == pytest.approx(np.mean(own), rel=1e-4)
        assert line["high"][k] - line["y"][k] == pytest.approx(np.std(own, ddof=1), abs=2e-5)


def test_reliability_brings_the_bins_of_runs_together(tmp_path):
    write_evaluation(tmp_path, groups=("CE",), seeds=2)
    points = pq.read_table(tmp_path / "points.parquet")
    kept = [dict(p) for p in points.to_pylist() if p["curve"] != "reliability"]
    bins = [("CE-0", 0.91, 0.5, 10), ("CE-1", 0.93, 0.8, 30), ("CE-1", 0.2, 0.1, 5)]
    of = {"group": "CE", "seed": 0, "question": "calibration", "curve": "reliability", "score": "softmax", "on": ""}
    kept += [of | {"run": r, "x": x, "y": y, "low": 0.0, "high": 1.0, "n": n} for r, x, y, n in bins]
    pq.write_table(pa.Table.from_pylist(kept, points.schema), tmp_path / "points.parquet")
    [curve] = read_evaluation(tmp_path).curves("calibration", "reliability", "bins")["softmax", ""].values()
    np.testing.assert_allclose(curve.x, [0.2, 0.925])
    np.testing.assert_allclose(curve.y, [0.1, 0.725])  # (10 · .5 + 30 · .8) / 40
    assert curve.n.tolist() == [5, 40]
    assert np.isnan(curve.low[0])


def test_bins_of_hardness_are_brought_together_by_their_order(tmp_path):
    write_evaluation(tmp_path, groups=("CE",), seeds=2)
    schema = pq.read_schema(tmp_path / "points.parquet")
    of = {"group": "CE", "question": "robustness", "curve": "hardness", "score": "clean", "on": "", "n": 10}
    given = {"CE-0": ([0.05, 0.07], [1.0, 0.8]), "CE-1": ([0.06, 0.09], [0.9, 0.4])}
    points = [of | {"run": run, "x": x, "y": y} for run, both in given.items() for x, y in zip(*both, strict=True)]
    pq.write_table(pa.Table.from_pylist(points, schema), tmp_path / "points.parquet")
    [curve] = read_evaluation(tmp_path).curves("robustness", "hardness", "ranks").popitem()[1].values()
    np.testing.assert_allclose([curve.x, curve.y], [[0.055, 0.08], [0.95, 0.6]])


def test_runs_whose_bars_lie_elsewhere_have_a_mean_density_that_is_one_together(tmp_path):
    write_evaluation(tmp_path, groups=("CE",), seeds=2)
    points = pq.read_table(tmp_path / "points.parquet")
    rows = [p | {"x": p["x"] + 3 * p["seed"], "y": 1 / 30} if p["curve"] == "margin" else p for p in points.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, points.schema), tmp_path / "points.parquet")
    [curve] = read_evaluation(tmp_path).curves("margins", "margin", "bars")["logit", ""].values()
    assert np.trapezoid(curve.y, curve.x) == pytest.approx(1, abs=0.05)


def test_the_page_is_one_file_whose_policy_allows_its_own_script_alone(tmp_path):
    text = write_comparison(write_evaluation(tmp_path, groups=HOSTILE[:4], seeds=2, maps=True)).read_text()
    assert (tmp_path / "comparison.html").is_file()
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    script = re.search(r"<script>(\(\(\) => \{.*?)</script>", text, re.S)[1]
    sha = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{sha}&#39;" in text
    assert "window.pwned=1</script>" not in text.replace("&lt;", "<").split("<script type")[1]
    assert f"Made by hardsight {hs.__version__}" in text


def test_long_names_are_shown_whole_so_that_they_can_be_told_apart(tmp_path):
    groups = ["y" * 30 + end + "y" * 30 for end in "ab"]
    page = write_comparison(write_evaluation(tmp_path, groups=groups)).read_text()
    assert all(f"<bdi>{name}</bdi>" in page for name in groups)


def test_a_folder_that_is_no_evaluation_is_a_sentence_and_a_stopped_one_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"OUT: .*rows\.parquet; .*evaluate"):
        write_comparison(tmp_path)
    write_evaluation(tmp_path)
    rows = pq.read_table(tmp_path / "rows.parquet")
    pq.write_table(rows.slice(0, 0), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="number, got none"):
        write_comparison(tmp_path)
    write_evaluation(tmp_path)
    plan = json.loads((tmp_path / "evaluation.json").read_text())
    (tmp_path / "evaluation.json").write_text(json.dumps(plan | {"whole": False}))
    assert "did not finish" in write_comparison(tmp_path).read_text()


def test_numbers_are_written_with_their_units_and_strengths_as_people_write_them():
    assert [written("auroc", 0.98043), written("auroc", 0.012, signed=True), written("auroc", float("nan"))] == [
        "98.04%", "+1.20", "–",
    ]  # fmt: skip
    assert [written("nll", value) for value in (-0.5, 12.345, 1234.5, 1e-5)] == ["−0.500", "12.35", "1,234", "1e−05"]
    assert [variant_title("pgd", "", level) for level in (8 / 255, 0.3, 0.125, 0.0, float("nan"), None)] == [
        "pgd · ε = 8/255", "pgd · ε = 0.3", "pgd · ε = 0.125", "pgd", "pgd", "pgd",
    ]  # fmt: skip
    assert score_title("worst at 0.0157") == "worst at ε = 4/255"


@pytest.mark.parametrize("better", [True, False])
def test_every_number_that_is_judged_has_a_meaning_in_plain_words(better):
    for question, metric in ((name, metric) for name, entry in QUESTIONS.items() for metric in entry.metrics):
        said = meaning({"question": question, "metric": metric, "group": "{7} [a|b]", "baseline": "CE"}, better)
        assert said.count("{7} [a|b]") == said.count("CE") == 1


def test_a_metric_nobody_has_named_is_shown_all_the_same(tmp_path):
    rows, points = answers_of(0, np.random.default_rng(0))
    write_evaluation(tmp_path, groups=("CE",), seeds=1)
    new = [{"run": "CE", "group": "CE", "seed": 0, **row} for row in rows[:1]]
    new[0] |= {"question": "new_question", "metric": "new_metric"}
    curves = [
        {"run": "CE", "group": "CE", "seed": 0, **p, "question": "new_question", "curve": "bend"} for p in points[:9]
    ]
    for name, added in (("rows", new), ("points", curves)):
        old = pq.read_table(tmp_path / f"{name}.parquet")
        pq.write_table(pa.concat_tables([old, pa.Table.from_pylist(added, old.schema)]), tmp_path / f"{name}.parquet")
    page = comparison(read_evaluation(tmp_path))
    assert row_of(page, "new_question", "new metric")[0]["text"] == "0.930"
    assert chart_of(page, "new_question-bend")["title"] == "bend"


@pytest.mark.slow
def test_the_page_in_a_browser(browser, tmp_path):
    """Every case: it is drawn, does not scroll sideways on a narrow screen, and runs nothing but its own script."""
    notes = [Note("gradient masking: scale", MASKED, "warn", "robustness", "EL-0", "EL")]
    notes += [Note(HOSTILE[0], HOSTILE[0], "info", "ood", HOSTILE[0], HOSTILE[0])]
    cases = {
        "one": {"groups": ("CE",), "seeds": 1},
        "three": {"notes": notes, "maps": True},
        "twelve": {"groups": [f"setting {k}" for k in range(12)], "seeds": 1, "maps": True},
        "hostile": {"groups": [*HOSTILE[:9], "W" * 80], "seeds": 1, "notes": notes},
    }
    heard = []
    for name, options in cases.items():
        file = write_comparison(write_evaluation(tmp_path / name, **options))
        for width, scheme in ((1200, "dark"), (400, "light"))[name != "three" :]:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page = context.new_page()
            page.on("console", lambda message: heard.append(message.text))
            page.on("pageerror", lambda error: heard.append(str(error)))
            page.on(
                "request",
                lambda request: heard.extend([request.url] * (not request.url.startswith(("file:", "data:")))),
            )
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-drawn=all]", state="attached")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert page.evaluate("[window.pwned, document.querySelectorAll('script').length]") == [None, 2]
            assert page.locator("figure svg .curve").count() > 10
        if name == "three":
            look_closer(page)
        context.close()
    assert heard == []


def look_closer(page):
    """One of several groups, on a narrow screen."""
    assert page.get_by_test_id("notices").first.inner_text().count("Gradient masking") == 1
    reliability = page.get_by_test_id("chart-calibration-reliability").first
    assert {"accuracy", "confidence"} <= set(reliability.locator("svg text").all_text_contents())
    lines = reliability.locator(".series[data-line]")
    assert lines.count() == 3
    page.get_by_test_id("question-calibration").get_by_test_id("curve-line").first.click()
    assert reliability.locator(".series[data-line]").count() == 2
    reliability.locator("svg[tabindex]").focus()
    page.keyboard.press("ArrowRight")
    assert "n = " in reliability.get_by_role("status").inner_text()
    page.get_by_test_id("set-ood-inside").select_option("1")
    assert page.get_by_test_id("chart-ood-inside").count() == 3
    page.get_by_test_id("theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_first_chart_has_better_on_the_right_and_the_baseline_at_zero(tmp_path):
    page = page_of(tmp_path, groups=("CE", "EL", "AMC"))
    tests = pq.read_table(tmp_path / "tests.parquet").to_pylist()
    chart = {(effect["title"], effect["group"]): effect for effect in page["effects"]}
    assert page["baseline"] == "CE"
    assert {group for _, group in chart} == {"EL", "AMC"}
    for metric, title, sign in (("ece", "ECE, softmax ↓", -1), ("auroc", "AUROC, max logit · noise ↑", 1)):
        pair = {
            test["group"]: test
            for test in tests
            if test["metric"] == metric and test["score"] in ("softmax", "max_logit") and test["on"] in ("", "noise")
        }
        reach = max(abs(test[key]) for test in pair.values() for key in ("difference", "low", "high"))
        for group, test in pair.items():
            effect = chart[title, group]
            expected = [sign * test[key] / reach for key in ("difference", "low", "high")]
            np.testing.assert_allclose(effect["place"], expected[0], atol=1e-4)
            np.testing.assert_allclose([effect["low"], effect["high"]], sorted(expected[1:]), atol=1e-4)
            assert effect["place"] > 0  # later groups are better, whichever end is
    assert page_of(tmp_path / "one", groups=("CE",))["effects"] == []
