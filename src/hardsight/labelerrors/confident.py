"""Confident learning (Northcutt et al., JAIR 2021): how many labels are wrong, counted from what the net is sure of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from hardsight.ensemble import matrix
from hardsight.errors import InputError
from hardsight.stats import wilson
from hardsight.table import SampleTable

NEEDED = ("confidence", "max_logit", "free_energy")  # columns that give the probabilities of label and prediction
SURE = 0.9  # a probability at which a prediction is taken for a label whatever the class
_SLACK = 1e-6  # a probability this close below its threshold reaches it, as in confident learning's released code
_BLOCK = 1 << 16  # rows at a time: the probabilities of a million samples need not be in memory twice


class Beliefs:
    """What the net believes of each sample, as far as the table tells.

    Where the probabilities of all classes were kept they are used, and everything is exact. Else ``confidence`` is
    the label's probability and ``exp(max_logit + free_energy)`` the prediction's. For one net this is exact, too; for
    means over several the latter is the geometric mean of what each net gives its own prediction.
    """

    def __init__(self, table: SampleTable) -> None:
        self.table, self.labels, self.pred = table, labels_of(table), predictions_of(table)
        seen = int(max(self.labels.max(initial=0), self.pred.max(initial=0))) + 1
        self.classes = max(table.meta.model.classes or 0, seen)
        rows = probability_rows(table, seen)
        self.exact, self._rows = rows is not None, np.empty(0, dtype=np.int64) if rows is None else rows
        if not self.exact and (missing := [name for name in NEEDED if name not in table]):
            raise InputError(
                f"the probabilities of label and prediction come from {', '.join(NEEDED)}; the table lacks "
                f"{', '.join(missing)}."
            )
        p_label, p_pred, p_other = self._from_matrix() if self.exact else self._from_columns()
        self.p_label, self.p_pred = np.where(self.labels >= 0, p_label, np.nan), p_pred
        self.p_other = p_other  # of the most probable class that is not the label

    def _from_matrix(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        p_label, p_pred, p_other = (np.empty(len(self.table)) for _ in range(3))
        for part, p in self._blocks():
            row, label = np.arange(len(p)), np.maximum(self.labels[part], 0)
            p_label[part], p_pred[part] = p[row, label], p[row, self.pred[part]]
            p[row, label] = -np.inf
            p_other[part] = p.max(axis=1) if p.shape[1] > 1 else 0.0
        return p_label, p_pred, p_other

    def _from_columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table, right = self.table, self.labels == self.pred
        p_label = table["confidence"].astype(np.float64)
        p_max = np.exp(np.minimum(table["max_logit"] + table["free_energy"], 0.0))
        p_pred = np.where(right, p_label, np.minimum(p_max, 1 - p_label))  # over several nets the two may exceed 1
        second = p_label * np.exp(-np.maximum(table["margin"], 0.0)) if "margin" in table else np.nan
        return p_label, p_pred, np.where(right, second, p_pred)

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Probabilities of all classes, some rows at a time."""
        for start in range(0, len(self.table), _BLOCK):
            part = slice(start, start + _BLOCK)
            yield part, matrix(self.table.vectors, "probabilities", self._rows[part])

    @property
    def contradicted(self) -> np.ndarray:
        """Whether a sample has a label, and the prediction is another class."""
        return (self.labels >= 0) & (self.labels != self.pred)

    def label_rank(self) -> np.ndarray:
        """``(N,)`` where each label stands among the classes that were not predicted, from 0 (the most probable) to 1.

        Equal probabilities count in the label's favor, because those of a very confident network vanish together. Exact
        tables only; NaN without a label, and where the label is the prediction.
        """
        rank = np.full(len(self.table), np.nan)
        for part, p in self._blocks():
            row, label = np.arange(len(p)), np.maximum(self.labels[part], 0)
            at = p[row, label][:, None]
            p[row, self.pred[part]] = -np.inf  # among networks that vote it need not be the most probable
            rank[part] = (p > at).sum(axis=1) / max(p.shape[1] - 2, 1)
        return np.where(self.contradicted, rank, np.nan)

    @cached_property
    def samples(self) -> np.ndarray:
        """``(C,)`` how many samples have each label."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.classes)

    @cached_property
    def thresholds(self) -> np.ndarray:
        """``(C,)`` mean confidence of the samples of each class; 2, which nothing reaches, where there are none."""
        known = (self.labels >= 0) & np.isfinite(self.p_label)
        n = np.bincount(self.labels[known], minlength=self.classes)
        mean = np.bincount(self.labels[known], self.p_label[known], minlength=self.classes) / np.maximum(n, 1)
        return np.maximum(np.where(self.samples > 0, mean, 2.0), 2 * _SLACK)

    @property
    def reached(self) -> np.ndarray:
        """Whether the prediction reaches the threshold of its class."""
        return self.p_pred >= self.thresholds[self.pred] - _SLACK

    @property
    def sure(self) -> np.ndarray:
        """Whether the net would give the prediction as a label: it reaches its threshold, or `SURE` if that is less.

        Where a net is nearly always right its usual confidence is more than anyone would ask for.
        """
        return self.reached | (self.p_pred >= SURE)

    def true_class(self) -> np.ndarray:
        """The class whose threshold each sample reaches, the most probable if several, −1 if none."""
        if not self.exact:
            label_reached = self.p_label >= self.thresholds[self.labels] - _SLACK
            return np.where(self.reached, self.pred, np.where(label_reached, self.labels, -1))
        true = np.empty(len(self.table), dtype=np.int64)
        for part, p in self._blocks():
            reached = p >= self.thresholds[: p.shape[1]] - _SLACK
            several = reached.sum(axis=1)
            true[part] = np.where(several > 1, p.argmax(axis=1), np.where(several == 1, reached.argmax(axis=1), -1))
        return true

    def unsure(self) -> int:
        """In how many samples a third class might have been counted, had its probability been known."""
        if self.exact:
            return 0
        left = 1 - self.p_pred - np.where(self.labels == self.pred, 0.0, self.p_label)
        possible = np.minimum(left, self.p_pred) >= self.thresholds.min() - _SLACK
        return int((possible & ~self.reached & (self.labels >= 0)).sum())


def confident_joint(table: SampleTable, *, calibrate: bool = False) -> sparse.csr_array:
    """Counts of (label, true class), ``(C, C)`` and sparse: the confident joint.

    With the probabilities of all classes at hand this is its definition: a sample counts for the class whose
    threshold its probability reaches, for the most probable class when it reaches several, and not at all when it
    reaches none. Without them only the probabilities of label and prediction are known. That suffices unless a third
    class reaches its threshold while the prediction does not reach its own: such a sample is not counted, or counted
    as rightly labelled. `Noise.unsure` bounds how many there are.

    Args:
        table: Scores of labeled samples.
        calibrate: Scale each row to the number of samples with that label.

    Examples:
        >>> columns = {"id": list("abcd"), "label": [0, 0, 1, 1], "pred": [0, 1, 1, 1],
        ...            "confidence": [0.9, 0.1, 0.8, 0.8], "max_logit": [0.0] * 4,
        ...            "free_energy": np.log([0.9, 0.9, 0.8, 0.8])}
        >>> confident_joint(SampleTable.from_columns(columns)).toarray()
        array([[1., 1.],
               [0., 2.]])
    """
    return _joint(Beliefs(table), calibrate)


def _joint(beliefs: Beliefs, calibrate: bool = False) -> sparse.csr_array:
    labels, true, classes = beliefs.labels, beliefs.true_class(), beliefs.classes
    counted = (labels >= 0) & (true >= 0)
    places = (labels[counted], true[counted])
    joint = sparse.coo_array((np.ones(counted.sum()), places), shape=(classes, classes)).tocsr()  # equal places add up
    # Every class has at least one rightly labelled sample, whatever was counted.
    joint = joint + sparse.diags_array(np.maximum(1 - joint.diagonal(), 0), format="csr")
    if calibrate:
        joint = sparse.diags_array(beliefs.samples / joint.sum(axis=1), format="csr") @ joint
    return sparse.csr_array(joint)


@dataclass(frozen=True)
class Noise:
    """How many labels are wrong.

    Attributes:
        rows: One row per class: ``class``, ``n`` (samples labelled so), ``count`` and ``share`` of them that are wrong,
            ``low`` and ``high`` (95 % interval of the share), ``true_class`` (what most of the wrong ones are; null
            where there are none).
        count: Wrong labels in all.
        share: Their share of the labeled samples.
        low: Lower end of its 95 % interval.
        high: Upper end of it.
        exact: Whether the probabilities of all classes were there to count with.
        unsure: In how many samples a class that is neither label nor prediction might have been counted, had its
            probability been known; 0 where it was.
        thresholds: ``(C,)`` the net's usual confidence in each class; 2 for a class without samples.
    """

    rows: pa.Table
    count: float
    share: float
    low: float
    high: float
    exact: bool
    unsure: int
    thresholds: np.ndarray


def noise(table: SampleTable) -> Noise:
    """How many labels of each class are wrong, and what they should be, by confident learning.

    The counts of `confident_joint` are scaled so that each class has as many samples as labels. Intervals are
    Wilson's for a class, from the samples that were counted, and their distances squared and added over classes for
    all (the method of variance estimates recovery). They hold the chance in the counting, not the net's errors: a
    class that the net systematically takes for another one counts as wrongly labelled.

    Args:
        table: Scores of labeled samples, best taken out of sample.

    Examples:
        >>> columns = {"id": list("abcd"), "label": [0, 0, 1, 1], "pred": [0, 1, 1, 1],
        ...            "confidence": [0.9, 0.1, 0.8, 0.8], "max_logit": [0.0] * 4,
        ...            "free_energy": np.log([0.9, 0.9, 0.8, 0.8])}
        >>> found = noise(SampleTable.from_columns(columns))
        >>> found.count, found.rows["share"].to_pylist(), found.rows["true_class"].to_pylist()
        (1.0, [0.5, 0.0], [1, None])
    """
    return noise_of(Beliefs(table))


def noise_of(beliefs: Beliefs) -> Noise:
    """`noise` from what was read of a table already."""
    joint, n = _joint(beliefs), beliefs.samples
    counted = joint.sum(axis=1)
    wrong = counted - joint.diagonal()
    share, (low, high) = wrong / counted, wilson(wrong, counted)
    low, high = np.minimum(low, share), np.maximum(high, share)  # rounding must not put the share outside
    total = int(n.sum())
    overall = float(n @ share / total)
    below, above = (float(np.linalg.norm(n * (end - share)) / total) for end in (low, high))
    joint.setdiag(0)
    absent = n == 0
    rows = {
        "class": pa.array(np.arange(len(n))),
        "n": pa.array(n),
        "count": pa.array(n * share),
        "share": pa.array(share, mask=absent),
        "low": pa.array(low, mask=absent),
        "high": pa.array(high, mask=absent),
        "true_class": pa.array(np.ravel(joint.argmax(axis=1)).astype(np.int64), mask=absent | (wrong == 0)),
    }
    ends = max(overall - below, 0.0), min(overall + above, 1.0)
    return Noise(pa.table(rows), overall * total, overall, *ends, beliefs.exact, beliefs.unsure(), beliefs.thresholds)


def labels_of(table: SampleTable) -> np.ndarray:
    """Labels, −1 where a sample has none; a table without any is refused."""
    if "label" not in table or table.to_arrow()["label"].null_count == len(table):
        raise InputError("label errors need labels, and this table has none; score data that have them.")
    return pc.fill_null(table.to_arrow()["label"].cast(pa.int64()), -1).to_numpy()


def predictions_of(table: SampleTable) -> np.ndarray:
    """Predicted classes; a table that lacks any is refused."""
    if "pred" not in table or table.to_arrow()["pred"].null_count:
        raise InputError("label errors need a prediction per sample, and this table lacks some; score the data again.")
    return table["pred"].astype(np.int64)


def probability_rows(table: SampleTable, classes: int = 0) -> np.ndarray | None:
    """Where the probabilities of each sample lie in the vectors; None unless they are there for all of them."""
    vectors = table.vectors
    if vectors is None or "probabilities" not in vectors.column_names or vectors["probabilities"].null_count:
        return None
    if vectors.schema.field("probabilities").type.list_size < classes:
        return None
    where = pc.index_in(table.to_arrow()["id"].cast(pa.string()), value_set=vectors["id"].combine_chunks())
    return None if where.null_count else where.to_numpy()


def probability_matrix(table: SampleTable) -> np.ndarray:
    """Probabilities of all classes, ``(N, C)``, row by row of the table."""
    where = probability_rows(table)
    if where is None:
        raise InputError(
            "the table does not keep the probabilities of all classes (runs keep them for up to 100 classes)."
        )
    return matrix(table.vectors, "probabilities", where)
