"""Cleaning: the lists, the cleaned data, what other tools get, and what must never be written."""

import csv
import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from cleaning_cases import cleaned, files_of, run_on, scored
from PIL import Image

import hardsight as hs
from hardsight.cli.pages import cleaning_lines
from hardsight.data import open_data
from hardsight.labelerrors import ACTIONS, actions, clean, copies, label_errors, read_ids, to_datalab
from hardsight.runs import DataInfo

FILES = ["actions.csv", "actions.parquet", "drop.txt", "keep.txt", "relabel.txt", "review.txt", "samples.parquet"]


def test_lists_are_whole_and_agree(noisy, tmp_path):
    summary = clean(noisy.table, tmp_path / "lists", data="digits")
    assert files_of(tmp_path / "lists") == FILES
    rows = pq.read_table(tmp_path / "lists" / "actions.parquet")
    expected = actions(noisy.table)
    assert rows["id"].to_pylist() == expected["id"].tolist()
    assert rows["action"].to_pylist() == expected["action"].tolist()
    assert set(noisy.table.scores) <= set(rows.column_names)
    for action in ACTIONS:
        ids = read_ids(tmp_path / "lists" / f"{action}.txt")
        assert ids == [row["id"] for row in rows.to_pylist() if row["action"] == action]
        assert len(ids) == summary[action]
    assert summary["samples"] == len(noisy.table) == sum(summary[action] for action in ACTIONS)
    with (tmp_path / "lists" / "actions.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [row["id"] for row in read] == rows["id"].to_pylist()
    assert [row["suggested_name"] for row in read] == [value or "" for value in rows["suggested_name"].to_pylist()]
    np.testing.assert_allclose([float(row["avh"]) for row in read], rows["avh"].to_numpy())
    by_id = dict(zip(noisy.table["id"], noisy.table["avh"], strict=True))
    assert [by_id[id_] for id_ in rows["id"].to_pylist()] == rows["avh"].to_pylist()


def test_a_run_folder_gets_its_lists_inside_and_stays_a_run(noisy, tmp_path):
    run = noisy.table.save(tmp_path / "run")
    summary = clean(run)
    assert summary["lists"] == str(run / "lists")
    assert any("--data" in note for note in summary["notes"])
    assert len(hs.SampleTable.load(run)) == len(noisy.table)
    with pytest.raises(FileExistsError, match=r"already; .*--overwrite"):
        clean(run)
    assert clean(run, overwrite=True, count=3)["review"] == 3
    assert len(read_ids(run / "lists" / "review.txt")) == 3
    assert not list(run.glob(".*"))


def test_arguments_are_passed_on(noisy, tmp_path):
    summary = clean(noisy.table, tmp_path / "a", by="avh", share=0.01)
    assert summary["by"] == "avh"
    assert summary["relabel"] + summary["review"] == round(0.01 * len(noisy.table))
    assert "estimate" in summary
    with pytest.raises(ValueError, match=r"out .*folder"):
        clean(noisy.table)
    with pytest.raises(ValueError, match="mean disagreement"):
        clean(noisy.table, tmp_path / "b", by="disagrement")
    assert not (tmp_path / "b").exists()


def test_bad_rows_are_in_the_lists(noisy, tmp_path):
    bad = pa.table({"id": ["digits:x"], "error": ["a truncated file"]})
    table = hs.SampleTable(noisy.table.to_arrow(), noisy.table.meta, bad)
    summary = clean(table, tmp_path / "lists")
    assert summary["unreadable"] == 1
    assert "digits:x" in read_ids(tmp_path / "lists" / "drop.txt")
    last = pq.read_table(tmp_path / "lists" / "actions.parquet").to_pylist()[-1]
    assert (last["reason"], last["avh"], last["label"]) == ("a truncated file", None, None)


HOSTILE = [
    '=HYPERLINK("http://x")', "+1", "-rf", "@SUM(A1)", "\tx", "\rx", "'quoted'", "two\nlines", "two\r\nlines",
    "a,b;c", 'say "no"', '"', "  spaces ", "línea\u2028sep", "naïve ☃ 日本", "..",
    "../../up", "<script>alert(1)</script>",
    "\\n", "{{7*7}}", "＝1+1", "nul\x00", "\x1b[31mred",
]  # fmt: skip


def hostile_table():
    ids = np.array([f"{name}" for name in HOSTILE], dtype=object)
    n = len(ids)
    columns = {
        "id": ids,
        "label": np.arange(n) % 2,
        "pred": (np.arange(n) + np.arange(n) // 2) % 2,
        "confidence": np.linspace(0.1, 0.9, n),
        "max_logit": np.zeros(n),
        "free_energy": np.full(n, np.log(0.9)),
        "margin": np.zeros(n),
    }
    meta = {"model": {"classes": 2}, "class_names": ["=cmd|' /C calc'!A0", "-2\n@x"]}
    return hs.SampleTable.from_columns(columns, meta)


def test_hostile_names_come_back_from_every_list_and_are_no_formulas(tmp_path):
    table = hostile_table()
    clean(table, tmp_path / "lists", count=8)
    rows = pq.read_table(tmp_path / "lists" / "actions.parquet")
    assert sorted(rows["id"].to_pylist()) == sorted(HOSTILE)
    ids = [id_ for name in ("keep", "relabel", "drop") for id_ in read_ids(tmp_path / "lists" / f"{name}.txt")]
    assert sorted(ids) == sorted(HOSTILE)
    with (tmp_path / "lists" / "actions.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    numbers = {"label", "pred", "suggested", "suspicion", "rank", "p_label", "p_pred", "confidence", "max_logit",
               "free_energy", "margin"}  # fmt: skip
    for row, truth in zip(read, rows.to_pylist(), strict=True):
        for name, text in row.items():
            if name not in numbers:
                assert not text.startswith(tuple("=+-@\t\r\n＝"))
                assert text.removeprefix("'") == (truth[name] or "")
    whole = pyarrow.csv.read_csv(
        tmp_path / "lists" / "actions.csv", parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )
    assert len(whole) == len(HOSTILE)


def test_ordinary_ids_are_lines_as_they_are(tmp_path):
    clean(hostile_table(), tmp_path / "lists", count=0)
    lines = (tmp_path / "lists" / "keep.txt").read_text(encoding="utf-8").split("\n")
    for plain in ("-rf", "\\n", "a,b;c", "naïve ☃ 日本", "../../up"):
        assert plain in lines


def test_arrays_become_pictures_for_viewers(noisy, tmp_path, monkeypatch):
    summary = clean(noisy.table, tmp_path / "lists", data="digits")
    seen = pq.read_table(tmp_path / "lists" / "samples.parquet")
    assert summary["pictures"] == len(noisy.table)
    for row in seen.slice(0, 20).to_pylist():
        pixels = np.asarray(Image.open(io.BytesIO(row["image"])))
        np.testing.assert_array_equal(pixels, noisy.pictures[int(row["id"].split(":")[1])])
        assert row["ground_truth"] == str(noisy.given[int(row["id"].split(":")[1])])
    plain = (pa.types.is_string, pa.types.is_binary, pa.types.is_floating, pa.types.is_integer)
    assert all(any(check(field.type) for check in plain) for field in seen.schema)
    assert {"filepath", "prediction", "suggested", "action", "avh", "confidence", "p_pred"} <= set(seen.column_names)
    monkeypatch.setattr(copies, "IMAGE_BYTES", 2_000)
    few = clean(noisy.table, tmp_path / "few", data="digits")["pictures"]
    assert 5 < few < 30
    images = pq.read_table(tmp_path / "few" / "samples.parquet")["image"].to_pylist()
    assert sum(map(len, images[:few])) <= 2_000  # the most suspicious have theirs
    assert images[few:] == [None] * (len(noisy.table) - few)


def test_moved_data_leave_lists_without_pictures(noisy, tmp_path):
    gone = hs.SampleTable(noisy.table.to_arrow(), replace(noisy.table.meta, source={"data": str(tmp_path / "gone")}))
    summary = clean(gone, tmp_path / "lists")
    assert summary["pictures"] == summary["paths"] == 0
    assert any("with --data" in note for note in summary["notes"])
    with pytest.raises(ValueError, match=r"dataset: .*opened"):
        cleaned(gone, tmp_path / "other", dataset=tmp_path / "x.npz")
    other = hs.SampleTable.from_columns({"id": ["a"], "label": [0], "pred": [1], "avh": [0.1]})
    with pytest.raises(ValueError, match="no sample"):
        clean(other, tmp_path / "other", by="avh", count=1, data="digits")
    assert not (tmp_path / "other").exists()


def test_a_folder_that_was_renamed_is_still_the_same_data(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    table.meta.data = DataInfo(split="photos")
    table.meta.source = samples.source
    photos.rename(tmp_path / "moved")
    assert clean(table, tmp_path / "without")["paths"] == 0
    assert clean(table, tmp_path / "with", data=tmp_path / "moved")["paths"] == len(samples)
    other = tmp_path / "photos" / "=cat" / "another.png"
    other.parent.mkdir(parents=True)
    Image.new("L", (4, 4)).save(other)
    assert any("no sample" in note for note in clean(table, tmp_path / "other")["notes"])


def test_the_closing_lines_say_what_was_done_and_what_is_next(noisy, archive, tmp_path):
    table = run_on(noisy.table, f"{archive}:test", "test")
    summary = cleaned(table, tmp_path / "lists", dataset=tmp_path / "cleaned.npz")
    text = "\n".join(cleaning_lines(summary))
    assert all(f"{action} {summary[action]:,}" in text for action in ACTIONS)
    assert str(tmp_path / "cleaned.npz") in text
    assert str(tmp_path / "lists") in text
    lists_alone = "\n".join(cleaning_lines(clean(table, tmp_path / "lists", overwrite=True)))
    assert "--decisions" in lists_alone  # what to do next


def test_a_datalab_has_our_labels_probabilities_and_scores(noisy, capsys):
    lab = to_datalab(noisy.table, "avh")
    assert capsys.readouterr().out == ""
    issues = lab.get_issues("label")
    assert len(issues) == len(noisy.table)
    wrong = noisy.wrong[[int(id_.split(":")[1]) for id_ in lab.data["id"]]]
    assert issues["is_label_issue"][wrong].mean() > 0.7
    assert np.allclose(lab.data["suspicion"], noisy.table["avh"])
    quality = 1 - label_errors(noisy.table, "cleanlab_self_confidence")["suspicion"]
    np.testing.assert_allclose(np.sort(issues["label_score"]), np.sort(quality), atol=1e-6)


def test_a_datalab_of_some_classes(noisy):
    some = noisy.table.to_arrow().filter(pa.array(np.isin(noisy.given, [1, 4, 7])))
    lab = to_datalab(hs.SampleTable(some, noisy.table.meta, None, noisy.table.vectors))
    assert len(lab.get_issues("label")) == len(some)
    with pytest.raises(ValueError, match="keep the probabilities"):
        to_datalab(hs.SampleTable(some, noisy.table.meta))
