"""Read human answers about samples from any supported format. Nothing in a file is executed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.idtables import as_arrow
from hardsight.runs.ids import pieces_of, repeated_ids
from hardsight.triple import MOST_CLASSES
from hardsight.untrusted import check_regular, read_arrays

# CIFAR-10N: three people labeled each image; `aggre_label` and `worse_label` are picked from their answers, and the
# clean labels are those of the data set. CIFAR-100N has one person per image.
_LABELINGS = ("random_label1", "random_label2", "random_label3"), ("noisy_label",)
_TRIALS = ("imagename", "category", "object_response")
# Geirhos et al. name an image 0001_cop_s01_c30_knife_10_n03041632_7380.png: trial, experiment and subject come first.
_TRIAL = r"^\d+_[A-Za-z]+_(?:s\d+|dnn)_"
_MOST = 2**31  # samples × classes


@dataclass(frozen=True)
class Human:
    """Human answers about samples, in the order of the source.

    Attributes:
        ids: Ids of the samples, as text. None: row i of the counts is the sample whose id ends in ``:i`` or ``/i``, and
            frequencies without counts are in the order of the samples.
        counts: Answers by class ``(N, C)``, whole numbers or shares that sum to 1; None if only frequencies are known.
        hsf: Share of people who chose the label ``(N,)``, NaN if nobody was asked; None: computed from the counts.
        source: Name used in messages, such as a file name.
        classes: Names of the classes, if known.
        asked: How many people were asked, ``(N,)``, or ``(N, C)`` where every class is a question of its own; None:
            the sum of `counts`.
        columns: The column of `counts` for each class; None: column k is class k.
        by_name: Whether columns are in an arbitrary order, so that only names tell which class is which.
    """

    ids: pa.Array | None
    counts: np.ndarray | None
    hsf: np.ndarray | None
    source: str
    classes: tuple[str, ...] | None = None
    asked: np.ndarray | None = None
    columns: np.ndarray | None = None
    by_name: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", None if self.ids is None else texts(self.ids))
        shapes = [part.shape for part in (self.counts, self.hsf, self.asked) if part is not None]
        shapes += [] if self.ids is None else [(len(self.ids),)]
        if (self.counts is None and self.hsf is None) or () in shapes or len({shape[0] for shape in shapes}) != 1:
            self._refuse(f"counts or frequencies are needed, one row per id; got shapes {shapes}")
        if self.ids is not None and (repeats := repeated_ids(lambda: pieces_of(self.ids))[0]):
            self._refuse(f"{repeats:,} rows repeat an id; for one row per answer name the columns id and vote")
        if self.hsf is not None and (self.hsf.ndim != 1 or (self.hsf < 0).any() or (self.hsf > 1).any()):
            ends = f"{np.nanmin(self.hsf):g} to {np.nanmax(self.hsf):g}"
            self._refuse(f"frequencies must be one per sample, 0 to 1, got {ends} in shape {self.hsf.shape}")
        if self.counts is None:
            return
        if self.counts.ndim != 2 or not self.counts.shape[1] or self.counts.dtype.kind not in "iuf":
            kind = f"{self.counts.dtype} of shape {self.counts.shape}"
            self._refuse(f"counts must be numbers (samples × classes), got {kind}; give frequencies as a CSV of id,hsf")
        if (wrong := ~((self.counts >= 0) & (self.counts < np.inf))).any():
            self._refuse(f"counts must be 0 or more, got {self.counts[wrong][0]:g}")
        total = self.counts.sum(1)
        if not is_whole(self.counts) and (far := (np.abs(total - 1) > 1e-3) & (total > 0)).any():
            place = f"row {far.argmax()} sums to {total[far.argmax()]:g}"
            self._refuse(f"counts must be whole numbers, or shares that sum to 1; {place}")
        if self.asked is not None and ((self.counts if self.asked.ndim == 2 else total) > self.asked).any():
            self._refuse("more people answered than were asked")

    def __len__(self) -> int:
        return len(self.hsf if self.counts is None else self.counts)  # pyrefly: ignore

    def _refuse(self, what: str) -> None:
        raise InputError(f"{self.source}: {what}.")


def texts(ids: Any) -> pa.Array:
    """Ids of any kind as an array of texts."""
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    return ids.cast(pa.string()) if isinstance(ids, pa.Array) else pa.array([str(key) for key in ids], pa.string())


def is_whole(counts: np.ndarray) -> bool:
    """Whether these are counts of answers rather than shares, which are not whole numbers."""
    return counts.dtype.kind in "iu" or not (counts % 1).any()


def as_human(given: Any) -> Human:
    """Human answers from any supported source.

    Args:
        given: A `Human`; a file as for `read_human`; a mapping from id to the share of people who chose the label; a
            data frame or Arrow table with columns as in such a file; counts ``(samples, classes)`` in the order of the
            data; or shares ``(samples,)`` in the order of the samples to match.

    Examples:
        >>> as_human({"a": 0.5, "b": 1.0}).hsf.tolist()
        [0.5, 1.0]
    """
    if isinstance(given, Human):
        return given
    if isinstance(given, (str, Path)):
        return read_human(given)
    ids = None
    if isinstance(given, Mapping) and isinstance(given.get("id"), (int, float, np.number, type(None))):
        ids = np.array(list(map(str, given)), dtype=object)
        given = [np.nan if share is None else share for share in given.values()]
    elif isinstance(given, Mapping) or hasattr(given, "columns"):  # a series has no columns: it is an array
        return _from_table(as_arrow(given, "human"), "human", None)
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"human must be numbers, got something else ({error}).") from error
    return Human(ids, values, None, "human") if values.ndim == 2 else Human(ids, None, values, "human")


def read_human(file: str | Path, *, classes: Sequence[str] | None = None) -> Human:
    """Read a file of human answers; its format is recognized by its content.

    Args:
        file: One of

            - ``.npy``, ``.npz``: counts ``(samples, classes)`` in the order of the data (CIFAR-10H), or the labelings
              of CIFAR-10N and 100N, also ``.pt`` as released. Only independent labelings are votes.
            - ``raters.npz`` of ImageNet-ReaL: which raters said yes when asked whether the image shows the class.
            - CSV (also ``.gz``) or Parquet: ``id,hsf``; ``id`` and a column of counts per class; one row per answer
              (``id,vote`` or ``id,annotator,label``); or trials of Geirhos et al., whose ids become the image's name
              without trial and subject, and whose answers ``na`` count as no choice.
        classes: Names of the classes in the order of their numbers, for files that have none.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "answers.csv")
        ...     _ = file.write_text("id,hsf\\na,1.0\\nb,0.4\\n")
        ...     read_human(file).hsf.tolist()
        [1.0, 0.4]
    """
    path, names = Path(file), None if classes is None else tuple(map(str, classes))
    check_regular(path, "human")
    source, suffix = printable(path.name), path.suffix.lower()
    if suffix == ".json":
        raise InputError(f"human: {source}: sets of labels (real.json) have no frequencies; give ReaL's raters.npz.")
    if suffix in (".npy", ".npz", ".pt", ".pth"):
        return _from_arrays(read_arrays(path, "human"), source, names)
    return _from_table(as_arrow(path, "human"), source, names)


def _from_arrays(arrays: dict[str, np.ndarray], source: str, classes: tuple[str, ...] | None) -> Human:
    for names in _LABELINGS:
        if set(names) <= set(arrays):
            return _from_labelings([arrays[name] for name in names], source, classes)
    if "info" in arrays and (rating := arrays.get("tensor", arrays.get("scores"))) is not None:
        return _from_raters(rating, arrays["info"], source)
    for name in ("counts", "probs", *(list(arrays) if len(arrays) == 1 else ())):
        if (counts := arrays.get(name)) is not None:
            if classes is not None and counts.ndim == 2 and counts.shape[1] != len(classes):
                raise InputError(f"human: {source} has {counts.shape[1]:,} columns for {len(classes):,} classes.")
            return Human(None, counts, None, source, classes)
    raise InputError(
        f"human: {source} must hold counts (samples × classes) called counts, CIFAR-N's labelings or ReaL's raters; "
        f"got {_listed(list(arrays))}."
    )


def _from_labelings(labelings: list[np.ndarray], source: str, classes: tuple[str, ...] | None) -> Human:
    """One array of class numbers per person; negative: no answer."""
    if (
        any(labels.ndim != 1 or labels.dtype.kind not in "iu" for labels in labelings)
        or len(set(map(len, labelings))) > 1
    ):
        raise InputError(f"human: {source} must hold labelings as class numbers, one per sample each.")
    votes = np.stack(labelings).astype(np.int64)
    given = votes >= 0
    size = max(int(votes.max(initial=0)) + 1, len(classes or ()))
    counts = _tally(np.nonzero(given)[1], votes[given], (votes.shape[1], size), source)
    return Human(None, counts, None, source, classes)


def _from_raters(rating: np.ndarray, info: np.ndarray, source: str) -> Human:
    """ReaL: for each question (file, class), which raters said no, maybe or yes."""
    fits = info.ndim == 2 and info.shape[1] == 2 and rating.ndim == 3 and rating.shape[1:] == (len(info), 3)
    labels = np.array([-1])
    with contextlib.suppress(ValueError, TypeError, OverflowError, IndexError):
        labels = info[:, 1].astype(np.int64)
    if not fits or labels.min(initial=0) < 0:
        raise InputError(
            f"human: {source} must hold raters × questions × (no, maybe, yes), and for each question the file and the "
            f"number of the class; got shapes {rating.shape} and {info.shape}."
        )
    files, rows = np.unique(info[:, 0].astype(str), return_inverse=True)
    shape = len(files), int(labels.max(initial=0)) + 1
    asked, counts = (
        _tally(rows, labels, shape, source, times.sum(0)) for times in ((rating != 0).any(2), rating[:, :, 2] != 0)
    )
    return Human(files.astype(object), counts, None, source, None, asked)


def _from_table(table: pa.Table, source: str, classes: tuple[str, ...] | None) -> Human:
    names = table.column_names
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{source} must have each column once, but {printable(repeated[0])[:80]} repeats.")
    if set(names) >= set(_TRIALS):
        return _from_trials(table, source)
    others = [name for name in names if name != "id"]
    ids = _cast(table, "id", pa.string(), source) if "id" in names else pa.chunked_array([], pa.string())
    if ids.null_count:
        table, ids = table.filter(pc.is_valid(ids)), ids.drop_null()
    if not len(ids) or not others:
        raise InputError(f"{source} must have a column id and hsf, votes or counts, and rows; got {_listed(names)}.")
    if "vote" in others or {"annotator", "label"} <= set(others) or others == ["label"]:
        return _from_votes(table, ids, "vote" if "vote" in others else "label", source, classes)
    if "hsf" in others or len(others) == 1:
        hsf = _cast(table, "hsf" if "hsf" in others else others[0], pa.float64(), source)
        return Human(ids, None, hsf.to_numpy(), source)
    columns = [name for name in others if name != "label"]
    counts = np.stack([_cast(table, name, pa.float64(), source).to_numpy() for name in columns], axis=1)
    counts[np.isnan(counts)] = 0
    numbers = [int(name) for name in columns if name.isdecimal() and len(name) < 10]
    if len(set(numbers)) < len(columns):
        return Human(ids, counts, None, source, tuple(columns), by_name=True)
    shape = len(ids), max(*numbers, len(classes or ()) - 1) + 1
    padded = _tally(np.empty(0, int), np.empty(0, int), shape, source).astype(np.float64)
    padded[:, numbers] = counts
    return Human(ids, padded, None, source, classes)


def _from_votes(
    table: pa.Table, ids: pa.ChunkedArray, column: str, source: str, classes: tuple[str, ...] | None
) -> Human:
    """One row per answer; rows without an answer are ignored."""
    kind = table.schema.field(column).type
    named = not (pa.types.is_floating(kind) or pa.types.is_integer(kind))
    votes = _cast(table, column, pa.string() if named else pa.float64(), source)
    given = pc.fill_null(pc.not_equal(votes, "") if named else pc.is_valid(votes), False)
    votes = votes.filter(given)
    if named:
        codes, names = _codes(votes)
        size, classes = len(names), tuple(names.tolist())
    else:
        numbers = votes.to_numpy()
        if (wrong := ~((numbers >= 0) & (numbers < 100_000) & (numbers == np.floor(numbers)))).any():
            raise InputError(f"{source}: votes must be class numbers from 0 or names, got {numbers[wrong][0]:g}.")
        codes = numbers.astype(np.int64)
        size = max(int(codes.max(initial=0)) + 1, len(classes or ()))
    rows, keys = _codes(ids.filter(given))
    return Human(keys, _tally(rows, codes, (len(keys), size), source), None, source, classes, by_name=named)


def read_trials(source: Any, needed: Sequence[str], name: str = "human") -> pa.Table:
    """Trials of Geirhos et al. (2018) from a file or table: the needed columns, and ``experiment``, as text."""
    table = as_arrow(source, name)
    if lost := [column for column in needed if column not in table.column_names]:
        raise InputError(f"{name} must be a table of trials with {', '.join(needed)}; {lost[0]} is missing.")
    columns = [column for column in (*needed, "experiment") if column in table.column_names]
    return pa.table({column: _cast(table, column, pa.string(), name) for column in columns})


def _from_trials(table: pa.Table, source: str) -> Human:
    """The share of trials in which people chose the image's category; ``na`` counts as no choice."""
    trials = read_trials(table, _TRIALS, source)
    trials = trials.filter(pc.and_(pc.is_valid(trials["imagename"]), pc.is_valid(trials["category"])))
    rows, keys = _codes(pc.replace_substring_regex(trials["imagename"], _TRIAL, ""))
    answers, names = _codes(pc.fill_null(trials["object_response"], "na"))
    counts = _tally(rows, answers, (len(keys), len(names)), source)
    right = pc.equal(trials["object_response"], trials["category"]).fill_null(False).to_numpy()
    category = np.empty(len(keys), object)
    category[rows] = trials["category"].to_numpy()
    if (differs := category[rows] != trials["category"].to_numpy()).any():
        image = printable(keys[rows[differs.argmax()]])
        raise InputError(f"{source} must give an image one category, but {image!r} has two.")
    asked, kept = counts.sum(1), names != "na"
    hsf = np.bincount(rows, right, minlength=len(keys)) / asked
    return Human(keys, counts[:, kept], hsf, source, tuple(names[kept].tolist()), asked, by_name=True)


def _tally(
    rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int], source: str, times: np.ndarray | int = 1
) -> np.ndarray:
    """How many answers fall into each cell."""
    if not shape[0] or shape[0] * shape[1] > _MOST or shape[1] > MOST_CLASSES:
        size, most = f"{shape[0]:,} × {shape[1]:,}", f"{_MOST:,} samples × classes and {MOST_CLASSES:,} classes"
        raise InputError(f"{source} must hold answers, for up to {most}; got {size}.")
    counts = np.zeros(shape, np.int32)
    np.add.at(counts, (rows, columns), times)
    return counts


def _codes(values: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in the order of appearance, and the values that they stand for."""
    coded = values.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(), np.array(coded.dictionary.to_pylist(), dtype=object)


def _cast(table: pa.Table, name: str, kind: pa.DataType, source: str) -> pa.ChunkedArray:
    try:
        return table[name].cast(kind)
    except pa.ArrowException as error:
        wanted = "text" if pa.types.is_string(kind) else "numbers"
        raise InputError(
            f"{source}: {printable(name)[:80]} must be {wanted}, got {table[name].type}; name the columns id and hsf, "
            "or id and vote, or id and one column of counts per class."
        ) from error


def _listed(names: list[str]) -> str:
    return ", ".join(printable(name)[:80] for name in names[:8]) or "nothing"


def coarser(human: Any, mapping: Any) -> Human:
    """The same answers with classes merged, so that frequencies are those of the coarse class (AVH paper, Fig. 19).

    Args:
        human: Human answers by class.
        mapping: The coarse class of each class: an array of numbers ``(C,)``; coarse names by name, or by number where
            `human` has no names; or a CSV or Parquet file of these, with the columns ``class`` and ``coarse``.

    Examples:
        >>> people = Human(None, np.array([[2, 1, 1]]), None, "example")
        >>> coarser(people, [0, 0, 1]).counts.tolist()
        [[3, 1]]
    """
    human = as_human(human)
    if human.counts is None:
        raise InputError("human: merging classes needs counts by class, got frequencies only; give the counts.")
    if human.columns is not None or (human.asked is not None and human.asked.ndim == 2):
        raise InputError("human: classes can be merged once, and only where a person chose one of them.")
    width = human.counts.shape[1]
    if isinstance(mapping, (str, Path)):
        table = as_arrow(mapping, "coarser")
        if not {"class", "coarse"} <= set(table.column_names):
            raise InputError(f"coarser must have the columns class and coarse, got {_listed(table.column_names)}.")
        mapping = dict(zip(table["class"].to_pylist(), table["coarse"].to_pylist(), strict=True))
    if isinstance(mapping, Mapping):
        names, by_name = human.classes or tuple(map(str, range(width))), {str(k): str(v) for k, v in mapping.items()}
        if lost := [printable(name) for name in names if name not in by_name]:
            raise InputError(f"coarser must name a coarse class for each of {width} classes; none for {lost[0]!r}.")
        place = list(dict.fromkeys(by_name[name] for name in names))
        mapping = [place.index(by_name[name]) for name in names]
    groups = np.asarray(mapping)
    if groups.shape != (width,) or groups.dtype.kind not in "iu" or groups.min() < 0 or groups.max() >= width:
        raise InputError(f"coarser must hold a class number from 0 for each of {width} classes, got {mapping!r:.80}.")
    counts = np.zeros((int(groups.max()) + 1, len(human.counts)), "f8" if human.counts.dtype.kind == "f" else "i8")
    np.add.at(counts, groups, human.counts.T)
    return replace(human, counts=counts.T, hsf=None, columns=groups)


def halves(human: Any, seed: int = 0) -> tuple[Human, Human]:
    """Split the people in two at random, image by image; with an odd number, a random half gets one more.

    Each half has half of the judgments: its frequencies are noisier, and its ceiling is lower.
    """
    human = as_human(human)
    if human.counts is None or not is_whole(human.counts):
        raise InputError("human: splitting people needs counts of answers, got shares only; give the counts.")
    draw, counts, first = np.random.default_rng(seed), human.counts, np.zeros_like(human.counts)
    asked = (counts.sum(1) if human.asked is None else human.asked).astype(np.int64)
    at = np.nonzero(asked) if asked.ndim == 2 else slice(None)
    size = np.zeros_like(asked)
    size[at] = asked[at] // 2 + asked[at] % 2 * draw.integers(0, 2, asked[at].shape)
    if asked.ndim == 2:  # every class is a question of its own
        first[at] = draw.hypergeometric(counts[at], asked[at] - counts[at], size[at])
    else:
        left, rest = size.copy(), asked.copy()
        for column, answers in enumerate(counts.T.astype(np.int64)):  # of those remaining, how many gave this answer
            at = np.flatnonzero(answers)
            rest[at] -= answers[at]
            taken = draw.hypergeometric(answers[at], rest[at], left[at])
            first[at, column] = taken
            left[at] -= taken
    parts = ((first, size), (counts - first, asked - size))
    half, other = (replace(human, counts=c, hsf=None, asked=None if human.asked is None else n) for c, n in parts)
    return half, other
