"""Samples that could not be scored, with their reasons."""

from __future__ import annotations

from hardsight.report.formatting import counted, cut
from hardsight.report.sections import Inputs, Section, table

MOST = 100


def build(inputs: Inputs) -> Section:
    """The section; it also says that every sample was scored."""
    bad = inputs.rows.table.bad
    if not len(bad):
        return Section("bad", "Bad rows", {"note": "None: every sample could be read and scored."})
    first = f" The first {MOST} are listed." if len(bad) > MOST else ""
    note = f"{counted(len(bad), 'row')} could not be scored.{first}"
    rows = [{"id": cut(row["id"]), "error": cut(row["error"], 200, 600)} for row in bad.slice(0, MOST).to_pylist()]
    columns = [("id", "sample", "text"), ("error", "reason", "text")]
    return Section("bad", "Bad rows", {"note": note, "tables": [table("bad", "Bad rows", columns, rows)]})
