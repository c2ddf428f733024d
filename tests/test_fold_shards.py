"""Folds that several processes share: who fits, what a kill costs, and rows that do not depend on who made them."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run as command
from forked import as_torchrun, beside, exit_code, fork, in_two_processes
from torch import nn

import hardsight as hs
from hardsight.data import ArraySamples, load_digits
from hardsight.devices import find_device
from hardsight.errors import ExistingPathError, StateError
from hardsight.runs import STAGES, RunWriter, folder_lock
from hardsight.scoring import blocks, folds

SAMPLES = 160


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()


def train(data):
    torch.manual_seed(data.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x, y = torch.from_numpy(data.images).float()[:, None] / 255, torch.from_numpy(data.labels)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    Path(os.environ["TRAINED"], f"{data.fold}-{time.monotonic_ns()}").touch()
    return model


def digits():
    images, labels = load_digits()
    return ArraySamples(images[:SAMPLES], labels[:SAMPLES] % 3, "digits", "some digits")


def score(out, rank=None, model=None, **options):
    """The run of one process, or the share of one of two."""
    shard = {} if rank is None else {"shard": (rank, 2)}
    usual = {"preprocess": "raw", "folds": 2, "device": "cpu", "batch_size": 8, "progress": False}
    return hs.score(model or network(), digits(), out=out, **{**usual, **shard, **options})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return score(tmp_path_factory.mktemp("alone") / "run")


@pytest.fixture(autouse=True)
def trained(tmp_path_factory, monkeypatch):
    """The folder where `train` notes its calls."""
    folder = tmp_path_factory.mktemp("trained")
    monkeypatch.setenv("TRAINED", str(folder))
    return folder


def check_same(out, expected):
    """Every id once, every number equal bit by bit, and nothing left of the way there."""
    table = hs.SampleTable.load(out)
    assert table["id"].tolist() == digits().ids[:]
    assert table.to_arrow().equals(expected.to_arrow())
    assert table.vectors.equals(expected.vectors)
    assert table.meta.counts == expected.meta.counts
    assert table.meta.extra["strengths"] == expected.meta.extra["strengths"]
    assert not (out / STAGES).exists()
    assert not list(out.glob(".*"))


def counted(monkeypatch, owner, name, folder):
    """Note every call of a function, of whichever process, as a file."""
    real = getattr(owner, name)

    def call(*args, **options):
        (folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, call)


def killed_at(monkeypatch, owner, name, call):
    """Kill the process at a call of a function."""
    real, calls = getattr(owner, name), iter(range(10**6))

    def killing(*args, **options):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    monkeypatch.setattr(owner, name, killing)


# ---------------------------------------------------------------------------------------------------------------------
# The same rows.


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_whoever_finishes_the_rows_are_those_of_one_process(alone, tmp_path, order):
    first = score(tmp_path / "run", order[0])
    assert first.meta.unfinished
    assert first.meta.counts is None
    assert len(first) == SAMPLES // 2
    with pytest.raises(StateError, match="not finished"):
        hs.SampleTable.load(tmp_path / "run")
    last = score(tmp_path / "run", order[1])
    assert last.to_arrow().equals(alone.to_arrow())
    check_same(tmp_path / "run", alone)
    assert score(tmp_path / "run", order[0]).meta.already_complete


def test_two_processes_at_once_fit_the_heads_once(alone, tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    calls.mkdir()
    counted(monkeypatch, folds, "choose_strength", calls)
    counted(monkeypatch, blocks, "_forward", calls)
    in_two_processes(lambda rank: score(tmp_path / "run", rank))
    check_same(tmp_path / "run", alone)
    noted = [name.name.split("-")[:2] for name in calls.iterdir()]
    assert len([pid for name, pid in noted if name == "choose_strength"]) == 2  # one per fold
    assert len({pid for name, pid in noted if name == "choose_strength"}) == 1
    assert len([pid for name, pid in noted if name == "_forward"]) == SAMPLES // 8  # every batch once
    assert len({pid for name, pid in noted if name == "_forward"}) == 2


def test_torchrun_shares_folds_and_replaces_a_run_of_other_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "import torch\nfrom torch import nn\n\n\ndef build():\n    torch.manual_seed(SEED)\n"
    code += "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))\n"
    Path("net.py").write_text(code.replace("SEED", "1"))
    images, labels = load_digits()
    np.savez("data.npz", images=images[:SAMPLES], labels=labels[:SAMPLES] % 3)
    arguments = ["score", "net.py:build", "data.npz", "--folds", "2", "--device", "cpu"]
    assert command(capsys, *arguments, "-o", "run")[0] == 0
    old = hs.SampleTable.load("run")
    Path("net.py").write_text(code.replace("SEED", "2"))
    assert command(capsys, *arguments, "-o", "alone")[0] == 0
    assert not hs.SampleTable.load("alone").to_arrow().equals(old.to_arrow())
    from hardsight.cli import main

    as_torchrun(lambda rank: main([*arguments, "-o", "run", "--overwrite"]))
    assert hs.SampleTable.load("run").to_arrow().equals(hs.SampleTable.load("alone").to_arrow())


# ---------------------------------------------------------------------------------------------------------------------
# Killed.


def test_a_killed_process_costs_its_unit(alone, tmp_path, monkeypatch):
    def child():
        killed_at(monkeypatch, blocks, "_forward", 7)
        score(tmp_path / "run", 1)

    assert exit_code(fork(child)) == -signal.SIGKILL
    assert score(tmp_path / "run", 0).meta.unfinished
    calls = tmp_path / "calls"
    calls.mkdir()
    counted(monkeypatch, blocks, "_forward", calls)
    score(tmp_path / "run", 1)
    assert len([*calls.iterdir()]) == SAMPLES // 16 - 7  # a unit is a batch here
    check_same(tmp_path / "run", alone)


@pytest.mark.parametrize(
    "step", [(folds, "fit_head", 7), (RunWriter, "write", 0), (RunWriter, "finish", 1)], ids=lambda step: step[1]
)
def test_a_kill_after_the_features_costs_the_heads(alone, tmp_path, monkeypatch, step):
    score(tmp_path / "run", 0)

    def child():
        killed_at(monkeypatch, *step)
        score(tmp_path / "run", 1)

    assert exit_code(fork(child)) == -signal.SIGKILL
    killed_at(monkeypatch, blocks, "_forward", 0)  # it would kill this process
    score(tmp_path / "run", 0)  # any of them finishes the run
    check_same(tmp_path / "run", alone)


# ---------------------------------------------------------------------------------------------------------------------
# At the same time.


def waiting(ready, out, file):
    """Fit the heads in this process once a file is there."""
    real = folds.choose_strength

    def wait(*args, **options):
        ready()
        until(file.exists)
        return real(*args, **options)

    folds.choose_strength = wait
    score(out, 0)
    time.sleep(60)


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_comes_while_another_fits_leaves_the_run_to_it(alone, tmp_path, monkeypatch):
    score(tmp_path / "run", 1)
    with beside(waiting, tmp_path / "run", tmp_path / "go"):
        killed_at(monkeypatch, folds, "choose_strength", 0)  # it would kill this process
        table = score(tmp_path / "run", 1)
        assert table.meta.unfinished
        assert table.meta.counts is None
        assert len(table) == SAMPLES
        with folder_lock(tmp_path / "run", (1, 2)):  # as a process that reads the features
            (tmp_path / "go").touch()
            until(lambda: (tmp_path / "run" / "parts").exists())
            time.sleep(0.3)
            assert (tmp_path / "run" / STAGES / "features" / "meta.json").exists()
            assert not (tmp_path / "run" / "meta.json").exists()
        until(lambda: not (tmp_path / "run" / ".lock").exists() and not (tmp_path / "run" / STAGES).exists())
    table = hs.SampleTable.load(tmp_path / "run")
    assert table.to_arrow().equals(alone.to_arrow())


def test_no_process_of_an_earlier_job_writes_into_a_run_that_is_overwritten(tmp_path):
    score(tmp_path / "run", 0)

    def hold(ready):
        with folder_lock(tmp_path / "run", (1, 2)):
            ready()
            time.sleep(60)

    overwriting = {"overwrite": True, "model": network(1), "shard": (0, 2, lambda: None)}
    with beside(hold) as child, pytest.raises(StateError, match=f"process {child}"):
        score(tmp_path / "run", **overwriting)
    assert score(tmp_path / "run", **overwriting).meta.unfinished


# ---------------------------------------------------------------------------------------------------------------------
# Features of something else.


def dark(image):
    return torch.from_numpy(np.array(image, np.float32))[None] / 510


def stopped(monkeypatch, out, **options):
    """A run whose features are there and whose heads are not."""
    with monkeypatch.context() as patch:
        patch.setattr(folds, "choose_strength", interrupted)
        with pytest.raises(KeyboardInterrupt):
            score(out, **options)
    return out / STAGES / "features"


@pytest.mark.parametrize(
    ("options", "word"), [({"model": network(1)}, "model.fingerprint"), ({"preprocess": dark}, "preprocessing_hash")]
)
@pytest.mark.parametrize("rank", [None, 1])
def test_features_of_other_weights_or_pixels_are_not_used(tmp_path, monkeypatch, options, word, rank):
    features = stopped(monkeypatch, tmp_path / "run")
    with pytest.raises(ExistingPathError, match=word):
        score(tmp_path / "run", rank, **options)
    # Even where they lie in the run of these weights.
    other = stopped(monkeypatch, tmp_path / "other", **options)
    shutil.rmtree(other)
    shutil.copytree(features, other)
    with pytest.raises(ExistingPathError, match=word):
        score(tmp_path / "other", rank, **options)


def interrupted(*_, **__):
    raise KeyboardInterrupt


# ---------------------------------------------------------------------------------------------------------------------
# A training function.


def test_processes_train_the_folds_between_them(tmp_path, trained, monkeypatch):
    whole = score(tmp_path / "alone", model=train, preprocess=None, seeds=2)
    for file in trained.iterdir():
        file.unlink()
    options = {"model": train, "preprocess": None, "seeds": 2}

    def child():
        killed_at(monkeypatch, folds, "returned_model", 1)
        score(tmp_path / "run", 1, **options)

    assert exit_code(fork(child)) == -signal.SIGKILL
    assert len([*trained.iterdir()]) == 2
    assert score(tmp_path / "run", 0, **options).meta.unfinished
    assert len([*trained.iterdir()]) == 4
    score(tmp_path / "run", 1, **options)
    assert len([*trained.iterdir()]) == 5  # the fold that was killed twice, the others once
    table = hs.SampleTable.load(tmp_path / "run")
    assert table.to_arrow().equals(whole.to_arrow())
    assert table.vectors.equals(whole.vectors)
    in_two_processes(lambda rank: score(tmp_path / "both", rank, **options))
    assert len([*trained.iterdir()]) == 5 + 4
    assert hs.SampleTable.load(tmp_path / "both").to_arrow().equals(whole.to_arrow())


def test_each_process_of_torchrun_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert str(find_device(None)) == "cuda"
    for rank, number in ((0, 0), (3, 3), (5, 1)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert str(find_device(None)) == f"cuda:{number}"
        assert str(find_device("cpu")) == "cpu"
        assert str(find_device("cuda:2")) == "cuda:2"
