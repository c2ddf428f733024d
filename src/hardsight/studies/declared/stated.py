"""Judges of what the papers print or derive: their arithmetic and formulas, without a training of ours."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hardsight.losses import build_loss
from hardsight.printing import interval, number_text
from hardsight.scores import compute_scores
from hardsight.stats import pooled_difference
from hardsight.studies.claims import JUDGES, NO, NOT_SHOWN, PARTLY, YES, Claim, Finding
from hardsight.studies.quoted import IMAGES, printed_tables, published
from hardsight.studies.tables import conditions, matches


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
    rows = [row for row in published("people-bins") if (row["score"], row["measure"]) == ("avh", "agreement")]
    printed = [row["value"] for row in rows if row["bin"] != "all"]
    steps = np.diff(np.array(printed, float))
    verdict = YES if (steps > 0).all() else NO if (steps < 0).all() else PARTLY
    yield "Table 1", Finding(verdict, f"from the hardest bin to the easiest {', '.join(printed)}", IMAGES)


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


def _slopes(name: str, likely: Tensor) -> Tensor:
    """The slope of a loss at the target logit for these likelihoods of the target, with two equal other classes."""
    logits = torch.zeros(len(likely), 3, dtype=torch.float64)
    logits[:, 0] = torch.logit(likely) + math.log(2)
    logits.requires_grad_()
    total = build_loss(name)(logits, torch.zeros(len(likely), dtype=torch.long)) * len(likely)  # of a mean
    return torch.autograd.grad(total, logits)[0][:, 0]


@JUDGES.register("constant_gradient", of="nothing")
def _constant_gradient(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: the slope of the loss at the target logit is −1 for every likelihood from 0.01 to 1 − 1e-6; partly: for
    those up to 1 − 1e-5."""
    likely = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-4, 1 - 9e-6, 1 - 1e-6], dtype=torch.float64)
    for name in ("el:exact", "el:normal"):
        slopes = _slopes(name, likely)
        equal = (slopes + 1).abs() < 1e-6
        last = zip(likely[-2:].tolist(), slopes[-2:].tolist(), strict=True)
        measured = "; ".join(f"slope {number_text(slope, '.3g')} at 1 − p = {1 - p:.0e}" for p, slope in last)
        early = equal[likely <= 1 - 1e-5].all()
        yield name, Finding(YES if equal.all() else PARTLY if early else NO, measured, len(slopes))


@JUDGES.register("margin_growth", of="nothing")
def _margin_growth(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: for every likelihood p from 0.01 to 1 − 1e-6 the slope of the loss is that of cross-entropy times (1 + A)/A,
    which is 1/(1 − p), with the exact normal bonus, and above cross-entropy's with a conservative one; no: else."""
    likely = torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-4, 1 - 1e-6], dtype=torch.float64)
    for name in ("el:exact", "el:0.75", "el:0.5", "el:0"):
        ratio = _slopes(name, likely) / _slopes("ce", likely)
        holds = torch.allclose(ratio, 1 / (1 - likely), rtol=1e-6) if name == "el:exact" else bool((ratio > 1).all())
        measured = "; ".join(f"{number_text(ratio[at].item(), '.3g')} times at p = {likely[at]:g}" for at in (2, 4))
        yield name, Finding(YES if holds else NO, measured, len(likely))


# The baseline of a paper's Table 1, and the files that hold it with the column that tells its settings apart.
_TABLE_1 = {
    "EL": ("ce", {"el-images": "setting", "proteins": "", "nci1": "", "multi30k": "pair"}),
    "AMC": ("euclid:paper,down", {"amc-images": "setting"}),
}
_RUNS = 5
_SPREAD = np.arange(-2, 3) / np.sqrt(2.5)  # five numbers with mean 0 and standard deviation 1


@JUDGES.register("printed_gains", of="nothing")
def _printed_gains(claim: Claim) -> Iterator[tuple[str, Finding]]:
    """yes: Student's t-test of the printed means and standard deviations of five runs has a two-sided p below 0.05; not
    shown: it has not; no: it has, and the baseline is ahead."""
    baseline, files = _TABLE_1[claim.paper]
    wanted = conditions(claim.where, ("setting",))
    for name, column in files.items():
        rows = [row for row in published(name) if re.search(r"Tables? 1\b", row["source"])]
        for row in rows:
            setting = row.get(column, name)
            if row["loss"] in ("ce", baseline) or not matches({"setting": setting}, wanted):
                continue
            (base,) = (other for other in rows if other["loss"] == baseline and other.get(column, name) == setting)
            ours, theirs = (float(part["value"]) + float(part["sd"]) * _SPREAD for part in (row, base))
            value, low, high, p = map(float, pooled_difference(ours, theirs))
            factor, unit = (1, "BLEU") if row["measure"] == "bleu" else (100, "points")
            number = interval(factor * value, factor * low, factor * high, "+.2f")
            measured = f"{number} {unit}, p = {p:.2g}"
            measured += f" (printed: {float(row['p']):g})" if row.get("p") else ""
            yield setting, Finding(NOT_SHOWN if p >= 0.05 else YES if value > 0 else NO, measured, _RUNS)
