"""Tar shards and Parquet with image bytes: the same samples as a folder, read in place, whatever the files hold."""

import io
import json
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from shard_files import (
    CLASSES,
    COUNT,
    Indexed,
    encoded,
    network,
    pixels,
    rows_of,
    sample,
    write_folder,
    write_parquet,
    write_tar,
    write_tars,
)
from torch.utils.data import DataLoader

import hardsight as hs
from hardsight.data import data_of, open_data
from hardsight.data.shards import shard_files
from hardsight.data.tars import TarSamples
from hardsight.errors import InputError
from hardsight.runs import Meta


@pytest.fixture
def tiny():
    return network()


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path)


@pytest.fixture
def tars(tmp_path):
    return write_tars(tmp_path)


@pytest.fixture
def parquet(tmp_path):
    return write_parquet(tmp_path)


def scores(table):
    """Scores and labels by the number of the image."""
    content = table.to_arrow().drop_columns(["id"]).to_pylist()
    numbers = [int(id_.removesuffix(".png").split("/")[-1]) for id_ in table["id"]]
    return dict(sorted(zip(numbers, content, strict=True)))


@pytest.mark.parametrize("workers", [0, 2])
def test_folder_tars_and_parquet_have_the_same_scores(workers, folder, tars, parquet, tmp_path, tiny):
    options = {"preprocess": "raw", "workers": workers, "batch_size": 5}
    expected = scores(hs.score(tiny, folder, **options))
    assert len(expected) == COUNT
    shards = open_data(tars)
    shards.load(0, 3)  # has a file open before workers are forked
    assert scores(hs.score(tiny, shards, **options)) == expected
    assert scores(hs.score(tiny, tars / "images-{000..002}.tar", **options)) == expected
    by_row = hs.score(tiny, parquet, **options)
    assert by_row["id"].tolist() == [f"test-{part}:{row}" for part in range(2) for row in range(12)]
    assert dict(enumerate(by_row.to_arrow().drop_columns(["id"]).to_pylist())) == expected
    pq.write_table(pa.table(rows_of()), tmp_path / "plain.parquet", row_group_size=7)
    assert hs.score(tiny, tmp_path / "plain.parquet", **options).to_arrow().drop_columns(["id"]).to_pylist() == list(
        expected.values()
    )


def test_ids_labels_and_class_names(tars, parquet):
    samples = open_data(tars)
    assert samples.ids[:9] == [*(f"images-000/{i:02}" for i in range(8)), "images-001/08"]
    assert samples.labels.tolist() == [i // 8 for i in range(COUNT)]
    assert samples.classes is None
    assert samples.path(0) is None
    assert samples.source["data"] == str(tars)
    samples = open_data(parquet)
    assert samples.labels.tolist() == [i // 8 for i in range(COUNT)]
    assert samples.classes == CLASSES
    assert samples.path(0) is None


def test_ids_of_bytes_are_the_text_that_they_hold(tmp_path):
    """Some writers of Parquet do not say that a column holds text; people's answers name the samples by their text."""
    ids = ["é-1", "b"]
    pq.write_table(
        pa.table({"image": rows_of(2)["image"], "id": [id_.encode() for id_ in ids]}), tmp_path / "a.parquet"
    )
    assert open_data(tmp_path / "a.parquet").ids == ids
    pq.write_table(pa.table({"image": rows_of(2)["image"], "id": [b"\xff", b"b"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="UTF-8"):
        open_data(tmp_path / "b.parquet")


def test_labels_of_json_are_indices_or_names_of_all_shards(tmp_path):
    for shard, names in enumerate((["owl", "cat"], ["cat", "ape"])):  # other classes in each shard
        content = [
            sample(f"k{i}", json=json.dumps({"caption": "x", "label": name}).encode()) for i, name in enumerate(names)
        ]
        write_tar(tmp_path / f"s-{shard}.tar", content[0] | content[1])
    samples = open_data(tmp_path / "s-{0..1}.tar")
    assert samples.classes == ["ape", "cat", "owl"]
    assert samples.labels.tolist() == [2, 1, 1, 0]
    fields = json.dumps({"target": 5, "coarse": 1}).encode()
    path = write_tar(tmp_path / "x.tar", sample("a", label=7, json=fields))
    assert open_data(path).labels.tolist() == [7]  # the .cls wins unless a field is named
    assert open_data(path, columns=hs.Columns(label="coarse")).labels.tolist() == [1]
    with pytest.raises(ValueError, match=r"x\.tar.*'fine'"):
        open_data(path, columns=hs.Columns(label="fine"))
    with pytest.raises(ValueError, match="--id-column"):
        open_data(path, columns=hs.Columns(id="key"))
    path = write_tar(tmp_path / "x.tar", sample("a", json=b'{"caption": "x"}') | sample("b"))
    assert open_data(path).labels is None


def test_open_files_are_of_one_thread_and_process_and_few(tmp_path, monkeypatch):
    for shard in range(100):
        write_tar(tmp_path / f"many/{shard:02}.tar", sample("a", shard) | sample("b", 100 + shard))
    samples = open_data(tmp_path / "many")
    expected = [np.asarray(Image.open(io.BytesIO(encoded(seed)))) for seed in range(200)]
    order = np.random.default_rng(0).permutation(200).tolist()

    def right(row):
        return np.array_equal(pixels(samples, row), expected[row // 2 + row % 2 * 100])

    before = len([*Path("/proc/self/fd").iterdir()])
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, order * 3))
    assert all(map(right, order))
    assert len([*Path("/proc/self/fd").iterdir()]) - before <= 5 * 64
    file = samples._opened(0, lambda path: object())
    assert samples._opened(0, lambda path: object()) is file
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)  # as in a fork, which shares the position of what is open
        assert samples._opened(0, lambda path: object()) is not file
    copied = pickle.loads(pickle.dumps(samples))
    assert copied.ids == samples.ids
    assert np.array_equal(pixels(copied, 3), pixels(samples, 3))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_either_kind_read_what_was_open_already(start, tars, parquet):
    for data in (tars, parquet):
        samples = open_data(data)
        samples.load(5, 3)
        loader = DataLoader(Indexed(samples), 4, num_workers=2, multiprocessing_context=start)
        assert torch.equal(torch.cat(list(loader)), torch.stack([Indexed(samples)[i] for i in range(COUNT)]))


def test_identity_follows_the_files_and_labels(tars, tmp_path):
    first = open_data(tars)
    assert (
        open_data(tars).fingerprint() == first.fingerprint() == open_data(tars / "images-{000..002}.tar").fingerprint()
    )
    assert open_data(tars / "images-{000..001}.tar").fingerprint() != first.fingerprint()
    moved = tars.rename(tmp_path / "moved")
    assert open_data(moved).fingerprint() == first.fingerprint()
    shard = moved / "images-001.tar"
    write_tar(shard, sample("08", 8, 1))
    changed = open_data(moved)
    assert changed.fingerprint() != first.fingerprint()
    assert len(changed) == 17
    os.utime(shard, ns=(1, 1))
    assert open_data(moved).fingerprint() != changed.fingerprint()


@pytest.mark.parametrize("kind", ["tar", "parquet"])
def test_a_shard_that_changes_is_read_anew_or_refused(kind, tmp_path):
    def write(*seeds):
        if kind == "tar":
            return write_tar(tmp_path / "x.tar", {f"{seed:03}.png": encoded(seed) for seed in seeds})
        pq.write_table(pa.table({"image": [encoded(seed) for seed in seeds]}), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    samples = open_data(write(1, 2))
    os.utime(write(3, 4, 5), ns=(1, 1))
    with pytest.raises(ValueError, match="changed"):
        samples.load(0, 3)
    again = open_data(samples)
    assert len(again) == 3
    assert np.array_equal(pixels(again, 2), Image.open(io.BytesIO(encoded(5))))
    assert again.fingerprint() != samples.fingerprint()


@pytest.mark.parametrize("kind", ["tars", "parquet"])
def test_a_run_over_shards_is_resumed_and_shows_its_images(kind, request, tmp_path, tiny, monkeypatch):
    data = request.getfixturevalue(kind)
    monkeypatch.chdir(data.parent)
    pattern = f"{kind}/images-{{000..002}}.tar" if kind == "tars" else "rows/test-{0..1}.parquet"
    first = hs.score(tiny, pattern, preprocess="raw", out=tmp_path / "run")
    assert not first.meta.already_complete
    again = hs.score(tiny, pattern, preprocess="raw", out=tmp_path / "run")
    assert again.meta.already_complete
    assert again["id"].tolist() == first["id"].tolist()
    monkeypatch.chdir(tmp_path)
    meta = hs.SampleTable.load(tmp_path / "run").meta
    samples = data_of(meta, None if kind == "tars" else data)
    assert samples.find(first["id"].tolist()) == list(range(COUNT))
    page = hs.write_report(tmp_path / "run", tmp_path / "page.html", data=None if kind == "tars" else data)
    assert "data:image/webp" in (tmp_path / "page.html").read_text("utf-8"), page
    if kind == "parquet":
        with pytest.raises(ValueError, match="--data"):
            data_of(meta)
    next(iter(sorted(data.glob("*[0-9].*")))).touch()
    with pytest.raises(hs.HardsightError, match=r"data\.fingerprint"):
        hs.score(tiny, pattern, preprocess="raw", out=tmp_path / "run")


def test_what_a_run_names_has_limits(tars, parquet, monkeypatch, tmp_path):
    assert len(data_of(Meta(source={"data": str(tars)}))) == COUNT
    for name, message in (
        (str(parquet), "--data"),
        (f"{parquet}/test-0.parquet", "--data"),
        ("tars/images-000.tar", "--data"),
        (f"{tars}/images-{{000..999999999}}.tar", "pattern"),
        (f"{tars}/images-{{000..004}}.tar", "images-003.tar"),
        (f"{tars}/images-999.tar", "images-999.tar"),
    ):
        with pytest.raises(hs.HardsightError, match=message):
            data_of(Meta(source={"data": name}))
    monkeypatch.setattr("hardsight.data.open.RECORDED_FILES", 20)
    with pytest.raises(ValueError, match="members"):
        data_of(Meta(source={"data": str(tars)}))
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(ValueError, match="pipe"):
        data_of(Meta(source={"data": str(tmp_path / "pipe.tar")}))


def test_which_files_a_folder_or_a_pattern_means(tmp_path, folder):
    assert shard_files(folder) == []
    write_tar(folder / "extra.tar", sample("a"))
    assert len(open_data(folder)) == COUNT  # a folder of images stays one
    place = tmp_path / "mixed"
    for name in ("b.tar", "a.tar", "a.parquet", ".hidden.tar", "a_stats.json"):
        write_tar(place / name, sample("k"))
    assert shard_files(place) == [place / "a.tar", place / "b.tar"]
    assert shard_files(tmp_path / "x-{8..11}.tar") == [tmp_path / f"x-{i}.tar" for i in range(8, 12)]
    assert [p.name for p in shard_files(tmp_path / "{0..1}-{00..01}.tar")] == [
        "0-00.tar",
        "0-01.tar",
        "1-00.tar",
        "1-01.tar",
    ]
    literal = write_tar(tmp_path / "x-{0..1}.tar", sample("k"))
    assert shard_files(literal) == [literal]
    for name in ("c.tar.gz", "c.tgz"):
        (place / name).write_bytes(b"")
        for data in (place, place / name):
            with pytest.raises(ValueError, match=rf"{name}.*plain \.tar"):
                open_data(data)
        (place / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"y-1\.tar"):
        open_data(tmp_path / "y-{1..3}.tar")
    with pytest.raises(ValueError, match="pattern"):
        open_data(tmp_path / "y-{3..1}.tar")
    with pytest.raises(ValueError, match="splits"):
        open_data(f"{place}/a.tar:train")
    write_tar(place / "empty.tar", {})  # beside shards with samples it changes nothing
    assert len(open_data(place)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(open_data(place), TarSamples)
