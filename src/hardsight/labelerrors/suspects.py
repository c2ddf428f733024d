"""Suspects: samples in the order of suspicion, and what to do with each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from hardsight.table import SampleTable


def label_errors(
    table: SampleTable, by: str | None = None, *, count: int | None = None, share: float | None = None
) -> SampleTable:
    """Every sample, the one with the most probably wrong label first.

    The suspects are the `count` most suspicious samples whose prediction is not their label. A suspect's suggested
    label is its prediction, where the net is as sure of it as it usually is of that class (its probability reaches
    the mean confidence of the samples labelled so) or gives it a probability of .9.

    Args:
        table: Scores of labelled samples, best taken out of sample.
        by: A name from `RANKINGS`; the one that was measured to be the best if not given.
        count: How many suspects. If neither is given they are as many as `noise` estimates wrong labels, and besides
            every sample whose label the net contradicts for sure.
        share: Which share of the labelled samples are suspects.

    Returns:
        Columns ``id, label, pred, suspicion, rank`` (1 is the most suspicious), ``suspect``, ``suggested`` (a class
        or null), ``p_label`` and ``p_pred`` (null where the table does not tell). Ties are in the order of the ids;
        samples without a label come last. ``meta`` says ``by``, ``suspects``, the ``estimate`` of wrong labels
        (``count``, ``low``, ``high``), and in ``notes`` what speaks against believing them.

    Examples:
        >>> columns = {"id": list("abcd"), "label": [0, 0, 1, 1], "pred": [0, 1, 1, 1],
        ...            "confidence": [0.9, 0.1, 0.8, 0.8], "max_logit": [0.0] * 4,
        ...            "free_energy": np.log([0.9, 0.9, 0.8, 0.8])}
        >>> found = label_errors(SampleTable.from_columns(columns), by="confidence")
        >>> found["id"].tolist(), found["suspect"].tolist()
        (['b', 'c', 'd', 'a'], [True, False, False, False])
    """
    labels, pred = labels_of(table), predictions_of(table)
    ranking = check_ranking(table, by)
    suspicion = np.where(labels >= 0, np.asarray(ranking.function(table), dtype=np.float64), np.nan)
    told = all(name in table for name in NEEDED) or probability_rows(table) is not None
    beliefs = Beliefs(table) if told else None
    labelled = int((labels >= 0).sum())
    estimate = None if beliefs is None else noise_of(beliefs)
    wanted = _wanted(count, share, estimate, labelled)
    rows = pa.table({"id": table.to_arrow()["id"], "suspicion": suspicion})
    order = pc.sort_indices(rows, sort_keys=[("suspicion", "descending"), ("id", "ascending")])  # NaN comes last
    first = order.to_numpy()
    differ = first[((labels != pred) & np.isfinite(suspicion))[first]]
    suspect = np.zeros(len(table), dtype=bool)
    suspect[differ[:wanted]] = True
    sure = np.zeros(len(table), dtype=bool) if beliefs is None else beliefs.sure
    if count is None and share is None:
        suspect[differ] |= sure[differ]
    sure &= suspect
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
    meta = {**table.meta, "by": ranking.name, "suspects": int(suspect.sum())}
    if estimate is not None:
        ends = {"low": estimate.low * labelled, "high": estimate.high * labelled}
        meta["estimate"] = {"count": estimate.count, **ends}
    meta["notes"] = [note for note in (sampling_note(table), accuracy_note(table)) if note]
    return SampleTable(rows, meta, table.bad)


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
    """What to do with each sample: ``keep``, ``relabel`` or ``drop``.

    A suspect is relabelled when the net is sure of another class (a probability of .9, or what it usually gives that
    class if that is less), and dropped when it is sure of none; what could not be read is dropped; all else is kept.

    Args:
        table: Scores of labelled samples, best taken out of sample.
        by: A name from `RANKINGS`.
        count: How many suspects (see `label_errors`).
        share: Which share of the labelled samples are suspects.

    Returns:
        The rows of `label_errors` with ``action`` and ``reason`` (null for ``keep``), then those that could not be
        read.
    """
    found = label_errors(table, by, count=count, share=share)
    rows = found.to_arrow()
    relabel, suspect = pc.is_valid(rows["suggested"]), rows["suspect"]
    action = pc.if_else(relabel, "relabel", pc.if_else(suspect, "drop", "keep"))
    why = pc.if_else(suspect, "the net doubts the label and is sure of no class", pa.scalar(None, pa.string()))
    why = pc.if_else(relabel, "the net is sure of another class", why)
    rows = rows.add_column(1, "action", action).append_column("reason", why)
    lost = pa.table({"id": table.bad["id"], "action": pa.repeat("drop", len(table.bad)), "reason": table.bad["error"]})
    return SampleTable(pa.concat_tables([rows, lost], promote_options="default"), found.meta, table.bad)


def accuracy_note(table: SampleTable) -> str | None:
    """A warning when the net contradicts so many labels that much of it must be its own mistakes."""
    accuracy = table.accuracy
    if accuracy is None or accuracy >= 0.95:
        return None
    return (
        f"The net contradicts {1 - accuracy:.1%} of the labels. Where so many cannot be wrong, most of that, and of "
        "the estimate, are its own mistakes: look before you act, or use a better net."
    )


def sampling_note(table: SampleTable) -> str | None:
    """A warning when the table does not say that its samples were kept out of all training."""
    found = table.meta.get("out_of_sample")
    if isinstance(found, Mapping) and found.get("retrained") == "head":
        return (
            "Only the head was refitted on folds; features that were trained on these very labels hand them on. If "
            "they were, score a function that trains (file.py:train --folds) instead."
        )
    if found:
        return None
    return (
        "The run does not say that these samples were kept out of training; a net that has learned a wrong label by "
        "heart does not doubt it. Score with --folds to be safe."
    )
