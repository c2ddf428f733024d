"""Data that users add to a run: a file, a data frame or a mapping of columns, with a column ``id``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hardsight.errors import InputError, InputTypeError
from hardsight.extras import first_line, printable
from hardsight.runs.ids import pieces_of, repeated_ids
from hardsight.stores import local_path
from hardsight.untrusted import check_regular

MOST_GROUPS = 1000


def read_by_id(source: Any, name: str, text: tuple[str, ...] = ("id",)) -> pa.Table:
    """What `as_arrow` reads, with ids as text and one row per id. `name` is its name in errors."""
    table = as_arrow(source, name, text)
    columns = [printable(column)[:80] for column in table.column_names]
    if repeated := [column for column in columns if columns.count(column) > 1]:
        raise InputError(f"{name} must have each column once, but {repeated[0]} repeats.")
    if "id" not in columns:
        raise InputError(f"{name} must have a column id, got {', '.join(columns) or 'none'}.")
    try:
        ids = table["id"].cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(f"{name}: ids must be text or numbers, got {table['id'].type}.") from error
    table = table.set_column(table.column_names.index("id"), "id", ids)
    table = table.filter(pc.is_valid(table["id"]))
    if repeats := len(table) - len(pc.unique(table["id"])):
        raise InputError(f"{name} must have one row per id, but {repeats:,} rows repeat an id.")
    return table


def check_ids(ids: pa.ChunkedArray) -> None:
    """Refuse missing or repeated ids."""
    if missing := ids.null_count:
        raise InputError(f"ids must name every sample, but {missing:,} of {len(ids):,} are missing.")
    if pa.types.is_string(ids.type):  # by hashes, which take less memory than the ids
        repeated, first = repeated_ids(lambda: pieces_of(ids))
    else:
        values = pc.value_counts(ids)
        repeated = len(ids) - len(values)
        first = values.filter(pc.greater(values.field("counts"), 1))[0]["values"].as_py() if repeated else None
    if repeated:
        raise InputError(f"ids must be unique, but {repeated:,} repeat (first: {first!r}).")


def column_by_id(source: Any, ids: pa.Array, name: str) -> pa.Array:
    """The one other column of such a table in the order of `ids`; null if a sample is not in it."""
    table = read_by_id(source, name)
    columns = [column for column in table.column_names if column != "id"]
    if len(columns) != 1:
        listed = ", ".join(printable(column)[:80] for column in table.column_names)
        raise InputError(f"{name} must have a column id and one other, got {listed}; select the two.")
    return table[columns[0]].combine_chunks().take(pc.index_in(ids, value_set=table["id"].combine_chunks()))


def groups_by_id(by: Any, ids: pa.Array) -> tuple[list[Any], np.ndarray]:
    """Names of the groups in order, and the number of each sample's group; −1 if it has none.

    Args:
        by: A mapping from ids to groups, a table with a column id and one other, or one group per sample.
        ids: The samples.
    """
    try:
        if isinstance(by, Mapping):
            values = pa.array([by.get(id_) for id_ in ids.to_pylist()], from_pandas=True)
        elif hasattr(by, "column_names") or hasattr(by, "iloc") or hasattr(by, "to_arrow"):
            values = column_by_id(by, ids, "by")
        else:
            values = pa.array(by if isinstance(by, pa.Array) else np.asarray(by), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"by must hold groups of one type ({first_line(error)}).") from error
    if len(values) != len(ids):
        raise InputError(f"by must hold one group per sample, {len(ids):,}, got {len(values):,}.")
    values = pc.if_else(pc.is_nan(values), None, values) if pa.types.is_floating(values.type) else values
    names = pc.unique(values.drop_null())
    if len(names) > MOST_GROUPS:
        raise InputError(f"by must hold at most {MOST_GROUPS:,} groups, got {len(names):,}; put the values into bins.")
    if not len(names):
        raise InputError("by gives no sample of the run a group; its ids must be those of the run.")
    names = names.take(pc.sort_indices(names))
    return names.to_pylist(), pc.fill_null(pc.index_in(values, value_set=names), -1).to_numpy().astype(np.int64)


def as_arrow(source: Any, name: str, text: tuple[str, ...] = ("id",)) -> pa.Table:
    """A CSV or Parquet file, data frame, Arrow table or mapping of columns as it is; columns of a CSV that are text."""
    if isinstance(source, (str, Path)):
        return _read_file(local_path(source), name, text)
    if isinstance(source, pa.Table):
        return source
    try:
        if isinstance(source, Mapping):
            listed = (list, tuple, pa.Array, pa.ChunkedArray)
            arrays = {str(k): v if isinstance(v, listed) else np.asarray(v) for k, v in source.items()}
            return pa.table({name: pa.array(values) for name, values in arrays.items()})
        if hasattr(source, "iloc"):
            return pa.Table.from_pandas(source, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{name} must be columns of one length and one type each ({first_line(error)}).") from error
    if hasattr(source, "to_arrow"):  # polars, and a SampleTable
        return source.to_arrow()
    if hasattr(source, "__arrow_c_stream__"):
        return pa.table(source)
    raise InputTypeError(f"{name} must be a CSV or Parquet file, a frame or a mapping, got {type(source).__name__}.")


def _read_file(path: Path, name: str, text: tuple[str, ...]) -> pa.Table:
    from pyarrow import csv, parquet

    check_regular(path, name)
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            table = parquet.read_table(path)
        else:  # ids that look like numbers keep their leading zeros
            options = csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string()))
            table = csv.read_csv(path, convert_options=options, parse_options=csv.ParseOptions(newlines_in_values=True))
        table.validate(full=True)  # Parquet does not check that text is text
    except (pa.ArrowException, OSError, ValueError) as error:  # the error is not quoted, because it may quote the file
        raise InputError(f"{name}: {path.name} is not a CSV or Parquet file, or its rows differ in length.") from error
    return table
