"""Parquet with image bytes: which column, labels and class names are meant, and how rows are reached."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import failure, run
from PIL import Image
from shard_files import (
    COUNT,
    encoded,
    pixels,
    rows_of,
    write_parquet,
    write_tars,
)

import hardsight as hs
from hardsight.data import holds_images, open_data
from hardsight.data.parquet import ParquetSamples


@pytest.fixture
def tars(tmp_path):
    return write_tars(tmp_path)


@pytest.fixture
def parquet(tmp_path):
    return write_parquet(tmp_path)


def table(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_rows_in_any_order_and_of_groups_larger_than_memory_allows(tmp_path, monkeypatch):
    pq.write_table(pa.table(rows_of(40)), tmp_path / "x.parquet", row_group_size=17)
    for most in (1 << 28, 1000):
        monkeypatch.setattr("hardsight.data.parquet._MOST_CACHED", most)
        samples = open_data(tmp_path / "x.parquet")
        rows = {rows for _, _, rows, _ in samples._groups}
        assert rows == {17, 6} if most > 1000 else max(rows) < 6
        for row in [*range(40), *np.random.default_rng(0).permutation(40).tolist()]:
            assert np.array_equal(pixels(samples, row), Image.open(io.BytesIO(encoded(row)))), (most, row)


def test_columns_of_parquet(tmp_path):
    images = [encoded(0), encoded(1)]
    path = table(tmp_path / "x.parquet", jpg=images, id=["a", "b"], y=["owl", "cat"], bbox=[[1.0], [2.0]])
    samples = open_data(path)
    assert samples.ids == ["a", "b"]
    assert samples.classes == ["cat", "owl"]
    assert samples.labels.tolist() == [1, 0]
    path = table(tmp_path / "x.parquet", photo=images, key=[7, 8], kind=[1, 0])
    samples = open_data(path, columns=hs.Columns("photo", "kind", "key"))
    assert samples.ids == ["7", "8"]
    assert samples.labels.tolist() == [1, 0]
    assert open_data(path).labels is None  # the only bytes are the images
    with pytest.raises(ValueError, match="'nothing'"):
        open_data(path, columns=hs.Columns(image="nothing"))
    large = pa.array(images, pa.large_binary())
    assert len(open_data(table(tmp_path / "x.parquet", image=large, hash=images))) == 2


WRONG = {
    "labels of two kinds": ([{"label": [0, 1]}, {"label": ["a", "b"]}], "one type"),
    "labels in one file": ([{"label": [0, 1]}, {}], "labels"),
    "a label missing": ([{"label": [0, None]}], "1 of 2 labels"),
    "several labels": ([{"label": [[0], [1]]}], "multi-label"),
    "a label out of range": ([{"label": [0, 10**12]}], "class indices"),
    "an id missing": ([{"id": ["a", None]}], "row 1"),
    "no rows": ([{"image": pa.array([], pa.binary())}], "no images"),
    "no images": ([{"image": ["a", "b"]}], "images as bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_parquet_that_cannot_be_used(case, tmp_path):
    files, message = WRONG[case]
    for part, columns in enumerate(files):
        table(tmp_path / f"x-{part}.parquet", **{"image": [encoded(0), encoded(1)]} | columns)
    with pytest.raises(ValueError, match=rf"x-\d\.parquet.*{message}|{message}.*x-\d\.parquet"):
        open_data(tmp_path)


def test_class_names_of_hugging_face_must_agree_and_suffice(parquet, tmp_path):
    schema = pq.read_schema(parquet / "test-1.parquet")
    for names, message in ((["cat", "owl", "dog"], "class names"), (["cat"], "class names")):
        text = json.dumps({"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}).encode()
        content = pq.read_table(parquet / "test-1.parquet").replace_schema_metadata({b"huggingface": text})
        pq.write_table(content, parquet / "test-1.parquet")
        with pytest.raises(ValueError, match=message):
            open_data(parquet)
    with pytest.raises(ValueError, match=r"1 names.*label 2"):
        open_data(parquet / "test-1.parquet")
    for text in (b"{", b"[]", b'{"info": {"features": {"label": {"names": 3}}}}', b'{"info": null}'):
        content = content.replace_schema_metadata({b"huggingface": text})
        pq.write_table(content, parquet / "test-1.parquet")
        assert open_data(parquet / "test-1.parquet").classes is None
    assert b"huggingface" in schema.metadata


def test_damaged_parquet(tmp_path):
    path = table(tmp_path / "x.parquet", **rows_of())
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PAR1" * 10):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.parquet"):
            open_data(path)
    path.write_bytes(whole[:4] + bytes(2000) + whole[2004:])  # the pages of the images
    samples = open_data(path)
    for row in (0, 1, 5):
        with pytest.raises(ValueError, match="damaged"):
            samples.load(row, 3)


@pytest.mark.filterwarnings("ignore:class order")
def test_the_command_tells_images_from_features(tmp_path, parquet, tars, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef build():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))\n"
    )
    for number, data in enumerate(("rows", "rows/test-0.parquet", "tars", "tars/images-{000..002}.tar")):
        code, out, _ = run(capsys, "score", "net.py:build", data, "-o", f"run{number}")
        assert code == 0
        assert f"{12 if number == 1 else COUNT} samples scored" in out
    features = [[0.0, 1.0, 2.0]] * 2
    both = {"image": [encoded(0), encoded(1)], "label": [0, 1], "embedding": features}
    table(tmp_path / "both.parquet", **both)
    assert run(capsys, "score", "net.py:build", "both.parquet", "-o", "a")[0] == 0
    assert hs.SampleTable.load("a").meta.source.get("table")  # features, as ever
    assert run(capsys, "score", "net.py:build", "both.parquet", "--image-column", "image", "-o", "b")[0] == 0
    assert hs.SampleTable.load("b").meta.source["columns"]["image"] == "image"
    table(tmp_path / "f.parquet", vector=features, label=[0, 1], md5=[b"a", b"b"])
    assert not holds_images("f.parquet", hs.Columns())
    assert run(capsys, "score", "net.py:build", "f.parquet", "-o", "c")[0] == 0
    assert "MODEL" in failure(capsys, "score", "rows/test-0.parquet")
    assert "features" in failure(capsys, "score", "net.py:build", str(table(tmp_path / "t.parquet", text=["a"])))
    (tmp_path / "x.parquet").write_bytes(b"none")
    assert "x.parquet" in failure(capsys, "score", "net.py:build", "x.parquet")
    assert isinstance(open_data("both.parquet"), ParquetSamples)
