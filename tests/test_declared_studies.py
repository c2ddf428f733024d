"""The declared studies: each runs at smoke scale, and committed rows give the numbers that were published."""

import math

import numpy as np
import pytest
from PIL import Image

from hardsight.studies import STUDIES, Cell, read_results, study
from hardsight.studies.declared import adaptation, labels
from hardsight.studies.quoted import published
from hardsight.studies.tables import Results

# as el-log-end, el-images, amc-sweep
SAME_CELLS = {"el-rates", "el-mnist", "weighting", "amc-pairs", "el-image-rates", "amc-images"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STUDIES if name not in SAME_CELLS])
def test_every_study_runs_without_data_at_smoke_scale(name, tmp_path):
    if name == "miner":
        pytest.importorskip("pytorch_metric_learning")
    results = study(name, scale="smoke", seeds=1, out=tmp_path, device="cpu", progress=False)
    assert results.finished == results.cells > 0
    shown = {measure: results.lines(measure) for measure in results.study.measures}
    assert shown[next(iter(shown))], "the main measure is there"
    assert all(math.isfinite(line.mean) for lines in shown.values() for line in lines)
    if results.study.compare:
        assert results.study.baseline in {dict(zip(results.columns, line.levels, strict=True))[results.study.compare]
                                          for lines in shown.values() for line in lines}  # fmt: skip


def test_declarations_are_complete():
    for name, kind in STUDIES.items():
        assert "smoke" in kind.scales
        assert not any(kind.files("smoke", levels) for levels, _ in kind.cells("smoke")), f"{name} needs no data"
        for row in published(name):
            assert float(row["value"]) > 0
            assert row["source"]
            columns = set(row) - {"measure", "value", "sd", "p", "source"}
            assert columns <= {*kind.factors, *kind.details}  # a number without a level is every level's
            assert row["measure"] in kind.measures
            for factor, levels in kind.factors.items():
                assert row.get(factor, levels[0]) in (*levels, *(["average"] if factor == kind.average else []))
            assert float(row.get("p") or 1) <= 1


# Numbers of the tables in docs/results, computed by the reports that the engine replaced.
PUBLISHED = [
    ("adaptation", "adaptation-rounds.csv", "test_accuracy", "pair=svhn-mnist and method=crst and at=last",
     (3, 0.9476, 0.0133, 0.0418, -0.0175, 0.1012)),
    ("adaptation", "adaptation-rounds.csv", "test_accuracy", "pair=pacs-photo-sketch and method=cbst+avh and at=last",
     (5, 0.1739, 0.0634, -0.0734, -0.1533, 0.0066)),
    ("consequences-mnist", "consequences-rows.csv", "value", "family=main and arm=el-released and metric=auroc",
     (5, 0.9757, 0.0153, -0.0046, -0.0286, 0.0193)),
    ("miner", "miner.csv", "r_precision", "wrong_labels=0.2 and miner=AVH, semihard",
     (10, 0.755, 0.026, 0.029, 0.018, 0.040)),
    ("cleaning", "cleaning.csv", "errors after --auto", "labels=uniform 20% and network=good", (3, 0.126, 0.032)),
    ("people-angle", "people-recipes.csv", "spearman", "training=cosface and score=avh",
     (5, 0.2088, 0.0038, -0.0018, -0.0044, 0.0008)),
    ("people-recipes", "people-recipes.csv", "spearman", "training=cosface and score=avh",
     (5, 0.2088, 0.0038, 0.0404, 0.0352, 0.0456)),
    ("el-temperature", "losses-cifar10-temperature.csv", "ece", "loss=el:0.75 and temperature=1",
     (5, 0.0874, 0.0030, 0.0562, 0.0440, 0.0685)),
    ("el-angular", "losses-digits-angular.csv", "accuracy", "logits=cosine and loss=el:exact,match",
     (5, 0.9728, 0.0066, -0.0206, -0.0316, -0.0095)),
    ("label-errors", "label-errors-rankings.csv", "auroc", "labels=worst and scored=folds and ranking=margin",
     (3, 0.9348, 0.0002)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "measure", "where", "numbers"), PUBLISHED)
def test_committed_rows_give_the_published_numbers(name, file, measure, where, numbers):
    (line,) = read_results(name, f"docs/results/{file}").lines(measure, where)
    printed = (line.n, line.mean, line.sd, line.difference, line.low, line.high)
    assert printed[: len(numbers)] == pytest.approx(numbers, abs=6e-4)


def test_the_papers_numbers_are_beside_the_numbers_of_their_level():
    lines = read_results("consequences-mnist", "docs/results/consequences-rows.csv").lines("value", "score=fgsm")
    papers = {line.levels[-1]: line.paper for line in lines if line.levels[0] == "ce" and "accuracy" in line.levels}
    assert papers["0.0616"] == 0.8875
    assert papers["0.3"] == 0.217
    assert math.isnan(papers["0.1"])


def test_the_share_of_a_change_by_iteration_10_is_that_of_the_whole_change():
    (row,) = STUDIES["iterations"].derive(
        [{"seed": "0", "angle at 1": "1.6", "angle at 10": "1.5", "angle at 60": "1.2"}]
    )
    assert row["angle: share of its change by iteration 10"] == pytest.approx(0.25)
    assert "norm: share of its change by iteration 10" not in row
    (row,) = STUDIES["iterations"].derive([{"angle at 1": "1.6", "angle at 10": "1.5", "angle at 60": "1.6"}])
    assert "angle: share of its change by iteration 10" not in row  # nothing changed


def test_rounds_are_selected_by_what_each_rule_sees():
    rows = [
        {
            "pair": "p",
            "method": "cbst",
            "seed": 0,
            "round": at,
            "test_accuracy": accuracy,
            "entropy": entropy,
            "snd": None,
        }
        for at, accuracy, entropy in ((0, 0.5, -1.0), (1, 0.9, -3.0), (2, 0.7, -2.0))
    ]
    derived = {row["at"]: row["test_accuracy"] for row in STUDIES["adaptation"].derive(rows)}
    assert derived == {"round 0": 0.5, "round 1": 0.9, "round 2": 0.7, "last": 0.7, "oracle": 0.9, "by entropy": 0.5}


def test_source_and_selected_samples_are_mixed_as_in_visda():
    for source, target in ((73_257, 60_000), (60_000, 7_291), (1_499, 3_529)):
        first, step, most = adaptation.source_portion(source, target)
        assert first * source / (0.2 * target) == pytest.approx(0.065 * 152_397 / (0.2 * 55_388))
        assert 0 < step < first < most <= 1
    assert adaptation.source_portion(7_291, 60_000) == (1.0, pytest.approx(0.1924, abs=1e-3), 1.0)


def test_domains_are_color_images_of_one_size_by_their_official_split(tmp_path):
    gray = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4) * 7
    assert np.array_equal(adaptation.in_color(gray, 4)[..., 1], gray)
    assert (adaptation.in_color(np.full((1, 28, 28), 100, np.uint8), 32) == 100).all()
    lines = []
    for k, (name, split) in enumerate([("dog/a.png", "train"), ("cat/b.png", "crossval"), ("cat/c.png", "train")]):
        path = tmp_path / "pacs" / "art_painting" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((10, 10, 3), 50 * k, np.uint8)).save(path)
        lines.append(f"art_painting/{name}\t{split}")
    (tmp_path / "pacs" / "official_split.tsv").write_text("\n".join([*lines, "photo/dog/d.png\ttrain"]))
    parts = adaptation.domain(Cell({}, 0, {}, tmp_path, None, None, tmp_path, tmp_path), "art")
    assert parts["train"].images.shape == (2, 96, 96, 3)
    by_label = dict(zip(parts["train"].labels.tolist(), parts["train"].images[:, 0, 0, 0].tolist(), strict=True))
    assert by_label == {0: 100, 1: 0}  # cat, dog
    assert parts["test"].labels.tolist() == [0]


@pytest.mark.parametrize("name", labels.PLANTED)
def test_planted_errors_have_their_share_and_kind(name):
    clean, confused = np.arange(20_000) % 10, (np.arange(10) + 3) % 10
    noisy = labels.planted(clean, name, 0, confused)
    wrong = noisy != clean
    assert wrong.mean() == pytest.approx(labels.PLANTED[name], abs=0.01)
    if name.startswith("confused"):
        assert (noisy[wrong] == confused[clean[wrong]]).all()
    elif wrong.any():
        assert len(set((noisy - clean)[wrong] % 10)) == 9


def test_titles_say_what_networks_start_from():
    titles = [title for title, _ in read_results("pacs", "docs/results/pacs.csv").tables()]
    assert all(title.endswith("from scratch") for title in titles)
    rows = [{"network": "cnn10", "loss": "ce", "target": "photo", "selection": "last", "seed": 0, "accuracy": 0.9}]
    for extra, end in (({"weights": "imagenet.pt"}, "from imagenet.pt"), ({}, "in %")):
        results = Results(STUDIES["pacs"], [rows[0] | extra], None, 1)
        assert [title.endswith(end) for title, _ in results.tables()] == [True]
    assert "scratch" not in read_results("proteins", "docs/results/proteins.csv").text()
