"""What people said of a run's samples and how its scores agree with it, as files: ``RUN/alignment/``.

::

    people.parquet        (id)                  hsf, answers, entropy, majority: what people said
    rows.parquet          (score, coefficient, bin)  correlations with intervals
    leaderboard.parquet   (score)               which score agrees best
    differences.parquet   (first, second, coefficient)  tests of one score against others
    summary.json          where the answers come from, ceiling, hypotheses in words; written last
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.correlation import COEFFICIENTS
from hardsight.errors import HardsightError, InputError, StateError
from hardsight.extras import printable
from hardsight.printing import interval, text_table
from hardsight.runs import (
    ALIGNMENT,
    SUMMARY,
    check_replaceable,
    damage_errors,
    disk_errors,
    is_alignment,
    is_number,
    write_json,
    write_whole,
)
from hardsight.table import SampleTable
from hardsight.untrusted import check_regular, check_table, read_json

# What a page needs of each table, and of the summary.
_NEEDED = {
    "people": ("id", "hsf"),
    "rows": ("score", "coefficient", "bin", "value", "low", "high"),
    "leaderboard": ("score", "kind"),
    "differences": ("words",),
}
_TABLES = tuple(_NEEDED)
_TEXTS = ("id", "score", "coefficient", "bin", "kind", "words", "first", "second", "test")


class _Ceiling(TypedDict):
    coefficient: str
    ceiling: float
    low: float
    high: float


class _Hypothesis(TypedDict):
    name: str
    verdict: str
    words: str


class _Summary(TypedDict):
    source: str
    words: str
    notes: NotRequired[list[str]]
    samples: int
    epoch: int | None
    other: NotRequired[int | None]
    coefficient: str
    ceilings: list[_Ceiling]
    hypotheses: list[_Hypothesis]


@dataclass(frozen=True)
class Aligned:
    """A run beside people.

    Attributes:
        people: One row per sample that people were asked about: ``id``, ``hsf``, where answers are known ``answers``
            (how many), ``entropy`` (of the votes, nats) and ``majority`` (the class most chose, −1 where tied).
        rows: What `align` found.
        leaderboard: What `leaderboard` found.
        differences: The first score against each of the others, by coefficient.
        summary: The rest, as plain values: ``source``, ``words``, ``notes``, ``samples``, ``epoch``, ``merged``,
            ``ceilings``, ``hypotheses`` and more.
    """

    people: pa.Table
    rows: pa.Table
    leaderboard: pa.Table
    differences: pa.Table
    summary: dict[str, Any]

    def text(self, most: int = 12) -> str:
        """The leaderboard (`most` scores, and those that are compared), the tests and the notes, for a terminal."""
        board, tests = self.leaderboard.to_pylist(), self.differences.to_pylist()
        # Wherever AVH is compared with anything, the bare angle stands beside it.
        compared = {"angle", *(name for test in tests for name in (test["first"], test["second"]))}
        shown = [row for at, row in enumerate(board) if at < most or row["score"] in compared]
        title = "agreement (1 is the most)"
        rows = [
            {title: row["score"]} | {c: interval(row[c], row[f"{c}_low"], row[f"{c}_high"]) for c in COEFFICIENTS}
            for row in shown
        ]
        ceilings = {c["coefficient"]: interval(c["ceiling"], c["low"], c["high"]) for c in self.summary["ceilings"]}
        rows += [{title: "ceiling"} | {c: ceilings.get(c, "–") for c in COEFFICIENTS}] if ceilings else []
        lines = [f"people: {printable(self.summary['source'])}: {printable(self.summary['words'])}", *text_table(rows)]
        if len(shown) < len(board):
            lines.append(f"… and {len(board) - len(shown):,} more in leaderboard.parquet")
        lines += [test["words"] for test in tests]
        lines += ["{name}: {verdict}. {words}".format(**outcome) for outcome in self.summary["hypotheses"]]
        return "\n".join([*lines, *(f"note: {printable(note)}" for note in self.summary["notes"])])


def last_epoch(table: SampleTable) -> int | None:
    """The epoch that a table of a recorded run shows; None for a run that was scored."""
    recorded = table.meta.recorded
    return recorded.epochs[-1] if recorded and recorded.epochs else None


def write_alignment(run: str | Path, found: Aligned) -> Path:
    """Write ``RUN/alignment/``, whole or not at all; an earlier one is replaced.

    Args:
        run: The run folder.
        found: What is written.

    Returns:
        The folder that was written.
    """
    folder = Path(run) / ALIGNMENT
    check_replaceable(folder / SUMMARY, is_alignment)
    with disk_errors(folder):
        (folder / SUMMARY).unlink(missing_ok=True)  # until it is back there is no alignment, rather than half of two
        for name in _TABLES:
            write_whole(folder / f"{name}.parquet", partial(pq.write_table, getattr(found, name)))
        write_json(folder / SUMMARY, found.summary)
    return folder


def read_alignment(run: str | Path) -> Aligned | None:
    """What `write_alignment` wrote into a run; None where there is none, or one that was never finished.

    Args:
        run: The run folder.
    """
    folder = Path(run) / ALIGNMENT
    if not (folder / SUMMARY).is_file():
        return None
    try:
        return _read(folder)
    except HardsightError as error:
        raise StateError(f"{str(error).removesuffix('.')}; run hardsight align again.") from error


def _read(folder: Path) -> Aligned:
    summary = read_json(folder / SUMMARY, _Summary)
    return Aligned(**{name: _read_table(folder / f"{name}.parquet", name) for name in _TABLES}, summary=summary)


def _read_table(file: Path, kind: str) -> pa.Table:
    check_regular(file, "RUN")
    with damage_errors(file):
        table = check_table(pq.read_table(file))
        for name in {*table.column_names, *_NEEDED[kind]}:
            type_ = table.schema.field(name).type
            fits = pa.types.is_string(type_) or pa.types.is_null(type_) if name in _TEXTS else is_number(type_)
            if not fits:
                raise InputError(f"{name} must be {'text' if name in _TEXTS else 'numbers'}, got {type_}")
    return table
