"""Run folders: nothing half-written is ever taken for whole, nothing committed is ever lost."""

import errno
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forked import exit_code, fork
from killed import killed

from hardsight import SampleTable
from hardsight.errors import ExistingPathError, InputError, StateError
from hardsight.runs import SCHEMAS, Counts, Meta, RunWriter, Units, discard, folder, is_run, read_run

PLAN = {"model": {"name": "m"}, "data": {"origin": "d"}}


def part(ids, value=0.5, model="m"):
    n = len(ids)
    return {
        "samples": pa.table({"id": ids, "label": [0] * n, "error": pa.nulls(n, pa.string())}),
        "scores": pa.table({"id": ids, "model": [model] * n, "pred": [0] * n, "avh": [value] * n}),
    }


def finished(path, *parts, plan=PLAN, **meta):
    with RunWriter(path, plan) as writer:
        for unit, tables in enumerate(parts):
            writer.write(tables, unit)
        writer.finish(Meta(extra={"made": "by a test"}, **meta))
    return path


def test_parts_come_back_as_one_table_with_a_row_per_model(tmp_path):
    run = finished(tmp_path / "run", part(["a", "b"]), part(["c"]), part(["a"], model="other"))
    tables, meta = read_run(run)
    assert tables["scores"]["id"].to_pylist() == ["a", "b", "c", "a"]
    assert tables["samples"]["id"].to_pylist() == ["a", "b", "c"]
    assert meta.extra["made"] == "by a test"
    for kind in tables:
        for file in (run / kind).glob("*.parquet"):
            metadata = pq.read_schema(file).metadata
            assert metadata[b"hardsight_kind"].decode() == kind
            assert int(metadata[b"hardsight_version"]) == SCHEMAS[kind].version


def test_an_unfinished_run_is_resumed_and_not_taken_for_whole(tmp_path):
    with RunWriter(tmp_path / "run", PLAN) as writer:
        writer.write(part(["a", "b"]))
    with pytest.raises(StateError, match=r"finished \(2 samples"):
        read_run(tmp_path / "run")
    tables, meta = read_run(tmp_path / "run", partial=True)
    assert len(tables["scores"]) == 2
    assert meta.unfinished
    again = RunWriter(tmp_path / "run", PLAN, overwrite=True)  # which discards nothing of the same plan
    assert again.done() == {0: 2}
    assert not again.complete
    again.write(part(["c"]), 1)
    again.finish(Meta())
    assert again.complete
    assert len(read_run(tmp_path / "run")[0]["samples"]) == 3


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_killed_between_any_two_writes(tmp_path, renames):
    """A kill after some files of a part but before its marker: the part never happened, and can be written again."""
    with RunWriter(tmp_path / "run", PLAN) as writer:
        writer.write(part(["a"]))
        with killed("replace", renames):
            writer.write(part(["b"]), 1)
    assert read_run(tmp_path / "run", partial=True)[0]["scores"]["id"].to_pylist() == ["a"]
    with RunWriter(tmp_path / "run", PLAN) as again:
        assert again.done() == {0: 1}
        again.write(part(["b"]), 1)
        again.finish(Meta())
    assert sorted(read_run(tmp_path / "run")[0]["scores"]["id"].to_pylist()) == ["a", "b"]


def test_the_last_writer_of_a_unit_counts(tmp_path):
    """A unit that was scored twice, by a retry or by a worker that was thought dead, has the rows of the second."""
    writers = [RunWriter(tmp_path / "run", PLAN, shard=(rank, 2)) for rank in (0, 1)]
    writers[0].write(part(["a", "b"], value=0.5), 7)
    writers[1].write(part(["c"]), 3)
    writers[1].write(part(["a", "b"], value=0.75), 7)  # not rounding: two runs would be refused
    assert writers[0].done() == writers[1].done() == {3: 1, 7: 2}
    assert len([*(tmp_path / "run" / "parts").iterdir()]) == 2
    assert len([*(tmp_path / "run" / "scores").iterdir()]) == 3  # no writer takes the name of another's file
    tables = read_run(tmp_path / "run", partial=True)[0]
    assert tables["scores"]["id"].to_pylist() == ["c", "a", "b"]  # in the order of the units
    assert tables["scores"]["avh"].to_pylist() == [0.5, 0.75, 0.75]
    with pytest.raises(InputError, match="shard"):
        RunWriter(tmp_path / "run", PLAN, shard=(1, 2), overwrite=True)


@pytest.mark.parametrize("name", ["_stored", "content_beside"])
def test_a_process_may_begin_while_another_of_its_job_does(tmp_path, monkeypatch, name):
    """At whatever point between the steps of the one, the other writes its plan and first unit."""
    real = getattr(folder, name)

    def interrupted(*args):
        result = real(*args)
        monkeypatch.setattr(folder, name, real)
        with RunWriter(tmp_path / "run", PLAN, shard=(0, 2)) as other:
            other.write(part(["a"]))
        return result

    monkeypatch.setattr(folder, name, interrupted)
    with RunWriter(tmp_path / "run", PLAN, shard=(1, 2)) as writer:
        writer.write(part(["b"]), 1)
    assert read_run(tmp_path / "run", partial=True)[0]["samples"]["id"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize("damage", ["missing", "truncated", "marker"])
def test_a_damaged_unit_is_done_again(tmp_path, damage):
    with RunWriter(tmp_path / "run", PLAN) as writer:
        for unit, name in enumerate("ab"):
            writer.write(part([name]), unit)
    file = next((tmp_path / "run" / ("parts" if damage == "marker" else "scores")).glob("u00000001*"))
    file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes()[:-7])
    with RunWriter(tmp_path / "run", PLAN) as again:
        assert again.done() == {0: 1}
        again.write(part(["b"]), 1)
        again.finish(Meta())
    assert read_run(tmp_path / "run")[0]["scores"]["id"].to_pylist() == ["a", "b"]
    for kind in ("samples", "scores"):  # as other programs read them: all files of a folder
        assert sorted(pq.read_table(tmp_path / "run" / kind)["id"].to_pylist()) == ["a", "b"]


def test_what_another_process_is_about_to_commit_is_not_removed(tmp_path):
    run = tmp_path / "run"
    marker, (writing, written), (waiting, finished) = run / "parts" / "u00000001.json", os.pipe(), os.pipe()

    def other():
        with RunWriter(run, PLAN, shard=(1, 2)) as writer:
            writer.write(part(["b"]), 1)
            content = marker.read_bytes()
            marker.unlink()
            os.write(written, b"!")
            os.read(waiting, 1)
            marker.write_bytes(content)

    child = fork(other)
    os.read(writing, 1)
    with RunWriter(run, PLAN, shard=(0, 2)) as writer:
        writer.write(part(["a"]))
        writer.finish(Meta())
    os.write(finished, b"!")
    assert exit_code(child) == 0
    assert read_run(run)[0]["scores"]["id"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("samples", "batch"), [(1, 64), (63, 7), (200, 64), (1797, 64), (50_000, 128), (1_281_167, 100), (10**9, 1024)]
)
def test_units_hold_every_sample_once_in_whole_batches(samples, batch):
    units = Units.of(samples, batch)
    assert units.rows % batch == 0
    assert units.rows <= 8192 + batch
    first, last = units.places(0), units.places(units.count - 1)
    assert (first[0], last[-1]) == (0, samples - 1)
    assert (units.count - 1) * units.rows + len(last) == samples
    assert units.count == 1 or units.places(1)[0] == first[-1] + 1


def test_a_run_that_was_begun_keeps_its_units(tmp_path):
    with RunWriter(tmp_path / "run", PLAN, units=Units(1000, 64)) as writer:
        writer.write(part(["a"]), 3)
    with RunWriter(tmp_path / "run", PLAN, units=Units(1000, 200)) as again:
        assert again.units == Units(1000, 64)
    with RunWriter(tmp_path / "new", PLAN, units=Units(1000, 200)) as other:
        assert other.units == Units(1000, 200)


@pytest.mark.parametrize(
    ("damaged", "size", "message"),
    [
        ("scores", -10, r"damaged: scores/.*missing"),
        ("scores", None, r"damaged: scores/.*missing"),
        ("parts", None, r"missing \(2 samples"),
    ],
)
def test_a_damaged_part_is_noticed(tmp_path, damaged, size, message):
    run = finished(tmp_path / "run", part(["a", "b"]), counts=Counts(2, 0))
    file = next((run / damaged).iterdir())
    file.unlink() if size is None else file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(StateError, match=message):
        read_run(run)


def test_a_folder_is_taken_resumed_refused_or_discarded(tmp_path):
    other = {**PLAN, "model": {"name": "other"}}
    (tmp_path / "run" / "parts").mkdir(parents=True)  # as an early kill leaves it
    RunWriter(tmp_path / "run", PLAN).close()
    RunWriter(tmp_path / "run", other).close()  # nothing was computed yet
    run = finished(tmp_path / "run", part(["a"]), plan=other)
    with pytest.raises(ExistingPathError, match=r"same: model\.name\).*--overwrite"):
        RunWriter(run, PLAN)
    with RunWriter(run, {**other, "source": {"data": "moved"}, "preprocessing": "in other words"}) as writer:
        assert writer.complete
    with RunWriter(run, PLAN, overwrite=True) as writer:
        assert not writer.done()
        writer.write(part(["b"]))
    unidentified = {**PLAN, "unidentified": {"what": ["MyData"], "once": "1"}}
    with pytest.raises(ExistingPathError, match=r"MyData .*version"):
        RunWriter(run, unidentified)


@pytest.mark.parametrize("file", ["plan.json", "meta.json"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_run_with_a_damaged_file_can_be_overwritten_and_discarded(tmp_path, file, whole):
    def damaged(run):
        if whole:
            finished(run, part(["a"]), counts=Counts(1, 0))
        else:
            with RunWriter(run, PLAN) as writer:
                writer.write(part(["a"]))
        (run / file).write_text("{")
        return run

    run = damaged(tmp_path / "run")
    if file == "plan.json":
        with pytest.raises(StateError, match=r"damaged.*overwrite"):
            RunWriter(run, PLAN)
        assert not whole or read_run(run)[1].counts == Counts(1, 0)  # which needs no plan
    with RunWriter(run, PLAN, overwrite=True) as writer:
        assert not writer.done()
        writer.write(part(["b"]))
        writer.finish(Meta(counts=Counts(1, 0)))
    assert read_run(run)[0]["samples"]["id"].to_pylist() == ["b"]
    run = damaged(tmp_path / "other")
    discard(run)
    assert not [item for item in run.rglob("*") if not item.is_dir()]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_damaged_plan_without_parts_is_a_strangers(tmp_path, overwrite):
    (tmp_path / "parts").mkdir()
    files = {tmp_path / name: text for name, text in {"plan.json": "{", "parts/left.json": "{}"}.items()}
    for file, text in files.items():
        file.write_text(text)
    with pytest.raises(ExistingPathError, match=r"other files.*plan\.json"):
        RunWriter(tmp_path, PLAN, overwrite=overwrite)
    discard(tmp_path)
    assert {file: file.read_text() for file in files} == files


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", ["thesis.tex", "meta.json", "plan.json"])
def test_a_folder_of_other_things_is_never_touched(tmp_path, name, overwrite):
    """Also where another program wrote files of the same names."""
    (tmp_path / name).write_text('{"model": "mine"}')
    with pytest.raises(ExistingPathError, match=f"other files.*{name}"):
        RunWriter(tmp_path, PLAN, overwrite=overwrite)
    with pytest.raises(ExistingPathError, match="is a file"):
        RunWriter(tmp_path / name, PLAN, overwrite=overwrite)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(name, '{"model": "mine"}')]


def test_leftovers_of_a_kill_are_swept_and_no_empty_folder_is_left(tmp_path):
    stray = tmp_path / "run" / "scores" / ".0000-000007-ab12.parquet.cd34ef56.tmp"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half")
    run = finished(tmp_path / "run", part(["a"]))
    assert not stray.exists()
    assert {p.name for p in run.iterdir()} == {"plan.json", "meta.json", "parts", "samples", "scores"}


def test_markers_cannot_point_elsewhere(tmp_path):
    secret = finished(tmp_path / "secret", part(["s"]))
    run = finished(tmp_path / "run", part(["a"]))
    marker = next((run / "parts").iterdir())
    elsewhere = next((secret / "scores").iterdir())
    marker.write_text(json.dumps({f"../../secret/scores/{elsewhere.stem}": {"bytes": elsewhere.stat().st_size}}))
    with pytest.raises(RuntimeError, match="damaged"):
        read_run(run)
    for content in ("[1]", "", "{"):
        marker.write_text(content)
        with pytest.raises(RuntimeError, match=r"damaged: it "):
            read_run(run)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path / "run", PLAN)
    writer.write(part(["a"]))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match=r"disk .*full"):
        writer.write(part(["b"]), 1)
    monkeypatch.undo()
    writer.close()
    with RunWriter(tmp_path / "run", PLAN) as again:
        assert again.done() == {0: 1}
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".")]


# What the first edition wrote for a network over five tensors; null where it had nothing to say.
FIRST_EDITION = {
    "format": 1, "command": ["s.py"], "created": "2025-11-16T11:03:30+00:00", "python": "3.11.7",
    "platform": "Linux", "versions": {"hardsight": "0.1.0", "torch": "2.9.0"}, "device": "cpu", "seed": 2**64 - 1,
    "data": {"origin": "TensorDataset, 5 samples", "fingerprint": "bca406831e353344", "split": "data"},
    "source": None, "labels": "9b7ef1b93773233f", "training": None, "preprocessing_hash": "4aad0820e9de2201",
    "network_class_names": [[]], "scores": ["avh"], "bias": True, "layer": None, "vectors": None, "version": None,
    "schemas": {"samples": 1, "scores": 1, "vectors": 1, "dynamics": 1},
    "model": {"name": "Sequential", "fingerprint": "0b0a295b8f5331f0", "head": "3", "classes": 10},
    "preprocessing": "none: the data set yields tensors", "class_names": [], "label_mapping": None,
    "weights": "as given", "built": None, "seconds": 0.04, "resumed": 0,
    "counts": {"rows": 5, "bad": 0, "zero_features": 0}, "accuracy": 0.2, "warnings": [], "hardsight_format": 1,
}  # fmt: skip


@pytest.fixture
def first_edition(tmp_path, request):
    """A run as the first edition left it, file by file, with tables of a version."""
    version = getattr(request, "param", "1")
    run, name, files = tmp_path / "first", "0000-000000-72446a49", {}
    for kind, table in part([f"data:{i}" for i in range(5)]).items():
        (run / kind).mkdir(parents=True)
        file = run / kind / f"{name}.parquet"
        pq.write_table(table.replace_schema_metadata({"hardsight_kind": kind, "hardsight_version": version}), file)
        files[kind] = {"rows": 5, "bytes": file.stat().st_size}
    (run / "parts").mkdir()
    (run / "parts" / f"{name}.json").write_text(json.dumps(files))
    (run / "meta.json").write_text(json.dumps(FIRST_EDITION))
    (run / "plan.json").write_text(json.dumps({name: FIRST_EDITION[name] for name in ("model", "hardsight_format")}))
    return run


def test_runs_of_the_first_edition_are_read(first_edition):
    table = SampleTable.load(first_edition)
    assert table["id"].tolist() == [f"data:{i}" for i in range(5)]
    meta = table.meta
    assert (meta.model.name, meta.model.classes, meta.data.split) == ("Sequential", 10, "data")
    assert (meta.counts, meta.out_of_sample, meta.source, meta.built) == (Counts(5, 0, 0), None, {}, {})
    assert (meta.bias, meta.seed, meta.label_mapping) == (True, 2**64 - 1, None)
    assert meta.extra["labels"] == "9b7ef1b93773233f"  # what has no name of its own is kept
    table.save(first_edition, overwrite=True)
    assert SampleTable.load(first_edition).meta == meta
    stored = json.loads((first_edition / "meta.json").read_text())
    for name, entry in FIRST_EDITION.items():
        assert stored.get(name) == entry or entry is None


@pytest.mark.parametrize("file", ["meta.json", "plan.json"])
def test_a_run_of_a_newer_format_is_refused(first_edition, file):
    (first_edition / "meta.json").unlink()
    (first_edition / file).write_text(json.dumps({"hardsight_format": 7, "model": "of another type in that format"}))
    with pytest.raises(StateError, match=r"newer.*format 7.*reads 1"):
        read_run(first_edition, partial=True)


@pytest.mark.parametrize("first_edition", ["99"], indirect=True)
def test_a_table_of_a_newer_version_is_refused(first_edition):
    with pytest.raises(StateError, match=r"newer.*version 99"):
        read_run(first_edition)


@pytest.mark.parametrize(
    ("place", "entries"),
    [
        ("model.classes", {"model": {"classes": "10"}}),
        ("classes", {"model": {"classes": -1}}),
        ("classes", {"model": {"classes": 10**9}}),
        ("features", {"model": {"features": -3}}),
        ("label_mapping", {"label_mapping": [0, 10]}),
        (r"counts\.rows", {"counts": {"rows": 1.5}}),
        ("out_of_sample", {"out_of_sample": ["test"]}),
        (r"class_names\[1\]", {"class_names": ["a", 1]}),
        ("source.data", {"source": {"data": 3}}),
        ("versions", {"versions": {"torch": 2}}),
    ],
)
def test_entries_of_another_type_are_refused(first_edition, place, entries):
    (first_edition / "meta.json").write_text(json.dumps({**FIRST_EDITION, **entries}))
    with pytest.raises(StateError, match=place):
        read_run(first_edition)


def test_what_is_no_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    assert not is_run(tmp_path)


@pytest.mark.parametrize("removals", range(9))
def test_a_run_that_is_being_discarded_is_never_taken_for_whole(tmp_path, removals):
    finished(tmp_path / "run", *(part([name]) for name in "abc"), counts=Counts(3, 0))
    with killed("unlink", removals):
        RunWriter(tmp_path / "run", {"another": "plan"}, overwrite=True)
    if not removals:
        assert len(read_run(tmp_path / "run")[0]["samples"]) == 3
        return
    with pytest.raises(RuntimeError, match="not finished"):
        read_run(tmp_path / "run")
    tables, _ = read_run(tmp_path / "run", partial=True)  # what is still called whole is
    assert len(tables.get("samples", ())) == len(tables.get("scores", ()))
    with RunWriter(tmp_path / "run", {"another": "plan"}, overwrite=True) as writer:
        assert not writer.done()


def rows(values, preds=(0, 0), labels=(0, 0)):
    """Two parts that share the sample a."""
    for other, value, pred, label in zip("bc", values, preds, labels, strict=True):
        tables = part(["a", other])
        tables["samples"] = tables["samples"].set_column(1, "label", pa.array([label, 0]))
        tables["scores"] = pa.table({"id": ["a", other], "model": ["m"] * 2, "pred": [pred, 0], "avh": [value, 30.0]})
        yield tables


@pytest.mark.parametrize(
    ("values", "more", "readable"),
    [
        ((0.5, 0.5 + 1e-7), {}, True),
        ((20.0, 20.005), {}, True),
        ((1e-6, 3e-6), {}, True),  # beside a score of 30, nothing
        ((0.5, 0.5 + 1e-6), {"preds": (3, 4)}, True),  # a tie
        ((np.nan, np.nan), {}, True),
        ((0.5, 0.51), {}, False),
        ((0.5, np.nan), {}, False),
        ((0.5, 0.5), {"labels": (5000, 5001)}, False),
        ((0.5, 0.5), {"labels": (0, None)}, False),
    ],
)
def test_rows_that_differ_by_rounding_merge_and_others_do_not(tmp_path, values, more, readable):
    run = finished(tmp_path / "run", *rows(values, **more))
    if not readable:
        with pytest.raises(StateError, match=r"1 samples .*'a'"):
            read_run(run)
        return
    tables = read_run(run)[0]
    assert tables["scores"]["id"].to_pylist() == ["a", "b", "c"]
    np.testing.assert_equal(tables["scores"]["avh"][0].as_py(), values[0])
