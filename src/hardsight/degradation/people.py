"""People on degraded pictures: the trials of Geirhos et al. (2018) as accuracy by level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hardsight.errors import InputError
from hardsight.stats import wilson
from hardsight.untrusted import check_regular

# What the experiments of the trial tables are called here.
_EXPERIMENTS = {"contrast": "contrast", "uniform-noise": "noise", "noise": "noise"}
_NEEDED = ("object_response", "category", "condition")


def human_accuracy(file: str | Path) -> pa.Table:
    """How often people were right at each level of contrast or noise.

    The pictures were gray, and those with noise had a contrast of .3: compare how curves fall, not where they begin.

    Args:
        file: Trial table (CSV, also .gz) with the columns object_response, category and condition: ``c30`` is a
            contrast of .3, ``0.10`` a noise of .1. A column experiment tells tables of several experiments apart.

    Returns:
        Rows ``degradation``, ``level``, ``n`` (trials), ``mean`` (share that is right), ``low``, ``high`` (Wilson's
        95 % interval, as if all trials were of different people).
    """
    check_regular(Path(file), "human")
    try:
        text = csv.ConvertOptions(column_types=dict.fromkeys((*_NEEDED, "experiment"), pa.string()))
        trials = csv.read_csv(str(file), convert_options=text)
    except (pa.ArrowException, OSError) as error:  # whose words may quote the file
        raise InputError(f"human: {Path(file).name} is not a CSV file of trials.") from error
    if missing := [name for name in _NEEDED if name not in trials.column_names]:
        raise InputError(
            f"human: {Path(file).name} must be a table of trials with the columns {', '.join(_NEEDED)}; "
            f"{missing[0]} is missing."
        )
    condition = trials["condition"]
    by_contrast = pc.match_substring_regex(condition, r"^c\d+$")
    if "experiment" in trials.column_names:
        way = pa.array([_EXPERIMENTS.get(name) for name in trials["experiment"].to_pylist()], pa.string())
    else:
        way = pc.if_else(by_contrast, "contrast", "noise")
    number = pc.replace_substring_regex(condition, "^c", "")
    plain = pc.and_(pc.match_substring_regex(number, r"^\d+(\.\d+)?$"), pc.is_valid(way))
    right = pc.equal(trials["object_response"], trials["category"])
    rows = pa.table({"degradation": way, "level": number, "right": right})
    rows = rows.append_column("percent", by_contrast).filter(plain)
    if not len(rows):
        raise InputError(f"human: {Path(file).name} holds no trials with contrast (c30) or noise (0.10).")
    level = rows["level"].cast(pa.float64()).to_numpy() / np.where(rows["percent"].to_numpy(), 100, 1)
    rows = rows.set_column(1, "level", pa.array(level)).set_column(2, "right", rows["right"].cast(pa.float64()))
    found = rows.group_by(["degradation", "level"]).aggregate([("right", "count"), ("right", "sum")])
    found = found.sort_by([("degradation", "ascending"), ("level", "ascending")])
    n, right = (found[f"right_{what}"].to_numpy() for what in ("count", "sum"))
    low, high = wilson(right, n)
    named = {"degradation": found["degradation"], "level": found["level"], "n": n.astype(np.int64)}
    return pa.table(named | {"mean": right / n, "low": low, "high": high})
