"""The rankings: each orders samples by how probably their label is wrong, registered in `RANKINGS`.

To add one, write a function ``table → suspicion`` under ``@RANKINGS.register(...)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hardsight.errors import InputError
from hardsight.extras import need
from hardsight.labelerrors.confident import NEEDED, Beliefs, labels_of, probability_matrix, probability_rows
from hardsight.registry import Registry
from hardsight.scores import SCORES, Score
from hardsight.table import SampleTable

# Chosen on CIFAR-10N's labelling random2, confirmed on aggregate, random1 and worst: docs/results/label-errors.md.
DEFAULT = "margin"

Suspicion = Callable[[SampleTable], np.ndarray]


@dataclass(frozen=True)
class Ranking:
    """A way to order samples by how probably their label is wrong.

    Attributes:
        name: Its name in `RANKINGS` and on the command line.
        summary: What it is, in one line.
        reference: Where it comes from.
        needs: Columns it reads; ``("probabilities",)`` stands for those of all classes, kept beside the table.
        function: Suspicion of each row, ``(N,)`` float64: larger means that the label is more probably wrong.
    """

    name: str
    summary: str
    reference: str
    needs: tuple[str, ...]
    function: Suspicion


def _entry(name: str, function: Suspicion, *, needs: tuple[str, ...], reference: str, summary: str = "") -> Ranking:
    return Ranking(name, summary or str(function.__doc__), reference, needs, function)


_CONFIDENT = "Northcutt et al., Confident Learning, JAIR 2021"

RANKINGS: Registry[Ranking] = Registry("ranking of label errors", _entry)


@RANKINGS.register(
    "disagreement",
    needs=(*NEEDED, "margin"),
    reference=f"normalized margin; {_CONFIDENT}",
)
def _disagreement(table: SampleTable) -> np.ndarray:
    """How much more probable another class is than the label."""
    beliefs = Beliefs(table)
    return beliefs.p_other - beliefs.p_label


@RANKINGS.register(
    "angular_disagreement",
    needs=("angular_margin", "angle", "avh"),
    reference="angular margin over AVH's denominator",
)
def _angular_disagreement(table: SampleTable) -> np.ndarray:
    """How much nearer another class is than the label, as a share of the sum of the angles to all classes."""
    angle, share = table["angle"], table["avh"]
    total = np.divide(angle, share, out=np.full(len(table), np.nan), where=share > 0)
    # A feature on its class's axis (angle 0) does not tell the sum; sums differ little between samples.
    usual = np.nanmedian(total) if np.isfinite(total).any() else 1.0
    return table["angular_margin"] / np.where(np.isfinite(total), total, usual)


@RANKINGS.register("angle_and_logit", needs=("avh", "nll"), reference="mean rank")
def _angle_and_logit(table: SampleTable) -> np.ndarray:
    """Mean of the ranks by AVH and by the loss, from 0 to 1: suspicious by angle and by logit."""
    from scipy.stats import rankdata

    return np.mean([rankdata(table[name], nan_policy="omit") for name in ("avh", "nll")], axis=0) / len(table)


@RANKINGS.register(
    "confidence_adjusted",
    needs=("confidence",),
    reference=f"class thresholds; {_CONFIDENT}",
)
def _confidence_adjusted(table: SampleTable) -> np.ndarray:
    """How far the confidence lies below the mean of its class: a hard class is not suspect as a whole."""
    return _above_class_mean(table, -table["confidence"])


@RANKINGS.register("avh_adjusted", needs=("avh",), reference="AVH against the mean of its class")
def _avh_adjusted(table: SampleTable) -> np.ndarray:
    """How far AVH lies above the mean of its class: a hard class is not suspect as a whole."""
    return _above_class_mean(table, table["avh"])


def _above_class_mean(table: SampleTable, values: np.ndarray) -> np.ndarray:
    labels = labels_of(table)
    known = (labels >= 0) & np.isfinite(values)
    n = np.bincount(labels[known], minlength=labels.max() + 1)
    mean = np.bincount(labels[known], values[known], minlength=len(n)) / np.maximum(n, 1)
    return values - mean[labels]


def _by_score(score: Score) -> Suspicion:
    return lambda table: table[score.name] if score.higher_is_harder else -table[score.name]


for _score in SCORES.values():
    if _score.needs_labels:
        _facts = {"needs": (_score.name,), "reference": _score.reference, "summary": _score.summary}
        RANKINGS.register(_score.name, **_facts)(_by_score(_score))


# cleanlab, the witness: its own code on our probabilities.

_CLEANLAB = f"cleanlab; {_CONFIDENT}"


def _cleanlab(table: SampleTable, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """What cleanlab says of the labelled rows; NaN for the others."""
    labels, p = labels_of(table), probability_matrix(table)
    if p.shape[1] < 2:
        raise InputError("cleanlab's rankings need two classes or more, and this table has one.")
    suspicion = np.full(len(table), np.nan)
    suspicion[labels >= 0] = function(labels[labels >= 0], p[labels >= 0])
    return suspicion


def _by_quality(method: str) -> Suspicion:
    def function(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
        return 1 - need("cleanlab.rank").get_label_quality_scores(labels, p, method=method)

    return lambda table: _cleanlab(table, function)


for _method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
    _facts = {"needs": ("probabilities",), "reference": _CLEANLAB}
    _summary = f"cleanlab's label quality by {_method.replace('_', ' ')}, reversed."
    RANKINGS.register(f"cleanlab_{_method}", **_facts, summary=_summary)(_by_quality(_method))


@RANKINGS.register("cleanlab_issues", needs=("probabilities",), reference=_CLEANLAB)
def _cleanlab_issues(table: SampleTable) -> np.ndarray:
    """What cleanlab's find_label_issues lists, before the rest, each by normalised margin."""

    def function(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
        listed = need("cleanlab.filter").find_label_issues(labels, p, n_jobs=1)
        return listed + 1 - need("cleanlab.rank").get_label_quality_scores(labels, p, method="normalized_margin")

    return _cleanlab(table, function)


def check_ranking(table: SampleTable, by: str | None = None) -> Ranking:
    """The ranking of that name (the default for None), if the table holds what it needs."""
    by = DEFAULT if by is None else by
    ranking = RANKINGS[by]
    if ranking.needs == ("probabilities",):
        if probability_rows(table) is None:
            raise InputError(f"{by} needs the probabilities of all classes, which runs keep for up to 100 classes.")
    elif missing := [name for name in ranking.needs if name not in table]:
        raise InputError(
            f"{by} needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}, which the table lacks; score the "
            "data with them, or rank by another name."
        )
    return ranking
