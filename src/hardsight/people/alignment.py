"""`align`: correlations of scores with human selection frequency; `align_run`: everything computed for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from hardsight.correlation import COEFFICIENTS, fisher_z, p_value, tie_share
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import need, printable
from hardsight.people.candidates import FEWEST, FEWEST_OF_INTERVAL, Paired, Table, candidates, facts, selected
from hardsight.people.ceiling import Ceiling, ceiling
from hardsight.people.differences import Difference, compare_scores
from hardsight.people.hypotheses import Outcome, hypotheses
from hardsight.people.leaderboard import SCHEMA, leaderboard
from hardsight.people.matching import FREQUENCY_EDGES, bin_members
from hardsight.people.read import as_human, coarser, read_human
from hardsight.printing import Result, interval, number_text, text_table
from hardsight.registry import check_choice
from hardsight.runs import is_run, provenance, read_run
from hardsight.stores import as_path
from hardsight.table import SampleTable

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"  # the bin of all samples
RANKED_BY = "spearman"  # of a run's leaderboard
_PAPER = ("avh", "confidence")  # what the AVH paper compares
_TABLE1 = ("avh", "angle", "confidence", "norm", "norm_within_class")
_SCHEMA = pa.schema(
    [("score", pa.string()), ("coefficient", pa.string()), ("bin", pa.string()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("value", "low", "high", "ties", "score_ties")]
    + [("direction", pa.int64()), ("agreement", pa.float64())]
)


@dataclass(frozen=True)
class Alignment(Result):
    """How well scores agree with people. `hardsight align` computes one per run, stores it in the run and prints it.

    Attributes:
        people: One row per sample that people were asked about: ``id``, ``hsf``; if answers are known, ``answers`` (how
            many), ``entropy`` (of the votes, nats) and ``majority`` (the class that most chose, −1 if tied).
        rows: One row per score, coefficient and bin (``"all"`` first): ``score``, ``coefficient``, ``bin``, ``n``,
            ``value`` with its 95% interval ``low`` to ``high``, ``ties`` and ``score_ties`` (share of the pairs of
            samples that people, or the score, find equal), ``direction`` (the sign that the correlation should have:
            −1 for a score that grows with hardness), ``agreement`` = direction · value. Null where a bin has too few
            samples (4; 10 for an interval) or something is constant in it.
        ceilings: What a perfect predictor could reach, by coefficient; empty where answers were not counted.
        notes: Sentences about the samples; the first says how far samples and answers overlap.
        other: For how many samples most people chose another class than the label; None if unknown.
        leaderboard: What `leaderboard` returns. This and the following are computed by `align_run` only.
        differences: One score against others, by coefficient.
        hypotheses: The hypotheses of the AVH paper.
    """

    people: pa.Table
    rows: pa.Table
    ceilings: list[Ceiling]
    notes: list[str]
    source: str
    samples: int
    other: int | None = None
    leaderboard: pa.Table = field(default_factory=SCHEMA.empty_table)
    differences: list[Difference] = field(default_factory=list)
    hypotheses: list[Outcome] = field(default_factory=list)
    model: str | None = None
    epoch: int | None = None
    merged: str | None = None
    made: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        rows = self.rows.to_pylist()
        first = [row for row in rows if row["bin"] == ALL and row["coefficient"] == rows[0]["coefficient"]]
        ranked = sorted((row for row in first if row["agreement"] is not None), key=lambda row: -row["agreement"])
        best = [f"{row['coefficient']} of {row['score']} {number_text(row['value'])}" for row in ranked[:3]]
        samples = max((row["n"] for row in first), default=0)
        return self._line(None, f"{len(first)} scores of {samples:,} samples", *best)

    def _shown_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.rows.to_pylist() if row["bin"] == ALL]

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas data frame."""
        need("pandas")
        return self.rows.to_pandas()

    @property
    def summary(self) -> dict[str, Any]:
        """Everything that is in no table, as plain values; ``words`` is the first note."""
        names = ("model", "source", "samples", "epoch", "merged", "other", "made")
        parts = {name: [asdict(entry) for entry in getattr(self, name)] for name in ("ceilings", "hypotheses")}
        notes = {"words": self.notes[0], "notes": self.notes[1:], "coefficient": RANKED_BY}
        return {name: getattr(self, name) for name in names} | notes | parts

    def table1(self) -> list[dict[str, Any]]:
        """The AVH paper's Table 1: numbers of samples and Spearman's coefficients by bin of human frequency, and
        Fisher's ``z`` of the coefficient over all samples. The paper prints absolute values; these are agreements.
        """
        rows = [row for row in self.rows.to_pylist() if row["coefficient"] == "spearman" and row["score"] in _TABLE1]
        table: dict[str, dict[str, Any]] = {"samples": {"score": "samples", "z": None}}
        for row in rows:
            entry = table.setdefault(row["score"], {"score": row["score"], "z": None})
            entry[row["bin"]], r = row["agreement"], row["agreement"]
            table["samples"][row["bin"]] = max(row["n"], table["samples"].get(row["bin"], 0))
            if row["bin"] == ALL and r is not None and abs(r) < 1:
                entry["z"] = math.atanh(r)
        return list(table.values()) if rows else []

    def table2(self) -> list[dict[str, Any]]:
        """The AVH paper's Table 2: AVH against confidence by Fisher's one-sided test, as if on different samples."""
        rows = {(row["score"], row["coefficient"]): row for row in self.rows.to_pylist() if row["bin"] == ALL}
        table = []
        for name in COEFFICIENTS:
            avh, mc = (rows.get((score, name), {"agreement": None}) for score in _PAPER)
            r1, r2 = avh["agreement"], mc["agreement"]
            if r1 is not None and r2 is not None and max(abs(r1), abs(r2)) < 1:
                z = fisher_z(r1, r2, avh["n"], mc["n"])
                entry = {"coefficient": name, "avh": r1, "confidence": r2, "z_avh": math.atanh(r1)}
                table.append(entry | {"z_confidence": math.atanh(r2), "Z": z, "p": p_value(z, sided=1)})
        return table

    def text(self, most: int = 12) -> str:
        """For a terminal: the leaderboard (`most` scores, and those that are compared), the tests, the AVH paper's
        tables and the notes.
        """
        board = self.leaderboard.to_pylist()
        # Wherever AVH is compared with anything, the plain angle is shown beside it.
        compared = {"angle", *(name for test in self.differences for name in test[:2])}
        shown = [row for at, row in enumerate(board) if at < most or row["score"] in compared]
        title = "agreement (1 is the most)"
        rows = [
            {title: row["score"]} | {c: interval(row[c], row[f"{c}_low"], row[f"{c}_high"]) for c in COEFFICIENTS}
            for row in shown
        ]
        ceilings = {entry.coefficient: interval(entry.ceiling, entry.low, entry.high) for entry in self.ceilings}
        rows += [{title: "ceiling"} | {c: ceilings.get(c, "–") for c in COEFFICIENTS}] if ceilings else []
        lines = [f"people: {printable(self.source)}: {printable(self.notes[0])}", *text_table(rows)]
        if len(shown) < len(board):
            lines.append(f"… and {len(board) - len(shown):,} more in leaderboard.parquet")
        lines += [test.sentence for test in self.differences]
        lines += [f"{outcome.name}: {outcome.verdict}. {outcome.sentence}" for outcome in self.hypotheses]
        if table := self.table1():
            bins = dict.fromkeys(row["bin"] for row in self.rows.to_pylist())
            lines += ["AVH paper, Table 1 (Spearman's agreement by human selection frequency; z is Fisher's):"]
            lines += text_table([_rounded(row) for row in table], {name: name for name in ("score", "z", *bins)})
        if table := self.table2():
            lines += [
                "AVH paper, Table 2 (Fisher's one-sided test, which takes the scores to be of different samples):"
            ]
            lines += text_table([_rounded(row) for row in table])
        return "\n".join([*lines, *(f"note: {printable(note)}" for note in self.notes[1:])])


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in row.items()}


def align(
    table: Table,
    human: Any,
    *,
    scores: Sequence[str] | None = None,
    edges: Sequence[float] = FREQUENCY_EDGES,
    norm: Literal["global", "class"] = "global",
    coefficients: Sequence[str] = tuple(COEFFICIENTS),
) -> Alignment:
    """Correlate scores with human selection frequency: the share of people who chose the label.

    Args:
        table: A table, a run folder, or a mapping of columns with ``id`` and, where people's answers are counts by
            class, ``label``.
        human: Human answers: anything that `hardsight.people.as_human` takes.
        scores: Columns; all whose direction is known from their name if None.
        edges: Bin edges of human frequency; bins are half open except the last.
        norm: ``"class"`` scales norms from 0 to 1 within each class, as the AVH paper does, in a column
            ``norm_within_class`` in place of ``norm``; ``"global"`` leaves them unchanged.
        coefficients: Any of ``spearman``, ``pearson``, ``kendall`` (τ-b).

    Examples:
        >>> columns = {"id": ["a", "b", "c", "d"], "avh": [0.1, 0.2, 0.3, 0.4], "confidence": [0.9, 0.5, 0.6, 0.1]}
        >>> result = align(columns, {"a": 1.0, "b": 0.9, "c": 0.7, "d": 0.2}, coefficients=["spearman"])
        >>> result.to_pandas().query("bin == 'all'")[["score", "value", "agreement"]].round(2).values.tolist()
        [['avh', -1.0, 1.0], ['confidence', 0.8, 0.8]]
    """
    check_choice(norm, ("global", "class"), "norm")
    for name in coefficients:
        check_choice(name, COEFFICIENTS, "coefficients")
    paired = Paired.of(table, human)
    if norm == "class":
        paired = paired.with_norm_within_class()
        scores = scores or [name for name in paired.names() if name != "norm"]
        scores = ["norm_within_class" if name == "norm" else name for name in scores]
    return _aligned(paired, paired.answered(), list(scores or paired.names()), edges, coefficients)


def _aligned(
    paired: Paired,
    asked: Paired,
    names: Sequence[str],
    edges: Sequence[float] = FREQUENCY_EDGES,
    coefficients: Sequence[str] = tuple(COEFFICIENTS),
) -> Alignment:
    """The alignment of a table with people; `asked` holds its samples that people were asked about."""
    people, hsf = paired.people, asked.people.hsf
    inside = {ALL: np.ones(len(hsf), dtype=bool), **bin_members(hsf, edges)}
    notes, rows = [people.overlap], []
    for name in names:
        values = asked.score(name)
        known = np.isfinite(values)
        if lost := int((~known).sum()):
            notes.append(f"{printable(name)} has no finite number for {lost:,} of the samples; they are left out.")
        if known.sum() >= FEWEST and not np.ptp(finite := selected(values, known)):
            notes.append(f"{printable(name)} is {abs(finite[0]):g} for all samples, so nothing correlates with it.")
        for bin_, members in inside.items():
            these = members & known
            rows += _rows(name, bin_, selected(values, these), selected(hsf, these), coefficients)
    ceilings = []
    if people.counts is not None and people.answers is not None:
        try:
            ceilings = ceiling(people.counts, people.columns, coefficients, asked=people.answers)
        except InputError as error:  # too few answers to estimate it; the rows are still valid
            notes.append(f"There is no ceiling: {error}")
    names = [name for name in ("hsf", "answers", "entropy", "majority") if getattr(people, name) is not None]
    columns = {name: getattr(asked.people, name) for name in names}
    other = None
    if people.majority is not None:
        other = int(((people.majority >= 0) & (people.majority != people.columns)).sum())
    return Alignment(
        pa.table({"id": asked.table.column("id"), **columns}),
        pa.Table.from_pylist(rows, schema=_SCHEMA),
        ceilings,
        notes,
        people.source,
        len(paired.table),
        other,
    )


def _rows(
    name: str, bin_: str, values: np.ndarray, hsf: np.ndarray, coefficients: Sequence[str]
) -> list[dict[str, Any]]:
    fact = facts(name)
    sign = 1 if fact is None else fact.direction
    row = {"score": name, "bin": bin_, "n": len(values), "direction": sign}
    row |= {"ties": tie_share(hsf), "score_ties": tie_share(values)} if len(values) > 1 else {}
    rows = []
    for coefficient in coefficients:
        numbers: dict[str, Any] = {"coefficient": coefficient}
        if len(values) >= FEWEST and np.ptp(values) and np.ptp(hsf):
            value, low, high, _ = COEFFICIENTS[coefficient](values, hsf)
            numbers |= {"value": sign * value, "agreement": value}
            if len(values) >= FEWEST_OF_INTERVAL:
                numbers["low"], numbers["high"] = sorted((sign * low, sign * high))
        rows.append(row | numbers)
    return rows


def align_run(
    run: str | Path, human: Any, *, compare: Sequence[str] | None = None, merge: str | Path | None = None
) -> Alignment:
    """Everything that `hardsight align` computes for a run; answers are matched with samples once.

    Args:
        run: A run folder that was scored, or recorded while it trained: its last epoch, and means over the epochs.
        human: Anything that `as_human` takes.
        compare: Scores to test, the first against each of the others; if None, AVH and confidence if the run has both.
        merge: What `coarser` takes: human answers are counted per coarse class.
    """
    check_run(run)
    table = candidates(run)
    compared, classes = _compared(table, compare), table.meta.class_names or None
    answers = read_human(human, classes=classes) if isinstance(human, (str, Path)) else as_human(human)
    paired = Paired.of(table, answers if merge is None else coarser(answers, merge))
    # Scaling within classes uses all samples; everything below uses those that people were asked about.
    within = paired.with_norm_within_class()
    asked = within.answered()
    result = _aligned(within, asked, within.names())
    tests, notes = [], result.notes
    try:
        for other in compared[1:]:
            tests += [
                compare_scores(asked.table, compared[0], other, asked.people, coefficient=c) for c in COEFFICIENTS
            ]
    except InputError as error:
        if compare is not None:
            raise
        notes = [*notes, f"AVH and confidence were not compared: {error}"]  # the comparison was not requested
    return replace(
        result,
        notes=notes,
        leaderboard=leaderboard(asked.table, asked.people, coefficient=RANKED_BY, scores=paired.names()),
        differences=tests,
        hypotheses=hypotheses(asked.table, asked.people, tests=tests),
        model=table.meta.model.name,
        epoch=last_epoch(table),
        merged=None if merge is None else Path(merge).name,
        made=provenance(),
    )


def last_epoch(table: SampleTable) -> int | None:
    """The epoch that a table of a recorded run shows; None for a run that was scored."""
    recorded = table.meta.recorded
    return recorded.epochs[-1] if recorded and recorded.epochs else None


def check_run(run: str | Path) -> None:
    """Refuse a folder that holds no run to compare with people."""
    if is_run(run):
        return
    if inside := [as_path(run) / name for name in ("test", "train") if is_run(as_path(run) / name)]:
        raise MissingPathError(f"RUN: {run} holds a training; name {' or '.join(map(str, inside))}.")
    read_run(run, kinds=())  # says what is wrong


def _compared(table: SampleTable, compare: Sequence[str] | None) -> Sequence[str]:
    names = [name for name in table.columns if facts(name) is not None]
    if compare is None:
        return _PAPER if set(_PAPER) <= set(names) else ()
    if lost := [name for name in compare if name not in names]:
        raise InputError(f"compare must name scores of the run ({', '.join(names)}), got {printable(lost[0])!r}.")
    if len(set(compare)) < 2:
        raise InputError(f"compare must name two or more scores, got {', '.join(compare) or 'none'}.")
    return list(dict.fromkeys(compare))
