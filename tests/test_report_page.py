"""The page in a real browser: brushing, tabs, filters, sorting, the dialog, copying."""

import re

import numpy as np
import pytest
from report_pages import card_rows, column, make_payload, settle, status

pytestmark = pytest.mark.slow  # a browser is the same whatever versions of Python packages there are


def drag(page, start, end):
    """Drag over the plot, from and to in shares of its width and height."""
    overlay = page.get_by_test_id("overlay")
    overlay.scroll_into_view_if_needed()
    box = overlay.bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*at[0])
    page.mouse.down()
    page.mouse.move(*at[1], steps=6)
    settle(page)


def brushed(page, payload, y="confidence"):
    """Which samples lie inside the range that the fields show: NumPy's answer."""
    ends = [page.get_by_test_id(f"brush-{key}").input_value() for key in ("x0", "x1", "y0", "y1")]
    x0, x1, y0, y1 = (float(end) if end else edge for end, edge in zip(ends, (-9, 9, -99, 99), strict=True))
    x, y = column(payload, "avh"), column(payload, y)
    return (x >= x0) & (x <= x1) & (y >= y0) & (y <= y1)


def assert_brushed(page, payload, inside):
    pictured = inside & (np.array(payload["points"]["picture"]) >= 0)
    assert status(page).startswith(f"{pictured.sum():,} of {inside.sum():,} brushed")
    assert page.get_by_test_id("tab-brushed").get_attribute("aria-selected") == "true"
    hardest_first = np.argsort(-column(payload, "avh"), kind="stable")
    expected = [i for i in hardest_first if pictured[i]] + [i for i in hardest_first if inside[i] and not pictured[i]]
    assert card_rows(page) == expected[:48]


def test_the_gallery_follows_the_brush_while_it_is_dragged(show):
    payload = make_payload()
    page = show(payload)
    drag(page, (0.3, 0.2), (0.6, 0.5))
    first = brushed(page, payload)
    assert_brushed(page, payload, first)
    box = page.get_by_test_id("overlay").bounding_box()
    page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.8 * box["height"])
    settle(page)
    second = brushed(page, payload)
    assert 0 < first.sum() < second.sum() < len(second)
    assert_brushed(page, payload, second)
    page.mouse.up()
    before = [float(page.get_by_test_id(f"brush-x{end}").input_value()) for end in (0, 1)]
    drag(page, (0.6, 0.4), (0.5, 0.4))  # from inside: the brush moves
    page.mouse.up()
    after = [float(page.get_by_test_id(f"brush-x{end}").input_value()) for end in (0, 1)]
    assert after[0] < before[0]
    assert after[1] - after[0] == pytest.approx(before[1] - before[0], abs=0.002)
    assert_brushed(page, payload, brushed(page, payload))


@pytest.mark.parametrize("way", ["escape", "click", "button"])
def test_a_brush_is_cleared(show, way):
    page = show(make_payload())
    page.get_by_test_id("tab-easiest").click()
    before = card_rows(page)
    drag(page, (0.3, 0.2), (0.7, 0.6))
    page.mouse.up()
    assert card_rows(page) != before
    if way == "escape":
        page.keyboard.press("Escape")
    elif way == "click":
        page.get_by_test_id("overlay").click(position={"x": 400, "y": 300})
    else:
        page.get_by_test_id("clear-brush").click()
    settle(page)
    assert card_rows(page) == before
    assert not page.get_by_test_id("tab-brushed").is_visible()
    assert page.get_by_test_id("brush-x0").input_value() == ""


def test_brushing_by_keyboard_and_by_touch(show):
    payload = make_payload()
    page = show(payload, has_touch=True)
    page.get_by_test_id("brush-x0").focus()
    page.keyboard.type("0.5")
    page.keyboard.press("Tab")
    page.keyboard.type("0.9")
    page.get_by_test_id("brush-y1").fill("0.75")
    settle(page)
    x, y = column(payload, "avh"), column(payload, "confidence")
    assert_brushed(page, payload, (x >= 0.5) & (x <= 0.9) & (y <= 0.75))
    for key in ("x0", "x1", "y1"):
        page.get_by_test_id(f"brush-{key}").fill("")
    settle(page)
    assert not page.get_by_test_id("tab-brushed").is_visible()
    page.get_by_test_id("overlay").scroll_into_view_if_needed()
    box = page.get_by_test_id("overlay").bounding_box()
    session = page.context.new_cdp_session(page)
    for kind, share in (("touchStart", 0.3), ("touchMove", 0.5), ("touchMove", 0.7), ("touchEnd", None)):
        where = [{"x": box["x"] + share * box["width"], "y": box["y"] + share * box["height"]}] if share else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})
    settle(page)
    assert_brushed(page, payload, brushed(page, payload))


def test_another_view_has_its_own_brush(show):
    payload = make_payload()
    page = show(payload)
    page.get_by_test_id("view").select_option(label="AVH against norm")
    drag(page, (0.2, 0.2), (0.8, 0.7))
    page.mouse.up()
    assert_brushed(page, payload, brushed(page, payload, "norm"))
    page.get_by_test_id("view").select_option(index=0)
    settle(page)
    assert not page.get_by_test_id("tab-brushed").is_visible()


def test_a_point_shows_its_sample(show):
    payload = make_payload()
    page = show(payload)
    hardest = int(np.argmax(column(payload, "avh")))
    overlay = page.get_by_test_id("overlay")
    overlay.scroll_into_view_if_needed()
    box = overlay.bounding_box()
    left, right, top, bottom = 54, box["width"] - 14, 28, box["height"] - 42
    x = left + column(payload, "avh")[hardest] / 1.6 * (right - left)
    y = bottom - column(payload, "confidence")[hardest] * (bottom - top)
    page.mouse.move(box["x"] + x, box["y"] + y)
    tip = page.get_by_test_id("tip")
    assert payload["points"]["id"][hardest] in tip.inner_text()
    assert tip.locator("img").count() == 1
    page.mouse.down()
    page.mouse.up()
    assert page.get_by_test_id("dialog-id").inner_text() == payload["points"]["id"][hardest]


def test_tabs_and_more_cards(show):
    payload = make_payload()
    page = show(payload)
    assert card_rows(page) == payload["lists"][0]["rows"][:48]
    assert re.match("60 of 100 .*; 48 ", status(page))
    page.get_by_test_id("more-cards").click()
    page.get_by_test_id("more-cards").click()
    assert card_rows(page) == payload["lists"][0]["rows"]
    assert not page.get_by_test_id("more-cards").is_visible()
    page.get_by_test_id("tab-hardest").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_test_id("tab-easiest").get_attribute("aria-selected") == "true"
    assert card_rows(page) == payload["lists"][1]["rows"]
    page.get_by_test_id("see-suspects").click()
    assert card_rows(page)[0] == int(np.argmin(column(payload, "confidence")))


def test_filters(show):
    payload = make_payload()
    label, pred = np.array(payload["points"]["label"]), np.array(payload["points"]["pred"])
    page = show(payload)
    page.get_by_test_id("choose-class").select_option(label="cat")
    assert card_rows(page) == payload["by_class"]["hardest"][2]
    page.get_by_test_id("tab-all").click()
    assert status(page).split(" have")[0].endswith(f"of {(label == 2).sum()} samples")
    page.get_by_test_id("wrong-filter").check()
    assert len(card_rows(page)) == ((label == 2) & (pred != 2)).sum()
    page.get_by_test_id("text-filter").fill("IMG_01")
    wanted = [i for i in range(100, 200) if label[i] == 2 != pred[i]]
    assert sorted(card_rows(page)) == wanted
    page.get_by_test_id("text-filter").fill("nowhere")
    assert status(page).startswith("No sample")
    page.get_by_test_id("clear-filters").click()
    assert status(page).split(" have")[0].endswith("of 400 samples")
    page.get_by_test_id("class-table").get_by_role("button", name="bee", exact=True).click()
    assert page.get_by_test_id("choose-class").input_value() == "1"
    page.get_by_test_id("clear-filters").click()
    page.get_by_test_id("group-table").get_by_role("button", name="site 1").click()
    assert status(page).split(" have")[0].endswith(f"of {sum(payload['points']['groups']['site'])} samples")


def test_filters_pale_what_does_not_match(show):
    page = show(make_payload())
    drawn = "document.getElementById('plot-base').toDataURL()"
    before = page.evaluate(drawn)
    page.get_by_test_id("choose-class").select_option(label="cat")
    filtered = page.evaluate(drawn)
    page.get_by_test_id("clear-filters").click()
    assert before == page.evaluate(drawn) != filtered


def table_column(page, table, at):
    cells = page.get_by_test_id(table).locator("tbody tr").all()
    return [row.locator("td").nth(at).inner_text() for row in cells]


def test_the_class_table_sorts_by_every_column(show):
    names = ["b10", "b9", "a", "C", "d1", "d11", "d2"]
    payload = make_payload(names=names)
    page = show(payload)
    rows = payload["class_table"]["tables"][0]["rows"]
    natural = sorted(names, key=lambda name: [int(p) if p.isdigit() else p.lower() for p in re.split(r"(\d+)", name)])
    for at, key, first in ((0, "name", "ascending"), (1, "n", "descending"), (3, "accuracy", "descending"),
                           (4, "avh", "descending"), (5, "noise", "descending")):  # fmt: skip
        head = page.get_by_test_id(f"class-head-{key}")
        orders = [first, "ascending" if first == "descending" else "descending"]
        for order in orders:
            head.get_by_role("button").focus()
            page.keyboard.press("Enter")
            assert head.get_attribute("aria-sort") == order
            shown = table_column(page, "class-table", 0)
            down = order == "descending"
            if key == "name":
                assert shown == (natural[::-1] if down else natural)
            else:
                values = {row[0]: row[at][0] if key == "avh" else row[at] for row in rows}
                known = sorted((value for value in values.values() if value is not None), reverse=down)
                assert [values[name] for name in shown] == known + [None] * (len(rows) - len(known))
    assert page.get_by_test_id("class-head-n").get_attribute("aria-sort") == "none"


def test_the_class_table_filters_and_copes_with_5000_classes(show):
    names = [f"class {k}" for k in range(4998)] + ["twin", "twin"]
    payload = make_payload(n=300, names=names)
    page = show(payload)
    rows = page.get_by_test_id("class-table").locator("tbody tr")
    assert rows.count() == 100
    page.get_by_test_id("class-more").click()
    assert rows.count() == 200
    page.get_by_test_id("class-filter").fill("CLASS 123")
    assert sorted(table_column(page, "class-table", 0)) == sorted(n for n in names if n.startswith("class 123"))
    assert re.match("11 of 11 .*5,000 ", page.get_by_test_id("class-status").inner_text())
    label = np.array(payload["points"]["label"])
    k = int(label[np.argmax(column(payload, "avh"))])
    page.get_by_test_id("choose-class").fill(names[k])
    assert {label[i] for i in card_rows(page)} == {k}
    assert page.locator("datalist option").count() == 5000
    assert page.locator("datalist option[value='twin (class 4999)']").count() == 1
    assert page.get_by_test_id("ridge").locator("svg").count() == 0


def test_a_card_opens_the_whole_sample(show):
    payload = make_payload()
    page = show(payload)
    first, second = payload["lists"][0]["rows"][:2]
    points = payload["points"]
    page.get_by_test_id("card").first.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_test_id("dialog")
    assert page.get_by_test_id("dialog-id").inner_text() == points["id"][first]
    names = payload["classes"]
    heading = f"labeled {names[points['label'][first]]}, predicted {names[points['pred'][first]]}"
    assert page.get_by_test_id("dialog-title").inner_text().strip() == heading
    text = dialog.inner_text()
    assert all(word in text for word in ("± 0.013", "suspicion", "site"))
    meanings = " ".join(node.get_attribute("title") for node in dialog.locator("abbr").all())
    assert all(meaning in meanings for meaning in ("The angle's share. Larger is harder.", "between 1 and 9"))
    assert "angle's share" not in text
    large = dialog.locator("img")
    assert large.get_attribute("src") == payload["pictures"][points["picture"][first]]
    assert large.evaluate("(image) => getComputedStyle(image).imageRendering") == "pixelated"
    page.keyboard.press("ArrowRight")
    assert page.get_by_test_id("dialog-id").inner_text() == points["id"][second]
    page.get_by_test_id("previous").click()
    assert page.get_by_test_id("dialog-id").inner_text() == points["id"][first]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


@pytest.mark.parametrize("allowed", [True, False])
def test_copying_says_whether_it_worked(show, allowed):
    page = show(make_payload())
    refuse = "navigator.clipboard.writeText = () => Promise.reject(new Error('no'))"
    accept = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }"
    page.evaluate(f"() => {{ {accept if allowed else refuse} }}")
    button = page.get_by_test_id("label_errors").get_by_test_id("copy")
    button.click()
    if allowed:
        assert button.inner_text() == "Copied"
        assert page.evaluate("window.copied") == "hardsight clean run"
    else:
        assert "Ctrl+C" in button.inner_text()
        assert page.evaluate("getSelection().toString()") == "hardsight clean run"


def ranked_by_confidence(missing=7):
    """A page without angles whose main score is harder the smaller it is, and unknown for some samples."""
    payload = make_payload(n=40)
    confidence = column(payload, "confidence").tolist()
    confidence[:missing] = [None] * missing
    payload["points"]["scores"] = {"confidence": confidence, "norm": payload["points"]["scores"]["norm"]}
    payload["points"]["picture"] = [-1] * 40
    del payload["scores"]["avh"]
    view = payload["views"][0]
    view["x"] = {"column": "confidence", "title": "confidence (smaller = harder)", "low": 0, "high": 1}
    view["y"] = {"column": "norm", "title": "norm", "low": 0, "high": 20}
    payload["views"] = [view]
    return payload


def test_where_smaller_is_harder_the_smallest_comes_first_and_what_is_unknown_last(show):
    payload = ranked_by_confidence()
    page = show(payload)
    page.get_by_test_id("tab-all").click()
    confidence = [np.inf if value is None else value for value in payload["points"]["scores"]["confidence"]]
    order = np.argsort(confidence, kind="stable").tolist()  # equal ones, and the unknown, in the order of their rows
    assert card_rows(page) == order
    assert order[-7:] == list(range(7))
    page.get_by_test_id("brush-x0").fill("0")
    page.get_by_test_id("brush-x1").fill("1")
    page.keyboard.press("Enter")
    settle(page)
    assert card_rows(page) == order[:-7]  # inside a brush nothing is unknown


def test_only_what_is_judged_can_be_wrong(show):
    payload = ranked_by_confidence(missing=0)
    points = payload["points"]
    points["pred"][:5] = [-1] * 5
    points["label"][5:9] = [-1] * 4
    label, pred = np.array(points["label"]), np.array(points["pred"])
    wrong = (label != pred) & (label >= 0) & (pred >= 0)
    assert 0 < wrong.sum() < 31
    page = show(payload)
    page.get_by_test_id("tab-all").click()
    page.get_by_test_id("wrong-filter").check()
    order = np.argsort(points["scores"]["confidence"], kind="stable")
    assert card_rows(page) == [i for i in order.tolist() if wrong[i]]
    page.get_by_test_id("wrong-filter").uncheck()
    assert len(card_rows(page)) == 40


def test_the_dialog_says_which_way_a_change_is_harder(show):
    payload = make_payload(n=40)
    for name, harder in (("before", "smaller"), ("change", "smaller"), ("seen", "")):
        payload["scores"][name] = {"title": f"the {name}", "text": "Of two runs.", "harder": harder, "kind": "number"}
        payload["points"]["scores"][name] = [0.5] * 40
    page = show(payload)
    page.get_by_test_id("card").first.click()
    meanings = {node.inner_text(): node.get_attribute("title") for node in page.locator("dialog abbr").all()}
    assert meanings["the before"] == meanings["the change"] == "Of two runs. Smaller is harder."
    assert meanings["the seen"] == "Of two runs."
