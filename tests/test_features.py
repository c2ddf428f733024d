"""Features on disk: what is read from Parquet and safetensors, and what is refused."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import hardsight as hs
from hardsight.checkpoints import read_head
from hardsight.data import read_features
from hardsight.errors import InputError

LABELS = [0, 1, 2, 1, 0]


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def parquet(path, table):
    pq.write_table(pa.table(table), path)
    return path


@pytest.mark.parametrize(
    ("more", "columns", "labels", "ids"),
    [
        ({"id": list("abcde"), "label": LABELS}, hs.Columns(), LABELS, list("abcde")),
        ({"species": LABELS, "key": list("abcde")}, hs.Columns(label="species", id="key"), LABELS, list("abcde")),
        ({"note": list("vwxyz")}, hs.Columns(), None, [f"emb:{i}" for i in range(5)]),
    ],
)
@pytest.mark.parametrize("name", ["features", "anything"])  # the only list column may have any name
def test_parquet(features, tmp_path, name, more, columns, labels, ids):
    read = read_features(parquet(tmp_path / "emb.parquet", {name: list(features), **more}), columns)
    assert np.array_equal(read.features, features)
    assert (None if read.labels is None else read.labels.tolist()) == labels
    assert read.ids == ids
    assert read.head == {}


@pytest.mark.parametrize("writer", ["pandas", "polars", "polars array", "fixed size", "large list", "two row groups"])
def test_parquet_of_every_writer(writer, features, tmp_path):
    path = tmp_path / "f.parquet"
    if writer == "pandas":
        pd.DataFrame({"features": list(features), "label": LABELS}).to_parquet(path)
    elif writer.startswith("polars"):
        values = features if writer == "polars array" else features.tolist()
        pl.DataFrame({"features": values, "label": LABELS}).write_parquet(path)
    else:
        column = {
            "fixed size": lambda: pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), 4),
            "large list": lambda: pa.array(list(features), pa.large_list(pa.float32())),
            "two row groups": lambda: pa.array(list(features)),
        }[writer]()
        pq.write_table(pa.table({"features": column, "label": LABELS}), path, row_group_size=3)
    read = read_features(path)
    np.testing.assert_allclose(read.features.numpy(), features)
    assert read.labels.tolist() == LABELS


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ({"a": [1, 2]}, {}, "features.* a"),
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]]}, {}, "features.*a, b"),
        ({"features": [[1.0], [1.0, 2.0]]}, {}, "lists .*one length"),
        ({"features": [[1.0, 2.0], None]}, {}, "lists .*one length"),
        ({"features": [["a"], ["b"]]}, {}, "lists .*one length"),
        ({"features": [[1.0], [2.0]], "label": ["a", "b"]}, {}, r"labels.*f\.parquet.*integers"),
        ({"features": [[1.0], [2.0]], "label": [0, None]}, {}, r"labels.*integers"),
        ({"features": pa.array([], pa.list_(pa.float32()))}, {}, "empty|no rows"),
        ({"features": [[1.0], [2.0]], "species": [0, 1]}, {"label": "kind"}, r"f\.parquet .*'kind'.*species"),
        ({"features": [[1.0], [2.0]], "species": [0, 1]}, {"id": "key"}, r"f\.parquet .*'key'.*species"),
    ],
    ids=["no list", "two lists", "ragged", "gap", "text", "text labels", "missing label", "empty", "label", "id"],
)
def test_parquet_that_does_not_fit(table, columns, message, tmp_path):
    with pytest.raises(ValueError, match=rf"DATA: .*({message})"):
        read_features(parquet(tmp_path / "f.parquet", table), hs.Columns(**columns))


@pytest.mark.parametrize("name", ["f.parquet", "f.safetensors"])
def test_features_that_are_no_file(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"DATA: .*{name}"):
        read_features(tmp_path / name)
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=rf"DATA: {name} is"):
        read_features(tmp_path / name)


def test_safetensors(features, tmp_path):
    tensors = {"features": torch.from_numpy(features), "labels": torch.tensor(LABELS)}
    save_file(tensors | {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, tmp_path / "f.safetensors")
    read = read_features(tmp_path / "f.safetensors")
    assert np.array_equal(read.features, features)
    assert read.labels.tolist() == LABELS
    assert read.ids == [f"f:{i}" for i in range(5)]
    assert {name: tuple(t.shape) for name, t in read.head.items()} == {"weight": (3, 4), "bias": (3,)}
    weight, bias = read_head(tmp_path / "f.safetensors")  # the same file may be given as the head
    assert (weight.shape, bias.shape) == ((3, 4), (3,))


def test_safetensors_columns(features, tmp_path):
    file = tmp_path / "f.safetensors"
    save_file({"features": torch.from_numpy(features), "fine": torch.arange(5)}, file)
    with pytest.raises(InputError, match="--label-column"):  # integers of another name may be the labels
        read_features(file)
    assert read_features(file, hs.Columns(label="fine")).labels.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"f\.safetensors .*'coarse'.*fine"):
        read_features(file, hs.Columns(label="coarse"))
    with pytest.raises(ValueError, match=r"f\.safetensors .*'key'"):  # not ignored in silence
        read_features(file, hs.Columns(id="key"))
    for tensors in ({"x": torch.zeros(2)}, {"other": torch.zeros(2, 3)}):
        save_file(tensors, file)
        with pytest.raises(ValueError, match=rf"f\.safetensors .*features.* {next(iter(tensors))}\b"):
            read_features(file)
