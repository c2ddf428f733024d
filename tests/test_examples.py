"""Examples run as they stand, and pages keep their promises."""

import ast
import importlib
import json
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
    others = {"draw_hardest.py", "tour.py"}  # which have tests below
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, *TRAINING, *SETTINGS, *others}


@pytest.fixture
def make_notebook(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("make_notebook")


def test_the_notebook_is_what_the_script_makes(make_notebook):
    """Else run: python docs/make_notebook.py"""
    assert make_notebook.NOTEBOOK.read_text("utf-8") == make_notebook.notebook(make_notebook.SCRIPT.read_text("utf-8"))
    assert len(make_notebook.SCRIPT.read_text("utf-8").splitlines()) < 120


def test_cells_of_a_script(make_notebook):
    script = '"""Not in a cell."""\n\n# %% [markdown]\n# # Title\n#\n# text\n\n\n# %%\nif x:\n    y\n\n# %%\nz  # %%\n'
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in make_notebook.cells(script)]
    assert cells == [("markdown", "# Title\n\ntext"), ("code", "if x:\n    y"), ("code", "z  # %%")]
    notebook = json.loads(make_notebook.notebook(script))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == 3  # which 4.5 demands
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_the_notebook_runs_from_top_to_bottom(make_notebook, tmp_path, monkeypatch, capsys):
    """Each cell in one namespace; what its last expression gives is shown as a notebook would."""
    monkeypatch.chdir(tmp_path)
    names, shown = {"__name__": "__main__"}, []
    for cell in json.loads(make_notebook.NOTEBOOK.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, cell["id"], "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
                shown += [] if value is None else [(value, as_html(value))]
    tables = [(value, page) for value, page in shown if isinstance(value, SampleTable)]
    assert [len(value) for value, _ in tables[1:2]] == [5]
    assert all("<img" in page for _, page in tables)  # thumbnails of what the network found hard
    whole, _, wrong, hardest, suspects, forgotten = (value for value, _ in tables)
    assert (wrong["pred"] != wrong["label"]).all()
    assert len(wrong) == round((1 - whole.accuracy) * len(whole))
    assert hardest["avh"].tolist() == sorted(whole["avh"])[:-6:-1]
    assert 0 < forgotten["forgetting"][0] == forgotten["forgetting"].max()
    assert len(names["found"]) >= 20  # of 30; by chance not one
    assert f"{len(suspects)} suspects" in capsys.readouterr().out
    assert "</html>" in shown[-1][0].read_text("utf-8")


def as_html(value):
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


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
