"""Mean hardness against accuracy: over networks, and within each over its epochs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy import stats

from hardsight.correlation import spearman

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

OVER, WITHIN = "over nets", "within net"
_FEWEST = 3  # points of a correlation
_ALL_ORDERS = 7  # networks up to which every order is counted


def hardness_against_accuracy(runs: Mapping[str, Dynamics]) -> pa.Table:
    """Spearman's correlation between mean C·AVH and accuracy.

    Args:
        runs: Networks by name, recorded over the same data.

    Returns:
        ``scope`` "over nets" (at each epoch that all nets have, and with each net's own last epoch, where ``epoch`` is
        null) or "within net" (over the epochs of ``net``); ``n`` points; ``spearman``; ``p`` two-sided, exact over all
        orders up to 7 nets (with 4 nets it cannot be below .083), null within nets, whose epochs are no independent
        points; ``changes``: within nets, the same for the changes from epoch to epoch, which no common trend makes.
    """
    curves = {name: _means(run) for name, run in runs.items()}
    rows: list[dict[str, Any]] = []
    shared = sorted(set.intersection(*(set(epochs.tolist()) for epochs, _, _ in curves.values()))) if curves else []
    for epoch in [*shared, None]:
        at = [-1 if epoch is None else int(np.flatnonzero(epochs == epoch)[0]) for epochs, _, _ in curves.values()]
        points = np.array([(h[k], a[k]) for k, (_, h, a) in zip(at, curves.values(), strict=True)]).reshape(-1, 2)
        row: dict[str, Any] = {"scope": OVER, "epoch": epoch, "n": len(points)}
        if len(points) >= _FEWEST:
            row["spearman"] = _spearman(*points.T)
            row["p"] = permutation_p(*points.T)
        rows.append(row)
    for name, (_, hardness, accuracy) in curves.items():
        row = {"scope": WITHIN, "net": name, "n": len(hardness)}
        if len(hardness) > _FEWEST:
            row["spearman"] = _spearman(hardness, accuracy)
            row["changes"] = _spearman(np.diff(hardness), np.diff(accuracy))
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [("scope", pa.string()), ("net", pa.string()), ("epoch", pa.int64()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("spearman", "p", "changes")]
)


def _means(run: Dynamics) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    curves = run.curves(values=("avh", "correct"))
    return (
        curves["epoch"].to_numpy(),
        run.classes * curves["avh_mean"].to_numpy(),
        curves["correct_mean"].to_numpy(),
    )


def _spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    value = spearman(x, y).value
    return None if np.isnan(value) else value  # one side is constant


def permutation_p(x: np.ndarray, y: np.ndarray) -> float | None:
    """Two-sided p of Spearman's correlation: share of all orders that correlate at least as strongly.

    Examples:
        >>> round(permutation_p(np.array([1.0, 2, 3, 4]), np.array([9.0, 7, 5, 1])), 3)
        0.083
    """
    if _spearman(x, y) is None:
        return None
    if len(x) > _ALL_ORDERS:
        return float(stats.spearmanr(x, y).pvalue)  # pyrefly: ignore
    ranks, others = (stats.rankdata(values) - (len(x) + 1) / 2 for values in (x, y))
    sums = np.array(list(itertools.permutations(others))) @ ranks  # of one spread: they order as correlations do
    return float(np.mean(np.abs(sums) >= abs(others @ ranks) - 1e-9))
