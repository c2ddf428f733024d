"""Judges of the AVH paper's observations, conjecture and slides, each on a recorded run.

Intervals are 95%, two-sided, over samples (and over the noise of epochs where a curve is meant). Every network is
judged by itself; none of the verdicts is over seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.correlation import spearman
from hardsight.errors import InputError
from hardsight.phases import frequencies, loss_drivers, plateaus
from hardsight.phases.drivers import ANGLES, NORMS, parts_by_epoch
from hardsight.phases.noise import mean_curves
from hardsight.phases.plateaus import FEWEST_EPOCHS, TOLERANCE, whole_change
from hardsight.printing import interval, number_text, percent, signed
from hardsight.stats import FEW, moments, paired_difference, welch_difference
from hardsight.studies.claims import JUDGES, NO, NOT_SHOWN, PARTLY, YES, Finding, Judge, claims, unmeasured
from hardsight.studies.declared.avh_measures import (
    OVER,
    dip_and_bounce,
    hardness_against_accuracy,
    norm_gaps,
    phase_switch,
)
from hardsight.studies.declared.recorded_nets import PEOPLE, STRETCH, Net

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

SMALL = 0.2  # standard deviations: Cohen's small effect
FLAT = 0.1  # share of the whole change that a plateau may still move
_SHORTCUTS = {"resnet": True, "densenet": True, "alexnet": False, "vgg": False}
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("source", "claim", "rule", "net")]
    + [("n", pa.int64()), ("measured", pa.string())]
    + [(name, pa.float64()) for name in ("value", "low", "high")]
    + [("verdict", pa.string())]
)


def observations(
    runs: Mapping[str, Dynamics],
    human: Any = None,
    *,
    shortcuts: Mapping[str, bool] | None = None,
    decays: Sequence[int] = (),
) -> pa.Table:
    """The verdict on each claim of the AVH paper for each recorded network.

    Args:
        runs: Networks by name, recorded on the same data.
        human: Human selection frequencies, as for `hardsight.phases.agreement`; without them, claims that need them are
            not measured.
        shortcuts: Which networks have shortcuts; by default those with resnet or densenet in their names do, those with
            alexnet or vgg do not.
        decays: Last epochs before the learning rate was lowered; without them, claims about decays are not measured.

    Returns:
        Rows ``source``, ``claim``, ``rule``, ``net`` ("all nets" for claims about all of them), ``n``, ``measured`` in
        words, ``value``, ``low``, ``high``, and ``verdict``: yes, partly, no, not shown, not measured.
    """
    nets = []
    for name, run in runs.items():
        default = next((has for part, has in _SHORTCUTS.items() if part in name.lower()), None)
        people = None if human is None else frequencies(run, human)
        nets.append(Net(name, run, people, (shortcuts or {}).get(name, default), tuple(decays)))
    rows = []
    for claim in claims("observations"):
        judge = JUDGES[claim.judge]
        subjects = {"all nets": runs} if judge.over_nets else {net.name: net for net in nets}
        for name, subject in subjects.items():
            rows.append({**claim.columns, "net": name, **verdict(judge, subject)._asdict()})
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def verdict(judge: Judge, subject: Any) -> Finding:
    """The verdict on a network (or on all runs); "not measured" with the reason where there is none."""
    if isinstance(subject, Net):
        run = subject.run
        if len(run) < FEW:
            return unmeasured(f"{FEW} samples are needed, {len(run)} are there")
        if len(run.epochs) < judge.epochs:
            return unmeasured(f"{judge.epochs} {run.unit}s are needed, {len(run.epochs)} are there")
    try:
        return judge.function(subject)
    except InputError as error:  # the measure says what is missing
        return unmeasured(str(error))


_judge = partial(JUDGES.register, epochs=FEWEST_EPOCHS)


def _finding(yes: Any, partly: Any, measured: str, n: int, *numbers: Any) -> Finding:
    return Finding(YES if yes else PARTLY if partly else NO, measured, n, *numbers)


@_judge(number="change of the norm")
def norm_grows(net: Net) -> Finding:
    """yes: the last fifth lies above the first epoch (interval) and each fifth of the epochs above the one before;
    partly: only the first; no: it does not (interval); not shown: the interval reaches above and below 0."""
    curves = mean_curves(net.run.matrix("norm"))
    change = curves.contrast(whole_change(curves.mean.shape[1]))
    fifths = [part.mean() for part in np.array_split(curves.mean[0], 5)]
    measured = (
        f"mean norm {curves.mean[0, 0]:.3g} at first, {interval(*change, '+.3g')} by the last fifth of the "
        f"{net.run.unit}s; it rose in {percent((np.diff(curves.mean[0]) > 0).mean(), 0)} of them"
    )
    ascends = all(a < b for a, b in itertools.pairwise(fifths))
    grows = (YES if ascends else PARTLY) if change[1] > 0 else NO if change[2] <= 0 else NOT_SHOWN
    return Finding(grows, measured, curves.n, *change)


@_judge(number="change of its growth per epoch")
def norm_climbs_at_the_decay(net: Net) -> Finding:
    """yes: per epoch the norm grows faster in as many epochs after the first decay (a third of that stage, at least 3)
    than before it, interval above 0; no: below 0; not shown: it contains 0."""
    before, after, *_ = net.stages
    length = min(len(before), max(STRETCH, len(after) // 3))
    first, last, then = before[-length], before[-1], after[length - 1]
    curves = mean_curves(net.run.matrix("norm"))
    weights = np.zeros((2, curves.mean.shape[1]))
    weights[0, [first, last]] = -1 / (last - first), 1 / (last - first)
    weights[1, [last, then]] = -1 / (then - last), 1 / (then - last)
    slow, fast = (float(row @ curves.mean[0]) for row in weights)
    value, low, high = numbers = curves.contrast(weights[1] - weights[0])
    measured = (
        f"per {net.run.unit} the norm grew by {signed(slow, '.3g')} until {net.run.unit} {net.run.epochs[last]} and by "
        f"{signed(fast, '.3g')} after it; difference {interval(*numbers, '+.3g')}"
    )
    return Finding(YES if low > 0 else NO if high < 0 else NOT_SHOWN, measured, curves.n, value, low, high)


@_judge(number="plateau in every stage")
def avh_settles_in_every_stage(net: Net) -> Finding:
    """a plateau: in the second half of every stage between decays AVH moves by less than a tenth of its whole change
    (intervals); partly: in some stages; claimed of nets with shortcuts."""
    if not net.shortcuts:
        return unmeasured("it is claimed of nets with shortcuts")
    curves = mean_curves(net.run.matrix("avh"))
    count = curves.mean.shape[1]
    whole = abs(curves.contrast(whole_change(count))[0])
    shares = []
    for stage in net.stages:
        half, weights = stage[len(stage) // 2 :], np.zeros(count)
        ends = max(1, len(half) // 3)
        weights[half[:ends]], weights[half[-ends:]] = -1 / ends, 1 / ends
        shares.append([end / whole for end in curves.contrast(weights)] if whole else [0.0] * 3)
    flat = [low > -FLAT and high < FLAT for _, low, high in shares]
    texts = "; ".join(interval(*share, style="+.0%") for share in shares)
    measured = f"in the second half of each stage AVH moved by {texts} of its whole change"
    return _finding(all(flat), any(flat), measured, curves.n)


@_judge(number="Spearman over epochs")
def norm_follows_accuracy(net: Net) -> Finding:
    """yes: Spearman of mean norm and accuracy above 0.5, for values and for changes; partly: one of the two."""
    norm, accuracy = (np.nanmean(net.run.matrix(name), 0) for name in ("norm", "correct"))
    values, changes = (float(spearman(*pair).value) for pair in ((norm, accuracy), (np.diff(norm), np.diff(accuracy))))
    if np.isnan([values, changes]).any():
        return unmeasured(f"more {net.run.unit}s that differ are needed")
    measured = (
        f"Spearman of mean norm and accuracy over the {len(norm)} {net.run.unit}s {number_text(values, '.2f')}; of "
        f"their changes {number_text(changes, '.2f')}"
    )
    return _finding(min(values, changes) > 0.5, max(values, changes) > 0.5, measured, len(norm), values)


@_judge(number="gap at the end, in sd")
def avh_gaps_throughout(net: Net) -> Finding:
    """yes: in every epoch AVH is higher in the lowest human bin than in the highest (intervals); partly: in half of
    them."""
    return _gaps_throughout(net, "avh", "AVH", -1)


@_judge(number="gap of the norm at the end, in sd")
def norm_gaps_throughout(net: Net) -> Finding:
    """yes: in every epoch the norm is higher in the highest human bin than in the lowest (intervals); partly: in half
    of them."""
    return _gaps_throughout(net, "norm", "the norm", 1)


def _gaps_throughout(net: Net, value: str, title: str, sign: int) -> Finding:
    """Whether the easiest level exceeds the hardest (sign +1), or the reverse, in every epoch."""
    rows = norm_gaps(net.run, net.levels, value=value).to_pylist()
    if not rows:
        return unmeasured(f"no {net.run.unit} saw {FEW} samples of both ends of the human levels")
    share = float(np.mean([row["gap_low"] > 0 if sign > 0 else row["gap_high"] < 0 for row in rows]))
    numbers, ends = _numbers(rows[-1], "gap_sd"), (rows[-1]["easiest"], rows[-1]["hardest"])
    above, below = ends if sign > 0 else ends[::-1]
    measured = (
        f"{title} of {above} exceeds that of {below} in {percent(share, 0)} of the {len(rows)} {net.run.unit}s; at the "
        f"end easiest minus hardest is {interval(*numbers, '+.2f')} sd"
    )
    return _finding(share == 1, share >= 0.5, measured, rows[-1]["n_easy"] + rows[-1]["n_hard"], *numbers)


@_judge(number="growth of the norm of hard samples less that of easy ones")
def hard_norms_grow_slower(net: Net) -> Finding:
    """yes: from the first epoch to the last fifth norms grow in the lowest human bin, and by less than in the highest
    (both intervals); partly: one of the two; no: they fall, or grow by more; not shown: otherwise."""
    norms, (lowest, highest) = net.run.matrix("norm"), net.ends
    with np.errstate(invalid="ignore"):
        growth = norms @ whole_change(norms.shape[1])
    hard, easy = (growth[(net.levels == level) & np.isfinite(growth)] for level in (lowest, highest))
    if min(len(hard), len(easy)) < FEW:
        return unmeasured(f"{FEW} samples of both ends of the human levels are needed in every {net.run.unit}")
    grown, behind = paired_difference(hard), welch_difference(hard, easy)
    value, low, high = (float(end) for end in behind[:3])
    measured = (
        f"norms of {lowest} grew by {interval(float(grown.value), float(grown.low), float(grown.high), '+.3g')}, which "
        f"is {interval(value, low, high, '+.3g')} against those of {highest}"
    )
    kept, refuted = (grown.low > 0, high < 0), grown.high < 0 or low > 0
    verdict = YES if all(kept) else PARTLY if any(kept) else NO if refuted else NOT_SHOWN
    return Finding(verdict, measured, len(hard) + len(easy), value, low, high)


@_judge(epochs=1, number="gap of the norm at the end, in sd")
def shortcuts_level_norms(net: Net) -> Finding:
    """equal: the interval of the gap lies within ±0.2 sd; a gap: above it; not shown: neither."""
    kind, rows = net.kind, norm_gaps(net.run, net.levels).to_pylist()
    if not rows:
        return unmeasured(f"no {net.run.unit} saw {FEW} samples of both ends of the human levels")
    last = rows[-1]
    _, low, high = numbers = _numbers(last, "gap_sd")
    measured = (
        f"{kind}; norms of {last['easiest']} exceed those of {last['hardest']} by {interval(*numbers, '.3g')} sd at "
        "the end"
    )
    level, apart = low > -SMALL and high < SMALL, low > SMALL
    right, wrong = (level, apart) if net.shortcuts else (apart, level)
    verdict = YES if right else NO if wrong else NOT_SHOWN
    return Finding(verdict, measured, last["n_easy"] + last["n_hard"], *numbers)


@_judge(number="epoch at which AVH stops")
def avh_stops_first(net: Net) -> Finding:
    """yes: both stop later than AVH, intervals above 0; partly: one of them, or both by the estimates alone."""
    avh, accuracy, loss = (net.plateaus[name] for name in ("avh", "correct", "nll"))
    if net.avh_moves_on:
        return Finding(NO, net.avh_moves_on, avh["n"])
    names = {"correct": "accuracy", "nll": "loss", "norm": "norm"}
    ends = "; ".join(f"{title} {_later(net.plateaus[name], net.run.unit)}" for name, title in names.items())
    measured = f"AVH stops at {net.run.unit} {avh['epoch']} ({avh['low']} to {avh['high'] or 'the end'}); {ends}"
    improved = [accuracy] if accuracy["end"] > accuracy["start"] else []
    improved += [loss] if loss["end"] < loss["start"] else []
    certain = [row for row in improved if row["later_low"] > 0]
    estimated = [row for row in improved if row["later"] is not None and row["later"] > 0]
    numbers = avh["epoch"], avh["low"], avh["high"]
    return _finding(len(certain) == 2, certain or len(estimated) == 2, measured, avh["n"], *numbers)


@_judge(number="epochs from AVH's plateau to that of confidence")
def confidence_outlasts_avh(net: Net) -> Finding:
    """yes: mean confidence of the label rises and stops later than AVH, interval above 0; partly: by the estimate
    alone; no: it falls, stops earlier (interval), or AVH has no plateau; not shown: otherwise."""
    if net.avh_moves_on:
        return Finding(NO, net.avh_moves_on, net.plateaus["avh"]["n"])
    avh, confidence = plateaus(net.run, ("avh", "confidence")).to_pylist()
    measured = f"AVH stops at {net.run.unit} {avh['epoch']}; confidence {_later(confidence, net.run.unit)}"
    rises = confidence["end"] > confidence["start"]
    later = confidence["later"] if confidence["later"] is not None else math.nan
    ends = later, confidence["later_low"], confidence["later_high"]
    numbers = [end if math.isfinite(end) else None for end in ends]
    partly = NO if not rises or confidence["later_high"] < 0 else PARTLY if later > 0 else NOT_SHOWN
    return Finding(YES if rises and confidence["later_low"] > 0 else partly, measured, avh["n"], *numbers)


def _later(row: dict[str, Any], unit: str) -> str:
    if row["later"] is None or np.isinf(row["later"]):
        return f"has no plateau ({row['why']})"
    low, high = ("open" if np.isinf(end) else signed(end, ".0f") for end in (row["later_low"], row["later_high"]))
    return f"stops {signed(row['later'], '.0f')} {unit}s from there ({low} to {high})"


@_judge(number="rise of C·AVH")
def plain_nets_bounce(net: Net) -> Finding:
    """a bounce: the interval of the rise lies above 0; none: it ends below 5% of the fall before it; not shown:
    neither; claimed of nets without shortcuts, and the reverse of the others."""
    kind, bounce = net.kind, dip_and_bounce(net.run.classes * net.run.matrix("avh"), net.run.epochs)
    rise = bounce.rise, bounce.low, bounce.high
    measured = (
        f"{kind}; C·AVH began at {bounce.first:.3g}; before its last {bounce.window} {net.run.unit}s it is lowest "
        f"({bounce.dip:.3g}) at {net.run.unit} {bounce.epoch} ({bounce.epoch_low} to {bounce.epoch_high}), and changes "
        f"by {interval(*rise, '+.3g')} from there to the end"
    )
    bounced, level = bounce.low > 0, bounce.high < TOLERANCE * (bounce.first - bounce.dip)
    right, wrong = (level and not bounced, bounced) if net.shortcuts else (bounced, level)
    verdict = YES if right else NO if wrong else NOT_SHOWN
    return Finding(verdict, measured, bounce.n, *rise)


@_judge(number="Spearman at the end")
def people_agree_throughout(net: Net) -> Finding:
    """yes: the interval lies below 0 in every epoch; partly: in half of them."""
    rows = net.correlations("avh")
    share = float(np.mean([row["spearman_high"] < 0 for row in rows]))
    last, weakest = rows[-1], max(rows, key=lambda row: row["spearman"])
    numbers = _numbers(last, "spearman")
    measured = (
        f"Spearman {interval(*numbers, '.3g')} at the end, weakest {number_text(weakest['spearman'], '.2f')} at "
        f"{net.run.unit} {weakest['epoch']}; below 0 in {percent(share, 0)} of the {len(rows)} {net.run.unit}s; "
        f"ties {percent(last['ties'], 0)}"
    )
    return _finding(share == 1, share >= 0.5, measured, last["n"], *numbers)


@_judge(number="Spearman of the norm at the end")
def norm_agrees_inconsistently(net: Net) -> Finding:
    """no: on one side of 0 in 95% of the epochs; yes: both signs occur, or neither in half of them; else partly."""
    rows = net.correlations("norm")
    above = float(np.mean([row["spearman_low"] > 0 for row in rows]))
    below = float(np.mean([row["spearman_high"] < 0 for row in rows]))
    numbers, steady = _numbers(rows[-1], "spearman"), max(above, below)
    measured = (
        f"Spearman of the norm {interval(*numbers, '.3g')} at the end; above 0 in {percent(above, 0)}, below 0 in "
        f"{percent(below, 0)} of the {len(rows)} {net.run.unit}s"
    )
    varies = steady < 0.95 and (min(above, below) > 0 or steady < 0.5)
    return _finding(varies, steady < 0.95, measured, rows[-1]["n"], *numbers)


@_judge(epochs=1, number="lead of AVH's Spearman at the end")
def avh_ahead_of_confidence(net: Net) -> Finding:
    """yes: the interval of the paired difference at the last epoch lies above 0; no: below; not shown: it
    contains 0."""
    last = net.correlations("confidence")[-1]
    if last["ahead_low"] is None:
        return unmeasured(PEOPLE)
    numbers = _numbers(last, "ahead")
    measured = (
        f"AVH's Spearman is {interval(*numbers, '+.3g')} stronger than confidence's at the end (p = {last['p']:.2g}, "
        "two-sided, paired)"
    )
    verdict = YES if numbers[1] > 0 else NO if numbers[2] < 0 else NOT_SHOWN
    return Finding(verdict, measured, last["n"], *numbers)


@_judge(number="Spearman over epochs")
def avh_follows_accuracy(net: Net) -> Finding:
    """yes: Spearman with accuracy below −0.5, for values and for changes; partly: one of the two."""
    row = hardness_against_accuracy({net.name: net.run}).to_pylist()[-1]
    if row["spearman"] is None or row["changes"] is None:
        return unmeasured("more epochs that differ are needed")
    measured = (
        f"Spearman of mean AVH and accuracy over the {row['n']} {net.run.unit}s {number_text(row['spearman'], '.2f')}; "
        f"of their changes {number_text(row['changes'], '.2f')}"
    )
    strong = [row["spearman"] < -0.5, row["changes"] < -0.5]
    return _finding(all(strong), any(strong), measured, row["n"], row["spearman"])


@_judge(number="epoch of the handover")
def two_phases(net: Net) -> Finding:
    """yes: 80% of the epochs agree with one handover from angles to norms; partly: 65%."""
    rows = loss_drivers(net.run).to_pylist()
    epochs, drivers = (np.array([row[name] for row in rows]) for name in ("epoch", "driver"))
    switch = phase_switch(epochs, drivers)
    counts = ", ".join(f"{kind} {int((drivers == kind).sum())}" for kind in (ANGLES, NORMS))
    sums = ", ".join(f"{part} {signed(sum(row[f'by_{part}'] for row in rows), '.2f')}" for part in (ANGLES, NORMS))
    where = "never" if switch.epoch is None else f"at {net.run.unit} {switch.epoch}"
    measured = (
        f"what lowered the loss more, by {net.run.unit}: {counts} of {len(rows)}; angles hand over to norms {where}, "
        f"{percent(switch.agreement, 0)} of the {net.run.unit}s agree with two phases; whole change of the loss: {sums}"
    )
    agreed = switch.agreement if switch.epoch is not None and switch.epoch > epochs[0] else 0
    return _finding(agreed >= 0.8, agreed >= 0.65, measured, rows[-1]["n"], switch.epoch)


@_judge(number="share of the growth of the norm")
def norm_waits(net: Net) -> Finding:
    """yes: at AVH's plateau the norm has made less than half of its growth (interval); no: more; else partly."""
    if net.avh_moves_on:
        return unmeasured(net.avh_moves_on)
    curves = mean_curves(net.run.matrix("norm"))
    weights = whole_change(curves.mean.shape[1])
    if curves.contrast(weights)[1] <= 0:
        return unmeasured("the norm does not grow")
    at = int(np.flatnonzero(net.run.epochs == net.plateaus["avh"]["epoch"])[0])
    drawn = np.concatenate([curves.mean[None], curves.draws(curves.mean)])[:, 0]
    shares = (drawn[:, at] - drawn[:, 0]) / (drawn @ weights)
    value, (low, high) = float(shares[0]), np.quantile(shares[1:], [0.025, 0.975]).tolist()
    measured = f"when AVH has made 95% of its change, the norm has made {interval(value, low, high, '.0%')}"
    return _finding(high < 0.5, low <= 0.5, measured, curves.n, value, low, high)


@_judge(number="change of the loss by norms (partly: angles lower it more)")
def norms_lower_easy_losses(net: Net) -> Finding:
    """second half, highest human bin: yes: norms lower it, and more than angles do (intervals); partly: norms lower it;
    no: they raise it; not shown: the interval contains 0."""
    measured, n, _, _, norms, lead = _late_half(net, -1)
    lowered = YES if lead[2] < 0 else PARTLY
    return Finding(lowered if norms[2] < 0 else NO if norms[1] > 0 else NOT_SHOWN, measured, n, *norms)


@_judge(number="change of the loss")
def hard_losses_stay(net: Net) -> Finding:
    """second half, lowest human bin: yes: angles and norms raise it (intervals); no: both lower it; partly: one lowers
    it; not shown: neither is shown to."""
    measured, n, change, *parts, _ = _late_half(net, 0)
    lowered, raised = [part[2] < 0 for part in parts], [part[1] > 0 for part in parts]
    verdict = NO if all(lowered) else PARTLY if any(lowered) else YES if all(raised) else NOT_SHOWN
    return Finding(verdict, measured, n, *change)


def _late_half(net: Net, end: int) -> tuple[Any, ...]:
    """What angles and norms did to the loss of one end of the human levels in the second half of the epochs."""
    level = net.ends[end]
    total = np.zeros((3, len(net.run)))
    for epoch, _, parts in parts_by_epoch(net.run):
        if epoch > np.median(net.run.epochs):
            total += np.nan_to_num(np.array(parts))
    members = np.where(net.levels == level, 0, -1)
    summaries = [moments(values, members, 1) for values in (*total, total[2] - total[1])]
    effects = [(float(part.mean[0]), *(float(side[0]) for side in part.interval())) for part in summaries]
    change, angles, norms = (interval(*effect, style="+.3g") for effect in effects[:3])
    measured = f"{level}, second half: loss {change}, of which angles {angles} and norms {norms}"
    return measured, int(summaries[0].n[0]), *effects


@_judge(over_nets=True, number="Spearman over nets")
def better_nets_have_lower_avh(runs: Mapping[str, Dynamics]) -> Finding:
    """yes: Spearman below 0 with exact two-sided p below 0.05; no: above 0 with such a p; not shown: otherwise."""
    *shared, last = (row for row in hardness_against_accuracy(runs).to_pylist() if row["scope"] == OVER)
    if min(map(len, runs.values()), default=0) < FEW:
        return unmeasured(f"{FEW} samples of each net are needed")
    if last["spearman"] is None:  # each net's last epoch
        return unmeasured("three networks or more are needed", last["n"])
    values = [row["spearman"] for row in shared if row["spearman"] is not None]
    below = float(np.mean([value < 0 for value in values])) if values else float("nan")
    measured = (
        f"Spearman of mean AVH and accuracy over {last['n']} nets at the end {number_text(last['spearman'], '.2f')} "
        f"(p = {last['p']:.2g}, exact, two-sided); below 0 in {percent(below, 0)} of {len(values)} shared epochs"
    )
    verdict = NOT_SHOWN if last["p"] >= 0.05 else YES if last["spearman"] < 0 else NO
    return Finding(verdict, measured, last["n"], last["spearman"], p=last["p"])


def _numbers(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    """A value and the ends of its interval."""
    return row[name], row[f"{name}_low"], row[f"{name}_high"]
