"""The tables of a run: which columns each kind has, and the check of rows that come from a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hardsight.errors import InputError, StateError
from hardsight.scores import MOST_CLASSES
from hardsight.stores import readable
from hardsight.untrusted import check_table


@dataclass(frozen=True)
class Schema:
    """A kind of table in a run: its version, its key and the columns that must be there."""

    version: int
    key: tuple[str, ...]
    columns: Mapping[str, pa.DataType]


SCHEMAS = {
    "samples": Schema(1, ("id",), {"id": pa.string(), "label": pa.int64(), "error": pa.string()}),
    "scores": Schema(1, ("id", "model"), {"id": pa.string(), "model": pa.string(), "pred": pa.int64()}),
    "vectors": Schema(1, ("id", "model"), {"id": pa.string(), "model": pa.string()}),
    "dynamics": Schema(
        1,
        ("id", "epoch"),
        {"id": pa.string(), "epoch": pa.int32(), "label": pa.int32(), "pred": pa.int32()}
        | dict.fromkeys(("angle", "angle_sum", "soft_margin", "margin", "norm", "el2n"), pa.float32()),
    ),
}


def as_written(kind: str, table: pa.Table) -> pa.Table:
    """Rows with the columns and types of their kind, and its version beside them."""
    version = str(SCHEMAS[kind].version)
    return _cast(table, kind).replace_schema_metadata({"hardsight_kind": kind, "hardsight_version": version})


def _cast(table: pa.Table, kind: str, names: Collection[str] | None = None) -> pa.Table:
    for name, type_ in SCHEMAS[kind].columns.items():
        if (names is None or name in names) and table[name].type != type_:
            table = table.set_column(table.column_names.index(name), name, table[name].cast(type_))
    return table


def read_part(file: Path, kind: str) -> pa.Table:
    """The rows of a part's file, checked."""
    with damage_errors(file):
        # Group by group: lists of many rows take three times their size to decode.
        with pq.ParquetFile(readable(file), page_checksum_verification=True) as parquet:
            groups = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
            table = check_table(pa.concat_tables(groups) if groups else parquet.schema_arrow.empty_table())
        check_version(table.schema, kind, file.name)
        return checked_rows(table, kind)


def check_version(schema: pa.Schema, kind: str, name: str) -> None:
    """Refuse a file that a newer hardsight wrote."""
    version, newest = int((schema.metadata or {}).get(b"hardsight_version", b"0")), SCHEMAS[kind].version
    if version > newest:
        raise StateError(
            f"RUN: {name} was written by a newer hardsight ({kind} version {version}, this one reads {newest}); "
            "upgrade hardsight."
        )


def checked_rows(table: pa.Table, kind: str, names: Collection[str] | None = None) -> pa.Table:
    """Rows that were read from a file, with the columns, types and class numbers that their kind has; else an error.
    `names` says which columns were read, if not all.
    """
    schema = SCHEMAS[kind]
    table = check_values(_cast(table, kind, names), [key for key in schema.key if names is None or key in names])
    for field in table.schema:
        if field.name in schema.columns or kind == "samples":  # which may have further columns of any type
            continue
        lists = pa.types.is_fixed_size_list(field.type)
        if lists != (kind == "vectors") or not is_number(field.type.value_type if lists else field.type):
            expected = "lists of numbers of one length" if kind == "vectors" else "numbers"
            raise InputError(f"{field.name} must hold {expected}, got {field.type}")
    return table


def check_values(table: pa.Table, required: Iterable[str]) -> pa.Table:
    """Rows with a value in each required column, and no class number that no head has: tables with one row per class
    would not end."""
    for name in required:
        if missing := table[name].null_count:
            raise InputError(f"{name} is missing in {missing:,} rows")
    for name in {"label", "pred", "class"} & {*table.column_names}:
        if (largest := pc.max(table[name]).as_py() or 0) >= MOST_CLASSES:
            raise InputError(f"{name} must be below {MOST_CLASSES:,}, got {largest}")
    return table


def is_number(type_: pa.DataType) -> bool:
    """Whether a column holds numbers or truth values; one without any value may have held them."""
    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    return any(kind(type_) for kind in kinds)


@contextlib.contextmanager
def damage_errors(path: Path) -> Iterator[None]:
    """Report whatever a damaged Parquet file raises as one sentence."""
    try:
        yield
    except (StateError, FileNotFoundError):  # a recorder may have put another file in its place
        raise
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:  # no permission, too many open files
            raise StateError(f"RUN: {path} cannot be read: {os.strerror(error.errno)}.") from error
        why = str(error) if isinstance(error, InputError) else "it is not as it was written"
        raise StateError(f"RUN: {path} is damaged: {why}.") from error


def merged(table: pa.Table, kind: str) -> pa.Table:
    """Keep the first of two rows for one sample (around a kill, in another batch); unequal ones are an error."""
    varying = [name for name in SCHEMAS[kind].key if name == "id" or len(pc.unique(table[name])) > 1]
    key = table["id"] if len(varying) == 1 else pc.binary_join_element_wise(*(table[name] for name in varying), "\0")
    if len(pc.unique(key)) == len(table):
        return table
    first = pc.index_in(key, value_set=key.combine_chunks()).to_numpy()
    again = np.flatnonzero(first != np.arange(len(table)))
    for field in table.schema if len(again) else ():
        if field.name == "label" or pa.types.is_floating(field.type):  # not a prediction, which may be tied
            values = table[field.name].to_numpy().astype(float)
            largest = np.abs(values[np.isfinite(values)]).max(initial=0)
            rtol, atol = (0, 0) if field.name == "label" else (1e-3, 1e-5 * largest)
            close = np.isclose(values[again], values[first[again]], rtol=rtol, atol=atol, equal_nan=True)
            if not close.all():
                ids = table["id"].take(again[~close])
                raise StateError(
                    f"RUN: {len(pc.unique(ids)):,} samples have two different {kind} rows (first: "
                    f"{ids[0].as_py()!r}): two runs wrote into one folder, or ids collide."
                )
    return table.take(np.unique(first)) if len(again) else table
