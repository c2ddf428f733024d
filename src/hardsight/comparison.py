"""Two runs over the same samples: what became easier, what became harder, and whether that is more than chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError, InputTypeError
from hardsight.extras import printable
from hardsight.scores import SCORES
from hardsight.stats import FEW, mcnemar, mean_ranks, paired_difference
from hardsight.table import SampleTable
from hardsight.tablefiles import class_count, class_numbers, floats

# The score that measures the change: the first that both runs have.
_BY = ("avh", "nll", "confidence", "angle", "margin", "entropy")

# If labels differ in more than this share of the samples, they are numbered differently rather than corrected.
_MOST_RELABELLED = 0.5


def compare(after: SampleTable | str | Path, before: SampleTable | str | Path) -> SampleTable:
    """Join two runs on the id: one row per sample that both have, with both runs' scores and what changed.

    Args:
        after: The run to look at: a table, or a run folder.
        before: The run to compare it with. Its number of classes may differ: C·AVH is comparable.

    Returns:
        ``id``, ``label``, ``pred``, ``pred_before``, every score that both have as ``<score>`` and ``<score>_before``,
        and (AVH stands for the first of AVH, nll, confidence … that both have)

        - ``avh_change``: C·AVH after minus before, negative is easier; NaN if the label was changed in between,
        - ``rank_change``: the same for ranks scaled to (0, 1), 1 the hardest,
        - ``fixed``, ``broken``: wrong before and right now, right before and wrong now; ``relabelled``.

        ``meta.comparison`` holds counts, the accuracies with McNemar's exact two-sided p-value, and the mean change
        with its paired 95% interval (Student's t).

    Examples:
        >>> before = SampleTable.from_columns({"id": ["a", "b"], "label": [0, 1], "pred": [0, 0], "avh": [0.2, 0.7]})
        >>> after = SampleTable.from_columns({"id": ["b", "a"], "label": [1, 0], "pred": [1, 0], "avh": [0.4, 0.2]})
        >>> compare(after, before)["avh_change"].round(2).tolist()
        [-0.6, 0.0]
    """
    after, before = _table(after, "after"), _table(before, "before")
    if ("label" in after) != ("label" in before):
        with_labels, without = ("after", "before") if "label" in after else ("before", "after")
        raise InputError(
            f"before and after must both have labels or both have none; {with_labels} has labels and {without} has "
            "none, so their scores are taken at different classes."
        )
    new, old, counts = _matched(after, before)
    label, pred = class_numbers(new, "label"), class_numbers(new, "pred")
    mapping = _class_mapping(after, before)
    label_before, pred_before = (_mapped(class_numbers(old, name), mapping) for name in ("label", "pred"))
    _check_labels(label, label_before, class_numbers(old, "label"), before)
    relabelled = label != label_before
    judged = (label >= 0) & (pred >= 0) & (pred_before != _NONE) & ~relabelled
    right, right_before = judged & (label == pred), judged & (label == pred_before)
    columns: dict[str, Any] = {"id": new["id"]}
    if "label" in after:
        columns["label"] = new["label"]
    columns |= {"pred": pa.array(pred, mask=pred < 0), "pred_before": pa.array(pred_before, mask=pred_before < 0)}
    shared = [name for name in after.scores if name in before]
    for name in shared:
        columns |= {name: new[name], f"{name}_before": old[name]}
    meta: dict[str, Any] = {"counts": {**counts, "relabelled": int(relabelled.sum()), "judged": int(judged.sum())}}
    meta |= {role: t.meta.model.name or role for role, t in (("after", after), ("before", before))}
    meta |= paired_accuracy(right, right_before, judged)
    by = next((name for base in _BY for name in (base, f"{base}_pred") if name in shared), None)
    if by is not None:
        base = by.removesuffix("_pred")
        scales = [class_count(t) if base == "avh" else 1 for t in (after, before)]
        values, values_before = (c * floats(rows[by]) for c, rows in zip(scales, (new, old), strict=True))
        change = np.where(relabelled, np.nan, values - values_before)
        sign = 1 if SCORES[base].higher_is_harder else -1
        ranks = mid_ranks(sign * values) - mid_ranks(sign * values_before)
        columns |= {f"{base}_change": change, "rank_change": np.where(relabelled, np.nan, ranks)}
        meta |= {"by": base, "scales": scales, "harder": "larger" if sign > 0 else "smaller"}
        meta["mean_change"] = mean_change(np.where(relabelled, np.nan, values), values_before)
    columns |= {"fixed": right & ~right_before, "broken": right_before & ~right, "relabelled": relabelled}
    return SampleTable(pa.table(columns), replace(after.meta, comparison=meta))


def mid_ranks(hardness: np.ndarray) -> np.ndarray:
    """Ranks scaled to (0, 1), 1 the hardest; ties share their mean rank; NaN stays NaN."""
    ranks = mean_ranks(hardness)
    ranks -= 0.5
    ranks /= max(int((~np.isnan(ranks)).sum()), 1)
    return ranks


def mean_change(values: np.ndarray, before: np.ndarray) -> dict[str, Any]:
    """Mean of paired differences with Student's 95% interval; none below five pairs, or if nothing varies."""
    known = ~np.isnan(values) & ~np.isnan(before)
    n = int(known.sum())
    if not n:
        return {"value": None, "low": None, "high": None, "p": None, "n": n}
    test = paired_difference(values[known], before[known])
    enough = n >= FEW and np.isfinite(test.p)
    ends = {name: float(getattr(test, name)) if enough else None for name in ("low", "high", "p")}
    return {"value": float(test.value), **ends, "n": n}


def paired_accuracy(right: np.ndarray, right_before: np.ndarray, judged: np.ndarray) -> dict[str, Any]:
    """Accuracy after and before over the same samples, and McNemar's exact two-sided p-value for equality."""
    n, fixed, broken = int(judged.sum()), int((right & ~right_before).sum()), int((right_before & ~right).sum())
    if not n:
        return {"accuracy": None, "accuracy_before": None, "accuracy_change": None, "mcnemar": None}
    now, then = int(right.sum()) / n, int(right_before.sum()) / n
    return {
        "accuracy": now,
        "accuracy_before": then,
        "accuracy_change": now - then,
        "mcnemar": {"fixed": fixed, "broken": broken, "p": float(mcnemar(fixed, broken, n).p), "n": n},
    }


def _table(run: SampleTable | str | Path, role: str) -> SampleTable:
    if isinstance(run, SampleTable):
        return run
    if isinstance(run, (str, Path)):
        return SampleTable.load(run, partial=True)
    raise InputTypeError(f"{role} must be a SampleTable or a run folder, got {type(run).__name__}.")


def _matched(after: SampleTable, before: SampleTable) -> tuple[pa.Table, pa.Table, dict[str, int]]:
    """Rows of both for the ids that both have, in the order of `after`; and how many had no partner."""
    new, old = after.to_arrow(), before.to_arrow()
    where = pc.index_in(new["id"].cast(pa.string()), value_set=old["id"].cast(pa.string()).combine_chunks())
    found = pc.is_valid(where)
    matched = pc.sum(found).as_py() or 0
    if not matched:
        examples = [printable(t["id"][0].as_py()) if len(t) else "nothing" for t in (new, old)]
        raise InputError(
            f"before and after have no sample in common (ids such as {examples[0]!r} and {examples[1]!r}); compare two "
            "runs over the same data."
        )
    counts = {"matched": matched, "only_after": len(new) - matched, "only_before": len(old) - matched}
    return new.filter(found), old.take(where.filter(found)), counts


# Class numbers for no class, and for a class that the other run does not have.
_NONE, _UNKNOWN = -1, -2


def _class_mapping(after: SampleTable, before: SampleTable) -> np.ndarray | None:
    """The number that `after` gives to each class of `before`, by name; None if there are only numbers."""
    new, old = (list(t.meta.class_names) for t in (after, before))
    if not new or not old or new == old:
        return None
    known = {name: number for number, name in reversed(list(enumerate(new)))}
    return np.array([known.get(name, _UNKNOWN) for name in old])


def _mapped(numbers: np.ndarray, mapping: np.ndarray | None) -> np.ndarray:
    if mapping is None:
        return numbers
    beyond = numbers >= len(mapping)
    return np.where(numbers < 0, _NONE, np.where(beyond, _UNKNOWN, mapping[np.where(beyond, 0, numbers)]))


def _check_labels(label: np.ndarray, label_before: np.ndarray, raw: np.ndarray, before: SampleTable) -> None:
    """The two runs must mean the same classes."""
    unknown = np.unique(raw[label_before == _UNKNOWN])
    if len(unknown):
        names = before.meta.class_names
        first = ", ".join(printable(names[k]) if k < len(names) else str(k) for k in unknown[:3].tolist())
        raise InputError(
            f"before and after must have the same classes; {len(unknown):,} of before's are not among after's "
            f"({first}{' …' if len(unknown) > 3 else ''})."
        )
    differ = int((label != label_before).sum())
    if differ > _MOST_RELABELLED * len(label):
        raise InputError(
            f"before and after must number their classes alike; the labels of {differ:,} of {len(label):,} samples "
            "differ. Score both with class names, or with the same numbering."
        )
