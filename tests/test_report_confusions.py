"""Confusions on the page: counts against scikit-learn's, and cells that select their samples."""

import numpy as np
import pyarrow as pa
import pytest
from report_pages import HOSTILE, card_rows, status
from report_runs import table_rows
from sklearn.metrics import confusion_matrix

from hardsight import SampleTable
from hardsight.report.rows import Rows
from hardsight.report.write import make_payload


def payload_of(classes=4, n=600, wrong=0.3, names=(), seed=0):
    """The page of made-up predictions; classes 1 and 2 are confused in one direction only."""
    draw = np.random.default_rng(seed)
    label = draw.integers(0, classes, n)
    pred = np.where(draw.random(n) < wrong, draw.integers(0, classes, n), label)
    pred[(label == 2) & (pred == 1)] = 2
    label[:7], pred[:7] = 1, 2
    columns = {"id": [f"x:{i:04d}" for i in range(n)], "label": label, "pred": pred}
    columns |= {"avh": draw.random(n) / classes, "confidence": draw.random(n), "nll": draw.random(n)}
    meta = {"model": {"name": "fake", "classes": classes}, "class_names": list(names)}
    return label, pred, make_payload(Rows(SampleTable(pa.table(columns), meta)))


def test_the_matrix_is_scikit_learn_s_with_labels_in_rows():
    label, pred, payload = payload_of()
    [matrix] = payload["confusions"]["tables"]
    expected = confusion_matrix(label, pred)
    assert expected[1, 2] >= 7 > expected[2, 1] == 0  # the axes cannot be swapped unnoticed
    assert [row[1:] for row in matrix["rows"]] == expected.tolist()
    assert [column["title"] for column in matrix["columns"][1:]] == [row[0] for row in matrix["rows"]]
    assert payload["confusions"]["codes"] == [0, 1, 2, 3]


def test_of_many_classes_the_most_confused_pairs_are_listed():
    label, pred, payload = payload_of(classes=40, n=4000)
    content = payload["confusions"]
    [table] = content["tables"]
    expected = confusion_matrix(label, pred, labels=range(40))
    wrong = expected * (1 - np.eye(40, dtype=int))
    rows = table_rows(table)
    assert [row["n"] for row in rows] == np.sort(wrong, axis=None)[::-1][:100].tolist()
    for row, (a, b) in zip(rows, content["pairs"], strict=True):
        assert (row["label"], row["pred"], row["n"]) == (str(a), str(b), wrong[a, b])
        assert row["share"] == pytest.approx(wrong[a, b] / expected[a].sum(), rel=1e-3)
    assert f"{np.count_nonzero(wrong):,} pairs" in content["note"]


def test_without_labels_or_confusions_of_many_classes_there_is_no_section():
    _, _, payload = payload_of(classes=40, wrong=0)
    table = {"id": ["a", "b"], "pred": [0, 1], "nll": [0.1, 0.2]}
    unlabeled = make_payload(Rows(SampleTable(pa.table(table), {"model": {"classes": 2}})))
    assert "confusions" not in unlabeled
    assert payload["confusions"]["note"].startswith("All 1 pairs")


@pytest.mark.slow
@pytest.mark.parametrize(
    "look", [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": {"width": 400, "height": 800}}]
)
def test_a_cell_selects_its_samples(show, look):
    label, pred, payload = payload_of()
    page = show(payload, **look)
    cell = page.get_by_test_id("confusion-table").get_by_role("button", name="labeled 1, predicted 2:")
    cell.focus()
    page.keyboard.press("Enter")
    rows = card_rows(page)
    shown = [(payload["points"]["label"][i], payload["points"]["pred"][i]) for i in rows]
    assert set(shown) == {(1, 2)}
    assert len(rows) == ((label == 1) & (pred == 2)).sum()
    page.get_by_test_id("clear-filters").click()
    assert status(page).split(" have")[0].endswith("of 600 samples")
    assert page.evaluate("document.documentElement.scrollWidth") <= look.get("viewport", {}).get("width", 1200)


@pytest.mark.slow
def test_a_pair_of_the_table_selects_its_samples(show):
    label, pred, payload = payload_of(classes=40, n=4000)
    page = show(payload)
    page.get_by_test_id("confusion-table").locator("tbody tr").first.get_by_role("button").click()
    a, b = payload["confusions"]["pairs"][0]
    assert len(card_rows(page)) == ((label == a) & (pred == b)).sum()


@pytest.mark.slow
def test_hostile_names_are_text_and_the_matrix_needs_no_script(show, browser, tmp_path):
    from hardsight.report.page import render

    names = [name.encode("utf-8", "replace").decode() for name in HOSTILE]
    _, _, payload = payload_of(classes=10, names=names)
    page = show(payload)
    text = page.get_by_test_id("confusion-table").inner_text()
    assert names[0] in text
    assert "__proto__" in text
    assert page.evaluate("window.pwned") is None
    (tmp_path / "plain.html").write_text(render(payload), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto((tmp_path / "plain.html").as_uri())
    counts = plain.get_by_test_id("confusion-table").locator("tbody td").all_inner_texts()
    assert [int(count) for count in counts] == [
        n for row in payload["confusions"]["tables"][0]["rows"] for n in row[1:]
    ]
    context.close()
