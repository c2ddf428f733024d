"""Labels that are probably wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import FEATURE_FILES, DataName
from hardsight.errors import HardsightError
from hardsight.extras import first_line
from hardsight.labelerrors import RANKINGS, accuracy_note, label_texts, noise
from hardsight.labelerrors.suspects import ranked_labels
from hardsight.report.formatting import ID_BYTES
from hardsight.report.rows import BLOCK, MANY_CLASSES, Rows
from hardsight.report.sections import Column, Notice, SampleList, Section
from hardsight.runs import content_hash
from hardsight.stores import as_path

MOST_SUSPECTS, _MOST_BYTES = 20_000, 4_000_000  # on the page: samples, and bytes of their ids
_MOST_NUMBER = 1 << 22  # larger class numbers are really ids; counting by them would fill the memory
_RECORDED = (
    "Records cannot tell how many labels are wrong: see the lowest areas under the margin, or score with --folds."
)


class Suspects(NamedTuple):
    """The result of `label_errors` for each row, suspicion and suggested class code (−1 for none), and in total."""

    suspicion: Callable[[], np.ndarray]
    suggested: np.ndarray
    rows: np.ndarray  # the suspects that the page lists, most suspicious first
    count: int
    by: str
    noise: dict[int, float]  # estimated share of wrong labels by class number
    note: str


def build(rows: Rows) -> Section:
    """The section, or a notice why there is none."""
    suspects = rows.suspects
    if not isinstance(suspects, Suspects):
        reason = _RECORDED if rows.recorded is not None else suspects
        return Section("label_errors", notices=[Notice("info", reason)] if reason and rows.labeled else [])
    count, listed = suspects.count, len(suspects.rows)
    first = f"The {listed:,} most suspicious of {count:,}" if count > listed else "Most suspicious first"
    note = f"{first}, by {suspects.by}: the label, and what the network predicts instead."
    command = f"hardsight clean {shlex.quote(str(rows.run))}" if rows.run is not None else 'hs.clean(table, "lists")'
    next_step = "Decide among the samples above, or list them in files:"
    data = {"count": count, "command": command, "command_note": next_step, "review": _review(rows)}
    lists = [SampleList("suspects", "Suspect labels", note, suspects.rows)]
    text = "How much speaks against the label; larger is more suspect."
    columns = {"suspicion": Column(suspects.suspicion, "suspicion", text, "")}
    return Section("label_errors", "Suspect labels", suspects.note, data=data, lists=lists, columns=columns)


def _review(rows: Rows) -> dict[str, Any]:
    """What review on the page needs: an identity of the run, texts for classes, and the command for the decisions."""
    numbers = rows.numbers.tolist()
    named = rows.classes <= MANY_CLASSES or rows.meta.label_mapping is not None  # else a class is its number
    texts = label_texts(rows.table) if named else {number: f"#{number}" for number in numbers}
    labels = {code: texts.get(number) for code, number in enumerate(numbers)}  # None where the data lack the class
    labels = {code: text for code, text in labels.items() if text != rows.class_name(code)}
    name = re.sub(r"[^\w.-]+", "_", as_path(rows.run or "table").absolute().name) or "run"
    file, places = f"{name}-decisions.csv", (rows.data, *(rows.meta.source.get(key) for key in ("data", "table")))
    source = next((place for place in places if place is not None), None)
    place = Path(DataName.parse(str(source)).name) if isinstance(source, (str, Path)) else Path("arrays.npz")
    suffix = place.suffix if place.suffix in FEATURE_FILES else ".npz"  # a run may name anything
    copy = f"{name}-cleaned{'' if place.is_dir() else suffix}"
    command = f'hs.clean(table, "{name}-lists", decisions="{file}", dataset="{copy}", overwrite=True)'
    if rows.run is not None:
        given = isinstance(rows.data, (str, Path))
        where = f" --data {shlex.quote(str(rows.data)) if given else 'DATA'}" if given or source is None else ""
        command = f"hardsight clean {shlex.quote(str(rows.run))} --decisions ~/Downloads/{file} --dataset {copy}{where}"
        command += " --overwrite"
    return {"key": _key(rows), "labels": labels, "file": file, "command": command}


def _key(rows: Rows) -> str:
    """An identity of the run under which a browser stores decisions: ids, classes, the main score and class names."""
    hashes, names, value, start = [], list(rows.meta.class_names), rows.value, 0
    for ids in _blocks(rows.id_pieces(), BLOCK):
        part = slice(start, start + len(ids))
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(ids)], ids), "")[0].as_py()
        codes = (codes[part].astype(np.int64) for codes in (rows.label, rows.pred))
        hashes.append(content_hash(pc.binary_length(ids).to_numpy(), joined, *codes, value[part], names))
        start = part.stop
    return hashes[0] if len(hashes) == 1 else content_hash(hashes)


def _blocks(pieces: Iterable[pa.Array], size: int) -> Iterator[pa.Array]:
    """Arrays of one size, but the last, from arrays of any."""
    waiting: list[pa.Array] = []
    for piece in pieces:
        while sum(map(len, waiting)) + len(piece) >= size:
            cut = size - sum(map(len, waiting))
            yield pa.concat_arrays([*waiting, piece[:cut]])
            waiting, piece = [], piece[cut:]
        waiting.append(piece)
    if sum(map(len, waiting)):
        yield pa.concat_arrays(waiting)


def find_suspects(rows: Rows) -> Suspects | str:
    """Label errors by the default ranking, or a sentence that says why there are none."""
    if not rows.labeled:
        return "Label errors need labels, and this run has none."
    if (rows.pred < 0).any():
        return "Label errors need a prediction for every sample, which this table lacks."
    if rows.classes > _MOST_NUMBER:
        return f"Label errors are searched for in up to {_MOST_NUMBER:,} classes."
    try:
        ranked = ranked_labels(rows.table, None, None, None)
        estimate = noise(ranked.p)
    except HardsightError as error:  # a table without the columns it needs
        return f"Label errors could not be searched for: {first_line(error)}"
    details, by = ranked.meta.label_errors, str(ranked.meta.label_errors["by"])
    if details["chance"]:
        return ""  # the first notice of the page explains why
    count, gate, summary = int(details["suspects"]), details["automatic"], RANKINGS[by].summary.rstrip(".")
    source = "all classes" if estimate.exact else "label and prediction"
    note = (
        f"{count:,} labels to review: as many as confident learning counts as wrong (from the probabilities of "
        f"{source}; confident mistakes of the network are among them), where the prediction is another class, by "
        f"{by} ({summary[:1].lower()}{summary[1:]}). {accuracy_note(rows.table) or ''}"
    )
    if gate.kind == "implausible":
        note = f"{count:,} labels to review, if you must: {gate.reason}"
    suspects = ranked.order[:count]
    confident = suspects[ranked.p.confident[suspects]]
    suggested = np.full(len(rows), -1, rows.label.dtype)
    suggested[rows.rows_of(confident)] = np.searchsorted(rows.numbers, ranked.p.pred[confident])
    listed = rows.rows_of(suspects[:MOST_SUSPECTS])
    sizes = [len(id_.encode()) for id_ in rows.ids_at(listed)]
    listed = listed[: int((np.cumsum(np.minimum(sizes, ID_BYTES)) <= _MOST_BYTES).sum())]
    shares = {row["class"]: row["share"] for row in estimate.rows.to_pylist() if row["share"] is not None}
    return Suspects(lambda: _suspicion(rows, by), suggested, listed, count, by, shares, note.strip())


def _suspicion(rows: Rows, by: str) -> np.ndarray:
    """Suspicion of each row, NaN without a label: that of the label errors, recomputed rather than kept."""
    values = np.asarray(RANKINGS[by].function(rows.table), dtype=np.float64)
    return np.where(rows.label >= 0, values if rows.order is None else values[rows.order], np.nan)
