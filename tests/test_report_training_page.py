"""Recorded training in a real browser: curves that are chosen, read and listed, the data map, a sample's own curves."""

import json
import re

import numpy as np
import pytest
from report_pages import HOSTILE, card_rows, contrast, luminance, settle, status
from report_runs import grouping, record, report

pytestmark = pytest.mark.slow  # a browser is the same whatever versions of Python packages there are


def svg(page, key):
    return page.get_by_test_id(f"chart-{key}").locator(".canvas svg")


def tip(page, key):
    return page.get_by_test_id(f"tip-{key}")


def told(page, key):
    return " ".join(tip(page, key).inner_text().split())


def three(value):
    return f"{value:.3f}".replace("-", "−") if value < 10 else f"{value:.2f}"


def test_curves_are_chosen_by_value_and_group_and_read_by_the_pointer(show, whole):
    payload = whole.payload
    page = show(payload)
    page.get_by_role("link", name="Training").click()
    assert page.get_by_test_id("curves").locator("figure").count() == 5
    box = svg(page, "avh").bounding_box()
    page.mouse.move(box["x"] + 54 + 0.5 * (box["width"] - 68), box["y"] + 80)  # the middle of seven epochs
    line = grouping(payload, "all")["lines"][0]
    mean, sd = line["avh"]["mean"][3], line["avh"]["sd"][3]
    assert told(page, "avh") == f"epoch 4 all samples {three(mean)} ± {three(sd)}, n = 80"
    page.mouse.move(2, 2)
    assert not tip(page, "avh").is_visible()
    page.get_by_test_id("curve-grouping").select_option(label="class")
    page.get_by_test_id("curve-value").select_option(label="accuracy")
    assert page.get_by_test_id("curves").locator("figure").count() == 1
    assert svg(page, "correct").locator("path.curve").count() == 4
    assert svg(page, "correct").locator("path.band").count() == 4
    svg(page, "correct").focus()
    page.keyboard.press("ArrowLeft")  # from nowhere: the last
    page.keyboard.press("ArrowLeft")
    lines = grouping(payload, "class")["lines"]
    best = max(lines, key=lambda one: one["correct"]["mean"][5])
    mean, low, high = (100 * best["correct"][key][5] for key in ("mean", "low", "high"))
    assert told(page, "correct").startswith("epoch 6 ")
    assert f"{best['name']} {mean:.1f}% ({low:.1f}% to {high:.1f}%), n = {best['n'][5]}" in told(page, "correct")
    page.keyboard.press("Escape")
    assert not tip(page, "correct").is_visible()


def test_lines_can_be_switched_off_and_pointed_at(show, whole):
    page = show(whole.payload)
    page.get_by_test_id("curve-grouping").select_option(label="class")
    page.get_by_test_id("curve-value").select_option(label="norm")
    keys = page.get_by_test_id("curve-line")
    assert keys.all_inner_texts() == ["ant", "bee", "cat", "dog"]
    keys.nth(1).click()
    assert keys.nth(1).get_attribute("aria-pressed") == "false"
    assert keys.nth(1).evaluate("(node) => node === document.activeElement")
    assert svg(page, "norm").locator("path.curve").count() == 3
    keys.nth(2).hover()
    assert svg(page, "norm").locator(".strong").get_attribute("data-line") == "2"
    assert svg(page, "norm").locator(".faint").count() == 2
    keys.nth(1).click()
    assert svg(page, "norm").locator("path.curve").count() == 4
    page.get_by_test_id("curve-grouping").select_option(label="hardness (fifths)")
    assert svg(page, "norm").locator("path.curve").count() == 5
    assert "by construction" in page.locator("#curve-note").inner_text()


def test_the_numbers_are_there_as_tables(show, whole):
    payload = whole.payload
    page = show(payload)
    page.get_by_test_id("curve-grouping").select_option(label="class")
    page.get_by_test_id("curve-value").select_option(label="C·AVH")
    page.locator("#curve-table summary").click()
    rows = page.get_by_test_id("curve-table").locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 28
    line = grouping(payload, "class")["lines"][1]
    cells = rows.nth(2 * 4 + 1).locator("td").all_inner_texts()
    assert cells == ["3", "bee", str(line["n"][2]), f"{three(line['avh']['mean'][2])} ± {three(line['avh']['sd'][2])}"]
    page.get_by_test_id("curve-grouping").select_option(label="all samples")
    assert rows.count() == 7
    page.locator("#drivers summary").click()
    second = page.get_by_test_id("driver-table").locator("tbody tr").nth(1)
    second.wait_for()  # a browser tells of an opened part a little later
    cells = second.locator("td").all_inner_texts()
    change = payload["training"]["drivers"]["lines"][0]["change"][1]
    assert cells[3] == ("+" if change > 0 else "") + three(change)
    page.get_by_test_id("driver-line").select_option(label="hardest fifth")
    assert svg(page, "drivers").locator("rect.bar").count() == 12
    page.locator("#head-norms summary").click()
    page.get_by_test_id("head-table").locator("tbody tr").nth(6).wait_for()


def test_the_data_map_is_linked_with_the_gallery(show, whole):
    payload = whole.payload
    page = show(payload)
    page.get_by_test_id("view").select_option(label="Data map: confidence and its variability")
    page.get_by_test_id("brush-y1").fill("0.5")
    page.get_by_test_id("brush-x1").fill("0.2")
    settle(page)
    x, y = (np.array(payload["points"]["scores"][name]) for name in ("variability", "mean_confidence"))
    inside = (x <= 0.2) & (y <= 0.5)
    assert 0 < inside.sum() < len(x)
    assert status(page).startswith(f"0 of {inside.sum()} brushed")
    assert set(card_rows(page)) == set(np.flatnonzero(inside).tolist()[:48])
    assert "color: correctness, from 0 to 1 in fifths" in page.locator("#legend").inner_text()
    drawn = "document.getElementById('plot-base').toDataURL()"
    light = page.evaluate(drawn)
    page.get_by_test_id("theme").click()
    assert page.evaluate(drawn) != light


def test_a_sample_shows_its_own_curves(show, whole):
    _, _, payload, rows = whole
    page = show(payload)
    page.get_by_test_id("tab-low_aum").click()
    page.get_by_test_id("card").first.click()
    id_ = page.get_by_test_id("dialog-id").inner_text()
    own = rows[rows["id"] == id_]["confidence"].to_numpy()
    assert page.get_by_test_id("sample-curves").locator("figure").count() == 3
    chart = svg(page, "sample-confidence")
    chart.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.get_by_test_id("dialog-id").inner_text() == id_  # the keys turned no page
    shown = float(re.search(r"^epoch 3 .*this sample ([\d.]+)", told(page, "sample-confidence"))[1])
    assert shown == pytest.approx(own[2], abs=1e-3)
    text = page.get_by_test_id("dialog").inner_text()
    for word in ("area under the margin", "forgetting events", "first learned in", "mean confidence"):
        assert word in text
    page.get_by_test_id("next").click()
    assert page.get_by_test_id("dialog-id").inner_text() != id_
    assert page.get_by_test_id("sample-curves").locator("path.curve").count() == 2 + 3 * 2


def test_a_sample_whose_curve_is_not_kept_says_so(show, whole):
    payload = json.loads(json.dumps(whole.payload))
    curves_ = payload["training"]["curves"]
    curves_["points"][curves_["points"].index(payload["lists"][0]["rows"][0])] = -1
    curves_["note"] = "79 of 80 points keep their curves on this page."
    page = show(payload)
    page.get_by_test_id("card").first.click()
    assert "79 of 80 points" in page.get_by_test_id("sample-curves").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_names_and_a_narrow_screen(show, tmp_path, scheme):
    names = [*HOSTILE, *(f"W{'W' * 58}{k}" for k in range(6))]
    run = record(tmp_path / "run", n=160, classes=16, epochs=4, names=names, unit="epoch</script>", note=HOSTILE[0])
    groups = {"id": [f"train:{i}" for i in range(160)], "__proto__": [HOSTILE[i % 9] for i in range(160)]}
    page = show(report(run, groups=groups), viewport={"width": 400, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    for label in ("class", "hardness (fifths)", "__proto__"):
        page.get_by_test_id("curve-grouping").select_option(label=label)
        for value in ("everything", "C·AVH"):
            page.get_by_test_id("curve-value").select_option(label=value)
            svg(page, "avh").focus()
            page.keyboard.press("ArrowRight")
            assert told(page, "avh").startswith("epoch</script> 1 ")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert HOSTILE[1] in page.locator("#curve-legend").inner_text()
    page.locator("#curve-table summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_test_id("card").first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= 400
    page.keyboard.press("Escape")
    assert page.evaluate("[window.pwned, Object.keys(Object.prototype).length]") == [None, 0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_stand_out_from_the_page(show, whole, scheme):
    page = show(whole.payload, color_scheme=scheme)
    ground = luminance(page, "surface")
    for name in (*(f"line-{k}" for k in range(6)), *(f"step-{k}" for k in range(5))):
        assert contrast(luminance(page, name), ground) >= 3, name  # what graphics need
    steps = [luminance(page, f"step-{k}") for k in range(5)]
    assert steps == sorted(steps, reverse=scheme == "light")  # one direction, also without colour


def test_missing_parts_and_gaps_leave_a_page(show, gaps):
    payload = json.loads(json.dumps(gaps.payload))
    payload["training"] |= {"heads": None, "drivers": {"note": "Unknown.", "lines": []}}
    line = payload["training"]["groupings"][0]["lines"][0]
    for key in ("avh", "norm", "correct", "confidence", "nll"):
        for values in line[key].values():
            values[2] = values[4] = None
    page = show(payload)
    assert page.get_by_test_id("drivers").locator("figure").count() == 0
    assert page.get_by_test_id("head-norms").inner_text() == ""
    assert svg(page, "avh").locator("circle.point").count() == 1  # between two gaps
    assert svg(page, "avh").locator("path.curve").get_attribute("d").count("M") == 3
