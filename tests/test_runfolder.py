"""Run folders: nothing half-written is ever taken for whole, nothing committed is ever lost."""

import errno
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardsight import SampleTable
from hardsight.errors import StateError
from hardsight.runs import SCHEMAS, Counts, Meta, RunWriter, is_run, read_run

PLAN = {"model": {"name": "m"}, "data": {"origin": "d"}}


def part(ids, value=0.5, model="m"):
    n = len(ids)
    return {
        "samples": pa.table({"id": ids, "label": [0] * n, "error": pa.nulls(n, pa.string())}),
        "scores": pa.table({"id": ids, "model": [model] * n, "pred": [0] * n, "avh": [value] * n}),
    }


def finished(path, *parts):
    writer = RunWriter(path, PLAN)
    for p in parts:
        writer.write(p)
    writer.finish(Meta(extra={"made": "by a test"}))
    return path


def test_parts_come_back_as_one_table(tmp_path):
    tables, meta = read_run(finished(tmp_path / "run", part(["a", "b"]), part(["c"])))
    assert tables["scores"]["id"].to_pylist() == ["a", "b", "c"]
    assert meta.extra["made"] == "by a test"


def test_files_say_their_kind_and_version(tmp_path):
    run = finished(tmp_path / "run", part(["a"]))
    for kind, schema in SCHEMAS.items():
        for file in (run / kind).glob("*.parquet"):
            found = pq.read_schema(file)
            assert found.metadata[b"hardsight_kind"].decode() == kind
            assert int(found.metadata[b"hardsight_version"]) == schema.version
            assert set(schema.key) <= set(found.names)


def test_an_unfinished_run_is_not_a_run(tmp_path):
    writer = RunWriter(tmp_path / "run", PLAN)
    writer.write(part(["a", "b"]))
    with pytest.raises(RuntimeError, match=r"finished \(2 samples"):
        read_run(tmp_path / "run")
    assert len(read_run(tmp_path / "run", partial=True)[0]["scores"]) == 2


def test_resuming_knows_what_is_done(tmp_path):
    RunWriter(tmp_path / "run", PLAN).write(part(["a", "b"]))
    again = RunWriter(tmp_path / "run", PLAN)
    assert again.done() == {"a", "b"}
    again.write(part(["c"]))
    again.finish(Meta())
    assert len(read_run(tmp_path / "run")[0]["samples"]) == 3


@pytest.mark.parametrize("stage", ["first file", "second file", "marker"])
def test_killed_between_any_two_writes(tmp_path, monkeypatch, stage):
    """A kill after some files of a part but before its marker: the part never happened, and can be written again."""
    writer = RunWriter(tmp_path / "run", PLAN)
    writer.write(part(["a"]))
    renames = {"first file": 0, "second file": 1, "marker": 2}[stage]
    from pathlib import Path

    real, count = Path.replace, 0

    def killed(self, target):
        nonlocal count
        if count == renames:
            raise SystemExit("killed")
        count += 1
        return real(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(SystemExit):
        writer.write(part(["b"]))
    monkeypatch.undo()
    again = RunWriter(tmp_path / "run", PLAN)
    assert again.done() == {"a"}
    again.write(part(["b"]))
    again.finish(Meta())
    assert sorted(read_run(tmp_path / "run")[0]["scores"]["id"].to_pylist()) == ["a", "b"]


def test_leftovers_of_a_kill_are_swept(tmp_path):
    RunWriter(tmp_path / "run", PLAN)
    stray = tmp_path / "run" / "scores" / ".0000-000007-ab12.parquet.cd34.tmp"
    stray.write_bytes(b"half")
    RunWriter(tmp_path / "run", PLAN).finish(Meta())
    assert not stray.exists()


def test_a_damaged_part_is_noticed(tmp_path):
    run = finished(tmp_path / "run", part(["a"]))
    file = next((run / "scores").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(RuntimeError, match=r"damaged: scores/.*missing"):
        read_run(run)
    file.unlink()
    with pytest.raises(RuntimeError, match="damaged"):
        read_run(run)


def test_equal_duplicates_merge_and_unequal_ones_are_an_error(tmp_path):
    tables, _ = read_run(finished(tmp_path / "same", part(["a", "b"]), part(["b", "c"])))
    assert sorted(tables["scores"]["id"].to_pylist()) == ["a", "b", "c"]
    tables, _ = read_run(finished(tmp_path / "nan", part(["a"], float("nan")), part(["a"], float("nan"))))
    assert len(tables["scores"]) == 1
    with pytest.raises(RuntimeError, match=r"1 samples .*scores .*'b'"):
        read_run(finished(tmp_path / "other", part(["a", "b"], 0.5), part(["b"], 0.6)))


def test_two_models_are_two_rows(tmp_path):
    tables, _ = read_run(finished(tmp_path / "run", part(["a"], model="m1"), part(["a"], model="m2")))
    assert len(tables["scores"]) == 2
    assert len(tables["samples"]) == 1


def test_processes_write_parts_of_their_own(tmp_path):
    one, two = (RunWriter(tmp_path / "run", PLAN, shard=(rank, 2)) for rank in (0, 1))
    one.write(part(["a"]))
    two.write(part(["b"]))
    assert one.done() == two.done() == {"a", "b"}
    assert {p.name[:11] for p in (tmp_path / "run" / "parts").iterdir()} == {"0000-000000", "0001-000000"}


def test_two_starts_in_one_folder_do_not_take_one_name(tmp_path):
    one, two = RunWriter(tmp_path / "run", PLAN), RunWriter(tmp_path / "run", PLAN)
    for writer, ids in ((one, ["a"]), (two, ["b"]), (one, ["c"])):
        writer.write(part(ids))
    assert one.done() == {"a", "b", "c"}


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_not_a_run_is_never_cleared(tmp_path, marked):
    """Neither a stranger's meta.json nor a file put into a run makes it ours to delete."""
    folder = finished(tmp_path / "mine", part(["a"])) if marked else tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "thesis.tex").write_text("dear")
    if not marked:
        (folder / "meta.json").write_text("{}")
    with pytest.raises(FileExistsError, match="other things"):
        RunWriter(folder, {**PLAN, "model": "other"}, overwrite=True)
    assert (folder / "thesis.tex").exists()


def test_killed_before_the_first_part(tmp_path):
    """Folders without a plan, as an early kill leaves them, are begun again."""
    (tmp_path / "run" / "parts").mkdir(parents=True)
    assert not RunWriter(tmp_path / "run", PLAN).done()


def test_overwrite_resumes_the_same_plan_and_only_the_first_process_discards(tmp_path):
    RunWriter(tmp_path / "run", PLAN).write(part(["a"]))
    assert RunWriter(tmp_path / "run", PLAN, overwrite=True).done() == {"a"}
    RunWriter(tmp_path / "run", {**PLAN, "model": "other"}, overwrite=True).write(part(["b"]))
    assert RunWriter(tmp_path / "run", {**PLAN, "model": "other"}, shard=(1, 2)).done() == {"b"}


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
        with pytest.raises(RuntimeError, match=r"damaged.*JSON"):
            read_run(run)


def test_parts_that_are_gone_are_missed(tmp_path):
    writer = RunWriter(tmp_path / "run", PLAN)
    writer.write(part(["a", "b"]))
    writer.finish(Meta(counts=Counts(2, 0)))
    next((tmp_path / "run" / "parts").iterdir()).unlink()
    with pytest.raises(RuntimeError, match=r"missing \(2 samples"):
        read_run(tmp_path / "run")


def test_another_plan_or_other_things_are_refused(tmp_path):
    run = finished(tmp_path / "run", part(["a"]))
    with pytest.raises(FileExistsError, match=r"same: model\).*--overwrite"):
        RunWriter(run, {**PLAN, "model": "other"})
    RunWriter(run, {**PLAN, "model": "other"}, overwrite=True)
    assert not RunWriter(run, {**PLAN, "model": "other"}).done()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="other things"):
            RunWriter(tmp_path / "mine", PLAN, overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.tex").exists()
    with pytest.raises(FileExistsError, match="is a file"):
        RunWriter(tmp_path / "mine" / "thesis.tex", PLAN)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path / "run", PLAN)
    writer.write(part(["a"]))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match=r"disk .*full"):
        writer.write(part(["b"]))
    monkeypatch.undo()
    writer.close()
    with RunWriter(tmp_path / "run", PLAN) as again:
        assert again.done() == {"a"}
    assert not [p for p in (tmp_path / "run").rglob("*") if p.name.startswith(".")]


def test_a_newer_format_is_refused(tmp_path):
    run = finished(tmp_path / "run", part(["a"]))
    file = next((run / "scores").glob("*.parquet"))
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({"hardsight_kind": "scores", "hardsight_version": "99"}), file)
    marker = next((run / "parts").iterdir())
    entry = json.loads(marker.read_text())
    entry["scores"]["bytes"] = file.stat().st_size
    marker.write_text(json.dumps(entry))
    with pytest.raises(RuntimeError, match="newer hardsight"):
        read_run(run)


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
def first_edition(tmp_path):
    """A run as the first edition left it, file by file."""
    run, name, files = tmp_path / "first", "0000-000000-72446a49", {}
    for kind, table in part([f"data:{i}" for i in range(5)]).items():
        (run / kind).mkdir(parents=True)
        file = run / kind / f"{name}.parquet"
        pq.write_table(table.replace_schema_metadata({"hardsight_kind": kind, "hardsight_version": "1"}), file)
        files[kind] = {"rows": 5, "bytes": file.stat().st_size}
    (run / "parts").mkdir()
    (run / "parts" / f"{name}.json").write_text(json.dumps(files))
    (run / "meta.json").write_text(json.dumps(FIRST_EDITION))
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
    newer = {"hardsight_format": 7, "model": "of another type in that format"}
    (first_edition / "meta.json").unlink()
    (first_edition / file).write_text(json.dumps(newer))
    with pytest.raises(StateError, match=r"newer.*format 7.*reads 1"):
        read_run(first_edition, partial=True)


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


def test_tables_must_have_their_key(tmp_path):
    with pytest.raises(ValueError, match="column 'model'"):
        RunWriter(tmp_path / "run", PLAN).write({"scores": pa.table({"id": ["a"], "pred": [1]})})


def test_no_run_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    assert not is_run(tmp_path)
