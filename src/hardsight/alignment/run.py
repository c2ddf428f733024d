"""`align_run`: a whole run beside people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.alignment.candidates import candidates, facts
from hardsight.alignment.coefficients import align
from hardsight.alignment.differences import compare_scores
from hardsight.alignment.folder import Aligned, last_epoch
from hardsight.alignment.hypotheses import hypotheses
from hardsight.alignment.leaderboard import leaderboard
from hardsight.comparison import class_numbers
from hardsight.correlation import COEFFICIENTS
from hardsight.errors import InputError, MissingPathError
from hardsight.extras import printable
from hardsight.human import Human, as_human, coarser, match, read_human
from hardsight.idtables import as_arrow
from hardsight.runs import is_run, provenance, read_run
from hardsight.table import SampleTable

_COMPARED = ("avh", "confidence")  # the AVH paper's claim
_RANKED_BY = "spearman"
_DIFFERENCES = pa.schema(
    [(name, pa.string()) for name in ("first", "second", "coefficient", "test")]
    + [(name, pa.float64()) for name in ("difference", "low", "high", "p", "statistic")]
    + [("n", pa.int64()), ("words", pa.string())]
)


def align_run(
    run: str | Path, human: Any, *, compare: Sequence[str] | None = None, merge: str | Path | None = None
) -> Aligned:
    """Compare every score of a run with people, and the first of `compare` with the others.

    Args:
        run: A run folder that was scored, or recorded while it trained: its last epoch, and means over the epochs.
        human: Anything that `as_human` takes.
        compare: Scores to test against one another, the first against each of the others; AVH and confidence where the
            run has both, if None.
        merge: CSV or Parquet with the columns ``class`` and ``coarse``: people's answers are counted on the coarse
            classes.
    """
    check_run(run)
    table = candidates(run)
    compared = _compared(table, compare)
    names = table.meta.class_names or None
    people = read_human(human, classes=names) if isinstance(human, (str, Path)) else as_human(human)
    people = people if merge is None else merged(people, merge)
    matched = match(people, table["id"], class_numbers(table.to_arrow(), "label"), names)
    found = align(table, people)
    notes = [text for text in found.words if text != matched.words]
    try:
        tests = [
            compare_scores(table, compared[0], other, matched.hsf, coefficient=coefficient)
            for other in compared[1:]
            for coefficient in COEFFICIENTS
        ]
    except InputError as error:
        if compare is not None:
            raise
        tests = []  # nobody asked for it
        notes.append(f"AVH and confidence were not compared: {error}")
    columns = {"answers": matched.answers, "entropy": matched.entropy, "majority": matched.majority}
    told = {name: values for name, values in columns.items() if values is not None}
    other = None
    if matched.majority is not None:
        other = int(((matched.majority >= 0) & (matched.majority != matched.columns)).sum())
    return Aligned(
        people=pa.table({"id": table["id"], "hsf": matched.hsf, **told}).filter(pa.array(~np.isnan(matched.hsf))),
        rows=found.rows,
        leaderboard=leaderboard(table, matched.hsf, coefficient=_RANKED_BY),
        differences=pa.Table.from_pylist([test._asdict() for test in tests], schema=_DIFFERENCES),
        summary={
            "model": table.meta.model.name,
            "source": people.source,
            "words": matched.words,
            "notes": notes,
            "samples": len(table),
            "epoch": last_epoch(table),
            "merged": None if merge is None else Path(merge).name,
            "other": other,
            "coefficient": _RANKED_BY,
            "ceilings": [one._asdict() for one in found.ceilings],
            "hypotheses": [asdict(one) for one in hypotheses(table, matched.hsf, tests=tests)],
            "made": provenance(),
        },
    )


def check_run(run: str | Path) -> None:
    """Whether a folder holds a run to compare with people, or a sentence on what it holds.

    Args:
        run: The folder.
    """
    if is_run(run):
        return
    if inside := [Path(run) / name for name in ("test", "train") if is_run(Path(run) / name)]:
        raise MissingPathError(f"RUN: {run} holds a training; name {' or '.join(map(str, inside))}.")
    read_run(run, kinds=())  # says what is wrong


def _compared(table: SampleTable, compare: Sequence[str] | None) -> tuple[str, ...]:
    if compare is None:
        return _COMPARED if all(name in table for name in _COMPARED) else ()
    known = [name for name in table.columns if facts(name) is not None]
    if lost := [name for name in compare if name not in known]:
        raise InputError(f"compare must name scores of the run ({', '.join(known)}), got {printable(lost[0])!r}.")
    if len(set(compare)) < 2:
        raise InputError(f"compare must name two scores or more, got {', '.join(compare) or 'none'}.")
    return tuple(dict.fromkeys(compare))


def merged(people: Human, file: str | Path) -> Human:
    """People's answers on coarser classes.

    Args:
        people: Answers by class.
        file: CSV or Parquet with the columns ``class`` (its name; its number where `people` has no names) and
            ``coarse``.
    """
    table = as_arrow(file, "coarser")
    if lost := [name for name in ("class", "coarse") if name not in table.column_names]:
        raise InputError(f"coarser must have the columns class and coarse, and has no {lost[0]}.")
    pairs = zip(table["class"].to_pylist(), table["coarse"].to_pylist(), strict=True)
    mapping = {str(fine): str(coarse) for fine, coarse in pairs}
    if people.classes is not None or people.counts is None:
        return coarser(people, mapping)
    wide, groups = people.counts.shape[1], list(dict.fromkeys(mapping.values()))
    if lost := [k for k in range(wide) if str(k) not in mapping]:
        raise InputError(
            f"coarser must name a coarse class for each of the {wide} classes by number; none for {lost[0]}."
        )
    return coarser(people, [groups.index(mapping[str(k)]) for k in range(wide)])
