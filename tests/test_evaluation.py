"""`evaluate`: what questions say of runs and groups; it stays, it grows, and it refuses in sentences."""

import inspect
import json
import math
import re
import shutil
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from attacked_networks import untrained as network
from command_line import failure
from forked import beside
from made_predictions import answer_to
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from hardsight.cli import main
from hardsight.data import ArraySamples, View, load_digits, open_data
from hardsight.errors import StateError
from hardsight.evaluation import Subject, evaluate, read_evaluation
from hardsight.evaluation import run as evaluation_run
from hardsight.evaluation.statistics import flag_of
from hardsight.evaluation.subjects import open_subjects
from hardsight.models import Model
from hardsight.networks import build_network
from hardsight.predictions import predict
from hardsight.questions import DETECTORS, QUESTIONS, Answer, Training, detection, ood_scores
from hardsight.questions.answers import row
from hardsight.questions.uncertainty import uncertainty_answer
from hardsight.runs import folder_lock

PICTURES, LABELS = load_digits()


@pytest.fixture
def digits():
    return ArraySamples(PICTURES[:60], LABELS[:60], "test", "60 digits")


def subjects(digits, groups="aabb", first=0):
    return [Subject(f"{g}{i}", network(first + i), digits, g, i % 2) for i, g in enumerate(groups)]


def run(given, tmp_path, **options):
    options = {"questions": ["margins"], "out": tmp_path / "out", "device": "cpu", "progress": False} | options
    return evaluate(given, **options)


def told(table, **wanted):
    return [one for one in table.to_pylist() if all(one[name] == value for name, value in wanted.items())]


def kinds(evaluation):
    return [note.kind for note in evaluation.notes]


def same(a, b):
    return repr(a.to_pylist()) == repr(b.to_pylist())  # NaN is not itself


def test_each_network_is_built_once_and_released_and_no_answer_is_read_back(digits, tmp_path, monkeypatch):
    """Also where groups have ensembles and maps; a second call reads each stored answer once."""
    alive, built, reads = weakref.WeakSet(), [], []
    original = evaluation_run.folder.stored_answer

    def builder(seed):
        def build():
            alive.add(model := network(seed))
            built.append((seed, len(alive)))
            return model

        return build

    def spy(path, key, question):
        answer = original(path, key, question)
        reads.append((key, answer is not None))
        return answer

    monkeypatch.setattr(evaluation_run.folder, "stored_answer", spy)
    runs = [Subject(f"{g}{i}", builder(i), digits, g, i % 2) for i, g in enumerate("aaabbb")]
    first = run(runs, tmp_path, questions=["margins", "calibration"])
    assert [seed for seed, _ in built] == list(range(6))
    assert max(together for _, together in built) <= 2  # the one before may wait for the garbage collector
    assert not any(stored for _, stored in reads)
    reads.clear()
    again = run([Subject(f"{g}{i}", builder(i), digits, g, i % 2) for i, g in enumerate("aaabbb")], tmp_path,
                questions=["margins", "calibration"])  # fmt: skip
    assert all(stored for _, stored in reads)
    assert len({key for key, _ in reads}) == len(reads) == 6 * 3 + 2
    assert same(again.rows, first.rows)


def test_rows_are_what_each_question_says_of_each_run(digits, tmp_path):
    found = run(subjects(digits), tmp_path, questions=["margins", "calibration"])
    for i, name in enumerate(("a0", "a1", "b2", "b3")):
        said = predict(network(i), digits, logits=True, device="cpu")
        expected = answer_to("margins", said, digits.labels).rows
        own = told(found.rows, run=name, question="margins")
        assert [(one["group"], one["seed"]) for one in own] == [(name[0], i % 2)] * len(own)
        assert [{key: one[key] for key in expected[0] if key != "level"} for one in own] == [
            {key: value for key, value in one.items() if key != "level"} for one in expected
        ]
    tests = told(found.tests, metric="margin", score="logit")
    assert [(test["group"], test["baseline"], test["how"]) for test in tests] == [("b", "a", "paired t over 2 seeds")]
    assert told(found.points, run="a0", curve="margin")
    assert same(found.rows, pq.read_table(found.path / "rows.parquet"))
    assert same(found.tests, pq.read_table(found.path / "tests.parquet"))
    for name in ("rows.csv", "tests.csv", "points.parquet", "table.tex", "notes.json", "evaluation.json"):
        assert (found.path / name).stat().st_size > 0
    plan = json.loads((found.path / "evaluation.json").read_text())
    assert plan["whole"] is True
    assert plan["data"]["samples"] == 60
    assert [one["group"] for one in plan["runs"]] == ["a", "a", "b", "b"]


def test_several_runs_of_a_group_are_an_ensemble(digits, tmp_path):
    found = run(subjects(digits), tmp_path)
    members = [predict(network(i), digits, device="cpu") for i in (2, 3)]
    hardness = np.mean([-one.at("avh", digits.labels) for one in members], axis=0)
    probabilities = np.stack([one.probabilities for one in members])
    expected = uncertainty_answer(probabilities, hardness, digits.labels, "ensemble")
    own = told(found.rows, group="b", question="uncertainty")
    assert {(one["run"], one["seed"]) for one in own} == {("", None)}
    assert [(one["metric"], one["score"], one["value"]) for one in own] == [
        (one["metric"], one["score"], pytest.approx(one["value"])) for one in expected.rows
    ]
    how = told(found.tests, metric="mean", score="ensemble epistemic")[0]["how"]
    assert how == "paired t over 60 samples"


def test_one_run_has_no_tests_and_one_of_each_is_compared_over_samples_and_that_is_said(digits, tmp_path):
    alone = run(Subject("net", network(), digits), tmp_path / "alone")
    assert len(alone.tests) == 0
    assert told(alone.rows, metric="margin", score="logit")[0]["low"] < math.inf
    assert {one["group"] for one in alone.rows.to_pylist()} == {"net"}
    assert "ensemble" not in str(alone.rows.to_pylist())
    found = run(subjects(digits, "ab"), tmp_path)
    assert told(found.tests, metric="margin", score="logit")[0]["how"] == "paired t over 60 samples"
    share = told(found.tests, metric="margin_below_zero", score="logit")[0]
    assert share["how"] == "McNemar's exact test over 60 samples"
    assert "one run each" in kinds(found)
    lone = run(subjects(digits, "aab"), tmp_path / "more")
    assert "one run in a group" in kinds(lone)
    # Columns by sample are kept, one file per run.
    files = sorted((found.path / "samples").glob("*.parquet"))
    assert [file.name for file in files] == ["00-a0.parquet", "01-b1.parquet"]
    table = pq.read_table(files[1])
    assert table["id"].to_pylist() == [f"test:{i}" for i in range(60)]
    said = predict(network(1), digits, logits=True, device="cpu")
    np.testing.assert_allclose(table["avh"].to_numpy(), -said.at("avh", digits.labels))
    np.testing.assert_allclose(
        table["margins/margin:logit"], answer_to("margins", said, digits.labels).samples["margin:logit"]
    )


def test_labels_are_those_of_the_network_by_name(digits, tmp_path):
    names = list("0123456789")
    named = ArraySamples(digits.images, digits.labels, "test", "digits", names)
    net = network()
    turned = network()
    with torch.no_grad():
        turned[-1].weight.copy_(net[-1].weight.flip(0))
        turned[-1].bias.copy_(net[-1].bias.flip(0))
    given = [
        Subject("plain", Model(net, "net", classes=names), named),
        Subject("turned", Model(turned, "net", classes=names[::-1]), named),
    ]
    found = run(given, tmp_path, questions=["margins", "calibration"])
    values = [
        [one["value"] for one in told(found.rows, run=name) if one["metric"] in ("accuracy", "margin")]
        for name in ("plain", "turned")
    ]
    np.testing.assert_allclose(*values, rtol=1e-5)
    tests = told(found.tests, metric="accuracy", score="softmax")
    assert (tests[0]["p"], tests[0]["difference"]) == (1.0, 0.0)


def test_a_network_in_train_mode_is_evaluated_in_eval_mode_and_left_as_it_was(digits, tmp_path):
    net = nn.Sequential(*network()[:-1], nn.Dropout(0.5), network()[-1]).train()
    net[1].eval()
    found = run(Subject("net", net, digits), tmp_path)
    assert "train mode" in kinds(found)
    expected = told(run(Subject("net", net.eval(), digits), tmp_path / "eval").rows, metric="margin", score="logit")
    assert told(found.rows, metric="margin", score="logit")[0]["value"] == expected[0]["value"]
    net.train()
    net[1].eval()
    run(Subject("net", net, digits), tmp_path / "again", dropout=2)
    assert [module.training for module in net] == [True, False, True, True, True, True]


def test_dropout_makes_rows_of_its_own(digits, tmp_path):
    net = nn.Sequential(*network()[:-1], nn.Dropout(0.5), network()[-1]).eval()
    found = run(Subject("net", net, digits), tmp_path, questions=(), dropout=3)
    assert "dropout epistemic" in {one["score"] for one in told(found.rows, question="uncertainty", run="net")}
    with pytest.raises(ValueError, match=r"a0, uncertainty: .*dropout"):
        run(subjects(digits, "a"), tmp_path / "none", dropout=3)


def test_nan_is_no_value_in_tests_tables_and_print(digits, tmp_path, monkeypatch, capsys):
    def hole(seen):
        return Answer([row("margins", "margin", math.nan, score="logit", n=60, better="higher")])

    monkeypatch.setitem(QUESTIONS, "margins", replace(QUESTIONS["margins"], ask=hole))
    found = run(subjects(digits, "ab"), tmp_path)
    assert len(found.tests) == 0
    assert "-- & --" in (found.path / "table.tex").read_text()
    from hardsight.report.comparisonpage import evaluation_lines

    assert "–" in "\n".join(evaluation_lines(found))
    assert json.loads((found.path / "evaluation.json").read_text())["seed"] == 0


def counted(monkeypatch, fail_at=None):
    asked, question = [], QUESTIONS["margins"]

    def ask(seen):
        asked.append(len(asked))
        if len(asked) == fail_at:
            raise KeyboardInterrupt
        return question.ask(seen)

    monkeypatch.setitem(QUESTIONS, "margins", replace(question, ask=ask))
    return asked


def test_a_killed_evaluation_goes_on_where_it_stopped(digits, tmp_path, monkeypatch):
    whole = run(subjects(digits), tmp_path / "whole")
    asked = counted(monkeypatch, fail_at=3)
    with pytest.raises(KeyboardInterrupt):
        run(subjects(digits), tmp_path)
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["whole"] is False
    assert not (tmp_path / "out" / "rows.parquet").exists()
    (tmp_path / "out" / "parts" / ".margins-0.json.0123abcd.tmp").write_text("half")
    found = run(subjects(digits), tmp_path)
    assert len(asked) == 3 + 2
    assert same(found.rows, whole.rows)
    assert same(found.tests, whole.tests)
    assert found.notes == whole.notes
    assert not list(found.path.rglob("*.tmp"))
    run(subjects(digits), tmp_path)
    assert len(asked) == 5


def test_a_second_evaluation_of_a_folder_waits_and_removes_nothing_of_the_first(digits, tmp_path):
    half = tmp_path / "out" / "parts" / ".margins-0.json.0123abcd.tmp"

    def first(ready):
        with folder_lock(tmp_path / "out"):
            half.parent.mkdir()
            half.write_text("half")
            ready()
            time.sleep(600)

    with beside(first) as other:
        for overwrite in (False, True):
            with pytest.raises(StateError, match=str(other)):
                run(subjects(digits, "a"), tmp_path, overwrite=overwrite)
        assert half.read_text() == "half"
    found = run(subjects(digits, "a"), tmp_path)  # the lock of a killed process is free
    assert {file.name for file in found.path.iterdir()} >= {"rows.parquet", "evaluation.json"}
    assert not list(found.path.rglob(".*"))


def test_a_kill_inside_the_ensemble_costs_no_question(digits, tmp_path, monkeypatch):
    asked = counted(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setattr(evaluation_run, "uncertainty_answer", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(subjects(digits), tmp_path)
    assert len(asked) == 2
    found = run(subjects(digits), tmp_path)
    assert len(asked) == 4
    assert len(told(found.rows, run="", group="a")) > 0


def test_runs_and_questions_join_and_none_is_lost_unasked(digits, tmp_path, monkeypatch):
    asked = counted(monkeypatch)
    run(subjects(digits, "ab"), tmp_path)
    found = run(subjects(digits, "abc"), tmp_path, questions=["margins", "calibration"])
    assert len(asked) == 3
    assert {one["group"] for one in found.tests.to_pylist()} == {"b", "c"}
    with pytest.raises(FileExistsError, match=r"another evaluation .*c2"):
        run(subjects(digits, "ab"), tmp_path)
    other = ArraySamples(PICTURES[60:120], LABELS[60:120], "test", "others")
    with pytest.raises(FileExistsError, match="same: data"):
        run(subjects(other, "abc"), tmp_path)
    again = run(subjects(other, "abc"), tmp_path, overwrite=True)
    assert len(asked) == 6
    assert len({file.name.split("-")[0] for file in (again.path / "parts").iterdir()}) == 2  # samples, margins
    run(subjects(other, "abc"), tmp_path, overwrite=True)
    assert len(asked) == 9


OPTIONS = {
    # question: the call, and what changes in it; each must be computed again, and an equal call must not
    "uncertainty": ({"dropout": 3}, {"dropout": 4}, {"seed": 1}, {"batch_size": 7}),
    "ood": ({"ood": ["noise"]}, {"ood": ["other"]}, {"detectors": ["msp"]}),
    "robustness": (
        {"attacks": ["fgsm"], "eps": [0.1], "limit": 9},
        {"attacks": ["noise"]}, {"eps": [0.2]}, {"limit": 8}, {"seed": 1},
    ),
    "explanation": ({"explain": True, "limit": 3, "boxes": "boxes.csv"}, {"limit": 2}, {"seed": 1}, {"boxes": None}),
    "degradation": (
        {"degradations": ["noise"], "levels": [0, 0.1]}, {"levels": [0, 0.2]}, {"gray": True},
        {"degradations": ["blur"]},
    ),
    "calibration": ({"questions": ["calibration"]}, {"seed": 1}),
    "clusters": ({"questions": ["clusters"]}, {"seed": 1}),
}  # fmt: skip


@pytest.mark.parametrize("question", OPTIONS)
def test_a_changed_option_is_computed_again_and_an_equal_call_is_not(digits, tmp_path, monkeypatch, question):
    call, *changes = OPTIONS[question]
    net = nn.Sequential(*network()[:-1], nn.Dropout(0.5), network()[-1]).eval()
    monkeypatch.chdir(tmp_path)
    Path("boxes.csv").write_text("id,x0,y0,x1,y1\n" + "".join(f"test:{i},1,1,5,5\n" for i in range(60)))
    rng = np.random.default_rng(0)
    sets = {name: ArraySamples(rng.integers(0, 255, (40, 8, 8), dtype=np.uint8), None, "test", name)
            for name in ("noise", "other")}  # fmt: skip
    asked, entry = [], QUESTIONS[question]

    def ask(subject, **options):
        asked.append(options)
        return entry.ask(subject, **options)

    ask.__signature__ = inspect.signature(entry.ask)
    monkeypatch.setitem(QUESTIONS, question, replace(entry, ask=ask))

    def count(**options):
        options = {"questions": (), **call, **options}
        if "ood" in options:
            options["ood"] = [("x", sets[name]) for name in options["ood"]]  # the name says nothing of the content
        run(Subject("net", net, digits), tmp_path, **options)
        return len(asked)

    assert count() == count() == 1
    for number, change in enumerate(changes, 2):
        assert count(**change) == count(**change) == number, change
    assert count() == len(changes) + 1
    if question == "explanation":
        Path("boxes.csv").write_text(Path("boxes.csv").read_text().replace("1,1,5,5", "2,2,6,6"))
        assert count() == len(changes) + 2
    monkeypatch.setitem(QUESTIONS, question, replace(QUESTIONS[question], version=99))
    before = len(asked)
    assert count() == before + 1


def test_labels_devices_and_the_format_decide_an_answer(digits, tmp_path, monkeypatch):
    for name, options, expected in (
        ("uncertainty", {}, True), ("robustness", {"attacks": ["autoattack"]}, True),
        ("robustness", {"attacks": ["pgd"]}, False),  # whose draws belong to each sample
    ):  # fmt: skip
        subject = Subject("net", network(), digits, forward={"batch_size": 7, "device": "cpu"})
        assert (QUESTIONS[name].decided_by(subject, options) == [7, "cpu"]) is expected
    names = list("0123456789")
    named = ArraySamples(digits.images, digits.labels, "test", "digits", names)
    values, detected = {}, {}
    for order in (names, names[::-1]):
        given = [Subject(f"net{k}", Model(network(k), "net", classes=order), named, "nets") for k in (0, 1)]
        rows = run(given, tmp_path / "named").rows
        values[order[0]] = told(rows, metric="margin", score="logit")[0]["value"]
        detected[order[0]] = [row["value"] for row in told(rows, run="", metric="error_auroc")]
    assert values["0"] != values["9"]
    assert detected["0"] != detected["9"]

    def parts():
        folder = run(subjects(digits, "aa"), tmp_path / "format").path / "parts"
        return {file.name for file in folder.iterdir()}

    before = parts()
    monkeypatch.setitem(QUESTIONS, "uncertainty", replace(QUESTIONS["uncertainty"], version=99))
    versioned = parts()
    assert {name.partition("-")[0] for name in versioned - before} == {"ensemble"}
    monkeypatch.setattr(evaluation_run, "_FORMAT", 10**6)
    kinds = [{name.partition("-")[0] for name in names} for names in (before, parts() - versioned)]
    assert kinds[0] == kinds[1] == {"samples", "margins", "ensemble"}


def test_fitted_detectors_see_the_training_data_and_nothing_else(digits, tmp_path):
    known = ArraySamples(PICTURES[100:180], LABELS[100:180], "train", "training")
    other = ArraySamples(PICTURES[200:280], LABELS[200:280], "train", "other training")
    noise = ArraySamples(np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8), None, "test", "noise")
    given = {"questions": (), "ood": [("noise", noise)], "detectors": ["knn", "mahalanobis", "vim"]}
    inside, outside, fitted = (predict(network(), data, logits=True, device="cpu") for data in (digits, noise, known))
    training = Training(fitted.features, fitted.logits, known.labels)
    scores = [ood_scores(of.logits, of.features, of.weight, given["detectors"], bias=of.bias, training=training)
              for of in (inside, outside)]  # fmt: skip
    found = run(Subject("net", network(), digits, training=known), tmp_path, **given)
    values = {name: told(found.rows, metric="auroc", score=name)[0]["value"] for name in given["detectors"]}
    assert values == {name: detection(scores[0][name], scores[1][name]).auroc for name in values}
    again = run(Subject("net", network(), digits, training=other), tmp_path, **given)  # no stored answer
    assert [told(again.rows, metric="auroc", score=name)[0]["value"] for name in values] != list(values.values())
    relabeled = View(known, labels=np.roll(known.labels, 1))  # the same images
    again = run(Subject("net", network(), digits, training=relabeled), tmp_path, **given)
    assert told(again.rows, metric="auroc", score="mahalanobis")[0]["value"] != values["mahalanobis"]
    assert told(again.rows, metric="auroc", score="knn")[0]["value"] == values["knn"]
    with pytest.raises(ValueError, match=r"net, ood: .*training="):
        run(Subject("net", network(), digits), tmp_path / "unknown", **given)


def test_a_detector_of_ones_own_is_asked_and_its_code_decides_the_answer(digits, tmp_path):
    noise = ArraySamples(np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8), None, "test", "noise")
    before, values = dict(DETECTORS), []
    try:
        for sign in (1, -1):
            DETECTORS.pop("own", None)

            @DETECTORS.register("own", needs="features", reference="of these tests")
            def own(reading, sign=sign):
                """The norm, or minus the norm."""
                return sign * reading.norm

            found = run(Subject("net", network(), digits), tmp_path, questions=(), ood=[("noise", noise)])
            values.append(told(found.rows, metric="auroc", score="own")[0]["value"])
    finally:
        DETECTORS.clear()
        DETECTORS.update(before)
    assert values[0] == pytest.approx(1 - values[1])
    assert values[0] != values[1]


def test_single_runs_areas_under_roc_curves_are_compared_by_delongs_paired_test(digits, tmp_path):
    noise = ArraySamples(np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8), None, "test", "noise")
    found = run(subjects(digits, "ab"), tmp_path, questions=(), ood=[("noise", noise), ("other", other_digits())])
    for on, data in (("noise", noise), ("other", other_digits())):
        [test] = told(found.tests, metric="auroc", score="max_logit", on=on)
        scores = [
            [predict(network(seed), one, logits=True, device="cpu").logits.max(1) for one in (digits, data)]
            for seed in (0, 1)
        ]
        wins = [(own[:, None] > others) + (own[:, None] == others) / 2 for own, others in scores]
        apart = wins[1] - wins[0]
        error = math.sqrt(apart.mean(1).var(ddof=1) / 60 + apart.mean(0).var(ddof=1) / len(data))
        assert test["difference"] == pytest.approx(apart.mean())
        assert test["p"] == pytest.approx(2 * stats.norm.sf(abs(apart.mean()) / error))
        assert test["how"] == f"paired DeLong over 60 and {len(data)} samples"
    assert told(found.tests, metric="fpr95", score="msp", on="noise")[0]["how"].startswith("no test")


def test_a_head_scaled_by_ten_wins_nothing_that_its_scale_does_not_change(digits, tmp_path):
    plain, scaled = network(), network()
    with torch.no_grad():
        scaled[-1].weight.mul_(10)
        scaled[-1].bias.mul_(10)
    given = [Subject("plain", plain, digits), Subject("scaled", scaled, digits)]
    found = run(given, tmp_path, questions=["margins", "clusters"], ood=[("other", other_digits())])
    for test in found.tests.to_pylist():
        if test["question"] != "ood" or test["score"] in ("max_logit", "avc", "avh", "angular_margin"):
            assert flag_of(test) == ""
    [margin] = told(found.tests, metric="margin", score="angular")
    assert margin["p"] == 1.0
    [logits] = told(found.tests, metric="margin", score="logit")
    assert (logits["better"], math.isnan(logits["p_holm"])) == ("", True)


def other_digits():
    return ArraySamples(PICTURES[200:250], None, "test", "other digits")


def test_a_folder_with_other_things_in_it_is_left_alone(digits, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("everything")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"other .*thesis\.tex"):
            run(subjects(digits, "a"), tmp_path, overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "everything"
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is a file"):
        run(subjects(digits, "a"), tmp_path, out=tmp_path / "file")
    run(subjects(digits, "a"), tmp_path, out=tmp_path / "fine")
    (tmp_path / "fine" / "notes.txt").write_text("mine")
    run(subjects(digits, "a"), tmp_path, out=tmp_path / "fine", overwrite=True)
    assert (tmp_path / "fine" / "notes.txt").read_text() == "mine"


def test_a_damaged_part_is_made_again_and_a_damaged_plan_is_said(digits, tmp_path):
    found = run(subjects(digits, "a"), tmp_path)
    before = (found.path / "rows.csv").read_text()
    parts = found.path / "parts"
    [table] = parts.glob("margins-*.parquet")
    for file, content in ((table, b"half"), (table.with_suffix(".json"), b"{"), (table.with_suffix(".json"), b"{}")):
        file.write_bytes(content)
        run(subjects(digits, "a"), tmp_path)
        assert (found.path / "rows.csv").read_text() == before
    table.unlink()
    run(subjects(digits, "a"), tmp_path)
    assert (found.path / "rows.csv").read_text() == before
    (found.path / "evaluation.json").write_text("{")
    with pytest.raises(RuntimeError, match=r"evaluation\.json is damaged"):
        run(subjects(digits, "a"), tmp_path)
    assert same(run(subjects(digits, "a"), tmp_path, overwrite=True).rows, found.rows)


def test_strangers_of_another_size_or_colour_are_brought_to_the_runs_own_and_that_is_said(digits, tmp_path):
    large = np.random.default_rng(0).integers(0, 255, (30, 16, 16, 3), dtype=np.uint8)
    strangers = ArraySamples(large, None, "test", "noise")
    found = run(subjects(digits, "a"), tmp_path, ood=[("noise", strangers)])
    assert any(re.match("noise: .*3 × 16 × 16 .*1 × 8 × 8", note.text) for note in found.notes)
    assert {one["on"] for one in told(found.rows, question="ood")} == {"noise"}
    assert told(found.rows, question="ood", metric="auroc", score="msp")[0]["n"] == 90
    from torchvision import transforms

    able = Model(network(channels=3), "net", transforms.Compose([transforms.Resize(8), transforms.ToTensor()]), "pil")
    folder = [Subject("net", able, digits)]
    assert len(told(run(folder, tmp_path / "own", ood=[("noise", strangers)]).rows, question="ood")) == 28


def test_strangers_that_cannot_be_compared_are_refused_before_anything_is_computed(digits, tmp_path, monkeypatch):
    asked = counted(monkeypatch)
    odd = ArraySamples(np.zeros((5, 8, 8, 4), np.uint8), None, "test", "four channels")
    tensors = TensorDataset(torch.rand(5, 1, 8, 8), torch.zeros(5, dtype=torch.long))
    noise = ArraySamples(np.zeros((5, 8, 8), np.uint8), None, "test", "nothing")
    flat = [Subject("net", nn.Linear(6, 3), TensorDataset(torch.rand(9, 6), torch.arange(9) % 3))]
    for given, ood, words in (
        (None, [odd], "ood: .*brought"),
        (None, [tensors], "images and tensors"),
        (flat, [TensorDataset(torch.rand(4, 5))], r"\(5,\) .*\(6,\)"),
        (None, ["nowhere.npz"], r"ood: .*nowhere\.npz"),
        (None, [("x", noise), ("x", noise)], "'x' is given twice"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            run(given or subjects(digits, "a"), tmp_path, ood=ood)
    assert not asked
    assert not (tmp_path / "out").exists()


def test_a_runs_own_data_as_strangers_are_warned_of(digits, tmp_path):
    unlabelled = ArraySamples(digits.images, None, "other", "the same pictures")
    for k, same in enumerate((digits, unlabelled)):
        with pytest.warns(UserWarning, match="ood: x: .*data"):
            found = run(subjects(digits, "a"), tmp_path / str(k), ood=[("x", same)])
        assert any(kind.startswith("same data") for kind in kinds(found))
        assert told(found.rows, metric="auroc", score="msp")[0]["value"] == pytest.approx(0.5)


def test_what_cannot_be_compared_is_refused_in_sentences(digits, tmp_path):
    other = ArraySamples(PICTURES[60:120], LABELS[60:120], "test", "other digits")
    one_class = ArraySamples(PICTURES[:5], np.zeros(5, int), "test", "zeros")
    unlabelled = ArraySamples(PICTURES[:5], None, "test", "unlabelled")
    a = Subject("a", network(), digits)
    for given, options, words in (
        ([], {}, "one run folder"),
        ([a, Subject("b", network(1), other)], {}, "b .*other digits"),
        ([a, Subject("b", network(1, 12), digits)], {}, "b has 12 .* 10"),
        ([a, Subject("b", network(0), digits)], {}, "b is .*same"),
        ([a, Subject("a", network(1), digits)], {}, "names .*'a' repeats"),
        ([Subject("a", network(0, 3), digits)], {}, r"a: DATA: labels .*\[0, 2\]"),
        ([Subject("a", network(), one_class)], {}, "two classes .*5 .*zeros"),
        ([Subject("a", network(), unlabelled)], {}, "unlabelled .*class index"),
        ([a], {"names": ["x", "y"]}, r"names .*1, got 2 \(x, y\)"),
        ([a], {"names": [" "]}, "names .*empty"),
        ([a], {"questions": ["margin"]}, "'margin'; .*margins"),
        ([a], {"questions": []}, "nothing to ask"),
        ([a], {"attacks": ["pdg"]}, "'pdg'; .*pgd"),
        ([a], {"attacks": "pdg"}, "'pdg'; .*pgd"),
        ([a], {"attacks": ["fgsm"], "eps": [-0.1]}, r"eps .*got -0\.1"),
        ([a], {"attacks": ["fgsm"], "eps": [math.nan]}, "eps .*got nan"),
        ([a], {"attacks": ["fgsm"], "eps": [0.0]}, r"eps .*got 0\.0"),
        ([a], {"attacks": ["fgsm"], "eps": [8]}, "eps .*got 8"),
        ([a], {"explain": True, "boxes": "nowhere.csv"}, "nowhere.csv"),
        ([a], {"batch_size": 0}, "batch_size .*got 0"),
        ([a], {"eps": [0.1]}, "eps .*attacks"),
        ([a], {"dropout": -1}, "dropout .*got -1"),
        ([a], {"dropout": 1}, "one pass"),
        ([a], {"limit": 0}, "limit .*got 0"),
        ([tmp_path / "none"], {}, "no such folder"),
        ([tmp_path], {}, "no hardsight run"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            run(given, tmp_path, **options)
    assert not (tmp_path / "out" / "rows.parquet").exists()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of hardsight score: three networks over the same digits."""
    place = tmp_path_factory.mktemp("scored")
    np.savez(place / "digits.npz", test_images=PICTURES[:60], test_labels=LABELS[:60])
    noise = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    np.savez(place / "noise.npz", images=noise)
    for seed, name in enumerate(("one", "two", "three")):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            torch.save(build_network("small-cnn", 10, 1).state_dict(), place / f"{name}.pt")
        given = [str(place / "digits.npz"), "--checkpoint", str(place / f"{name}.pt"), "-o", str(place / "runs" / name)]
        main(["score", "hardsight:small-cnn", *given])
    return place


@pytest.fixture
def scored(runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


def trained(place, like, seed=0, loss="cross-entropy", epochs=1, done=1, lr=0.1):
    """A folder as hardsight train leaves it, around the weights and rows that are there."""
    place.mkdir(parents=True)
    (place / "checkpoint.pt").write_bytes(Path(f"{like}.pt").read_bytes())
    model = {"name": "small-cnn", "preprocessing": "none: pixels in [0, 1]"}
    plan = {"model": model, "loss": loss, "recipe": {"epochs": epochs, "seed": seed, "lr": lr}}
    (place / "training.json").write_text(json.dumps(plan))
    (place / "history.json").write_text(json.dumps([{}] * done))
    (place / "test").mkdir()
    for name in ("plan.json", "meta.json"):
        (place / "test" / name).write_bytes(Path(f"runs/{like}/{name}").read_bytes())
    return place


def test_trainings_that_differ_in_the_seed_form_a_group(scored):
    a, b = trained(Path("t/a"), "one"), trained(Path("t/b"), "two", seed=1)
    c = trained(Path("t/c"), "three", loss="el:0.75")
    cases, samples = open_subjects([a, b / "test", c])
    assert [(case.name, case.group, case.seed) for case in cases] == [
        ("a", "cross-entropy", 0), ("b", "cross-entropy", 1), ("c", "c", 0),
    ]  # fmt: skip
    assert len(samples) == 60
    named, _ = open_subjects([a, b, c], ["x", "y", "x"])
    assert [case.group for case in named] == ["x", "y", "x"]
    faster = trained(Path("u/a"), "three", lr=0.2)
    assert [case.name for case in open_subjects([a, faster])[0]] == ["t/a", "u/a"]


def test_unfinished_runs_and_training_samples_are_told(scored):
    short = trained(Path("short"), "one", epochs=3, done=2)
    with pytest.raises(RuntimeError, match=r"short .*2 of 3 epochs"):
        open_subjects([short])
    Path("runs/one/meta.json").unlink()
    with pytest.raises(RuntimeError, match=r"one .*not finished"):
        open_subjects([Path("runs/one")])
    seen = trained(Path("seen"), "two")
    (seen / "test").rename(seen / "train")
    assert open_subjects([seen])[0][0].notes[0].kind == "training samples"


def test_the_command_prints_a_table_of_100_columns_and_writes_a_page(scored, capsys):
    names = r"\emph{a}_1 & a very long name of a group that goes on and on,b%,b%"
    args = ["evaluate", "runs/one", "runs/two", "runs/three", "--names", names, "--ood", "noise.npz", "-o", "out"]
    main(args)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert re.match(r"wrote out/ .*out/comparison\.html$", lines[-1])
    assert re.search(r"3 runs .*2 groups .*digits\.npz.*n = 60", out)
    titles = ("Calibration", "Margins", "Clusters", "accuracy, softmax ↑", "max logit · noise.npz", "b% (2)", " ± ")
    assert all(words in out for words in titles)
    assert Path("out/comparison.html").stat().st_size > 10_000
    assert r"\textbackslash{}emph\{a\}\_1 \& a very" in Path("out/table.tex").read_text()
    main(args)
    assert capsys.readouterr().out == out
    main(["evaluate", "runs/one", "--attack", "fgsm", "--eps", "0.1,51/255", "--limit", "20", "-o", "attacked"])
    assert "accuracy, worst · ε = 0." in capsys.readouterr().out  # fractions are strengths


def test_many_groups_stand_in_blocks_of_100_columns_with_the_first_in_each(tmp_path):
    from evaluation_pages import write_evaluation

    from hardsight.report.comparisonpage import evaluation_lines

    groups = [f"setting number {k} \x1b[31m" for k in range(12)]
    lines = "\n".join(evaluation_lines(read_evaluation(write_evaluation(tmp_path, groups=groups)))).splitlines()
    assert max(map(len, lines)) <= 100
    heads = [line for line in lines if line.endswith(" n")]
    assert len(heads) > 3
    assert all("setting number 0 " in line for line in heads)
    assert all(f"number {k} " in "".join(heads) for k in range(12))
    assert "\x1b" not in "".join(lines)


def test_the_command_takes_a_network_that_the_run_does_not_name(scored, capsys):
    torch.manual_seed(5)
    net = "import torch\nfrom torch import nn\ndef build():\n    torch.manual_seed(0)\n    return nn.Sequential("
    Path("net.py").write_text(f"{net}nn.Flatten(), nn.Linear(64, 10))\n")
    main(["score", "net.py:build", "digits.npz", "-o", "mine"])
    capsys.readouterr()
    main(["evaluate", "mine", "--model", "net.py:build", "-o", "out"])
    out = capsys.readouterr().out
    assert "One run over digits.npz" in out
    assert "▲" not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("evaluate", "RUN is missing"),
        ("evaluate runs/one runs/one", "'runs/one' repeats"),
        ("evaluate runs/one --names a,b", "names .*1, got 2"),
        ("evaluate runs/one --ood nowhere.npz", r"ood: .*nowhere\.npz"),
        ("evaluate runs/one --attack fgsm --eps 8/0", "--eps .*'8/0'"),
        ("evaluate runs/one --attack fgsm --eps -1", "eps .*got -1"),
        ("evaluate runs/one --levels 0,1", "--levels.* --degrade"),
        ("evaluate runs/one --boxes b.csv", "--boxes .*--explain"),
        ("evaluate runs/one runs/two --model net.py:build", "one RUN, got 2"),
        ("evaluate runs", "runs .*no hardsight"),
        ("evaluate runs/one -o runs", "out: runs .*other"),
    ],
)
def test_mistakes_are_sentences(scored, capsys, args, words):
    assert re.search(words, failure(capsys, *args.split()))


def test_maps_of_the_groups_stand_side_by_side(scored):
    given = {"runs": ["runs/one", "runs/two", "runs/three"], "names": ["a", "b", "b"], "questions": (), "limit": 4}
    given |= {"explain": True, "out": "out", "device": "cpu", "progress": False}
    found = evaluate(**given)
    index = json.loads(Path("out/maps/index.json").read_text())
    assert index["runs"] == ["one", "two"]  # the first of each group
    assert len(index["pictures"]) == 12
    from PIL import Image

    for one in index["pictures"]:
        with Image.open(Path("out/maps", one["file"])) as picture:
            assert picture.size == (3 * 96 + 2 * 4, 96)
    hardness = pq.read_table("out/samples/00-one.parquet")
    known = dict(zip(hardness["id"].to_pylist(), hardness["avh"].to_pylist(), strict=True))
    shown = [known[one["id"]] for one in index["pictures"]]
    assert shown == sorted(shown)
    assert (shown[0], shown[-1]) == (min(known.values()), max(known.values()))
    before = Path("out/maps", index["pictures"][0]["file"]).stat().st_mtime_ns
    evaluate(**given)
    assert Path("out/maps", index["pictures"][0]["file"]).stat().st_mtime_ns == before
    assert told(found.rows, question="explanation", metric="insertion", run="one")[0]["n"] == 4


@pytest.mark.slow
def test_a_training_is_evaluated_on_its_test(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("digits.npz", images=PICTURES[:200], labels=LABELS[:200])
    for seed in ("0", "1"):
        given = ["digits.npz", "--model", "small-cnn", "--test", "digits.npz", "-o", f"run-{seed}", "--epochs", "1"]
        main(["train", *given, "--seed", seed])
    np.savez("noise.npz", images=np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8))
    main(["evaluate", "run-0", "run-1/test", "--ood", "noise.npz", "--detectors", "max_logit,knn", "-o", "out"])
    out = capsys.readouterr().out
    assert {one["score"] for one in told(pq.read_table("out/rows.parquet"), question="ood")} == {"max_logit", "knn"}
    assert "2 runs of" in out
    assert "ensemble epistemic" in out
    rows = pq.read_table("out/rows.parquet").to_pylist()
    accuracy = next(one for one in rows if one["metric"] == "accuracy" and one["run"] == "run-0")
    history = json.loads(Path("run-0/history.json").read_text())
    assert accuracy["value"] == pytest.approx(history[-1]["test_accuracy"])
    assert open_data("digits.npz").origin in out
