"""What lowers the loss from one epoch to the next: the angles, or the norms?

With angles θ and norms r (of features and class weights, biases included) the loss is L(θ, r). Both change between two
epochs. The part of the angles is the mean of their effect with the old norms and with the new ones (the Shapley value
for two players), and so is the part of the norms; the two add up to the whole change exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.errors import InputError
from hardsight.stats import moments

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

ANGLES, NORMS, UNCLEAR = "angles", "norms", "unclear"


class LossChange(NamedTuple):
    """The change of the loss since a sample was last seen, and its two parts; NaN if it was not seen before."""

    change: np.ndarray
    by_angles: np.ndarray
    by_norms: np.ndarray


_SCHEMA = pa.schema(
    [("group", pa.int64()), ("epoch", pa.int64()), ("n", pa.int64()), ("nll", pa.float64())]
    + [(f"{name}{end}", pa.float64()) for name in LossChange._fields for end in ("", "_sd")]
    + [(name, pa.float64()) for name in ("lead", "lead_low", "lead_high")]
    + [("driver", pa.string())]
)


def split_change(old: np.ndarray, new: np.ndarray, new_angles: np.ndarray, new_norms: np.ndarray) -> LossChange:
    """The Shapley values of angles and norms in ``new − old``.

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
    """Each epoch that can be compared with an earlier one: its number, the loss of all samples, and the parts."""
    if len(dynamics.epochs) < 2:
        raise InputError("dynamics must hold at least two epochs, to say what lowers the loss between them, got one.")
    nll, new_angles, new_norms = (dynamics.matrix(name) for name in ("nll", "nll_angles", "nll_norms"))
    if not np.isfinite(new_angles).any():
        raise InputError(
            "dynamics must hold nll_angles and nll_norms, got none; they are recorded from the second epoch on, unless "
            "samples × classes are too many. Record fewer samples."
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

    ``lead`` is the mean of ``by_norms − by_angles`` over the samples of a group: how much more the angles lowered the
    loss than the norms did. Where its 95% interval (Student's, paired) lies above 0 the driver is "angles", below 0
    "norms", else "unclear". This holds for this network and samples like these; for other seeds, record several runs.

    Args:
        dynamics: A recorded run with ``nll_angles`` and ``nll_norms``.
        by: Groups, as for ``Dynamics.curves``; by default a single group ``all``.

    Returns:
        Rows ``group``, ``epoch``, ``n``, ``nll``; ``change``, ``by_angles``, ``by_norms``, each a mean with
        ``…_sd`` over samples; ``lead``, ``lead_low``, ``lead_high``; ``driver``. Changes are since the epoch in which a
        sample was last seen, so the first epoch has no row.
    """
    groups, codes = dynamics.groups(by)
    rows: list[dict[str, Any]] = []
    for epoch, nll, parts in parts_by_epoch(dynamics):
        valid = np.where(np.isfinite(parts.by_angles), codes, -1)
        values = {"nll": nll, **parts._asdict(), "lead": parts.by_norms - parts.by_angles}
        means = {name: moments(column, valid, len(groups)) for name, column in values.items()}
        low, high = means["lead"].interval()
        for g in np.flatnonzero(means["nll"].n).tolist():
            row: dict[str, Any] = {"group": g, "epoch": epoch, "n": int(means["nll"].n[g])}
            row |= {name: part.mean[g] for name, part in means.items()}
            row |= {f"{name}_sd": np.sqrt(part.variance[g]) for name, part in means.items()}
            row |= {"lead_low": low[g], "lead_high": high[g]}
            row["driver"] = ANGLES if low[g] > 0 else NORMS if high[g] < 0 else UNCLEAR
            rows.append(row)
    rows.sort(key=lambda row: row["group"])
    columns = [pa.array([row[field.name] for row in rows], field.type, from_pandas=True) for field in _SCHEMA]
    return pa.table([pa.array(groups).take(columns[0]), *columns[1:]], names=_SCHEMA.names)
