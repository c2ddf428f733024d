"""Parquet files whose rows hold an image as bytes: labels and ids are read beforehand, images a row group at a time."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hardsight.data.features import FEATURE_COLUMNS, PROBABILITY_COLUMNS, as_labels
from hardsight.data.folders import path_text
from hardsight.data.samples import IMAGE_COLUMNS, LABEL_COLUMNS, Columns, id_texts, pick_column, shortened
from hardsight.data.shards import MOST_IMAGE, ShardSamples, shard_files
from hardsight.errors import InputError, StoreError
from hardsight.extras import printable
from hardsight.stores import as_path, readable
from hardsight.untrusted import check_regular, check_table

_MOST_CACHED = 1 << 28  # bytes of rows in memory, as the metadata state them


class NoImagesError(InputError):
    """A file holds no images: perhaps features."""


class ParquetSamples(ShardSamples):
    """Rows of Parquet files with an image as bytes, or as the struct of bytes and path that Hugging Face writes.

    Ids come from a column ``id`` or are ``file:row``. Class names are those of Hugging Face's ``ClassLabel``, or the
    labels themselves where these are names. Rows are read in the order in which they lie, a row group at a time: in any
    other order every image costs a whole row group.
    """

    _most_open = 1  # files, each with its rows in memory

    def _read(self) -> None:
        import pyarrow as pa

        self.ids, ends, groups, tables, names = [], [0], [], [], None
        for shard, path in enumerate(self._files):
            place, file = f"DATA: {path.name}", parquet_file(path)
            schema, count = file.schema_arrow, file.metadata.num_rows
            label = pick_column(schema.names, self._columns.label, LABEL_COLUMNS, place)
            id_ = pick_column(schema.names, self._columns.id, ("id", "ids"), place)
            image = image_column(schema, self._columns.image, place)
            if image is None:
                raise NoImagesError(
                    f"{place} must hold images as bytes, got {shortened(schema.names)}; name their column with "
                    "--image-column."
                )
            leaf = f"{image}.bytes" if pa.types.is_struct(schema.field(image).type) else image
            for group in range(file.metadata.num_row_groups):
                about = file.metadata.row_group(group)
                rows = min(about.num_rows, about.num_rows * _MOST_CACHED // max(about.total_byte_size, 1))
                groups.append((shard, group, max(rows, 1), leaf))
                ends.append(ends[-1] + about.num_rows)
            try:
                table = check_table(file.read([name for name in (label, id_) if name is not None], use_threads=False))
            except StoreError:
                raise
            except Exception as error:  # whatever a parser raises: it must not quote the file
                raise InputError(f"{place} is damaged.") from error
            if id_ is None:
                self.ids += [f"{path_text(path.stem)}:{row}" for row in range(count)]
            else:
                self.ids += id_texts(table[id_].to_pylist(), f"{place}, column {printable(id_)}")
            tables.append(pa.table({} if label is None else {"label": table[label]}))
            classes = None if label is None else _class_names(schema, label)
            if shard and ((label is None) != (not tables[0].num_columns) or classes != names):
                raise InputError(
                    f"{place} has other labels or class names than {self._files[0].name}; open them separately."
                )
            names = classes
        self._ends, self._groups = np.array(ends), groups
        if len(self.ids) != ends[-1]:
            raise InputError(f"DATA: {printable(self.origin)} is damaged: its row groups do not add up.")
        if len(self.ids) and tables[0].num_columns:
            self._set_labels(tables, names)

    def _set_labels(self, tables: list[Any], names: list[str] | None) -> None:
        import pyarrow as pa

        try:
            column = pa.concat_tables(tables, promote_options="permissive")["label"]
        except pa.ArrowException:
            raise InputError(f"DATA: labels of {printable(self.origin)} must be of one type in all files.") from None
        labels, self.classes = as_labels(column, names, printable(self.origin))
        self.labels = labels.numpy()
        if names is not None and len(names) <= self.labels.max():
            got = f"{len(names):,} names but a label {self.labels.max():,}"
            raise InputError(f"DATA: {printable(self.origin)} must name every class, got {got}.")

    def _bytes(self, index: int) -> bytes:
        place = int(np.searchsorted(self._ends, index, side="right")) - 1
        shard, group, rows, column = self._groups[place]
        content = self._opened(shard, _Rows).value(column, group, rows, index - int(self._ends[place]))
        content = content.get("bytes") if isinstance(content, dict) else content
        if content is None:
            raise InputError("the row holds no bytes of an image")
        if len(content) > MOST_IMAGE:
            raise InputError(f"the image has {len(content):,} bytes, expected {MOST_IMAGE:,} at most")
        return content


class _Rows:
    """A Parquet file, with the last rows that were read from it."""

    def __init__(self, path: Path) -> None:
        self._file, self._group, self._first, self._column, self._batches = parquet_file(path), -1, 0, [], iter(())

    def value(self, column: str, group: int, rows: int, row: int) -> Any:
        """A value of a row group, reading this many rows at once."""
        if group != self._group or row < self._first:
            self._batches = self._file.iter_batches(rows, row_groups=[group], columns=[column], use_threads=False)
            self._group, self._first, self._column = group, 0, []
        while row >= self._first + len(self._column):
            self._first, self._column = self._first + len(self._column), []  # in this order: there is room for one
            try:
                batch = next(self._batches)
            except StoreError:
                self._group = -1
                raise
            except Exception as error:
                self._group = -1
                raise InputError(f"row group {group:,} is damaged ({type(error).__name__})") from None
            self._column = batch.column(0)
        return self._column[row - self._first].as_py()


def parquet_file(path: Path) -> Any:
    """Open a Parquet file and read its metadata."""
    import pyarrow.parquet as pq

    check_regular(path, "DATA")
    try:
        file = pq.ParquetFile(readable(path), page_checksum_verification=True)
        names = file.schema_arrow.names
    except StoreError:
        raise
    except Exception as error:  # whatever a parser raises: it must not quote the file
        raise NoImagesError(f"DATA: {path.name} is not a Parquet file, or it is damaged.") from error
    if len(set(names)) < len(names):
        raise InputError(f"DATA: {path.name} has columns that repeat.")
    return file


def image_column(schema: Any, given: str | None, place: str) -> str | None:
    """The column of image bytes: the given one, one of a usual name, or the only one if no lists are beside it."""
    import pyarrow as pa

    def binary(kind: Any) -> bool:
        return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)

    def holds_bytes(kind: Any) -> bool:
        inner = pa.types.is_struct(kind) and kind.get_field_index("bytes")
        return binary(kind) or (inner is not False and inner >= 0 and binary(kind.field(inner).type))

    names = [field.name for field in schema if holds_bytes(field.type)]
    only = names if len(names) == 1 and not _lists(schema) else ()
    usual = (*IMAGE_COLUMNS, "jpg", "jpeg", "png", "webp", "image_bytes", "bytes", *only)
    return pick_column(names, given, usual, f"{place}, among image bytes,")


def _lists(schema: Any) -> set[str]:
    return {field.name for field in schema if "list" in str(field.type).partition("<")[0]}


def holds_images(data: str, columns: Columns) -> bool:
    """Whether a Parquet file, or files, hold images to score and not features, which win unless a column is named."""
    import pyarrow.parquet as pq

    files = shard_files(as_path(data)) if data.endswith(".parquet") else []
    if not files or len(files) > 1:
        return bool(files)
    schema = None
    with suppress(Exception):  # whoever reads it reports what is wrong
        schema = pq.read_schema(readable(files[0]))
    if schema is None or (columns.image is None and {*FEATURE_COLUMNS, *PROBABILITY_COLUMNS} & _lists(schema)):
        return False
    return image_column(schema, columns.image, f"DATA: {files[0].name}") is not None


def _class_names(schema: Any, label: str) -> list[str] | None:
    """The names in a ``ClassLabel`` of Hugging Face, which keeps its types in the metadata of the file."""
    names = None
    with suppress(Exception):  # as good as none
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
        "".join(names).encode()
    return names if isinstance(names, list) and names and all(type(name) is str for name in names) else None
