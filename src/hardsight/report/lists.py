"""The lists on the page: hardest and easiest, over all and by class, and where angle and logit disagree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardsight.report.rows import Rows
from hardsight.report.words import score_title

# Samples in a list over all, and in a class's.
LENGTH = 48
CLASS_LENGTHS = ((100, 12), (300, 6))  # up to so many classes, so many samples


class Listed(NamedTuple):
    """Row numbers with a heading."""

    key: str
    title: str
    note: str
    rows: np.ndarray


def top(values: np.ndarray, k: int) -> np.ndarray:
    """Places of the k largest values, largest first; ties in row order; NaN never."""
    known = np.flatnonzero(~np.isnan(values))
    if k <= 0 or not len(known):
        return known[:0]
    if len(known) > k:
        least = np.partition(values[known], len(known) - k)[len(known) - k]
        above, tied = known[values[known] > least], known[values[known] == least]
        known = np.concatenate([above, tied[: k - len(above)]])
        known.sort()
    return known[np.argsort(-values[known], kind="stable")]


def hardest_and_easiest(rows: Rows) -> list[Listed]:
    """The two ends of the main score."""
    where = "at the label" if rows.labelled else "at the prediction, for there are no labels"
    name = score_title(rows.main)
    return [
        Listed("hardest", "Hardest", f"By {name}, taken {where}.", top(rows.hardness, LENGTH)),
        Listed("easiest", "Easiest", f"By {name}, taken {where}.", top(-rows.hardness, LENGTH)),
    ]


def disagreements(rows: Rows) -> list[Listed]:
    """Where the rank by the angle and the rank by the logits are furthest apart."""
    if rows.rank_logit is None or rows.logit is None or rows.main is None:
        return []
    gap = np.round(rows.rank_main - rows.rank_logit, 12)  # equal differences must be equal
    found = []
    angle, logit = score_title(rows.main), score_title(rows.logit)
    for key, heading, values, harder, easier in (
        ("angle_hard", "Hard by angle, easy by confidence", gap, angle, logit),
        ("logit_hard", "Hard by confidence, easy by angle", -gap, logit, angle),
    ):
        with np.errstate(invalid="ignore"):
            values = np.where(values > 0, values, np.nan)
        note = f"Ranked harder by {harder} than by {easier}; the largest difference of ranks first."
        found.append(Listed(key, heading, note, top(values, LENGTH)))
    return found


def by_class(rows: Rows) -> tuple[list[np.ndarray], list[np.ndarray], str]:
    """The hardest and the easiest rows of each class, and which classes have such lists.

    With many classes only the hardest ones (by the mean) have them; the others' lists are empty.
    """
    known = np.flatnonzero((rows.at >= 0) & ~np.isnan(rows.hardness))
    group, hardness = rows.at[known], rows.hardness[known]
    count = np.bincount(group, minlength=rows.codes)
    present = np.flatnonzero(count)
    length = next((k for most, k in CLASS_LENGTHS if len(present) <= most), CLASS_LENGTHS[-1][1])
    most = CLASS_LENGTHS[-1][0]
    shown, note = present, ""
    if len(present) > most:
        mean = np.bincount(group, hardness, minlength=rows.codes)[present] / count[present]
        shown = present[top(mean, most)]
        note = f"Only the {most:,} hardest of {len(present):,} classes have lists of their own."
    listed = np.isin(group, shown)
    known, group, hardness = known[listed], group[listed], hardness[listed]
    none = known[:0]
    lists: list[list[np.ndarray]] = []
    for values in (-hardness, hardness):
        order = np.lexsort((values, group))
        starts = np.searchsorted(group[order], shown)
        ends = np.searchsorted(group[order], shown, side="right")
        found = [none] * rows.codes
        for code, start, end in zip(shown.tolist(), starts.tolist(), ends.tolist(), strict=True):
            found[code] = known[order[start : min(end, start + length)]]
        lists.append(found)
    return lists[0], lists[1], note
