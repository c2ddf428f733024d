"""Which way a column is harder: the one table for every column that the package writes about a sample.

A registered score says it itself (`Score.higher_is_harder`); all other columns are listed here. Whoever adds a column
adds a line, or gives it a known name with one of the endings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hardsight.errors import InputError
from hardsight.scores.registered import SCORES

# True: a larger value is harder; False: a smaller one is; None: neither, so that nothing can be ranked by it.
COLUMNS: Mapping[str, bool | None] = {
    # What a sample is.
    **dict.fromkeys(("id", "label", "pred", "model", "fold", "epoch", "error", "avh_error")),
    "correct": False,
    # Several networks: rank 1 is the hardest.
    "agreement": False,
    **dict.fromkeys(("rank", "rank_low", "rank_high"), False),
    # Training: what one epoch records, and the summary over all of them.
    "angle_sum": None,
    "nll_angles": True,
    "nll_norms": True,
    "seen": None,
    "forgetting": True,
    "learned": True,
    "variability": True,
    "mean_confidence": False,
    "aum": False,
    "correctness": False,
    # The page's ranks, 1 the hardest of all.
    **dict.fromkeys(("rank_angle", "rank_logit"), True),
    # Two runs.
    "rank_change": True,
    **dict.fromkeys(("fixed", "broken", "relabelled")),
    # Label errors; `rank` above is theirs, too.
    "suspicion": True,
    "p_label": False,
    **dict.fromkeys(("p_pred", "suspect", "suggested", "action", "reason")),
    # People, and what is compared with them.
    "hsf": False,
    "votes_entropy": True,
    **dict.fromkeys(("answers", "majority")),
    "temperature_confidence": False,
    **dict.fromkeys(("total", "aleatoric", "epistemic"), True),
    # Degraded images: which level is harder depends on the degradation.
    **dict.fromkeys(("degradation", "level")),
    # Evaluations, named question/metric:score@level.
    "calibration/accuracy": False,
    "calibration/nll": True,
    "calibration/brier": True,
    "uncertainty/mean": True,
    "margins/margin": False,
    "margins/margin_below_zero": True,
    "margins/energy": True,
    "robustness/accuracy": False,
    **{f"robustness/{name}": SCORES[name].higher_is_harder for name in ("avh", "norm", "confidence")},
    "clusters/silhouette": False,
    "clusters/features": None,
    **dict.fromkeys(f"explanation/{name}" for name in ("insertion", "deletion", "faithfulness", "infidelity")),
    **dict.fromkeys(f"explanation/{name}" for name in ("entropy", "area", "mass_inside")),
}

# Behind a name these change a value and not its direction: where it is taken, in which run, over what it is averaged.
# (Not "_sd": how far networks differ says nothing about which way is harder.)
_ENDINGS = ("_pred", "_right", "_before", "_change", "_within_class", "_epochs", "_early", "_late", "_ensemble")


def larger_is_harder(column: str) -> bool | None:
    """Which way a column is harder, by its name: None where it has no direction, or where it is not known.

    Examples:
        >>> larger_is_harder("avh"), larger_is_harder("confidence_before"), larger_is_harder("rank")
        (True, False, False)
        >>> larger_is_harder("label"), larger_is_harder("camera")
        (None, None)
    """
    column = column.partition(":")[0] if "/" in column else column
    if column in COLUMNS:
        return COLUMNS[column]
    if column in SCORES:
        return SCORES[column].higher_is_harder
    for ending in _ENDINGS:
        if column.endswith(ending) and (base := column.removesuffix(ending)):
            return larger_is_harder(base)
    return None


def hardness_sign(column: str) -> int:
    """1 where a larger value is harder, −1 where a smaller one is; a column without a direction is refused."""
    larger = larger_is_harder(column)
    if larger is None:
        raise InputError(f"nothing says whether larger or smaller values of {column!r} are harder.")
    return 1 if larger else -1


def harder_end(column: str) -> Literal["larger", "smaller", ""]:
    """The same in a word, for pages; empty where a column has no direction."""
    larger = larger_is_harder(column)
    return "" if larger is None else "larger" if larger else "smaller"
