"""The demo: real digits with planted wrong labels, found in the terminal and on the page, and cleaned away."""

import json

import numpy as np
import pytest
from command_line import failure, run

import hardsight as hs
from hardsight.data import load_digits
from hardsight.labelerrors import clean
from hardsight.runs import Folds
from hardsight.scoring.folds import assign_folds


@pytest.mark.slow
def test_the_demo_finds_the_labels_it_changed(tmp_path, capsys, monkeypatch):
    code, out, err = run(capsys, "demo", "-o", tmp_path / "run", "--json")
    assert code == 0
    numbers, table = json.loads(out), hs.SampleTable.load(tmp_path / "run")
    _, truth = load_digits()
    planted = table.meta.planted
    places = {id_: int(id_.removeprefix("digits:")) for id_ in table["id"]}
    wrong = {id_ for id_, label in zip(table["id"], table["label"], strict=True) if label != truth[places[id_]]}
    assert len(table) == 1797
    assert {id_: truth[places[id_]] for id_ in wrong} == planted
    assert len(wrong) == 30
    assert table.meta.out_of_sample == Folds(5, 1, "model")
    # The numbers are those of the suspects.
    suspects = hs.label_errors(table)
    suspects = {*suspects["id"][suspects["suspect"]]}
    assert (numbers["changed"], numbers["found"], numbers["others"]) == (
        30,
        len(suspects & wrong),
        len(suspects - wrong),
    )
    assert numbers["found"] >= 25  # measured 27
    assert f"found {numbers['found']} of the 30 labels we changed" in err
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"{numbers['found']} of 30" in page
    # What it says to do next: review the suspects, here by somebody who knows, and apply the decisions.
    decisions = {
        "id": list(suspects),
        "action": ["relabel" if id_ in wrong else "keep" for id_ in suspects],
        "new_label": [str(planted.get(id_, "")) for id_ in suspects],
    }
    summary = clean(tmp_path / "run", decisions=decisions, dataset=tmp_path / "cleaned.npz")
    assert summary["dataset"]["relabeled"] == numbers["found"]
    with np.load(tmp_path / "cleaned.npz") as cleaned:
        assert (cleaned["digits_labels"] != truth).sum() == 30 - numbers["found"]
        assert (cleaned["digits_images"] == load_digits()[0]).all()


@pytest.mark.slow
def test_the_seed_determines_the_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hardsight.demo.EPOCHS", 1)
    divisions = []
    monkeypatch.setattr("hardsight.scoring.folds.assign_folds", recording(assign_folds, divisions))
    tables = []
    for seed in (0, 7, 0):  # each replaces the demo before
        assert run(capsys, "demo", "-o", tmp_path / "run", "--seed", seed)[0] == 0
        tables.append(hs.SampleTable.load(tmp_path / "run"))
    first, other, again = tables
    assert again.meta.planted == first.meta.planted
    assert again.to_arrow().equals(first.to_arrow())
    assert other.meta.planted != first.meta.planted
    ours, others, _ = np.split(np.array(divisions), 3)  # a call per fold
    assert (ours == ours[0]).all()
    assert (others == others[0]).all()
    assert (ours[0] != others[0]).any()


def test_only_a_demo_is_replaced(tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("")
    assert "photos" in failure(capsys, "demo", "-o", tmp_path / "photos")


def recording(function, results):
    """The function, whose results are collected."""

    def call(*args):
        results.append(function(*args))
        return results[-1]

    return call
