"""Engines: the rows of a run are the same whoever scores them, and whoever is lost on the way."""

import io
import os
import re
import signal
import socket
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tqdm
from command_line import run as command
from PIL import Image
from torch import nn

import hardsight as hs
from hardsight import engines
from hardsight.errors import InputError, StateError

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # as the engine does, before Ray is imported
ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*:DeprecationWarning")]


LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by the address of a network card


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One Ray for all tests: it takes some seconds to start. It can be given further nodes on this machine."""
    place = {"node_ip_address": LOOPBACK, "num_cpus": 2, "include_dashboard": False}
    started = cluster_utils.Cluster(initialize_head=True, head_node_args=place)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
    connect(started)
    yield started
    ray.shutdown()
    started.shutdown()


def connect(cluster):
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR", _node_ip_address=LOOPBACK)


class Files:
    """A job that notes each unit in a file and, for some units, does what `faults` says."""

    def __init__(self, folder, faults):
        self.folder, self.faults = folder, faults

    def samples(self, unit):
        return 10

    def open(self):
        def work(unit):
            fault, times = self.faults.get(unit, (None, 0))
            tried = len(list(Path(self.folder).glob(f"{unit}-*")))
            Path(self.folder, f"{unit}-{tried}").touch()
            if tried < times:
                if fault == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault == "hangs":
                    time.sleep(60)
                raise fault
            return [] if unit else ["a note"]

        return work


def test_units_survive_workers_that_die_hang_or_fail(tmp_path, monkeypatch):
    faults = {1: ("killed", 1), 3: ("killed", 9), 4: (ValueError("odd"), 1), 5: (ValueError("bad file"), 9)}
    faults[7] = ("hangs", 1)
    bars = []

    class Bar(tqdm.tqdm):
        """A progress bar as on a terminal, which nobody sees."""

        def __init__(self, **options):
            super().__init__(**options | {"disable": False, "file": io.StringIO()})
            bars.append(self)

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    engine = engines.Ray(workers=2, timeout=4, tries=2)
    outcome = engine.run(Files(tmp_path, faults), range(9))
    assert set(outcome.failed) == {3, 5}
    assert "bad file" in outcome.failed[5]
    assert outcome.lost == 1 + 2 + 1
    assert outcome.notes == ["a note"]
    tries = {unit: len(list(tmp_path.glob(f"{unit}-*"))) for unit in range(9)}
    assert tries == {0: 1, 1: 2, 2: 1, 3: 2, 4: 2, 5: 2, 6: 1, 7: 2, 8: 1}
    [bar] = bars
    assert (bar.n, bar.total) == (90, 90)  # units that failed on every try are done with, too
    assert "lost=4" in bar.postfix
    shown = bar.fp.getvalue()
    assert re.search(r"\d<\d", shown), shown  # elapsed and remaining time
    assert "samples/s" in shown or "s/ samples" in shown, shown


def fake_ray(lost):
    """A cluster of four cores whose first `lost` workers die while they start."""
    numbers = count()

    def calls(kind):
        return SimpleNamespace(remote=lambda *_: (kind, next(numbers)))

    def get(task):
        if task[0] == "prepare" and task[1] < lost:
            raise ray.exceptions.ActorDiedError
        return []

    return SimpleNamespace(
        exceptions=ray.exceptions, cloudpickle=ray.cloudpickle, cluster_resources=lambda: {"CPU": 4}, get=get,
        put=lambda job: job, kill=lambda worker: None, wait=lambda tasks, timeout: (tasks[:1], []),
        remote=lambda **_: lambda actor: SimpleNamespace(
            remote=lambda: SimpleNamespace(prepare=calls("prepare"), run=calls("run"))
        ),
    )  # fmt: skip


def test_a_node_that_is_lost_with_all_its_workers_stops_no_run(tmp_path):
    outcome = engines._Dispatch(engines.Ray(), fake_ray(lost=4), Files(tmp_path, {})).run(range(6), False)
    assert (outcome.lost, outcome.failed) == (4, {})
    with pytest.raises(StateError, match="start"):  # nobody can work there
        engines._Dispatch(engines.Ray(), fake_ray(lost=99), Files(tmp_path, {})).run(range(6), False)


def test_a_run_for_which_no_worker_can_be_started_stops_and_says_that_it_resumes(tmp_path):
    engine = engines.Ray(workers=1, cpus=99, patience=1)  # as many as no node has, or none that is left
    with pytest.raises(StateError, match=r"1 seconds .*99 CPU"):
        engine.run(Files(tmp_path, {}), range(2), progress=False)
    assert not list(tmp_path.iterdir())
    for name, value in {"patience": 0, "timeout": "5", "gpus": -1, "cpus": 0, "tries": 1.5}.items():
        with pytest.raises(InputError, match=name):
            engines.Ray(**{name: value})


def test_a_run_whose_last_worker_is_lost_stops(tmp_path):
    cluster = fake_ray(lost=0)
    get, units = cluster.get, []

    def get_until_lost(task):
        if task[0] == "run":
            units.append(task)
            if len(units) > 2:
                raise ray.exceptions.NodeDiedError("gone")
        return get(task)

    cluster.get = get_until_lost
    cluster.wait = lambda tasks, timeout: ([] if len(units) > 2 else tasks[:1], [])  # nobody is started again
    with pytest.raises(StateError, match=r"0\.1 seconds"):
        engines._Dispatch(engines.Ray(workers=1, patience=0.1), cluster, Files(tmp_path, {})).run(range(6), False)
    assert len(units) == 3


def test_what_would_fail_everywhere_stops_the_run(tmp_path, monkeypatch):
    job = Files(tmp_path, {0: (InputError("a user's mistake"), 9)})
    with pytest.raises(InputError, match="a user's mistake"):
        engines.Ray(workers=1).run(job, range(2), progress=False)
    assert len(list(tmp_path.iterdir())) <= 2
    monkeypatch.setattr(engines, "_versions", lambda: {"hardsight": "9.9", "torch": "1", "Python": "3"})
    with pytest.raises(StateError, match=r"hardsight .* and not 9\.9"):
        engines.Ray(workers=1).run(Files(tmp_path, {}), [0], progress=False)


class Fragile(nn.Module):
    """A classifier whose process is killed by the first batch that holds a negative pixel, once."""

    def __init__(self, folder):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.folder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), folder

    def forward(self, x):
        if x.min() < -1 and not (died := Path(self.folder, "died")).exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if x.max() > 1e6:
            raise RuntimeError("too bright")
        return self.layers(x)


def test_rows_are_those_of_one_process_bit_by_bit(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.random((10_000, 8, 8), dtype=np.float32), draw.integers(0, 10, 10_000)
    x[4321, 0, 0] = -5
    options = {"device": "cpu", "workers": 0, "version": "1"}
    (tmp_path / "died").touch()
    alone = hs.score(Fragile(tmp_path), (x, y), out=tmp_path / "alone", **options)
    (tmp_path / "died").unlink()
    engine = engines.Ray(workers=2)
    shared = hs.score(Fragile(tmp_path), (x, y), out=tmp_path / "shared", engine=engine, **options)
    assert (tmp_path / "died").exists()
    assert shared.to_arrow().equals(alone.to_arrow())
    assert shared.vectors.equals(alone.vectors)
    assert shared.meta.counts == alone.meta.counts
    # Resumed: only the unit whose marker is gone, by whichever engine.
    (tmp_path / "shared" / "meta.json").unlink()
    (tmp_path / "shared" / "parts" / "u00000002.json").unlink()
    again = hs.score(Fragile(tmp_path), (x, y), out=tmp_path / "shared", **options)
    assert again.meta.resumed == 10_000 - 256
    assert again.to_arrow().equals(alone.to_arrow())


class Slow(nn.Module):
    """A classifier that takes its time, and notes which processes used it."""

    def __init__(self, folder):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.folder = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), folder

    def forward(self, x):
        Path(self.folder, f"process-{os.getpid()}").touch()
        time.sleep(0.02)
        return self.layers(x)


def test_a_lost_node_costs_units_and_no_rows(tmp_path, cluster):
    draw = np.random.default_rng(0)
    data = draw.random((3000, 8, 8), dtype=np.float32), draw.integers(0, 10, 3000)
    options = {"device": "cpu", "workers": 0, "version": "1", "batch_size": 32}
    alone = hs.score(Slow(tmp_path), data, out=tmp_path / "alone", **options)
    unfinished = []

    def remove():
        """Remove the second node when a worker on each has begun."""
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("process-*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        unfinished.append(not (tmp_path / "shared" / "meta.json").exists())
        cluster.remove_node(node, allow_graceful=False)

    ray.shutdown()
    node = cluster.add_node(node_ip_address=LOOPBACK, num_cpus=2)
    remover = threading.Thread(target=remove)
    remover.start()
    try:
        engine = engines.Ray(address=cluster.address, cpus=2)  # one worker on each node
        shared = hs.score(Slow(tmp_path), data, out=tmp_path / "shared", engine=engine, **options)
    finally:
        remover.join()
        connect(cluster)
    assert len(list(tmp_path.glob("process-*"))) == 3  # this one and two workers
    assert unfinished == [True]
    assert shared["id"].tolist() == [f"data:{i}" for i in range(3000)]
    assert shared.to_arrow().equals(alone.to_arrow())
    assert shared.vectors.equals(alone.vectors)
    assert shared.meta.counts == alone.meta.counts


class OnlyHere(torch.utils.data.Dataset):
    """Data that no other process can read."""

    def __init__(self):
        self.process = os.getpid()

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if os.getpid() != self.process:
            raise FileNotFoundError("not mounted")
        return torch.full((1, 8, 8), index / 64), index % 10


def test_a_worker_that_cannot_read_the_data_makes_no_sample_a_bad_one(tmp_path):
    options = {"out": tmp_path / "run", "engine": engines.Ray(workers=1), "version": "1", "device": "cpu"}
    with pytest.raises(StateError, match=r"cannot start.*read"):
        hs.score(Slow(tmp_path), OnlyHere(), **options)
    assert not (tmp_path / "run" / "parts").exists()


def test_a_run_of_which_every_unit_fails_keeps_none(tmp_path, monkeypatch):
    data = torch.rand(640, 1, 8, 8), torch.arange(640) % 10
    options = {"out": tmp_path / "run", "version": "1", "device": "cpu", "batch_size": 16}
    monkeypatch.setattr(
        engines.Ray, "run", lambda self, job, units, progress: engines.Outcome(dict.fromkeys(units, "out of memory"))
    )
    with pytest.raises(StateError, match=r"every.*memory"):
        hs.score(Slow(tmp_path), data, engine=engines.Ray(), **options)
    assert hs.score(Slow(tmp_path), data, **options).meta.counts.rows == 640


def test_a_unit_that_fails_on_every_try_stops_a_strict_run(tmp_path, monkeypatch):
    data = torch.rand(640, 1, 8, 8), torch.arange(640) % 10
    options = {"out": tmp_path / "run", "version": "1", "device": "cpu", "batch_size": 16, "strict": True}
    monkeypatch.setattr(
        engines.Ray, "run", lambda self, job, units, progress: engines.Outcome({units[0]: "out of memory"})
    )
    with pytest.raises(InputError, match=r"data:0.*memory"):
        hs.score(Slow(tmp_path), data, engine=engines.Ray(), **options)
    assert not list((tmp_path / "run").glob("parts/*"))


def test_samples_of_a_unit_that_fails_on_every_worker_are_bad(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.random((96, 8, 8), dtype=np.float32), draw.integers(0, 10, 96)
    x[20, 0, 0] = 1e7
    options = {"device": "cpu", "workers": 0, "batch_size": 16, "version": "1"}
    with pytest.warns(UserWarning, match="1 unit"):
        table = hs.score(Fragile(tmp_path), (x, y), out=tmp_path / "run", engine=engines.Ray(workers=1), **options)
    assert table.bad["id"].to_pylist() == [f"data:{i}" for i in range(16, 32)]
    assert all("too bright" in reason and "3 tries" in reason for reason in table.bad["error"].to_pylist())
    assert len(table) == 80
    assert table.meta.counts.bad == 16


def test_folds_of_a_users_network_are_those_of_one_process_bit_by_bit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        torch.manual_seed(0)\n        self.head = nn.Linear(64, 3)\n\n"
        "    def forward(self, x):\n        return self.head(x.flatten(1))\n\n\ndef build():\n    return Net()\n"
    )
    draw = np.random.default_rng(0)
    for i in range(90):  # relative paths are those of this folder, wherever Ray was started
        Path(f"images/{i % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save(f"images/{i % 3}/{i}.png")
    arguments = ["score", "net.py:build", "images", "--folds", "2", "--batch-size", "4", "-o"]
    assert command(capsys, *arguments, "local")[0] == 0
    code, out, err = command(capsys, *arguments, "ray", "--engine", "ray", "--ray-workers", "2")
    assert code == 0, err
    assert "90 samples scored" in out
    local, ray = hs.SampleTable.load("local"), hs.SampleTable.load("ray")
    assert ray.to_arrow().equals(local.to_arrow())
    assert ray.vectors.equals(local.vectors)
    assert ray.meta.counts == local.meta.counts
    assert not Path("ray", "stages").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"engine": "spark"}, "engine"),
        ({"engine": "ray"}, "out"),
        ({"engine": "ray", "out": "run", "folds": 3, "shard": (0, 2)}, "shards"),
        ({"engine": "ray", "out": "run", "ray_workers": 0}, "workers"),
        ({"ray_address": "auto"}, "ray_address"),
        ({"engine": "ray", "out": "run", "folds": 2, "model": lambda data: None}, "engine"),
    ],
)
def test_engines_that_cannot_be(tmp_path, monkeypatch, options, word):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=word):
        hs.score(options.pop("model", nn.Linear(4, 3)), (torch.randn(9, 4), torch.arange(9) % 3), **options)
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_process_does_not_change_its_ray_without_a_word(tmp_path):
    with pytest.raises(StateError, match="already"):
        engines.Ray(address="127.0.0.3:6379").run(Files(tmp_path, {}), [0], progress=False)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "[::1]:1", "ray://127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1:x", "silent", " "]
)
def test_an_address_without_ray_is_one_sentence(monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(engines, "_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # which accepts connections, and Ray would wait for it
        address = address.replace("silent", f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises((StateError, InputError), match="address"):
            engines.Ray(address=address).run(Files("", {}), [0], progress=False)
