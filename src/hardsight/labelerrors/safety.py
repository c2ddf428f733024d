"""When may a label be changed without a person? Only where the run itself shows that the new labels are right.

When a network wrongly contradicts a label, the label is the true class and usually ranks high among the classes that
were *not* predicted; a label given by mistake ranks in their lower half as often as in the upper one. So the share of
contradicted labels in the lower half gives the share of them that are wrong:

    wrong = (lower − lower_net) / (1/2 − lower_net)

``lower`` is counted where the network is confident, ``lower_net`` where it is not and its own errors prevail. Labels of
people who confuse similar classes also rank high and are taken for the network's errors, so the estimate is too low for
them, which is conservative. Measured in ``docs/results/cleaning.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hardsight.chance import chance_agreement
from hardsight.labelerrors.confident import Noise, Probabilities
from hardsight.printing import percent
from hardsight.stats import share_interval

SAFE = 0.8  # lower bound of the share of new labels that must be right
LEAST_ACCURACY = 0.6  # a network that agrees with fewer labels than this cannot tell its errors from theirs
LARGEST_SHARE = 0.5  # of one class: more contradicted labels than this mean another class numbering, not errors
_THRESHOLDS = (0.7, 0.8, 0.9, 0.95, 0.99)
_LEVEL = 1 - 0.05 / len(_THRESHOLDS)  # the intervals hold for all thresholds together
_LEAST_CONFIDENT = 0.2  # of the contradicted labels, by their predictions: here the network's own errors prevail
_ROOM = 0.1  # how far the network's own errors must lie from chance for the two to be told apart


@dataclass(frozen=True)
class Automatic:
    """Which suspects may be relabeled without review.

    Attributes:
        threshold: Those whose prediction has at least this probability; None if none may be.
        precision: Estimated share of their new labels that are right.
        low: Lower end of its 95% interval.
        kind: Why none may be: ``chance``, ``implausible``, ``in sample``, ``probabilities`` (they are missing), or
            ``not shown`` (to be right often enough); None where some may be.
        reason: The same as a sentence; empty where some may be.
    """

    threshold: float | None = None
    precision: float | None = None
    low: float | None = None
    kind: str | None = None
    reason: str = ""


def automatic(p: Probabilities, estimate: Noise | None) -> Automatic:
    """Which labels of a run may be changed without a person, if any."""
    if objection := _objection(p, estimate):
        return Automatic(kind=objection[0], reason=objection[1])
    # The label's rank: 1 in the lower half, 1/2 in the very middle.
    lower = (np.sign(p.label_rank[p.contradicted].astype(np.float64) - 0.5) + 1) / 2
    prediction = p.prediction[p.contradicted].astype(np.float64)
    limit = np.quantile(prediction, _LEAST_CONFIDENT) if len(prediction) else 0.0
    doubtful = lower[prediction < limit]
    # The network's own errors: the upper bound, because the more of them rank low, the fewer labels are wrong.
    net = share_interval(doubtful.sum(), len(doubtful), _LEVEL)[1] if len(doubtful) else 0.5
    for threshold in _THRESHOLDS if 0.5 - net >= _ROOM else ():
        contradicted = lower[prediction >= threshold]
        if not len(contradicted):
            continue
        share = len(contradicted) / (p.labeled & (p.prediction >= np.float64(threshold))).sum()
        lowest = share_interval(contradicted.sum(), len(contradicted), _LEVEL)[0]
        precision, low = (_right(x, net, share) for x in (contradicted.mean(), lowest))
        if low >= SAFE:
            return Automatic(threshold, precision, low)
    reason = (
        f"it cannot be shown that {percent(SAFE, 0)} of the new labels would be right: what the network contradicts "
        "may be its own mistakes. Review the suspects, and pass your decisions with --decisions."
    )
    return Automatic(kind="not shown", reason=reason)


def _objection(p: Probabilities, estimate: Noise | None) -> tuple[str, str] | None:
    """The most serious reason against changing any label without review: its kind and a sentence."""
    if estimate is None or not p.exact:
        text = "the run keeps no probabilities of all classes (they are kept for up to 100), so nothing can be tested."
        return "probabilities", text
    chance = chance_agreement(p.labels, p.pred)
    if chance.near:
        return "chance", str(chance)
    if chance.accuracy < LEAST_ACCURACY or estimate.share > chance.accuracy / 2:
        return "implausible", (
            f"{percent(estimate.share)} wrong labels are not plausible from a network that agrees with only "
            f"{percent(chance.accuracy)} of the labels: most of what it contradicts may be its own mistakes. Use a "
            "better network."
        )
    contradicted = np.bincount(p.labels[p.contradicted & p.confident], minlength=p.classes)
    if len(classes := np.flatnonzero((p.counts >= 10) & (contradicted > LARGEST_SHARE * p.counts))):
        return "implausible", (
            f"the network is confident that most labels of class {classes[0]} are wrong: the data and the model "
            "probably number their classes differently."
        )
    if not p.table.meta.out_of_sample:
        return "in sample", "the run does not record that its samples were kept out of training; score with --folds."
    return None


def _right(lower: float, net: float, contradicted: float) -> float:
    """Share of the new labels that are right, from the shares of contradicted labels in the lower half.

    A new label is right if the old one is wrong and the prediction right. The prediction is wrong at most as often as
    the network contradicts a label that is right.
    """
    wrong = float(min(max(lower - net, 0.0) / (0.5 - net), 1.0))
    return wrong * (1 - float(contradicted) * (1 - wrong))
