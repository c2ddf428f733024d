"""Suspects: samples in the order of suspicion, and what to do with each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.chance import chance_agreement
from hardsight.errors import InputError
from hardsight.labelerrors.confident import (
    NEEDED,
    Beliefs,
    Noise,
    labels_of,
    noise_of,
    predictions_of,
    probability_rows,
)
from hardsight.labelerrors.rankings import check_ranking
from hardsight.labelerrors.safety import automatic
from hardsight.runs import Folds
from hardsight.table import SampleTable


def label_errors(
    table: SampleTable, by: str | None = None, *, count: int | None = None, share: float | None = None
) -> SampleTable:
    """Every sample, the one with the most probably wrong label first.

    Labels that the network contradicts come first, the others after them, both by suspicion. The suspects are the
    first `count` that it contradicts. A suspect's suggested label is its prediction, where the network is as sure of it
    as it usually is of that class (its probability reaches the mean confidence of the samples labeled so) or gives it a
    probability of 0.9. A network at or near chance makes no suspects and no suggestions.

    Args:
        table: Scores of labeled samples, best taken out of sample.
        by: A name from `RANKINGS`; the one that was measured to be the best if not given.
        count: How many suspects. If neither is given they are as many as `noise` estimates wrong labels.
        share: Which share of the labeled samples are suspects.

    Returns:
        Columns ``id, label, pred, suspicion, rank`` (1 is the most suspicious), ``suspect``, ``suggested`` (a class
        or null), ``p_label`` and ``p_pred`` (null where the table does not tell). Ties are in the order of the ids;
        samples without a label come last. ``meta`` says ``by``, ``suspects``, the ``estimate`` of wrong labels
        (``count``, ``low``, ``high``; None where it cannot be believed), ``automatic`` (see `actions`), ``chance`` (a
        sentence where the network is at or near chance, else None), and in ``notes`` what speaks against believing
        the suspects.

    Examples:
        >>> columns = {"id": list("abcd"), "label": [0, 0, 1, 1], "pred": [0, 1, 1, 1],
        ...            "confidence": [0.9, 0.1, 0.8, 0.8], "max_logit": [0.0] * 4,
        ...            "free_energy": np.log([0.9, 0.9, 0.8, 0.8])}
        >>> suspects = label_errors(SampleTable.from_columns(columns), by="confidence")
        >>> suspects["id"].tolist(), suspects["suspect"].tolist()
        (['b', 'c', 'd', 'a'], [True, False, False, False])
    """
    labels, pred = labels_of(table), predictions_of(table)
    ranking = check_ranking(table, by)
    suspicion = np.where(labels >= 0, np.asarray(ranking.function(table), dtype=np.float64), np.nan)
    known = all(name in table for name in NEEDED) or probability_rows(table) is not None
    beliefs = Beliefs(table) if known else None
    labeled = int((labels >= 0).sum())
    estimate = None if beliefs is None else noise_of(beliefs)
    wanted = _wanted(count, share, estimate, labeled)
    chance = chance_agreement(labels, pred)
    contradicted = (labels >= 0) & (labels != pred) & np.isfinite(suspicion)
    rows = pa.table({"id": table.to_arrow()["id"], "contradicted": contradicted, "suspicion": suspicion})
    keys = [("contradicted", "descending"), ("suspicion", "descending"), ("id", "ascending")]  # NaN comes last
    order = pc.sort_indices(rows, sort_keys=keys)
    suspect = np.zeros(len(table), dtype=bool)
    if not chance.near:
        suspect[order.to_numpy()[: min(wanted, int(contradicted.sum()))]] = True
    sure = suspect & (beliefs.sure if beliefs is not None else False)
    unknown = pa.nulls(len(table), pa.float64())
    columns = {
        "id": rows["id"],
        "label": pa.array(labels, mask=labels < 0),
        "pred": pa.array(pred),
        "suspicion": rows["suspicion"],
        "suspect": pa.array(suspect),
        "suggested": pa.array(pred, mask=~sure),
        "p_label": unknown if beliefs is None else pa.array(beliefs.p_label, mask=labels < 0),
        "p_pred": unknown if beliefs is None else pa.array(beliefs.p_pred),
    }
    rows = pa.table(columns).take(order).add_column(4, "rank", pa.array(np.arange(1, len(table) + 1)))
    gate = automatic(table, beliefs, estimate)
    facts: dict[str, Any] = {"by": ranking.name, "suspects": int(suspect.sum()), "automatic": gate, "estimate": None}
    if estimate is not None and gate.kind not in ("chance", "implausible"):
        facts["estimate"] = {
            "count": estimate.count, "low": estimate.low * labeled, "high": estimate.high * labeled
        }  # fmt: skip
    facts["chance"] = str(chance) if chance.near else None
    notes = (facts["chance"],) if chance.near else (sampling_note(table), accuracy_note(table))
    facts["notes"] = [note for note in notes if note]
    return SampleTable(rows, replace(table.meta, label_errors=facts), table.bad)


def _wanted(count: int | None, share: float | None, estimate: Noise | None, n: int) -> int:
    if count is not None and share is not None:
        raise InputError(f"give count or share, not both; got {count} and {share}.")
    if count is not None:
        if count < 0:
            raise InputError(f"count must be 0 or more, got {count}.")
        return count
    if share is not None:
        if not 0 <= share <= 1:
            raise InputError(f"share must lie between 0 and 1, got {share}.")
        return round(share * n)
    if estimate is None:
        raise InputError(
            f"how many labels are wrong is estimated from {', '.join(NEEDED)}, which the table lacks; give count or "
            "share."
        )
    return round(estimate.count)


def actions(
    table: SampleTable, by: str | None = None, *, count: int | None = None, share: float | None = None
) -> SampleTable:
    """What to do with each sample: ``keep``, ``review``, ``relabel`` or ``drop``.

    A suspect is for a person to *review*. It is *relabeled* only where the run itself shows that this is safe: the
    samples were kept out of training, the network is far better than chance, the number of wrong labels is plausible
    beside its accuracy, and at least 80% of the new labels are right by the lower end of a 95% interval (see
    `hardsight.labelerrors.safety`); ``meta.label_errors["automatic"]`` says which those are, or why there
    are none. What could not be read is *dropped*; all else is *kept*.

    Args:
        table: Scores of labeled samples, best taken out of sample.
        by: A name from `RANKINGS`.
        count: How many suspects (see `label_errors`).
        share: Which share of the labeled samples are suspects.

    Returns:
        The rows of `label_errors` with ``action`` and ``reason`` (null for ``keep``): first what is relabeled, then
        what is to be reviewed, then what is kept, and last what could not be read; ``rank`` counts in this order.
    """
    suspects = label_errors(table, by, count=count, share=share)
    rows = suspects.to_arrow()
    threshold = suspects.meta.label_errors["automatic"].threshold
    relabel = pc.and_(rows["suspect"], pc.is_valid(rows["suggested"]))
    reached = pc.fill_null(pc.greater_equal(rows["p_pred"], np.inf if threshold is None else threshold), False)
    relabel = pc.and_(relabel, reached)
    action = pc.if_else(relabel, "relabel", pc.if_else(rows["suspect"], "review", "keep"))
    reason = pc.if_else(rows["suspect"], "the network doubts the label", pa.scalar(None, pa.string()))
    reason = pc.if_else(relabel, "the network is sure of another class, and usually right to be", reason)
    rows = rows.add_column(1, "action", action).append_column("reason", reason)
    rank = rows["rank"]
    rows = pa.concat_tables(rows.filter(pc.equal(rows["action"], name)) for name in ("relabel", "review", "keep"))
    rows = rows.set_column(rows.column_names.index("rank"), "rank", rank)
    lost = pa.table({"id": table.bad["id"], "action": pa.repeat("drop", len(table.bad)), "reason": table.bad["error"]})
    return SampleTable(pa.concat_tables([rows, lost], promote_options="default"), suspects.meta, table.bad)


def accuracy_note(table: SampleTable) -> str | None:
    """A warning when the network contradicts so many labels that much of it must be its own mistakes."""
    accuracy = table.accuracy
    if accuracy is None or accuracy >= 0.95:
        return None
    return (
        f"The network contradicts {1 - accuracy:.1%} of the labels. Where so many cannot be wrong, most of that, and "
        "of the estimate, are its own mistakes: look before you act, or use a better network."
    )


def sampling_note(table: SampleTable) -> str | None:
    """A warning when the table does not say that its samples were kept out of all training."""
    out_of_sample = table.meta.out_of_sample
    if isinstance(out_of_sample, Folds) and out_of_sample.retrained == "head":
        return (
            "Only the head was refitted on folds; features that were trained on these very labels hand them on. If "
            "they were, score a function that trains (file.py:train --folds) instead."
        )
    if out_of_sample:
        return None
    return (
        "The run does not say that these samples were kept out of training; a network that has memorized a wrong label "
        "does not doubt it. Score with --folds to be safe."
    )
