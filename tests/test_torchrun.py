"""Several processes, as torchrun starts them: every sample once, one history, and a kill that costs nothing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from forked import as_torchrun, beside
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.dynamics import Dynamics
from hardsight.recipes import Recipe
from hardsight.training import checkpoint, train

pytestmark = pytest.mark.slow


def run(out, epochs, log=None):
    torch.manual_seed(0)
    images, labels = load_digits()
    net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    data = ArraySamples(images[:301], labels[:301], "train", "a")
    test = ArraySamples(images[301:402], labels[301:402], "test", "b")
    recipe = Recipe(epochs=epochs, batch_size=50, lr=0.05, schedule="constant", ema=0.5)
    return train(net, data, test, out=out, recipe=recipe, device="cpu", log=log)


def error_of(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__


def timeless(history):
    return [{k: v for k, v in row.items() if "second" not in k} for row in history]


def test_two_processes_train_what_one_would_also_when_they_are_stopped(tmp_path):
    def stop(row, step):
        raise RuntimeError("stopped")

    as_torchrun(lambda rank: (tmp_path / f"{rank}").write_text(error_of(lambda: run(tmp_path / "run", 2, stop))))
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == ["RuntimeError"] * 2
    # The launcher itself goes on: this file is the script of both its processes.
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launcher, __file__, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("epoch 2/2") == 1  # only the first process talks
    assert "epoch 1 of 2" in done.stdout
    (first, state), (second, state_2) = (json.loads(Path(f"{tmp_path}/run-{r}.json").read_text()) for r in (0, 1))
    assert timeless(first) == timeless(second)
    assert state == state_2
    alone = run(tmp_path / "alone", 2)
    for name, values in alone.model.module.state_dict().items():
        np.testing.assert_allclose(state[name], values.flatten(), rtol=1e-4, atol=1e-6)
    for row, expected in zip(timeless(first), timeless(alone.history), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)
    assert [row["samples"] for row in first] == [300, 300]  # of 301: a last batch of one is left out
    for split, count in (("train", 300), ("test", 101)):
        dynamics, other = Dynamics(tmp_path / "run" / split), Dynamics(tmp_path / "alone" / split)
        assert dynamics.ids.tolist() == other.ids.tolist()
        assert len(set(dynamics.ids)) == len(dynamics)
        assert (~np.isnan(dynamics.matrix("avh"))).sum(0).tolist() == [count, count]
        np.testing.assert_allclose(dynamics.matrix("avh"), other.matrix("avh"), rtol=1e-3)


def launched(out):
    """What each of the launcher's processes does."""
    torch.set_num_threads(1)
    result = run(out, 2, lambda row, step: None)
    state = {k: v.double().flatten().tolist() for k, v in result.model.module.state_dict().items()}
    Path(f"{out}-{os.environ['RANK']}.json").write_text(json.dumps([result.history, state]))


def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("what", ["other things in the folder", "a full disk"])
def test_an_error_of_the_first_process_is_everyones(tmp_path, monkeypatch, what):
    if what == "a full disk":
        monkeypatch.setattr(checkpoint, "_save", full)  # written beside the training, by the first process
    else:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").write_text("…")
    as_torchrun(lambda rank: (tmp_path / f"{rank}").write_text(error_of(lambda: run(tmp_path / "run", 3))))
    expected = "DiskError" if what == "a full disk" else "ExistingPathError"
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == [expected] * 2


def padded_loop(out):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(31), torch.randn(31, 6), torch.arange(31) % 3)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    sampler = DistributedSampler(data)  # pads 31 to 32
    recorder = hs.Recorder(out)
    with hs.capture(model) as head:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for ids, x, y in DataLoader(data, 4, sampler=sampler):
                loss = F.cross_entropy(model(x), y)
                recorder.update(ids, head, y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            recorder.end_epoch()
    dist.destroy_process_group()


def test_a_recorder_in_a_padded_loop_counts_each_sample_once(tmp_path):
    as_torchrun(lambda rank: padded_loop(tmp_path / "run"))
    dynamics = Dynamics(tmp_path / "run")
    assert sorted(dynamics.ids) == sorted(f"data:{i}" for i in range(31))
    assert not np.isnan(dynamics.matrix("avh")).any()
    assert dynamics.meta.recorded.repeated == 2


def test_a_killed_process_leaves_a_run_that_ends_the_same(tmp_path):
    def until(ready, epoch):
        run(tmp_path / "run", 5, lambda row, step: (row["epoch"] == epoch and ready(), time.sleep(0.3)))

    for epoch, wait in ((2, 0.0), (4, 0.2)):  # while the checkpoint is being written, and later
        with beside(until, epoch):
            time.sleep(wait)
    run(tmp_path / "run", 5)
    run(tmp_path / "whole", 5)
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "run"))
    assert one["epoch"] == two["epoch"] == 5
    for part in ("model", "online"):
        assert all(torch.equal(value, two[part][name]) for name, value in one[part].items())
    for split in ("train", "test"):
        whole, again = Dynamics(tmp_path / "whole" / split), Dynamics(tmp_path / "run" / split)
        np.testing.assert_array_equal(whole.matrix("avh"), again.matrix("avh"))


if __name__ == "__main__":
    launched(sys.argv[1])
