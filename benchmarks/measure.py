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
    """Something to time."""

    name: str
    run: Callable[[], object]  # what it returns counts as output, not as extra memory
    baseline: str = ""  # the case of the same comparison that its time is divided by
    limit: float | None = None  # largest ratio; without a baseline, the largest median in seconds
    check: Callable[[int], float] | None = None  # largest error on inputs of this seed, in units of the tolerance
    memory_limit: float | None = None  # MiB at the peak, beyond inputs and outputs


@dataclass(frozen=True)
class Comparison:
    """Cases that are timed in turn, the baseline among them."""

    cases: Sequence[Case]
    config: str = ""  # what they have in common, as key=value words: N=131072 D=2048 C=1000 dtype=bfloat16
    rounds: int = 21
    repeats: int = 1  # runs in one timing, for work of microseconds
    device: str = "cpu"  # or cuda: whose memory is watched, and which hardware the row names


def measure(benchmark: str, comparison: Comparison, seed: int) -> list[dict]:
    """Check every case with this seed, watch the memory of one run, time them in turn; one row per case."""
    cases, device = comparison.cases, comparison.device
    errors = [case.check(seed) if case.check else None for case in cases]
    if device == "cuda":
        torch.cuda.empty_cache()  # what the checks left
    # The first run compiles and fills caches.
    memory = [[peak_memory(case.run, device) for _ in range(2)][1] for case in cases]
    seconds = interleaved({case.name: case.run for case in cases}, comparison.rounds, comparison.repeats)
    rows = []
    for case, error, peak in zip(cases, errors, memory, strict=True):
        against = ratio(seconds[case.name], seconds[case.baseline]) if case.baseline else None
        limits = {"limit": case.limit, "memory_limit": case.memory_limit}
        columns = {"baseline": case.baseline, "ratio": against, "error": error, "memory_mib": peak, **limits}
        rows.append(row(benchmark, case.name, seconds[case.name], "s", comparison.config, device, **columns))
    return rows


def interleaved(cases: dict[str, Callable[[], object]], rounds: int, repeats: int = 1) -> dict[str, list[float]]:
    """Seconds of one run of every case in every round; one case after the other, after a run to warm up."""
    laps = [{name: timed(run, repeats) for name, run in cases.items()} for _ in range(rounds + 1)]
    return {name: [lap[name] for lap in laps[1:]] for name in cases}


def timed(run: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of one run until all work is done, on the GPU too once CUDA is in use."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if torch.cuda.is_initialized() else []
    if events:
        torch.cuda.synchronize()
        events[0].record()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    if not events:
        return (time.perf_counter() - start) / repeats
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1000 / repeats


def peak_memory(run: Callable[[], object], device: str = "cpu", kept: int | None = None) -> float | None:
    """MiB at the peak of a run beyond what was there and what it returns (or `kept` bytes); None where unknown."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start, output = torch.cuda.memory_allocated(), run()
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
        start, output = _resident("VmRSS"), run()
        peak = _resident("VmHWM")
    return max(0.0, (peak - start - (_bytes(output, device) if kept is None else kept)) / 2**20)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def _bytes(output: Any, device: str) -> int:
    """Size of the tensors, arrays and tables in what a run returned, those on the device that is watched."""
    if dataclasses.is_dataclass(output):
        output = [getattr(output, field.name) for field in dataclasses.fields(output)]
    if isinstance(output, (list, tuple, dict)):
        return sum(_bytes(part, device) for part in (output.values() if isinstance(output, dict) else output))
    place = output.device.type if isinstance(output, torch.Tensor) else "cpu"
    return int(getattr(output, "nbytes", 0)) if place == device else 0


def ratio(values: Sequence[float], baseline: Sequence[float]) -> float:
    """The median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(values, baseline, strict=True))


def row(
    benchmark: str, case: str, values: Sequence[float], unit: str, config: str = "", device: str = "", **columns: Any
) -> dict:
    """A row of the CSV from values that were measured, in seconds, MiB or another unit; other columns by name."""
    values, threads, last = sorted(values), torch.get_num_threads(), len(values) - 1
    if device == "cpu" and threads < (os.cpu_count() or 1):
        config = f"{config} threads={threads}".strip()
    spread = {"p20": values[int(0.2 * last)], "p50": statistics.median(values), "p80": values[int(0.8 * last + 0.5)]}
    columns |= spread | {"benchmark": benchmark, "case": case, "config": config, "unit": unit, "n": len(values)}
    columns |= {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "hardware": hardware(device)}
    columns |= {"python": platform.python_version(), "torch": torch.__version__, "hardsight": hardsight.__version__}
    columns["triton"] = version("triton") if importlib.util.find_spec("triton") else ""
    styles = {"ratio": ".3f", "error": ".3g", "memory_mib": ".4g", **dict.fromkeys(spread, ".4g")}
    texts = {name: format(v, styles.get(name, "")) for name, v in columns.items() if v is not None}
    if unknown := texts.keys() - set(COLUMNS):
        raise TypeError(f"no column {', '.join(unknown)}")
    return {name: texts.get(name, "") for name in COLUMNS}


def hardware(device: str = "") -> str:
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
    parts = [f"{r['benchmark']:<12}{r['case']:<34}{r['config']:<44}{r['p50']:>9} {r['unit']:<4}"]
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
