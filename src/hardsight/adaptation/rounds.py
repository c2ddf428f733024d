"""What a round of self-training says of itself: what was chosen, how good it was, and what became of the network.

A row per round; round 0 is the network before any adaptation, which chooses nothing. Columns:

- ``round``, ``portion`` (asked for), ``selected``, ``selected_share`` (of the target), ``trained_on`` (samples, with
  those of the source);
- ``balance_distance``: total variation between the class shares of the chosen and of the predictions they were chosen
  from, 0 (the chosen have the prediction's prior) to 1;
- ``confidence``, ``avc``, ``avh``, ``norm``: means of the chosen, at their pseudo-labels;
- ``tp_rate``: share of the chosen whose pseudo-label is right, and ``hard_tp_rate``: of the half of them with the
  higher AVH; both with ``_low`` and ``_high`` (Wilson, 95 %);
- ``target_accuracy`` (with ``_low``, ``_high``), ``target_mean_class``, ``target_by_class``, and ``test_…`` the same,
  after the round's training;
- a column per label-free validator, after the round's training; ``loss`` of that training, ``seconds``;
- ``predicted_by_class``: how many target samples the round's network predicts to each class; ``alarm``: what is wrong
  with that, or with what is chosen of it for the next round; or null.

What needs labels that are not there is null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.adaptation.selection import Selection
from hardsight.adaptation.validators import VALIDATORS, measure_of, picked
from hardsight.extras import printable
from hardsight.predictions import Predictions
from hardsight.printing import text_table
from hardsight.stats import wilson

# Predictions that have lost this share of their classes, measured by the entropy of their shares, are collapsing.
_LOST = 0.3

_SHARES = ("tp_rate", "hard_tp_rate", "target_accuracy", "test_accuracy")
_NUMBERS = ("portion", "selected_share", "balance_distance", "confidence", "avc", "avh", "norm", "loss", "seconds")


def schema() -> pa.Schema:
    """The columns of ``rounds.parquet``."""
    counts = [(name, pa.int64()) for name in ("round", "selected", "trained_on")]
    means = ("target_mean_class", "test_mean_class", *VALIDATORS)
    shares = [f"{name}{end}" for name in _SHARES for end in ("", "_low", "_high")]
    lists = [(f"{name}_by_class", pa.list_(pa.float64())) for name in ("target", "test")]
    lists += [("predicted_by_class", pa.list_(pa.int64())), ("alarm", pa.string())]
    return pa.schema([*counts, *((name, pa.float64()) for name in (*_NUMBERS, *shares, *means)), *lists])


def selection_table(selection: Selection, predictions: Predictions, truth: np.ndarray | None, soft: bool) -> pa.Table:
    """A row a target sample: what it was taken for, whether it was chosen, and how sure that was.

    Columns: ``id``; ``label``, the pseudo-label of what was chosen, null otherwise; ``predicted``, the plain argmax;
    ``confidence``, ``avc`` and ``avh`` at the label, or at the prediction where there is none; ``norm``; ``true``, null
    where it is unknown; and, for soft labels, ``target``, the row to train toward. The thresholds are in its metadata.

    Args:
        selection: What was chosen.
        predictions: What it was chosen from.
        truth: ``(N,)`` labels of the target, for reporting only; None: unknown.
        soft: Whether to keep the rows to train toward.
    """
    count, everyone = len(predictions.ids), np.arange(len(predictions.ids))
    predicted = np.asarray(predictions.probabilities.argmax(1))
    labels, is_chosen = predicted.copy(), np.zeros(count, bool)
    labels[selection.rows], is_chosen[selection.rows] = selection.labels, True
    columns: dict[str, Any] = {
        "id": pa.array(predictions.ids, pa.string()),
        "label": pa.array(labels, pa.int64(), mask=~is_chosen),
        "predicted": pa.array(predicted, pa.int64()),
        "confidence": np.asarray(predictions.probabilities[everyone, labels], np.float32),
        "avc": np.asarray(predictions.avc[everyone, labels], np.float32),
        "avh": np.asarray(-predictions.at("avh", labels), np.float32),
        "norm": np.asarray(predictions.norms, np.float32),
        "true": pa.nulls(count, pa.int64()) if truth is None else pa.array(truth, pa.int64()),
    }
    if soft:
        ends = np.concatenate([[0], np.cumsum(is_chosen) * selection.targets.shape[1]]).astype(np.int64)
        columns["target"] = pa.LargeListArray.from_arrays(ends, selection.targets.ravel())
    told = {name: json.dumps(list(getattr(selection, name))) for name in ("label_thresholds", "select_thresholds")}
    return pa.table(columns).replace_schema_metadata(told)


def chosen_row(table: pa.Table, classes: int) -> dict[str, Any]:
    """What was chosen, and how much of it is right.

    Args:
        table: What `selection_table` made.
        classes: How many there are.
    """
    chosen = table.filter(pc.is_valid(table["label"]))
    labels = chosen["label"].to_numpy()
    predicted = np.bincount(table["predicted"].to_numpy(), minlength=classes)
    row: dict[str, Any] = {
        "selected": len(chosen),
        "selected_share": len(chosen) / len(table),
        "balance_distance": total_variation(np.bincount(labels, minlength=classes), predicted),
        **{name: _mean(chosen[name].to_numpy()) for name in ("confidence", "avc", "avh", "norm")},
    }
    if chosen["true"].null_count or not len(chosen):
        return row
    right = chosen["true"].to_numpy() == labels
    hard = np.argsort(-chosen["avh"].to_numpy(), kind="stable")[: max(1, len(chosen) // 2)]
    return row | share("tp_rate", right) | share("hard_tp_rate", right[hard])


def outcome_row(name: str, probabilities: np.ndarray, truth: np.ndarray | None) -> dict[str, Any]:
    """Accuracy overall with its interval, by class, and the mean over the classes that have samples.

    Args:
        name: What the columns begin with: ``target`` or ``test``.
        probabilities: ``(N, C)``.
        truth: ``(N,)`` labels; None: unknown, and nothing is said.

    Examples:
        >>> row = outcome_row("test", np.eye(3)[[0, 1, 1]], np.array([0, 1, 0]))
        >>> row["test_by_class"], row["test_mean_class"]
        ([0.5, 1.0, None], 0.75)
    """
    if truth is None:
        return {}
    right = probabilities.argmax(1) == truth
    classes = probabilities.shape[1]
    each, hits = np.bincount(truth, minlength=classes), np.bincount(truth, right, minlength=classes)
    by_class = [float(hit / n) if n else None for hit, n in zip(hits, each, strict=True)]
    known = [value for value in by_class if value is not None]
    return share(f"{name}_accuracy", right) | {f"{name}_mean_class": _mean(known), f"{name}_by_class": by_class}


def validator_row(predictions: Predictions) -> dict[str, float]:
    """Every label-free validator of a network's predictions on the target."""
    told = predictions.probabilities, predictions.features
    return {name: float(validator.function(*told)) for name, validator in VALIDATORS.items()}


def share(name: str, right: np.ndarray) -> dict[str, float]:
    """A share with Wilson's interval, as three columns."""
    low, high = wilson(np.array(right.sum()), np.array(len(right)))
    return {name: float(right.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def total_variation(first: np.ndarray, second: np.ndarray) -> float | None:
    """Half the sum of differences between two distributions that are given as counts; None where one is empty.

    Examples:
        >>> total_variation(np.array([1, 1]), np.array([3, 1]))
        0.25
    """
    if not first.sum() or not second.sum():
        return None
    return float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)


def effective_classes(counts: Sequence[int]) -> float:
    """How many classes of equal size have the same entropy as these counts.

    Examples:
        >>> effective_classes([5, 5, 0]), effective_classes([7, 0, 0])
        (2.0, 1.0)
    """
    shares = np.array([count for count in counts if count]) / sum(counts)
    return float(np.exp(-(shares * np.log(shares)).sum()).round(12))


def alarm(
    predicted: Sequence[int],
    before: Sequence[int],
    chosen: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> str | None:
    """Whether predictions, or what is chosen of them, degenerate, in words.

    Args:
        predicted: ``(C,)`` how many target samples are predicted to each class.
        before: The same of the network before any adaptation.
        chosen: How many are chosen for each class; None: nothing is chosen any more.
        names: Of the classes.

    Examples:
        >>> alarm([40, 0, 0], [20, 10, 10])
        'nothing is predicted to 1, 2 (2 of 3 classes); predictions are as uneven as 1.0 equal classes, 2.8 before'
    """
    empty = [_name(k, names) for k in np.flatnonzero(np.asarray(predicted) == 0).tolist()]
    now, then = effective_classes(predicted), effective_classes(before)
    told = []
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        told.append(f"nothing is predicted to {', '.join(empty[:5])}{more} ({len(empty)} of {len(predicted)} classes)")
    if now < (1 - _LOST) * then:
        told.append(f"predictions are as uneven as {now:.1f} equal classes, {then:.1f} before")
    if chosen is not None and (kept := effective_classes(chosen)) < (1 - _LOST) * now:
        told.append(f"the chosen are as uneven as {kept:.1f} equal classes, {now:.1f} of the predictions")
    return "; ".join(told) or None


def collapse(predicted: Sequence[int], names: Sequence[str] | None = None) -> str | None:
    """The sentence that ends self-training where every sample is predicted to one class; None otherwise."""
    counts = np.asarray(predicted)
    if np.count_nonzero(counts) > 1:
        return None
    return (
        f"target: all {counts.sum():,} samples are predicted to one class ({_name(int(counts.argmax()), names)}), and "
        "self-training would only make it worse; check the source model and its preprocessing, lower the learning "
        "rate, or freeze batch norm."
    )


def best(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]] | None:
    """The round that is best by true labels, which in earnest nobody has, and the column that says so.

    Of equal ones it is the first; None where there are no labels.
    """
    measure = measure_of(rows)
    return None if measure is None else (measure, max(rows, key=lambda row: row[measure]))


def conclusions(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What came out, in sentences: the last round, the best by labels apart from it, and what validators pick."""
    found = best(rows)
    picks = picked(list(rows))
    if found is None:
        each = ", ".join(f"{one['validator']} {one['round']}" for one in picks)
        return (f"without labels of the target or a test set there is no accuracy; validators pick round: {each}.",)
    name, oracle = found
    of = name.removesuffix("_accuracy")

    def told(row: Mapping[str, Any]) -> str:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return f"{row[name]:.2%} [{low:.2%}, {high:.2%}], by class {row[f'{of}_mean_class']:.2%}"

    first, last = rows[0], rows[-1]
    gain = f"{100 * (last[name] - first[name]):+.2f} points by adapting"
    return (
        f"source model: {of} accuracy {told(first)}.",
        f"last round ({last['round']}): {of} accuracy {told(last)}; {gain}.",
        f"best by labels (oracle, for comparison only), round {oracle['round']}: {told(oracle)}.",
        "chosen without labels: "
        + ", ".join(f"{one['validator']} picks round {one['round']} ({rows[one['round']][name]:.2%})" for one in picks)
        + ".",
    )


_SELECTED = {
    "round": "round", "selected": "selected", "selected_share": "share", "balance_distance": "imbalance",
    "confidence": "confidence", "avc": "C·AVC", "avh": "C·AVH", "norm": "norm", "tp_rate": "right",
    "hard_tp_rate": "of the hard",
}  # fmt: skip
_OUTCOME = {
    "round": "round", "target_accuracy": "target", "target_mean_class": "target by class", "test_accuracy": "test",
    "test_mean_class": "test by class",
}  # fmt: skip
_PERCENTAGES = tuple(name for name in (*_SELECTED, *_OUTCOME) if name.endswith(("_rate", "_accuracy", "_class")))


def round_tables(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was selected in each round, and the accuracy after it, as lines to print; only what is known."""
    classes = len(rows[0]["predicted_by_class"])

    def cell(name: str, value: Any) -> str | int | None:
        if value is None or isinstance(value, int):
            return value
        if name in _PERCENTAGES or name == "selected_share":
            return f"{value:.1%}" if name == "selected_share" else f"{value:.2%}"
        return f"{value * classes if name in ('avc', 'avh') else value:.3f}"

    lines = []
    for titles in (_SELECTED, _OUTCOME):
        known = {
            name: title
            for name, title in titles.items()
            if name not in _PERCENTAGES or any(row[name] is not None for row in rows)
        }
        if len(known) > 1:
            lines += [*text_table([{name: cell(name, row[name]) for name in known} for row in rows], known), ""]
    return lines


def round_line(row: Mapping[str, Any], rounds: int) -> str:
    """The status of a round, and its alarm."""
    parts = [f"round {row['round']:>{len(str(rounds))}}/{rounds}"]
    if row["round"]:
        parts.append(f"chose {row['selected']:,} ({row['selected_share']:.1%})")
        parts += [f"right {row['tp_rate']:.2%}"] if "tp_rate" in row else []
    else:
        parts.append("source model")
    parts += [f"{of} {row[f'{of}_accuracy']:.2%}" for of in ("target", "test") if f"{of}_accuracy" in row]
    line = "  ".join([*parts, f"{row['seconds']:.1f} s"])
    return line if row["alarm"] is None else f"{line}\nalarm: {row['alarm']}"


def _name(k: int, names: Sequence[str] | None) -> str:
    return str(k) if names is None else printable(names[k])


def _mean(values: Any) -> float | None:
    return float(np.mean(values, dtype=np.float64)) if len(values) else None
