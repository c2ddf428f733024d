"""Are the numbers of two run folders the same? Ids must be equal, columns equal within a tolerance.

    python benchmarks/compare_runs.py OLD NEW [--tolerance 1e-9]

It reads the Parquet files directly, so that two versions of hardsight can be compared: run the same commands with
both, then this. Every folder of tables below OLD (scores, vectors, dynamics) must have its counterpart below NEW.
Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEYS = ("id", "model", "epoch")


def read_folder(folder: Path) -> pa.Table:
    """All rows of the Parquet files in a folder, sorted by key."""
    files = sorted(file for file in folder.glob("*.parquet") if not file.name.endswith(".heads.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    return rows.sort_by([(key, "ascending") for key in KEYS if key in rows.column_names])


def largest_difference(a: pa.ChunkedArray, b: pa.ChunkedArray) -> float:
    """0 where two columns are equal, infinity where they cannot be compared, else max |a − b| / max(1, |a|)."""
    if pa.types.is_list(a.type) or pa.types.is_fixed_size_list(a.type):
        a, b = (pa.chunked_array([column.combine_chunks().flatten()]) for column in (a, b))
    if not (pa.types.is_floating(a.type) and pa.types.is_floating(b.type)):
        return 0.0 if a.to_pylist() == b.to_pylist() else np.inf
    x, y = (np.asarray(column.fill_null(np.nan), dtype=np.float64) for column in (a, b))
    if x.shape != y.shape or not np.array_equal(np.isnan(x), np.isnan(y)):
        return np.inf
    gap = np.where((x == y) | np.isnan(x), 0.0, np.abs(x - y) / np.maximum(1.0, np.abs(x)))
    return float(gap.max(initial=0.0))


def compare_folders(old: Path, new: Path, tolerance: float) -> bool:
    """Print one line per column that differs, and one per folder; whether all agree."""
    same = True
    folders = sorted({file.parent.relative_to(old) for file in old.rglob("*.parquet")})
    for folder in folders:
        if not list((new / folder).glob("*.parquet")):
            print(f"{folder}: missing in {new}")
            same = False
            continue
        a, b = read_folder(old / folder), read_folder(new / folder)
        equal_ids = a["id"].to_pylist() == b["id"].to_pylist() if "id" in a.column_names else True
        worst = 0.0
        for name in sorted({*a.column_names, *b.column_names}):
            both = name in a.column_names and name in b.column_names
            gap = largest_difference(a[name], b[name]) if both and equal_ids else np.inf
            worst = max(worst, gap)
            if gap > tolerance:
                print(f"{folder}: {name} differs by {gap:.3g}" if both else f"{folder}: {name} is in one of them only")
        verdict = "same" if worst <= tolerance else "DIFFERENT"
        print(f"{folder}: {len(a):,} rows, {len(a.column_names)} columns, largest difference {worst:.3g}: {verdict}")
        same &= worst <= tolerance
    return same


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-9)
    options = parser.parse_args()
    raise SystemExit(not compare_folders(options.old, options.new, options.tolerance))
