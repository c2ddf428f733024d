"""Features without a head: one is fitted per fold, as for the features of a network."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import failure, run
from noisy_digits import noisy_digits
from torch import nn
from torch.utils.data import TensorDataset

import hardsight as hs
from hardsight.runs import Folds


@pytest.fixture(scope="module")
def digits():
    return noisy_digits()


@pytest.fixture(scope="module")
def features(digits):
    return digits.pictures.reshape(len(digits.given), -1).astype(np.float32) / 255


@pytest.fixture(scope="module")
def table(digits, features):
    return hs.score_features(features, labels=digits.given, folds=5)


def test_the_rows_are_those_of_a_network_with_these_features(digits, features, table):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    data = TensorDataset(torch.from_numpy(features), torch.from_numpy(digits.given))
    same = hs.score(network, data, folds=5, device="cpu")
    assert table.columns == same.columns
    for name in ("label", "pred", "fold"):
        assert (table[name] == same[name]).all()
    np.testing.assert_allclose(table["avh"], same["avh"], rtol=1e-6)
    assert table.meta.out_of_sample == Folds(5, 1, "head")


def test_wrong_labels_are_suspects(digits, table):
    suspects = hs.label_errors(table)
    places = [int(id_.split(":")[1]) for id_ in suspects["id"][suspects["suspect"]]]
    assert digits.wrong[places].sum() > 0.9 * digits.wrong.sum()


def test_repeats_and_options(digits, features):
    labels = digits.given[:300]
    table = hs.score_features(features[:300], labels=labels, folds=3, seeds=2, seed=4, use_bias=False)
    assert "avh_sd" in table
    assert table.meta.out_of_sample == Folds(3, 2, "head", 4)
    assert table.meta.bias is False
    first = hs.score_features(features[:300], labels=labels, folds=3, seed=4, use_bias=False)
    other = hs.score_features(features[:300], labels=labels, folds=3, seed=5, use_bias=False)
    np.testing.assert_allclose(table["avh"], (first["avh"] + other["avh"]) / 2)


def test_gaps_in_the_numbering_and_bad_rows(digits, features):
    x, y = features[:200].copy(), digits.given[:200] * 10
    x[7] = np.nan
    table = hs.score_features(x, labels=y, folds=2)
    assert table.bad["id"].to_pylist() == ["data:7"]
    assert "data:7" not in table["id"]
    assert table.meta.class_names == [str(10 * k) for k in range(10)]
    assert (np.array(table.meta.label_mapping)[y] == y // 10).all()
    with pytest.raises(hs.HardsightError, match="row 7"):
        hs.score_features(x, labels=y, folds=2, strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": [0, 1] * 10, "folds": 1}, r"folds must .* got 1"),
        ({"labels": [0, 1] * 10, "folds": 21}, r"samples \(20\), got 21"),
        ({"labels": None, "folds": 5}, "folds needs labels"),
        ({"labels": [0] * 20, "folds": 5}, "two classes"),
        ({"labels": [-1, 1] * 10, "folds": 5}, "got -1"),
        ({"labels": np.eye(2, dtype=int)[[0, 1] * 10], "folds": 5}, "argmax.*multi-label"),
        ({"labels": [0, 1] * 10, "folds": 5, "weight": np.eye(4)}, "leave out weight"),
        ({"labels": [0, 1] * 10}, "weight .*folds"),
        ({"labels": [0, 1] * 9, "folds": 5}, r"\(20,\)"),
    ],
)
def test_bad_input_is_one_sentence(options, message):
    x = np.random.default_rng(0).normal(size=(20, 4))
    with pytest.raises(hs.HardsightError, match=message):
        hs.score_features(x, **options)


def test_more_folds_than_samples_of_a_class_is_said():
    x, y = np.random.default_rng(0).normal(size=(40, 4)), np.array([0] * 20 + [1] * 17 + [2] * 3)
    with pytest.warns(UserWarning, match=r"1 class .*folds \(5\)"):
        table = hs.score_features(x, labels=y, folds=5)
    assert len(table.meta.warnings) == 1


@pytest.mark.slow
def test_the_command_fits_heads(tmp_path, capsys, digits, features, table):
    names = [f"digit {k}" for k in digits.given]
    columns = {"id": [f"data:{i}" for i in range(len(names))], "embedding": list(features), "label": names}
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    assert run(capsys, "score", tmp_path / "f.parquet", "--folds", 5, "-o", tmp_path / "run")[0] == 0
    scored = hs.SampleTable.load(tmp_path / "run")
    np.testing.assert_allclose(scored["avh"], table["avh"])
    assert scored.meta.class_names == [f"digit {k}" for k in range(10)]
    np.savez(tmp_path / "f.npz", embeddings=features, y=digits.given)
    assert run(capsys, "score", tmp_path / "f.npz", "--folds", 5, "-o", tmp_path / "npz")[0] == 0
    np.testing.assert_allclose(hs.SampleTable.load(tmp_path / "npz")["avh"], table["avh"])
    # Nothing is fitted where a run is in the way.
    assert "run is there already" in failure(
        capsys, "score", tmp_path / "f.parquet", "--folds", 5, "-o", tmp_path / "run"
    )


def test_bad_files_are_one_sentence(tmp_path, capsys, digits, features):
    def says(*options, **columns):
        pq.write_table(pa.table({"embedding": list(features), **columns}), tmp_path / "f.parquet")
        return failure(capsys, "score", tmp_path / "f.parquet", "-o", tmp_path / "run", *options)

    labels = digits.given.tolist()
    assert "it has embedding, file" in says("--folds", 5, file=["x"] * len(labels))
    assert "species" in says("--folds", 5, species=labels)
    assert "1 of 1,797 labels" in says("--folds", 5, label=[None, *labels[1:]])
    assert "1 of 1,797 labels" in says("--folds", 5, label=pa.array([None, *map(str, labels[1:])]))
    assert "multi-label" in says("--folds", 5, label=[[0, 1]] * len(labels))
    assert "--folds 5" in says(label=labels)
    assert "--head" in says("--folds", 5, "--head", "h.safetensors", label=labels)
    assert "[2" in says("--folds", 1, label=labels)
    assert not (tmp_path / "run").exists()
