"""The lists: what to review, relabel, keep and drop, for people (CSV), programs (Parquet, ids) and viewers."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Container
from dataclasses import asdict
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
    check_apart,
    check_dataset,
    check_target,
    recover,
    viewer_table,
    write_dataset,
    write_folder,
)
from hardsight.labelerrors.suspects import ACTIONS, actions
from hardsight.printing import class_name
from hardsight.runs import LISTS, beside_lock
from hardsight.stores import as_path, local_path
from hardsight.table import SampleTable

_NEW_LABEL = ("new_label", "suggested_name", "suggested")  # what a person writes, then what the lists suggest
_SHOWN = 10  # suspects in the summary
_RISKY = r"^[=+\-@'\t\r\n＝＋－＠]"  # a spreadsheet would calculate it: in a CSV ' is before it, and before ' itself


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
    `actions`), and a copy of the data changes by that only with `auto`.

    The folder holds ``actions.csv`` and ``actions.parquet`` (one row per sample, most suspicious first; classes by name
    and by the data's number), ``review.txt``, ``relabel.txt``, ``keep.txt`` and ``drop.txt`` (ids, one per line:
    `read_ids`), and ``samples.parquet`` (with paths or images, for FiftyOne and Spotlight). In the CSV a text that
    begins with ``= + - @ '``, a tab or a line break has ``'`` before it, because spreadsheets would calculate it.

    Args:
        run: The run folder that was scored, best with folds; in Python also a table.
        out: Folder to write; ``RUN/lists`` if not given.
        data: Where the data are, if they have moved or the run does not say.
        by: How to rank the suspects; the best by measurement if not given; in Python a name from `RANKINGS`.
        count: How many suspects; as many as labels are estimated to be wrong if neither this nor the share is given.
        share: Suspects as a share of the labeled samples.
        decisions: What a person decided: ``actions.csv`` with its column ``action`` edited, or any table with ``id``,
            ``action`` (``keep``, ``review``, ``relabel``, ``drop``) and, to relabel, a class in ``new_label``.
        auto: Relabel in `dataset` what is safe to relabel without a person; refused where nothing is.
        dataset: Also write a cleaned copy of the data, by `decisions` or `auto`: a folder for a folder with one folder
            per class, an ``.npz`` for arrays, a file of the same format for features or probabilities. What is for
            review stays as it is.
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
        suspects = actions(table, by, count=count, share=share)
        facts = suspects.meta.label_errors
        if auto and facts["automatic"].kind is not None:
            raise InputError(f"auto (--auto): {facts['automatic'].reason}")
        classes = _classes(table, samples)
        rows = _rows(table, suspects, *classes)
        if decisions is not None:
            rows = _decided(rows, decisions, *classes, auto)
        places: list[int | None] = [None] * len(rows) if samples is None else samples.find(rows["id"].to_pylist())
        if samples is not None and not any(place is not None for place in places):
            problem = f"DATA: no sample of the run is in {samples.origin}; name the data that were scored with --data."
            if data is not None or copy is not None:
                raise InputError(problem)
        elif samples is not None and changed_since(samples, table.meta):
            problem = f"{samples.origin} has changed since it was scored; its images may be of other samples."
        if isinstance(samples, FeatureSamples):
            _check_labels(rows, samples, places)
        summary = {"samples": len(rows)}
        summary |= {action: pc.sum(pc.equal(rows["action"], action)).as_py() for action in ACTIONS}
        summary |= {"unreadable": len(table.bad), "by": facts["by"], "estimate": facts["estimate"]}
        summary |= {"automatic": asdict(facts["automatic"]), "chance": facts["chance"]}
        notes = [*facts["notes"], *([problem] if problem else [])]
        summary |= {"decided": decisions is not None, "notes": notes, "lists": str(out)}
        summary["suspects"] = [] if decisions is not None else _first_suspects(rows)
        viewed = None if isinstance(samples, FeatureSamples) else samples  # features are no images
        summary = write_folder(out, lambda folder: {**summary, **_write(folder, rows, viewed, places)})
        if copy is not None and samples is not None:
            summary["dataset"] = write_dataset(copy, rows, samples, places, source)
        return summary


def _open(table: SampleTable, data: Any, copied: bool) -> tuple[Samples | None, str | None]:
    """The data of the run, or why they cannot be opened; a feature file, which the lists do not need, to be copied."""
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
    used = [pc.max(table.to_arrow()[column]).as_py() for column in ("label", "pred")]
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


def _check_labels(rows: pa.Table, samples: FeatureSamples, places: list[int | None]) -> None:
    """Refuse a feature file whose labels are not those that the run scored."""
    index = np.array([-1 if place is None else place for place in places], dtype=np.int64)
    known = (index >= 0) & pc.is_valid(rows["label_name"]).to_numpy()  # unreadable samples have no label here
    changed = int((rows["label"].fill_null(-1).to_numpy()[known] != np.asarray(samples.labels)[index[known]]).sum())
    if changed:
        raise InputError(
            f"DATA: {changed:,} labels of {samples.origin} are not those that the run scored; score the file again, "
            "then clean it."
        )


def _first_suspects(rows: pa.Table) -> list[dict[str, Any]]:
    """The first suspects of the lists, classes by name."""
    suspects = rows.filter(pc.is_in(rows["action"], pa.array(["relabel", "review"]))).slice(0, _SHOWN)
    columns = {"id": "id", "label": "label_name", "suggested": "suggested_name", "suspicion": "suspicion"}
    return pa.table({name: suspects[column] for name, column in {**columns, "p_label": "p_label"}.items()}).to_pylist()


def _rows(table: SampleTable, suspects: SampleTable, names: list[str], numbers: list[int | None]) -> pa.Table:
    """One row per sample: the action, classes by the data's number and by name, the reason, and the scores."""
    rows = suspects.to_arrow()
    columns = {"id": rows["id"], "action": rows["action"]}
    for name in ("label", "suggested", "pred"):
        columns[name] = pa.chunked_array([pa.array(numbers, pa.int64())]).take(rows[name])
        columns[f"{name}_name"] = pa.chunked_array([pa.array(names, pa.string())]).take(rows[name])
    columns |= {name: rows[name] for name in ("suspicion", "rank", "p_label", "p_pred", "reason")}
    # A class that the data lack cannot be given to a sample, however confident the network is.
    lacking = pc.and_(pc.equal(columns["action"], "relabel"), pc.is_null(columns["suggested"]))
    columns["action"] = pc.if_else(lacking, "review", columns["action"])
    scores = table.to_arrow().select(["id", *(name for name in table.scores if name not in columns)])
    return SampleTable(pa.table(columns)).join(scores).to_arrow()


def _decided(rows: pa.Table, decisions: Any, names: list[str], numbers: list[int | None], auto: bool) -> pa.Table:
    """The rows of the lists with a person's actions and labels in place of ours.

    With `auto`, what the lists would relabel and the person does not mention stays so; otherwise it is for review.
    """
    table = read_by_id(decisions, "decisions", ("id", "action", *_NEW_LABEL))
    if "action" not in table.column_names:
        raise InputError(f"decisions must have a column action, got {', '.join(map(printable, table.column_names))}.")
    guarded = isinstance(decisions, (str, Path)) and Path(decisions).suffix.lower() not in (".parquet", ".pq")
    by_text, shared = classes_by_text(names, numbers)
    columns = {name: rows[name].to_pylist() for name in ("id", "action", "suggested", "suggested_name")}
    if not auto:
        columns["action"] = ["review" if action == "relabel" else action for action in columns["action"]]
    index, decided = {id_: i for i, id_ in enumerate(columns["id"])}, set()
    for row in table.to_pylist():
        at, id_ = _meant(row["id"], index, guarded), repr(printable(row["id"]))
        if at is None:
            raise InputError(f"decisions: the run has no sample {id_}.")
        if at in decided:
            raise InputError(f"decisions must have one row per sample, but a second one names {id_}.")
        decided.add(at)
        if row["action"] not in ACTIONS:
            got = printable(row["action"])
            raise InputError(f"decisions: the action of {id_} must be one of {', '.join(ACTIONS)}, got {got!r}.")
        columns["action"][at] = row["action"]
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
            columns["suggested_name"][at], columns["suggested"][at] = names[k], numbers[k]
    for name, values in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values, rows.schema.field(name).type))
    return rows.take(np.argsort([ACTIONS.index(action) for action in columns["action"]], kind="stable"))


def classes_by_text(names: list[str], numbers: list[int | None]) -> tuple[dict[str, int], dict[str, int]]:
    """Classes by what may be written for them: the name, else the data's number, 3 or ``#3``.

    Also the names that several classes share and that stand for none of them, with how many do.
    """
    shared = {name: n for name, n in Counter(names).items() if n > 1}
    valid = {k: number for k, number in enumerate(numbers) if number is not None}
    texts = {f"#{number}": k for k, number in valid.items()} | {str(number): k for k, number in valid.items()}
    texts |= {names[k]: k for k in valid}
    return {text: k for text, k in texts.items() if text not in shared}, shared


def label_texts(table: SampleTable) -> dict[int, str]:
    """What to write in a file of decisions for each class of the model; those that the data lack are missing."""
    names, numbers = _classes(table, None)
    return {k: text for text, k in classes_by_text(names, numbers)[0].items() if text}  # of several the name, the last


def _meant(text: str, index: dict[str, int], guarded: bool) -> int | None:
    """What a text stands for: as it is, or, first in a CSV, without the apostrophe that guards it there."""
    plain = text[1:] if text.startswith("'") and re.match(_RISKY, text[1:]) else text
    first, second = (plain, text) if guarded else (text, plain)
    return index.get(first, index.get(second))


def _write(folder: Path, rows: pa.Table, samples: Samples | None, places: list[int | None]) -> dict[str, int]:
    guarded = rows
    for name in [field.name for field in rows.schema if pa.types.is_string(field.type)]:
        risky = pc.match_substring_regex(rows[name], _RISKY)
        texts = pc.if_else(risky, pc.binary_join_element_wise("'", rows[name], ""), rows[name])
        guarded = guarded.set_column(rows.column_names.index(name), name, texts)
    pyarrow.csv.write_csv(guarded, folder / "actions.csv")
    pq.write_table(rows, folder / "actions.parquet")
    for action in ACTIONS:
        lines = [_line(id_) for id_ in rows["id"].filter(pc.equal(rows["action"], action)).to_pylist()]
        (folder / f"{action}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    viewed = viewer_table(rows, samples, places)
    pq.write_table(viewed, folder / "samples.parquet")
    columns = {"pictures": "image", "paths": "filepath"}
    return {key: len(viewed) - viewed[column].null_count for key, column in columns.items()}


def _line(id_: str) -> str:
    """An id on one line: as it is, or as a JSON string where it would not come back from a line."""
    plain = id_.strip() == id_ and len(id_.splitlines()) == 1 and not id_.startswith('"')
    return id_ if plain else json.dumps(id_)


def read_ids(path: str | Path) -> list[str]:
    """The ids in ``review.txt`` and the other lists: a line that begins with ``"`` is a JSON string."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) if line.startswith('"') else line for line in lines if line]
