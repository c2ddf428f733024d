"""What a person decided about the suspects: a table with ``id``, ``action`` and, to relabel, the new label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.cleaning.numbering import Numbering
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.idtables import read_by_id

ACTIONS = ("relabel", "review", "keep", "drop")
# Where the new label stands, in order: what a person writes, then what the lists suggest.
_NEW_LABEL = ("new_label", "suggested_name", "suggested")


def decided(rows: pa.Table, decisions: Any, numbering: Numbering, *, auto: bool = False) -> pa.Table:
    """The rows of the lists with a person's actions and labels in place of ours.

    Args:
        rows: Rows of the lists, labels in the data's own numbers.
        decisions: ``actions.csv`` or ``.parquet`` as edited, or any table with ``id``, ``action`` and, where the action
            is ``relabel``, a class name or number in ``new_label`` (else in ``suggested_name`` or ``suggested``).
        numbering: Class names and numbers of the data.
        auto: Keep what the lists would relabel and the person does not mention; otherwise it is left for review.
    """
    table = read_by_id(decisions, "decisions")
    if "action" not in table.column_names:
        raise InputError(f"decisions must have a column action, got {', '.join(map(printable, table.column_names))}.")
    ids = rows["id"].to_pylist()
    place = {id_: i for i, id_ in enumerate(ids)}
    action = ["review" if name == "relabel" and not auto else name for name in rows["action"].to_pylist()]
    suggested, names = rows["suggested"].to_pylist(), rows["suggested_name"].to_pylist()
    new = [table[name].to_pylist() for name in _NEW_LABEL if name in table.column_names]
    for row, (id_, given) in enumerate(zip(table["id"].to_pylist(), table["action"].to_pylist(), strict=True)):
        # In the CSV of the lists a text that a spreadsheet would calculate has an apostrophe before it.
        at = place.get(id_, place.get(id_[1:]) if id_.startswith("'") else None)
        if at is None:
            raise InputError(f"decisions: the run has no sample {printable(id_)!r}.")
        if given not in ACTIONS:
            raise InputError(
                f"decisions: the action of {printable(id_)!r} must be one of {', '.join(ACTIONS)}, got "
                f"{printable(given)!r}."
            )
        action[at] = given
        if given == "relabel":
            label = next((values[row] for values in new if values[row] is not None and values[row] != ""), None)
            suggested[at] = _number(label, numbering, id_)
            names[at] = numbering.name_of(suggested[at])
    for name, values in (("action", action), ("suggested", suggested), ("suggested_name", names)):
        at = rows.column_names.index(name)
        rows = rows.set_column(at, name, pa.array(values, rows.schema.field(name).type))
    order = np.argsort([ACTIONS.index(name) for name in action], kind="stable")  # as in the lists: what changes, first
    return rows.take(order)


def _number(label: Any, numbering: Numbering, id_: str) -> int:
    """The data's number of a class that is given by name or by number."""
    if label is None:
        raise InputError(f"decisions: {printable(id_)!r} is to be relabeled, but new_label does not say to what.")
    number = numbering.number_of(label)
    if number is None:
        raise InputError(f"decisions: the data have no class {printable(label)!r} for {printable(id_)!r}.")
    return number
