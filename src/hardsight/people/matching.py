"""Human answers in the order of a run's samples."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.people.read import Human, as_human, is_whole, texts
from hardsight.runs.ids import pieces_of, places_among

FREQUENCY_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # the AVH paper's bins
_ROW = re.compile(r"(?:^|[:/])(\d{1,18})$")


class Matched(NamedTuple):
    """Human answers in the order of some samples.

    Attributes:
        hsf: Human selection frequency, the share of people asked who chose the label; NaN if nobody was asked.
        counts: Answers by class ``(N, C)``; rows of zeros where there are none. None without counts.
        answers: How many people were asked; None if only shares are known.
        entropy: Entropy of the answers, in nats; NaN if there are none.
        majority: The column of `counts` that most people chose; −1 if it is tied or nobody was asked. None if no label
            is among the columns.
        columns: The column of `counts` for each sample's label: the label, unless classes were merged.
        source: What messages call the answers.
        overlap: How far samples and answers overlap, in sentences.
    """

    hsf: np.ndarray
    counts: np.ndarray | None
    answers: np.ndarray | None
    entropy: np.ndarray | None
    majority: np.ndarray | None
    columns: np.ndarray | None
    source: str
    overlap: str

    def at(self, places: np.ndarray) -> Matched:
        """The answers for some of the samples."""
        parts: Any = {name: value[places] for name, value in self._asdict().items() if isinstance(value, np.ndarray)}
        return self._replace(**parts)


def match(human: Any, ids: Any, labels: Any, class_names: Sequence[str] | None = None) -> Matched:
    """Match human answers with samples, in the order of `ids`.

    Args:
        human: Anything that `as_human` takes.
        ids: Ids of the samples, as text.
        labels: Class numbers of the samples; negative: unknown.
        class_names: Names in the order of the labels. Answers by name are put into this order; other names follow.

    Examples:
        >>> people = Human(None, np.array([[9, 1], [5, 5]]), None, "example")
        >>> match(people, ["test:1", "test:0"], [0, 0]).hsf.tolist()
        [0.5, 0.9]
    """
    human = as_human(human)
    ids, labels = texts(ids), np.asarray(labels)
    if not len(ids) or labels.shape != (len(ids),) or labels.dtype.kind not in "iu":
        raise InputError(
            f"ids and labels must have one entry per sample, labels as class numbers (−1: unknown); got {len(ids):,} "
            f"ids and labels of shape {labels.shape} and type {labels.dtype}."
        )
    rows, how = _rows_by_number(human, ids) if human.ids is None else _rows_by_id(human.ids, ids, human.source)
    counts = answers = entropy = majority = columns = None
    hsf = np.full(len(ids), np.nan)
    if human.counts is not None:
        order, columns = _columns(human, human.counts.shape[1], labels, class_names)
        counts = _taken(human.counts, rows, order)
        asked = human.counts.sum(1) if human.asked is None else human.asked
        asked = _at(_taken(asked, rows, order), columns) if asked.ndim == 2 else _taken(asked, rows)
        np.divide(_at(counts, columns), asked, out=hsf, where=(asked > 0) & (columns >= 0))
        answers = asked.astype(np.int64) if is_whole(counts) else None
        entropy = _entropy(counts)
        if (columns >= 0).any():
            most = counts.max(1)
            single = (most > 0) & ((counts == most[:, None]).sum(1) == 1)
            majority = np.where(single, counts.argmax(1), -1)
    if human.hsf is not None:
        answered = rows >= 0
        hsf[:] = np.nan
        hsf[answered] = human.hsf[rows[answered]]
    if not np.isfinite(hsf).any():
        raise InputError(f"{human.source} must give samples a frequency, got none: nobody was asked about them.")
    overlap = _overlap(human, ids, rows, np.isfinite(hsf), how) + _majorities(majority, columns)
    return Matched(hsf, counts, answers, entropy, majority, columns, human.source, overlap)


def _rows_by_number(human: Human, ids: pa.Array) -> tuple[np.ndarray, str]:
    """The row of each sample: the number that its id ends in, or its position if there are only frequencies."""
    size = len(human)
    if human.counts is None and size == len(ids):
        return np.arange(size), ""
    if human.counts is None:
        raise InputError(
            f"{human.source} must hold one number per sample in the order of the samples ({len(ids):,}), got "
            f"{size:,}; or give a mapping id → number."
        )
    rows = np.concatenate([_numbers(piece.to_pylist()) for piece in pieces_of(ids)])
    if (wrong := (rows < 0) | (rows >= size)).any() or len(np.unique(rows)) < len(rows):
        first = printable(ids[int(wrong.argmax())].as_py())
        raise InputError(
            f"{human.source} holds {size:,} rows in the order of the data, so each id must end in a row of its own "
            f"like test:17; got {first!r}. The row of each file is not guessed: give a CSV with a column id."
        )
    return rows, ""


def _numbers(ids: Sequence[str]) -> np.ndarray:
    numbers = [_ROW.search(key) for key in ids]
    return np.array([-1 if number is None else int(number[1]) for number in numbers])


def _rows_by_id(keys: pa.Array, ids: pa.Array, source: str) -> tuple[np.ndarray, str]:
    """The row of each sample, −1 if it has no answers; and how they were matched, if that needs a note."""
    rows = places_among(ids, keys)
    if (rows >= 0).any():
        return rows, ""
    # Without a single id in common, file names may match: val/n01/1.JPEG and 1.JPEG.
    sizes = {len(re.split("[:/]", key)) for piece in pieces_of(keys) for key in piece.to_pylist()}
    for parts in sorted(sizes):
        end = re.compile(rf"[:/]([^:/]*(?:[:/][^:/]*){{{parts - 1}}})$")
        ends = [
            pa.array([part and part[1] for part in map(end.search, piece.to_pylist())], pa.string())
            for piece in pieces_of(ids)
        ]
        rows = np.where(rows >= 0, rows, places_among(pa.chunked_array(ends, pa.string()), keys))
    used, times = np.unique(rows[rows >= 0], return_counts=True)
    if not len(used) or times.max() > 1:
        why = f"has no answers for any of the {len(ids):,} samples: ids like {_first(keys)!r}"
        if len(used):
            twice = keys[int(used[times.argmax()])].as_py()
            why = f"names files only, and several samples are called {printable(twice)!r}"
        raise InputError(f"{source} {why} against {_first(ids)!r}; give the ids of the samples.")
    return rows, ", matched by the last part of their ids"


def _first(ids: pa.Array) -> str:
    return printable(ids[0].as_py()) if len(ids) else ""


def _columns(
    human: Human, width: int, labels: np.ndarray, class_names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The new order of columns (−1: a column of zeros), and the column of each label in it (−1: unknown)."""
    order = np.arange(width)
    column_of = order if human.columns is None else human.columns
    if human.by_name or (human.classes and class_names):
        names, answers = list(map(str, class_names or ())), list(human.classes or ())
        here = np.array([answers.index(name) if name in answers else -1 for name in names], np.int64)
        unknown = [name for name in answers if name not in names]
        lost = [k for k in np.unique(labels[labels >= 0]).tolist() if k >= len(names) or here[k] < 0]
        if lost and unknown and human.hsf is None:  # if all names are known, nobody chose that class
            labeled = [names[k] if k < len(names) else str(k) for k in lost[:3]]
            raise InputError(
                f"{human.source} has answers by name, such as {_some(unknown)}, but no class of the samples has that "
                f"name, and no answer is {_some(labeled)}; give class_names, spelled alike."
            )
        if human.columns is None:
            order = np.r_[here, [answers.index(name) for name in unknown]].astype(np.int64)
            column_of = np.arange(len(names))
        else:
            column_of = np.where(here >= 0, human.columns[here], -1)
    if human.hsf is None and labels.max() >= len(column_of):
        raise InputError(
            f"{human.source} has answers for {len(column_of):,} classes, but a label is {labels.max()}; give the "
            "answers for all classes, or read the file with classes=[…]."
        )
    known = (labels >= 0) & (labels < len(column_of))
    return order, np.where(known, np.r_[column_of, -1][np.where(known, labels, -1)], -1)


def _taken(values: np.ndarray, rows: np.ndarray, columns: np.ndarray | None = None) -> np.ndarray:
    """Rows, and columns, of an array; 0 where there is none (−1)."""
    taken = values[rows]
    taken[rows < 0] = 0
    if columns is not None and not np.array_equal(columns, np.arange(values.shape[1])):
        taken = taken[:, columns]
        taken[:, columns < 0] = 0
    return taken


def _at(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """One value per row; 0 where the column is unknown."""
    return np.where(columns >= 0, values[np.arange(len(values)), columns], 0)


def _entropy(counts: np.ndarray) -> np.ndarray:
    total = counts.sum(1, dtype=np.float64)
    rows, columns = np.nonzero(counts)  # most answers are in a few of many classes
    share = counts[rows, columns] / total[rows]
    entropy = np.bincount(rows, -share * np.log(share), minlength=len(counts))
    return np.where(total > 0, np.maximum(entropy, 0), np.nan)


def _overlap(human: Human, ids: pa.Array, rows: np.ndarray, known: np.ndarray, how: str) -> str:
    text = f"{known.sum():,} of {len(ids):,} samples have answers{how}"
    text += "" if known.all() else f"; none for {_some(ids.take(pa.array(np.flatnonzero(~known)[:4])).to_pylist())}"
    unused = np.ones(len(human), bool)
    unused[rows[rows >= 0]] = False
    if n := int(unused.sum()):
        places = np.flatnonzero(unused)[:4]
        names = places.astype(str) if human.ids is None else human.ids.take(pa.array(places)).to_pylist()
        text += f"; {n:,} of {len(human):,} rows of {human.source} match no sample ({_some(names)})"
    return text + "."


def _majorities(majority: np.ndarray | None, columns: np.ndarray | None) -> str:
    if majority is None or columns is None or not (judged := (majority >= 0) & (columns >= 0)).any():
        return ""
    differ = int((majority != columns)[judged].sum())
    end = "; are people and samples in the same order?" if differ > judged.sum() / 2 else "."
    return f" Most people chose another class than the label for {differ:,} of {judged.sum():,} samples{end}"


def _some(names: Sequence[str] | np.ndarray) -> str:
    return ", ".join(printable(name)[:80] for name in names[:3]) + (" …" if len(names) > 3 else "")


def frequency_bins(values: np.ndarray, edges: Sequence[float] = FREQUENCY_EDGES) -> np.ndarray:
    """The bin of each frequency as text, half open except the last; None if it is NaN or outside all bins.

    Args:
        values: Frequencies ``(N,)``.
        edges: Bin edges in increasing order.

    Examples:
        >>> frequency_bins(np.array([0.0, 0.2, 1.0, np.nan])).tolist()
        ['[0, 0.2)', '[0.2, 0.4)', '[0.8, 1]', None]
    """
    given = np.asarray(edges, dtype=np.float64)
    if given.ndim != 1 or len(given) < 2 or not (np.diff(given) > 0).all():
        raise InputError(f"edges must be two or more numbers in increasing order, like 0, 0.5, 1; got {list(edges)}.")
    names = [f"[{low:g}, {high:g})" for low, high in itertools.pairwise(given.tolist())]
    names[-1] = names[-1][:-1] + "]"
    return np.array([*names, None], dtype=object)[_bin_numbers(values, given)]


def bin_members(values: np.ndarray, edges: Sequence[float] = FREQUENCY_EDGES) -> dict[str, np.ndarray]:
    """For each bin of `frequency_bins`, in order, which values are in it."""
    names = frequency_bins(np.array(edges[:-1], dtype=np.float64), edges).tolist()
    numbers = _bin_numbers(values, np.asarray(edges, dtype=np.float64))
    return {name: numbers == number for number, name in enumerate(names)}


def _bin_numbers(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The number of the bin of each value, −1 for none."""
    last = len(edges) - 2
    place = (np.searchsorted(edges, values, side="right") - 1).astype(np.int32)
    place[values == edges[-1]] = last
    place[(place > last) | np.isnan(values)] = -1
    return place
