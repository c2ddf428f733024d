"""Predicted probabilities and labels alone: the same suspects as from a network, and one sentence for bad input."""

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import failure, run
from noisy_digits import noisy_digits

import hardsight as hs
from hardsight.labelerrors import noise

ANGULAR = {"avh", "avc", "angle", "angular_margin", "norm"}


@pytest.fixture(scope="module")
def digits():
    return noisy_digits()


def test_scores_are_those_of_logits(digits):
    table = hs.score_probabilities(digits.probabilities, digits.given)
    assert not ANGULAR & {*table.columns}
    # A network whose logits are the logarithms has the same scores.
    p = digits.probabilities.astype(np.float64)
    same = hs.score_features(np.log(p / p.sum(1, keepdims=True)), np.eye(10), digits.given)
    assert {*table.scores} == {*same.scores} - ANGULAR
    for name in table.scores:
        np.testing.assert_allclose(table[name], same[name], rtol=1e-6, atol=1e-6)
    assert (table["pred"] == p.argmax(1)).all()
    np.testing.assert_allclose(table["confidence"], p[np.arange(len(p)), digits.given], atol=1e-6)


def test_suspects_are_those_of_the_network(digits):
    suspects = hs.label_errors(digits.given, digits.probabilities)
    by_network = hs.label_errors(digits.table)
    chosen = {int(id_) for id_ in suspects["id"][suspects["suspect"]]}
    expected = {int(id_.split(":")[1]) for id_ in by_network["id"][by_network["suspect"]]}
    assert chosen == expected
    assert np.isin(np.flatnonzero(digits.wrong), list(chosen)).mean() > 0.9
    first = suspects.to_arrow().to_pylist()[0]
    assert first["label"] == digits.given[int(first["id"])]
    assert first["pred"] == digits.probabilities[int(first["id"])].argmax()


def test_the_estimate_is_cleanlabs(digits):
    count = pytest.importorskip("cleanlab.count")
    joint = count.compute_confident_joint(digits.given, digits.probabilities, calibrate=False)
    ours = hs.labelerrors.confident_joint(hs.score_probabilities(digits.probabilities, digits.given)).toarray()
    assert (ours == joint).all()


def test_many_classes_keep_what_the_estimate_needs():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 150, 3000)
    p = rng.dirichlet(np.full(150, 0.01), 3000) * 0.2
    p[np.arange(3000), labels] += 0.8
    table = hs.score_probabilities(p, labels)
    assert table.vectors is None
    assert noise(table).count < 30


def test_kinds_of_input(digits):
    expected = hs.label_errors(digits.given, digits.probabilities)["id"].tolist()
    for labels, p in (
        (digits.given.tolist(), digits.probabilities.tolist()),
        (torch.from_numpy(digits.given), torch.from_numpy(digits.probabilities)),
        (pd.Series(digits.given), pd.DataFrame(digits.probabilities)),
        (digits.given.astype(np.uint8), digits.probabilities.astype(np.float64)),
    ):
        assert hs.label_errors(labels, p)["id"].tolist() == expected
    half = hs.label_errors(digits.given, digits.probabilities.astype(np.float16))
    assert {*half["id"][:50]} & {*expected[:50]}


def test_certain_predictions_stay_finite():
    table = hs.score_probabilities(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 1])
    assert all(np.isfinite(table[name]).all() for name in table.scores)
    assert table.hardest(1, "nll")["id"].tolist() == ["data:3"]
    assert table["confidence"].tolist() == pytest.approx([1, 1, 1, 0])


GOOD = np.full((4, 2), 0.5)


@pytest.mark.parametrize(
    ("labels", "p", "message"),
    [
        ([0, 1, 0, 1], np.full((4, 2), 0.4), r"4 of 4 .*0\.8.*softmax"),
        ([0, 1, 0, 1], [[0.5, 0.5], [1.5, -0.5], [0.5, 0.5], [0.5, 0.5]], "1 of 4 .*negative.*row 1"),
        ([0, 1, 0, 1], [[0.5, 0.5], [np.nan, 1], [0.5, 0.5], [0.5, 0.5]], "1 of 4 .*NaN.*row 1"),
        ([0, 1, 0, 1], np.ones((4, 1)), "two classes"),
        ([0, 1, 0, 1], np.ones(4), "two classes"),
        ([0, 1, 0, 1], np.empty((0, 2)), "two classes"),
        ([0, 1, 2, 1], GOOD, r"\[0, 1\].*pred_probs .* 2 .*row 2"),
        ([0, 1, -1, 1], GOOD, "got -1 at row 2"),
        ([0, 1, 0], GOOD, r"shape \(4,\), got \(3,\)"),
        ([[0, 1], [1, 1], [1, 0], [0, 0]], GOOD, "multi-label.*class"),
        ([0.0, 1.0, 0.0, 1.0], GOOD, "integers"),
        (["a", "b", "a", "b"], GOOD, "labels must be"),
        (None, GOOD, "labels .*given"),
        ([0, 1, 0, 1], None, "labels alone"),
        (GOOD, np.array([0, 1, 0, 1]), "labels come first"),
    ],
)
def test_bad_input_is_one_sentence(labels, p, message):
    with pytest.raises(hs.HardsightError, match=message):
        hs.label_errors(labels, p)


def test_a_table_takes_no_probabilities(digits):
    with pytest.raises(hs.HardsightError, match="pred_probs"):
        hs.label_errors(digits.table, digits.probabilities)


@pytest.mark.parametrize("key", ["pred_probs", "probs", "probabilities"])
def test_the_command_scores_a_file(tmp_path, capsys, digits, key):
    names = np.array([f"digit {k}" for k in range(10)])
    np.savez(tmp_path / "p.npz", **{key: digits.probabilities, "labels": digits.given, "classes": names})
    code, out, _ = run(capsys, "score", tmp_path / "p.npz", "-o", tmp_path / "run", "--show", 1)
    assert code == 0
    assert "--out-of-sample" in out
    table = hs.SampleTable.load(tmp_path / "run")
    assert (table["label"] == digits.given).all()
    assert table.meta.class_names == names.tolist()
    assert not table.meta.out_of_sample
    expected = hs.label_errors(digits.given, digits.probabilities)
    assert [f"p:{id_}" for id_ in expected["id"]] == hs.label_errors(table)["id"].tolist()
    assert run(capsys, "report", tmp_path / "run")[0] == 0
    assert run(capsys, "clean", tmp_path / "run")[0] == 0
    assert run(capsys, "score", tmp_path / "p.npz", "-o", tmp_path / "two", "--out-of-sample")[0] == 0
    assert hs.SampleTable.load(tmp_path / "two").meta.out_of_sample is True


def test_bad_files_are_one_sentence(tmp_path, capsys, digits):
    def says(*options, **arrays):
        np.savez(tmp_path / "p.npz", **arrays)
        return failure(capsys, "score", tmp_path / "p.npz", "-o", tmp_path / "run", *options)

    p, y = digits.probabilities, digits.given
    assert "no label column" in says(pred_probs=p)
    assert "species" in says(pred_probs=p, species=y)
    assert "MODEL DATA" in says(images=digits.pictures, labels=y)
    assert "sum to 1" in says(pred_probs=np.log(p + 1) + 1, labels=y)
    assert "9 classes" in says(pred_probs=p[:, :9] / p[:, :9].sum(1, keepdims=True), labels=y)
    assert "--folds" in says("--folds", 5, pred_probs=p, labels=y)
    assert "pred_probs" in says(pred_probs=p, labels=y, classes=np.array(["a", "b"]))
    assert not (tmp_path / "run").exists()


def test_names_without_an_order_are_refused_where_the_model_has_its_own(capsys, tmp_path):
    """Alphabetical numbers would be a guess: the columns may be in any order."""
    names, arrays = np.array(["dog", "cat"]), {"pred_probs": np.array([[0.9, 0.1], [0.2, 0.8]])}
    np.savez(tmp_path / "p.npz", labels=names, **arrays)
    assert "names" in failure(capsys, "score", tmp_path / "p.npz", "-o", tmp_path / "a")
    np.savez(tmp_path / "q.npz", labels=names, classes=names, **arrays)
    assert run(capsys, "score", tmp_path / "q.npz", "-o", tmp_path / "b")[0] == 0
    assert hs.SampleTable.load(tmp_path / "b").accuracy == 1
