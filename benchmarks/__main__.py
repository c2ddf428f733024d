"""``python -m benchmarks NAME …``, or ``all``; without a name it lists them.

Each case is checked against float64 on inputs of a new seed, then timed beside its baseline; rows are appended to
``results.csv``. The exit code is 1 if a limit was exceeded, a check failed or a benchmark stopped with an error.
"""

from __future__ import annotations

import argparse
import importlib
import secrets
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import RESULTS, Comparison, Skipped, append, describe, failures, measure

# Module of benchmarks/: its functions that are benchmarks. Modules are imported when they are needed.
MODULES = {
    "scores": ("scores", "sweep"),
    "losses": ("losses", "large_heads"),
    "files": ("folders", "images"),
    "budgets": ("startup", "demo", "alignment", "selection", "evaluation"),
    "report": ("report",),
    "training": ("recorder", "records"),
    "faults": ("faults",),
    "otherfaults": ("otherfaults",),
    "sizing": ("sizing",),
    "large": ("large",),
}
BENCHMARKS = {name: module for module, names in MODULES.items() for name in names}


def load(name: str) -> Callable:
    """The function of a benchmark."""
    return getattr(importlib.import_module(f"benchmarks.{BENCHMARKS[name]}"), name)


def run(name: str, seed: int, path: Path | None) -> bool:
    """Measure a benchmark, print its rows and append them to the CSV; whether all of it is as it should be."""
    fine = True
    try:
        for item in load(name)():
            try:
                rows = measure(name, item, seed) if isinstance(item, Comparison) else [item]
            except Exception:  # the other comparisons are still worth having
                traceback.print_exc()
                print(f"{name:<12}FAILED at {item.config or item.cases[0].name}, seed {seed}", flush=True)
                fine = False
                continue
            print(*map(describe, rows), sep="\n", flush=True)
            fine &= not any(map(failures, rows))
            if path:
                append(rows, path)
    except Skipped as reason:
        print(f"{name:<12}skipped: {reason}", file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
        print(f"{name:<12}FAILED, seed {seed}", flush=True)
        fine = False
    return fine


def listing() -> str:
    """All benchmarks, one line each."""
    return "\n".join(f"  {name:<12}{(load(name).__doc__ or '').splitlines()[0]}" for name in BENCHMARKS)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n\n")[2])
    parser.add_argument("names", nargs="*", metavar="NAME", help="or `all`; without a name, they are listed")
    parser.add_argument("--dry", action="store_true", help="write no CSV")
    parser.add_argument("--csv", type=Path, default=RESULTS, help="file that rows are appended to")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="of the checks; a new one in every run")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {*BENCHMARKS, "all"}:
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}, and all.")
    if not options.names:
        print(f"{parser.format_usage()}\n{listing()}")
        return 0
    names = list(BENCHMARKS) if "all" in options.names else options.names
    results = [run(name, options.seed, None if options.dry else options.csv) for name in names]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
