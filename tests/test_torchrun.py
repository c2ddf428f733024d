"""Several processes, as torchrun starts them: every sample once, one history, and a kill that costs nothing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from hardsight.dynamics import Dynamics

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, sys, time
import torch, torch.nn as nn
from hardsight.data import ArraySamples, load_digits
from hardsight.recipes import Recipe
from hardsight.training import train

torch.set_num_threads(1)

def run(out, epochs, log=None):
    torch.manual_seed(0)
    images, labels = load_digits()
    net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    data = ArraySamples(images[:301], labels[:301], "train", "a")
    test = ArraySamples(images[301:402], labels[301:402], "test", "b")
    recipe = Recipe(epochs=epochs, batch_size=50, lr=0.05, schedule="constant", ema=0.5)
    return train(net, data, test, out=out, recipe=recipe, device="cpu", log=log)

"""


def run_here(*arguments):
    """The same training in this process."""
    names = {}
    exec(TRAIN, names)
    return names["run"](*arguments)


def started(script, *arguments, processes=2):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *(launcher if processes > 1 else ()), str(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finished(process):
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out[-3000:]
    return out


def written(path, text):
    path.write_text(textwrap.dedent(text))
    return path


def timeless(history):
    return [{k: v for k, v in row.items() if "second" not in k} for row in history]


def test_two_processes_train_what_one_would_also_when_they_are_stopped(tmp_path):
    script = written(
        tmp_path / "both.py",
        TRAIN
        + """
def stop(row, step):
    if sys.argv[2] == "stop":
        raise RuntimeError("stopped")

result = run(sys.argv[1], 2, stop)
state = {k: v.double().flatten().tolist() for k, v in result.model.module.state_dict().items()}
open(f"{sys.argv[1]}-{os.environ['RANK']}.json", "w").write(json.dumps([result.history, state]))
""",
    )
    out, _ = started(script, tmp_path / "run", "stop").communicate(timeout=240)
    assert "stopped" in out
    out = finished(started(script, tmp_path / "run", "go on"))
    assert out.count("epoch 2/2") == 1  # only the first process talks
    assert "epoch 1 of 2" in out
    (first, state), (second, state_2) = (json.loads(Path(f"{tmp_path}/run-{r}.json").read_text()) for r in (0, 1))
    assert timeless(first) == timeless(second)
    assert state == state_2
    alone = run_here(tmp_path / "alone", 2)
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


def test_an_error_of_the_first_process_is_everyones(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("…")
    out, _ = started(written(tmp_path / "both.py", TRAIN + "run(sys.argv[1], 1)"), tmp_path / "run").communicate(
        timeout=240
    )
    assert out.count("ExistingPathError: out: ") == 2


def test_a_full_disk_of_the_first_process_ends_all(tmp_path):
    script = TRAIN + textwrap.dedent(
        """
        from hardsight.training import checkpoint

        def full(*_):
            raise OSError(28, "No space left on device")

        checkpoint._save = full  # the checkpoint is written beside the training, by the first process
        try:
            run(sys.argv[1], 3)
        except Exception as error:
            print(f"{type(error).__name__} in {os.environ['RANK']}", flush=True)
        """
    )
    out = finished(started(written(tmp_path / "both.py", script), tmp_path / "run"))
    assert [out.count(f"DiskError in {rank}") for rank in range(2)] == [1, 1]


def test_a_recorder_in_a_padded_loop_counts_each_sample_once(tmp_path):
    script = written(
        tmp_path / "loop.py",
        """
        import sys, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
        from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
        import hardsight as hs

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        data = TensorDataset(torch.arange(31), torch.randn(31, 6), torch.arange(31) % 3)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)))
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        sampler = DistributedSampler(data)  # pads 31 to 32
        recorder = hs.Recorder(sys.argv[1])
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
        """,
    )
    finished(started(script, tmp_path / "run"))
    dynamics = Dynamics(tmp_path / "run")
    assert sorted(dynamics.ids) == sorted(f"data:{i}" for i in range(31))
    assert not np.isnan(dynamics.matrix("avh")).any()
    assert dynamics.meta.recorded.repeated == 2


def test_a_killed_process_leaves_a_run_that_ends_the_same(tmp_path):
    script = written(tmp_path / "one.py", TRAIN + "run(sys.argv[1], 5, lambda row, step: time.sleep(0.3))")
    for epoch, wait in ((2, 0.0), (4, 0.2)):  # while the checkpoint is being written, and later
        process = started(script, tmp_path / "run", processes=1)
        for line in process.stdout:
            if line.startswith(f"epoch {epoch}/"):
                time.sleep(wait)
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
    run_here(tmp_path / "run", 5)
    run_here(tmp_path / "whole", 5)
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "run"))
    assert one["epoch"] == two["epoch"] == 5
    for part in ("model", "online"):
        assert all(torch.equal(value, two[part][name]) for name, value in one[part].items())
    for split in ("train", "test"):
        whole, run = Dynamics(tmp_path / "whole" / split), Dynamics(tmp_path / "run" / split)
        np.testing.assert_array_equal(whole.matrix("avh"), run.matrix("avh"))
