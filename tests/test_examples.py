"""Examples run as they stand, and pages keep their promises."""

import ast
import importlib
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

import hardsight
from hardsight import SampleTable

ROOT = Path(__file__).parents[1]


EXAMPLES = ("capture_in_your_loop.py", "features_on_disk.py", "find_wrong_labels.py", "record_training.py")
TRAINING = ("train_timm.py", "train_huggingface.py", "train_lightning.py")
SETTINGS = ("unseen_domains.py", "long_tails.py", "graphs.py", "hard_tokens.py")


SLOW = (pytest.param(name, marks=pytest.mark.slow) for name in (*TRAINING, *SETTINGS))


@pytest.mark.parametrize("name", [*EXAMPLES, *SLOW])
@pytest.mark.filterwarnings("default")  # as in a user's shell: told, not raised
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    """As a script, but in this process: half of its time would be to import what is here already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # what it sets there ends with it
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    out = capsys.readouterr().out
    assert any(word in out for word in ("ardest", "SampleTable", "accuracy"))


def test_the_overview_is_drawn_from_a_run(tmp_path, monkeypatch):
    import numpy as np

    ids = [f"digits:{i}" for i in range(20)]
    columns = {"id": ids, "label": np.arange(20) % 10, "pred": np.arange(20) % 10, "avh": np.linspace(0.05, 0.2, 20)}
    SampleTable.from_columns(columns).save(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["draw_hardest.py", str(tmp_path / "run"), str(tmp_path / "o.svg")])
    runpy.run_path(str(ROOT / "examples" / "draw_hardest.py"), run_name="__main__")
    assert (tmp_path / "o.svg").read_text().startswith("<svg")


def test_no_example_is_forgotten():
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, *TRAINING, *SETTINGS, "draw_hardest.py"}


def test_code_in_the_readme_is_python_with_real_names():
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hs":
                assert hasattr(hardsight, node.attr), node.attr


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_every_benchmark_can_be_started(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    for path in (ROOT / "benchmarks").glob("*.py"):
        if path.stem != "__main__":
            importlib.import_module(f"benchmarks.{path.stem}")
