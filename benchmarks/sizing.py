"""What a billion samples and a million classes need, from measured rates and sizes; proportions are extrapolated."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

import hardsight as hs
from benchmarks.measure import read_results, row
from hardsight.runs.units import Units, read_parts

ROWS, CLASSES, MANY = 262_144, 1000, 1_000_000_000
_SHARDS, _PATTERN = 20, "{000..019}"

# What a process takes for its data at the peak, beyond what it takes for a few of them: ids, labels and places.
_OPENED = """
import sys
import hardsight as hs
from hardsight.data import FeatureRows
from hardsight.scoring.checks import check_samples

def opened(file):
    if "features" in file:
        return FeatureRows(file)
    samples = hs.open_data(file)
    check_samples(samples, 1000)
    samples.fingerprint()
    return samples

def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024

opened(sys.argv[1])
before = peak()
data = opened(sys.argv[2])
print((peak() - before) / len(data))
"""
KINDS = ("samples", "scores", "vectors")  # the files of a unit


def sizing() -> Iterator[dict]:
    """Bytes per row of a run, memory per sample of a process, seconds for a billion samples' markers; a table."""
    warnings.filterwarnings("ignore", "the network is no better than chance")
    torch.manual_seed(0)
    measured = []
    with tempfile.TemporaryDirectory() as root:
        run, data = Path(root, "run"), (torch.randn(ROWS, 32), torch.arange(ROWS) % CLASSES)
        options = {"device": "cpu", "workers": 0, "progress": False, "version": "1"}
        hs.score(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES)), data, out=run, **options)
        config = f"N={ROWS} C={CLASSES}"
        for kind in KINDS:
            size = sum(file.stat().st_size for file in (run / kind).iterdir()) / ROWS
            measured.append(row("sizing", f"{kind} on disk", [size], "bytes per row", config))
    with tempfile.TemporaryDirectory() as root:
        path, units = Path(root), Units.of(MANY, 256)
        _make_markers(path, units.count)
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            if len(read_parts(path, damaged=True)) != units.count:
                raise AssertionError("markers that were not read")
            seconds.append(time.perf_counter() - start)
        measured.append(row("sizing", "markers read", seconds, "s", f"units={units.count}"))
    for case, (name, make, count) in _DATA.items():
        with tempfile.TemporaryDirectory() as root:
            few, many = Path(root, f"few-{name}"), Path(root, f"many-{name}")
            for file, size in ((few, 1000), (many, count)):
                make(file, [f"n01440764_{i:09d}" for i in range(size)])
            command = [sys.executable, "-c", _OPENED, str(few), str(many)]
            size = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        measured.append(row("sizing", f"{case} in memory", [size], "bytes per sample", f"N={count}"))
    yield from measured
    print("\n".join(f"| {' | '.join(line)} |" for line in lines([*read_results(), *measured])))


def _make_markers(path: Path, count: int) -> None:
    """A run as a resume reads it: markers, and files of the sizes that they name."""
    for name in ("parts", *KINDS):
        (path / name).mkdir()
    content = json.dumps({"token": "0" * 8} | {kind: {"rows": 8192, "bytes": 0} for kind in KINDS})
    for unit in range(count):
        (path / "parts" / f"u{unit:08d}.json").write_text(content)
        for kind in KINDS:
            (path / kind / f"u{unit:08d}-{'0' * 8}.parquet").touch()


def _tar(file: Path, keys: list[str]) -> None:
    """Images of a byte, with labels, in shards."""
    for shard in range(_SHARDS):
        with Path(str(file).replace(_PATTERN, f"{shard:03d}")).open("wb") as stream:
            for place, key in enumerate(keys[shard::_SHARDS]):
                for ending, content in (("jpg", b"x"), ("cls", b"%d" % (place % CLASSES))):
                    member = tarfile.TarInfo(f"{key}.{ending}")
                    member.size = len(content)
                    stream.write(member.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0"))
            stream.write(bytes(1024))


def _parquet(file: Path, keys: list[str]) -> None:
    """Images of a byte, or features of a number, with ids and labels."""
    features = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(keys), np.float16)), 1)
    column = {"features": features} if "features" in file.name else {"image": pa.array([b"x"] * len(keys))}
    pq.write_table(pa.table({**column, "label": np.arange(len(keys)) % CLASSES, "id": keys}), file)


_DATA = {
    "images in tar shards": (f"images-{_PATTERN}.tar", _tar, 200_000),
    "images in Parquet": ("images.parquet", _parquet, 1_000_000),
    "features in Parquet": ("features.parquet", _parquet, 4_000_000),
}


def lines(rows: list[dict]) -> Iterator[tuple[str, str]]:
    """The table: what is asked for, and what it takes."""
    last = {(r["benchmark"], r["case"], r["config"]): float(r["p50"]) for r in rows}
    sizes = {case: value for (benchmark, case, _), value in last.items() if benchmark == "sizing"}
    rate = 8000 / last["folders", "score to a run folder", "N=8000 network=resnet50 workers=14"]
    for gpus in (1, 8, 64):
        hours = MANY / rate / gpus / 3600
        yield f"score 10⁹ JPEG files with ResNet-50, {gpus} × H200, {14 * gpus} loader processes", f"{hours:,.1f} h"
    for dtype in ("bfloat16", "float32"):
        seconds = last["scores", "all scores", f"N=16384 D=512 C=1000000 dtype={dtype}"]
        text = f"score 10⁹ features of width 512 against 10⁶ classes, one H200, {dtype}"
        yield text, f"{MANY / 16384 * seconds / 3600:,.1f} h"
    for kind in KINDS:
        yield f"`{kind}/` of 10⁹ samples", f"{sizes[f'{kind} on disk']:,.0f} GB"
    for case in _DATA:
        yield f"memory of each process for 10⁹ {case}", f"{sizes[f'{case} in memory']:,.0f} GB"
    yield "units of 10⁹ samples", f"{Units.of(MANY, 256).count:,}"
    yield "reading their markers to resume", f"{sizes['markers read']:,.0f} s"
    record = last["records", "1,281,167 samples × 90 epochs: size", ""] * 1e9 / (1_281_167 * 90)
    yield "record of a training, per sample and epoch", f"{record:,.1f} bytes"
    yield "report of a million samples", f"{last['report', 'N=1,000,000 C=1,000 page', '']:,.0f} MB"
