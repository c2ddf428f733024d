"""Measures of the AVH paper's observations: the gap between norms of hard and easy samples, AVH against accuracy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import stats

from hardsight.correlation import spearman, standard_error
from hardsight.errors import InputError
from hardsight.stats import FEW, half_width

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

OVER, WITHIN = "over nets", "within net"
_FEWEST = 3  # points of a correlation
_ALL_ORDERS = 7  # networks up to which every permutation is counted
_GAPS = ("gap", "gap_sd", "gap_share")
_GAP_SCHEMA = pa.schema(
    [("epoch", pa.int64()), ("hardest", pa.string()), ("easiest", pa.string())]
    + [("n_hard", pa.int64()), ("n_easy", pa.int64()), ("mean_hard", pa.float64()), ("mean_easy", pa.float64())]
    + [(f"{name}{end}", pa.float64()) for name in _GAPS for end in ("", "_low", "_high")]
)
_ACCURACY_SCHEMA = pa.schema(
    [("scope", pa.string()), ("net", pa.string()), ("epoch", pa.int64()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("spearman", "p", "changes")]
)


def standardized_gap(easy: np.ndarray, hard: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Difference of two means: as it is, over the pooled sd, and over the mean of the two means.

    Returns:
        Values ``(3,)`` and standard errors ``(3,)``, from the influence of each sample: neither equal variances nor
        normal values are assumed.
    """
    a, b, n = easy.mean(), hard.mean(), len(easy) + len(hard)
    gap, middle = a - b, (a + b) / 2
    deviations = np.r_[easy - a, hard - b]
    variance = (deviations**2).sum() / (n - 2)
    spread = np.sqrt(variance)
    # Influences are weighted by n / n_group: a group's mean depends on its own samples only.
    share = np.r_[np.full(len(easy), n / len(easy)), np.full(len(hard), -n / len(hard))]
    on_gap, on_middle = share * deviations, np.abs(share) / 2 * deviations
    values = np.array([gap, gap / spread if spread else np.nan, gap / middle if middle else np.nan])
    with np.errstate(divide="ignore", invalid="ignore"):
        influences = (
            on_gap,
            on_gap / spread - gap / (2 * spread**3) * (deviations**2 - variance),
            on_gap / middle - gap / middle**2 * on_middle,
        )
    return values, np.array([standard_error(influence) for influence in influences])


def norm_gaps(dynamics: Dynamics, levels: Any, *, hardest: Any = None, value: str = "norm") -> pa.Table:
    """How much larger the norms of the easiest level are than those of the hardest, per epoch.

    Args:
        dynamics: The recorded run.
        levels: The hardness level of each sample, as for ``Dynamics.curves(by=…)``: bins of human selection frequency
            (`hardsight.human.frequency_bins`), or levels of degradation.
        hardest: The hardest level, at either end of their order; the first (the lowest frequency) without. Levels with
            fewer than 5 samples are skipped.
        value: What is compared.

    Returns:
        Rows ``epoch``, ``hardest``, ``easiest``, ``n_hard``, ``n_easy``, ``mean_hard``, ``mean_easy``, and ``gap``
        (easiest minus hardest), ``gap_sd`` (over the pooled sd within levels) and ``gap_share`` (over the mean of the
        two means), each with its 95% interval ``…_low``, ``…_high``.
    """
    groups, codes = dynamics.groups(levels)
    names = [str(level) for level in groups]
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
        hard_values, easy_values = (column[(codes == k) & np.isfinite(column)] for k in (hard, easy))
        fewest = min(len(hard_values), len(easy_values))
        if fewest < FEW:
            continue
        row: dict[str, Any] = {"epoch": epoch, "hardest": names[hard], "easiest": names[easy]}
        row |= {"n_hard": len(hard_values), "n_easy": len(easy_values)}
        row |= {"mean_hard": hard_values.mean(), "mean_easy": easy_values.mean()}
        for name, gap, error in zip(_GAPS, *standardized_gap(easy_values, hard_values), strict=True):
            half = half_width(fewest - 1) * error
            row |= {name: gap, f"{name}_low": gap - half, f"{name}_high": gap + half}
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_GAP_SCHEMA)


def hardness_against_accuracy(runs: Mapping[str, Dynamics]) -> pa.Table:
    """Spearman's correlation of mean C·AVH and accuracy, over networks and within each over its epochs.

    Args:
        runs: Networks by name, recorded on the same data.

    Returns:
        ``scope`` "over nets" (at each epoch that all nets have, and with each net's last epoch, where ``epoch`` is
        null) or "within net" (over the epochs of ``net``); ``n`` points; ``spearman``; ``p``: two-sided, exact up to 7
        nets (with 4 nets at least 0.083), null within nets, whose epochs are not independent; ``changes``: within nets,
        the correlation of the changes from epoch to epoch, which no common trend explains.
    """
    curves = {name: _means(run) for name, run in runs.items()}
    rows: list[dict[str, Any]] = []
    shared = sorted(set.intersection(*(set(epochs.tolist()) for epochs, _, _ in curves.values()))) if curves else []
    for epoch in [*shared, None]:
        at = [-1 if epoch is None else int(np.flatnonzero(epochs == epoch)[0]) for epochs, _, _ in curves.values()]
        points = np.array([(h[k], a[k]) for k, (_, h, a) in zip(at, curves.values(), strict=True)]).reshape(-1, 2)
        row: dict[str, Any] = {"scope": OVER, "epoch": epoch, "n": len(points)}
        if len(points) >= _FEWEST:
            row |= {"spearman": _spearman(*points.T), "p": permutation_p(*points.T)}
        rows.append(row)
    for name, (_, hardness, accuracy) in curves.items():
        row = {"scope": WITHIN, "net": name, "n": len(hardness)}
        if len(hardness) > _FEWEST:
            row["spearman"] = _spearman(hardness, accuracy)
            row["changes"] = _spearman(np.diff(hardness), np.diff(accuracy))
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_ACCURACY_SCHEMA)


def _means(run: Dynamics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    curves = run.curves(values=("avh", "correct"))
    epochs, avh, accuracy = (curves[name].to_numpy() for name in ("epoch", "avh_mean", "correct_mean"))
    return epochs, run.classes * avh, accuracy


def _spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    value = spearman(x, y).value
    return None if np.isnan(value) else value  # one side is constant


def permutation_p(x: np.ndarray, y: np.ndarray) -> float | None:
    """Two-sided p-value of Spearman's correlation: the share of permutations that correlate at least as strongly.

    Examples:
        >>> round(permutation_p(np.array([1.0, 2, 3, 4]), np.array([9.0, 7, 5, 1])), 3)
        0.083
    """
    if _spearman(x, y) is None:
        return None
    if len(x) > _ALL_ORDERS:
        return float(stats.spearmanr(x, y).pvalue)  # pyrefly: ignore
    ranks, others = (stats.rankdata(values) - (len(x) + 1) / 2 for values in (x, y))
    sums = np.array(list(itertools.permutations(others))) @ ranks  # they order as the correlations do
    return float(np.mean(np.abs(sums) >= abs(others @ ranks) - 1e-9))
