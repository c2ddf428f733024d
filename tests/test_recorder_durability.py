"""Nothing that was recorded is lost: not by an error, a full disk, a kill, a reader beside it or a damaged file."""

import copy
import errno
import gc
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked import in_two_processes
from naive import triple
from PIL import Image
from recorded import as_rows, network, train

import hardsight as hs
from hardsight import records
from hardsight.errors import DiskError, HardsightError

COLUMNS = ("angle", "soft_margin", "margin", "norm", "pred", "nll_angles", "nll_norms")


def head_of(ids, seed=0, n=12, d=5, c=4):
    """A batch of some samples of twelve, which other seeds see with another head."""
    generator = torch.Generator().manual_seed(seed)
    x, w, b = (torch.randn(*size, generator=generator) for size in ((n, d), (c, d), (c,)))
    labels = torch.arange(n) % c
    return list(ids), SimpleNamespace(features=x[list(ids)], weight=w, bias=b), labels[list(ids)]


def record(recorder, *epochs):
    for seed, ids in epochs:
        recorder.update(*head_of(ids, seed))
        recorder.end_epoch()


def same_records(run, other):
    one, two = hs.Dynamics(run), hs.Dynamics(other)
    assert one.ids.tolist() == two.ids.tolist()
    for column in COLUMNS:
        np.testing.assert_array_equal(one.matrix(column), two.matrix(column), err_msg=column)
    assert one.summary().to_arrow().equals(two.summary().to_arrow())


@pytest.mark.parametrize("epoch", [1, 2])
def test_after_a_collision_the_other_samples_of_the_epoch_are_recorded(tmp_path, epoch):
    recorder, whole = hs.Recorder(tmp_path / "run"), hs.Recorder(tmp_path / "whole")
    if epoch == 2:
        record(recorder, (0, range(12)))
        record(whole, (0, range(12)))
    ids, head, labels = head_of(range(12), 1)
    recorder.update(ids, head, labels)
    recorder.update([7], SimpleNamespace(features=head.features[:1], weight=head.weight, bias=head.bias), [0])
    with pytest.raises(ValueError, match="'data:7'"):
        recorder.end_epoch()
    recorder.end_epoch()
    assert recorder.epoch == epoch + 1
    # An id that was known keeps the row with its label; of a new one nobody can tell which row is meant.
    whole.update(*head_of([i for i in range(12) if i != 7 or epoch == 2], 1))
    whole.end_epoch()
    same_records(tmp_path / "run", tmp_path / "whole")
    assert hs.Dynamics(tmp_path / "run").meta.recorded.refused == (1 if epoch == 2 else 2)


def test_a_label_outside_does_not_lose_the_epoch(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    ids, head, labels = head_of(range(12))
    labels[3] = 9
    recorder.update(ids, head, labels)
    with pytest.raises(ValueError, match=r"labels .*\[0, 3\].*'data:3' .*9"):
        recorder.end_epoch()
    recorder.end_epoch()
    assert sorted(hs.Dynamics(tmp_path / "run").ids) == sorted(f"data:{i}" for i in range(12) if i != 3)


@pytest.mark.parametrize("failing", range(5))
def test_a_commit_that_failed_can_be_repeated(tmp_path, monkeypatch, failing):
    """Rows, class weights, logits, index and meta.json: whichever write fails, the same call again records it all."""
    real, left = os.fsync, [1000]

    def flushed(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", flushed)
    recorder, whole = hs.Recorder(tmp_path / "run"), hs.Recorder(tmp_path / "whole")
    epochs = [(0, range(6)), (1, range(12)), (2, range(3, 12))]
    record(whole, *epochs)
    record(recorder, epochs[0])
    recorder.update(*head_of(range(12), 1))
    left[0] = failing
    for _ in range(2):
        with pytest.raises(DiskError):
            recorder.end_epoch()
        left[0] = 0
    left[0] = 1000
    recorder.end_epoch()
    record(recorder, epochs[2])
    same_records(tmp_path / "run", tmp_path / "whole")
    assert recorder.summary().to_arrow().equals(whole.summary().to_arrow())
    counts = [hs.Dynamics(tmp_path / name).meta.recorded for name in ("run", "whole")]
    assert counts[0] == counts[1]


def test_batches_changed_in_place_are_left_out_and_the_rest_is_recorded(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    recorder.update(*head_of(range(8)))
    ids, head, labels = head_of(range(8, 12))  # another size: the batch before is read
    recorder.update(ids, head, labels)
    head.features.mul_(2)
    with pytest.raises(RuntimeError, match="in place"):
        recorder.end_epoch()
    recorder.end_epoch()
    assert sorted(hs.Dynamics(tmp_path / "run").ids) == sorted(f"data:{i}" for i in range(8))


def test_the_old_files_stay_until_the_new_index_is_there(tmp_path, monkeypatch):
    recorder = train(tmp_path / "run", 3)
    before = as_rows(hs.Dynamics(tmp_path / "run"))
    real = Path.replace

    def killed(temporary, target):
        if target.name == "index.json":
            raise KeyboardInterrupt
        real(temporary, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        recorder.close()  # merges, so that every file is replaced
    monkeypatch.undo()
    assert as_rows(hs.Dynamics(tmp_path / "run")) == before


@pytest.mark.parametrize("at", [11, 12])
def test_resuming_after_epoch_ten_compares_with_the_epoch_before(tmp_path, at):
    """Epochs are numbers: as text, 9 comes after 11, and what epoch 12 is compared with would be swept."""
    epochs = [(seed, range(12)) for seed in range(12)]
    record(hs.Recorder(tmp_path / "whole"), *epochs)
    record(hs.Recorder(tmp_path / "torn"), *epochs[:11])
    record(hs.Recorder(tmp_path / "torn", epoch=at), *epochs[at - 1 :])
    assert not np.isnan(hs.Dynamics(tmp_path / "torn").matrix("nll_angles")[:, 1:]).any()
    same_records(tmp_path / "torn", tmp_path / "whole")


def test_an_epoch_whose_samples_were_all_flushed_is_compared_with_like_any_other(tmp_path):
    whole, flushed = hs.Recorder(tmp_path / "whole"), hs.Recorder(tmp_path / "flushed")
    for recorder in (whole, flushed):
        recorder.update(*head_of(range(12)))
        if recorder is flushed:
            recorder.flush()
        recorder.end_epoch()
        record(recorder, (1, range(12)))
    same_records(tmp_path / "flushed", tmp_path / "whole")


def test_what_was_flushed_before_a_kill_is_not_compared_with_the_epoch_before_it(tmp_path):
    """The logits of flushed samples are gone with the process: the next epoch has nothing to compare them with."""
    recorder = hs.Recorder(tmp_path / "run")
    record(recorder, (0, range(12)))
    recorder.update(*head_of(range(6), 1))
    recorder.flush()
    resumed = hs.Recorder(tmp_path / "run", epoch=2)
    resumed.update(*head_of(range(6, 12), 1))
    resumed.end_epoch()
    record(resumed, (2, range(12)))
    whole = hs.Recorder(tmp_path / "whole")
    record(whole, *((seed, range(12)) for seed in range(3)))
    found, expected = (hs.Dynamics(tmp_path / name) for name in ("run", "whole"))
    flushed = np.isin(found.ids, [f"data:{i}" for i in range(6)])
    for column in ("nll_angles", "nll_norms"):
        third = found.matrix(column)[:, 2]
        assert np.isnan(third[flushed]).all()
        np.testing.assert_array_equal(third[~flushed], expected.matrix(column)[~flushed, 2])


def test_an_open_run_does_not_see_what_is_flushed_later(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    record(recorder, (0, range(4, 8)))
    recorder.update(*head_of(range(4, 6), 1))
    recorder.flush()
    reader, late = hs.Dynamics(tmp_path / "run"), hs.Dynamics(tmp_path / "run")
    before = {column: reader.matrix(column) for column in COLUMNS}
    curve, table, summary = reader.curve("data:6"), reader.at(2).to_arrow(), reader.summary().to_arrow()
    assert len(table) == 2
    recorder.update(*head_of([0, 1, 6, 11], 1))  # new ids on both sides, and one that lacked the epoch
    recorder.flush()
    record(recorder, (1, [2]), (2, range(12)))
    for dynamics in (reader, late):  # the second has read nothing until now
        assert dynamics.ids.tolist() == [f"data:{i}" for i in range(4, 8)]
        for column, values in before.items():
            np.testing.assert_array_equal(dynamics.matrix(column), values)
        assert dynamics.curve("data:6").equals(curve)
        assert dynamics.at(2).to_arrow().equals(table)
        assert dynamics.summary().to_arrow().equals(summary)
        assert dynamics.curves("label", "avh")["n"].to_pylist() == [1] * 6
        with pytest.raises(KeyError):
            dynamics.curve("data:11")
    assert len(hs.Dynamics(tmp_path / "run")) == 12


@pytest.mark.parametrize("reading", ["matrix", "curve", "at", "heads", "table"])
def test_files_that_a_recorder_replaces_while_they_are_opened_are_read_again(tmp_path, monkeypatch, reading):
    recorder = train(tmp_path / "run", 3)
    dynamics = hs.Dynamics(tmp_path / "run")
    read = {
        "matrix": lambda: dynamics.matrix("angle").tolist(),
        "curve": lambda: dynamics.curve("data:3").to_pylist(),
        "at": lambda: dynamics.at(2).to_arrow().to_pylist(),
        "heads": lambda: dynamics.heads.to_pylist(),
        "table": lambda: hs.SampleTable.load(tmp_path / "run").to_arrow().to_pylist(),
    }[reading]
    expected, pending = read(), [True]
    real = records.Records._read

    def replaced_before(store, *args):
        if pending and threading.current_thread() is threading.main_thread():
            pending.clear()
            recorder.close()
            monkeypatch.setattr("hardsight.records.MOST_FILES", 1)
            train(recorder, 4, model=network(), first=4)
        return real(store, *args)

    monkeypatch.setattr("hardsight.records.Records._read", replaced_before)
    found = read()
    assert not pending
    if reading != "table":  # which shows the last epoch, whichever that is
        assert found == expected
    assert len(found) == len(expected)


def test_a_file_that_is_missing_is_an_error_to_a_recorder_and_nothing_is_committed(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    record(recorder, *((seed, range(12)) for seed in range(3)))
    folder = tmp_path / "run" / "dynamics"
    before = (folder / "index.json").read_bytes()
    missing = folder / records.read_index(tmp_path / "run").files[1]["name"]
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(HardsightError, match="missing"):
        recorder.close()
    assert (folder / "index.json").read_bytes() == before
    missing.write_bytes(content)
    recorder.close()
    assert not np.isnan(hs.Dynamics(tmp_path / "run").matrix("angle")).any()


def _paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


WRONG = [None, True, -1, 0, 1.5, 10**30, "", "x", "../../x.parquet", [], ["a"], [[1]], {}, {"a": 1}, {"1": None}]


@pytest.mark.parametrize("name", ["dynamics/index.json", "meta.json"])
def test_any_wrong_type_in_what_a_recorder_wrote_is_a_sentence(tmp_path, name):
    train(tmp_path / "run", 2)
    file = tmp_path / "run" / name
    text = file.read_text()
    whole, refused = json.loads(text), 0
    for path in _paths(whole):
        for wrong in WRONG:
            content = copy.deepcopy(whole)
            if path:
                inner = content
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = wrong
            else:
                content = wrong
            file.write_text(json.dumps(content))
            try:
                dynamics = hs.Dynamics(tmp_path / "run")
                dynamics.at(int(dynamics.epochs[-1]))
                dynamics.curve("data:3")
                assert len(dynamics.curves("label")), dynamics.heads
            except HardsightError:
                refused += 1
    assert refused > 100 if name.endswith("index.json") else refused > 20
    gc.collect()  # nothing is to be finalized at the bottom of a recursion
    for damaged in (b"\xff\xfe", b"[" * 100_000, b"", text[: len(text) // 2].encode()):
        file.write_bytes(damaged)
        with pytest.raises(HardsightError):
            hs.Dynamics(tmp_path / "run")


@pytest.mark.parametrize("name", ["files", "epochs"])
def test_files_of_epochs_that_the_index_does_not_name_are_refused(tmp_path, name):
    """Their rows would belong to no epoch, or to another one than the index says."""
    train(tmp_path / "run", 2)
    file = tmp_path / "run" / "dynamics" / "index.json"
    index = json.loads(file.read_text())
    if name == "files":
        index["files"][0]["epochs"] = [2, 2]
    else:
        index["epochs"], index["steps"], index["states"] = [1], {}, {}
    file.write_text(json.dumps(index))
    with pytest.raises(HardsightError, match="epochs"):
        hs.Dynamics(tmp_path / "run").summary()


@pytest.mark.parametrize("kind", ["rows", "heads"])
def test_a_damaged_parquet_file_is_a_sentence(tmp_path, kind):
    train(tmp_path / "run", 2)
    index = records.read_index(tmp_path / "run")
    file = tmp_path / "run" / "dynamics" / (index.heads[0] if kind == "heads" else index.files[0]["name"])
    content = file.read_bytes()
    read = {
        "rows": lambda: hs.Dynamics(tmp_path / "run").summary(),
        "heads": lambda: hs.Dynamics(tmp_path / "run").heads,
    }
    for part in (slice(0, len(content) // 2), slice(len(content) // 2, None), slice(None)):
        broken = bytearray(content)
        broken[part] = bytes(len(broken[part]))
        file.write_bytes(broken)
        with pytest.raises(HardsightError, match=file.name):
            read[kind]()


def test_damaged_logits_cost_the_comparison_and_nothing_else(tmp_path):
    record(hs.Recorder(tmp_path / "run"), (0, range(12)))
    (state,) = (tmp_path / "run" / "dynamics").glob("*.safetensors")
    state.write_bytes(bytes(len(state.read_bytes())))
    record(hs.Recorder(tmp_path / "run", epoch=2), (1, range(12)))
    dynamics = hs.Dynamics(tmp_path / "run")
    assert np.isnan(dynamics.matrix("nll_angles")).all()
    assert not np.isnan(dynamics.matrix("angle")).any()


def test_integers_are_indices_of_the_data_and_get_the_ids_they_have_there(tmp_path):
    for i, name in enumerate(["cat/b", "cat/a", "dog/c"]):
        (tmp_path / "val" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / "val" / f"{name}.png")
    folder = hs.open_data(tmp_path / "val")
    x, w, _, b = triple(3, 8, 2)
    head = SimpleNamespace(features=x, weight=w, bias=b)
    for run, ids in (("tensor", torch.arange(3)), ("list", [0, 1, 2]), ("mixed", [0, folder.ids[1], 2])):
        recorder = hs.Recorder(tmp_path / run, data=folder)
        for _ in range(2):
            recorder.update(ids, head, folder.labels)
            recorder.end_epoch()
        table = hs.Dynamics(tmp_path / run).at(2)
        assert table["id"].tolist() == ["val/cat/a.png", "val/cat/b.png", "val/dog/c.png"]
        assert folder.find(table["id"].tolist()) == [0, 1, 2]
        np.testing.assert_allclose(table["norm"], x.norm(dim=1), rtol=2**-15)
    assert "val" in hs.Dynamics(tmp_path / "list").meta.source["data"]


def test_indices_outside_the_data_are_refused_and_the_others_recorded(tmp_path):
    data = hs.open_data(torch.utils.data.TensorDataset(torch.zeros(3, 1, 4, 4), torch.tensor([0, 1, 0])))
    for run, ids in (("integers", [0, 1, -1]), ("mixed", ["data:0", 1, 3])):
        recorder = hs.Recorder(tmp_path / run, data=data)
        x, w, _, b = triple(3, 8, 2)
        recorder.update(ids, SimpleNamespace(features=x, weight=w, bias=b), [0, 1, 0])
        with pytest.raises(ValueError, match=str(ids[2])):
            recorder.end_epoch()
        recorder.end_epoch()
        assert hs.Dynamics(tmp_path / run).ids.tolist() == ["data:0", "data:1"]


def test_an_error_of_the_first_process_is_everyones_and_the_epoch_can_be_repeated(tmp_path):
    in_two_processes(record_in_one_of_two, tmp_path)
    dynamics = hs.Dynamics(tmp_path / "run")
    assert dynamics.epochs.tolist() == [1, 2]
    assert len(dynamics) == 12
    assert not np.isnan(dynamics.matrix("angle")).any()
    for rank in range(2):
        assert (tmp_path / f"errors{rank}").read_text() == "DiskError DiskError ExistingPathError"


def record_in_one_of_two(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    errors = []
    recorder = hs.Recorder(folder / "run")
    real = os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    for epoch in range(2):
        recorder.update(*head_of(range(6 * rank, 6 * rank + 6), epoch))
        os.fsync = full
        try:
            recorder.end_epoch()
        except HardsightError as error:
            errors.append(type(error).__name__)
        os.fsync = real
        recorder.end_epoch()
    try:
        hs.Recorder(folder / "run")
    except HardsightError as error:
        errors.append(type(error).__name__)
    (folder / f"errors{rank}").write_text(" ".join(errors))
    dist.barrier()
    dist.destroy_process_group()
