"""Tables whose columns stay where they were computed: the same table, made when somebody asks for it."""

import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
import torch
from scipy.stats import norm

import hardsight as hs
from hardsight.chance import ChanceWarning, chance_agreement
from hardsight.scores import compute_scores
from hardsight.scoring import score as scoring
from hardsight.scoring.rows import DeviceColumns, score_block, score_columns


@pytest.fixture
def triple():
    torch.manual_seed(0)
    weight = torch.randn(7, 40)
    labels = torch.randint(0, 7, (60,))
    return weight[labels] + torch.randn(60, 40), weight, labels


@pytest.mark.parametrize("labeled", [True, False])
def test_the_table_is_the_same_whenever_it_is_made(triple, labeled):
    features, weight, labels = triple
    labels = labels if labeled else None
    features[3] = 0
    bias = torch.randn(7)
    table = hs.score_features(features, weight, labels, bias)
    expected = compute_scores(features.double(), weight.double(), labels, bias.double())
    ids = [f"data:{i}" for i in range(60)]
    block = score_block(ids, features, weight, labels, bias, hs.SCORES, "direction")
    assert table.to_arrow().equals(block.rows)
    assert table.vectors.equals(block.vectors)
    assert table["id"].tolist() == ids
    assert table.meta.counts.zero_features == 1
    assert table.meta.accuracy == table.accuracy
    for name, values in expected.items():
        np.testing.assert_allclose(table[name], values, rtol=1e-5, atol=1e-5)
    if labeled:
        assert table.accuracy == (labels == expected["pred"]).double().mean()


def test_nothing_is_fetched_before_it_is_asked_for(triple, monkeypatch):
    fetched = []
    for name in ("rows", "vector_rows"):
        original = getattr(DeviceColumns, name)

        def fetch(self, ids, name=name, original=original):
            fetched.append(name)
            return original(self, ids)

        monkeypatch.setattr(DeviceColumns, name, fetch)
    numbered = scoring.numbered_ids
    monkeypatch.setattr(scoring, "numbered_ids", lambda count: fetched.append("ids") or numbered(count))
    table = hs.score_features(*triple)
    assert (table.meta.counts.rows, fetched) == (60, [])
    assert (len(table), len(table), "avh" in table) == (60, 60, True)
    assert table.vectors is table.vectors
    assert sorted(fetched) == ["ids", "rows", "vector_rows"]


@pytest.mark.parametrize("first", ["rows", "vectors"])
def test_what_was_fetched_leaves_the_device(triple, monkeypatch, first):
    left = {}

    def computed(*args):
        columns = score_columns(*args)
        left["rows"] = [weakref.ref(stack) for _, stack in columns.stacks.values()]
        left["vectors"] = [weakref.ref(values) for values in columns.vectors.values()]
        return columns

    monkeypatch.setattr(scoring, "score_columns", computed)
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)  # as if it came from another device
    table = hs.score_features(*triple)
    assert all(tensor() is not None for tensors in left.values() for tensor in tensors)
    assert len(table) if first == "rows" else len(table.vectors)
    gc.collect()
    assert all(tensor() is None for tensor in left[first])
    assert all(tensor() is not None for tensor in left["vectors" if first == "rows" else "rows"])


def test_a_table_does_not_change_with_its_inputs(triple):
    features, weight, labels = triple
    expected = hs.score_features(features, weight, labels).to_arrow()
    table = hs.score_features(features, weight, labels)
    for tensor in triple:
        tensor.zero_()
    assert table.to_arrow().equals(expected)
    assert not np.isnan(np.stack(table.vectors["sketch"].to_pylist())).any()


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))])
def test_a_table_can_be_copied_before_and_after(triple, twin):
    table = hs.score_features(*triple)
    for _ in range(2):
        other = twin(table)
        assert other.to_arrow().equals(table.to_arrow())
        assert other.vectors.equals(table.vectors)
        assert other.meta == table.meta


@pytest.mark.parametrize(("id_", "message"), [(3, "'3' repeats"), ("é\udc80", "Unicode text")])
def test_ids_that_no_table_can_have_are_refused_at_once(triple, id_, message):
    with pytest.raises(ValueError, match=message):
        hs.score_features(*triple, ids=[*range(59), id_])


def test_chance_is_that_of_the_labels_and_predictions(triple):
    features, weight, labels = triple
    columns = score_columns(features, weight, labels, None, ["norm"], None)
    tally = columns.tally(7)
    assert tally.chance == chance_agreement(labels.numpy(), columns.column("pred").numpy())
    flat = chance_agreement(np.arange(400) % 5, np.arange(400) % 5 * (np.arange(400) < 300))
    spread = (
        sum(80 * b * 320 * (400 - b) for b in (160, 60, 60, 60, 60))
        + 32_000**2
        - sum((80 * b) ** 2 for b in (160, 60, 60, 60, 60))
    )
    assert flat.p == pytest.approx(norm.sf((320 - 0.5 - 80) / (spread / (400**2 * 399)) ** 0.5), rel=1e-9)
    with pytest.warns(ChanceWarning):
        hs.score_features(features, weight, labels.roll(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hs.score_features(features[:1], weight, labels[:1]).meta.accuracy in (0.0, 1.0)


@pytest.mark.parametrize("shift", [0, 1 << 22, -3])
def test_agreement_does_not_depend_on_how_classes_are_numbered(shift):
    generator = np.random.default_rng(0)
    labels, predictions = generator.integers(0, 9, (2, 400)) * 5
    predictions[:150] = labels[:150]
    expected = chance_agreement(labels, predictions)
    if shift > 0:
        assert chance_agreement(labels + shift, predictions + shift) == expected
    labels[0] = -1
    assert chance_agreement(labels, predictions) == chance_agreement(labels[1:], predictions[1:])


def test_half_precision_that_adds_up_to_more_than_it_can_hold_is_no_bad_row():
    features = torch.full((3, 2000), 60.0, dtype=torch.float16)
    features[1, 5] = float("inf")
    features[2, :2] = torch.tensor([float("nan"), 1.0])
    table = hs.score_features(features, torch.randn(4, 2000))
    assert (table["id"].tolist(), table.bad["id"].to_pylist()) == (["data:0"], ["data:1", "data:2"])
