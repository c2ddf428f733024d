"""What an evaluation leaves on disk, and how a killed one resumes.

::

    out/evaluation.json     runs (name, group, seed, network …), data, questions and options, how it was made
    out/parts/              the answer of each run to each question, written as soon as it is computed
    out/rows.parquet, .csv  a number per line: run, group, seed, and what `hardsight.answers.Row` has; the numbers of a
                            group's ensemble have no run ("") and no seed
    out/tests.parquet, .csv a comparison per line: a number of a group against the first group; see `statistics.py`
    out/points.parquet      curves: run, group, seed, and what `hardsight.answers.Point` has
    out/samples/*.parquet   a file per run: id, label, pred, avh, and the columns that its questions left, by name
                            ``question/metric:score@level``
    out/notes.json          what must be known to read the numbers: a list of `hardsight.answers.Note`
    out/table.tex           the numbers of the groups side by side
    out/maps/               where explanations were asked for: see `maps.py`

A part is two files under one name, and a third one for the scores of OOD data. The name is made of what decides the
content: the network, the data, the labels, the question, its options and the format. So the same call resumes, and more
runs or questions join what is there. Files are written under a temporary name and renamed; a part is there if and only
if its ``.json`` is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from hardsight import untrusted
from hardsight.answers import Answer, Note
from hardsight.errors import StateError
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
    """Make the folder ready: an evaluation of the same data grows, one of other runs or data is refused.

    Args:
        path: The folder, made if needed.
        plan: What is evaluated.
        overwrite: Discard the evaluation that is there, unless it is an unfinished one of the same plan.

    Returns:
        The folder's lock, to be closed at the end.
    """
    with begin_folder(
        path / PLAN,
        {**plan, "whole": False},
        "evaluation",
        finished=lambda: (path / PLAN).is_file() and bool(read_json(path / PLAN).get("whole")),
        discard=lambda: _discard(path),
        differing=_differing,
        overwrite=overwrite,
    ) as lock:
        for folder in (path, *path.glob("*/")):
            sweep(folder)
        return lock.pop_all()


def _differing(stored: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Runs and data that an evaluation lacks; more runs and questions join what is there."""
    networks = [run.get("network") for run in plan["runs"]]
    lost = [f"run {run['name']}" for run in stored.get("runs", ()) if run.get("network") not in networks]
    return [*(["data"] if stored.get("data") != plan["data"] else []), *lost]


def _discard(path: Path) -> None:
    for name in _RESULTS:
        (path / name).unlink(missing_ok=True)
    for name in (PARTS, SAMPLES, MAPS):
        remove_files(path / name, INSIDE)


def read_json(file: Path) -> dict[str, Any]:
    """What a file of the folder says."""
    try:
        return untrusted.read_json(file, dict[str, Any], "out")
    except StateError:
        raise StateError(f"out: {file} is damaged; overwrite the evaluation, or choose another folder.") from None


def committed(path: Path, key: str) -> bool:
    """Whether a part is there, and whole: one that is damaged, or whose notes have no kind yet, is computed again."""
    try:
        read_part(path, key)
    except (OSError, ValueError, RuntimeError, KeyError):  # Arrow's errors are ValueErrors
        return False
    return True


def commit(path: Path, key: str, answer: Answer, ids: Sequence[str]) -> None:
    """Write the answer of a run to a question."""
    with disk_errors(path):
        for start, columns in (("", {"id": np.array(ids), **answer.samples}), (_OOD, answer.ood_samples)):
            if columns:
                arrays = {name: _arrow(np.asarray(values)) for name, values in columns.items()}
                write_table(path / PARTS / f"{start}{key}.parquet", pa.table(arrays))
        content = {"rows": answer.rows, "points": answer.points, "notes": [asdict(note) for note in answer.notes]}
        write_json(path / PARTS / f"{key}.json", content | {"ood": bool(answer.ood_samples)})


def _arrow(values: np.ndarray) -> pa.Array:
    flat = pa.array(values.ravel())
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


class Part(NamedTuple):
    """The answer to one question, as it is on disk: columns by sample are tables."""

    rows: list[dict[str, Any]]
    points: list[dict[str, Any]]
    notes: list[Note]
    samples: pa.Table
    ood: pa.Table | None


def read_part(path: Path, key: str) -> Part:
    """Read a part."""
    content = read_json(path / PARTS / f"{key}.json")
    starts = ("", _OOD) if content.get("ood") else ("",)
    samples, *ood = (pq.read_table(path / PARTS / f"{start}{key}.parquet") for start in starts)
    notes = untrusted.typed(content["notes"], list[Note])
    return Part(content["rows"], content["points"], notes, samples, ood[0] if ood else None)


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
