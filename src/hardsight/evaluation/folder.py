"""What an evaluation writes to disk, and how an interrupted one resumes.

::

    out/evaluation.json     runs (name, group, seed, network …), data, questions and options, how it was made
    out/parts/              the answer of each run to each question, written as soon as it is computed
    out/rows.parquet, .csv  one number per row; those of a group's ensemble have no run ("") and no seed
    out/tests.parquet, .csv one comparison per row: a number of a group against the first group; see `statistics.py`
    out/points.parquet      curves
    out/samples/*.parquet   a file per run: id, label, pred, avh, and the columns of its answers, named
                            ``question/metric:score@level``
    out/notes.json          what to know when reading the numbers: a list of `hardsight.questions.Note`
    out/table.tex           the numbers of the groups side by side
    out/maps/               class activation maps, with the question explanation: see `maps.py`

A part is two files under one name, and a third one for the scores of OOD data. Its name is a hash of everything that
determines the answer, so the same call resumes, and more runs or questions are added to existing results. A part exists
if and only if its ``.json`` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hardsight.ensemble import as_lists, matrix
from hardsight.questions import Answer, Note
from hardsight.runs import begin as begin_folder
from hardsight.runs import disk_errors, remove_files, sweep, write_json, write_whole
from hardsight.untrusted import read_json, typed

PLAN, PARTS, ROWS, TESTS, POINTS, NOTES = "evaluation.json", "parts", "rows", "tests", "points", "notes.json"
TABLE, SAMPLES, MAPS, PAGE = "table.tex", "samples", "maps", "comparison.html"
_OOD = "scores-"  # before the name of a part: its scores of OOD data

_COLUMNS = {
    ROWS: "run group seed question metric score on level value low high n better",
    POINTS: "run group seed question curve score on x y low high n",
    TESTS: "question metric score on level better group baseline mean sd n baseline_mean baseline_sd baseline_n "
    "difference low high p p_holm test reason how",
}
_NUMBERS = "level value low high x y mean sd baseline_mean baseline_sd difference p p_holm"
_TYPES = {name: pa.float64() for name in _NUMBERS.split()} | dict.fromkeys(("seed", "n", "baseline_n"), pa.int64())
SCHEMAS = {
    table: pa.schema([(name, _TYPES.get(name, pa.string())) for name in names.split()])
    for table, names in _COLUMNS.items()
}

# Names of the files in its folders; other files are left alone.
INSIDE = re.compile(r"[a-z-]+-[0-9a-f]{16,}\.(json|parquet)|\d{2}-[A-Za-z0-9._-]+\.(parquet|png)|index\.json")


def begin(path: Path, plan: Mapping[str, Any], overwrite: bool) -> ExitStack:
    """Prepare and lock the folder. An evaluation of the same data is extended; one of other runs or data is refused or,
    with `overwrite`, deleted. An unfinished one with the same plan is resumed even then. Close the lock at the end.
    """
    with begin_folder(
        path / PLAN,
        {**plan, "whole": False},
        "evaluation",
        finished=lambda: bool(read_json(path / PLAN, dict[str, Any], "out").get("whole")),
        discard=lambda: _discard(path),
        differing=partial(_differing, path),
        overwrite=overwrite,
    ) as lock:
        for folder in (path, *path.glob("*/")):
            sweep(folder)
        return lock.pop_all()


def _differing(path: Path, stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """What conflicts: other data, and runs whose results would be lost. More runs and questions do not."""
    names = [run["name"] for run in plan["runs"]]
    earlier = stored.get("runs", ()) if has_results(path) else ()
    lost = [f"run {run['name']}" for run in earlier if run["name"] not in names]
    return [*(["data"] if stored.get("data") != plan["data"] else []), *lost]


def _discard(path: Path) -> None:
    for name in (*(f"{name}.{end}" for name in SCHEMAS for end in ("parquet", "csv")), NOTES, TABLE, PAGE):
        (path / name).unlink(missing_ok=True)
    for name in (PARTS, SAMPLES, MAPS):
        remove_files(path / name, INSIDE)


def has_results(path: Path) -> bool:
    """Whether an evaluation has ever finished there."""
    return (path / f"{ROWS}.parquet").is_file()


def commit(path: Path, key: str, answer: Answer) -> None:
    """Write an answer, whose columns begin with the ids of the samples."""
    with disk_errors(path):
        for start, columns in (("", answer.samples), (_OOD, answer.ood_samples)):
            if columns:
                write_table(path / PARTS / f"{start}{key}.parquet", as_table(columns))
        content = {"rows": answer.rows, "points": answer.points, "notes": [asdict(note) for note in answer.notes]}
        write_json(path / PARTS / f"{key}.json", content | {"ood": bool(answer.ood_samples)})


def stored_answer(path: Path, key: str, question: str) -> Answer | None:
    """The stored answer, or None if it is missing or damaged; it is then computed again."""
    try:
        content = read_json(path / PARTS / f"{key}.json", dict[str, Any])
        starts = ("", _OOD) if content.get("ood") else ("",)
        samples, *ood = (as_columns(pq.read_table(path / PARTS / f"{start}{key}.parquet")) for start in starts)
        notes = typed(content["notes"], list[Note])
        return Answer(content["rows"], content["points"], samples, notes, ood[0] if ood else {}, question)
    except (OSError, ValueError, RuntimeError, KeyError):  # Arrow's errors are ValueErrors
        return None


def as_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Arrays of one length as a table; ``(N, K)`` becomes lists of K numbers."""
    return pa.table({name: as_lists(x) if x.ndim > 1 else pa.array(x) for name, x in columns.items()})


def as_columns(table: pa.Table) -> dict[str, np.ndarray]:
    """The inverse of `as_table`."""
    lists = [field.name for field in table.schema if pa.types.is_fixed_size_list(field.type)]
    return {name: matrix(table, name) if name in lists else table[name].to_numpy() for name in table.column_names}


def write_table(file: Path, table: pa.Table) -> None:
    """Write a table as Parquet, atomically."""
    write_whole(file, partial(pq.write_table, table))


def file_name(name: str) -> str:
    """A name that is safe as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "run"
