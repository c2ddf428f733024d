"""From the answers of each run to the tables, tests and notes of an evaluation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.answers import Note
from hardsight.evaluation import folder
from hardsight.evaluation.folder import Part
from hardsight.evaluation.latex import latex_table
from hardsight.evaluation.questions import Options
from hardsight.evaluation.results import Evaluation
from hardsight.evaluation.statistics import Column, compare_groups
from hardsight.evaluation.subjects import Case
from hardsight.runs import provenance


class RunPart(NamedTuple):
    """The answer of one run, or of the ensemble of a group (whose `run` is empty), to one question."""

    run: str
    group: str
    seed: int | None
    question: str
    part: Part

    def lines(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows or points with the run they belong to."""
        return [{"run": self.run, "group": self.group, "seed": self.seed, **line} for line in lines]


def gather(
    path: Path, plan: Mapping[str, Any], cases: Sequence[Case], options: Options, parts: Sequence[RunPart]
) -> Evaluation:
    """Put the parts together, test the groups, and write the evaluation."""
    rows = [row for each in parts for row in each.lines(each.part.rows)]
    tests = compare_groups(rows, partial(_columns, parts))
    tables = {
        folder.ROWS: rows,
        folder.TESTS: tests,
        folder.POINTS: [point for each in parts for point in each.lines(each.part.points)],
    }
    tables = {name: pa.Table.from_pylist(lines, folder.SCHEMAS[name]) for name, lines in tables.items()}
    notes = tuple(_notes(cases, options, parts))
    plan = {**provenance(options.device), **plan}  # whose seed is that of this evaluation
    folder.write_results(path, tables, _samples(parts), notes, latex_table(rows, tests), plan)
    return Evaluation(tables[folder.ROWS], tables[folder.TESTS], tables[folder.POINTS], notes, plan, path)


def _columns(parts: Sequence[RunPart], row: Mapping[str, Any]) -> list[Column] | None:
    """The samples whose mean a row is, or the scores of both data sets whose AUROC it is; None of any other number."""
    of_run = (row["run"], row["group"], row["question"])
    answers = [each.part for each in parts if (each.run, each.group, each.question) == of_run]
    if row["on"]:
        scores = f"score:{row['score']}"
        for part in answers if row["metric"] == "auroc" else ():
            if part.ood is not None and any(line["on"] == row["on"] for line in part.rows):
                return [(table["id"].to_pylist(), table[scores].to_numpy()) for table in (part.samples, part.ood)]
        return None
    level = "" if math.isnan(row["level"]) else f"@{row['level']:g}"
    name = row["metric"] + (f":{row['score']}" if row["score"] else "") + level
    for part in answers:
        if name in part.samples.column_names:
            values = part.samples[name].to_numpy().astype(np.float64)
            if np.isfinite(values).any() and np.isclose(np.nanmean(values), row["value"], rtol=1e-5, atol=1e-8):
                return [(part.samples["id"].to_pylist(), values)]
    return None


def _samples(parts: Sequence[RunPart]) -> dict[str, pa.Table]:
    """A table per run, with a row per sample."""
    tables: dict[str, pa.Table] = {}
    for run, _, _, question, part in (each for each in parts if each.run):
        table = tables.get(run, part.samples.select(["id"]))
        for name in part.samples.column_names[1:]:
            column = name if question == "samples" else f"{question}/{name}"
            if column not in table.column_names:  # every OOD data set comes with the same in-distribution scores
                table = table.append_column(column, part.samples[name])
        tables[run] = table
    return tables


def _notes(cases: Sequence[Case], options: Options, parts: Sequence[RunPart]) -> Iterator[Note]:
    """Notes about all runs, about each run, and with each answer."""
    yield from _on_tests(cases)
    for data in options.strangers:
        yield from (replace(note, question="ood") for note in data.notes)
    for case in cases:
        yield from (replace(note, run=case.name, group=case.group) for note in case.notes)
    for each in parts:
        of = {"question": each.question, "run": each.run, "group": each.group}
        yield from (replace(note, **of) for note in each.part.notes)


def _on_tests(cases: Sequence[Case]) -> Iterator[Note]:
    sizes = Counter(case.group for case in cases)
    if len(sizes) < 2:
        return
    if max(sizes.values()) == 1:
        yield Note(
            "one run each",
            "There is one run of each: tests are over samples, and say that these networks differ, not that the "
            "settings do; for that, give runs of several seeds.",
            "warn",
        )
    elif set(sizes.values()) == {2}:
        text = "With two runs of each only huge differences stand out from chance; five are a fair start."
        yield Note("two runs each", text, "warn")
    elif alone := [name for name, count in sizes.items() if count == 1]:
        text = f"There is one run only of {', '.join(alone)}, so nothing is tested there; give runs of several seeds."
        yield Note("one run in a group", text, "warn")
