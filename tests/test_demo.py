"""The demo: real digits, out of sample, in the terminal and on disk."""

import pytest

from hardsight import SampleTable
from hardsight.cli import main
from hardsight.labelerrors import read_ids
from hardsight.runs import Folds
from hardsight.scoring.folds import assign_folds


@pytest.mark.slow
def test_the_demo_runs_as_it_says(tmp_path, capsys, monkeypatch):
    main(["demo", "-o", str(tmp_path / "run")])
    out = capsys.readouterr().out
    table = SampleTable.load(tmp_path / "run")
    assert len(table) == 1797
    assert table["id"][:2].tolist() == ["digits:0", "digits:1"]
    assert table.accuracy > 0.98  # measured .994 out of sample
    assert table.meta.out_of_sample == Folds(5, 1, "model")
    assert "The 6 hardest" in out
    assert "██" in out
    assert "hardsight score --help" in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("data:image/webp") == 400
    assert "400 of 1,797" in page
    # Out of sample the wrong ones are hard: AVH must find most of them among the hardest tenth.
    wrong = table["label"] != table["pred"]
    assert (table.rank("avh")[wrong] <= 180).mean() > 0.9
    # What it says to do next: the lists.
    main(["clean", str(tmp_path / "run"), "--count", "12"])
    assert "keep 1,785" in capsys.readouterr().out
    assert len(read_ids(tmp_path / "run" / "lists" / "review.txt")) == 12
    # Again replaces the earlier demo; how long the new one trained does not matter for that.
    monkeypatch.setattr("hardsight.demo.EPOCHS", 1)
    divisions = []
    monkeypatch.setattr("hardsight.scoring.folds.assign_folds", recording(assign_folds, divisions))
    for seed in (0, 7):
        main(["demo", "-o", str(tmp_path / "run"), "--seed", str(seed)])
    assert SampleTable.load(tmp_path / "run").accuracy != table.accuracy
    assert (divisions[0] == assign_folds(table["label"], 5, 0)).all()
    assert (divisions[1] == assign_folds(table["label"], 5, 7)).all()
    assert (divisions[0] != divisions[1]).any()


def recording(function, results):
    """The function, whose results are collected."""

    def call(*args):
        results.append(function(*args))
        return results[-1]

    return call
