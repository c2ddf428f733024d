"""What people said of a run's samples and how its scores agree with it, as files: ``RUN/alignment/``.

::

    people.parquet        (id)                  hsf, answers, entropy, majority: what people said
    rows.parquet          (score, coefficient, bin)  correlations with intervals
    leaderboard.parquet   (score)               which score agrees best
    differences.parquet   (first, second, coefficient)  tests of one score against others
    summary.json          where the answers come from, ceiling, hypotheses in words; written last
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.errors import StateError
from hardsight.replaceable import check_replaceable, is_alignment
from hardsight.runfolder import ALIGNMENT, SUMMARY, disk_in_words, write_json, write_whole
from hardsight.table import SampleTable

_TABLES = ("people", "rows", "leaderboard", "differences")
_TOLD = {"source", "words", "samples", "epoch", "coefficient", "ceilings", "hypotheses"}  # what a page needs


@dataclass(frozen=True)
class Aligned:
    """A run beside people.

    Attributes:
        people: One row a sample that people were asked about: ``id``, ``hsf``, and where answers are known ``answers``
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


def last_epoch(table: SampleTable) -> int | None:
    """The epoch that a table of a recorded run shows; None for a run that was scored."""
    epochs = (table.meta.get("recorded") or {}).get("epochs")
    return int(epochs[-1]) if epochs else None


def write_alignment(run: str | Path, found: Aligned) -> Path:
    """Write ``RUN/alignment/``, whole or not at all; an earlier one is replaced.

    Args:
        run: The run folder.
        found: What is written.

    Returns:
        The folder that was written.
    """
    folder, token = Path(run) / ALIGNMENT, secrets.token_hex(4)
    check_replaceable(folder / SUMMARY, is_alignment)
    with disk_in_words(folder):
        folder.mkdir(exist_ok=True)
        (folder / SUMMARY).unlink(missing_ok=True)  # until it is back there is no alignment, rather than half of two
        for name in _TABLES:
            write_whole(folder / f"{name}.parquet", partial(pq.write_table, getattr(found, name)), token)
        write_json(folder / SUMMARY, found.summary, token)
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
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        tables = {name: pq.read_table(folder / f"{name}.parquet") for name in _TABLES}
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise StateError(f"RUN: {folder} is damaged ({error}); run hardsight align again.") from error
    if not isinstance(summary, dict) or not summary.keys() >= _TOLD:
        raise StateError(f"RUN: {folder / SUMMARY} is damaged: it lacks what it must say; run hardsight align again.")
    return Aligned(**tables, summary=summary)
