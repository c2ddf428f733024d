"""Does the network find hard what people find hard, in every epoch?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hardsight.correlation import pearson, spearman, standard_error, tie_share
from hardsight.phases.samples import frequencies
from hardsight.stats import normal_difference
from hardsight.table import hardness_sign

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

AGREEMENT_SCORES = ("avh", "angle", "confidence", "margin", "norm")
_FEWEST = 10  # samples: below, the intervals do not hold


def agreement(dynamics: Dynamics, human: Any, scores: Sequence[str] = AGREEMENT_SCORES) -> pa.Table:
    """Correlation of scores with human selection frequency, by epoch.

    Standard errors are those of the infinitesimal jackknife (`correlation`). Simulated with half of the frequencies
    tied at 1, the 95 % interval of Spearman's correlation covers the truth in 93 to 99 of 100 runs with 10 or 20
    samples and in 94 to 96 from 50 on; that of Pearson's in 89 to 97 with 10 or 20 (89 where the correlation is strong)
    and in 93 to 98 from 50 on (``benchmarks/coverage.py``).

    Args:
        dynamics: The recorded run.
        human: Share of people who chose the label: a mapping id → share, a table (id, share), or an array in the
            order of ``dynamics.ids``.
        scores: What is correlated with it; the first is what the others are compared with.

    Returns:
        Rows ``epoch``, ``score``, ``n``, ``ties`` (share of the pairs of samples that people found equal);
        ``spearman`` and ``pearson`` with ``…_low``, ``…_high``: 95 % intervals, each epoch's on its own; ``ahead``:
        how much further the first score's Spearman goes in its right direction (that of hardness) than this score's,
        with ``ahead_low``, ``ahead_high`` and the two-sided ``p``, paired over the samples. Null where a score is
        constant or fewer than 10 samples have both.
    """
    frequency = frequencies(dynamics, human)
    matrices = {name: dynamics.matrix(name) for name in scores}
    rows: list[dict[str, Any]] = []
    for column, epoch in enumerate(np.asarray(dynamics.epochs).tolist()):
        values = np.stack([matrix[:, column] for matrix in matrices.values()])
        known = np.isfinite(values).all(0) & np.isfinite(frequency)
        target, n = frequency[known], int(known.sum())
        first = None
        for name, score in zip(scores, values[:, known], strict=True):
            row: dict[str, Any] = {"epoch": epoch, "score": name, "n": n, "ties": tie_share(target)}
            if n >= _FEWEST and np.ptp(score) > 0 and np.ptp(target) > 0:
                ranks, linear = spearman(score, target), pearson(score, target)
                row |= {"spearman": ranks.value, "spearman_low": ranks.low, "spearman_high": ranks.high}
                row |= {"pearson": linear.value, "pearson_low": linear.low, "pearson_high": linear.high}
                own = _ease(name) * ranks.value, _ease(name) * ranks.influence
                if name == scores[0]:
                    first = own
                elif first is not None:
                    row |= _ahead(first[0] - own[0], first[1] - own[1])
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [("epoch", pa.int64()), ("score", pa.string()), ("n", pa.int64()), ("ties", pa.float64())]
    + [(f"{name}{end}", pa.float64()) for name in ("spearman", "pearson", "ahead") for end in ("", "_low", "_high")]
    + [("p", pa.float64())]
)


def _ease(name: str) -> int:
    """−1 for scores that grow with hardness: their correlation with human frequency should be negative."""
    return -hardness_sign(name)


def _ahead(value: float, influence: np.ndarray) -> dict[str, float | None]:
    test = normal_difference(value, standard_error(influence))
    ends = zip(("ahead_low", "ahead_high", "p"), test[1:], strict=True)
    return {"ahead": value} | {name: float(end) if np.isfinite(end) else None for name, end in ends}
