"""Judges of what the papers print or derive: their arithmetic and formulas, without a training of ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

from hardsight.losses import build_loss
from hardsight.printing import number_text
from hardsight.scores import compute_scores
from hardsight.studies.claims import JUDGES, NO, PARTLY, YES, Claim, Finding
from hardsight.studies.quoted import IMAGES, printed_tables

BY_BIN = (0.228, 0.125, 0.124, 0.103, 0.094)  # AVH Table 1: Spearman of AVH by bin, from the hardest to the easiest


@JUDGES.register("printed_significance", of="nothing")
def _significant(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: the two-sided p of the test that the paper uses, from its printed coefficients, is below 0.05; no: it is
    not."""
    for row in printed_tables().to_pylist():
        if row["table"] != "8":  # repeats Table 2
            p = row["p_two_sided"]
            measured = f"Z = {row['Z']:.2f}, two-sided p = {p:.2g}"
            verdict = YES if p < 0.05 else NO
            on = f"{row['net']} {row['coefficient']}"
            yield on, Finding(verdict, measured, IMAGES, row["r_avh"] - row["r_mc"])


@JUDGES.register("printed_order", of="nothing")
def _order(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: the printed coefficients rise from the hardest to the easiest bin; no: they fall; partly: neither."""
    steps = np.diff(BY_BIN)
    verdict = YES if (steps > 0).all() else NO if (steps < 0).all() else PARTLY
    yield "Table 1", Finding(verdict, f"from the hardest bin to the easiest {', '.join(map(str, BY_BIN))}", IMAGES)


@JUDGES.register("norm_alone", of="nothing")
def _norm_alone(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: for a feature that grows while its two angles stay, AVH stays to 1e-9 and confidence goes to 1 or to 0; no:
    else."""
    norms = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)[:, None]
    for target, limit in ((math.pi / 4 - 0.05, 1.0), (math.pi / 4 + 0.05, 0.0)):
        angles = torch.tensor([0.0, math.pi / 2, target], dtype=torch.float64)  # of two class weights and the feature
        *weight, direction = torch.stack([angles.cos(), angles.sin()], 1)
        labels = torch.zeros(len(norms), dtype=torch.long)
        scores = compute_scores(norms * direction, torch.stack(weight), labels, None, ("avh", "confidence"))
        avh, confidence = (scores[name].numpy() for name in ("avh", "confidence"))
        stays = np.ptp(avh) < 1e-9 and abs(confidence[-1] - limit) < 0.01
        texts = ", ".join(number_text(value) for value in confidence.tolist())
        measured = f"AVH {number_text(float(avh[0]))} at norms 1, 10 and 100, confidence {texts}"
        yield f"angle {number_text(target, '.2f')}", Finding(YES if stays else NO, measured, len(norms))


@JUDGES.register("constant_gradient", of="nothing")
def _constant_gradient(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: the slope of the loss at the target logit is −1 for every likelihood from 0.01 to 1 − 1e-6; partly: for
    those up to 1 − 1e-5."""
    likely = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-4, 1 - 9e-6, 1 - 1e-6], dtype=torch.float64)
    for name in ("el:exact", "el:normal"):
        slopes = []
        for p in likely:
            logits = torch.stack([torch.logit(p) + math.log(2), *torch.zeros(2, dtype=torch.float64)])[None]
            logits.requires_grad_()
            build_loss(name)(logits, torch.zeros(1, dtype=torch.long)).backward()
            slopes.append(float(logits.grad[0, 0]))  # pyrefly: ignore
        equal = [abs(slope + 1) < 1e-6 for slope in slopes]
        early = all(same for same, p in zip(equal, likely.tolist(), strict=True) if p <= 1 - 1e-5)
        pairs = itertools.islice(zip(likely.tolist(), slopes, strict=True), len(likely) - 2, None)
        measured = "; ".join(f"slope {number_text(slope, '.3g')} at 1 − p = {1 - p:.0e}" for p, slope in pairs)
        yield name, Finding(YES if all(equal) else PARTLY if early else NO, measured, len(slopes))
