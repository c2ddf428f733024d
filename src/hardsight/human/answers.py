"""People's answers as one kind of object, whatever they came as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.idtables import as_arrow


@dataclass(frozen=True)
class Human:
    """What people said of samples, in the order of the source.

    Attributes:
        ids: Of the samples. None: row i of the counts is the sample whose id ends in ``:i`` or ``/i``, and frequencies
            without counts are in the order of the samples.
        counts: Answers by class ``(N, C)``: whole numbers, or shares that sum to 1; None where only frequencies are
            known.
        hsf: Share of people who chose the label ``(N,)``, NaN where nobody was asked; None: made from the counts.
        source: How messages call it, such as a file's name.
        classes: Names of the classes; None where there are none.
        asked: How many people were asked, ``(N,)`` or, where every class is a question of its own, ``(N, C)``; None:
            as many as `counts` hold.
        columns: The column of `counts` that is each class; None: column k is class k.
        by_name: Whether the order of the classes is the source's own, so that only names tell which is which.
    """

    ids: np.ndarray | None
    counts: np.ndarray | None
    hsf: np.ndarray | None
    source: str
    classes: tuple[str, ...] | None = None
    asked: np.ndarray | None = None
    columns: np.ndarray | None = None
    by_name: bool = False


def read_human(file: str | Path, *, classes: Sequence[str] | None = None) -> Human:
    """Read a file of human answers; what it is, is seen from its content. Nothing in it is executed.

    Args:
        file: One of

            - ``.npy``, ``.npz``: counts ``(samples, classes)`` in the order of the data (CIFAR-10H), or CIFAR-10N and
              100N as labellings; ``.pt`` as they were released. Only the independent labellings are votes.
            - ``raters.npz`` of ImageNet-ReaL: who said yes, of those who were asked whether the image shows the class.
            - CSV (also ``.gz``) or Parquet: ``id,hsf``; ``id`` and a column of counts per class; one row per answer
              (``id,vote`` or ``id,annotator,label``); or trials of Geirhos et al., whose ids become the image's name
              without trial and subject, and whose answers ``na`` chose nothing.
        classes: Names of the classes in the order of their numbers, for files that have none.
    """
    from hardsight.human.files import read

    return checked(read(Path(file), None if classes is None else tuple(map(str, classes))))


def as_human(given: Any) -> Human:
    """People's answers from whatever holds them.

    Args:
        given: A `Human`; a file as for `read_human`; a mapping id → share of people who chose the label; a data frame
            or Arrow table with columns as in such a file; counts ``(samples, classes)`` in the order of the data; or
            shares ``(samples,)`` in the order of the samples of the run that they are matched with.

    Examples:
        >>> as_human({"a": 0.5, "b": 1.0}).hsf.tolist()
        [0.5, 1.0]
    """
    if isinstance(given, Human):
        return checked(given)
    if isinstance(given, (str, Path)):
        return read_human(given)
    from hardsight.human import tables

    if isinstance(given, Mapping) and not _is_columns(given):
        values = [np.nan if value is None else value for value in given.values()]
        return checked(Human(np.array(list(map(str, given)), dtype=object), None, _floats(values), "human"))
    if isinstance(given, Mapping) or hasattr(given, "columns"):  # a series has none: it is an array
        return checked(tables.from_table(as_arrow(given, "human"), "human", None))
    values = _floats(given)
    if values.ndim == 2:
        return checked(Human(None, values, None, "human"))
    return checked(Human(None, None, values, "human"))


def coarser(human: Human, mapping: Any) -> Human:
    """The same answers on fewer classes, so that frequencies are those of the merged class (the AVH paper's Fig. 19).

    Args:
        human: People's answers by class.
        mapping: The coarse class of each class: an array of numbers ``(C,)``, or names by name where `human` has names.

    Examples:
        >>> people = Human(None, np.array([[2, 1, 1]]), None, "example")
        >>> coarser(people, [0, 0, 1]).counts.tolist()
        [[3, 1]]
    """
    human = as_human(human)
    if human.counts is None:
        raise InputError("human: merging classes needs counts by class, got frequencies only; give the counts.")
    if human.columns is not None or (human.asked is not None and human.asked.ndim == 2):
        raise InputError(
            "human: classes can be merged once, and only where a person chose one of them; give the counts as they "
            "were collected, one answer per person."
        )
    wide = human.counts.shape[1]
    if isinstance(mapping, Mapping):
        if human.classes is None:
            raise InputError(
                "mapping by name needs names: read the file with classes=[…], or give an array of numbers."
            )
        if lost := [name for name in human.classes if name not in mapping]:
            raise InputError(f"mapping must name a coarse class for every class; none for {printable(lost[0])!r}.")
        coarse = [str(mapping[name]) for name in human.classes]
        place = {name: number for number, name in enumerate(dict.fromkeys(coarse))}
        groups = np.array([place[name] for name in coarse])
    else:
        groups = np.asarray(mapping)
        if groups.shape != (wide,) or groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= wide:
            raise InputError(
                f"mapping must hold a class number from 0 for each of the {wide} classes, got {mapping!r:.80}."
            )
    kind = np.int64 if human.counts.dtype.kind in "iu" else np.float64
    counts = np.zeros((len(human.counts), int(groups.max()) + 1), kind)
    for column, group in enumerate(groups.tolist()):
        counts[:, group] += human.counts[:, column]
    return replace(human, counts=counts, hsf=None, columns=groups)


def halves(human: Human, seed: int = 0) -> tuple[Human, Human]:
    """The people split in two at random, image by image; of an odd number one half gets one more, by chance.

    What either half says has half of the judgements: its frequencies are noisier, and its ceiling is lower.

    Args:
        human: People's answers as counts.
        seed: Of the split.
    """
    human = as_human(human)
    if human.counts is None or not whole(human.counts):
        raise InputError("human: splitting people needs counts of answers, got shares only; give the counts.")
    draw = np.random.default_rng(seed)
    counts, first = human.counts, np.zeros_like(human.counts)
    if human.asked is not None and human.asked.ndim == 2:
        asked, size = human.asked, np.zeros_like(human.asked)
        at = np.nonzero(asked)
        size[at] = _half(asked[at], draw)
        first[at] = draw.hypergeometric(counts[at], asked[at] - counts[at], size[at])
    else:
        asked = (counts.sum(1) if human.asked is None else human.asked).astype(np.int64)
        size = _half(asked, draw)
        left, rest = size.copy(), asked.copy()
        for column, given in enumerate(counts.T.astype(np.int64)):  # of those who are left, how many of this answer
            at = np.flatnonzero(given)
            rest[at] -= given[at]
            taken = draw.hypergeometric(given[at], rest[at], left[at])
            first[at, column] = taken
            left[at] -= taken
    parts = ((first, size), (counts - first, asked - size))
    one, other = (replace(human, counts=c, hsf=None, asked=None if human.asked is None else a) for c, a in parts)
    return one, other


def whole(counts: np.ndarray) -> bool:
    """Whether these are counts; shares are not whole numbers."""
    return counts.dtype.kind in "iu" or not (counts % 1).any()


def _half(asked: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return asked // 2 + (asked % 2) * draw.integers(0, 2, asked.shape)


def _is_columns(given: Mapping) -> bool:
    return "id" in given and not isinstance(given["id"], (int, float, np.number)) and given["id"] is not None


def _floats(values: Any) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"human must be numbers, got something else ({error}).") from error


def checked(human: Human) -> Human:
    """The same, or a sentence on what is wrong with it."""
    shapes = [part.shape for part in (human.ids, human.counts, human.hsf, human.asked) if part is not None]
    if (human.counts is None and human.hsf is None) or () in shapes or len({shape[0] for shape in shapes}) != 1:
        raise InputError(f"{human.source}: counts or frequencies are needed, as many as ids; got shapes {shapes}.")
    if human.ids is not None and (more := len(human.ids) - len(set(human.ids.tolist()))):
        raise InputError(
            f"{human.source} must have one row per id, but {more:,} id{'s repeat' if more > 1 else ' repeats'}; "
            "for one row per answer call the columns id and vote."
        )
    if human.hsf is not None:
        if human.hsf.ndim != 1:
            raise InputError(f"{human.source}: one frequency per sample is needed, got shape {human.hsf.shape}.")
        wrong = (human.hsf < 0) | (human.hsf > 1)
        if wrong.any():
            raise InputError(
                f"{human.source}: frequencies must lie between 0 and 1, got {human.hsf[wrong][0]:g} and in all "
                f"{wrong.sum():,} outside; divide the count of the label by the count of all answers."
            )
    if human.counts is not None:
        _check_counts(human.counts, human)
    return human


def _check_counts(counts: np.ndarray, human: Human) -> None:
    if counts.ndim != 2 or not counts.shape[1] or counts.dtype.kind not in "iuf":
        raise InputError(
            f"{human.source} must hold counts (samples × classes), got {counts.dtype} of shape {counts.shape}; give "
            "frequencies as a CSV of id,hsf."
        )
    if (wrong := ~((counts >= 0) & (counts < np.inf))).any():
        raise InputError(f"{human.source}: counts must be 0 or more, got {counts[wrong][0]:g}.")
    if not whole(counts):
        total = counts.sum(1)
        if (far := (np.abs(total - 1) > 1e-3) & (total > 0)).any():
            raise InputError(
                f"{human.source}: counts must be whole numbers, or shares that sum to 1; row {far.argmax()} sums to "
                f"{total[far.argmax()]:g}."
            )
    most = counts if human.asked is not None and human.asked.ndim == 2 else counts.sum(1)
    if human.asked is not None and (most > human.asked).any():
        raise InputError(
            f"{human.source}: fewer people were asked than answered in {(most > human.asked).sum():,} places."
        )
