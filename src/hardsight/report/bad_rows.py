"""Samples that could not be scored, with their reasons."""

from __future__ import annotations

from hardsight.report.formatting import counted, cut
from hardsight.report.rows import Rows
from hardsight.report.sections import Section, table

MOST = 100


def build(rows: Rows) -> Section | None:
    """The section, where there are some."""
    bad = rows.table.bad
    if not len(bad):
        return None
    first = f" The first {MOST} are listed." if len(bad) > MOST else ""
    ids, errors = (bad.slice(0, MOST)[name].to_pylist() for name in ("id", "error"))
    reasons = ("error", "reason", "text", [cut(text, 200, 600) for text in errors])
    columns = [("id", "sample", "text", [cut(id_) for id_ in ids]), reasons]
    note = f"{counted(len(bad), 'row')} could not be scored.{first}"
    return Section("bad", "Bad rows", note, tables=[table("bad", "Bad rows", columns)])
