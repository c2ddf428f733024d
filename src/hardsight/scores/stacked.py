"""Several batches read at once, each with the weights that it met: what a recorder needs in a training loop.

A training step changes the head, so batches cannot share one `read_classes`. Stacked they share its few dozen kernel
launches instead, which is what makes recording cheap on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardsight.angles import angle_between_units, arccos, unit
from hardsight.scores.reading import Reading


def read_stacked(
    features: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None
) -> tuple[Reading, Tensor, Tensor]:
    """A `Reading` of K batches of B samples, and what of it a later epoch is compared with.

    Everything is float64 and ``(K, B, C)`` numbers are held at once, so K is for the caller to bound.

    Args:
        features: ``(K, B, D)``.
        weight: ``(K, C, D)``.
        target: ``(K, B)`` class indices.
        bias: ``(K, C)`` or None.

    Returns:
        The reading of the ``K·B`` samples in order, their cosines ``(K·B, C)``, and the weights' lengths ``(K, C)``.
    """
    x, norm = unit(features.double())
    w, lengths = unit(weight.double())
    cosines = x @ w.mT
    logits = cosines * norm[..., None] * lengths[:, None]
    if bias is not None:
        logits = logits + bias.double()[:, None]
    at = target[..., None]
    own = torch.take_along_dim(w, at, 1)  # (K, B, D): the weight that each sample should be near
    angle = angle_between_units(x, own)
    angles = arccos(cosines)
    # The target's angle is exact; in the sum it takes the place of its arccos.
    angle_sum = angles.sum(-1) - angles.gather(-1, at)[..., 0] + angle
    logit = logits.gather(-1, at)[..., 0]
    others = logits.scatter(-1, at, -torch.inf)
    other_logit, other_class = others.max(-1)
    below = others - other_logit[..., None]
    exp = below.exp()
    columns = {
        "target": target,
        "norm": norm,
        "angle": angle,
        "angle_sum": angle_sum,
        "other_angle": angles.scatter(-1, at, torch.inf).amin(-1),
        "logit": logit,
        "other_logit": other_logit,
        "other_class": other_class,
        "exp_sum": exp.sum(-1),
        "exp2_sum": exp.square().sum(-1),
        "lin_sum": (below.masked_fill(exp == 0, 0.0) * exp).sum(-1),
    }
    flat = {name: values.flatten() for name, values in columns.items()}
    return Reading(classes=weight.shape[1], **flat), cosines.flatten(0, 1), lengths
