"""Scores of degraded images by level: means, how closely a score follows the level, and people for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from hardsight.correlation import fisher_interval, spearman, standard_error
from hardsight.directions import hardness_sign
from hardsight.errors import InputError
from hardsight.people.read import read_trials
from hardsight.printing import interval, percent, text_table
from hardsight.questions.answers import mean_of
from hardsight.questions.degradations import DEGRADATIONS
from hardsight.stats import FEW, share_interval, wilson

# Shown by default where available: accuracy, the AVH paper's values and the bare angle.
VALUES = ("correct", "avh", "angle", "confidence", "norm")
_MEANS = pa.schema(
    [("degradation", pa.string()), ("level", pa.float64()), ("value", pa.string()), ("n", pa.int64())]
    + [(name, pa.float64()) for name in ("mean", "low", "high")]
)
_FOLLOWS = pa.schema(
    [("degradation", pa.string()), ("value", pa.string()), ("pictures", pa.int64()), ("levels", pa.int64())]
    + [("expected", pa.int64())]
    + [(name, pa.float64()) for name in ("spearman", "low", "high", "moves", "moves_low", "moves_high")]
)
# Experiments of Geirhos et al. and the columns of their trial tables.
_EXPERIMENTS = {"contrast": "contrast", "uniform-noise": "noise", "noise": "noise"}


def _values_in(rows: pa.Table) -> list[str]:
    """Columns to show: accuracy where there are labels, and the usual scores (``avh_pred`` without labels)."""
    names = [name if name in rows.column_names else f"{name}_pred" for name in VALUES]
    return [name for name in names if name in rows.column_names]


def mean_by_level(rows: pa.Table, values: Sequence[str] | None = None) -> pa.Table:
    """Mean of accuracy and scores at every level, with 95% intervals over samples: Wilson's and Student's.

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
    means: list[dict[str, object]] = []
    for name, of_name in _by_degradation(rows):
        levels = of_name["level"].to_numpy()
        for value in _values_in(rows) if values is None else values:
            column = of_name[value].to_numpy()
            for level in pc.unique(of_name["level"]).to_pylist():
                mean = mean_of(column[levels == level])
                mean["mean"] = mean.pop("value")
                means.append({"degradation": name, "level": level, "value": value} | mean)
    return pa.Table.from_pylist(means, schema=_MEANS)


def follows_level(rows: pa.Table, values: Sequence[str] | None = None) -> pa.Table:
    """How closely a score follows the level of a degradation: over all images, and image by image.

    The levels of one image are not independent, so the interval treats images as the independent units: the
    contributions of all levels of an image to the correlation are summed before their spread is taken.

    Args:
        rows: What `evaluate_degraded` returned, two levels or more of each degradation.
        values: Columns; accuracy (``correct``), AVH, angle, confidence and norm if not given.

    Returns:
        Rows ``degradation``, ``value``, ``pictures`` (images with every level) and ``levels`` (how many);
        ``spearman`` of value and level over image × level with ``low``, ``high`` (95%);
        ``expected``: its sign where harder images get harder scores, 1 or −1;
        ``moves``: share of the images whose own values follow their levels in that direction (Spearman above 0;
        an image with no direction counts half), with ``moves_low``, ``moves_high`` (Wilson's).
    """
    follows: list[dict[str, object]] = []
    for name, of_name in _by_degradation(rows):
        levels = pc.unique(of_name["level"]).to_numpy()
        if len(levels) < 2:
            raise InputError(f"rows must hold two levels or more of {name}, got {len(levels)}.")
        images = pc.unique(of_name["id"])
        image = pc.index_in(of_name["id"], value_set=images).to_numpy()
        at = np.argmax(of_name["level"].to_numpy()[:, None] == levels, 1)
        harder = 1 if DEGRADATIONS[name].harder == "higher" else -1
        for value in _values_in(rows) if values is None else values:
            matrix = np.full((len(images), len(levels)), np.nan)
            matrix[image, at] = of_name[value].cast(pa.float64()).to_numpy()
            matrix = matrix[np.isfinite(matrix).all(1)]
            expected = harder * hardness_sign(value)
            row: dict[str, object] = {"degradation": name, "value": value, "pictures": len(matrix)}
            row |= {"levels": len(levels), "expected": expected}
            if len(matrix) >= FEW and np.ptp(matrix) > 0:
                rho = spearman(matrix.ravel(), np.tile(levels, len(matrix)))
                error = standard_error(rho.influence.reshape(matrix.shape).mean(1))
                low, high = fisher_interval(rho.value, error, len(matrix))
                row |= {"spearman": rho.value, "low": low, "high": high} | _moves(matrix, expected * levels)
            follows.append(row)
    return pa.Table.from_pylist(follows, schema=_FOLLOWS)


def _moves(matrix: np.ndarray, levels: np.ndarray) -> dict[str, float]:
    """Share of the rows that rise with the levels."""
    rank = stats.rankdata(levels)
    direction = np.sign((stats.rankdata(matrix, axis=1) * (rank - rank.mean())).sum(1))
    risen = (direction > 0).sum() + (direction == 0).sum() / 2
    low, high = share_interval(risen, len(matrix))
    return {"moves": risen / len(matrix), "moves_low": low, "moves_high": high}


def _by_degradation(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    for name in pc.unique(rows["degradation"]).to_pylist():
        yield name, rows.filter(pc.equal(rows["degradation"], name))


def level_summary(rows: pa.Table, people: Sequence[dict[str, Any]] = ()) -> tuple[dict[str, Any], list[str]]:
    """Means by level and how closely scores follow it, as values and as lines for a terminal, next to people."""
    classes = int((rows.schema.metadata or {}).get(b"classes", 1))
    means, follows, lines = mean_by_level(rows).to_pylist(), [], []
    for name, of_name in _by_degradation(rows):
        table: dict[float, dict[str, str]] = {}
        for row in (row for row in means if row["degradation"] == name):
            cells = table.setdefault(row["level"], {name: f"{row['level']:g}"})
            scale = classes if row["value"].startswith("avh") else 1
            style = ".1%" if row["value"] == "correct" else ".3f"
            mean, low, high = (scale * row[end] for end in ("mean", "low", "high"))
            cells[_title(row["value"])] = interval(mean, low, high, style)
        lines += ["", *text_table(list(table.values()))]
        of_levels = follows_level(of_name).to_pylist() if len(table) > 1 else []
        lines += [
            f"  {_title(row['value'])} and level: Spearman "
            f"{interval(row['spearman'], row['low'], row['high'], '+.3f')}; it gets harder "
            f"with the image for {percent(row['moves'], 0)} of {row['pictures']:,}"
            for row in of_levels
            if row["spearman"] is not None
        ]
        if answers := [f"{row['level']:g}: {percent(row['mean'], 0)}" for row in people if row["degradation"] == name]:
            lines.append(f"  people: {', '.join(answers)}")
        follows += of_levels
    return {"classes": classes, "means": means, "follows": follows, "people": people}, lines


def _title(value: str) -> str:
    name = value.removesuffix("_pred")
    return {"correct": "accuracy", "avh": "C·AVH"}.get(name, name)


def human_accuracy(file: str | Path) -> pa.Table:
    """How often people were right at each level of contrast or noise, from the trials of Geirhos et al. (2018).

    The images were gray, and those with noise had a contrast of 0.3: compare how curves fall, not where they begin.

    Args:
        file: Trial table (CSV, also .gz) with the columns object_response, category and condition: ``c30`` is a
            contrast of 0.3, ``0.10`` a noise of 0.1. A column experiment distinguishes several experiments.

    Returns:
        Rows ``degradation``, ``level``, ``n`` (trials), ``mean`` (share that is right), ``low``, ``high`` (Wilson's
        95% interval, as if every trial came from a different person).
    """
    trials = read_trials(file, ("object_response", "category", "condition"))
    condition = trials["condition"]
    percent = pc.match_substring_regex(condition, r"^c\d+$")
    if "experiment" in trials.column_names:
        degradation = pa.array([_EXPERIMENTS.get(name) for name in trials["experiment"].to_pylist()], pa.string())
    else:
        degradation = pc.if_else(percent, "contrast", "noise")
    number = pc.replace_substring_regex(condition, "^c", "")
    valid = pc.and_(pc.match_substring_regex(number, r"^\d+(\.\d+)?$"), pc.is_valid(degradation))
    right = pc.equal(trials["object_response"], trials["category"]).cast(pa.float64())
    rows = pa.table({"degradation": degradation, "level": number, "right": right, "percent": percent}).filter(valid)
    if not len(rows):
        raise InputError(f"human: {Path(file).name} holds no trials with contrast (c30) or noise (0.10).")
    level = rows["level"].cast(pa.float64()).to_numpy() / np.where(rows["percent"].to_numpy(), 100, 1)
    groups = rows.set_column(1, "level", pa.array(level)).group_by(["degradation", "level"])
    shares = groups.aggregate([("right", "count"), ("right", "sum")])
    shares = shares.sort_by([("degradation", "ascending"), ("level", "ascending")])
    n, correct = (shares[f"right_{what}"].to_numpy() for what in ("count", "sum"))
    low, high = wilson(correct, n)
    columns = {"degradation": shares["degradation"], "level": shares["level"], "n": n.astype(np.int64)}
    return pa.table(columns | {"mean": correct / n, "low": low, "high": high})
