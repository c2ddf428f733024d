"""The columns that may agree with people: registered scores and columns derived from them, paired with answers.

A name is that of a registered score or of `DERIVED`, followed by its treatments (`TREATMENTS`): ``avh_epochs`` is AVH
averaged over the epochs, ``margin_epochs_ensemble`` the mean of these over networks. No column uses answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import softmax

from hardsight.comparison import mid_ranks
from hardsight.directions import larger_is_harder
from hardsight.dynamics import Dynamics
from hardsight.dynamics.summary import STANDARDIZED, later_half
from hardsight.ensemble import matrix
from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.labelerrors.confident import has_probabilities, probability_blocks
from hardsight.people.matching import Matched, match
from hardsight.people.read import as_human
from hardsight.probabilities import fit_temperature, fit_temperature_in_parts, uncertainty
from hardsight.records import has_records
from hardsight.runs import read_run
from hardsight.scores import SCORES
from hardsight.table import SampleTable
from hardsight.tablefiles import class_numbers, floats

FEWEST = 4  # samples of a correlation
FEWEST_OF_INTERVAL = 10  # with fewer, neither intervals nor tests are valid

Table: TypeAlias = SampleTable | Mapping[str, Any] | str | Path
Kind = Literal["score", "epoch mean", "ensemble", "uncertainty", "derived"]

TREATMENTS: dict[str, Kind] = {
    "_pred": "score",
    "_within_class": "derived",
    "_epochs": "epoch mean",
    "_early": "epoch mean",
    "_late": "epoch mean",
    "_ensemble": "ensemble",
}
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
    """The kind and direction that a column's name implies; None for a column that is not a candidate.

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
    """A run's table with every column that can be derived from what the run keeps.

    ``avh_within_class``; for a recorded run `epoch_means`; ``temperature_confidence`` if probabilities were kept, and
    ``total``, ``aleatoric`` and ``epistemic`` uncertainty if there are several networks.

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
    if table.on_disk:
        columns |= _stored_confidence(table)
    elif (members := _probabilities(run, table)) is not None:
        mean = np.maximum(members.mean(0), np.finfo(np.float32).tiny)
        columns["temperature_confidence"] = temperature_confidence(np.log(mean), labels)
        columns |= uncertainty(members)._asdict() if len(members) > 1 else {}
    for name, values in columns.items():
        table = table if name in table else table.with_column(name, values)
    return table


def epoch_means(dynamics: Dynamics, ids: Any) -> dict[str, np.ndarray]:
    """Each score averaged over all epochs (``avh_epochs``), their first third (``avh_early``), their second half
    (``avh_late``), standardized within each epoch: ``avh_z`` of the summary of these epochs. NaN where it is missing.
    """
    last = int(dynamics.epochs[-1])
    parts = {"epochs": (1, last), "early": (1, -(-last // 3)), "late": (later_half(1, last), last)}
    summaries = {ending: dynamics.summary(part).aligned(ids) for ending, part in parts.items()}
    names = [name for name in STANDARDIZED if summaries["epochs"][f"{name}_z"].null_count < len(ids)]
    return {f"{name}_{ending}": floats(rows[f"{name}_z"]) for name in names for ending, rows in summaries.items()}


def _probabilities(run: str | Path, table: SampleTable) -> np.ndarray | None:
    """``(networks, N, C)`` in the order of the table; None if any of its samples has none."""
    vectors = read_run(run, kinds=("vectors",))[0].get("vectors")
    if vectors is None or "probabilities" not in vectors.column_names or table.column("label").null_count:
        return None
    ids, members = table.column("id"), []
    for name in pc.unique(vectors["model"]).to_pylist():
        rows = vectors.filter(pc.equal(vectors["model"], name))
        place = pc.index_in(ids, value_set=rows["id"].combine_chunks())
        if place.null_count:
            return None
        members.append(matrix(rows, "probabilities", np.asarray(place)))
    return np.stack(members)


def _stored_confidence(table: SampleTable) -> dict[str, np.ndarray]:
    """``temperature_confidence`` of the single network of a large run, computed in batches."""
    if table.column("label").null_count or not has_probabilities(table):
        return {}
    labels = table["label"].astype(np.int64)

    def parts() -> Iterator[tuple[np.ndarray | slice, np.ndarray]]:
        return ((part, np.log(np.maximum(p, np.finfo(np.float32).tiny))) for part, p in probability_blocks(table))

    temperature = fit_temperature_in_parts(lambda: ((z, labels[part]) for part, z in parts()), len(table))
    values = np.empty(len(table))
    for part, logits in parts():
        values[part] = _scaled_confidence(logits, labels[part], temperature)
    return {"temperature_confidence": values}


def within_class(values: Any, labels: Any) -> np.ndarray:
    """Ranks within the class, scaled to (0, 1), which removes offsets between classes; NaN stays NaN.

    Examples:
        >>> within_class([1.0, 3.0, 70.0, 50.0], [0, 0, 1, 1]).tolist()
        [0.25, 0.75, 0.75, 0.25]
    """
    values, labels = np.asarray(values, dtype=np.float64), np.asarray(labels)
    ranks = np.full(len(values), np.nan)
    for label in np.unique(labels):
        ranks[labels == label] = mid_ranks(values[labels == label])
    return ranks


def temperature_confidence(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Confidence at the label after temperature scaling, with the temperature fitted to the labels of the data."""
    logits = np.asarray(logits, dtype=np.float64)
    # A copy of the labels: columns of a table are read-only.
    return _scaled_confidence(logits, labels, fit_temperature(logits, np.array(labels)))


def _scaled_confidence(logits: np.ndarray, labels: np.ndarray, temperature: float) -> np.ndarray:
    return softmax(logits.astype(np.float64) / temperature, axis=1)[np.arange(len(labels)), labels]


class Paired(NamedTuple):
    """A table of scores, and people's answers in the order of its rows."""

    table: SampleTable
    people: Matched

    @classmethod
    def of(cls, table: Table, human: Any) -> Paired:
        """Match answers with a table; answers that are already `Matched` are returned unchanged."""
        if isinstance(table, (str, Path)):
            table = SampleTable.load(table)
        elif not isinstance(table, SampleTable):
            if not isinstance(table, Mapping) or "id" not in table:
                raise InputError("table must be a SampleTable, a run folder, or a mapping of columns with an id.")
            table = SampleTable.from_columns(table)
        if not isinstance(human, Matched):
            human = as_human(human)
            if human.hsf is None and "label" not in table:
                raise InputError(f"table must have a column label: {human.source} counts answers by class.")
            labels = np.full(len(table), -1)
            if "label" in table:
                labels = class_numbers(pa.table({"label": table.column("label")}), "label")
            human = match(human, table.column("id"), labels, table.meta.class_names or None)
        check_varies("human", human.hsf[np.isfinite(human.hsf)])
        return cls(table, human)

    def answered(self) -> Paired:
        """Only the samples that people were asked about, which may be a small part."""
        asked = np.isfinite(self.people.hsf)
        return self if asked.all() else Paired(self.table[asked], self.people.at(np.flatnonzero(asked)))

    def with_norm_within_class(self) -> Paired:
        """The same with the column ``norm_within_class``, where there are norms."""
        if "norm" not in self.table or "norm_within_class" in self.table:
            return self
        return self._replace(table=self.table.with_norm_within_class())

    def names(self, directions: Mapping[str, int] | None = None) -> list[str]:
        """Columns whose direction is known; at least one."""
        names = [name for name in self.table.columns if facts(name) is not None or name in (directions or ())]
        if not names:
            raise InputError(f"table must hold a score, got {', '.join(map(printable, self.table.columns))}.")
        return names

    def turned(self, names: Sequence[str], directions: Mapping[str, int] | None = None) -> np.ndarray:
        """Scores ``(S, N)`` as float64, signed so that for a larger value more people should choose the label."""
        values = np.empty((len(names), len(self.table)))
        for name, row in zip(names, values, strict=True):
            row[:] = self.score(name, directions)
        return values

    def score(self, name: str, directions: Mapping[str, int] | None = None) -> np.ndarray:
        """One such score ``(N,)``."""
        if name not in self.table:
            listed = ", ".join(map(printable, self.table.columns))
            raise InputError(f"scores must be columns of the table ({listed}), got {printable(name)!r}.")
        values, fact = self.table.column(name), facts(name)
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise InputError(f"{printable(name)} must be numbers, got {values.type}.")
        direction = (directions or {}).get(name, fact and fact.direction)
        if direction not in (-1, 1):
            raise InputError(
                f"directions must say whether {printable(name)!r} grows with ease (+1) or hardness (−1), because "
                f"its name does not; got {direction}."
            )
        return direction * floats(values)

    def in_common(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Signed scores ``(S, N)`` and human frequency ``(N,)`` of the samples that have all of them."""
        asked = np.isfinite(self.people.hsf)
        hsf, values = selected(self.people.hsf, asked), np.empty((len(names), int(asked.sum())))
        for name, row in zip(names, values, strict=True):
            row[:] = selected(self.score(name), asked)
        known = np.logical_and.reduce(np.isfinite(values), axis=0)
        for name, column in zip((*names, "human"), (*values, hsf), strict=True):
            check_varies(name, selected(column, known))
        return values if known.all() else values[:, known], selected(hsf, known)


def selected(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The values where a mask is true, without a copy if it is true everywhere."""
    return values if mask.all() else values[mask]


def check_varies(name: str, values: np.ndarray) -> None:
    """Refuse values that nothing can correlate with: too few, or constant."""
    if len(values) < FEWEST or not np.ptp(values):
        what = f"differ between samples, got {abs(values[0]):g} for all {len(values):,}" if len(values) else "be there"
        what = f"have finite numbers for {FEWEST} samples or more, got {len(values)}" if len(values) < FEWEST else what
        raise InputError(f"{printable(name)} must {what}.")
