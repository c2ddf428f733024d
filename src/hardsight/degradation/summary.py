"""What degradation does to scores: means by level, and how closely each score follows the level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from hardsight.correlation import fisher_interval, spearman, standard_error
from hardsight.degradation.degradations import DEGRADATIONS
from hardsight.errors import InputError
from hardsight.printing import interval, text_table
from hardsight.stats import FEW, moments, wilson
from hardsight.table import hardness_sign

# What is told of unless asked otherwise, as far as it is there: the AVH paper's values and the bare angle.
_VALUES = ("avh", "angle", "confidence", "norm")


def values_in(rows: pa.Table) -> list[str]:
    """Columns to tell of: accuracy where there are labels, and the usual scores (``avh_pred`` without labels)."""
    names = [name if name in rows.column_names else f"{name}_pred" for name in _VALUES]
    return [name for name in ("correct", *names) if name in rows.column_names]


def mean_by_level(rows: pa.Table, values: Sequence[str] | None = None) -> pa.Table:
    """Mean of accuracy and scores at every level, with 95 % intervals over samples: Wilson's and Student's.

    Args:
        rows: What `evaluate_degraded` returned.
        values: Columns; accuracy (``correct``), AVH, angle, confidence and norm if not given.

    Returns:
        Rows ``degradation``, ``level``, ``value``, ``n``, ``mean``, ``low``, ``high``; no interval below 5 samples.

    Examples:
        >>> rows = pa.table({"degradation": ["noise"] * 2, "level": [0.0, 0.1], "id": ["a"] * 2, "norm": [4.0, 3.0]})
        >>> mean_by_level(rows)["mean"].to_pylist()
        [4.0, 3.0]
    """
    found: list[dict[str, object]] = []
    for name, own in _by_degradation(rows):
        levels = pc.unique(own["level"]).to_numpy()
        place = _places(own, levels)
        for value in values_in(rows) if values is None else values:
            column = own[value].cast(pa.float64()).to_numpy()
            at = moments(column, place, len(levels))
            low, high = wilson(at.mean * at.n, at.n) if value == "correct" else at.interval()
            for k, level in enumerate(levels.tolist()):
                row = {"degradation": name, "level": level, "value": value, "n": int(at.n[k]), "mean": at.mean[k]}
                found.append(row | {"low": low[k], "high": high[k]})
    return pa.Table.from_pylist(found, schema=_MEANS)


_MEANS = pa.schema(
    [("degradation", pa.string()), ("level", pa.float64()), ("value", pa.string()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("mean", "low", "high")]
)


def follows_level(rows: pa.Table, values: Sequence[str] | None = None) -> pa.Table:
    """How closely a score follows the level of a degradation: over all pictures, and picture by picture.

    The levels of one picture are not independent, so the interval is that of the pictures: what all levels of a
    picture add to the correlation is added up before its spread is taken.

    Args:
        rows: What `evaluate_degraded` returned, two levels or more of each degradation.
        values: Columns; accuracy (``correct``), AVH, angle, confidence and norm if not given.

    Returns:
        Rows ``degradation``, ``value``, ``pictures`` (those with every level) and ``levels`` (how many);
        ``spearman`` of value and level over picture × level with ``low``, ``high`` (95 %);
        ``expected``: its sign where harder pictures get harder scores, 1 or −1;
        ``moves``: share of the pictures whose own values follow their levels in that direction (Spearman above 0;
        a picture with no direction counts half), with ``moves_low``, ``moves_high`` (Wilson's).
    """
    found: list[dict[str, object]] = []
    for name, own in _by_degradation(rows):
        levels = pc.unique(own["level"]).to_numpy()
        if len(levels) < 2:
            raise InputError(f"rows must hold two levels or more of {name}, got {len(levels)}.")
        pictures = pc.unique(own["id"])
        at = pc.index_in(own["id"], value_set=pictures).to_numpy(), _places(own, levels)
        harder = 1 if DEGRADATIONS[name].harder == "higher" else -1
        for value in values_in(rows) if values is None else values:
            matrix = np.full((len(pictures), len(levels)), np.nan)
            matrix[at] = own[value].cast(pa.float64()).to_numpy()
            matrix = matrix[np.isfinite(matrix).all(1)]
            expected = harder * hardness_sign(value)
            row: dict[str, object] = {"degradation": name, "value": value, "pictures": len(matrix)}
            row |= {"levels": len(levels), "expected": expected}
            if len(matrix) >= FEW and np.ptp(matrix) > 0:
                row |= _correlation(matrix, levels) | _moves(matrix, expected * levels)
            found.append(row)
    return pa.Table.from_pylist(found, schema=_FOLLOWS)


def level_summary(rows: pa.Table, people: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], list[str]]:
    """Means by level and how closely scores follow it, as values and as lines for a terminal.

    Args:
        rows: What `evaluate_degraded` returned.
        people: Rows of `human_accuracy`, to show beside them.
    """
    classes = int((rows.schema.metadata or {}).get(b"classes", 1))
    means, follows = mean_by_level(rows).to_pylist(), []
    lines = [] if "correct" in rows.column_names else ["without labels: no accuracy, and scores of the predicted class"]
    for name, own in _by_degradation(rows):
        table: dict[float, dict[str, str]] = {}
        for row in (row for row in means if row["degradation"] == name):
            cells = table.setdefault(row["level"], {name: f"{row['level']:g}"})
            scale, style = (
                classes if row["value"].startswith("avh") else 1,
                ".1%" if row["value"] == "correct" else ".3f",
            )
            mean, low, high = (scale * row[end] for end in ("mean", "low", "high"))
            cells[_title(row["value"])] = interval(mean, low, high, style)
        lines += ["", *text_table(list(table.values()))]
        of_name = follows_level(own).to_pylist() if len(table) > 1 else []
        lines += [
            f"  {_title(row['value'])} and level: Spearman "
            f"{interval(row['spearman'], row['low'], row['high'], '+.3f')}; it gets harder "
            f"with the image for {row['moves']:.0%} of {row['pictures']:,}"
            for row in of_name
            if row["spearman"] is not None
        ]
        if answers := [f"{row['level']:g}: {row['mean']:.0%}" for row in people if row["degradation"] == name]:
            lines.append(f"  people: {', '.join(answers)}")
        follows += of_name
    return {"classes": classes, "means": means, "follows": follows, "people": people}, lines


def _title(value: str) -> str:
    name = value.removesuffix("_pred")
    return {"correct": "accuracy", "avh": "C·AVH"}.get(name, name)


def _correlation(matrix: np.ndarray, levels: np.ndarray) -> dict[str, float]:
    """Spearman's of all values and their levels, with the interval of rows that were drawn together."""
    found = spearman(matrix.ravel(), np.tile(levels, len(matrix)))
    error = standard_error(found.influence.reshape(matrix.shape).mean(1))
    low, high = fisher_interval(found.value, error, len(matrix))
    return {"spearman": found.value, "low": low, "high": high}


def _moves(matrix: np.ndarray, levels: np.ndarray) -> dict[str, float]:
    """Share of the rows that rise with the levels."""
    rank = stats.rankdata(levels)
    direction = np.sign((stats.rankdata(matrix, axis=1) * (rank - rank.mean())).sum(1).round(9))
    risen = (direction > 0).sum() + (direction == 0).sum() / 2
    low, high = wilson(np.array(risen), np.array(len(matrix)))
    return {"moves": risen / len(matrix), "moves_low": float(low), "moves_high": float(high)}


_FOLLOWS = pa.schema(
    [("degradation", pa.string()), ("value", pa.string()), ("pictures", pa.int64()), ("levels", pa.int64())]
    + [("expected", pa.int64())]
    + [(name, pa.float64()) for name in ("spearman", "low", "high", "moves", "moves_low", "moves_high")]
)


def _by_degradation(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    for name in pc.unique(rows["degradation"]).to_pylist():
        yield name, rows.filter(pc.equal(rows["degradation"], name))


def _places(rows: pa.Table, levels: np.ndarray) -> np.ndarray:
    """Which of the levels each row has."""
    return np.argmax(rows["level"].to_numpy()[:, None] == levels, 1)
