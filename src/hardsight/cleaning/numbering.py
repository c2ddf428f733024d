"""Classes by the number that the data give them, and by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import Samples
from hardsight.table import SampleTable


class Numbering:
    """From a run's class numbers, which are the model's, to the data's own and to names.

    Attributes:
        to_data: ``(C,)`` the data's number of each class of the model; −1 where the data have no such class.
    """

    def __init__(self, table: SampleTable, samples: Samples | None = None) -> None:
        names = list(table.meta.class_names)
        seen = [pc.max(table.to_arrow()[column]).as_py() or 0 for column in ("label", "pred") if column in table]
        classes = max(table.meta.model.classes or 0, len(names), max(seen, default=0) + 1)
        self._names = names + [str(k) for k in range(len(names), classes)]
        mapping = table.meta.label_mapping
        self.to_data = np.full(classes, -1)
        if mapping is None:
            self.to_data[:] = np.arange(classes)
        else:
            places = np.asarray(mapping, dtype=int)
            self.to_data[places[places >= 0]] = np.flatnonzero(places >= 0)
        if samples is not None and samples.classes is not None:
            self.to_data[self.to_data >= len(samples.classes)] = -1
        elif samples is not None and samples.labels is not None:
            self.to_data[~np.isin(self.to_data, samples.labels)] = -1

    def names(self, classes: pa.ChunkedArray) -> pa.ChunkedArray:
        """Names of classes (their number in the run where there are none)."""
        return pa.chunked_array([pa.array(self._names, pa.string())]).take(classes)

    def numbers(self, classes: pa.ChunkedArray) -> pa.ChunkedArray:
        """The data's own numbers of classes; null where the data have no such class."""
        return pa.chunked_array([pa.array(self.to_data, mask=self.to_data < 0)]).take(classes)

    def number_of(self, name: object) -> int | None:
        """The data's own number of a class, given by name or by that number; None where the data have no such class."""
        numbers = {str(number): int(number) for number in self.to_data if number >= 0}
        names = {self._names[k]: int(number) for k, number in enumerate(self.to_data) if number >= 0}
        return names.get(str(name), numbers.get(str(name)))

    def name_of(self, number: int) -> str:
        """The name of the class that the data give this number."""
        return self._names[int(np.flatnonzero(self.to_data == number)[0])]
