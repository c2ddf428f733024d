"""AVH of rare and of unknown classes: what is trained on, which way the differences go, and whom they pair."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hardsight.data import ArraySamples, all_labels
from hardsight.studies import STUDIES, judged, study
from hardsight.studies.declared import avh_suggestions, consequences
from hardsight.studies.declared.avh_suggestions import known_classes
from hardsight.studies.declared.training import Embedded, split_data
from hardsight.studies.study import Cell
from hardsight.studies.tables import Results


@pytest.fixture
def trained(monkeypatch):
    """Every call to `train_cell`: training and test samples. Nothing is trained."""
    calls = []

    def train_cell(cell, data, recipe, network=None, **options):
        calls.append(data)
        return SimpleNamespace(model=SimpleNamespace(module=None), history=[{"test_accuracy": x} for x in (0.9, 0.8)])

    for module in (avh_suggestions, consequences):
        monkeypatch.setattr(module, "train_cell", train_cell)
    return calls


def test_rare_classes_are_compared_with_frequent_ones_on_balanced_data(trained, monkeypatch, tmp_path):
    scored = []

    def score(model, test, **options):
        label = all_labels(test, "test")
        scored.append(label)
        rare = label >= 5
        pred = np.where(label == 9, 0, label)
        return {"label": label, "avh": 0.08 + 0.01 * rare, "confidence": 0.9 - 0.2 * rare, "pred": pred}

    monkeypatch.setattr(avh_suggestions.hs, "score", score)
    rows = study("imbalance", scale="smoke", seeds=1, out=tmp_path, device="cpu", progress=False).rows
    assert [row["ratio"] for row in rows] == ["1", "10"]
    even, tailed = (np.bincount(all_labels(training, "data")) for training, _ in trained)
    assert len(set(even)) == 1
    assert tailed[0] == even[0]
    assert tailed[0] / tailed[-1] == pytest.approx(10, rel=0.1)
    assert np.all(np.diff(tailed) < 0)
    for (_, test), label in zip(trained, scored, strict=True):
        assert np.array_equal(all_labels(test, "test"), label)
        assert (len(label), np.bincount(label).min()) == (360, 26)  # the test samples as they are
    for row in rows:
        assert row["avh"] == pytest.approx(0.1)  # C times the difference
        assert row["confidence"] == pytest.approx(-0.2)
        assert row["accuracy"] == pytest.approx(-47 / 178)  # nines among the rarer half


@pytest.mark.parametrize(("sign", "verdict"), [(1, "yes"), (-1, "no")])
def test_the_claim_on_imbalances_is_about_more_avh_than_in_balanced_data(sign, verdict):
    noise = np.linspace(-0.01, 0.01, 5)
    rows = [
        {"ratio": ratio, "seed": seed, "avh": 0.02 + sign * gap + noise[seed] * (1 + gap)}
        for ratio, gap in (("1", 0), ("10", 0.1), ("100", 0.2))
        for seed in range(5)
    ]
    found = judged(Results(STUDIES["imbalance"], rows, None, 0))
    assert [(row["on"], row["verdict"]) for row in found] == [("ratio 10", verdict), ("ratio 100", verdict)]


def test_labels_of_known_classes_are_renumbered_and_the_others_are_left_out():
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1)
    samples = ArraySamples(images, np.array([0, 1, 2, 3, 1, 2]), "x", "x", classes=["a", "b", "c", "d"])
    part = known_classes(samples, np.array([1, 3]))
    assert part.labels.tolist() == [0, 1, 0]
    assert part.ids == [samples.ids[k] for k in (1, 3, 4)]
    assert part.classes == ["b", "d"]


def test_known_classes_lie_above_unknown_ones_in_every_score(trained, monkeypatch, tmp_path):
    """A score that is higher for known classes has an AUROC above one half, as scikit-learn's."""
    read = {}

    def embed(network, pixels):
        draw = np.random.default_rng(1)
        known = np.unique(read["label"])
        _, test = split_data(read["cell"])
        inside = np.isin(all_labels(test, "test"), known)
        features = torch.from_numpy(draw.normal(size=(len(inside), 6)) + 3 * inside[:, None] * np.eye(6)[0])
        weight = torch.eye(6, dtype=torch.float64)
        read["inside"], read["norm"] = inside, features.norm(dim=1).numpy()
        return Embedded(features, features @ weight.T, weight, None)

    original = avh_suggestions.split_data

    def remembered(cell):
        read["cell"] = cell
        return original(cell)

    known_of = avh_suggestions.known_classes
    monkeypatch.setattr(avh_suggestions, "split_data", remembered)
    monkeypatch.setattr(avh_suggestions, "known_classes", lambda s, k: read.update(label=k) or known_of(s, k))
    monkeypatch.setattr(avh_suggestions, "embed", embed)
    rows = study("open-set", scale="smoke", seeds=2, out=tmp_path, device="cpu", progress=False).rows
    assert len({tuple(training.rows) for training, _ in trained}) == 2  # another draw per seed
    for training, test in trained:
        assert np.unique(all_labels(training, "data")).tolist() == list(range(6))
        assert np.unique(all_labels(test, "data")).tolist() == list(range(6))
    last = {row["score"]: row["auroc"] for row in rows if row["seed"] == 1}
    assert set(last) == {"msp", "max_logit", "norm", "avh", "avc", "angular_margin"}
    assert min(last.values()) > 0.6
    assert last["norm"] == pytest.approx(roc_auc_score(read["inside"], read["norm"]))


def test_squared_errors_are_not_attacked_and_the_best_epoch_is_beside_the_last(trained, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(consequences, "_rows", lambda cell, subject, name, **options: asked.append(name) or [])
    monkeypatch.setattr(consequences.hs.evaluation, "Subject", lambda *_: None)
    monkeypatch.setattr(consequences, "split_data", lambda cell: (range(9), range(10)))
    kind = STUDIES["consequences-mnist"]
    settings = kind.scale("quick").settings | {"data_ood": ()}
    for arm, attacks in (("el-released", 2), ("mse", 0), ("mirror-sigmoid", 0)):
        asked.clear()
        assert arm in kind.levels("quick")["arm"]
        cell = Cell({"arm": arm}, 0, settings, None, torch.device("cpu"), None, tmp_path, tmp_path)
        rows = kind.measure(cell)
        assert asked == ["answers", "attacks-0", "attacks-1"][: 1 + attacks]
        assert [(row["metric"], row["value"], row["n"]) for row in rows] == [("accuracy", 0.8, 10), ("best", 0.9, 10)]
