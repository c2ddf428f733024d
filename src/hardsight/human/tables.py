"""Tables of human answers: frequencies, counts, one row per answer, and trials of experiments."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError
from hardsight.extras import printable
from hardsight.human.answers import Human

_TRIALS = {"object_response", "category", "imagename"}
# Geirhos et al. name an image 0001_cop_s01_c30_knife_10_n03041632_7380.png: trial, experiment and subject come first.
_TRIAL = r"^\d+_[A-Za-z]+_(?:s\d+|dnn)_"
_MOST = 2**31  # samples × classes


def from_table(table: pa.Table, source: str, classes: tuple[str, ...] | None) -> Human:
    """What a table says; see `hardsight.human.read_human`."""
    names = table.column_names
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{source} must have each column once, but {printable(repeated[0])[:80]} repeats.")
    if set(names) >= _TRIALS:
        return _from_trials(table, source)
    if "id" not in names:
        raise InputError(f"{source} must have a column id, got {_listed(names)}.")
    table = table.set_column(names.index("id"), "id", _text(table["id"], "ids", source))
    table = table.filter(pc.is_valid(table["id"]))
    ids, others = _objects(table["id"]), [name for name in names if name != "id"]
    if not len(ids) or not others:
        raise InputError(f"{source} must have rows with an id and hsf, votes or counts; got {_listed(names)}.")
    if "vote" in others or {"annotator", "label"} <= set(others) or others == ["label"]:
        return _from_votes(table["id"], table["vote" if "vote" in others else "label"], source, classes)
    if "hsf" in others or len(others) == 1:
        return Human(ids, None, _numbers(table["hsf" if "hsf" in others else others[0]], "hsf", source), source)
    columns = [name for name in others if name != "label"]
    counts = np.stack([_numbers(table[name], name, source) for name in columns], axis=1)
    counts[np.isnan(counts)] = 0
    numbers = [int(name) for name in columns if name.isdecimal() and len(name) < 10]
    if len(set(numbers)) == len(columns):
        width = max(*numbers, len(classes or ()) - 1) + 1
        _check_size(len(ids), width, source)
        padded = np.zeros((len(ids), width))
        padded[:, numbers] = counts
        return Human(ids, padded, None, source, classes)
    return Human(ids, counts, None, source, tuple(columns), by_name=True)


def _from_votes(ids: pa.ChunkedArray, votes: pa.ChunkedArray, source: str, classes: tuple[str, ...] | None) -> Human:
    """One row an answer; rows without one count for nothing."""
    named = not (pa.types.is_floating(votes.type) or pa.types.is_integer(votes.type))
    votes = _text(votes, "votes", source) if named else votes
    given = pc.fill_null(pc.not_equal(votes, "") if named else pc.is_valid(votes), False)
    ids, votes = ids.filter(given), votes.filter(given)
    if not named:
        numbers = votes.cast(pa.float64()).to_numpy()
        if (wrong := ~((numbers >= 0) & (numbers < 100_000) & (numbers == np.floor(numbers)))).any():
            raise InputError(f"{source}: votes must be class numbers from 0 or names, got {numbers[wrong][0]:g}.")
        codes = numbers.astype(np.int64)
        size = max(int(codes.max(initial=0)) + 1, len(classes or ()))
    else:
        codes, names = _codes(votes)
        size, classes = len(names), tuple(names.tolist())
    rows, keys = _codes(ids)
    return Human(keys, tallied(rows, codes, len(keys), size, source), None, source, classes, by_name=named)


def _from_trials(table: pa.Table, source: str) -> Human:
    """One row per trial: the image's category, and what the person took it for; ``na`` chose nothing."""
    for name in ("imagename", "category"):
        table = table.filter(pc.is_valid(table[name]))
    images = pc.replace_substring_regex(_text(table["imagename"], "imagename", source), _TRIAL, "")
    rows, keys = _codes(images)
    answers, names = _codes(pc.fill_null(_text(table["object_response"], "object_response", source), "na"))
    counts = tallied(rows, answers, len(keys), len(names), source)
    categories, category_names = _codes(_text(table["category"], "category", source))
    category = np.zeros(len(keys), np.int64)
    category[rows] = categories
    if (category[rows] != categories).any():
        wrong = keys[rows[(category[rows] != categories).argmax()]]
        raise InputError(f"{source} must give an image one category, but {printable(wrong)!r} has two.")
    asked = counts.sum(1)
    place = {name: column for column, name in enumerate(names.tolist())}
    chosen = np.array([place.get(name, -1) for name in category_names.tolist()])[category]
    right = np.where(chosen >= 0, counts[np.arange(len(keys)), chosen], 0)
    kept = names != "na"
    return Human(keys, counts[:, kept], right / asked, source, tuple(names[kept].tolist()), asked, by_name=True)


def tallied(
    rows: np.ndarray, columns: np.ndarray, height: int, width: int, source: str, times: np.ndarray | int = 1
) -> np.ndarray:
    """How many answers fall into each cell of (height × width)."""
    _check_size(height, width, source)
    counts = np.zeros((height, width), np.int32)
    np.add.at(counts, (rows, columns), times)
    return counts


def _check_size(height: int, width: int, source: str) -> None:
    if not height or height * width > _MOST:
        raise InputError(
            f"{source} must hold answers, for up to {_MOST:,} samples × classes; got {height:,} × {width:,}."
        )


def _codes(texts: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers in the order of appearance, and what they stand for."""
    coded = texts.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(), _objects(coded.dictionary)


def _text(column: pa.ChunkedArray, what: str, source: str) -> pa.ChunkedArray:
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"{source}: {what} must be text or numbers, got {column.type}.") from error


def _numbers(column: pa.ChunkedArray, what: str, source: str) -> np.ndarray:
    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowException as error:
        raise InputError(
            f"{source}: {printable(what)[:80]} must be numbers, got {column.type}; name the columns id and hsf, or id "
            "and vote, or id and one column of counts a class."
        ) from error


def _objects(texts: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.array(texts.to_pylist(), dtype=object)


def _listed(names: list[str]) -> str:
    return ", ".join(printable(name)[:80] for name in names[:8]) or "none"
