"""The study of what the losses buy: who does which job in which order, and what its tables say."""

import importlib
import math

import numpy as np
import pytest
from scipy import stats


@pytest.fixture
def study(benchmark_module):
    return benchmark_module("consequences_study")


@pytest.fixture
def report(benchmark_module):
    return benchmark_module("consequences_report")


def test_the_first_seed_of_everything_comes_first_and_mnist_has_five_seeds(study):
    jobs = study.jobs(list(study.PARTS), 9)
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names) == 3 * 5 + 4 * 3 + 4 * 3 + 1
    first = names.index("page+all+0")
    assert all(job.seed == 0 for job in jobs[: first + 1])
    assert all(job.seed > 0 for job in jobs[first + 1 :])
    assert {(job.part, job.seed) for job in jobs} >= {("mnist", 4), ("cifar10-calibration", 2), ("cifar10-maps", 2)}
    assert [job.name for job in study.jobs(["mnist"], 1)] == ["mnist+ce+0", "mnist+el-released+0", "mnist+el+0"]


def test_every_arm_is_a_recipe_that_can_be_trained(study):
    for name, part in study.PARTS.items():
        for arm in part.arms:
            loss, smoothing = study.ARMS[arm]
            preset, settings = study._RECIPES[part.data]
            recipe = study.PRESETS[preset].recipe.replace(**study.parse_settings(settings), loss=loss)
            assert study.replace(recipe, label_smoothing=smoothing).label_smoothing == smoothing, name
    assert study.ARMS["el-released"][0] == "el:normal"  # the paper's setting on MNIST, as its code clamps it
    assert study.PARTS["cifar10-maps"].arms[0] == study.PARTS["cifar10-calibration"].arms[0] == "ce"


def made_rows(values, part="mnist", question="ood", metric="auroc", score="max_logit", on="fashion_mnist", level=None):
    """Rows by arm, a value per seed."""
    told = {"part": part, "question": question, "metric": metric, "score": score, "on": on, "level": level}
    return [
        {**told, "arm": arm, "seed": seed, "value": value, "better": "higher"}
        for arm, own in values.items()
        for seed, value in enumerate(own)
    ]


def test_differences_to_cross_entropy_are_paired_and_the_papers_figures_stand_beside(report):
    values = {"ce": [0.95, 0.96, 0.94], "el-released": [0.97, 0.99, 0.95], "el": [0.96, None]}
    rows = {row["arm"]: row for row in report.summarised(made_rows(values))}
    witness = stats.ttest_rel(values["el-released"], values["ce"])
    interval = witness.confidence_interval(0.95)
    found = rows["el-released"]
    assert (found["low"], found["high"], found["p"]) == pytest.approx((interval.low, interval.high, witness.pvalue))
    assert (found["n"], found["mean"], found["sd"]) == pytest.approx((3, 0.97, 0.02))
    assert (found["paper"], found["paper_source"]) == (0.9804, "EL Table 4")
    assert (rows["ce"]["over_ce"], rows["ce"]["p"], rows["ce"]["paper"]) == (None, None, 0.9568)
    assert (rows["el"]["n"], rows["el"]["over_ce"], rows["el"]["p"]) == (1, pytest.approx(0.01), None)
    assert rows["el"]["paper"] is None


def test_what_was_chosen_beforehand_is_a_family_of_its_own(report):
    rng = np.random.default_rng(0)
    values = {arm: rng.normal(0.9, 0.01, 5).tolist() for arm in ("ce", "el", "el-released")}
    main = made_rows(values) + made_rows(values, metric="fpr95")
    other = made_rows(values, score="msp") + made_rows(values, "robustness", "accuracy", score="fgsm", level=0.1)
    summary = report.summarised([*main, *other])
    found = [row["p_holm"] for row in summary if row["family"] == "mnist: main" and row["p"] is not None]
    p = np.array([row["p"] for row in summary if row["family"] == "mnist: main" and row["p"] is not None])
    order = np.argsort(p)
    stepped = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    assert len(p) == 4
    assert np.array(found)[order] == pytest.approx(stepped)
    assert {row["family"] for row in summary if row["score"] == "msp"} == {"mnist: ood"}


def test_figures_of_the_papers_belong_to_numbers_that_are_measured(study, report):
    levels = {eps for _, strengths in study._ATTACKS for eps in strengths}
    attacks = {name for names, _ in study._ATTACKS for name in names}
    assert attacks >= {"fgsm", "pgd", "pgd-l2", "pgd-margin", "pgd-dlr"}
    for key in (*report.MAIN, *(key for key, _ in report.PAPER)):
        part = study.PARTS[key.part]
        assert key.question in (*part.questions, "accuracy")
        assert key.on in (None, part.strangers)
        if key.question == "robustness":
            assert key.level in levels
            assert key.score in attacks
    for key, arm in report.PAPER:
        assert arm in study.PARTS[key.part].arms


@pytest.fixture
def data(tmp_path):
    """Grey squares of three classes, and strangers that are noise."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    labels = {"train": np.arange(60) % 3, "test": np.arange(30) % 3}
    arrays = {f"{split}_labels": own for split, own in labels.items()}
    for split, own in labels.items():
        noise = rng.normal(0, 10, (len(own), 12, 12))
        arrays[f"{split}_images"] = np.clip(40 + 80 * own[:, None, None] + noise, 0, 255).astype(np.uint8)
    np.savez(folder / "mnist.npz", **arrays)
    strange = {"test_images": rng.integers(0, 256, (24, 12, 12), np.uint8), "test_labels": np.arange(24) % 3}
    np.savez(folder / "fashion_mnist.npz", **strange)
    return folder


@pytest.mark.slow
def test_a_part_runs_from_one_command_and_goes_on_where_it_stopped(
    study, data, tmp_path, capsys, monkeypatch, benchmark_module
):
    part = study.PARTS["mnist"]
    monkeypatch.setitem(study.PARTS, "mnist", study.replace(part, arms=part.arms[:2]))
    out = tmp_path / "out"
    told = [str(data), str(out), "--smoke", "--parts", "mnist", "--seeds", "1"]
    study.main([*told, "--minutes", "-1"])
    assert "out of time" in capsys.readouterr().out
    study.work(study.jobs(["mnist"], 1)[:1], out, math.inf, lambda job: study._do(job, study.Place(data, out, True)))
    before = {file.name: file.stat().st_mtime_ns for file in (out / "rows").iterdir()}
    assert set(before) == {"mnist+ce+0.csv"}
    study.main(told)
    after = {file.name: file.stat().st_mtime_ns for file in (out / "rows").iterdir()}
    assert before.items() <= after.items()
    assert set(after) == {"mnist+ce+0.csv", "mnist+el-released+0.csv"}
    said = capsys.readouterr().out
    assert "fpr95 max_logit" in said
    assert "paper 0.0869" in said
    rows = importlib.import_module("benchmarks.jobs").read_rows(out / "report" / "summary.csv")
    assert {row["question"] for row in rows} >= {"accuracy", "ood", "robustness", "margins", "calibration"}
    attacked = {row["score"] for row in rows if row["question"] == "robustness" and row["metric"] == "accuracy"}
    assert attacked >= {"fgsm", "pgd", "pgd-l2", "pgd-margin", "pgd-dlr"}
    assert (out / "report" / "words.csv").read_text().count("\n") > 1
