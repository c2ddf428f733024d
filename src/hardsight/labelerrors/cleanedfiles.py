"""Cleaned copies that are one file: arrays, and features in Parquet, safetensors or ``.npz``.

A copy has everything that its source has, in the same order and types, without the dropped rows and with new labels
only for relabeled samples. It is marked as written by hardsight.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hardsight.data import FeatureSamples
from hardsight.errors import InputError
from hardsight.untrusted import Arrays

_KEY = "hardsight_cleaned"  # marks a file as ours: an array of an .npz, a metadata entry of other files
_NOT_PER_SAMPLE = ("weight", "bias", "classes")  # even where there are as many classes as samples
_BATCH_ROWS = 1 << 16  # of a Parquet file, in memory at a time; larger row groups are divided


def is_cleaned_file(file: Path) -> bool:
    """Whether a file is an earlier cleaned copy."""
    if not file.is_file():
        return False
    try:
        if file.suffix == ".parquet":
            return _KEY.encode() in (pq.read_schema(file).metadata or {})
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as stored:
                return _KEY in (stored.metadata() or {})
        with zipfile.ZipFile(file) as archive:
            return f"{_KEY}.npy" in archive.namelist()
    except Exception:  # whatever a parser raises: then it is not ours
        return False


def write_archive(
    target: Path, arrays: Iterable[tuple[str, np.ndarray]], counts: Mapping[str, int], source: Path | None
) -> None:
    """Write arrays as an ``.npz``, and copy the rest of the source byte by byte, without loading it."""
    members: list[zipfile.ZipInfo] = []
    if source is not None:
        with zipfile.ZipFile(source) as original:
            members = original.infolist()
    compression, written = {info.filename: info.compress_type for info in members}, set()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(key: str, values: np.ndarray) -> None:
            member = zipfile.ZipInfo(f"{key}.npy")
            member.compress_type = compression.get(member.filename, zipfile.ZIP_DEFLATED)
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)
            written.add(key)

        for key, values in arrays:
            add(key, values)
        add(_KEY, np.array(json.dumps(counts)))
        if source is not None:
            with zipfile.ZipFile(source) as original:
                for info in original.infolist():
                    if info.filename.removesuffix(".npy") not in written:
                        member = zipfile.ZipInfo(info.filename)
                        member.compress_type = info.compress_type
                        with original.open(info) as a, archive.open(member, "w", force_zip64=True) as b:
                            shutil.copyfileobj(a, b)


def wide_enough(type_: np.dtype, labels: np.ndarray) -> np.dtype:
    """The type of stored class numbers, or int64 where it cannot hold all of these."""
    return type_ if labels.max(initial=0) <= np.iinfo(type_).max else np.dtype(np.int64)


def write_features(target: Path, samples: FeatureSamples, labels: np.ndarray, counts: Mapping[str, int]) -> None:
    """Rewrite a feature file with these labels, −1 for samples to leave out."""
    write = {".parquet": _write_parquet, ".safetensors": _write_safetensors, ".npz": _write_npz}
    try:
        write[samples.file.suffix](target, samples, labels, counts)
    except (OSError, pa.ArrowException, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of a parser
            raise
        raise InputError(f"DATA: {samples.origin} cannot be copied: it is damaged.") from error


def _write_npz(target: Path, samples: FeatureSamples, labels: np.ndarray, counts: Mapping[str, int]) -> None:
    stored, kept = Arrays(samples.file, "DATA", samples.most), np.flatnonzero(labels >= 0)

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name in stored.names:
            if name in (*_NOT_PER_SAMPLE, _KEY):
                continue
            values = stored[name]
            if name == samples.label_key:
                yield name, _relabeled(values, samples, labels)[kept]
            elif values.ndim and len(values) == len(labels):
                yield name, values[kept]

    write_archive(target, arrays(), counts, samples.file)


def _relabeled(stored: np.ndarray, samples: FeatureSamples, labels: np.ndarray) -> np.ndarray:
    """Stored labels with the changed ones replaced."""
    changed = _changed(samples, labels)
    if samples.named:
        new = np.array([(samples.classes or ())[k] for k in labels[changed]], dtype=str)
        values = stored.astype(np.promote_types(stored.dtype, new.dtype))  # a longer name must not be cut
    else:
        new = labels[changed]
        values = stored.astype(wide_enough(stored.dtype, new))
    values[changed] = new
    return values


def _changed(samples: FeatureSamples, labels: np.ndarray) -> np.ndarray:
    return np.flatnonzero((labels >= 0) & (labels != samples.labels))


def _write_safetensors(target: Path, samples: FeatureSamples, labels: np.ndarray, counts: Mapping[str, int]) -> None:
    kept, changed = torch.from_numpy(np.flatnonzero(labels >= 0)), torch.from_numpy(_changed(samples, labels))
    tensors = {}
    with safe_open(samples.file, "pt") as source:
        metadata = source.metadata() or {}
        for name in source.keys():  # noqa: SIM118 - it is no mapping
            values = source.get_tensor(name)
            if name == samples.label_key:
                new = torch.from_numpy(labels)[changed]
                fits = not len(new) or int(new.max()) <= torch.iinfo(values.dtype).max
                values = values.clone() if fits else values.long()
                values[changed] = new.to(values.dtype)
            per_sample = values.ndim and len(values) == len(labels) and name not in _NOT_PER_SAMPLE
            tensors[name] = values[kept] if per_sample and len(kept) < len(labels) else values
        save_file(tensors, target, {**metadata, _KEY: json.dumps(counts)})


def _write_parquet(target: Path, samples: FeatureSamples, labels: np.ndarray, counts: Mapping[str, int]) -> None:
    changed, start = _changed(samples, labels), 0
    with pq.ParquetFile(samples.file) as source:
        schema = source.schema_arrow
        at = schema.get_field_index(samples.label_key)
        field = schema.field(at).with_type(_arrow_type(schema.field(at).type, labels[changed]))
        schema = schema.set(at, field).with_metadata({**(schema.metadata or {}), _KEY: json.dumps(counts)})
        groups = range(source.num_row_groups)
        with pq.ParquetWriter(target, schema, compression=_codec(source)) as writer:
            for batch in (batch for i in groups for batch in source.iter_batches(_BATCH_ROWS, row_groups=[i])):
                stop = start + len(batch)
                if stop > len(labels):
                    break
                inside = changed[(changed >= start) & (changed < stop)]
                columns = list(batch.columns)
                columns[at] = _relabeled_arrow(columns[at], field.type, inside - start, labels[inside], samples)
                batch = pa.RecordBatch.from_arrays(columns, schema=schema)
                # Slices, because Arrow cannot filter columns of every type.
                edges = np.flatnonzero(np.diff(labels[start:stop] >= 0, prepend=False, append=False))
                parts = [batch.slice(a, b - a) for a, b in edges.reshape(-1, 2).tolist()]
                if parts:
                    writer.write_table(pa.Table.from_batches(parts))
                start = stop
    if start != len(labels):
        raise InputError(f"DATA: {samples.origin} changed while it was copied.")


def _codec(source: Any) -> str:
    """The compression of a Parquet file's columns, judged by the first."""
    name = source.metadata.row_group(0).column(0).compression.lower() if source.num_row_groups else "snappy"
    return "none" if name == "uncompressed" else name


def _arrow_type(type_: Any, labels: np.ndarray) -> Any:
    """The type of stored labels, or int64 where it cannot hold all of these class numbers."""
    inner = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not pa.types.is_integer(inner):
        return type_
    dtype = np.dtype(inner.to_pandas_dtype())
    return type_ if wide_enough(dtype, labels) == dtype else pa.int64()


def _relabeled_arrow(column: Any, type_: Any, places: np.ndarray, labels: np.ndarray, samples: FeatureSamples) -> Any:
    """Stored labels as a type, with other classes in some places."""
    if column.type != type_:
        column = column.cast(type_)
    if not len(places):
        return column
    used, of_place = np.unique(labels, return_inverse=True)
    values = [(samples.classes or ())[k] for k in used] if samples.named else used.tolist()
    if pa.types.is_dictionary(type_):
        numbers = pa.array(np.arange(len(used)), type_.index_type)
        new = pa.DictionaryArray.from_arrays(numbers, pa.array(values, type_.value_type), ordered=type_.ordered)
    else:
        new = pa.array(values, type_)
    index = np.arange(len(column))
    index[places] = len(column) + of_place
    view = type_ == pa.string_view()  # which Arrow cannot take from
    both = pa.concat_arrays([part.cast(pa.string()) if view else part for part in (column, new)])
    return both.take(pa.array(index)).cast(type_)
