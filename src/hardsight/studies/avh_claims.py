"""The AVH paper's observations, its conjecture and the discoveries of its slides, each judged on recorded runs.

Intervals are 95%, two-sided, over samples (and over the noise of epochs where a curve is meant). Every network is
judged on its own; none of the verdicts is over seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.errors import InputError
from hardsight.people import frequency_bins
from hardsight.phases import agreement, frequencies, loss_drivers, plateaus
from hardsight.phases.drivers import ANGLES, NORMS, parts_by_epoch
from hardsight.phases.noise import mean_curves
from hardsight.phases.plateaus import FEWEST_EPOCHS, whole_change
from hardsight.stats import FEW, moments
from hardsight.studies.avh_measures import OVER, dip_and_bounce, hardness_against_accuracy, norm_gaps, phase_switch
from hardsight.studies.claims import CLAIMS, NO, PARTLY, YES, Claim, Finding, by_sign, claim, unmeasured

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

SMALL = 0.2  # standard deviations: Cohen's small effect
_PEOPLE = "human frequencies of 10 samples or more are needed"
_SHORTCUTS = {"resnet": True, "densenet": True, "alexnet": False, "vgg": False}
_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("source", "claim", "rule", "net")]
    + [("n", pa.int64()), ("measured", pa.string())]
    + [(name, pa.float64()) for name in ("value", "low", "high")]
    + [("verdict", pa.string())]
)


def observations(
    runs: Mapping[str, Dynamics], human: Any = None, *, shortcuts: Mapping[str, bool] | None = None
) -> pa.Table:
    """The verdict on each claim of the AVH paper for each recorded network.

    Args:
        runs: Networks by name, recorded on the same data.
        human: Human selection frequencies, as for `hardsight.phases.agreement`; without them, claims that need them are
            not measured.
        shortcuts: Which networks have shortcuts; by default those with resnet or densenet in their names do, those with
            alexnet or vgg do not.

    Returns:
        Rows ``source``, ``claim``, ``rule``, ``net`` ("all nets" for claims about all of them), ``n``, ``measured`` in
        words, ``value``, ``low``, ``high``, and ``verdict``: yes, partly, no, not measured.
    """
    nets = []
    for name, run in runs.items():
        default = next((has for part, has in _SHORTCUTS.items() if part in name.lower()), None)
        people = None if human is None else frequencies(run, human)
        nets.append(Net(name, run, people, (shortcuts or {}).get(name, default)))
    rows = []
    for entry in (entry for entry in CLAIMS if entry.paper == "AVH"):
        about = {"source": entry.source, "claim": entry.claim, "rule": entry.rule}
        subjects: list[Any] = [runs] if entry.over_nets else nets
        for subject in subjects:
            name = "all nets" if entry.over_nets else subject.name
            rows.append(about | {"net": name} | judge(entry, subject)._asdict())
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def judge(entry: Claim, subject: Any) -> Finding:
    """The verdict of a claim on a network (or on all runs); "not measured" with the reason where there is none."""
    if isinstance(subject, Net):
        run = subject.run
        if len(run) < FEW:
            return unmeasured(f"{FEW} samples are needed, {len(run)} are there")
        if len(run.epochs) < entry.epochs:
            return unmeasured(f"{entry.epochs} {run.unit}s are needed, {len(run.epochs)} are there")
    try:
        return entry.judge(subject)
    except InputError as error:  # the measure says what is missing
        return unmeasured(str(error))


@dataclass
class Net:
    """A recorded run with its human frequencies; what several claims need is computed once."""

    name: str
    run: Dynamics
    human: np.ndarray | None
    shortcuts: bool | None

    def correlations(self, score: str) -> list[dict[str, Any]]:
        """The rows of `agreement` with a correlation of one score."""
        return [row for row in self._agreement if row["score"] == score and row["spearman"] is not None]

    @cached_property
    def _agreement(self) -> list[dict[str, Any]]:
        if self.human is None:
            return []
        return agreement(self.run, self.human, ("avh", "confidence", "norm")).to_pylist()

    @cached_property
    def plateaus(self) -> dict[str, dict[str, Any]]:
        return {row["value"]: row for row in plateaus(self.run).to_pylist()}

    @cached_property
    def levels(self) -> np.ndarray:
        return frequency_bins(self.human)  # pyrefly: ignore


_claim = partial(claim, "AVH", "observations", epochs=FEWEST_EPOCHS)


@_claim(
    "Observation 1, Discovery 3",
    "The norm of features keeps increasing during training.",
    "yes: the last fifth lies above the first epoch and each fifth of the epochs above the one before; "
    "partly: only the first",
)
def _norm_grows(net: Net) -> Finding:
    curves = mean_curves(net.run.matrix("norm"))
    change, low, high = curves.contrast(whole_change(curves.mean.shape[1]))
    fifths = [part.mean() for part in np.array_split(curves.mean[0], 5)]
    start, rose = curves.mean[0, 0], float((np.diff(curves.mean[0]) > 0).mean())
    measured = (
        f"mean norm {start:.3g} at first, {_interval(change, low, high, '+.3g')} by the last fifth of the "
        f"{net.run.unit}s; it rose in {rose:.0%} of them"
    )
    ascending = all(a < b for a, b in itertools.pairwise(fifths))
    return Finding(YES if low > 0 and ascending else PARTLY if low > 0 else NO, measured, curves.n, change, low, high)


@_claim(
    "Observation 1",
    "Nets with shortcuts make norms equal over human hardness, nets without keep the gap.",
    f"equal: the interval of the gap lies within ±{SMALL} sd; a gap: above it; partly: neither",
    epochs=1,
)
def _shortcuts_level_norms(net: Net) -> Finding:
    if net.human is None or net.shortcuts is None:
        return unmeasured("human frequencies and which nets have shortcuts are needed")
    rows = norm_gaps(net.run, net.levels).to_pylist()
    if not rows:
        return unmeasured(f"no {net.run.unit} saw {FEW} samples of both ends of the human levels")
    last = rows[-1]
    gap, low, high = _with_interval(last, "gap_sd")
    measured = (
        f"{'with' if net.shortcuts else 'without'} shortcuts; norms of {last['easiest']} exceed those of "
        f"{last['hardest']} by {_interval(gap, low, high)} sd at the end"
    )
    level, apart = low > -SMALL and high < SMALL, low > SMALL
    right, wrong = (level, apart) if net.shortcuts else (apart, level)
    return Finding(YES if right else NO if wrong else PARTLY, measured, last["n_easy"] + last["n_hard"], gap, low, high)


@_claim(
    "Observation 2, Discovery 1",
    "AVH hits a plateau while accuracy and loss still improve.",
    "yes: both stop later than AVH, intervals above 0; partly: one of them, or both by the estimates alone",
)
def _avh_stops_first(net: Net) -> Finding:
    avh = net.plateaus["avh"]
    if why := _no_plateau(avh):
        return Finding(NO, why, avh["n"])
    names = {"correct": "accuracy", "nll": "loss", "norm": "norm"}
    ends = "; ".join(f"{title} {_later(net.plateaus[name], net.run.unit)}" for name, title in names.items())
    measured = f"AVH stops at {net.run.unit} {avh['epoch']} ({avh['low']} to {avh['high'] or 'the end'}); {ends}"
    accuracy, loss = net.plateaus["correct"], net.plateaus["nll"]
    improved = [accuracy] if accuracy["end"] > accuracy["start"] else []
    improved += [loss] if loss["end"] < loss["start"] else []
    certain = [row for row in improved if row["later_low"] > 0]
    estimated = [row for row in improved if row["later"] is not None and row["later"] > 0]
    verdict = YES if len(certain) == 2 else PARTLY if certain or len(estimated) == 2 else NO
    return Finding(verdict, measured, avh["n"], avh["epoch"], avh["low"], avh["high"])


@_claim(
    "Observation 2",
    "In nets without shortcuts AVH falls and then bounces back a little; in those with shortcuts it does not.",
    "a bounce: the interval of the rise lies above 0; partly: none shown in a net without shortcuts",
)
def _plain_nets_bounce(net: Net) -> Finding:
    if net.shortcuts is None:
        return unmeasured("which nets have shortcuts is needed")
    bounce = dip_and_bounce(net.run.classes * net.run.matrix("avh"), net.run.epochs)
    measured = (
        f"{'with' if net.shortcuts else 'without'} shortcuts; C·AVH began at {bounce.first:.3g}; before its last "
        f"{bounce.window} {net.run.unit}s it is lowest ({bounce.dip:.3g}) at {net.run.unit} {bounce.epoch} "
        f"({bounce.epoch_low} to {bounce.epoch_high}), and changes by "
        f"{_interval(bounce.rise, bounce.low, bounce.high, '+.3g')} from there to the end"
    )
    bounced = bounce.low > 0
    verdict = YES if bounced != net.shortcuts else NO if bounced else PARTLY
    return Finding(verdict, measured, bounce.n, bounce.rise, bounce.low, bounce.high)


@_claim(
    "Observation 3, Discovery 4",
    "AVH correlates with human selection frequency throughout training.",
    "yes: the interval lies below 0 in every epoch; partly: in half of them",
)
def _people_agree_throughout(net: Net) -> Finding:
    rows = net.correlations("avh")
    if not rows:
        return unmeasured(_PEOPLE)
    share = float(np.mean([row["spearman_high"] < 0 for row in rows]))
    last, weakest = rows[-1], max(rows, key=lambda row: row["spearman"])
    correlation = _with_interval(last, "spearman")
    measured = (
        f"Spearman {_interval(*correlation)} at the end, weakest {weakest['spearman']:.2f} at {net.run.unit} "
        f"{weakest['epoch']}; below 0 in {share:.0%} of the {len(rows)} {net.run.unit}s; ties {last['ties']:.0%}"
    )
    return Finding(YES if share == 1 else PARTLY if share >= 0.5 else NO, measured, last["n"], *correlation)


@_claim(
    "Discovery 5",
    "The norm's correlation with human selection frequency is not consistent.",
    "no: on one side of 0 in 95% of the epochs; yes: both signs occur, or neither in half of them; else partly",
)
def _norm_agrees_inconsistently(net: Net) -> Finding:
    rows = net.correlations("norm")
    if not rows:
        return unmeasured(_PEOPLE)
    above = float(np.mean([row["spearman_low"] > 0 for row in rows]))
    below = float(np.mean([row["spearman_high"] < 0 for row in rows]))
    correlation = _with_interval(rows[-1], "spearman")
    measured = (
        f"Spearman of the norm {_interval(*correlation)} at the end; above 0 in {above:.0%}, below 0 in "
        f"{below:.0%} of the {len(rows)} {net.run.unit}s"
    )
    steady, both = max(above, below), min(above, below) > 0
    verdict = NO if steady >= 0.95 else YES if both or steady < 0.5 else PARTLY
    return Finding(verdict, measured, rows[-1]["n"], *correlation)


@_claim(
    "Observation 4",
    "AVH correlates with human selection frequency more strongly than confidence does.",
    "yes: the interval of the paired difference at the last epoch lies above 0; no: below; partly: it holds 0",
    epochs=1,
)
def _avh_ahead_of_confidence(net: Net) -> Finding:
    rows = net.correlations("confidence")
    if not rows or rows[-1]["ahead_low"] is None:
        return unmeasured(_PEOPLE)
    value, low, high = _with_interval(rows[-1], "ahead")
    measured = (
        f"AVH's Spearman is {_interval(value, low, high, '+.3g')} stronger than confidence's at the end "
        f"(p = {rows[-1]['p']:.2g}, two-sided, paired)"
    )
    return by_sign(measured, rows[-1]["n"], value, low, high)


@_claim(
    "Observation 4, Discovery 2",
    "Mean AVH indicates how well a net generalizes (within a net, over epochs).",
    "yes: Spearman with accuracy below −0.5, for values and for changes; partly: one of the two",
)
def _avh_follows_accuracy(net: Net) -> Finding:
    row = hardness_against_accuracy({net.name: net.run}).to_pylist()[-1]
    if row["spearman"] is None or row["changes"] is None:
        return unmeasured("more epochs that differ are needed")
    measured = (
        f"Spearman of mean AVH and accuracy over the {row['n']} {net.run.unit}s {row['spearman']:.2f}; of their "
        f"changes {row['changes']:.2f}"
    )
    strong = [row["spearman"] < -0.5, row["changes"] < -0.5]
    return Finding(YES if all(strong) else PARTLY if any(strong) else NO, measured, row["n"], row["spearman"])


@_claim(
    "Conjecture",
    "First the angles lower the loss, later the norms.",
    "yes: 80% of the epochs agree with one handover from angles to norms; partly: 65%",
)
def _two_phases(net: Net) -> Finding:
    rows = loss_drivers(net.run).to_pylist()
    epochs, drivers = (np.array([row[name] for row in rows]) for name in ("epoch", "driver"))
    switch = phase_switch(epochs, drivers)
    counts = ", ".join(f"{kind} {int((drivers == kind).sum())}" for kind in (ANGLES, NORMS))
    sums = ", ".join(f"{part} {sum(row[f'by_{part}'] for row in rows):+.2f}" for part in (ANGLES, NORMS))
    where = "never" if switch.epoch is None else f"at {net.run.unit} {switch.epoch}"
    measured = (
        f"what lowered the loss more, by {net.run.unit}: {counts} of {len(rows)}; angles hand over to norms {where}, "
        f"{switch.agreement:.0%} of the {net.run.unit}s agree with two phases; whole change of the loss: {sums}"
    )
    split = switch.epoch is not None and switch.epoch > epochs[0]
    verdict = NO if not split else YES if switch.agreement >= 0.8 else PARTLY if switch.agreement >= 0.65 else NO
    return Finding(verdict, measured, rows[-1]["n"], switch.epoch)


@_claim(
    "Conjecture",
    "While the angles are optimized, the norm increases slowly; then it increases rapidly.",
    "yes: at AVH's plateau the norm has made less than half of its growth (interval); no: more; else partly",
)
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
    measured = f"when AVH has made 95% of its change, the norm has made {_interval(value, low, high, '.0%')}"
    return Finding(YES if high < 0.5 else NO if low > 0.5 else PARTLY, measured, curves.n, value, low, high)


@_claim(
    "Conjecture, easy examples",
    "Later the loss of easy examples is lowered by the norm.",
    "second half, highest human bin: yes: norms lower it, and more than angles do (intervals); no: they do not",
)
def _norms_lower_easy_losses(net: Net) -> Finding:
    measured, n, _, _, norms, lead = _late_half(net, -1)
    verdict = NO if norms[1] >= 0 or lead[1] > 0 else YES if lead[2] < 0 and norms[2] < 0 else PARTLY
    return Finding(verdict, measured, n, *norms)


@_claim(
    "Conjecture, hard examples",
    "Later neither angles nor norms can lower the loss of hard examples.",
    "second half, lowest human bin: yes: neither lowers it (intervals); partly: one; no: both",
)
def _hard_losses_stay(net: Net) -> Finding:
    measured, n, change, angles, norms, _ = _late_half(net, 0)
    lowered = [part[2] < 0 for part in (angles, norms)]
    return Finding(NO if all(lowered) else PARTLY if any(lowered) else YES, measured, n, *change)


def _late_half(net: Net, end: int) -> tuple[Any, ...]:
    """What angles and norms did to the loss of one end of the human levels in the second half of the epochs."""
    if net.human is None:
        raise InputError(_PEOPLE)
    kept = [level for level in sorted(set(net.levels) - {None}) if (net.levels == level).sum() >= FEW]
    if len(kept) < 2:
        raise InputError("fewer than two human levels have 5 samples")
    total = np.zeros((3, len(net.run)))
    for epoch, _, parts in parts_by_epoch(net.run):
        if epoch > np.median(net.run.epochs):
            total += np.nan_to_num(np.array(parts))
    members = np.where(net.levels == kept[end], 0, -1)
    summaries = [moments(values, members, 1) for values in (*total, total[2] - total[1])]
    effects = [(float(part.mean[0]), *(float(side[0]) for side in part.interval())) for part in summaries]
    change, angles, norms = (_interval(*effect, form="+.3g") for effect in effects[:3])
    measured = f"{kept[end]}, second half: loss {change}, of which angles {angles} and norms {norms}"
    return measured, int(summaries[0].n[0]), *effects


@_claim(
    "Observation 4, Discovery 2",
    "Better models have a lower average AVH (over nets).",
    "yes: Spearman below 0 with exact two-sided p below 0.05; partly: below 0 only",
    over_nets=True,
)
def _better_nets_have_lower_avh(runs: Mapping[str, Dynamics]) -> Finding:
    rows = [row for row in hardness_against_accuracy(runs).to_pylist() if row["scope"] == OVER]
    last = rows[-1]  # each net's last epoch
    if min(map(len, runs.values()), default=0) < FEW:
        return unmeasured(f"{FEW} samples of each net are needed")
    if last["spearman"] is None:
        return unmeasured("three networks or more are needed", last["n"])
    shared = [row["spearman"] for row in rows[:-1] if row["spearman"] is not None]
    below = float(np.mean([value < 0 for value in shared])) if shared else float("nan")
    measured = (
        f"Spearman of mean AVH and accuracy over {last['n']} nets at the end {last['spearman']:.2f} "
        f"(p = {last['p']:.2g}, exact, two-sided); below 0 in {below:.0%} of {len(shared)} shared epochs"
    )
    verdict = NO if last["spearman"] >= 0 else YES if last["p"] < 0.05 else PARTLY
    return Finding(verdict, measured, last["n"], last["spearman"])


def _no_plateau(avh: dict[str, Any]) -> str:
    """Why AVH does not fall to a plateau; empty where it does."""
    why = avh["why"] or ("it rises" if avh["end"] > avh["start"] else "")
    return f"AVH has no plateau: {why}" if why else ""


def _later(row: dict[str, Any], unit: str) -> str:
    if row["later"] is None or np.isinf(row["later"]):
        return f"has no plateau ({row['why']})"
    low, high = ("open" if np.isinf(end) else f"{end:+.0f}" for end in (row["later_low"], row["later_high"]))
    return f"stops {row['later']:+.0f} {unit}s from there ({low} to {high})"


def _with_interval(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def _interval(value: float, low: float, high: float, form: str = ".3g") -> str:
    return f"{value:{form}} ({low:{form}} to {high:{form}})"
