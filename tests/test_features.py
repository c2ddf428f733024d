"""Features on disk: what is read from Parquet and safetensors, and what is refused."""

import os
from datetime import timedelta

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
from hardsight.errors import HardsightError, InputError

LABELS, IDS = [0, 1, 2, 1, 0], list("abcde")
FEATURES = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("more", "columns", "labels", "ids"),
    [
        ({"id": IDS, "label": LABELS}, {}, LABELS, IDS),
        ({"species": LABELS, "key": IDS}, {"label": "species", "id": "key"}, LABELS, IDS),
        ({"species": LABELS, "id": [3, 4, 5, 6, 7]}, {"label": "species"}, LABELS, list("34567")),
        ({"note": list("vwxyz")}, {}, None, [f"emb:{i}" for i in range(5)]),
    ],
)
@pytest.mark.parametrize("name", ["features", "anything"])  # the only list column may have any name
def test_parquet(tmp_path, name, more, columns, labels, ids):
    file = parquet(tmp_path / "emb.parquet", **{name: list(FEATURES)}, **more)
    read = read_features(file, hs.Columns(**columns))
    assert np.array_equal(read.features, FEATURES)
    assert (None if read.labels is None else read.labels.tolist()) == labels
    assert (read.ids, read.head) == (ids, {})


@pytest.mark.parametrize("feature", ["feature", "features", "embedding", "embeddings", "x", "anything"])
@pytest.mark.parametrize("label", ["label", "labels", "target", "targets", "y", "class"])
def test_labels_of_any_usual_name_are_found(tmp_path, feature, label):
    file = parquet(tmp_path / "f.parquet", **{feature: list(FEATURES), label: LABELS, "other": IDS})
    assert read_features(file).labels.tolist() == LABELS
    if feature != "anything":
        save_file({feature: torch.from_numpy(FEATURES), label: torch.tensor(LABELS)}, tmp_path / "f.safetensors")
        assert read_features(tmp_path / "f.safetensors").labels.tolist() == LABELS


@pytest.mark.parametrize("writer", ["pandas", "polars", "polars array", "fixed size", "large list", "two row groups"])
def test_parquet_of_every_writer(writer, tmp_path):
    path = tmp_path / "f.parquet"
    if writer == "pandas":
        pd.DataFrame({"features": list(FEATURES), "label": LABELS}).to_parquet(path)
    elif writer.startswith("polars"):
        values = FEATURES if writer == "polars array" else FEATURES.tolist()
        pl.DataFrame({"features": values, "label": LABELS}).write_parquet(path)
    else:
        column = {
            "fixed size": lambda: pa.FixedSizeListArray.from_arrays(pa.array(FEATURES.ravel()), 4),
            "large list": lambda: pa.array(list(FEATURES), pa.large_list(pa.float32())),
            "two row groups": lambda: pa.array(list(FEATURES)),
        }[writer]()
        pq.write_table(pa.table({"features": column, "label": LABELS}), path, row_group_size=3)
    read = read_features(path)
    np.testing.assert_allclose(read.features.numpy(), FEATURES)
    assert read.labels.tolist() == LABELS


def test_labels_may_be_names(tmp_path):
    read = read_features(parquet(tmp_path / "f.parquet", features=list(FEATURES), label=["b", "c", "a", "c", "b"]))
    assert (read.labels.tolist(), read.classes) == ([1, 2, 0, 2, 1], ["a", "b", "c"])
    arrays = {"features": FEATURES, "labels": np.array(["b", "c", "a", "c", "b"]), "classes": np.array(["c", "b", "a"])}
    np.savez(tmp_path / "f.npz", **arrays, weight=np.eye(4)[:3])
    read = read_features(tmp_path / "f.npz")
    assert (read.labels.tolist(), read.classes) == ([1, 0, 2, 0, 1], ["c", "b", "a"])  # in the order of the file
    assert read.head["weight"].shape == (3, 4)
    np.savez(tmp_path / "f.npz", **{**arrays, "classes": np.array(["c", "b"])})
    with pytest.raises(InputError, match="'a'"):
        read_features(tmp_path / "f.npz")


GOOD = {"features": [[1.0, 1.0], [2.0, 1.0]]}


@pytest.mark.parametrize(
    ("table", "columns", "message"),
    [
        ({"a": [1, 2]}, {}, "features.* a"),
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]]}, {}, "features.*a, b"),
        ({"features": [[1.0], [1.0, 2.0]]}, {}, "lists .*one length"),
        ({"features": [[1.0, 2.0], None]}, {}, "lists .*one length"),
        ({"features": [[1.0, None], [1.0, 2.0]]}, {}, "lists .*one length"),
        ({"features": [["a"], ["b"]]}, {}, "lists .*one length"),
        ({"features": [[True], [False]]}, {}, "lists .*one length"),
        ({"features": pa.array([[[1.0]]] * 2)}, {}, "lists .*one length"),
        ({"features": pa.array([[], []], pa.list_(pa.float32()))}, {}, "lists .*one length"),
        ({"features": pa.array([], pa.list_(pa.float32()))}, {}, "empty|no rows"),
        (GOOD | {"label": ["a", None]}, {}, r"1 of 2 labels .*missing"),
        (GOOD | {"label": [0, None]}, {}, r"1 of 2 labels .*missing"),
        (GOOD | {"label": [[0, 1], [1, 1]]}, {}, r"labels.*f\.parquet.*multi-label"),
        (GOOD | {"label": [True, False]}, {}, r"labels.*f\.parquet.*integers"),
        (GOOD | {"label": [timedelta(seconds=1)] * 2}, {}, r"labels.*f\.parquet.*integers"),
        (GOOD | {"label": [0, 10**12]}, {}, r"labels.*f\.parquet"),
        (GOOD | {"id": ["a", None]}, {}, r"f\.parquet.*row 1"),
        (GOOD | {"id": pa.array([1, None], pa.int64())}, {}, r"f\.parquet.*row 1"),
        (GOOD | {"id": [0.5, float("nan")]}, {}, r"f\.parquet.*row 1"),
        (GOOD | {"species": [0, 1], "id": [3, 4]}, {}, r"f\.parquet .*species.*--label-column"),
        (GOOD | {"species": [0, 1]}, {"label": "kind"}, r"f\.parquet .*'kind'.*species"),
        (GOOD | {"species": [0, 1]}, {"id": "key"}, r"f\.parquet .*'key'.*species"),
    ],
)
def test_parquet_that_does_not_fit(table, columns, message, tmp_path):
    with pytest.raises(InputError, match=rf"DATA: .*({message})"):
        read_features(parquet(tmp_path / "f.parquet", **table), hs.Columns(**columns))


@pytest.mark.parametrize("name", ["f.parquet", "f.safetensors"])
def test_features_that_are_no_file(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"DATA: .*{name}"):
        read_features(tmp_path / name)
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=rf"DATA: {name} is"):
        read_features(tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)  # which is not waited for
    with pytest.raises(HardsightError, match=name):
        read_features(tmp_path / name)


def test_safetensors(tmp_path):
    file = tmp_path / "f.safetensors"
    tensors = {"features": torch.from_numpy(FEATURES), "labels": torch.tensor(LABELS)}
    save_file(tensors | {"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, file)
    read = read_features(file)
    assert np.array_equal(read.features, FEATURES)
    assert read.labels.tolist() == LABELS
    assert read.ids == [f"f:{i}" for i in range(5)]
    assert {name: tuple(t.shape) for name, t in read.head.items()} == {"weight": (3, 4), "bias": (3,)}
    weight, bias = read_head(file)  # the same file may be given as the head
    assert (weight.shape, bias.shape) == ((3, 4), (3,))
    save_file({"features": torch.from_numpy(FEATURES), "fine": torch.arange(5)}, file)
    named = read_features(file, hs.Columns(label="fine", id="fine"))
    assert (named.labels.tolist(), named.ids) == ([0, 1, 2, 3, 4], list("01234"))
    for columns, message in (({}, "--label-column"), ({"label": "coarse"}, "'coarse'.*fine"), ({"id": "key"}, "'key'")):
        with pytest.raises(InputError, match=rf"f\.safetensors .*{message}"):
            read_features(file, hs.Columns(**columns))
    for tensors in ({"x": torch.zeros(2)}, {"other": torch.zeros(2, 3)}):
        save_file(tensors, file)
        with pytest.raises(ValueError, match=rf"f\.safetensors .*features.* {next(iter(tensors))}\b"):
            read_features(file)
