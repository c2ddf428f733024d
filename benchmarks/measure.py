"""Interleaved timing, and rows appended to a committed CSV with what they were measured on."""

from __future__ import annotations

import csv
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

import hardsight

RESULTS = Path(__file__).parent / "results.csv"
COLUMNS = (
    *("date", "benchmark", "case", "baseline", "ratio", "median", "p20", "p80", "unit", "n", "limit"),
    *("hardware", "python", "torch", "hardsight"),
)


def interleaved(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every case in every round; one case after the other, so that a slow moment hits them all."""
    for run in cases.values():  # warm
        run()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratios(benchmark: str, seconds: dict[str, list[float]], baseline: str, limits: dict[str, float]) -> list[dict]:
    """One row a case: median seconds with spread, and the median of the ratios round by round."""
    return [
        row(
            benchmark,
            name,
            values,
            "s",
            baseline,
            statistics.median(a / b for a, b in zip(values, seconds[baseline], strict=True)),
            limits.get(name),
        )
        for name, values in seconds.items()
    ]


def row(
    benchmark: str,
    case: str,
    values: list[float],
    unit: str,
    baseline: str = "",
    ratio: float | None = None,
    limit: float | None = None,
) -> dict:
    values = sorted(values)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "benchmark": benchmark,
        "case": case,
        "baseline": baseline,
        "ratio": "" if ratio is None else f"{ratio:.3f}",
        "median": f"{statistics.median(values):.4g}",
        "p20": f"{values[int(0.2 * (len(values) - 1))]:.4g}",
        "p80": f"{values[int(0.8 * (len(values) - 1) + 0.5)]:.4g}",
        "unit": unit,
        "n": len(values),
        "limit": "" if limit is None else limit,
        "hardware": hardware(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "hardsight": hardsight.__version__,
    }


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    names = [line for line in _cpuinfo() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def report(rows: list[dict], save: bool) -> bool:
    """Print the rows, append them to the CSV, and say whether every limit was kept."""
    kept = True
    for r in rows:
        limit = f"  limit {r['limit']}" if r["limit"] != "" else ""
        value = float(r["ratio"] or r["median"])
        over = r["limit"] != "" and value > float(r["limit"])
        kept &= not over
        times = f"{r['ratio']} × {r['baseline']}" if r["ratio"] else ""
        name = f"{r['benchmark']:<11}{r['case']:<34}{r['median']:>9} {r['unit']:<4}"
        print(f"{name}{times:<28}{limit}{'  OVER' if over else ''}")
    if save:
        new = not RESULTS.exists()
        with RESULTS.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if new:
                writer.writeheader()
            writer.writerows(rows)
    return kept
