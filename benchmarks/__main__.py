"""``python -m benchmarks NAME …``, or ``all``; without a name it lists them.

Each case is checked against float64 on inputs of a new seed, then timed beside its baseline; rows are appended to
``results.csv``. The exit code is 1 if a limit was exceeded, a check failed or a benchmark stopped with an error.
"""

from __future__ import annotations

import argparse
import importlib
import json
import secrets
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import RESULTS, Comparison, Skipped, append, describe, failures, measure

# Benchmark: the module of benchmarks/ that has a function of this name. Modules are imported when they are needed.
BENCHMARKS = {
    "scores": "scores",
    "sweep": "sweep",
    "images": "sweep",
    "losses": "losses",
    "large_heads": "large_heads",
    "folders": "folders",
    "startup": "commands",
    "demo": "commands",
    "report": "report",
    "records": "records",
    "recorder": "engine",
    "alignment": "alignment",
    "selection": "selection",
    "evaluation": "evaluation",
}


def load(name: str) -> Callable:
    """The function of a benchmark; `Skipped` where a package that it imports is not installed."""
    try:
        return getattr(importlib.import_module(f"benchmarks.{BENCHMARKS[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("benchmarks", "hardsight"):
            raise
        raise Skipped(f"needs {error.name}") from None


def run(name: str, *, seed: int, path: Path | None = RESULTS, as_json: bool = False) -> bool:
    """Measure a benchmark, print its rows and append them to the CSV; whether all of it is as it should be."""
    fine = True
    try:
        for item in load(name)():
            try:
                rows = measure(name, item, seed) if isinstance(item, Comparison) else [item]
            except Exception:  # the other comparisons are still worth having
                traceback.print_exc()
                print(f"{name:<11}FAILED at {item.config or item.cases[0].name}, seed {seed}", flush=True)
                fine = False
                continue
            for r in rows:
                print(json.dumps(r) if as_json else describe(r), flush=True)
                fine &= not failures(r)
            if path:
                append(rows, path)
    except Skipped as reason:
        print(f"{name:<11}skipped: {reason}", file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
        print(f"{name:<11}FAILED, seed {seed}", flush=True)
        fine = False
    return fine


def listing() -> str:
    """All benchmarks, one line each."""
    lines = []
    for name in BENCHMARKS:
        try:
            lines.append(f"  {name:<12}{(load(name).__doc__ or '').splitlines()[0]}")
        except Skipped as reason:
            lines.append(f"  {name:<12}(cannot run here: {reason})")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n\n")[2])
    parser.add_argument("names", nargs="*", metavar="NAME", help="or `all`; without a name, they are listed")
    parser.add_argument("--dry", action="store_true", help="write no CSV")
    parser.add_argument("--csv", type=Path, default=RESULTS, help="file that rows are appended to")
    parser.add_argument("--json", action="store_true", help="print rows as JSON, one per line")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="of the checks; a new one in every run")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {*BENCHMARKS, "all"}:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}, and all.")
    if not options.names:
        print(f"{parser.format_usage()}\n{listing()}")
        return 0
    names = list(BENCHMARKS) if "all" in options.names else options.names
    path = None if options.dry else options.csv
    results = [run(name, seed=options.seed, path=path, as_json=options.json) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
