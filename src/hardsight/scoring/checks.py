"""Is what was scored what the user meant? Score names, label range, class order, and what the model returns."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hardsight.chance import ChanceWarning, chance_agreement
from hardsight.errors import InputError
from hardsight.heads import Head
from hardsight.scores import SCORES
from hardsight.table import SampleTable


def known_scores(scores: Iterable[str]) -> list[str]:
    """The names as a list, or a sentence with the nearest name that exists."""
    names = [scores] if isinstance(scores, str) else list(scores)
    for name in names:
        if name not in SCORES:
            near = difflib.get_close_matches(name, SCORES, 2, 0.4) or list(SCORES)
            raise InputError(f"there is no score {name!r}; did you mean {' or '.join(near)}?")
    return names if "norm" in names else [*names, "norm"]  # by which zero features are counted


def check_known_labels(labels: np.ndarray, classes: Sequence[str] | None, outputs: int) -> None:
    """Refuse labels that do not fit the model before the first batch."""
    top, who = (outputs, "the model has") if classes is None else (len(classes), "the data name")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= top:
        raise InputError(
            f"DATA: labels must lie in [0, {top - 1}] because {who} {top} classes, got {low} to {high}; "
            "use a model for these classes, or renumber the labels."
        )


def warned(table: SampleTable) -> SampleTable:
    """The table, with a warning if its network is at or near chance."""
    if "label" in table and table.accuracy is not None:
        labels = table.to_arrow()["label"].fill_null(-1).to_numpy()
        if (chance := chance_agreement(labels, table["pred"])).near:
            warnings.warn(str(chance), ChanceWarning, stacklevel=3)
    return table


def output_note(outputs: Sequence[Tensor], features: Tensor, head: Head) -> str | None:
    """A sentence if what the model returns is not what its last linear layer made of the first batch."""
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        made = features.float() @ head.weight.float().T + (0 if head.bias is None else head.bias.float())
    same_shape = [z.float() for z in outputs if z.shape == made.shape]
    if not outputs:
        return None
    if not same_shape:
        raise InputError(
            f"the model returns {tuple(outputs[0].shape)} but the layer {head.path!r} makes {tuple(made.shape)}: it is "
            "not its head; say which layer is with head=."
        )
    # Log-softmax and softmax at the end are common and leave every score as it is: compare up to a shift, also of logs.
    forms = [
        form
        for z in same_shape
        for form in (z, z.clamp_min(1e-30).log() if (z >= 0).all() else None)
        if form is not None
    ]
    off = min(_apart(made, form) for form in forms)
    if off < 0.05:
        return None
    return (
        f"the model changes what its head {head.path!r} makes (by {off:.0%} of its spread): scores describe the "
        "head's own logits, not the model's output."
    )


def _apart(made: Tensor, returned: Tensor) -> float:
    """How far two sets of logits differ, up to a shift a row, as a share of their spread."""
    rows = torch.isfinite(made).all(1) & torch.isfinite(returned).all(1)
    a, b = (z[rows] - z[rows].mean(1, keepdim=True) for z in (made, returned))
    # Probabilities that have gone to 0 say nothing about their logits.
    told = returned[rows] > -60
    return float(((a - b)[told]).abs().mean() / a.abs().mean().clamp_min(1e-12)) if told.any() else 0.0


def class_order_note(table: SampleTable, outputs: int) -> str | None:
    """A sentence if renumbering the labels would make the model far better: then the orders probably differ."""
    accuracy = table.accuracy
    if accuracy is None or len(table) < 2 * outputs or outputs > 2000:
        return None
    from scipy.optimize import linear_sum_assignment

    confusion = np.zeros((outputs, outputs))
    np.add.at(confusion, (table["label"], table["pred"]), 1)
    labels, outs = linear_sum_assignment(-confusion)
    best = confusion[labels, outs].sum() / len(table)
    if best < accuracy + 0.25 or best < 2 * accuracy:
        return None
    moved = [f"{a}→{b}" for a, b in zip(labels, outs, strict=True) if a != b and confusion[a, b]][:6]
    return (
        f"class order: accuracy is {accuracy:.1%}, but {best:.1%} if labels were renumbered ({', '.join(moved)} …): "
        "the data and the model probably count their classes differently."
    )
