"""A few labeled target samples tell how accurate every round is: the draw, the estimates, and the selected round.

Only samples on which rounds disagree can tell rounds apart, so they are drawn three times as often as the others. In
both groups the draw is systematic along the predicted classes: each class gets its share, and every sample of a group
is equally likely. So an accuracy is the mean of two shares, weighted by the known sizes of the groups, and the
difference of two rounds is that of the group in which they disagree (exact McNemar), times the size of the group.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv
from torch import nn

from hardsight.adaptation.rounds import read, read_rounds, read_selection, write
from hardsight.data import Samples, places_by_name
from hardsight.errors import ExistingPathError, InputError, MissingPathError, StateError
from hardsight.extras import printable
from hardsight.idtables import read_by_id
from hardsight.predictions import Predictions
from hardsight.printing import interval, text_table
from hardsight.registry import did_you_mean, whole_number
from hardsight.runs import disk_errors, write_json, write_whole
from hardsight.stats import LEVEL, detectable_difference, holm, mcnemar, weighted_share
from hardsight.untrusted import check_regular, read_json

CHECK = "check.csv"  # never removed: its labels are a person's work
DRAW, RESULT, SELECTED = FILES = ("check.parquet", "check.json", "selected.pt")
_RATE = 3  # how much more often a sample is drawn on which rounds disagree


@dataclass(frozen=True)
class Checked:
    """The accuracy of every round, estimated from labeled samples."""

    labels: int  #: How many samples are labeled.
    selected: int  #: The best round that is better than round 0, the source model, beyond chance; else 0.
    rounds: list[dict[str, Any]]  #: Per round accuracy and difference to round 0 with intervals, p (McNemar, Holm).

    def lines(self) -> list[str]:
        """The table and the conclusion, as lines for a terminal."""
        titles = {"round": "round", "accuracy": "accuracy", "difference": "points over round 0", "p": "p (Holm)"}
        cells = [{"round": row["round"], "accuracy": _interval(row, "accuracy", ".1%")} for row in self.rounds]
        for row, cell in zip(self.rounds[1:], cells[1:], strict=True):
            difference, low, high = (100 * row[f"difference{end}"] for end in ("", "_low", "_high"))
            cell |= {"difference": interval(difference, low, high, "+.1f"), "p": f"{row['p']:.3g}"}
        conclusion = f"round {self.selected} is selected: the best of the rounds that are better beyond chance."
        if not self.selected:
            conclusion = "no round is better than the source model beyond chance, so the source model is selected."
        worse = [str(row["round"]) for row in self.rounds[1:] if row["p"] < 1 - LEVEL and row["difference"] < 0]
        harm = [f"worse than the source model beyond chance: round {', '.join(worse)}."] if worse else []
        return ["", f"accuracy on the target by {self.labels:,} labels:", *text_table(cells, titles), *harm, conclusion]

    def __str__(self) -> str:
        return f"round {self.selected} selected, accuracy {_interval(self.rounds[self.selected], 'accuracy', '.1%')}"


def _interval(row: dict[str, Any], name: str, style: str) -> str:
    return interval(row[name], row[f"{name}_low"], row[f"{name}_high"], style)


def draw(predicted: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `count` rows to label, in random order, and the share of all samples that each represents.

    `predicted` is ``(N, R)``: the predicted class of each sample in each round.
    """
    random, apart = np.random.default_rng([seed, 0xC4EC]), _apart(predicted)
    groups = np.flatnonzero(~apart), np.flatnonzero(apart)
    same, differ = map(len, groups)
    wanted = round(count * _RATE * differ / (same + _RATE * differ))
    wanted = min(max(wanted, count - same, min(differ, 1)), differ, count - min(same, 1))
    rows, weights = [], []
    for group, n in zip(groups, (count - wanted, wanted), strict=True):
        if n:
            shuffled = random.permutation(group)
            ordered = shuffled[np.lexsort(predicted[shuffled, ::-1].T)]  # by the class in round 0, then in round 1, …
            rows.append(ordered[(random.integers(len(group)) + np.arange(n) * len(group)) // n])
            weights.append(np.full(n, len(group) / len(predicted) / n))
    order = random.permutation(count)
    return np.concatenate(rows)[order], np.concatenate(weights)[order]


def _apart(predicted: np.ndarray) -> np.ndarray:
    return (predicted != predicted[:, :1]).any(axis=1)


def estimate(predicted: np.ndarray, weights: np.ndarray, labels: np.ndarray) -> Checked:
    """The accuracy of every round from what `draw` drew: predicted classes ``(n, R)``, weights and labels ``(n,)``."""
    correct, apart = predicted == labels[:, None], _apart(predicted)
    groups = [group for group in (~apart, apart) if group.any()]
    sizes, counts = (np.array([values[group].sum() for group in groups]) for values in (weights, np.ones(len(labels))))
    rows: list[dict[str, Any]] = []
    for number, hits in enumerate(correct.T):
        value, low, high = weighted_share(np.array([hits[group].sum() for group in groups]), counts, sizes)
        rows.append({"round": number, "accuracy": value, "accuracy_low": low, "accuracy_high": high})
        more, less = int((hits & ~correct[:, 0]).sum()), int((correct[:, 0] & ~hits).sum())
        test = mcnemar(more, less, max(1, int(apart.sum())))
        for name, end in (("", test.value), ("_low", test.low), ("_high", test.high)):
            rows[-1][f"difference{name}"] = float(end * weights[apart].sum()) if number else None
        rows[-1]["p"] = float(test.p) if number else None
    for row, p in zip(rows[1:], holm(np.array([row["p"] for row in rows[1:]])), strict=True):
        row["p"] = float(p)
    better = [row for row in rows[1:] if row["difference"] > 0 and row["p"] < 1 - LEVEL]
    return Checked(len(labels), max(better, key=lambda row: row["difference"])["round"] if better else 0, rows)


def check_request(path: Path, count: int | None, labels: Any, samples: int, overwrite: bool) -> None:
    """Refuse a check that could not be made, before any work."""
    if count is not None:
        whole_number("check, the number of target samples to label,", count, 2, samples)
        same = not overwrite and (path / DRAW).exists() and len(read(path / DRAW)) == count
        if not same and labeled_file(path) is not None:
            raise ExistingPathError(f"check: {path / CHECK} has labels of another draw; rename it to draw new samples.")
    elif labels is not None and not (path / DRAW).exists():
        raise MissingPathError(f"labels: {path} has no samples to label yet; adapt with --check N first.")
    if isinstance(labels, (str, Path)):
        check_regular(Path(labels), "labels")


def write_check(path: Path, samples: Samples, last: Predictions, rounds: int, count: int, seed: int) -> str:
    """Write the samples to label, unless they exist already; returns which differences their labels can detect.

    Predictions of the `last` round are given; the selections of the run hold those of the others.
    """
    table = read(path / DRAW) if (path / DRAW).exists() and (path / CHECK).exists() else None
    if table is None or len(table) != count:
        selections = [read_selection(path, number) for number in range(1, rounds + 1)]
        if any(selection["id"].to_pylist() != last.ids for selection in selections):
            raise StateError("target: not the same samples could be read in every round; adapt again.")
        columns = [selection["predicted"].to_numpy() for selection in selections]
        predicted = np.stack([*columns, last.probabilities.argmax(1)], axis=1)
        rows, weights = draw(predicted, whole_number("check", count, 2, len(last.ids)), seed)
        files = [samples.path(int(row)) for row in last.rows[rows]]
        table = pa.table({"id": [last.ids[row] for row in rows], "weight": weights, "predicted": list(predicted[rows])})
        listed = {"id": table["id"], "file": [str(file or "") for file in files], "label": [None] * count}
        listed = pa.table(listed if any(files) else {"id": table["id"], "label": [None] * count})
        with disk_errors(path):
            options = csv.WriteOptions(quoting_style="needed")
            write_whole(path / CHECK, lambda file: csv.write_csv(listed, file, options))
        write(path / DRAW, table)  # last: it marks the draw as complete
    apart, weights = _apart(np.array(table["predicted"].to_pylist())), table["weight"].to_numpy()
    least, size = detectable_difference(int(apart.sum()), (1 - LEVEL) / rounds), 100 * weights[apart].sum()
    power = "no difference can be detected, because the rounds disagree on too few samples"
    if least <= 1:
        power = f"a round {least * size:.1f} points better or worse than the source model is found 8 times out of 10"
    return f"{count:,} samples to label are in {path / CHECK}: with so many labels {power}."


def labeled_file(path: Path) -> Path | None:
    """The samples to label of a run, if someone has begun to label them."""
    return path / CHECK if (path / CHECK).exists() and _texts(path / CHECK) else None


def _texts(source: Any) -> dict[str, str]:
    """The labels that are filled in, by id."""
    table = read_by_id(source, "labels", ("id", "label"))
    if "label" not in table.column_names:
        raise InputError(f"labels must have a column label, got {', '.join(map(printable, table.column_names))}.")
    texts = ["" if value is None else str(value).strip() for value in table["label"].to_pylist()]
    return {id_: text for id_, text in zip(table["id"].to_pylist(), texts, strict=True) if text}


def evaluate(path: Path, labels: Any = None) -> Checked:
    """The accuracy of every round of a run, from the labels of the samples that were drawn."""
    table, rounds = read(path / DRAW), read_rounds(path)
    names = json.loads((rounds.schema.metadata or {}).get(b"classes", "null"))
    names = names or [str(k) for k in range(len(rounds["predicted_by_class"][0]))]
    truth = read_labels(path / CHECK if labels is None else labels, table["id"].to_pylist(), names)
    return estimate(np.array(table["predicted"].to_pylist()), table["weight"].to_numpy(), truth)


def read_labels(source: Any, ids: list[str], names: list[str]) -> np.ndarray:
    """The class index of each of these samples: all must be labeled, and no others."""
    labels = _texts(source)
    if unknown := sorted(labels.keys() - set(ids)):
        raise InputError(f"labels: sample {printable(unknown[0])!r} is not among the {len(ids):,} that were drawn.")
    if missing := [printable(id_) for id_ in ids if id_ not in labels]:
        raise InputError(f"labels: {len(missing):,} of {len(ids):,} samples have no label yet, such as {missing[0]!r}.")
    index: dict[str, int] = {}
    for text in dict.fromkeys(labels.values()):
        if (place := places_by_name([text], names)) is None:
            raise InputError(f"labels: {printable(text)!r} is not a class; {did_you_mean(text, map(str, names))}")
        index[text] = int(place[0])
    return np.array([index[labels[id_]] for id_ in ids])


def read_check(run: str | Path) -> Checked | None:
    """The stored result of `evaluate` for a run; None if it has not been checked."""
    file = Path(run) / RESULT
    return read_json(file, Checked) if file.exists() else None


def save(path: Path, checked: Checked, network: nn.Module) -> None:
    """Store the result, and the weights of the selected round."""
    with disk_errors(path):
        write_whole(path / SELECTED, lambda file: torch.save({"model": network.state_dict()}, file))
        write_json(path / RESULT, asdict(checked))
