"""Review in a real browser: deciding by keyboard and by pointer, what is kept, what leaves the page, the address."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from cleaning_cases import scored
from command_line import run as command
from report_pages import HOSTILE, card_rows, column, make_payload, settle, status
from report_runs import in_page
from test_decisions import IDS, NAMES

from hardsight.data import open_data
from hardsight.labelerrors import label_errors, read_ids
from hardsight.report import write_report
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload as make_real_payload

pytestmark = pytest.mark.slow  # a browser is the same whatever versions of Python packages there are


def saved(page, button="download-decisions"):
    """The rows of the CSV that a button downloads."""
    with page.expect_download() as download:
        page.get_by_test_id(button).click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def verdicts(page):
    """What stands on the cards, by row; without those that are undecided."""
    cells = page.locator(".cell").all()
    row = "(cell) => [Number(cell.firstChild.dataset.row), cell.querySelector('.verdict').textContent]"
    return {row: text for row, text in (cell.evaluate(row) for cell in cells) if text}


def current(page):
    return int(page.locator(".cell.current [data-testid=card]").get_attribute("data-row"))


@pytest.fixture
def payload():
    made = make_payload()
    made["lists"][2]["rows"] = np.argsort(column(made, "confidence"))[:60].tolist()
    made["points"]["picture"] = [-1] * 400
    return made


def test_keys_work_before_anything_was_clicked_but_never_out_of_sight(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.get_by_test_id("progress").scroll_into_view_if_needed()
    page.keyboard.press("k")
    assert verdicts(page) == {payload["lists"][2]["rows"][0]: "keep"}
    page.evaluate("document.activeElement.blur(); scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function("document.querySelector('#cards').getBoundingClientRect().bottom < 0")
    page.keyboard.press("d")
    assert list(verdicts(page).values()) == ["keep"]


def test_by_keyboard_a_list_is_decided_undone_kept_over_a_reload_and_downloaded(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    rows = payload["lists"][2]["rows"]
    label, pred = payload["points"]["label"], payload["points"]["pred"]
    names = payload["classes"]
    for key in "krds":
        page.keyboard.press(key)
    expected = {rows[0]: "keep", rows[1]: f"→ {names[pred[rows[1]]]}", rows[2]: "drop", rows[3]: "skipped"}
    assert verdicts(page) == expected
    assert page.get_by_test_id("progress").inner_text() == "3 of 60 decided, 1 skipped"
    assert current(page) == rows[4]
    assert page.evaluate("document.activeElement.dataset.row") == str(rows[4])
    page.keyboard.press("u")
    page.keyboard.press("u")
    assert verdicts(page) == {rows[0]: "keep", rows[1]: expected[rows[1]]}
    assert current(page) == rows[2]
    # Another class by its first letters: neither the label nor the proposal.
    other = next(k for k in range(4) if k not in (label[rows[2]], pred[rows[2]]))
    page.keyboard.press("c")
    page.keyboard.type(names[other][:2])
    page.keyboard.press("Enter")
    assert verdicts(page)[rows[2]] == f"→ {names[other]}"
    assert current(page) == rows[3]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert rows.index(current(page)) > 5
    page.keyboard.press("k")  # the focus came back to the cards
    last = next(row for row, text in verdicts(page).items() if text == "keep" and row != rows[0])
    page.reload()
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    page.wait_for_selector(".cell .verdict:not(:empty)")  # cards follow the address, which is read last
    assert page.get_by_test_id("tab-suspects").get_attribute("aria-selected") == "true"  # by the address
    assert verdicts(page) == {rows[0]: "keep", rows[1]: expected[rows[1]], rows[2]: f"→ {names[other]}", last: "keep"}
    assert current(page) == rows[3]
    ids = payload["points"]["id"]
    assert not page.get_by_test_id("apply-command").is_visible()
    assert saved(page) == [
        {"id": ids[rows[0]], "action": "keep", "new_label": ""},
        {"id": ids[rows[1]], "action": "relabel", "new_label": names[pred[rows[1]]]},
        {"id": ids[rows[2]], "action": "relabel", "new_label": names[other]},
        {"id": ids[last], "action": "keep", "new_label": ""},
    ]
    assert page.get_by_test_id("apply-command").inner_text() == "hardsight clean run --dataset"


def test_by_pointer_one_by_one_and_many_at_once(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    rows, pred, names = payload["lists"][2]["rows"], payload["points"]["pred"], payload["classes"]
    button = page.get_by_test_id("review").locator("..").get_by_test_id("review-keep").first
    button.click()
    button.click()
    assert verdicts(page) == {rows[0]: "keep", rows[1]: "keep"}
    assert page.evaluate("document.activeElement.dataset.testid") == "review-keep"
    cards, boxes = page.get_by_test_id("card"), page.get_by_test_id("select")
    boxes.nth(3).check()
    cards.nth(6).click(modifiers=["Shift"])
    cards.nth(5).click(modifiers=["Control"])
    assert page.get_by_test_id("progress").inner_text().endswith("3 selected")
    page.get_by_test_id("review-relabel").first.click()
    relabeled = {rows[k]: f"→ {names[pred[rows[k]]]}" for k in (3, 4, 6)}  # each its proposal
    assert verdicts(page) == {rows[0]: "keep", rows[1]: "keep"} | relabeled
    assert page.locator(".cell input:checked").count() == 0
    page.get_by_test_id("review-undo").first.click()
    assert verdicts(page) == {rows[0]: "keep", rows[1]: "keep"}
    page.get_by_test_id("select-all").click()
    page.get_by_test_id("review-drop").first.click()
    page.get_by_test_id("more-cards").click()
    assert verdicts(page) == dict.fromkeys(rows, "drop")  # also those that were not drawn
    page.get_by_test_id("undecided-filter").check()
    assert card_rows(page) == []
    page.get_by_test_id("clear-decisions").click()
    page.get_by_test_id("undecided-filter").uncheck()
    assert verdicts(page) == {}
    page.get_by_test_id("review-undo").first.click()
    assert len(saved(page)) == 60


def test_in_the_dialog_a_decision_leads_to_the_next_sample(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    rows, ids = payload["lists"][2]["rows"], payload["points"]["id"]
    page.get_by_test_id("card").nth(1).click()
    page.keyboard.press("d")
    assert page.get_by_test_id("dialog-id").inner_text() == ids[rows[2]]
    page.get_by_test_id("dialog").get_by_test_id("review-keep").click()
    page.keyboard.press("ArrowLeft")
    assert page.get_by_test_id("dialog-verdict").inner_text() == "keep"
    page.keyboard.press("u")
    assert page.get_by_test_id("dialog-verdict").inner_text() == ""
    field = page.get_by_test_id("dialog").get_by_test_id("new-label")
    field.fill("an")
    field.press("ArrowLeft")  # in the text, not in the list
    assert page.get_by_test_id("dialog-id").inner_text() == ids[rows[2]]
    page.get_by_test_id("close").click()
    assert verdicts(page) == {rows[1]: "drop"}
    assert page.evaluate("document.activeElement.dataset.row") == str(rows[2])


def test_deciding_moves_nothing(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    page.keyboard.press("k")
    page.evaluate("scrollTo(0, document.querySelector('.gallery .decide').getBoundingClientRect().top + scrollY - 60)")
    places = (
        "[scrollY, ...[...document.querySelectorAll('.cell')].slice(0, 8).map((c) => c.getBoundingClientRect().top)]"
    )
    before = page.evaluate(places)
    for key in "krs":
        page.keyboard.press(key)
        assert page.evaluate(places) == before
    for _ in range(50):
        page.keyboard.press("k")
    assert page.get_by_test_id("progress").inner_text().startswith("53 of 60")
    box, bar = page.locator(".cell.current").bounding_box(), page.locator(".gallery .decide").bounding_box()
    assert bar["y"] + bar["height"] <= box["y"] + 8
    assert box["y"] + box["height"] <= 900  # more cards came, and the current one is on the screen


def test_without_storage_the_page_says_so_and_decides_all_the_same(show, payload):
    closed = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('closed'); } })"
    page = show(payload)
    page.add_init_script(closed)
    page.reload()
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    assert "download" in page.get_by_test_id("review-note").inner_text()
    page.get_by_test_id("tab-suspects").click()
    page.keyboard.press("d")
    assert [row["action"] for row in saved(page)] == ["drop"]


def test_another_run_has_other_decisions(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    page.keyboard.press("d")
    stored = page.evaluate("Object.keys(localStorage)")
    assert stored == ["hardsight-decisions-0123"]
    page.evaluate("localStorage.setItem('hardsight-decisions-other', 'id,action\\n\"x\",drop')")
    page.keyboard.press("u")
    assert page.evaluate("Object.keys(localStorage)") == ["hardsight-decisions-other"]


def test_decisions_are_loaded_from_a_file(show, payload, tmp_path):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    rows, ids, names = payload["lists"][2]["rows"], payload["points"]["id"], payload["classes"]
    text = f'﻿id,action,new_label\r\n{ids[rows[0]]},relabel,{names[1]}\r\n"{ids[rows[2]]}",drop,\r\nnobody,keep,\r\n'
    page.get_by_test_id("decisions-file").set_input_files(
        {"name": "mine.csv", "mimeType": "text/csv", "buffer": text.encode()}
    )
    page.get_by_test_id("review-note").filter(has_text="2 decisions loaded; 1 row fits").wait_for()
    assert verdicts(page) == {rows[0]: f"→ {names[1]}", rows[2]: "drop"}
    page.get_by_test_id("review-undo").first.click()
    assert verdicts(page) == {}


def test_lists_are_sorted_by_any_score(show, payload):
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    rows, norm = payload["lists"][2]["rows"], column(payload, "norm")
    page.get_by_test_id("sort").select_option(label="norm")
    ascending = sorted(rows, key=lambda row: (norm[row], row))  # smaller is harder
    assert card_rows(page) == ascending[:48]
    page.get_by_test_id("direction").click()
    assert card_rows(page) == sorted(rows, key=lambda row: (-norm[row], row))[:48]
    page.get_by_test_id("sort").select_option(index=0)
    assert card_rows(page) == rows[:48]


def test_a_brush_a_class_and_a_selection_leave_as_ids_and_as_a_table(show, payload, tmp_path):
    payload["points"]["id"][:3] = ["=1+1", ' "odd', "two\nlines"]
    page = show(payload)
    page.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.get_by_test_id("brush-x0").fill("0.3")
    page.get_by_test_id("brush-y1").fill("0.9")
    page.get_by_test_id("choose-class").select_option(label="cat")
    settle(page)
    avh, confidence, label = column(payload, "avh"), column(payload, "confidence"), np.array(payload["points"]["label"])
    inside = np.flatnonzero((avh >= 0.3) & (confidence <= 0.9) & (label == 2))
    table = saved(page, "download-list")
    assert {row["label"] for row in table} == {"cat"}
    values = {payload["points"]["id"][i]: avh[i] for i in inside}
    assert {row["id"]: float(row["avh"]) for row in table} == values
    page.get_by_test_id("clear-brush").click()
    page.get_by_test_id("clear-filters").click()
    page.get_by_test_id("tab-all").click()
    copy = page.get_by_test_id("export").get_by_test_id("copy")
    copy.click()
    assert set(copied_ids(page, tmp_path)) == set(payload["points"]["id"])
    page.get_by_test_id("select").nth(1).check()
    page.get_by_test_id("select").nth(4).check()
    copy.click()
    rows = card_rows(page)
    assert copied_ids(page, tmp_path) == [payload["points"]["id"][rows[k]] for k in (1, 4)]


def copied_ids(page, folder):
    (folder / "ids.txt").write_text(page.evaluate("window.copied"), encoding="utf-8", newline="")
    return read_ids(folder / "ids.txt")


def test_the_address_holds_the_view(show, payload):
    page = show(payload)
    page.get_by_test_id("view").select_option(label="AVH against norm")
    page.get_by_test_id("brush-x0").fill("0.25")
    page.get_by_test_id("brush-y1").fill("12.5")
    page.get_by_test_id("choose-class").select_option(label="bee")
    page.get_by_test_id("text-filter").fill("IMG_0")
    page.get_by_test_id("sort").select_option(label="confidence")
    page.get_by_test_id("direction").click()
    page.get_by_test_id("wrong-filter").check()
    settle(page)
    page.get_by_test_id("card").nth(2).click()
    page.wait_for_timeout(400)
    shown = [card_rows(page), status(page), page.get_by_test_id("dialog-id").inner_text()]
    address = page.evaluate("location.hash")
    again = show(payload, address=address)
    assert [card_rows(again), status(again), again.get_by_test_id("dialog-id").inner_text()] == shown
    assert again.get_by_test_id("view").input_value() == "1"
    brush = [again.get_by_test_id(f"brush-{end}").input_value() for end in ("x0", "x1", "y0", "y1")]
    assert brush == ["0.25", "", "", "12.5"]
    assert again.get_by_test_id("text-filter").input_value() == "IMG_0"
    again.keyboard.press("Escape")
    again.get_by_test_id("clear-brush").click()
    again.get_by_test_id("clear-filters").click()
    again.get_by_test_id("sort").select_option(index=0)
    again.get_by_test_id("view").select_option(index=0)
    again.get_by_test_id("group-table").get_by_role("button", name="site 1").click()
    again.wait_for_timeout(400)
    assert again.evaluate("location.hash") == "#tab=all&group=site&value=site+1"
    again.evaluate("location.hash = '#tab=suspects'")
    again.wait_for_timeout(50)
    assert card_rows(again) == payload["lists"][2]["rows"][:48]
    assert not again.get_by_test_id("clear-filters").is_visible()


@pytest.mark.parametrize(
    "address",
    ["#tab=__proto__&class=constructor&sort=toString&view=__proto__&brush=a,b,c,d&group=__proto__&value=x",
     "#sample=__proto__&=&&&%00%zz=%", "#tab=brushed", "#class=99&brush=1,2,3&sort=-", "#brush=NaN,Infinity,,&sample=",
     "#tab=%3Cscript%3Ealert(1)%3C/script%3E&text=%3Cimg%20src=x%20onerror=alert(1)%3E"],
)  # fmt: skip
def test_a_hostile_address_is_ignored(show, payload, address):
    page = show(payload, address=address)
    assert page.get_by_test_id("tab-hardest").get_attribute("aria-selected") == "true"
    assert not page.get_by_test_id("dialog").is_visible()
    page.get_by_test_id("text-filter").fill("")
    assert card_rows(page) == payload["lists"][0]["rows"][:48]


def test_the_address_of_a_section_stays(show, payload):
    page = show(payload, address="#clusters")
    page.wait_for_timeout(400)
    assert page.evaluate("location.hash") == "#clusters"
    assert page.evaluate("scrollY") > 500


def test_a_downloaded_file_is_applied_exactly(browser, tmp_path, capsys):
    """Hostile ids and class names, from the page through the command into a cleaned copy."""
    ids = [id_ for id_ in IDS if "\0" not in id_] + [f"plain {k}" for k in range(126)]  # of NumPy, 0 ends a text
    labels = np.arange(len(ids)) % len(NAMES)
    images = np.arange(len(ids), dtype=np.uint8)[:, None, None]
    np.savez(tmp_path / "data.npz", images=images, labels=labels, ids=np.array(ids), classes=np.array(NAMES))
    samples = open_data(str(tmp_path / "data.npz"))
    wrong = {i: (labels[i] + 1) % len(NAMES) for i in range(len(NAMES))}
    table = scored(samples, labels, wrong, classes=len(NAMES), names=NAMES, source=samples.source)
    table.save(tmp_path / "run")
    page_file = write_report(tmp_path / "run")
    context = browser.new_context(accept_downloads=True)
    page = context.new_page()
    messages = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(page_file.as_uri() + "#tab=suspects")
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    rows = card_rows(page)
    assert len(rows) == len(wrong)
    order = [samples.ids.index(id_) for id_ in in_page(page_file)["points"]["id"]]
    expected, kept = labels.copy(), np.ones(len(ids), dtype=bool)
    page.get_by_test_id("card").first.focus()
    for k, row in enumerate(rows):
        assert current(page) == row
        if k == 3:
            page.keyboard.press("d")
            kept[order[row]] = False
        elif k == 4:
            page.keyboard.press("s")
        else:
            page.keyboard.press("r")
            expected[order[row]] = wrong[order[row]]
    with page.expect_download() as download:
        page.get_by_test_id("download-decisions").click()
    name = download.value.suggested_filename
    download.value.save_as(tmp_path / name)
    shown = page.get_by_test_id("apply-command").inner_text()
    context.close()
    assert messages == []
    run, copy = tmp_path / "run", "run-cleaned.npz"
    assert shown == f"hardsight clean {run} --decisions ~/Downloads/{name} --dataset {copy} --overwrite"
    places = {f"~/Downloads/{name}": tmp_path / name, copy: tmp_path / copy}
    words = [places.get(word, word) for word in shown.split()[1:]]
    code, _, err = command(capsys, *words)
    assert code == 0, err
    with np.load(tmp_path / copy) as written:
        assert written["images"].ravel().tolist() == np.arange(len(ids))[kept].tolist()
        assert written["labels"].tolist() == expected[kept].tolist()
    actions = pq.read_table(tmp_path / "run" / "lists" / "actions.parquet").to_pylist()
    assert sum(row["action"] == "review" for row in actions) == 1


def test_every_suspect_travels_up_to_a_limit_and_long_ids_do_whole(show, monkeypatch):
    ids = [f"{'x' * 300}{i}" for i in range(200)]
    labels = np.arange(200) % 4
    wrong = {i: (labels[i] + 1) % 4 for i in range(70)}
    table = scored(SimpleNamespace(ids=ids), labels, wrong, classes=4)
    (suspects,) = [each for each in page_of(table)["lists"] if each["key"] == "suspects"]
    count = len(suspects["rows"])
    assert count == label_errors(table).meta.label_errors["suspects"] > 48
    page = show(page_of(table), address="#tab=suspects")
    page.get_by_test_id("select-all").click()
    page.get_by_test_id("review-drop").first.click()
    expected = set(label_errors(table)["id"][:count])
    assert {row["id"] for row in saved(page)} == expected <= set(ids)
    key = page_of(table)["label_errors"]["review"]["key"]
    assert page_of(table)["label_errors"]["review"]["key"] == key
    other = scored(SimpleNamespace(ids=ids), labels, {**wrong, 71: 0}, classes=4)
    assert page_of(other)["label_errors"]["review"]["key"] != key
    monkeypatch.setattr("hardsight.report.label_errors.MOST_SUSPECTS", 50)
    (cut,) = [each for each in page_of(table)["lists"] if each["key"] == "suspects"]
    assert len(cut["rows"]) == 50
    assert f"50 most suspicious of {count}" in cut["note"]


def page_of(table):
    return make_real_payload(Rows(table))


def test_hostile_names_come_back_as_they_are(show):
    payload = make_payload(names=HOSTILE[:-1])
    payload["points"]["id"] = [f"{HOSTILE[i % 9]} {i}" for i in range(400)]
    page = show(payload)
    page.get_by_test_id("tab-suspects").click()
    rows = card_rows(page)
    for _ in rows:
        page.keyboard.press("r")
    points, names = payload["points"], payload["classes"]
    table = {(row["id"].removeprefix("'"), row["new_label"].removeprefix("'")) for row in saved(page)}
    expected = {(points["id"][i], names[points["pred"][i]]) for i in rows if points["pred"][i] != points["label"][i]}
    assert table == expected
    page.reload()
    page.wait_for_selector("html[data-drawn=all]", state="attached")
    assert len(verdicts(page)) == len(table)
    assert page.evaluate("[window.pwned, {}.polluted, Object.keys(Object.prototype).length]") == [None, None, 0]
