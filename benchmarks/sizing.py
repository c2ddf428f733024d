"""What a billion samples and a million classes need, from measured rates and sizes; proportions are extrapolated."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import hardsight as hs
from benchmarks.measure import read_results, row
from hardsight.runs.units import Units, read_parts

ROWS, CLASSES, MANY = 262_144, 1000, 1_000_000_000
KINDS = ("samples", "scores", "vectors")  # the files of a unit


def sizing() -> Iterator[dict]:
    """Bytes per row of a run, and how long it takes to read the markers of a billion samples; prints a table."""
    warnings.filterwarnings("ignore", "the network is no better than chance")
    torch.manual_seed(0)
    measured = []
    with tempfile.TemporaryDirectory() as root:
        run, data = Path(root, "run"), (torch.randn(ROWS, 32), torch.arange(ROWS) % CLASSES)
        options = {"device": "cpu", "workers": 0, "progress": False, "version": "1"}
        table = hs.score(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES)), data, out=run, **options)
        config = f"N={ROWS} C={CLASSES}"
        for kind in KINDS:
            size = sum(file.stat().st_size for file in (run / kind).iterdir()) / ROWS
            measured.append(row("sizing", f"{kind} on disk", [size], "bytes per row", config))
        measured.append(row("sizing", "table in memory", [table.to_arrow().nbytes / ROWS], "bytes per row", config))
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
    yield "memory of the process that finishes a run of 10⁹ samples", f"{sizes['table in memory']:,.0f} GB or more"
    yield "units of 10⁹ samples", f"{Units.of(MANY, 256).count:,}"
    yield "reading their markers to resume", f"{sizes['markers read']:,.0f} s"
    record = last["records", "1,281,167 samples × 90 epochs: size", ""] * 1e9 / (1_281_167 * 90)
    yield "record of a training, per sample and epoch", f"{record:,.1f} bytes"
    yield "report of a million samples", f"{last['report', 'N=1,000,000 C=1,000 page', '']:,.0f} MB"
