"""Norms of hard and easy samples: does a network keep the gap between them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.correlation import standard_error
from hardsight.errors import InputError
from hardsight.stats import FEW, half_width

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics


def standardised_gap(easy: np.ndarray, hard: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Difference of two means, that over the pooled sd, and that over the mean of the two means; with their errors.

    Returns:
        Values ``(3,)`` and standard errors ``(3,)``, from each sample's influence, so that neither equal variances nor
        normal values are asked for.
    """
    n_easy, n_hard = len(easy), len(hard)
    n = n_easy + n_hard
    a, b = easy.mean(), hard.mean()
    gap, middle = a - b, (a + b) / 2
    variance = (((easy - a) ** 2).sum() + ((hard - b) ** 2).sum()) / (n - 2)
    deviations = np.r_[easy - a, hard - b]
    # Influences are weighted by n / n_group: a group's mean moves with its own samples only.
    share = np.r_[np.full(n_easy, n / n_easy), np.full(n_hard, -n / n_hard)]
    on_gap, on_middle = share * deviations, np.abs(share) / 2 * deviations
    on_variance = deviations**2 - variance
    spread = np.sqrt(variance)
    values = np.array([gap, gap / spread if spread else np.nan, gap / middle if middle else np.nan])
    with np.errstate(divide="ignore", invalid="ignore"):
        influences = (
            on_gap,
            on_gap / spread - gap / (2 * spread**3) * on_variance,
            on_gap / middle - gap / middle**2 * on_middle,
        )
    return values, np.array([standard_error(influence) for influence in influences])


def norm_gaps(dynamics: Dynamics, levels: Any, *, hardest: Any = None, value: str = "norm") -> pa.Table:
    """By epoch, how much larger the norms of the easiest level are than those of the hardest.

    Args:
        dynamics: The recorded run.
        levels: The hardness level of each sample, as for ``Dynamics.curves(by=…)``: bins of human selection frequency
            (`hardsight.human.frequency_bins`), or degrees of degradation.
        hardest: Which end of the levels is the hardest; the first in order without (the lowest frequency). The easiest
            is the one at the other end. Levels with fewer than 5 samples are passed over.
        value: What is compared.

    Returns:
        Rows ``epoch``, ``hardest``, ``easiest``, ``n_hard``, ``n_easy``, their means, and ``gap`` (easiest minus
        hardest), ``gap_sd`` (over the pooled sd within levels) and ``gap_share`` (over the mean of the two means),
        each with its 95 % interval ``…_low``, ``…_high``.
    """
    found_levels, codes = dynamics.groups(levels)
    names = [str(level) for level in found_levels]
    if hardest is not None and str(hardest) not in names:
        raise InputError(f"hardest must be one of the levels {', '.join(names)}, got {hardest!r}.")
    kept = [k for k in range(len(names)) if (codes == k).sum() >= FEW]
    if len(kept) < 2:
        raise InputError(f"levels must hold at least two values with {FEW} samples each, got {len(kept)}.")
    at = 0 if hardest is None else names.index(str(hardest))
    if kept[0] < at < kept[-1]:
        raise InputError(
            f"hardest must be the first or the last of the levels, {names[kept[0]]} or {names[kept[-1]]}, got "
            f"{hardest!r}; name levels so that they sort by hardness."
        )
    hard, easy = (kept[-1], kept[0]) if at >= kept[-1] else (kept[0], kept[-1])
    rows: list[dict[str, Any]] = []
    for epoch, column in zip(np.asarray(dynamics.epochs).tolist(), dynamics.matrix(value).T, strict=True):
        low_side, high_side = (column[(codes == k) & np.isfinite(column)] for k in (hard, easy))
        if min(len(low_side), len(high_side)) < FEW:
            continue
        row: dict[str, Any] = {"epoch": epoch, "hardest": names[hard], "easiest": names[easy]}
        row |= {"n_hard": len(low_side), "n_easy": len(high_side)}
        row |= {"mean_hard": low_side.mean(), "mean_easy": high_side.mean()}
        found, errors = standardised_gap(high_side, low_side)
        z = half_width(min(len(low_side), len(high_side)) - 1)
        for name, middle, error in zip(("gap", "gap_sd", "gap_share"), found, errors, strict=True):
            row |= {name: middle, f"{name}_low": middle - z * error, f"{name}_high": middle + z * error}
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [("epoch", pa.int64()), ("hardest", pa.string()), ("easiest", pa.string())]
    + [("n_hard", pa.int64()), ("n_easy", pa.int64()), ("mean_hard", pa.float64()), ("mean_easy", pa.float64())]
    + [(f"{name}{end}", pa.float64()) for name in ("gap", "gap_sd", "gap_share") for end in ("", "_low", "_high")]
)
