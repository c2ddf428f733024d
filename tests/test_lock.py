"""One writer per folder: the second is told who the first is, and a killed owner leaves nothing locked."""

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import run

import hardsight as hs
from hardsight.runs import Meta, RunWriter, beside_lock, folder_lock
from hardsight.table import SampleTable

FORK = multiprocessing.get_context("fork")


def hold(path, shard, ready, lingering=0.0):
    lock = beside_lock(path) if shard is None else folder_lock(path, shard)
    if lingering:
        FORK.Process(target=time.sleep, args=(lingering,)).start()
    ready.set()
    time.sleep(60)
    lock.close()


@pytest.fixture
def holder():
    """Starts processes that hold the lock of a folder, or without a shard beside a target, until they are killed."""
    started = []

    def start(folder, shard=(0, 1), lingering=0.0):
        ready = FORK.Event()
        process = FORK.Process(target=hold, args=(Path(folder), shard, ready, lingering))
        process.start()
        started.append(process)
        assert ready.wait(60)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def is_free(lock, path):
    """Whether another process can take a lock."""
    process = FORK.Process(target=lock, args=(path,))
    process.start()
    process.join()
    return process.exitcode == 0


def test_the_second_process_is_told_who_the_first_is(tmp_path, holder):
    process = holder(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeError, match=f"process {process.pid}"):
        RunWriter(tmp_path / "run", {"a": 1}, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written
    process.kill()
    process.join()
    (tmp_path / "run" / ".lock").write_bytes(b"\xff{")  # names nobody
    with RunWriter(tmp_path / "run", {"a": 1}) as writer:
        assert f"process {os.getpid()}" in (tmp_path / "run" / ".lock").read_text()
        writer.finish(Meta())
    assert not list((tmp_path / "run").glob(".lock*"))


def test_processes_of_one_job_share_a_folder_and_others_do_not(tmp_path, holder, monkeypatch):
    monkeypatch.setattr("hardsight.runs.lock._PATIENCE", 0.2)
    process = holder(tmp_path, (0, 3))
    with folder_lock(tmp_path, shard=(1, 3)):
        pass
    for shard in ((0, 3), (0, 1)):  # a second job's
        with pytest.raises(RuntimeError, match=f"process {process.pid}"):
            folder_lock(tmp_path, shard=shard)
    holder(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="process"):
        folder_lock(tmp_path / "whole", shard=(1, 3))


def test_a_process_can_take_what_it_has_until_the_last_use_is_over(tmp_path):
    one, two = beside_lock(tmp_path / "a"), beside_lock(tmp_path / "a")
    one.close()
    one.close()
    child = FORK.Process(target=two.close)  # which has no part in it
    child.start()
    child.join()
    assert not is_free(beside_lock, tmp_path / "a")
    two.close()
    assert not list(tmp_path.iterdir())
    assert is_free(beside_lock, tmp_path / "a")


def test_the_lock_of_a_killed_process_is_free_though_its_children_live(tmp_path, holder):
    process = holder(tmp_path, lingering=5.0)
    process.kill()
    process.join()
    assert is_free(folder_lock, tmp_path)


def test_a_file_system_without_locks_is_no_reason_to_stop(tmp_path, monkeypatch):
    def unsupported(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", unsupported)
    with folder_lock(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()


def test_a_recorder_holds_its_folder_until_it_is_closed(tmp_path):
    recorder = hs.Recorder(tmp_path / "run")
    recorder.update(
        list("abc"), SimpleNamespace(features=torch.rand(3, 4), weight=torch.rand(2, 4), bias=None), [0, 1, 0]
    )
    recorder.end_epoch()
    assert not is_free(folder_lock, tmp_path / "run")
    recorder.close()
    assert is_free(folder_lock, tmp_path / "run")


# ---------------------------------------------------------------------------------------------------------------------
# The commands.

NET = """
import time, torch
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(SECONDS)
        return super().forward(x)

def build():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Slow(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

def train(data):
    return build()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    from hardsight.data import load_digits

    images, labels = load_digits()
    np.savez(tmp_path / "data.npz", test_images=images[:200], test_labels=labels[:200])
    (tmp_path / "net.py").write_text(NET.replace("SECONDS", "0.02"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*arguments, launcher=(), **environment):
    command = [sys.executable, *launcher, "-m", "hardsight", *map(str, arguments)]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings)


def ended(process):
    out, err = process.communicate(timeout=240)
    assert "Traceback" not in err, err
    return process.returncode, out + err


@pytest.mark.slow
def test_score_twice_at_once_with_other_batches(place):
    """One writes; the other says who does, and the folder can be read."""
    jobs = [started("score", "net.py:build", "data.npz", "-o", "run", "--batch-size", size) for size in (8, 1)]
    results = [ended(job) for job in jobs]
    assert len(SampleTable.load("run")) == 200
    codes = sorted(code for code, _ in results)
    assert codes in ([0, 2], [0, 0])  # where the first was done before the second began
    if codes == [0, 2]:
        loser = next(text for code, text in results if code)
        assert f"process {jobs[0].pid}" in loser or f"process {jobs[1].pid}" in loser


@pytest.mark.parametrize(
    "command",
    [
        ["train", "data.npz:test", "--model", "net.py:build", "-o", "run", "--epochs", "1"],
        ["adapt", "--source", "data.npz:test", "--target", "data.npz:test", "--model", "cifar-resnet18", "-o", "run"],
        ["score", "net.py:build", "data.npz", "-o", "run"],
        ["score", "net.py:train", "data.npz", "-o", "run", "--folds", "2"],
    ],
    ids=["train", "adapt", "score", "folds"],
)
def test_commands_leave_a_folder_alone_that_another_writes(place, holder, capsys, command):
    process = holder(place / "run")
    code, _, err = run(capsys, *command)
    assert code == 2
    assert f"process {process.pid}" in err
    assert [p.name for p in (place / "run").iterdir()] == [".lock"]


def test_evaluate_leaves_an_evaluation_alone_that_another_writes(place, holder, capsys):
    assert run(capsys, "score", "net.py:build", "data.npz", "-o", "run")[0] == 0
    process = holder("evaluation")
    code, _, err = run(capsys, "evaluate", "run", "--model", "net.py:build", "-o", "evaluation")
    assert code == 2
    assert f"process {process.pid}" in err
    assert [file.name for file in Path("evaluation").iterdir()] == [".lock"]


def test_clean_leaves_lists_alone_that_another_writes(place, holder, capsys):
    assert run(capsys, "score", "net.py:build", "data.npz", "-o", "run")[0] == 0
    process = holder("run/lists", None)
    code, _, err = run(capsys, "clean", "run", "--count", "3")
    process.kill()
    process.join()
    assert code == 2
    assert f"process {process.pid}" in err
    assert not Path("run/lists").exists()
    assert run(capsys, "clean", "run", "--count", "3")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(2))
def test_two_processes_overwrite_a_complete_run_together(place, capsys, attempt):
    assert run(capsys, "score", "net.py:build", "data.npz", "-o", "run")[0] == 0
    created = json.loads(Path("run/meta.json").read_text())["created"]
    time.sleep(1.1)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    code, text = ended(started("score", "net.py:build", "data.npz", "-o", "run", "--overwrite", launcher=launcher))
    assert code == 0, text
    table = SampleTable.load("run")
    assert table.meta.created > created
    assert sorted(table["id"]) == sorted(f"test:{i}" for i in range(200))
    assert [p.name for p in sorted(Path("run/parts").iterdir())] == [f"u{unit:08d}.json" for unit in range(4)]
    assert not list(Path("run").glob(".lock*"))
