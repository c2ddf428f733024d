"""Suspects: samples in the order of suspicion, and what to do with each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.chance import chance_agreement
from hardsight.errors import InputError
from hardsight.labelerrors.confident import Probabilities, noise
from hardsight.labelerrors.rankings import check_ranking
from hardsight.labelerrors.safety import automatic
from hardsight.printing import percent
from hardsight.probabilities import check_probabilities
from hardsight.registry import Range
from hardsight.runs import Folds, Meta
from hardsight.scoring.probabilities import score_probabilities
from hardsight.storedrows import StoredRows
from hardsight.table import Rows, SampleTable

ACTIONS = ("relabel", "review", "keep", "drop")
# Of each action but the last: unreadable samples are dropped, and the error is the reason.
REASONS = ("the network is confident of another class, and usually right then", "the network doubts the label", None)


def label_errors(
    table: SampleTable | Any,
    pred_probs: Any = None,
    *,
    by: str | None = None,
    count: int | None = None,
    share: float | None = None,
) -> SampleTable:
    """Every sample, the one with the most probably wrong label first.

    Labels that the network contradicts come first, then all others, both by suspicion. The suspects are the first
    `count` contradicted ones. The suggested label of a suspect is its prediction, where its probability reaches the
    mean confidence of the samples labeled so, or 0.9. A network at or near chance has no suspects.

    Args:
        table: Scores of labeled samples, best out of sample; or the labels themselves, ``(N,)`` class indices.
        pred_probs: With labels, the predicted probabilities ``(N, C)``, best by cross-validation. Ids are then the
            positions: ``"0"``, ``"1"`` …
        by: A name from `RANKINGS`; the best one in our benchmark if not given.
        count: Number of suspects; the number of wrong labels that `noise` estimates if neither this nor `share` is
            given.
        share: Suspects as a share of the labeled samples.

    Returns:
        Columns ``id, label, pred, suspicion, rank`` (1 is the most suspicious), ``suspect``, ``suggested`` (a class
        or null), ``p_label`` and ``p_pred`` (null where unknown). Ties are in the order of the ids; samples without a
        label come last. ``meta.label_errors`` has ``by``, ``suspects``, ``estimate`` (``count``, ``low``, ``high``;
        None if it is not credible), ``automatic`` (see `actions`), ``chance`` (a sentence if the network is at or near
        chance, else None) and ``notes`` (reasons to doubt the suspects).

    Examples:
        >>> columns = {"id": list("abcd"), "label": [0, 0, 1, 1], "pred": [0, 1, 1, 1], "max_logit": [0.0] * 4,
        ...            "confidence": [0.9, 0.1, 0.8, 0.8], "free_energy": np.log([0.9, 0.9, 0.8, 0.8])}
        >>> suspects = label_errors(SampleTable.from_columns(columns), by="confidence")
        >>> suspects["id"].tolist(), suspects["suspect"].tolist()
        (['b', 'c', 'd', 'a'], [True, False, False, False])
        >>> label_errors([0, 0, 1, 1], [[0.9, 0.1], [0.1, 0.9], [0.2, 0.8], [0.2, 0.8]])["id"][:1].tolist()
        ['1']
    """
    if isinstance(pred_probs, str):  # label_errors(table, "margin")
        pred_probs, by = None, pred_probs
    if not isinstance(table, SampleTable):
        table = _scored(table, pred_probs)
    elif pred_probs is not None:
        raise InputError("pred_probs go with labels: label_errors(labels, pred_probs), or label_errors(table).")
    ranked = ranked_labels(table, by, count, share)
    return SampleTable(_columns(ranked, ranked.order), ranked.meta, table.bad)


class RankedLabels(NamedTuple):
    """The samples of a table in the order of suspicion.

    Attributes:
        p: Probabilities of label and prediction.
        suspicion: ``(N,)``, NaN where a sample has no label.
        order: Rows of the table, the most suspicious first.
        suspects: How many of them, the first, are suspects.
        meta: The table's metadata, with ``label_errors``.
    """

    p: Probabilities
    suspicion: np.ndarray
    order: np.ndarray
    suspects: int
    meta: Meta

    @property
    def threshold(self) -> float:
        """Suspects whose prediction has at least this probability are safe to relabel; infinite where none is."""
        return self.meta.label_errors["automatic"].threshold or np.inf


def ranked_labels(table: SampleTable, by: str | None, count: int | None, share: float | None) -> RankedLabels:
    """The common part of `label_errors` and `actions`, with the same options."""
    p = Probabilities(table)
    ranking = check_ranking(table, by)
    suspicion = np.where(p.labeled, np.asarray(ranking.function(table), dtype=np.float64), np.nan)
    labeled, estimate = int(p.labeled.sum()), None if p.missing else noise(p)
    if count is not None and share is not None:
        raise InputError(f"give count or share, not both; got {count} and {share}.")
    if share is not None:
        Range(0, 1).check(share, "share")
        count = round(share * labeled)
    elif count is None:
        count = round(noise(p).count if estimate is None else estimate.count)  # the former names what is missing
    Range(0).check(count, "count")
    chance = chance_agreement(p.labels, p.pred)
    contradicted = p.contradicted & np.isfinite(suspicion)
    suspects = 0 if chance.near else min(count, int(contradicted.sum()))
    order = _order(table, contradicted, suspicion)
    gate = automatic(p, estimate)
    del p.other, p.label_rank  # for a large run these are large, too
    facts: dict[str, Any] = {"by": ranking.name, "suspects": suspects, "automatic": gate, "estimate": None}
    if estimate is not None and gate.kind not in ("chance", "implausible"):
        low, high = estimate.low * labeled, estimate.high * labeled
        facts["estimate"] = {"count": estimate.count, "low": low, "high": high}
    facts["chance"] = str(chance) if chance.near else None
    notes = (facts["chance"],) if chance.near else (_sampling_note(table), accuracy_note(table))
    facts["notes"] = [note for note in notes if note]
    return RankedLabels(p, suspicion, order, suspects, replace(table.meta, label_errors=facts))


def _order(table: SampleTable, contradicted: np.ndarray, suspicion: np.ndarray) -> np.ndarray:
    """Rows by contradiction, then suspicion, both from large to small and NaN last; ties in the order of their ids."""
    order = np.lexsort((-suspicion, ~contradicted))
    values, first = suspicion[order], contradicted[order]
    tied = ((values[1:] == values[:-1]) | np.isnan(values[1:]) & np.isnan(values[:-1])) & (first[1:] == first[:-1])
    if tied.any():  # ids of ten million samples are compared only where they decide
        places = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
        group = np.cumsum(np.append(True, ~tied))[places]
        ids = table.column("id").take(pa.array(order[places]))
        keys = [("group", "ascending"), ("id", "ascending")]
        within = pc.sort_indices(pa.table({"group": group, "id": ids}), sort_keys=keys)
        order[places] = order[places[within.to_numpy()]]
    return order


def _columns(ranked: RankedLabels, order: np.ndarray) -> Rows:
    """The columns of `label_errors` in an order of rows that begins with the suspects."""
    p, n = ranked.p, len(order)
    rows = p.table.select_rows(order, ["id"])
    labeled, suspect = p.labeled[order], np.arange(n) < ranked.suspects
    unknown = np.full(n, bool(p.missing))
    columns = {
        "label": lambda: pa.array(p.labels[order].astype(np.int64), mask=~labeled),
        "pred": lambda: pa.array(p.pred[order].astype(np.int64)),
        "suspicion": lambda: pa.array(ranked.suspicion[order]),
        "rank": lambda: pa.array(np.arange(1, n + 1)),
        "suspect": lambda: pa.array(suspect),
        "suggested": lambda: pa.array(p.pred[order].astype(np.int64), mask=~(suspect & p.confident[order])),
        "p_label": lambda: pa.array(p.label[order].astype(np.float64), mask=unknown | ~labeled),
        "p_pred": lambda: pa.array(p.prediction[order].astype(np.float64), mask=unknown),
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column())
    return rows


def _scored(labels: Any, pred_probs: Any) -> SampleTable:
    """The scores of probabilities and labels; ids are the positions."""
    if pred_probs is None:
        raise InputError("label_errors takes a table of scores, or labels and pred_probs, got labels alone.")
    if getattr(labels, "ndim", 1) == 2 and getattr(pred_probs, "ndim", 2) == 1:
        raise InputError("labels come first: label_errors(labels, pred_probs).")
    p = check_probabilities("pred_probs", pred_probs)
    return score_probabilities(p, labels, range(len(p)))


def actions(
    table: SampleTable, by: str | None = None, *, count: int | None = None, share: float | None = None
) -> SampleTable:
    """What to do with each sample: ``keep``, ``review``, ``relabel`` or ``drop``.

    A suspect is for a person to *review*. It is *relabeled* only where the run itself shows that this is safe: the
    samples were kept out of training, the network is far better than chance, the number of wrong labels is plausible
    beside its accuracy, and at least 80% of the new labels are right by the lower end of a 95% interval (see
    `hardsight.labelerrors.safety`); ``meta.label_errors["automatic"]`` says which those are, or why there are none.
    Unreadable samples are *dropped*; all others are *kept*.

    Takes what `label_errors` takes, and returns its rows with ``action`` and ``reason`` (null for ``keep``) in the
    order relabel, review, keep, drop; ``rank`` counts in this order.
    """
    ranked = ranked_labels(table, by, count, share)
    order, action = ordered_actions(ranked)
    rows = _columns(ranked, order)
    rows = rows.to_table() if isinstance(rows, StoredRows) else rows
    rows = rows.add_column(1, "action", pa.array(ACTIONS).take(pa.array(action)))
    rows = rows.append_column("reason", pa.array(REASONS).take(pa.array(action)))
    bad = pa.table({"id": table.bad["id"], "action": pa.repeat("drop", len(table.bad)), "reason": table.bad["error"]})
    return SampleTable(pa.concat_tables([rows, bad], promote_options="default"), ranked.meta, table.bad)


def ordered_actions(ranked: RankedLabels) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the order of their actions, and the number of each action in `ACTIONS`."""
    first, rest = np.split(ranked.order, [ranked.suspects])
    relabel = ranked.p.confident[first] & (ranked.p.prediction[first].astype(np.float64) >= ranked.threshold)
    counts = int(relabel.sum()), int((~relabel).sum()), len(rest)
    order = np.concatenate([first[relabel], first[~relabel], rest])
    return order, np.repeat(np.arange(3, dtype=np.int8), counts)


def accuracy_note(table: SampleTable) -> str | None:
    """A warning when the network contradicts so many labels that many of these must be its own mistakes."""
    if table.accuracy is None or table.accuracy >= 0.95:
        return None
    return (
        f"The network contradicts {percent(1 - table.accuracy)} of the labels. Where so many cannot be wrong, most of "
        "them, and of the estimate, are its own mistakes: look before you act, or use a better network."
    )


def _sampling_note(table: SampleTable) -> str | None:
    out_of_sample = table.meta.out_of_sample
    if isinstance(out_of_sample, Folds) and out_of_sample.retrained == "head":
        return (
            "Only the head was refitted on folds; features that were trained on these very labels hand them on. If "
            "they were, score a function that trains (file.py:train --folds) instead."
        )
    text = (
        "The run does not say that these samples were kept out of training; a network that has memorized a wrong label "
        "does not doubt it. Score with --folds to be safe."
    )
    return None if out_of_sample else text
