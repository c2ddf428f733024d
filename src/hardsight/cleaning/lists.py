"""The lists: what to review, relabel, keep and drop, for people (CSV), programs (Parquet, ids) and viewers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from hardsight.cleaning.datasets import check_dataset, write_dataset
from hardsight.cleaning.decisions import ACTIONS, decided
from hardsight.cleaning.numbering import Numbering
from hardsight.cleaning.targets import check_apart, check_target, our_folder, recover, write_folder
from hardsight.cleaning.viewers import viewer_table
from hardsight.data import Samples, changed_since, data_of
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.labelerrors import actions
from hardsight.runs import LISTS, beside_lock
from hardsight.table import SampleTable


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
    """Write lists of what to review, relabel, keep and drop; and, if asked to, the data cleaned by them.

    The suspects are for a person to review. They are relabeled only where the run itself shows that this is safe (see
    `actions`), and even that changes a copy of the data only with `auto`. What could not be read is dropped; all else
    is kept.

    The folder holds ``actions.csv`` and ``actions.parquet`` (one row per sample, most suspicious first; classes by name
    and by the data's own number), ``review.txt``, ``relabel.txt``, ``keep.txt`` and ``drop.txt`` (ids, one per line:
    `read_ids`), and ``samples.parquet`` (with paths or images, for FiftyOne and Spotlight). In the CSV a text that
    begins with ``= + - @ '``, a tab or a line break has ``'`` put before it, because spreadsheets would calculate it;
    the Parquet files hold every text as it is.

    Args:
        run: The run folder that was scored, best with folds; in Python also a table.
        out: Folder to write; ``RUN/lists`` if not given.
        data: Where the data are, if they have moved or the run does not say.
        by: How to rank the suspects; the measured best if not given; in Python a name from `RANKINGS`.
        count: How many suspects; as many as labels are estimated to be wrong if neither this nor the share is given.
        share: Suspects as a share of the labeled samples.
        decisions: What a person decided: ``actions.csv`` with its column ``action`` edited, or any table with ``id``,
            ``action`` (``keep``, ``review``, ``relabel``, ``drop``) and, to relabel, a class in ``new_label``.
        auto: Relabel in `dataset` what is safe to relabel without a person; refused where nothing is.
        dataset: Also write a cleaned copy of the data, by `decisions` or `auto`: a folder for a folder with one folder
            per class, an ``.npz`` for arrays. What is for review stays as it is.
        overwrite: Replace earlier lists, and an earlier cleaned copy.

    Returns:
        What was done, in numbers; `in_words` makes sentences of it.
    """
    if dataset is not None and decisions is None and not auto:
        raise InputError(
            "dataset: nothing is changed that nobody asked for: edit actions.csv and give it back with --decisions, or "
            "use --auto for what is safe without a person."
        )
    if auto and dataset is None:
        raise InputError("auto (--auto) changes a copy of the data: name it with --dataset.")
    table = run if isinstance(run, SampleTable) else SampleTable.load(run)
    if out is None and isinstance(run, SampleTable):
        raise InputError("out must name a folder to write: a table has no place of its own.")
    out = Path(out) if out is not None else Path(str(run)) / LISTS
    samples, why = _opened(table, data)
    check_target(out, overwrite, our_folder)
    if samples is not None and samples.root is not None:
        check_apart(out, samples.root)
    if dataset is not None:
        if samples is None:
            raise InputError(f"dataset: the data cannot be opened ({why}); name them with --data.")
        if changed_since(samples, table.meta):
            raise InputError(
                f"dataset: {samples.origin} has changed since it was scored; score it again, then clean it."
            )
        check_dataset(Path(dataset), samples, _source(table, data), overwrite)
        check_apart(Path(dataset), out, "the folder of the lists")
    with contextlib.ExitStack() as locks:
        for path in [out] if dataset is None else [out, Path(dataset)]:
            locks.enter_context(beside_lock(path))
        recover(out)
        check_target(out, overwrite, our_folder)  # once more: another process may have been first
        if dataset is not None and samples is not None:
            recover(Path(dataset))
            check_dataset(Path(dataset), samples, _source(table, data), overwrite)
        suspects = actions(table, by, count=count, share=share)
        facts = suspects.meta.label_errors
        gate = facts["automatic"]
        if auto and gate.kind is not None:
            raise InputError(f"auto (--auto): {gate.reason}")
        numbering = Numbering(table, samples)
        rows = _rows(table, suspects, numbering)
        if decisions is not None:
            rows = decided(rows, decisions, numbering, auto=auto)
        where: list[int | None] = [None] * len(rows) if samples is None else samples.find(rows["id"].to_pylist())
        if samples is not None and all(place is None for place in where):
            why = f"DATA: none of the run's samples is in {samples.origin}; name the data that were scored with --data."
            if data is not None or dataset is not None:
                raise InputError(why)
        if samples is not None and why is None and changed_since(samples, table.meta):
            why = f"{samples.origin} has changed since it was scored; what it shows may be other samples."
        done = pc.value_counts(rows["action"]).to_pylist()
        summary = {
            "samples": len(rows),
            **dict.fromkeys(ACTIONS, 0),
            **{entry["values"]: entry["counts"] for entry in done},
            "unreadable": len(table.bad),
            "by": facts["by"],
            "estimate": facts["estimate"],
            "automatic": asdict(gate),
            "chance": facts["chance"],
            "decided": decisions is not None,
            "notes": [*facts["notes"], *([why] if why else [])],
            "lists": str(out),
        }
        summary = write_folder(out, lambda folder: _write(folder, rows, samples, where, summary))
        if dataset is not None and samples is not None:
            summary["dataset"] = write_dataset(Path(dataset), rows, samples, where, _source(table, data))
        return summary


def _source(table: SampleTable, data: Any) -> str | None:
    """The name of the data, where they have one."""
    if data is not None:
        return str(data) if isinstance(data, (str, Path)) else None
    return table.meta.source.get("data")


def _opened(table: SampleTable, data: Any) -> tuple[Samples | None, str | None]:
    """The data of the run, or why they cannot be had."""
    try:
        return data_of(table.meta, data), None
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        if data is not None:
            raise
        why = first_line(error).rstrip(".")
        return None, f"{why}." if "--data" in why else f"{why}; say where they are with --data."


def _rows(table: SampleTable, suspects: SampleTable, numbering: Numbering) -> pa.Table:
    """One row per sample: the action, classes by name and by the data's own number, why, and the scores."""
    rows = suspects.to_arrow()
    columns = {"id": rows["id"], "action": rows["action"]}
    for name in ("label", "suggested", "pred"):
        columns[name] = numbering.numbers(rows[name])
        columns[f"{name}_name"] = numbering.names(rows[name])
    for name in ("suspicion", "rank", "p_label", "p_pred", "reason"):
        columns[name] = rows[name]
    # A class that the data do not have cannot be given to a sample, however sure the network is.
    lacking = pc.and_(pc.equal(columns["action"], "relabel"), pc.is_null(columns["suggested"]))
    columns["action"] = pc.if_else(lacking, "review", columns["action"])
    scores = table.to_arrow().select(["id", *(name for name in table.scores if name not in columns)])
    return SampleTable(pa.table(columns)).join(scores).to_arrow()


def _write(
    folder: Path, rows: pa.Table, samples: Samples | None, where: list[int | None], summary: Mapping[str, Any]
) -> dict[str, Any]:
    texts = [field.name for field in rows.schema if pa.types.is_string(field.type)]
    guarded = rows
    for name in texts:
        guarded = guarded.set_column(rows.column_names.index(name), name, _not_a_formula(rows[name]))
    pyarrow.csv.write_csv(guarded, folder / "actions.csv")
    pq.write_table(rows, folder / "actions.parquet")
    for action in ACTIONS:
        ids = rows["id"].filter(pc.equal(rows["action"], action)).to_pylist()
        (folder / f"{action}.txt").write_text("".join(f"{_line(id_)}\n" for id_ in ids), encoding="utf-8", newline="")
    viewed = viewer_table(rows, samples, where)
    pq.write_table(viewed, folder / "samples.parquet")
    pictures = len(viewed) - viewed["image"].null_count
    paths = len(viewed) - viewed["filepath"].null_count
    return {**summary, "pictures": pictures, "paths": paths}


def _not_a_formula(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts that a spreadsheet takes as they are: ``'`` before what would begin a formula, and before ``'`` itself.

    So one ``'`` taken off every text that begins with it gives the text back.
    """
    risky = pc.match_substring_regex(texts, r"^[=+\-@'\t\r\n＝＋－＠]")
    return pc.if_else(risky, pc.binary_join_element_wise("'", texts, ""), texts)


def _line(id_: str) -> str:
    """An id on one line: as it is, or as a JSON string where it would not come back from a line of its own."""
    plain = id_.strip() == id_ and len(id_.splitlines()) == 1 and not id_.startswith('"')
    return id_ if plain else json.dumps(id_)


def read_ids(path: str | Path) -> list[str]:
    """The ids in ``review.txt`` and its like: a line that begins with ``"`` is a JSON string."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) if line.startswith('"') else line for line in lines if line]


def in_words(summary: Mapping[str, Any]) -> list[str]:
    """What `clean` did, as lines to print."""
    lost = f" ({summary['unreadable']:,} could not be read)" if summary["unreadable"] else ""
    counts = ", ".join(f"{action} {summary[action]:,}" for action in ACTIONS)
    lines = [f"{summary['samples']:,} samples by {summary['by']}: {counts}{lost}"]
    if estimate := summary.get("estimate"):
        lines.append(
            f"confident learning counts {round(estimate['count']):,} labels as wrong; mistakes that the network is "
            "sure of are among them"
        )
    gate = summary["automatic"]
    if summary["relabel"] and not summary["decided"]:
        lines.append(
            f"safe to relabel without a person: {summary['relabel']:,}, of which about {gate['precision']:.0%} get the "
            f"right label (at least {gate['low']:.0%})"
        )
    elif summary["review"] and not summary["decided"]:
        lines.append(f"none is safe to relabel without a person: {gate['reason']}")
    lines += [f"note: {printable(note)}" for note in summary["notes"] if note != summary["chance"]]
    if done := summary.get("dataset"):
        lines.append(
            f"wrote {done['path']}: {done['kept'] + done['relabeled']:,} samples, {done['relabeled']:,} of them under "
            f"another label; {done['dropped']:,} dropped"
        )
        for name, text in _LEFT_OUT.items():
            if done[name]:
                lines.append(f"  {done[name]:,} {text}")
    edit = f"open {summary['lists']}/actions.csv, edit the column action"
    then = "" if summary.get("dataset") else f"; {edit}, and give it back with --decisions FILE --dataset COPY"
    lines.append(f"wrote {summary['lists']}/" + (f" — next:{then[1:]}" if then and summary["review"] else ""))
    return lines


_LEFT_OUT = {
    "missing": "more are left out because they are no longer among the data",
    "unscored": "more are left out because the run did not score them",
}
