"""Cleaned data: folders and arrays hold the right samples under the right labels, and nothing else is touched."""

import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cleaning_cases import accepted, cleaned, files_of, run_on, scored, shades
from forked import exit_code, fork
from PIL import Image
from torch import zeros
from torch.utils.data import TensorDataset
from torchvision.datasets import ImageFolder

import hardsight as hs
from hardsight.cli.pages import cleaning_lines
from hardsight.data import open_data
from hardsight.errors import InputError
from hardsight.labelerrors import clean
from hardsight.runs import DataInfo


def place(samples, name):
    return next(i for i, id_ in enumerate(samples.ids) if id_.endswith(name))


def test_a_cleaned_folder_has_the_right_files_in_the_right_classes(photos, tmp_path):
    samples = open_data(str(photos))
    same, dog = place(samples, "=cat/same.png"), place(samples, "/Same.png")
    dropped, unread = place(samples, "lines.png"), samples.ids[place(samples, "deep.png")]
    table = scored(samples, samples.labels, {same: 1, dropped: 0}, classes=3, bad=[unread], unsure=[dropped],
                   source=samples.source)  # fmt: skip
    before = {(kind, shade): path.read_bytes() for (kind, shade), path in shades(photos).items()}
    summary = cleaned(table, tmp_path / "lists", dataset=tmp_path / "cleaned", count=2)
    done = summary["dataset"]
    assert (done["kept"], done["relabeled"], done["dropped"]) == (len(samples) - 3, 1, 2)
    assert done["missing"] == done["unscored"] == 0
    after = shades(tmp_path / "cleaned")
    expected = {key for key in before if key[1] not in _shades_of(samples, [dropped, place(samples, "deep.png")])}
    expected = {(samples.classes[1], k) if k in _shades_of(samples, [same]) else (name, k) for name, k in expected}
    assert set(after) == expected
    assert after[samples.classes[1], *_shades_of(samples, [dog])].name == "Same.png"  # who stays keeps the name
    assert after[samples.classes[1], *_shades_of(samples, [same])].name == "2-same.png"
    assert shades(photos).keys() == before.keys()
    assert ImageFolder(str(tmp_path / "cleaned"), allow_empty=True).classes == samples.classes
    assert not any(p.is_symlink() for p in (tmp_path / "cleaned").rglob("*"))
    paths = pq.read_table(tmp_path / "lists" / "samples.parquet")["filepath"].to_pylist()
    assert all(Path(path).is_file() for path in paths)


def _shades_of(samples, places):
    return [samples.load(i, None)[0].getpixel((0, 0)) for i in places]


def test_files_are_copies_so_that_nothing_done_to_them_reaches_the_data(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    cleaned(table, tmp_path / "a", data=photos, dataset=tmp_path / "copied")
    for key in shades(photos).keys() & shades(tmp_path / "copied").keys():
        assert not shades(photos)[key].samefile(shades(tmp_path / "copied")[key])
        assert shades(photos)[key].read_bytes() == shades(tmp_path / "copied")[key].read_bytes()


def test_links_in_the_data_become_files(photos, tmp_path):
    outside = tmp_path / "outside.png"
    Image.new("L", (4, 4), 200).save(outside)
    (photos / "=cat" / "link.png").symlink_to(outside)
    (photos / "=cat" / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {}, classes=3)
    done = cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned")["dataset"]
    assert done["missing"] == 1
    assert not (tmp_path / "cleaned" / "=cat" / "link.png").is_symlink()
    assert (tmp_path / "cleaned" / "=cat" / "link.png").read_bytes() == outside.read_bytes()


def test_files_that_went_and_files_that_came_are_counted(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    samples.path(1).unlink()
    Image.new("L", (4, 4), 99).save(photos / "=cat" / "new.png")
    summary = cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned")
    done = summary["dataset"]
    assert (done["missing"], done["unscored"]) == (1, 1)
    assert done["kept"] + done["relabeled"] == len(samples) - 1 == len(shades(tmp_path / "cleaned"))
    words = "\n".join(cleaning_lines(summary))
    assert "1 more are left out because they are no longer in the data" in words
    assert "1 more are left out because the run did not score them" in words


def test_a_class_that_the_data_lack_cannot_be_given(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 4}, classes=5, names=["a", "b", "c", "d", "a fifth"])
    table = with_usual_confidence(table, 4)
    with pytest.raises(InputError, match="'a fifth'"):
        cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned", count=1)
    assert not (tmp_path / "cleaned").exists()
    clean(table, tmp_path / "lists", data=photos, count=1)
    row = pq.read_table(tmp_path / "lists" / "actions.parquet").to_pylist()[0]
    assert (row["action"], row["suggested"], row["suggested_name"]) == ("review", None, "a fifth")


def with_usual_confidence(table, label):
    """One more row that is labelled so: else no prediction of the class is ever sure."""
    first = table.to_arrow().slice(0, 1).to_pylist()[0]
    row = {**first, "id": "more", "label": label, "pred": label, "confidence": 0.5, "margin": 1.0}
    rows = pa.concat_tables([table.to_arrow(), pa.Table.from_pylist([row], table.to_arrow().schema)])
    return hs.SampleTable(rows, table.meta, table.bad)


def test_the_datas_own_numbers_are_kept_when_the_model_has_others(photos, tmp_path):
    samples = open_data(str(photos))
    mapping = [2, 0, 1]  # data class k is the model's class mapping[k]
    labels = np.array(mapping)[samples.labels]
    table = scored(samples, labels, {0: 1}, classes=3, names=["dog", "zebra", "cat"], mapping=mapping)
    cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned", count=1)
    row = pq.read_table(tmp_path / "lists" / "actions.parquet").to_pylist()[0]
    assert (row["label"], row["label_name"], row["suggested"], row["suggested_name"]) == (0, "cat", 2, "zebra")
    shade = _shades_of(samples, [0])[0]
    assert (samples.classes[2], shade) in shades(tmp_path / "cleaned")


def test_nothing_but_an_earlier_result_is_replaced(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    target, lists = tmp_path / "cleaned", tmp_path / "lists"
    for arguments in ({"out": mine}, {"out": lists, "dataset": mine}):
        with pytest.raises(FileExistsError, match="not written by"):
            cleaned(table, data=photos, overwrite=True, **arguments)
    with pytest.raises(FileExistsError, match="not written by"):
        cleaned(table, mine / "thesis.txt", data=photos, overwrite=True)
    assert files_of(mine) == ["thesis.txt"]
    assert not lists.exists()
    cleaned(table, lists, data=photos, dataset=target)
    with pytest.raises(FileExistsError, match="--overwrite"):
        cleaned(table, lists, data=photos, dataset=target)
    cleaned(table, lists, data=photos, dataset=target, overwrite=True)
    (target / "=cat" / "my own.png").write_bytes(b"")
    with pytest.raises(FileExistsError, match="not written by"):
        cleaned(table, lists, data=photos, dataset=target, overwrite=True)
    (tmp_path / "empty").mkdir()
    cleaned(table, tmp_path / "empty", data=photos)
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(FileExistsError, match="is a link"):
        cleaned(table, tmp_path / "link", data=photos, overwrite=True)


def test_the_data_themselves_are_never_written_to(photos, tmp_path):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    before = files_of(photos)
    for wrong in (photos, photos / "=cat", photos / "new", photos / "=cat" / ".." / "new", tmp_path):
        with pytest.raises(ValueError, match="the data themselves"):
            cleaned(table, tmp_path / "lists", data=photos, dataset=wrong, overwrite=True)
    with pytest.raises(ValueError, match="the data themselves"):
        cleaned(table, photos / "lists", data=photos)
    with pytest.raises(ValueError, match="the lists"):
        cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "lists" / "cleaned")
    assert files_of(photos) == before
    assert not (tmp_path / "lists").exists()


def test_an_error_half_way_leaves_nothing(photos, tmp_path, monkeypatch):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    calls = []

    def full(*_):
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(KeyboardInterrupt):
        cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lists", "photos"]


def test_files_that_are_added_while_a_copy_is_built_are_not_removed(photos, tmp_path, monkeypatch):
    samples = open_data(str(photos))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned")
    copy, mine = shutil.copy2, tmp_path / "cleaned" / "mine.txt"

    def copy_slowly(*paths):
        mine.write_text("years of work")
        return copy(*paths)

    monkeypatch.setattr(shutil, "copy2", copy_slowly)
    with pytest.raises(FileExistsError, match="not written by"):
        cleaned(table, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned", overwrite=True)
    assert mine.read_text() == "years of work"


def test_killed_half_way_the_name_is_not_there_and_the_next_start_works(photos, tmp_path):
    samples = open_data(str(photos))
    run = scored(samples, samples.labels, {0: 1}, classes=3).save(tmp_path / "run")
    left = [None] * 4

    def copy(*_):
        if not left:
            os._exit(9)  # as kill -9 does: nothing is tidied up
        left.pop()

    def killed():
        shutil.copy2 = copy
        cleaned(run, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned")

    assert exit_code(fork(killed)) == 9
    assert not (tmp_path / "cleaned").exists()
    assert list(tmp_path.glob(".cleaned.*.tmp"))
    (tmp_path / ".cleaned.mine.tmp").write_text("not theirs")
    cleaned(run, tmp_path / "lists", data=photos, dataset=tmp_path / "cleaned", overwrite=True)
    assert [p.name for p in tmp_path.glob(".*")] == [".cleaned.mine.tmp"]
    assert len(shades(tmp_path / "cleaned")) == len(samples)


def test_a_cleaned_npz_holds_the_right_labels(noisy, archive, tmp_path):
    table = run_on(noisy.table, f"{archive}:test", "test")
    summary = cleaned(table, tmp_path / "lists", dataset=tmp_path / "cleaned.npz")
    done = summary["dataset"]
    decisions = accepted(table)
    new = dict(zip(decisions["id"], zip(decisions["action"], decisions["new_label"], strict=True), strict=True))
    expected = dict(zip(table["id"].tolist(), table["label"].tolist(), strict=True))
    expected |= {id_: int(label) for id_, (action, label) in new.items() if action == "relabel"}
    expected = {id_: label for id_, label in expected.items() if new.get(id_, ("keep",))[0] != "drop"}
    with np.load(tmp_path / "cleaned.npz") as copy, np.load(archive) as old:
        assert set(copy.files) == {*old.files, "test_ids", "hardsight_cleaned"}
        ids, labels = copy["test_ids"], copy["test_labels"]
        assert labels.dtype == np.uint8
        assert labels.shape == (len(ids), 1)
        assert dict(zip(ids.tolist(), labels[:, 0].tolist(), strict=True)) == expected
        at = [int(id_.split(":")[1]) for id_ in ids]
        assert at == sorted(at)  # in the order of the data
        np.testing.assert_array_equal(copy["test_images"], noisy.pictures[at])
        np.testing.assert_array_equal(copy["test_source"], [f"scan {i}" for i in at])
        for key in ("train_images", "train_labels", "classes", "about"):
            np.testing.assert_array_equal(copy[key], old[key])
        assert json.loads(str(copy["hardsight_cleaned"]))["kept"] == done["kept"]
        right = labels[:, 0] == noisy.true[at]
    assert right.mean() > 0.99 > (noisy.given == noisy.true).mean()
    assert (done["kept"] + done["relabeled"], done["dropped"]) == (len(expected), len(noisy.given) - len(expected))
    assert len(open_data(f"{tmp_path / 'cleaned.npz'}:test")) == len(expected)


def test_an_npz_is_replaced_only_if_it_is_ours_and_never_the_source(noisy, archive, tmp_path):
    table = run_on(noisy.table, f"{archive}:test", "test")
    before = archive.read_bytes()
    with pytest.raises(ValueError, match="the data themselves"):
        cleaned(table, tmp_path / "lists", dataset=archive, overwrite=True)
    np.savez(tmp_path / "mine.npz", a=np.zeros(3))
    with pytest.raises(FileExistsError, match="not written by"):
        cleaned(table, tmp_path / "lists", dataset=tmp_path / "mine.npz", overwrite=True)
    with pytest.raises(ValueError, match=r"dataset .*\.npz file"):
        cleaned(table, tmp_path / "lists", dataset=tmp_path / "folder")
    assert not (tmp_path / "lists").exists()
    cleaned(table, tmp_path / "lists", dataset=tmp_path / "cleaned.npz")
    cleaned(table, tmp_path / "lists", dataset=tmp_path / "cleaned.npz", overwrite=True)
    again = hs.SampleTable(table.to_arrow(), replace(table.meta, source={"data": f"{tmp_path / 'cleaned.npz'}:test"}))
    with pytest.raises(ValueError, match="the data themselves"):
        cleaned(again, tmp_path / "more", dataset=tmp_path / "cleaned.npz", overwrite=True)
    assert archive.read_bytes() == before


def test_cleaned_again_ids_stay_those_of_the_first_time(noisy, archive, tmp_path):
    cleaned(run_on(noisy.table, f"{archive}:test", "test"), tmp_path / "a", dataset=tmp_path / "once.npz")
    once = open_data(f"{tmp_path / 'once.npz'}:test")
    table = scored(once, once.labels, {0: (once.labels[0] + 1) % 10}, classes=10, source=once.source)
    cleaned(table, tmp_path / "b", dataset=tmp_path / "twice.npz", count=1)
    with np.load(tmp_path / "once.npz") as first, np.load(tmp_path / "twice.npz") as second:
        np.testing.assert_array_equal(second["test_ids"], first["test_ids"])
        assert second["test_labels"][0, 0] == (first["test_labels"][0, 0] + 1) % 10


def test_arrays_without_a_file_become_an_npz(noisy, tmp_path):
    table = hs.SampleTable(noisy.table.to_arrow(), replace(noisy.table.meta, source={"data": "digits"}))
    done = cleaned(table, tmp_path / "lists", dataset=tmp_path / "new" / "cleaned.npz")["dataset"]
    again = open_data(str(tmp_path / "new" / "cleaned.npz"))
    assert len(again) == done["kept"] + done["relabeled"]
    assert again.classes == list("0123456789")


def test_one_split_alone_and_labels_that_outgrow_their_type(tmp_path):
    images = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
    labels = np.array([0, 127, 200, 0, 127], dtype=np.int16)
    np.savez(tmp_path / "a.npz", images=images, labels=labels, weight=np.ones(5), other=np.ones(3))
    samples = open_data(str(tmp_path / "a.npz"))
    table = scored(samples, labels, {0: 200}, classes=201, source=samples.source)
    decisions = {"id": ["data:0", "data:3"], "action": ["relabel", "drop"], "new_label": ["200", None]}
    done = clean(table, tmp_path / "lists", dataset=tmp_path / "b.npz", decisions=decisions)["dataset"]
    with np.load(tmp_path / "b.npz") as copy:
        assert set(copy.files) == {"images", "labels", "weight", "other", "ids", "hardsight_cleaned"}
        assert copy["labels"].tolist() == [200, 127, 200, 127]
        assert (len(copy["weight"]), len(copy["other"])) == (4, 3)
        assert copy["ids"].tolist() == ["data:0", "data:1", "data:2", "data:4"]
    assert (done["relabeled"], done["dropped"]) == (1, 1)


def test_other_labels_are_cleaned_under_their_own_name(tmp_path):
    arrays = {
        "test_images": np.zeros((6, 2, 2), np.uint8),
        "test_labels": np.arange(6),
        "test_coarse": np.arange(6) % 2,
    }
    np.savez(tmp_path / "a.npz", **arrays)
    samples = open_data(str(tmp_path / "a.npz"), columns=hs.Columns(label="coarse"))
    table = scored(samples, samples.labels, {0: 1}, classes=2, source=samples.source)
    cleaned(table, tmp_path / "lists", dataset=tmp_path / "b.npz", count=1)
    with np.load(tmp_path / "b.npz") as copy:
        assert copy["test_coarse"].tolist() == [1, 1, 0, 1, 0, 1]
        assert copy["test_labels"].tolist() == list(range(6))
        assert copy["test_ids"].tolist() == samples.ids


def test_pickles_in_an_npz_pass_through_unread_or_are_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    images, labels = np.zeros((3, 2, 2), np.uint8), np.array([0, 1, 1])
    trap = np.array([Trap()] * 3, dtype=object)
    for key, words in (("train_extra", None), ("test_extra", "never loaded")):
        np.savez(tmp_path / "a.npz", test_images=images, test_labels=labels, **{key: trap})
        samples = open_data(f"{tmp_path / 'a.npz'}:test")
        table = scored(samples, labels, {0: 1}, classes=2, source=samples.source)
        target = tmp_path / f"{key}.npz"
        if words is None:
            cleaned(table, tmp_path / "l1", dataset=target)
            assert "train_extra.npy" in zipfile.ZipFile(target).namelist()
        else:
            with pytest.raises(ValueError, match=words):
                cleaned(table, tmp_path / "l2", dataset=target)
            assert not target.exists()
    assert not (tmp_path / "sprung").exists()


def test_data_that_cannot_be_written_are_named(noisy, tmp_path):
    data = TensorDataset(zeros(2, 3), zeros(2).long())
    table = hs.SampleTable.from_columns({"id": ["data:0"], "label": [0], "pred": [1], "avh": [0.1]})
    with pytest.raises(ValueError, match=r"TensorDataset, 2 .*lists"):
        clean(table, tmp_path / "lists", by="avh", count=1, data=data, dataset=tmp_path / "x.npz", decisions={"id": []})


def test_data_that_changed_since_they_were_scored_are_not_cleaned(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 6, 6), dtype=np.uint8)
    labels = np.arange(60) % 3
    np.savez(tmp_path / "d.npz", test_images=images, test_labels=labels)
    samples = open_data(str(tmp_path / "d.npz"))
    table = scored(samples, samples.labels, {0: 1}, classes=3)
    table.meta.data = DataInfo(fingerprint=samples.fingerprint(), split="test")
    table.meta.source = samples.source
    assert cleaned(table, tmp_path / "a", dataset=tmp_path / "a.npz")["dataset"]["relabeled"] == 1
    np.savez(tmp_path / "d.npz", test_images=images[::-1], test_labels=labels[::-1])
    with pytest.raises(ValueError, match="changed since"):
        cleaned(table, tmp_path / "b", dataset=tmp_path / "b.npz")
    assert any("has changed since" in note for note in cleaned(table, tmp_path / "c")["notes"])


def test_two_ways_of_naming_arrays_are_not_mixed(tmp_path):
    images = np.zeros((20, 4, 4), np.uint8)
    both = {"test_images": images[:5], "test_labels": np.zeros(5, int), "x_test": images, "y_test": np.arange(20) % 2}
    np.savez(tmp_path / "d.npz", **both)
    samples = open_data(str(tmp_path / "d.npz"))
    table = scored(samples, samples.labels, {0: 1}, classes=2)
    cleaned(table, tmp_path / "a", data=tmp_path / "d.npz", dataset=tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as copy:
        assert copy[samples.label_key][0] == 1
        other = "test_labels" if samples.label_key == "y_test" else "y_test"
        np.testing.assert_array_equal(copy[other], both[other])


def test_a_cleaned_copy_keeps_the_ids_so_that_runs_can_be_compared(tmp_path):
    np.savez(tmp_path / "d.npz", test_images=np.zeros((9, 4, 4), np.uint8), test_labels=np.arange(9) % 3)
    samples = open_data(str(tmp_path / "d.npz"))
    table = scored(samples, samples.labels, {0: 1, 4: 2}, classes=3)
    cleaned(table, tmp_path / "lists", data=tmp_path / "d.npz", dataset=tmp_path / "c.npz", count=2)
    copy = open_data(str(tmp_path / "c.npz:test"))
    assert set(copy.ids) <= set(samples.ids)
    assert copy.find([copy.ids[2], "nowhere"]) == [2, None]
    assert copy.fingerprint() != samples.fingerprint()
