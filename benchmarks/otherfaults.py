"""Faults other than a killed command: what happens to a run, and what differs from a quiet one when it is resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

import hardsight as hs
from benchmarks.measure import Skipped, row
from hardsight.errors import DiskError, HardsightError, StateError
from hardsight.runs import folder_lock

ROWS, TIMES = 3000, 5
LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by the address of a network card


class Network(nn.Module):
    """A small classifier; in the presence of a file `fault`, the first worker that takes it dies or hangs."""

    def __init__(self, folder: Path, fault: str = "", seconds: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.folder, self.fault, self.seconds = folder, fault, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (self.folder / f"process-{os.getpid()}").touch()
        time.sleep(self.seconds)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "fault").unlink()  # one worker can
            if self.fault == "hang":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(x)


def _score(
    folder: Path, network: nn.Module | None = None, engine: hs.engines.Ray | None = None, folds: int | None = None
) -> pa.Table:
    draw = np.random.default_rng(0)
    data = draw.random((ROWS, 8, 8), dtype=np.float32), draw.integers(0, 10, ROWS)
    options = {"device": "cpu", "workers": 0, "version": "1", "batch_size": 32, "progress": False}
    network = network or Network(folder.parent)
    return hs.score(network, data, out=folder, engine=engine or "local", folds=folds, **options).to_arrow()


def _refused(folder: Path, kind: type[HardsightError]) -> None:
    try:
        _score(folder)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def _unfinished(folder: Path) -> list[Path]:
    """A run without its end; returns its files of scores."""
    _score(folder)
    (folder / "meta.json").unlink()
    return sorted((folder / "scores").iterdir())


@contextlib.contextmanager
def _disk(folder: Path, size: str) -> Iterator[Callable[[str], object]]:
    """A small disk of its own in the place of a folder; yields what changes its options."""

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(folder)], check=True)

    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _full_disk(folder: Path) -> pa.Table:
    with _disk(folder, "400k") as change:
        _refused(folder, DiskError)
        if not any((folder / "parts").iterdir()):
            raise AssertionError("full before the first unit")
        change("size=64m")
        return _score(folder)


def _read_only(folder: Path) -> pa.Table:
    with _disk(folder, "64m") as change:
        _unfinished(folder)[0].unlink()
        change("ro")
        _refused(folder, DiskError)
        change("rw")
        return _score(folder)


def _two_processes(folder: Path) -> pa.Table:
    """Another process holds the folder; when it is killed, the run is free."""
    ready, started = os.pipe()
    if not (child := os.fork()):
        with folder_lock(folder, (0, 1)):
            os.write(started, b"!")
            time.sleep(600)
    os.read(ready, 1)
    try:
        _refused(folder, StateError)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return _score(folder)


def _truncated(folder: Path) -> pa.Table:
    for file in _unfinished(folder)[::7]:
        file.write_bytes(file.read_bytes()[:-100])
    return _score(folder)


def _corrupt(folder: Path) -> pa.Table:
    """Bytes of a finished run that changed in place: an error, and the run is made again."""
    _score(folder)
    for file in (folder / "scores").iterdir():
        file.write_bytes(bytes(len(file.read_bytes())))
    with contextlib.suppress(HardsightError):
        hs.SampleTable.load(folder).to_arrow()
        raise AssertionError("damage that was read as numbers")
    (folder / "meta.json").unlink()
    for marker in (folder / "parts").iterdir():
        marker.unlink()
    return _score(folder)


def _worker(folder: Path, fault: str, folds: int | None = None) -> pa.Table:
    (folder.parent / "fault").touch()
    engine = hs.engines.Ray(workers=2, timeout=5 if fault == "hang" else None)
    table = _score(folder, Network(folder.parent, fault), engine, folds)
    if (folder.parent / "fault").exists():
        raise AssertionError("no worker was lost")
    return table


def _lost_node(folder: Path) -> pa.Table:
    """Two Ray nodes on this machine, and one is killed once a worker on each has begun."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={"node_ip_address": LOOPBACK, "num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(node_ip_address=LOOPBACK, num_cpus=1)

    def remove() -> None:
        while len(list(folder.parent.glob("process-*"))) < 2:
            time.sleep(0.02)
        cluster.remove_node(node, allow_graceful=False)

    threading.Thread(target=remove, daemon=True).start()
    try:
        engine = hs.engines.Ray(address=cluster.address)
        table = _score(folder, Network(folder.parent, seconds=0.05), engine)
        if len(cluster.worker_nodes):
            raise AssertionError("no node was lost")
        return table
    finally:
        cluster.shutdown()


FAULTS: dict[str, tuple[Callable[[Path], pa.Table], int]] = {
    "full disk": (_full_disk, TIMES),
    "read-only disk": (_read_only, TIMES),
    "two processes on one run": (_two_processes, TIMES),
    "truncated parts": (_truncated, TIMES),
    "corrupt parts": (_corrupt, TIMES),
    "killed Ray worker": (lambda folder: _worker(folder, "kill"), 1),
    "killed Ray worker, folds": (lambda folder: _worker(folder, "kill", folds=2), 1),
    "hanging Ray worker": (lambda folder: _worker(folder, "hang"), 1),
    "lost Ray node": (_lost_node, 1),
}


def otherfaults(names: tuple[str, ...] = tuple(FAULTS)) -> Iterator[dict]:
    """Full disks, damaged files, lost workers and nodes: rows that differ from an undisturbed run."""
    if os.geteuid():
        raise Skipped("mounts small disks, which only root may")
    warnings.filterwarnings("ignore", "the network is no better than chance")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        quiet = {folds: _score(Path(root, f"quiet-{folds}"), folds=folds) for folds in (None, 2)}
        for name in names:
            fault, times = FAULTS[name]
            expected, differing = quiet[2 if name.endswith("folds") else None], 0
            for i in range(times):
                folder = Path(root, f"{name} {i}", "run")
                folder.parent.mkdir()
                table = fault(folder)
                columns = {*expected.column_names, *table.column_names}
                differing += sum(not (c in table.column_names and table[c].equals(expected[c])) for c in columns)
            yield row("otherfaults", name, [differing], "differences", f"times={times}", limit=0)
