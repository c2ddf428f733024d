"""How a benchmark is checked, timed and written down.

A benchmark is a generator function named in ``benchmarks/__main__.py``. It yields a `Comparison` (cases that are timed
in turn, so that a slow moment hits them all) or a row that it measured itself (`row`). It may raise `Skipped`. Each
comparison is measured before the next is asked for, so that its tensors can be freed in between.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import dataclasses
import gc
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import hardsight

RESULTS = Path(__file__).parent / "results.csv"
COLUMNS = (
    *("date", "benchmark", "case", "config", "baseline", "ratio", "p20", "p50", "p80", "unit", "n", "limit"),
    *("error", "memory_mib", "memory_limit", "hardware", "python", "torch", "triton", "hardsight"),
)


class Skipped(Exception):  # noqa: N818  nothing went wrong
    """Raised by a benchmark that cannot run here; says what it needs."""


@dataclass(frozen=True)
class Case:
    """Something to time.

    Attributes:
        name: What it is.
        run: The work; what it returns counts as output, not as extra memory.
        baseline: The case of the same comparison that its time is divided by; "" for none.
        limit: Largest ratio; without a baseline, the largest median in seconds.
        check: Takes a seed, draws fresh inputs from it, and returns the largest error in units of the stated tolerance.
        memory_limit: Largest peak memory beyond inputs and outputs, in MiB.
    """

    name: str
    run: Callable[[], object]
    baseline: str = ""
    limit: float | None = None
    check: Callable[[int], float] | None = None
    memory_limit: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Cases that are timed in turn.

    Attributes:
        cases: The baseline among them.
        config: What they have in common, as ``key=value`` words: ``N=131072 D=2048 C=1000 dtype=bfloat16``.
        rounds: How often each is timed.
        repeats: Runs in one timing, for work of microseconds.
        device: ``cuda`` or ``cpu``: whose memory is watched, and which hardware the row names.
    """

    cases: Sequence[Case]
    config: str = ""
    rounds: int = 21
    repeats: int = 1
    device: str = "cpu"


def measure(benchmark: str, comparison: Comparison, seed: int) -> list[dict]:
    """Check every case with this seed, watch the memory of one run, time them in turn; one row per case."""
    cases, device = comparison.cases, comparison.device
    errors = [case.check(seed) if case.check else None for case in cases]
    if device == "cuda":
        torch.cuda.empty_cache()  # what the checks left
    # The first run compiles and fills caches.
    memory = [[peak_memory(case.run, device) for _ in range(2)][1] for case in cases]
    seconds = interleaved({case.name: case.run for case in cases}, comparison.rounds, comparison.repeats)
    return [
        row(
            *(benchmark, case.name, seconds[case.name], "s", case.baseline),
            ratio(seconds[case.name], seconds[case.baseline]) if case.baseline else None,
            *(case.limit, comparison.config, error, peak, case.memory_limit, device),
        )
        for case, error, peak in zip(cases, errors, memory, strict=True)
    ]


def interleaved(cases: dict[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, list[float]]:
    """Seconds of one run of every case in every round; one case after the other, after a run to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(rounds + 1):
        for name, run in cases.items():
            elapsed = _stopwatch()
            for _ in range(repeats):
                run()
            if round_:
                seconds[name].append(elapsed() / repeats)
    return seconds


def _stopwatch() -> Callable[[], float]:
    """Started now; call it for the seconds until all work is done, on the GPU too once CUDA is in use."""
    if not torch.cuda.is_initialized():
        start = time.perf_counter()
        return lambda: time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    first.record()

    def elapsed() -> float:
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000

    return elapsed


def peak_memory(run: Callable[[], object], device: str = "cpu", kept: int | None = None) -> float | None:
    """MiB that a run needs at its peak beyond what was there before and what it returns; None where nobody counts.

    `kept` replaces the size in bytes of what it returns.
    """
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        output = run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # else memory that was freed and is reused would not count
        try:
            Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
        except OSError:
            run()
            return None
        start = _resident("VmRSS")
        output = run()
        peak = _resident("VmHWM")
    return max(0.0, (peak - start - (_bytes(output, device) if kept is None else kept)) / 2**20)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def _bytes(output: Any, device: str) -> int:
    """Size of the tensors, arrays and tables in what a run returned, those on the device that is watched."""
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, (list, tuple)):
        return sum(_bytes(part, device) for part in output)
    if dataclasses.is_dataclass(output):
        return sum(_bytes(getattr(output, field.name), device) for field in dataclasses.fields(output))
    place = output.device.type if isinstance(output, torch.Tensor) else "cpu"
    return int(getattr(output, "nbytes", 0)) if place == device else 0


def ratio(values: Sequence[float], baseline: Sequence[float]) -> float:
    """The median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(values, baseline, strict=True))


def row(
    benchmark: str,
    case: str,
    values: Sequence[float],
    unit: str,
    baseline: str = "",
    ratio: float | None = None,
    limit: float | None = None,
    config: str = "",
    error: float | None = None,
    memory: float | None = None,
    memory_limit: float | None = None,
    device: str | None = None,
) -> dict:
    """A row of the CSV from values that were measured: seconds, MiB or whatever the unit says."""
    values, threads = sorted(values), torch.get_num_threads()
    if device == "cpu" and threads < (os.cpu_count() or 1):
        config = f"{config} threads={threads}".strip()
    percentiles = (
        values[int(0.2 * (len(values) - 1))],
        statistics.median(values),
        values[int(0.8 * (len(values) - 1) + 0.5)],
    )
    numbers = (
        *("" if ratio is None else f"{ratio:.3f}", *(f"{value:.4g}" for value in percentiles), unit, len(values)),
        *("" if limit is None else limit, "" if error is None else f"{error:.3g}"),
        *("" if memory is None else f"{memory:.4g}", "" if memory_limit is None else memory_limit),
    )
    triton = version("triton") if importlib.util.find_spec("triton") else ""
    versions = platform.python_version(), torch.__version__, triton, hardsight.__version__
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    fields = (day, benchmark, case, config, baseline, *numbers, hardware(device), *versions)
    return dict(zip(COLUMNS, fields, strict=True))


def hardware(device: str | None = None) -> str:
    """The GPU, if there is one and `device` does not name the processor; else the processor and its cores."""
    if torch.cuda.is_available() and device != "cpu":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return f"{names[0].partition(':')[2].strip() if names else platform.machine()}, {os.cpu_count()} cores"


def failures(r: dict) -> list[str]:
    """What is wrong with a row: over its limit, over its memory limit, or outside the stated tolerance."""
    value = float(r["ratio"] or r["p50"])
    checks = {
        "OVER": r["limit"] != "" and value > float(r["limit"]),
        "MEMORY": "" not in (r["memory_limit"], r["memory_mib"]) and float(r["memory_mib"]) > float(r["memory_limit"]),
        "WRONG": r["error"] != "" and not float(r["error"]) <= 1,  # NaN is wrong, too
    }
    return [name for name, failed in checks.items() if failed]


def describe(r: dict) -> str:
    """A row in one line."""
    parts = [f"{r['benchmark']:<11}{r['case']:<34}{r['config']:<44}{r['p50']:>9} {r['unit']:<4}"]
    parts += [f"{r['ratio']} × {r['baseline']}"] if r["ratio"] else []
    texts = {"limit": "limit {}", "error": "error {} of the tolerance", "memory_mib": "{} MiB"}
    parts += [text.format(r[name]) for name, text in texts.items() if r[name] != ""]
    return "  ".join(parts + failures(r))


def append(rows: Iterable[dict], path: Path = RESULTS) -> None:
    """Add rows to a CSV."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def read_results(path: Path = RESULTS) -> list[dict]:
    """All rows of a CSV, as strings."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
