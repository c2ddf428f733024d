"""Which score agrees best with people?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.correlation import COEFFICIENTS, Influences
from hardsight.errors import InputError
from hardsight.people.candidates import FEWEST_OF_INTERVAL, Paired, Table, candidates, check_varies, facts, selected
from hardsight.registry import check_choice
from hardsight.stats import holm, normal_difference

_BEHIND = ("behind", "behind_low", "behind_high", "p", "p_holm")
SCHEMA = pa.schema(
    [("rank", pa.int64()), ("score", pa.string()), ("kind", pa.string()), ("n", pa.int64())]
    + [(f"{name}{end}", pa.float64()) for name in COEFFICIENTS for end in ("", "_low", "_high")]
    + [(name, pa.float64()) for name in _BEHIND]
)


def leaderboard(
    columns: Table,
    human: Any,
    *,
    directions: Mapping[str, int] | None = None,
    coefficient: str = "spearman",
    scores: Sequence[str] | None = None,
) -> pa.Table:
    """Rank scores by how well they agree with people, all on the same samples.

    An agreement is a correlation with human selection frequency times the sign that it should have, so larger is
    better. Intervals and differences come from the influence of each sample: they are paired, and hold with ties and
    saturated scores. The best was selected on these same samples, which flatters it.

    Args:
        columns: A run folder (all its `candidates`), a table, or a mapping name → ``(N,)`` numbers. A sample that
            lacks a finite number in any column is left out for all; a column without any finite number, or a constant
            one, is listed without a rank.
        human: As for `align`; for a mapping without ids, the share of people who chose the label, ``(N,)``.
        directions: For columns whose name does not say it: +1 where people should choose the label more often as the
            value grows (confidence), −1 where it grows with hardness.
        coefficient: The coefficient to rank by: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        scores: Which columns; all whose direction is known if None.

    Returns:
        One row per score, the best first: ``rank``, ``score``, ``kind`` (score, epoch mean, ensemble, uncertainty,
        derived), ``n``; ``spearman``, ``pearson``, ``kendall`` as agreements with ``…_low``, ``…_high``; ``behind``:
        how far the best is ahead of it in `coefficient`, with ``behind_low``, ``behind_high``, the two-sided ``p`` and
        ``p_holm``, corrected for all pairs of scores, because the best one was not known in advance. Null if undefined;
        below 10 samples there are no intervals and no p.

    Examples:
        >>> columns = {"avh": [0.1, 0.2, 0.3, 0.4, 0.5], "norm": [5.0, 1.0, 4.0, 2.0, 3.0]}
        >>> leaderboard(columns, [1.0, 1.0, 0.9, 0.8, 0.3])["score"].to_pylist()
        ['avh', 'norm']
    """
    check_choice(coefficient, COEFFICIENTS, "coefficient")
    if isinstance(columns, (str, Path)):
        columns = candidates(columns)
    elif isinstance(columns, Mapping) and "id" not in columns:
        if not columns:
            raise InputError("columns must hold a score, got none.")
        scores = scores or list(columns)
        columns = {"id": list(map(str, range(max(map(len, columns.values()))))), **columns}
    paired = Paired.of(columns, human).answered()
    names = list(scores or paired.names(directions))
    common = np.isfinite(paired.people.hsf)
    for name in names:
        finite = np.isfinite(paired.score(name, directions))
        if finite.any():  # a column without any number must not remove the samples of all others
            common &= finite
    hsf, n = selected(paired.people.hsf, common), int(common.sum())
    check_varies("human", hsf)
    rows: list[tuple[dict[str, Any], float | None]] = []
    with closing(Influences(n)) as influences:
        for name in names:
            column, fact = selected(paired.score(name, directions), common), facts(name)
            kind = "derived" if fact is None else fact.kind
            kind = "ensemble" if kind == "score" and paired.table.meta.models else kind  # each is a mean over networks
            row: dict[str, Any] = {"score": name, "kind": kind, "n": n}
            varies = np.isfinite(column).all() and np.ptp(column) > 0
            for key, function in COEFFICIENTS.items() if varies else ():
                result = function(column, hsf)
                row |= zip((key, f"{key}_low", f"{key}_high"), result[:3], strict=True)
                if key == coefficient:
                    influences.add(result.influence)
            rows.append((row, row.get(coefficient)))
        ranked = _ranked(rows, influences)
    if n < FEWEST_OF_INTERVAL:  # intervals are not valid there
        numbers = ("rank", "score", "kind", "n", *COEFFICIENTS, "behind")
        ranked = [{name: row.get(name) for name in numbers} for row in ranked]
    return pa.Table.from_pylist(ranked, schema=SCHEMA)


def _ranked(rows: list[tuple[dict[str, Any], float | None]], influences: Influences) -> list[dict[str, Any]]:
    """The best first, each with how far it is behind; those without an agreement last."""
    without = [row for row, value in rows if value is None]
    unordered = [(row, value) for row, value in rows if value is not None]
    if not unordered:
        return without
    order = sorted(range(len(unordered)), key=lambda k: -unordered[k][1])
    ahead, values = [unordered[k][0] for k in order], np.array([unordered[k][1] for k in order])
    shared = influences.covariance(order) / influences.n
    first, second = np.triu_indices(len(ahead), 1)
    variance = shared[first, first] + shared[second, second] - 2 * shared[first, second]
    tests = normal_difference(values[first] - values[second], np.sqrt(np.maximum(variance, 0.0)))
    # The best was not known in advance, so every pair counts as a test.
    numbers = np.stack([*tests, holm(tests.p)])
    for rank, row in enumerate(ahead, 1):
        row["rank"] = rank
        if rank > 1:  # the first pairs are those of the best
            row |= zip(_BEHIND, (x if np.isfinite(x) else None for x in numbers[:, rank - 2].tolist()), strict=True)
    return ahead + without
