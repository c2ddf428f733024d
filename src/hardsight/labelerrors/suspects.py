"""Suspects: samples in the order of suspicion, and what to do with each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from hardsight.runs import Folds
from hardsight.scoring.probabilities import score_probabilities
from hardsight.table import SampleTable

ACTIONS = ("relabel", "review", "keep", "drop")


def label_errors(
    table: SampleTable | Any,
    pred_probs: Any = None,
    *,
    by: str | None = None,
    count: int | None = None,
    share: float | None = None,
) -> SampleTable:
    """Every sample, the one with the most probably wrong label first.

    Labels that the network contradicts come first, the others after them, both by suspicion. The suspects are the
    first `count` contradicted ones. The suggested label of a suspect is its prediction, where its probability reaches
    the mean confidence of the samples labeled so, or 0.9. A network at or near chance has no suspects.

    Args:
        table: Scores of labeled samples, best out of sample; or the labels themselves, ``(N,)`` class indices.
        pred_probs: With labels, the predicted probabilities ``(N, C)``, best by cross-validation. Ids are then the
            positions: ``"0"``, ``"1"`` …
        by: A name from `RANKINGS`; the best one by measurement if not given.
        count: How many suspects; as many as `noise` estimates wrong labels if neither this nor `share` is given.
        share: Suspects as a share of the labeled samples.

    Returns:
        Columns ``id, label, pred, suspicion, rank`` (1 is the most suspicious), ``suspect``, ``suggested`` (a class
        or null), ``p_label`` and ``p_pred`` (null where unknown). Ties are in the order of the ids; samples without a
        label come last. ``meta.label_errors`` has ``by``, ``suspects``, ``estimate`` (``count``, ``low``, ``high``;
        None where it cannot be believed), ``automatic`` (see `actions`), ``chance`` (a sentence where the network is
        at or near chance, else None) and ``notes`` (what speaks against believing the suspects).

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
        count = round(noise(p).count if estimate is None else estimate.count)  # the former says what is missing
    Range(0).check(count, "count")
    chance = chance_agreement(p.labels, p.pred)
    contradicted = p.contradicted & np.isfinite(suspicion)
    rows = pa.table({"id": table.to_arrow()["id"], "contradicted": contradicted, "suspicion": suspicion})
    keys = [("contradicted", "descending"), ("suspicion", "descending"), ("id", "ascending")]  # NaN comes last
    order = pc.sort_indices(rows, sort_keys=keys)
    suspect = np.zeros(len(table), dtype=bool)
    if not chance.near:
        suspect[order.to_numpy()[: min(count, int(contradicted.sum()))]] = True
    unknown = np.full(len(table), bool(p.missing))
    columns = {
        "id": rows["id"],
        "label": pa.array(p.labels, mask=~p.labeled),
        "pred": pa.array(p.pred),
        "suspicion": rows["suspicion"],
        "suspect": pa.array(suspect),
        "suggested": pa.array(p.pred, mask=~(suspect & p.confident)),
        "p_label": pa.array(p.label, mask=unknown | ~p.labeled),
        "p_pred": pa.array(p.prediction, mask=unknown),
    }
    rows = pa.table(columns).take(order).add_column(4, "rank", pa.array(np.arange(1, len(table) + 1)))
    gate = automatic(p, estimate)
    facts: dict[str, Any] = {"by": ranking.name, "suspects": int(suspect.sum()), "automatic": gate, "estimate": None}
    if estimate is not None and gate.kind not in ("chance", "implausible"):
        low, high = estimate.low * labeled, estimate.high * labeled
        facts["estimate"] = {"count": estimate.count, "low": low, "high": high}
    facts["chance"] = str(chance) if chance.near else None
    notes = (facts["chance"],) if chance.near else (_sampling_note(table), accuracy_note(table))
    facts["notes"] = [note for note in notes if note]
    return SampleTable(rows, replace(table.meta, label_errors=facts), table.bad)


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
    suspects = label_errors(table, by=by, count=count, share=share)
    rows = suspects.to_arrow()
    threshold = suspects.meta.label_errors["automatic"].threshold
    relabel = pc.and_(rows["suspect"], pc.is_valid(rows["suggested"]))
    relabel = pc.and_(relabel, pc.fill_null(pc.greater_equal(rows["p_pred"], threshold or np.inf), False))
    action = pc.if_else(relabel, "relabel", pc.if_else(rows["suspect"], "review", "keep"))
    reason = pc.if_else(rows["suspect"], "the network doubts the label", pa.scalar(None, pa.string()))
    reason = pc.if_else(relabel, "the network is confident of another class, and usually right then", reason)
    rank = rows["rank"]
    rows = rows.add_column(1, "action", action).append_column("reason", reason)
    rows = pa.concat_tables(rows.filter(pc.equal(rows["action"], name)) for name in ACTIONS)
    rows = rows.set_column(rows.column_names.index("rank"), "rank", rank)
    bad = pa.table({"id": table.bad["id"], "action": pa.repeat("drop", len(table.bad)), "reason": table.bad["error"]})
    return SampleTable(pa.concat_tables([rows, bad], promote_options="default"), suspects.meta, table.bad)


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
