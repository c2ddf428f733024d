"""The columns of a run that may agree with people, and what their names say.

A name is that of a registered score or of one of `DERIVED`, and behind it what was done with it (`TREATMENTS`):
``avh_epochs`` is AVH averaged over the epochs, ``margin_epochs_ensemble`` the mean of such over networks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow.compute as pc

from hardsight.alignment.derived import temperature_confidence, uncertainty, within_class
from hardsight.comparison import floats
from hardsight.dynamics import Dynamics
from hardsight.dynamics.summary import STANDARDIZED
from hardsight.ensemble import matrix
from hardsight.errors import InputError
from hardsight.records import has_records
from hardsight.runs import read_run
from hardsight.scores import SCORES
from hardsight.table import SampleTable, larger_is_harder

Kind = Literal["score", "epoch mean", "ensemble", "uncertainty", "derived"]

TREATMENTS: dict[str, Kind] = {
    "_pred": "score",
    "_within_class": "derived",
    "_epochs": "epoch mean",
    "_early": "epoch mean",
    "_late": "epoch mean",
    "_ensemble": "ensemble",
}

# Beside the registered scores.
DERIVED: dict[str, Kind] = {
    "temperature_confidence": "derived",
    "total": "uncertainty",
    "aleatoric": "uncertainty",
    "epistemic": "uncertainty",
}


class Facts(NamedTuple):
    """What a column is, and the sign that its correlation with human frequency should have."""

    kind: Kind
    direction: int


def facts(name: str) -> Facts | None:
    """What the name of a column says; None for a column that is no candidate.

    Examples:
        >>> facts("avh_epochs")
        Facts(kind='epoch mean', direction=-1)
        >>> facts("confidence"), facts("avh_sd")
        (Facts(kind='score', direction=1), None)
    """
    if name in SCORES or name in DERIVED:
        return Facts(DERIVED.get(name, "score"), -1 if larger_is_harder(name) else 1)
    for ending, kind in TREATMENTS.items():
        if name.endswith(ending) and (base := facts(name.removesuffix(ending))) is not None:
            return Facts(kind, base.direction)
    return None


def candidates(run: str | Path) -> SampleTable:
    """A run's table with every column beside it that can be made of what the run keeps.

    ``avh_within_class``; from a recorded run means over all epochs (``avh_epochs``), the first third of them
    (``avh_early``) and the second half (``avh_late``); ``temperature_confidence`` where probabilities were kept, and
    ``total``, ``aleatoric`` and ``epistemic`` uncertainty where there are several networks.

    Args:
        run: The run folder; its samples must have labels.
    """
    table = SampleTable.load(run)
    if "label" not in table:
        raise InputError(f"RUN: {run} has no labels, and people are asked about the label; score labeled samples.")
    labels = table["label"]
    columns = {"avh_within_class": within_class(table["avh"], labels)} if "avh" in table else {}
    if has_records(run):
        columns |= epoch_means(Dynamics(run), table["id"])
    if (members := _probabilities(run, table)) is not None:
        mean = np.maximum(members.mean(0), np.finfo(np.float32).tiny)
        columns["temperature_confidence"] = temperature_confidence(np.log(mean), labels)
        columns |= uncertainty(members) if len(members) > 1 else {}
    for name, values in columns.items():
        table = table if name in table else table.with_column(name, values)
    return table


def epoch_means(dynamics: Dynamics, ids: Any) -> dict[str, np.ndarray]:
    """Each score averaged over all epochs (``avh_epochs``), their first third (``avh_early``), their second half
    (``avh_late``), standardized within each epoch: ``avh_z`` of the summary of these epochs. NaN where it is missing.
    """
    epochs = dynamics.epochs.tolist()
    parts = {"epochs": epochs, "early": epochs[: -(-len(epochs) // 3)], "late": epochs[len(epochs) // 2 :]}
    summaries = {ending: dynamics.summary((part[0], part[-1])).aligned(ids) for ending, part in parts.items()}
    names = [name for name in STANDARDIZED if summaries["epochs"][f"{name}_z"].null_count < len(ids)]
    return {f"{name}_{ending}": floats(rows[f"{name}_z"]) for name in names for ending, rows in summaries.items()}


def _probabilities(run: str | Path, table: SampleTable) -> np.ndarray | None:
    """``(networks, N, C)`` in the order of the table; None where some sample of it has none."""
    vectors = read_run(run, kinds=("vectors",))[0].get("vectors")
    if vectors is None or "probabilities" not in vectors.column_names or table.to_arrow()["label"].null_count:
        return None
    ids, members = table.to_arrow()["id"], []
    for name in pc.unique(vectors["model"]).to_pylist():
        rows = vectors.filter(pc.equal(vectors["model"], name))
        place = pc.index_in(ids, value_set=rows["id"].combine_chunks())
        if place.null_count:
            return None
        members.append(matrix(rows, "probabilities", np.asarray(place)))
    return np.stack(members)
