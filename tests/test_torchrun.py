"""Several processes, as torchrun starts them: every sample once, one history, and a kill that costs nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from forked import as_torchrun, beside
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.dynamics import Dynamics
from hardsight.recipes import Recipe
from hardsight.training import checkpoint, loop, train
from hardsight.training.loop import set_rate

pytestmark = pytest.mark.slow


def run(out, epochs, log=None, **changes):
    torch.manual_seed(0)
    images, labels = load_digits()
    net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    data = ArraySamples(images[:301], labels[:301], "train", "a")
    test = ArraySamples(images[301:402], labels[301:402], "test", "b")
    recipe = Recipe(epochs=epochs, batch_size=50, lr=0.05, schedule="constant", ema=0.5)
    return train(net, data, test, out=out, recipe=replace(recipe, **changes), device="cpu", log=log)


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
    # The launcher itself goes on.
    output = torchrun(tmp_path / "run")
    assert output.count("epoch 2/2") == 1  # only the first process talks
    assert "epoch 1 of 2" in output
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


def torchrun(out, *options):
    """What the launcher prints; this file is the script of both its processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launcher, __file__, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def launched(out):
    """What each of the launcher's processes does; if it restarts them, the last one kills itself in its first life."""
    torch.set_num_threads(1)
    if (os.environ["TORCHELASTIC_MAX_RESTARTS"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        loop.set_rate = partial(set_rate_or_die, Path(out))
    result = run(out, 2, lambda row, step: None)
    state = {k: v.double().flatten().tolist() for k, v in result.model.module.state_dict().items()}
    Path(f"{out}-{os.environ['RANK']}.json").write_text(json.dumps([result.history, state]))


def set_rate_or_die(out, optimizer, recipe, time_in_epochs):
    while time_in_epochs > 1.4 and os.environ["RANK"] == "1":
        if (out / "checkpoint.pt").exists():  # which the first process writes beside the second epoch
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
    set_rate(optimizer, recipe, time_in_epochs)


def test_torchrun_restarts_a_job_whose_process_died_and_it_ends_the_same(tmp_path):
    def undisturbed(_):
        torch.set_num_threads(1)
        run(tmp_path / "whole", 2)

    as_torchrun(undisturbed)
    output = torchrun(tmp_path / "run", "--max-restarts=1")
    assert (output.count("epoch 1/2"), output.count("epoch 1 of 2"), output.count("epoch 2/2")) == (1, 1, 1)
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "run"))
    assert timeless(one["history"]) == timeless(two["history"])
    for part in ("model", "online"):
        assert all(torch.equal(value, two[part][name]) for name, value in one[part].items())
    for split, count in (("train", 300), ("test", 101)):
        whole, again = Dynamics(tmp_path / "whole" / split), Dynamics(tmp_path / "run" / split)
        assert again.ids.tolist() == whole.ids.tolist()
        assert (~np.isnan(again.matrix("avh"))).sum(0).tolist() == [count, count]
        np.testing.assert_array_equal(again.matrix("avh"), whole.matrix("avh"))
        assert again.meta.recorded.repeated == 0


@pytest.mark.parametrize("loss", ["ce", "avh"])
def test_two_processes_with_two_micro_batches_are_one_with_whole_batches(tmp_path, monkeypatch, loss):
    apart = []
    no_sync = nn.parallel.DistributedDataParallel.no_sync
    counted = lambda self: apart.append(1) or no_sync(self)  # noqa: E731
    monkeypatch.setattr(nn.parallel.DistributedDataParallel, "no_sync", counted)
    options = {"loss": loss, "batch_size": 40}  # the last batch has 21 samples: 6 and 5, and 5 and 5

    def together(rank):
        run(tmp_path / "run", 2, accumulate=2, **options)
        (tmp_path / f"{rank}").write_text(f"{len(apart)}")

    as_torchrun(together)
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == ["16"] * 2  # once in each of 2 × 8 steps
    run(tmp_path / "alone", 2, **options)
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("alone", "run"))
    for part in ("model", "online"):
        for name, value in one[part].items():
            torch.testing.assert_close(two[part][name], value, rtol=1e-4, atol=2e-6)
    for row, expected in zip(timeless(two["history"]), timeless(one["history"]), strict=True):
        assert row == pytest.approx(expected, rel=1e-4)  # also the norm of the gradient
    dynamics, other = Dynamics(tmp_path / "run" / "train"), Dynamics(tmp_path / "alone" / "train")
    assert (len(dynamics), dynamics.meta.recorded.repeated) == (301, 0)
    np.testing.assert_allclose(dynamics.matrix("avh"), other.matrix("avh"), rtol=1e-3)


def test_synchronized_norms_are_refused_without_gpus(tmp_path):
    refused = lambda: run(tmp_path / "run", 2, sync_batchnorm=True)  # noqa: E731
    as_torchrun(lambda rank: (tmp_path / f"{rank}").write_text(error_of(refused)))
    assert [(tmp_path / f"{rank}").read_text() for rank in range(2)] == ["InputError"] * 2
    assert not (tmp_path / "run").exists()


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


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.fc = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x).tanh()
        return self.fc(x)


def sharded_loop(out, world):
    """The loop of docs/howto/scale.md: everything is sharded (FSDP2) but the head, whose gradient is averaged here."""
    torch.manual_seed(0)
    x, y, model = torch.randn(64, 6), torch.arange(64) % 3, Blocks()
    head, rank = hs.find_head(model).module, 0
    if world > 1:
        dist.init_process_group("gloo")
        rank, mesh = dist.get_rank(), init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh, ignored_params=set(head.parameters()))
        for parameter in head.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad.div_(world)))
        assert type(model.stem.weight) is type(model.blocks[0].weight) is DTensor
    sharded = [p for p in model.parameters() if all(p is not q for q in head.parameters())]
    groups = [{"params": sharded}, {"params": list(head.parameters())}]
    optimizer = torch.optim.AdamW(groups, 0.01, foreach=True)
    recorder = hs.Recorder(out)
    with hs.capture(model) as captured:
        for _ in range(3):
            for batch in torch.arange(64).split(16):
                ids = batch[rank::world]
                loss = F.cross_entropy(model(x[ids]), y[ids])
                optimizer.zero_grad()
                loss.backward()
                recorder.update(ids, captured, y[ids])
                optimizer.step()
            recorder.end_epoch()
    recorder.close()
    weights = {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in model.state_dict().items()}
    torch.save(weights, f"{out}-{rank}.pt")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def test_a_network_that_is_sharded_except_its_head_is_recorded_like_a_whole_one(tmp_path):
    as_torchrun(lambda rank: sharded_loop(tmp_path / "sharded", 2))
    sharded_loop(tmp_path / "whole", 1)
    expected, *weights = (torch.load(tmp_path / f"{name}.pt") for name in ("whole-0", "sharded-0", "sharded-1"))
    for state in weights:
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-5)
    whole, sharded = Dynamics(tmp_path / "whole"), Dynamics(tmp_path / "sharded")
    assert (sharded.ids.tolist(), sharded.meta.recorded.repeated) == (whole.ids.tolist(), 0)
    for name in ("avh", "norm", "margin"):
        np.testing.assert_allclose(sharded.matrix(name), whole.matrix(name), rtol=1e-3, atol=1e-4)


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
