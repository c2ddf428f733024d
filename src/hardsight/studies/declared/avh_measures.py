"""Measures of the AVH paper's claims: norm gaps, AVH against accuracy, dip and bounce, and the switch of phases."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from scipy import stats

from hardsight.correlation import spearman, standard_error
from hardsight.errors import InputError
from hardsight.phases.drivers import ANGLES, NORMS, UNCLEAR
from hardsight.phases.noise import DRAWS, mean_curves
from hardsight.phases.plateaus import epoch_numbers
from hardsight.stats import FEW, LEVEL, half_width

if TYPE_CHECKING:
    from hardsight.dynamics import Dynamics

OVER, WITHIN = "over nets", "within net"
WINDOW = 0.1  # share of the epochs in a stretch, which has at least 3
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
    """Difference of two means: raw, over the pooled standard deviation, and over the mean of the two means.

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
            (`hardsight.people.frequency_bins`), or levels of degradation.
        hardest: The hardest level, at either end of their order; the first (the lowest frequency) without. Levels with
            fewer than 5 samples are skipped.
        value: The recorded column to compare.

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


class Bounce(NamedTuple):
    """The lowest stretch of a mean curve before its last one, and how far the last lies above it.

    Attributes:
        epoch: Middle of the lowest stretch, with its 95% interval ``epoch_low`` to ``epoch_high``.
        dip: Mean over that stretch.
        first: Mean at the first epoch.
        end: Mean over the last stretch, of the same length.
        rise: ``end − dip`` with its 95% interval ``low`` to ``high``; negative where the curve falls to its end.
        p: Two-sided p-value of no rise above any stretch, corrected for the choice of the lowest.
        n: Samples.
        window: Epochs in a stretch.
    """

    epoch: int
    epoch_low: int
    epoch_high: int
    dip: float
    first: float
    end: float
    rise: float
    low: float
    high: float
    p: float
    n: int
    window: int


def dip_and_bounce(
    matrix: np.ndarray, epochs: np.ndarray | None = None, *, draws: int = DRAWS, seed: int = 0
) -> Bounce:
    """The dip of a mean curve and the rise after it (for what should grow, give the negative).

    The last tenth of the curve (at least 3 epochs) is compared with every earlier stretch of the same length. The
    lowest of many noisy stretches is biased downwards, so the interval comes from a simultaneous 95% band of all
    differences, drawn with the noise of samples and epochs (`mean_curves`). In the simulations of `plateau` it covered
    the truth in 91 to 100% of the runs, and in 74% in the worst setting with a correlation of 0.7: a curve that wanders
    rather than jumps may seem to bounce.

    Args:
        matrix: ``(N, E)``, NaN where a sample was not seen, as from ``Dynamics.matrix("avh")``.
        epochs: Their numbers, ``(E,)``; from 1 without.
        draws: Number of curves drawn.
        seed: Seed of the draws.

    Examples:
        >>> curve = np.r_[9.0, 5, 3, 2, 2, 2, 3, 4, 4, 4, 4, 4]
        >>> bounce = dip_and_bounce(curve + np.random.default_rng(0).normal(size=(200, 1)), draws=200)
        >>> bounce.epoch, round(bounce.rise, 3)
        (5, 2.0)
    """
    epochs = epoch_numbers(matrix, epochs)
    count, window = len(epochs), max(3, round(WINDOW * len(epochs)))
    if count < 2 * window:
        raise InputError(f"dip_and_bounce needs at least {2 * window} epochs, got {count}.")
    curves = mean_curves(matrix)
    offset = np.arange(count) - np.arange(count - window + 1)[:, None]
    average = ((offset >= 0) & (offset < window)) / window
    levels = average @ curves.mean[0]
    contrast = average[-1:] - average[:-window]  # stretches that share no epoch with the last
    rises, errors = contrast @ curves.mean[0], curves.errors(contrast)
    noise = curves.draws(np.zeros_like(curves.mean), draws, seed)[:, 0] @ contrast.T
    largest = np.abs(noise / errors).max(1)
    reach = float(np.quantile(largest, LEVEL, method="higher")) * errors
    low, lowest = float((rises - reach).max()), int(rises.argmax())
    possible = np.flatnonzero(rises + reach >= low)
    middle = epochs[window // 2 :]
    return Bounce(
        *(int(middle[at]) for at in (lowest, possible[0], possible[-1])),
        dip=float(levels[lowest]),
        first=float(curves.mean[0, 0]),
        end=float(levels[-1]),
        rise=float(rises[lowest]),
        low=low,
        high=float((rises + reach).max()),
        p=(1 + int((largest >= (np.maximum(rises, 0.0) / errors).max()).sum())) / (1 + draws),
        n=curves.n,
        window=window,
    )


class Switch(NamedTuple):
    """The best split of the epochs into a first phase of angles and a second one of norms.

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
