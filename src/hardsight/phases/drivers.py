"""What lowers the loss from one epoch to the next: the angles, or the norms?

With angles θ and norms r (of features and class weights, biases among them) the loss is L(θ, r). Between two epochs
both change. The part of the angles is the mean of what they do with the old norms and with the new ones (Shapley's
value for two players), and so is the part of the norms; the two add up to the whole change exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.errors import InputError
from hardsight.stats import Moments, moments

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

ANGLES, NORMS, UNCLEAR = "angles", "norms", "unclear"


class LossChange(NamedTuple):
    """The change of the loss since a sample was last seen, and its two parts; NaN where there is none before."""

    change: np.ndarray
    by_angles: np.ndarray
    by_norms: np.ndarray


def split_change(old: np.ndarray, new: np.ndarray, new_angles: np.ndarray, new_norms: np.ndarray) -> LossChange:
    """Shapley's halves of ``new − old``.

    Args:
        old: L(θ, r): the loss before.
        new: L(θ', r'): the loss now.
        new_angles: L(θ', r): with the new angles and the old norms.
        new_norms: L(θ, r'): with the old angles and the new norms.

    Examples:
        >>> parts = split_change(np.array([2.0]), np.array([0.5]), np.array([1.0]), np.array([1.8]))
        >>> [part.round(2).tolist() for part in parts]
        [[-1.5], [-1.15], [-0.35]]
    """
    by_angles = ((new_angles - old) + (new - new_norms)) / 2
    by_norms = ((new_norms - old) + (new - new_angles)) / 2
    return LossChange(new - old, by_angles, by_norms)


def parts_by_epoch(dynamics: Dynamics) -> Iterator[tuple[int, np.ndarray, LossChange]]:
    """Each epoch that can be compared with one before it: its number, the loss of all samples, and the parts."""
    if len(dynamics.epochs) < 2:
        raise InputError("dynamics must hold at least two epochs, to say what lowers the loss between them, got one.")
    nll, new_angles, new_norms = (dynamics.matrix(name) for name in ("nll", "nll_angles", "nll_norms"))
    if not np.isfinite(new_angles).any():
        raise InputError(
            "dynamics must hold nll_angles and nll_norms, got none; they are kept from the second epoch on, while "
            "samples × classes are not too many. Record fewer samples."
        )
    old = np.full(len(nll), np.nan)
    for column, epoch in enumerate(dynamics.epochs.tolist()):
        new = nll[:, column]
        parts = split_change(old, new, new_angles[:, column], new_norms[:, column])
        old = np.where(np.isfinite(new), new, old)
        if np.isfinite(parts.by_angles).any():
            yield epoch, new, parts


def loss_drivers(dynamics: Dynamics, by: Any = None) -> pa.Table:
    """What lowered the loss in each epoch and group: angles or norms.

    The rule: over the samples of a group, the mean of ``by_norms − by_angles`` tells how much more the angles lowered
    the loss than the norms did. Where its 95 % interval (Student's, paired: both parts belong to one sample) lies
    above 0 the driver is "angles", below 0 "norms", else "unclear". It is a statement about this network and the
    population of its samples; for other seeds, record several runs.

    Args:
        dynamics: A recorded run that kept ``nll_angles`` and ``nll_norms``.
        by: Groups, as for ``Dynamics.curves``; one group ``all`` without.

    Returns:
        Rows ``group``, ``epoch``, ``n``, ``nll``; ``change``, ``by_angles``, ``by_norms``, each a mean with
        ``…_sd`` over samples; ``lead`` (that difference) with ``lead_low`` and ``lead_high``; ``driver``. Changes are
        since the epoch in which a sample was last seen, so that the first epoch has no row.
    """
    groups, codes = dynamics.groups(by)
    rows: list[dict[str, Any]] = []
    for epoch, nll, parts in parts_by_epoch(dynamics):
        judged = np.where(np.isfinite(parts.by_angles), codes, -1)
        level = moments(nll, judged, len(groups))
        found = {name: moments(values, judged, len(groups)) for name, values in parts._asdict().items()}
        lead = moments(parts.by_norms - parts.by_angles, judged, len(groups))
        rows += _rows(epoch, level, found, lead)
    rows.sort(key=lambda row: row["group"])
    names = pa.array(groups).take(pa.array([row.pop("group") for row in rows]))
    return pa.Table.from_pylist(rows, schema=_SCHEMA).add_column(0, "group", names)


_SCHEMA = pa.schema(
    [("epoch", pa.int64()), ("n", pa.int64()), ("nll", pa.float64())]
    + [(f"{name}{end}", pa.float64()) for name in LossChange._fields for end in ("", "_sd")]
    + [(name, pa.float64()) for name in ("lead", "lead_low", "lead_high")]
    + [("driver", pa.string())]
)


def _rows(epoch: int, level: Moments, found: dict[str, Moments], lead: Moments) -> list[dict[str, Any]]:
    low, high = lead.interval()
    rows = []
    for g in np.flatnonzero(level.n).tolist():
        row: dict[str, Any] = {"group": g, "epoch": epoch, "n": int(level.n[g]), "nll": level.mean[g]}
        for name, part in found.items():
            row |= {name: part.mean[g], f"{name}_sd": _or_none(np.sqrt(part.variance[g]))}
        row |= {"lead": lead.mean[g], "lead_low": _or_none(low[g]), "lead_high": _or_none(high[g])}
        row["driver"] = ANGLES if low[g] > 0 else NORMS if high[g] < 0 else UNCLEAR
        rows.append(row)
    return rows


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


class Switch(NamedTuple):
    """The split of the epochs into a first phase of angles and a second of norms that fits best.

    Attributes:
        epoch: First epoch of the second phase: the first of all where angles never lead, None where they always do.
        agreement: Share of the epochs whose driver is that of their phase; unclear ones count half.
        n: Epochs.
    """

    epoch: int | None
    agreement: float
    n: int


def phase_switch(epochs: np.ndarray, drivers: np.ndarray) -> Switch:
    """Where angles hand over to norms, and how well two phases describe the epochs; the earliest of equal splits.

    Examples:
        >>> phase_switch(np.arange(2, 8), np.array(["angles", "angles", "norms", "unclear", "norms", "norms"]))
        Switch(epoch=4, agreement=0.9166666666666666, n=6)
    """
    half = 0.5 * (drivers == UNCLEAR)
    angles, norms = (drivers == ANGLES) + half, (drivers == NORMS) + half
    agreeing = np.r_[0.0, np.cumsum(angles)] + np.r_[np.cumsum(norms[::-1])[::-1], 0.0]
    split = int(agreeing.argmax())
    epoch = int(epochs[split]) if split < len(epochs) else None
    return Switch(epoch, float(agreeing[split] / len(epochs)), len(epochs))
