"""The rankings: each orders samples by the probability that their label is wrong, registered in `RANKINGS`.

To add one, write a function ``table → suspicion`` under ``@RANKINGS.register(...)``.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hardsight.errors import InputError, StateError
from hardsight.extras import need
from hardsight.labelerrors.confident import (
    NEEDED,
    class_means,
    has_probabilities,
    known_probabilities,
    labels_of,
    probability_matrix,
)
from hardsight.registry import Registry
from hardsight.scores import SCORES
from hardsight.table import SampleTable

# Selected on CIFAR-10N's labels random2, confirmed on aggregate, random1 and worst: docs/results/label-errors.md.
DEFAULT = "margin"
_CONFIDENT = "Northcutt et al., Confident Learning, JAIR 2021"
_CLEANLAB = {"needs": ("probabilities",), "reference": f"cleanlab; {_CONFIDENT}"}


@dataclass(frozen=True)
class Ranking:
    """A way to order samples by the probability that their label is wrong.

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
    function: Callable[[SampleTable], np.ndarray]


def _entry(name: str, function: Any, *, needs: tuple[str, ...], reference: str, summary: str = "") -> Ranking:
    return Ranking(name, summary or str(function.__doc__), reference, needs, function)


RANKINGS: Registry[Ranking] = Registry("ranking of label errors", _entry)


@RANKINGS.register("disagreement", needs=(*NEEDED, "margin"), reference=f"normalized margin; {_CONFIDENT}")
def _disagreement(table: SampleTable) -> np.ndarray:
    """How much more probable another class is than the label."""
    p = known_probabilities(table)
    return p.other.astype(np.float64) - p.label


@RANKINGS.register(
    "angular_disagreement", needs=("angular_margin", "angle", "avh"), reference="angular margin over AVH's denominator"
)
def _angular_disagreement(table: SampleTable) -> np.ndarray:
    """How much nearer another class is than the label, as a share of the sum of the angles to all classes."""
    angle, avh = table["angle"], table["avh"]
    total = np.divide(angle, avh, out=np.full(len(table), np.nan), where=avh > 0)
    # A feature on its class's axis (angle 0) does not determine the sum; sums differ little between samples.
    usual = np.nanmedian(total) if np.isfinite(total).any() else 1.0
    return table["angular_margin"] / np.where(np.isfinite(total), total, usual)


@RANKINGS.register("angle_and_logit", needs=("avh", "nll"), reference="mean rank")
def _angle_and_logit(table: SampleTable) -> np.ndarray:
    """Mean of the ranks by AVH and by the loss, from 0 to 1: suspicious by angle and by logit."""
    from scipy.stats import rankdata

    return np.mean([rankdata(table[name], nan_policy="omit") for name in ("avh", "nll")], axis=0) / len(table)


@RANKINGS.register("confidence_adjusted", needs=("confidence",), reference=f"class thresholds; {_CONFIDENT}")
def _confidence_adjusted(table: SampleTable) -> np.ndarray:
    """How far the confidence lies below the mean of its class: a hard class is not suspect as a whole."""
    return _above_class_mean(table, -table["confidence"])


@RANKINGS.register("avh_adjusted", needs=("avh",), reference="AVH against the mean of its class")
def _avh_adjusted(table: SampleTable) -> np.ndarray:
    """How far AVH lies above the mean of its class: a hard class is not suspect as a whole."""
    return _above_class_mean(table, table["avh"])


def _above_class_mean(table: SampleTable, values: np.ndarray) -> np.ndarray:
    labels = labels_of(table)
    return values - class_means(values, labels, labels.max() + 1)[labels]


def _by_score(table: SampleTable, name: str) -> np.ndarray:
    return table[name] if SCORES[name].higher_is_harder else -table[name]


for _score in SCORES.values():
    if _score.needs_labels:
        _facts = {"needs": (_score.name,), "reference": _score.reference, "summary": _score.summary}
        RANKINGS.register(_score.name, **_facts)(partial(_by_score, name=_score.name))


def _cleanlab(table: SampleTable, method: str, issues_first: bool = False) -> np.ndarray:
    labels, p = labels_of(table), probability_matrix(table)
    if p.shape[1] < 2:
        raise InputError("cleanlab's rankings need two classes or more, and this table has one.")
    labeled, suspicion = labels >= 0, np.full(len(table), np.nan)
    arguments = labels[labeled], p[labeled]
    issues = need("cleanlab.filter").find_label_issues(*arguments, n_jobs=1) if issues_first else 0
    suspicion[labeled] = issues + 1 - need("cleanlab.rank").get_label_quality_scores(*arguments, method=method)
    return suspicion


for _method in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
    _summary = f"cleanlab's label quality by {_method.replace('_', ' ')}, reversed."
    RANKINGS.register(f"cleanlab_{_method}", **_CLEANLAB, summary=_summary)(partial(_cleanlab, method=_method))
_summary = "What cleanlab's find_label_issues lists, before the rest, each by normalized margin."
_function = partial(_cleanlab, method="normalized_margin", issues_first=True)
RANKINGS.register("cleanlab_issues", **_CLEANLAB, summary=_summary)(_function)


def check_ranking(table: SampleTable, by: str | None = None) -> Ranking:
    """The ranking of that name (the default for None), if the table has the columns it needs."""
    ranking = RANKINGS[DEFAULT if by is None else by]
    missing = [name for name in ranking.needs if name not in table]
    if missing == ["probabilities"]:
        missing = [] if has_probabilities(table) else ["probabilities of all classes (kept for up to 100)"]
    if missing:
        raise InputError(
            f"{ranking.name} needs the {', '.join(missing)}, which the table lacks; score the data with them, or rank "
            "by another name."
        )
    return ranking


def to_datalab(table: SampleTable, by: str | None = None) -> Any:
    """A ``cleanlab.Datalab`` after its search for label issues in a run.

    Its data are ``id``, ``label``, ``suspicion`` (by the ranking `by`) and the scores, so that
    ``lab.data.to_pandas().join(lab.get_issues("label"))`` shows cleanlab's judgment beside ours. Classes without
    samples are left out, and the other probabilities rescaled to sum to one, as Datalab requires.

    Args:
        table: Scores of labeled samples of a run that keeps probabilities (up to 100 classes), best out of sample.
        by: A name from `RANKINGS`.
    """
    datalab, ranking = need("cleanlab.datalab.datalab"), check_ranking(table, by)
    p, labels = probability_matrix(table).astype(np.float64), labels_of(table)
    labeled = labels >= 0
    p = p[labeled][:, np.unique(labels[labeled])]
    columns = {"id": table["id"], "label": labels, "suspicion": ranking.function(table)}
    columns |= {name: table[name] for name in table.scores}
    lab = datalab.Datalab({k: v[labeled].tolist() for k, v in columns.items()}, label_name="label", verbosity=0)
    printed = io.StringIO()  # it prints errors instead of raising them
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # of pandas, for cleanlab to fix
            warnings.simplefilter("ignore", category)
        lab.find_issues(pred_probs=p / p.sum(axis=1, keepdims=True))
    if "label" not in set(lab.get_issue_summary()["issue_type"]):
        errors = [line for line in printed.getvalue().splitlines() if line.startswith("Error in label")]
        raise StateError(f"cleanlab's Datalab could not judge the labels ({'; '.join(errors) or 'no reason given'}).")
    return lab
