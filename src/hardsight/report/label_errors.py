"""Labels that are probably wrong."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.data import FEATURE_FILES, DataName
from hardsight.errors import HardsightError
from hardsight.extras import first_line
from hardsight.labelerrors import RANKINGS, accuracy_note, label_errors, label_texts, noise
from hardsight.report.formatting import ID_BYTES
from hardsight.report.rows import MANY_CLASSES, Rows
from hardsight.report.sections import Column, Notice, SampleList, Section
from hardsight.runs import content_hash
from hardsight.stores import as_path
from hardsight.tablefiles import floats

MOST_SUSPECTS, _MOST_BYTES = 20_000, 4_000_000  # on the page: samples, and bytes of their ids
_MOST_NUMBER = 1 << 22  # larger class numbers are ids of another kind; counting by them would fill the memory
_RECORDED = (
    "Records cannot tell how many labels are wrong: see the lowest areas under the margin, or score with --folds."
)


class Suspects(NamedTuple):
    """What `label_errors` says of each row: its suspicion and the suggested class code (−1 for none); and in sum."""

    suspicion: np.ndarray
    suggested: np.ndarray
    rows: np.ndarray  # the suspects that the page lists, most suspicious first
    count: int
    by: str
    noise: dict[int, float]  # estimated share of wrong labels by class number
    note: str


def build(rows: Rows) -> Section:
    """The section, or a notice that says why there is none."""
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
    """What deciding on the page needs: an identity of the run, texts for classes, and the command that applies it."""
    ids, names, numbers = rows.ids, rows.meta.class_names, rows.numbers.tolist()
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(ids)], ids), "")[0].as_py()
    key = content_hash(pc.binary_length(ids).to_numpy(), joined, rows.label, rows.pred, rows.value, list(names))
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
    return {"key": key, "labels": labels, "file": file, "command": command}


def find_suspects(rows: Rows) -> Suspects | str:
    """Label errors by the default ranking, or a sentence that says why there are none."""
    if not rows.labeled:
        return "Label errors need labels, and this run has none."
    if (rows.pred < 0).any():
        return "Label errors need a prediction for every sample, which this table lacks."
    if rows.classes > _MOST_NUMBER:
        return f"Label errors are looked for among at most {_MOST_NUMBER:,} classes."
    try:
        errors, estimate = label_errors(rows.table), noise(rows.table)
    except HardsightError as error:  # a table without the columns it needs
        return f"Label errors could not be looked for: {first_line(error)}"
    details, by = errors.meta.label_errors, str(errors.meta.label_errors["by"])
    if details["chance"]:
        return ""  # the first notice of the page says why
    count, gate, summary = int(details["suspects"]), details["automatic"], RANKINGS[by].summary.rstrip(".")
    source = "all classes" if estimate.exact else "label and prediction"
    note = (
        f"{count:,} labels to review: as many as confident learning counts as wrong (from the probabilities of "
        f"{source}; confident mistakes of the network are among them), where the prediction is another class, by "
        f"{by} ({summary[:1].lower()}{summary[1:]}). {accuracy_note(rows.table) or ''}"
    )
    if gate.kind == "implausible":
        note = f"{count:,} labels to review, if you must: {gate.reason}"
    by_row, ids = errors.aligned(rows.ids), errors.to_arrow()
    suggested = pc.fill_null(by_row["suggested"], -1).to_numpy()
    listed = ids.filter(ids["suspect"]).slice(0, MOST_SUSPECTS)["id"].cast(pa.string())
    listed = listed.slice(0, int((np.cumsum(np.minimum(pc.binary_length(listed), ID_BYTES)) <= _MOST_BYTES).sum()))
    suggested = np.where(suggested >= 0, np.searchsorted(rows.numbers, suggested), -1)
    places = pc.index_in(listed, value_set=rows.ids).to_numpy().astype(np.int64)
    shares = {row["class"]: row["share"] for row in estimate.rows.to_pylist() if row["share"] is not None}
    return Suspects(floats(by_row["suspicion"]), suggested, places, count, by, shares, note.strip())
