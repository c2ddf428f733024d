"""The lists: what to review, relabel, keep and drop, for people (CSV), programs (Parquet, ids) and viewers."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from hardsight.data import FeatureSamples, Samples, changed_since, data_of, features_of
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.idtables import read_by_id
from hardsight.labelerrors.copies import (
    Viewer,
    check_apart,
    check_dataset,
    check_target,
    recover,
    write_dataset,
    write_folder,
)
from hardsight.labelerrors.suspects import ACTIONS, REASONS, RankedLabels, ordered_actions, ranked_labels
from hardsight.printing import class_name
from hardsight.runs import LISTS, beside_lock
from hardsight.runs.ids import places_among
from hardsight.stores import as_path, local_path
from hardsight.table import SampleTable

_NEW_LABEL = ("new_label", "suggested_name", "suggested")  # decisions of a person, then suggestions of the lists
_RELABEL, _REVIEW = ACTIONS.index("relabel"), ACTIONS.index("review")
# Columns of the lists, beside which the scores are put.
_COLUMNS = ("id", "action", "label", "suggested", "pred", "suspicion", "rank", "p_label", "p_pred", "reason")
_ROWS = 1 << 17  # written at a time
_BYTES = 1 << 27  # of scores in memory, at 8 bytes for each
_SHOWN = 10  # suspects in the summary
_RISKY = r"^[=+\-@'\t\r\n＝＋－＠]"  # a spreadsheet would evaluate these; a CSV has ' before them, and before '


def clean(
    run: str | Path | SampleTable,
    out: str | Path | None = None,
    *,
    data: Any = None,
    by: str | None = None,
    count: int | None = None,
    share: float | None = None,
    decisions: Any = None,
    auto: bool = False,
    dataset: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write lists of what to review, relabel, keep and drop, and optionally a cleaned copy of the data.

    The suspects are for a person to review. They are relabeled only where the run itself shows that this is safe (see
    `actions`), and in a copy of the data only with `auto`.

    The folder holds ``actions.csv`` and ``actions.parquet`` (one row per sample, most suspicious first; classes by name
    and by the data's number), ``review.txt``, ``relabel.txt``, ``keep.txt`` and ``drop.txt`` (ids, one per line:
    `read_ids`), and ``samples.parquet`` (with paths or images, for FiftyOne and Spotlight). In the CSV a text that
    begins with ``= + - @ '``, a tab or a line break is prefixed with ``'``, because spreadsheets would evaluate it.

    Args:
        run: The run folder that was scored, best with folds; in Python also a table.
        out: Folder to write; ``RUN/lists`` if not given.
        data: Where the data are, if they have moved or the run does not say.
        by: How to rank the suspects; the best one in our benchmark if not given; in Python a name from `RANKINGS`.
        count: Number of suspects; the estimated number of wrong labels if neither this nor the share is given.
        share: Suspects as a share of the labeled samples.
        decisions: A person's decisions: ``actions.csv`` with its column ``action`` edited, or any table with ``id``,
            ``action`` (``keep``, ``review``, ``relabel``, ``drop``) and, to relabel, a class in ``new_label``.
        auto: Relabel in `dataset` what is safe to relabel without a person; refused where nothing is.
        dataset: Also write a cleaned copy of the data, by `decisions` or `auto`: a folder for a folder with one folder
            per class, an ``.npz`` for arrays, a file of the same format for features or probabilities. Samples for
            review stay unchanged.
        overwrite: Replace earlier lists, and an earlier cleaned copy.

    Returns:
        A summary in numbers, and the first suspects.

    Examples:
        >>> clean("run")["review"]  # suspects to look at, listed in run/lists  # doctest: +SKIP
        >>> clean("run", decisions="decisions.csv", dataset="cleaned.npz", overwrite=True)  # doctest: +SKIP
    """
    if dataset is not None and decisions is None and not auto:
        raise InputError(
            "dataset: a copy changes only by decisions: edit actions.csv and give it back with --decisions, or use "
            "--auto for what is safe without a person."
        )
    if auto and dataset is None:
        raise InputError("auto (--auto) changes a copy of the data: name it with --dataset.")
    if out is None and isinstance(run, SampleTable):
        raise InputError("out must name a folder to write, because a table has none.")
    table = run if isinstance(run, SampleTable) else SampleTable.load(run)
    out = local_path(as_path(str(run)) / LISTS if out is None else out)
    copy = None if dataset is None else local_path(dataset)
    samples, problem = _open(table, data, copy is not None)
    source = table.meta.source.get("data") if data is None else str(data) if isinstance(data, (str, Path)) else None
    if samples is not None and samples.root is not None:
        check_apart(out, samples.root)
    if copy is not None:
        if samples is None:
            raise InputError(f"dataset: the data cannot be opened ({problem}); name them with --data.")
        if changed_since(samples, table.meta):
            raise InputError(
                f"dataset: {samples.origin} has changed since it was scored; score it again, then clean it."
            )
        check_dataset(copy, samples, source)
        check_apart(copy, out, "the folder of the lists")
    with contextlib.ExitStack() as locks:
        for path in [out] if copy is None else [out, copy]:
            locks.enter_context(beside_lock(path))
            recover(path)
        check_target(out, overwrite)
        if copy is not None and samples is not None:
            check_target(copy, overwrite, file=samples.root is None)
        ranked = ranked_labels(table, by, count, share)
        facts = ranked.meta.label_errors
        if auto and facts["automatic"].kind is not None:
            raise InputError(f"auto (--auto): {facts['automatic'].reason}")
        lists = Lists(table, ranked, *_classes(table, samples))
        del ranked  # for a large run it holds much that the lists do not need
        if decisions is not None:
            _decide(lists, decisions, auto)
        places = None if samples is None else lists.places(samples)
        if samples is not None and places is not None and not (places >= 0).any():
            problem = f"DATA: no sample of the run is in {samples.origin}; name the data that were scored with --data."
            if data is not None or copy is not None:
                raise InputError(problem)
        elif samples is not None and changed_since(samples, table.meta):
            problem = f"{samples.origin} has changed since it was scored; its images may be of other samples."
        if isinstance(samples, FeatureSamples) and places is not None:
            _check_labels(lists, samples, places)
        summary = {"samples": len(lists)}
        summary |= dict(zip(ACTIONS, np.bincount(lists.action, minlength=len(ACTIONS)).tolist(), strict=True))
        summary |= {"unreadable": len(table.bad), "by": facts["by"], "estimate": facts["estimate"]}
        summary |= {"automatic": asdict(facts["automatic"]), "chance": facts["chance"]}
        notes = [*facts["notes"], *([problem] if problem else [])]
        summary |= {"decided": decisions is not None, "notes": notes, "lists": str(out)}
        summary["suspects"] = [] if decisions is not None else _first_suspects(lists)
        viewed = None if isinstance(samples, FeatureSamples) else samples  # features are no images
        summary = write_folder(out, lambda folder: {**summary, **_write(folder, lists, viewed, places)})
        if copy is not None and samples is not None and places is not None:
            action = pa.array(ACTIONS).take(pa.array(lists.action))
            rows = pa.table({"action": action, "suggested": lists.numbers.take(lists.suggested_classes())})
            summary["dataset"] = write_dataset(copy, rows, samples, places, source)
        return summary


class Lists:
    """What to do with each sample, in the order of the lists; scores are read in parts.

    Attributes:
        row: Row of the table; bad samples come after its last row.
        action: Number in `ACTIONS`.
        suggested: Class of the model; −1 for none.
        rank: 1 is the most suspicious; 0 for a bad sample.
        names: Class names of the model.
        numbers: Numbers of these classes in the data; null where the data lack one.
    """

    def __init__(
        self, table: SampleTable, ranked: RankedLabels, names: Sequence[str], numbers: Sequence[int | None]
    ) -> None:
        self.table, self.names, self.numbers = table, pa.array(names, pa.string()), pa.array(numbers, pa.int64())
        self._p, self._suspicion, (order, action) = ranked.p, ranked.suspicion, ordered_actions(ranked)
        n, bad = len(order), np.zeros(len(table.bad), np.int8)
        self.row = np.arange(n + len(bad), dtype=np.int32)
        self.row[:n] = order
        self._reason = np.append(action, bad + len(REASONS))
        suggested = np.where(self._p.confident[order], self._p.pred[order].astype(np.int32), -1)
        suggested[ranked.suspects :] = -1
        # A class that the data lack cannot be assigned, however confident the network is.
        lacking = np.append(self.numbers.is_null().to_numpy(zero_copy_only=False), False)[suggested]
        action[(action == _RELABEL) & lacking] = _REVIEW
        self.action = np.append(action, bad + ACTIONS.index("drop"))
        self.suggested = np.append(suggested, bad.astype(np.int32) - 1)
        self.rank = np.append(np.arange(1, n + 1, dtype=np.int32), bad.astype(np.int32))

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def ids(self) -> pa.Array:
        """Ids of the rows of the table, followed by those of the bad samples."""
        parts = (*self.table.column("id").chunks, *self.table.bad["id"].chunks)
        return pa.chunked_array([part.cast(pa.string()) for part in parts], pa.string()).combine_chunks()

    def places(self, samples: Samples) -> np.ndarray:
        """The index of each row in the data, −1 if it is not there."""
        found = samples.find(self.ids.take(pa.array(self.row)).to_pylist())
        return np.array([-1 if place is None else place for place in found], dtype=np.int64)

    def suggested_classes(self, part: Any = slice(None)) -> pa.Array:
        """The suggested classes of the model, null for none."""
        return pa.array(self.suggested[part], mask=self.suggested[part] < 0)

    def label_classes(self, part: Any = slice(None)) -> pa.Array:
        """The labels as classes of the model, null where a sample has none or is bad."""
        return self._known(self._p.labels, part, self._p.labeled)

    def rows(self, part: Any) -> pa.Table:
        """Some rows without their scores: classes by the data's number and by name, and the reason."""
        row, p = self.row[part], self._p
        known = np.full(len(self.table), not p.missing)
        classes = {"label": self.label_classes(part), "suggested": self.suggested_classes(part)}
        classes["pred"] = self._known(p.pred, part)
        columns = {"id": self.ids.take(pa.array(row)), "action": pa.array(ACTIONS).take(pa.array(self.action[part]))}
        for name, numbers in classes.items():
            columns |= {name: self.numbers.take(numbers), f"{name}_name": self.names.take(numbers)}
        columns["suspicion"] = self._known(self._suspicion, part)
        columns["rank"] = pa.array(self.rank[part].astype(np.int64), mask=self.rank[part] == 0)
        columns["p_label"] = self._known(p.label, part, known & p.labeled).cast(pa.float64())
        columns["p_pred"] = self._known(p.prediction, part, known).cast(pa.float64())
        texts = pa.chunked_array([pa.array(REASONS, pa.string()), *self.table.bad["error"].cast(pa.string()).chunks])
        reason = np.where(row < len(self.table), self._reason[part], row - len(self.table) + len(REASONS))
        columns["reason"] = texts.take(pa.array(reason))
        return pa.table(columns)

    def pieces(self) -> Iterator[tuple[slice, pa.Table]]:
        """All rows with their scores, in pieces."""
        names = [name for name in self.table.scores if name not in _COLUMNS]
        many = max(_BYTES // (8 * len(names) or 1), _ROWS)
        for start in range(0, max(len(self), 1), many):
            yield from self._pieces(slice(start, start + many), names)

    def _pieces(self, rows: slice, names: Sequence[str]) -> Iterator[tuple[slice, pa.Table]]:
        index = self.row[rows]
        index = pa.array(index, mask=index >= len(self.table))
        scores = pa.table({name: self.table.column(name).take(index) for name in names})  # each is read once for all
        for start in range(0, max(len(index), 1), _ROWS):
            part = slice(rows.start + start, min(rows.start + start + _ROWS, rows.start + len(index)))
            piece, here = self.rows(part), np.arange(start, min(start + _ROWS, len(index)))
            for name in names:  # copied: keeping one piece must not keep them all in memory
                piece = piece.append_column(name, scores[name].take(pa.array(here)))
            yield part, piece

    def sort(self) -> None:
        """Put the rows into the order of their actions."""
        order = np.argsort(self.action, kind="stable")
        for name in ("row", "action", "suggested", "rank", "_reason"):
            setattr(self, name, getattr(self, name)[order])

    def _known(self, values: np.ndarray, part: Any, valid: np.ndarray | None = None) -> pa.Array:
        """Values of the rows, null for bad samples and where they are not valid."""
        row = self.row[part]
        there = row < len(self.table)
        row = np.where(there, row, 0)
        return pa.array(values[row], mask=~there if valid is None else ~(there & valid[row]))


def _open(table: SampleTable, data: Any, copied: bool) -> tuple[Samples | None, str | None]:
    """The data of the run, or why they cannot be opened; a feature file only if it is to be copied."""
    if data is None and not copied and "table" in table.meta.source:
        return None, None
    try:
        features = features_of(table.meta, data, len(table) + len(table.bad))
        return data_of(table.meta, data) if features is None else features, None
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        if data is not None:
            raise
        text = first_line(error).rstrip(".")
        if copied:
            return None, text
        return None, f"{text}." if "--data" in text else f"{text}; say where they are with --data."


def _classes(table: SampleTable, samples: Samples | None) -> tuple[list[str], list[int | None]]:
    """Name of each class of the model, and its number in the data; None where the data lack it."""
    names, mapping = list(table.meta.class_names), table.meta.label_mapping
    used = [pc.max(table.column(column)).as_py() for column in ("label", "pred")]
    n = max(table.meta.model.classes or 0, len(names), max(used) + 1)
    texts = [str(class_name(names, k)) for k in range(n)]
    if isinstance(samples, FeatureSamples) and samples.named and names:  # their numbers are not in the file
        classes = list(samples.classes or ())
        return texts, [classes.index(text) if text in classes else None for text in texts]
    to_data = {model: number for number, model in enumerate(range(n) if mapping is None else mapping)}
    valid: Container[int | None] = range(max(n, len(mapping or ())))
    if samples is not None and samples.classes is not None:
        valid = range(len(samples.classes))
    elif samples is not None and samples.labels is not None and not isinstance(samples, FeatureSamples):
        valid = set(np.unique(samples.labels))
    return texts, [to_data[k] if to_data.get(k) in valid else None for k in range(n)]


def _check_labels(lists: Lists, samples: FeatureSamples, places: np.ndarray) -> None:
    """Refuse a feature file whose labels are not those that the run scored."""
    classes = lists.label_classes()
    known = (places >= 0) & classes.is_valid().to_numpy(zero_copy_only=False)  # unreadable samples have no label here
    labels = lists.numbers.take(classes).fill_null(-1).to_numpy()
    changed = int((labels[known] != np.asarray(samples.labels)[places[known]]).sum())
    if changed:
        raise InputError(
            f"DATA: {changed:,} labels of {samples.origin} are not those that the run scored; score the file again, "
            "then clean it."
        )


def _first_suspects(lists: Lists) -> list[dict[str, Any]]:
    """The first suspects of the lists, classes by name."""
    suspects = lists.rows(np.flatnonzero(lists.action <= _REVIEW)[:_SHOWN])
    columns = {"id": "id", "label": "label_name", "suggested": "suggested_name", "suspicion": "suspicion"}
    return pa.table({name: suspects[column] for name, column in {**columns, "p_label": "p_label"}.items()}).to_pylist()


def _decide(lists: Lists, decisions: Any, auto: bool) -> None:
    """Replace our actions and labels with a person's.

    With `auto`, samples that the lists would relabel and the person does not mention are relabeled; otherwise they are
    for review.
    """
    table = read_by_id(decisions, "decisions", ("id", "action", *_NEW_LABEL))
    if "action" not in table.column_names:
        raise InputError(f"decisions must have a column action, got {', '.join(map(printable, table.column_names))}.")
    guarded = isinstance(decisions, (str, Path)) and Path(decisions).suffix.lower() not in (".parquet", ".pq")
    names, numbers = lists.names.to_pylist(), lists.numbers.to_pylist()
    by_text, shared = classes_by_text(names, numbers)
    if not auto:
        lists.action[lists.action == _RELABEL] = _REVIEW
    texts = [_readings(id_, guarded) for id_ in table["id"].to_pylist()]
    first, second = (places_among(pa.array([text[k] for text in texts], pa.string()), lists.ids) for k in (0, 1))
    position = np.argsort(lists.row)
    decided: set[int] = set()
    for row, place in zip(table.to_pylist(), np.where(first >= 0, first, second).tolist(), strict=True):
        id_ = repr(printable(row["id"]))
        if place < 0:
            raise InputError(f"decisions: the run has no sample {id_}.")
        if (at := int(position[place])) in decided:
            raise InputError(f"decisions must have one row per sample, but a second one names {id_}.")
        decided.add(at)
        if row["action"] not in ACTIONS:
            got = printable(row["action"])
            raise InputError(f"decisions: the action of {id_} must be one of {', '.join(ACTIONS)}, got {got!r}.")
        lists.action[at] = ACTIONS.index(row["action"])
        if row["action"] == "relabel":
            label = next((str(row[name]) for name in _NEW_LABEL if row.get(name) not in (None, "")), None)
            if label is None:
                raise InputError(f"decisions: {id_} is to be relabeled, but new_label does not say to what.")
            k = _meant(label, by_text, guarded)
            if _meant(label, shared, guarded) is not None:  # the lists have the number beside the name
                k = by_text.get(f"#{row.get('suggested')}")
                if k is None or names[k] not in (label, label[1:]):
                    raise InputError(f"decisions: several classes are {printable(label)!r}; give {id_} a number.")
            if k is None:
                raise InputError(f"decisions: the data have no class {printable(label)!r} for {id_}.")
            lists.suggested[at] = k
    lists.sort()


def classes_by_text(names: list[str], numbers: list[int | None]) -> tuple[dict[str, int], dict[str, int]]:
    """Classes by what may be written for them: the name, else the data's number, 3 or ``#3``.

    Also the names that several classes share, which stand for none of them, and how many classes share each.
    """
    shared = {name: n for name, n in Counter(names).items() if n > 1}
    valid = {k: number for k, number in enumerate(numbers) if number is not None}
    texts = {f"#{number}": k for k, number in valid.items()} | {str(number): k for k, number in valid.items()}
    texts |= {names[k]: k for k in valid}
    return {text: k for text, k in texts.items() if text not in shared}, shared


def label_texts(table: SampleTable) -> dict[int, str]:
    """What to write in a decisions file for each class of the model; classes that the data lack are missing."""
    names, numbers = _classes(table, None)
    return {k: text for text, k in classes_by_text(names, numbers)[0].items() if text}  # of several the name, the last


def _meant(text: str, index: dict[str, int], guarded: bool) -> int | None:
    """The class that a text stands for."""
    first, second = _readings(text, guarded)
    return index.get(first, index.get(second))


def _readings(text: str, guarded: bool) -> tuple[str, str]:
    """The readings of a text: as it is, or, first in a CSV, without the guarding apostrophe."""
    plain = text[1:] if text.startswith("'") and re.match(_RISKY, text[1:]) else text
    return (plain, text) if guarded else (text, plain)


def _write(folder: Path, lists: Lists, samples: Samples | None, places: np.ndarray | None) -> dict[str, int]:
    counts, viewer = {"pictures": 0, "paths": 0}, Viewer(samples)
    with contextlib.ExitStack() as files:
        texts = [(folder / f"{action}.txt").open("w", encoding="utf-8", newline="") for action in ACTIONS]
        for text in texts:
            files.enter_context(text)
        writers: dict[str, Any] = {}

        def write(name: str, open_: Callable[[Path, pa.Schema], Any], rows: pa.Table) -> None:
            if name not in writers:
                writers[name] = files.enter_context(open_(folder / name, rows.schema))
            writers[name].write_table(rows)

        for part, rows in lists.pieces():
            write("actions.csv", pyarrow.csv.CSVWriter, _guarded(rows))
            write("actions.parquet", pq.ParquetWriter, rows)
            for number, text in enumerate(texts):
                ids = rows["id"].filter(pa.array(lists.action[part] == number)).to_pylist()
                text.write("".join(f"{_line(id_)}\n" for id_ in ids))
            viewed = viewer.rows(rows, None if places is None else places[part])
            write("samples.parquet", pq.ParquetWriter, viewed)
            counts["pictures"] += len(viewed) - viewed["image"].null_count
            counts["paths"] += len(viewed) - viewed["filepath"].null_count
    return counts


def _guarded(rows: pa.Table) -> pa.Table:
    """The rows with an apostrophe before each text that a spreadsheet would evaluate."""
    for name in [field.name for field in rows.schema if pa.types.is_string(field.type)]:
        risky = pc.match_substring_regex(rows[name], _RISKY)
        texts = pc.if_else(risky, pc.binary_join_element_wise("'", rows[name], ""), rows[name])
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return rows


def _line(id_: str) -> str:
    """An id on one line: as it is, or as a JSON string if it could not be read back from a line."""
    plain = id_.strip() == id_ and len(id_.splitlines()) == 1 and not id_.startswith('"')
    return id_ if plain else json.dumps(id_)


def read_ids(path: str | Path) -> list[str]:
    """The ids in ``review.txt`` and the other lists: a line that begins with ``"`` is a JSON string."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) if line.startswith('"') else line for line in lines if line]
