"""People on the page: counts against NumPy and naive loops, lists that belong to their quarter, and the browser."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
import torch
from naive import triple
from report_pages import HOSTILE, card_rows, settle, status
from report_runs import cells, in_page, listed, record

import hardsight as hs
from hardsight.people import Alignment, Ceiling, Difference, Outcome, read_alignment, write_alignment
from hardsight.report import write_report
from hardsight.report.people import BINS_X, BINS_Y, HARD
from hardsight.report.samples import LENGTH
from hardsight.runs import ALIGNMENT

N = 300


def some_table(n=N):
    torch.manual_seed(0)
    features, weight, labels, bias = triple(n, 12, 5)
    table = hs.score_features(features, weight, labels, bias, [f"test:{i}" for i in range(n)], name="a net")
    table.meta.class_names = ["ant", "bee", "cat", "dog", "eel"]
    return table


def answers(table, people=20, seed=1):
    """Frequencies of so many people, who find hard what the model finds hard, up to a point; many agree at 1."""
    draw = np.random.default_rng(seed)
    ease = 1.8 - 5 * table["avh"] + draw.normal(0, 0.2, len(table))
    return draw.binomial(people, np.clip(ease, 0, 1)) / people


def beside(table, hsf, **changes):
    """What `hardsight align` might have found, made up but for the frequencies."""
    known = ~np.isnan(hsf)
    people = pa.table({"id": table["id"][known], "hsf": hsf[known], "entropy": 1 - hsf[known]})
    row = {"score": "avh", "coefficient": "spearman", "bin": "all", "n": len(hsf), "value": -0.5, "agreement": 0.5}
    rows = pa.Table.from_pylist([row | {"low": -0.6, "high": -0.4}])
    entry = {"kind": "score", "behind_low": None, "behind_high": None, "p_holm": None}
    entry |= {f"{name}{end}": value for name in ("pearson", "kendall") for end, value in
              (("", 0.4), ("_low", 0.3), ("_high", 0.5))}  # fmt: skip
    entry |= {"spearman_low": 0.1, "spearman_high": 0.6}
    board = [entry | {"score": "margin", "spearman": 0.55, "behind": None},
             entry | {"score": "avh", "spearman": 0.5, "behind": 0.05, "p_holm": 0.02}]  # fmt: skip
    tests = [Difference("avh", "margin", "spearman", "bootstrap", -0.05, -0.1, -0.01, 0.02, -2.0, len(table))]
    outcomes = [Outcome("Hypothesis 1", "It holds.", "holds", "holds", {}, "it does")]
    fields = {"source": "people.csv", "notes": ["All samples have answers."], "samples": len(table), "other": 3}
    fields |= {"ceilings": [Ceiling("spearman", 0.8, 0.7, 0.9, 0.5, 0.6, "good")], "hypotheses": outcomes}
    fields |= {"leaderboard": pa.Table.from_pylist(board), "differences": tests}
    return Alignment(people, rows, **fields | changes)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A run beside people, the frequencies by id, and its page."""
    run = tmp_path_factory.mktemp("people") / "run"
    table = some_table()
    table.save(run)
    hsf = answers(table)
    hsf[[7, 70]] = np.nan
    write_alignment(run, beside(table, hsf))
    return run, table, hsf, in_page(write_report(run, pictures=0))


def test_what_is_written_is_read_again(case, tmp_path):
    run, table, hsf, _ = case
    found = read_alignment(run)
    given = beside(table, hsf)
    assert found.summary == given.summary
    assert (found.differences, found.hypotheses, found.ceilings) == (
        given.differences,
        given.hypotheses,
        given.ceilings,
    )
    for name in ("people", "rows", "leaderboard"):
        assert getattr(found, name).equals(getattr(given, name))
    assert read_alignment(tmp_path) is None
    assert sorted(path.name for path in (run / ALIGNMENT).iterdir()) == [
        "differences.parquet", "leaderboard.parquet", "people.parquet", "rows.parquet", "summary.json",
    ]  # fmt: skip


def test_a_writing_that_is_killed_leaves_no_half_of_two(case, tmp_path, monkeypatch):
    _, table, hsf, _ = case
    write_alignment(tmp_path, beside(table, hsf))
    monkeypatch.setattr("hardsight.runs.write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_alignment(tmp_path, beside(table, 1 - hsf))
    assert read_alignment(tmp_path) is None


@pytest.mark.parametrize(("damage", "text"), [("summary.json", "[1]"), ("summary.json", "{}"), ("rows.parquet", "")])
def test_a_damaged_folder_is_told_in_a_sentence(case, tmp_path, damage, text):
    _, table, hsf, _ = case
    write_alignment(tmp_path, beside(table, hsf))
    (tmp_path / ALIGNMENT / damage).write_text(text)
    with pytest.raises(RuntimeError, match=r"damaged.*hardsight align"):
        read_alignment(tmp_path)


def test_a_run_that_is_scored_again_forgets_its_alignment(case, tmp_path):
    _, table, hsf, _ = case
    table.save(tmp_path / "run")
    write_alignment(tmp_path / "run", beside(table, hsf))
    (tmp_path / "run" / ALIGNMENT / "mine.txt").write_text("a user's own")
    table.save(tmp_path / "run", overwrite=True)
    assert read_alignment(tmp_path / "run") is None
    assert (tmp_path / "run" / ALIGNMENT / "mine.txt").exists()


def test_a_run_without_people_has_no_section(tmp_path):
    some_table(40).save(tmp_path / "run")
    payload = in_page(write_report(tmp_path / "run", pictures=0))
    assert "people" not in payload
    assert "hsf" not in payload["points"]["scores"]
    assert not any(one["key"].startswith("people") for one in [*payload["lists"], *payload["views"]])


def test_frequencies_meet_their_samples_by_id(case):
    _, table, hsf, payload = case
    by_id = dict(zip(table["id"].tolist(), hsf.tolist(), strict=True))
    shown = dict(zip(payload["points"]["id"], payload["points"]["scores"]["hsf"], strict=True))
    assert shown["test:7"] is None
    for key, value in shown.items():
        assert value is None or value == pytest.approx(by_id[key], rel=1e-3)
    assert payload["scores"]["hsf"]["harder"] == "smaller"
    assert [value for _, value, _ in payload["people"]["tiles"]] == ["298", f"{np.nanmean(hsf):.3f}", "3", "0.800"]


def test_histograms_are_numpy_s(case):
    _, table, hsf, payload = case
    found = {one["key"]: one for one in payload["people"]["histograms"]}
    assert {"avh", "confidence", "norm", "angle"} <= set(found)
    assert found["avh"]["note"] == "Spearman −0.500 (95% interval −0.600 to −0.400); n = 298."
    known = ~np.isnan(hsf)
    for name, scale in (("avh", 5), ("confidence", 1), ("norm", 1)):
        one, values = found[name], scale * table[name].astype(float)
        ends = [(one["y"]["low"], one["y"]["high"]), (0, 1)]
        expected, *_ = np.histogram2d(np.clip(values[known], *ends[0]), hsf[known], (BINS_Y, BINS_X), ends)
        assert sum(one["counts"]) == known.sum()
        assert np.abs(expected.ravel() - one["counts"]).sum() <= 4  # of what lies on an edge to the last digit
        last = values[known & (hsf >= 0.96)]
        assert one["medians"][-1] == pytest.approx(np.median(last), rel=1e-3)


def test_the_two_by_two_is_a_naive_count(case):
    _, table, hsf, payload = case
    known = ~np.isnan(hsf)
    people, model = hsf[known], table["avh"][known]
    share = {value: (people <= value).mean() for value in set(people.tolist()) if (people <= value).mean() < 1}
    cut = min(share, key=lambda value: abs(share[value] - HARD))
    k = int((people <= cut).sum())
    hardest = set(np.argsort(-model, kind="stable")[:k].tolist())
    expected = [[0, 0], [0, 0]]
    for i, frequency in enumerate(people):
        expected[int(frequency <= cut)][int(i in hardest)] += 1
    found = payload["people"]["tables"][0]
    assert [row[1:] for row in found["rows"]] == expected
    assert sum(expected[0]) == sum(row[0] for row in expected)  # as many are hard for people as for the model
    assert f"Hard are {k} samples for each" in found["note"]
    assert f"at most {100 * cut:.0f}%" in found["note"]


def test_lists_hold_their_quarter_the_largest_difference_of_ranks_first(case):
    _, table, hsf, payload = case
    place = {key: i for i, key in enumerate(table["id"].tolist())}
    counts = [row[1:] for row in payload["people"]["tables"][0]["rows"]]
    easy, hard = ([place[key] for key in listed(payload, key_)] for key_ in ("people_easy", "people_hard"))
    assert len(easy) == min(counts[0][1], LENGTH)
    assert len(hard) == min(counts[1][0], LENGTH)
    assert not set(easy) & set(hard)
    assert hsf[easy].min() > hsf[hard].max()
    assert table["avh"][easy].min() > table["avh"][hard].max()
    ranks = [np.searchsorted(np.sort(x), x) / len(x) for x in (table["avh"], -np.nan_to_num(hsf, nan=-9))]
    assert (ranks[0] - ranks[1])[easy[0]] > (ranks[0] - ranks[1])[easy[-1]]
    assert (ranks[1] - ranks[0])[hard[0]] > (ranks[1] - ranks[0])[hard[-1]]


@pytest.mark.parametrize("kind", ["one value", "nearly one value", "nobody known here", "two samples"])
def test_people_who_say_little_make_a_page_all_the_same(tmp_path, kind):
    table = some_table(60)
    hsf = np.ones(60)
    hsf[:3] = 0.2 if kind == "nearly one value" else 1.0
    found = beside(table, hsf)
    if kind == "nobody known here":
        found = replace(found, people=found.people.slice(0, 0))
    if kind == "two samples":
        found = replace(found, people=found.people.slice(0, 2))
    table.save(tmp_path / "run")
    write_alignment(tmp_path / "run", found)
    payload = in_page(write_report(tmp_path / "run", pictures=0))
    quarters = payload["people"]["tables"][0]["rows"]
    if kind == "nearly one value":
        assert sum(quarters[1][1:]) == 3
    else:
        assert quarters == []
        assert not any(one["key"].startswith("people") for one in payload["lists"])


def test_a_score_that_differs_by_rounding_alone_is_drawn_as_one_line(tmp_path):
    table = some_table(60)
    rows = table.to_arrow().drop_columns(["entropy"])
    table = table.with_rows(rows).with_column("entropy", 0.25 + 1e-9 * np.arange(60))
    table.save(tmp_path / "run")
    write_alignment(tmp_path / "run", beside(table, answers(table)))
    found = in_page(write_report(tmp_path / "run", pictures=0))["people"]["histograms"]
    counts = np.reshape(next(one["counts"] for one in found if one["key"] == "entropy"), (BINS_Y, BINS_X))
    assert np.count_nonzero(counts.sum(1)) == 1


def test_the_leaderboard_comes_as_it_was_written(case):
    board = case[3]["people"]["tables"][1]
    assert cells(board, "title") == ["logit margin", "C·AVH"]
    assert cells(board, "p_holm") == [None, 0.02]
    assert cells(board, "spearman")[1] == [0.5, 0.1, 0.6]
    assert cells(board, "behind")[0] == [None, None, None]
    assert board["chart"]["overall"] == 0.8


@pytest.mark.slow
def test_without_a_script_the_page_has_the_leaderboard_and_the_two_by_two(browser, case):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((case[0] / "report.html").as_uri())
    board = page.get_by_test_id("board-table").locator("tbody tr").nth(1).locator("td").all_inner_texts()
    assert [board[0], board[3], board[-1]] == ["C·AVH", "0.500\n0.100 to 0.600", "0.020"]
    shown = page.get_by_test_id("quarters-table").locator("td.number").all_inner_texts()
    assert [int(text) for text in shown] == [n for row in case[3]["people"]["tables"][0]["rows"] for n in row[1:]]
    assert page.get_by_test_id("hypotheses-table").locator("td").all_inner_texts()[1] == "holds"
    page.context.close()


def test_a_run_that_went_on_is_told_to_be_compared_again(tmp_path):
    run = record(tmp_path / "run", epochs=2)
    table = hs.SampleTable.load(run)
    for epoch, told in ((2, False), (1, True)):
        write_alignment(run, beside(table, answers(table), epoch=epoch))
        payload = in_page(write_report(run, pictures=0))
        assert ("hardsight align" in payload["people"]["warning"]) == told


def test_samples_of_both_lists_are_among_the_first_to_get_pictures(tmp_path):
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (N, 8, 8), dtype=np.uint8)
    table = some_table()
    np.savez(tmp_path / "set.npz", test_images=pictures, test_labels=table["label"])
    table.save(tmp_path / "run")
    write_alignment(tmp_path / "run", beside(table, answers(table)))
    page = write_report(tmp_path / "run", pictures=60, data=f"{tmp_path / 'set.npz'}:test")
    payload = in_page(page)
    pictured = {id_ for id_, at in zip(payload["points"]["id"], payload["points"]["picture"], strict=True) if at >= 0}
    for key in ("people_easy", "people_hard"):
        assert set(listed(payload, key)[:5]) <= pictured


@pytest.mark.slow
def test_scores_are_chosen_and_galleries_opened(show, case):
    payload = case[3]
    page = show(payload)
    page.get_by_role("link", name="People", exact=True).click()
    rows = page.get_by_test_id("people").get_by_test_id("board-table").locator("tbody tr")
    assert rows.nth(0).locator("td").all_inner_texts()[0] == "logit margin"
    assert "0.500\n0.100 to 0.600" in rows.nth(1).inner_text()
    heat = page.get_by_test_id("people-histogram")
    first = payload["people"]["histograms"][0]
    assert heat.locator("rect.heat").count() == np.count_nonzero(first["counts"])
    page.get_by_test_id("people-score").select_option(label="confidence")
    chosen = next(one for one in payload["people"]["histograms"] if one["key"] == "confidence")
    assert heat.locator("rect.heat").count() == np.count_nonzero(chosen["counts"])
    assert "not compared" in heat.inner_text()
    counts = [row[1:] for row in payload["people"]["tables"][0]["rows"]]
    shown = page.get_by_test_id("quarters-table").locator("td strong").all_inner_texts()
    assert shown == [str(counts[a][b]) for a, b in product((0, 1), (0, 1))]
    page.get_by_test_id("see-people_easy").click()
    expected = next(one["rows"] for one in payload["lists"] if one["key"] == "people_easy")
    assert card_rows(page) == expected
    page.get_by_test_id("card").first.click()
    meanings = [node.get_attribute("title") for node in page.get_by_test_id("dialog").locator("abbr").all()]
    assert any(meaning.endswith("Smaller is harder.") for meaning in meanings)
    page.keyboard.press("Escape")
    page.get_by_test_id("view").select_option(label="People against C·AVH")
    page.get_by_test_id("brush-x1").fill("0.5")
    inside = sum(value is not None and value <= 0.5 for value in payload["points"]["scores"]["hsf"])
    settle(page)
    assert status(page).startswith(f"0 of {inside} brushed")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_and_hostile_words(show, case, scheme):
    payload = json.loads(json.dumps(case[3]))
    people = payload["people"]
    people["note"] = people["warning"] = HOSTILE[0]
    people["notes"] = HOSTILE[:3]
    people["tables"][0]["note"] = HOSTILE[1]
    people["tables"][2]["rows"] = [[text] * 3 for text in HOSTILE]
    for row in people["tables"][1]["rows"]:
        row[0] = row[1] = HOSTILE[1] * 3
    for one in people["histograms"]:
        one["title"] = one["note"] = one["y"]["title"] = HOSTILE[0]
    page = show(payload, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate("window.pwned") is None
    assert HOSTILE[0] in page.get_by_test_id("people").inner_text()
