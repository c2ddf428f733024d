"""The recorder: what it records is what the loop saw, and nothing of it is lost or counted twice."""

import itertools
import json
import os
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from forked import beside
from naive import triple
from recorded import CLASSES, SAMPLES, WIDTH, Seen, as_rows, data, network, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs
from hardsight import records
from hardsight.scores import SCORES, read_classes

# Kept in float32, or in sixteen significant bits of it.
EXACT = ("angle", "angle_sum", "avh", "confidence", "nll")
ROUNDED = ("margin", "norm", "el2n")


def same(run, seen):
    found, truth = as_rows(hs.Dynamics(run)), seen.naive()
    assert found.keys() == truth.keys()
    for key, row in found.items():
        for name in EXACT:
            assert row[name] == pytest.approx(truth[key][name], rel=2e-6, abs=1e-12), (key, name)
        for name in ROUNDED:
            assert row[name] == pytest.approx(truth[key][name], rel=2**-16 + 1e-6, abs=1e-6), (key, name)
        assert row["angular_margin"] == pytest.approx(truth[key]["angular_margin"], abs=2**-11 * np.pi)
        assert (row["pred"], row["correct"]) == (truth[key]["pred"], truth[key]["correct"])


@pytest.mark.parametrize(("epochs", "batch"), [(5, 16), (2, 1), (2, 7), (2, SAMPLES)])
def test_recorded_numbers_equal_a_recomputation_from_what_the_loop_saw(tmp_path, epochs, batch):
    seen = Seen()
    train(tmp_path / "run", epochs, batch=batch, seen=seen)
    same(tmp_path / "run", seen)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("k", "n", "d", "c"), [(1, 40, 16, 7), (3, 5, 4, 2), (2, 3, 8, 300)])
def test_stacked_batches_read_like_single_ones(k, n, d, c, bias):
    triples = [triple(n, d, c) for _ in range(k)]
    x, w, y, b = (torch.stack([t[i] for t in triples]) for i in range(4))
    together = read_classes(x, w, y, b if bias else None, keep_cosines=True)
    apart = [read_classes(x[i].double(), w[i].double(), y[i], b[i].double() if bias else None) for i in range(k)]
    for name, score in SCORES.items():
        expected = torch.cat([score.of_reading(reading) for reading in apart])
        torch.testing.assert_close(score.of_reading(together).flatten(), expected, rtol=1e-10, atol=1e-12, msg=name)
    assert torch.equal(together.pred.flatten(), torch.cat([reading.pred for reading in apart]))
    torch.testing.assert_close(
        together.cosines, torch.cosine_similarity(x.double()[:, :, None], w.double()[:, None], -1)
    )


def test_stacked_reading_at_the_edges():
    x = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [-2.0, 0.0]]])
    w = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    y = torch.zeros(1, 3, dtype=torch.long)
    reading = read_classes(x, w, y, keep_cosines=True)
    assert reading.angle.tolist() == [[np.pi / 2, 0.0, np.pi]]
    assert torch.equal(read_classes(1e30 * x, 1e-30 * w, y, keep_cosines=True).angle, reading.angle)
    sure = read_classes(400 * x, w, y, keep_cosines=True)
    assert sure.soft_margin[0, 1] == -1200  # p is 1 in any float; m still tells how sure
    assert all(torch.isfinite(score.of_reading(sure)).all() for score in SCORES.values())


def test_class_norms_of_each_epoch_are_those_of_its_last_batch(tmp_path):
    seen = Seen()
    train(tmp_path / "run", 3, seen=seen)
    heads = hs.Dynamics(tmp_path / "run").heads.to_pandas()
    assert heads["epoch"].tolist() == [e for e in (1, 2, 3) for _ in range(CLASSES)]
    for epoch, rows in heads.groupby("epoch"):
        last = [b for b in seen.batches if b["epoch"] == epoch][-1]
        np.testing.assert_allclose(rows["norm"], np.linalg.norm(last["weight"], axis=1), rtol=1e-6)
        np.testing.assert_allclose(rows["bias"], last["bias"], rtol=1e-6)


def test_half_precision_features_are_read_in_full(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    x, w, y, b = triple(12, 8, 5)
    recorder.update(range(12), SimpleNamespace(features=x.bfloat16(), weight=w, bias=b), y)
    recorder.end_epoch()
    expected = hs.avh(x.bfloat16().double(), w.double(), y).numpy()
    table = hs.Dynamics(tmp_path / "run").at(1)
    found = dict(zip(table["id"].tolist(), table["avh"].tolist(), strict=True))
    np.testing.assert_allclose([found[f"data:{i}"] for i in range(12)], expected, rtol=2e-7)


def test_many_classes_are_read_a_batch_at_a_time(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    x, w, y, b = triple(4, 8, 100_000)
    for start in (0, 4):
        recorder.update(range(start, start + 4), SimpleNamespace(features=x, weight=w, bias=b), y)
    recorder.end_epoch()
    np.testing.assert_allclose(
        np.sort(hs.Dynamics(tmp_path / "run").at(1)["avh"]), np.sort(np.tile(hs.avh(x, w, y).numpy(), 2)), rtol=1e-6
    )


def test_the_loss_divides_between_angles_and_norms(tmp_path):
    """L(new angles, old norms) and L(old angles, new norms), by a loop over what was seen in both epochs."""
    seen = Seen()
    train(tmp_path / "run", 3, seen=seen)
    dynamics = hs.Dynamics(tmp_path / "run")
    by_key = {}
    for batch in seen.batches:
        for i, id_ in enumerate(batch["ids"]):
            by_key[id_, batch["epoch"]] = (batch["features"][i], batch["weight"], batch["bias"], batch["labels"][i])
    for id_ in dynamics.ids:
        curve = dynamics.curve(id_).to_pylist()
        assert curve[0]["nll_angles"] is None
        for epoch in (2, 3):
            (x0, w0, b0, y), (x1, w1, b1, _) = by_key[id_, epoch - 1], by_key[id_, epoch]
            cosines = [
                w @ x / np.linalg.norm(w, axis=1) / max(np.linalg.norm(x), 1e-300) for x, w in ((x0, w0), (x1, w1))
            ]
            norms = [np.linalg.norm(w, axis=1) * np.linalg.norm(x) for x, w in ((x0, w0), (x1, w1))]
            for name, z in (("nll_angles", cosines[1] * norms[0] + b0), ("nll_norms", cosines[0] * norms[1] + b1)):
                expected = np.log(np.exp(z - z[y]).sum())
                assert curve[epoch - 1][name] == pytest.approx(expected, rel=2**-16 + 1e-6, abs=1e-6)


def test_too_many_cosines_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("hardsight.dynamics.batches.MOST_COSINES", SAMPLES * CLASSES - 1)
    train(tmp_path / "run", 3)
    dynamics = hs.Dynamics(tmp_path / "run")
    assert np.isnan(dynamics.matrix("nll_angles")).all()
    assert not np.isnan(dynamics.matrix("avh")).any()
    assert not list((tmp_path / "run" / "dynamics").glob("*.safetensors"))


def test_a_shuffled_loader_with_workers_and_integer_ids(tmp_path):
    x, y = data()
    model, recorder = network(), hs.Recorder(tmp_path / "run", split="train")
    loader = DataLoader(TensorDataset(torch.arange(len(x)), x, y), 16, shuffle=True, num_workers=2)
    with hs.capture(model) as head:
        for _ in range(2):
            for ids, batch, labels in loader:
                model(batch)
                recorder.update(ids, head, labels)
            recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    assert sorted(dynamics.ids.tolist()) == sorted(f"train:{i}" for i in range(len(x)))
    assert not np.isnan(dynamics.matrix("angle")).any()
    assert dict(zip(dynamics.ids, dynamics.labels, strict=True)) == {f"train:{i}": int(y[i]) for i in range(len(x))}


def test_a_sample_missing_from_an_epoch_is_null_and_not_zero(tmp_path):
    train(tmp_path / "run", 4, drop_last=True)  # 90 = 5 · 16 + 10: each epoch leaves ten out
    dynamics = hs.Dynamics(tmp_path / "run")
    found = dynamics.matrix("avh")
    assert (~np.isnan(found)).sum(0).tolist() == [80] * 4
    id_ = dynamics.ids[np.isnan(found).any(1)][0]
    curve = dynamics.curve(id_)
    assert len(curve) == 4
    assert curve["avh"].null_count == curve["pred"].null_count == np.isnan(found[dynamics.ids == id_]).sum()
    assert dynamics.curves()["n"].to_pylist() == [80] * 4
    seen = dynamics.summary()
    assert dict(zip(seen["id"], seen["seen"], strict=True))[id_] == 4 - curve["avh"].null_count


def test_the_first_time_counts_when_a_sample_comes_twice_in_an_epoch(tmp_path):
    seen = Seen()
    twice = torch.cat([torch.arange(10), torch.arange(5)])
    x, y = data()
    model, recorder = network(), hs.Recorder(tmp_path / "run")
    with hs.capture(model) as head:
        for rows in twice.split(4):
            model(x[rows])
            names = [f"data:{i}" for i in rows.tolist()]
            recorder.update(names, head, y[rows])
            seen.add(1, names, head, y[rows])
            with torch.no_grad():
                model[2].weight += 0.1
    recorder.end_epoch()
    same(tmp_path / "run", seen)
    assert hs.Dynamics(tmp_path / "run").meta.recorded.repeated == 5


def test_a_head_of_another_size_is_an_error(tmp_path):
    recorder = train(tmp_path / "run", 1)
    with pytest.raises(ValueError, match=r"head.*epoch 2 .*4 .*× 6 .*5 × 6"):
        train(recorder, 2, model=network(classes=5), first=2)
    resumed = hs.Recorder(tmp_path / "run", epoch=2)
    with pytest.raises(ValueError, match="head was replaced"):
        train(resumed, 2, model=network(classes=5), first=2)
    wider, y = head_of(0, d=7)
    with pytest.raises(ValueError, match=r"head .*4 .*× 6 .*4 × 7"):
        hs.Recorder(tmp_path / "run", epoch=2).update(range(6), wider, y)


def test_a_head_begun_anew_between_epochs_is_an_error_and_a_copy_is_not(tmp_path):
    model = network()
    recorder = train(tmp_path / "run", 2, model=model)
    copied = network(1)
    copied.load_state_dict(model.state_dict())
    train(recorder, 3, model=copied, first=3)
    copied[2] = nn.Linear(WIDTH, CLASSES)
    with pytest.raises(ValueError, match=r"head.*in epoch 4"):
        train(recorder, 4, model=copied, first=4)


@pytest.mark.parametrize(
    ("ids", "labels", "says"),
    [
        ([1, 2], [0, 1, 2], "ids.*3 samples"),
        ("abc", [0, 1, 2], "ids.*3 samples"),
        ([1, 2, 3], [0, 1], r"labels.*\(3,\)"),
        ([1, 2, 3], [0.5, 0.5, 1.0], "soft labels"),
        ([1, 2, 3], ["a", "b", "c"], "labels.*numbers"),
        (torch.rand(3), [0, 1, 2], r"ids .*\(3,\) .*got torch.float32"),
        (torch.arange(3)[:, None], [0, 1, 2], r"ids .*\(3,\) .*\(3, 1\)"),
        (np.arange(3.0), [0, 1, 2], "ids .*float64"),
    ],
)
def test_a_batch_that_does_not_fit_is_one_sentence(tmp_path, ids, labels, says):
    x, w, _, b = triple(3, 8, 5)
    with pytest.raises((TypeError, ValueError), match=says):
        hs.Recorder(tmp_path / "run").update(ids, SimpleNamespace(features=x, weight=w, bias=b), labels)


def test_an_empty_batch_is_nothing_and_an_empty_epoch_an_error(tmp_path):
    x, w, y, b = triple(3, 8, 5)
    recorder = hs.Recorder(tmp_path / "run")
    recorder.update([], SimpleNamespace(features=x[:0], weight=w, bias=b), y[:0])
    for _ in range(2):  # also when it is tried again
        with pytest.raises(RuntimeError, match=r"epoch 1 .*update\(\)"):
            recorder.end_epoch()


def test_update_after_the_step_is_refused_by_the_head(tmp_path):
    model, recorder = network(), hs.Recorder(tmp_path / "run")
    x, y = data()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with hs.capture(model) as head:
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        with pytest.raises(RuntimeError, match=r"head.weight has changed"):
            recorder.update(range(len(x)), head, y)


def test_resuming_at_an_epoch_forgets_what_an_interrupted_attempt_wrote(tmp_path):
    whole = Seen()
    train(tmp_path / "whole", 6, seen=whole)
    model, torn = network(), tmp_path / "torn"
    train(torn, 3, model=model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    train(hs.Recorder(torn, epoch=4), 5, model=model, first=4)  # the loop's checkpoint is of epoch 3
    model.load_state_dict(state)
    recorder = train(hs.Recorder(torn, epoch=4), 6, model=model, first=4)
    a, b = hs.Dynamics(torn), hs.Dynamics(tmp_path / "whole")
    for column in ("angle", "angle_sum", "soft_margin", "margin", "norm", "el2n", "pred"):
        np.testing.assert_array_equal(a.matrix(column), b.matrix(column))
    assert a.summary().to_arrow().equals(b.summary().to_arrow())
    assert recorder.summary().to_arrow().equals(b.summary().to_arrow())


def test_a_kill_within_an_epoch_and_a_resume_an_epoch_behind_lose_nothing(tmp_path):
    """Killed after the recorder's commit of epoch 3 and before the loop's checkpoint of it, and inside epoch 4."""
    train(tmp_path / "whole", 4)
    for stop in (18, 20):  # six steps an epoch
        torn, model = tmp_path / f"torn{stop}", network()
        train(torn, 2, model=model)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        with pytest.raises(KeyboardInterrupt):
            train(hs.Recorder(torn, epoch=3), 4, model=model, first=3, stop=stop - 12)
        model.load_state_dict(state)
        train(hs.Recorder(torn, epoch=3), 4, model=model, first=3)
        a, b = hs.Dynamics(torn), hs.Dynamics(tmp_path / "whole")
        for column in ("angle", "soft_margin", "nll_angles", "nll_norms"):
            np.testing.assert_array_equal(a.matrix(column), b.matrix(column))


def test_an_epoch_that_was_flushed_goes_on_and_repeats_nothing(tmp_path):
    seen = Seen()
    x, y = data()
    model, run = network(), tmp_path / "run"
    recorder = hs.Recorder(run)
    recorder.flush()  # nothing came: no epoch begins
    assert not hs.records.read_index(run).epochs

    def feed(recorder, start, stop):
        with hs.capture(model) as head, torch.no_grad():
            for rows in torch.arange(start, stop).split(16):
                model(x[rows])
                names = [f"data:{i}" for i in rows.tolist()]
                recorder.update(names, head, y[rows])
                seen.add(1, names, head, y[rows])

    feed(recorder, 0, 40)
    recorder.flush()
    feed(recorder, 40, 50)  # lost with the process
    assert hs.Dynamics(run).unfinished
    recorder = hs.Recorder(run, epoch=1)
    seen.batches = seen.batches[:3]
    feed(recorder, 32, SAMPLES)  # the loop goes on a little before where it was
    recorder.end_epoch()
    dynamics = hs.Dynamics(run)
    assert not dynamics.unfinished
    assert len(dynamics) == SAMPLES
    same(run, seen)
    assert dynamics.meta.recorded.repeated == 8


def test_a_folder_that_holds_epochs_must_be_told_what_to_do(tmp_path):
    train(tmp_path / "run", 2)
    with pytest.raises(FileExistsError, match=r"1–2.*epoch=3"):
        hs.Recorder(tmp_path / "run")
    with pytest.raises(ValueError, match=r"epoch=4 .*2; .*epoch=3"):
        hs.Recorder(tmp_path / "run", epoch=4)
    with pytest.raises(ValueError, match=r"epoch=3 .*none; .*epoch=1"):
        hs.Recorder(tmp_path / "new", epoch=3)
    with pytest.raises(ValueError, match=r"epoch must.*1"):
        hs.Recorder(tmp_path / "run", epoch=0)
    train(hs.Recorder(tmp_path / "run", overwrite=True), 1)
    assert hs.Dynamics(tmp_path / "run").epochs.tolist() == [1]


def test_a_folder_with_other_things_in_it_is_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="other files"):
        hs.Recorder(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_real_kill_leaves_whole_epochs(tmp_path):
    def loop(ready):
        ready()
        train(run, 100_000)

    run = tmp_path / "run"
    with beside(loop) as child:
        while not records.has_records(run) or len(records.read_index(run).epochs) < 20:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)  # it is alive
            time.sleep(0.01)
    dynamics = hs.Dynamics(run)
    assert not np.isnan(dynamics.matrix("angle")).any()
    hs.Recorder(run, epoch=len(dynamics.epochs) + 1)
    named = records.read_index(run).names() | {"index.json"}
    assert {path.name for path in (run / "dynamics").iterdir()} == named  # what the kill left is swept


def test_a_commit_that_fails_at_any_write_leaves_the_epochs_before(tmp_path, monkeypatch):
    real, left = os.fsync, [0]

    def failing(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    left[0] = 1000
    expected = train(tmp_path / "whole", 3)
    for writes in range(5):
        left[0] = 1000
        run, model = tmp_path / f"run{writes}", network()
        recorder = train(run, 2, model=model)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        left[0] = writes
        with pytest.raises(KeyboardInterrupt):
            train(recorder, 3, model=model, first=3)
        left[0] = 1000
        found = hs.Dynamics(run)
        assert found.epochs.tolist() in ([1, 2], [1, 2, 3])
        assert not np.isnan(found.matrix("angle")).any()
        model.load_state_dict(state)
        resumed = train(hs.Recorder(run, epoch=3), 3, model=model, first=3)
        assert resumed.summary().to_arrow().equals(expected.summary().to_arrow())


def test_merging_changes_nothing_but_where_rows_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_GROUP_ROWS", 32)
    monkeypatch.setattr(records, "FILE_ROWS", 500)
    monkeypatch.setattr(records, "MOST_FILES", 16)
    train(tmp_path / "many", 20, drop_last=True)
    index = records.read_index(tmp_path / "many")
    assert len(index.files) < 20
    assert len({tuple(f["epochs"]) for f in index.files}) > 1
    monkeypatch.setattr(records, "MOST_FILES", 1000)
    recorder = train(tmp_path / "single", 20, drop_last=True)
    one, other = hs.Dynamics(tmp_path / "many"), hs.Dynamics(tmp_path / "single")

    def compared():
        for column in ("angle", "pred", "nll_norms"):
            np.testing.assert_array_equal(one.matrix(column), hs.Dynamics(tmp_path / "single").matrix(column))
        for id_ in one.ids[::17]:
            assert one.curve(id_).equals(hs.Dynamics(tmp_path / "single").curve(id_))
        assert one.at(7).to_arrow().equals(hs.Dynamics(tmp_path / "single").at(7).to_arrow())
        # Files are read one after the other, and the moments of an epoch add up in that order.
        pd.testing.assert_frame_equal(one.summary().to_pandas(), other.summary().to_pandas(), rtol=1e-12, atol=1e-14)

    compared()
    recorder.close()
    spans = sorted(f["ids"] for f in records.read_index(tmp_path / "single").files)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))  # every curve lies in one file
    compared()


def test_a_reader_keeps_its_epochs_while_the_recorder_goes_on_and_goes_back(tmp_path):
    model = network()
    recorder = train(tmp_path / "run", 14, model=model)
    reader = hs.Dynamics(tmp_path / "run")
    before = reader.matrix("angle")
    train(recorder, 20, model=model, first=15)  # merges
    recorder.close()
    np.testing.assert_array_equal(reader.matrix("angle"), before)
    assert len(reader.curve("data:3")) == 14
    assert reader.curves()["epoch"].to_pylist() == list(range(1, 15))
    hs.Recorder(tmp_path / "run", epoch=10)  # epochs are forgotten, also those in merged files
    after = hs.Dynamics(tmp_path / "run")
    assert after.epochs.tolist() == list(range(1, 10))
    np.testing.assert_array_equal(after.matrix("angle"), before[:, :9])
    assert set(after.heads["epoch"].to_pylist()) == set(range(1, 10))


def test_rounding_keeps_sixteen_bits_and_is_to_the_nearest():
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32) * 10.0 ** np.arange(-20, 20).repeat(
        250
    )
    values = values.astype(np.float32)
    found = records.rounded(values)
    assert (found.view(np.uint32) & 0xFF == 0).all()
    assert (np.abs(found - values) <= np.abs(values) * 2.0**-16).all()
    np.testing.assert_array_equal(records.rounded(found), found)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 65535.0], np.float32)
    np.testing.assert_array_equal(records.rounded(special), special)


def test_a_damaged_index_is_a_sentence(tmp_path):
    train(tmp_path / "run", 1)
    index = tmp_path / "run" / "dynamics" / "index.json"
    content = json.loads(index.read_text())
    for broken, says in (
        ("{", "is damaged"),
        (json.dumps({**content, "version": 99}), "newer hardsight"),
        (json.dumps({**content, "files": [{**content["files"][0], "name": "../../x.parquet"}]}), "is damaged"),
        (json.dumps({**content, "files": [{**content["files"][0], "name": f"{0:016d}.parquet"}]}), "is missing"),
    ):
        index.write_text(broken)
        with pytest.raises(RuntimeError, match=says):
            hs.Dynamics(tmp_path / "run").summary()


def test_the_files_are_plain_parquet_that_anyone_reads(tmp_path):
    recorder = train(tmp_path / "run", 3)
    recorder.close()
    (file,) = [p for p in (tmp_path / "run" / "dynamics").glob("*.parquet") if "heads" not in p.name]
    rows = pq.read_table(file).to_pandas()
    assert len(rows) == 3 * SAMPLES
    assert rows[["id", "epoch"]].apply(tuple, axis=1).is_monotonic_increasing


def head_of(seed, n=6, d=5, c=4):
    torch.manual_seed(seed)
    x, w, y, b = triple(n, d, c)
    return SimpleNamespace(features=x, weight=w, bias=b), y


def test_a_broken_sample_is_missing_once_and_goes_on_and_resumes(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    head, y = head_of(0)
    broken = SimpleNamespace(features=head.features.clone(), weight=head.weight, bias=head.bias)
    broken.features[2], broken.features[4] = float("nan"), float("inf")
    recorder.update(range(6), broken, y)
    with pytest.warns(UserWarning, match="2 of 6 .*epoch 1 .*NaN"):
        recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    assert (dynamics.ids.tolist(), dynamics.meta.recorded.bad) == ([f"data:{i}" for i in (0, 1, 3, 5)], 2)
    for resumed in (recorder, None):
        recorder = resumed or hs.Recorder(tmp_path / "run", epoch=2)
        recorder.update(range(6), head, y)
        recorder.end_epoch()
        found = hs.Dynamics(tmp_path / "run")
        assert np.isnan(found.matrix("angle")).tolist() == [[i in (2, 4), False] for i in range(6)]
        assert np.isnan(found.matrix("nll_angles")[:, 1]).tolist() == [i in (2, 4) for i in range(6)]


def test_samples_without_a_label_are_left_out_and_counted(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    head, y = head_of(0)
    y[1] = -100
    recorder.update(range(6), head, y)
    recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    assert dynamics.ids.tolist() == [f"data:{i}" for i in (0, 2, 3, 4, 5)]
    assert dynamics.meta.recorded.unlabelled == 1


def test_new_samples_in_a_flushed_epoch_do_not_shift_what_the_others_are_compared_with(tmp_path):
    (first, y), (second, _), (third, _) = head_of(0, 2), head_of(1, 1), head_of(2, 2)
    label = torch.tensor([1])
    for run, kills in ((tmp_path / "whole", False), (tmp_path / "torn", True)):
        recorder = hs.Recorder(run)
        recorder.update(["b", "d"], first, y)
        recorder.end_epoch()
        recorder.update(["a"], SimpleNamespace(**{**vars(second), "weight": first.weight}), label)
        if kills:
            recorder.flush()
            recorder = hs.Recorder(run, epoch=2)
        recorder.update(["b", "d"], SimpleNamespace(**{**vars(third), "weight": first.weight}), y)
        recorder.end_epoch()
    whole, torn = hs.Dynamics(tmp_path / "whole"), hs.Dynamics(tmp_path / "torn")
    for column in ("nll_angles", "nll_norms"):
        assert not np.isnan(whole.matrix(column)[1:, 1]).any()
        np.testing.assert_array_equal(torn.matrix(column), whole.matrix(column))


def test_inference_mode_is_recorded(tmp_path):
    x, y = data()
    model, recorder = network(), hs.Recorder(tmp_path / "run")
    with hs.capture(model) as head, torch.inference_mode():
        for rows in torch.arange(len(x)).split(16):
            model(x[rows])
            recorder.update(rows, head, y[rows])
    recorder.end_epoch()
    with hs.capture(model) as head:
        model(x)
    table = hs.Dynamics(tmp_path / "run").at(1)
    expected = dict(
        zip([f"data:{i}" for i in range(len(x))], hs.avh(head.features, head.weight, y).tolist(), strict=True)
    )
    np.testing.assert_allclose(table["avh"], [expected[i] for i in table["id"]], rtol=1e-6)


def test_buffers_that_a_loop_uses_again_do_not_change_what_was_recorded(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    head, y = head_of(0)
    ids, labels = torch.arange(6), y.numpy().copy()
    recorder.update(ids, head, labels)
    ids += 6
    labels[:] = (labels + 1) % 4
    recorder.update(ids, head, labels)
    recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    found = dict(zip(dynamics.ids, dynamics.labels, strict=True))
    assert found == {f"data:{i}": int(y[i % 6] + i // 6) % 4 for i in range(12)}


def test_two_recorders_on_one_folder_do_not_erase_each_other(tmp_path):
    one, other = hs.Recorder(tmp_path / "run"), hs.Recorder(tmp_path / "run")
    head, y = head_of(0)
    other.update(range(6), head, y)
    other.end_epoch()
    one.update(range(6, 12), head, y)
    with pytest.raises(RuntimeError, match="another recorder"):
        one.end_epoch()
    assert len(hs.Dynamics(tmp_path / "run")) == 6


def test_every_kind_of_id_keeps_its_name(tmp_path):
    head, y = head_of(0)
    ids = [np.int64(3), torch.tensor(4), 2**70, -5, "π/\ud800.png", "x" * 5000]
    for epoch in (1, 2):
        recorder = hs.Recorder(tmp_path / "run", epoch=np.int64(epoch))
        recorder.update(ids, head, y)
        recorder.end_epoch()
    dynamics = hs.Dynamics(tmp_path / "run")
    assert set(dynamics.ids) == {"data:3", "data:4", f"data:{2**70}", "data:-5", "π/\\ud800.png", "x" * 5000}
    assert not np.isnan(dynamics.matrix("angle")).any()
    assert len(dynamics.curve(3)) == len(dynamics.curve("x" * 5000)) == 2


def test_a_run_without_a_finished_epoch_says_so(tmp_path):
    hs.Recorder(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"no finished epoch"):
        hs.Dynamics(tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"finished"):
        hs.SampleTable.load(tmp_path / "run")


def test_a_huge_integer_id_is_recorded(tmp_path):
    head, y = head_of(0)
    recorder = hs.Recorder(tmp_path / "run")
    recorder.update([0, 1, 2, 3, 4, 2**27 - 1], head, y)
    recorder.end_epoch()
    assert f"data:{2**27 - 1}" in hs.Dynamics(tmp_path / "run").ids


def test_class_norms_of_many_epochs_are_all_there(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_FILES", 4)
    train(tmp_path / "run", 11)
    dynamics = hs.Dynamics(tmp_path / "run")
    assert dynamics.heads["epoch"].to_pylist() == [e for e in range(1, 12) for _ in range(CLASSES)]
    assert len(records.read_index(tmp_path / "run").heads) <= 4
