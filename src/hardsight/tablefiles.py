"""A table as the files of a run, and back: samples, scores per model, and vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight import storedrows
from hardsight.ensemble import mean_over_nets, mean_vectors
from hardsight.errors import ExistingPathError, InputError, StateError
from hardsight.records import Records, has_records
from hardsight.registry import did_you_mean
from hardsight.runs import is_number, is_run, open_parts, read_kinds, read_run
from hardsight.runs.folder import check_expected
from hardsight.stores import as_path

SAVED = "saved_table"  # the plan of a table that was saved directly


def split_rows(rows: pa.Table, bad: pa.Table, model: str, vectors: pa.Table | None = None) -> dict[str, pa.Table]:
    """A table of rows as the tables of a run: samples, and the scores of a model."""
    columns, missing = dict(zip(rows.column_names, rows.columns, strict=True)), pa.nulls(len(rows), pa.int64())
    ids, label, pred = columns.pop("id"), columns.pop("label", missing), columns.pop("pred", missing)
    texts = {name: values for name, values in columns.items() if not is_number(values.type)}
    numbers = {name: values for name, values in columns.items() if name not in texts}
    samples = pa.table({"id": ids, "label": label, "error": pa.nulls(len(rows), pa.string()), **texts})
    scores = pa.table({"id": ids, "model": pa.repeat(model, len(rows)), "pred": pred, **numbers})
    tables = {"samples": pa.concat_tables([samples, bad], promote_options="default"), "scores": scores}
    if vectors is not None:
        tables["vectors"] = vectors.add_column(1, "model", pa.repeat(model, len(vectors)))
    return tables


def read_table(path: str | Path, model: str | None, partial: bool) -> tuple[Any, ...]:
    """The arguments of a `SampleTable`: rows, meta, bad samples and how to read the vectors."""
    parts, meta = open_parts(path, partial=partial)
    if sum(part.samples for part in parts) > storedrows.EAGER_ROWS:
        stored = storedrows.open_stored(as_path(path), parts, meta, model)
        if stored is not None:
            rows, bad, vectors = stored
            return rows, meta, bad, vectors
    tables = read_kinds(as_path(path), parts, meta, ("samples", "scores"))
    if not tables and has_records(path):  # for a recorded training: the last epoch
        records = Records(path)
        if not (epochs := records.index.epochs):
            raise StateError(f"RUN: {path} is being recorded and holds no finished epoch yet.")
        return records.scores(epochs[-1], meta), meta
    samples = tables.get("samples", no_rows("id", "label", "error"))
    scores = tables.get("scores", no_rows("id", "model", "pred"))
    names = pc.unique(scores["model"]).to_pylist()
    if model is not None:
        if model not in names:
            raise InputError(f"RUN: {path} holds no model {model!r}; {did_you_mean(model, names)}")
        scores = scores.filter(pc.equal(scores["model"], model))
    elif len(names) > 1:
        scores, meta = mean_over_nets(scores), replace(meta, models=names)
    bad = samples.filter(pc.is_valid(samples["error"])).select(["id", "error"])
    check_expected(as_path(path), meta, len(scores) + len(bad))
    if not scores["id"].equals(samples["id"]):  # without a bad sample they are
        samples = samples.take(pc.index_in(scores["id"], value_set=samples["id"].combine_chunks()))
    about = {name: samples[name] for name in samples.column_names if name not in ("id", "error")}
    label = about.pop("label")
    columns = {"id": scores["id"], **({} if label.null_count == len(scores) else {"label": label})}
    columns |= {name: scores[name] for name in scores.column_names if name not in ("id", "model")}
    return pa.table(columns | about), meta, bad, lambda: read_vectors(path, model, partial)


def read_vectors(path: str | Path, model: str | None = None, partial: bool = False) -> pa.Table | None:
    """The vectors of a run, of one network or averaged over all of them; None if none were kept."""
    vectors = read_run(path, partial=partial, kinds=("vectors",))[0].get("vectors")
    if vectors is None:
        return None
    if model is not None:
        vectors = vectors.filter(pc.equal(vectors["model"], model))
    pa.default_memory_pool().release_unused()
    return mean_vectors(vectors)


def no_rows(*columns: str) -> pa.Table:
    """An empty table of texts."""
    return pa.table({name: pa.array([], pa.string()) for name in columns})


def class_count(table: Any) -> int:
    """C of the model, or the number implied by labels, predictions and names."""
    known = table.meta.model.classes or len(table.meta.class_names)
    parts = (pa.table({name: part}) for name in ("label", "pred") if name in table for part in table.pieces(name))
    return max(int(known), *(int(class_numbers(part, *part.column_names).max(initial=-1)) + 1 for part in parts), 1)


def class_numbers(rows: pa.Table, name: str) -> np.ndarray:
    """A column of class numbers, −1 for missing values."""
    if name not in rows.column_names:
        return np.full(len(rows), -1)
    numbers = rows[name]
    if pa.types.is_floating(numbers.type):  # a data frame stores integers with gaps as floats
        values = floats(numbers)
        return np.where(np.isfinite(values) & (values >= 0), np.nan_to_num(values), -1).astype(np.int64)
    if not pa.types.is_integer(numbers.type) and not pa.types.is_null(numbers.type):
        raise InputError(f"{name} must hold class numbers, got {numbers.type}; map names to numbers first.")
    return np.maximum(pc.fill_null(numbers.cast(pa.int64()), -1).to_numpy(), -1)


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """A numeric column as float64, NaN for missing values."""
    return column.cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False)


def check_new_run(path: Path, overwrite: bool = False) -> bool:
    """Refuse to save a table over a run; returns whether an existing table may be replaced."""
    if not overwrite and is_run(path):
        there = read_run(path, partial=True, kinds=())[1]
        overwrite = SAVED in there.extra and there.unfinished  # the remains of a killed save
        if not overwrite:
            raise ExistingPathError(f"RUN: {path} is there already; choose another folder, or overwrite it.")
    return overwrite
