"""Ten million rows of features in Parquet: scored, read, reported, compared with people, searched for wrong labels."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import row

N, WIDTH, CLASSES, ASKED = 10_000_000, 64, 10, 50_000
_PIECE = 1 << 18
LIMIT = 2048  # MiB at the peak, of which some 500 are imported libraries

# In a process of its own, whose memory is counted: since it began, and not since it was forked from this one.
_TIMED = """
import sys, time
start = time.perf_counter()
{work}
seconds, status = time.perf_counter() - start, open("/proc/self/status").read()
print(seconds, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
"""
_COMMAND = "from hardsight.cli import main\nmain(sys.argv[1:])"
_TABLE = "import hardsight as hs\ntable = hs.SampleTable.load(sys.argv[1])\n"


def large() -> Iterator[dict]:
    """Seconds and peak memory of each command and of a table's methods, one process each."""
    with tempfile.TemporaryDirectory() as root:
        folder, run = Path(root), f"{root}/run"
        _make(folder)
        score = ["score", f"{root}/features.parquet", "--head", f"{root}/head.npz", "-o", run, "--device", "cpu"]
        yield from _measured("score", _COMMAND, *score)
        yield from _measured("hardest(20)", f"{_TABLE}table.hardest(20)", run)
        yield from _measured("quantiles", f"{_TABLE}table.quantiles('avh')", run)
        yield from _measured("join of 50,000 rows", f"{_TABLE}table.join(sys.argv[2])", run, f"{root}/people.parquet")
        yield from _measured("label_errors", f"{_TABLE}hs.label_errors(table).hardest(20, 'suspicion')", run)
        yield from _measured("clean", _COMMAND, "clean", run, "-o", f"{root}/lists")
        yield from _measured("align, 50,000 answers", _COMMAND, "align", run, "--human", f"{root}/people.parquet")
        yield from _measured("report", _COMMAND, "report", run, "-o", f"{root}/report.html")


def _make(folder: Path) -> None:
    """Features that lie near their class, 2% of the labels drawn again, and people's answers for some samples."""
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((CLASSES, WIDTH)).astype(np.float32)
    np.savez(folder / "head.npz", weight=weight)
    schema = pa.schema({"id": pa.string(), "label": pa.int64(), "features": pa.list_(pa.float32(), WIDTH)})
    with pq.ParquetWriter(folder / "features.parquet", schema, compression="none", use_dictionary=["label"]) as writer:
        for start in range(0, N, _PIECE):
            rows = min(_PIECE, N - start)
            label = draw.integers(CLASSES, size=rows)
            values = weight[label] + 3 * draw.standard_normal((rows, WIDTH), dtype=np.float32)
            label = np.where(draw.random(rows) < 0.02, draw.integers(CLASSES, size=rows), label)
            ids = [f"img/{place:09d}" for place in range(start, start + rows)]
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)
            writer.write_table(pa.table([pa.array(ids), pa.array(label), lists], schema=schema))
    asked = np.sort(draw.choice(N, min(ASKED, N), replace=False))
    answers = {"id": [f"img/{place:09d}" for place in asked], "hsf": draw.integers(11, size=len(asked)) / 10}
    pq.write_table(pa.table(answers), folder / "people.parquet")


def _measured(case: str, work: str, *arguments: str) -> list[dict]:
    command = [sys.executable, "-W", "ignore", "-c", _TIMED.format(work=work), *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, peak = map(float, output.splitlines()[-1].split())
    config = f"N={N} D={WIDTH} C={CLASSES}"
    return [row("large", case, [seconds], "s", config, "cpu", memory_mib=peak, memory_limit=LIMIT)]
