"""Confident learning (Northcutt et al., JAIR 2021): how many labels are wrong, counted from confident predictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from hardsight.ensemble import matrix
from hardsight.errors import InputError
from hardsight.printing import Result, interval
from hardsight.stats import moments, weighted_share, wilson
from hardsight.storedrows import StoredRows
from hardsight.table import SampleTable

NEEDED = ("confidence", "max_logit", "free_energy")  # columns that give the probabilities of label and prediction
CONFIDENT = 0.9  # a prediction of this probability is confident in every class
_SLACK = 1e-6  # a probability this close below its threshold reaches it, as in the released code
_BLOCK = 1 << 16  # rows at a time, so that the probabilities of a million samples are not in memory twice


class Probabilities:
    """Probabilities of label and prediction, exact where the table keeps those of all classes.

    Otherwise ``confidence`` is the label's and ``exp(max_logit + free_energy)`` the prediction's. For one network this
    is exact, too; for means over several the latter is a geometric mean. NaN where a column is `missing`.
    """

    def __init__(self, table: SampleTable) -> None:
        self.table, labels = table, labels_of(table)
        if "pred" not in table or table.column("pred").null_count:
            raise InputError("label errors need a prediction for every sample; score the data again.")
        pred = table["pred"]
        used = int(max(labels.max(), pred.max())) + 1
        # Of ten million labels every byte is ten megabytes.
        type_ = np.min_scalar_type(min(-used, int(labels.min()), int(pred.min()), -1))
        self.labels, self.pred = labels.astype(type_), pred.astype(type_)
        self.labeled = self.labels >= 0
        self.contradicted = self.labeled & (self.labels != self.pred)
        self.classes = max(table.meta.model.classes or 0, used)
        self.counts = np.bincount(self.labels[self.labeled], minlength=self.classes)  # samples of each label
        self.exact = has_probabilities(table, used)
        self.missing = [] if self.exact else [name for name in NEEDED if name not in table]
        # `other` is the most probable class but the label. The label's rank is among the classes that were not
        # predicted, from 0 (the most probable) to 1; ties count in its favor, because small probabilities vanish.
        self.label, self.prediction, self.other, self.label_rank = self._values()
        self.label[~self.labeled] = np.nan
        # Mean confidence of the samples of each class; 2, which nothing reaches, without samples.
        mean = class_means(self.label, self.labels, self.classes)
        self.thresholds = np.maximum(np.where(self.counts > 0, mean, 2.0), 2 * _SLACK)
        self.reached = self.prediction >= (self.thresholds - _SLACK)[self.pred]
        self.confident = self.reached | (self.prediction >= np.float64(CONFIDENT))

    def _values(self) -> list[np.ndarray]:
        n = len(self.table)
        if self.exact:  # in single precision if they are stored so, which affects only the rank
            kept = _probability_type(self.table).value_type.to_pandas_dtype()
            values = [np.empty(n, np.promote_types(kept, np.float32)) for _ in range(4)]
            for part, p in probability_blocks(self.table):
                for column, numbers in zip(values, self._from_matrix(part, p), strict=True):
                    column[part] = numbers
            return values
        unknown = np.full(n, np.nan)
        return [unknown.copy(), unknown.copy(), unknown, unknown] if self.missing else [*self._from_columns(), unknown]

    def _from_matrix(self, part: np.ndarray | slice, p: np.ndarray) -> list[np.ndarray]:
        row, labels = np.arange(len(p)), np.maximum(self.labels[part], 0)
        label, pred = p[row, labels], p[row, self.pred[part]]
        rank = ((p > label[:, None]).sum(axis=1) - (pred > label)) / max(p.shape[1] - 2, 1)
        p[row, labels] = -np.inf if p.shape[1] > 1 else 0.0
        return [label, pred, p.max(axis=1), rank]

    def _from_columns(self) -> list[np.ndarray]:
        table, right = self.table, self.labels == self.pred
        label = table["confidence"].astype(np.float64)
        largest = np.exp(np.minimum(table["max_logit"] + table["free_energy"], 0.0))
        pred = np.where(right, label, np.minimum(largest, 1 - label))  # over several networks the sum may exceed 1
        second = label * np.exp(-np.maximum(table["margin"], 0.0)) if "margin" in table else np.nan
        return [label, pred, np.where(right, second, pred)]


def known_probabilities(table: SampleTable | Probabilities) -> Probabilities:
    """The probabilities of a table, or an error that says which columns they need."""
    p = table if isinstance(table, Probabilities) else Probabilities(table)
    if p.missing:
        raise InputError(
            f"wrong labels are estimated from the columns {', '.join(NEEDED)}, and the table lacks "
            f"{', '.join(p.missing)}; score the data with them, or give label_errors a count or share."
        )
    return p


def confident_joint(table: Any, *, calibrate: bool = False) -> sparse.csr_array:
    """Counts of (label, true class), ``(C, C)`` and sparse: the confident joint.

    A sample counts for the class whose threshold its probability reaches, or for the most probable of several such
    classes. A third class counts only if the table keeps the probabilities of all classes (see `Noise.unsure`).

    Args:
        table: A `SampleTable`, scores of labeled samples.
        calibrate: Scale each row to the number of samples with that label.
    """
    p = known_probabilities(table)
    joint = sparse.csr_array((p.classes, p.classes))
    for part, true in _true_classes(p):
        counted = p.labeled[part] & (true >= 0)
        places = p.labels[part][counted].astype(np.int64), true[counted]
        joint += sparse.coo_array((np.ones(counted.sum()), places), shape=joint.shape).tocsr()  # adds up
    # Every class has at least one correctly labeled sample, whatever the counts.
    joint = joint + sparse.diags_array(np.maximum(1 - joint.diagonal(), 0), format="csr")
    if calibrate:
        joint = sparse.diags_array(p.counts / joint.sum(axis=1), format="csr") @ joint
    return sparse.csr_array(joint)


def _true_classes(p: Probabilities) -> Iterator[tuple[np.ndarray | slice, np.ndarray]]:
    """Rows and the class that each counts for, −1 if it reaches none, in batches."""
    if p.exact:
        for part, block in probability_blocks(p.table):
            reached = block >= p.thresholds[: block.shape[1]] - _SLACK
            n = reached.sum(axis=1)
            yield part, np.where(n > 1, block.argmax(axis=1), np.where(n == 1, reached.argmax(axis=1), -1))
        return
    for part in _parts(len(p.table)):
        labels = p.labels[part].astype(np.int64)
        label_reached = p.label[part] >= p.thresholds[labels] - _SLACK
        yield part, np.where(p.reached[part], p.pred[part], np.where(label_reached, labels, -1))


@dataclass(frozen=True, repr=False)
class Noise(Result):
    """How many labels are wrong.

    Attributes:
        rows: One row per class: ``class``, ``n`` (samples with this label), ``count`` and ``share`` of wrong ones,
            ``low`` and ``high`` (95% interval of the share), ``true_class`` of most of them (null if there are none).
        count: Wrong labels in all.
        share: Their share of the labeled samples; `low` and `high` are its 95% interval.
        exact: Whether the probabilities of all classes were used.
        unsure: Number of samples for which a third class might have counted if its probability were stored.
        thresholds: ``(C,)`` mean confidence in each class; 2 for a class without samples.
    """

    rows: pa.Table
    count: float
    share: float
    low: float
    high: float
    exact: bool
    unsure: int
    thresholds: np.ndarray

    def __repr__(self) -> str:
        labels = sum(self.rows["n"].to_pylist())
        share = interval(self.share, self.low, self.high, ".1%")
        return self._line(None, f"{self.count:,.0f} of {labels:,} labels are probably wrong", share)

    def _shown_rows(self) -> list[dict[str, Any]]:
        return self.rows.sort_by([("count", "descending")]).to_pylist()


def noise(table: Any) -> Noise:
    """How many labels of each class are wrong, and what they should be, by confident learning.

    The counts of `confident_joint` are scaled to the number of samples with each label. Intervals are Wilson's for each
    class; for the total, their distances are added in quadrature. They cover chance in the counting, not the network's
    errors: a class that it systematically confuses with another one counts as mislabeled.

    Args:
        table: A `SampleTable`, scores of labeled samples, best out of sample.

    Examples:
        >>> columns = {"id": list("abcd"), "label": [0, 0, 1, 1], "pred": [0, 1, 1, 1], "max_logit": [0.0] * 4,
        ...            "confidence": [0.9, 0.1, 0.8, 0.8], "free_energy": np.log([0.9, 0.9, 0.8, 0.8])}
        >>> estimate = noise(SampleTable.from_columns(columns))
        >>> estimate.count, estimate.rows["share"].to_pylist(), estimate.rows["true_class"].to_pylist()
        (1.0, [0.5, 0.0], [1, None])
    """
    p = known_probabilities(table)
    joint, n, total = confident_joint(p), p.counts, int(p.counts.sum())
    counted = joint.sum(axis=1)
    wrong = counted - joint.diagonal()
    share, (low, high) = wrong / counted, wilson(wrong, counted)
    low, high = np.minimum(low, share), np.maximum(high, share)  # rounding must not put the share outside
    overall, lowest, highest = weighted_share(wrong, counted, n)
    joint.setdiag(0)
    absent = n == 0
    rows = {"class": pa.array(np.arange(len(n))), "n": pa.array(n), "count": pa.array(n * share)}
    rows |= {name: pa.array(v, mask=absent) for name, v in (("share", share), ("low", low), ("high", high))}
    likely = np.ravel(joint.argmax(axis=1)).astype(np.int64)
    rows["true_class"] = pa.array(likely, mask=absent | (wrong == 0))
    unsure = np.zeros(0, bool)
    if not p.exact:
        rest = 1 - p.prediction - np.where(p.labels == p.pred, 0.0, p.label)
        unsure = p.labeled & ~p.reached & (np.minimum(rest, p.prediction) >= p.thresholds.min() - _SLACK)
    ends, unsure_count = (lowest, highest), int(unsure.sum())
    return Noise(pa.table(rows), overall * total, overall, *ends, p.exact, unsure_count, p.thresholds)


def labels_of(table: SampleTable) -> np.ndarray:
    """Labels, −1 where a sample has none; a table without any is refused."""
    if "label" not in table or (labels := table.column("label")).null_count == len(table):
        raise InputError("label errors need labels, and this table has none; score labeled data.")
    return pc.fill_null(labels.cast(pa.int64()), -1).to_numpy()


def class_means(values: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Mean of the values of each class, NaN and samples without a label left out; 0 where nothing is left."""
    return np.nan_to_num(moments(values, labels, classes).mean)


def has_probabilities(table: SampleTable, classes: int = 0) -> bool:
    """Whether the probabilities of all samples are kept, for at least this many classes."""
    vectors = table.stored_vectors
    if vectors is None or "probabilities" not in vectors.column_names:
        return False
    if vectors.schema.field("probabilities").type.list_size < classes or (table.vector_places < 0).any():
        return False
    if isinstance(vectors, StoredRows):
        return not any(rows["probabilities"].null_count for rows in vectors.pieces(["probabilities"]))
    return not vectors["probabilities"].null_count


def probability_blocks(table: SampleTable) -> Iterator[tuple[np.ndarray | slice, np.ndarray]]:
    """Rows of a table that `has_probabilities`, and their probabilities of all classes, some at a time.

    For a large run on disk they come in storage order.
    """
    vectors, places = table.stored_vectors, table.vector_places
    if isinstance(vectors, StoredRows):
        yield from _stored_blocks(vectors, places)
        return
    for part in _parts(len(table)):
        yield part, matrix(vectors, "probabilities", places[part])


def _stored_blocks(vectors: StoredRows, places: np.ndarray) -> Iterator[tuple[np.ndarray | slice, np.ndarray]]:
    in_order, start = len(places) == len(vectors) and bool((np.diff(places) == 1).all()), 0
    order = None if in_order else np.argsort(places, kind="stable")
    for rows in vectors.pieces(["probabilities"]):
        stop = start + len(rows)
        if order is None:
            yield slice(start, stop), matrix(rows, "probabilities")
        else:
            part = order[slice(*np.searchsorted(places, (start, stop), sorter=order))]
            yield part, matrix(rows, "probabilities", places[part] - start)
        start = stop


def _probability_type(table: SampleTable) -> Any:
    """The Arrow type of the probabilities of a table that has them."""
    vectors: Any = table.stored_vectors
    return vectors.schema.field("probabilities").type


def _parts(n: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, n, _BLOCK))


def probability_matrix(table: SampleTable) -> np.ndarray:
    """Probabilities of all classes, ``(N, C)``, in the order of the table."""
    if not has_probabilities(table):
        raise InputError("the run does not keep the probabilities of all classes (runs keep them for up to 100).")
    kept = _probability_type(table)
    p = np.empty((len(table), kept.list_size), kept.value_type.to_pandas_dtype())
    for part, block in probability_blocks(table):
        p[part] = block
    return p
