"""The study engine: cells are computed once, resumed and shared; tables against SciPy's paired t-test."""

import csv
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from scipy import stats

from hardsight.cli import main
from hardsight.studies import STUDIES, Measure, Scale, engine, read_results, study
from hardsight.studies.tables import Results

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


@pytest.mark.parametrize("change", ["settings", "version", "data", "code", "package", "damage"])
def test_a_cell_is_computed_again_if_anything_that_decides_it_changes(toy, tmp_path, change, monkeypatch):
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
    elif change == "data":
        (tmp_path / "numbers.csv").write_text("2")
    else:
        next((tmp_path / "out/toy-quick/cells").glob("*.json")).write_text("{")
    results = study("toy", **run)
    assert len(CALLS) == (7 if change == "damage" else 12)
    assert results.finished == 6
    assert max(row["accuracy"] for row in results.rows) == (24 if change == "settings" else 12)


def test_no_cell_begins_after_the_minutes(toy, tmp_path):
    results = study("toy", scale="smoke", out=tmp_path, minutes=0, progress=False)
    assert (len(CALLS), results.finished) == (0, 0)


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
