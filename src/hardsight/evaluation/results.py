"""`Evaluation`: what `hardsight evaluate` computes, stores, prints and draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.csv import write_csv

from hardsight.errors import InputError, MissingPathError
from hardsight.evaluation import folder
from hardsight.evaluation.curves import Curve, mean_curve
from hardsight.evaluation.folder import NOTES, PLAN, POINTS, ROWS, TESTS, write_table
from hardsight.printing import Result
from hardsight.questions import Note
from hardsight.questions.degradation import levels_of
from hardsight.runs import damage_errors, disk_errors, remove_files, write_json, write_text, write_whole
from hardsight.stores import local_path
from hardsight.untrusted import check_table, read_json


@dataclass(frozen=True)
class Evaluation(Result):
    """What `evaluate` returns; `path` holds the same as files, see `hardsight.evaluation.folder`.

    Attributes:
        rows: One number per row: run, group, seed, question, metric, score, on, level, value, low, high, n, better.
        tests: One comparison per row, of a group's number with that of the first group; empty for a single group.
        points: Curves.
        notes: What to know when reading the numbers.
        plan: The runs, the data, the questions and their options, and how it was made.
        path: The folder.
        columns: What `samples` returns; if None, it reads the folder.
    """

    rows: pa.Table
    tests: pa.Table
    points: pa.Table
    notes: tuple[Note, ...]
    plan: dict[str, Any]
    path: Path
    columns: Mapping[str, pa.Table] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        runs = [run for group in self.groups.values() for run in group]
        questions = self.rows["question"].unique().to_pylist()
        return self._line(self.path, f"{len(self.rows):,} numbers about {', '.join(runs)}", *questions)

    def _shown_rows(self) -> list[dict[str, Any]]:
        names = ("group", "run", "question", "metric", "score", "on", "value", "low", "high")
        return self.rows.select([name for name in names if name in self.rows.column_names]).to_pylist()

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The runs of each group; the first group is the baseline."""
        groups: dict[str, list[str]] = {}
        for group, run in zip(self.rows["group"].to_pylist(), self.rows["run"].to_pylist(), strict=True):
            runs = groups.setdefault(group, [])
            if run and run not in runs:  # an ensemble's numbers belong to no run
                runs.append(run)
        return groups

    def curves(self, question: str, curve: str, shape: str = "line") -> dict[tuple[str, str], dict[str, Curve]]:
        """By score and data set, the curves of the groups; for shapes see `hardsight.evaluation.curves.mean_curve`."""
        panels: dict[tuple[str, str], dict[str, dict[str, list[dict[str, Any]]]]] = {}
        selected = (pc.field("question") == question) & (pc.field("curve") == curve)
        for point in self.points.filter(selected).to_pylist():
            groups = panels.setdefault((point["score"], point["on"]), {})
            groups.setdefault(point["group"], {}).setdefault(point["run"], []).append(point)
        return {
            key: {name: mean_curve(list(groups[name].values()), shape) for name in self.groups if name in groups}
            for key, groups in panels.items()
        }

    @cached_property
    def samples(self) -> Mapping[str, pa.Table]:
        """By run, one row per sample: ``id, label, pred, avh`` and columns ``question/metric:score@level``."""
        if self.columns is not None:
            return self.columns
        files = {run["name"]: next(self.path.glob(f"samples/{k:02d}-*.parquet"), None)
                 for k, run in enumerate(self.plan["runs"])}  # fmt: skip
        return {name: check_table(pq.read_table(file)) for name, file in files.items() if file is not None}

    def levels(self) -> dict[str, pa.Table]:
        """By run, one row per degradation, level and sample, like those of `hardsight.questions.evaluate_degraded`."""
        classes = {run["name"]: run.get("classes", 1) for run in self.plan["runs"]}
        return {run: levels_of(table, classes[run]) for run, table in self.samples.items()}

    def features(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By group, the finite features ``(N, D)`` and labels of its first run; empty without the question clusters."""
        column, result = "clusters/features", {}
        for group, runs in self.groups.items():
            if runs and runs[0] in self.samples and column in self.samples[runs[0]].column_names:
                of = folder.as_columns(self.samples[runs[0]].select([column, "label"]))
                finite = np.isfinite(of[column]).all(1)
                result[group] = of[column][finite], of["label"][finite]
        return result


def is_evaluation(path: str | Path) -> bool:
    """Whether a folder holds an evaluation."""
    return Path(path, PLAN).is_file()


class _Run(TypedDict, total=False):
    name: str
    group: str


class _Plan(TypedDict, total=False):
    runs: list[_Run]
    data: dict[str, Any]
    command: list[str]


def write_evaluation(evaluation: Evaluation, latex: str) -> None:
    """Write everything that is read later; the plan comes last and marks the folder as complete."""
    path, tables = evaluation.path, {ROWS: evaluation.rows, TESTS: evaluation.tests, POINTS: evaluation.points}
    with disk_errors(path):
        remove_files(path / folder.SAMPLES, folder.INSIDE)
        for number, (run, table) in enumerate(evaluation.samples.items()):
            write_table(path / folder.SAMPLES / f"{number:02d}-{folder.file_name(run)}.parquet", table)
        for name, table in tables.items():
            write_table(path / f"{name}.parquet", table)
            if name != POINTS:
                write_whole(path / f"{name}.csv", partial(write_csv, table))
        write_json(path / NOTES, [asdict(note) for note in evaluation.notes])
        write_text(path / folder.TABLE, latex)
        (path / folder.PAGE).unlink(missing_ok=True)  # it would show outdated numbers
        write_json(path / PLAN, {**evaluation.plan, "whole": True})


def read_evaluation(out: str | Path) -> Evaluation:
    """Read a folder that `hardsight evaluate` wrote."""
    path = local_path(out)
    files = [*(f"{name}.parquet" for name in (ROWS, TESTS, POINTS)), NOTES, PLAN]
    if missing := [name for name in files if not (path / name).is_file()]:
        raise MissingPathError(
            f"OUT: {path} has no {missing[0]}; name a folder that hardsight evaluate has written, or let it finish."
        )
    with damage_errors(path):
        rows, tests, points = (check_table(pq.read_table(path / name)) for name in files[:3])
    if not len(rows):
        raise InputError(f"OUT: {path} must hold at least one number, got none; evaluate a run first.")
    plan, notes = read_json(path / PLAN, _Plan, "OUT"), read_json(path / NOTES, list[Note], "OUT")
    if not plan.get("whole", True):
        text = "These numbers are from an earlier evaluation: a later one did not finish. The same call resumes it."
        notes = [Note("unfinished", text, "warn"), *notes]
    return Evaluation(rows, tests, points, tuple(notes), plan, path)
