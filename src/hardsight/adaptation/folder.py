"""What self-training leaves on disk, and how a killed one goes on.

::

    run/adaptation.json            what adapts to what and how; a later start that says the same resumes
    run/source/                    the training of the source model, where it was trained here
    run/rounds/01/selection.parquet  (id)  what the network of the round before chose; see `selection_table`
    run/rounds/01/training/        the retraining on it, a training run: checkpoint.pt holds the weights
    run/rounds.parquet             (round) what `hardsight.adaptation.rounds` says of each round that is whole
    run/test/                      the last network's scores of the test samples, a run of its own
    run/summary.json               last round, oracle, what validators pick; written last

Files are written under a temporary name and renamed. The selection of a round is there before the row of the round
before it: between any two files the same call goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.adaptation.rounds import schema
from hardsight.errors import MissingPathError, StateError
from hardsight.runs import SUMMARY, disk_errors, remove_files, sweep, write_json, write_whole
from hardsight.runs import begin as begin_folder
from hardsight.runs import discard as discard_run
from hardsight.training.checkpoint import discard as discard_training

PLAN, ROUNDS, TABLE = "adaptation.json", "rounds", "rounds.parquet"
SOURCE, TEST, TRAINING, SELECTION = "source", "test", "training", "selection.parquet"
_SELECTION = re.compile(re.escape(SELECTION))


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool, locks: ExitStack) -> list[dict[str, Any]]:
    """Make the folder ready, with its lock in `locks`; returns the rows of the rounds that are whole."""
    lock = begin_folder(
        path / PLAN,
        plan,
        "adaptation",
        finished=(path / SUMMARY).exists,
        discard=lambda: _discard(path),
        overwrite=overwrite,
    )
    locks.enter_context(lock)
    for folder in (path, *path.glob(f"{ROUNDS}/*/")):
        sweep(folder)
    return read_rounds(path).to_pylist() if (path / TABLE).exists() else []


def _discard(path: Path) -> None:
    for name in (SUMMARY, TABLE):  # first what would let the rest be resumed
        (path / name).unlink(missing_ok=True)
    for folder in (path / ROUNDS).glob("*/"):
        discard_training(folder / TRAINING)
        remove_files(folder, _SELECTION)
    remove_files(path / ROUNDS, _SELECTION)
    discard_training(path / SOURCE)
    discard_run(path / TEST)


def round_folder(path: Path, number: int) -> Path:
    """The folder of a round."""
    return path / ROUNDS / f"{number:02d}"


def read_rounds(run: str | Path) -> pa.Table:
    """A row per round of a run of self-training, as far as it is whole; round 0 is the source model.

    Args:
        run: The run folder.
    """
    return _read(Path(run) / TABLE)


def read_selection(run: str | Path, number: int) -> pa.Table:
    """What was chosen for a round, a row per target sample.

    Args:
        run: The run folder.
        number: Of the round, from 1.
    """
    return _read(round_folder(Path(run), number) / SELECTION)


def _read(file: Path) -> pa.Table:
    if not file.is_file():
        raise MissingPathError(f"RUN: there is no {file}; run hardsight adapt first.")
    try:
        return pq.read_table(file)
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise StateError(f"RUN: {file} is damaged ({error}); bring it back, or adapt again with --overwrite.") from None


def write_rounds(path: Path, rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> None:
    """The rows of all rounds that are whole; the names of the classes are in the metadata, as JSON."""
    told = schema().with_metadata({"classes": json.dumps(names)})
    _write(path / TABLE, pa.Table.from_pylist(list(rows), schema=told))


def write_selection(path: Path, number: int, table: pa.Table) -> None:
    """What was chosen for a round. A training that another selection had begun there would stand in the way."""
    discard_training(round_folder(path, number) / TRAINING)
    _write(round_folder(path, number) / SELECTION, table)


def _write(file: Path, table: pa.Table) -> None:
    with disk_errors(file.parent):
        write_whole(file, partial(pq.write_table, table))


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """The end of a run: it is whole if and only if this is there."""
    with disk_errors(path):
        write_json(path / SUMMARY, summary)
