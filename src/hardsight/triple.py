"""The triple that every score starts from, checked once, with one sentence for each possible error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardsight.errors import InputError, InputTypeError

# The most classes of a head: more than any data set has, few enough for tables with one row per class.
MOST_CLASSES = 1 << 22


def check_triple(
    features: Any, weight: Any, labels: Any = None, bias: Any = None, *, finite: bool = True, finite_head: bool = True
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The triple as tensors on one device, or one sentence about what is wrong with it.

    Args:
        features: ``(N, D)`` tensor or array.
        weight: ``(C, D)``.
        labels: ``(N,)`` integers in [0, C), or None.
        bias: ``(C,)`` or None.
        finite: Also refuse NaN and infinity in features.
        finite_head: Also refuse them in weight and bias.
    """
    features, weight = _floats("features", features, "(N, D)"), _floats("weight", weight, "(C, D)")
    classes, width = weight.shape
    if features.shape[1] != width:
        raise InputError(
            f"features must be as wide as weight: expected {width} numbers per sample, got {features.shape[1]}; "
            "pass the input of the last linear layer and that layer's own weight."
        )
    if not 2 <= classes <= MOST_CLASSES or not width:
        raise InputError(
            f"weight must hold at least 2 classes, at most {MOST_CLASSES:,}, and a feature, got {(classes, width)}."
        )
    weight = weight.to(features.device)
    if bias is not None:
        bias = _floats("bias", bias, "(C,)").to(features.device)
        if len(bias) != classes:
            raise InputError(f"bias must hold one number per class: expected ({classes},), got {tuple(bias.shape)}.")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if finite_head and tensor is not None and bad_rows(tensor.reshape(classes, -1)).any():
            raise InputError(f"{name} holds NaN or infinity: the model's last layer is damaged; load it again.")
    if labels is not None:
        labels = check_labels(labels, len(features), classes).to(features.device)
    if finite:
        _refuse_bad_rows(features, "features", "drop those rows or use score_features, which lists them.")
    return features, weight, labels, bias


# What to do with several classes per sample; errors end with it.
MULTI_LABEL = (
    "samples of several classes (multi-label) are scored one class at a time, as yes or no: labels[:, k] with the "
    "probabilities np.stack([1 - p[:, k], p[:, k]], 1)"
)


def check_features(features: Any, *, finite: bool = True) -> Tensor:
    """Features ``(N, D)`` with a row or more as a tensor, or one sentence; `finite` also refuses NaN and infinity."""
    features = _floats("features", features, "(N, D)")
    if not features.numel():
        raise InputError(f"features must hold a row or more and a number in each, got {tuple(features.shape)}.")
    if finite:
        _refuse_bad_rows(features, "features", "drop those rows, or leave strict out to have them listed.")
    return features


def check_labels(labels: Any, rows: int, classes: int, source: str = "weight") -> Tensor:
    """Labels as int64 ``(rows,)`` in [0, classes), or one sentence; `source` names what defines the classes."""
    labels = as_tensor("labels", labels)
    if labels.shape != (rows,):
        hint = f"of one-hot labels take argmax(1); {MULTI_LABEL}" if labels.ndim == 2 else "give one label per row"
        raise InputError(f"labels must have shape ({rows},), got {tuple(labels.shape)}; {hint}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels must be integers (class indices), got {labels.dtype}; convert with labels.long().")
    labels = labels.long()  # some unsigned types cannot be compared
    outside = ((labels < 0) | (labels >= classes)).nonzero()
    if len(outside):
        row = int(outside[0, 0])
        raise InputError(
            f"labels must lie in [0, {classes - 1}] because {source} has {classes} classes, got {int(labels[row])} "
            f"at row {row} ({len(outside):,} such rows); use the class indices of the model."
        )
    return labels


def check_logits(logits: Any, name: str = "logits") -> Tensor:
    """A finite matrix ``(N, C)`` of two classes or more, float32 or better and without its graph, or one sentence."""
    logits = as_tensor(name, logits)
    if logits.ndim != 2 or logits.is_complex():
        raise InputError(f"{name} must be real numbers (N, C), got {logits.dtype} {tuple(logits.shape)}.")
    if not len(logits) or logits.shape[1] < 2:
        raise InputError(f"{name} must hold a row or more and at least 2 classes, got shape {tuple(logits.shape)}.")
    logits = logits.detach().to("cpu" if logits.device.type == "mps" else logits.device)  # mps has no float64
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    _refuse_bad_rows(logits, name, "leave those rows out, or train with a lower rate.")
    return logits


def bad_rows(features: Tensor) -> Tensor:
    """``(N,)`` mask of rows with NaN or infinity."""
    exact = torch.promote_types(features.dtype, torch.float32)  # a sum in half precision overflows too easily
    bad = ~torch.isfinite(features.detach().sum(1, dtype=exact))  # one cheap look; large finite rows may overflow here
    if bad.any():
        bad[bad.clone()] = ~torch.isfinite(features[bad]).all(1)
    return bad


def _refuse_bad_rows(values: Tensor, name: str, remedy: str) -> None:
    bad = bad_rows(values).nonzero()[:, 0]
    if len(bad):
        raise InputError(
            f"{name} hold NaN or infinity in {len(bad):,} of {len(values):,} rows (first: row {int(bad[0])}); {remedy}"
        )


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor or an array of numbers as a tensor, or one sentence."""
    if hasattr(value, "to_numpy"):  # of pandas and polars
        value = value.to_numpy()
    if getattr(getattr(value, "flags", None), "writeable", True) is False:  # which torch warns of
        value = value.copy()
    dtype: Any = getattr(value, "dtype", None)
    if getattr(dtype, "isnative", True) is False:  # an array in the byte order of another machine
        value = value.astype(dtype.newbyteorder("="))
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # None, texts, rows of several lengths, durations
        kind = type(value).__name__ if dtype is None else str(dtype)
        raise InputTypeError(f"{name} must be a tensor or an array of numbers, got {kind}.") from None


def _floats(name: str, value: Any, shape: str) -> Tensor:
    tensor = as_tensor(name, value)
    if tensor.ndim != 1 + shape.count("D"):
        raise InputError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}.")
    if tensor.is_complex():
        raise InputError(f"{name} must be real numbers, got {tensor.dtype}.")
    return tensor if tensor.is_floating_point() else tensor.float()
