"""Feature files that are not cleaned, and files that are not replaced: one sentence each, and nothing is written."""

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cleaning_cases import scored
from feature_cases import CLASSES, EXPECTED, FEATURES, FORMATS, LABELS, NAMES, SMALL, SUFFIXES, N, read, run_of, write

import hardsight as hs
from hardsight.data import FeatureSamples
from hardsight.errors import InputError
from hardsight.labelerrors import clean


@SUFFIXES
def test_nothing_but_an_earlier_copy_is_replaced_and_never_the_data(suffix, tmp_path):
    file, target, mine = (tmp_path / f"{name}{suffix}" for name in ("f", "c", "mine"))
    table, decisions = run_of(write(file))
    lists = {"out": tmp_path / "lists", "decisions": decisions}
    write(mine)
    (tmp_path / f"empty{suffix}").mkdir()
    (tmp_path / f"link{suffix}").symlink_to(mine)
    (tmp_path / f"text{suffix}").write_text("hardsight_cleaned")
    before = {path: path.read_bytes() for path in (file, mine)}
    for name in ("mine", "empty", "link", "text"):
        with pytest.raises(FileExistsError, match=name):
            clean(table, **lists, dataset=tmp_path / f"{name}{suffix}", overwrite=True)
    os.link(file, tmp_path / f"hard{suffix}")
    for same in (file, tmp_path / "new" / ".." / file.name):
        with pytest.raises(InputError, match="the data themselves"):
            clean(table, **lists, dataset=same, overwrite=True)
    with pytest.raises(FileExistsError, match="not written by"):
        clean(table, **lists, dataset=tmp_path / f"hard{suffix}", overwrite=True)
    assert not (tmp_path / "lists").exists()
    clean(table, **lists, dataset=target)
    with pytest.raises(FileExistsError, match="--overwrite"):
        clean(table, **lists | {"out": tmp_path / "more"}, dataset=target)
    clean(table, **lists, dataset=target, overwrite=True)
    # A copy is data like any other: it can be cleaned, but not onto itself.
    again, once = FeatureSamples(target), {"id": ["c:0"], "action": ["drop"]}
    run = scored(again, again.labels, {1: 0}, classes=CLASSES, source={"table": str(target)})
    with pytest.raises(InputError, match="the data themselves"):
        clean(run, tmp_path / "again", decisions=once, dataset=target, overwrite=True)
    clean(run, tmp_path / "again", decisions=once, dataset=tmp_path / f"d{suffix}")
    assert read(tmp_path / f"d{suffix}")["label"].tolist() == EXPECTED[1:]
    assert {path: path.read_bytes() for path in before} == before
    assert not list(tmp_path.glob(".*"))


@SUFFIXES
def test_another_suffix_is_refused(suffix, tmp_path):
    table, decisions = run_of(write(tmp_path / f"f{suffix}"))
    for other in {*FORMATS, ".csv", ""} - {suffix}:
        with pytest.raises(InputError, match=rf"dataset .*\{suffix}"):
            clean(table, tmp_path / "lists", decisions=decisions, dataset=tmp_path / f"c{other}")
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"f{suffix}"]


@SUFFIXES
def test_files_that_are_not_the_runs_are_refused(suffix, tmp_path):
    file, target = tmp_path / f"f{suffix}", tmp_path / f"c{suffix}"
    table, decisions = run_of(write(file))

    def refused(match, **more):
        with pytest.raises(InputError, match=match):
            clean(table, tmp_path / "lists", decisions=decisions, dataset=target, **more)
        assert not target.exists()
        assert not (tmp_path / "lists").exists()

    other = LABELS.astype(np.int8)
    other[[7, 20]] = other[[20, 7]]
    write(file, other)
    refused("2 labels of f.* score")
    refused("2 labels of f.* score", data=file)
    shorter = {"features": FEATURES[1:], "label": LABELS[1:].astype(np.int8)}
    write(file, shorter.pop("label"), **shorter)
    refused(f"{N - 1} rows.* {N}")
    refused(f"{N - 1} rows.* {N}", data=file)
    file.unlink()
    refused("there is no")
    moved = write(tmp_path / f"moved{suffix}")  # ids of a file without any are those of its old name
    clean(table, tmp_path / "lists", decisions=decisions, dataset=target, data=moved)
    assert read(target)["label"].tolist() == EXPECTED


def test_a_class_without_a_name_in_the_file_cannot_be_given(tmp_path):
    texts = [NAMES[k % 2] for k in LABELS]
    file, target = write(tmp_path / "f.parquet", texts), tmp_path / "c.parquet"
    names = [*sorted(NAMES[:2]), "a third"]
    labels = np.array([names.index(text) for text in texts])
    run, _ = run_of(file, names=names, labels=labels)
    decisions = {"id": ["f:1"], "action": ["relabel"], "new_label": ["a third"]}
    with pytest.raises(InputError, match="no class 'a third'"):
        clean(run, tmp_path / "lists", decisions=decisions, dataset=target)
    numbered = write(tmp_path / "f.npz", classes=np.array(["a", "b", "c"]))
    run, _ = run_of(numbered, names=["a", "b", "c", "d"], classes=4)
    with pytest.raises(InputError, match="no class 'd'"):
        clean(run, tmp_path / "lists", dataset=tmp_path / "c.npz", decisions={**decisions, "new_label": ["d"]})
    assert not list(tmp_path.glob("c.*"))


def test_a_table_in_memory_has_no_file(tmp_path):
    table = hs.score_features(FEATURES, labels=LABELS, folds=3)
    options = {"decisions": {"id": ["data:0"], "action": ["drop"]}, "count": 0}
    with pytest.raises(InputError, match="--data"):
        hs.clean(table, tmp_path / "lists", dataset=tmp_path / "c.npz", **options)
    file = write(tmp_path / "data.npz")  # whose ids are data:0 … then
    done = hs.clean(table, tmp_path / "lists", data=file, dataset=tmp_path / "c.npz", **options)["dataset"]
    assert (done["kept"], done["dropped"]) == (N - 1, 1)
    np.testing.assert_array_equal(read(tmp_path / "c.npz")["features"], FEATURES[1:])


def test_what_a_run_names_is_opened_only_if_it_is_plain(tmp_path, monkeypatch):
    file, target = write(tmp_path / "f.npz"), tmp_path / "c.npz"
    table, decisions = run_of(file)
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "f.pkl").write_bytes(file.read_bytes())
    for named in ("f.npz", str(tmp_path / "f.pkl"), str(tmp_path / "pipe.parquet"), str(tmp_path), "\x00", "hf:x"):
        other = hs.SampleTable(table.to_arrow(), replace(table.meta, source={"table": named}))
        with pytest.raises(InputError, match=r"--data"):
            clean(other, tmp_path / "lists", decisions=decisions, dataset=target)
    # A few bytes that unpack to more than a run may have opened.
    monkeypatch.setattr("hardsight.data.featurefiles.RECORDED_BYTES", 10 * FEATURES.nbytes)
    np.savez_compressed(file, features=FEATURES, label=SMALL, more=np.zeros((N, 2000)))
    with pytest.raises(InputError, match="bytes"):
        clean(table, tmp_path / "lists", decisions=decisions, dataset=target)
    assert not target.exists()
    clean(table, tmp_path / "more", decisions=decisions, dataset=target, data=file)  # a user may name any size


def test_python_objects_in_an_npz_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    file = write(tmp_path / "f.npz")
    table, decisions = run_of(file)
    write(file, trap=np.array([Trap()] * N, dtype=object))
    with pytest.raises(InputError, match="never loaded"):
        clean(table, tmp_path / "lists", decisions=decisions, dataset=tmp_path / "c.npz")
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "c.npz").exists()


def test_damage_after_the_labels_is_one_sentence_and_leaves_nothing(tmp_path):
    file = tmp_path / "f.parquet"
    columns = {"label": LABELS.astype(np.int8), "features": list(FEATURES)}
    pq.write_table(pa.table(columns), file, use_dictionary=False, compression="snappy")
    table, decisions = run_of(file)
    content, column = bytearray(file.read_bytes()), pq.ParquetFile(file).metadata.row_group(0).column(1)
    start = column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        clean(table, tmp_path / "lists", decisions=decisions, dataset=tmp_path / "c.parquet")
    assert not [*tmp_path.glob("c.parquet"), *tmp_path.glob(".*")]
