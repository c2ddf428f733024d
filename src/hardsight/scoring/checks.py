"""Is what was scored what the user meant? Ids, label range, class order, and what the model returns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardsight.chance import Chance, ChanceWarning, chance_of_counts
from hardsight.data import Samples, class_index
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.heads import Head, output_matrices
from hardsight.printing import percent
from hardsight.runs.ids import pieces_of, repeated_ids
from hardsight.table import SampleTable
from hardsight.tablefiles import class_count as classes_of


def check_samples(samples: Samples, outputs: int | None = None) -> None:
    """Refuse data that are empty, whose ids repeat, or whose labels do not fit a model with this many outputs."""
    if not len(samples):
        raise InputError(f"DATA is empty: {samples.origin}.")
    check_ids(samples.ids)  # fail now, not after hours of work
    if outputs is None:
        return
    labels, declared = samples.labels, samples.declared
    if labels is None and declared is not None:  # the items may yield others: look at the first few that do not fit
        doubtful = np.flatnonzero((declared < 0) | (declared >= len(samples.classes or range(outputs))))[:8]
        labels = np.empty(0, int)
        for index in doubtful.tolist():
            with suppress(Exception):  # a bad row later, not a failure here
                labels = np.append(labels, class_index(samples.load(index, None)[1]))
    if labels is not None and len(labels):
        check_label_range(labels, samples.classes, outputs)


def check_decode(samples: Samples, device: torch.device) -> None:
    """Refuse to decode on a GPU if there is none, or if samples are not files."""
    if device.type != "cuda":
        raise InputError(f"decode: gpu needs a CUDA device, and this is {device.type}; leave --decode gpu out.")
    if not samples.pixels or samples.path(0) is None:
        raise InputError(f"decode: gpu needs image files, and {samples.origin} has none; leave --decode gpu out.")


def check_label_range(labels: np.ndarray, classes: Sequence[str] | None, outputs: int) -> None:
    """Refuse labels that do not fit the model, or that the data do not name."""
    limit, owner = (outputs, "the model has") if classes is None else (len(classes), "the data name")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= limit:
        raise InputError(
            f"DATA: labels must lie in [0, {limit - 1}] because {owner} {limit} classes, got {low} to {high}; "
            "use a model for these classes, or renumber the labels."
        )


def class_count(samples: Samples, otherwise: int) -> int:
    """How many classes the data have, as far as names and labels tell."""
    labels = samples.labels
    largest = -1 if labels is None or not len(labels) else int(labels.max())  # unsigned ones cannot hold −1
    return max(len(samples.classes or ()), largest + 1) or otherwise


def warn_if_chance(table: SampleTable) -> SampleTable:
    """The table, with a warning if its network is at or near chance."""
    if table.accuracy is not None:
        counts, matches = np.zeros((2, classes_of(table)), np.int64), 0
        for labels, preds in _labels_and_preds(table):
            counts += [np.bincount(classes, minlength=counts.shape[1]) for classes in (labels, preds)]
            matches += int((labels == preds).sum())
        warn_of_chance(chance_of_counts(counts, matches), 4)
    return table


def _labels_and_preds(table: SampleTable) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Labels and predictions of the labeled samples, some at a time."""
    for rows in table.row_pieces("label", "pred"):
        rows = rows.drop_null()
        yield rows["label"].to_numpy(), rows["pred"].to_numpy()


def warn_of_chance(chance: Chance, stacklevel: int = 3) -> None:
    """A warning if a network is at or near chance."""
    if chance.near:
        warnings.warn(str(chance), ChanceWarning, stacklevel=stacklevel)


def check_ids(ids: Sequence[str]) -> None:
    """Refuse ids that repeat or cannot be stored."""
    try:
        repeated, first = repeated_ids(lambda: pieces_of(ids))
        if repeated:
            raise InputError(f"ids must be unique, but {printable(str(first))!r} repeats.")
    except UnicodeEncodeError as error:  # half of a character that takes two
        raise InputError(f"ids must be Unicode text, but one of them holds {error.object[error.start]!r}.") from None


def output_note(output: Any, features: Tensor, head: Head) -> str | None:
    """A note if a model's output differs from what its head computes from the features of the batch."""
    outputs = output_matrices(output)
    if not outputs:
        return None
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        logits = features.float() @ head.weight.float().T + (0 if head.bias is None else head.bias.float())
    candidates = [matrix.float() for matrix in outputs if matrix.shape == logits.shape]
    if not candidates:
        raise InputError(
            f"the model returns {tuple(outputs[0].shape)} but the layer {head.path!r} makes {tuple(logits.shape)}: it "
            "is not its head; name the right layer with head=."
        )
    # Softmax or log-softmax at the end leaves every score unchanged: compare up to a shift, also of the logarithm.
    candidates += [matrix.clamp_min(1e-30).log() for matrix in candidates if (matrix >= 0).all()]
    distance = min(_distance(logits, matrix) for matrix in candidates)
    if distance < 0.05:
        return None
    return (
        f"the model changes the output of its head {head.path!r} (by {percent(distance, 0)} of its spread): scores "
        "describe the head's logits, not the model's output."
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
    confusion = np.zeros((outputs, outputs))
    for labels, preds in _labels_and_preds(table):
        np.add.at(confusion, (labels, preds), 1)
    most = min(confusion.max(0).sum(), confusion.max(1).sum()) / len(table)  # no order can do better
    if most < accuracy + 0.25 or most < 2 * accuracy:
        return None
    from scipy.optimize import linear_sum_assignment

    labels, preds = linear_sum_assignment(-confusion)
    best = confusion[labels, preds].sum() / len(table)
    if best < accuracy + 0.25 or best < 2 * accuracy:
        return None
    moved = [f"{a}→{b}" for a, b in zip(labels, preds, strict=True) if a != b and confusion[a, b]][:6]
    return (
        f"class order: accuracy is {percent(accuracy)}, but {percent(best)} if labels were renumbered "
        f"({', '.join(moved)} …): the data and the model probably number their classes differently."
    )
