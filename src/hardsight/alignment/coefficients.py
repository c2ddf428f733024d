"""Correlations of scores with human selection frequency, overall and by bins of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from hardsight.alignment.candidates import facts
from hardsight.alignment.ceiling import Ceiling, ceiling
from hardsight.comparison import class_numbers, floats
from hardsight.correlation import COEFFICIENTS, tie_share
from hardsight.errors import InputError
from hardsight.extras import need, printable
from hardsight.human import FREQUENCY_EDGES, Matched, as_human, frequency_bins, match
from hardsight.printing import Result
from hardsight.table import SampleTable

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 4  # samples of a correlation
FEWEST_OF_INTERVAL = 10  # below, intervals do not hold, nor do tests

ALL = "all"  # the bin of all samples


@dataclass(frozen=True)
class Alignment(Result):
    """How scores agree with people.

    Attributes:
        rows: One row per score, coefficient and bin (``"all"`` first): ``score``, ``coefficient``, ``bin``, ``n``,
            ``value`` with its 95 % interval ``low`` to ``high``, ``ties`` and ``score_ties`` (share of the pairs of
            samples that people, or the score, find equal), ``direction`` (the sign that the correlation should have:
            −1 for a score that grows with hardness), ``agreement`` = direction · value. Null where a bin has too few
            samples (4; 10 for an interval) or something is constant in it.
        words: What there is to say about the samples, one sentence each.
        ceilings: What a perfect predictor could reach, by coefficient; empty where answers were not counted.
    """

    rows: pa.Table
    words: tuple[str, ...]
    ceilings: list[Ceiling]

    def __repr__(self) -> str:
        whole = [row for row in self.rows.to_pylist() if row["bin"] == ALL]
        first = [row for row in whole if row["coefficient"] == whole[0]["coefficient"]]
        ranked = sorted((row for row in first if row["agreement"] is not None), key=lambda row: -row["agreement"])
        best = [f"{row['coefficient']} of {row['score']} {row['value']:.3f}" for row in ranked[:3]]
        samples = max((row["n"] for row in first), default=0)
        return self._line(None, f"{len(first)} scores of {samples:,} samples", *best)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas data frame."""
        need("pandas")
        return self.rows.to_pandas()


def align(
    table: SampleTable | Mapping[str, Any] | str | Path,
    human: Any,
    *,
    scores: Sequence[str] | None = None,
    edges: Sequence[float] = FREQUENCY_EDGES,
    norm: Literal["global", "class"] = "global",
    coefficients: Sequence[str] = tuple(COEFFICIENTS),
) -> Alignment:
    """Correlate scores with human selection frequency: the share of people who chose the label.

    Args:
        table: A table, a run folder, or a mapping of columns with ``id`` and, where people's answers are counts by
            class, ``label``.
        human: What people said: anything that `hardsight.human.as_human` takes.
        scores: Columns; all whose direction is known from their name if None.
        edges: Of the bins of human frequency, half open but for the last.
        norm: ``"class"`` scales norms from 0 to 1 within each class, as the AVH paper does, in a column
            ``norm_within_class`` in place of ``norm``; ``"global"`` takes them as they are (scaling all of them alike
            changes no coefficient).
        coefficients: Of ``spearman``, ``pearson``, ``kendall`` (τ-b).

    Examples:
        >>> columns = {"id": ["a", "b", "c", "d"], "avh": [0.1, 0.2, 0.3, 0.4], "confidence": [0.9, 0.5, 0.6, 0.1]}
        >>> found = align(columns, {"a": 1.0, "b": 0.9, "c": 0.7, "d": 0.2}, coefficients=["spearman"])
        >>> found.to_pandas().query("bin == 'all'")[["score", "value", "agreement"]].round(2).values.tolist()
        [['avh', -1.0, 1.0], ['confidence', 0.8, 0.8]]
    """
    check_choice("norm", norm, ("global", "class"))
    for name in coefficients:
        check_choice("coefficients", name, tuple(COEFFICIENTS))
    table, matched = beside_people(table, human)
    if norm == "class" and "norm" in table:
        table = table if "norm_within_class" in table else table.with_norm_within_class()
        scores = [name for name in known_scores(table) if name != "norm"] if scores is None else scores
        scores = ["norm_within_class" if name == "norm" else name for name in scores]
    names = known_scores(table) if scores is None else list(scores)
    frequency = checked_frequency(matched.hsf)
    bins = frequency_bins(frequency, edges)
    words, rows = [matched.words], []
    for name in names:
        values, sign = column(table, name), direction(name)
        known = np.isfinite(values) & np.isfinite(frequency)
        if lost := int((np.isfinite(frequency) & ~known).sum()):
            words.append(f"{printable(name)} has no finite number for {lost:,} of the samples, which it goes without.")
        if known.sum() >= FEWEST and not np.ptp(values[known]):
            words.append(f"{printable(name)} is {values[known][0]:g} for all samples, so nothing correlates with it.")
        for chosen in (ALL, *_names(edges)):
            inside = known if chosen == ALL else known & (bins == chosen)
            rows += _rows(name, sign, chosen, values[inside], frequency[inside], coefficients)
    ceilings = _ceilings(matched, coefficients, words)
    return Alignment(pa.Table.from_pylist(rows, schema=_SCHEMA), tuple(words), ceilings)


_SCHEMA = pa.schema(
    [("score", pa.string()), ("coefficient", pa.string()), ("bin", pa.string()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("value", "low", "high", "ties", "score_ties")]
    + [("direction", pa.int64()), ("agreement", pa.float64())]
)


def beside_people(table: SampleTable | Mapping[str, Any] | str | Path, human: Any) -> tuple[SampleTable, Matched]:
    """A table, and people's answers in the order of its rows."""
    if isinstance(table, (str, Path)):
        table = SampleTable.load(table)
    elif not isinstance(table, SampleTable):
        if not isinstance(table, Mapping) or "id" not in table:
            raise InputError("table must be a SampleTable, a run folder, or a mapping of columns with an id.")
        table = SampleTable.from_columns(table)
    people = as_human(human)
    if people.hsf is None and "label" not in table:
        raise InputError(f"table must have a column label: {people.source} counts answers by class.")
    labels = class_numbers(table.to_arrow(), "label")
    return table, match(people, table["id"], labels, table.meta.class_names or None)


def checked_frequency(hsf: np.ndarray) -> np.ndarray:
    """Human frequencies that something can correlate with; NaN are missing."""
    known = hsf[np.isfinite(hsf)]
    if len(known) < FEWEST:
        raise InputError(f"human must have answers for {FEWEST} samples or more, got {len(known)}.")
    if known.min() < 0 or known.max() > 1:
        raise InputError(
            f"human must lie between 0 and 1, got {known.min():g} to {known.max():g}; divide the answers for the label "
            "by all answers."
        )
    if not np.ptp(known):
        raise InputError(f"human must differ between samples, got {known[0]:g} for all {len(known):,}.")
    return hsf


def known_scores(table: SampleTable) -> list[str]:
    """Columns whose names say which way they go; at least one."""
    names = [name for name in table.columns if facts(name) is not None]
    if not names:
        raise InputError(f"table must hold a score, got the columns {', '.join(map(printable, table.columns))}.")
    return names


def column(table: SampleTable, name: str) -> np.ndarray:
    """A column as float64, NaN where there is nothing."""
    if name not in table:
        raise InputError(f"scores must be columns of the table ({', '.join(table.columns)}), got {printable(name)!r}.")
    values = table.to_arrow()[name]
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise InputError(f"{printable(name)} must be numbers, got {values.type}.")
    return floats(values)


def direction(name: str) -> int:
    """The sign that a score's correlation with human frequency should have."""
    told = facts(name)
    if told is None:
        raise InputError(
            f"scores must be known by name, and nothing says whether {printable(name)!r} grows with hardness; "
            "hardsight.alignment.leaderboard takes directions."
        )
    return told.direction


def together(
    table: SampleTable | Mapping[str, Any] | str | Path, names: Sequence[str], human: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Scores, turned so that more of them should mean more people ``(S, N)``, and human frequency ``(N,)``."""
    table, matched = beside_people(table, human)
    values = np.stack([direction(name) * column(table, name) for name in names])
    known = np.isfinite(values).all(0) & np.isfinite(matched.hsf)
    if known.sum() < FEWEST:
        raise InputError(
            f"{' and '.join(map(printable, names[:2]))} must have finite numbers for {FEWEST} samples or more that "
            f"people were asked about, got {known.sum()}."
        )
    for name, own in zip(names, values[:, known], strict=True):
        if not np.ptp(own):
            raise InputError(
                f"{printable(name)} must differ between samples, got {abs(own[0]):g} for all {len(own):,}."
            )
    return values[:, known], checked_frequency(matched.hsf[known])


def check_choice(argument: str, given: Any, choices: Sequence[str]) -> None:
    """An argument must be one of some words."""
    if given not in choices:
        raise InputError(f"{argument} must be {', '.join(choices[:-1])} or {choices[-1]}, got {given!r}.")


def _rows(
    name: str, sign: int, chosen: str, values: np.ndarray, frequency: np.ndarray, coefficients: Sequence[str]
) -> list[dict[str, Any]]:
    row = {"score": name, "bin": chosen, "n": len(values), "direction": sign}
    row |= {"ties": tie_share(frequency), "score_ties": tie_share(values)} if len(values) > 1 else {}
    if len(values) < FEWEST or not np.ptp(values) or not np.ptp(frequency):
        return [row | {"coefficient": coefficient} for coefficient in coefficients]
    rows = []
    for coefficient in coefficients:
        found = COEFFICIENTS[coefficient](values, frequency)
        numbers = {"coefficient": coefficient, "value": found.value, "agreement": sign * found.value}
        if len(values) >= FEWEST_OF_INTERVAL:
            numbers |= {"low": found.low, "high": found.high}
        rows.append(row | numbers)
    return rows


def _names(edges: Sequence[float]) -> list[str]:
    """Names of the bins; each holds its own lower end."""
    return frequency_bins(np.asarray(edges, dtype=np.float64)[:-1], edges).tolist()


def _ceilings(matched: Matched, coefficients: Sequence[str], words: list[str]) -> list[Ceiling]:
    if matched.counts is None or matched.answers is None:
        return []
    try:
        return ceiling(matched.counts, matched.columns, coefficients, asked=matched.answers)
    except InputError as error:  # too few answers to know it, which takes nothing from the rows
        words.append(f"There is no ceiling: {error}")
        return []
