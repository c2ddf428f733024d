"""The AVH paper's observations, its conjecture and its slides' discoveries: a rule for each, and its judge.

Intervals are 95 %, two-sided, over samples (and over epochs' noise where a curve is meant); every network is judged
on its own, and none of them over seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.human import frequency_bins
from hardsight.phases.agreement import agreement
from hardsight.phases.bounces import dip_and_bounce
from hardsight.phases.drivers import ANGLES, NORMS, loss_drivers, parts_by_epoch, phase_switch
from hardsight.phases.gaps import norm_gaps
from hardsight.phases.nets import hardness_against_accuracy
from hardsight.phases.noise import mean_curves
from hardsight.phases.plateaus import FEWEST_EPOCHS, plateaus, whole_change
from hardsight.stats import FEW, moments

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

YES, PARTLY, NO, UNMEASURED = "yes", "partly", "no", "not measured"
SMALL = 0.2  # standard deviations: Cohen's small effect


class Finding(NamedTuple):
    """What was measured, in words and, where one number says it, as a number with its interval."""

    verdict: str
    measured: str
    n: int
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass
class Net:
    """A recorded run with what is known beside it; what several claims need is computed once."""

    name: str
    run: Dynamics
    human: np.ndarray | None
    shortcuts: bool | None

    @cached_property
    def agreement(self) -> list[dict[str, Any]]:
        return agreement(self.run, self.human, ("avh", "confidence", "norm")).to_pylist()

    def correlations(self, score: str) -> list[dict[str, Any]]:
        rows = self.agreement if self.human is not None else []
        return [row for row in rows if row["score"] == score and row["spearman"] is not None]

    @cached_property
    def plateaus(self) -> dict[str, dict[str, Any]]:
        return {row["value"]: row for row in plateaus(self.run).to_pylist()}

    @cached_property
    def levels(self) -> np.ndarray:
        return frequency_bins(self.human)  # pyrefly: ignore


def _norm_grows(net: Net) -> Finding:
    curves = mean_curves(net.run.matrix("norm"))
    change, low, high = curves.contrast(whole_change(curves.mean.shape[1]))
    fifths = [part.mean() for part in np.array_split(curves.mean[0], 5)]
    start, rose = curves.mean[0, 0], float((np.diff(curves.mean[0]) > 0).mean())
    words = (
        f"mean norm {start:.3g} at first, {_interval(change, low, high, sign=True)} by the last fifth of the "
        f"{net.run.unit}s; it rose in {rose:.0%} of them"
    )
    ascending = all(a < b for a, b in itertools.pairwise(fifths))
    return Finding(YES if low > 0 and ascending else PARTLY if low > 0 else NO, words, curves.n, change, low, high)


def _shortcuts_level_norms(net: Net) -> Finding:
    if net.human is None or net.shortcuts is None:
        return unmeasured("human frequencies and which nets have shortcuts are needed")
    rows = norm_gaps(net.run, net.levels).to_pylist()
    if not rows:
        return unmeasured(f"no {net.run.unit} saw {FEW} samples of both ends of the human levels")
    last = rows[-1]
    gap, low, high = (last[f"gap_sd{end}"] for end in ("", "_low", "_high"))
    n = last["n_easy"] + last["n_hard"]
    words = (
        f"{'with' if net.shortcuts else 'without'} shortcuts; norms of {last['easiest']} exceed those of "
        f"{last['hardest']} by {_interval(gap, low, high)} sd at the end"
    )
    level, apart = low > -SMALL and high < SMALL, low > SMALL
    right, wrong = (level, apart) if net.shortcuts else (apart, level)
    return Finding(YES if right else NO if wrong else PARTLY, words, n, gap, low, high)


def _avh_stops_first(net: Net) -> Finding:
    avh = net.plateaus["avh"]
    if why := _no_plateau(avh):
        return Finding(NO, why, avh["n"])
    later = {name: net.plateaus[name] for name in ("correct", "nll", "norm")}
    ends = "; ".join(f"{_VALUES[name]} {_later(row, net.run.unit)}" for name, row in later.items())
    words = f"AVH stops at {net.run.unit} {avh['epoch']} ({avh['low']} to {avh['high'] or 'the end'}); {ends}"
    signs = {"correct": 1, "nll": -1}  # which way is improvement
    improved = [k for k, sign in signs.items() if sign * (later[k]["end"] - later[k]["start"]) > 0]
    surely = [k for k in improved if later[k]["later_low"] > 0]
    perhaps = [k for k in improved if later[k]["later"] is not None and later[k]["later"] > 0]
    verdict = YES if len(surely) == 2 else PARTLY if surely or len(perhaps) == 2 else NO
    return Finding(verdict, words, avh["n"], avh["epoch"], avh["low"], avh["high"])


def _plain_nets_bounce(net: Net) -> Finding:
    if net.shortcuts is None:
        return unmeasured("which nets have shortcuts is needed")
    found = dip_and_bounce(net.run.classes * net.run.matrix("avh"), net.run.epochs)
    words = (
        f"{'with' if net.shortcuts else 'without'} shortcuts; C·AVH began at {found.first:.3g}; before its last "
        f"{found.window} {net.run.unit}s it is lowest ({found.dip:.3g}) at {net.run.unit} {found.epoch} "
        f"({found.epoch_low} to {found.epoch_high}), and changes by "
        f"{_interval(found.rise, found.low, found.high, sign=True)} from there to the end"
    )
    bounced = found.low > 0
    verdict = YES if bounced != net.shortcuts else NO if bounced else PARTLY
    return Finding(verdict, words, found.n, found.rise, found.low, found.high)


def _people_agree_throughout(net: Net) -> Finding:
    rows = net.correlations("avh")
    if not rows:
        return unmeasured(_PEOPLE)
    share = float(np.mean([row["spearman_high"] < 0 for row in rows]))
    last, weakest = rows[-1], max(rows, key=lambda row: row["spearman"])
    words = (
        f"Spearman {_interval(*_of(last, 'spearman'))} at the end, weakest {weakest['spearman']:.2f} at {net.run.unit} "
        f"{weakest['epoch']}; below 0 in {share:.0%} of the {len(rows)} {net.run.unit}s; ties {last['ties']:.0%}"
    )
    verdict = YES if share == 1 else PARTLY if share >= 0.5 else NO
    return Finding(verdict, words, last["n"], *_of(last, "spearman"))


def _norm_agrees_inconsistently(net: Net) -> Finding:
    rows = net.correlations("norm")
    if not rows:
        return unmeasured(_PEOPLE)
    above = float(np.mean([row["spearman_low"] > 0 for row in rows]))
    below = float(np.mean([row["spearman_high"] < 0 for row in rows]))
    words = (
        f"Spearman of the norm {_interval(*_of(rows[-1], 'spearman'))} at the end; above 0 in {above:.0%}, below 0 in "
        f"{below:.0%} of the {len(rows)} {net.run.unit}s"
    )
    steady = max(above, below)
    both = min(above, below) > 0
    verdict = NO if steady >= 0.95 else YES if both or steady < 0.5 else PARTLY
    return Finding(verdict, words, rows[-1]["n"], *_of(rows[-1], "spearman"))


def _avh_ahead_of_confidence(net: Net) -> Finding:
    rows = net.correlations("confidence")
    if not rows or rows[-1]["ahead_low"] is None:
        return unmeasured(_PEOPLE)
    last = rows[-1]
    value, low, high = _of(last, "ahead")
    words = (
        f"AVH's Spearman is {_interval(value, low, high, sign=True)} stronger than confidence's at the end "
        f"(p = {last['p']:.2g}, two-sided, paired)"
    )
    return Finding(YES if low > 0 else NO if high < 0 else PARTLY, words, last["n"], value, low, high)


def _avh_follows_accuracy(net: Net) -> Finding:
    row = hardness_against_accuracy({net.name: net.run}).to_pylist()[-1]
    if row["spearman"] is None or row["changes"] is None:
        return unmeasured("more epochs that differ are needed")
    words = (
        f"Spearman of mean AVH and accuracy over the {row['n']} {net.run.unit}s {row['spearman']:.2f}; of their "
        f"changes {row['changes']:.2f}"
    )
    strong = [row["spearman"] < -0.5, row["changes"] < -0.5]
    return Finding(YES if all(strong) else PARTLY if any(strong) else NO, words, row["n"], row["spearman"])


def _two_phases(net: Net) -> Finding:
    rows = loss_drivers(net.run).to_pylist()
    epochs, drivers = (np.array([row[name] for row in rows]) for name in ("epoch", "driver"))
    switch = phase_switch(epochs, drivers)
    counts = ", ".join(f"{kind} {int((drivers == kind).sum())}" for kind in (ANGLES, NORMS))
    sums = ", ".join(f"{part} {sum(row[f'by_{part}'] for row in rows):+.2f}" for part in (ANGLES, NORMS))
    where = "never" if switch.epoch is None else f"at {net.run.unit} {switch.epoch}"
    words = (
        f"what lowered the loss more, by {net.run.unit}: {counts} of {len(rows)}; angles hand over to norms {where}, "
        f"{switch.agreement:.0%} of the {net.run.unit}s agree with two phases; whole change of the loss: {sums}"
    )
    split = switch.epoch is not None and switch.epoch > epochs[0]
    verdict = NO if not split else YES if switch.agreement >= 0.8 else PARTLY if switch.agreement >= 0.65 else NO
    return Finding(verdict, words, rows[-1]["n"], switch.epoch)


def _norm_waits(net: Net) -> Finding:
    if why := _no_plateau(net.plateaus["avh"]):
        return unmeasured(why)
    curves = mean_curves(net.run.matrix("norm"))
    weights = whole_change(curves.mean.shape[1])
    if curves.contrast(weights)[1] <= 0:
        return unmeasured("the norm does not grow")
    at = int(np.flatnonzero(net.run.epochs == net.plateaus["avh"]["epoch"])[0])
    drawn = np.concatenate([curves.mean[None], curves.draws(curves.mean)])[:, 0]
    shares = (drawn[:, at] - drawn[:, 0]) / (drawn @ weights)
    value, (low, high) = float(shares[0]), np.quantile(shares[1:], [0.025, 0.975]).tolist()
    words = f"when AVH has made 95 % of its change, the norm has made {_interval(value, low, high, percent=True)}"
    return Finding(YES if high < 0.5 else NO if low > 0.5 else PARTLY, words, curves.n, value, low, high)


def _late_half(net: Net, easiest: bool) -> Finding:
    """What angles and norms did to the loss of one end of the human levels in the second half of the epochs."""
    if net.human is None:
        return unmeasured(_PEOPLE)
    kept = [level for level in sorted(set(net.levels) - {None}) if (net.levels == level).sum() >= FEW]
    if len(kept) < 2:
        return unmeasured("fewer than two human levels have 5 samples")
    level, middle = kept[-1 if easiest else 0], float(np.median(net.run.epochs))
    total = np.zeros((3, len(net.run)))
    for epoch, _, parts in parts_by_epoch(net.run):
        if epoch > middle:
            total += np.nan_to_num(np.array(parts))
    chosen = np.where(net.levels == level, 0, -1)
    found = [moments(values, chosen, 1) for values in (*total, total[2] - total[1])]
    change, angles, norms, lead = ((float(f.mean[0]), *(float(end[0]) for end in f.interval())) for f in found)
    n = int(found[0].n[0])
    words = (
        f"{level}, second half: loss {_interval(*change, sign=True)}, of which angles {_interval(*angles, sign=True)} "
        f"and norms {_interval(*norms, sign=True)}"
    )
    if easiest:
        verdict = NO if norms[1] >= 0 or lead[1] > 0 else YES if lead[2] < 0 and norms[2] < 0 else PARTLY
        return Finding(verdict, words, n, *norms)
    lowered = [part[2] < 0 for part in (angles, norms)]
    return Finding(NO if all(lowered) else PARTLY if any(lowered) else YES, words, n, *change)


class Claim(NamedTuple):
    """One sentence of the paper or its slides, the rule by which it is judged, the judge, and what it needs.

    Attributes:
        epochs: Fewest epochs; a claim about the course of training says nothing of fewer.
    """

    source: str
    claim: str
    rule: str
    measure: Callable[[Net], Finding]
    epochs: int = FEWEST_EPOCHS

    def judge(self, net: Net) -> Finding:
        """What the net says; "not measured" with the reason where it says nothing."""
        if len(net.run) < FEW:
            return unmeasured(f"{FEW} samples are needed, {len(net.run)} are there")
        if len(net.run.epochs) < self.epochs:
            return unmeasured(f"{self.epochs} {net.run.unit}s are needed, {len(net.run.epochs)} are there")
        try:
            return self.measure(net)
        except InputError as error:  # what it is measured by says what is missing; anything else is a bug of ours
            return unmeasured(str(error))


CLAIMS = (
    Claim(
        "Observation 1, Discovery 3",
        "The norm of features keeps increasing during training.",
        "yes: the last fifth lies above the first epoch and each fifth of the epochs above the one before; "
        "partly: only the first",
        _norm_grows,
    ),
    Claim(
        "Observation 1",
        "Nets with shortcuts make norms equal over human hardness, nets without keep the gap.",
        f"equal: the interval of the gap lies within ±{SMALL} sd; a gap: above it; partly: neither",
        _shortcuts_level_norms,
        epochs=1,
    ),
    Claim(
        "Observation 2, Discovery 1",
        "AVH hits a plateau while accuracy and loss still improve.",
        "yes: both stop later than AVH, intervals above 0; partly: one of them, or both by the estimates alone",
        _avh_stops_first,
    ),
    Claim(
        "Observation 2",
        "In nets without shortcuts AVH falls and then bounces back a little; in those with shortcuts it does not.",
        "a bounce: the interval of the rise lies above 0; partly: none shown in a net without shortcuts",
        _plain_nets_bounce,
    ),
    Claim(
        "Observation 3, Discovery 4",
        "AVH correlates with human selection frequency throughout training.",
        "yes: the interval lies below 0 in every epoch; partly: in half of them",
        _people_agree_throughout,
    ),
    Claim(
        "Discovery 5",
        "The norm's correlation with human selection frequency is not consistent.",
        "no: on one side of 0 in 95 % of the epochs; yes: both signs occur, or neither in half of them; else partly",
        _norm_agrees_inconsistently,
    ),
    Claim(
        "Observation 4",
        "AVH correlates with human selection frequency more strongly than confidence does.",
        "yes: the interval of the paired difference at the last epoch lies above 0; no: below; partly: it holds 0",
        _avh_ahead_of_confidence,
        epochs=1,
    ),
    Claim(
        "Observation 4, Discovery 2",
        "Mean AVH indicates how well a net generalises (within a net, over epochs).",
        "yes: Spearman with accuracy below −.5, for values and for changes; partly: one of the two",
        _avh_follows_accuracy,
    ),
    Claim(
        "Conjecture",
        "First the angles lower the loss, later the norms.",
        "yes: 80 % of the epochs agree with one handover from angles to norms; partly: 65 %",
        _two_phases,
    ),
    Claim(
        "Conjecture",
        "While the angles are optimised, the norm increases slowly; then it increases rapidly.",
        "yes: at AVH's plateau the norm has made less than half of its growth (interval); no: more; else partly",
        _norm_waits,
    ),
    Claim(
        "Conjecture, easy examples",
        "Later the loss of easy examples is lowered by the norm.",
        "second half, highest human bin: yes: norms lower it, and more than angles do (intervals); no: they do not",
        lambda net: _late_half(net, easiest=True),
    ),
    Claim(
        "Conjecture, hard examples",
        "Later neither angles nor norms can lower the loss of hard examples.",
        "second half, lowest human bin: yes: neither lowers it (intervals); partly: one; no: both",
        lambda net: _late_half(net, easiest=False),
    ),
)


_PEOPLE = "human frequencies of 10 samples or more are needed"
_VALUES = {"correct": "accuracy", "nll": "loss", "norm": "norm"}


def _no_plateau(avh: dict[str, Any]) -> str:
    """Why AVH does not fall to a plateau; empty where it does."""
    why = avh["why"] or ("it rises" if avh["end"] > avh["start"] else "")
    return f"AVH has no plateau: {why}" if why else ""


def _later(row: dict[str, Any], unit: str) -> str:
    if row["later"] is None or np.isinf(row["later"]):
        return f"has no plateau ({row['why']})"
    ends = ["open" if np.isinf(end) else f"{end:+.0f}" for end in (row["later_low"], row["later_high"])]
    return f"stops {row['later']:+.0f} {unit}s from there ({ends[0]} to {ends[1]})"


def unmeasured(why: str) -> Finding:
    return Finding(UNMEASURED, why, 0)


def _of(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def _interval(value: float, low: float, high: float, *, sign: bool = False, percent: bool = False) -> str:
    form = (lambda x: f"{x:.0%}") if percent else (lambda x: f"{x:+.3g}") if sign else (lambda x: f"{x:.3g}")
    return f"{form(value)} ({form(low)} to {form(high)})"
