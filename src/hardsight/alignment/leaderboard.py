"""Which score agrees best with people?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hardsight.alignment.candidates import Facts, candidates, facts
from hardsight.alignment.coefficients import FEWEST, FEWEST_OF_INTERVAL, beside_people, check_choice, checked_frequency
from hardsight.alignment.derived import as_column
from hardsight.correlation import COEFFICIENTS, Correlation
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.stats import holm, normal_difference
from hardsight.table import SampleTable


def leaderboard(
    columns: SampleTable | Mapping[str, Any] | str | Path,
    human: Any,
    *,
    directions: Mapping[str, int] | None = None,
    coefficient: str = "spearman",
    scores: Sequence[str] | None = None,
) -> pa.Table:
    """Every score by how well it agrees with people, all on the same samples.

    An agreement is a correlation with human selection frequency times the sign that it should have, so that more is
    better. Intervals and differences come from the influence of each sample (`hardsight.correlation`): they are paired,
    and hold with ties and saturated scores. The best was found on these very samples, which flatters its agreement: to
    quote that, choose on some samples and measure on others.

    Args:
        columns: A run folder (all its `candidates`), a table, or a mapping name → ``(N,)`` numbers. A sample that some
            column has no finite number for counts for none of them; a column without any, or a constant one, is listed
            without a rank.
        human: What people said: anything that `hardsight.human.as_human` takes; for a mapping without ids the share of
            people who chose the label, ``(N,)``, NaN where nobody was asked.
        directions: For columns whose name does not say it: +1 where people should choose the label more often as the
            value grows (confidence), −1 where it grows with hardness.
        coefficient: What they are ranked by: ``"spearman"``, ``"pearson"`` or ``"kendall"``.
        scores: Which columns; all whose direction is known if None.

    Returns:
        One row per score, the best first: ``rank``, ``score``, ``kind`` (score, epoch mean, ensemble, uncertainty,
        derived), ``n``; ``spearman``, ``pearson``, ``kendall`` as agreements with ``…_low``, ``…_high``; ``behind``:
        how far the best is ahead of it in `coefficient`, with ``behind_low``, ``behind_high``, the two-sided ``p`` and
        ``p_holm``, corrected for all pairs of scores, because which is best was not known. Null where there is nothing;
        below 10 samples there are no intervals and no p.

    Examples:
        >>> columns = {"avh": [0.1, 0.2, 0.3, 0.4, 0.5], "norm": [5.0, 1.0, 4.0, 2.0, 3.0]}
        >>> leaderboard(columns, [1.0, 1.0, 0.9, 0.8, 0.3])["score"].to_pylist()
        ['avh', 'norm']
    """
    check_choice("coefficient", coefficient, tuple(COEFFICIENTS))
    if isinstance(columns, (str, Path)):
        columns = candidates(columns)
    elif isinstance(columns, Mapping) and "id" in columns:
        columns = SampleTable.from_columns(columns)
    known, values, frequency = _read(columns, human, directions or {}, scores)
    finite = np.isfinite(values)
    # A column that says nothing must not take the samples from all the others.
    spoken = finite.any(1)
    rows = finite[spoken].all(0) & np.isfinite(frequency)
    n = int(rows.sum())
    if n < FEWEST:
        raise InputError(f"columns and human must have {FEWEST} samples or more in common, got {n}.")
    frequency, values = checked_frequency(frequency[rows]), values[:, rows]
    boards = []
    for (name, fact), column in zip(known.items(), values, strict=True):
        row: dict[str, Any] = {"score": name, "kind": fact.kind, "n": n}
        agreed = None
        if np.isfinite(column).all() and np.ptp(column):
            for other, function in COEFFICIENTS.items():
                found = function(column * fact.direction, frequency)
                row |= {other: found.value, f"{other}_low": found.low, f"{other}_high": found.high}
                agreed = found if other == coefficient else agreed
        boards.append((row, agreed))
    ranked = _ranked(boards)
    if n < FEWEST_OF_INTERVAL:  # they do not hold there
        ranked = [
            {name: row.get(name) for name in ("rank", "score", "kind", "n", *COEFFICIENTS, "behind")} for row in ranked
        ]
    return pa.Table.from_pylist(ranked, schema=_SCHEMA)


_NUMBERS = [f"{name}{end}" for name in (*COEFFICIENTS, "behind") for end in ("", "_low", "_high")] + ["p", "p_holm"]
_SCHEMA = pa.schema(
    [("rank", pa.int64()), ("score", pa.string()), ("kind", pa.string()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in _NUMBERS]
)


def _read(
    columns: SampleTable | Mapping[str, Any], human: Any, directions: Mapping[str, int], scores: Sequence[str] | None
) -> tuple[dict[str, Facts], np.ndarray, np.ndarray]:
    """What each column is, the columns ``(S, N)``, and the frequency ``(N,)``."""
    names = columns.columns if isinstance(columns, SampleTable) else list(columns)
    if scores is not None and (lost := [name for name in scores if name not in names]):
        raise InputError(
            f"scores must be columns, and there is no {printable(lost[0])!r}; there are {', '.join(names)}."
        )
    if wrong := [name for name, sign in directions.items() if sign not in (-1, 1)]:
        raise InputError(f"directions must be +1 or −1, got {directions[wrong[0]]!r} for {printable(wrong[0])!r}.")
    known = {name: fact for name in scores or names if (fact := _facts(name, directions)) is not None}
    asked = scores or ([] if isinstance(columns, SampleTable) else names)
    if lost := [name for name in asked if name not in known]:
        raise InputError(
            f"directions must say which way {printable(lost[0])!r} goes, because its name does not: +1 if it grows "
            "with ease, −1 if it grows with hardness."
        )
    if not known:
        raise InputError(f"columns must hold a score, got {', '.join(map(printable, names)) or 'none'}.")
    if isinstance(columns, SampleTable):
        frequency = beside_people(columns, human)[1].hsf
        if columns.meta.models:  # each score is a mean over networks
            known = {
                name: fact._replace(kind="ensemble") if fact.kind == "score" else fact for name, fact in known.items()
            }
    else:
        frequency = as_column(human, "human")
    values = [as_column(columns[name], name) for name in known]
    if wrong := [name for name, x in zip(known, values, strict=True) if x.shape != frequency.shape]:
        raise InputError(
            f"{printable(wrong[0])} and human must be of one length, got {len(columns[wrong[0]]):,} and "
            f"{len(frequency):,}."
        )
    return known, np.stack(values), frequency


def _facts(name: str, directions: Mapping[str, int]) -> Facts | None:
    told = facts(name)
    if name not in directions:
        return told
    return Facts("derived" if told is None else told.kind, directions[name])


def _ranked(boards: list[tuple[dict[str, Any], Correlation | None]]) -> list[dict[str, Any]]:
    """The best first, each with how far it is behind; those without an agreement last."""
    ahead = sorted(((row, found) for row, found in boards if found is not None), key=lambda board: -board[1].value)
    without = [row for row, found in boards if found is None]
    if not ahead:
        return without
    values = np.array([found.value for _, found in ahead])
    shared = np.atleast_2d(np.cov(np.stack([found.influence for _, found in ahead]))) / len(ahead[0][1].influence)
    spread = np.diag(shared)
    first, second = np.triu_indices(len(ahead), 1)
    behind = values[first] - values[second]
    error = np.sqrt(np.maximum(spread[first] + spread[second] - 2 * shared[first, second], 0.0))
    tests = normal_difference(behind, error)
    # The best was not known beforehand, so every pair might have been looked at.
    corrected = holm(tests.p)
    for rank, (row, _) in enumerate(ahead, 1):
        row["rank"] = rank
    for k, (row, _) in enumerate(ahead[1:]):  # the first pairs are those of the best
        ends = {"behind_low": tests.low[k], "behind_high": tests.high[k], "p": tests.p[k], "p_holm": corrected[k]}
        row |= {"behind": behind[k]} | {name: end if np.isfinite(end) else None for name, end in ends.items()}
    return [row for row, _ in ahead] + without
