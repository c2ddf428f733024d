"""From what each question found out about each run to the tables, tests and sentences of an evaluation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.evaluation import folder
from hardsight.evaluation.latex import latex_table
from hardsight.evaluation.questions import Options
from hardsight.evaluation.statistics import Column, compare_groups
from hardsight.evaluation.subjects import Case
from hardsight.printing import Result
from hardsight.runs import provenance


@dataclass(frozen=True)
class Evaluation(Result):
    """What `evaluate` returns; `path` holds the same as files, see `hardsight.evaluation.folder`.

    Attributes:
        rows: A number per line: run, group, seed, question, metric, score, on, level, value, low, high, n, better.
        tests: A number of a group against that of the first group a line; empty where there is one group.
        points: Curves.
        words: What must be said with the numbers.
        path: The folder.
    """

    rows: pa.Table
    tests: pa.Table
    points: pa.Table
    words: tuple[str, ...]
    path: Path

    def __repr__(self) -> str:
        runs, questions = (list(dict.fromkeys(self.rows[name].to_pylist())) for name in ("run", "question"))
        return self._line(self.path, f"{len(self.rows):,} numbers about {', '.join(runs)}", *questions)


class Part(NamedTuple):
    """What one question found out about one run, or about the ensemble of a group."""

    run: str
    group: str
    seed: int | None
    question: str
    told: dict[str, Any]
    samples: pa.Table
    ood: pa.Table | None

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Its rows or points."""
        return [{"run": self.run, "group": self.group, "seed": self.seed, **one} for one in self.told[kind]]


def gather(
    path: Path, plan: Mapping[str, Any], cases: Sequence[Case], options: Options, parts: Sequence[Part]
) -> Evaluation:
    """Everything that the parts say together, written and returned."""
    rows = [row for part in parts for row in part.lines("rows")]
    tests = compare_groups(rows, partial(_columns, parts))
    tables = {
        folder.ROWS: rows,
        folder.TESTS: tests,
        folder.POINTS: [point for part in parts for point in part.lines("points")],
    }
    tables = {name: pa.Table.from_pylist(lines, folder.SCHEMAS[name]) for name, lines in tables.items()}
    words = _words(cases, options, parts, tests)
    made = {**provenance(options.device), **plan}  # whose seed is that of this evaluation
    folder.write_results(path, tables, _samples(parts), words, latex_table(rows, tests), made)
    said = in_words(words, [case.name for case in cases])
    return Evaluation(tables[folder.ROWS], tables[folder.TESTS], tables[folder.POINTS], said, path)


def _columns(parts: Sequence[Part], row: Mapping[str, Any]) -> list[Column] | None:
    """The samples whose mean a row is, or the scores of both data sets whose AUROC it is; None of any other number."""
    of_run = (row["run"], row["group"], row["question"])
    parts = [part for part in parts if (part.run, part.group, part.question) == of_run]
    if row["on"]:
        scores = f"score:{row['score']}"
        for part in parts if row["metric"] == "auroc" else ():
            if part.ood is not None and any(line["on"] == row["on"] for line in part.told["rows"]):
                return [(table["id"].to_pylist(), table[scores].to_numpy()) for table in (part.samples, part.ood)]
        return None
    level = "" if math.isnan(row["level"]) else f"@{row['level']:g}"
    name = row["metric"] + (f":{row['score']}" if row["score"] else "") + level
    for part in parts:
        if name in part.samples.column_names:
            values = part.samples[name].to_numpy().astype(np.float64)
            if np.isfinite(values).any() and np.isclose(np.nanmean(values), row["value"], rtol=1e-5, atol=1e-8):
                return [(part.samples["id"].to_pylist(), values)]
    return None


def _samples(parts: Sequence[Part]) -> dict[str, pa.Table]:
    """A table per run: what is known of each sample."""
    tables: dict[str, pa.Table] = {}
    for part in (one for one in parts if one.run):
        table = tables.get(part.run, part.samples.select(["id"]))
        for name in part.samples.column_names[1:]:
            own = name if part.question == "samples" else f"{part.question}/{name}"
            if own not in table.column_names:  # strangers of several kinds are told from the same samples
                table = table.append_column(own, part.samples[name])
        tables[part.run] = table
    return tables


def _words(
    cases: Sequence[Case], options: Options, parts: Sequence[Part], tests: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """What must be said: about all runs, about each, and with each answer."""
    words = [_about("", "", "", text) for text in _on_tests(cases, tests)]
    words += [_about("ood", "", "", text) for one in options.strangers for text in one.words]
    words += [_about("", case.name, case.group, text) for case in cases for text in case.words]
    return words + [_about(part.question, part.run, part.group, text) for part in parts for text in part.told["words"]]


def _about(question: str, run: str, group: str, words: str) -> dict[str, str]:
    return {"question": question, "run": run, "group": group, "words": words}


def _on_tests(cases: Sequence[Case], tests: Sequence[Mapping[str, Any]]) -> list[str]:
    sizes = Counter(case.group for case in cases)
    if len(sizes) < 2:
        return []
    if max(sizes.values()) == 1:
        return [
            "There is one run of each: tests are over samples, and say that these networks differ, not that the "
            "settings do; for that, give runs of several seeds."
        ]
    if set(sizes.values()) == {2}:
        return ["With two runs of each only huge differences stand out from chance; five are a fair start."]
    if alone := [name for name, count in sizes.items() if count == 1]:
        return [f"There is one run only of {', '.join(alone)}, so nothing is tested there; give runs of several seeds."]
    return []


def in_words(words: Sequence[Mapping[str, str]], runs: Sequence[str]) -> tuple[str, ...]:
    """Each sentence once, with the runs it is about unless it is about all.

    Args:
        words: As in ``words.json``.
        runs: All of them.

    Examples:
        >>> said = [("a", "Hm."), ("b", "Hm."), ("b", "So.")]
        >>> in_words([{"run": run, "group": "", "words": words} for run, words in said], ["a", "b"])
        ('Hm.', 'b: So.')
    """
    held: dict[str, list[str]] = {}
    for one in words:
        held.setdefault(one["words"], []).append(one["run"] or one["group"])
    return tuple(
        text if "" in whose or set(runs) <= set(whose) else f"{', '.join(dict.fromkeys(whose))}: {text}"
        for text, whose in held.items()
    )
