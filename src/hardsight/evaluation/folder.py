"""What an evaluation leaves on disk, and how a killed one resumes.

::

    out/evaluation.json     runs (name, group, seed, network …), data, questions and options, how it was made
    out/parts/              the answer of each run to each question, written as soon as it is computed
    out/rows.parquet, .csv  one number per row: run, group, seed, and the keys of `hardsight.questions.Row`; the numbers
                            of a group's ensemble have no run ("") and no seed
    out/tests.parquet, .csv one comparison per row: a number of a group against the first group; see `statistics.py`
    out/points.parquet      curves: run, group, seed, and the keys of `hardsight.questions.Point`
    out/samples/*.parquet   a file per run: id, label, pred, avh, and the columns of its answers, named
                            ``question/metric:score@level``
    out/notes.json          what must be known to read the numbers: a list of `hardsight.questions.Note`
    out/table.tex           the numbers of the groups side by side
    out/maps/               class activation maps, with the question explanation: see `maps.py`

A part is two files under one name, and a third one for the scores of OOD data. Its name is a hash of what decides the
answer: the network, the data, the labels, the question, its version and its options. So the same call resumes, and
more runs or questions join what is there. Files are written under a temporary name and renamed; a part is there if
and only if its ``.json`` is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from hardsight import untrusted
from hardsight.errors import StateError
from hardsight.questions import Answer, Note
from hardsight.runs import begin as begin_folder
from hardsight.runs import disk_errors, remove_files, sweep, write_json, write_text, write_whole

PLAN, PARTS, ROWS, TESTS, POINTS, NOTES = "evaluation.json", "parts", "rows", "tests", "points", "notes.json"
TABLE, SAMPLES, MAPS, PAGE = "table.tex", "samples", "maps", "comparison.html"
OLD_NOTES = "words.json"  # written until notes had a kind
_TABLES = tuple(f"{name}.{end}" for name in (ROWS, TESTS, POINTS) for end in ("parquet", "csv"))
_RESULTS = (*_TABLES, NOTES, OLD_NOTES, TABLE, PAGE)

_OOD = "scores-"  # before the name of a part: its scores of OOD data

_TEXT = dict.fromkeys(("question", "metric", "score", "on"), pa.string())
_OF = {"run": pa.string(), "group": pa.string(), "seed": pa.int64()}
_NUMBERS = dict.fromkeys(("level", "value", "low", "high"), pa.float64()) | {"n": pa.int64(), "better": pa.string()}
SCHEMAS = {
    ROWS: pa.schema(_OF | _TEXT | _NUMBERS),
    POINTS: pa.schema(
        _OF | dict.fromkeys(("question", "curve", "score", "on"), pa.string())
        | dict.fromkeys(("x", "y", "low", "high"), pa.float64()) | {"n": pa.int64()}
    ),
    TESTS: pa.schema(
        _TEXT | {"level": pa.float64(), "better": pa.string(), "group": pa.string(), "baseline": pa.string()}
        | {"mean": pa.float64(), "sd": pa.float64(), "n": pa.int64()}
        | {"baseline_mean": pa.float64(), "baseline_sd": pa.float64(), "baseline_n": pa.int64()}
        | dict.fromkeys(("difference", "low", "high", "p", "p_holm"), pa.float64())
        | dict.fromkeys(("test", "reason", "how"), pa.string())
    ),
}  # fmt: skip

# Names of the files in its folders; files of other names are not its own.
INSIDE = re.compile(r"[a-z-]+-[0-9a-f]{16,}\.(json|parquet)|\d{2}-[A-Za-z0-9._-]+\.(parquet|png)|index\.json")


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool) -> ExitStack:
    """Prepare and lock the folder: an evaluation of the same data grows, one of other runs or data is refused or, with
    `overwrite`, discarded. An unfinished one of the same plan is resumed even then. Close the lock at the end.
    """
    with begin_folder(
        path / PLAN,
        {**plan, "whole": False},
        "evaluation",
        finished=lambda: bool(stored_plan(path).get("whole")),
        discard=lambda: _discard(path),
        differing=partial(_differing, path),
        overwrite=overwrite,
    ) as lock:
        for folder in (path, *path.glob("*/")):
            sweep(folder)
        return lock.pop_all()


def _differing(path: Path, stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Data that differ, and runs whose results would be lost; more runs and questions join what is there."""
    names = [run["name"] for run in plan["runs"]]
    lost = [f"run {run['name']}" for run in stored.get("runs", ()) if run["name"] not in names and has_results(path)]
    return [*(["data"] if stored.get("data") != plan["data"] else []), *lost]


def _discard(path: Path) -> None:
    for name in _RESULTS:
        (path / name).unlink(missing_ok=True)
    for name in (PARTS, SAMPLES, MAPS):
        remove_files(path / name, INSIDE)


def has_results(path: Path) -> bool:
    """Whether an evaluation was finished there once."""
    return (path / f"{ROWS}.parquet").is_file()


def stored_plan(path: Path) -> dict[str, Any]:
    """The plan of the evaluation in a folder; empty where there is none."""
    return _read_json(path / PLAN) if (path / PLAN).is_file() else {}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return untrusted.read_json(file, dict[str, Any], "out")
    except StateError:
        raise StateError(f"out: {file} is damaged; overwrite the evaluation, or choose another folder.") from None


def commit(path: Path, key: str, answer: Answer) -> None:
    """Write an answer, whose columns begin with the ids of the samples."""
    with disk_errors(path):
        for start, columns in (("", answer.samples), (_OOD, answer.ood_samples)):
            if columns:
                write_table(path / PARTS / f"{start}{key}.parquet", as_table(columns))
        content = {"rows": answer.rows, "points": answer.points, "notes": [asdict(note) for note in answer.notes]}
        write_json(path / PARTS / f"{key}.json", content | {"ood": bool(answer.ood_samples)})


def stored_answer(path: Path, key: str, question: str) -> Answer | None:
    """The answer of that name, if it is there and whole; one that is damaged is computed again."""
    try:
        content = _read_json(path / PARTS / f"{key}.json")
        starts = ("", _OOD) if content.get("ood") else ("",)
        samples, *ood = (as_columns(pq.read_table(path / PARTS / f"{start}{key}.parquet")) for start in starts)
        notes = untrusted.typed(content["notes"], list[Note])
        return Answer(content["rows"], content["points"], samples, notes, ood[0] if ood else {}, question)
    except (OSError, ValueError, RuntimeError, KeyError):  # Arrow's errors are ValueErrors
        return None


def as_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Arrays of one length as a table; ``(N, K)`` becomes lists of K numbers."""
    flat = {name: pa.array(np.asarray(values).ravel()) for name, values in columns.items()}
    return pa.table({
        name: flat[name] if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat[name], values.shape[1])
        for name, values in columns.items()
    })  # fmt: skip


def as_columns(table: pa.Table) -> dict[str, np.ndarray]:
    """The inverse of `as_table`."""
    columns = {}
    for name in table.column_names:
        values = table[name].combine_chunks()
        several = pa.types.is_fixed_size_list(values.type)
        array = (values.flatten() if several else values).to_numpy(zero_copy_only=False)
        columns[name] = array.reshape(len(table), -1) if several else array
    return columns


def write_table(file: Path, table: pa.Table) -> None:
    """A table as Parquet, whole or not at all."""
    write_whole(file, partial(pq.write_table, table))


def write_results(
    path: Path,
    tables: Mapping[str, pa.Table],
    samples: Mapping[str, pa.Table],
    notes: Sequence[Note],
    latex: str,
    plan: Mapping[str, Any],
) -> None:
    """Everything that is read later; the plan, which says that all is there, comes last."""
    with disk_errors(path):
        remove_files(path / SAMPLES, INSIDE)
        for number, (run, table) in enumerate(samples.items()):
            write_table(path / SAMPLES / f"{number:02d}-{file_name(run)}.parquet", table)
        for name, table in tables.items():
            write_table(path / f"{name}.parquet", table)
            if name != POINTS:
                write_whole(path / f"{name}.csv", partial(pa_csv.write_csv, table))
        write_json(path / NOTES, [asdict(note) for note in notes])
        (path / OLD_NOTES).unlink(missing_ok=True)
        write_text(path / TABLE, latex)
        (path / PAGE).unlink(missing_ok=True)  # it would show numbers that are gone
        write_json(path / PLAN, {**plan, "whole": True})


def file_name(name: str) -> str:
    """A name that is safe as a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"
