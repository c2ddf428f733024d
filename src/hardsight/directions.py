"""The direction of hardness of each column, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hardsight.errors import InputError
from hardsight.scores import SCORES

# Every column that hardsight writes about a sample, except the scores, which declare it themselves. True: larger values
# are harder; False: smaller ones are; None: neither, so nothing can be ranked by it.
COLUMNS: Mapping[str, bool | None] = {
    # What a sample is, and several networks; rank 1 is the hardest.
    **dict.fromkeys(("id", "label", "pred", "model", "fold", "epoch", "error", "avh_error")),
    **dict.fromkeys(("correct", "agreement", "rank", "rank_low", "rank_high"), False),
    # Training: the records of one epoch, and the summary over all epochs.
    **dict.fromkeys(("angle_sum", "other_angle", "seen")),
    **dict.fromkeys(("nll_angles", "nll_norms", "forgetting", "learned", "variability"), True),
    **dict.fromkeys(("mean_confidence", "aum", "correctness"), False),
    # The page's ranks, 1 the hardest of all; two runs; label errors.
    **dict.fromkeys(("rank_angle", "rank_logit", "rank_change", "suspicion"), True),
    **dict.fromkeys(("fixed", "broken", "relabelled", "p_pred", "suspect", "suggested", "action", "reason")),
    "p_label": False,
    # People, and scores compared with them; degraded images, some of which are harder at lower levels.
    **dict.fromkeys(("hsf", "temperature_confidence"), False),
    **dict.fromkeys(("votes_entropy", "total", "aleatoric", "epistemic"), True),
    **dict.fromkeys(("answers", "majority", "degradation", "level")),
    # Evaluations, named question/metric:score@level.
    **dict.fromkeys(("calibration/nll", "calibration/brier", "uncertainty/mean"), True),
    **dict.fromkeys(("margins/margin_below_zero", "margins/energy", "robustness/avh"), True),
    **dict.fromkeys(("calibration/accuracy", "margins/margin", "clusters/silhouette"), False),
    **dict.fromkeys(("robustness/accuracy", "robustness/norm", "robustness/confidence"), False),
    **dict.fromkeys(("clusters/features", "explanation/insertion", "explanation/deletion", "explanation/faithfulness")),
    **dict.fromkeys(("explanation/infidelity", "explanation/entropy", "explanation/area", "explanation/mass_inside")),
}

# These suffixes change a value but not its direction: at which class, in which run, averaged over what.
# (Not "_sd": the spread over networks says nothing about the direction.)
_ENDINGS = ("_pred", "_right", "_before", "_change", "_within_class", "_epochs", "_early", "_late", "_z", "_ensemble")


def larger_is_harder(column: str) -> bool | None:
    """The direction of hardness of a column, by its name: None if it has none, or if hardsight does not write it.

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
    ending = next((ending for ending in _ENDINGS if column.endswith(ending)), "")
    return larger_is_harder(column.removesuffix(ending)) if ending else None


def hardness_sign(column: str, largest: bool | None = None) -> int:
    """1 if a larger value is harder, −1 if a smaller one is, by the column's name unless `largest` says so."""
    larger = larger_is_harder(column) if largest is None else largest
    if larger is None:
        raise InputError(
            f"nothing says which values of {column!r} are harder; to rank by it give largest=True or False."
        )
    return 1 if larger else -1


def harder_end(column: str) -> Literal["larger", "smaller", ""]:
    """The same in a word, for pages; empty if a column has no direction."""
    larger = larger_is_harder(column)
    return "" if larger is None else "larger" if larger else "smaller"
