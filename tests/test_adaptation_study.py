"""The study of self-training: who does which job, from what, and what its tables say."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy import stats


@pytest.fixture
def study(benchmark_module):
    return benchmark_module("adaptation_study")


@pytest.fixture
def report(benchmark_module):
    return benchmark_module("adaptation_report")


def test_source_and_chosen_samples_are_mixed_as_in_visda(study):
    for source, target in ((73_257, 60_000), (60_000, 7_291), (1_499, 3_529)):
        first, step, most = study.source_portion(source, target)
        theirs = 0.065 * 152_397 / (0.2 * 55_388)
        assert first * source / (0.2 * target) == pytest.approx(theirs)
        assert 0 < step < first < most <= 1
    assert study.source_portion(7_291, 60_000) == (1.0, pytest.approx(0.1924, abs=1e-3), 1.0)  # no more than there are


def test_every_domain_becomes_colour_pictures_of_one_size(study, tmp_path):
    grey = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4) * 7
    made = study.in_colour(grey, 4)
    assert made.shape == (2, 4, 4, 3)
    assert all(np.array_equal(made[..., channel], grey) for channel in range(3))
    flat = study.in_colour(np.full((1, 28, 28), 100, np.uint8), 32)
    assert flat.shape == (1, 32, 32, 3)
    assert (flat == 100).all()
    lines = []
    for k, (name, split) in enumerate([("dog/a.png", "train"), ("cat/b.png", "crossval"), ("cat/c.png", "train")]):
        path = tmp_path / "pacs" / "art_painting" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((10, 10, 3), 50 * k, np.uint8)).save(path)
        lines.append(f"art_painting/{name}\t{split}")
    (tmp_path / "pacs" / "official_split.tsv").write_text("\n".join([*lines, "photo/dog/d.png\ttrain"]))
    for _ in range(2):  # the second finds it there
        with np.load(study.prepare(tmp_path, tmp_path, "art", smoke=False)) as arrays:
            assert arrays["train_images"].shape == (2, 96, 96, 3)
            assert arrays["train_images"][:, 0, 0, 0].tolist() == [0, 100]
            assert (arrays["train_labels"].tolist(), arrays["test_labels"].tolist()) == ([1, 0], [0])


def test_nothing_is_chosen_by_the_target_and_rounds_have_as_many_steps_everywhere(study):
    sizes = {"svhn": 73_257, "mnist": 60_000, "usps": 7_291, "photo": 1_499, "art": 1_840, "sketch": 3_531}
    for pair in study.PAIRS.values():
        chosen = 0.2 * sizes[pair.target]
        beside = study.source_portion(sizes[pair.source], sizes[pair.target])[0] * sizes[pair.source]
        assert 120 < pair.epochs * (chosen + beside) / pair.batch_size < 200
    assert next(iter(study.PAIRS)) == "svhn-mnist"
    assert study.METHODS[:4] == ("cbst", "crst", "cbst+avh", "cbst+avh-slides")


@pytest.fixture
def folder(tmp_path):
    for name in ("locks", "rows"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_each_job_is_done_once_after_its_source_and_not_while_another_has_it(study, folder, monkeypatch):
    done = []

    def do(job, out, smoke):
        done.append(job.name)
        (out / "rows" / f"{job.name}.csv").write_text("done")

    monkeypatch.setattr(study, "_do", do)
    jobs = [study.Job("svhn-mnist", method, seed) for seed in (0, 1) for method in ("cbst", None, "crst")]
    with study.locked(folder / "locks" / "svhn-mnist+crst+0") as mine:
        assert mine
        with study.locked(folder / "locks" / "svhn-mnist+crst+0") as again:
            assert not again
        deadline = math.inf
        monkeypatch.setattr(study.time, "sleep", lambda seconds: (_ for _ in ()).throw(TimeoutError))
        with pytest.raises(TimeoutError):  # it waits for whoever has the last job
            study.work(jobs, folder, deadline, smoke=True)
    assert done == ["svhn+0", "svhn-mnist+cbst+0", "svhn+1", "svhn-mnist+cbst+1", "svhn-mnist+crst+1"]
    study.work(jobs, folder, deadline, smoke=True)
    assert done[5:] == ["svhn-mnist+crst+0"]
    study.work(jobs, folder, deadline, smoke=True)
    assert len(done) == 6


def test_a_source_that_fails_takes_its_methods_with_it_and_no_job_begins_too_late(study, folder, monkeypatch, capsys):
    done = []

    def do(job, out, smoke):
        done.append(job.name)
        if job.name.startswith("svhn"):
            raise ValueError("no such data")
        (out / "rows" / f"{job.name}.csv").write_text("done")

    monkeypatch.setattr(study, "_do", do)
    jobs = [study.Job(pair, method, 0) for pair in ("svhn-mnist", "usps-mnist") for method in (None, "cbst")]
    study.work(jobs, folder, math.inf, smoke=True)
    assert done == ["svhn+0", "usps+0", "usps-mnist+cbst+0"]
    assert "no such data" in capsys.readouterr().err
    study.work(jobs, folder, -math.inf, smoke=True)
    assert len(done) == 3
    assert "out of time" in capsys.readouterr().out


def made_runs(report, values):
    """Runs of three rounds by (method, seed) with accuracies as given."""
    names = report.MEASURES
    return {
        ("svhn-mnist", method, seed): [
            {"pair": "svhn-mnist", "method": method, "seed": seed, "round": at, **dict.fromkeys(names, value)}
            for at, value in enumerate(own)
        ]
        for (method, seed), own in values.items()
    }


def test_differences_are_paired_over_seeds_and_agree_with_scipy(report):
    rng = np.random.default_rng(0)
    own, base = (dict(enumerate(rng.normal(0.8, 0.02, 5))) for _ in range(2))
    found = report.paired(own, base)
    witness = stats.ttest_rel(list(own.values()), list(base.values()))
    interval = witness.confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((interval.low, interval.high))
    assert found["p"] == pytest.approx(witness.pvalue)
    assert report.paired({0: 0.5, 7: 0.9}, {0: 0.4}) == {
        "mean": pytest.approx(0.1),
        "low": None,
        "high": None,
        "p": None,
    }
    assert report.paired({0: 0.5}, {1: 0.4}) == {}


def test_the_summary_keeps_last_round_and_oracle_apart(report):
    values = {("cbst", 0): [0.5, 0.9, 0.7], ("cbst", 1): [0.6, 0.8, 0.8], ("cbst+avh", 0): [0.5, 0.7, 0.8]}
    values |= {("cbst+avh", 1): [0.6, 0.7]}  # stopped after one round
    rows = {
        (r["method"], r["at"]): r
        for r in report.summarised(made_runs(report, values))
        if r["measure"] == "test_accuracy"
    }
    assert (rows["source only", "source"]["mean"], rows["source only", "source"]["n"]) == (pytest.approx(0.55), 2)
    assert rows["cbst", "last"]["mean"] == pytest.approx(0.75)
    assert rows["cbst", "oracle"]["mean"] == pytest.approx(0.85)
    assert rows["cbst", "last"]["over_cbst"] is None
    assert rows["cbst+avh", "last"]["over_cbst"] == pytest.approx(0.0)
    assert rows["cbst+avh", "last"]["over_source"] == pytest.approx(0.2)
    assert rows["cbst+avh", "last"]["sd"] == pytest.approx(np.std([0.8, 0.7], ddof=1))
    assert rows["cbst+avh", "last"]["p_holm"] == pytest.approx(rows["cbst+avh", "last"]["p"])  # the only test
    assert rows["cbst+avh", "oracle"]["p_holm"] is None


def test_tables_are_made_from_what_the_jobs_wrote(report, tmp_path, capsys):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "svhn+0.csv").write_text("source,epoch\nsvhn+0,1\n")  # of a source, which is no method
    true = np.array([0, 0, 1, 1])
    labels = {"cbst": [0, None, 1, None], "cbst+avh": [0, 1, None, None]}
    for method, given in labels.items():
        known = {f"{of}_accuracy{end}": 0.5 for of in ("target", "test") for end in ("", "_low", "_high")}
        known |= {"pair": "svhn-mnist", "method": method, "seed": 0, "test_mean_class": 0.5, "alarm": ""}
        rows = [{**known, "round": at, "test_accuracy": 0.5 + at / 10, "entropy": -at} for at in range(3)]
        lines = [",".join(map(str, row.values())) for row in rows]
        (tmp_path / "rows" / f"svhn-mnist+{method}+0.csv").write_text("\n".join([",".join(rows[0]), *lines]))
        path = tmp_path / "runs" / f"svhn-mnist+{method}+0"
        path.mkdir(parents=True)
        columns = {name: np.arange(4.0) for name in ("confidence", "avc", "avh", "norm")}
        pq.write_table(
            pa.table({"label": pa.array(given, pa.int64()), "true": true, **columns}), path / "selection.parquet"
        )
    report.report(tmp_path, ("svhn-mnist", "cbst+avh", "cbst"))
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said] == ["source", "cbst+avh", "cbst"]
    assert "70.00" in said[1]
    choices = (tmp_path / "choices.csv").read_text().splitlines()
    assert choices[0] == "pair,method,seed,chosen_by,n,tp_rate,confidence,avc,avh,norm"
    assert choices[1:] == [
        "svhn-mnist,cbst+avh,0,both,1,1,0,0,0,0",
        "svhn-mnist,cbst+avh,0,only this,1,0,1,1,1,1",
        "svhn-mnist,cbst+avh,0,only cbst,1,1,2,2,2,2",
    ]
    entropy = [line for line in (tmp_path / "validators.csv").read_text().splitlines() if ",entropy," in line]
    assert "svhn-mnist,cbst,0,entropy,0,test_accuracy,0.5,0.2,-0.2" in entropy
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 7
    assert (tmp_path / "svhn-mnist.png").stat().st_size > 5000


@pytest.mark.slow
def test_the_study_runs_from_one_command_and_goes_on_where_it_stopped(study, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, offset in (("mnist", 0), ("usps", 40)):
        parts = {"train_labels": np.arange(60) % 3, "test_labels": np.arange(30) % 3}
        for split in ("train", "test"):
            level = 70 * parts[f"{split}_labels"][:, None, None] + offset
            noise = rng.normal(0, 10, (len(level), 16, 16))
            parts[f"{split}_images"] = np.clip(level + noise, 0, 255).astype(np.uint8)
        np.savez(tmp_path / f"{name}.npz", **parts)
    told = [str(tmp_path), str(tmp_path / "out"), "--smoke", "--pairs", "mnist-usps", "--seeds", "1", "--methods"]
    study.main([*told, "cbst"])
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / "rows").iterdir()}
    assert set(before) == {"mnist+0.csv", "mnist-usps+cbst+0.csv"}
    study.main([*told, "cbst", "cbst+avh"])
    after = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / "rows").iterdir()}
    assert before.items() <= after.items()
    assert "mnist-usps+cbst+avh+0.csv" in after
    assert "mnist-usps        cbst+avh" in capsys.readouterr().out
    assert not (tmp_path / "out" / "runs" / "mnist-usps+cbst+0" / "rounds").exists()  # weights do not fill the disk
