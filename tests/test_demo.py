"""The demo: real digits, out of sample, in the terminal and on disk."""

import pytest

from hardsight import SampleTable
from hardsight.cli import main


@pytest.mark.slow
def test_the_demo_runs_as_it_says(tmp_path, capsys):
    main(["demo", "-o", str(tmp_path / "run")])
    out = capsys.readouterr().out
    table = SampleTable.load(tmp_path / "run")
    assert len(table) == 1797
    assert table["id"][:2].tolist() == ["digits:0", "digits:1"]
    assert table.accuracy > 0.98  # measured .994 out of sample
    assert table.meta["data"]["out_of_sample"] == "5 folds"
    assert "The 6 hardest" in out
    assert "██" in out
    assert "next, on your own classifier: hardsight score" in out
    # Out of sample the wrong ones are hard: AVH must find most of them among the hardest tenth.
    wrong = table["label"] != table["pred"]
    assert (table.rank("avh")[wrong] <= 180).mean() > 0.9
    main(["demo", "-o", str(tmp_path / "run")])  # again replaces the earlier demo
