"""An `Alignment` as files in ``RUN/alignment/``.

::

    people.parquet        (id)                  hsf, answers, entropy, majority: human answers
    rows.parquet          (score, coefficient, bin)  correlations with intervals
    leaderboard.parquet   (score)               which score agrees best
    differences.parquet   (first, second, coefficient)  tests of one score against others
    summary.json          where the answers come from, ceiling, hypotheses; written last
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from hardsight import runs
from hardsight.errors import HardsightError, InputError, StateError
from hardsight.people.alignment import Alignment
from hardsight.people.ceiling import Ceiling
from hardsight.people.differences import Difference
from hardsight.people.hypotheses import Outcome
from hardsight.stores import as_path, readable
from hardsight.untrusted import check_regular, check_table, read_json

_TESTS = pa.schema(
    [(name, pa.string()) for name in ("first", "second", "coefficient", "test")]
    + [(name, pa.float64()) for name in ("difference", "low", "high", "p", "statistic")]
    + [("n", pa.int64()), ("sided", pa.int64())]
)
# The columns that each table needs, and those that may be missing.
_NEEDED = {
    "people": ("id", "hsf"),
    "rows": ("score", "coefficient", "bin", "n", "value", "low", "high", "agreement"),
    "leaderboard": ("score", "kind"),
    "differences": tuple(_TESTS.names[:-1]),
}
_NULLABLE = ("value", "low", "high", "agreement")
_TEXTS = ("id", "score", "coefficient", "bin", "kind", "words", "first", "second", "test")


class _Summary(TypedDict):
    source: str
    words: str  # the first note
    notes: NotRequired[list[str]]
    samples: int
    epoch: int | None
    other: NotRequired[int | None]
    model: NotRequired[str | None]
    merged: NotRequired[str | None]
    coefficient: str  # the leaderboard is ranked by it
    ceilings: list[Ceiling]
    hypotheses: list[Outcome]
    made: NotRequired[dict[str, Any]]


def write_alignment(run: str | Path, result: Alignment) -> Path:
    """Write ``RUN/alignment/`` atomically; an earlier one is replaced. Returns the folder."""
    folder = as_path(run) / runs.ALIGNMENT
    tests = pa.Table.from_pylist([test._asdict() for test in result.differences], schema=_TESTS)
    runs.check_replaceable(folder / runs.SUMMARY, runs.is_alignment)
    with runs.disk_errors(folder):
        (folder / runs.SUMMARY).unlink(missing_ok=True)  # until it is written there is none, rather than a mix of two
        for name in _NEEDED:
            table = tests if name == "differences" else getattr(result, name)
            runs.write_whole(folder / f"{name}.parquet", partial(pq.write_table, table))
        runs.write_json(folder / runs.SUMMARY, result.summary)
    return folder


def read_alignment(run: str | Path) -> Alignment | None:
    """What `write_alignment` wrote into a run; None if there is none, or an unfinished one."""
    folder = as_path(run) / runs.ALIGNMENT
    if not (folder / runs.SUMMARY).is_file():
        return None
    try:
        fields = read_json(folder / runs.SUMMARY, _Summary)
        tables = {name: _read_table(folder / f"{name}.parquet", name) for name in _NEEDED}
    except HardsightError as error:
        raise StateError(f"{str(error).removesuffix('.')}; run hardsight align again.") from error
    fields["notes"] = [fields["words"], *fields.get("notes", [])]
    fields = {name: value for name, value in fields.items() if name in Alignment.__dataclass_fields__}
    tests = tables.pop("differences").select(_NEEDED["differences"]).to_pylist()
    return Alignment(**tables, **fields, differences=[Difference(**row) for row in tests])


def _read_table(file: Path, kind: str) -> pa.Table:
    check_regular(file, "RUN")
    with runs.damage_errors(file):
        table = check_table(pq.read_table(readable(file)))
        for name in {*table.column_names, *_NEEDED[kind]}:
            type_, text = table.schema.field(name).type, name in _TEXTS
            if not (pa.types.is_string(type_) or pa.types.is_null(type_) if text else runs.is_number(type_)):
                raise InputError(f"{name} must be {'text' if text else 'numbers'}, got {type_}")
            if name in _NEEDED[kind] and name not in _NULLABLE and table[name].null_count:
                raise InputError(f"{name} must not be empty")
    return table
