"""A run folder from somebody else is data, not a program: nothing it names is fetched, executed or quoted."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from command_line import run as command
from naive import triple
from PIL import Image

import hardsight as hs
import hardsight.data.open
from hardsight.data import data_of, open_data
from hardsight.errors import HardsightError, InputError
from hardsight.evaluation import evaluate
from hardsight.evaluation.subjects import network_of
from hardsight.runs import Meta

SECRET = "password-of-the-bank"


@pytest.fixture
def scored(tmp_path):
    """A run of twelve samples; what it names as its data is for the test to say."""
    features, weight, labels, bias = triple(12, 4, 3)
    hs.score_features(features, weight, labels, bias).save(tmp_path / "run")

    def named(source):
        file = tmp_path / "run" / "meta.json"
        meta = json.loads(file.read_text())
        meta["source"] = None if source is None else {"data": str(source), "root": str(tmp_path / "root")}
        file.write_text(json.dumps(meta))
        return tmp_path / "run"

    return named


def hostile_sources(tmp_path):
    (tmp_path / "diary.txt").write_text(f"{SECRET} 1\nother.png 2\n")
    return [
        tmp_path / "diary.txt",
        "torchvision:LSUN:test",
        "torchvision:FakeData",
        "hf:somebody/data:test",
        "data.npz",
    ]


@pytest.mark.parametrize("place", range(5))
def test_only_folders_and_arrays_are_reopened(scored, tmp_path, capsys, monkeypatch, place):
    def opened(*_):
        raise AssertionError("a library was asked for data that only a run names")

    monkeypatch.setattr(hardsight.data.open, "_torchvision", opened)
    monkeypatch.setattr(hardsight.data.open, "_hugging_face", opened)
    monkeypatch.setattr(hardsight.data.open, "open_list", opened)
    monkeypatch.chdir(tmp_path)
    run = scored(hostile_sources(tmp_path)[place])
    for args in (("report", run), ("clean", run), ("evaluate", run, "--model", "hardsight:small-cnn")):
        code, out, err = command(capsys, *args)
        assert code == (2 if args[0] == "evaluate" else 0), err
        assert SECRET not in out + err
    assert SECRET not in (run / "report.html").read_text()
    assert not (tmp_path / "root").exists()
    with pytest.raises(InputError, match="--data"):
        data_of(hs.SampleTable.load(run).meta)


def test_what_the_user_names_is_opened(scored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "list.txt").write_text("a.png 0\n")
    meta = hs.SampleTable.load(scored(tmp_path / "list.txt")).meta
    assert len(data_of(meta, tmp_path / "list.txt")) == 1
    assert len(data_of(meta, "torchvision:FakeData")) == 1000


def test_a_root_that_a_run_names_is_not_written_to(scored, tmp_path, monkeypatch):
    roots = []
    monkeypatch.setattr(hardsight.data.open, "_torchvision", lambda name, split, root: roots.append(root))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError):  # the stand-in opens nothing
        data_of(hs.SampleTable.load(scored("torchvision:MNIST")).meta, "torchvision:MNIST")
    assert roots == [Path("data")]


def test_a_folder_is_walked_within_limits(scored, tmp_path, monkeypatch):
    monkeypatch.setattr(hardsight.data.open, "RECORDED_FILES", 50)
    for root in ("/", "/proc", "/usr"):
        with pytest.raises(InputError, match="more than 50"):
            data_of(hs.SampleTable.load(scored(root)).meta)
    for i in range(48):
        (tmp_path / "photos" / f"class{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / "photos" / f"class{i % 2}" / f"{i}.png")
    meta = hs.SampleTable.load(scored(tmp_path / "photos")).meta
    assert len(data_of(meta)) == 48
    monkeypatch.setattr(hardsight.data.open, "RECORDED_FILES", 49)
    with pytest.raises(InputError, match="more than 49"):
        data_of(meta)
    assert len(open_data(tmp_path / "photos")) == 48  # what a user names has no limit


def test_arrays_are_read_within_limits(scored, tmp_path, monkeypatch):
    np.savez(tmp_path / "d.npz", images=np.zeros((12, 8, 8), np.uint8), labels=np.zeros(12, int))
    meta = hs.SampleTable.load(scored(tmp_path / "d.npz")).meta
    assert len(data_of(meta)) == 12
    monkeypatch.setattr(hardsight.data.open, "RECORDED_BYTES", 12 * 64)  # the array itself, and no room for its header
    with pytest.raises(InputError, match="images"):
        data_of(meta)


@pytest.mark.parametrize("name", ["hf:somebody/model", "net.py:build", "/etc/passwd", "module:thing"])
def test_no_network_of_anybody_is_fetched(tmp_path, name):
    meta = Meta(built={"model": name, "checkpoint": None})
    with pytest.raises(InputError, match="--model"):
        network_of(tmp_path, meta)


def test_several_runs_are_compared_on_data_that_the_user_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("".join(f"{i}.png {i % 2}\n" for i in range(8)))
    for i in range(8):
        Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(tmp_path / f"{i}.png")
    runs = [tmp_path / f"run{seed}" for seed in range(2)]
    for seed, out in enumerate(runs):
        recipe = hs.Recipe(epochs=1, batch_size=4, seed=seed)
        hs.train("small-cnn", "list.txt", recipe=recipe, out=out, device="cpu")
    options = {"questions": ["calibration"], "out": tmp_path / "out", "device": "cpu", "progress": False}
    with pytest.raises(HardsightError, match="--data"):
        evaluate(runs, **options)
    assert evaluate(runs, data="list.txt", **options).rows.num_rows > 0


# Links and special files inside a run.


@pytest.mark.parametrize("name", ["meta.json", "plan.json", "parts/marker"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_in_a_run_are_not_waited_for(scored, name, kind):
    run = scored(None)
    file = next((run / "parts").glob("*.json")) if name == "parts/marker" else run / name
    file.unlink()
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    if name == "plan.json":  # what a finished run no longer needs
        assert len(hs.SampleTable.load(run)) == 12
    else:
        with pytest.raises(HardsightError):
            hs.SampleTable.load(run)


# What other commands wrote into a folder.


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/passwd", "link.png", "pipe.png", "gone.png"])
def test_maps_name_only_images_of_their_folder(tmp_path, name):
    from hardsight.evaluation.maps import read_maps

    maps = tmp_path / "out" / "maps"
    maps.mkdir(parents=True)
    (tmp_path / "secret.png").write_text(SECRET)
    (maps / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(maps / "pipe.png")
    Image.new("RGB", (4, 4)).save(maps / "good.png")

    def index(file):
        shown = {"file": file, "id": "a", "label": "cat", "classes": {"one": "cat"}, "confidence": {"one": 0.5}}
        (maps / "index.json").write_text(json.dumps({"runs": ["one"], "pictures": [shown]}))
        return read_maps(tmp_path / "out")

    assert index("good.png")["runs"] == ["one"]
    with pytest.raises(HardsightError, match="OUT"):
        index(name)


def test_a_damaged_alignment_is_a_sentence(scored):
    run = scored(None)
    table = hs.SampleTable.load(run)
    from hardsight.people import align_run, read_alignment, write_alignment

    people = {id_: float(i % 4) / 4 for i, id_ in enumerate(table["id"])}
    folder = write_alignment(run, align_run(run, people))
    assert read_alignment(run) is not None
    whole = json.loads((folder / "summary.json").read_text())
    changes = ({"ceilings": 3}, {"source": None}, {"hypotheses": [{"name": 1}]}, {"other": "x"})
    for change in changes:
        (folder / "summary.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(HardsightError, match="summary"):
            read_alignment(run)
    (folder / "summary.json").write_text(json.dumps(whole))
    (folder / "rows.parquet").write_bytes((folder / "people.parquet").read_bytes())
    with pytest.raises(HardsightError, match="rows"):
        read_alignment(run)
