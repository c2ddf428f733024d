"""Rows of `benchmarks.loss_studies` as a table: ``python -m benchmarks.loss_tables ROWS.csv [COLUMN …]``

Means ± standard deviations over seeds, and in brackets the mean difference to cross-entropy with the same seeds and
learning rate, ± the half width of its 95 % interval (Student's t, paired; not corrected for the number of rows).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from scipy import stats

SHARES = ("accuracy", "best", "probe", "homogeneity", "completeness", "kmeans_homogeneity", "kmeans_completeness")
DEFAULT = ("accuracy", "probe", "margin", "energy", "gradient", "kmeans_homogeneity")


def cell(rows: pd.Series, reference: pd.Series) -> str:
    """Mean ± spread, and the paired difference to the reference."""
    factor, digits = (100, 2) if rows.name in SHARES else (1, 2)
    rows, reference = factor * rows, factor * reference
    text = f"{rows.mean():.{digits}f} ± {rows.std():.{digits}f}"
    apart = (rows - reference).dropna()
    if len(apart) < 2 or not apart.abs().max():
        return text
    half = stats.t.ppf(0.975, len(apart) - 1) * apart.std() / len(apart) ** 0.5
    return f"{text} ({apart.mean():+.{digits}f} ± {half:.{digits}f})"


def table(path: Path, columns: list[str]) -> str:
    rows = pd.read_csv(path).set_index("seed")
    lines = [["loss", "rate", "n", *columns], ["---"] * (len(columns) + 3)]
    for (rate, loss), own in rows.groupby(["rate", "loss"], sort=False):
        baseline = rows[(rows["rate"] == rate) & (rows["loss"] == "ce")]
        cells = [cell(own[column], baseline[column]) for column in columns]
        lines.append([f"`{loss}`", f"{rate:g}", str(len(own)), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    print(table(Path(sys.argv[1]), sys.argv[2:] or list(DEFAULT)))


if __name__ == "__main__":
    main()
