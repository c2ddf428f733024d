"""Label-free validators against naive float64 loops and closed forms, and which round each of them picks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hardsight.adaptation import selection, validators
from hardsight.adaptation.validators import VALIDATORS, entropy, information_maximisation, nuclear_norm, picked, snd


def naive_entropy(row):
    return -sum(value * math.log(value) for value in row if value > 0)


def naive_information(p):
    mean = [sum(row[k] for row in p) / len(p) for k in range(len(p[0]))]
    return naive_entropy(mean) - sum(naive_entropy(row) for row in p) / len(p)


def naive_density(vectors):
    units = [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in vectors]
    total = 0.0
    for i, one in enumerate(units):
        weights = [
            math.exp(sum(a * b for a, b in zip(one, other, strict=True)) / 0.05)
            for j, other in enumerate(units)
            if j != i
        ]
        total += naive_entropy([weight / sum(weights) for weight in weights])
    return total / len(units)


@pytest.fixture
def seen():
    draw = np.random.default_rng(0)
    p = draw.dirichlet(np.full(5, 0.3), 60)
    p[3] = [0, 1, 0, 0, 0]
    return p, draw.normal(size=(60, 8))


def test_validators_equal_naive_loops(seen):
    p, features = seen
    naive = {
        "information_maximisation": naive_information(p.tolist()),
        "entropy": -sum(naive_entropy(row) for row in p.tolist()) / len(p),
        "nuclear_norm": np.linalg.norm(p, "nuc") / math.sqrt(60 * 5),
        "snd": naive_density(p.tolist()),
        "snd_features": naive_density(features.tolist()),
    }
    assert set(naive) == set(VALIDATORS)
    for name, validator in VALIDATORS.items():
        assert validator(p, features) == pytest.approx(naive[name], rel=1e-5), name
        single = validator(p.astype(np.float32), features.astype(np.float32))
        assert single == pytest.approx(naive[name], rel=1e-5), name


def test_blocks_change_nothing(seen, monkeypatch):
    at_once = {name: validator(*seen) for name, validator in VALIDATORS.items()}
    monkeypatch.setattr(selection, "_BLOCK", 35)
    monkeypatch.setattr(validators, "_BLOCK", 7)
    for name, validator in VALIDATORS.items():
        assert validator(*seen) == pytest.approx(at_once[name], rel=1e-6), name


def test_order_of_samples_and_classes_does_not_matter(seen):
    p, features = seen
    order = np.random.default_rng(1).permutation(60)
    for name, validator in VALIDATORS.items():
        turned = validator(p[order][:, ::-1], features[order][:, ::-1])
        assert turned == pytest.approx(validator(p, features), rel=1e-5), name


def test_sure_and_balanced_predictions_are_best_and_one_class_for_all_is_worst():
    balanced, collapsed, unsure = np.eye(4)[np.arange(40) % 4], np.eye(4)[np.zeros(40, int)], np.full((40, 4), 0.25)
    assert information_maximisation(balanced) == pytest.approx(math.log(4))
    assert information_maximisation(collapsed) == information_maximisation(unsure) == 0.0
    assert nuclear_norm(balanced) == pytest.approx(1.0)
    assert nuclear_norm(collapsed) == pytest.approx(0.5, rel=1e-6)  # one singular value, √40, over √160
    assert nuclear_norm(unsure) == pytest.approx(0.25, rel=1e-6)
    assert nuclear_norm(np.eye(5)[:3]) == pytest.approx(1.0)  # fewer samples than classes
    assert entropy(balanced) == entropy(collapsed) == 0.0
    assert entropy(unsure) == pytest.approx(-math.log(4))
    # What the docs warn of: neither entropy nor density sees a collapse.
    assert snd(balanced) == pytest.approx(math.log(9), rel=1e-5)
    assert snd(collapsed) == pytest.approx(math.log(39), rel=1e-5)


def test_density_of_many_samples_is_that_of_some_spread_over_all_and_bears_vectors_without_length(monkeypatch):
    p = np.eye(4)[np.repeat(np.arange(4), 250)]
    monkeypatch.setattr(validators, "_COMPARED", 40)
    assert snd(p) == pytest.approx(math.log(9), rel=1e-5)  # ten of each class, although they are sorted by class
    assert math.isfinite(validators.snd_features(None, np.zeros((3, 2))))


@pytest.mark.parametrize(
    ("name", "p", "words"),
    [
        ("entropy", np.zeros((0, 3)), "target is empty"),
        ("information_maximisation", np.zeros((0, 3)), "target is empty"),
        ("nuclear_norm", np.full((2, 3), np.nan), "nan .*row 0"),
        ("nuclear_norm", np.ones(3), "\\(N, C\\)"),
        ("snd", np.ones((1, 3)), "two samples, got 1"),
    ],
)
def test_bad_input_is_one_sentence(name, p, words):
    with pytest.raises(ValueError, match=words):
        VALIDATORS[name](p, None)


ROUNDS = [
    {"round": 0, "snd": 1.0, "entropy": -0.3, "target_accuracy": 0.5, "test_accuracy": 0.55},
    {"round": 1, "snd": 3.0, "entropy": -0.1, "target_accuracy": 0.9, "test_accuracy": 0.8},
    {"round": 2, "snd": float("nan"), "entropy": -0.1, "target_accuracy": 0.6, "test_accuracy": 0.95},
    {"round": 3, "snd": 2.0, "entropy": -0.2, "target_accuracy": 0.7, "test_accuracy": 0.6},
]


def test_each_validator_picks_its_best_round_the_first_of_equals():
    rows = picked(ROUNDS, ["snd", "entropy", "nuclear_norm"])
    assert [row["round"] for row in rows] == [1, 1, None]
    assert rows[0] == {
        "validator": "snd",
        "round": 1,
        "measure": "test_accuracy",
        "accuracy": 0.8,
        "behind_oracle": pytest.approx(0.15),
        "ahead_of_last": pytest.approx(0.2),
    }
    assert rows[2]["accuracy"] is None


def test_accuracy_on_the_target_counts_where_there_is_no_test_and_without_labels_only_the_round_is_said():
    rows = picked([{**row, "test_accuracy": None} for row in ROUNDS], ["snd"])
    assert (rows[0]["measure"], rows[0]["accuracy"], rows[0]["behind_oracle"]) == ("target_accuracy", 0.9, 0.0)
    rows = picked([{"round": r, "snd": float(r)} for r in range(3)], ["snd"])
    assert (rows[0]["round"], rows[0]["measure"], rows[0]["accuracy"], rows[0]["behind_oracle"]) == (
        2,
        None,
        None,
        None,
    )
    assert [row["round"] for row in picked([])] == [None] * len(VALIDATORS)
