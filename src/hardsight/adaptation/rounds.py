"""The rounds of self-training: how each is measured, stored and printed.

``docs/reference/run-folder.md`` lists the files of a run and the columns of its tables. Round 0 is the network before
any adaptation, which selects nothing. Columns that need missing labels are null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.adaptation.selection import Selection
from hardsight.adaptation.validators import VALIDATORS, measure_of, picked
from hardsight.errors import MissingPathError, StateError
from hardsight.extras import printable
from hardsight.predictions import Predictions
from hardsight.printing import interval, number_text, percent, points, text_table
from hardsight.runs import disk_errors, write_whole
from hardsight.stats import share_interval

ROUNDS, TABLE, TRAINING, SELECTION = "rounds", "rounds.parquet", "training", "selection.parquet"
# Predictions that have lost this share of their effective number of classes are collapsing.
_LOST = 0.3
_SHARES = ("tp_rate", "hard_tp_rate", "target_accuracy", "test_accuracy")
_NUMBERS = ("portion", "selected_share", "balance_distance", "confidence", "avc", "avh", "norm", "loss", "seconds")
Row = Mapping[str, Any]


def schema() -> pa.Schema:
    """The columns of ``rounds.parquet``."""
    shares = [f"{name}{end}" for name in _SHARES for end in ("", "_low", "_high")]
    numbers = (*_NUMBERS, *shares, "target_mean_class", "test_mean_class", *VALIDATORS)
    columns = [(name, pa.int64()) for name in ("round", "selected", "trained_on")]
    columns += [(name, pa.float64()) for name in numbers]
    columns += [(f"{name}_by_class", pa.list_(pa.float64())) for name in ("target", "test")]
    return pa.schema([*columns, ("predicted_by_class", pa.list_(pa.int64())), ("alarm", pa.string())])


def round_folder(path: Path, number: int) -> Path:
    """The folder of a round."""
    return path / ROUNDS / f"{number:02d}"


def read_rounds(run: str | Path) -> pa.Table:
    """The finished rounds of a run of self-training, one row per round; round 0 is the source model."""
    return read(Path(run) / TABLE)


def read_selection(run: str | Path, number: int) -> pa.Table:
    """What was selected for a round, counted from 1: one row per target sample."""
    return read(round_folder(Path(run), number) / SELECTION)


def read(file: Path) -> pa.Table:
    """A table of a run."""
    if not file.is_file():
        raise MissingPathError(f"RUN: there is no {file}; run hardsight adapt first.")
    try:
        return pq.read_table(file)
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise StateError(f"RUN: {file} is damaged ({error}); restore it, or adapt again with --overwrite.") from None


def write(file: Path, table: pa.Table) -> None:
    """Write a table of a run, whole or not at all."""
    with disk_errors(file.parent):
        write_whole(file, partial(pq.write_table, table))


def selection_table(selection: Selection, predictions: Predictions, truth: np.ndarray | None) -> pa.Table:
    """One row per target sample: labels and scores at the pseudo-label, or at the prediction if it is not selected."""
    count, everyone = len(predictions.ids), np.arange(len(predictions.ids))
    predicted = np.asarray(predictions.probabilities.argmax(1))
    labels, selected = predicted.copy(), np.zeros(count, bool)
    labels[selection.rows], selected[selection.rows] = selection.labels, True
    columns: dict[str, Any] = {
        "id": pa.array(predictions.ids, pa.string()),
        "label": pa.array(labels, pa.int64(), mask=~selected),
        "predicted": pa.array(predicted, pa.int64()),
        "confidence": np.asarray(predictions.probabilities[everyone, labels], np.float32),
        "avc": np.asarray(predictions.avc[everyone, labels], np.float32),
        "avh": np.asarray(-predictions.at("avh", labels), np.float32),
        "norm": np.asarray(predictions.norms, np.float32),
        "true": pa.nulls(count, pa.int64()) if truth is None else pa.array(truth, pa.int64()),
    }
    if selection.method.soft:
        ends = np.concatenate([[0], np.cumsum(selected) * selection.targets.shape[1]]).astype(np.int64)
        columns["target"] = pa.LargeListArray.from_arrays(ends, selection.targets.ravel())
    names = ("label_thresholds", "select_thresholds")
    return pa.table(columns).replace_schema_metadata({k: json.dumps(getattr(selection, k).tolist()) for k in names})


def selection_row(table: pa.Table, classes: int) -> dict[str, Any]:
    """What a `selection_table` selects, and how much of it is correct."""
    selected = table.filter(pc.is_valid(table["label"]))
    labels = selected["label"].to_numpy()
    shares = [np.bincount(x, minlength=classes) / max(len(x), 1) for x in (labels, table["predicted"].to_numpy())]
    row: dict[str, Any] = {
        "selected": len(selected),
        "selected_share": len(selected) / len(table),
        "balance_distance": float(np.abs(shares[0] - shares[1]).sum() / 2) if len(selected) else None,
        **{name: _mean(selected[name].to_numpy()) for name in ("confidence", "avc", "avh", "norm")},
    }
    if selected["true"].null_count or not len(selected):
        return row
    correct = selected["true"].to_numpy() == labels
    hard = np.argsort(-selected["avh"].to_numpy(), kind="stable")[: max(1, len(selected) // 2)]
    return row | _share("tp_rate", correct) | _share("hard_tp_rate", correct[hard])


def accuracy_row(name: str, probabilities: np.ndarray, truth: np.ndarray | None) -> dict[str, Any]:
    """Accuracy with its interval, by class, and the mean over classes that have samples; nothing without labels."""
    if truth is None:
        return {}
    correct, classes = probabilities.argmax(1) == truth, probabilities.shape[1]
    counts, hits = np.bincount(truth, minlength=classes), np.bincount(truth, correct, minlength=classes)
    by_class = [float(hit / n) if n else None for hit, n in zip(hits, counts, strict=True)]
    mean = _mean([value for value in by_class if value is not None])
    return _share(f"{name}_accuracy", correct) | {f"{name}_mean_class": mean, f"{name}_by_class": by_class}


def _share(name: str, correct: np.ndarray) -> dict[str, float]:
    """A share with Wilson's interval, as three columns."""
    low, high = share_interval(correct.sum(), len(correct))
    return {name: float(correct.mean()), f"{name}_low": low, f"{name}_high": high}


def _mean(values: Any) -> float | None:
    return float(np.mean(values, dtype=np.float64)) if len(values) else None


def effective_classes(counts: Sequence[int]) -> float:
    """The number of equally large classes that would have the entropy of these counts."""
    shares = np.array([count for count in counts if count]) / sum(counts)
    return float(np.exp(-(shares * np.log(shares)).sum()).round(12))


def alarm(
    predicted: Sequence[int], first: Sequence[int], selected: Sequence[int] | None = None, names: Any = None
) -> str | None:
    """Whether the predictions per class degenerate against those of the `first` network, or the selection does."""
    empty = [_name(k, names) for k in np.flatnonzero(np.asarray(predicted) == 0).tolist()]
    now, before, parts = effective_classes(predicted), effective_classes(first), []
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        parts.append(f"nothing is predicted to {', '.join(empty[:5])}{more} ({len(empty)} of {len(predicted)} classes)")
    if now < (1 - _LOST) * before:
        parts.append(f"predictions are as uneven as {now:.1f} equal classes, {before:.1f} before")
    if selected is not None and (kept := effective_classes(selected)) < (1 - _LOST) * now:
        parts.append(f"the selection is as uneven as {kept:.1f} equal classes, {now:.1f} in the predictions")
    return "; ".join(parts) or None


def collapse(predicted: Sequence[int], names: Any = None) -> str | None:
    """The sentence that ends self-training if every sample is predicted to one class; else None."""
    counts = np.asarray(predicted)
    if np.count_nonzero(counts) > 1:
        return None
    return (
        f"target: all {counts.sum():,} samples are predicted to one class ({_name(int(counts.argmax()), names)}); "
        "check the source model and its preprocessing, lower the learning rate, or freeze batch norm."
    )


def _name(k: int, names: Sequence[str] | None) -> str:
    return str(k) if names is None else printable(names[k])


def best(rows: Sequence[Row]) -> tuple[str, Row] | None:
    """The best round by true labels (the first in a tie) and the column that says so; None without labels."""
    measure = measure_of(rows)
    return None if measure is None else (measure, max(rows, key=lambda row: row[measure]))


NO_LABELS = (
    "without labels of the target nothing can tell whether a round helped: self-training can lower accuracy by 10 to "
    "25 points, and no label-free validator notices. Label a few samples to find out: --check 200 draws them."
)


def conclusions(rows: Sequence[Row]) -> tuple[str, ...]:
    """The outcome in sentences: the last round, the best by labels apart from it, and what validators pick."""
    oracle, picks = best(rows), picked(rows)
    if oracle is None:
        each = ", ".join(f"{pick['validator']} {pick['round']}" for pick in picks)
        return (f"label-free validators pick round: {each}.", NO_LABELS)
    (name, top), last = oracle, rows[-1]
    domain = name.removesuffix("_accuracy")

    def described(row: Row) -> str:
        accuracy = interval(row[name], row[f"{name}_low"], row[f"{name}_high"], ".2%")
        return f"{accuracy}, by class {percent(row[f'{domain}_mean_class'], 2)}"

    gain = points(last[name] - rows[0][name], 2)
    each = ", ".join(
        f"{pick['validator']} picks round {pick['round']} ({percent(pick['accuracy'], 2)})" for pick in picks
    )
    return (
        f"source model: {domain} accuracy {described(rows[0])}.",
        f"last round ({last['round']}): {domain} accuracy {described(last)}; {gain} by adapting.",
        f"best by labels (oracle, for comparison only), round {top['round']}: {described(top)}.",
        f"selected without labels: {each}.",
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


def round_tables(rows: Sequence[Row]) -> list[str]:
    """What was selected in each round, and the accuracy after it where labels are known, as lines to print."""
    lines, classes, by_labels = [], len(rows[0]["predicted_by_class"]), ("_rate", "_accuracy", "_class")

    def cell(name: str, value: Any) -> Any:
        if not isinstance(value, float):
            return value
        style = ".1%" if name == "selected_share" else ".2%" if name.endswith(by_labels) else ".3f"
        return number_text(value * classes if name in ("avc", "avh") else value, style)

    unknown = [name for name in rows[0] if name.endswith(by_labels) and all(row[name] is None for row in rows)]
    for titles in (_SELECTED, _OUTCOME):
        shown = {name: title for name, title in titles.items() if name not in unknown}
        if len(shown) > 1:
            lines += [*text_table([{name: cell(name, row[name]) for name in shown} for row in rows], shown), ""]
    return lines


def round_line(row: Row, rounds: int) -> str:
    """The progress line of a round, and its alarm."""
    parts = [f"round {row['round']:>{len(str(rounds))}}/{rounds}"]
    parts.append(f"selected {row['selected']:,} ({percent(row['selected_share'])})" if row["round"] else "source model")
    parts += [f"right {percent(row['tp_rate'], 2)}"] if "tp_rate" in row else []
    accuracies = {name: row[f"{name}_accuracy"] for name in ("target", "test") if f"{name}_accuracy" in row}
    parts += [f"{name} {percent(accuracy, 2)}" for name, accuracy in accuracies.items()]
    line = "  ".join([*parts, f"{row['seconds']:.1f} s"])
    return line if row["alarm"] is None else f"{line}\nalarm: {row['alarm']}"
