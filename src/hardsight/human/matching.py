"""People's answers in the order of a run's samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.human.answers import Human, as_human, whole

_ROW = re.compile(r"(?:^|[:/])(\d{1,18})$")


class Matched(NamedTuple):
    """People's answers in the order of some samples.

    Attributes:
        hsf: Share of those asked who chose the label, float64; NaN where nobody was asked.
        counts: Answers by class ``(N, C)``; rows of zeros where there are none. None without counts.
        answers: How many people were asked; None where only shares are known.
        entropy: Of the answers, in nats; NaN where there are none.
        majority: The column of `counts` that most chose; −1 where it is tied or nobody was asked. None where no label
            is among the columns.
        words: How far samples and answers overlap, in sentences.
        columns: The column of `counts` that is each sample's label: the label, unless classes were merged.
    """

    hsf: np.ndarray
    counts: np.ndarray | None
    answers: np.ndarray | None
    entropy: np.ndarray | None
    majority: np.ndarray | None
    words: str
    columns: np.ndarray | None = None


def match(human: Any, ids: Any, labels: Any, class_names: Sequence[str] | None = None) -> Matched:
    """People's answers in the order of `ids`.

    Args:
        human: Anything that `as_human` takes.
        ids: Of the samples, as text.
        labels: Class numbers of the samples; negative: unknown.
        class_names: In the order of the labels. Answers by name are put into this order, other names come behind.

    Examples:
        >>> people = Human(None, np.array([[9, 1], [5, 5]]), None, "example")
        >>> match(people, ["test:1", "test:0"], [0, 0]).hsf.tolist()
        [0.5, 0.9]
    """
    human = as_human(human)
    ids, labels = np.array([str(key) for key in ids], dtype=object), np.asarray(labels)
    if not len(ids) or ids.shape != labels.shape or labels.dtype.kind not in "iu":
        raise InputError(
            f"ids and labels must be one each for some samples, labels as class numbers (−1: unknown); got "
            f"{len(ids):,} ids and labels of shape {labels.shape} and type {labels.dtype}."
        )
    rows, how = _rows(human, ids)
    counts = answers = entropy = majority = columns = None
    hsf = np.full(len(ids), np.nan)
    if human.counts is not None:
        counts = _taken(human.counts, rows)
        entropy = _entropy(counts)
        asked = counts.sum(1) if human.asked is None else _taken(human.asked, rows)
        order, columns = _columns(human, counts.shape[1], labels, class_names)
        counts = _ordered(counts, order)
        if asked.ndim == 2:
            asked = _at(_ordered(asked, order), columns)
        np.divide(_at(counts, columns), asked, out=hsf, where=(asked > 0) & (columns >= 0))
        answers = asked.astype(np.int64) if whole(counts) else None
        majority = _majority(counts) if (columns >= 0).any() else None
    if human.hsf is not None:
        hsf = _taken(human.hsf, rows, np.nan)
    if not np.isfinite(hsf).any():
        raise InputError(f"{human.source} must give samples a frequency, got none: nobody was asked about them.")
    words = _overlap(human, ids, rows, hsf, how)
    if majority is not None and columns is not None:
        words += _majorities(majority, columns)
    return Matched(hsf, counts, answers, entropy, majority, words, columns)


def _rows(human: Human, ids: np.ndarray) -> tuple[np.ndarray, str]:
    """The row of each sample, −1 where people say nothing of it; and how they were found, where that needs a word."""
    if human.ids is not None:
        return _rows_by_id(human.ids, ids, human.source)
    size = _size(human)
    if human.counts is None:
        if size != len(ids):
            raise InputError(
                f"{human.source} must hold one number per sample in the order of the samples ({len(ids):,}), got "
                f"{size:,}; or give a mapping id → number."
            )
        return np.arange(len(ids)), ""
    found = [_ROW.search(key) for key in ids.tolist()]
    rows = np.array([-1 if hit is None else int(hit[1]) for hit in found])
    if (rows < 0).any() or (rows >= size).any():
        wrong = ids[((rows < 0) | (rows >= size)).argmax()]
        raise InputError(
            f"{human.source} holds {size:,} rows in the order of the data, so ids must end in a row of it like "
            f"test:17; got {printable(wrong)!r}. Which row belongs to which file is not guessed: give a CSV with a "
            "column id."
        )
    if len(np.unique(rows)) < len(rows):
        raise InputError(
            f"{human.source} has one row per number, but several ids end in the same number; give a CSV with ids."
        )
    return rows, ""


def _rows_by_id(theirs: np.ndarray, ids: np.ndarray, source: str) -> tuple[np.ndarray, str]:
    place = {str(key): row for row, key in enumerate(theirs.tolist())}
    rows = np.array([place.get(key, -1) for key in ids.tolist()])
    if (rows >= 0).any():
        return rows, ""
    # Without a single id in common, the names of files may be enough: val/n01/1.JPEG and 1.JPEG.
    for parts in sorted({len(re.split("[:/]", key)) for key in place}):
        ends = [_end(key, parts) for key in ids.tolist()]
        rows = np.where(rows >= 0, rows, [place.get(end, -1) for end in ends])
    used = rows[rows >= 0]
    if not len(used):
        raise InputError(
            f"{source} has no answers for any of the {len(ids):,} samples: ids like "
            f"{printable(next(iter(place), ''))!r} against {printable(ids[0])!r}."
        )
    if len(np.unique(used)) < len(used):
        twice = theirs[np.flatnonzero(np.bincount(used) > 1)[0]]
        raise InputError(
            f"{source} names files only, and several samples are called {printable(twice)!r}; give whole ids "
            f"like {printable(ids[0])!r}."
        )
    return rows, ", matched by the last part of their ids"


def _end(key: str, parts: int) -> str:
    """The last parts of an id."""
    cuts = [hit.end() for hit in re.finditer("[:/]", key)]
    return key[cuts[-parts] :] if len(cuts) >= parts else ""


def _columns(
    human: Human, wide: int, labels: np.ndarray, class_names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """The order that columns are put into (−1: a column of zeros), and the column of each label then (−1: unknown)."""
    order = np.arange(wide)
    column_of = order if human.columns is None else human.columns
    if human.by_name or (human.classes and class_names):
        names, theirs = list(map(str, class_names or ())), human.classes or ()
        place = {name: number for number, name in enumerate(theirs)}
        here = np.array([place.get(name, -1) for name in names], np.int64)
        strange = [name for name in theirs if name not in names]
        lost = [k for k in np.unique(labels[labels >= 0]).tolist() if k >= len(names) or here[k] < 0]
        if lost and strange and human.hsf is None:  # without strange names, nobody ever chose that class
            called = [names[k] if k < len(names) else str(k) for k in lost[:3]]
            raise InputError(
                f"{human.source} has answers by name, such as {_some(strange)}, but no class of the samples is called "
                f"so, and none of the answers {_some(called)}; give class_names, spelled alike."
            )
        if human.columns is None:
            order = np.r_[here, [place[name] for name in strange]].astype(np.int64)
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


def _taken(values: np.ndarray, rows: np.ndarray, missing: float = 0) -> np.ndarray:
    """Rows of an array, `missing` where there is none (−1)."""
    taken = values[rows]
    taken[rows < 0] = missing
    return taken


def _ordered(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Columns in an order, zeros where there is none (−1)."""
    if np.array_equal(order, np.arange(values.shape[1])):
        return values
    found = values[:, order]
    found[:, order < 0] = 0
    return found


def _at(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """One value per row; 0 where the column is unknown."""
    return np.where(columns >= 0, values[np.arange(len(values)), columns], 0)


def _entropy(counts: np.ndarray) -> np.ndarray:
    total = counts.sum(1, dtype=np.float64)
    rows, columns = np.nonzero(counts)  # most answers are in a few of many classes
    share = counts[rows, columns] / total[rows]
    found = np.bincount(rows, -share * np.log(share), minlength=len(counts))
    return np.where(total > 0, np.maximum(found, 0), np.nan)


def _majority(counts: np.ndarray) -> np.ndarray:
    first = counts.argmax(1)
    most = counts.max(1)
    return np.where((most > 0) & ((counts == most[:, None]).sum(1) == 1), first, -1)


def _overlap(human: Human, ids: np.ndarray, rows: np.ndarray, hsf: np.ndarray, how: str) -> str:
    known = np.isfinite(hsf)
    words = f"{known.sum():,} of {len(ids):,} samples have answers{how}"
    if not known.all():
        words += f"; none for {_some(ids[~known])}"
    size = _size(human)
    unused = np.setdiff1d(np.arange(size), rows)
    if len(unused):
        names = unused.astype(str) if human.ids is None else human.ids[unused]
        words += f"; {len(unused):,} of {size:,} rows of {human.source} match no sample ({_some(names)})"
    return words + "."


def _size(human: Human) -> int:
    """How many samples people were asked about."""
    return max(len(part) for part in (human.counts, human.hsf) if part is not None)


def _some(names: Sequence[str] | np.ndarray) -> str:
    return ", ".join(printable(name)[:80] for name in names[:3]) + (" …" if len(names) > 3 else "")


def _majorities(majority: np.ndarray, columns: np.ndarray) -> str:
    judged = (majority >= 0) & (columns >= 0)
    if not judged.any():
        return ""
    differ = int((majority != columns)[judged].sum())
    words = f" Most people chose another class than the label for {differ:,} of {judged.sum():,} samples"
    return words + ("; are people and samples in the same order?" if differ > judged.sum() / 2 else ".")
