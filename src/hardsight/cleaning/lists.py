"""The lists: what to keep, relabel and drop, for people (CSV), programs (Parquet, ids) and viewers (with pictures)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from hardsight.cleaning.datasets import check_dataset, write_dataset
from hardsight.cleaning.numbering import Numbering
from hardsight.cleaning.targets import check_apart, check_target, our_folder, write_folder
from hardsight.cleaning.viewers import viewer_table
from hardsight.data import FolderSamples, Samples, changed_since, data_of
from hardsight.errors import InputError
from hardsight.extras import first_line, printable
from hardsight.labelerrors import actions
from hardsight.runfolder import LISTS
from hardsight.table import SampleTable


def clean(
    run: str | Path | SampleTable,
    out: str | Path | None = None,
    *,
    data: Any = None,
    by: str | None = None,
    count: int | None = None,
    share: float | None = None,
    dataset: str | Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write lists of what to keep, relabel and drop, and the data cleaned by them.

    A suspect (one of the most suspicious samples whose prediction is not their label) is relabelled when the net is
    sure of another class (a probability of .9, or what it usually gives that class if that is less), and dropped when
    it is sure of none; what could not be read is dropped; all else is kept.

    The folder holds ``actions.csv`` and ``actions.parquet`` (one row a sample, most suspicious first; classes by name
    and by the data's own number), ``keep.txt``, ``relabel.txt`` and ``drop.txt`` (ids, one a line: `read_ids`), and
    ``samples.parquet`` (with paths or pictures, for FiftyOne and Spotlight). In the CSV a text that begins with
    ``= + - @ '``, a tab or a line break has ``'`` put before it, because spreadsheets would calculate it; the
    Parquet files hold every text as it is.

    Args:
        run: A run folder, or a table.
        out: Folder to write; ``RUN/lists`` if not given.
        data: The data that were scored, if they have moved or the run does not say where they are.
        by: A name from `RANKINGS`.
        count: How many suspects; see `label_errors` for how many there are if neither is given.
        share: Which share of the labelled samples are suspects.
        dataset: Also write the cleaned data: a folder for a folder with one folder a class, an ``.npz`` for arrays.
        overwrite: Replace earlier results of this function.

    Returns:
        What was done, in numbers; `in_words` makes sentences of it.
    """
    table = run if isinstance(run, SampleTable) else SampleTable.load(run)
    if out is None and isinstance(run, SampleTable):
        raise InputError("out must name a folder to write: a table has no place of its own.")
    out = Path(out) if out is not None else Path(str(run)) / LISTS
    samples, why = _opened(table, data)
    check_target(out, overwrite, our_folder)
    if isinstance(samples, FolderSamples):
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
    found = actions(table, by, count=count, share=share)
    numbering = Numbering(table, samples)
    where: list[int | None] = [None] * len(found) if samples is None else samples.find(found["id"].tolist())
    if samples is not None and all(place is None for place in where):
        why = f"DATA: none of the run's samples is in {samples.origin}; name the data that were scored with --data."
        if data is not None or dataset is not None:
            raise InputError(why)
    if samples is not None and why is None and changed_since(samples, table.meta):
        why = f"{samples.origin} has changed since it was scored; what it shows may be other samples."
    rows = _rows(table, found, numbering)
    done = pc.value_counts(rows["action"]).to_pylist()
    summary = {
        "samples": len(rows),
        **dict.fromkeys(("keep", "relabel", "drop"), 0),
        **{entry["values"]: entry["counts"] for entry in done},
        "unreadable": len(table.bad),
        "by": found.meta["by"],
        "estimate": found.meta.get("estimate"),
        "notes": [*found.meta["notes"], *([why] if why else [])],
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
    return (table.meta.get("source") or {}).get("data")


def _opened(table: SampleTable, data: Any) -> tuple[Samples | None, str | None]:
    """The data of the run, or why they cannot be had."""
    try:
        return data_of(table.meta, data), None
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        if data is not None:
            raise
        why = first_line(error).rstrip(".")
        return None, f"{why}." if "--data" in why else f"{why}; say where they are with --data."


def _rows(table: SampleTable, found: SampleTable, numbering: Numbering) -> pa.Table:
    """One row a sample: the action, classes by name and by the data's own number, why, and the scores."""
    rows = found.to_arrow()
    columns = {"id": rows["id"], "action": rows["action"]}
    for name in ("label", "suggested", "pred"):
        columns[name] = numbering.numbers(rows[name])
        columns[f"{name}_name"] = numbering.names(rows[name])
    for name in ("suspicion", "rank", "p_label", "p_pred", "reason"):
        columns[name] = rows[name]
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
    for action in ("keep", "relabel", "drop"):
        ids = rows["id"].filter(pc.equal(rows["action"], action)).to_pylist()
        (folder / f"{action}.txt").write_text("".join(f"{_line(id_)}\n" for id_ in ids), encoding="utf-8", newline="")
    seen = viewer_table(rows, samples, where)
    pq.write_table(seen, folder / "samples.parquet")
    pictures = len(seen) - seen["image"].null_count
    paths = len(seen) - seen["filepath"].null_count
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
    """The ids in ``keep.txt``, ``relabel.txt`` or ``drop.txt``: a line that begins with ``"`` is a JSON string."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) if line.startswith('"') else line for line in lines if line]


def in_words(summary: Mapping[str, Any]) -> list[str]:
    """What `clean` did, as lines to print."""
    lost = f" ({summary['unreadable']:,} could not be read)" if summary["unreadable"] else ""
    lines = [
        f"{summary['samples']:,} samples by {summary['by']}: keep {summary['keep']:,}, relabel "
        f"{summary['relabel']:,}, drop {summary['drop']:,}{lost}"
    ]
    if estimate := summary.get("estimate"):
        count, low, high = (round(estimate[name]) for name in ("count", "low", "high"))
        lines.append(f"wrong labels: about {count:,} (95 % interval {low:,}–{high:,})")
    lines += [f"note: {printable(note)}" for note in summary["notes"]]
    if done := summary.get("dataset"):
        lines.append(
            f"wrote {done['path']}: {done['kept'] + done['relabelled']:,} samples, {done['relabelled']:,} of them "
            f"under another label; {done['dropped']:,} dropped"
        )
        for name, words in _LEFT_OUT.items():
            if done[name]:
                lines.append(f"  {done[name]:,} {words}")
    more = "" if summary.get("dataset") else "; --dataset FOLDER or FILE.npz also writes the cleaned data"
    lines.append(f"wrote {summary['lists']}/ — next: open {summary['lists']}/actions.csv{more}")
    return lines


_LEFT_OUT = {
    "missing": "more are left out because they are no longer among the data",
    "unscored": "more are left out because the run did not score them",
    "no_such_class": "of the dropped ones belong to a class that the data do not have",
}
