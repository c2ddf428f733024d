"""The study engine: cells are computed once, resumed and shared; tables against SciPy's paired t-test."""

import csv
import math
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hardsight.cli import main
from hardsight.errors import InputError, MissingPathError
from hardsight.runs import source_revision
from hardsight.stats import holm
from hardsight.studies import STUDIES, Measure, Scale, engine, read_results, study
from hardsight.studies.tables import Results, conditions

CALLS = []


@pytest.fixture
def toy(monkeypatch):
    """A study of six cells whose second seed may fail."""
    CALLS.clear()
    scales = {
        "smoke": Scale(3, 0.1, settings={"factor": 1.0}),
        "quick": Scale(3, 0.1, settings={"factor": 1.0, "data": "numbers.csv"}),
    }

    @STUDIES.register(
        "toy", question="?", paper="none", factors={"loss": ("ce", "el:0.75")}, compare="loss", baseline="ce",
        measures={"accuracy": Measure("Accuracy", True, "higher")}, scales=scales,
    )  # fmt: skip
    def measure(cell):
        CALLS.append((cell.levels["loss"], cell.seed))
        (cell.folder / "scratch").write_text("x")
        if len(CALLS) == toy_fails[0]:
            raise RuntimeError("killed")
        return {"accuracy": cell.settings["factor"] * (cell.seed + 10 * (cell.levels["loss"] != "ce"))}

    toy_fails = [0]
    yield toy_fails
    del STUDIES["toy"]


def test_what_is_there_is_not_computed_again_and_a_killed_study_resumes(toy, tmp_path):
    toy[0] = 4
    with pytest.raises(RuntimeError):
        study("toy", scale="smoke", out=tmp_path, progress=False)
    results = study("toy", scale="smoke", out=tmp_path, progress=False)
    assert len(CALLS) == 7  # the fourth twice
    assert CALLS[:2] == [("ce", 0), ("el:0.75", 0)]  # seeds are the outer loop
    assert (results.finished, results.cells) == (6, 6)
    assert [(row["loss"], row["seed"], row["accuracy"]) for row in results.rows][:3] == [
        ("ce", 0, 0.0), ("el:0.75", 0, 10.0), ("ce", 1, 1.0),
    ]  # fmt: skip
    assert not list(tmp_path.rglob("scratch"))
    with (tmp_path / "toy-smoke/rows.csv").open() as file:
        assert [float(row["accuracy"]) for row in csv.DictReader(file)] == [0, 10, 1, 11, 2, 12]
    more = study("toy", scale="smoke", seeds=4, out=tmp_path, progress=False)
    assert (len(CALLS), more.finished) == (9, 8)


@pytest.mark.parametrize(
    "change", ["settings", "version", "data", "code", "package", "device", "versions", "damage", "key"]
)
def test_a_cell_is_computed_again_if_anything_that_decides_it_changes(toy, tmp_path, change, monkeypatch, capsys):
    (tmp_path / "numbers.csv").write_text("1")
    run = {"scale": "quick", "out": tmp_path / "out", "data": tmp_path, "progress": False}
    study("toy", **run)
    study("toy", **run)
    assert len(CALLS) == 6
    if change == "settings":
        STUDIES["toy"].scales["quick"].settings["factor"] = 2.0
    elif change == "version":
        object.__setattr__(STUDIES["toy"], "version", 2)
    elif change == "code":
        monkeypatch.setattr(type(STUDIES["toy"]), "code", "another measure")
    elif change == "package":
        monkeypatch.setattr(engine, "package_hash", lambda: "another version")
    elif change in ("device", "versions"):
        made = engine.provenance() | {change: {"device": "NVIDIA X", "versions": {"torch": "9.9"}}[change]}
        monkeypatch.setattr(engine, "provenance", lambda *_: made)
    elif change == "data":
        (tmp_path / "numbers.csv").write_text("2")
    else:
        file = next((tmp_path / "out/toy-quick/cells").glob("*.json"))
        file.write_text("{" if change == "damage" else file.read_text().replace('"key": "', '"key": "other'))
    assert not capsys.readouterr().err
    results = study("toy", **run)
    one = change in ("damage", "key")  # of one cell alone
    assert ("6 cells" in capsys.readouterr().err) != one  # that they are not used
    assert len(CALLS) == (7 if one else 12)
    assert results.finished == 6
    assert max(row["accuracy"] for row in results.rows) == (24 if change == "settings" else 12)


def test_every_row_says_how_it_was_made_and_its_command_makes_it_again(toy, tmp_path):
    results = study("toy", scale="smoke", out=tmp_path / "first", progress=False)
    with (tmp_path / "first/toy-smoke/rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert all(row[name] for name in ("seconds", "hardware", "torch", "versions", "revision", "rerun"))
        assert f"torch {row['torch']}" in row["versions"]
    assert {row["revision"] for row in rows} == {source_revision() or f"source {engine.package_hash()[:12]}"}
    row = next(row for row in rows if (row["loss"], row["seed"]) == ("el:0.75", "2"))
    name, *arguments = shlex.split(row["rerun"])
    assert name == "hardsight"
    main([*arguments, "--out", str(tmp_path / "second")])
    again = read_results("toy", tmp_path / "second/toy-smoke/rows.csv", "smoke")
    assert [(r["loss"], r["seed"], float(r["accuracy"])) for r in again.rows] == [("el:0.75", "2", 12.0)]
    assert results.lines("accuracy", "loss=el:0.75 and seed=2")[0].mean == 12


def test_a_cell_that_always_fails_does_not_keep_a_resumed_study_from_the_others(toy, tmp_path, monkeypatch):
    """Killed after its second cell, whose error is lasting."""
    run, original = {"scale": "smoke", "out": tmp_path, "progress": False}, STUDIES["toy"].measure

    def measure(cell):
        if cell.levels["loss"] == "el:0.75" and cell.seed == 0:
            raise ValueError("lasting")
        if len(CALLS) == 1 and not resumed:
            raise KeyboardInterrupt
        return original(cell)

    resumed = []
    object.__setattr__(STUDIES["toy"], "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        study("toy", **run)
    assert CALLS == [("ce", 0)]
    resumed.append(True)
    with pytest.raises(ValueError, match="lasting"):
        study("toy", **run)
    assert CALLS == [("ce", 0), ("ce", 1), ("el:0.75", 1), ("ce", 2), ("el:0.75", 2)]
    with pytest.raises(ValueError, match="lasting"):
        study("toy", where="loss=el:0.75 and seed=0", **run)  # alone it stops at once


def test_a_level_may_contain_and_and_no_column_is_named_twice():
    names = ("recorded", "seed")
    assert conditions("recorded=train and test and seed=0", names) == {"recorded": ["train and test"], "seed": ["0"]}
    assert conditions(" seed = 1 ", names) == {"seed": ["1"]}
    with pytest.raises(InputError, match=r"seed twice.*seed=A\|B"):
        conditions("seed=1 and seed=2", names)


def test_the_command_of_every_cell_names_that_cell():
    for kind in STUDIES.values():
        for levels, seed in (cell for scale in kind.scales for cell in kind.cells(scale, 1)):
            where = " and ".join(f"{column}={level}" for column, level in {**levels, "seed": seed}.items())
            wanted = conditions(where, (*kind.factors, "seed"))
            assert wanted == {column: [level] for column, level in {**levels, "seed": "0"}.items()}


@pytest.mark.parametrize("seed", ["-1", "x", "1.5"])
def test_a_seed_is_a_whole_number(toy, tmp_path, seed):
    with pytest.raises(InputError, match="seed must be"):
        study("toy", scale="smoke", out=tmp_path, where=f"seed={seed}", progress=False)


def test_the_revision_is_git_s_and_says_whether_files_changed(tmp_path):
    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package, other = tmp_path / "package", tmp_path / "installed"
    for folder in (package, other):
        folder.mkdir()
        (folder / "__init__.py").touch()
    assert source_revision(package) == ""
    git("init", "-q")
    git("add", "package")
    git("commit", "-qm", "first")
    source_revision.cache_clear()
    revision = source_revision(package)
    assert git("rev-parse", "HEAD").startswith(revision)
    assert len(revision) == 12
    assert source_revision(other) == ""  # within a project, but not of it
    (package / "__init__.py").write_text("x = 1")
    source_revision.cache_clear()
    assert source_revision(package) == f"{revision}+changes"


def test_cells_of_another_checkpoint_or_network_are_computed_again(tmp_path, capsys):
    @STUDIES.register(
        "started", question="?", paper="", factors={}, measures={"x": Measure("x")}, scales={"smoke": Scale(1, 1)},
        takes_weights=True, takes_network=True,
    )  # fmt: skip
    def measure(cell):
        CALLS.append("scratch" if cell.weights is None else cell.weights.read_text())
        return {"x": 1.0}

    CALLS.clear()
    try:
        run, file = {"scale": "smoke", "out": tmp_path, "progress": False}, tmp_path / "weights.pt"
        study("started", **run)
        for content in ("first", "second", "first"):
            file.write_text(content)
            (row,) = study("started", weights=file, **run).rows
            assert row["weights"] == "weights.pt"
        assert CALLS == ["scratch", "first", "second"]  # what the first one gave is still there
        study("started", network="timm:resnet10t", **run)
        assert len(CALLS) == 4
        # Networks and checkpoints stand beside each other; of two checkpoints of one name the present one counts.
        study("started", network="timm:resnet14t", weights=file, **run)
        with (tmp_path / "started-smoke/rows.csv").open() as rows:
            starts = [(row["network"], row["weights"]) for row in csv.DictReader(rows)]
        assert starts == [("", ""), ("", "weights.pt"), ("timm:resnet10t", ""), ("timm:resnet14t", "weights.pt")]
        assert "not used" not in capsys.readouterr().err
    finally:
        del STUDIES["started"]


def stored_rows(folder):
    """Loss and seed of every row of a study's CSV, in its order."""
    with (folder / "rows.csv").open() as file:
        return [(row["loss"], row["seed"]) for row in csv.DictReader(file)]


def test_a_part_of_a_study_leaves_the_rows_of_the_other_parts(toy, tmp_path, monkeypatch):
    run = {"scale": "smoke", "out": tmp_path, "progress": False}
    folder = tmp_path / "toy-smoke"
    study("toy", where="loss=el:0.75", seeds=2, **run)
    results = study("toy", where="loss=ce and seed=1", **run)
    assert [(row["loss"], row["seed"]) for row in results.rows] == [("ce", 1)]  # what was asked for
    assert (results.finished, results.cells) == (1, 1)
    assert stored_rows(folder) == [("el:0.75", "0"), ("ce", "1"), ("el:0.75", "1")]  # everything, as a whole run has it
    assert "el:0.75" in (folder / "tables.md").read_text()
    main(["study", "table", "toy", "--scale", "smoke", "--out", str(tmp_path), "--where", "loss=el:0.75"])
    (folder / "cells/damaged.json").write_text("{")
    (folder / "cells/empty.json").write_text('{"key": "", "rows": []}')
    study("toy", where="seed=1", **run)
    assert len(stored_rows(folder)) == 3
    assert len(CALLS) == 3
    monkeypatch.setattr(engine, "package_hash", lambda: "another version")
    study("toy", where="loss=ce and seed=1", **run)
    assert stored_rows(folder) == [("ce", "1")]  # results of another source are not mixed with these


def test_rows_of_other_data_are_not_mixed_with_these(toy, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numbers.csv").write_text(name)
    run = {"scale": "quick", "out": tmp_path, "progress": False}
    study("toy", where="loss=ce", data=tmp_path / "first", **run)
    study("toy", where="loss=el:0.75 and seed=2", data=tmp_path / "second", **run)
    assert stored_rows(tmp_path / "toy-quick") == [("el:0.75", "2")]
    study("toy", where="loss=el:0.75 and seed=0", data=tmp_path / "first", **run)
    assert stored_rows(tmp_path / "toy-quick") == [("ce", "0"), ("el:0.75", "0"), ("ce", "1"), ("ce", "2")]


@pytest.mark.parametrize("minutes", [-1, float("nan"), "soon"])
def test_minutes_are_a_number_from_zero(toy, tmp_path, minutes):
    with pytest.raises(InputError, match="minutes must be"):
        study("toy", scale="smoke", out=tmp_path, minutes=minutes, progress=False)
    assert not CALLS


def test_no_cell_begins_after_the_minutes(toy, tmp_path):
    results = study("toy", scale="smoke", out=tmp_path, minutes=0, progress=False)
    assert (len(CALLS), results.finished) == (0, 0)


@pytest.mark.slow
def test_processes_share_the_cells(tmp_path):
    script = tmp_path / "shared_study.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, sys, time
            from hardsight.studies import STUDIES, Measure, Scale, study

            @STUDIES.register("shared", question="?", paper="", factors={"k": tuple("abcdef")},
                              measures={"x": Measure("x")}, scales={"smoke": Scale(1, 1)})
            def measure(cell):
                with open(sys.argv[1] + "/calls", "a") as file:
                    file.write(f"{cell.levels['k']} {os.getpid()}\\n")
                time.sleep(0.5)
                return {"x": 1.0}

            print(study("shared", scale="smoke", out=sys.argv[1], progress=False).finished)
            """
        )
    )
    command = [sys.executable, str(script), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in processes] == ["6", "6"]
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert sorted(name for name, _ in calls) == list("abcdef")


SLOW_STUDY = """
import os, sys, time
from hardsight.studies import STUDIES, Measure, Scale, study

@STUDIES.register("slow", question="?", paper="", factors={"k": tuple("abc")},
                  measures={"x": Measure("x")}, scales={"smoke": Scale(1, 1)})
def measure(cell):
    with open(sys.argv[1] + "/calls", "a") as file:
        file.write(cell.levels["k"])
    (cell.folder / "half").write_text("x")
    if cell.levels["k"] == "b" and len(sys.argv) > 2:
        time.sleep(600)
    return {"x": 1.0}

print(study("slow", scale="smoke", out=sys.argv[1], progress=False).finished)
"""


@pytest.mark.slow
def test_a_killed_process_loses_only_the_cell_it_was_computing(tmp_path):
    script = tmp_path / "slow_study.py"
    script.write_text(SLOW_STUDY)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path), "hang"])
    calls, deadline = tmp_path / "calls", time.monotonic() + 300
    while not (calls.exists() and calls.read_text() == "ab") and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list((tmp_path / "slow-smoke/cells").glob("*.json"))) == 1
    command = [sys.executable, str(script), str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "3"
    assert calls.read_text() == "abbc"
    assert not list(tmp_path.rglob("half"))


def test_a_failing_cell_does_not_stop_the_others_and_a_study_that_never_works_stops_at_once(toy, tmp_path, capsys):
    toy[0] = 2
    with pytest.raises(RuntimeError, match="killed"):
        study("toy", scale="smoke", out=tmp_path, progress=False)
    assert len(CALLS) == 6
    assert "el:0.75 seed 0" in capsys.readouterr().err
    toy[0] = len(CALLS) + 1
    with pytest.raises(RuntimeError):
        study("toy", scale="smoke", out=tmp_path / "other", progress=False)
    assert len(CALLS) == 7


def test_a_level_brings_its_own_data_and_only_its_cells_depend_on_it(tmp_path):
    calls = []

    @STUDIES.register(
        "levels", question="?", paper="", factors={"pair": ("a", "b")}, measures={"x": Measure("x")},
        scales={"quick": Scale(1, 1)}, data={"a": ("a.csv",), "b": ("b",)},
    )  # fmt: skip
    def measure(cell):
        calls.append(cell.levels["pair"])
        with cell.shared("teacher") as folder:
            (folder / str(len(list(folder.iterdir())))).touch()
            return {"x": len(list(folder.iterdir()))}

    try:
        (tmp_path / "b").mkdir()
        (tmp_path / "a.csv").write_text("1")
        (tmp_path / "b" / "image").write_text("1")
        run = {"out": tmp_path / "out", "data": tmp_path, "progress": False}
        assert [row["x"] for row in study("levels", **run).rows] == [1, 1]  # other data: nothing is shared
        assert [row["x"] for row in study("levels", seeds=2, **run).rows] == [1, 1, 2, 2]
        (tmp_path / "b" / "image").write_text("2")
        study("levels", **run)
        assert calls == ["a", "b", "a", "b", "b"]
        (tmp_path / "a.csv").unlink()
        assert study("levels", where="pair=b", **run).finished == 1
        with pytest.raises(MissingPathError, match=r"a\.csv"):
            study("levels", **run)
    finally:
        del STUDIES["levels"]


def table_rows(seeds=5):
    """Accuracies that pairs tell apart and groups do not."""
    draw, hard = np.random.default_rng(0), np.random.default_rng(1).normal(0, 0.05, seeds)
    rows = [
        {"loss": loss, "rate": rate, "seed": seed, "accuracy": 0.8 + gain + hard[seed] + draw.normal(0, 0.002)}
        for rate in (0.5, 2)
        for loss, gain in (("ce", 0.0), ("el:0.75", 0.01), ("el:exact", -0.02))
        for seed in range(seeds)
    ]
    return [rows[k] for k in draw.permutation(len(rows))]


def test_differences_are_paired_by_seed_and_corrected():
    rows = table_rows()
    lines = {line.levels: line for line in Results(STUDIES["el-rates"], rows, None, 30).lines("accuracy")}
    assert set(lines) == {(rate, loss) for rate in ("0.5", "2") for loss in ("ce", "el:0.75", "el:exact")}
    p = {}
    for (rate, loss), line in lines.items():
        values, base = (
            [next(r["accuracy"] for r in rows if (f"{r['rate']:g}", r["loss"], r["seed"]) == (rate, name, seed))
             for seed in range(5)]
            for name in (loss, "ce")
        )  # fmt: skip
        assert (line.n, line.mean) == (5, pytest.approx(np.mean(values)))
        assert line.sd == pytest.approx(np.std(values, ddof=1))
        if loss == "ce":
            assert math.isnan(line.difference)
            continue
        test = stats.ttest_rel(values, base)
        interval = test.confidence_interval()
        assert line.difference == pytest.approx(np.mean(values) - np.mean(base))
        assert (line.low, line.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
        assert line.p == pytest.approx(test.pvalue)
        p[rate, loss] = line.p
    for rank, key in enumerate(sorted(p, key=p.__getitem__)):
        smaller = [min(1, (4 - k) * p[name]) for k, name in enumerate(sorted(p, key=p.__getitem__)) if k <= rank]
        assert lines[key].p_holm == pytest.approx(max(smaller))


def test_seeds_that_the_baseline_lacks_do_not_count():
    rows = [row for row in table_rows() if (row["loss"], row["seed"]) not in (("ce", 1), ("el:0.75", 3))]
    line = next(
        line
        for line in Results(STUDIES["el-rates"], rows, None, 0).lines("accuracy")
        if line.levels == ("2", "el:0.75")
    )
    assert (line.n, line.pairs) == (4, 3)


def test_families_are_corrected_apart_and_conditions_do_not_change_the_correction():
    rows = table_rows()
    whole = Results(STUDIES["el-rates"], rows, None, 30)
    split = Results(replace(STUDIES["el-rates"], family=lambda levels: levels["rate"]), rows, None, 30)
    for rate in ("0.5", "2"):
        lines = split.lines("accuracy", f"rate={rate}")
        tested = [line for line in lines if math.isfinite(line.p)]
        assert [line.p_holm for line in tested] == pytest.approx(holm(np.array([line.p for line in tested])))
        assert split.lines("accuracy", {"family": rate}) == lines
    one = whole.lines("accuracy", "rate=2 and loss=el:0.75|el:exact")
    assert one == [line for line in whole.lines("accuracy") if line.levels[0] == "2" and line.levels[1] != "ce"]
    with pytest.raises(InputError, match="lss"):
        whole.lines("accuracy", "lss=ce")


def test_the_page_escapes_what_it_shows_and_loads_nothing():
    rows = [
        {"loss": "<script>alert(1)</script>", "seed": 0, "accuracy": 0.5},
        {"loss": "ce", "seed": 0, "accuracy": 0.4},
    ]
    results = Results(STUDIES["el-mnist"], rows, None, 2)
    page = results.page()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "+10.00" in page
    assert "a\\|b" in Results(STUDIES["el-mnist"], [rows[0] | {"loss": "a|b"}], None, 1).markdown()


def test_published_rows_keep_their_numbers():
    lines = {
        line.levels: line
        for line in read_results("el-log-end", "docs/results/losses-cifar10-sweep.csv").lines("accuracy")
    }
    assert (lines["ce",].n, round(100 * lines["ce",].mean, 2)) == (5, 91.0)
    clamped = lines["el:normal",]
    assert [round(100 * x, 2) for x in (clamped.difference, clamped.low, clamped.high)] == [-1.47, -1.7, -1.25]


def test_the_papers_numbers_are_beside_rows_of_its_scale_alone():
    rows = [{"loss": loss, "seed": 0, "best": 0.9} for loss in ("ce", "mirror")]
    paper, quick = (Results(STUDIES["el-mnist"], rows, None, 2, scale).lines("best") for scale in ("paper", "quick"))
    assert {line.levels: line.paper for line in paper} == {("ce",): 0.9942, ("mirror",): 0.9966}
    assert all(math.isnan(line.paper) for line in quick)


def test_two_studies_rerun_at_smoke_scale(tmp_path, capsys):
    main(["study", "run", "two-gaussians", "--scale", "smoke", "--out", str(tmp_path), "--minutes", "9.5"])
    main(["study", "run", "el-log-end", "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path), "--device", "cpu"])
    assert "2 of 2 cells" in capsys.readouterr().out
    main(["study", "table", "el-log-end", "--scale", "smoke", "--out", str(tmp_path), "--measures", "accuracy"])
    table = capsys.readouterr().out
    assert "el:0.75" in table
    assert "Test accuracy" in table
    main(["study", "figure", "el-log-end", "--scale", "smoke", "--out", str(tmp_path), "--to", str(tmp_path / "f.png")])
    assert (tmp_path / "f.png").stat().st_size > 5000
    main(["study", "page", "el-log-end", "--scale", "smoke", "--out", str(tmp_path), "--to", str(tmp_path / "p.html")])
    assert "el:0.75" in (tmp_path / "p.html").read_text(encoding="utf-8")
    main(["study", "list", "--out", str(tmp_path), "--json"])
    assert '"smoke 2"' in capsys.readouterr().out
    results = read_results("el-log-end", tmp_path / "el-log-end-smoke/rows.csv")
    assert all(0.3 < float(row["accuracy"]) <= float(row["best"]) <= 1 for row in results.rows)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "two-gausians"], "two-gaussians"),
        (["walk", "two-gaussians"], "ACTION"),
        (["run"], "NAME"),
        (["run", "two-gaussians", "--scale", "huge"], "scale"),
        (["run", "two-gaussians", "--scale", "smoke", "--seeds", "0"], "seeds"),
        (["run", "embeddings", "--scale", "paper"], "mnist.npz"),
        (["run", "embeddings", "--scale", "paper", "--data", "nowhere"], "nowhere"),
        (["table", "two-gaussians", "--rows", "nowhere.csv"], "nowhere.csv"),
        (["run", "el-mnist", "--scale", "smoke", "--where", "los=ce"], "loss"),
        (["run", "pacs", "--scale", "quick", "--where", "target=phto"], "photo"),
        (["run", "pacs", "--scale", "smoke", "--where", "target=photo"], "plain"),  # a level of another scale
        (["table", "pacs", "--rows", "docs/results/pacs.csv", "--scale", "quick", "--where", "target=phto"], "photo"),
        (["table", "pacs", "--rows", "docs/results/nci1.csv", "--scale", "quick"], "network"),
        (["table", "el-rates", "--rows", "docs/results/losses-cifar10-rates.csv", "--measures", "acuracy"], "acuracy"),
    ],
)
def test_bad_input_is_one_sentence(arguments, named, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["study", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert named in error
    assert "Traceback" not in error


def test_the_amc_study_has_the_papers_unpaired_test_against_distances(tmp_path):
    random = np.random.default_rng(0)
    accuracy = {
        loss: random.normal(mean, 0.2, 5) for loss, mean in (("ce", 82), ("euclid:paper", 82.6), ("amc:paper", 83))
    }
    rows = [
        {"loss": loss, "seed": seed, "accuracy": value}
        for loss, values in accuracy.items()
        for seed, value in enumerate(values)
    ]
    lines = {line.levels[0]: line for line in Results(STUDIES["amc-pairs"], rows, tmp_path, 15).lines("accuracy")}
    witness = stats.ttest_ind(accuracy["amc:paper"], accuracy["euclid:paper"], equal_var=True)
    assert lines["amc:paper"].p_pooled == pytest.approx(witness.pvalue)
    assert np.isnan([lines["ce"].p_pooled, lines["euclid:paper"].p_pooled]).all()


def test_averages_are_of_one_seed_over_all_levels_or_none(tmp_path):
    rows = [("ce", "art", 0, 0.2), ("ce", "photo", 0, 0.6), ("ce", "art", 1, 0.4), ("avh", "art", 0, 0.3)]
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["network", "loss", "target", "seed", "selection", "accuracy"])
        writer.writerows(["cnn10", loss, target, seed, "last", value] for loss, target, seed, value in rows)
    results = read_results("pacs", file)
    averages = [row for row in results.rows if row["target"] == "average"]
    assert [(row["loss"], int(row["seed"]), row["accuracy"]) for row in averages] == [("ce", 0, pytest.approx(0.4))]
    assert results.finished == 4


def test_weights_are_refused_or_decide_the_cells(tmp_path):
    with pytest.raises(InputError, match="weights"):
        study("two-gaussians", scale="smoke", weights=tmp_path / "w.pt", out=tmp_path)
    with pytest.raises(MissingPathError, match="weights"):
        study("pacs", scale="smoke", weights=tmp_path / "w.pt", out=tmp_path)
