"""Features in Parquet are scored unit by unit: the same rows as in memory, resumed, divided, refused."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hardsight as hs
from hardsight.cli import main
from hardsight.data import Columns, FeatureRows
from hardsight.errors import InputError
from hardsight.scoring import features as scoring

N, D, C = 700, 9, 4


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(scoring, "_UNIT_ROWS", 16)
    monkeypatch.setattr(scoring, "_LEAST_ROWS", 1)
    monkeypatch.setattr("hardsight.data.features._BATCH", 23)


@pytest.fixture
def case(tmp_path):
    """A file with row groups of odd lengths, two bad rows, and its head."""
    torch.manual_seed(0)
    features, weight, bias = torch.randn(N, D), torch.randn(C, D), torch.randn(C)
    features[5], features[N - 1, 2] = torch.nan, torch.inf
    labels = torch.arange(N) % C
    ids = [f"x{(i * 37) % N}" for i in range(N)]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(features.numpy().reshape(-1)), D)
    table = pa.table({"label": labels.numpy(), "embedding": lists, "id": ids})
    with pq.ParquetWriter(tmp_path / "f.parquet", table.schema) as writer:
        for start, stop in ((0, 100), (100, 101), (101, 555), (555, N)):
            writer.write_table(table.slice(start, stop - start))
    np.savez(tmp_path / "head.npz", weight=weight.numpy(), bias=bias.numpy())
    return tmp_path, hs.score_features(features, weight, labels, bias, ids)


def score(folder, *options, out="run"):
    """The exit code of the command."""
    named = [str(folder / "f.parquet"), "--head", str(folder / "head.npz"), "-o", str(folder / out)]
    try:
        main(["score", *named, *options])
    except SystemExit as error:
        return error.code
    return 0


def same(run, expected):
    rows, other = hs.SampleTable.load(run).to_pandas(), expected.to_pandas()
    rows = rows.set_index("id").loc[other["id"]].reset_index()
    assert rows.columns.tolist() == other.columns.tolist()
    assert (rows[["id", "label", "pred"]] == other[["id", "label", "pred"]]).all(axis=None)
    np.testing.assert_allclose(rows[expected.scores], other[expected.scores], rtol=1e-6, atol=1e-6)
    return hs.SampleTable.load(run)


def test_rows_are_those_of_the_features_in_memory(case, small_units):
    folder, expected = case
    assert score(folder) == 0
    table = same(folder / "run", expected)
    assert sorted(table.bad["id"].to_pylist()) == sorted(expected.bad["id"].to_pylist())
    assert len(list((folder / "run" / "parts").iterdir())) == 44
    assert table.meta.counts.bad == 2
    assert table.meta.model.classes == C
    ours = dict(zip(table.vectors["id"].to_pylist(), table.vectors["probabilities"].to_pylist(), strict=True))
    for id_, p in zip(expected.vectors["id"].to_pylist(), expected.vectors["probabilities"].to_pylist(), strict=True):
        np.testing.assert_allclose(ours[id_], p, atol=1e-6)


def test_a_killed_run_resumes_to_the_same_rows(case, small_units, monkeypatch):
    folder, expected = case
    assert score(folder, out="whole") == 0
    reads, read = [], FeatureRows.read

    def killed(self, places):
        reads.append(places)
        if len(reads) == 20:
            raise KeyboardInterrupt
        return read(self, places)

    monkeypatch.setattr(FeatureRows, "read", killed)
    assert score(folder) != 0
    monkeypatch.setattr(FeatureRows, "read", read)
    done = len(list((folder / "run" / "parts").iterdir()))
    assert 0 < done < 44
    assert score(folder) == 0
    table = same(folder / "run", expected)
    assert table.meta.resumed == done * 16
    assert table.to_arrow().equals(hs.SampleTable.load(folder / "whole").to_arrow())  # bit by bit


def test_shares_are_the_rows_of_one_process(case, small_units, capsys):
    folder, _ = case
    assert score(folder, out="whole") == 0
    assert score(folder, "--shard", "1/2") == 0
    assert "still scoring" in capsys.readouterr().out
    assert score(folder, "--shard", "0/2") == 0
    one, two = (hs.SampleTable.load(folder / name).to_arrow() for name in ("whole", "run"))
    assert one.equals(two)


def test_what_decides_the_rows_is_compared(case, capsys):
    folder, _ = case
    assert score(folder) == 0
    assert score(folder) == 0
    assert "complete already" in capsys.readouterr().out
    for options in (["--no-bias"], ["--label-column", "label", "--data-version", "2"]):
        assert score(folder, *options) != 0
        assert "holds another run" in capsys.readouterr().err
    os.utime(folder / "f.parquet", ns=(1, 1))
    assert score(folder) != 0
    assert score(folder, "--overwrite") == 0
    np.savez(folder / "head.npz", weight=np.ones((C, D), np.float32), bias=np.zeros(C))
    assert score(folder) != 0
    meta = json.loads((folder / "run" / "meta.json").read_text())
    assert meta["source"]["table"] == str(folder / "f.parquet")


@pytest.mark.parametrize("form", ["fixed", "list", "large", "half", "numbers"])
def test_any_rows_can_be_read(tmp_path, monkeypatch, form):
    monkeypatch.setattr("hardsight.data.features._BATCH", 7)
    values = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float16 if form == "half" else np.float32)
    lists = {
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 3),
        "list": lambda: pa.array(list(values)),
        "large": lambda: pa.array(list(values)).cast(pa.large_list(pa.float32())),
        "half": lambda: pa.array(list(values)),
        "numbers": lambda: pa.array(list(values)),
    }[form]()
    ids = {"id": np.arange(90) * 3} if form == "numbers" else {}
    pq.write_table(pa.table({"features": lists, **ids}), tmp_path / "f.parquet", row_group_size=25)
    rows = FeatureRows(tmp_path / "f.parquet")
    draw = np.random.default_rng(1)
    for _ in range(60):
        start, stop = sorted(draw.choice(91, 2, replace=False).tolist())
        ids, features = rows.read(range(start, stop))
        np.testing.assert_array_equal(features.numpy(), values[start:stop])
        expected = [str(3 * i) if form == "numbers" else f"f:{i}" for i in range(start, stop)]
        assert ids == rows.ids(range(start, stop)) == expected


def test_rows_that_cannot_be_scored_are_refused(case, tmp_path, capsys):
    folder, _ = case
    table = pq.read_table(folder / "f.parquet")
    many = pa.concat_tables([table] * 13)  # beyond a batch

    def refused(rows, *columns):
        pq.write_table(rows, tmp_path / "bad.parquet")
        with pytest.raises(InputError) as error:
            FeatureRows(tmp_path / "bad.parquet", Columns(*columns))
        return str(error.value)

    unique = many.set_column(2, "id", pa.array([f"y{i}" for i in range(len(many))]))
    ids = unique["id"].to_pylist()
    assert "'y3' repeats" in refused(unique.set_column(2, "id", pa.array([*ids[:-1], "y3"])))
    assert "row 9,000" in refused(unique.set_column(2, "id", pa.array([*ids[:9000], None, *ids[9001:]])))
    assert "label" in refused(table.set_column(0, "label", pa.array([None] + [1] * (N - 1))))
    ragged = pa.array([[1.0, 2.0]] * (N - 1) + [[1.0]])
    pq.write_table(table.set_column(1, "embedding", ragged), folder / "f.parquet")
    np.savez(folder / "head.npz", weight=np.ones((C, 2), np.float32))
    assert score(folder) != 0
    assert "number lists of one length" in capsys.readouterr().err
    np.savez(folder / "head.npz", weight=np.ones((2, 2), np.float32))  # labels up to 3
    assert score(folder, out="other") != 0
    assert "[0, 1]" in capsys.readouterr().err


def test_a_file_that_changes_is_read_no_further(case):
    folder, _ = case
    rows = FeatureRows(folder / "f.parquet")
    table = pq.read_table(folder / "f.parquet")
    pq.write_table(table.take(pa.array(range(N))[::-1]), folder / "f.parquet")  # labels of one, features of another
    with pytest.raises(InputError, match="changed"):
        rows.read(range(200, 210))


@pytest.mark.slow
def test_workers_of_ray_score_shares(case, small_units):
    pytest.importorskip("ray")
    folder, _ = case
    assert score(folder, out="whole") == 0
    assert score(folder, "--engine", "ray", "--ray-workers", "2") == 0
    whole, divided = (hs.SampleTable.load(folder / name).to_arrow() for name in ("whole", "run"))
    assert len(divided) == len(whole)
    same(folder / "run", hs.SampleTable.load(folder / "whole"))
