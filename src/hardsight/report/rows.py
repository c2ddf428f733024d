"""A table as the page's arithmetic sees it: columns as arrays, classes as codes, rows in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.comparison import class_count, class_numbers, floats, mid_ranks
from hardsight.report.formatting import NAME_BYTES, cut_name
from hardsight.runs import is_number
from hardsight.scores import SCORES
from hardsight.table import SampleTable

# Up to here every class of the model has a code of its own; beyond it only the classes that occur.
MANY_CLASSES = 5000
_NAMES_BYTES = 900_000  # all class names together

# What the page ranks by, and what it calls the logit's view of a sample: the first that the table has.
_ANGULAR = ("avh", "angle", "angular_margin", "avc")
_LOGIT = ("nll", "confidence", "margin", "el2n", "entropy")


@dataclass(frozen=True)
class Rows:
    """Columns of a table, sorted by id, so that nothing on the page depends on the order in which rows came."""

    table: SampleTable  # the rows, in this order
    classes: int  # C of the model
    numbers: np.ndarray  # (K,) the class number of each code
    label: np.ndarray  # (N,) codes, −1 where there is none
    pred: np.ndarray  # (N,) codes, −1 where there is none
    scores: dict[str, np.ndarray] = field(repr=False)  # by name; AVH times C; without labels taken at the prediction

    def __len__(self) -> int:
        return len(self.label)

    @property
    def ids(self) -> pa.ChunkedArray:
        return self.table.to_arrow()["id"]

    def ids_at(self, index: np.ndarray | Sequence[int]) -> list[str]:
        """Ids of a few rows."""
        return self.ids.take(pa.array(np.asarray(index, dtype=np.int64))).to_pylist()

    @property
    def codes(self) -> int:
        return len(self.numbers)

    @cached_property
    def labeled(self) -> bool:
        """Whether any row has a label."""
        return bool((self.label >= 0).any())

    @property
    def at(self) -> np.ndarray:
        """The class a sample is counted in: its label, or the prediction when the table has no labels."""
        return self.label if self.labeled else self.pred

    @cached_property
    def judged(self) -> np.ndarray:
        """Rows with both a label and a prediction."""
        return (self.label >= 0) & (self.pred >= 0)

    @cached_property
    def right(self) -> np.ndarray:
        return self.judged & (self.label == self.pred)

    @cached_property
    def main(self) -> str | None:
        """The score that the page ranks by."""
        return next((name for name in (*_ANGULAR, *_LOGIT) if name in self.scores), next(iter(self.scores), None))

    @cached_property
    def logit(self) -> str | None:
        """The score of the logits that the angle is set against; nll first, for confidence saturates at 1."""
        return next((name for name in _LOGIT if name in self.scores), None) if self.main in _ANGULAR else None

    @property
    def sign(self) -> int:
        """1 when a larger value of the main score is harder, −1 when a smaller one is."""
        return 1 if self.main is None or SCORES[self.main].higher_is_harder else -1

    @cached_property
    def value(self) -> np.ndarray:
        """The main score as it is shown: C·AVH."""
        return np.full(len(self), np.nan) if self.main is None else self.scores[self.main]

    @cached_property
    def hardness(self) -> np.ndarray:
        """The main score turned so that larger is harder."""
        return self.sign * self.value

    def hardness_by(self, score: str) -> np.ndarray:
        """A score turned so that larger is harder."""
        return self.scores[score] if SCORES[score].higher_is_harder else -self.scores[score]

    @cached_property
    def rank_main(self) -> np.ndarray:
        return mid_ranks(self.hardness)

    @cached_property
    def rank_logit(self) -> np.ndarray | None:
        return None if self.logit is None else mid_ranks(self.hardness_by(self.logit))

    def optional(self, name: str) -> np.ndarray | None:
        """A column that some tables have, as float64."""
        return None if name not in self.table else floats(self.table.to_arrow()[name])

    def class_name(self, code: int) -> str:
        """Name of a class, its number where there is none; short enough that all of them fit into the page."""
        return self.name_of(int(self.numbers[code]))

    def name_of(self, number: int) -> str:
        """The same by the class number of the model."""
        names, room = self.table.meta.class_names, _NAMES_BYTES // max(self.codes, 1)
        return cut_name(names[number] if 0 <= number < len(names) else number, min(max(room, 24), NAME_BYTES))


def read_rows(table: SampleTable) -> Rows:
    """Sort a table by id and take what the page needs from it."""
    arrow = table.to_arrow()
    ids = arrow["id"].cast(pa.string())
    arrow = arrow.set_column(arrow.column_names.index("id"), "id", ids).take(pc.sort_indices(ids))
    table = table.with_rows(arrow)
    label, pred = class_numbers(arrow, "label"), class_numbers(arrow, "pred")
    classes = class_count(table)
    if classes <= MANY_CLASSES:
        numbers = np.arange(classes)
    else:  # codes for the classes that occur: of a model's million there are few here
        numbers = np.unique(np.concatenate([label, pred]))
        numbers = numbers[numbers >= 0]
        label, pred = (np.where(x >= 0, np.searchsorted(numbers, x), -1) for x in (label, pred))
    scores = {}
    for name in SCORES:
        column = name if name in arrow.column_names else f"{name}_pred"
        if column in arrow.column_names and is_number(arrow[column].type):
            values = floats(arrow[column])
            values = values if np.isfinite(values).all() else np.where(np.isfinite(values), values, np.nan)
            if not np.isnan(values).all():
                scores[name] = classes * values if name == "avh" else values
    return Rows(table, classes, numbers, label, pred, scores)
