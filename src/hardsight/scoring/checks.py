"""Is what was scored what the user meant? Ids, label range, class order, and what the model returns."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from hardsight.chance import ChanceWarning, chance_agreement
from hardsight.data import Samples, class_index
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.heads import Head
from hardsight.scores import SCORES
from hardsight.table import SampleTable

_LOOKED_AT = 8  # samples whose listed label does not fit


def score_names(scores: str | Iterable[str] | None) -> list[str]:
    """Registered names, all of them by default; always with the norm, by which zero features are counted."""
    names = SCORES.names(SCORES if scores is None else scores)
    return names if "norm" in names else [*names, "norm"]


def check_samples(samples: Samples, outputs: int | None) -> None:
    """Refuse data that are empty, whose ids repeat, or whose labels do not fit the model, before the first batch."""
    if not len(samples):
        raise InputError(f"DATA is empty: {samples.origin}.")
    if len(set(samples.ids)) < len(samples):  # better now than after a night's work
        raise InputError(f"ids must be unique, but {printable(Counter(samples.ids).most_common(1)[0][0])!r} repeats.")
    if outputs is not None:
        labels = samples.labels
        labels = _doubtful_labels(samples, label_limit(samples.classes, outputs)) if labels is None else labels
        if len(labels):
            check_label_range(labels, samples.classes, outputs)


def _doubtful_labels(samples: Samples, limit: int) -> np.ndarray:
    """What the first few samples yield whose listed label does not fit; the batches tell about all others."""
    listed = np.empty(0, dtype=int) if samples.listed is None else samples.listed
    labels = []
    for index in np.flatnonzero((listed < 0) | (listed >= limit))[:_LOOKED_AT].tolist():
        with suppress(Exception):  # a bad row later, not a failure here
            labels.append(class_index(samples.load(index, None)[1]))
    return np.asarray(labels, dtype=int)


def label_limit(classes: Sequence[str] | None, outputs: int) -> int:
    """One more than the largest label that fits."""
    return outputs if classes is None else len(classes)


def check_label_range(labels: np.ndarray, classes: Sequence[str] | None, outputs: int) -> None:
    """Refuse labels that do not fit the model."""
    limit, owner = label_limit(classes, outputs), "the model has" if classes is None else "the data name"
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= limit:
        raise InputError(
            f"DATA: labels must lie in [0, {limit - 1}] because {owner} {limit} classes, got {low} to {high}; "
            "use a model for these classes, or renumber the labels."
        )


def class_count(samples: Samples, otherwise: int) -> int:
    """How many classes the data have, as far as names and labels tell."""
    labels = samples.labels
    return (
        max(len(samples.classes or ()), 0 if labels is None or not len(labels) else int(labels.max()) + 1) or otherwise
    )


def warn_if_chance(table: SampleTable) -> SampleTable:
    """The table, with a warning if its network is at or near chance."""
    if "label" in table and table.accuracy is not None:
        labels = table.to_arrow()["label"].fill_null(-1).to_numpy()
        if (chance := chance_agreement(labels, table["pred"])).near:
            warnings.warn(str(chance), ChanceWarning, stacklevel=3)
    return table


def output_note(outputs: Sequence[Tensor], features: Tensor, head: Head) -> str | None:
    """A note if the model's output is not what its head makes of the first batch."""
    if not outputs:
        return None
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        logits = features.float() @ head.weight.float().T + (0 if head.bias is None else head.bias.float())
    candidates = [output.float() for output in outputs if output.shape == logits.shape]
    if not candidates:
        raise InputError(
            f"the model returns {tuple(outputs[0].shape)} but the layer {head.path!r} makes {tuple(logits.shape)}: it "
            "is not its head; name the right layer with head=."
        )
    # Softmax or log-softmax at the end leaves every score as it is: compare up to a shift, also of the logarithm.
    candidates += [output.clamp_min(1e-30).log() for output in candidates if (output >= 0).all()]
    distance = min(_distance(logits, output) for output in candidates)
    if distance < 0.05:
        return None
    return (
        f"the model changes the output of its head {head.path!r} (by {distance:.0%} of its spread): scores describe "
        "the head's logits, not the model's output."
    )


def _distance(logits: Tensor, output: Tensor) -> float:
    """Mean difference of two sets of logits, up to a shift per row, as a share of their spread."""
    finite = torch.isfinite(logits).all(1) & torch.isfinite(output).all(1)
    a, b = (z[finite] - z[finite].mean(1, keepdim=True) for z in (logits, output))
    informative = output[finite] > -60  # probabilities that vanish say nothing about their logits
    if not informative.any():
        return 0.0
    return float((a - b)[informative].abs().mean() / a.abs().mean().clamp_min(1e-12))


def class_order_note(table: SampleTable, outputs: int) -> str | None:
    """A note if renumbering the labels would make the model far better: then the class orders probably differ."""
    accuracy = table.accuracy
    if accuracy is None or len(table) < 2 * outputs or outputs > 2000:
        return None
    from scipy.optimize import linear_sum_assignment

    confusion = np.zeros((outputs, outputs))
    np.add.at(confusion, (table["label"], table["pred"]), 1)
    labels, preds = linear_sum_assignment(-confusion)
    best = confusion[labels, preds].sum() / len(table)
    if best < accuracy + 0.25 or best < 2 * accuracy:
        return None
    moved = [f"{a}→{b}" for a, b in zip(labels, preds, strict=True) if a != b and confusion[a, b]][:6]
    return (
        f"class order: accuracy is {accuracy:.1%}, but {best:.1%} if labels were renumbered ({', '.join(moved)} …): "
        "the data and the model probably number their classes differently."
    )
