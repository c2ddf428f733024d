"""A table as the page's arithmetic sees it: columns as arrays, classes as codes, rows in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import mid_ranks
from hardsight.printing import class_name
from hardsight.report.formatting import NAME_BYTES, cut_name
from hardsight.runs import is_number
from hardsight.scores import SCORES
from hardsight.table import SampleTable
from hardsight.tablefiles import class_count, class_numbers, floats

if TYPE_CHECKING:
    from hardsight.report.groups import Group
    from hardsight.report.label_errors import Suspects
    from hardsight.report.training import Recorded

# Up to here every class of the model has a code of its own; beyond it only the classes that occur.
MANY_CLASSES = 5000
_NAMES_BYTES = 900_000  # all class names together

# What the page ranks by, and what it calls the logit's view of a sample: the first that the table has.
_ANGULAR = ("avh", "angle", "angular_margin", "avc")
_LOGIT = ("nll", "confidence", "margin", "el2n", "entropy")  # nll first, because confidence saturates at 1


class Rows:
    """The columns of a table, sorted by id so that nothing on the page depends on the order in which rows came.

    Class codes are −1 where there is none, scores NaN. What else sections are built from is beside the columns.
    """

    run: Any = None  # the folder
    data: Any = None  # where the data are, if not where the run says
    against: Any = None  # another run or table to compare with
    group_table: pa.Table | None = None  # group columns beside the table, as `read_by_id` reads them
    groups: Sequence[Group] = ()  # of the table and of `group_table`
    group_notes: Sequence[str] = ()  # which of them could not be used
    recorded: Recorded | None = None  # the training that the run recorded
    suspects: Suspects | str = ""  # labels that are probably wrong, or why none are looked for

    def __init__(self, table: SampleTable) -> None:
        arrow = table.to_arrow()
        ids = arrow["id"].cast(pa.string())
        arrow = arrow.set_column(arrow.column_names.index("id"), "id", ids).take(pc.sort_indices(ids))
        self.table, self.meta, self.ids = table.with_rows(arrow), table.meta, arrow["id"].combine_chunks()
        self.classes = class_count(self.table)  # C of the model
        label, pred = class_numbers(arrow, "label"), class_numbers(arrow, "pred")
        if self.classes <= MANY_CLASSES:
            numbers = np.arange(self.classes)
        else:  # codes for the classes that occur: of a model's million there are few here
            numbers = np.unique(np.concatenate([label, pred]))
            numbers = numbers[numbers >= 0]
            label, pred = (np.where(x >= 0, np.searchsorted(numbers, x), -1) for x in (label, pred))
        self.numbers, self.codes = numbers, len(numbers)  # the class number of each code
        self.label, self.pred = label, pred
        self.labeled = bool((label >= 0).any())
        self.at = label if self.labeled else pred  # the class a sample is counted in
        self.judged = (label >= 0) & (pred >= 0)
        self.right = self.judged & (label == pred)
        # By name: AVH times C; without labels taken at the prediction.
        self.scores = {name: values for name in SCORES if (values := self._score(name)) is not None}
        # The score that the page ranks by, as it is shown (C·AVH), and turned so that larger is harder.
        self.main = next((n for n in (*_ANGULAR, *_LOGIT) if n in self.scores), next(iter(self.scores), None))
        self.logit = next((n for n in _LOGIT if n in self.scores), None) if self.main in _ANGULAR else None
        self.sign = 1 if self.main is None or SCORES[self.main].higher_is_harder else -1
        self.value = np.full(len(self), np.nan) if self.main is None else self.scores[self.main]
        self.hardness = self.sign * self.value
        self.rank_main = mid_ranks(self.hardness)
        self.rank_logit = None if self.logit is None else mid_ranks(self.hardness_by(self.logit))

    @cached_property
    def in_vectors(self) -> np.ndarray:
        """Where each row is among the stored vectors; −1 for none."""
        if (vectors := self.table.vectors) is None:
            return np.full(len(self), -1)
        ids = vectors["id"].cast(pa.string()).combine_chunks()
        return pc.fill_null(pc.index_in(self.ids, value_set=ids), -1).to_numpy()

    def __len__(self) -> int:
        return len(self.label)

    def _score(self, name: str) -> np.ndarray | None:
        column = name if name in self.table else f"{name}_pred"
        if column not in self.table or not is_number(self.table.to_arrow()[column].type):
            return None
        values = floats(self.table.to_arrow()[column])
        values = values if np.isfinite(values).all() else np.where(np.isfinite(values), values, np.nan)
        return None if np.isnan(values).all() else self.classes * values if name == "avh" else values

    def hardness_by(self, score: str) -> np.ndarray:
        """A score turned so that larger is harder."""
        return self.scores[score] if SCORES[score].higher_is_harder else -self.scores[score]

    def ids_at(self, index: np.ndarray | Sequence[int]) -> list[str]:
        """Ids of a few rows."""
        return self.ids.take(pa.array(np.asarray(index, dtype=np.int64))).to_pylist()

    def class_name(self, code: int) -> str:
        """Name of a class, its number where there is none; short enough that all of them fit into the page."""
        return self.name_of(int(self.numbers[code]))

    def name_of(self, number: int) -> str:
        """The same by the class number of the model."""
        names, room = self.meta.class_names, _NAMES_BYTES // max(self.codes, 1)
        return cut_name(class_name(names, number), min(max(room, 24), NAME_BYTES))
